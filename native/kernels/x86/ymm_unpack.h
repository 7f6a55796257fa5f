/*
 * kernels/x86/ymm_unpack.h - rows of a file into a panel of bytes, for the two tiers whose registers hold eight rows
 *
 * avx2_panel.c and avxvnni_panel.c set GROUPS, the eights of rows in a panel, and SIGNED_BYTES, what a weight takes of a type
 * that stays signed (avx2.h: is_signed), then include this, and after their tiles ymm_panel.h.
 *
 *   panel   w [block][k / 4: 8][ROWS][4] unsigned, as much too large as weight_offset says; types that stay signed: 16-bit pairs
 *           [block][16][ROWS][2], in the order of `put_signed`
 *           | s [block][ROWS] | m: minimums or second scales | m2: second minimums
 */
#ifndef PLP_KERNELS_X86_YMM_UNPACK_H
#define PLP_KERNELS_X86_YMM_UNPACK_H

#include "kernels/x86/avx2.h"

enum { ROWS = 8 * GROUPS, BLOCK_BYTES = 32 * ROWS };

typedef struct panel {
    uint8_t w[CHUNK_BLOCKS * BLOCK_BYTES * SIGNED_BYTES];
    float   s[CHUNK_BLOCKS][ROWS], m[CHUNK_BLOCKS][ROWS], m2[CHUNK_BLOCKS][ROWS];
} panel;

/* Each unpacks eight rows, to `row` onwards. */
INLINE void put_w(panel *o, uint32_t b, uint32_t c, uint32_t row, __m256i v)
{
    _mm256_store_si256((void *)(o->w + b * BLOCK_BYTES + (c * ROWS + row) * 4), v);
}

/* Columns 2i and 2i + 1 are pairs 4i .. 4i + 3: bytes 0 and 2 of each, then 1 and 3 of each. No shuffle makes those. */
INLINE void put_signed(panel *o, uint32_t b, uint32_t c, uint32_t row, __m256i v)
{
    uint8_t *to = o->w + b * BLOCK_BYTES * SIGNED_BYTES + ((c / 2 * 4 + c % 2) * ROWS + row) * 4;
    _mm256_store_si256((void *)to, even_bytes(v));
    _mm256_store_si256((void *)(to + 2 * ROWS * 4), odd_bytes(v));
}

INLINE void put_value(const int type, panel *o, uint32_t b, uint32_t c, uint32_t row, __m256i v)
{
    if (is_signed(type)) put_signed(o, b, c, row, v);
    else                 put_w(o, b, c, row, v);
}

static void unpack_Q8_0(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row)
{
    __m256i v[4];
    for (uint32_t b = 0; b < n_blocks; b++, p += 34) {
        for (uint32_t half = 0; half < 2; half++) {
            transpose_8x4(p + 2 + 16 * half, stride, v);
            UNROLL for (uint32_t c = 0; c < 4; c++) put_value(PLP_TYPE_Q8_0, o, b, 4 * half + c, row, stored_q8(v[c]));
        }
        _mm256_store_ps(o->s[b] + row, eight_halves(p, stride));
    }
}

/* Nibbles of 8 rows -> weights. Their fifth bits, if the type has any, are bits at..at + 3 of a row's dword. */
INLINE __m256i nibble_weights(const int type, __m256i q, __m256i fifth, const int at)
{
    if (is_looked_up(type)) return looked_up(type, q);
    if (!has_fifth_bits(type)) return q;
    const __m256i dword = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    const __m256i spread = _mm256_shuffle_epi8(fifth, _mm256_add_epi8(dword, _mm256_set1_epi8((char)(at / 8))));
    return _mm256_or_si256(q, value_where(spread, _mm256_set1_epi32((int)(0x08040201u << at % 8)), 16));
}

/* 32-blocks: a header that ends in the fifth bits, then 16 bytes with the first 16 weights in their low halves. */
INLINE void unpack_nibbles(const int type, const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row)
{
    const uint32_t bytes = bytes_per_8(type) / 8, head = bytes - 16;
    for (uint32_t b = 0; b < n_blocks; b++, p += bytes) {
        __m256i v[4], fifth = _mm256_setzero_si256();
        transpose_8x4(p + head, stride, v);
        if (has_fifth_bits(type)) {
            uint32_t h[8];
            UNROLL for (int i = 0; i < 8; i++) h[i] = load_u32(p + i * stride + head - 4);
            fifth = load_256(h);
        }
        UNROLL for (uint32_t c = 0; c < 4; c++) {
            put_value(type, o, b, c, row, nibble_weights(type, low4(v[c]), fifth, 4 * c));
            put_value(type, o, b, c + 4, row, nibble_weights(type, high4(v[c]), fifth, 16 + 4 * c));
        }
        if (type == PLP_TYPE_MXFP4) {
            uint8_t e[8];
            UNROLL for (int i = 0; i < 8; i++) e[i] = p[i * stride];
            _mm256_store_ps(o->s[b] + row, e8m0(e));
            continue;
        }
        if (plp_type_form(type) == PLP_FORM_MIN) {
            const pair sm = eight_pairs(p, stride);
            _mm256_store_ps(o->s[b] + row, sm.a);
            _mm256_store_ps(o->m[b] + row, sm.b);
        } else
            _mm256_store_ps(o->s[b] + row, eight_halves(p, stride));
    }
}

