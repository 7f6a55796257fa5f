/*
 * kernels/sealed.h - what a sealed block holds: 16 tokens of one layer and kv head, quantised
 *
 *   q8  K u8 [d/4][16][4] (value + 128) | V s8 [4][d][4] | K scale f16 [d] | V scale f16 [groups][16]
 *   q4  K nibbles u8 [d/8][16][4]: byte (j, t, c) holds channel 4j + c low, d/2 + 4j + c high
 *     | V nibbles u8 [2][d][4]:    byte (r, c, i) holds token 4r + i low, 8 + 4r + i high, of channel c
 *     | K scale u8 [d] | K minimum s8 [d] | V scale u8 [groups][16] | V minimum s8 [groups][16]
 *     | four f16 units: K scale, K minimum, V scale, V minimum
 *
 * K is quantised per channel over the block's tokens, V per token in groups of 32 channels (the last may
 * be shorter): keys have channels that are large in every token, values do not. Four consecutive channels
 * (K) or tokens (V) lie together, as integer dot products want them.
 *
 *   q8  k = scale * K                           v = scale * V
 *   q4  k = (uks * scale) * n + ukm * minimum   v = (uvs * scale) * n + uvm * minimum,  n = 0..15
 *
 * THE CONTRACT (continues kernels.h). For one query, q already scaled:
 *   x[d] = q[d] * kscale[d];  mx = max |x|;  a = mx / 32512;  q16[d] = rint(x[d] * (32512 / mx))
 *   score[t] = (float)sum(q16[d] * K[d][t]) * a          q4: + sum16(q[d] * kmin[d]), added last
 *   p, m, s as in attention over f16
 *   per group g:  e[t] = p[t] * vscale[g][t];  me = max e;  b = me / 127;  pq[t] = rint(e[t] * (127 / me))
 *   acc[d] = fma((float)sum(pq[t] * V[t][d]), b, acc[d])  q4: then + sum16(p[t] * vmin[g][t])
 * The integer sums are exact in int32 for head_dim up to PLP_MAX_HEAD_DIM. mx or me below PLP_X_ZERO counts as 0.
 * Sealing: rint of value / scale, scales and units rounded to f16 first, minimums before scales.
 */
#ifndef PLP_KERNELS_SEALED_H
#define PLP_KERNELS_SEALED_H

#include <stddef.h>
#include <stdint.h>

#define PLP_SEALED_LEN 16u          /* tokens of a sealed block */
#define PLP_V_GROUP    32u          /* channels of V that share a token's scale */

static inline uint32_t plp_v_groups(uint32_t head_dim) { return (head_dim + PLP_V_GROUP - 1) / PLP_V_GROUP; }

typedef struct plp_q8_tile {        /* places inside one tile */
    const uint8_t  *k;
    const int8_t   *v;
    const uint16_t *k_scale, *v_scale;
} plp_q8_tile;

typedef struct plp_q4_tile {
    const uint8_t  *k, *v, *k_scale, *v_scale;
    const int8_t   *k_min, *v_min;
    const uint16_t *units;          /* K scale, K minimum, V scale, V minimum */
} plp_q4_tile;

static inline size_t plp_q8_bytes(uint32_t d) { return 2 * PLP_SEALED_LEN * (size_t)d + 2 * d + 2 * PLP_SEALED_LEN * plp_v_groups(d); }
static inline size_t plp_q4_bytes(uint32_t d) { return PLP_SEALED_LEN * (size_t)d + 2 * d + 2 * PLP_SEALED_LEN * plp_v_groups(d) + 8; }

static inline plp_q8_tile plp_q8_at(const void *tile, uint32_t d)
{
    const uint8_t *p = tile;
    return (plp_q8_tile){ p, (const int8_t *)p + PLP_SEALED_LEN * d, (const uint16_t *)(p + 2 * PLP_SEALED_LEN * d),
                          (const uint16_t *)(p + 2 * PLP_SEALED_LEN * d) + d };
}

static inline plp_q4_tile plp_q4_at(const void *tile, uint32_t d)
{
    const uint8_t *p = tile, *after = p + PLP_SEALED_LEN * d;
    const uint32_t n = PLP_SEALED_LEN * plp_v_groups(d);
    return (plp_q4_tile){ .k = p, .v = p + PLP_SEALED_LEN * d / 2, .k_scale = after, .k_min = (const int8_t *)after + d,
                          .v_scale = after + 2 * d, .v_min = (const int8_t *)after + 2 * d + n,
                          .units = (const uint16_t *)(after + 2 * d + 2 * n) };
}

#endif
