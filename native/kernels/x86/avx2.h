/*
 * kernels/x86/avx2.h - what the files of the tiers "avx2" and "avxvnni" share: eight lanes, transposes, exp, the running softmax
 *
 * Only avx2_*.c, avxvnni_*.c and ymm_*.h may include this. "avx2" needs AVX2, FMA and F16C; "avxvnni" also AVX-VNNI, the
 * 256-bit vpdpbusd, and brings what that is better for: products and sealed attention. What both compile lies in ymm_*.h; the
 * flags of the file that includes it decide. The sixteen lanes of the contract are a pair of registers, lanes 0..7 and 8..15.
 */
#ifndef PLP_KERNELS_X86_AVX2_H
#define PLP_KERNELS_X86_AVX2_H

#include <immintrin.h>

#include "kernels/kernels.h"
#include "kernels/ref/math.h"
#include "kernels/ref/ref.h"
#include "kernels/x86/packed.h"
#include "kernels/x86/x86.h"

#if defined __AVXVNNI__
#define TIER(name) plp_avxvnni_##name
enum { HAS_DPBUSD = 1 };
#else
#define TIER(name) plp_avx2_##name
enum { HAS_DPBUSD = 0 };
#endif

/* The two product paths; r1 - r0 is any number. Columns take what columns_suit says. */
bool   TIER(columns_suit)(int32_t type, uint32_t n);
void   TIER(columns)(const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy, bool add);
void   TIER(panel)(const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy,
                   bool add, void *work);
size_t TIER(panel_work)(uint32_t n, uint32_t k);
void   TIER(fill_sealed)(plp_kernels *k);
size_t plp_avx2_float_work(uint32_t k);
void   plp_fill_avx2_pack(plp_kernels *k);
void   plp_fill_avx2_float(plp_kernels *k);
void   plp_fill_avx2_vector(plp_kernels *k);
void   plp_fill_avx2_attention(plp_kernels *k);
void   plp_fill_avx2_seal(plp_kernels *k);

/* ---- what gcc would do otherwise ---------------------------------------------------------------- */

/* Keeps a register from being loaded once per token, and sums in order: gcc would turn chains of integer additions into trees, for
 * which it has not the registers. */
#define KEEP(v) __asm__("" : "+x"(v))
/* Broadcasts come from memory, at no cost to the ports that multiply: gcc would take stored registers apart instead. */
#define IN_MEMORY(o) __asm__("" : "+m"(o))

/* ---- lanes -------------------------------------------------------------------------------- */

typedef struct pair { __m256 a, b; } pair;

INLINE __m128i load_128(const void *p) { return _mm_loadu_si128(p); }
INLINE __m256i load_256(const void *p) { return _mm256_loadu_si256(p); }
INLINE __m256  splat(float f)          { return _mm256_set1_ps(f); }
INLINE __m256  halves(const void *p)   { return _mm256_cvtph_ps(load_128(p)); }
INLINE __m256i low4(__m256i v)         { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
INLINE __m256i high4(__m256i v)        { return low4(_mm256_srli_epi16(v, 4)); }
INLINE __m256  negate(__m256 v)        { return _mm256_xor_ps(v, splat(-0.0f)); }
/* A Zen 3 inserts one lane a cycle, but loads two to both lanes and blends more. */
INLINE __m256i two_128(const void *low, const void *high)
{
    return _mm256_blend_epi32(_mm256_castsi128_si256(load_128(low)), _mm256_broadcastsi128_si256(load_128(high)), 0xf0);
}

/* Eight bytes as numbers. */
INLINE __m256 bytes_ps(const void *p)        { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p))); }
INLINE __m256 signed_bytes_ps(const void *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p))); }

/* Eight halves, `stride` apart: by inserts, since a register read from stored halves would wait for all of them. */
INLINE __m256 eight_halves(const uint8_t *p, size_t stride)
{
    __m128i h = _mm_cvtsi32_si128(load_u16(p));
    h = _mm_insert_epi16(h, load_u16(p + stride), 1);
    h = _mm_insert_epi16(h, load_u16(p + 2 * stride), 2);
    h = _mm_insert_epi16(h, load_u16(p + 3 * stride), 3);
    h = _mm_insert_epi16(h, load_u16(p + 4 * stride), 4);
    h = _mm_insert_epi16(h, load_u16(p + 5 * stride), 5);
    h = _mm_insert_epi16(h, load_u16(p + 6 * stride), 6);
    return _mm256_cvtph_ps(_mm_insert_epi16(h, load_u16(p + 7 * stride), 7));
}

