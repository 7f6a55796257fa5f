/*
 * bench/kernels.c - how fast each kernel tier is: products and attention, next to the machine's read bandwidth
 *
 *   bench_kernels [tier] [threads]
 *
 * Products read their weights from memory (many copies of a matrix, more than the caches hold) and include
 * packing the activations. One token: GB/s of weights, to be compared with the plain read of the same minute.
 * Many tokens: Tops, two operations per weight and token. Each number is the best of several runs; with one
 * thread the clock is that thread's CPU time, which other processes disturb less.
 */
#include "base/mem.h"
#include "base/platform.h"
#include "base/threads.h"
#include "kernels/kernels.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS = 7 };
static const size_t cold_bytes = (size_t)160 << 20;

static uint32_t state = 1;
static uint32_t next_random(void) { return state = state * 1664525u + 1013904223u; }
static float uniform(void) { return (float)(next_random() >> 8) / 8388608.0f - 1.0f; }

static bool alone;                  /* one thread */

static double now(void)             /* seconds */
{
    struct timespec t;
    clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *need(void *p)
{
    if (p) return p;
    fprintf(stderr, "bench_kernels: no memory\n");
    exit(1);
}

/* ---- the machine -------------------------------------------------------------------------- */

typedef struct reading { const uint64_t *p; size_t n; _Atomic uint64_t sum; } reading;

static void read_part(void *arg, uint32_t id, uint32_t n_threads)
{
    reading *r = arg;
    const size_t from = r->n / n_threads * id / 8 * 8, to = from + r->n / n_threads / 8 * 8;
    uint64_t s[8] = { 0 };
    for (size_t i = from; i < to; i += 8)
        for (int j = 0; j < 8; j++) s[j] ^= r->p[i + j];
    for (int j = 1; j < 8; j++) s[0] ^= s[j];
    r->sum ^= s[0];
}

static double read_bandwidth(plp_team *team, const void *data)
{
    reading r = { data, cold_bytes / 8, 0 };
    double best = 0;
    for (int i = 0; i < RUNS; i++) {
        const double t = now();
        plp_team_run(team, read_part, &r);
        const double speed = (double)cold_bytes / (now() - t) * 1e-9;
        best = speed > best ? speed : best;
    }
    return best;
}

/* ---- products ----------------------------------------------------------------------------- */

typedef struct product {
    const plp_kernels *k;
    plp_rows           w;
    uint32_t           rows, n, slice;
    const float       *x;
    float             *y;
    void              *packed, *work;
    size_t             work_bytes;
    plp_team          *team;
} product;

static void pack(void *arg, uint32_t id, uint32_t n_threads)
{
    product *p = arg;
    for (uint32_t t; (t = plp_team_next(p->team) * PLP_TOKEN_STEP) < p->n; )
        p->k->x_pack(p->x, p->w.k, p->n, p->w.k, t, t + PLP_TOKEN_STEP < p->n ? t + PLP_TOKEN_STEP : p->n, p->packed);
}

static void multiply(void *arg, uint32_t id, uint32_t n_threads)
{
    product *p = arg;
    void *work = (char *)p->work + id * p->work_bytes;
    for (uint32_t r; (r = plp_team_next(p->team) * p->slice) < p->rows; ) {
        const uint32_t end = r + p->slice < p->rows ? r + p->slice : p->rows;
        if (plp_type_form(p->w.type) == PLP_FORM_FLT)
            p->k->linear_f(&p->w, r, end, p->x, p->w.k, p->n, p->y, p->rows, false, work);
        else
            p->k->linear(&p->w, r, end, p->packed, p->n, p->y, p->rows, false, work);
    }
}

/* Seconds of one product, weights from memory. */
static double product_time(const plp_kernels *k, plp_team *team, const uint8_t *weights, int32_t type, uint32_t cols, uint32_t rows, uint32_t n)
{
    const plp_type_info *info = plp_type_get(type);
    const size_t row_bytes = (size_t)cols / info->block_len * info->block_bytes, bytes = row_bytes * rows;
    const size_t copies = cold_bytes / bytes;
    product p = { .k = k, .w = { weights, row_bytes, type, cols }, .rows = rows, .n = n, .team = team,
                  .work_bytes = k->linear_work(n, cols), .slice = n < 12 ? 64 : 96 };
    float *x = need(plp_alloc(PLP_MEM_OTHER, (size_t)n * cols, sizeof *x));
    for (size_t i = 0; i < (size_t)n * cols; i++) x[i] = uniform();
    p.x = x;
    p.y = need(plp_alloc(PLP_MEM_OTHER, (size_t)n * rows, sizeof *p.y));
    p.packed = need(plp_alloc(PLP_MEM_OTHER, k->x_bytes(n, cols), 1));
    p.work = need(plp_alloc(PLP_MEM_OTHER, plp_team_size(team), p.work_bytes));

    /* As many products per run as take a few milliseconds. */
    const size_t repeat = n > 8 ? 1 : copies < 16 ? copies : 16;
    double best = 1e9;
    for (size_t run = 0, at = 0; run < RUNS; run++) {
        const double t = now();
        for (size_t i = 0; i < repeat; i++, at++) {
            p.w.data = weights + at % copies * bytes;
            if (plp_type_form(type) != PLP_FORM_FLT) {
                if (n <= PLP_TOKEN_STEP) k->x_pack(x, cols, n, cols, 0, n, p.packed);
                else plp_team_run(team, pack, &p);
            }
            plp_team_run(team, multiply, &p);
        }
        const double seconds = (now() - t) / (double)repeat;
        best = seconds < best ? seconds : best;
    }
    plp_free(x), plp_free(p.y), plp_free(p.packed), plp_free(p.work);
    return best;
}

static void products(const plp_kernels *k, plp_team *team, uint8_t *weights)
{
    static const int32_t types[] = { PLP_TYPE_Q8_0, PLP_TYPE_Q4_0, PLP_TYPE_Q4_1, PLP_TYPE_Q4_K, PLP_TYPE_Q6_K, PLP_TYPE_F16 };
    static const uint32_t shapes[][2] = { { 2048, 8192 }, { 8192, 2048 }, { 576, 1536 } }, counts[] = { 1, 2, 4, 8, 16, 32, 128, 512 };
    printf("%-8s %-6s %12s   GB/s of weights at 1, 2, 4, 8 tokens | Tops at 8, 16, 32, 128, 512\n", "tier", "type", "k x rows");
    for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
            const plp_type_info *info = plp_type_get(types[i]);
            const uint32_t cols = shapes[s][0], rows = shapes[s][1];
            if (cols % info->block_len) continue;
            const double bytes = (double)cols / info->block_len * info->block_bytes * rows, ops = 2.0 * cols * rows;
            double time[8];
            for (int n = 0; n < 8; n++) time[n] = product_time(k, team, weights, types[i], cols, rows, counts[n]);
            printf("%-8s %-6s %5u x %4u  ", k->tier, info->name, cols, rows);
            for (int n = 0; n < 4; n++) printf(" %5.1f", bytes / time[n] * 1e-9);
            printf(" |");
            for (int n = 3; n < 8; n++) printf(" %.3f", ops * counts[n] / time[n] * 1e-12);
            printf("\n");
            fflush(stdout);
        }
}

