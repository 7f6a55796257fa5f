/*
 * tests/native/gpu_suite.h - every kernel of the portable GPU source, executed by the emulator, against the CPU
 *
 * Two backends get the same calls: the CPU's with the plain-C tier, and the GPU's over a device made here
 * whose memory ends at unreadable pages. Results must be equal to the bit: the GPU kernels keep the CPU
 * kernels' contract. `table` are the kernels, so that broken ones can be put to the same questions.
 */
#ifndef GPU_SUITE_H
#define GPU_SUITE_H

#include "check.h"
#include "weight_blocks.h"

#include "backend/emu/emu.h"
#include "backend/gpu/device.h"
#include "kernels/kernels.h"
#include "kernels/ref/math.h"

#include <math.h>
#include <stdarg.h>

typedef struct bench_device {
    plp_gpu_device       base;
    const plp_simt_body *table;
    uint32_t             seed;
    void                *staging;
    size_t               staging_bytes;
    plp_error            failure;
} bench_device;

typedef struct suite {
    plp_backend *cpu, *gpu;
    bool         brief;                 /* fewer shapes: enough for broken kernels */
    bool         crowded;               /* blocks are restored while a batch is on its way */
    uint32_t     seed;
} suite;

/* ---- a device whose memory is guarded ---- */

static void bench_close(plp_gpu_device *d)
{
    bench_device *x = (bench_device *)d;
    if (x->staging)
        unguard(x->staging, x->staging_bytes);
    free(x);
}
static plp_status bench_memory(plp_gpu_device *d, size_t n, void **out, plp_error *err) { *out = guarded(n); memset(*out, 0xff, n); return PLP_OK; }
static void bench_release(plp_gpu_device *d, void *p, size_t n) { unguard(p, n); }
static plp_status bench_staging(plp_gpu_device *d, size_t n, void **host, void **address, plp_error *err)
{
    bench_device *x = (bench_device *)d;
    if (x->staging)
        unguard(x->staging, x->staging_bytes);
    x->staging_bytes = (n + 63) / 64 * 64;
    *host = *address = x->staging = guarded(x->staging_bytes);
    return PLP_OK;
}
static void *bench_weights(plp_gpu_device *d, const void *host, size_t n) { return NULL; }
static void bench_run(plp_gpu_device *d, const plp_gpu_command *list, uint32_t n, size_t n_staged)
{
    bench_device *x = (bench_device *)d;
    char text[160];
    for (uint32_t i = 0; i < n && x->failure.status >= 0; i++) {
        x->seed = x->seed * 1664525u + 1013904223u;
        if (!plp_simt_launch(x->table[list[i].kernel], list[i].args, list[i].groups, list[i].n_threads, x->seed, text, sizeof text)) {
            x->failure.status = PLP_E_UNSUPPORTED;
            CHECK(false, "kernel %u: %s", list[i].kernel, text);
        }
    }
}
static plp_status bench_wait(plp_gpu_device *d, plp_error *err)
{
    if (err)
        *err = ((bench_device *)d)->failure;
    return ((bench_device *)d)->failure.status;
}
static void bench_write(plp_gpu_device *d, void *to, const void *host, size_t n)   { memcpy(to, host, n); }
static void bench_read(plp_gpu_device *d, void *host, const void *from, size_t n)  { memcpy(host, from, n); }

static const plp_gpu_driver bench_driver = { "bench", bench_close, bench_memory, bench_release, bench_staging, bench_weights,
                                             bench_run, bench_wait, bench_write, bench_read };

static bool suite_open(suite *s, const plp_simt_body *table, uint32_t seed, bool brief)
{
    plp_error err = { 0 };
    bench_device *d = calloc(1, sizeof *d);
    const plp_plan plan = { .max_tokens = 1024, .max_k = 2048, .n_heads = 32, .n_kv_heads = 1, .head_dim = 256, .block_len = 16 };

    *s = (suite){ .brief = brief, .seed = seed };
    setenv("PLP_CPU", "ref", 1);
    d->base.driver = &bench_driver;
    d->table = table;
    d->seed = seed;
    bool ok = plp_cpu_backend_open(&s->cpu, 2, &err) == PLP_OK && plp_gpu_backend_open(&s->gpu, &d->base, &err) == PLP_OK &&
              s->cpu->ops->plan(s->cpu, &plan, &err) == PLP_OK && s->gpu->ops->plan(s->gpu, &plan, &err) == PLP_OK;
    CHECK(ok, "%s", err.msg);
    return ok;
}

