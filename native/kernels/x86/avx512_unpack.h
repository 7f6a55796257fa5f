/*
 * kernels/x86/avx512_unpack.h - tier "avx512": sixteen rows of a file, as panels and columns multiply them
 *
 * Per type one function that brings a run of blocks of 16 rows into a `set`: weights unsigned, w + 128, four of a row's in
 * each 32-bit lane; scales and minimums with a row a lane. Only avx512_panel.c and avx512_columns.c include this.
 *
 *   w [block][k / 4: 8][set][16 rows][4] | s [block][set][16] | m, m2 the same; SETS_OF(form) sets lie side by side,
 *   which whoever includes this defines before: a constant saves a multiplication at every store
 *   m minimums (MIN, MN2) or second scales (SUB); m2 second minimums (MN2)
 */
#ifndef PLP_KERNELS_X86_AVX512_UNPACK_H
#define PLP_KERNELS_X86_AVX512_UNPACK_H

#include "kernels/x86/avx512.h"

/* Where one set's registers go: column c of block b, and the block's scales. n_sets is filled in by format_of's functions. */
typedef struct set {
    uint8_t *w;
    float   *s, *m, *m2;
    uint32_t n_sets;
} set;

INLINE void put_w(set o, uint32_t b, uint32_t c, __m512i v)
{
    _mm512_store_si512(o.w + (size_t)(b * 8 + c) * o.n_sets * 64, v);
}
INLINE void put_s(set o, uint32_t b, __m512 v) { _mm512_store_ps(o.s + (size_t)b * o.n_sets * 16, v); }
INLINE void put_m(set o, uint32_t b, __m512 v) { _mm512_store_ps(o.m + (size_t)b * o.n_sets * 16, v); }
INLINE void put_m2(set o, uint32_t b, __m512 v) { _mm512_store_ps(o.m2 + (size_t)b * o.n_sets * 16, v); }

INLINE __m512i bytes_of(int v) { return _mm512_set1_epi8((char)v); }
INLINE __m512i join(__m512i a, __m512i b) { return _mm512_or_si512(a, b); }
INLINE __m512i low4(__m512i v)  { return _mm512_and_si512(v, bytes_of(15)); }
INLINE __m512i high4(__m512i v) { return low4(_mm512_srli_epi16(v, 4)); }
INLINE __m512i two_bits(__m512i v, uint32_t at) { return _mm512_and_si512(_mm512_srli_epi16(v, at), bytes_of(3)); }

/* v, with `value` more in the bytes where h has this bit. */
INLINE __m512i add_bit(__m512i v, __m512i h, uint32_t bit, int value)
{
    return _mm512_mask_add_epi8(v, _mm512_test_epi8_mask(h, bytes_of(1 << bit)), v, bytes_of(value));
}

/* Four bytes of each of 16 rows. Through an array they would wait for its stores. */
INLINE __m512i column_of_dwords(const uint8_t *p, size_t stride)
{
    __m128i v[4];
    UNROLL for (int i = 0; i < 4; i++, p += 4 * stride) {
        v[i] = _mm_cvtsi32_si128((int)load_u32(p));
        v[i] = _mm_insert_epi32(v[i], (int)load_u32(p + stride), 1);
        v[i] = _mm_insert_epi32(v[i], (int)load_u32(p + 2 * stride), 2);
        v[i] = _mm_insert_epi32(v[i], (int)load_u32(p + 3 * stride), 3);
    }
    const __m512i low = _mm512_inserti32x4(_mm512_castsi128_si512(v[0]), v[1], 1);
    return _mm512_inserti64x4(low, _mm256_set_m128i(v[3], v[2]), 1);
}

/* The half-precision numbers in a column's low and high words. */
INLINE __m512 low_halves(__m512i column)  { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(column)); }
INLINE __m512 high_halves(__m512i column) { return low_halves(_mm512_srli_epi32(column, 16)); }
/* Byte i of each lane. */
INLINE __m512 byte_ps(__m512i v, uint32_t i) { return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(v, 8 * i), _mm512_set1_epi32(255))); }
INLINE __m512 signed_bytes_ps(__m128i v) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v)); }

