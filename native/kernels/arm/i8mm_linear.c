/*
 * kernels/arm/i8mm_linear.c - tier "i8mm": quantised products with smmla (ARMv8.6 int8 matrix multiply)
 *
 * smmla multiplies 2 rows x 8 values with 8 values x 2 tokens: twice the products of sdot per instruction. An
 * accumulator vector is { row 0 token 0, row 0 token 1, row 1 token 0, row 1 token 1 }.
 * With one token half of each matrix would idle, so decode uses sdot, which every CPU with smmla has.
 *
 * Panel half block        [2 steps][4 row pairs][2 rows][8 values]
 * Activation half block   [2 steps][2 token pairs][2 tokens][8 values]
 */
#include "kernels/arm/arm.h"

#define GROUP_ROWS 2
#include "kernels/arm/sdot.h"

/* Four rows (or tokens) of 16 values as pairs; `step` is the distance of the two steps. */
INLINE void put_pairs(int8_t *dst, uint32_t step, const int8x16_t v[4])
{
    UNROLL for (int pair = 0; pair < 2; pair++) {
        const int64x2_t one = vreinterpretq_s64_s8(v[2 * pair]), two = vreinterpretq_s64_s8(v[2 * pair + 1]);
        vst1q_s8(dst + pair * 16,        vreinterpretq_s8_s64(vzip1q_s64(one, two)));
        vst1q_s8(dst + pair * 16 + step, vreinterpretq_s8_s64(vzip2q_s64(one, two)));
    }
}

INLINE void put_weights(int8_t *dst, uint32_t quad, const int8x16_t v[4]) { put_pairs(dst + quad * 32, 64, v); }
INLINE void put_tokens(int8_t *dst, const int8x16_t v[4])                 { put_pairs(dst, 32, v); }

INLINE void tile_dots(const int8_t *w, const int8_t *x, int n, int max, int32x4_t d[8])
{
    (void)max;
    UNROLL for (int step = 0; step < 2 * n; step++, w += 64, x += 32) {
        const int8x16_t v[2] = { vld1q_s8(x), vld1q_s8(x + 16) };
        UNROLL for (int pair = 0; pair < 4; pair++) {
            const int8x16_t q = vld1q_s8(w + pair * 16);
            UNROLL for (int t = 0; t < 2; t++)
                d[pair * 2 + t] = vmmlaq_s32(d[pair * 2 + t], q, v[t]);
        }
    }
}

#include "kernels/arm/linear.h"

void plp_fill_i8mm(plp_kernels *k) { fill_linear(k); }
