/*
 * kernels/arm/formats.h - four rows of a weight file, one 32-block at a time, as int8 vectors and scales
 *
 * What each format stores, and nothing of how the products are made: every ARM tier reads weights through
 * this. A "quad" is four rows; one float vector holds one number of each. A "unit" is the block of the file:
 * one 32-block or eight (the 256-blocks), whose scales are decoded together.
 *
 *   form  a           b                c               value of element i, per kernels.h
 *   SYM   d, d * sc   -                -               q[i] (the format's offset is already subtracted)
 *   MIN   d, d * sc   m, -(dmin * m)   -               q[i]
 *   SUB   d * sc[0]   d * sc[1]        -               q[i]; a belongs to the first 16, b to the last 16
 *   MN2   d           -(dmin * m[0])   -(dmin * m[1])  sc * q[i]; b belongs to the first 16, c to the last 16
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
#include "kernels/scales.h"

#define INLINE static inline __attribute__((always_inline))
#if defined __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { MAX_UNIT_BLOCKS = 8 };

INLINE uint32_t unit_blocks(int type)
{
    switch (type) {
#define QUANT(id, NAME, len, bytes, form) case id: return (len) / 32;
#include "format/quants.def"
#undef QUANT
    }
    return 0;
}

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
    switch (type) {
    case PLP_TYPE_Q8_0:                         return 128;
    case PLP_TYPE_IQ4_NL: case PLP_TYPE_IQ4_XS: return 127;
    case PLP_TYPE_Q2_K:                         return 45;
    case PLP_TYPE_Q6_K:                         return 32;
    case PLP_TYPE_Q5_1: case PLP_TYPE_Q5_K:     return 31;
    case PLP_TYPE_Q5_0:                         return 16;
    default:                                    return 15;
    }
}

/* Numbers of a quad's blocks, per unit. */
typedef struct scales { float32x4_t a[MAX_UNIT_BLOCKS], b[MAX_UNIT_BLOCKS], c[MAX_UNIT_BLOCKS]; } scales;

/* One f16 of each row. */
INLINE float32x4_t quad_f16(const uint8_t *const at[4], size_t offset)
{
    uint16_t h[4];
    UNROLL for (int r = 0; r < 4; r++)
        memcpy(&h[r], at[r] + offset, 2);
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h)));
}

/* d times signed scale i of each row; sv: sixteen scales of each. */
INLINE float32x4_t quad_signed(float32x4_t d, uint8x16x4_t sv, uint32_t i)
{
    /* The scale lands in the top byte of its lane (an index past the table gives 0); a conversion from 8.24 fixed point
     * brings it down. */
    const uint32x4_t lanes = { 0x00808080u, 0x10808080u, 0x20808080u, 0x30808080u };
    const uint8x16_t at = vreinterpretq_u8_u32(vaddq_u32(lanes, vdupq_n_u32(i << 24)));
    return vmulq_f32(d, vcvtq_n_f32_s32(vreinterpretq_s32_u8(vqtbl4q_u8(sv, at)), 24));
}

