/*
 * kernels/x86/avx512_sealed.c - tier "avx512": attention over sealed q8 and q4 tiles by integer dots
 *
 * Layouts, formulas and their order: kernels/sealed.h. A 16-bit query is two signed bytes, q = 256 * high + low,
 * so that vpdpbusd multiplies each with the unsigned keys; sixteen tokens are one register. Probabilities fit
 * seven bits and meet V sixteen channels at a time. Up to four queries go through each stage side by side: a
 * stage of one is a chain of dependent steps, and the tile's rows are loaded once for all.
 */
#include "kernels/sealed.h"
#include "kernels/x86/avx512.h"

enum { LEN = PLP_SEALED_LEN, MAX_DIM = PLP_MAX_HEAD_DIM, GROUP = 4 };

/* A query times the tile's key scales, in bytes, and what undoes it. */
typedef struct query {
    int8_t  high[MAX_DIM], low[MAX_DIM];
    int32_t sum;
    float   back;
} query;

INLINE void quantise_query(const float *q, const float *scale, uint32_t dim, query *o)
{
    __m512 most16 = _mm512_setzero_ps();
    for (uint32_t c = 0; c < dim; c += 16)
        most16 = _mm512_max_ps(most16, _mm512_abs_ps(_mm512_mul_ps(_mm512_loadu_ps(q + c), _mm512_loadu_ps(scale + c))));
    const float most = _mm512_reduce_max_ps(most16);
    const __m512 inverse = splat(most >= PLP_X_ZERO ? 32512.0f / most : 0.0f);
    __m512i sum = _mm512_setzero_si512();
    for (uint32_t c = 0; c < dim; c += 16) {
        const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(q + c), _mm512_loadu_ps(scale + c));
        const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
        const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(128)), 8);
        sum = _mm512_add_epi32(sum, v);
        _mm_storeu_si128((void *)(o->high + c), _mm512_cvtepi32_epi8(high));
        _mm_storeu_si128((void *)(o->low + c), _mm512_cvtepi32_epi8(v));            /* v - 256 * high, mod 256 */
    }
    o->sum = _mm512_reduce_add_epi32(sum);
    o->back = most / 32512.0f;
}

/* Sums of 16 tokens, for n queries. */
typedef struct dots { __m512i high[GROUP], low[GROUP]; } dots;

INLINE __m512i bytes_at(const int8_t *p) { return _mm512_set1_epi32((int)load_u32(p)); }

/* keys [n_rows][16][4] times the queries' channels from c on; nibble 1 takes low nibbles, 2 high ones, 0 bytes. */
INLINE void add_keys(const int n, dots *o, const uint8_t *keys, uint32_t n_rows, const query *q, size_t c, const int nibble)
{
    for (size_t j = 0; j < n_rows; j++) {
        __m512i k = load_512(keys + j * 64);
        if (nibble == 1) k = _mm512_and_si512(k, _mm512_set1_epi8(15));
        if (nibble == 2) k = _mm512_and_si512(_mm512_srli_epi16(k, 4), _mm512_set1_epi8(15));
        UNROLL for (int i = 0; i < n; i++) {
            o->high[i] = _mm512_dpbusd_epi32(o->high[i], k, bytes_at(q[i].high + c + 4 * j));
            o->low[i] = _mm512_dpbusd_epi32(o->low[i], k, bytes_at(q[i].low + c + 4 * j));
        }
    }
}

INLINE __m512 whole(const dots *o, int i)
{
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(o->high[i], 8), o->low[i]));
}

/* Probabilities times V's scales in seven bits, four tokens a dword, and what undoes it. */
typedef struct weights { uint32_t of[4]; __m512 back; } weights;

INLINE weights quantise_p(__m512 p, __m512 scale)
{
    const __m512 e = _mm512_mul_ps(p, scale);
    const float most = _mm512_reduce_max_ps(_mm512_max_ps(e, _mm512_setzero_ps()));
    const float inverse = most >= PLP_X_ZERO ? 127.0f / most : 0.0f;
    weights o = { .back = splat(most / 127.0f) };
    _mm_storeu_si128((void *)o.of, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(e, splat(inverse)))));
    return o;
}