/* ---- attention ---------------------------------------------------------------------------- */

/* One thread, n_q queries over a context of whole blocks in random order, from memory. */
static void attention(const plp_kernels *k, const uint8_t *data, uint32_t dim, uint32_t n_q, int format)
{
    const size_t tile = plp_tile_bytes(format, dim, 16), n = cold_bytes / tile;
    void (*attend)(plp_attn *, const void *, uint32_t, plp_seen, const void *) =
        format == PLP_KV_F16 ? k->attn_f16 : format == PLP_KV_Q8 ? k->attn_q8 : k->attn_q4;
    float *q = need(plp_alloc(PLP_MEM_OTHER, (size_t)n_q * dim, sizeof *q)), *acc = need(plp_zalloc(PLP_MEM_OTHER, (size_t)n_q * dim, sizeof *acc));
    float m[64], sum[64];
    for (size_t i = 0; i < (size_t)n_q * dim; i++) q[i] = uniform() * 0.1f;
    double best = 1e9;
    const size_t some = n < 8192 ? n : 8192;
    for (int run = 0; run < RUNS; run++) {
        plp_attn a = { .n_q = n_q, .head_dim = dim, .q = q, .m = m, .s = sum, .acc = acc };
        for (uint32_t i = 0; i < n_q; i++) m[i] = -INFINITY, sum[i] = 0;
        size_t at = next_random() % n;
        const double t = now();
        for (size_t i = 0; i < some; i++) {
            const size_t next = (at + 7919) % n;
            attend(&a, data + at * tile, 16, (plp_seen){ NULL, NULL }, data + next * tile);
            at = next;
        }
        const double seconds = (now() - t) / (double)some;
        best = seconds < best ? seconds : best;
    }
    printf("%-8s attention %s head_dim %3u, %2u queries: %6.0f ns a block, %5.1f GB/s, %.3f Tops\n", k->tier,
           format == PLP_KV_F16 ? "f16" : format == PLP_KV_Q8 ? "q8 " : "q4 ", dim, n_q, best * 1e9, (double)tile / best * 1e-9,
           4.0 * 16 * dim * n_q / best * 1e-12);
    plp_free(q), plp_free(acc);
}

int main(int argc, char **argv)
{
    const char *tier = argc > 1 ? argv[1] : NULL;
    char reason[160];
    const uint32_t n_threads = argc > 2 ? (uint32_t)atoi(argv[2]) : plp_cpu_count(reason, sizeof reason);
    plp_team *team = NULL;
    alone = n_threads == 1;
    plp_error err = { 0 };
    if (plp_team_open(&team, n_threads, &err) != PLP_OK) {
        fprintf(stderr, "bench_kernels: %s\n", err.msg);
        return 1;
    }
    /* Bytes whose 16-bit pieces are small finite halves, whatever a type reads as a scale. */
    uint8_t *data = need(plp_alloc(PLP_MEM_OTHER, cold_bytes, 1));
    for (size_t i = 0; i < cold_bytes; i += 2) {
        data[i] = (uint8_t)(next_random() >> 24);
        data[i + 1] = (uint8_t)(next_random() >> 24 & 0x9f);
    }
    printf("%u threads; plain read of memory: %.1f GB/s\n", n_threads, read_bandwidth(team, data));
    for (uint32_t i = 0; i < plp_kernels_count(); i++) {
        const plp_kernels *k = plp_kernels_at(i);
        if (tier ? strcmp(tier, k->tier) != 0 : i + 1 < plp_kernels_count()) continue;
        products(k, team, data);
        for (int format = PLP_KV_F16; format <= PLP_KV_Q4; format++) {
            attention(k, data, 64, 3, format);
            attention(k, data, 64, 4, format);
            attention(k, data, 64, 48, format);
            attention(k, data, 128, 4, format);
        }
    }
    printf("%u threads; plain read of memory: %.1f GB/s\n", n_threads, read_bandwidth(team, data));
    plp_team_close(team);
    plp_free(data);
    return 0;
}