/* A unit's scales from each row's bytes of that unit. */
INLINE void quad_scales(int type, const uint8_t *const at[4], scales *o)
{
    UNROLL for (uint32_t i = 0; i < unit_blocks(type); i++)
        o->b[i] = o->c[i] = vdupq_n_f32(0);
    switch (type) {
    case PLP_TYPE_Q4_0: case PLP_TYPE_Q5_0: case PLP_TYPE_Q8_0: case PLP_TYPE_IQ4_NL:
        o->a[0] = quad_f16(at, 0);
        break;
    case PLP_TYPE_MXFP4: {
        const float32x4_t d = { plp_half_e8m0(at[0][0]), plp_half_e8m0(at[1][0]), plp_half_e8m0(at[2][0]), plp_half_e8m0(at[3][0]) };
        o->a[0] = d;
        break;
    }
    case PLP_TYPE_Q4_1: case PLP_TYPE_Q5_1:
        o->a[0] = quad_f16(at, 0);
        o->b[0] = quad_f16(at, 2);
        break;
    case PLP_TYPE_Q4_K: case PLP_TYPE_Q5_K: {
        const float32x4_t d = quad_f16(at, 0), minus = vnegq_f32(quad_f16(at, 2));
        uint64_t s[4], m[4];
        UNROLL for (int r = 0; r < 4; r++)
            plp_scales_q4_k(at[r] + 4, &s[r], &m[r]);
        const uint8x16x2_t sv = { { vld1q_u8((const uint8_t *)s), vld1q_u8((const uint8_t *)(s + 2)) } };
        const uint8x16x2_t mv = { { vld1q_u8((const uint8_t *)m), vld1q_u8((const uint8_t *)(m + 2)) } };
        /* Byte 0 of each 32-bit lane takes row r's scale; an index past the table gives 0. */
        const uint32x4_t lanes = { 0x80808000u, 0x80808008u, 0x80808010u, 0x80808018u };
        UNROLL for (uint32_t i = 0; i < 8; i++) {
            const uint8x16_t at_i = vreinterpretq_u8_u32(vaddq_u32(lanes, vdupq_n_u32(i)));
            o->a[i] = vmulq_f32(d, vcvtq_f32_u32(vreinterpretq_u32_u8(vqtbl2q_u8(sv, at_i))));
            o->b[i] = vmulq_f32(minus, vcvtq_f32_u32(vreinterpretq_u32_u8(vqtbl2q_u8(mv, at_i))));
        }
        break;
    }
    case PLP_TYPE_IQ4_XS: {
        const float32x4_t d = quad_f16(at, 0);
        uint8x16x4_t sv;
        UNROLL for (int r = 0; r < 4; r++)
            sv.val[r] = vreinterpretq_u8_u64(vdupq_n_u64(plp_scales_iq4_xs(at[r] + 2)));
        UNROLL for (uint32_t i = 0; i < 8; i++)
            o->a[i] = quad_signed(d, sv, i);
        break;
    }
    case PLP_TYPE_Q3_K: case PLP_TYPE_Q6_K: {
        const float32x4_t d = quad_f16(at, type == PLP_TYPE_Q3_K ? 108 : 208);
        uint8x16x4_t sv;
        UNROLL for (int r = 0; r < 4; r++) {
            uint64_t sc[2];
            if (type == PLP_TYPE_Q3_K)
                plp_scales_q3_k(at[r] + 96, sc);
            sv.val[r] = vld1q_u8(type == PLP_TYPE_Q3_K ? (const uint8_t *)sc : at[r] + 192);
        }
        UNROLL for (uint32_t i = 0; i < 8; i++) {
            o->a[i] = quad_signed(d, sv, 2 * i);
            o->b[i] = quad_signed(d, sv, 2 * i + 1);
        }
        break;
    }
    case PLP_TYPE_Q2_K: {
        const float32x4_t d = quad_f16(at, 80), minus = vnegq_f32(quad_f16(at, 82));
        uint8x16x4_t mv;
        UNROLL for (int r = 0; r < 4; r++)
            mv.val[r] = vshrq_n_u8(vld1q_u8(at[r]), 4);
        UNROLL for (uint32_t i = 0; i < 8; i++) {
            o->a[i] = d;
            o->b[i] = quad_signed(minus, mv, 2 * i);
            o->c[i] = quad_signed(minus, mv, 2 * i + 1);
        }
        break;
    }
    }
}