INLINE void fetch(const void *next, size_t n_bytes)
{
    if (next)
        for (size_t i = 0; i < n_bytes; i += 64) _mm_prefetch((const char *)next + i, _MM_HINT_T0);
}

/* Up to GROUP queries that see anything of the block, from query *i on. */
typedef struct group { uint32_t n, index[GROUP], lo[GROUP], hi[GROUP]; } group;

INLINE group next_group(const plp_attn *a, plp_seen seen, uint32_t *i)
{
    group g = { 0 };
    for (; *i < a->n_q && g.n < GROUP; ++*i) {
        g.lo[g.n] = seen.lo ? seen.lo[*i] : 0;
        g.hi[g.n] = seen.hi ? seen.hi[*i] : LEN;
        g.index[g.n] = *i;
        g.n += g.lo[g.n] < g.hi[g.n];
    }
    return g;
}

/* What a stage needs of the tile besides its rows. */
typedef struct scales { float k[MAX_DIM], k_min[MAX_DIM]; __m512 v, v_min; } scales;

INLINE void attend_q8(const int n, plp_attn *a, const group *g, const plp_q8_tile *x, const scales *s)
{
    const size_t dim = a->head_dim;
    query q[GROUP];
    dots d;
    __m512 p[GROUP];
    UNROLL for (int i = 0; i < n; i++) quantise_query(a->q + g->index[i] * dim, s->k, (uint32_t)dim, &q[i]);
    UNROLL for (int i = 0; i < n; i++) {
        d.high[i] = _mm512_setzero_si512();
        d.low[i] = _mm512_set1_epi32(-128 * q[i].sum);
    }
    add_keys(n, &d, x->k, (uint32_t)dim / 4, q, 0, 0);
    UNROLL for (int i = 0; i < n; i++) p[i] = soften(a, g->index[i], _mm512_mul_ps(whole(&d, i), splat(q[i].back)), g->lo[i], g->hi[i]);
    for (size_t v = 0, c = 0; c < dim; v++) {
        weights w[GROUP];
        UNROLL for (int i = 0; i < n; i++) w[i] = quantise_p(p[i], halves(x->v_scale + v * LEN));
        for (size_t end = (v + 1) * PLP_V_GROUP; c < end && c < dim; c += 16) {
            __m512i sum[GROUP];
            UNROLL for (int i = 0; i < n; i++) sum[i] = _mm512_setzero_si512();
            UNROLL for (int r = 0; r < 4; r++) {
                const __m512i row = load_512(x->v + (r * dim + c) * 4);
                UNROLL for (int i = 0; i < n; i++) sum[i] = _mm512_dpbusd_epi32(sum[i], _mm512_set1_epi32((int)w[i].of[r]), row);
            }
            UNROLL for (int i = 0; i < n; i++) {
                float *acc = a->acc + g->index[i] * dim + c;
                _mm512_storeu_ps(acc, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i]), w[i].back, _mm512_loadu_ps(acc)));
            }
        }
    }
}

static void attn_q8(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const plp_q8_tile x = plp_q8_at(tile, a->head_dim);
    scales s;

    fetch(next, plp_q8_bytes(a->head_dim));
    for (uint32_t c = 0; c < a->head_dim; c += 16) _mm512_storeu_ps(s.k + c, halves(x.k_scale + c));
    for (uint32_t i = 0; i < a->n_q; ) {
        const group g = next_group(a, seen, &i);
        switch (g.n) {
        case 1: attend_q8(1, a, &g, &x, &s); break;
        case 2: attend_q8(2, a, &g, &x, &s); break;
        case 3: attend_q8(3, a, &g, &x, &s); break;
        case 4: attend_q8(4, a, &g, &x, &s); break;
        }
    }
}

/* 8-bit scales or minimums times their unit. */
INLINE __m512 bytes_times(const uint8_t *p, __m512 unit) { return _mm512_mul_ps(unit, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_128(p)))); }
INLINE __m512 signed_times(const int8_t *p, __m512 unit) { return _mm512_mul_ps(unit, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_128(p)))); }