/* Four bytes of rows `stride` apart; a byte of each. */
INLINE __m128i four_dwords(const uint8_t *p, size_t stride)
{
    __m128i v = _mm_cvtsi32_si128((int)load_u32(p));
    v = _mm_insert_epi32(v, (int)load_u32(p + stride), 1);
    v = _mm_insert_epi32(v, (int)load_u32(p + 2 * stride), 2);
    return _mm_insert_epi32(v, (int)load_u32(p + 3 * stride), 3);
}
INLINE __m256i eight_dwords(const uint8_t *p, size_t stride) { return _mm256_set_m128i(four_dwords(p + 4 * stride, stride), four_dwords(p, stride)); }
INLINE uint64_t eight_bytes(const uint8_t *p, size_t stride)
{
    uint64_t v = 0;
    UNROLL for (int i = 0; i < 8; i++) v |= (uint64_t)p[i * stride] << 8 * i;
    return v;
}

/* The half-precision numbers in the low words of eight dwords, in the high words. */
INLINE pair halves_of(__m128i low, __m128i high)
{
    const __m128i apart = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    low = _mm_shuffle_epi8(low, apart);
    high = _mm_shuffle_epi8(high, apart);
    return (pair){ _mm256_cvtph_ps(_mm_unpacklo_epi64(low, high)), _mm256_cvtph_ps(_mm_unpackhi_epi64(low, high)) };
}
INLINE pair eight_pairs(const uint8_t *p, size_t stride) { return halves_of(four_dwords(p, stride), four_dwords(p + 4 * stride, stride)); }
INLINE pair pairs_of(__m256i v) { return halves_of(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)); }

/* ---- weights as the tier stores them -------------------------------------------------------- */

/* What is added to make them unsigned; 0: they are, or they stay signed bytes. */
INLINE int weight_offset(int type)
{
    switch (type) {
    case PLP_TYPE_Q3_K:                      return 4;
    case PLP_TYPE_Q4_0:                      return 8;
    case PLP_TYPE_Q5_0: case PLP_TYPE_MXFP4: return 16;
    case PLP_TYPE_Q6_K:                      return 32;
    case PLP_TYPE_Q8_0: case PLP_TYPE_IQ4_NL: case PLP_TYPE_IQ4_XS: return HAS_DPBUSD ? 128 : 0;
    default:                                 return 0;
    }
}
/* Without vpdpbusd 8-bit weights are better signed: vpmaddubsw would saturate. */
INLINE bool is_signed(int type)
{
    return !HAS_DPBUSD && (type == PLP_TYPE_Q8_0 || type == PLP_TYPE_IQ4_NL || type == PLP_TYPE_IQ4_XS);
}
INLINE __m256i stored_q8(__m256i w) { return HAS_DPBUSD ? _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80)) : w; }

/* Bytes 0 and 2 (1 and 3) of each dword, as 16-bit numbers. */
INLINE __m256i even_bytes(__m256i v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
INLINE __m256i odd_bytes(__m256i v)  { return _mm256_srai_epi16(v, 8); }

/* How many columns' products of vpmaddubsw fit 16 bits; 0: of signed weights one's alone. */
INLINE int columns_that_fit(const int type)
{
    switch (type) {
    case PLP_TYPE_Q4_0: case PLP_TYPE_Q4_1: case PLP_TYPE_Q4_K: return 8;
    case PLP_TYPE_Q5_0: case PLP_TYPE_Q5_1: case PLP_TYPE_Q5_K: case PLP_TYPE_MXFP4: case PLP_TYPE_Q3_K: return 4;
    default: return is_signed(type) ? 0 : 2;
    }
}

/* Sums of two neighbours of 16 bits. */
INLINE __m256i add_pairs(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

/* acc + dots of four unsigned with four signed bytes in each dword. `u` below 128 where there is no vpdpbusd, which alone
 * does not saturate. */
INLINE __m256i add_dots(__m256i acc, __m256i u, __m256i s)
{
#if defined __AVXVNNI__
    return _mm256_dpbusd_avx_epi32(acc, u, s);
#else
    return _mm256_add_epi32(acc, add_pairs(_mm256_maddubs_epi16(u, s)));
#endif
}

/* Nibbles -> what the type says they stand for. */
INLINE __m256i looked_up(const int type, __m256i nibbles)
{
    const __m256i values = _mm256_broadcastsi128_si256(load_128(values_of(type)));
    return _mm256_shuffle_epi8(_mm256_add_epi8(values, _mm256_set1_epi8((char)weight_offset(type))), nibbles);
}

/* `value` in the bytes where h has all of these bits. */
INLINE __m256i value_where(__m256i h, __m256i bits, int value)
{
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(h, bits), bits), _mm256_set1_epi8((char)value));
}

