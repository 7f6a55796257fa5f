/*
 * kernels/arm/formats.h - four rows of a weight file, one 32-block at a time, as int8 vectors and scales
 *
 * What each format stores, and nothing of how the products are made: every ARM tier reads weights through
 * this. A "quad" is four rows; one float vector holds one number of each. A "unit" is the block of the file:
 * one 32-block (Q4_0, Q4_1, Q8_0) or eight (Q4_K, Q6_K), whose scales are decoded together.
 *
 *   form  a           b                    value of element i, per kernels.h
 *   SYM   d           -                    q[i] (the format's offset is already subtracted)
 *   MIN   d, d * sc   m, -(dmin * m)       q[i]
 *   SUB   d * sc[0]   d * sc[1]            q[i]; a belongs to the first 16, b to the last 16
 *
 * All these products are exact in f32 (11 bits of f16 times at most 8), so any order gives the same bits.
 *
 * `type` and `form` are compile-time constants wherever these are inlined: no branch of theirs survives.
 * Bounds   reads the unit's own bytes only
 * Source   GGUF specification; layouts as in format/quants.c, which the tests tie to gguf-py
 */
#ifndef PLP_KERNELS_ARM_FORMATS_H
#define PLP_KERNELS_ARM_FORMATS_H

#include <arm_neon.h>
#include <string.h>

#include "format/quants.h"

#define INLINE static inline __attribute__((always_inline))
#if defined __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { MAX_UNIT_BLOCKS = 8 };

INLINE uint32_t unit_blocks(int type) { return type == PLP_TYPE_Q4_K || type == PLP_TYPE_Q6_K ? 8 : 1; }

INLINE size_t unit_bytes(int type)
{
    switch (type) {
#define QUANT(id, NAME, len, bytes, form) case id: return bytes;
#include "format/quants.def"
#undef QUANT
    }
    return 0;
}

/* The largest |q| of a format; decides how many products fit in 16 bits. */
INLINE int max_value(int type)
{
    return type == PLP_TYPE_Q8_0 ? 128 : type == PLP_TYPE_Q6_K ? 32 : 15;
}

/* One f16 of each row. */
INLINE float32x4_t quad_f16(const uint8_t *const at[4], size_t offset)
{
    uint16_t h[4];
    UNROLL for (int r = 0; r < 4; r++)
        memcpy(&h[r], at[r] + offset, 2);
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h)));
}

/* Q4_K packs eight 6-bit scales and eight 6-bit minima in 12 bytes: the low six bits of bytes 0-3 are scales
 * 0-3, of bytes 4-7 minima 0-3; bytes 8-11 hold the low nibbles of the other scales and minima, whose two
 * high bits are on top of bytes 0-3 and 4-7. Done on four bytes at a time. */
INLINE void q4_k_scales(const uint8_t *p, uint64_t *scales, uint64_t *minima)
{
    uint32_t s, m, rest;
    memcpy(&s, p, 4);
    memcpy(&m, p + 4, 4);
    memcpy(&rest, p + 8, 4);
    const uint32_t s_high = (rest & 0x0f0f0f0fu) | (s >> 6 & 0x03030303u) << 4;
    const uint32_t m_high = (rest >> 4 & 0x0f0f0f0fu) | (m >> 6 & 0x03030303u) << 4;
    *scales = (s & 0x3f3f3f3fu) | (uint64_t)s_high << 32;
    *minima = (m & 0x3f3f3f3fu) | (uint64_t)m_high << 32;
}

