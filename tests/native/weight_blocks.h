/* tests/native/weight_blocks.h - blocks of weights from random bytes: where the types keep their scales */
#ifndef WEIGHT_BLOCKS_H
#define WEIGHT_BLOCKS_H

#include "format/quants.h"

#include <stdbool.h>

static inline void put_half(uint8_t *p, float f)
{
    const uint16_t h = plp_f32_to_f16(f);
    memcpy(p, &h, sizeof h);
}

/* Scale d, and minimum m where there is one, of a block; false for a type whose scales are no halves of their own. */
static inline bool put_scales(int32_t type, uint8_t *block, float d, float m)
{
    switch (type) {
    case PLP_TYPE_Q4_0: case PLP_TYPE_Q5_0: case PLP_TYPE_Q8_0: case PLP_TYPE_IQ4_NL: case PLP_TYPE_IQ4_XS:
        put_half(block, d);
        return true;
    case PLP_TYPE_Q4_1: case PLP_TYPE_Q5_1: case PLP_TYPE_Q4_K: case PLP_TYPE_Q5_K:
        put_half(block, d), put_half(block + 2, m);
        return true;
    case PLP_TYPE_Q2_K: put_half(block + 80, d), put_half(block + 82, m); return true;
    case PLP_TYPE_Q3_K: put_half(block + 108, d); return true;
    case PLP_TYPE_Q6_K: put_half(block + 208, d); return true;
    default: return false;
    }
}

#endif
