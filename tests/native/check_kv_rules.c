/* tests/native/check_kv_rules.c - the rules of pool, index and table, one by one */
#include "check.h"

#include "kv/prefix.h"
#include "kv/table.h"
#include "kv_source.h"

enum { LEN = 4 };

static plp_pool *open_pool(size_t a, size_t b, uint64_t budget, uint64_t cache, source *src, bool releases)
{
    plp_pool_spec spec = { .n_classes = 2, .block_bytes = { a, b }, .slab_bytes = 4 * a, .budget_bytes = budget, .cache_bytes = cache };
    plp_pool *p = NULL;
    *src = (source){ .page = plp_page_bytes(), .refuse_after = -1 };
    spec.source = (plp_slab_source){ source_map, source_unmap, releases ? source_release : NULL, src };
    CHECK(plp_pool_open(&p, &spec, NULL) == PLP_OK, "open");
    return p;
}

static plp_pool_stats stats_of(const plp_pool *p)
{
    plp_pool_stats t;
    plp_pool_get_stats(p, &t);
    return t;
}

/* The budget is exact to the block, all or nothing, and says what it lacks. */
static void budget_is_exact(void)
{
    const size_t page = plp_page_bytes(), size = 4 * page;
    plp_block b[64];
    plp_error err;
    source src;
    plp_pool *p = open_pool(size, 2 * page, 10 * size + page, 0, &src, true);

    CHECK(plp_pool_take(p, 0, 11, b, &err) == PLP_E_BUDGET, "11 of 10 blocks");
    CHECK(err.wanted == 11 * size && err.available == 10 * size, "wanted %llu, available %llu",
          (unsigned long long)err.wanted, (unsigned long long)err.available);
    CHECK(stats_of(p).n_held == 0 && stats_of(p).n_taken == 0 && stats_of(p).resident_bytes == 0, "a refusal left something");
    CHECK(plp_pool_take(p, 0, 10, b, &err) == PLP_OK, "10 of 10 blocks: %s", err.msg);
    CHECK(stats_of(p).resident_bytes == 10 * size, "resident %llu", (unsigned long long)stats_of(p).resident_bytes);
    CHECK(plp_pool_take(p, 1, 1, b + 10, &err) == PLP_E_BUDGET, "one page left, two asked for");
    plp_pool_drop(p, b[3]);
    CHECK(plp_pool_take(p, 1, 2, b + 10, &err) == PLP_OK, "a dropped block's pages serve the other class: %s", err.msg);
    CHECK(plp_pool_take(p, 0, 1, b + 20, &err) == PLP_E_BUDGET && err.available == 0, "full");
    CHECK(plp_pool_take(p, 2, 1, b + 20, &err) == PLP_E_ARG, "a class that is not there");
    CHECK(plp_pool_ok(p), "ok");
    plp_pool_close(p);
    CHECK(src.mapped_bytes == 0, "close gives all back");

    plp_pool_spec bad = { .n_classes = 1, .block_bytes = { 100 }, .budget_bytes = 1 };
    p = NULL;
    CHECK(plp_pool_open(&p, &bad, &err) == PLP_E_ARG && !p, "blocks of 100 bytes");
    bad.n_classes = 0;
    CHECK(plp_pool_open(&p, &bad, &err) == PLP_E_ARG && !p, "no classes");
}

/* The least budget for n blocks is enough, a byte less is not, and then the refusal names it instead of advising to close
 * what nobody has opened. */
