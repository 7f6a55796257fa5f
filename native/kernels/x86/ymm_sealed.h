/*
 * kernels/x86/ymm_sealed.h - tiers "avx2" and "avxvnni": attention over sealed q8 and q4 tiles by integer dots
 *
 * Layouts, formulas and their order: kernels/sealed.h. "avx2" widens keys to 16 bits, which meet the 16-bit query in vpmaddwd;
 * "avxvnni" takes the query as two signed bytes, q = 256 * high + low, so that vpdpbusd multiplies each with the unsigned keys.
 * Probabilities fit seven bits and meet V in vpmaddubsw, where two products of at most 127 * 128 do not saturate, or in
 * vpdpbusd. One query at a time: the tile stays in L1.
 */
#ifndef PLP_KERNELS_X86_YMM_SEALED_H
#define PLP_KERNELS_X86_YMM_SEALED_H

#include "kernels/sealed.h"
#include "kernels/x86/avx2.h"

enum { LEN = PLP_SEALED_LEN, MAX_DIM = PLP_MAX_HEAD_DIM };

/* A query times the tile's key scales, in 16 bits or their two bytes, and what undoes it. */
typedef struct query {
    int16_t v[HAS_DPBUSD ? 1 : MAX_DIM];
    int8_t  high[HAS_DPBUSD ? MAX_DIM : 1], low[HAS_DPBUSD ? MAX_DIM : 1];
    int32_t sum;
    float   back;
} query;

INLINE __m256 scaled(const float *q, const float *scale, uint32_t c) { return _mm256_mul_ps(_mm256_loadu_ps(q + c), _mm256_loadu_ps(scale + c)); }

INLINE void quantise_query(const float *q, const float *scale, uint32_t dim, query *o)
{
    __m256 most8 = _mm256_setzero_ps();
    for (uint32_t c = 0; c < dim; c += 8) most8 = _mm256_max_ps(most8, _mm256_andnot_ps(splat(-0.0f), scaled(q, scale, c)));
    const float most = max8(most8);
    const __m256 inverse = splat(most >= PLP_X_ZERO ? 32512.0f / most : 0.0f);
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t c = 0; c < dim; c += 16) {
        const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(scaled(q, scale, c), inverse));
        const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(scaled(q, scale, c + 8), inverse));
        sum = _mm256_add_epi32(sum, _mm256_add_epi32(a, b));
        const __m256i v = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
        if (HAS_DPBUSD) {
            const __m256i high = _mm256_srai_epi16(_mm256_add_epi16(v, _mm256_set1_epi16(128)), 8);
            const __m256i low = _mm256_and_si256(v, _mm256_set1_epi16(255));
            _mm_storeu_si128((void *)(o->high + c), _mm_packs_epi16(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
            _mm_storeu_si128((void *)(o->low + c), _mm_packus_epi16(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
        } else
            _mm256_storeu_si256((void *)(o->v + c), v);
    }
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    o->sum = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
    o->back = most / 32512.0f;
}

/* Sums of 16 tokens. By vpmaddwd, pairs of channels: [0], [1] tokens 0..7, [2], [3] tokens 8..15. By vpdpbusd: [0] the high bytes,
 * [1] the low ones of tokens 0..7, [2], [3] of tokens 8..15. */
typedef struct dots { __m256i of[4]; } dots;

/* Keys [n][16][4] times the query's channels from c on; nibble 1 takes low, 2 high nibbles. */
INLINE void add_keys(dots *o, const uint8_t *keys, uint32_t n, const query *q, uint32_t c, const int nibble)
{
    const __m256i zero = _mm256_setzero_si256();
    for (uint32_t j = 0; j < n; j++, c += 4)
        UNROLL for (int i = 0; i < 2; i++) {
            __m256i k = load_256(keys + j * 64 + 32 * i), *to = o->of + 2 * i;
            if (nibble) k = nibble == 1 ? low4(k) : high4(k);
            if (HAS_DPBUSD) {
                to[0] = add_dots(to[0], k, _mm256_set1_epi32((int)load_u32(q->high + c)));
                to[1] = add_dots(to[1], k, _mm256_set1_epi32((int)load_u32(q->low + c)));
            } else {
                const __m256i w = _mm256_set1_epi64x((long long)load_u64(q->v + c));
                to[0] = _mm256_add_epi32(to[0], _mm256_madd_epi16(_mm256_unpacklo_epi8(k, zero), w));
                to[1] = _mm256_add_epi32(to[1], _mm256_madd_epi16(_mm256_unpackhi_epi8(k, zero), w));
            }
        }
}

INLINE __m256i eight_dots(const __m256i v[2])
{
    return HAS_DPBUSD ? _mm256_add_epi32(_mm256_slli_epi32(v[0], 8), v[1]) : _mm256_hadd_epi32(v[0], v[1]);
}

INLINE pair scores_of(const dots *o, int32_t correction, float back)
{
    const __m256i all = _mm256_set1_epi32(correction);
    const __m256i a = _mm256_add_epi32(eight_dots(o->of), all);
    const __m256i b = _mm256_add_epi32(eight_dots(o->of + 2), all);
    return (pair){ _mm256_mul_ps(_mm256_cvtepi32_ps(a), splat(back)), _mm256_mul_ps(_mm256_cvtepi32_ps(b), splat(back)) };
}

/* Probabilities times V's scales in seven bits, four tokens a dword, and what undoes it. */
typedef struct weights { int32_t of[4]; __m256 back; } weights;

INLINE weights quantise_p(pair p, pair scale)
{
    const __m256 a = _mm256_mul_ps(p.a, scale.a), b = _mm256_mul_ps(p.b, scale.b);
    const float most = max8(_mm256_max_ps(_mm256_max_ps(a, b), _mm256_setzero_ps()));
    const __m256 inverse = splat(most >= PLP_X_ZERO ? 127.0f / most : 0.0f);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(a, inverse)),
                                                                      _mm256_cvtps_epi32(_mm256_mul_ps(b, inverse))), 0xd8);
    weights o = { .back = splat(most / 127.0f) };
    _mm_storeu_si128((void *)o.of, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    return o;
}

