/* bench/kernels/peak_i8mm.c - smmla: a 2 x 2 tile of dot products of 8 */
#include "peak.h"

#include <arm_neon.h>

static inline int32x4_t dot(int32x4_t a, int32x4_t x, int32x4_t y)
{
    return vmmlaq_s32(a, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(y));
}
PEAK(int8_dot, int32x4_t, vdupq_n_s32(0), "+w", dot)

const bench_peak bench_peaks_i8mm[1] = { { "int8", "i8mm", PLP_CPU_I8MM, int8_dot, CHAINS * 32 * 2 } };
