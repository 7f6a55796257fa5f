/*
 * kernels/x86/avx512.h - what the files of the tier "avx512" share: lanes, transposes, exp, packed activations
 *
 * Only avx512_*.c may include this. The tier needs AVX-512 F, BW, DQ, VL, VNNI and VBMI, AVX2, FMA, F16C.
 */
#ifndef PLP_KERNELS_X86_AVX512_H
#define PLP_KERNELS_X86_AVX512_H

#include <immintrin.h>

#include "kernels/kernels.h"
#include "kernels/ref/math.h"
#include "kernels/ref/ref.h"
#include "kernels/x86/packed.h"
#include "kernels/x86/x86.h"

/* The product paths, for few, some and many tokens; r1 - r0 is any number. */
void   plp_avx512_stream(const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy,
                         bool add, bool fetching, void *work);
size_t plp_avx512_stream_work(uint32_t n, uint32_t k);
void   plp_avx2_columns(const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy, bool add);
void   plp_avx512_panel(const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy,
                        bool add, void *work);
size_t plp_avx512_panel_work(uint32_t n, uint32_t k);
void   plp_avx512_columns(const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy,
                          bool add, void *work);
size_t plp_avx512_columns_work(uint32_t n);
size_t plp_avx512_float_work(uint32_t k);
/* attn_f16_run in units of 16 tokens: block_len is a multiple of 16. */
void   plp_avx512_run(plp_attn *a, const void *const *tiles, uint32_t block_len, plp_seen seen, void *work);
size_t plp_avx512_run_work(uint32_t head_dim);
void   plp_fill_avx512_float(plp_kernels *k);
void   plp_fill_avx512_vector(plp_kernels *k);
void   plp_fill_avx512_attention(plp_kernels *k);
void   plp_fill_avx512_sealed(plp_kernels *k);

/* ---- lanes -------------------------------------------------------------------------------- */

INLINE __m128i  load_128(const void *p) { return _mm_loadu_si128(p); }
INLINE __m256i  load_256(const void *p) { return _mm256_loadu_si256(p); }
INLINE __m512i  load_512(const void *p) { return _mm512_loadu_si512(p); }
INLINE __m512   halves(const void *p)   { return _mm512_cvtph_ps(load_256(p)); }
INLINE __mmask16 lanes_below(uint32_t n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }

/* Nibbles -> what they stand for in a table of sixteen, 128 larger. */
INLINE __m512i looked_up(const int8_t values[16], __m512i nibbles)
{
    return _mm512_shuffle_epi8(_mm512_xor_si512(_mm512_broadcast_i32x4(load_128(values)), _mm512_set1_epi8((char)0x80)), nibbles);
}

/* Sixteen of plp_half_e8m0. */
INLINE __m512 e8m0(__m128i e)
{
    const __m512i v = _mm512_cvtepu8_epi32(e);
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(v, _mm512_set1_epi32(1)), 23);
    const __mmask16 small = _mm512_cmplt_epi32_mask(v, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, small, _mm512_set1_epi32(0x00200000), v));
}

/* Four 16-byte pieces, `stride` apart, as one register. */
INLINE __m512i load_4x16(const uint8_t *p, size_t stride)
{
    __m512i v = _mm512_castsi128_si512(load_128(p));
    v = _mm512_inserti32x4(v, load_128(p + stride), 1);
    v = _mm512_inserti32x4(v, load_128(p + 2 * stride), 2);
    return _mm512_inserti32x4(v, load_128(p + 3 * stride), 3);
}

/* 16 rows of 16 bytes, `stride` apart -> out[c]: dword c of rows 0..15. */
INLINE void transpose_16x4(const void *from, size_t stride, __m512i out[4])
{
    const uint8_t *p = from;
    const __m512i r0 = load_4x16(p, 4 * stride), r1 = load_4x16(p + stride, 4 * stride);
    const __m512i r2 = load_4x16(p + 2 * stride, 4 * stride), r3 = load_4x16(p + 3 * stride, 4 * stride);
    const __m512i a = _mm512_unpacklo_epi32(r0, r1), b = _mm512_unpacklo_epi32(r2, r3);
    const __m512i c = _mm512_unpackhi_epi32(r0, r1), d = _mm512_unpackhi_epi32(r2, r3);
    out[0] = _mm512_unpacklo_epi64(a, b);
    out[1] = _mm512_unpackhi_epi64(a, b);
    out[2] = _mm512_unpacklo_epi64(c, d);
    out[3] = _mm512_unpackhi_epi64(c, d);
}

