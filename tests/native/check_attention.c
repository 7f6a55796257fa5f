/*
 * check_attention.c - attention over f16 and sealed tiles: every tier against ref/, ref/ against double precision
 *
 * Besides: slots not yet filled hold NaN, block lengths and cuts between parts change no bit, and a range that
 * is empty leaves its query alone. Sealed tiles are compared byte for byte as they are made.
 */
#include "kernel_inputs.h"

#include "kernels/sealed.h"

enum { UNIT = 16 };

typedef struct queries { plp_attn a; float *q, *m, *s, *acc; } queries;

static queries queries_of(uint32_t n_q, uint32_t head_dim, float softcap, const float *q)
{
    queries x = { { 0 }, guarded_floats((size_t)n_q * head_dim, 0), guarded_floats(n_q, 0), guarded_floats(n_q, 0),
                  guarded_floats((size_t)n_q * head_dim, 0) };
    for (uint32_t i = 0; i < n_q; i++) x.m[i] = -INFINITY, x.s[i] = 0;
    memcpy(x.q, q, sizeof(float) * n_q * head_dim);
    memset(x.acc, 0, sizeof(float) * n_q * head_dim);
    x.a = (plp_attn){ .n_q = n_q, .head_dim = head_dim, .q = x.q, .m = x.m, .s = x.s, .acc = x.acc, .softcap = softcap };
    return x;
}
static void queries_free(queries x)
{
    const size_t n = x.a.n_q, all = n * x.a.head_dim;
    unguard_floats(x.q, all), unguard_floats(x.m, n), unguard_floats(x.s, n), unguard_floats(x.acc, all);
}

static bool same_state(const plp_attn *a, const plp_attn *b)
{
    for (uint32_t i = 0; i < a->n_q; i++)
        if (a->m[i] != b->m[i]) return false;                       /* as numbers: a maximum of 0 has either sign */
    return differs(a->s, b->s, a->n_q) < 0 && differs(a->acc, b->acc, (size_t)a->n_q * a->head_dim) < 0;
}

/* KV of n_tokens in tiles of block_len, put one token at a time; slots after the last hold NaN. */
typedef struct tiles { uint16_t **at; uint32_t n, block_len, head_dim; size_t bytes; } tiles;

static tiles tiles_of(const plp_kernels *k, const float *key, const float *val, uint32_t n_tokens, uint32_t block_len, uint32_t head_dim)
{
    tiles x = { NULL, (n_tokens + block_len - 1) / block_len, block_len, head_dim, plp_tile_bytes(PLP_KV_F16, head_dim, block_len) };
    x.at = calloc(x.n, sizeof *x.at);
    for (uint32_t b = 0; b < x.n; b++) {
        x.at[b] = guarded(x.bytes);
        memset(x.at[b], 0xff, x.bytes);
    }
    for (uint32_t t = 0; t < n_tokens; t++)
        k->kv_put(x.at[t / block_len], block_len, t % block_len, key + (size_t)t * head_dim, val + (size_t)t * head_dim, head_dim);
    return x;
}
static void tiles_free(tiles x)
{
    for (uint32_t b = 0; b < x.n; b++) unguard(x.at[b], x.bytes);
    free(x.at);
}

/* Query i sees tokens [from[i], to[i]). */
static void attend_all(const plp_kernels *k, plp_attn *a, tiles x, const uint32_t *from, const uint32_t *to)
{
    uint32_t lo[64], hi[64];
    for (uint32_t b = 0; b < x.n; b++) {
        const uint32_t base = b * x.block_len;
        for (uint32_t i = 0; i < a->n_q; i++) {
            lo[i] = from[i] > base ? from[i] - base : 0;
            hi[i] = to[i] > base ? to[i] - base : 0;
            if (hi[i] > x.block_len) hi[i] = x.block_len;
            if (lo[i] > hi[i]) lo[i] = hi[i];
        }
        k->attn_f16(a, x.at[b], x.block_len, (plp_seen){ lo, hi }, b + 1 < x.n ? x.at[b + 1] : NULL);
    }
}