/* The scales of a unit's blocks, a[block] and b[block], from each row's bytes of that unit. */
INLINE void quad_scales(int type, const uint8_t *const at[4], float32x4_t a[MAX_UNIT_BLOCKS],
                        float32x4_t b[MAX_UNIT_BLOCKS])
{
    switch (type) {
    case PLP_TYPE_Q4_0:
    case PLP_TYPE_Q8_0:
        a[0] = quad_f16(at, 0);
        b[0] = vdupq_n_f32(0);
        break;
    case PLP_TYPE_Q4_1:
        a[0] = quad_f16(at, 0);
        b[0] = quad_f16(at, 2);
        break;
    case PLP_TYPE_Q4_K: {
        const float32x4_t d = quad_f16(at, 0), minus = vnegq_f32(quad_f16(at, 2));
        uint64_t s[4], m[4];
        UNROLL for (int r = 0; r < 4; r++)
            q4_k_scales(at[r] + 4, &s[r], &m[r]);
        const uint8x16x2_t sv = { { vld1q_u8((const uint8_t *)s), vld1q_u8((const uint8_t *)(s + 2)) } };
        const uint8x16x2_t mv = { { vld1q_u8((const uint8_t *)m), vld1q_u8((const uint8_t *)(m + 2)) } };
        /* Byte 0 of each 32-bit lane takes row r's scale; an index past the table gives 0. */
        const uint32x4_t lanes = { 0x80808000u, 0x80808008u, 0x80808010u, 0x80808018u };
        UNROLL for (uint32_t i = 0; i < 8; i++) {
            const uint8x16_t at_i = vreinterpretq_u8_u32(vaddq_u32(lanes, vdupq_n_u32(i)));
            a[i] = vmulq_f32(d, vcvtq_f32_u32(vreinterpretq_u32_u8(vqtbl2q_u8(sv, at_i))));
            b[i] = vmulq_f32(minus, vcvtq_f32_u32(vreinterpretq_u32_u8(vqtbl2q_u8(mv, at_i))));
        }
        break;
    }
    case PLP_TYPE_Q6_K: {
        const float32x4_t d = quad_f16(at, 208);
        const uint8x16x4_t sv = { { vld1q_u8(at[0] + 192), vld1q_u8(at[1] + 192),
                                    vld1q_u8(at[2] + 192), vld1q_u8(at[3] + 192) } };
        /* The signed scale lands in the top byte of its lane; a conversion from 8.24 fixed point brings it down. */
        const uint32x4_t lanes = { 0x00808080u, 0x10808080u, 0x20808080u, 0x30808080u };
        UNROLL for (uint32_t i = 0; i < 8; i++) {
            const uint8x16_t at_a = vreinterpretq_u8_u32(vaddq_u32(lanes, vdupq_n_u32(2 * i << 24)));
            const uint8x16_t at_b = vreinterpretq_u8_u32(vaddq_u32(lanes, vdupq_n_u32((2 * i + 1) << 24)));
            a[i] = vmulq_f32(d, vcvtq_n_f32_s32(vreinterpretq_s32_u8(vqtbl4q_u8(sv, at_a)), 24));
            b[i] = vmulq_f32(d, vcvtq_n_f32_s32(vreinterpretq_s32_u8(vqtbl4q_u8(sv, at_b)), 24));
        }
        break;
    }
    }
}

/* The 32 values of block i of one row's unit. */
INLINE void block_values(int type, const uint8_t *unit, uint32_t i, int8x16_t q[2])
{
    const uint8x16_t nibble = vdupq_n_u8(15);

    switch (type) {
    case PLP_TYPE_Q8_0:
        q[0] = vreinterpretq_s8_u8(vld1q_u8(unit + 2));
        q[1] = vreinterpretq_s8_u8(vld1q_u8(unit + 18));
        break;
    case PLP_TYPE_Q4_0: {
        const uint8x16_t v = vld1q_u8(unit + 2);
        q[0] = vsubq_s8(vreinterpretq_s8_u8(vandq_u8(v, nibble)), vdupq_n_s8(8));
        q[1] = vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(v, 4)), vdupq_n_s8(8));
        break;
    }
    case PLP_TYPE_Q4_1: {
        const uint8x16_t v = vld1q_u8(unit + 4);
        q[0] = vreinterpretq_s8_u8(vandq_u8(v, nibble));
        q[1] = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
        break;
    }
    case PLP_TYPE_Q4_K: {       /* blocks 2j and 2j + 1 share 32 bytes: low and high nibbles */
        const uint8_t *p = unit + 16 + i / 2 * 32;
        const int8x16_t down = vdupq_n_s8((int8_t)-(int)(i % 2 * 4));
        UNROLL for (int h = 0; h < 2; h++)
            q[h] = vreinterpretq_s8_u8(vandq_u8(vshlq_u8(vld1q_u8(p + 16 * h), down), nibble));
        break;
    }
    case PLP_TYPE_Q6_K: {       /* per 128 values: 64 bytes of low nibbles, 32 bytes of four 2-bit parts */
        const uint8_t *low = unit + i / 4 * 64 + i % 2 * 32, *high = unit + 128 + i / 4 * 32;
        const int8x16_t down = vdupq_n_s8((int8_t)-(int)(i % 4 / 2 * 4));
        const int8x16_t up = vdupq_n_s8((int8_t)(4 - (int)(i % 4) * 2));
        UNROLL for (int h = 0; h < 2; h++) {
            /* Low nibble from one, the rest from the other; what lies above bit 5 is other values' bits. */
            const uint8x16_t v = vbslq_u8(nibble, vshlq_u8(vld1q_u8(low + 16 * h), down),
                                                  vshlq_u8(vld1q_u8(high + 16 * h), up));
            q[h] = vsubq_s8(vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(63))), vdupq_n_s8(32));
        }
        break;
    }
    }
}

#endif
