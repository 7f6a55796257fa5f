/*
 * tests/native/check_kv_memory.c - does memory follow the live tokens, and what does bookkeeping cost?
 *
 * Blocks are as large as those of SmolLM2-135M (30 layers, 3 kv heads, 64 channels, f16, 16 tokens:
 * 368,640 bytes), pages come from the system, and what is measured is the resident set where the system
 * tells it (/proc), besides the pool's own account.
 */
#include "check.h"

#include <math.h>

#include "base/platform.h"
#include "kv/pool.h"
#include "kv/prefix.h"
#include "kv/table.h"

enum { LEN = 16, BLOCK = 368640, N_SESSIONS = 16, N_CHURN = 10000, CHURN_BLOCK = 32768 };

/* Resident anonymous bytes, -1 where the system does not say. */
static double resident(void)
{
    long n_all, n_resident, n_shared;
    FILE *f = fopen("/proc/self/statm", "r");
    const int n = f ? fscanf(f, "%ld %ld %ld", &n_all, &n_resident, &n_shared) : 0;
    if (f)
        fclose(f);
    return n == 3 ? (double)(n_resident - n_shared) * (double)plp_page_bytes() : -1;
}

static plp_pool *open_pool(size_t block_bytes, uint64_t budget, bool shuffle)
{
    const plp_pool_spec spec = { .n_classes = 1, .block_bytes = { block_bytes }, .budget_bytes = budget, .shuffle = shuffle };
    plp_pool *p = NULL;
    CHECK(plp_pool_open(&p, &spec, NULL) == PLP_OK, "open");
    return p;
}

static void feed(plp_table *t, plp_pool *p, uint32_t n)
{
    const uint32_t before = t->n_blocks;
    plp_copy copy;
    plp_error err;

    CHECK(plp_table_reserve(t, p, n, &copy, &err) == PLP_OK, "%s", err.msg);
    plp_table_advance(t, n);
    for (uint32_t i = before; i < t->n_blocks; i++)
        memset(plp_pool_data(p, t->blocks[i]), 1, plp_pool_block_bytes(p, 0));
}