/* Eight bytes of each of 16 rows -> out[j]: byte j of rows 0..15. */
INLINE void transpose_16x8_bytes(const uint64_t row[16], __m128i out[8])
{
    const __m512i a = load_512(row), b = load_512(row + 8);
    const __m512i index = _mm512_set_epi64(
        0x7b736b635b534b43, 0x3b332b231b130b03, 0x7a726a625a524a42, 0x3a322a221a120a02,
        0x7971696159514941, 0x3931292119110901, 0x7870686058504840, 0x3830282018100800);
    const __m512i low = _mm512_permutex2var_epi8(a, index, b);
    const __m512i high = _mm512_permutex2var_epi8(a, _mm512_add_epi8(index, bytes_of(4)), b);
    out[0] = _mm512_castsi512_si128(low), out[1] = _mm512_extracti32x4_epi32(low, 1);
    out[2] = _mm512_extracti32x4_epi32(low, 2), out[3] = _mm512_extracti32x4_epi32(low, 3);
    out[4] = _mm512_castsi512_si128(high), out[5] = _mm512_extracti32x4_epi32(high, 1);
    out[6] = _mm512_extracti32x4_epi32(high, 2), out[7] = _mm512_extracti32x4_epi32(high, 3);
}

/* 16 rows of 64 bytes: in each lane of 128 bits, 4 x 4 dwords of a group of four rows, transposed. */
typedef struct rows_64 { __m512i t[4][4]; } rows_64;            /* [group][dword of a lane] */

INLINE rows_64 load_rows_64(const uint8_t *p, size_t stride)
{
    rows_64 o;
    UNROLL for (int g = 0; g < 4; g++, p += 4 * stride) {
        const __m512i r0 = load_512(p), r1 = load_512(p + stride), r2 = load_512(p + 2 * stride), r3 = load_512(p + 3 * stride);
        const __m512i a = _mm512_unpacklo_epi32(r0, r1), b = _mm512_unpacklo_epi32(r2, r3);
        const __m512i c = _mm512_unpackhi_epi32(r0, r1), d = _mm512_unpackhi_epi32(r2, r3);
        o.t[g][0] = _mm512_unpacklo_epi64(a, b);
        o.t[g][1] = _mm512_unpackhi_epi64(a, b);
        o.t[g][2] = _mm512_unpacklo_epi64(c, d);
        o.t[g][3] = _mm512_unpackhi_epi64(c, d);
    }
    return o;
}

