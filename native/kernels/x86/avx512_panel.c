/*
 * kernels/x86/avx512_panel.c - tier "avx512": products of many tokens (prefill)
 *
 * Rows are unpacked into a panel of int8, 48 rows by up to 24 blocks, that then meets all tokens in tiles of
 * 48 x 4: twelve integer sums, twelve float sums, three weight registers and one of activations fill the
 * register file. Q6_K, with a scale per 16, needs a third sum and takes 32 rows.
 *
 *   panel   w [block][k / 4: 8][set][16 rows][4] unsigned, w + 128 | s [block][set][16] | m, m2 the same
 *           a set is 16 rows, one register; m: minimums (MIN, MN2) or second scales (SUB); m2: second minimums (MN2)
 *   work    panel | float sums between chunks [tile][4][48] | 16 rows staged where a matrix ends
 *
 * vpdpbusd multiplies unsigned by signed, so every weight is stored 128 too large and the sum starts at
 * -128 * sum(q): exact. Sums that wait for the next chunk lie in `work`, because rows of y a power of two
 * apart would evict each other.
 */
#include "kernels/x86/avx512.h"

enum { SETS = 3, PANEL_ROWS = 16 * SETS, STAGE_BYTES = 16 * CHUNK_BLOCKS * 34 };

typedef struct panel {
    uint8_t w[CHUNK_BLOCKS][8][PANEL_ROWS * 4];
    float   s[CHUNK_BLOCKS * PANEL_ROWS], m[CHUNK_BLOCKS * PANEL_ROWS], m2[CHUNK_BLOCKS * PANEL_ROWS];
} panel;

/* ---- file rows -> one set of a panel ------------------------------------------------------- */

/* Where one set's registers go: column c of block b, and the block's scales. */
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
INLINE __m512 bytes_ps(__m128i v)        { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(v)); }
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

static void unpack_Q8_0(const uint8_t *p, size_t stride, uint32_t n_blocks, set o)
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
        uint64_t sc[16], min[16];
        __m128i sc_of[8], min_of[8];
        __m512i v[4], h[2][4];
        for (uint32_t i = 0; i < 16; i++) plp_scales_q4_k(p + i * stride + 4, &sc[i], &min[i]);
        transpose_16x8_bytes(sc, sc_of);
        transpose_16x8_bytes(min, min_of);
        const __m512i header = column_of_dwords(p, stride);
        const __m512 d = low_halves(header), dmin = _mm512_xor_ps(high_halves(header), splat(-0.0f));
        UNROLL for (uint32_t j = 0; j < 8; j++) {
            put_s(o, b + j, _mm512_mul_ps(d, bytes_ps(sc_of[j])));
            put_m(o, b + j, _mm512_mul_ps(dmin, bytes_ps(min_of[j])));
        }
        if (five) UNROLL for (uint32_t piece = 0; piece < 2; piece++) transpose_16x4(p + 16 + 16 * piece, stride, h[piece]);
        for (uint32_t j = 0; j < 8; j++) {                          /* 16 bytes: half of two blocks */
            const uint32_t to = j / 2 * 2, piece = j % 2;
            transpose_16x4(p + (five ? 48 : 16) + 16 * j, stride, v);
            UNROLL for (uint32_t c = 0; c < 4; c++) {
                const __m512i low = low4(v[c]), high = high4(v[c]);
                put_w(o, b + to, piece * 4 + c, five ? add_bit(low, h[piece][c], to, 16) : low);
                put_w(o, b + to + 1, piece * 4 + c, five ? add_bit(high, h[piece][c], to + 1, 16) : high);
            }
        }
    }
}

