/*
 * kernels/x86/avx2_sealed.c - tier "avx2": attention over sealed q8 and q4 tiles by integer dots
 *
 * Layouts, formulas and their order: kernels/sealed.h. Keys are widened to 16 bits and meet the 16-bit query in
 * vpmaddwd; probabilities fit seven bits and meet V in vpmaddubsw, where two products of at most 127 * 128 do not
 * saturate. One query at a time: the tile stays in L1.
 */
#include "kernels/sealed.h"
#include "kernels/x86/avx2.h"

enum { LEN = PLP_SEALED_LEN, MAX_DIM = PLP_MAX_HEAD_DIM };

/* A query times the tile's key scales, in 16 bits, and what undoes it. */
typedef struct query {
    int16_t v[MAX_DIM];
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
        _mm256_storeu_si256((void *)(o->v + c), _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
    }
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    o->sum = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
    o->back = most / 32512.0f;
}

/* Sums of 16 tokens, as pairs of channels: [0], [1] tokens 0..7, [2], [3] tokens 8..15. */
typedef struct dots { __m256i of[4]; } dots;

/* Keys [n][16][4] times the query's channels from c on; nibble 1 takes low, 2 high nibbles. */
INLINE void add_keys(dots *o, const uint8_t *keys, uint32_t n, const query *q, uint32_t c, const int nibble)
{
    const __m256i zero = _mm256_setzero_si256();
    for (uint32_t j = 0; j < n; j++) {
        const __m256i w = _mm256_set1_epi64x((long long)load_u64(q->v + c + 4 * j));
        UNROLL for (int i = 0; i < 2; i++) {
            __m256i k = load_256(keys + j * 64 + 32 * i);
            if (nibble) k = nibble == 1 ? low4(k) : high4(k);
            o->of[2 * i] = _mm256_add_epi32(o->of[2 * i], _mm256_madd_epi16(_mm256_unpacklo_epi8(k, zero), w));
            o->of[2 * i + 1] = _mm256_add_epi32(o->of[2 * i + 1], _mm256_madd_epi16(_mm256_unpackhi_epi8(k, zero), w));
        }
    }
}

INLINE pair scores_of(const dots *o, int32_t correction, float back)
{
    const __m256i all = _mm256_set1_epi32(correction);
    const __m256i a = _mm256_add_epi32(_mm256_hadd_epi32(o->of[0], o->of[1]), all);
    const __m256i b = _mm256_add_epi32(_mm256_hadd_epi32(o->of[2], o->of[3]), all);
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

INLINE __m256i widen(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

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
        const pair p = soften(a, i, scores_of(&d, -128 * q.sum, q.back), lo, hi);
        float *acc = a->acc + (size_t)i * dim;
        for (uint32_t g = 0, c = 0; c < dim; g++) {
            const weights w = quantise_p(p, (pair){ halves(x.v_scale + g * LEN), halves(x.v_scale + g * LEN + 8) });
            for (uint32_t end = (g + 1) * PLP_V_GROUP; c < end && c < dim; c += 8) {
                __m256i sum = _mm256_setzero_si256();
                UNROLL for (int r = 0; r < 4; r++)
                    sum = _mm256_add_epi32(sum, widen(_mm256_maddubs_epi16(_mm256_set1_epi32(w.of[r]), load_256(x.v + (r * dim + c) * 4))));
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
                const __m256i v0 = load_256(x.v + c * 4), v1 = load_256(x.v + (dim + c) * 4);
                const __m256i s0 = _mm256_add_epi16(_mm256_maddubs_epi16(low4(v0), _mm256_set1_epi32(w.of[0])),
                                                    _mm256_maddubs_epi16(low4(v1), _mm256_set1_epi32(w.of[1])));
                const __m256i s1 = _mm256_add_epi16(_mm256_maddubs_epi16(high4(v0), _mm256_set1_epi32(w.of[2])),
                                                    _mm256_maddubs_epi16(high4(v1), _mm256_set1_epi32(w.of[3])));
                const __m256 sum = _mm256_cvtepi32_ps(widen(_mm256_add_epi16(s0, s1)));
                _mm256_storeu_ps(acc + c, _mm256_add_ps(_mm256_fmadd_ps(sum, w.back, _mm256_loadu_ps(acc + c)), add));
            }
        }
    }
}

void plp_fill_avx2_sealed(plp_kernels *k)
{
    k->attn_q8 = attn_q8;
    k->attn_q4 = attn_q4;
}