static void check_kv_put(const plp_kernels *k)
{
    static const uint32_t dims[] = { 16, 48, 64, 80, 128, 256, 512 };
    for (int d = 0; d < 6; d++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            float *key = guarded_floats(dims[d], kind), *val = guarded_floats(dims[d], kind);
            for (uint32_t slot = 0; slot < 32; slot += 5) {
                const size_t bytes = plp_tile_bytes(PLP_KV_F16, dims[d], 32);
                uint16_t *a = guarded(bytes), *b = guarded(bytes);
                memset(a, 0xff, bytes), memset(b, 0xff, bytes);
                ref()->kv_put(a, 32, slot, key, val, dims[d]);
                k->kv_put(b, 32, slot, key, val, dims[d]);
                CHECK(!memcmp(a, b, bytes), "%s kv_put dim=%u slot=%u %s", k->tier, dims[d], slot, kinds[kind]);
                for (uint32_t i = 0; i < dims[d]; i++)
                    CHECK(b[i * 32 + slot] == plp_f32_to_f16(key[i]) && b[(32 + slot) * dims[d] + i] == plp_f32_to_f16(val[i]),
                          "%s kv_put dim=%u slot=%u: channel %u is elsewhere", k->tier, dims[d], slot, i);
                unguard(a, bytes), unguard(b, bytes);
            }
            unguard_floats(key, dims[d]), unguard_floats(val, dims[d]);
        }
}

/* Against double precision on the same half-precision keys and values. */
static void exact_attention(const plp_attn *a, const float *out, const float *key, const float *val, const uint32_t *from,
                            const uint32_t *to, const float *sink, const char *tier)
{
    for (uint32_t i = 0; i < a->n_q; i++) {
        double score[512], top = -INFINITY, sum = 0, want[PLP_MAX_HEAD_DIM] = { 0 }, size[PLP_MAX_HEAD_DIM] = { 0 };
        for (uint32_t t = from[i]; t < to[i]; t++) {
            score[t] = 0;
            for (uint32_t d = 0; d < a->head_dim; d++)
                score[t] += (double)a->q[i * a->head_dim + d] * plp_f16_to_f32(plp_f32_to_f16(key[t * a->head_dim + d]));
            if (a->softcap > 0) score[t] = a->softcap * tanh(score[t] / a->softcap);
            top = fmax(top, score[t]);
        }
        for (uint32_t t = from[i]; t < to[i]; t++) {
            const double p = exp(score[t] - top);
            sum += p;
            for (uint32_t d = 0; d < a->head_dim; d++) {
                const double v = plp_f16_to_f32(plp_f32_to_f16(val[t * a->head_dim + d]));
                want[d] += p * v;
                size[d] += p * fabs(v);
            }
        }
        if (sink) sum += exp(sink[i] - top);
        for (uint32_t d = 0; d < a->head_dim && from[i] < to[i]; d++)
            CHECK(fabs(out[i * a->head_dim + d] - want[d] / sum) <= 3e-5 * size[d] / sum + 1e-30,
                  "%s attention query %u channel %u: %.9g, want %.9g", tier, i, d, out[i * a->head_dim + d], want[d] / sum);
    }
}

