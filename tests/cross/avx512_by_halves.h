/*
 * tests/cross/avx512_by_halves.h - the AVX-512 and AVX-VNNI intrinsics that the kernels use, on a CPU with AVX2
 *
 * Put before a kernel file by -include, so that the file itself is compiled as it stands: emu_names.h, written by
 * tests/cross/run, defines each intrinsic that the kernels name as the function here (_mm512_add_ps as emu_mm512_add_ps).
 * One that is missing here fails to compile. What works within 128-bit lanes is the AVX2 instruction on both halves;
 * what crosses them is a plain loop over the vendor's definition.
 *
 * Stricter than a CPU where that is free: what an intrinsic leaves undefined is garbage, a masked-out lane of memory is
 * never touched, an aligned access that is not aligned traps.
 *
 * Source   Intel Intrinsics Guide
 */
#ifndef AVX512_BY_HALVES_H
#define AVX512_BY_HALVES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define EMU static inline __attribute__((always_inline, unused))

typedef union emu_wide {
    __m512   ps;      __m512i si;      __m512d  pd;
    __m256   ps2[2];  __m256i si2[2];  __m256d  pd2[2];
    __m128i  si4[4];
    float    f32[16];
    int8_t   i8[64];  int16_t i16[32]; int32_t  i32[16]; int64_t  i64[8];
    uint8_t  u8[64];                   uint32_t u32[16]; uint64_t u64[8];
} emu_wide;
typedef union emu_quarter { __m128 ps; float f32[4]; } emu_quarter;

/* ---- lane by lane: AVX2's instruction on both halves --------------------------------------------- */

#define EMU_TYPE(member) __typeof__(((emu_wide *)0)->member)
#define HALVES_1(name, half, member) \
    EMU EMU_TYPE(member) emu_mm512_##name(EMU_TYPE(member) a) \
    { \
        emu_wide x = { .member = a }; \
        for (int h = 0; h < 2; h++) x.member##2[h] = _mm256_##half(x.member##2[h]); \
        return x.member; \
    }
#define HALVES_2(name, half, member) \
    EMU EMU_TYPE(member) emu_mm512_##name(EMU_TYPE(member) a, EMU_TYPE(member) b) \
    { \
        emu_wide x = { .member = a }, y = { .member = b }; \
        for (int h = 0; h < 2; h++) x.member##2[h] = _mm256_##half(x.member##2[h], y.member##2[h]); \
        return x.member; \
    }
#define HALVES_3(name, half, member) \
    EMU EMU_TYPE(member) emu_mm512_##name(EMU_TYPE(member) a, EMU_TYPE(member) b, EMU_TYPE(member) c) \
    { \
        emu_wide x = { .member = a }, y = { .member = b }, z = { .member = c }; \
        for (int h = 0; h < 2; h++) x.member##2[h] = half(x.member##2[h], y.member##2[h], z.member##2[h]); \
        return x.member; \
    }
#define SAME_1(name, member) HALVES_1(name, name, member)
#define SAME_2(name, member) HALVES_2(name, name, member)
#define SHIFT(name, half) \
    EMU __m512i emu_mm512_##name(__m512i a, unsigned n) \
    { \
        emu_wide x = { .si = a }; \
        for (int h = 0; h < 2; h++) x.si2[h] = _mm256_##half(x.si2[h], _mm_cvtsi32_si128((int)n)); \
        return x.si; \
    }

SAME_2(add_ps, ps) SAME_2(sub_ps, ps) SAME_2(mul_ps, ps) SAME_2(div_ps, ps) SAME_2(max_ps, ps) SAME_2(min_ps, ps)
SAME_2(and_ps, ps) SAME_2(or_ps, ps) SAME_2(xor_ps, ps) SAME_2(unpacklo_ps, ps) SAME_2(unpackhi_ps, ps)
SAME_2(unpacklo_pd, pd) SAME_2(unpackhi_pd, pd)
SAME_1(movehdup_ps, ps) SAME_1(moveldup_ps, ps)

