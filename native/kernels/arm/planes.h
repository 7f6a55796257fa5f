/*
 * kernels/arm/planes.h - a sealed tile's bytes as vectors: the half of kernels/arm/sealed.h that tiers build on
 *
 * Keys are met sixteen channels at a time, as four planes of 16 tokens x 4 channels; a vector holds four tokens of a plane.
 *   q8   plane s of step j: row 4j + s. A query's places are its channels.
 *   q4   planes 0, 1: low nibbles of rows 2j and 2j + 1; planes 2, 3: their high nibbles. A query's places follow: eight of its
 *        lower channels, eight of its upper ones, and so on.
 */
#ifndef PLP_KERNELS_ARM_PLANES_H
#define PLP_KERNELS_ARM_PLANES_H

#include "kernels/arm/arm.h"
#include "kernels/arm/soften.h"
#include "kernels/sealed.h"

enum { LEN = PLP_SEALED_LEN, MAX_DIM = PLP_MAX_HEAD_DIM, MAX_GROUPS = PLP_MAX_HEAD_DIM / PLP_V_GROUP, GROUP = 4 };
enum { Q8, Q4 };

INLINE uint8x16_t nibbles(uint8x16_t v, int high) { return high ? vshrq_n_u8(v, 4) : vandq_u8(v, vdupq_n_u8(15)); }

/* Tokens 4 * part .. + 4 of plane s of step j: q8 as they lie, 128 too large. */
INLINE uint8x16_t plane(int form, const uint8_t *keys, uint32_t j, int s, uint32_t part)
{
    return form == Q8 ? vld1q_u8(keys + (4 * j + s) * 64 + part * 16) : nibbles(vld1q_u8(keys + (2 * j + s % 2) * 64 + part * 16), s / 2);
}

/* Row r: tokens 4r .. 4r + 4 of channels c .. c + 4. */
INLINE void value_rows(int form, const int8_t *v, uint32_t dim, uint32_t c, int8x16_t rows[4])
{
    UNROLL for (uint32_t r = 0; r < 4; r++) {
        const int8_t *at = v + ((form == Q8 ? r : r % 2) * dim + c) * 4;
        rows[r] = form == Q8 ? vld1q_s8(at) : vreinterpretq_s8_u8(nibbles(vld1q_u8((const uint8_t *)at), r / 2));
    }
}

/* ---- the tile to come ------------------------------------------------------------------------- */

/* Keys and values are as many lines: a pass over the keys fetches, beside line i of its own, line i of them both (passes 1) or
 * the keys' in pass 0 and the values' in pass 1. Evenly: few can be on their way at a time. */
INLINE void fetch_lines(int form, const char *next, uint32_t dim, uint32_t line, uint32_t n_lines, uint32_t passes, uint32_t pass)
{
    if (!next) return;
    for (uint32_t i = line; i < line + n_lines; i++)
        UNROLL for (uint32_t part = 0; part < 2; part++)
            if (passes == 1 || pass == part) __builtin_prefetch(next + part * (size_t)(form == Q8 ? 16 : 8) * dim + i * 64);
}

/* What follows keys and values. */
INLINE void fetch_scales(int form, uint32_t dim, const char *next)
{
    const size_t end = form == Q8 ? plp_q8_bytes(dim) : plp_q4_bytes(dim);
    for (size_t at = (size_t)(form == Q8 ? 32 : 16) * dim; at < end; at += 64) __builtin_prefetch(next + at);
}

/* ---- scales ----------------------------------------------------------------------------------- */

/* Eight f16 scales. */
INLINE void half_scales(const uint16_t *p, float *to)
{
    float32x4_t v[2];
    halves8(p, v);
    vst1q_f32(to, v[0]);
    vst1q_f32(to + 4, v[1]);
}

/* Sixteen 8-bit scales, or minimums, times their unit. */
INLINE void bytes_times(const uint8_t *p, float unit, float *to)
{
    const uint8x16_t v = vld1q_u8(p);
    const uint16x8_t w[2] = { vmovl_u8(vget_low_u8(v)), vmovl_high_u8(v) };
    UNROLL for (int i = 0; i < 2; i++) {
        vst1q_f32(to + 8 * i, vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(w[i]))), unit));
        vst1q_f32(to + 8 * i + 4, vmulq_n_f32(vcvtq_f32_u32(vmovl_high_u16(w[i])), unit));
    }
}
INLINE void signed_times(const int8_t *p, float unit, float *to)
{
    const int8x16_t v = vld1q_s8(p);
    const int16x8_t w[2] = { vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v) };
    UNROLL for (int i = 0; i < 2; i++) {
        vst1q_f32(to + 8 * i, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(w[i]))), unit));
        vst1q_f32(to + 8 * i + 4, vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(w[i])), unit));
    }
}

#endif