static void suite_close(suite *s)
{
    s->gpu->ops->close(s->gpu);
    s->cpu->ops->close(s->cpu);
}

/* ---- the same values on both sides ---- */

typedef struct pair { float *cpu, *gpu; size_t n; } pair;

static void *gpu_bytes(suite *s, size_t n)          { return s->gpu->ops->slab_map(s->gpu, n); }

static pair make(suite *s, size_t n, float size)
{
    pair p = { malloc(n * sizeof(float)), gpu_bytes(s, n * sizeof(float)), n };
    for (size_t i = 0; i < n; i++)
        p.cpu[i] = check_uniform() * size;
    s->gpu->ops->upload(s->gpu, p.gpu, p.cpu, n * sizeof(float));
    return p;
}

static void drop(suite *s, pair *p)
{
    s->gpu->ops->slab_unmap(s->gpu, p->gpu, p->n * sizeof(float));
    free(p->cpu);
}

__attribute__((format(printf, 3, 4)))
static void equal(suite *s, const pair *p, const char *format, ...)
{
    float *got = malloc(p->n * sizeof *got);
    char what[200];
    long at = -1;
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    s->gpu->ops->download(s->gpu, got, p->gpu, p->n * sizeof *got);
    for (size_t i = 0; i < p->n && at < 0; i++)
        if (plp_bits(got[i]) != plp_bits(p->cpu[i]) && !(isnan(got[i]) && isnan(p->cpu[i])))
            at = (long)i;
    CHECK(at < 0, "%s, order %u: [%ld] is %a, the CPU's %a", what, s->seed, at, got[at < 0 ? 0 : at], p->cpu[at < 0 ? 0 : at]);
    free(got);
}

#define BOTH(s, call, a, b) do { (s)->cpu->ops->call a; (s)->gpu->ops->call b; } while (0)

/* ---- rows ---- */

static void check_norms(suite *s)
{
    static const uint32_t widths[] = { 1, 15, 64, 100, 576, 2051 };
    for (unsigned i = 0; i < sizeof widths / sizeof *widths; i++)
        for (uint32_t rows = 1; rows <= 5; rows += 4) {
            const uint32_t n = widths[i], ld = n + i % 3;
            pair x = make(s, (size_t)rows * ld, 3), y = make(s, (size_t)rows * ld, 1), w = make(s, n, 2), b = make(s, n, 1);
            BOTH(s, rmsnorm, (s->cpu, y.cpu, x.cpu, ld, w.cpu, rows, n, 1e-5f), (s->gpu, y.gpu, x.gpu, ld, w.gpu, rows, n, 1e-5f));
            equal(s, &y, "rmsnorm %u x %u", rows, n);
            BOTH(s, layernorm, (s->cpu, y.cpu, x.cpu, ld, w.cpu, b.cpu, rows, n, 1e-5f), (s->gpu, y.gpu, x.gpu, ld, w.gpu, b.gpu, rows, n, 1e-5f));
            equal(s, &y, "layernorm %u x %u", rows, n);
            BOTH(s, rmsnorm, (s->cpu, x.cpu, x.cpu, ld, NULL, rows, n, 1e-5f), (s->gpu, x.gpu, x.gpu, ld, NULL, rows, n, 1e-5f));
            equal(s, &x, "rmsnorm in place %u x %u", rows, n);
            BOTH(s, layernorm, (s->cpu, x.cpu, x.cpu, ld, w.cpu, NULL, rows, n, 1e-5f), (s->gpu, x.gpu, x.gpu, ld, w.gpu, NULL, rows, n, 1e-5f));
            equal(s, &x, "layernorm in place %u x %u", rows, n);
            drop(s, &x), drop(s, &y), drop(s, &w), drop(s, &b);
        }
}