SAME_2(add_epi8, si) SAME_2(add_epi16, si) SAME_2(add_epi32, si) SAME_2(sub_epi32, si)
SAME_2(mullo_epi16, si) SAME_2(mullo_epi32, si)
SAME_2(packs_epi16, si) SAME_2(packs_epi32, si) SAME_2(packus_epi16, si) SAME_2(shuffle_epi8, si)
SAME_2(unpacklo_epi32, si) SAME_2(unpackhi_epi32, si) SAME_2(unpacklo_epi64, si) SAME_2(unpackhi_epi64, si)
SAME_2(sllv_epi64, si) SAME_2(srlv_epi64, si) SAME_2(sllv_epi32, si)
HALVES_2(and_si512, and_si256, si) HALVES_2(or_si512, or_si256, si) HALVES_2(xor_si512, xor_si256, si)

SHIFT(slli_epi16, sll_epi16) SHIFT(srli_epi16, srl_epi16) SHIFT(srai_epi16, sra_epi16)
SHIFT(slli_epi32, sll_epi32) SHIFT(srli_epi32, srl_epi32) SHIFT(srai_epi32, sra_epi32)

EMU __m512i emu_mm512_rolv_epi64(__m512i a, __m512i n)
{
    emu_wide x = { .si = a }, by = { .si = n };
    for (int i = 0; i < 8; i++) x.u64[i] = x.u64[i] << (by.u64[i] & 63) | x.u64[i] >> (-by.u64[i] & 63);
    return x.si;
}