/* In each byte: `value` (a power of two) if bit `bit` is set. */
INLINE __m256i value_of_bit(__m256i h, const int bit, const int value)
{
    const int up = __builtin_ctz((unsigned)value) - bit;
    return _mm256_and_si256(up >= 0 ? _mm256_slli_epi16(h, up) : _mm256_srli_epi16(h, -up), _mm256_set1_epi8((char)value));
}

INLINE __m256i two_bits(__m256i v, int at) { return _mm256_and_si256(_mm256_srli_epi16(v, at), _mm256_set1_epi8(3)); }

/* Eight of plp_half_e8m0. */
INLINE __m256 e8m0(uint64_t bytes)
{
    const __m256i e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes)), two = _mm256_set1_epi32(2);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(two, e)));
}

/* Terms of a block of eight rows: dots of its halves, of SUB, or of all of it as the first; xs * sum(q) of all, and of MN2's halves. */
INLINE __m256 term_of(const int form, __m256 s, __m256 m, __m256 m2, __m256 xs, __m256 xm, __m256 half0, __m256 half1, __m256 first, __m256 second)
{
    if (form == PLP_FORM_SUB) return _mm256_mul_ps(_mm256_fmadd_ps(m, second, _mm256_mul_ps(s, first)), xs);
    const __m256 term = _mm256_mul_ps(_mm256_mul_ps(s, xs), first);
    if (form == PLP_FORM_MIN) return _mm256_fmadd_ps(m, xm, term);
    if (form == PLP_FORM_MN2) return _mm256_fmadd_ps(m2, half1, _mm256_fmadd_ps(m, half0, term));
    return term;
}

/* ---- transposes, folds, results -------------------------------------------------------------- */

/* 8 rows of 16 bytes, `stride` apart -> out[c]: dword c of rows 0..7. */
INLINE void transpose_8x4(const void *from, size_t stride, __m256i out[4])
{
    const uint8_t *p = from, *q = p + 4 * stride;
    const __m256i r0 = two_128(p, q), r1 = two_128(p + stride, q + stride);
    const __m256i r2 = two_128(p + 2 * stride, q + 2 * stride), r3 = two_128(p + 3 * stride, q + 3 * stride);
    const __m256i a = _mm256_unpacklo_epi32(r0, r1), b = _mm256_unpacklo_epi32(r2, r3);
    const __m256i c = _mm256_unpackhi_epi32(r0, r1), d = _mm256_unpackhi_epi32(r2, r3);
    out[0] = _mm256_unpacklo_epi64(a, b);
    out[1] = _mm256_unpackhi_epi64(a, b);
    out[2] = _mm256_unpacklo_epi64(c, d);
    out[3] = _mm256_unpackhi_epi64(c, d);
}

