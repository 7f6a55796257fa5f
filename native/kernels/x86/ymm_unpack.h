/*
 * kernels/x86/ymm_unpack.h - eight rows of a file turned into columns, for the two tiers whose registers hold eight rows
 *
 * A column is a register: four weights of each row, unsigned, as much too large as weight_offset says, or signed (is_signed).
 * What becomes of it is up to whoever includes this: ymm_panel.h stores columns, ymm_columns.h multiplies them at once. Each
 * defines before, with i and c known at compile time,
 *
 *   sink                                     a struct
 *   put_w(type, o, b, i, c, v)               column c, weights 4c .. 4c + 3, of block b + i
 *   put_scales(type, o, b, i, s, m, m2)      that block's scales, a row a lane, after all of its columns; blocks come in order
 *                                            m minimums (MIN, MN2) or second scales (SUB); m2 second minimums (MN2)
 */
#ifndef PLP_KERNELS_X86_YMM_UNPACK_H
#define PLP_KERNELS_X86_YMM_UNPACK_H

#include "kernels/x86/avx2.h"

/* ---- numbers of eight rows ---------------------------------------------------------------------- */

/* Byte i of each dword. */
INLINE __m256 byte_of(__m256i v, const int i)
{
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(v, 8 * i), _mm256_set1_epi32(255)));
}
INLINE __m256 signed_byte_of(__m256i v, const int i) { return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * i), 24)); }
INLINE __m256i less_32(__m256i v) { return _mm256_sub_epi8(v, _mm256_set1_epi8(32)); }

/* Bits 4 and 5 of each byte, beside what is below. */
INLINE __m256i join6(__m256i low, __m256i high) { return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(0x30))); }

/* ---- blocks of 32 ------------------------------------------------------------------------------- */