/* Four products a lane, unsigned by signed bytes; the sum wraps. The bytes in even places, then those in odd ones. */
EMU __m256i emu_mm256_dpbusd_avx_epi32(__m256i sum, __m256i u, __m256i s)
{
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
EMU __m256i emu_mm256_dpwssd_epi32(__m256i sum, __m256i a, __m256i b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }

HALVES_3(dpbusd_epi32, emu_mm256_dpbusd_avx_epi32, si) HALVES_3(dpwssd_epi32, emu_mm256_dpwssd_epi32, si)
HALVES_3(fmadd_ps, _mm256_fmadd_ps, ps)

/* ---- constants, casts, parts --------------------------------------------------------------------- */

EMU __m512  emu_mm512_setzero_ps(void)    { return (emu_wide){ .u64 = { 0 } }.ps; }
EMU __m512i emu_mm512_setzero_si512(void) { return (emu_wide){ .u64 = { 0 } }.si; }
EMU __m512  emu_mm512_set1_ps(float v)    { __m256  h = _mm256_set1_ps(v);    return (emu_wide){ .ps2 = { h, h } }.ps; }
EMU __m512i emu_mm512_set1_epi8(int v)    { __m256i h = _mm256_set1_epi8((char)v); return (emu_wide){ .si2 = { h, h } }.si; }
EMU __m512i emu_mm512_set1_epi16(int v)   { __m256i h = _mm256_set1_epi16((short)v); return (emu_wide){ .si2 = { h, h } }.si; }
EMU __m512i emu_mm512_set1_epi32(int v)   { __m256i h = _mm256_set1_epi32(v); return (emu_wide){ .si2 = { h, h } }.si; }
EMU __m512i emu_mm512_set1_epi64(int64_t v) { __m256i h = _mm256_set1_epi64x(v); return (emu_wide){ .si2 = { h, h } }.si; }
#define emu_mm512_setr_epi32(...) ((emu_wide){ .i32 = { __VA_ARGS__ } }.si)
#define emu_mm512_setr_epi64(...) ((emu_wide){ .i64 = { __VA_ARGS__ } }.si)
#define emu_mm512_setr4_epi32(a, b, c, d) emu_mm512_setr_epi32(a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d)
#define emu_mm512_set4_epi32(d, c, b, a)  emu_mm512_setr4_epi32(a, b, c, d)
#define emu_mm512_set_epi64(h, g, f, e, d, c, b, a) emu_mm512_setr_epi64(a, b, c, d, e, f, g, h)
#define emu_mm512_set_epi16(...) emu_backwards((const int16_t[32]){ __VA_ARGS__ })
EMU __m512i emu_backwards(const int16_t v[32])
{
    emu_wide r;
    for (int i = 0; i < 32; i++) r.i16[i] = v[31 - i];
    return r.si;
}

EMU emu_wide emu_garbage(void) { emu_wide r; memset(&r, 0xa7, sizeof r); return r; }
EMU __m512  emu_mm512_castpd_ps(__m512d a)        { return (__m512)a; }
EMU __m512d emu_mm512_castps_pd(__m512 a)         { return (__m512d)a; }
EMU __m512i emu_mm512_castps_si512(__m512 a)      { return (__m512i)a; }
EMU __m512  emu_mm512_castsi512_ps(__m512i a)     { return (__m512)a; }
EMU __m256  emu_mm512_castps512_ps256(__m512 a)   { return (emu_wide){ .ps = a }.ps2[0]; }
EMU __m128  emu_mm512_castps512_ps128(__m512 a)   { return _mm256_castps256_ps128(emu_mm512_castps512_ps256(a)); }
EMU __m256i emu_mm512_castsi512_si256(__m512i a)  { return (emu_wide){ .si = a }.si2[0]; }
EMU __m128i emu_mm512_castsi512_si128(__m512i a)  { return (emu_wide){ .si = a }.si4[0]; }
EMU __m512i emu_mm512_castsi128_si512(__m128i a)  { emu_wide r = emu_garbage(); r.si4[0] = a; return r.si; }
EMU __m512i emu_mm512_castsi256_si512(__m256i a)  { emu_wide r = emu_garbage(); r.si2[0] = a; return r.si; }
EMU __m512  emu_mm512_castps128_ps512(__m128 a)   { emu_wide r = emu_garbage(); r.si4[0] = (__m128i)a; return r.ps; }
EMU __m512i emu_mm512_zextsi128_si512(__m128i a)  { emu_wide r = { .u64 = { 0 } }; r.si4[0] = a; return r.si; }

EMU __m128i emu_mm512_extracti32x4_epi32(__m512i a, int i) { return (emu_wide){ .si = a }.si4[i]; }
EMU __m256i emu_mm512_extracti64x4_epi64(__m512i a, int i) { return (emu_wide){ .si = a }.si2[i]; }
EMU __m256  emu_mm512_extractf32x8_ps(__m512 a, int i)     { return (emu_wide){ .ps = a }.ps2[i]; }
EMU __m512i emu_mm512_inserti32x4(__m512i a, __m128i b, int i) { emu_wide r = { .si = a }; r.si4[i] = b; return r.si; }
EMU __m512i emu_mm512_inserti64x4(__m512i a, __m256i b, int i) { emu_wide r = { .si = a }; r.si2[i] = b; return r.si; }
EMU __m512i emu_mm512_broadcast_i32x4(__m128i a) { return (emu_wide){ .si4 = { a, a, a, a } }.si; }
EMU __m512i emu_mm512_broadcast_i64x4(__m256i a) { return (emu_wide){ .si2 = { a, a } }.si; }
EMU __m512i emu_mm512_broadcastd_epi32(__m128i a) { return emu_mm512_set1_epi32(_mm_cvtsi128_si32(a)); }
EMU __m512  emu_mm512_broadcastss_ps(__m128 a)    { __m256 h = _mm256_broadcastss_ps(a); return (emu_wide){ .ps2 = { h, h } }.ps; }

/* ---- conversions --------------------------------------------------------------------------------- */

EMU __m512  emu_mm512_cvtepi32_ps(__m512i a)
{
    emu_wide x = { .si = a };
    for (int h = 0; h < 2; h++) x.ps2[h] = _mm256_cvtepi32_ps(x.si2[h]);
    return x.ps;
}
EMU __m512i emu_mm512_cvtps_epi32(__m512 a)
{
    emu_wide x = { .ps = a };
    for (int h = 0; h < 2; h++) x.si2[h] = _mm256_cvtps_epi32(x.ps2[h]);
    return x.si;
}
EMU __m512 emu_mm512_cvtph_ps(__m256i a)
{
    return (emu_wide){ .ps2 = { _mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)) } }.ps;
}
EMU __m256i emu_mm512_cvtps_ph(__m512 a, int rounding)
{
    emu_wide x = { .ps = a };
    if (rounding != _MM_FROUND_TO_NEAREST_INT) __builtin_trap();
    return _mm256_set_m128i(_mm256_cvtps_ph(x.ps2[1], _MM_FROUND_TO_NEAREST_INT), _mm256_cvtps_ph(x.ps2[0], _MM_FROUND_TO_NEAREST_INT));
}
#define WIDEN(name, from, to, n, narrow) \
    EMU __m512i emu_mm512_##name(narrow a) \
    { \
        from v[n]; emu_wide r; \
        memcpy(v, &a, sizeof v); \
        for (int i = 0; i < n; i++) r.to[i] = v[i]; \
        return r.si; \
    }
