/* bench/kernels/peak_neon.c - smull + smlal2 + sadalp (int8 without dot products), and fmla */
#include "peak.h"

#include <arm_neon.h>

static inline int32x4_t dot(int32x4_t a, int32x4_t x, int32x4_t y)
{
    __asm__ volatile("" : "+w"(x));
    const int8x16_t u = vreinterpretq_s8_s32(x), v = vreinterpretq_s8_s32(y);
    return vpadalq_s16(a, vmlal_high_s8(vmull_s8(vget_low_s8(u), vget_low_s8(v)), u, v));
}
static inline float32x4_t multiply_add(float32x4_t a, float32x4_t x, float32x4_t y) { return vfmaq_f32(a, x, y); }
PEAK(int8_dot, int32x4_t, vdupq_n_s32(0), "+w", dot)
PEAK(f32_fma, float32x4_t, vdupq_n_f32(0), "+w", multiply_add)

const bench_peak bench_peaks_neon[2] = {
    { "int8", "neon", PLP_CPU_NEON, int8_dot, CHAINS * 16 * 2 },
    { "f32", "neon", PLP_CPU_NEON, f32_fma, CHAINS * 4 * 2 },
};