/* Eight channels of V, whose nibbles are tokens 0..3 and 8..11 in v0, 4..7 and 12..15 in v1. */
INLINE __m256i nibble_dots(__m256i v0, __m256i v1, const weights *w)
{
    const __m256i v[4] = { low4(v0), low4(v1), high4(v0), high4(v1) };
    __m256i sum = _mm256_setzero_si256();
    if (HAS_DPBUSD) {
        UNROLL for (int r = 0; r < 4; r++) sum = add_dots(sum, v[r], _mm256_set1_epi32(w->of[r]));
        return sum;
    }
    UNROLL for (int r = 0; r < 4; r++) sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(v[r], _mm256_set1_epi32(w->of[r])));
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
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
    for (uint32_t c = 0; c < dim; c += 8) _mm256_storeu_ps(k_scale + c, halves(x.k_scale + c));
    for (uint32_t i = 0, lo, hi; i < a->n_q; i++) {
        if (!sees(seen, i, &lo, &hi)) continue;
        query q;
        dots d = { 0 };
        quantise_query(a->q + (size_t)i * dim, k_scale, dim, &q);
        add_keys(&d, x.k, dim / 4, &q, 0, 0);
        const pair p = soften(a, i, scores_of(&d, (int32_t)(-128u * (uint32_t)q.sum), q.back), lo, hi);
        float *acc = a->acc + (size_t)i * dim;
        for (uint32_t g = 0, c = 0; c < dim; g++) {
            const weights w = quantise_p(p, (pair){ halves(x.v_scale + g * LEN), halves(x.v_scale + g * LEN + 8) });
            for (uint32_t end = (g + 1) * PLP_V_GROUP; c < end && c < dim; c += 8) {
                __m256i sum = _mm256_setzero_si256();
                UNROLL for (int r = 0; r < 4; r++)
                    sum = add_dots(sum, _mm256_set1_epi32(w.of[r]), load_256(x.v + (r * dim + c) * 4));
                _mm256_storeu_ps(acc + c, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), w.back, _mm256_loadu_ps(acc + c)));
            }
        }
    }
}

static void attn_q4(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const uint32_t dim = a->head_dim;
    const plp_q4_tile x = plp_q4_at(tile, dim);
    __m256 unit[4];
    float k_scale[MAX_DIM], k_min[MAX_DIM];

    fetch(next, plp_q4_bytes(dim));
    for (int i = 0; i < 4; i++) unit[i] = splat(plp_half(x.units[i]));
    for (uint32_t c = 0; c < dim; c += 8) {
        _mm256_storeu_ps(k_scale + c, _mm256_mul_ps(unit[0], bytes_ps(x.k_scale + c)));
        _mm256_storeu_ps(k_min + c, _mm256_mul_ps(unit[1], signed_bytes_ps(x.k_min + c)));
    }
    for (uint32_t i = 0, lo, hi; i < a->n_q; i++) {
        if (!sees(seen, i, &lo, &hi)) continue;
        const float *from = a->q + (size_t)i * dim;
        query q;
        dots d = { 0 };
        quantise_query(from, k_scale, dim, &q);
        pair base = { _mm256_setzero_ps(), _mm256_setzero_ps() };
        for (uint32_t c = 0; c < dim; c += 16) {
            base.a = _mm256_fmadd_ps(_mm256_loadu_ps(from + c), _mm256_loadu_ps(k_min + c), base.a);
            base.b = _mm256_fmadd_ps(_mm256_loadu_ps(from + c + 8), _mm256_loadu_ps(k_min + c + 8), base.b);
        }
        add_keys(&d, x.k, dim / 8, &q, 0, 1);
        add_keys(&d, x.k, dim / 8, &q, dim / 2, 2);
        const __m256 floor = splat(fold16(base));
        const pair score = scores_of(&d, 0, q.back);
        const pair p = soften(a, i, (pair){ _mm256_add_ps(score.a, floor), _mm256_add_ps(score.b, floor) }, lo, hi);
        float *acc = a->acc + (size_t)i * dim;
        for (uint32_t g = 0, c = 0; c < dim; g++) {
            const uint8_t *scale = x.v_scale + g * LEN;
            const int8_t *min = x.v_min + g * LEN;
            const weights w = quantise_p(p, (pair){ _mm256_mul_ps(unit[2], bytes_ps(scale)), _mm256_mul_ps(unit[2], bytes_ps(scale + 8)) });
            const pair low = { _mm256_mul_ps(p.a, _mm256_mul_ps(unit[3], signed_bytes_ps(min))),
                               _mm256_mul_ps(p.b, _mm256_mul_ps(unit[3], signed_bytes_ps(min + 8))) };
            const __m256 add = splat(fold16(low));
            for (uint32_t end = (g + 1) * PLP_V_GROUP; c < end && c < dim; c += 8) {
                const __m256 sum = _mm256_cvtepi32_ps(nibble_dots(load_256(x.v + c * 4), load_256(x.v + (dim + c) * 4), &w));
                _mm256_storeu_ps(acc + c, _mm256_add_ps(_mm256_fmadd_ps(sum, w.back, _mm256_loadu_ps(acc + c)), add));
            }
        }
    }
}

void TIER(fill_sealed)(plp_kernels *k)
{
    k->attn_q8 = attn_q8;
    k->attn_q4 = attn_q4;
}

#endif