static void attention(const plp_kernels *k, uint32_t n_q, uint32_t head_dim, uint32_t n_tokens, float softcap, int kind)
{
    const size_t n = (size_t)n_tokens * head_dim, nq = (size_t)n_q * head_dim;
    float *key = guarded_floats(n, kind == 1 ? 4 : kind), *val = guarded_floats(n, kind == 1 ? 4 : kind);
    float *q = guarded_floats(nq, 0), *out = guarded_floats(nq, 0), *want = guarded_floats(nq, 0), sink[64];
    uint32_t from[64], to[64];
    for (uint32_t i = 0; i < n_q; i++) {                            /* causal, windowed, and now and then blind */
        to[i] = n_tokens - i % (n_tokens < 20 ? 3 : 20) % n_tokens;
        from[i] = i % 3 == 2 ? to[i] / 3 : 0;
        if (i % 11 == 7) from[i] = to[i];
        sink[i] = check_uniform() * 3;
    }
    queries r = { 0 };
    for (uint32_t block_len = 8; block_len <= 64; block_len *= 2) {
        if (block_len <= UNIT) {                                    /* longer blocks are worked through in units of 16 */
            if (r.q) queries_free(r);
            r = queries_of(n_q, head_dim, softcap, q);
            tiles x = tiles_of(ref(), key, val, n_tokens, block_len, head_dim);
            attend_all(ref(), &r.a, x, from, to);
            tiles_free(x);
        }
        queries g = queries_of(n_q, head_dim, softcap, q);
        tiles x = tiles_of(k, key, val, n_tokens, block_len, head_dim);
        attend_all(k, &g.a, x, from, to);
        CHECK(same_state(&g.a, &r.a), "%s attention n_q=%u dim=%u tokens=%u block=%u cap=%g %s", k->tier, n_q, head_dim, n_tokens,
              block_len, softcap, kinds[kind]);

        queries run = queries_of(n_q, head_dim, softcap, q);
        const size_t work_bytes = (k->attn_run_work(n_q, head_dim) + 63) / 64 * 64;
        void *work = guarded(work_bytes);
        k->attn_f16_run(&run.a, (const void *const *)x.at, block_len, (plp_seen){ from, to }, work);
        CHECK(same_state(&run.a, &g.a), "%s attn_f16_run n_q=%u dim=%u tokens=%u block=%u cap=%g %s", k->tier, n_q, head_dim,
              n_tokens, block_len, softcap, kinds[kind]);
        unguard(work, work_bytes);
        queries_free(run);

        /* Two parts, cut between blocks, folded together as ref folds them. */
        queries part[4];
        tiles head = x, tail = x;
        uint32_t from2[64], to2[64];
        head.n = x.n / 2, tail.n = x.n - head.n, tail.at = x.at + head.n;
        for (uint32_t i = 0; i < n_q; i++) {
            const uint32_t base = head.n * block_len;
            from2[i] = from[i] > base ? from[i] - base : 0;
            to2[i] = to[i] > base ? to[i] - base : 0;
            if (from2[i] > to2[i]) from2[i] = to2[i];
        }
        for (int j = 0; j < 4; j++) {
            part[j] = queries_of(n_q, head_dim, softcap, q);
            if (j % 2) attend_all(k, &part[j].a, tail, from2, to2);
            else       attend_all(k, &part[j].a, head, from, to);
        }
        ref()->attn_merge(&part[0].a, &part[1].a);
        k->attn_merge(&part[2].a, &part[3].a);
        CHECK(same_state(&part[0].a, &part[2].a), "%s attn_merge n_q=%u dim=%u", k->tier, n_q, head_dim);
        for (int with = 0; with < 2; with++) {
            for (uint32_t i = 0; i < n_q; i++)                      /* a query that saw nothing has no result */
                if (from[i] == to[i]) r.a.s[i] = part[2].a.s[i] = 1, r.a.m[i] = part[2].a.m[i] = 0;
            ref()->attn_finish(&part[2].a, with ? sink : NULL, want, head_dim);
            k->attn_finish(&part[2].a, with ? sink : NULL, out, head_dim);
            CHECK(differs(out, want, nq) < 0, "%s attn_finish n_q=%u dim=%u sink=%d", k->tier, n_q, head_dim, with);
            exact_attention(&part[2].a, out, key, val, from, to, with ? sink : NULL, k->tier);
            for (uint32_t i = 0; i < n_q; i++)
                if (from[i] == to[i]) r.a.s[i] = 0, r.a.m[i] = -INFINITY;
        }
        for (int j = 0; j < 4; j++) queries_free(part[j]);
        tiles_free(x);
        queries_free(g);
    }
    queries_free(r);
    unguard_floats(key, n), unguard_floats(val, n), unguard_floats(q, nq), unguard_floats(out, nq), unguard_floats(want, nq);
}