/* The fold of sum16. */
INLINE float fold16(__m512 v)
{
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/* ---- the functions of ref/math.h, sixteen at a time --------------------------------------- */

INLINE __m512 splat(float f) { return _mm512_set1_ps(f); }

INLINE __m512 exp16(__m512 x)
{
    x = _mm512_min_ps(_mm512_max_ps(x, splat(PLP_EXP_MIN)), splat(PLP_EXP_MAX));
    const __m512 shifted = _mm512_add_ps(_mm512_mul_ps(x, splat(PLP_LOG2E)), splat(PLP_ROUND_MAGIC));
    const __m512 n = _mm512_sub_ps(shifted, splat(PLP_ROUND_MAGIC));
    __m512 r = _mm512_fmadd_ps(n, splat(-PLP_LN2_HI), x);
    r = _mm512_fmadd_ps(n, splat(-PLP_LN2_LO), r);
    __m512 p = _mm512_fmadd_ps(splat(PLP_EXP_C6), r, splat(PLP_EXP_C5));
    p = _mm512_fmadd_ps(p, r, splat(PLP_EXP_C4));
    p = _mm512_fmadd_ps(p, r, splat(PLP_EXP_C3));
    p = _mm512_fmadd_ps(p, r, splat(PLP_EXP_C2));
    p = _mm512_fmadd_ps(p, r, splat(1));
    p = _mm512_fmadd_ps(p, r, splat(1));
    const __m512i e = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(splat(PLP_ROUND_MAGIC)));
    return _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(e, _mm512_set1_epi32(127)), 23)));
}

INLINE __m512 tanh16(__m512 x)
{
    const __m512 u = _mm512_mul_ps(x, x), a = _mm512_abs_ps(x), sign = splat(-0.0f);
    __m512 p = _mm512_fmadd_ps(splat(PLP_TANH_C4), u, splat(PLP_TANH_C3));
    p = _mm512_fmadd_ps(p, u, splat(PLP_TANH_C2));
    p = _mm512_fmadd_ps(p, u, splat(PLP_TANH_C1));
    p = _mm512_fmadd_ps(p, u, splat(PLP_TANH_C0));
    const __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(x, u), p, x);
    const __m512 e = _mm512_add_ps(exp16(_mm512_add_ps(a, a)), splat(1));
    const __m512 large = _mm512_sub_ps(splat(1), _mm512_div_ps(splat(2), e));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, splat(PLP_TANH_SPLIT), _CMP_LT_OQ),
                                _mm512_or_ps(large, _mm512_and_ps(sign, x)), small);
}

INLINE __m512 erf16(__m512 x)
{
    const __m512 u = _mm512_mul_ps(x, x), a = _mm512_min_ps(_mm512_abs_ps(x), splat(4)), sign = splat(-0.0f);
    __m512 p = _mm512_fmadd_ps(splat(PLP_ERF_P6), u, splat(PLP_ERF_P5));
    p = _mm512_fmadd_ps(p, u, splat(PLP_ERF_P4));
    p = _mm512_fmadd_ps(p, u, splat(PLP_ERF_P3));
    p = _mm512_fmadd_ps(p, u, splat(PLP_ERF_P2));
    p = _mm512_fmadd_ps(p, u, splat(PLP_ERF_P1));
    p = _mm512_fmadd_ps(p, u, splat(PLP_ERF_P0));
    __m512 q = _mm512_fmadd_ps(splat(PLP_ERF_Q6), a, splat(PLP_ERF_Q5));
    q = _mm512_fmadd_ps(q, a, splat(PLP_ERF_Q4));
    q = _mm512_fmadd_ps(q, a, splat(PLP_ERF_Q3));
    q = _mm512_fmadd_ps(q, a, splat(PLP_ERF_Q2));
    q = _mm512_fmadd_ps(q, a, splat(PLP_ERF_Q1));
    q = _mm512_fmadd_ps(q, a, splat(PLP_ERF_Q0));
    const __m512 large = _mm512_sub_ps(splat(1), exp16(q));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, splat(1), _CMP_LT_OQ), _mm512_or_ps(large, _mm512_and_ps(sign, x)),
                                _mm512_mul_ps(x, p));
}

/* ---- four vectors at once: what would be a chain of shuffles for each ------------------------ */