/* The fold of sum16. */
INLINE float fold16(pair v)
{
    const __m256 a = _mm256_add_ps(v.a, v.b);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/* Of four registers at once. */

INLINE __m128 lower_ps(__m256 v)      { return _mm256_castps256_ps128(v); }
INLINE __m128 upper_ps(__m256 v)      { return _mm256_extractf128_ps(v, 1); }

/* Lane i: the largest of v[i]. */
INLINE __m128 most4(const __m256 v[4])
{
    __m128 a = _mm_max_ps(lower_ps(v[0]), upper_ps(v[0])), b = _mm_max_ps(lower_ps(v[1]), upper_ps(v[1]));
    __m128 c = _mm_max_ps(lower_ps(v[2]), upper_ps(v[2])), d = _mm_max_ps(lower_ps(v[3]), upper_ps(v[3]));
    _MM_TRANSPOSE4_PS(a, b, c, d);
    return _mm_max_ps(_mm_max_ps(a, b), _mm_max_ps(c, d));
}

/* Lane i: fold16 of v[i]. */
INLINE __m128 fold4(const pair v[4])
{
    __m128 four[4];
    UNROLL for (int i = 0; i < 4; i++) {
        const __m256 eight = _mm256_add_ps(v[i].a, v[i].b);
        four[i] = _mm_add_ps(lower_ps(eight), upper_ps(eight));
    }
    _MM_TRANSPOSE4_PS(four[0], four[1], four[2], four[3]);
    return _mm_add_ps(_mm_add_ps(four[0], four[2]), _mm_add_ps(four[1], four[3]));
}

INLINE float max8(__m256 a)
{
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

/* Eight results to y, the first n of them; added to what is there if `add`. */
INLINE void put_8_rows(float *y, __m256 v, uint32_t n, bool add)
{
    if (n >= 8) {
        _mm256_storeu_ps(y, add ? _mm256_add_ps(_mm256_loadu_ps(y), v) : v);
        return;
    }
    float out[8];
    _mm256_storeu_ps(out, v);
    for (uint32_t i = 0; i < n; i++) y[i] = add ? y[i] + out[i] : out[i];
}

/* The same of sixteen. */
INLINE void put_rows(float *y, pair v, uint32_t n, bool add)
{
    put_8_rows(y, v.a, n, add);
    if (n > 8) put_8_rows(y + 8, v.b, n - 8, add);
}

/* ---- the functions of ref/math.h, eight at a time ----------------------------------------- */

INLINE __m256 exp8(__m256 x)
{
    x = _mm256_min_ps(_mm256_max_ps(x, splat(PLP_EXP_MIN)), splat(PLP_EXP_MAX));
    const __m256 shifted = _mm256_add_ps(_mm256_mul_ps(x, splat(PLP_LOG2E)), splat(PLP_ROUND_MAGIC));
    const __m256 n = _mm256_sub_ps(shifted, splat(PLP_ROUND_MAGIC));
    __m256 r = _mm256_fmadd_ps(n, splat(-PLP_LN2_HI), x);
    r = _mm256_fmadd_ps(n, splat(-PLP_LN2_LO), r);
    __m256 p = _mm256_fmadd_ps(splat(PLP_EXP_C6), r, splat(PLP_EXP_C5));
    p = _mm256_fmadd_ps(p, r, splat(PLP_EXP_C4));
    p = _mm256_fmadd_ps(p, r, splat(PLP_EXP_C3));
    p = _mm256_fmadd_ps(p, r, splat(PLP_EXP_C2));
    p = _mm256_fmadd_ps(p, r, splat(1));
    p = _mm256_fmadd_ps(p, r, splat(1));
    const __m256i e = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(splat(PLP_ROUND_MAGIC)));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23)));
}

INLINE __m256 tanh8(__m256 x)
{
    const __m256 sign = splat(-0.0f), u = _mm256_mul_ps(x, x), a = _mm256_andnot_ps(sign, x);
    __m256 p = _mm256_fmadd_ps(splat(PLP_TANH_C4), u, splat(PLP_TANH_C3));
    p = _mm256_fmadd_ps(p, u, splat(PLP_TANH_C2));
    p = _mm256_fmadd_ps(p, u, splat(PLP_TANH_C1));
    p = _mm256_fmadd_ps(p, u, splat(PLP_TANH_C0));
    const __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(x, u), p, x);
    const __m256 e = _mm256_add_ps(exp8(_mm256_add_ps(a, a)), splat(1));
    const __m256 large = _mm256_sub_ps(splat(1), _mm256_div_ps(splat(2), e));
    return _mm256_blendv_ps(_mm256_or_ps(large, _mm256_and_ps(sign, x)), small,
                            _mm256_cmp_ps(a, splat(PLP_TANH_SPLIT), _CMP_LT_OQ));
}