static void check_attn_f16(const plp_kernels *k)
{
    static const uint32_t dims[] = { 64, 16, 32, 48, 80, 96, 128, 192, 256, 512 }, counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 33, 64 };
    for (int c = 0; c < 13; c++) {
        attention(k, counts[c], 64, 1 + c * 23 % 190, 0, c % N_KINDS);
        attention(k, counts[c], dims[c % 9], 131 - c, c % 2 ? 20.0f : 0, (c + 1) % N_KINDS);
        attention(k, counts[c], dims[(c + 4) % 9], 16, 0, (c + 2) % N_KINDS);
    }
    /* NULL ranges: the whole block, for every query. */
    float *q = guarded_floats(3 * 64, 0), *kv = guarded_floats(16 * 64, 0);
    const uint32_t lo[3] = { 0, 0, 0 }, hi[3] = { 16, 16, 16 };
    tiles x = tiles_of(k, kv, kv, 16, 16, 64);
    queries a = queries_of(3, 64, 0, q), b = queries_of(3, 64, 0, q);
    k->attn_f16(&a.a, x.at[0], 16, (plp_seen){ NULL, NULL }, NULL);
    k->attn_f16(&b.a, x.at[0], 16, (plp_seen){ lo, hi }, NULL);
    CHECK(same_state(&a.a, &b.a), "%s: NULL ranges are not the whole block", k->tier);
    queries_free(a), queries_free(b), tiles_free(x);
    unguard_floats(q, 3 * 64), unguard_floats(kv, 16 * 64);
}

/* ---- sealed tiles ------------------------------------------------------------------------- */

enum { LEN = PLP_SEALED_LEN, N_DIMS = 9 };
static const uint32_t sealed_dims[N_DIMS] = { 64, 16, 32, 48, 80, 96, 128, 256, 512 };

/* A full f16 tile of one of the kinds of values, none of them infinite. */
static uint16_t *full_tile(uint32_t dim, int kind)
{
    uint16_t *tile = guarded(plp_tile_bytes(PLP_KV_F16, dim, LEN));
    for (uint32_t i = 0; i < 2 * LEN * dim; i++)
        tile[i] = plp_f32_to_f16(kind == 1 ? check_uniform() * 60000 : kind == 2 ? check_uniform() * 1e-6f : value(kind, i));
    return tile;
}
static void full_tile_free(uint16_t *tile, uint32_t dim) { unguard(tile, plp_tile_bytes(PLP_KV_F16, dim, LEN)); }

typedef struct sealed { uint8_t *tile; size_t bytes; uint32_t dim; int format; } sealed;

static sealed seal(const plp_kernels *k, const uint16_t *from, uint32_t dim, int format)
{
    sealed x = { NULL, plp_tile_bytes(format, dim, LEN), dim, format };
    x.tile = guarded(x.bytes);
    memset(x.tile, 0xee, x.bytes);
    (format == PLP_KV_Q8 ? k->kv_seal_q8 : k->kv_seal_q4)(from, x.tile, dim);
    return x;
}

/* What a sealed tile stands for, read by sealed.h's formulas. */
static double sealed_k(const sealed *x, uint32_t c, uint32_t t)
{
    const uint32_t half = x->dim / 2, j = c < half ? c : c - half;
    if (x->format == PLP_KV_Q8) {
        const plp_q8_tile z = plp_q8_at(x->tile, x->dim);
        return (double)plp_f16_to_f32(z.k_scale[c]) * (z.k[(c / 4 * LEN + t) * 4 + c % 4] - 128);
    }
    const plp_q4_tile z = plp_q4_at(x->tile, x->dim);
    const int n = z.k[(j / 4 * LEN + t) * 4 + j % 4] >> (c < half ? 0 : 4) & 15;
    return (double)plp_f16_to_f32(z.units[0]) * z.k_scale[c] * n + (double)plp_f16_to_f32(z.units[1]) * z.k_min[c];
}
static double sealed_v_step(const sealed *x, uint32_t c, uint32_t t)
{
    const uint32_t i = c / PLP_V_GROUP * LEN + t;
    if (x->format == PLP_KV_Q8) return plp_f16_to_f32(plp_q8_at(x->tile, x->dim).v_scale[i]);
    const plp_q4_tile z = plp_q4_at(x->tile, x->dim);
    return (double)plp_f16_to_f32(z.units[2]) * z.v_scale[i];
}
static double sealed_v_int(const sealed *x, uint32_t c, uint32_t t)
{
    if (x->format == PLP_KV_Q8) return plp_q8_at(x->tile, x->dim).v[(t / 4 * x->dim + c) * 4 + t % 4];
    return plp_q4_at(x->tile, x->dim).v[(t % 8 / 4 * x->dim + c) * 4 + t % 4] >> (t < 8 ? 0 : 4) & 15;
}
static double sealed_v_min(const sealed *x, uint32_t c, uint32_t t)
{
    if (x->format == PLP_KV_Q8) return 0;
    const plp_q4_tile z = plp_q4_at(x->tile, x->dim);
    return (double)plp_f16_to_f32(z.units[3]) * z.v_min[c / PLP_V_GROUP * LEN + t];
}