/* Lane i in every lane; i is a literal once inlined, but clang wants to see one. */
INLINE __m512i lane_of_i(__m128i v, const int i)
{
    switch (i) {
    case 0:  return _mm512_broadcastd_epi32(v);
    case 1:  return _mm512_broadcastd_epi32(_mm_shuffle_epi32(v, 0x55));
    case 2:  return _mm512_broadcastd_epi32(_mm_shuffle_epi32(v, 0xaa));
    default: return _mm512_broadcastd_epi32(_mm_shuffle_epi32(v, 0xff));
    }
}
INLINE __m512 lane_of(__m128 v, const int i)
{
    switch (i) {
    case 0:  return _mm512_broadcastss_ps(v);
    case 1:  return _mm512_broadcastss_ps(_mm_permute_ps(v, 0x55));
    case 2:  return _mm512_broadcastss_ps(_mm_permute_ps(v, 0xaa));
    default: return _mm512_broadcastss_ps(_mm_permute_ps(v, 0xff));
    }
}

INLINE __m512i add_pairs_32(__m512i a, __m512i b)
{
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}
INLINE __m512i add_pairs_64(__m512i a, __m512i b)
{
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}
/* In each 128-bit lane: the sums of that lane of v[0..3]. */
INLINE __m512i add_lanes(const __m512i v[4])
{
    return add_pairs_64(add_pairs_32(v[0], v[1]), add_pairs_32(v[2], v[3]));
}

/* Lane i: the largest of v[i]. */
INLINE __m128 most4(const __m512 v[4])
{
    const __m512 a = _mm512_max_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    const __m512 b = _mm512_max_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    const __m512 c = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    const __m256 d = _mm256_max_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));
    return _mm_max_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));
}

/* Lane i: fold16 of v[i], by the same additions. */
INLINE __m128 fold4(const __m512 v[4])
{
    const __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44), _mm512_shuffle_f32x4(v[0], v[1], 0xee));
    const __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44), _mm512_shuffle_f32x4(v[2], v[3], 0xee));
    const __m512 c = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    const __m512 d = _mm512_add_ps(c, _mm512_permute_ps(c, 0x4e));
    const __m512 e = _mm512_add_ps(d, _mm512_movehdup_ps(d));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(_mm512_setr4_epi32(0, 4, 8, 12), e));
}

/* ---- the running softmax ------------------------------------------------------------------- */

/* Scores of queries i .. i + n of a, n <= 4, for 16 tokens -> probabilities relative to the maxima, which may rise; s and
 * acc follow. Query j sees tokens [lo[j], hi[j]); NULL: all of them. One that sees nothing keeps its state. */
INLINE void soften(const int n, plp_attn *a, uint32_t i, __m512 score[4], const uint32_t *lo, const uint32_t *hi)
{
    const __mmask8 there = (__mmask8)((1 << n) - 1);
    __mmask8 live = lo ? 0 : there;
    UNROLL for (int j = 0; j < 4; j++) {
        if (j >= n) { score[j] = _mm512_setzero_ps(); continue; }
        if (a->softcap > 0) score[j] = _mm512_mul_ps(splat(a->softcap), tanh16(_mm512_div_ps(score[j], splat(a->softcap))));
        if (lo) {
            score[j] = _mm512_mask_blend_ps((__mmask16)(lanes_below(hi[j]) & ~lanes_below(lo[j])), splat(-__builtin_inff()), score[j]);
            live |= (__mmask8)((lo[j] < hi[j]) << j);
        }
    }
    const __m128 top = most4(score);
    __m128 m = _mm_maskz_loadu_ps(there, a->m + i), s = _mm_maskz_loadu_ps(there, a->s + i);
    const __mmask8 rise = _mm_mask_cmp_ps_mask(live, top, m, _CMP_GT_OQ);
    if (rise) {
        const __m128 c = _mm512_castps512_ps128(exp16(_mm512_castps128_ps512(_mm_sub_ps(m, top))));
        m = _mm_mask_mov_ps(m, rise, top);
        s = _mm_mask_mul_ps(s, rise, s, c);
        _mm_mask_storeu_ps(a->m + i, there, m);
        UNROLL for (int j = 0; j < n; j++) {
            if (!(rise & 1 << j)) continue;
            float *acc = a->acc + (size_t)(i + j) * a->head_dim;
            const __m512 cj = lane_of(c, j);
            for (uint32_t d = 0; d < a->head_dim; d += 16) _mm512_storeu_ps(acc + d, _mm512_mul_ps(_mm512_loadu_ps(acc + d), cj));
        }
    }
    UNROLL for (int j = 0; j < n; j++) score[j] = exp16(_mm512_sub_ps(score[j], lane_of(m, j)));
    _mm_mask_storeu_ps(a->s + i, there, _mm_mask_add_ps(s, live, s, fold4(score)));
}

#endif