static void check_rope(suite *s)
{
    static const struct { uint32_t heads, dim, n_rot, tokens; } shapes[] = { { 1, 16, 16, 1 }, { 9, 64, 64, 3 }, { 3, 80, 32, 5 }, { 32, 128, 128, 2 } };
    for (int i = 0; i < 4; i++)
        for (int kind = 0; kind < 2; kind++) {
            const uint32_t width = shapes[i].heads * shapes[i].dim, n = shapes[i].tokens;
            pair x = make(s, (size_t)n * width, 2), cs = make(s, (size_t)n * shapes[i].n_rot, 1);
            BOTH(s, rope, (s->cpu, x.cpu, width, shapes[i].heads, shapes[i].dim, shapes[i].n_rot, cs.cpu, kind, n),
                 (s->gpu, x.gpu, width, shapes[i].heads, shapes[i].dim, shapes[i].n_rot, cs.gpu, kind, n));
            equal(s, &x, "rope %u heads of %u, kind %d", shapes[i].heads, shapes[i].dim, kind);
            drop(s, &x), drop(s, &cs);
        }
}

static void check_elements(suite *s)
{
    static const uint32_t widths[] = { 1, 127, 129, 1536 };
    for (int i = 0; i < 4; i++) {
        const uint32_t n = widths[i], tokens = (uint32_t)i + 1, ld = n + (uint32_t)i;
        pair x = make(s, (size_t)tokens * ld, 9), y = make(s, (size_t)tokens * ld, 5), z = make(s, (size_t)tokens * ld, 1);
        for (int act = 0; act <= PLP_ACT_SILU_LIMITED; act++) {
            BOTH(s, glu, (s->cpu, z.cpu, x.cpu, y.cpu, ld, tokens, n, act), (s->gpu, z.gpu, x.gpu, y.gpu, ld, tokens, n, act));
            equal(s, &z, "glu %d n=%u", act, n);
            if (act == PLP_ACT_SILU_LIMITED)        /* always gated */
                continue;
            BOTH(s, glu, (s->cpu, z.cpu, x.cpu, NULL, ld, tokens, n, act), (s->gpu, z.gpu, x.gpu, NULL, ld, tokens, n, act));
            equal(s, &z, "act %d n=%u", act, n);
        }
        BOTH(s, add, (s->cpu, x.cpu, y.cpu, x.n), (s->gpu, x.gpu, y.gpu, x.n));
        equal(s, &x, "add n=%zu", x.n);
        BOTH(s, scale, (s->cpu, x.cpu, 0.37f, x.n), (s->gpu, x.gpu, 0.37f, x.n));
        equal(s, &x, "scale n=%zu", x.n);
        BOTH(s, softcap, (s->cpu, x.cpu, 5.0f, x.n), (s->gpu, x.gpu, 5.0f, x.n));
        equal(s, &x, "softcap n=%zu", x.n);
        const int32_t rows[] = { (int32_t)tokens - 1, 0, (int32_t)tokens - 1 };
        pair g = make(s, 3 * (size_t)ld, 1);
        BOTH(s, gather, (s->cpu, g.cpu, x.cpu, ld, rows, 3), (s->gpu, g.gpu, x.gpu, ld, rows, 3));
        equal(s, &g, "gather width %u", ld);
        const int32_t apart[] = { 2, 0 };
        const float factors[] = { 0.3f, -1.9f };
        if (tokens >= 2) {
            BOTH(s, scatter_add, (s->cpu, g.cpu, x.cpu, ld, apart, factors, 2), (s->gpu, g.gpu, x.gpu, ld, apart, factors, 2));
            equal(s, &g, "scatter_add width %u", ld);
        }
        s->cpu->ops->copy_block(s->cpu, y.cpu, x.cpu, x.n * sizeof(float));
        s->gpu->ops->copy_block(s->gpu, y.gpu, x.gpu, x.n * sizeof(float));
        equal(s, &y, "copy n=%zu", x.n);
        drop(s, &x), drop(s, &y), drop(s, &z), drop(s, &g);
    }
}

/* ---- products ---- */

/* Random bytes with sane scales. */
static void random_block(const plp_type_info *t, uint8_t *p)
{
    const float d = check_uniform() * 0.05f, m = check_uniform() * 0.1f, f = check_uniform();
    const bool wide = t->id == PLP_TYPE_Q3_K || t->id == PLP_TYPE_Q6_K || t->id == PLP_TYPE_IQ4_XS;     /* scales of up to 127 below the block's */
    float values[256];
    bool sane = false;
    while (!sane) {
        for (uint32_t j = 0; j < t->block_bytes; j++)
            p[j] = (uint8_t)check_random();
        put_scales(t->id, p, wide ? d * 0.05f : d, m);
        switch (t->id) {
        case PLP_TYPE_F32:  memcpy(p, &f, 4); break;
        case PLP_TYPE_BF16: memcpy(p, (const char *)&f + 2, 2); break;
        case PLP_TYPE_F16:  put_half(p, f); break;
        case PLP_TYPE_MXFP4: p[0] = (uint8_t)(p[0] % 8 ? 116 + p[0] % 8 : p[0] / 128); break;
        }
        t->dequantize(p, values, t->block_len);
        sane = true;
        for (uint32_t j = 0; j < t->block_len; j++)
            sane = sane && fabsf(values[j]) < 1e4f;
    }
}