/* out[i]: dword 4i + c of rows 0..15. */
INLINE void columns_64(const rows_64 *r, const int c, __m512i out[4])
{
    const __m512i a = _mm512_shuffle_i32x4(r->t[0][c], r->t[1][c], 0x88), b = _mm512_shuffle_i32x4(r->t[2][c], r->t[3][c], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(r->t[0][c], r->t[1][c], 0xdd), e = _mm512_shuffle_i32x4(r->t[2][c], r->t[3][c], 0xdd);
    out[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    out[1] = _mm512_shuffle_i32x4(d, e, 0x88);
    out[2] = _mm512_shuffle_i32x4(a, b, 0xdd);
    out[3] = _mm512_shuffle_i32x4(d, e, 0xdd);
}

INLINE void unpack_q8_0(const int type, const uint8_t *p, size_t stride, uint32_t n_blocks, set o)
{
    __m512i v[4];
    for (uint32_t b = 0; b < n_blocks; b++, p += 34) {
        for (uint32_t half = 0; half < 2; half++) {
            transpose_16x4(p + 2 + 16 * half, stride, v);
            UNROLL for (uint32_t c = 0; c < 4; c++) put_w(o, b, 4 * half + c, _mm512_xor_si512(v[c], bytes_of(0x80)));
        }
        put_s(o, b, low_halves(column_of_dwords(p, stride)));
    }
}

/* Nibbles of 16 rows -> weights. Their fifth bits, if the type has any, are bits at..at + 3 of a row's dword. */
INLINE __m512i nibble_weights(const int type, __m512i q, __m512i fifth, const int at)
{
    if (is_looked_up(type)) return looked_up(values_of(type), q);
    if (type == PLP_TYPE_Q4_0) return _mm512_add_epi8(q, bytes_of(128 - 8));
    if (type == PLP_TYPE_Q5_0) q = _mm512_add_epi8(q, bytes_of(128 - 16));
    if (!has_fifth_bits(type)) return q;
    const __m512i byte = _mm512_add_epi32(_mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0), bytes_of(at / 8));
    const __mmask64 set_ones = _mm512_test_epi8_mask(_mm512_shuffle_epi8(fifth, byte), _mm512_set1_epi32((int)(0x08040201u << at % 8)));
    return _mm512_mask_add_epi8(q, set_ones, q, bytes_of(16));
}

/* 32-blocks: a header that ends in the fifth bits, then 16 bytes with the first 16 weights in their low halves. */
INLINE void unpack_nibbles(const int type, const uint8_t *p, size_t stride, uint32_t n_blocks, set o)
{
    const uint32_t bytes = bytes_per_8(type) / 8, head = bytes - 16;
    __m512i v[4], fifth = _mm512_setzero_si512();
    for (uint32_t b = 0; b < n_blocks; b++, p += bytes) {
        transpose_16x4(p + head, stride, v);
        if (has_fifth_bits(type)) fifth = column_of_dwords(p + head - 4, stride);
        UNROLL for (uint32_t c = 0; c < 4; c++) {
            put_w(o, b, c, nibble_weights(type, low4(v[c]), fifth, 4 * c));
            put_w(o, b, c + 4, nibble_weights(type, high4(v[c]), fifth, 16 + 4 * c));
        }
        const __m512i header = column_of_dwords(p, stride);
        put_s(o, b, type == PLP_TYPE_MXFP4 ? e8m0(_mm512_cvtepi32_epi8(header)) : low_halves(header));
        if (plp_type_form(type) == PLP_FORM_MIN) put_m(o, b, high_halves(header));
    }
}

/* Q5_K has fifth bits, of all eight blocks in a byte, before the nibbles. */
INLINE void unpack_q45_k(const int type, const uint8_t *p, size_t stride, uint32_t n_blocks, set o)
{
    const bool five = type == PLP_TYPE_Q5_K;
    for (uint32_t b = 0; b < n_blocks; b += 8, p += bytes_per_8(type)) {
        __m512i v[4], h[2][4];
        transpose_16x4(p, stride, v);                               /* d and dmin, then the dwords a b c of 6-bit fields */
        const __m512 d = low_halves(v[0]), dmin = _mm512_xor_ps(high_halves(v[0]), splat(-0.0f));
        const __m512i six = bytes_of(0x3f), two = bytes_of(0x30);
        const __m512i sc[2] = { _mm512_and_si512(v[1], six), join(low4(v[3]), _mm512_and_si512(_mm512_srli_epi32(v[1], 2), two)) };
        const __m512i min[2] = { _mm512_and_si512(v[2], six), join(high4(v[3]), _mm512_and_si512(_mm512_srli_epi32(v[2], 2), two)) };
        UNROLL for (uint32_t j = 0; j < 8; j++) {
            put_s(o, b + j, _mm512_mul_ps(d, byte_ps(sc[j / 4], j % 4)));
            put_m(o, b + j, _mm512_mul_ps(dmin, byte_ps(min[j / 4], j % 4)));
        }
        if (five) UNROLL for (uint32_t piece = 0; piece < 2; piece++) transpose_16x4(p + 16 + 16 * piece, stride, h[piece]);
        UNROLL for (uint32_t half = 0; half < 2; half++) {          /* 16 bytes: half of two blocks */
            const rows_64 q = load_rows_64(p + (five ? 48 : 16) + 64 * half, stride);
            UNROLL for (uint32_t c = 0; c < 4; c++) {
                columns_64(&q, c, v);
                UNROLL for (uint32_t i = 0; i < 4; i++) {
                    const uint32_t to = 4 * half + i / 2 * 2, piece = i % 2;
                    const __m512i low = low4(v[i]), high = high4(v[i]);
                    put_w(o, b + to, piece * 4 + c, five ? add_bit(low, h[piece][c], to, 16) : low);
                    put_w(o, b + to + 1, piece * 4 + c, five ? add_bit(high, h[piece][c], to + 1, 16) : high);
                }
            }
        }
    }
}

INLINE void unpack_iq4_xs(const int type, const uint8_t *p, size_t stride, uint32_t n_blocks, set o)
{
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 136) {
        uint64_t sc[16];
        __m128i sc_of[8];
        __m512i v[4];
        for (uint32_t i = 0; i < 16; i++) sc[i] = plp_scales_iq4_xs(p + i * stride + 2);
        transpose_16x8_bytes(sc, sc_of);
        const __m512 d = low_halves(column_of_dwords(p, stride));
        UNROLL for (uint32_t half = 0; half < 2; half++) {
            const rows_64 q = load_rows_64(p + 8 + 64 * half, stride);
            UNROLL for (uint32_t c = 0; c < 4; c++) {
                columns_64(&q, c, v);
                UNROLL for (uint32_t i = 0; i < 4; i++) {
                    put_w(o, b + 4 * half + i, c, looked_up(plp_iq4_values, low4(v[i])));
                    put_w(o, b + 4 * half + i, c + 4, looked_up(plp_iq4_values, high4(v[i])));
                }
            }
        }
        UNROLL for (uint32_t j = 0; j < 8; j++) put_s(o, b + j, _mm512_mul_ps(d, signed_bytes_ps(sc_of[j])));
    }
}

