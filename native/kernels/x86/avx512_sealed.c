/*
 * kernels/x86/avx512_sealed.c - tier "avx512": attention over sealed q8 and q4 tiles by integer dots
 *
 * Layouts, formulas and their order: kernels/sealed.h. A 16-bit query is two signed bytes, q = 256 * high + low,
 * so that vpdpbusd multiplies each with the unsigned keys; sixteen tokens are one register. Probabilities fit
 * seven bits and meet V sixteen channels at a time. One query at a time: the tile stays in L1.
 */
#include "kernels/sealed.h"
#include "kernels/x86/avx512.h"

enum { LEN = PLP_SEALED_LEN, MAX_DIM = 256 };

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

/* Sums of 16 tokens: keys [n][16][4] times the query's channels from c on; shift 4 takes the high nibbles. */
typedef struct dots { __m512i high[2], low[2]; } dots;

INLINE void add_keys(dots *o, const uint8_t *keys, uint32_t n, const query *q, uint32_t c, const int nibble)
{
    for (uint32_t j = 0; j < n; j += 2)
        UNROLL for (int i = 0; i < 2; i++) {
            __m512i k = load_512(keys + (j + i) * 64);
            if (nibble == 1) k = _mm512_and_si512(k, _mm512_set1_epi8(15));
            if (nibble == 2) k = _mm512_and_si512(_mm512_srli_epi16(k, 4), _mm512_set1_epi8(15));
            o->high[i] = _mm512_dpbusd_epi32(o->high[i], k, _mm512_set1_epi32((int)load_u32(q->high + c + 4 * (j + i))));
            o->low[i] = _mm512_dpbusd_epi32(o->low[i], k, _mm512_set1_epi32((int)load_u32(q->low + c + 4 * (j + i))));
        }
}

INLINE __m512i whole(const dots *o)
{
    const __m512i high = _mm512_slli_epi32(_mm512_add_epi32(o->high[0], o->high[1]), 8);
    return _mm512_add_epi32(high, _mm512_add_epi32(o->low[0], o->low[1]));
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

INLINE bool sees(plp_seen seen, uint32_t i, uint32_t *lo, uint32_t *hi)
{
    *lo = seen.lo ? seen.lo[i] : 0;
    *hi = seen.hi ? seen.hi[i] : LEN;
    return *lo < *hi;
}

static void attn_q8(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const uint32_t dim = a->head_dim;
    const plp_q8_tile x = plp_q8_at(tile, dim);
    float k_scale[MAX_DIM];

    fetch(next, plp_q8_bytes(dim));
    for (uint32_t c = 0; c < dim; c += 16) _mm512_storeu_ps(k_scale + c, halves(x.k_scale + c));
    for (uint32_t i = 0, lo, hi; i < a->n_q; i++) {
        if (!sees(seen, i, &lo, &hi)) continue;
        query q;
        quantise_query(a->q + (size_t)i * dim, k_scale, dim, &q);
        dots d = { { _mm512_setzero_si512(), _mm512_setzero_si512() }, { _mm512_set1_epi32(-128 * q.sum), _mm512_setzero_si512() } };
        add_keys(&d, x.k, dim / 4, &q, 0, 0);
        const __m512 p = soften(a, i, _mm512_mul_ps(_mm512_cvtepi32_ps(whole(&d)), splat(q.back)), lo, hi);
        float *acc = a->acc + (size_t)i * dim;
        for (uint32_t g = 0, c = 0; c < dim; g++) {
            const weights w = quantise_p(p, halves(x.v_scale + g * LEN));
            for (uint32_t end = (g + 1) * PLP_V_GROUP; c < end && c < dim; c += 16) {
                __m512i sum = _mm512_setzero_si512();
                UNROLL for (int r = 0; r < 4; r++)
                    sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi32((int)w.of[r]), load_512(x.v + (r * dim + c) * 4));
                _mm512_storeu_ps(acc + c, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), w.back, _mm512_loadu_ps(acc + c)));
            }
        }
    }
}

/* 8-bit scales or minimums times their unit. */
INLINE __m512 bytes_times(const uint8_t *p, __m512 unit) { return _mm512_mul_ps(unit, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_128(p)))); }
INLINE __m512 signed_times(const int8_t *p, __m512 unit) { return _mm512_mul_ps(unit, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_128(p)))); }

static void attn_q4(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const uint32_t dim = a->head_dim;
    const plp_q4_tile x = plp_q4_at(tile, dim);
    const __m512i low4 = _mm512_set1_epi8(15);
    __m512 unit[4];
    float k_scale[MAX_DIM], k_min[MAX_DIM];

    fetch(next, plp_q4_bytes(dim));
    for (int i = 0; i < 4; i++) unit[i] = splat(plp_half(x.units[i]));
    for (uint32_t c = 0; c < dim; c += 16) {
        _mm512_storeu_ps(k_scale + c, bytes_times(x.k_scale + c, unit[0]));
        _mm512_storeu_ps(k_min + c, signed_times(x.k_min + c, unit[1]));
    }
    for (uint32_t i = 0, lo, hi; i < a->n_q; i++) {
        if (!sees(seen, i, &lo, &hi)) continue;
        const float *from = a->q + (size_t)i * dim;
        query q;
        quantise_query(from, k_scale, dim, &q);
        __m512 floor = _mm512_setzero_ps();
        for (uint32_t c = 0; c < dim; c += 16) floor = _mm512_fmadd_ps(_mm512_loadu_ps(from + c), _mm512_loadu_ps(k_min + c), floor);
        const __m512i zero = _mm512_setzero_si512();
        dots d = { { zero, zero }, { zero, zero } };
        add_keys(&d, x.k, dim / 8, &q, 0, 1);
        add_keys(&d, x.k, dim / 8, &q, dim / 2, 2);
        const __m512 score = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(whole(&d)), splat(q.back)), splat(fold16(floor)));
        const __m512 p = soften(a, i, score, lo, hi);
        float *acc = a->acc + (size_t)i * dim;
        for (uint32_t g = 0, c = 0; c < dim; g++) {
            const weights w = quantise_p(p, bytes_times(x.v_scale + g * LEN, unit[2]));
            const __m512 base = splat(fold16(_mm512_mul_ps(p, signed_times(x.v_min + g * LEN, unit[3]))));
            for (uint32_t end = (g + 1) * PLP_V_GROUP; c < end && c < dim; c += 16) {
                const __m512i v0 = load_512(x.v + c * 4), v1 = load_512(x.v + (dim + c) * 4);
                __m512i sum = _mm512_dpbusd_epi32(zero, _mm512_and_si512(v0, low4), _mm512_set1_epi32((int)w.of[0]));
                sum = _mm512_dpbusd_epi32(sum, _mm512_and_si512(v1, low4), _mm512_set1_epi32((int)w.of[1]));
                sum = _mm512_dpbusd_epi32(sum, _mm512_and_si512(_mm512_srli_epi16(v0, 4), low4), _mm512_set1_epi32((int)w.of[2]));
                sum = _mm512_dpbusd_epi32(sum, _mm512_and_si512(_mm512_srli_epi16(v1, 4), low4), _mm512_set1_epi32((int)w.of[3]));
                const __m512 now = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), w.back, _mm512_loadu_ps(acc + c));
                _mm512_storeu_ps(acc + c, _mm512_add_ps(now, base));
            }
        }
    }
}

void plp_fill_avx512_sealed(plp_kernels *k)
{
    k->attn_q8 = attn_q8;
    k->attn_q4 = attn_q4;
}