static void unpack_IQ4_XS(const uint8_t *p, size_t stride, uint32_t n_blocks, set o)
{
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 136) {
        uint64_t sc[16];
        __m128i sc_of[8];
        __m512i v[4];
        for (uint32_t i = 0; i < 16; i++) sc[i] = plp_scales_iq4_xs(p + i * stride + 2);
        transpose_16x8_bytes(sc, sc_of);
        const __m512 d = low_halves(column_of_dwords(p, stride));
        for (uint32_t j = 0; j < 8; j++) {
            transpose_16x4(p + 8 + 16 * j, stride, v);
            UNROLL for (uint32_t c = 0; c < 4; c++) {
                put_w(o, b + j, c, looked_up(plp_iq4_values, low4(v[c])));
                put_w(o, b + j, c + 4, looked_up(plp_iq4_values, high4(v[c])));
            }
            put_s(o, b + j, _mm512_mul_ps(d, signed_bytes_ps(sc_of[j])));
        }
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

static void unpack_Q2_K(const uint8_t *p, size_t stride, uint32_t n_blocks, set o)
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

static void unpack_Q3_K(const uint8_t *p, size_t stride, uint32_t n_blocks, set o)
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

static void unpack_Q6_K(const uint8_t *p, size_t stride, uint32_t n_blocks, set o)
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
    { by(PLP_TYPE_##type, p, stride, n_blocks, o); }
UNPACK(Q4_0, unpack_nibbles) UNPACK(Q4_1, unpack_nibbles) UNPACK(Q5_0, unpack_nibbles) UNPACK(Q5_1, unpack_nibbles)
UNPACK(IQ4_NL, unpack_nibbles) UNPACK(MXFP4, unpack_nibbles) UNPACK(Q4_K, unpack_q45_k) UNPACK(Q5_K, unpack_q45_k)

typedef void unpack_fn(const uint8_t *p, size_t stride, uint32_t n_blocks, set o);

typedef struct format { unpack_fn *unpack; int form; uint32_t bytes_per_8; } format;

static format format_of(int32_t type)
{
#define FORMAT(NAME) case PLP_TYPE_##NAME: return (format){ unpack_##NAME, plp_type_form(type), bytes_per_8(PLP_TYPE_##NAME) }
    switch (type) {
    FORMAT(Q4_0); FORMAT(Q4_1); FORMAT(Q5_0); FORMAT(Q5_1); FORMAT(Q8_0); FORMAT(IQ4_NL); FORMAT(MXFP4);
    FORMAT(Q2_K); FORMAT(Q3_K); FORMAT(Q4_K); FORMAT(Q5_K); FORMAT(IQ4_XS);
    default: FORMAT(Q6_K);
    }
#undef FORMAT
}

/* ---- a tile of products -------------------------------------------------------------------- */

/* Where a tile's sums come from (NULL: they start at 0) and go to; the last set may be cut off by `mask`. */
typedef struct sums {
    const float *from;      /* [token][PANEL_ROWS] */
    float       *to;
    size_t       ld;        /* between tokens of `to` */
    bool         add;
    __mmask16    mask;
} sums;

/* Without this gcc loads a weight register again for every token, and loads become the limit. */
#define KEEP(v) __asm__("" : "+v"(v))

/* The terms that MN2's two minimums are multiplied with. */
INLINE void half_sums(const x_tile *x, float xh[2][TILE_TOKENS])
{
    UNROLL for (int t = 0; t < TILE_TOKENS; t++) {
        xh[0][t] = x->xs[t] * ((float)x->x0[t] * -0x1p-7f);
        xh[1][t] = x->xs[t] * ((float)(x->xi[t] - x->x0[t]) * -0x1p-7f);
    }
}

INLINE void tile(const int form, const int sets, const int tokens, const panel *p, uint32_t n_blocks, const x_tile *x, const sums *io)
{
    __m512 acc[SETS][TILE_TOKENS];
    UNROLL for (int r = 0; r < sets; r++)
        UNROLL for (int t = 0; t < tokens; t++)
            acc[r][t] = io->from ? _mm512_loadu_ps(io->from + t * PANEL_ROWS + r * 16) : _mm512_setzero_ps();

    const uint8_t *w = p->w[0][0];
    const float *s = p->s, *m = p->m, *m2 = p->m2;
    for (uint32_t b = 0; b < n_blocks; b++, x++, w += 512 * sets, s += 16 * sets, m += 16 * sets, m2 += 16 * sets) {
        __m512i dot[SETS][TILE_TOKENS];
        __m512 first[SETS][TILE_TOKENS];
        float xh[2][TILE_TOKENS];
        UNROLL for (int line = 0; line < 3; line++) _mm_prefetch((const char *)x + 1024 + 64 * line, _MM_HINT_T0);
        UNROLL for (int t = 0; t < tokens; t++)
            UNROLL for (int r = 0; r < sets; r++)
                dot[r][t] = form == PLP_FORM_SYM || form == PLP_FORM_SUB ? _mm512_set1_epi32(form == PLP_FORM_SUB ? x->x0[t] : x->xi[t])
                                                                         : _mm512_setzero_si512();
        if (form == PLP_FORM_MN2) half_sums(x, xh);
        UNROLL for (int c = 0; c < 8; c++) {
            __m512i wc[SETS];
            if (form == PLP_FORM_SUB && c == 4)
                UNROLL for (int r = 0; r < sets; r++)
                    UNROLL for (int t = 0; t < tokens; t++) {
                        first[r][t] = _mm512_mul_ps(_mm512_load_ps(s + r * 16), _mm512_cvtepi32_ps(dot[r][t]));
                        dot[r][t] = _mm512_set1_epi32(x->xi[t] - x->x0[t]);
                    }
            UNROLL for (int r = 0; r < sets; r++) {
                wc[r] = _mm512_load_si512(w + (c * sets + r) * 64);
                KEEP(wc[r]);
            }
            UNROLL for (int t = 0; t < tokens; t++) {
                const __m512i q = _mm512_set1_epi32((int)load_u32(x->q[c][t]));
                UNROLL for (int r = 0; r < sets; r++) dot[r][t] = _mm512_dpbusd_epi32(dot[r][t], wc[r], q);
            }
        }
        UNROLL for (int r = 0; r < sets; r++) {
            const __m512 sr = _mm512_load_ps(s + r * 16), mr = form == PLP_FORM_SYM ? sr : _mm512_load_ps(m + r * 16);
            UNROLL for (int t = 0; t < tokens; t++) {
                const __m512 xs = splat(x->xs[t]), d = _mm512_cvtepi32_ps(dot[r][t]);
                __m512 term;
                if (form == PLP_FORM_SUB)
                    term = _mm512_mul_ps(_mm512_fmadd_ps(mr, d, first[r][t]), xs);
                else {
                    term = _mm512_mul_ps(_mm512_mul_ps(sr, xs), d);
                    if (form == PLP_FORM_MIN) term = _mm512_fmadd_ps(mr, splat(x->xm[t]), term);
                    if (form == PLP_FORM_MN2)
                        term = _mm512_fmadd_ps(_mm512_load_ps(m2 + r * 16), splat(xh[1][t]), _mm512_fmadd_ps(mr, splat(xh[0][t]), term));
                }
                acc[r][t] = _mm512_add_ps(acc[r][t], term);
            }
        }
    }
    UNROLL for (int r = 0; r < sets; r++)
        UNROLL for (int t = 0; t < tokens; t++) {
            const __mmask16 mask = r == sets - 1 ? io->mask : 0xffff;
            float *to = io->to + t * io->ld + r * 16;
            const __m512 v = io->add ? _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), acc[r][t]) : acc[r][t];
            _mm512_mask_storeu_ps(to, mask, v);
        }
}

typedef void tile_fn(const panel *p, uint32_t n_blocks, const x_tile *x, const sums *io);
#define TILE(form, sets, tokens)                                                                                   \
    static __attribute__((noinline)) void tile_##form##_##sets##x##tokens(const panel *p, uint32_t n, const x_tile *x, \
                                                                          const sums *io)                          \
    { tile(PLP_FORM_##form, sets, tokens, p, n, x, io); }
#define TILES(form, sets) TILE(form, sets, 1) TILE(form, sets, 2) TILE(form, sets, 3) TILE(form, sets, 4)
TILES(SYM, 1) TILES(SYM, 2) TILES(SYM, 3)
TILES(MIN, 1) TILES(MIN, 2) TILES(MIN, 3)
TILES(SUB, 1) TILES(SUB, 2)
TILES(MN2, 1) TILES(MN2, 2) TILES(MN2, 3)
#define ROW(form, sets) { tile_##form##_##sets##x1, tile_##form##_##sets##x2, tile_##form##_##sets##x3, tile_##form##_##sets##x4 }
static tile_fn *const tile_for[][SETS][TILE_TOKENS] = {
    [PLP_FORM_SYM] = { ROW(SYM, 1), ROW(SYM, 2), ROW(SYM, 3) },
    [PLP_FORM_MIN] = { ROW(MIN, 1), ROW(MIN, 2), ROW(MIN, 3) },
    [PLP_FORM_SUB] = { ROW(SUB, 1), ROW(SUB, 2) },
    [PLP_FORM_MN2] = { ROW(MN2, 1), ROW(MN2, 2), ROW(MN2, 3) },
};

/* ---- panels over rows and chunks ----------------------------------------------------------- */

typedef struct panel_work {
    panel   p;
    uint8_t stage[STAGE_BYTES];     /* a multiple of 64 */
    float   sums[];                 /* [tile][TILE_TOKENS][PANEL_ROWS] */
} panel_work;

size_t plp_avx512_panel_work(uint32_t n, uint32_t k)
{
    const size_t sums_bytes = sizeof(float) * PANEL_ROWS * round_up(n, TILE_TOKENS);
    return sizeof(panel_work) + (chunk_blocks(k / 32) < k / 32 ? sums_bytes : 0);
}

void plp_avx512_panel(const plp_rows *rows, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy,
                      bool add, void *work)
{
    panel_work *z = work;
    const format f = format_of(rows->type);
    const uint32_t n_blocks = rows->k / 32, chunk = chunk_blocks(n_blocks), n_tiles = round_up(n, TILE_TOKENS) / TILE_TOKENS;
    const uint32_t step = f.form == PLP_FORM_SUB ? 32 : PANEL_ROWS;
    const size_t stride = rows->row_bytes;
    const uint8_t *data = rows->data;

    for (uint32_t r = r0; r < r1; r += step) {
        const uint32_t n_rows = r1 - r < step ? r1 - r : step, sets = (n_rows + 15) / 16;
        for (uint32_t b0 = 0; b0 < n_blocks; b0 += chunk) {
            const uint32_t len = n_blocks - b0 < chunk ? n_blocks - b0 : chunk;
            const bool last = b0 + len == n_blocks;
            const uint8_t *p = data + r * stride + (size_t)b0 * f.bytes_per_8 / 8;
            const size_t chunk_bytes = (size_t)len * f.bytes_per_8 / 8;

            for (uint32_t s = 0; s < sets; s++) {
                const uint32_t left = n_rows - s * 16;
                const set o = { z->p.w[0][0] + s * 64, z->p.s + s * 16, z->p.m + s * 16, z->p.m2 + s * 16, sets };
                if (left >= 16) f.unpack(p + s * 16 * stride, stride, len, o);
                else f.unpack(stage_rows(p + s * 16 * stride, stride, left, chunk_bytes, z->stage), chunk_bytes, len, o);
            }
            ahead next = { p + chunk_bytes, stride, n_rows, (uint32_t)(chunk_bytes / 64) + 2, 0 };
            if (last) next.p = data + (size_t)(r + step) * stride, next.n_rows = step;

            for (uint32_t t = 0; t < n_tiles; t++) {
                const uint32_t tokens = n - t * TILE_TOKENS < TILE_TOKENS ? n - t * TILE_TOKENS : TILE_TOKENS;
                float *partial = z->sums + (size_t)t * TILE_TOKENS * PANEL_ROWS;
                sums io = { b0 ? partial : NULL, partial, PANEL_ROWS, false, 0xffff };
                if (last) {
                    io.to = y + (size_t)t * TILE_TOKENS * ldy + r;
                    io.ld = ldy;
                    io.add = add;
                    io.mask = lanes_below(n_rows - (sets - 1) * 16);
                }
                fetch_until(&next, (t + 1) * next.n_rows * next.lines / n_tiles);
                tile_for[f.form][sets - 1][tokens - 1](&z->p, len, (const x_tile *)x + tile_offset(n_tiles, b0, len, t), &io);
            }
        }
    }
}
