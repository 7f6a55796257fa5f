/*
 * bench/kernels/peak_avx2.c - vpmaddubsw + vpaddw, and vfmadd, on 256 bits
 *
 * Sums in 16 bits are what weights of up to five bits allow for a whole or half a block; larger ones need a vpmaddwd each.
 */
#include "peak.h"

#include <immintrin.h>

/* x passes through the asm each time, or the products would be the same and made once. */
static inline __m256i dot(__m256i a, __m256i x, __m256i y)
{
    __asm__ volatile("" : "+x"(x));
    return _mm256_add_epi16(a, _mm256_maddubs_epi16(x, y));
}
static inline __m256 multiply_add(__m256 a, __m256 x, __m256 y) { return _mm256_fmadd_ps(x, y, a); }
PEAK(int8_dot, __m256i, _mm256_setzero_si256(), "+x", dot)
PEAK(f32_fma, __m256, _mm256_setzero_ps(), "+x", multiply_add)

const bench_peak bench_peaks_avx2[2] = {
    { "int8", "avx2", PLP_CPU_AVX2, int8_dot, CHAINS * 32 * 2 },
    { "f32", "avx2", PLP_CPU_AVX2 | PLP_CPU_FMA, f32_fma, CHAINS * 8 * 2 },
};