INLINE void attend_q4(const int n, plp_attn *a, const group *g, const plp_q4_tile *x, const scales *s)
{
    const size_t dim = a->head_dim;
    const __m512i low4 = _mm512_set1_epi8(15);
    query q[GROUP];
    dots d;
    __m512 p[GROUP], floor[GROUP];
    UNROLL for (int i = 0; i < n; i++) {
        const float *from = a->q + g->index[i] * dim;
        quantise_query(from, s->k, (uint32_t)dim, &q[i]);
        floor[i] = _mm512_setzero_ps();
        for (size_t c = 0; c < dim; c += 16)
            floor[i] = _mm512_fmadd_ps(_mm512_loadu_ps(from + c), _mm512_loadu_ps(s->k_min + c), floor[i]);
        d.high[i] = d.low[i] = _mm512_setzero_si512();
    }
    add_keys(n, &d, x->k, (uint32_t)dim / 8, q, 0, 1);
    add_keys(n, &d, x->k, (uint32_t)dim / 8, q, dim / 2, 2);
    UNROLL for (int i = 0; i < n; i++) {
        const __m512 score = _mm512_add_ps(_mm512_mul_ps(whole(&d, i), splat(q[i].back)), splat(fold16(floor[i])));
        p[i] = soften(a, g->index[i], score, g->lo[i], g->hi[i]);
    }
    for (size_t v = 0, c = 0; c < dim; v++) {
        const __m512 scale = bytes_times(x->v_scale + v * LEN, s->v), min = signed_times(x->v_min + v * LEN, s->v_min);
        weights w[GROUP];
        __m512 base[GROUP];
        UNROLL for (int i = 0; i < n; i++) {
            w[i] = quantise_p(p[i], scale);
            base[i] = splat(fold16(_mm512_mul_ps(p[i], min)));
        }
        for (size_t end = (v + 1) * PLP_V_GROUP; c < end && c < dim; c += 16) {
            const __m512i v0 = load_512(x->v + c * 4), v1 = load_512(x->v + (dim + c) * 4);
            const __m512i row[4] = { _mm512_and_si512(v0, low4), _mm512_and_si512(v1, low4),
                                     _mm512_and_si512(_mm512_srli_epi16(v0, 4), low4), _mm512_and_si512(_mm512_srli_epi16(v1, 4), low4) };
            UNROLL for (int i = 0; i < n; i++) {
                float *acc = a->acc + g->index[i] * dim + c;
                __m512i sum = _mm512_setzero_si512();
                UNROLL for (int r = 0; r < 4; r++) sum = _mm512_dpbusd_epi32(sum, row[r], _mm512_set1_epi32((int)w[i].of[r]));
                const __m512 now = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), w[i].back, _mm512_loadu_ps(acc));
                _mm512_storeu_ps(acc, _mm512_add_ps(now, base[i]));
            }
        }
    }
}

static void attn_q4(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const plp_q4_tile x = plp_q4_at(tile, a->head_dim);
    const __m512 k_unit = splat(plp_half(x.units[0])), min_unit = splat(plp_half(x.units[1]));
    scales s;
    s.v = splat(plp_half(x.units[2]));
    s.v_min = splat(plp_half(x.units[3]));

    fetch(next, plp_q4_bytes(a->head_dim));
    for (uint32_t c = 0; c < a->head_dim; c += 16) {
        _mm512_storeu_ps(s.k + c, bytes_times(x.k_scale + c, k_unit));
        _mm512_storeu_ps(s.k_min + c, signed_times(x.k_min + c, min_unit));
    }
    for (uint32_t i = 0; i < a->n_q; ) {
        const group g = next_group(a, seen, &i);
        switch (g.n) {
        case 1: attend_q4(1, a, &g, &x, &s); break;
        case 2: attend_q4(2, a, &g, &x, &s); break;
        case 3: attend_q4(3, a, &g, &x, &s); break;
        case 4: attend_q4(4, a, &g, &x, &s); break;
        }
    }
}

void plp_fill_avx512_sealed(plp_kernels *k)
{
    k->attn_q8 = attn_q8;
    k->attn_q4 = attn_q4;
}
