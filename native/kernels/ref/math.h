/*
 * kernels/ref/math.h - the scalar arithmetic that every tier repeats bit for bit
 *
 * exp, tanh and erf as fixed polynomials in fmaf chains, the fold of sum16, half precision, rounding.
 * A vector tier uses the same constants in the same order; only then do its bits agree with ref/.
 *
 * Domain   finite values and infinities; NaN may come out as any number
 * Error    exp 1 ulp (0 below -87.7, +inf above 88.4), tanh and erf 2 ulp of 1
 * Source   minimax fits of degree 4 to (e^r - 1 - r) / r^2, (tanh x / x - 1) / x^2; of degree 6 to
 *          erf x / x on [0, 1] and ln erfc x on [1, 4]
 */
#ifndef PLP_KERNELS_REF_MATH_H
#define PLP_KERNELS_REF_MATH_H

#include <stdint.h>
#include <string.h>

/* e^x = 2^n e^r, n = rint(x log2 e). The clamp makes n -127 (a factor of 0) or 128 (a factor of inf). */
#define PLP_EXP_MIN   (-88.1f)
#define PLP_EXP_MAX   89.0f
#define PLP_LOG2E     0x1.715476p+0f
#define PLP_LN2_HI    0x1.63p-1f
#define PLP_LN2_LO    (-0x1.bd0106p-13f)
#define PLP_EXP_C2    0x1p-1f
#define PLP_EXP_C3    0x1.55548ep-3f
#define PLP_EXP_C4    0x1.55545ep-5f
#define PLP_EXP_C5    0x1.123bdep-7f
#define PLP_EXP_C6    0x1.6db4e8p-10f
/* tanh x = x + x^3 P(x^2) below the split, 1 - 2 / (e^2|x| + 1) with the sign of x from there on. */
#define PLP_TANH_SPLIT 0.625f
#define PLP_TANH_C0   (-0x1.55552cp-2f)
#define PLP_TANH_C1   0x1.1105a2p-3f
#define PLP_TANH_C2   (-0x1.b806a6p-5f)
#define PLP_TANH_C3   0x1.50b82ap-6f
#define PLP_TANH_C4   (-0x1.6f4216p-8f)

/* erf x = x P(x^2) below 1, 1 - e^Q(|x|) with the sign of x from there to 4. */
#define PLP_ERF_P0    0x1.20dd74p+0f
#define PLP_ERF_P1    (-0x1.81273ep-2f)
#define PLP_ERF_P2    0x1.ce2d2p-4f
#define PLP_ERF_P3    (-0x1.b7fbb4p-6f)
#define PLP_ERF_P4    0x1.5419f6p-8f
#define PLP_ERF_P5    (-0x1.a485ecp-11f)
#define PLP_ERF_P6    0x1.4ae4dp-14f
#define PLP_ERF_Q0    (-0x1.72e6eep-12f)
#define PLP_ERF_Q1    (-0x1.2085b2p+0f)
#define PLP_ERF_Q2    (-0x1.46c584p-1f)
#define PLP_ERF_Q3    (-0x1.a60a82p-4f)
#define PLP_ERF_Q4    0x1.654222p-6f
#define PLP_ERF_Q5    (-0x1.814cd8p-9f)
#define PLP_ERF_Q6    0x1.852d46p-13f

#define PLP_GELU_C    0.79788456f       /* sqrt(2 / pi) */
#define PLP_GELU_A    0.044715f
#define PLP_SQRT_HALF 0.70710678f

/* Adding and subtracting 1.5 * 2^23 rounds |x| < 2^22 to the nearest integer, ties to even; no libm
 * call, and nothing undefined happens for NaN. */
#define PLP_ROUND_MAGIC 12582912.0f

