/*
 * backend/gpu/kernels/linear.h - products of weight rows as they lie in the file with a batch of activations
 *
 * pack      activations to int8 in blocks of 32, once for all matrices that share them
 * matvec_T  few tokens: a simdgroup takes 4 rows, a lane one 32-block of each; terms go through shared
 *           memory so that each (row, token) adds its terms in block order
 * matmul_T  many tokens: tiles of 64 rows x 32 tokens, unpacked to int8 in shared memory, exact dots by a
 *           matrix unit where the prelude has one; a term per block, added in block order
 * float T   a half simdgroup takes a row: lane l the elements l, l + 16, ...
 *
 * Both integer kernels therefore give the same bits, those of THE CONTRACT (kernels/kernels.h), whatever
 * the batch. A row's 32-block b, for each integer type:
 *   unpack16_T(row, b, h, q)   its values 16 h .. 16 h + 15 as int8, four to a word
 *   scales_T(row, b, w)        w[0] the block's scale; w[1] its minimum (MIN), the first half's minimum (MN2) or
 *                              the second half's scale (SUB); w[2] the second half's minimum (MN2)
 */

#define MATVEC_ROWS    4u       /* of one simdgroup */
#define MATVEC_TOKENS  8u
#define MATMUL_ROWS    64u
#define MATMUL_TOKENS  32u

INLINE u32   two_bytes(DEVICE const u8 *p)  { return *(DEVICE const u16 *)p; }
INLINE u32   four_bytes(DEVICE const u8 *p) { return two_bytes(p) | two_bytes(p + 2) << 16; }     /* aligned to 2 */
INLINE float half_at(DEVICE const u8 *p)    { return half_f32(*(DEVICE const u16 *)p); }

/* Bytes 0..127 less a constant, as int8: no byte borrows from its neighbour. */
#define LESS_4(v)  (((v) + 0x7c7c7c7cu) ^ 0x80808080u)
#define LESS_8(v)  (((v) + 0x78787878u) ^ 0x80808080u)
#define LESS_16(v) (((v) + 0x70707070u) ^ 0x80808080u)
#define LESS_32(v) (((v) + 0x60606060u) ^ 0x80808080u)

#define FORM_Q4_0 SYM
#define FORM_Q5_0 SYM
#define FORM_Q8_0 SYM
#define FORM_IQ4_NL SYM
#define FORM_IQ4_XS SYM
#define FORM_MXFP4 SYM
#define FORM_Q4_1 MIN
#define FORM_Q5_1 MIN
#define FORM_Q4_K MIN
#define FORM_Q5_K MIN
#define FORM_Q3_K SUB
#define FORM_Q6_K SUB
#define FORM_Q2_K MN2
#define SPLIT_SYM 0             /* one dot over the block, or one for each half */
#define SPLIT_MIN 0
#define SPLIT_SUB 1
#define SPLIT_MN2 0
#define FACTORS_SYM 2u          /* of a row's block and of a token's */
#define FACTORS_MIN 2u
#define FACTORS_SUB 2u
#define FACTORS_MN2 3u

/* Four nibbles, one to a byte. */
#define NIBBLES(four, h) ((four) >> (4 * (h)) & 0x0f0f0f0fu)
/* The lowest four bits, one to a byte. */
#define BITS(v) (((v) & 15u) * 0x00204081u & 0x01010101u)

/* Four nibbles -> what they stand for in a table of sixteen bytes. */
INLINE i32 looked_up(u32 nibbles, u64 low, u64 high)
{
    u32 v = 0;
    for (u32 i = 0; i < 32; i += 8) {
        const u32 n = nibbles >> i & 15u;
        v |= (u32)((n < 8 ? low : high) >> (n % 8 * 8) & 255u) << i;
    }
    return (i32)v;
}
#define LOOK_UP_IQ4(nibbles) looked_up(nibbles, 0xf6eaddcfbfad9881, 0x7159453526190d01)
#define LOOK_UP_FP4(nibbles) looked_up(nibbles, 0x0c08060403020100, 0xf4f8fafcfdfeff00)

/* 32-blocks of nibbles: a header, then 16 bytes, low nibbles first. */
#define UNPACK_NIBBLES(T, bytes, weights)                                                               \
    INLINE void unpack16_##T(DEVICE const u8 *row, u32 b, u32 h, PRIVATE i32 *q)                        \
    {                                                                                                   \
        DEVICE const u8 *at = row + b * (bytes);                                                        \
        for (u32 i = 0; i < 4; i++) {                                                                   \
            const u32 v = NIBBLES(four_bytes(at + (bytes) - 16 + 4 * i), h);                            \
            q[i] = (i32)(weights);                                                                      \
        }                                                                                               \
    }