static double share(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/* Half of the sessions close; then all. In turn: each grows by one token at a time, so that every slab
 * has blocks of several sessions. */
static void memory_goes_back(void)
{
    const uint32_t n_tokens = 400;
    for (int in_turn = 0; in_turn < 2; in_turn++) {
        plp_pool *p = open_pool(BLOCK, UINT64_C(1) << 40, false);
        plp_table t[N_SESSIONS];
        plp_pool_stats full, half, none;
        const double start = resident();

        for (int i = 0; i < N_SESSIONS; i++)
            plp_table_init(&t[i], LEN, 0);
        if (in_turn)
            for (uint32_t k = 0; k < n_tokens * N_SESSIONS; k++)
                feed(&t[k % N_SESSIONS], p, 1);
        else
            for (uint32_t k = 0; k < N_SESSIONS; k++)
                feed(&t[k], p, n_tokens);
        const double at_full = resident();
        plp_pool_get_stats(p, &full);
        for (int i = 0; i < N_SESSIONS; i += 2)
            plp_table_clear(&t[i], p);
        const double at_half = resident();
        plp_pool_get_stats(p, &half);
        for (int i = 1; i < N_SESSIONS; i += 2)
            plp_table_clear(&t[i], p);
        const double at_none = resident();
        plp_pool_get_stats(p, &none);

        const double kv = (double)full.held_bytes;
        const double account = share((double)(full.resident_bytes - half.resident_bytes), kv);
        CHECK(account >= 45 && none.resident_bytes == 0, "half closed gives back %.1f %%", account);
        CHECK(plp_pool_ok(p), "ok");
        printf("  %-14s half closed: %.1f %% back by account", in_turn ? "fed in turn" : "one by one", account);
        if (start >= 0) {
            CHECK(share(at_full - at_half, kv) >= 45, "half closed: %.1f %% of the KV left the resident set", share(at_full - at_half, kv));
            CHECK(share(at_full - at_none, kv) >= 95, "all closed: %.1f %%", share(at_full - at_none, kv));
            CHECK(fabs(at_full - start - (double)full.resident_bytes) < 0.02 * kv + 1e6, "account says %.0f bytes, the system %.0f",
                  (double)full.resident_bytes, at_full - start);
            printf(", %.1f %% by the system; all: %.1f %%", share(at_full - at_half, kv), share(at_full - at_none, kv));
        }
        printf("\n");
        plp_pool_close(p);
    }
}

/* A length with the given mean, exponentially distributed, as chat turns roughly are. */
static uint32_t length(double mean)
{
    const double u = (check_uniform() + 1) / 2;
    return 1 + (uint32_t)(-mean * log(1 - u * 0.9999));
}

/* Ten thousand sessions of 161 prompt and 338 answer tokens on average (ShareGPT) come and go, 16 at a time, in blocks
 * of eight pages, so that it is done in seconds. */
static void utilisation_of_churn(void)
{
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        plp_pool *p = open_pool(CHURN_BLOCK, UINT64_C(1) << 40, shuffle);
        struct { plp_table table; uint32_t left; } s[N_SESSIONS];
        double sum = 0, sum_seen = 0, worst = 100;
        const double start = resident();
        uint32_t n_opened = 0;
        long n = 0, n_seen = 0;

        for (int i = 0; i < N_SESSIONS; i++) {
            plp_table_init(&s[i].table, LEN, 0);
            s[i].left = 0;
        }
        for (long step = 0; n_opened < N_CHURN; step++) {
            uint64_t tokens = 0;
            plp_pool_stats t;
            for (int i = 0; i < N_SESSIONS; i++) {
                if (s[i].left-- == 0) {
                    plp_table_clear(&s[i].table, p);
                    feed(&s[i].table, p, length(161));
                    s[i].left = length(338);
                    n_opened++;
                } else
                    feed(&s[i].table, p, 1);
                tokens += s[i].table.n_tokens;
            }
            plp_pool_get_stats(p, &t);
            const double used = share((double)tokens * (CHURN_BLOCK / LEN), (double)t.resident_bytes);
            sum += used;
            n++;
            if (start >= 0 && step % 1000 == 0) {
                sum_seen += share((double)tokens * (CHURN_BLOCK / LEN), resident() - start);
                n_seen++;
            }
            if (used < worst)
                worst = used;
        }
        CHECK(sum / n >= 96, "utilisation %.2f %%", sum / n);
        CHECK(plp_pool_ok(p), "ok");
        for (int i = 0; i < N_SESSIONS; i++)
            plp_table_clear(&s[i].table, p);
        const double grown = resident() - start;
        printf("  churn%s: %u sessions; %.2f %% of the pool's resident bytes hold tokens on average, %.2f %% at worst",
               shuffle ? ", shuffled" : "", n_opened, sum / n, worst);
        if (start >= 0) {
            CHECK(sum_seen / n_seen >= 96, "utilisation of what the system counts: %.2f %%", sum_seen / n_seen);
            CHECK(grown <= 1e6, "%.0f bytes more at the end than at the start", grown);
            printf("; %.2f %% of the system's count; %.0f kB more at the end", sum_seen / n_seen, grown / 1e3);
        }
        printf("\n");
        plp_pool_close(p);
    }
}

/* ---- what it costs: the least of several runs, nanoseconds per operation; printed, not judged ---- */

#define BEST_OF(n_runs, n_ops, best, ...)                                   \
    do {                                                                    \
        best = 1e18;                                                        \
        for (int run_ = 0; run_ < (n_runs); run_++) {                       \
            const uint64_t begin_ = plp_now_ns();                           \
            __VA_ARGS__                                                     \
            const double ns_ = (double)(plp_now_ns() - begin_) / (n_ops);   \
            if (ns_ < best) best = ns_;                                     \
        }                                                                   \
    } while (0)