typedef struct matrix { uint8_t *data; plp_weight cpu, gpu; plp_tensor t; } matrix;

static matrix make_matrix(suite *s, int32_t type, uint32_t rows, uint32_t k)
{
    const plp_type_info *info = plp_type_get(type);
    const size_t row_bytes = k / info->block_len * info->block_bytes;
    matrix m = { .data = malloc(rows * row_bytes) };
    plp_error err = { 0 };
    for (size_t i = 0; i < rows * row_bytes; i += info->block_bytes)
        random_block(info, m.data + i);
    m.t = (plp_tensor){ .name = "test", .type = type, .n_dims = 2, .dims = { k, rows, 1, 1 }, .n_bytes = rows * row_bytes, .row_bytes = row_bytes, .data = m.data };
    CHECK(s->cpu->ops->weight(s->cpu, &m.t, &m.cpu, &err) == PLP_OK && s->gpu->ops->weight(s->gpu, &m.t, &m.gpu, &err) == PLP_OK, "%s", err.msg);
    return m;
}

static void check_product(suite *s, int32_t type, uint32_t rows, uint32_t k, uint32_t n)
{
    matrix m = make_matrix(s, type, rows, k);
    const size_t ldx = k + (n % 2 ? 0 : 4), ldy = rows + n % 3;
    pair x = make(s, n * ldx, 1), y = make(s, n * ldy, 1), bias = make(s, rows, 1);
    for (uint32_t j = 0; j < 64 && j < x.n; j++)                /* one block of zeros, one value far from the others */
        x.cpu[x.n - 1 - j] = j < 32 ? 0 : j == 40 ? 300 : x.cpu[x.n - 1 - j];
    s->gpu->ops->upload(s->gpu, x.gpu, x.cpu, x.n * sizeof(float));
    for (int add = 0; add < 2; add++) {
        const plp_product pc = { &m.cpu, add ? bias.cpu : NULL, y.cpu, ldy, add }, pg = { &m.gpu, add ? bias.gpu : NULL, y.gpu, ldy, add };
        BOTH(s, linear, (s->cpu, &pc, 1, x.cpu, ldx, n), (s->gpu, &pg, 1, x.gpu, ldx, n));
        equal(s, &y, "%s rows=%u k=%u n=%u add=%d", plp_type_name(type), rows, k, n, add);
    }
    drop(s, &x), drop(s, &y), drop(s, &bias);
    free(m.data);
}

/* What the kernels know, and one type that is dequantised when it is loaded. */
static const int32_t types[] = {
#define GPU_TYPE(T, integer) PLP_TYPE_##T,
#include "backend/gpu/kernels/types.def"
#undef GPU_TYPE
    PLP_TYPE_IQ3_S,
};
enum { N_TYPES = sizeof types / sizeof *types };

static void check_products(suite *s)
{
    static const uint32_t ks[] = { 32, 96, 256, 576, 1056, 1280 }, ns[] = { 1, 2, 5, 8, 9, 33, 70 }, rows[] = { 1, 7, 16, 65, 130 };
    for (int i = 0; i < N_TYPES; i++)
        for (int j = 0, at = i; j < 6; j++)
            for (int t = 0; t < 7; t++, at++) {
                if (ks[j] % plp_type_get(types[i])->block_len || (s->brief && at % 3))
                    continue;
                check_product(s, types[i], rows[at % 5], ks[j], ns[t]);
            }
    for (uint32_t k = 1; k < 50; k += 16)       /* lengths that only floats have */
        check_product(s, PLP_TYPE_F32, 9, k, 3);
}

static void check_long_product(suite *s) { check_product(s, PLP_TYPE_Q4_1, 72, 64, 1000); }

