/*
 * kernels/arm/neon_linear.c - quantised products on plain ARMv8-A: 8-bit multiplies, 16-bit sums
 *
 * A 16-bit lane may take as many products as surely fit, activations being within +-127: 16 of weights up to 16
 * (16 * 127 * 16 = 32512), 8 of weights up to 32, 2 of any (2 * 127 * 128). Then everything is exact, as the contract
 * asks. Eight come together per half block, when four rows are folded; where that does not fit, sums are widened early.
 */
#include "kernels/arm/arm.h"

#define GROUP_ROWS 4
#include "kernels/arm/formats.h"

INLINE int16x8_t products(int16x8_t sum, int8x16_t w, int8x16_t x)
{
    return vmlal_high_s8(vmlal_s8(sum, vget_low_s8(w), vget_low_s8(x)), w, x);
}

INLINE int32x4_t quad_dot(const int8x16_t q[4][2], const int8x16_t x[2], int first, int n, int max)
{
    if (max * n > 32) {
        int32x4_t s[4];
        UNROLL for (int r = 0; r < 4; r++) {
            s[r] = vpaddlq_s16(products(vdupq_n_s16(0), q[r][first], x[first]));
            if (n == 2)
                s[r] = vpadalq_s16(s[r], products(vdupq_n_s16(0), q[r][1], x[1]));
        }
        return vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]));
    }
    int16x8_t p[4];
    UNROLL for (int r = 0; r < 4; r++) {
        p[r] = products(vdupq_n_s16(0), q[r][first], x[first]);
        if (n == 2)
            p[r] = products(p[r], q[r][1], x[1]);
    }
    return vpaddlq_s16(vpaddq_s16(vpaddq_s16(p[0], p[1]), vpaddq_s16(p[2], p[3])));
}

/* Panel and tile: row after row, 16 bytes each. */
INLINE void put_weights(int8_t *dst, uint32_t quad, const int8x16_t v[4])
{
    UNROLL for (int r = 0; r < 4; r++)
        vst1q_s8(dst + (quad * 4 + r) * 16, v[r]);
}

INLINE void put_tokens(int8_t *dst, const int8x16_t v[4]) { put_weights(dst, 0, v); }

INLINE void tile_dots(const int8_t *w, const int8_t *x, int n, int max, int32x4_t d[8])
{
    UNROLL for (int quad = 0; quad < 2; quad++) {
        int8x16_t q[4][2];
        UNROLL for (int r = 0; r < 4; r++)
            UNROLL for (int h = 0; h < 2; h++)
                q[r][h] = h < n ? vld1q_s8(w + h * 128 + (quad * 4 + r) * 16) : vdupq_n_s8(0);
        UNROLL for (int t = 0; t < 4; t++) {
            int8x16_t v[2];
            UNROLL for (int h = 0; h < 2; h++)
                v[h] = h < n ? vld1q_s8(x + h * 64 + t * 16) : vdupq_n_s8(0);
            d[quad * 4 + t] = vaddq_s32(d[quad * 4 + t], quad_dot(q, v, 0, n, max));
        }
    }
}

#include "kernels/arm/linear.h"

void plp_fill_neon_linear(plp_kernels *k) { fill_linear(k); }
