/*
 * kernels/arm/dotprod_linear.c - tier "dotprod": quantised products with sdot (ARMv8.2 dot product)
 *
 * sdot adds four int8 products to each 32-bit lane, and its by-lane form takes one token's four values for
 * all four rows: a 16-byte activation register serves four steps, with no broadcasts.
 *
 * Panel half block  [4 steps][2 quads][4 rows][4 values]; activations stay [4 tokens][16 values]
 */
#include "kernels/arm/arm.h"

#define GROUP_ROWS 4
#include "kernels/arm/sdot.h"

/* A 4 x 4 transpose of 32-bit words: four rows' step s becomes one vector. */
INLINE void put_weights(int8_t *dst, uint32_t quad, const int8x16_t v[4])
{
    const int32x4_t r0 = vreinterpretq_s32_s8(v[0]), r1 = vreinterpretq_s32_s8(v[1]);
    const int32x4_t r2 = vreinterpretq_s32_s8(v[2]), r3 = vreinterpretq_s32_s8(v[3]);
    const int64x2_t even01 = vreinterpretq_s64_s32(vtrn1q_s32(r0, r1)), odd01 = vreinterpretq_s64_s32(vtrn2q_s32(r0, r1));
    const int64x2_t even23 = vreinterpretq_s64_s32(vtrn1q_s32(r2, r3)), odd23 = vreinterpretq_s64_s32(vtrn2q_s32(r2, r3));
    dst += quad * 16;
    vst1q_s8(dst,      vreinterpretq_s8_s64(vzip1q_s64(even01, even23)));
    vst1q_s8(dst + 32, vreinterpretq_s8_s64(vzip1q_s64(odd01, odd23)));
    vst1q_s8(dst + 64, vreinterpretq_s8_s64(vzip2q_s64(even01, even23)));
    vst1q_s8(dst + 96, vreinterpretq_s8_s64(vzip2q_s64(odd01, odd23)));
}

INLINE void put_tokens(int8_t *dst, const int8x16_t v[4])
{
    UNROLL for (int t = 0; t < 4; t++)
        vst1q_s8(dst + t * 16, v[t]);
}

INLINE void tile_dots(const int8_t *w, const int8_t *x, int n, int max, int32x4_t d[8])
{
    (void)max;
    UNROLL for (int h = 0; h < n; h++, w += 128, x += 64) {
        int8x16_t v[4], q[2];
        UNROLL for (int t = 0; t < 4; t++)
            v[t] = vld1q_s8(x + t * 16);
/* The lane has to be a literal. */
#define STEP(s)                                                             \
        q[0] = vld1q_s8(w + s * 32);                                        \
        q[1] = vld1q_s8(w + s * 32 + 16);                                   \
        UNROLL for (int t = 0; t < 4; t++) {                                \
            d[t]     = vdotq_laneq_s32(d[t],     q[0], v[t], s);            \
            d[4 + t] = vdotq_laneq_s32(d[4 + t], q[1], v[t], s);            \
        }
        STEP(0) STEP(1) STEP(2) STEP(3)
#undef STEP
    }
}

#include "kernels/arm/linear.h"

void plp_fill_dotprod(plp_kernels *k)
{
    fill_linear(k);
    plp_fill_dotprod_sealed(k);
}
