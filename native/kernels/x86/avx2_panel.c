/*
 * kernels/x86/avx2_panel.c - tier "avx2": products of many tokens (prefill)
 *
 * Sixteen rows are unpacked into a panel of bytes, up to 24 blocks long, that then meets all tokens, four at a
 * time. vpmaddubsw multiplies unsigned by signed bytes and adds pairs in 16 bits, saturating; that nothing
 * saturates, and how often sums must be widened, depends on the weights:
 *
 *   0..15     a whole block fits, 8 columns:   8 * 2 * 15 * 127 = 30480
 *   0..31     four columns fit:                 4 * 2 * 31 * 127 = 31496
 *   0..63     two columns fit:                  2 * 2 * 63 * 127 = 32004
 *   signed    one, as |w| times x with the sign of w: 2 * 128 * 127 = 32512
 *
 *   panel   w [block][k / 4: 8][16 rows][4] | s [block][16] | m [block][16]: minimums or second scales
 *           | m2 [block][16]: second minimums
 *   work    panel | float sums between chunks [token][16] | 16 rows staged where a matrix ends
 */
#include "kernels/x86/avx2.h"

enum { ROWS = 16, STAGE_BYTES = 16 * CHUNK_BLOCKS * 34 };

typedef struct panel {
    uint8_t w[CHUNK_BLOCKS][8][ROWS * 4];
    float   s[CHUNK_BLOCKS][ROWS], m[CHUNK_BLOCKS][ROWS], m2[CHUNK_BLOCKS][ROWS];
} panel;

/* ---- file rows -> panel, eight rows (0 or 8 onwards) at a time ------------------------------ */

INLINE void put_w(panel *o, uint32_t b, uint32_t c, uint32_t row, __m256i v) { _mm256_store_si256((void *)(o->w[b][c] + 4 * row), v); }

INLINE __m256 column_of_halves(const uint8_t *p, size_t stride)
{
    uint16_t h[8];
    UNROLL for (int i = 0; i < 8; i++) h[i] = load_u16(p + i * stride);
    return halves(h);
}

static void unpack_Q8_0(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row)
{
    __m256i v[4];
    for (uint32_t b = 0; b < n_blocks; b++, p += 34) {
        for (uint32_t half = 0; half < 2; half++) {
            transpose_8x4(p + 2 + 16 * half, stride, v);
            UNROLL for (uint32_t c = 0; c < 4; c++) put_w(o, b, 4 * half + c, row, v[c]);
        }
        _mm256_store_ps(o->s[b] + row, column_of_halves(p, stride));
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
            put_w(o, b, c, row, nibble_weights(type, low4(v[c]), fifth, 4 * c));
            put_w(o, b, c + 4, row, nibble_weights(type, high4(v[c]), fifth, 16 + 4 * c));
        }
        if (type == PLP_TYPE_MXFP4) {
            uint8_t e[8];
            UNROLL for (int i = 0; i < 8; i++) e[i] = p[i * stride];
            _mm256_store_ps(o->s[b] + row, e8m0(e));
            continue;
        }
        _mm256_store_ps(o->s[b] + row, column_of_halves(p, stride));
        if (plp_type_form(type) == PLP_FORM_MIN) _mm256_store_ps(o->m[b] + row, column_of_halves(p + 2, stride));
    }
}

/* Q5_K has fifth bits, of all eight blocks in a byte, before the nibbles. */
INLINE void unpack_q45_k(const int type, const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row)
{
    const bool five = type == PLP_TYPE_Q5_K;
    for (uint32_t b = 0; b < n_blocks; b += 8, p += bytes_per_8(type)) {
        __m256i v[4], h[2][4];
        for (uint32_t i = 0; i < 8; i++) {                          /* one row's eight scales */
            const uint8_t *head = p + i * stride;
            uint64_t sc, min;
            float s[8], m[8];
            plp_scales_q4_k(head + 4, &sc, &min);
            _mm256_storeu_ps(s, _mm256_mul_ps(splat(plp_half(load_u16(head))), bytes_ps(&sc)));
            _mm256_storeu_ps(m, _mm256_mul_ps(splat(-plp_half(load_u16(head + 2))), bytes_ps(&min)));
            for (uint32_t j = 0; j < 8; j++) o->s[b + j][row + i] = s[j], o->m[b + j][row + i] = m[j];
        }
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
        for (uint32_t i = 0; i < 8; i++) {
            const uint8_t *head = p + i * stride;
            const uint64_t sc = plp_scales_iq4_xs(head + 2);
            float s[8];
            _mm256_storeu_ps(s, _mm256_mul_ps(splat(plp_half(load_u16(head))), signed_bytes_ps(&sc)));
            for (uint32_t j = 0; j < 8; j++) o->s[b + j][row + i] = s[j];
        }
        for (uint32_t j = 0; j < 8; j++) {
            transpose_8x4(p + 8 + 16 * j, stride, v);
            UNROLL for (uint32_t c = 0; c < 4; c++) {
                put_w(o, b + j, c, row, looked_up(PLP_TYPE_IQ4_XS, low4(v[c])));
                put_w(o, b + j, c + 4, row, looked_up(PLP_TYPE_IQ4_XS, high4(v[c])));
            }
        }
    }
}