INLINE void unpack_q8_0(const uint8_t *p, size_t stride, uint32_t n_blocks, sink *o)
{
    for (uint32_t b = 0; b < n_blocks; b++, p += 34) {
        __m256i v[4];
        UNROLL for (int half = 0; half < 2; half++) {
            transpose_8x4(p + 2 + 16 * half, stride, v);
            UNROLL for (int c = 0; c < 4; c++) put_w(PLP_TYPE_Q8_0, o, b, 0, 4 * half + c, stored_q8(v[c]));
        }
        const __m256 s = eight_halves(p, stride);
        put_scales(PLP_TYPE_Q8_0, o, b, 0, s, s, s);
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

/* A header that ends in the fifth bits, then 16 bytes with the first 16 weights in their low halves. */
INLINE void unpack_nibbles(const int type, const uint8_t *p, size_t stride, uint32_t n_blocks, sink *o)
{
    const uint32_t bytes = bytes_per_8(type) / 8, head = bytes - 16;
    for (uint32_t b = 0; b < n_blocks; b++, p += bytes) {
        __m256i v[4], fifth = _mm256_setzero_si256();
        transpose_8x4(p + head, stride, v);
        if (has_fifth_bits(type)) fifth = eight_dwords(p + head - 4, stride);
        UNROLL for (int c = 0; c < 4; c++) {
            put_w(type, o, b, 0, c, nibble_weights(type, low4(v[c]), fifth, 4 * c));
            put_w(type, o, b, 0, c + 4, nibble_weights(type, high4(v[c]), fifth, 16 + 4 * c));
        }
        pair sm;
        if (plp_type_form(type) == PLP_FORM_MIN) sm = eight_pairs(p, stride);
        else if (type == PLP_TYPE_MXFP4)         sm.a = sm.b = e8m0(eight_bytes(p, stride));
        else                                     sm.a = sm.b = eight_halves(p, stride);
        put_scales(type, o, b, 0, sm.a, sm.b, sm.b);
    }
}

/* ---- blocks of 256: eight of 32 ------------------------------------------------------------------ */

/* Q5_K has fifth bits, of all eight blocks in a byte, before the nibbles. */
INLINE void unpack_q45_k(const int type, const uint8_t *p, size_t stride, uint32_t n_blocks, sink *o)
{
    const bool five = type == PLP_TYPE_Q5_K;
    const __m256i six = _mm256_set1_epi8(63);
    for (uint32_t b = 0; b < n_blocks; b += 8, p += bytes_per_8(type)) {
        __m256i head[4], h[2][4], v[4];
        transpose_8x4(p, stride, head);
        const pair d = pairs_of(head[0]);
        const __m256i sc[2] = { _mm256_and_si256(head[1], six), join6(low4(head[3]), _mm256_srli_epi16(head[1], 2)) };
        const __m256i min[2] = { _mm256_and_si256(head[2], six), join6(high4(head[3]), _mm256_srli_epi16(head[2], 2)) };
        if (five) UNROLL for (int piece = 0; piece < 2; piece++) transpose_8x4(p + 16 + 16 * piece, stride, h[piece]);
        UNROLL for (int to = 0; to < 8; to += 2) {
            UNROLL for (int piece = 0; piece < 2; piece++) {            /* 16 bytes: half of two blocks */
                transpose_8x4(p + (five ? 48 : 16) + 16 * (to + piece), stride, v);
                UNROLL for (int c = 0; c < 4; c++) {
                    __m256i low = low4(v[c]), high = high4(v[c]);
                    if (five) {
                        low = _mm256_or_si256(low, value_of_bit(h[piece][c], to, 16));
                        high = _mm256_or_si256(high, value_of_bit(h[piece][c], to + 1, 16));
                    }
                    put_w(type, o, b, to, 4 * piece + c, low);
                    put_w(type, o, b, to + 1, 4 * piece + c, high);
                }
            }
            UNROLL for (int i = to; i < to + 2; i++) {
                const __m256 m = _mm256_mul_ps(negate(d.b), byte_of(min[i / 4], i % 4));
                put_scales(type, o, b, i, _mm256_mul_ps(d.a, byte_of(sc[i / 4], i % 4)), m, m);
            }
        }
    }
}

INLINE void unpack_iq4_xs(const uint8_t *p, size_t stride, uint32_t n_blocks, sink *o)
{
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 136) {
        __m256i head[4], v[4];                                          /* d | two high bits of each scale; eight low nibbles */
        transpose_8x4(p, stride, head);
        const __m256 d = pairs_of(head[0]).a;
        UNROLL for (int i = 0; i < 8; i++) {
            transpose_8x4(p + 8 + 16 * i, stride, v);
            UNROLL for (int c = 0; c < 4; c++) {
                put_w(PLP_TYPE_IQ4_XS, o, b, i, c, looked_up(PLP_TYPE_IQ4_XS, low4(v[c])));
                put_w(PLP_TYPE_IQ4_XS, o, b, i, c + 4, looked_up(PLP_TYPE_IQ4_XS, high4(v[c])));
            }
            const __m256i low = _mm256_and_si256(_mm256_srli_epi32(head[1], 4 * i), _mm256_set1_epi32(15));
            const __m256i high = _mm256_and_si256(_mm256_srli_epi32(head[0], 16 + 2 * i), _mm256_set1_epi32(3));
            const __m256i sc = _mm256_sub_epi32(_mm256_or_si256(low, _mm256_slli_epi32(high, 4)), _mm256_set1_epi32(32));
            const __m256 s = _mm256_mul_ps(d, _mm256_cvtepi32_ps(sc));
            put_scales(PLP_TYPE_IQ4_XS, o, b, i, s, s, s);
        }
    }
}

/* Scales of halves: bytes 2i and 2i + 1 of a row's sixteen, each times d, of blocks first .. first + 3. */
INLINE void put_signed_scales(const int type, sink *o, uint32_t b, const int first, __m256 d, const __m256i sc[4])
{
    UNROLL for (int i = first; i < first + 4; i++) {
        const __m256i v = sc[i / 2];
        const __m256 s = _mm256_mul_ps(d, signed_byte_of(v, 2 * i % 4)), second = _mm256_mul_ps(d, signed_byte_of(v, 2 * i % 4 + 1));
        put_scales(type, o, b, i, s, second, second);
    }
}

INLINE void unpack_q6_k(const uint8_t *p, size_t stride, uint32_t n_blocks, sink *o)
{
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 210) {
        __m256i sc[4], a[4], e[4], h[4];
        transpose_8x4(p + 192, stride, sc);
        const __m256 d = eight_halves(p + 208, stride);
        UNROLL for (int to = 0; to < 8; to += 4) {
            UNROLL for (int piece = 0; piece < 2; piece++) {            /* 16 weights of each of four blocks */
                transpose_8x4(p + 16 * to + 16 * piece, stride, a);
                transpose_8x4(p + 16 * to + 32 + 16 * piece, stride, e);
                transpose_8x4(p + 128 + 8 * to + 16 * piece, stride, h);
                UNROLL for (int c = 0; c < 4; c++) {
                    const int col = 4 * piece + c;
                    put_w(PLP_TYPE_Q6_K, o, b, to, col, join6(low4(a[c]), _mm256_slli_epi16(h[c], 4)));
                    put_w(PLP_TYPE_Q6_K, o, b, to + 1, col, join6(low4(e[c]), _mm256_slli_epi16(h[c], 2)));
                    put_w(PLP_TYPE_Q6_K, o, b, to + 2, col, join6(high4(a[c]), h[c]));
                    put_w(PLP_TYPE_Q6_K, o, b, to + 3, col, join6(high4(e[c]), _mm256_srli_epi16(h[c], 2)));
                }
            }
            put_signed_scales(PLP_TYPE_Q6_K, o, b, to, d, sc);
        }
    }
}