/* [row][block] of 8 rows and 8 blocks -> columns of blocks b .. b + 7. */
INLINE void put_columns(float (*to)[ROWS], uint32_t b, uint32_t row, float (*from)[8])
{
    __m256i v[4];
    for (uint32_t half = 0; half < 8; half += 4) {
        transpose_8x4(from[0] + half, sizeof from[0], v);
        UNROLL for (uint32_t i = 0; i < 4; i++) _mm256_store_ps(to[b + half + i] + row, _mm256_castsi256_ps(v[i]));
    }
}

/* Q5_K has fifth bits, of all eight blocks in a byte, before the nibbles. */
INLINE void unpack_q45_k(const int type, const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row)
{
    const bool five = type == PLP_TYPE_Q5_K;
    for (uint32_t b = 0; b < n_blocks; b += 8, p += bytes_per_8(type)) {
        __m256i v[4], h[2][4];
        float s[8][8], m[8][8];
        for (uint32_t i = 0; i < 8; i++) {                          /* one row's eight scales */
            const uint8_t *head = p + i * stride;
            uint64_t sc, min;
            plp_scales_q4_k(head + 4, &sc, &min);
            _mm256_storeu_ps(s[i], _mm256_mul_ps(splat(_cvtsh_ss(load_u16(head))), bytes_ps(&sc)));
            _mm256_storeu_ps(m[i], _mm256_mul_ps(splat(-_cvtsh_ss(load_u16(head + 2))), bytes_ps(&min)));
        }
        put_columns(o->s, b, row, s);
        put_columns(o->m, b, row, m);
        if (five) UNROLL for (uint32_t piece = 0; piece < 2; piece++) transpose_8x4(p + 16 + 16 * piece, stride, h[piece]);
        for (uint32_t j = 0; j < 8; j++) {                          /* 16 bytes: half of two blocks */
            const uint32_t to = j / 2 * 2, piece = j % 2;
            transpose_8x4(p + (five ? 48 : 16) + 16 * j, stride, v);
            UNROLL for (uint32_t c = 0; c < 4; c++) {
                __m256i low = low4(v[c]), high = high4(v[c]);
                if (five) {
                    low = _mm256_or_si256(low, value_where(h[piece][c], _mm256_set1_epi8((char)(1 << to)), 16));
                    high = _mm256_or_si256(high, value_where(h[piece][c], _mm256_set1_epi8((char)(2 << to)), 16));
                }
                put_w(o, b + to, piece * 4 + c, row, low);
                put_w(o, b + to + 1, piece * 4 + c, row, high);
            }
        }
    }
}

static void unpack_IQ4_XS(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row)
{
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 136) {
        __m256i v[4];
        float s[8][8];
        for (uint32_t i = 0; i < 8; i++) {
            const uint8_t *head = p + i * stride;
            const uint64_t sc = plp_scales_iq4_xs(head + 2);
            _mm256_storeu_ps(s[i], _mm256_mul_ps(splat(_cvtsh_ss(load_u16(head))), signed_bytes_ps(&sc)));
        }
        put_columns(o->s, b, row, s);
        for (uint32_t j = 0; j < 8; j++) {
            transpose_8x4(p + 8 + 16 * j, stride, v);
            UNROLL for (uint32_t c = 0; c < 4; c++) {
                put_value(PLP_TYPE_IQ4_XS, o, b + j, c, row, looked_up(PLP_TYPE_IQ4_XS, low4(v[c])));
                put_value(PLP_TYPE_IQ4_XS, o, b + j, c + 4, row, looked_up(PLP_TYPE_IQ4_XS, high4(v[c])));
            }
        }
    }
}

/* One row's scales, of which a block has two, to their places among those of eight rows. */
INLINE void put_two(float d, const void *sc, float first[8], float second[8])
{
    const pair v = two_scales(d, load_128(sc));
    _mm256_storeu_ps(first, v.a);
    _mm256_storeu_ps(second, v.b);
}