static void the_least_budget_is_said(void)
{
    static const uint32_t counts[] = { 1, 3, 4, 5, 64, 65 };
    const size_t page = plp_page_bytes(), sizes[] = { 64, page, 2 * page, 2 * page + 64, 4 * page, 9 * page - 64, 100 * page };
    plp_block b[65];
    plp_error err;
    source src;

    for (int releases = 0; releases < 2; releases++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
                const uint32_t n = counts[k];
                plp_pool *p = open_pool(sizes[i], sizes[i], 0, 0, &src, releases);
                const uint64_t least = plp_pool_least_bytes(p, 0, n);
                char kib[48];

                plp_pool_close(p);
                p = open_pool(sizes[i], sizes[i], least - 1, 0, &src, releases);
                snprintf(kib, sizeof kib, "a budget of at least %llu KiB", (unsigned long long)(least + 1023) / 1024);
                CHECK(plp_pool_take(p, 0, n, b, &err) == PLP_E_BUDGET && strstr(err.msg, kib) && !strstr(err.msg, "close"),
                      "%u blocks of %zu in a byte too little: %s", n, sizes[i], err.msg);
                plp_pool_close(p);
                p = open_pool(sizes[i], sizes[i], least, 0, &src, releases);
                CHECK(plp_pool_take(p, 0, n, b, &err) == PLP_OK, "%u blocks of %zu: %s", n, sizes[i], err.msg);
                CHECK(stats_of(p).resident_bytes <= least, "resident");
                CHECK(plp_pool_take(p, 0, 65, b, &err) == PLP_E_BUDGET && strstr(err.msg, "close a session"), "used up: %s", err.msg);
                plp_pool_close(p);
            }
}

/* Where memory comes in slabs, one slab is the unit of refusal, and other classes' slabs can be emptied. */
static void whole_slabs(void)
{
    const size_t page = plp_page_bytes(), size = 4 * page;
    plp_block a[8], b[8];
    plp_error err;
    source src;
    plp_pool *p = open_pool(size, size, 8 * size, 0, &src, false);      /* two slabs of four */

    CHECK(plp_pool_take(p, 0, 8, a, &err) == PLP_OK && stats_of(p).n_slabs == 2, "%s", err.msg);
    for (int i = 0; i < 8; i++)
        plp_pool_set_findable(p, a[i], true);
    for (int i = 0; i < 8; i++)
        if (i != 2)
            plp_pool_drop(p, a[i]);             /* one slab is all cached, the other has a held block */
    CHECK(plp_pool_take(p, 1, 5, b, &err) == PLP_E_BUDGET && err.available == 4 * size, "only one slab can be emptied");
    CHECK(stats_of(p).n_cached == 7 && stats_of(p).n_evicted == 0, "a refusal evicted");
    CHECK(plp_pool_take(p, 1, 1, b, &err) == PLP_OK, "%s", err.msg);
    CHECK(stats_of(p).n_cached == 3 && stats_of(p).n_evicted == 4, "the blocks beside a held one stay: %llu cached",
          (unsigned long long)stats_of(p).n_cached);
    CHECK(plp_pool_trim(p, UINT64_MAX) == 0 && stats_of(p).n_cached == 3, "evicted though it gives nothing back");
    plp_pool_drop(p, b[0]);
    CHECK(stats_of(p).n_slabs == 1, "an empty slab is kept though its class is not used");
    CHECK(plp_pool_take(p, 0, 5, b, &err) == PLP_OK && stats_of(p).n_slabs == 2, "three cached in place, two in a new slab");
    CHECK(plp_pool_ok(p), "ok");
    for (int i = 0; i < 5; i++)
        plp_pool_drop(p, b[i]);
    CHECK(stats_of(p).n_slabs == 2, "one empty slab is kept while the class is used");
    plp_pool_drop(p, a[2]);
    plp_pool_trim(p, UINT64_MAX);
    CHECK(stats_of(p).n_slabs == 0 && src.mapped_bytes == 0, "nothing used, %zu bytes kept", src.mapped_bytes);
    plp_pool_close(p);
}

/* A chain of n blocks whose tokens are all t; blocks[] owns one reference each. */
static void make_chain(plp_pool *p, plp_prefix *x, int32_t t, uint32_t n, plp_block *blocks)
{
    const int32_t tokens[LEN] = { t, t, t, t };
    CHECK(plp_pool_take(p, 0, n, blocks, NULL) == PLP_OK, "take");
    for (uint32_t i = 0; i < n; i++)
        CHECK(plp_prefix_insert(x, i ? blocks[i - 1] : PLP_NO_BLOCK, tokens, blocks[i]) == blocks[i], "insert");
}

