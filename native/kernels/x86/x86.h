/* kernels/x86/x86.h - the x86-64 tiers, for the dispatch; compiled for any x86-64, so no intrinsics here */
#ifndef PLP_KERNELS_X86_X86_H
#define PLP_KERNELS_X86_X86_H

#include "kernels/kernels.h"

enum {
    PLP_NEEDS_AVX2    = PLP_CPU_AVX2 | PLP_CPU_FMA | PLP_CPU_F16C,
    PLP_NEEDS_AVXVNNI = PLP_NEEDS_AVX2 | PLP_CPU_AVX_VNNI,
    PLP_NEEDS_AVX512  = PLP_NEEDS_AVX2 | PLP_CPU_AVX512 | PLP_CPU_AVX512_VNNI | PLP_CPU_AVX512_VBMI,
};

void plp_fill_avx2(plp_kernels *k);
void plp_fill_avxvnni(plp_kernels *k);      /* on top of avx2; in builds with PLP_AVXVNNI: older compilers lack the instruction */
void plp_fill_avx512(plp_kernels *k);       /* on top of avx2; avxvnni may be between: what that overwrites, this does, too */

#endif
