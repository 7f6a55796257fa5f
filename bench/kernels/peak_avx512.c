/* bench/kernels/peak_avx512.c - vpdpbusd and vfmadd on 512 bits */
#include "peak.h"

#include <immintrin.h>

#define DOT(a, x, y) _mm512_dpbusd_epi32(a, x, y)
#define FMA(a, x, y) _mm512_fmadd_ps(x, y, a)
PEAK(int8_dot, __m512i, _mm512_setzero_si512(), "+v", DOT)
PEAK(f32_fma, __m512, _mm512_setzero_ps(), "+v", FMA)

const bench_peak bench_peaks_avx512[2] = {
    { "int8", "avx512", PLP_CPU_AVX512 | PLP_CPU_AVX512_VNNI, int8_dot, CHAINS * 64 * 2 },
    { "f32", "avx512", PLP_CPU_AVX512, f32_fma, CHAINS * 16 * 2 },
};