static void sealing(const plp_kernels *k, int format)
{
    for (int d = 0; d < N_DIMS; d++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            const uint32_t dim = sealed_dims[d];
            uint16_t *from = full_tile(dim, kind);
            sealed want = seal(ref(), from, dim, format), got = seal(k, from, dim, format);
            CHECK(!memcmp(want.tile, got.tile, want.bytes), "%s seals format %d dim %u %s differently", k->tier, format, dim, kinds[kind]);
            for (uint32_t c = 0; c < dim; c++)
                for (uint32_t t = 0; t < LEN; t++) {
                    float k_most = 0, v_most = 0;               /* the channel's and the token group's largest magnitude */
                    const uint32_t c0 = c / PLP_V_GROUP * PLP_V_GROUP;
                    for (uint32_t i = 0; i < LEN; i++) k_most = fmaxf(k_most, fabsf(plp_f16_to_f32(from[c * LEN + i])));
                    for (uint32_t i = c0; i < c0 + PLP_V_GROUP && i < dim; i++)
                        v_most = fmaxf(v_most, fabsf(plp_f16_to_f32(from[(LEN + t) * dim + i])));
                    /* Half a step, and what the f16 and 8-bit scales add; a scale below f16's smallest says nothing. */
                    const double steps = format == PLP_KV_Q8 ? 127 : 7.5, slack = format == PLP_KV_Q8 ? 0.2 : 0.6;
                    const double k_off = fabs(sealed_k(&got, c, t) - plp_f16_to_f32(from[c * LEN + t]));
                    const double v = sealed_v_step(&got, c, t) * sealed_v_int(&got, c, t) + sealed_v_min(&got, c, t);
                    const double v_off = fabs(v - plp_f16_to_f32(from[(LEN + t) * dim + c]));
                    const double other = format == PLP_KV_Q4 ? (kind == 1 ? 500 : kind == 4 ? 0.4 : kind == 2 ? 1e-6 : 8e-3) : 0;
                    CHECK(k_off <= k_most / steps * (0.5 + slack) + other + 5e-6, "%s K[%u][%u] %s is %g off of %g", k->tier, c, t, kinds[kind], k_off, k_most);
                    CHECK(v_off <= v_most / steps * (0.5 + slack) + other + 5e-6, "%s V[%u][%u] %s is %g off of %g", k->tier, t, c, kinds[kind], v_off, v_most);
                }
            unguard(want.tile, want.bytes), unguard(got.tile, got.bytes);
            full_tile_free(from, dim);
        }
}
static void check_kv_seal_q8(const plp_kernels *k) { sealing(k, PLP_KV_Q8); }
static void check_kv_seal_q4(const plp_kernels *k) { sealing(k, PLP_KV_Q4); }

/* One tile, all of it seen, against double precision on what the tile stands for. Probabilities are rounded to
 * 7 bits of their group's largest, queries to 16. */