/* 16 bytes of nibbles, each with a fifth bit of the dword at `fifth` if there is one, less `offset`. */
INLINE void nibble_values(const uint8_t *p, const uint8_t *fifth, int offset, int8x16_t q[2])
{
    const uint8x16_t v = vld1q_u8(p), bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    uint8x16_t half[2] = { vandq_u8(v, vdupq_n_u8(15)), vshrq_n_u8(v, 4) };
    UNROLL for (int h = 0; h < 2; h++) {
        if (fifth) {
            const uint8x16_t dword = vreinterpretq_u8_u32(vdupq_n_u32(plp_u32_at(fifth)));
            const uint8x16_t byte = vcombine_u8(vdup_n_u8((uint8_t)(2 * h)), vdup_n_u8((uint8_t)(2 * h + 1)));
            half[h] = vbslq_u8(vdupq_n_u8(16), vtstq_u8(vqtbl1q_u8(dword, byte), bits), half[h]);
        }
        q[h] = vreinterpretq_s8_u8(half[h]);
        if (offset)
            q[h] = vsubq_s8(q[h], vdupq_n_s8((int8_t)offset));
    }
}

INLINE void looked_up(const uint8_t *p, const int8_t *values, int8x16_t q[2])
{
    const uint8x16_t v = vld1q_u8(p);
    q[0] = vqtbl1q_s8(vld1q_s8(values), vandq_u8(v, vdupq_n_u8(15)));
    q[1] = vqtbl1q_s8(vld1q_s8(values), vshrq_n_u8(v, 4));
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
    case PLP_TYPE_Q4_0:   nibble_values(unit + 2, NULL, 8, q); break;
    case PLP_TYPE_Q4_1:   nibble_values(unit + 4, NULL, 0, q); break;
    case PLP_TYPE_Q5_0:   nibble_values(unit + 6, unit + 2, 16, q); break;
    case PLP_TYPE_Q5_1:   nibble_values(unit + 8, unit + 4, 0, q); break;
    case PLP_TYPE_IQ4_NL: looked_up(unit + 2, plp_iq4_values, q); break;
    case PLP_TYPE_IQ4_XS: looked_up(unit + 8 + 16 * i, plp_iq4_values, q); break;
    case PLP_TYPE_MXFP4:  looked_up(unit + 1, plp_fp4_values, q); break;
    case PLP_TYPE_Q4_K: case PLP_TYPE_Q5_K: {       /* blocks 2j and 2j + 1 share 32 bytes: low and high nibbles */
        const uint8_t *p = unit + (type == PLP_TYPE_Q5_K ? 48 : 16) + i / 2 * 32;
        const int8x16_t down = vdupq_n_s8((int8_t)-(int)(i % 2 * 4)), to_fifth = vdupq_n_s8((int8_t)(4 - (int)i));
        UNROLL for (int h = 0; h < 2; h++) {
            uint8x16_t v = vandq_u8(vshlq_u8(vld1q_u8(p + 16 * h), down), nibble);
            if (type == PLP_TYPE_Q5_K)          /* bit i of 32 bytes before */
                v = vbslq_u8(vdupq_n_u8(16), vshlq_u8(vld1q_u8(unit + 16 + 16 * h), to_fifth), v);
            q[h] = vreinterpretq_s8_u8(v);
        }
        break;
    }
    case PLP_TYPE_Q2_K: case PLP_TYPE_Q3_K: {       /* per 128 values 32 bytes of four 2-bit parts */
        const uint8_t *low = unit + (type == PLP_TYPE_Q3_K ? 32 : 16) + i / 4 * 32;
        const int8x16_t down = vdupq_n_s8((int8_t)-(int)(i % 4 * 2)), to_third = vdupq_n_s8((int8_t)(2 - (int)i));
        UNROLL for (int h = 0; h < 2; h++) {
            uint8x16_t v = vandq_u8(vshlq_u8(vld1q_u8(low + 16 * h), down), vdupq_n_u8(3));
            if (type == PLP_TYPE_Q2_K) {
                q[h] = vreinterpretq_s8_u8(vmulq_u8(v, vdupq_n_u8(unit[2 * i + h] & 15)));
                continue;
            }
            v = vbslq_u8(vdupq_n_u8(4), vshlq_u8(vld1q_u8(unit + 16 * h), to_third), v);
            q[h] = vsubq_s8(vreinterpretq_s8_u8(v), vdupq_n_s8(4));
        }
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