WIDEN(cvtepi8_epi32, int8_t, i32, 16, __m128i)    WIDEN(cvtepu8_epi32, uint8_t, i32, 16, __m128i)
WIDEN(cvtepi16_epi32, int16_t, i32, 16, __m256i)  WIDEN(cvtepu16_epi32, uint16_t, i32, 16, __m256i)

EMU __m256i emu_mm512_cvtepi32_epi16(__m512i a)
{
    emu_wide x = { .si = a }, r;
    for (int i = 0; i < 16; i++) r.i16[i] = (int16_t)x.i32[i];
    return r.si2[0];
}
EMU __m128i emu_mm512_cvtepi32_epi8(__m512i a)
{
    emu_wide x = { .si = a }, r;
    for (int i = 0; i < 16; i++) r.i8[i] = (int8_t)x.i32[i];
    return r.si4[0];
}
EMU __m512 emu_mm512_abs_ps(__m512 a) { return emu_mm512_and_ps(a, emu_mm512_castsi512_ps(emu_mm512_set1_epi32(0x7fffffff))); }

/* ---- across lanes -------------------------------------------------------------------------------- */

EMU __m512i emu_mm512_shuffle_i32x4(__m512i a, __m512i b, int how)
{
    emu_wide x = { .si = a }, y = { .si = b };
    return (emu_wide){ .si4 = { x.si4[how & 3], x.si4[how >> 2 & 3], y.si4[how >> 4 & 3], y.si4[how >> 6 & 3] } }.si;
}
EMU __m512 emu_mm512_shuffle_f32x4(__m512 a, __m512 b, int how) { return (__m512)emu_mm512_shuffle_i32x4((__m512i)a, (__m512i)b, how); }
EMU __m512 emu_mm512_permute_ps(__m512 a, int how)
{
    emu_wide x = { .ps = a }, r;
    for (int i = 0; i < 16; i++) r.f32[i] = x.f32[(i & ~3) + (how >> 2 * (i & 3) & 3)];
    return r.ps;
}
#define PERMUTE(type, member, n) \
    EMU __m512i emu_mm512_permutexvar_##type(__m512i index, __m512i a) \
    { \
        emu_wide x = { .si = a }, at = { .si = index }, r; \
        for (int i = 0; i < n; i++) r.member[i] = x.member[at.member[i] & (n - 1)]; \
        return r.si; \
    } \
    EMU __m512i emu_mm512_permutex2var_##type(__m512i a, __m512i index, __m512i b) \
    { \
        emu_wide x = { .si = a }, y = { .si = b }, at = { .si = index }, r; \
        for (int i = 0; i < n; i++) r.member[i] = (at.member[i] & n ? y : x).member[at.member[i] & (n - 1)]; \
        return r.si; \
    }
PERMUTE(epi8, i8, 64) PERMUTE(epi16, i16, 32) PERMUTE(epi32, i32, 16)
EMU __m512 emu_mm512_permutexvar_ps(__m512i index, __m512 a) { return (__m512)emu_mm512_permutexvar_epi32(index, (__m512i)a); }
EMU __m512 emu_mm512_permutex2var_ps(__m512 a, __m512i index, __m512 b)
{
    return (__m512)emu_mm512_permutex2var_epi32((__m512i)a, index, (__m512i)b);
}

/* ---- masks --------------------------------------------------------------------------------------- */

#define BLEND(type, member, n, mask) \
    EMU __m512i emu_mm512_mask_blend_##type(mask k, __m512i a, __m512i b) \
    { \
        emu_wide x = { .si = a }, y = { .si = b }; \
        for (int i = 0; i < n; i++) if (k >> i & 1) x.member[i] = y.member[i]; \
        return x.si; \
    }