/* d times one row's sixteen scales, of which a block has two. */
INLINE void put_scales(panel *o, uint32_t b, uint32_t row, float d, const void *sc)
{
    float s[16];
    _mm256_storeu_ps(s, _mm256_mul_ps(splat(d), signed_bytes_ps(sc)));
    _mm256_storeu_ps(s + 8, _mm256_mul_ps(splat(d), signed_bytes_ps((const uint8_t *)sc + 8)));
    for (uint32_t j = 0; j < 8; j++) o->s[b + j][row] = s[2 * j], o->m[b + j][row] = s[2 * j + 1];
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
        for (uint32_t i = 0; i < 8; i++) {
            uint64_t sc[2];
            plp_scales_q3_k(p + i * stride + 96, sc);
            put_scales(o, b, row + i, plp_half(load_u16(p + i * stride + 108)), sc);
        }
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
        for (uint32_t i = 0; i < 8; i++)
            put_scales(o, b, row + i, plp_half(load_u16(p + i * stride + 208)), p + i * stride + 192);
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

/* ---- a tile of products -------------------------------------------------------------------- */

typedef struct sums {
    const float *from;      /* [token][ROWS], or NULL: they start at 0 */
    float       *to;
    size_t       ld;        /* between tokens of `to` */
    bool         add;
    uint32_t     n_rows;
} sums;

INLINE __m256i x_at(const x_tile *x, int c, int t) { return _mm256_set1_epi32((int)load_u32(x->q[c][t])); }
INLINE __m256i widen(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }
/* Keeps a weight register from being loaded once per token, and the sums in order: gcc would turn the chains of
 * integer additions into trees, for which it has not the registers. */
#define KEEP(v) __asm__("" : "+x"(v))

/* Dots of eight rows with four tokens over columns c0..c1, of which `n` are added before they are widened. */
INLINE void wide_dots(const int n, const uint8_t *w, const x_tile *x, const int c0, const int c1, __m256i dot[TILE_TOKENS])
{
    UNROLL for (int c = c0; c < c1; c += n) {
        __m256i wc[4];
        UNROLL for (int i = 0; i < n; i++) {
            wc[i] = _mm256_load_si256((const void *)(w + (c + i) * ROWS * 4));
            KEEP(wc[i]);
        }
        UNROLL for (int t = 0; t < TILE_TOKENS; t++) {
            __m256i v = _mm256_maddubs_epi16(wc[0], x_at(x, c, t));
            UNROLL for (int i = 1; i < n; i++) v = _mm256_add_epi16(v, _mm256_maddubs_epi16(wc[i], x_at(x, c + i, t)));
            const __m256i sum = widen(v);
            dot[t] = c == c0 ? sum : _mm256_add_epi32(dot[t], sum);
            KEEP(dot[t]);
        }
    }
}

/* Dots of eight rows of signed bytes with four tokens. */
INLINE void signed_dots(const uint8_t *w, const x_tile *x, __m256i dot[TILE_TOKENS])
{
    UNROLL for (int c = 0; c < 8; c++) {
        __m256i wc = _mm256_load_si256((const void *)(w + c * ROWS * 4));
        KEEP(wc);
        const __m256i size = _mm256_abs_epi8(wc);
        UNROLL for (int t = 0; t < TILE_TOKENS; t++) {
            const __m256i sum = widen(_mm256_maddubs_epi16(size, _mm256_sign_epi8(x_at(x, c, t), wc)));
            dot[t] = c == 0 ? sum : _mm256_add_epi32(dot[t], sum);
            KEEP(dot[t]);
        }
    }
}

/* Dots of sixteen rows of nibbles with four tokens. */
INLINE void nibble_dots(const uint8_t *w, const x_tile *x, __m256i dot[2][TILE_TOKENS])
{
    __m256i sum[2][TILE_TOKENS];
    UNROLL for (int c = 0; c < 8; c++) {
        __m256i wc[2];
        UNROLL for (int r = 0; r < 2; r++) {
            wc[r] = _mm256_load_si256((const void *)(w + c * ROWS * 4 + 32 * r));
            KEEP(wc[r]);
        }
        UNROLL for (int t = 0; t < TILE_TOKENS; t++) {
            const __m256i q = x_at(x, c, t);
            UNROLL for (int r = 0; r < 2; r++) {
                const __m256i v = _mm256_maddubs_epi16(wc[r], q);
                sum[r][t] = c == 0 ? v : _mm256_add_epi16(sum[r][t], v);
                KEEP(sum[r][t]);
            }
        }
    }
    UNROLL for (int r = 0; r < 2; r++)
        UNROLL for (int t = 0; t < TILE_TOKENS; t++) dot[r][t] = widen(sum[r][t]);
}

/* -offset * sum(q), from the same of 128; a broadcast away. */
typedef struct offsets { int32_t of[TILE_TOKENS]; } offsets;
INLINE offsets offsets_of(__m128i xi, const int offset)
{
    offsets o;
    _mm_storeu_si128((void *)o.of, _mm_srai_epi32(xi, __builtin_ctz(128u / offset)));
    return o;
}

INLINE void add_to(float *acc, __m256 term) { _mm256_store_ps(acc, _mm256_add_ps(_mm256_load_ps(acc), term)); }

/* n: columns that fit in 16 bits; 1: signed bytes. Four tokens of which `tokens` exist. */
INLINE void tile(const int form, const int n, const int offset, const panel *p, uint32_t n_blocks, const x_tile *x, uint32_t tokens, const sums *io)
{
    _Alignas(32) float acc[TILE_TOKENS][ROWS];
    if (io->from) memcpy(acc, io->from, sizeof acc);
    else         memset(acc, 0, sizeof acc);

    for (uint32_t b = 0; b < n_blocks; b++, x++) {
        const uint8_t *w = p->w[b][0];
        const __m128i xi = load_128(x->xi), x0 = load_128(x->x0);
        __m256i dot[2][TILE_TOKENS], half[TILE_TOKENS];
        offsets all = { { 0 } }, first = { { 0 } };
        float xh[2][TILE_TOKENS];
        UNROLL for (int line = 0; line < 3; line++) __builtin_prefetch((const char *)x + 768 + 64 * line);
        if (form == PLP_FORM_SUB) first = offsets_of(x0, offset), all = offsets_of(_mm_sub_epi32(xi, x0), offset);
        else if (offset) all = offsets_of(xi, offset);
        if (form == PLP_FORM_MN2) half_sums(x, xh);
        if (n == 8) nibble_dots(w, x, dot);
        UNROLL for (int r = 0; r < 2; r++) {
            const __m256 s = _mm256_load_ps(p->s[b] + 8 * r), m = _mm256_load_ps(p->m[b] + 8 * r);
            if (form == PLP_FORM_SUB) {
                wide_dots(n, w + 32 * r, x, 0, 4, half);
                wide_dots(n, w + 32 * r, x, 4, 8, dot[r]);
            } else if (n == 1) {
                signed_dots(w + 32 * r, x, dot[r]);
            } else if (n < 8) {
                wide_dots(n, w + 32 * r, x, 0, 8, dot[r]);
            }
            UNROLL for (int t = 0; t < TILE_TOKENS; t++) {
                __m256i d = dot[r][t];
                if (offset) d = _mm256_add_epi32(d, _mm256_set1_epi32(all.of[t]));
                const __m256 xs = splat(x->xs[t]), value = _mm256_cvtepi32_ps(d);
                __m256 term;
                if (form == PLP_FORM_SUB) {
                    const __m256 d0 = _mm256_cvtepi32_ps(_mm256_add_epi32(half[t], _mm256_set1_epi32(first.of[t])));
                    term = _mm256_mul_ps(_mm256_fmadd_ps(m, value, _mm256_mul_ps(s, d0)), xs);
                } else {
                    term = _mm256_mul_ps(_mm256_mul_ps(s, xs), value);
                    if (form == PLP_FORM_MIN) term = _mm256_fmadd_ps(m, splat(x->xm[t]), term);
                    if (form == PLP_FORM_MN2)
                        term = _mm256_fmadd_ps(_mm256_load_ps(p->m2[b] + 8 * r), splat(xh[1][t]), _mm256_fmadd_ps(m, splat(xh[0][t]), term));
                }
                add_to(acc[t] + 8 * r, term);
            }
        }
    }
    for (uint32_t t = 0; t < tokens; t++)
        put_rows(io->to + t * io->ld, (pair){ _mm256_load_ps(acc[t]), _mm256_load_ps(acc[t] + 8) }, io->n_rows, io->add);
}

typedef void tile_fn(const panel *p, uint32_t n_blocks, const x_tile *x, uint32_t tokens, const sums *io);
#define TILE(form, n, offset)                                                                                        \
    static __attribute__((noinline)) void tile_##form##_##n##_##offset(const panel *p, uint32_t n_blocks, const x_tile *x, \
                                                                       uint32_t tokens, const sums *io)                     \
    { tile(PLP_FORM_##form, n, offset, p, n_blocks, x, tokens, io); }
TILE(SYM, 8, 8) TILE(MIN, 8, 0) TILE(SYM, 4, 16) TILE(MIN, 4, 0) TILE(SYM, 1, 0) TILE(SUB, 4, 4) TILE(SUB, 2, 32) TILE(MN2, 2, 0)

typedef struct format {
    void   (*unpack)(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row);
    tile_fn *tile;
    uint32_t bytes_per_8;
} format;

static format format_of(int32_t type)
{
#define FORMAT(NAME, tile) case PLP_TYPE_##NAME: return (format){ unpack_##NAME, tile, bytes_per_8(PLP_TYPE_##NAME) }
    switch (type) {
    FORMAT(Q4_0, tile_SYM_8_8);
    FORMAT(Q4_1, tile_MIN_8_0);
    FORMAT(Q5_0, tile_SYM_4_16);
    FORMAT(Q5_1, tile_MIN_4_0);
    FORMAT(Q8_0, tile_SYM_1_0);
    FORMAT(IQ4_NL, tile_SYM_1_0);
    FORMAT(MXFP4, tile_SYM_4_16);
    FORMAT(Q2_K, tile_MN2_2_0);
    FORMAT(Q3_K, tile_SUB_4_4);
    FORMAT(Q4_K, tile_MIN_8_0);
    FORMAT(Q5_K, tile_MIN_4_0);
    FORMAT(IQ4_XS, tile_SYM_1_0);
    default: FORMAT(Q6_K, tile_SUB_2_32);
    }
#undef FORMAT
}

/* ---- panels over rows and chunks ----------------------------------------------------------- */

typedef struct panel_work {
    panel   p;
    uint8_t stage[STAGE_BYTES];     /* a multiple of 64 */
    float   sums[];                 /* [token][ROWS], whole tiles */
} panel_work;

size_t plp_avx2_panel_work(uint32_t n, uint32_t k)
{
    const size_t sums_bytes = sizeof(float) * ROWS * round_up(n, TILE_TOKENS);
    return sizeof(panel_work) + (chunk_blocks(k / 32) < k / 32 ? sums_bytes : 0);
}

void plp_avx2_panel(const plp_rows *rows, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy,
                    bool add, void *work)
{
    panel_work *z = work;
    const format f = format_of(rows->type);
    const uint32_t n_blocks = rows->k / 32, chunk = chunk_blocks(n_blocks), n_tiles = round_up(n, TILE_TOKENS) / TILE_TOKENS;
    const uint8_t *data = rows->data;

    for (uint32_t r = r0; r < r1; r += ROWS) {
        const uint32_t n_rows = r1 - r < ROWS ? r1 - r : ROWS;
        for (uint32_t b0 = 0; b0 < n_blocks; b0 += chunk) {
            const uint32_t len = n_blocks - b0 < chunk ? n_blocks - b0 : chunk;
            const bool last = b0 + len == n_blocks;
            const size_t chunk_bytes = (size_t)len * f.bytes_per_8 / 8;
            const uint8_t *p = data + r * rows->row_bytes + (size_t)b0 * f.bytes_per_8 / 8;
            size_t stride = rows->row_bytes;
            ahead next = { p + chunk_bytes, stride, n_rows, (uint32_t)(chunk_bytes / 64) + 2, 0 };
            if (last) next.p = data + (size_t)(r + ROWS) * stride, next.n_rows = ROWS;

            if (n_rows < ROWS) {
                p = stage_rows(p, stride, n_rows, chunk_bytes, z->stage);
                stride = chunk_bytes;
            }
            f.unpack(p, stride, len, &z->p, 0);
            f.unpack(p + 8 * stride, stride, len, &z->p, 8);
            for (uint32_t t = 0; t < n_tiles; t++) {
                float *partial = z->sums + (size_t)t * TILE_TOKENS * ROWS;
                sums io = { b0 ? partial : NULL, partial, ROWS, false, ROWS };
                if (last) io = (sums){ io.from, y + (size_t)t * TILE_TOKENS * ldy + r, ldy, add, n_rows };
                const uint32_t left = n - t * TILE_TOKENS;
                fetch_until(&next, (t + 1) * next.n_rows * next.lines / n_tiles);
                f.tile(&z->p, len, (const x_tile *)x + tile_offset(n_tiles, b0, len, t), left < TILE_TOKENS ? left : TILE_TOKENS, &io);
            }
        }
    }
}
