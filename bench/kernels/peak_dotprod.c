/* bench/kernels/peak_dotprod.c - sdot */
#include "peak.h"

#include <arm_neon.h>

static inline int32x4_t dot(int32x4_t a, int32x4_t x, int32x4_t y)
{
    return vdotq_s32(a, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(y));
}
PEAK(int8_dot, int32x4_t, vdupq_n_s32(0), "+w", dot)

const bench_peak bench_peaks_dotprod[1] = { { "int8", "dotprod", PLP_CPU_DOTPROD, int8_dot, CHAINS * 16 * 2 } };