INLINE void unpack_q3_k(const uint8_t *p, size_t stride, uint32_t n_blocks, sink *o)
{
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 110) {
        __m256i head[4], h[2][4], v[4];                                 /* [0] is weights, of [3] two bits for each scale */
        transpose_8x4(p + 92, stride, head);
        const __m256 d = eight_halves(p + 108, stride);
        const __m256i sc[4] = { less_32(join6(low4(head[1]), _mm256_slli_epi16(head[3], 4))),
                                less_32(join6(low4(head[2]), _mm256_slli_epi16(head[3], 2))),
                                less_32(join6(high4(head[1]), head[3])),
                                less_32(join6(high4(head[2]), _mm256_srli_epi16(head[3], 2))) };
        UNROLL for (int piece = 0; piece < 2; piece++) transpose_8x4(p + 16 * piece, stride, h[piece]);
        UNROLL for (int to = 0; to < 8; to += 4) {
            UNROLL for (int piece = 0; piece < 2; piece++) {            /* 16 weights of each of four blocks */
                transpose_8x4(p + 32 + 8 * to + 16 * piece, stride, v);
                UNROLL for (int i = 0; i < 4; i++)
                    UNROLL for (int c = 0; c < 4; c++)
                        put_w(PLP_TYPE_Q3_K, o, b, to + i, 4 * piece + c,
                              _mm256_or_si256(two_bits(v[c], 2 * i), value_of_bit(h[piece][c], to + i, 4)));
            }
            put_signed_scales(PLP_TYPE_Q3_K, o, b, to, d, sc);
        }
    }
}

/* Weights are stored times their scale, which fits a byte; so is what a word's two bytes are multiplied with. */
INLINE void unpack_q2_k(const uint8_t *p, size_t stride, uint32_t n_blocks, sink *o)
{
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 84) {
        __m256i sc[4], v[4];
        transpose_8x4(p, stride, sc);
        const pair d = eight_pairs(p + 80, stride);
        UNROLL for (int to = 0; to < 8; to += 4) {
            UNROLL for (int piece = 0; piece < 2; piece++) {            /* 16 weights of each of four blocks */
                transpose_8x4(p + 16 + 8 * to + 16 * piece, stride, v);
                UNROLL for (int i = 0; i < 4; i++) {
                    const int g = 2 * (to + i) + piece;
                    const __m256i scale = _mm256_and_si256(_mm256_srli_epi32(sc[g / 4], 8 * (g % 4)), _mm256_set1_epi32(15));
                    const __m256i twice = _mm256_or_si256(scale, _mm256_slli_epi32(scale, 16));
                    UNROLL for (int c = 0; c < 4; c++)
                        put_w(PLP_TYPE_Q2_K, o, b, to + i, 4 * piece + c, _mm256_mullo_epi16(two_bits(v[c], 2 * i), twice));
                }
            }
            UNROLL for (int i = to; i < to + 4; i++) {
                const __m256i min = high4(sc[i / 2]);
                put_scales(PLP_TYPE_Q2_K, o, b, i, d.a, _mm256_mul_ps(negate(d.b), byte_of(min, 2 * i % 4)),
                           _mm256_mul_ps(negate(d.b), byte_of(min, 2 * i % 4 + 1)));
            }
        }
    }
}

INLINE void unpack(const int type, const uint8_t *p, size_t stride, uint32_t n_blocks, sink *o)
{
    switch (type) {
    case PLP_TYPE_Q2_K:   unpack_q2_k(p, stride, n_blocks, o); break;
    case PLP_TYPE_Q3_K:   unpack_q3_k(p, stride, n_blocks, o); break;
    case PLP_TYPE_Q4_K:
    case PLP_TYPE_Q5_K:   unpack_q45_k(type, p, stride, n_blocks, o); break;
    case PLP_TYPE_Q6_K:   unpack_q6_k(p, stride, n_blocks, o); break;
    case PLP_TYPE_Q8_0:   unpack_q8_0(p, stride, n_blocks, o); break;
    case PLP_TYPE_IQ4_XS: unpack_iq4_xs(p, stride, n_blocks, o); break;
    default:              unpack_nibbles(type, p, stride, n_blocks, o); break;
    }
}

#endif