static void check_embed(suite *s)
{
    for (int i = 0; i < N_TYPES; i++) {
        const uint32_t k = 512, n = 7;
        matrix m = make_matrix(s, types[i], 19, k);
        const int32_t ids[7] = { 18, 0, 3, 3, 17, 1, 18 };
        pair y = make(s, n * k, 1);
        for (int scaled = 0; scaled < 2; scaled++) {
            BOTH(s, embed, (s->cpu, &m.cpu, ids, n, scaled ? 1.7f : 1, y.cpu), (s->gpu, &m.gpu, ids, n, scaled ? 1.7f : 1, y.gpu));
            equal(s, &y, "embed %s", plp_type_name(types[i]));
        }
        drop(s, &y);
        free(m.data);
    }
}

/* ---- KV ---- */

enum { MAX_SEQ = 5, MAX_TOKENS = 1200 };

typedef struct kv_shape {
    uint32_t n_kv, G, dim, block_len, window;
    int32_t  format;
    float    softcap;
    bool     sinks;
} kv_shape;

/* One sequence's blocks on both sides; entry i of `open` stays after sealing, to be compared. */
typedef struct kv_seq { void *open[2][MAX_TOKENS / 16 + 1], *sealed[2][MAX_TOKENS / 16 + 1]; uint32_t n; } kv_seq;

enum { LAYERS = 2 };

static void equal_bytes(suite *s, const void *cpu, const void *gpu, size_t n, const char *what, uint32_t block)
{
    uint8_t *got = malloc(n);
    s->gpu->ops->download(s->gpu, got, gpu, n);
    CHECK(!memcmp(got, cpu, n), "%s of block %u differ, order %u", what, block, s->seed);
    free(got);
}

/* The next blocks for a sequence that will have n tokens, full of NaN. */
static void more_blocks(suite *s, kv_seq *q, const kv_shape *x, uint32_t n)
{
    const size_t heads = LAYERS * x->n_kv, open = heads * plp_tile_bytes(PLP_KV_F16, x->dim, x->block_len), sealed = heads * plp_tile_bytes(x->format, x->dim, x->block_len);
    for (uint32_t b = (q->n + x->block_len - 1) / x->block_len; b < (n + x->block_len - 1) / x->block_len; b++) {
        q->open[0][b] = malloc(open);
        q->open[1][b] = gpu_bytes(s, open);
        memset(q->open[0][b], 0xff, open);
        q->sealed[0][b] = x->format == PLP_KV_F16 ? q->open[0][b] : calloc(1, sealed);
        q->sealed[1][b] = x->format == PLP_KV_F16 ? q->open[1][b] : gpu_bytes(s, sealed);
        if (x->format != PLP_KV_F16)
            s->gpu->ops->upload(s->gpu, q->sealed[1][b], q->sealed[0][b], sealed);
    }
}

static void drop_blocks(suite *s, kv_seq *q, const kv_shape *x)
{
    const size_t heads = LAYERS * x->n_kv, open = heads * plp_tile_bytes(PLP_KV_F16, x->dim, x->block_len), sealed = heads * plp_tile_bytes(x->format, x->dim, x->block_len);
    for (uint32_t b = 0; b * x->block_len < q->n; b++) {
        const bool full = (b + 1) * x->block_len <= q->n;
        if (x->format != PLP_KV_F16) {
            if (full)
                equal_bytes(s, q->sealed[0][b], q->sealed[1][b], sealed, x->format == PLP_KV_Q8 ? "q8 bytes" : "q4 bytes", b);
            free(q->sealed[0][b]);
            s->gpu->ops->slab_unmap(s->gpu, q->sealed[1][b], sealed);
        }
        if (full)
            equal_bytes(s, q->open[0][b], q->open[1][b], open, "f16 bytes", b);
        free(q->open[0][b]);
        s->gpu->ops->slab_unmap(s->gpu, q->open[1][b], open);
    }
}

/* What another thread may do between `prepare` and the first operation: more than the staging area holds, and
 * small pieces into what is left of it. */
enum { RESTORED = 32, RESTORED_WORDS = 1 << 14, PIECE_WORDS = 16 };
typedef struct restored { void *at[RESTORED]; uint32_t *host; } restored;

