/*
 * tests/cross/every_x86_tier.c - this CPU's features, and those of the tiers that avx512_by_halves.h lets it run
 *
 * Linked before libplp.a, it takes the place of base/cpu.c. Only for programs whose kernels avx512_*.c and avxvnni_*.c
 * were compiled with that header.
 */
#include "base/cpu.h"
#define plp_cpu_features features_of_this_cpu
#include "base/cpu.c"
#undef plp_cpu_features

uint32_t plp_cpu_features(void)
{
    return features_of_this_cpu() | PLP_CPU_AVX_VNNI | PLP_CPU_AVX512 | PLP_CPU_AVX512_VNNI | PLP_CPU_AVX512_VBMI;
}
