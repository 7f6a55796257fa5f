/* base/cpu.h - what this CPU can do, asked at run time (cpuid and xgetbv; getauxval; sysctl). */
#ifndef PLP_BASE_CPU_H
#define PLP_BASE_CPU_H

#include <stddef.h>
#include <stdint.h>

enum {
    PLP_CPU_AVX2        = 1u << 0,      /* AVX2 and the OS saves ymm */
    PLP_CPU_FMA         = 1u << 1,
    PLP_CPU_F16C        = 1u << 2,
    PLP_CPU_AVX_VNNI    = 1u << 3,
    PLP_CPU_AVX512      = 1u << 4,      /* F, BW, DQ, VL, and the OS saves zmm */
    PLP_CPU_AVX512_VNNI = 1u << 5,
    PLP_CPU_AVX512_VBMI = 1u << 6,
    PLP_CPU_AVX512_BF16 = 1u << 7,
    PLP_CPU_ZEN4        = 1u << 8,      /* AMD family 25: not a feature, but measured to want other prefetching */
    PLP_CPU_NEON        = 1u << 16,
    PLP_CPU_FP16        = 1u << 17,     /* half-precision arithmetic */
    PLP_CPU_DOTPROD     = 1u << 18,
    PLP_CPU_I8MM        = 1u << 19,
    PLP_CPU_BF16        = 1u << 20,
};

uint32_t plp_cpu_features(void);
void     plp_cpu_describe(uint32_t features, char *out, size_t n_bytes);   /* space-separated names */

#endif