static void restore(suite *s, restored *r)
{
    r->host = malloc(RESTORED_WORDS * sizeof *r->host);
    for (uint32_t i = 0; i < RESTORED; i++) {
        r->at[i] = gpu_bytes(s, RESTORED_WORDS * sizeof *r->host);
        for (uint32_t w = 0; w < RESTORED_WORDS; w++)
            r->host[w] = i * RESTORED_WORDS + w;
        s->gpu->ops->upload(s->gpu, r->at[i], r->host, RESTORED_WORDS * sizeof *r->host);
    }
    for (uint32_t w = 0; w < RESTORED_WORDS; w += PIECE_WORDS)      /* the last block once more */
        s->gpu->ops->upload(s->gpu, (uint32_t *)r->at[RESTORED - 1] + w, r->host + w, PIECE_WORDS * sizeof *r->host);
}

static void check_restored(suite *s, restored *r)
{
    for (uint32_t i = 0; i < RESTORED; i++) {
        bool same = true;
        s->gpu->ops->download(s->gpu, r->host, r->at[i], RESTORED_WORDS * sizeof *r->host);
        for (uint32_t w = 0; w < RESTORED_WORDS; w++)
            same = same && r->host[w] == i * RESTORED_WORDS + w;
        CHECK(same, "block %u, restored during a batch, holds something else", i);
        s->gpu->ops->slab_unmap(s->gpu, r->at[i], RESTORED_WORDS * sizeof *r->host);
    }
    free(r->host);
}

/* One batch: sequence i gets add[i] more tokens. Both layers; the outputs of all tokens are compared. */
static void kv_batch(suite *s, const kv_shape *x, kv_seq *seqs, const uint32_t *add, uint32_t n_seq)
{
    const uint32_t width = x->n_kv * x->dim, qw = width * x->G;
    plp_seq list[2][MAX_SEQ];
    void *const *tables[2][MAX_SEQ][2];
    void *open[2][MAX_SEQ][MAX_TOKENS / 16 + 1];
    plp_batch batch[2] = { { .n_out = 1 }, { .n_out = 1 } };
    plp_error err = { 0 };

    for (uint32_t i = 0, row = 0; i < n_seq; i++) {
        if (!add[i])
            continue;
        more_blocks(s, &seqs[i], x, seqs[i].n + add[i]);
        for (int side = 0; side < 2; side++) {
            const uint32_t j = batch[side].n_seq++;
            /* The engine names an f16 block only where this batch writes. */
            for (uint32_t b = 0; b * x->block_len < seqs[i].n + add[i]; b++)
                open[side][j][b] = b >= seqs[i].n / x->block_len ? seqs[i].open[side][b] : NULL;
            tables[side][j][0] = seqs[i].sealed[side];
            tables[side][j][1] = open[side][j];
            list[side][j] = (plp_seq){ .row0 = row, .n_tok = add[i], .pos0 = seqs[i].n, .sealed = &tables[side][j][0], .open = &tables[side][j][1] };
            batch[side].n_tok = row + add[i];
            batch[side].seq = list[side];
        }
        row += add[i];
        seqs[i].n += add[i];
    }
    const uint32_t n = batch[0].n_tok;
    pair q = make(s, (size_t)n * qw, 2), k = make(s, (size_t)n * width, 2), v = make(s, (size_t)n * width, 1), out = make(s, (size_t)n * qw, 1);
    pair sinks = make(s, x->n_kv * x->G, 2);
    CHECK(s->cpu->ops->prepare(s->cpu, &batch[0], &err) == PLP_OK && s->gpu->ops->prepare(s->gpu, &batch[1], &err) == PLP_OK, "%s", err.msg);
    restored at_once = { 0 };
    if (s->crowded)
        restore(s, &at_once);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        plp_attention a = { .layer = layer, .n_heads = x->n_kv * x->G, .n_kv_heads = x->n_kv, .head_dim = x->dim, .block_len = x->block_len,
                            .kv_format = x->format, .window = x->window, .scale = 1 / sqrtf((float)x->dim), .softcap = x->softcap };
        plp_attention b = a;
        a.sinks = x->sinks ? sinks.cpu : NULL;
        b.sinks = x->sinks ? sinks.gpu : NULL;
        BOTH(s, kv_store, (s->cpu, &a, &batch[0], k.cpu, v.cpu, width), (s->gpu, &b, &batch[1], k.gpu, v.gpu, width));
        BOTH(s, attention, (s->cpu, &a, &batch[0], q.cpu, qw, out.cpu, qw), (s->gpu, &b, &batch[1], q.gpu, qw, out.gpu, qw));
        equal(s, &out, "attention format %d, %u x %u heads of %u, blocks of %u, window %u, %u tokens in %u sequences, layer %u", x->format, x->n_kv,
              x->G, x->dim, x->block_len, x->window, n, batch[0].n_seq, layer);
    }
    if (s->crowded)
        check_restored(s, &at_once);
    drop(s, &q), drop(s, &k), drop(s, &v), drop(s, &out), drop(s, &sinks);
}