static void unpack_Q2_K(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row)
{
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 84) {
        uint32_t twice[16][8];                                      /* each row's scale, for words: bytes times it do not carry */
        __m256i v[4];
        for (uint32_t i = 0; i < 8; i++) {
            const uint8_t *at = p + i * stride;
            const float d = plp_half(load_u16(at + 80)), dmin = plp_half(load_u16(at + 82));
            for (uint32_t g = 0; g < 16; g++) {
                twice[g][i] = (at[g] & 15) * 0x10001u;
                (g % 2 ? o->m2 : o->m)[b + g / 2][row + i] = -(dmin * (float)(at[g] >> 4));
            }
            for (uint32_t j = 0; j < 8; j++) o->s[b + j][row + i] = d;
        }
        for (uint32_t j = 0; j < 4; j++) {                          /* 16 weights of each of four blocks */
            const uint32_t to = j / 2 * 4, piece = j % 2;
            transpose_8x4(p + 16 + 16 * j, stride, v);
            for (uint32_t i = 0; i < 4; i++)
                UNROLL for (uint32_t c = 0; c < 4; c++)
                    put_w(o, b + to + i, 4 * piece + c, row, _mm256_mullo_epi16(two_bits(v[c], 2 * i), load_256(twice[2 * (to + i) + piece])));
        }
    }
}

static void unpack_Q3_K(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row)
{
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 110) {
        __m256i v[4], h[2][4];
        float s[8][8], m[8][8];
        for (uint32_t i = 0; i < 8; i++) {
            uint64_t sc[2];
            plp_scales_q3_k(p + i * stride + 96, sc);
            put_two(_cvtsh_ss(load_u16(p + i * stride + 108)), sc, s[i], m[i]);
        }
        put_columns(o->s, b, row, s);
        put_columns(o->m, b, row, m);
        UNROLL for (uint32_t piece = 0; piece < 2; piece++) transpose_8x4(p + 16 * piece, stride, h[piece]);
        for (uint32_t j = 0; j < 4; j++) {                          /* 16 weights of each of four blocks */
            const uint32_t to = j / 2 * 4, piece = j % 2;
            transpose_8x4(p + 32 + 16 * j, stride, v);
            for (uint32_t i = 0; i < 4; i++)
                UNROLL for (uint32_t c = 0; c < 4; c++)
                    put_w(o, b + to + i, 4 * piece + c, row,
                          _mm256_or_si256(two_bits(v[c], 2 * i), value_where(h[piece][c], _mm256_set1_epi8((char)(1 << (to + i))), 4)));
        }
    }
}

/* Four low bits and two high ones -> 0..63. */
INLINE __m256i join6(__m256i low, __m256i high) { return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(0x30))); }

static void unpack_Q6_K(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row)
{
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 210) {
        float s[8][8], m[8][8];
        for (uint32_t i = 0; i < 8; i++) put_two(_cvtsh_ss(load_u16(p + i * stride + 208)), p + i * stride + 192, s[i], m[i]);
        put_columns(o->s, b, row, s);
        put_columns(o->m, b, row, m);
        for (uint32_t j = 0; j < 4; j++) {                          /* 16 weights of each of four blocks */
            const uint32_t half = j / 2, piece = j % 2;
            __m256i a[4], e[4], h[4];
            transpose_8x4(p + 64 * half + 16 * piece, stride, a);
            transpose_8x4(p + 64 * half + 32 + 16 * piece, stride, e);
            transpose_8x4(p + 128 + 32 * half + 16 * piece, stride, h);
            UNROLL for (uint32_t c = 0; c < 4; c++) {
                const uint32_t to = b + 4 * half, col = 4 * piece + c;
                put_w(o, to, col, row, join6(low4(a[c]), _mm256_slli_epi16(h[c], 4)));
                put_w(o, to + 1, col, row, join6(low4(e[c]), _mm256_slli_epi16(h[c], 2)));
                put_w(o, to + 2, col, row, join6(high4(a[c]), h[c]));
                put_w(o, to + 3, col, row, join6(high4(e[c]), _mm256_srli_epi16(h[c], 2)));
            }
        }
    }
}

