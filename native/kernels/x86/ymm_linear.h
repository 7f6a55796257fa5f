/* kernels/x86/ymm_linear.h - tiers "avx2" and "avxvnni": which product path takes how many tokens (packed.h) */
#ifndef PLP_KERNELS_X86_YMM_LINEAR_H
#define PLP_KERNELS_X86_YMM_LINEAR_H

#include "kernels/x86/avx2.h"

static size_t linear_work(uint32_t n, uint32_t k)
{
    return larger(TIER(panel_work)(n, k), plp_avx2_float_work(k));
}

static void linear(const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy,
                   bool add, void *work)
{
    if (TIER(columns_suit)(w->type, n)) TIER(columns)(w, r0, r1, x, n, y, ldy, add);
    else                                TIER(panel)(w, r0, r1, x, n, y, ldy, add, work);
}

INLINE void fill_linear(plp_kernels *k)
{
    k->linear_work = linear_work;
    k->linear = linear;
}

#endif
