/*
 * kernels/x86/packed.h - packed activations of the x86 tiers: one layout, written and read by each with its own registers
 *
 * Packed activations have one of two shapes, by the number of tokens n:
 *
 *   few (at most FEW_TOKENS; a tier may take fewer), for ymm_columns.h and avx512_stream.c; per token, for n_padded blocks:
 *     int8 q[n_padded][32]        blocks as they are
 *     int8 first[n_padded][16], second[n_padded][16]   tier avx512 alone: their halves (Q4_0, Q4_1: low and high nibbles)
 *     i32  pair[n_padded / 8][8][16]   tier avx512 alone, for Q4_K: dwords of two 256-blocks in the order that
 *                                 interleaving their rows gives: dwords 0..3 of even blocks' halves, then of odd ones'
 *     i32 xi | i32 x0 | f32 xs | f32 xm, [n_padded] each
 *     n_padded = n_blocks + 16, rounded up to 16; entry i is block i % n_blocks, so that sixteen
 *     consecutive blocks of a stream of rows find theirs wherever a row begins.
 *   else, for tiles of 4 tokens (*_panel.c, avx512_columns.c), in the order they are read, of 4 tokens also for ymm_columns.h:
 *     [chunk of k][tile][block] of x_tile
 *
 *   xs  scale                  xi  -128 * sum(q), because weights are stored as unsigned w + 128
 *   xm  xs * sum(q)            x0  the same of the first 16 only
 */
#ifndef PLP_KERNELS_X86_PACKED_H
#define PLP_KERNELS_X86_PACKED_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "format/quants.h"
#include "kernels/scales.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum {
    FEW_TOKENS   = 3,       /* four fill a tile */
    TILE_TOKENS  = 4,
    CHUNK_BLOCKS = 24,      /* k / 32 of a panel: with 48 rows it stays near L1 */
};

typedef struct x_tile {                     /* one 32-block of 4 tokens: three cache lines */
    int8_t  q[8][TILE_TOKENS][4];
    float   xs[TILE_TOKENS], xm[TILE_TOKENS];
    int32_t xi[TILE_TOKENS], x0[TILE_TOKENS];
} x_tile;

typedef struct x_stream {                   /* views into one token's part */
    const int8_t  *q, *first, *second;
    const int32_t *pair;
    const float   *xs, *xm;
    const int32_t *xi, *x0;
} x_stream;

INLINE uint32_t round_up(uint32_t x, uint32_t to) { return (x + to - 1) / to * to; }
INLINE uint32_t stream_padded(uint32_t n_blocks) { return round_up(n_blocks + 16, 16); }
INLINE size_t   stream_bytes(uint32_t n_blocks) { return (size_t)stream_padded(n_blocks) * (32 + 32 + 64 + 16); }

INLINE x_stream stream_view(const void *packed, uint32_t n_blocks, uint32_t token)
{
    const size_t n = stream_padded(n_blocks);
    const int8_t *q = (const int8_t *)packed + token * stream_bytes(n_blocks);
    const int32_t *pair = (const int32_t *)(q + 64 * n), *xi = pair + 16 * n;
    return (x_stream){ q, q + 32 * n, q + 48 * n, pair, (const float *)xi + 2 * n, (const float *)xi + 3 * n, xi, xi + n };
}

/* k is cut into equal chunks of whole 256-blocks where there are several. */
INLINE uint32_t chunk_blocks(uint32_t n_blocks)
{
    const uint32_t n = (n_blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS;
    return n <= 1 ? n_blocks : round_up((n_blocks + n - 1) / n, 8);
}

/* The records of `tile` for the chunk that starts at block b0 and has n blocks. */
INLINE size_t tile_offset(uint32_t n_tiles, uint32_t b0, uint32_t n, uint32_t tile)
{
    return (size_t)n_tiles * b0 + (size_t)tile * n;
}

/* A token's terms of 16 rows, and what a last step of up to 16 blocks may write beyond. */
INLINE size_t terms_len(uint32_t n_blocks) { return (size_t)16 * n_blocks + 16; }

/* ---- bytes -------------------------------------------------------------------------------- */

INLINE uint16_t load_u16(const void *p) { return plp_u16_at(p); }
INLINE uint32_t load_u32(const void *p) { return plp_u32_at(p); }
INLINE uint64_t load_u64(const void *p) { return plp_u64_at(p); }

/* ---- types: constants wherever these are asked -------------------------------------------------- */

/* Bytes of 256 weights, 8 blocks. */
INLINE uint32_t bytes_per_8(int type)
{
    switch (type) {
#define QUANT(id, NAME, len, bytes, form) case id: return (bytes) * 256 / (len);
#include "format/quants.def"
#undef QUANT
    }
    return 0;
}

/* Weights in a block of the file. */
INLINE uint32_t block_len(int type)
{
    switch (type) {
#define QUANT(id, NAME, len, bytes, form) case id: return (len);
#include "format/quants.def"
#undef QUANT
    }
    return 0;
}

/* All types with an integer form, for switches and functions of each. */
#define EACH_INTEGER_TYPE(DO) \
    DO(Q6_K) DO(Q5_K) DO(Q4_K) DO(Q3_K) DO(Q2_K) DO(IQ4_XS) DO(Q4_0) DO(Q4_1) DO(Q5_0) DO(Q5_1) DO(Q8_0) DO(IQ4_NL) DO(MXFP4)

INLINE bool has_fifth_bits(int type) { return type == PLP_TYPE_Q5_0 || type == PLP_TYPE_Q5_1; }     /* a bit of each value */
INLINE bool is_looked_up(int type)   { return type == PLP_TYPE_IQ4_NL || type == PLP_TYPE_IQ4_XS || type == PLP_TYPE_MXFP4; }
/* Nibbles are first and second halves of a 32-block, which is how streams then multiply them. */
INLINE bool is_halves(int type)
{
    return type == PLP_TYPE_Q4_0 || type == PLP_TYPE_Q4_1 || has_fifth_bits(type) || is_looked_up(type);
}
INLINE const int8_t *values_of(int type) { return type == PLP_TYPE_MXFP4 ? plp_fp4_values : plp_iq4_values; }

/* avx2_pack.c; the tier above packs with it too. streamed: the first of the two shapes. */
void plp_x86_x_pack(const float *x, size_t ldx, uint32_t n, uint32_t k, uint32_t t0, uint32_t t1, bool streamed, void *out);

/* Callers size by their largest n and k and then use less: both shapes must fit. */
INLINE size_t larger(size_t a, size_t b) { return a > b ? a : b; }
INLINE size_t packed_bytes(uint32_t n, uint32_t k)
{
    const uint32_t streamed = n < FEW_TOKENS ? n : FEW_TOKENS;
    return larger(streamed * stream_bytes(k / 32), (size_t)round_up(n, TILE_TOKENS) * (k / 32) * sizeof(x_tile) / TILE_TOKENS);
}

/* Rows of which only n_rows < 16 exist, as 16: the rest are zeros, which have zero scales. */
INLINE const uint8_t *stage_rows(const uint8_t *p, size_t stride, uint32_t n_rows, size_t n_bytes, uint8_t *stage)
{
    memset(stage, 0, 16 * n_bytes);
    for (uint32_t i = 0; i < n_rows; i++) memcpy(stage + i * n_bytes, p + i * stride, n_bytes);
    return stage;
}

#endif