static uint32_t chain_found(const plp_prefix *x, int32_t t)
{
    const int32_t tokens[LEN] = { t, t, t, t };
    uint32_t n = 0;
    for (plp_block b = PLP_NO_BLOCK; (b = plp_prefix_find(x, b, tokens)) != PLP_NO_BLOCK;)
        n++;
    return n;
}

static void least_recently_used(void)
{
    const size_t size = 4 * plp_page_bytes();
    plp_block a[4], b[4], c[8];
    source src;
    plp_pool *p = open_pool(size, 64, 9 * size, 0, &src, true);
    plp_prefix *x;

    CHECK(plp_prefix_open(&x, p, LEN, ~UINT64_C(0), NULL) == PLP_OK, "open");
    make_chain(p, x, 1, 4, a);
    make_chain(p, x, 2, 4, b);
    for (int i = 4; i--;) plp_pool_drop(p, a[i]);
    for (int i = 4; i--;) plp_pool_drop(p, b[i]);
    CHECK(chain_found(x, 1) == 4 && chain_found(x, 2) == 4 && stats_of(p).n_cached == 8, "cached");
    for (uint32_t k = 1; k <= 3; k++) {         /* one block is still free */
        CHECK(plp_pool_take(p, 0, k == 1 ? 2 : 1, c + k, NULL) == PLP_OK, "take");
        CHECK(chain_found(x, 1) == 4 - k && chain_found(x, 2) == 4, "%u evicted: the old chain loses its tail", k);
        CHECK(plp_prefix_ok(x) && plp_pool_ok(p), "ok");
    }
    /* Using what is left of the old chain makes the other one the oldest. */
    plp_pool_keep(p, a[0]);
    plp_pool_drop(p, a[0]);
    CHECK(plp_pool_take(p, 0, 1, c, NULL) == PLP_OK, "take");
    CHECK(chain_found(x, 1) == 1 && chain_found(x, 2) == 3, "used chains are young: %u and %u", chain_found(x, 1), chain_found(x, 2));
    plp_prefix_close(x);
    plp_pool_close(p);

    /* Dropped heads first (a sliding window), a chain still goes from its tail. */
    p = open_pool(size, 64, 8 * size, 0, &src, true);
    CHECK(plp_prefix_open(&x, p, LEN, ~UINT64_C(0), NULL) == PLP_OK, "open");
    make_chain(p, x, 1, 4, a);
    make_chain(p, x, 2, 4, b);
    for (int i = 0; i < 4; i++) plp_pool_drop(p, a[i]);
    for (int i = 0; i < 4; i++) plp_pool_drop(p, b[i]);
    for (uint32_t k = 1; k <= 8; k++) {
        CHECK(plp_pool_take(p, 0, 1, c, NULL) == PLP_OK, "take");
        CHECK(chain_found(x, 1) + chain_found(x, 2) == 8 - k && stats_of(p).n_cached == 8 - k,
              "%u evicted, %u and %u findable", k, chain_found(x, 1), chain_found(x, 2));
    }
    plp_prefix_close(x);
    plp_pool_close(p);

    /* A head that is evicted under a held tail takes the tail out of the index, and memory comes back. */
    p = open_pool(size, 64, 4 * size, 0, &src, true);
    CHECK(plp_prefix_open(&x, p, LEN, ~UINT64_C(0), NULL) == PLP_OK, "open");
    make_chain(p, x, 1, 4, a);
    plp_pool_drop(p, a[0]);
    CHECK(plp_pool_take(p, 0, 1, c, NULL) == PLP_OK && plp_prefix_count(x) == 0 && chain_found(x, 1) == 0, "orphans are found");
    for (int i = 4; --i;) plp_pool_drop(p, a[i]);
    CHECK(stats_of(p).n_cached == 0, "unreachable blocks are cached");
    plp_prefix_close(x);
    plp_pool_close(p);
}

