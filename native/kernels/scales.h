/*
 * kernels/scales.h - packed scales of the 256-blocks, eight to a word: bits moved together, for the fast tiers
 *
 * Each function makes bytes of what a block of the file packs more tightly. ref/linear.c reads them one by one.
 */
#ifndef PLP_KERNELS_SCALES_H
#define PLP_KERNELS_SCALES_H

#include "base/bytes.h"

/* Q4_K and Q5_K, twelve bytes: eight 6-bit scales and eight 6-bit minimums. */
static inline void plp_scales_q4_k(const uint8_t *p, uint64_t *sc, uint64_t *min)
{
    const uint32_t a = plp_u32_at(p), b = plp_u32_at(p + 4), c = plp_u32_at(p + 8);
    *sc = (a & 0x3f3f3f3f) | (uint64_t)((c & 0x0f0f0f0f) | (a >> 2 & 0x30303030)) << 32;
    *min = (b & 0x3f3f3f3f) | (uint64_t)((c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)) << 32;
}

/* 0..63 -> -32..31, signed bytes: 96 more and the top bit flipped, so that no byte borrows from its neighbour. */
static inline uint64_t plp_less_32(uint64_t v) { return (v + 0x6060606060606060) ^ 0x8080808080808080; }

/* IQ4_XS, two bytes of high bits, four of low nibbles: eight signed scales. */
static inline uint64_t plp_scales_iq4_xs(const uint8_t *p)
{
    uint64_t high = plp_u16_at(p), low = plp_u32_at(p + 2);
    high = (high | high << 24) & 0x000000ff000000ff;
    high = (high | high << 12) & 0x000f000f000f000f;
    high = (high | high << 6) & 0x0303030303030303;
    low = (low | low << 16) & 0x0000ffff0000ffff;
    low = (low | low << 8) & 0x00ff00ff00ff00ff;
    low = (low | low << 4) & 0x0f0f0f0f0f0f0f0f;
    return plp_less_32(low | high << 4);
}

/* Q3_K, eight bytes of nibbles, four of high bits: sixteen signed scales. */
static inline void plp_scales_q3_k(const uint8_t *p, uint64_t sc[2])
{
    const uint64_t low = plp_u64_at(p), high = plp_u32_at(p + 8);
    sc[0] = plp_less_32((low & 0x0f0f0f0f0f0f0f0f) | (high << 4 & 0x30303030) | (high << 34 & 0x3030303000000000));
    sc[1] = plp_less_32((low >> 4 & 0x0f0f0f0f0f0f0f0f) | (high & 0x30303030) | (high << 30 & 0x3030303000000000));
}

#endif
