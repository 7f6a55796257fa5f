/* bench/kernels/peak_avxvnni.c - vpdpbusd in its VEX form, and vfmadd, on 256 bits */
#include "peak.h"

#include <immintrin.h>

#define DOT(a, x, y) _mm256_dpbusd_avx_epi32(a, x, y)
#define FMA(a, x, y) _mm256_fmadd_ps(x, y, a)
PEAK(int8_dot, __m256i, _mm256_setzero_si256(), "+x", DOT)
PEAK(f32_fma, __m256, _mm256_setzero_ps(), "+x", FMA)

const bench_peak bench_peaks_avxvnni[2] = {
    { "int8", "avxvnni", PLP_CPU_AVX2 | PLP_CPU_AVX_VNNI, int8_dot, CHAINS * 32 * 2 },
    { "f32", "avxvnni", PLP_CPU_AVX2 | PLP_CPU_FMA | PLP_CPU_AVX_VNNI, f32_fma, CHAINS * 8 * 2 },
};