INLINE __m256 erf8(__m256 x)
{
    const __m256 sign = splat(-0.0f), u = _mm256_mul_ps(x, x), a = _mm256_min_ps(_mm256_andnot_ps(sign, x), splat(4));
    __m256 p = _mm256_fmadd_ps(splat(PLP_ERF_P6), u, splat(PLP_ERF_P5));
    p = _mm256_fmadd_ps(p, u, splat(PLP_ERF_P4));
    p = _mm256_fmadd_ps(p, u, splat(PLP_ERF_P3));
    p = _mm256_fmadd_ps(p, u, splat(PLP_ERF_P2));
    p = _mm256_fmadd_ps(p, u, splat(PLP_ERF_P1));
    p = _mm256_fmadd_ps(p, u, splat(PLP_ERF_P0));
    __m256 q = _mm256_fmadd_ps(splat(PLP_ERF_Q6), a, splat(PLP_ERF_Q5));
    q = _mm256_fmadd_ps(q, a, splat(PLP_ERF_Q4));
    q = _mm256_fmadd_ps(q, a, splat(PLP_ERF_Q3));
    q = _mm256_fmadd_ps(q, a, splat(PLP_ERF_Q2));
    q = _mm256_fmadd_ps(q, a, splat(PLP_ERF_Q1));
    q = _mm256_fmadd_ps(q, a, splat(PLP_ERF_Q0));
    const __m256 large = _mm256_sub_ps(splat(1), exp8(q));
    return _mm256_blendv_ps(_mm256_or_ps(large, _mm256_and_ps(sign, x)), _mm256_mul_ps(x, p),
                            _mm256_cmp_ps(a, splat(1), _CMP_LT_OQ));
}

/* ---- the running softmax ------------------------------------------------------------------- */

/* Lanes lo <= i < hi, counted from `first`. */
INLINE __m256 lanes_within(uint32_t lo, uint32_t hi, int first)
{
    const __m256i i = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    const __m256i not_low = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)lo), i);
    return _mm256_castsi256_ps(_mm256_andnot_si256(not_low, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)hi), i)));
}

INLINE __m256 cap8(__m256 v, float cap)
{
    return cap > 0 ? _mm256_mul_ps(splat(cap), tanh8(_mm256_div_ps(v, splat(cap)))) : v;
}

/* Scores of n <= 4 queries from i on for 16 tokens, of which query g sees [lo[g], hi[g]), NULL: all -> probabilities relative to
 * each one's maximum, which may rise; s and acc follow. A query that sees nothing gets zeros and keeps its state. Side by side: a
 * query alone is a chain of steps that wait for one another. */
INLINE void soften(const int n, plp_attn *a, uint32_t i, pair p[4], const uint32_t *lo, const uint32_t *hi)
{
    const __m256 unseen = splat(-__builtin_inff());
    __m256 most[4];
    float top[4], sum[4];
    UNROLL for (int g = 0; g < 4; g++) {
        most[g] = unseen;
        if (g >= n) continue;
        p[g] = (pair){ cap8(p[g].a, a->softcap), cap8(p[g].b, a->softcap) };
        if (lo) {
            p[g].a = _mm256_blendv_ps(unseen, p[g].a, lanes_within(lo[g], hi[g], 0));
            p[g].b = _mm256_blendv_ps(unseen, p[g].b, lanes_within(lo[g], hi[g], 8));
        }
        most[g] = _mm256_max_ps(p[g].a, p[g].b);
    }
    _mm_storeu_ps(top, most4(most));
    for (int g = 0; g < n; g++)
        if (top[g] > a->m[i + g]) {
            const float c = plp_exp(a->m[i + g] - top[g]);
            float *acc = a->acc + (size_t)(i + g) * a->head_dim;
            a->m[i + g] = top[g];
            a->s[i + g] *= c;
            for (uint32_t d = 0; d < a->head_dim; d += 8) _mm256_storeu_ps(acc + d, _mm256_mul_ps(_mm256_loadu_ps(acc + d), splat(c)));
        }
    UNROLL for (int g = 0; g < 4; g++) {
        if (g >= n) {
            p[g] = (pair){ _mm256_setzero_ps(), _mm256_setzero_ps() };
            continue;
        }
        const __m256 m = splat(a->m[i + g]);
        p[g] = (pair){ exp8(_mm256_sub_ps(p[g].a, m)), exp8(_mm256_sub_ps(p[g].b, m)) };
    }
    _mm_storeu_ps(sum, fold4(p));
    for (int g = 0; g < n; g++)
        if (!lo || lo[g] < hi[g]) a->s[i + g] += sum[g];
        else                      p[g] = (pair){ _mm256_setzero_ps(), _mm256_setzero_ps() };
}

#endif
