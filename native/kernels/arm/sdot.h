/*
 * kernels/arm/sdot.h - dots of four rows with one token by sdot; for the tiers that have it
 */
#ifndef PLP_KERNELS_ARM_SDOT_H
#define PLP_KERNELS_ARM_SDOT_H

#include "kernels/arm/formats.h"

/* sdot leaves four partial sums per row; two rounds of pairwise adds bring four rows into one vector. */
INLINE int32x4_t quad_dot(const int8x16_t q[4][2], const int8x16_t x[2], int first, int n, int max)
{
    int32x4_t s[4];
    (void)max;
    UNROLL for (int r = 0; r < 4; r++) {
        s[r] = vdotq_s32(vdupq_n_s32(0), q[r][first], x[first]);
        if (n == 2)
            s[r] = vdotq_s32(s[r], q[r][1], x[1]);
    }
    return vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]));
}

#endif