#define FIFTH(offset) (BITS(four_bytes(at + (offset)) >> (16 * h + 4 * i)) << 4)
UNPACK_NIBBLES(Q4_0, 18u, LESS_8(v))
UNPACK_NIBBLES(Q4_1, 20u, v)
UNPACK_NIBBLES(Q5_0, 22u, LESS_16(v | FIFTH(2)))
UNPACK_NIBBLES(Q5_1, 24u, v | FIFTH(4))
UNPACK_NIBBLES(IQ4_NL, 18u, LOOK_UP_IQ4(v))

/* Blocks of 17 bytes are not aligned. */
INLINE void unpack16_MXFP4(DEVICE const u8 *row, u32 b, u32 h, PRIVATE i32 *q)
{
    DEVICE const u8 *p = row + b * 17u + 1;
    for (u32 i = 0; i < 4; i++, p += 4)
        q[i] = LOOK_UP_FP4(NIBBLES(p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24, h));
}

INLINE void unpack16_Q8_0(DEVICE const u8 *row, u32 b, u32 h, PRIVATE i32 *q)
{
    for (u32 i = 0; i < 4; i++)
        q[i] = (i32)four_bytes(row + b * 34u + 2 + 16 * h + 4 * i);
}

#define SCALES_SYM(T, bytes) INLINE void scales_##T(DEVICE const u8 *row, u32 b, PRIVATE float *w)       \
    { w[0] = half_at(row + b * (bytes)); w[1] = 0.0f; }
#define SCALES_MIN(T, bytes) INLINE void scales_##T(DEVICE const u8 *row, u32 b, PRIVATE float *w)       \
    { w[0] = half_at(row + b * (bytes)); w[1] = half_at(row + b * (bytes) + 2); }
SCALES_SYM(Q4_0, 18u)
SCALES_SYM(Q5_0, 22u)
SCALES_SYM(Q8_0, 34u)
SCALES_SYM(IQ4_NL, 18u)
SCALES_MIN(Q4_1, 20u)
SCALES_MIN(Q5_1, 24u)

