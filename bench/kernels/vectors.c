/*
 * bench/kernels/vectors.c - the kernels on one row, and those that store and seal KV: one thread, warm
 *
 * Bytes are what a call must read and write; the measured limit beside them is reading from L1.
 */
#include "bench.h"

#include <stdio.h>

enum { N = 2048, HEAD = 64, HEADS = N / HEAD, LEN = 16, TILE_FLOATS = 4096,
       RUN = 8, MANY = N / HEAD, MANY_FLOATS = MANY * (HEAD + 2) };       /* attn_f16_run: blocks, queries */

typedef struct row {
    const plp_kernels *k;
    float *x, *y, *w, *part, *state, *many;
    void  *tile, *sealed, *work;
} row;

static plp_attn state(const row *r, float *at) { return (plp_attn){ 4, HEAD, r->x, at, at + 4, at + 8, 0 }; }

static void rmsnorm(void *arg)   { row *r = arg; r->k->rmsnorm(r->y, r->x, r->w, N, 1e-5f); }
static void layernorm(void *arg) { row *r = arg; r->k->layernorm(r->y, r->x, r->w, r->w, N, 1e-5f); }
static void rope_norm(void *arg) { row *r = arg; r->k->rope(r->x, HEADS, HEAD, HEAD, r->w, PLP_ROPE_NORM); }
static void rope_neox(void *arg) { row *r = arg; r->k->rope(r->x, HEADS, HEAD, HEAD, r->w, PLP_ROPE_NEOX); }
static void glu_silu(void *arg)  { row *r = arg; r->k->glu(r->y, r->x, r->w, N, PLP_ACT_SILU); }
static void glu_gelu(void *arg)  { row *r = arg; r->k->glu(r->y, r->x, r->w, N, PLP_ACT_GELU); }
static void glu_limited(void *arg) { row *r = arg; r->k->glu_limited(r->y, r->x, r->w, N); }
static void delta_rule(void *arg) { row *r = arg; r->k->delta_rule(r->state, r->x, r->w, r->w + HEAD, 0.9f, 0.5f, r->y, HEAD); }
static void add(void *arg)       { row *r = arg; r->k->add(r->y, r->w, N); }
static void scale(void *arg)     { row *r = arg; r->k->scale(r->x, 1.0f, N); }
static void softcap(void *arg)   { row *r = arg; r->k->softcap(r->y, 30.0f, N); }
static void kv_put(void *arg)
{
    row *r = arg;
    for (uint32_t slot = 0; slot < LEN; slot++)
        r->k->kv_put(r->tile, LEN, slot, r->x + slot * HEAD, r->w + slot * HEAD, HEAD);
}
static void kv_seal_q8(void *arg) { row *r = arg; r->k->kv_seal_q8(r->tile, r->sealed, HEAD); }
static void kv_seal_q4(void *arg) { row *r = arg; r->k->kv_seal_q4(r->tile, r->sealed, HEAD); }
static void attn_f16_run(void *arg)
{
    row *r = arg;
    uint32_t lo[MANY] = { 0 }, hi[MANY];
    const void *tiles[RUN];
    plp_attn a = { MANY, HEAD, r->x, r->many, r->many + MANY, r->many + 2 * MANY, 0 };
    for (int i = 0; i < MANY; i++) hi[i] = RUN * LEN;
    for (int i = 0; i < RUN; i++) tiles[i] = r->tile;
    r->k->attn_f16_run(&a, tiles, LEN, (plp_seen){ lo, hi }, r->work);
}
static void attn_merge(void *arg)
{
    row *r = arg;
    plp_attn into = state(r, r->y), part = state(r, r->part);
    r->k->attn_merge(&into, &part);
}
static void attn_finish(void *arg)
{
    row *r = arg;
    const plp_attn part = state(r, r->part);
    r->k->attn_finish(&part, NULL, r->y, HEAD);
}

void bench_vectors(const bench *b, const plp_kernels *k)
{
    enum { F = sizeof(float), KV = 2 * HEAD * LEN, STATE = 4 * (HEAD + 2) };
    static const struct { const char *name; bench_fn fn; double bytes; } all[] = {
        { "rmsnorm", rmsnorm, 3.0 * N * F }, { "layernorm", layernorm, 4.0 * N * F },
        { "rope norm", rope_norm, 2.0 * N * F }, { "rope neox", rope_neox, 2.0 * N * F },
        { "glu silu", glu_silu, 3.0 * N * F }, { "glu gelu", glu_gelu, 3.0 * N * F },
        { "glu_limited", glu_limited, 3.0 * N * F },
        { "delta_rule", delta_rule, 2.0 * HEAD * HEAD * F },
        { "add", add, 3.0 * N * F }, { "scale", scale, 2.0 * N * F }, { "softcap", softcap, 2.0 * N * F },
        { "kv_put", kv_put, KV * (F + 2.0) }, { "kv_seal_q8", kv_seal_q8, KV * 3.0 }, { "kv_seal_q4", kv_seal_q4, KV * 2.5 },
        { "attn_f16_run", attn_f16_run, RUN * KV * 2.0 },
        { "attn_merge", attn_merge, 3.0 * STATE * F }, { "attn_finish", attn_finish, 2.0 * STATE * F },
    };
    double times[BENCH_MAX_REPS];
    const size_t floats = 4 * N + HEAD * HEAD + MANY_FLOATS, work_bytes = k->attn_run_work(MANY, HEAD);
    const size_t n_bytes = (floats + 2 * TILE_FLOATS) * sizeof(float) + work_bytes + 64;
    float *p = bench_pages(n_bytes);
    float *tiles = p + floats, *state = p + 4 * N;
    row r = { k, p, p + N, p + 2 * N, p + 3 * N, state, state + HEAD * HEAD, tiles, tiles + TILE_FLOATS,
              (void *)(((uintptr_t)(tiles + 2 * TILE_FLOATS) + 63) & ~(uintptr_t)63) };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!bench_wants(b->only, all[i].name))
            continue;
        bench_fill_floats(p, floats);
        kv_put(&r);
        const bool fits = bench_time(b, all[i].fn, &r, times);
        printf("{\"kernel\": \"%s\", \"tier\": \"%s\", \"n\": %d, \"threads\": 1, \"bytes\": %.0f, ", all[i].name, k->tier, N, all[i].bytes);
        if (fits) bench_put_times(b, times);
        else      bench_put_skipped();
    }
    plp_pages_unmap(p, n_bytes);
}