static void cache_limit(void)
{
    const size_t size = 4 * plp_page_bytes();
    plp_block a[6];
    source src;
    plp_pool *p = open_pool(size, 64, 100 * size, 3 * size, &src, true);
    plp_prefix *x;

    CHECK(plp_prefix_open(&x, p, LEN, ~UINT64_C(0), NULL) == PLP_OK, "open");
    make_chain(p, x, 1, 6, a);
    for (int i = 6; i--;) plp_pool_drop(p, a[i]);
    CHECK(stats_of(p).n_cached == 3 && chain_found(x, 1) == 3, "%llu cached", (unsigned long long)stats_of(p).n_cached);
    CHECK(stats_of(p).resident_bytes == 3 * size, "resident %llu", (unsigned long long)stats_of(p).resident_bytes);
    plp_prefix_close(x);
    plp_pool_close(p);
}

/* An index that is handed out again must not be mistaken for what it was. */
static void generations(void)
{
    const int32_t one[LEN] = { 1, 1, 1, 1 }, two[LEN] = { 1, 1, 2, 2 };
    const size_t size = 4 * plp_page_bytes();
    plp_block a, b, again;
    uint32_t n;
    source src;
    plp_pool *p = open_pool(size, 64, size * 2, 0, &src, true);
    plp_prefix *x;

    CHECK(plp_prefix_open(&x, p, LEN, 0, NULL) == PLP_OK, "open");
    CHECK(plp_pool_take(p, 0, 1, &a, NULL) == PLP_OK && plp_pool_take(p, 0, 1, &b, NULL) == PLP_OK, "take");
    CHECK(plp_prefix_insert(x, PLP_NO_BLOCK, one, a) == a && plp_prefix_insert(x, a, one, b) == b, "insert");
    CHECK(plp_prefix_find(x, a, one) == b && plp_prefix_find(x, b, one) == PLP_NO_BLOCK, "find");
    CHECK(plp_prefix_find_head(x, a, two, LEN, &n) == b && n == 2, "head %u", n);
    CHECK(plp_prefix_find_head(x, a, two + 2, 2, &n) == PLP_NO_BLOCK && n == 0, "head %u", n);
    const uint32_t generation = plp_pool_generation(p, a);
    CHECK(generation && generation != plp_pool_generation(p, b), "generation");
    plp_pool_drop(p, b);
    plp_pool_drop(p, a);
    CHECK(plp_pool_generation(p, a) == generation, "a cached block is the same block");
    CHECK(plp_pool_take(p, 0, 2, (plp_block[2]){ 0 }, NULL) == PLP_OK, "take both again");
    again = a;
    CHECK(plp_pool_refs(p, again) == 1 && plp_pool_generation(p, again) != generation, "handed out anew");
    CHECK(plp_prefix_find(x, PLP_NO_BLOCK, one) == PLP_NO_BLOCK && plp_prefix_find(x, a, one) == PLP_NO_BLOCK, "found what was evicted");
    CHECK(plp_prefix_insert(x, a, one, b) == b && plp_prefix_count(x) == 0, "child of a parent that is not findable");
    CHECK(plp_pool_generation(p, 12345) == 0 && plp_pool_refs(p, PLP_NO_BLOCK) == 0, "indices not in use");
    plp_prefix_close(x);
    plp_pool_close(p);
}

/* When the system refuses a slab before the budget does, cached blocks of the class are reused. */
static void system_refuses(void)
{
    const size_t size = 4 * plp_page_bytes();
    plp_block a[4], b[4];
    plp_error err;
    source src;
    plp_pool *p = open_pool(size, 64, 100 * size, 0, &src, true);
    plp_prefix *x;

    CHECK(plp_prefix_open(&x, p, LEN, ~UINT64_C(0), NULL) == PLP_OK, "open");
    make_chain(p, x, 1, 4, a);
    for (int i = 4; i-- > 1;) plp_pool_drop(p, a[i]);
    src.refuse_after = 0;
    CHECK(plp_pool_take(p, 0, 3, b, &err) == PLP_OK && stats_of(p).n_evicted == 3, "%s", err.msg);
    CHECK(plp_pool_take(p, 0, 1, b + 3, &err) == PLP_E_NOMEM && err.wanted == size, "nothing is left to evict");
    CHECK(plp_pool_ok(p) && stats_of(p).n_held == 4, "ok");
    plp_prefix_close(x);
    plp_pool_close(p);
}

