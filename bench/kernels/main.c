/* bench/kernels/main.c - plp-bench: arguments, timing, output */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "usage: plp-bench limits|kernels|attention [options]\n"
    "  --threads N       size of the team (1)\n"
    "  --reps N          repetitions (7)\n"
    "  --seconds S       least time of a repetition (0.02)\n"
    "  --patience S      leave out what takes longer than this for one call (2)\n"
    "  --tier T,..       only these tiers        --only K,..   only these kernels\n"
    "  --types T,..      only these tensor types --formats F,.. f16, q8, q4\n"
    "  --rows N --k N    the matrix of the products (8192, 2048)\n"
    "  --clock cpu       with one thread: that thread's CPU time, which other processes disturb less (wall)\n"
    "  --cold-mib N      buffer that cold calls walk through (256)\n"
    "  --tokens N --layers N --heads N --kv-heads N --head-dim N    shape of the attention\n"
    "  --block-lens L,.. block lengths (8,16,32,64,128)\n";

static double now(const bench *b)
{
    struct timespec t;
    if (!b->own_time)
        return (double)plp_now_ns() * 1e-9;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fail(const char *what)
{
    fprintf(stderr, "plp-bench: %s\n%s", what, usage);
    exit(2);
}

bool bench_time(const bench *b, bench_fn fn, void *arg, double *times)
{
    double start = now(b);
    fn(arg);                                            /* touches everything once */
    double once = now(b) - start;
    if (once > b->patience)
        return false;
    start = now(b);
    fn(arg);
    once = now(b) - start;
    uint64_t n = once < b->seconds ? (uint64_t)(b->seconds / (once > 1e-8 ? once : 1e-8)) + 1 : 1;
    for (uint32_t r = 0; r < b->n_reps; ) {
        start = now(b);
        for (uint64_t i = 0; i < n; i++)
            fn(arg);
        const double took = now(b) - start;
        if (r == 0 && took < 0.7 * b->seconds) {        /* the first guess was of a cold call */
            n *= 2;
            continue;
        }
        times[r++] = took / (double)n;
    }
    return true;
}

void bench_put_times(const bench *b, const double *times)
{
    printf("\"seconds\": [");
    for (uint32_t r = 0; r < b->n_reps; r++)
        printf("%s%.4g", r ? ", " : "", times[r]);
    printf("]}\n");
    fflush(stdout);
}

void bench_put_skipped(void)
{
    printf("\"skipped\": \"one call outlasts the patience\"}\n");
    fflush(stdout);
}

bool bench_wants(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (!strncmp(p, name, n) && (p[n] == ',' || p[n] == '\0'))
            return true;
    return list == NULL;
}

void *bench_pages(size_t n_bytes)
{
    void *p = plp_pages_map(n_bytes);
    if (!p) {
        fprintf(stderr, "plp-bench: the system refuses %zu bytes\n", n_bytes);
        exit(3);
    }
    return p;
}

uint32_t bench_random(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15u;
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    return (uint32_t)(state >> 21);
}

void bench_fill_weights(void *p, size_t n_bytes)
{
    uint8_t *at = p;
    for (size_t i = 0; i + 4 <= n_bytes; i += 4) {
        const uint32_t four = (bench_random() & 0x0f0f0f0fu) | 0x20202020u;
        memcpy(at + i, &four, 4);
    }
}

void bench_fill_floats(float *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(bench_random() & 0xffffff) / 8388608.0f - 1.0f;
}

static void each_tier(const bench *b, void (*fn)(const bench *, const plp_kernels *))
{
    for (uint32_t i = 0; i < plp_kernels_count(); i++)
        if (bench_wants(b->tier, plp_kernels_at(i)->tier))
            fn(b, plp_kernels_at(i));
}

int main(int argc, char **argv)
{
    bench b = { .n_threads = 1, .n_reps = 7, .seconds = 0.02, .patience = 2, .cold_bytes = (size_t)256 << 20,
                .n_rows = 8192, .k_len = 2048, .block_lens = "8,16,32,64,128", .n_tokens = 8192, .n_layers = 16, .n_heads = 32, .n_kv_heads = 8, .head_dim = 64 };
    const struct { const char *name; uint32_t *number; double *real; const char **text; } options[] = {
        { "--threads", .number = &b.n_threads }, { "--reps", .number = &b.n_reps }, { "--tokens", .number = &b.n_tokens }, { "--layers", .number = &b.n_layers },
        { "--heads", .number = &b.n_heads }, { "--kv-heads", .number = &b.n_kv_heads }, { "--head-dim", .number = &b.head_dim },
        { "--rows", .number = &b.n_rows }, { "--k", .number = &b.k_len },
        { "--seconds", .real = &b.seconds }, { "--patience", .real = &b.patience },
        { "--tier", .text = &b.tier }, { "--only", .text = &b.only }, { "--types", .text = &b.types },
        { "--formats", .text = &b.formats }, { "--block-lens", .text = &b.block_lens },
    };
    plp_error err = { 0 };

    if (argc < 2)
        fail("what is to be timed?");
    for (int i = 2; i < argc; i += 2) {
        bool known = false;
        if (i + 1 == argc)
            fail("an option without its value");
        for (size_t o = 0; o < sizeof options / sizeof options[0]; o++)
            if (!strcmp(argv[i], options[o].name)) {
                known = true;
                if (options[o].number) *options[o].number = (uint32_t)strtoul(argv[i + 1], NULL, 10);
                if (options[o].real) *options[o].real = strtod(argv[i + 1], NULL);
                if (options[o].text) *options[o].text = argv[i + 1];
            }
        if (!strcmp(argv[i], "--cold-mib")) {
            b.cold_bytes = strtoull(argv[i + 1], NULL, 10) << 20;
            known = true;
        }
        if (!strcmp(argv[i], "--clock")) {
            b.own_time = !strcmp(argv[i + 1], "cpu");
            known = b.own_time || !strcmp(argv[i + 1], "wall");
        }
        if (!known)
            fail("no such option");
    }
    if (!b.n_threads || !b.n_reps || b.n_reps > BENCH_MAX_REPS || b.cold_bytes < (size_t)1 << 20)
        fail("threads, repetitions (at most 64) and the cold buffer must not be empty");
    if (!b.n_rows || b.n_rows % PLP_ROW_STEP || !b.k_len || b.k_len % 32)
        fail("rows come in sixteens, their values in thirty-twos");
    if (b.own_time && b.n_threads > 1)
        fail("the CPU time of one thread says nothing about several");
    if (!b.n_tokens || !b.n_layers || !b.n_kv_heads || b.n_kv_heads > 256 || b.n_heads % b.n_kv_heads || !b.head_dim || b.head_dim % 16 || b.head_dim > 256)
        fail("this is no shape of an attention");
    if (plp_team_open(&b.team, b.n_threads, &err) < 0)
        fail(err.msg);

    if (!strcmp(argv[1], "limits")) {
        bench_limits(&b);
    } else if (!strcmp(argv[1], "kernels")) {
        each_tier(&b, bench_products);
        each_tier(&b, bench_vectors);
    } else if (!strcmp(argv[1], "attention")) {
        each_tier(&b, bench_attention);
    } else {
        fail("what is to be timed is one of limits, kernels, attention");
    }
    plp_team_close(b.team);
    return 0;
}