INLINE void scales_MXFP4(DEVICE const u8 *row, u32 b, PRIVATE float *w)
{
    const u32 e = row[b * 17u];
    w[0] = bits_f32(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    w[1] = 0.0f;
}

/* Bit b % 8 of four bytes. */
#define BIT_OF_BLOCK(four) ((four) >> (b % 8) & 0x01010101u)

INLINE void unpack16_Q4_K(DEVICE const u8 *row, u32 b, u32 h, PRIVATE i32 *q)
{
    DEVICE const u8 *p = row + b / 8 * 144u + 16 + b % 8 / 2 * 32 + 16 * h;
    for (u32 i = 0; i < 4; i++)
        q[i] = (i32)NIBBLES(four_bytes(p + 4 * i), b & 1);
}
INLINE void unpack16_Q5_K(DEVICE const u8 *row, u32 b, u32 h, PRIVATE i32 *q)
{
    DEVICE const u8 *high = row + b / 8 * 176u + 16 + 16 * h, *low = high + 32 + b % 8 / 2 * 32;
    for (u32 i = 0; i < 4; i++)
        q[i] = (i32)(NIBBLES(four_bytes(low + 4 * i), b & 1) | BIT_OF_BLOCK(four_bytes(high + 4 * i)) << 4);
}
/* Eight 6-bit scales and minimums in 12 bytes. */
INLINE void scales_q45_k(DEVICE const u8 *p, u32 j, PRIVATE float *w)
{
    DEVICE const u8 *packed = p + 4;
    u32 sc, mn;
    if (j < 4) {
        sc = packed[j] & 63u;
        mn = packed[j + 4] & 63u;
    } else {
        sc = (packed[j + 4] & 15u) | (u32)(packed[j - 4] >> 6) << 4;
        mn = (u32)(packed[j + 4] >> 4) | (u32)(packed[j] >> 6) << 4;
    }
    w[0] = half_at(p) * (float)sc;
    w[1] = -(half_at(p + 2) * (float)mn);
}
INLINE void scales_Q4_K(DEVICE const u8 *row, u32 b, PRIVATE float *w) { scales_q45_k(row + b / 8 * 144u, b % 8, w); }
INLINE void scales_Q5_K(DEVICE const u8 *row, u32 b, PRIVATE float *w) { scales_q45_k(row + b / 8 * 176u, b % 8, w); }

INLINE void unpack16_Q6_K(DEVICE const u8 *row, u32 b, u32 h, PRIVATE i32 *q)
{
    DEVICE const u8 *p = row + b / 8 * 210u;
    const u32 j = b % 8 / 4, c = b % 4;
    DEVICE const u8 *low = p + 64 * j + c % 2 * 32 + 16 * h, *high = p + 128 + 32 * j + 16 * h;
    for (u32 i = 0; i < 4; i++) {
        const u32 v = NIBBLES(four_bytes(low + 4 * i), c / 2) | (four_bytes(high + 4 * i) >> (2 * c) & 0x03030303u) << 4;
        q[i] = (i32)LESS_32(v);
    }
}
INLINE void scales_Q6_K(DEVICE const u8 *row, u32 b, PRIVATE float *w)
{
    DEVICE const u8 *p = row + b / 8 * 210u;
    const float d = half_at(p + 208);
    w[0] = d * (float)(i8)p[192 + 2 * (b % 8)];
    w[1] = d * (float)(i8)p[193 + 2 * (b % 8)];
}

/* Two bits of each of four values of half h of block b: 32 bytes hold four blocks. */
INLINE u32 two_bits(DEVICE const u8 *p, u32 b, u32 h, u32 i)
{
    return four_bytes(p + b % 8 / 4 * 32 + 16 * h + 4 * i) >> (b % 4 * 2) & 0x03030303u;
}

INLINE void unpack16_Q3_K(DEVICE const u8 *row, u32 b, u32 h, PRIVATE i32 *q)
{
    DEVICE const u8 *p = row + b / 8 * 110u;
    for (u32 i = 0; i < 4; i++)
        q[i] = (i32)LESS_4(two_bits(p + 32, b, h, i) | BIT_OF_BLOCK(four_bytes(p + 16 * h + 4 * i)) << 2);
}
/* Sixteen 6-bit scales in 12 bytes. */
INLINE float scale_q3_k(DEVICE const u8 *p, u32 g)
{
    DEVICE const u8 *packed = p + 96;
    const u32 sc = (packed[g % 8] >> (g / 8 * 4) & 15u) | (packed[8 + g % 4] >> (g / 4 * 2) & 3u) << 4;
    return half_at(p + 108) * (float)((i32)sc - 32);
}
INLINE void scales_Q3_K(DEVICE const u8 *row, u32 b, PRIVATE float *w)
{
    w[0] = scale_q3_k(row + b / 8 * 110u, 2 * (b % 8));
    w[1] = scale_q3_k(row + b / 8 * 110u, 2 * (b % 8) + 1);
}

/* The integers are scale times value, at most 45: a word's bytes do not carry. */
INLINE void unpack16_Q2_K(DEVICE const u8 *row, u32 b, u32 h, PRIVATE i32 *q)
{
    DEVICE const u8 *p = row + b / 8 * 84u;
    for (u32 i = 0; i < 4; i++)
        q[i] = (i32)(two_bits(p + 16, b, h, i) * (p[2 * (b % 8) + h] & 15u));
}
INLINE void scales_Q2_K(DEVICE const u8 *row, u32 b, PRIVATE float *w)
{
    DEVICE const u8 *p = row + b / 8 * 84u;
    w[0] = half_at(p + 80);
    for (u32 h = 0; h < 2; h++)
        w[1 + h] = -(half_at(p + 82) * (float)(p[2 * (b % 8) + h] >> 4));
}

INLINE void unpack16_IQ4_XS(DEVICE const u8 *row, u32 b, u32 h, PRIVATE i32 *q)
{
    DEVICE const u8 *p = row + b / 8 * 136u + 8 + b % 8 * 16;
    for (u32 i = 0; i < 4; i++)
        q[i] = LOOK_UP_IQ4(NIBBLES(four_bytes(p + 4 * i), h));
}
INLINE void scales_IQ4_XS(DEVICE const u8 *row, u32 b, PRIVATE float *w)
{
    DEVICE const u8 *p = row + b / 8 * 136u;
    const u32 j = b % 8, sc = (p[4 + j / 2] >> (j % 2 * 4) & 15u) | (two_bytes(p + 2) >> (2 * j) & 3u) << 4;
    w[0] = half_at(p) * (float)((i32)sc - 32);
    w[1] = 0.0f;
}

/* What a token's block brings to a term: its scale, scale times sum, or, in the halves' form, that of each half. */
INLINE void token_factors(u32 n, DEVICE const i32 *q, float scale, float sum, PRIVATE float *x)
{
    x[0] = scale;
    x[1] = sum;
    for (u32 h = 0; h < 2 && n > 2; h++) {
        i32 of_half = 0;
        for (u32 i = 0; i < 4; i++)
            of_half = dot4(q[4 * h + i], 0x01010101, of_half);
        x[1 + h] = scale * (float)of_half;
    }
}

/* One block's term: the row's factors, the token's. d0, d1: dots of its halves. */
#define TERM_SYM(w, x, d0, d1) (((w)[0] * (x)[0]) * (float)((d0) + (d1)))
#define TERM_MIN(w, x, d0, d1) FMA((w)[1], (x)[1], TERM_SYM(w, x, d0, d1))
#define TERM_SUB(w, x, d0, d1) (FMA((w)[1], (float)(d1), (w)[0] * (float)(d0)) * (x)[0])
#define TERM_MN2(w, x, d0, d1) FMA((w)[2], (x)[2], FMA((w)[1], (x)[1], TERM_SYM(w, x, d0, d1)))
/* One weight in f32, as it is dequantised: q of half h. */
#define VALUE_SYM(w, q, h) ((w)[0] * (float)(q))
#define VALUE_MIN(w, q, h) ((w)[0] * (float)(q) + (w)[1])
#define VALUE_SUB(w, q, h) ((w)[h] * (float)(q))
#define VALUE_MN2(w, q, h) ((w)[0] * (float)(q) + (w)[1 + (h)])

#if TILE_PORTABLE
INLINE i32 tile_dot_words(LOCAL const i8 *w, LOCAL const i8 *x, u32 n)
{
    i32 d = 0;
    for (u32 i = 0; i < n; i += 4)
        d = dot4(*(LOCAL const i32 *)(w + i), *(LOCAL const i32 *)(x + i), d);
    return d;
}
#define tile_dot(w, x, n, scratch, d)                                                                    \
    do {                                                                                                 \
        (void)(scratch);                                                                                 \
        for (u32 e_ = 0; e_ < 4; e_++)                                                                   \
            (d)[e_] = tile_dot_words((w) + TILE_ROW(LANE, e_) * TILE_STRIDE, (x) + TILE_COL(LANE, e_) * TILE_STRIDE, n); \
    } while (0)
#define tile_dot32(w, x, scratch, d) tile_dot(w, x, 32, scratch, d)
#define tile_dot16(w, x, scratch, d) tile_dot(w, x, 16, scratch, d)
#endif


/* A lane is one value of one block; a simdgroup packs a block at a time. GROUP_X: token. */
KERNEL(pack, pack_args)
{
    const u32 n_blocks = a.k / 32, token = GROUP_X;
    for (u32 b = SIMD; b < n_blocks; b += THREADS / 32) {
        const float v = a.x[token * a.ld + b * 32 + LANE];
        const float most = max32(ABS(v));
        const bool zero = most < X_ZERO;
        const i32 q = round_int(v * (zero ? 0.0f : 127.0f / most));
        i32 sum = q;
        for (u32 step = 16; step > 0; step /= 2)
            sum += lane_xor_i(sum, step);
        a.q[token * (u64)a.k + b * 32 + LANE] = (i8)q;
        if (LANE == 0) {
            const float s = zero ? 0.0f : most / 127.0f;
            a.scale[token * (u64)n_blocks + b] = s;
            a.sum[token * (u64)n_blocks + b] = s * (float)sum;
        }
    }
}

#define T Q4_0
#include "backend/gpu/kernels/linear_body.h"
#undef T
#define T Q4_1
#include "backend/gpu/kernels/linear_body.h"
#undef T
#define T Q5_0
#include "backend/gpu/kernels/linear_body.h"
#undef T
#define T Q5_1
#include "backend/gpu/kernels/linear_body.h"
#undef T
#define T Q8_0
#include "backend/gpu/kernels/linear_body.h"
#undef T
#define T Q2_K
#include "backend/gpu/kernels/linear_body.h"
#undef T
#define T Q3_K
#include "backend/gpu/kernels/linear_body.h"
#undef T
#define T Q4_K
#include "backend/gpu/kernels/linear_body.h"
#undef T
#define T Q5_K
#include "backend/gpu/kernels/linear_body.h"
#undef T
#define T Q6_K
#include "backend/gpu/kernels/linear_body.h"
#undef T
#define T IQ4_NL
#include "backend/gpu/kernels/linear_body.h"
#undef T
#define T IQ4_XS
#include "backend/gpu/kernels/linear_body.h"
#undef T
#define T MXFP4
#include "backend/gpu/kernels/linear_body.h"
#undef T

/* ---- weights without an integer form ----------------------------------------------------------------- */

INLINE float value_F32(DEVICE const u8 *row, u32 i)  { return ((DEVICE const float *)row)[i]; }
INLINE float value_F16(DEVICE const u8 *row, u32 i)  { return half_f32(((DEVICE const u16 *)row)[i]); }
INLINE float value_BF16(DEVICE const u8 *row, u32 i) { return bits_f32((u32)((DEVICE const u16 *)row)[i] << 16); }

#define T F32
#include "backend/gpu/kernels/linear_float_body.h"
#undef T
#define T F16
#include "backend/gpu/kernels/linear_float_body.h"
#undef T
#define T BF16
#include "backend/gpu/kernels/linear_float_body.h"
#undef T