/* d times each row's sixteen scales, of which a block has two. */
INLINE void put_scales(set o, uint32_t b, __m512 d, const uint64_t sc[2][16])
{
    for (uint32_t half = 0; half < 2; half++) {
        __m128i sc_of[8];
        transpose_16x8_bytes(sc[half], sc_of);
        UNROLL for (uint32_t j = 0; j < 8; j++) {
            const __m512 s = _mm512_mul_ps(d, signed_bytes_ps(sc_of[j]));
            if (j % 2) put_m(o, b + 4 * half + j / 2, s);
            else       put_s(o, b + 4 * half + j / 2, s);
        }
    }
}

INLINE void unpack_q2_k(const int type, const uint8_t *p, size_t stride, uint32_t n_blocks, set o)
{
    const __m512i low_bytes = _mm512_set1_epi32(15);
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 84) {
        uint64_t sc[2][16];
        __m128i sc_of[16];                                          /* scale and minimum, a nibble each */
        __m512i v[4];
        for (uint32_t i = 0; i < 16; i++) sc[0][i] = load_u64(p + i * stride), sc[1][i] = load_u64(p + i * stride + 8);
        transpose_16x8_bytes(sc[0], sc_of);
        transpose_16x8_bytes(sc[1], sc_of + 8);
        const __m512i header = column_of_dwords(p + 80, stride);
        const __m512 d = low_halves(header), dmin = _mm512_xor_ps(high_halves(header), splat(-0.0f));
        UNROLL for (uint32_t g = 0; g < 16; g++) {
            const __m512 m = _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(_mm512_srli_epi32(_mm512_cvtepu8_epi32(sc_of[g]), 4)));
            if (g % 2) put_m2(o, b + g / 2, m);
            else       put_m(o, b + g / 2, m), put_s(o, b + g / 2, d);
        }
        for (uint32_t j = 0; j < 4; j++) {                          /* 16 weights of each of four blocks */
            const uint32_t to = j / 2 * 4, piece = j % 2;
            transpose_16x4(p + 16 + 16 * j, stride, v);
            for (uint32_t i = 0; i < 4; i++) {
                const __m512i scale = _mm512_and_si512(_mm512_cvtepu8_epi32(sc_of[2 * (to + i) + piece]), low_bytes);
                const __m512i twice = _mm512_or_si512(scale, _mm512_slli_epi32(scale, 16));     /* bytes times it do not carry */
                UNROLL for (uint32_t c = 0; c < 4; c++)
                    put_w(o, b + to + i, 4 * piece + c, _mm512_mullo_epi16(two_bits(v[c], 2 * i), twice));
            }
        }
    }
}

INLINE void unpack_q3_k(const int type, const uint8_t *p, size_t stride, uint32_t n_blocks, set o)
{
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 110) {
        uint64_t sc[2][16];
        __m512i v[4], h[2][4];
        for (uint32_t i = 0; i < 16; i++) {
            uint64_t both[2];
            plp_scales_q3_k(p + i * stride + 96, both);
            sc[0][i] = both[0], sc[1][i] = both[1];
        }
        put_scales(o, b, high_halves(column_of_dwords(p + 106, stride)), sc);
        UNROLL for (uint32_t piece = 0; piece < 2; piece++) transpose_16x4(p + 16 * piece, stride, h[piece]);
        for (uint32_t j = 0; j < 4; j++) {                          /* 16 weights of each of four blocks */
            const uint32_t to = j / 2 * 4, piece = j % 2;
            transpose_16x4(p + 32 + 16 * j, stride, v);
            for (uint32_t i = 0; i < 4; i++)
                UNROLL for (uint32_t c = 0; c < 4; c++)
                    put_w(o, b + to + i, 4 * piece + c,
                          add_bit(_mm512_add_epi8(two_bits(v[c], 2 * i), bytes_of(128 - 4)), h[piece][c], to + i, 4));
        }
    }
}