static void check_kv_shape(suite *s, const kv_shape *x, const uint32_t adds[][MAX_SEQ], uint32_t n_batches)
{
    kv_seq *seqs = calloc(MAX_SEQ, sizeof *seqs);
    for (uint32_t i = 0; i < n_batches; i++)
        kv_batch(s, x, seqs, adds[i], MAX_SEQ);
    for (uint32_t i = 0; i < MAX_SEQ; i++)
        drop_blocks(s, &seqs[i], x);
    free(seqs);
}

static void check_kv(suite *s)
{
    /* Ragged: sequences of different lengths grow at different times, prompts and single tokens mixed. */
    static const uint32_t ragged[][MAX_SEQ] = { { 1, 0, 0, 0, 0 }, { 1, 37, 0, 16, 0 }, { 3, 1, 0, 1, 5 }, { 1, 1, 260, 1, 0 }, { 1, 1, 1, 4, 30 },
                                                { 14, 1, 1, 2, 1 }, { 1, 1, 2, 1, 1 } };
    static const kv_shape shapes[] = {
        { 2, 2, 16, 16, 0, PLP_KV_F16, 0, false },  { 1, 3, 64, 16, 0, PLP_KV_F16, 0, true },   { 1, 1, 80, 32, 20, PLP_KV_F16, 0, false },
        { 1, 5, 128, 16, 0, PLP_KV_F16, 7, false }, { 1, 2, 256, 64, 100, PLP_KV_F16, 0, true },
        { 2, 2, 16, 16, 0, PLP_KV_Q8, 0, false },   { 1, 3, 64, 16, 0, PLP_KV_Q8, 0, true },    { 1, 1, 80, 16, 40, PLP_KV_Q8, 5, false },
        { 1, 2, 256, 16, 0, PLP_KV_Q8, 0, false },  { 1, 8, 112, 16, 0, PLP_KV_Q8, 0, false },
        { 2, 2, 16, 16, 0, PLP_KV_Q4, 0, false },   { 1, 3, 64, 16, 0, PLP_KV_Q4, 0, true },    { 1, 1, 80, 16, 40, PLP_KV_Q4, 5, false },
        { 1, 2, 256, 16, 0, PLP_KV_Q4, 0, false },  { 1, 8, 112, 16, 0, PLP_KV_Q4, 0, false },
    };
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!s->brief || i % 5 < 3)       /* windows, caps and sinks among them */
            check_kv_shape(s, &shapes[i], ragged, sizeof ragged / sizeof *ragged);
}

static void check_crowded_kv(suite *s)
{
    static const uint32_t adds[][MAX_SEQ] = { { 20, 1, 0, 0, 0 }, { 1, 1, 40, 0, 0 } };
    s->crowded = true;
    check_kv_shape(s, &(kv_shape){ 1, 2, 32, 16, 0, PLP_KV_F16, 0, false }, adds, 2);
    check_kv_shape(s, &(kv_shape){ 1, 2, 32, 16, 0, PLP_KV_Q8, 0, false }, adds, 2);
    s->crowded = false;
}

static void check_long_kv(suite *s)
{
    static const uint32_t adds[][MAX_SEQ] = { { 1000, 0, 0, 0, 0 }, { 1, 0, 0, 0, 0 } };
    for (int format = PLP_KV_F16; format <= PLP_KV_Q4; format++)
        check_kv_shape(s, &(kv_shape){ 1, 2, 32, 16, 0, format, 0, false }, adds, 2);
}

__attribute__((unused))
static void run_suite(const plp_simt_body *table, uint32_t seed, bool brief)
{
    suite s;
    if (!suite_open(&s, table, seed, brief))
        return;
    void (*const checks[])(suite *) = { check_norms, check_rope, check_elements, check_embed, check_products, check_kv,
                                        check_crowded_kv, check_long_product, check_long_kv };
    for (int i = 0; i < (brief ? 6 : 9) && !(brief && check_failed); i++)
        checks[i](&s);
    suite_close(&s);
}

#endif