/* A whole block is appended where the table ends, not behind blocks that were reserved and not used. */
static void adopt_after_reserve(void)
{
    const size_t size = 4 * plp_page_bytes();
    plp_block b;
    plp_copy copy;
    source src;
    plp_pool *p = open_pool(size, 64, 100 * size, 0, &src, true);
    plp_table t;

    plp_table_init(&t, LEN, 0);
    CHECK(plp_table_reserve(&t, p, LEN, &copy, NULL) == PLP_OK, "reserve");
    plp_table_advance(&t, LEN);
    CHECK(plp_table_reserve(&t, p, 3 * LEN, &copy, NULL) == PLP_OK && t.n_blocks == 4, "reserve");
    CHECK(plp_pool_take(p, 0, 1, &b, NULL) == PLP_OK, "take");
    CHECK(plp_table_adopt(&t, p, b, NULL) == PLP_OK && t.n_blocks == 2 && t.blocks[1] == b && t.n_tokens == 2 * LEN, "adopt");
    CHECK(stats_of(p).n_held == 2 && plp_table_ok(&t, p), "reserved blocks stay");
    plp_table_rewind(&t, p, LEN + 1);
    CHECK(plp_table_adopt(&t, p, b, NULL) == PLP_E_ARG, "a whole block inside a block");

    /* A block sealed in another class cannot be continued, but can be stored again from its start. */
    CHECK(plp_pool_take(p, 1, 1, &b, NULL) == PLP_OK, "take");
    plp_table_replace(&t, p, 1, b);
    CHECK(plp_table_reserve(&t, p, 1, &copy, NULL) == PLP_E_ARG, "continued a sealed block of another class");
    plp_table_rewind(&t, p, LEN);
    CHECK(plp_table_reserve(&t, p, 1, &copy, NULL) == PLP_OK && copy.to == PLP_NO_BLOCK, "reserve");
    CHECK(plp_table_reserve(&t, p, UINT32_MAX, &copy, NULL) == PLP_E_ARG, "more positions than there are");
    plp_table_clear(&t, p);
    CHECK(stats_of(p).n_held == 0 && stats_of(p).n_slabs == 0, "clear");
    plp_pool_close(p);
}

/* A gap is a block whose tokens count but whose data is not kept, nor that of any block before it. */
static void gaps(void)
{
    const size_t size = 4 * plp_page_bytes();
    plp_copy copy;
    source src;
    plp_pool *p = open_pool(size, 64, 100 * size, 0, &src, true);
    plp_table t;

    plp_table_init(&t, LEN, 0);
    CHECK(plp_table_reserve(&t, p, 2 * LEN, &copy, NULL) == PLP_OK, "reserve");
    plp_table_advance(&t, 2 * LEN);
    CHECK(plp_table_adopt_gap(&t, p, NULL) == PLP_OK && t.n_tokens == 3 * LEN && t.first == 3, "gap");
    CHECK(stats_of(p).n_held == 0 && plp_table_ok(&t, p), "blocks before a gap are kept");
    CHECK(plp_table_reserve(&t, p, 1, &copy, NULL) == PLP_OK && t.n_blocks == 4 && plp_table_ok(&t, p), "reserve");
    plp_table_advance(&t, 1);
    CHECK(plp_table_adopt_gap(&t, p, NULL) == PLP_E_ARG, "a gap inside a block");
    plp_table_rewind(&t, p, 2 * LEN + 1);
    CHECK(plp_table_reserve(&t, p, 1, &copy, NULL) == PLP_E_ARG, "wrote into a gap");
    plp_table_clear(&t, p);
    CHECK(stats_of(p).n_held == 0, "clear");
    plp_pool_close(p);
}

int main(void)
{
    RUN(budget_is_exact);
    RUN(the_least_budget_is_said);
    RUN(whole_slabs);
    RUN(least_recently_used);
    RUN(cache_limit);
    RUN(generations);
    RUN(system_refuses);
    RUN(adopt_after_reserve);
    RUN(gaps);
    return check_done();
}