static inline uint32_t plp_bits(float f)       { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline float    plp_from_bits(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }

static inline int32_t plp_round_int(float x)
{
    return (int32_t)(plp_bits(x + PLP_ROUND_MAGIC) - plp_bits(PLP_ROUND_MAGIC));
}

static inline float plp_exp(float x)
{
    x = x > PLP_EXP_MIN ? x : PLP_EXP_MIN;
    x = x < PLP_EXP_MAX ? x : PLP_EXP_MAX;
    const float shifted = x * PLP_LOG2E + PLP_ROUND_MAGIC, n = shifted - PLP_ROUND_MAGIC;
    float r = __builtin_fmaf(n, -PLP_LN2_HI, x);
    r = __builtin_fmaf(n, -PLP_LN2_LO, r);
    float p = PLP_EXP_C6;
    p = __builtin_fmaf(p, r, PLP_EXP_C5);
    p = __builtin_fmaf(p, r, PLP_EXP_C4);
    p = __builtin_fmaf(p, r, PLP_EXP_C3);
    p = __builtin_fmaf(p, r, PLP_EXP_C2);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    /* The low bits of `shifted` are n; moved into the exponent field they are 2^n. */
    return p * plp_from_bits((plp_bits(shifted) - plp_bits(PLP_ROUND_MAGIC) + 127u) << 23);
}

static inline float plp_tanh(float x)
{
    const float u = x * x, a = __builtin_fabsf(x);
    float p = PLP_TANH_C4;
    p = __builtin_fmaf(p, u, PLP_TANH_C3);
    p = __builtin_fmaf(p, u, PLP_TANH_C2);
    p = __builtin_fmaf(p, u, PLP_TANH_C1);
    p = __builtin_fmaf(p, u, PLP_TANH_C0);
    const float small = __builtin_fmaf(x * u, p, x);
    const float large = 1.0f - 2.0f / (plp_exp(a + a) + 1.0f);
    return a < PLP_TANH_SPLIT ? small : __builtin_copysignf(large, x);
}

static inline float plp_erf(float x)
{
    const float a = __builtin_fabsf(x) < 4.0f ? __builtin_fabsf(x) : 4.0f;
    if (a < 1.0f) {
        const float u = x * x;
        float p = PLP_ERF_P6;
        p = __builtin_fmaf(p, u, PLP_ERF_P5);
        p = __builtin_fmaf(p, u, PLP_ERF_P4);
        p = __builtin_fmaf(p, u, PLP_ERF_P3);
        p = __builtin_fmaf(p, u, PLP_ERF_P2);
        p = __builtin_fmaf(p, u, PLP_ERF_P1);
        p = __builtin_fmaf(p, u, PLP_ERF_P0);
        return x * p;
    }
    float p = PLP_ERF_Q6;
    p = __builtin_fmaf(p, a, PLP_ERF_Q5);
    p = __builtin_fmaf(p, a, PLP_ERF_Q4);
    p = __builtin_fmaf(p, a, PLP_ERF_Q3);
    p = __builtin_fmaf(p, a, PLP_ERF_Q2);
    p = __builtin_fmaf(p, a, PLP_ERF_Q1);
    p = __builtin_fmaf(p, a, PLP_ERF_Q0);
    return __builtin_copysignf(1.0f - plp_exp(p), x);
}

/* The end of every sum16. */
static inline float plp_fold16(float lane[16])
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

static inline float plp_dot16(const float *a, const float *b, uint32_t n)
{
    float lane[16] = { 0 };
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++) lane[l] = __builtin_fmaf(a[i + l], b[i + l], lane[l]);
    for (; i < n; i++) lane[i % 16] = __builtin_fmaf(a[i], b[i], lane[i % 16]);
    return plp_fold16(lane);
}

static inline float plp_sum16(const float *a, uint32_t n)
{
    float lane[16] = { 0 };
    for (uint32_t i = 0; i < n; i++) lane[i % 16] += a[i];
    return plp_fold16(lane);
}

/* Exact. A half's exponent and fraction, read as a float 2^112 too small; what then reaches 2^16 was
 * infinity or NaN. */
static inline float plp_half(uint16_t h)
{
    float f = plp_from_bits((uint32_t)(h & 0x7fff) << 13) * 0x1p112f;
    if (f >= 0x1p16f) f = plp_from_bits(plp_bits(f) | 0x7f800000u);
    return plp_from_bits(plp_bits(f) | (uint32_t)(h & 0x8000) << 16);
}

#endif