#define UNPACK(type, by)                                                                                    \
    static void unpack_##type(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row)    \
    { by(PLP_TYPE_##type, p, stride, n_blocks, o, row); }
UNPACK(Q4_0, unpack_nibbles) UNPACK(Q4_1, unpack_nibbles) UNPACK(Q5_0, unpack_nibbles) UNPACK(Q5_1, unpack_nibbles)
UNPACK(IQ4_NL, unpack_nibbles) UNPACK(MXFP4, unpack_nibbles) UNPACK(Q4_K, unpack_q45_k) UNPACK(Q5_K, unpack_q45_k)

/* ---- what a tile does around its dots --------------------------------------------------------- */

/* Where sums come from (NULL: they start at 0) and go to; [token][ROWS]. */
typedef struct sums {
    const float *from;
    float       *to;
    size_t       ld;        /* between tokens of `to` */
    bool         add;
    uint32_t     n_rows;
} sums;

/* Four tokens, of which `tokens` exist. shift: weights are 128 >> shift too large, where they are. A step of `next` with each block. */
typedef void tile_fn(const panel *p, uint32_t n_blocks, const x_tile *x, uint32_t tokens, int shift, const sums *io, ahead *next);

/* A column of so many eights of rows. */
INLINE void load_column(const int groups, const uint8_t *w, const int c, __m256i wc[GROUPS])
{
    UNROLL for (int g = 0; g < groups; g++) {
        wc[g] = _mm256_load_si256((const void *)(w + (c * ROWS + 8 * g) * 4));
        KEEP(wc[g]);
    }
}

INLINE __m256i x_at(const x_tile *x, int c, int t) { return _mm256_set1_epi32((int)load_u32(x->q[c][t])); }

typedef struct tile_sums { _Alignas(32) float of[TILE_TOKENS][ROWS]; } tile_sums;

INLINE void take_sums(tile_sums *acc, const sums *io)
{
    if (io->from) memcpy(acc->of, io->from, sizeof acc->of);
    else          memset(acc->of, 0, sizeof acc->of);
}

INLINE void put_sums(const int groups, const tile_sums *acc, uint32_t tokens, const sums *io)
{
    for (uint32_t t = 0; t < tokens; t++)
        UNROLL for (uint32_t r = 0; r < 8 * groups; r += 8)
            put_8_rows(io->to + t * io->ld + r, _mm256_load_ps(acc->of[t] + r), io->n_rows - r, io->add);
}

/* What dots of weights that are too large begin with: -offset * sum(q), from the same of 128; [1]: of SUB's second half. */
typedef struct starts { int32_t of[2][TILE_TOKENS]; } starts;

INLINE starts starts_of(const int form, const x_tile *x, int shift)
{
    const __m128i xi = load_128(x->xi), x0 = load_128(x->x0), by = _mm_cvtsi32_si128(shift);
    starts o;
    _mm_storeu_si128((void *)o.of[0], _mm_sra_epi32(form == PLP_FORM_SUB ? x0 : xi, by));
    if (form == PLP_FORM_SUB) _mm_storeu_si128((void *)o.of[1], _mm_sra_epi32(_mm_sub_epi32(xi, x0), by));
    IN_MEMORY(o);
    return o;
}

/* What MN2's two minimums are multiplied with. */
typedef struct half_sums { float of[2][TILE_TOKENS]; } half_sums;

INLINE half_sums half_sums_of(const x_tile *x)
{
    const __m128i first = load_128(x->x0), second = _mm_sub_epi32(load_128(x->xi), first);
    const __m128 xs = _mm_loadu_ps(x->xs), by = _mm_set1_ps(-0x1p-7f);
    half_sums o;
    _mm_storeu_ps(o.of[0], _mm_mul_ps(xs, _mm_mul_ps(_mm_cvtepi32_ps(first), by)));
    _mm_storeu_ps(o.of[1], _mm_mul_ps(xs, _mm_mul_ps(_mm_cvtepi32_ps(second), by)));
    IN_MEMORY(o);
    return o;
}

/* Adds the term of eight rows, from `row` of block b on, and token t. start: starts_of, if weights are too large; it comes last,
 * as adding costs no multiplying port, and a register set from memory would hold up the dots. half: for MN2. */
INLINE void add_term(const int form, tile_sums *acc, const panel *p, uint32_t b, const int row, const x_tile *x, const int t,
                     const starts *start, const half_sums *half, __m256i dot, __m256i second)
{
    if (start) dot = _mm256_add_epi32(dot, _mm256_set1_epi32(start->of[0][t]));
    if (start && form == PLP_FORM_SUB) second = _mm256_add_epi32(second, _mm256_set1_epi32(start->of[1][t]));
    const __m256 xs = splat(x->xs[t]), s = _mm256_load_ps(p->s[b] + row), m = _mm256_load_ps(p->m[b] + row), d = _mm256_cvtepi32_ps(dot);
    float *to = acc->of[t] + row;
    __m256 term;
    if (form == PLP_FORM_SUB)
        term = _mm256_mul_ps(_mm256_fmadd_ps(m, _mm256_cvtepi32_ps(second), _mm256_mul_ps(s, d)), xs);
    else
        term = _mm256_mul_ps(_mm256_mul_ps(s, xs), d);
    if (form == PLP_FORM_MIN) term = _mm256_fmadd_ps(m, splat(x->xm[t]), term);
    if (form == PLP_FORM_MN2)
        term = _mm256_fmadd_ps(_mm256_load_ps(p->m2[b] + row), splat(half->of[1][t]), _mm256_fmadd_ps(m, splat(half->of[0][t]), term));
    _mm256_store_ps(to, _mm256_add_ps(_mm256_load_ps(to), term));
}

#endif