BLEND(epi8, i8, 64, __mmask64) BLEND(epi16, i16, 32, __mmask32) BLEND(epi32, i32, 16, __mmask16)
EMU __m512 emu_mm512_mask_blend_ps(__mmask16 k, __m512 a, __m512 b) { return (__m512)emu_mm512_mask_blend_epi32(k, (__m512i)a, (__m512i)b); }
EMU __m512 emu_mm512_mask_mov_ps(__m512 from, __mmask16 k, __m512 a) { return emu_mm512_mask_blend_ps(k, from, a); }

#define MASKED(name, type, mask, vector) \
    EMU vector emu_mm512_mask_##name##_##type(vector from, mask k, vector a, vector b) \
    { return emu_mm512_mask_blend_##type(k, from, emu_mm512_##name##_##type(a, b)); }
MASKED(add, ps, __mmask16, __m512) MASKED(mul, ps, __mmask16, __m512) MASKED(add, epi8, __mmask64, __m512i)
MASKED(sllv, epi32, __mmask16, __m512i)
MASKED(permutexvar, epi8, __mmask64, __m512i) MASKED(permutexvar, epi16, __mmask32, __m512i) MASKED(permutexvar, epi32, __mmask16, __m512i)
EMU __m512 emu_mm512_mask3_fmadd_ps(__m512 a, __m512 b, __m512 c, __mmask16 k)
{
    return emu_mm512_mask_blend_ps(k, c, emu_mm512_fmadd_ps(a, b, c));
}

EMU uint32_t emu_compare(__m256 a, __m256 b, int how)
{
    switch (how) {
    case _CMP_LT_OQ:   return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ));
    case _CMP_GT_OQ:   return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
    case _CMP_UNORD_Q: return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q));
    default:           __builtin_trap();
    }
}
EMU __mmask16 emu_mm512_cmp_ps_mask(__m512 a, __m512 b, int how)
{
    emu_wide x = { .ps = a }, y = { .ps = b };
    return (__mmask16)(emu_compare(x.ps2[0], y.ps2[0], how) | emu_compare(x.ps2[1], y.ps2[1], how) << 8);
}
EMU __mmask16 emu_mm512_mask_cmp_ps_mask(__mmask16 k, __m512 a, __m512 b, int how) { return k & emu_mm512_cmp_ps_mask(a, b, how); }
#define COMPARE(name, type, member, n, mask, test) \
    EMU mask emu_mm512_##name##_##type##_mask(__m512i a, __m512i b) \
    { \
        emu_wide x = { .si = a }, y = { .si = b }; \
        mask k = 0; \
        for (int i = 0; i < n; i++) k |= (mask)(x.member[i] test y.member[i] ? (mask)1 << i : 0); \
        return k; \
    }
COMPARE(cmplt, epi32, i32, 16, __mmask16, <) COMPARE(cmplt, epu32, u32, 16, __mmask16, <) COMPARE(cmple, epu32, u32, 16, __mmask16, <=)
COMPARE(test, epi8, i8, 64, __mmask64, &)
EMU __mmask16 emu_mm512_mask_cmplt_epu32_mask(__mmask16 k, __m512i a, __m512i b) { return k & emu_mm512_cmplt_epu32_mask(a, b); }

/* ---- memory -------------------------------------------------------------------------------------- */

