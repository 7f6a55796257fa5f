/* kernels/arm/soften.h - what attention over f16 and over sealed tiles share: a unit's scores become weights */
#ifndef PLP_KERNELS_ARM_SOFTEN_H
#define PLP_KERNELS_ARM_SOFTEN_H

#include "kernels/arm/vector.h"
#include "kernels/kernels.h"

enum { UNIT = 16 };

/* Eight f16 as two float vectors. */
INLINE void halves8(const uint16_t *p, float32x4_t v[2])
{
    const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
    v[0] = vcvt_f32_f16(vget_low_f16(h));
    v[1] = vcvt_high_f32_f16(h);
}

/* Query i's 16 scores become weights, and its running m, s, acc take the new maximum. */
INLINE void soften(plp_attn *a, uint32_t i, float32x4_t v[4], uint32_t lo, uint32_t hi)
{
    const uint32x4_t lane = { 0, 1, 2, 3 };
    const float32x4_t never = vdupq_n_f32(-__builtin_inff());

    if (a->softcap > 0)
        UNROLL for (int j = 0; j < 4; j++)
            v[j] = vmulq_n_f32(tanh4(vdivq_f32(v[j], vdupq_n_f32(a->softcap))), a->softcap);
    if (lo > 0 || hi < UNIT)
        UNROLL for (uint32_t j = 0; j < 4; j++) {
            const uint32x4_t at = vaddq_u32(lane, vdupq_n_u32(4 * j));
            v[j] = vbslq_f32(vandq_u32(vcgeq_u32(at, vdupq_n_u32(lo)), vcltq_u32(at, vdupq_n_u32(hi))), v[j], never);
        }
    const float m = vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(v[0], v[1]), vmaxnmq_f32(v[2], v[3])));
    if (m > a->m[i]) {
        const float c = plp_exp(a->m[i] - m);
        float *acc = a->acc + (size_t)i * a->head_dim;
        a->m[i] = m;
        a->s[i] *= c;
        for (uint32_t d = 0; d < a->head_dim; d += 4)
            vst1q_f32(acc + d, vmulq_n_f32(vld1q_f32(acc + d), c));
    }
    UNROLL for (int j = 0; j < 4; j++)
        v[j] = exp4(vsubq_f32(v[j], vdupq_n_f32(a->m[i])));
    a->s[i] = a->s[i] + fold16(v);
}

#endif