static void costs(void)
{
    enum { N = 4096 };
    static plp_block b[N];
    static int32_t tokens[N][LEN];
    double take, drop, pages, warm, insert, find, miss;
    plp_pool *p = open_pool(64, UINT64_C(1) << 40, false);
    plp_prefix *x;

    take = drop = 1e18;
    for (int run = 0; run < 20; run++) {
        const uint64_t t0 = plp_now_ns();
        for (int i = 0; i < N; i++)
            CHECK(plp_pool_take(p, 0, 1, &b[i], NULL) == PLP_OK, "take");
        const uint64_t t1 = plp_now_ns();
        for (int i = N; i--;)
            plp_pool_drop(p, b[i]);
        const uint64_t t2 = plp_now_ns();
        take = fmin(take, (double)(t1 - t0) / N);
        drop = fmin(drop, (double)(t2 - t1) / N);
    }
    printf("  blocks of 64 bytes, slabs included: take %.0f ns, drop %.0f ns\n", take, drop);

    CHECK(plp_pool_take(p, 0, N, b, NULL) == PLP_OK, "take");
    CHECK(plp_prefix_open(&x, p, LEN, ~UINT64_C(0), NULL) == PLP_OK, "open");
    for (int i = 0; i < N; i++)
        for (int k = 0; k < LEN; k++)
            tokens[i][k] = (int32_t)(check_random() % 49152);
    BEST_OF(1, N, insert, for (int i = 0; i < N; i++) plp_prefix_insert(x, i ? b[i - 1] : PLP_NO_BLOCK, tokens[i], b[i]););
    uint32_t n_found = 0;
    BEST_OF(20, N, find, for (int i = 0; i < N; i++) n_found += plp_prefix_find(x, i ? b[i - 1] : PLP_NO_BLOCK, tokens[i]) == b[i];);
    CHECK(n_found == 20 * N, "found %u", n_found);
    BEST_OF(20, N, miss, for (int i = 0; i < N; i++) n_found += plp_prefix_find(x, b[i], tokens[i]) != PLP_NO_BLOCK;);
    CHECK(n_found == 20 * N, "found %u", n_found);
    printf("  index of %d blocks of 16 tokens: insert %.0f ns, find %.0f ns, miss %.0f ns, %.0f bytes per block\n", N, insert, find,
           miss, (double)plp_prefix_bytes(x) / N);
    plp_prefix_close(x);
    plp_pool_close(p);

    /* With real pages: the kernel's part, once per 16 tokens. */
    p = open_pool(BLOCK, UINT64_C(1) << 40, false);
    CHECK(plp_pool_take(p, 0, 1, b, NULL) == PLP_OK, "take");
    BEST_OF(20, 1, pages, CHECK(plp_pool_take(p, 0, 1, b + 1, NULL) == PLP_OK, "take"); memset(plp_pool_data(p, b[1]), 1, BLOCK);
            plp_pool_drop(p, b[1]););
    CHECK(plp_pool_take(p, 0, 100, b + 1, NULL) == PLP_OK, "take");     /* enough used blocks for a warm one */
    BEST_OF(20, 1, warm, CHECK(plp_pool_take(p, 0, 1, b + 101, NULL) == PLP_OK, "take"); memset(plp_pool_data(p, b[101]), 1, BLOCK);
            plp_pool_drop(p, b[101]););
    printf("  blocks of %d bytes: take, fill, drop %.1f us with cold pages, %.1f us with warm ones\n", BLOCK, pages / 1e3, warm / 1e3);
    plp_pool_close(p);
}

int main(void)
{
    RUN(memory_goes_back);
    RUN(utilisation_of_churn);
    RUN(costs);
    return check_done();
}
