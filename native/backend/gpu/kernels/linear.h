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
 *   scales_T(row, b, &s, &m)   block scale; minimum (MIN) or the second half's scale (SUB)
 */

#define MATVEC_ROWS    4u       /* of one simdgroup */
#define MATVEC_TOKENS  8u
#define MATMUL_ROWS    64u
#define MATMUL_TOKENS  32u

INLINE u32   two_bytes(DEVICE const u8 *p)  { return *(DEVICE const u16 *)p; }
INLINE u32   four_bytes(DEVICE const u8 *p) { return two_bytes(p) | two_bytes(p + 2) << 16; }     /* aligned to 2 */
INLINE float half_at(DEVICE const u8 *p)    { return half_f32(*(DEVICE const u16 *)p); }

/* Bytes 0..127 less a constant, as int8: no byte borrows from its neighbour. */
#define LESS_8(v)  (((v) + 0x78787878u) ^ 0x80808080u)
#define LESS_32(v) (((v) + 0x60606060u) ^ 0x80808080u)

#define FORM_Q4_0 SYM
#define FORM_Q8_0 SYM
#define FORM_Q4_1 MIN
#define FORM_Q4_K MIN
#define FORM_Q6_K SUB
#define SPLIT_SYM 0             /* one dot over the block, or one for each half */
#define SPLIT_MIN 0
#define SPLIT_SUB 1

INLINE void unpack16_Q4_0(DEVICE const u8 *row, u32 b, u32 h, PRIVATE i32 *q)
{
    for (u32 i = 0; i < 4; i++)
        q[i] = (i32)LESS_8(four_bytes(row + b * 18u + 2 + 4 * i) >> (4 * h) & 0x0f0f0f0fu);
}
INLINE void scales_Q4_0(DEVICE const u8 *row, u32 b, PRIVATE float *s, PRIVATE float *m)
{
    *s = half_at(row + b * 18u);
    *m = 0.0f;
}

INLINE void unpack16_Q4_1(DEVICE const u8 *row, u32 b, u32 h, PRIVATE i32 *q)
{
    for (u32 i = 0; i < 4; i++)
        q[i] = (i32)(four_bytes(row + b * 20u + 4 + 4 * i) >> (4 * h) & 0x0f0f0f0fu);
}
INLINE void scales_Q4_1(DEVICE const u8 *row, u32 b, PRIVATE float *s, PRIVATE float *m)
{
    *s = half_at(row + b * 20u);
    *m = half_at(row + b * 20u + 2);
}

INLINE void unpack16_Q8_0(DEVICE const u8 *row, u32 b, u32 h, PRIVATE i32 *q)
{
    for (u32 i = 0; i < 4; i++)
        q[i] = (i32)four_bytes(row + b * 34u + 2 + 16 * h + 4 * i);
}
INLINE void scales_Q8_0(DEVICE const u8 *row, u32 b, PRIVATE float *s, PRIVATE float *m)
{
    *s = half_at(row + b * 34u);
    *m = 0.0f;
}

INLINE void unpack16_Q4_K(DEVICE const u8 *row, u32 b, u32 h, PRIVATE i32 *q)
{
    DEVICE const u8 *p = row + b / 8 * 144u + 16 + b % 8 / 2 * 32 + 16 * h;
    for (u32 i = 0; i < 4; i++)
        q[i] = (i32)(four_bytes(p + 4 * i) >> (4 * (b & 1)) & 0x0f0f0f0fu);
}
/* Eight 6-bit scales and minimums in 12 bytes. */
INLINE void scales_Q4_K(DEVICE const u8 *row, u32 b, PRIVATE float *s, PRIVATE float *m)
{
    DEVICE const u8 *p = row + b / 8 * 144u, *packed = p + 4;
    const u32 j = b % 8;
    u32 sc, mn;
    if (j < 4) {
        sc = packed[j] & 63u;
        mn = packed[j + 4] & 63u;
    } else {
        sc = (packed[j + 4] & 15u) | (u32)(packed[j - 4] >> 6) << 4;
        mn = (u32)(packed[j + 4] >> 4) | (u32)(packed[j] >> 6) << 4;
    }
    *s = half_at(p) * (float)sc;
    *m = -(half_at(p + 2) * (float)mn);
}

INLINE void unpack16_Q6_K(DEVICE const u8 *row, u32 b, u32 h, PRIVATE i32 *q)
{
    DEVICE const u8 *p = row + b / 8 * 210u;
    const u32 j = b % 8 / 4, c = b % 4;
    DEVICE const u8 *low = p + 64 * j + c % 2 * 32 + 16 * h, *high = p + 128 + 32 * j + 16 * h;
    for (u32 i = 0; i < 4; i++) {
        const u32 v = (four_bytes(low + 4 * i) >> (c / 2 * 4) & 0x0f0f0f0fu) | (four_bytes(high + 4 * i) >> (2 * c) & 0x03030303u) << 4;
        q[i] = (i32)LESS_32(v);
    }
}
INLINE void scales_Q6_K(DEVICE const u8 *row, u32 b, PRIVATE float *s, PRIVATE float *m)
{
    DEVICE const u8 *p = row + b / 8 * 210u;
    const float d = half_at(p + 208);
    *s = d * (float)(i8)p[192 + 2 * (b % 8)];
    *m = d * (float)(i8)p[193 + 2 * (b % 8)];
}

/* One block's term. d0, d1: dots of its halves. */
#define TERM_SYM(s, m, xs, xm, d0, d1) ((void)(m), (void)(xm), ((s) * (xs)) * (float)((d0) + (d1)))
#define TERM_MIN(s, m, xs, xm, d0, d1) FMA(m, xm, ((s) * (xs)) * (float)((d0) + (d1)))
#define TERM_SUB(s, m, xs, xm, d0, d1) ((void)(xm), FMA(m, (float)(d1), (s) * (float)(d0)) * (xs))
/* One weight in f32, as it is dequantised: q of half h. */
#define VALUE_SYM(s, m, q, h) ((void)(m), (s) * (float)(q))
#define VALUE_MIN(s, m, q, h) ((s) * (float)(q) + (m))
#define VALUE_SUB(s, m, q, h) (((h) ? (m) : (s)) * (float)(q))

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
#define T Q8_0
#include "backend/gpu/kernels/linear_body.h"
#undef T
#define T Q4_K
#include "backend/gpu/kernels/linear_body.h"
#undef T
#define T Q6_K
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
