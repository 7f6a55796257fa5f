/*
 * kernels/arm/vector.h - the contract's exp, tanh, erf and sums, four lanes at a time
 *
 * Step by step the functions of ref/math.h, whose constants these use: the same products, the same fused ones,
 * the same order, so the same bits. Branches become selects.
 */
#ifndef PLP_KERNELS_ARM_VECTOR_H
#define PLP_KERNELS_ARM_VECTOR_H

#include <arm_neon.h>

#include "kernels/arm/formats.h"
#include "kernels/ref/math.h"

/* c + p * r, fused: one step of a Horner chain. */
INLINE float32x4_t horner(float32x4_t p, float32x4_t r, float c) { return vfmaq_f32(vdupq_n_f32(c), p, r); }

INLINE float32x4_t exp4(float32x4_t x)
{
    const float32x4_t magic = vdupq_n_f32(PLP_ROUND_MAGIC);
    x = vminnmq_f32(vmaxnmq_f32(x, vdupq_n_f32(PLP_EXP_MIN)), vdupq_n_f32(PLP_EXP_MAX));
    const float32x4_t shifted = vaddq_f32(vmulq_f32(x, vdupq_n_f32(PLP_LOG2E)), magic);
    const float32x4_t n = vsubq_f32(shifted, magic);
    float32x4_t r = vfmaq_f32(x, n, vdupq_n_f32(-PLP_LN2_HI));
    r = vfmaq_f32(r, n, vdupq_n_f32(-PLP_LN2_LO));
    float32x4_t p = vdupq_n_f32(PLP_EXP_C6);
    p = horner(p, r, PLP_EXP_C5);
    p = horner(p, r, PLP_EXP_C4);
    p = horner(p, r, PLP_EXP_C3);
    p = horner(p, r, PLP_EXP_C2);
    p = horner(p, r, 1.0f);
    p = horner(p, r, 1.0f);
    /* The low bits of `shifted` are n; of what the constant adds to them nothing is left in the exponent's place. */
    _Static_assert(PLP_ROUND_MAGIC == 12582912.0f, "its lowest nine bits are zero");
    const int32x4_t power = vaddq_s32(vshlq_n_s32(vreinterpretq_s32_f32(shifted), 23), vdupq_n_s32(127 << 23));
    return vmulq_f32(p, vreinterpretq_f32_s32(power));
}

/* The magnitude of `size` with the sign of `sign`. */
INLINE float32x4_t copysign4(float32x4_t size, float32x4_t sign)
{
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, size);
}

INLINE float32x4_t tanh4(float32x4_t x)
{
    const float32x4_t u = vmulq_f32(x, x), a = vabsq_f32(x), one = vdupq_n_f32(1.0f);
    float32x4_t p = vdupq_n_f32(PLP_TANH_C4);
    p = horner(p, u, PLP_TANH_C3);
    p = horner(p, u, PLP_TANH_C2);
    p = horner(p, u, PLP_TANH_C1);
    p = horner(p, u, PLP_TANH_C0);
    const float32x4_t small = vfmaq_f32(x, vmulq_f32(x, u), p);
    const float32x4_t large = vsubq_f32(one, vdivq_f32(vdupq_n_f32(2.0f), vaddq_f32(exp4(vaddq_f32(a, a)), one)));
    return vbslq_f32(vcltq_f32(a, vdupq_n_f32(PLP_TANH_SPLIT)), small, copysign4(large, x));
}

/* Lane i % 16 of a sum16 is lane i % 4 of lanes[i % 16 / 4]. */
INLINE float fold16(const float32x4_t lanes[4])
{
    const float32x4_t four = vaddq_f32(vaddq_f32(lanes[0], lanes[2]), vaddq_f32(lanes[1], lanes[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/* The first m (0..15) floats at p as sixteen lanes, zeros after them. */
INLINE void load_part(const float *p, uint32_t m, float32x4_t v[4])
{
    float part[16] = { 0 };
    for (uint32_t i = 0; i < m; i++)
        part[i] = p[i];
    UNROLL for (int j = 0; j < 4; j++)
        v[j] = vld1q_f32(part + 4 * j);
}

/* Lanes below m from `a`, the others from `b`: a sum's lanes that have no further element stay as they are. */
INLINE void select_part(uint32_t m, const float32x4_t a[4], float32x4_t b[4])
{
    const uint32x4_t lane = { 0, 1, 2, 3 };
    UNROLL for (uint32_t j = 0; j < 4; j++)
        b[j] = vbslq_f32(vcltq_u32(vaddq_u32(lane, vdupq_n_u32(4 * j)), vdupq_n_u32(m)), a[j], b[j]);
}

#endif