EMU const void *emu_aligned(const void *p) { if ((uintptr_t)p % 64) __builtin_trap(); return p; }
EMU __m512i emu_mm512_loadu_si512(const void *p)    { emu_wide r; memcpy(&r, p, sizeof r); return r.si; }
EMU __m512i emu_mm512_load_si512(const void *p)     { return emu_mm512_loadu_si512(emu_aligned(p)); }
EMU __m512  emu_mm512_loadu_ps(const void *p)       { return (__m512)emu_mm512_loadu_si512(p); }
EMU __m512  emu_mm512_load_ps(const void *p)        { return (__m512)emu_mm512_load_si512(p); }
EMU void emu_mm512_storeu_si512(void *p, __m512i a) { memcpy(p, &a, sizeof a); }
EMU void emu_mm512_store_si512(void *p, __m512i a)  { emu_aligned(p); memcpy(p, &a, sizeof a); }
EMU void emu_mm512_storeu_ps(void *p, __m512 a)     { memcpy(p, &a, sizeof a); }
EMU void emu_mm512_store_ps(void *p, __m512 a)      { emu_aligned(p); memcpy(p, &a, sizeof a); }
EMU __m512 emu_mm512_maskz_loadu_ps(__mmask16 k, const void *p)
{
    if (k == 0xffff) return emu_mm512_loadu_ps(p);
    emu_wide r = { .u64 = { 0 } };
    for (int i = 0; i < 16; i++) if (k >> i & 1) memcpy(&r.f32[i], (const float *)p + i, sizeof(float));
    return r.ps;
}
EMU __m512i emu_mm512_maskz_loadu_epi32(__mmask16 k, const void *p) { return (__m512i)emu_mm512_maskz_loadu_ps(k, p); }
EMU void emu_mm512_mask_storeu_ps(void *p, __mmask16 k, __m512 a)
{
    emu_wide x = { .ps = a };
    for (int i = 0; i < 16; i++) if (k >> i & 1) memcpy((float *)p + i, &x.f32[i], sizeof(float));
}
EMU __m256i emu_mm256_maskz_loadu_epi16(__mmask16 k, const void *p)
{
    emu_wide r = { .u64 = { 0 } };
    for (int i = 0; i < 16; i++) if (k >> i & 1) memcpy(&r.i16[i], (const int16_t *)p + i, sizeof(int16_t));
    return r.si2[0];
}
EMU __m512i emu_mm512_i32gather_epi32(__m512i index, const void *base, int scale)
{
    emu_wide at = { .si = index }, r;
    for (int i = 0; i < 16; i++) memcpy(&r.i32[i], (const char *)base + (int64_t)at.i32[i] * scale, sizeof(int32_t));
    return r.si;
}

/* ---- AVX-512VL on four lanes --------------------------------------------------------------------- */

EMU __m128 emu_mm_mask_mov_ps(__m128 from, __mmask8 k, __m128 a)
{
    emu_quarter x = { .ps = from }, y = { .ps = a };
    for (int i = 0; i < 4; i++) if (k >> i & 1) x.f32[i] = y.f32[i];
    return x.ps;
}
EMU __m128 emu_mm_mask_add_ps(__m128 from, __mmask8 k, __m128 a, __m128 b) { return emu_mm_mask_mov_ps(from, k, _mm_add_ps(a, b)); }
EMU __m128 emu_mm_mask_mul_ps(__m128 from, __mmask8 k, __m128 a, __m128 b) { return emu_mm_mask_mov_ps(from, k, _mm_mul_ps(a, b)); }
EMU __mmask8 emu_mm_mask_cmp_ps_mask(__mmask8 k, __m128 a, __m128 b, int how)
{
    return (__mmask8)(k & emu_compare(_mm256_set_m128(_mm_setzero_ps(), a), _mm256_set_m128(_mm_setzero_ps(), b), how) & 15);
}
EMU __m128 emu_mm_maskz_loadu_ps(__mmask8 k, const void *p)
{
    emu_quarter r = { .f32 = { 0 } };
    for (int i = 0; i < 4; i++) if (k >> i & 1) memcpy(&r.f32[i], (const float *)p + i, sizeof(float));
    return r.ps;
}
EMU void emu_mm_mask_storeu_ps(void *p, __mmask8 k, __m128 a)
{
    emu_quarter x = { .ps = a };
    for (int i = 0; i < 4; i++) if (k >> i & 1) memcpy((float *)p + i, &x.f32[i], sizeof(float));
}

EMU __mmask64 emu_cvtu64_mask64(uint64_t k) { return k; }

#define __asm__(...)            /* the kernels' only assembly is a hint on registers of 64 bytes, which there are not */
#define __AVXVNNI__ 1           /* what an avxvnni_*.c goes by; only now, or immintrin.h would take it for a compiler flag */
#include "emu_names.h"
#endif