/* Four low bits and two high ones -> 0..63, stored 96 larger: -32 for the format, +128 for the sum. */
INLINE __m512i join6(__m512i low, __m512i high)
{
    return _mm512_add_epi8(_mm512_or_si512(low, _mm512_and_si512(high, bytes_of(0x30))), bytes_of(96));
}

INLINE void unpack_q6_k(const int type, const uint8_t *p, size_t stride, uint32_t n_blocks, set o)
{
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 210) {
        uint64_t sc[2][16];
        for (uint32_t i = 0; i < 16; i++) sc[0][i] = load_u64(p + i * stride + 192), sc[1][i] = load_u64(p + i * stride + 200);
        put_scales(o, b, high_halves(column_of_dwords(p + 206, stride)), sc);
        for (uint32_t j = 0; j < 4; j++) {                          /* 16 weights of each of four blocks */
            const uint32_t half = j / 2, piece = j % 2;
            __m512i a[4], e[4], h[4];
            transpose_16x4(p + 64 * half + 16 * piece, stride, a);
            transpose_16x4(p + 64 * half + 32 + 16 * piece, stride, e);
            transpose_16x4(p + 128 + 32 * half + 16 * piece, stride, h);
            UNROLL for (uint32_t c = 0; c < 4; c++) {
                const uint32_t to = b + 4 * half, col = 4 * piece + c;
                put_w(o, to, col, join6(low4(a[c]), _mm512_slli_epi16(h[c], 4)));
                put_w(o, to + 1, col, join6(low4(e[c]), _mm512_slli_epi16(h[c], 2)));
                put_w(o, to + 2, col, join6(high4(a[c]), h[c]));
                put_w(o, to + 3, col, join6(high4(e[c]), _mm512_srli_epi16(h[c], 2)));
            }
        }
    }
}

#define UNPACK(type, by)                                                                        \
    static void unpack_##type(const uint8_t *p, size_t stride, uint32_t n_blocks, set o)         \
    {                                                                                            \
        o.n_sets = SETS_OF(plp_type_form(PLP_TYPE_##type));                                      \
        by(PLP_TYPE_##type, p, stride, n_blocks, o);                                             \
    }
UNPACK(Q4_0, unpack_nibbles) UNPACK(Q4_1, unpack_nibbles) UNPACK(Q5_0, unpack_nibbles) UNPACK(Q5_1, unpack_nibbles)
UNPACK(IQ4_NL, unpack_nibbles) UNPACK(MXFP4, unpack_nibbles) UNPACK(Q4_K, unpack_q45_k) UNPACK(Q5_K, unpack_q45_k)
UNPACK(Q8_0, unpack_q8_0) UNPACK(IQ4_XS, unpack_iq4_xs) UNPACK(Q2_K, unpack_q2_k) UNPACK(Q3_K, unpack_q3_k) UNPACK(Q6_K, unpack_q6_k)

typedef void unpack_fn(const uint8_t *p, size_t stride, uint32_t n_blocks, set o);

typedef struct format { unpack_fn *unpack; int form; uint32_t bytes_per_8; } format;

static format format_of(int32_t type)
{
#define FORMAT(NAME) case PLP_TYPE_##NAME: return (format){ unpack_##NAME, plp_type_form(type), bytes_per_8(PLP_TYPE_##NAME) };
    switch (type) { default: EACH_INTEGER_TYPE(FORMAT) }
#undef FORMAT
}

/* ---- what both multiply alike ---------------------------------------------------------------- */

/* The terms that MN2's two minimums are multiplied with. */
INLINE void half_sums(const x_tile *x, float xh[2][TILE_TOKENS])
{
    UNROLL for (int t = 0; t < TILE_TOKENS; t++) {
        xh[0][t] = x->xs[t] * ((float)x->x0[t] * -0x1p-7f);
        xh[1][t] = x->xs[t] * ((float)(x->xi[t] - x->x0[t]) * -0x1p-7f);
    }
}

#endif