static void exact_sealed(const plp_attn *a, const sealed *x, const char *tier)
{
    for (uint32_t i = 0; i < a->n_q; i++) {
        double p[LEN], top = -INFINITY, weight = 0;
        for (uint32_t t = 0; t < LEN; t++) {
            p[t] = 0;
            for (uint32_t c = 0; c < x->dim; c++) p[t] += (double)a->q[i * x->dim + c] * sealed_k(x, c, t);
            top = fmax(top, p[t]);
        }
        for (uint32_t t = 0; t < LEN; t++) weight += p[t] = exp(p[t] - top);
        CHECK(fabs(a->s[i] - weight) < 2e-2 * weight, "%s sealed format %d query %u: s is %g, want %g", tier, x->format, i, a->s[i], weight);
        for (uint32_t c = 0; c < x->dim; c++) {
            double want = 0, most = 0, sum = 0, size = 0;
            for (uint32_t t = 0; t < LEN; t++) {
                want += p[t] * (sealed_v_step(x, c, t) * sealed_v_int(x, c, t) + sealed_v_min(x, c, t));
                most = fmax(most, p[t] * sealed_v_step(x, c, t));
                sum += fabs(sealed_v_int(x, c, t));
                size += p[t] * (fabs(sealed_v_step(x, c, t) * sealed_v_int(x, c, t)) + fabs(sealed_v_min(x, c, t)));
            }
            CHECK(fabs(a->acc[i * x->dim + c] - want) <= most / 254 * sum * 1.01 + 2e-2 * size + 1e-30,
                  "%s sealed format %d query %u channel %u: %g, want %g", tier, x->format, i, c, a->acc[i * x->dim + c], want);
        }
    }
}

static void sealed_attention(const plp_kernels *k, int format)
{
    static const uint32_t counts[] = { 1, 2, 3, 4, 5, 7, 8, 9, 16, 33, 64 };
    for (int d = 0; d < N_DIMS; d++)
        for (int n = 0; n < 11; n++) {
            const uint32_t dim = sealed_dims[d], n_q = counts[(n + d) % 11];
            const int kind = (n + d) % 3 == 0 ? 0 : (n + d) % 3 == 1 ? 3 : 4;
            const float cap = n % 4 == 3 ? 20.0f : 0;
            float *q = guarded_floats((size_t)n_q * dim, 0);
            queries want = queries_of(n_q, dim, cap, q), got = queries_of(n_q, dim, cap, q);
            for (int b = 0; b < 3; b++) {
                uint16_t *from = full_tile(dim, kind);
                sealed x = seal(ref(), from, dim, format);
                uint32_t lo[64], hi[64];
                for (uint32_t i = 0; i < n_q; i++) lo[i] = b == 1 ? i % 7 : 0, hi[i] = b == 1 ? (i % 5 == 4 ? lo[i] : LEN - i % 4) : LEN;
                const plp_seen seen = b ? (plp_seen){ lo, hi } : (plp_seen){ NULL, NULL };
                (format == PLP_KV_Q8 ? ref()->attn_q8 : ref()->attn_q4)(&want.a, x.tile, LEN, seen, NULL);
                (format == PLP_KV_Q8 ? k->attn_q8 : k->attn_q4)(&got.a, x.tile, LEN, seen, b == 2 ? NULL : x.tile);
                CHECK(same_state(&want.a, &got.a), "%s attn format %d n_q=%u dim=%u %s tile %d", k->tier, format, n_q, dim, kinds[kind], b);
                if (b == 0 && cap == 0 && kind != 4) exact_sealed(&got.a, &x, k->tier);
                unguard(x.tile, x.bytes);
                full_tile_free(from, dim);
            }
            queries_free(want), queries_free(got);
            unguard_floats(q, (size_t)n_q * dim);
        }
}
static void check_attn_q8(const plp_kernels *k) { sealed_attention(k, PLP_KV_Q8); }
static void check_attn_q4(const plp_kernels *k) { sealed_attention(k, PLP_KV_Q4); }

int main(void)
{
    static const kernel_check all[] = {
        { "kv_put", check_kv_put },         { "attn_f16, attn_f16_run, attn_merge, attn_finish", check_attn_f16 },
        { "kv_seal_q8", check_kv_seal_q8 }, { "kv_seal_q4", check_kv_seal_q4 },
        { "attn_q8", check_attn_q8 },       { "attn_q4", check_attn_q4 },
    };
    check_each(all, sizeof all / sizeof *all);
    return check_done();
}
