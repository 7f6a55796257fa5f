/*
 * kernels/x86/avx2_panel.c - tier "avx2": products of many tokens (prefill)
 *
 * Sixteen rows are unpacked into a panel of bytes, up to 24 blocks long, that then meets all tokens, four at a
 * time. vpmaddubsw multiplies unsigned by signed bytes and adds pairs in 16 bits, saturating; that nothing
 * saturates, and how often sums must be widened, depends on the weights:
 *
 *   0..15   (Q4_0, Q4_1, Q4_K)   a whole block fits:  8 * 2 * 15 * 127 = 30480
 *   0..63   (Q6_K)               two steps fit:       2 * 2 * 63 * 127 = 32004
 *   -128..127 (Q8_0)             one step, as |w| times x with the sign of w: 2 * 128 * 127 = 32512
 *
 *   panel   w [block][k / 4: 8][16 rows][4] | s [block][16] | m [block][16]: minimums or second scales
 *   work    panel | float sums between chunks [token][16] | 16 rows staged where a matrix ends
 */
#include "kernels/x86/avx2.h"

enum { ROWS = 16, STAGE_BYTES = 16 * CHUNK_BLOCKS * 34 };

typedef struct panel {
    uint8_t w[CHUNK_BLOCKS][8][ROWS * 4];
    float   s[CHUNK_BLOCKS][ROWS], m[CHUNK_BLOCKS][ROWS];
} panel;

/* ---- file rows -> panel, eight rows (0 or 8 onwards) at a time ------------------------------ */

INLINE void put_w(panel *o, uint32_t b, uint32_t c, uint32_t row, __m256i v) { _mm256_store_si256((void *)(o->w[b][c] + 4 * row), v); }

INLINE __m256 column_of_halves(const uint8_t *p, size_t stride)
{
    uint16_t h[8];
    UNROLL for (int i = 0; i < 8; i++) h[i] = load_u16(p + i * stride);
    return halves(h);
}

static void unpack_q8_0(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row)
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

/* Q4_0 and Q4_1: a header of `head` bytes, then 16 bytes with the first 16 weights in their low halves. */
INLINE void unpack_nibbles(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row, const int head)
{
    __m256i v[4];
    for (uint32_t b = 0; b < n_blocks; b++, p += head + 16) {
        transpose_8x4(p + head, stride, v);
        UNROLL for (uint32_t c = 0; c < 4; c++) {
            put_w(o, b, c, row, low4(v[c]));
            put_w(o, b, c + 4, row, high4(v[c]));
        }
        _mm256_store_ps(o->s[b] + row, column_of_halves(p, stride));
        if (head == 4) _mm256_store_ps(o->m[b] + row, column_of_halves(p + 2, stride));
    }
}
static void unpack_q4_0(const uint8_t *p, size_t stride, uint32_t n, panel *o, uint32_t row) { unpack_nibbles(p, stride, n, o, row, 2); }
static void unpack_q4_1(const uint8_t *p, size_t stride, uint32_t n, panel *o, uint32_t row) { unpack_nibbles(p, stride, n, o, row, 4); }

static void unpack_q4_k(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row)
{
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 144) {
        __m256i v[4];
        for (uint32_t i = 0; i < 8; i++) {                          /* one row's eight scales */
            const uint8_t *head = p + i * stride;
            uint64_t sc, min;
            float s[8], m[8];
            q4_k_scales(head + 4, &sc, &min);
            _mm256_storeu_ps(s, _mm256_mul_ps(splat(plp_half(load_u16(head))), bytes_ps(&sc)));
            _mm256_storeu_ps(m, _mm256_mul_ps(splat(-plp_half(load_u16(head + 2))), bytes_ps(&min)));
            for (uint32_t j = 0; j < 8; j++) o->s[b + j][row + i] = s[j], o->m[b + j][row + i] = m[j];
        }
        for (uint32_t j = 0; j < 8; j++) {                          /* 16 bytes: half of two blocks */
            transpose_8x4(p + 16 + 16 * j, stride, v);
            UNROLL for (uint32_t c = 0; c < 4; c++) {
                put_w(o, b + j / 2 * 2, j % 2 * 4 + c, row, low4(v[c]));
                put_w(o, b + j / 2 * 2 + 1, j % 2 * 4 + c, row, high4(v[c]));
            }
        }
    }
}

/* Four low bits and two high ones -> 0..63. */
INLINE __m256i join6(__m256i low, __m256i high) { return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(0x30))); }

static void unpack_q6_k(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row)
{
    for (uint32_t b = 0; b < n_blocks; b += 8, p += 210) {
        for (uint32_t i = 0; i < 8; i++) {
            const uint8_t *at = p + i * stride;
            const __m256 d = splat(plp_half(load_u16(at + 208)));
            float s[16];
            _mm256_storeu_ps(s, _mm256_mul_ps(d, signed_bytes_ps(at + 192)));
            _mm256_storeu_ps(s + 8, _mm256_mul_ps(d, signed_bytes_ps(at + 200)));
            for (uint32_t j = 0; j < 8; j++) o->s[b + j][row + i] = s[2 * j], o->m[b + j][row + i] = s[2 * j + 1];
        }
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

/* Dots of eight rows of 0..63 with four tokens over columns c0..c0 + 4: two columns are added before they are widened. */
INLINE void six_bit_dots(const uint8_t *w, const x_tile *x, const int c0, __m256i dot[TILE_TOKENS])
{
    UNROLL for (int c = c0; c < c0 + 4; c += 2) {
        __m256i w0 = _mm256_load_si256((const void *)(w + c * ROWS * 4)), w1 = _mm256_load_si256((const void *)(w + (c + 1) * ROWS * 4));
        KEEP(w0);
        KEEP(w1);
        UNROLL for (int t = 0; t < TILE_TOKENS; t++) {
            const __m256i a = _mm256_maddubs_epi16(w0, x_at(x, c, t)), b = _mm256_maddubs_epi16(w1, x_at(x, c + 1, t));
            const __m256i sum = widen(_mm256_add_epi16(a, b));
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

/* -128 * sum(q), shifted to the weights' own offset, a broadcast away. */
typedef struct offsets { int32_t of[TILE_TOKENS]; } offsets;
INLINE offsets offsets_of(__m128i xi, const int shift)
{
    offsets o;
    _mm_storeu_si128((void *)o.of, _mm_srai_epi32(xi, shift));
    return o;
}

INLINE void add_to(float *acc, __m256 term) { _mm256_store_ps(acc, _mm256_add_ps(_mm256_load_ps(acc), term)); }

/* type: Q4_0, Q4_1 (Q4_K is the same), Q8_0, Q6_K. Four tokens of which `tokens` exist. */
INLINE void tile(const int type, const panel *p, uint32_t n_blocks, const x_tile *x, uint32_t tokens, const sums *io)
{
    _Alignas(32) float acc[TILE_TOKENS][ROWS];
    if (io->from) memcpy(acc, io->from, sizeof acc);
    else         memset(acc, 0, sizeof acc);

    for (uint32_t b = 0; b < n_blocks; b++, x++) {
        const uint8_t *w = p->w[b][0];
        const __m128i xi = load_128(x->xi), x0 = load_128(x->x0);
        __m256i dot[2][TILE_TOKENS], half[TILE_TOKENS];
        offsets all = { { 0 } }, first = { { 0 } };
        UNROLL for (int line = 0; line < 3; line++) __builtin_prefetch((const char *)x + 768 + 64 * line);
        if (type == PLP_TYPE_Q4_0) all = offsets_of(xi, 4);                                                  /* 8 */
        if (type == PLP_TYPE_Q6_K) first = offsets_of(x0, 2), all = offsets_of(_mm_sub_epi32(xi, x0), 2);    /* 32 */
        if (type == PLP_TYPE_Q4_0 || type == PLP_TYPE_Q4_1) nibble_dots(w, x, dot);
        UNROLL for (int r = 0; r < 2; r++) {
            const __m256 s = _mm256_load_ps(p->s[b] + 8 * r), m = _mm256_load_ps(p->m[b] + 8 * r);
            if (type == PLP_TYPE_Q6_K) {
                six_bit_dots(w + 32 * r, x, 0, half);
                six_bit_dots(w + 32 * r, x, 4, dot[r]);
            }
            if (type == PLP_TYPE_Q8_0) signed_dots(w + 32 * r, x, dot[r]);
            UNROLL for (int t = 0; t < TILE_TOKENS; t++) {
                __m256i d = dot[r][t];
                if (type == PLP_TYPE_Q4_0 || type == PLP_TYPE_Q6_K) d = _mm256_add_epi32(d, _mm256_set1_epi32(all.of[t]));
                const __m256 xs = splat(x->xs[t]), value = _mm256_cvtepi32_ps(d);
                __m256 term;
                if (type == PLP_TYPE_Q6_K) {
                    const __m256 d0 = _mm256_cvtepi32_ps(_mm256_add_epi32(half[t], _mm256_set1_epi32(first.of[t])));
                    term = _mm256_mul_ps(_mm256_fmadd_ps(m, value, _mm256_mul_ps(s, d0)), xs);
                } else {
                    term = _mm256_mul_ps(_mm256_mul_ps(s, xs), value);
                    if (type == PLP_TYPE_Q4_1) term = _mm256_fmadd_ps(m, splat(x->xm[t]), term);
                }
                add_to(acc[t] + 8 * r, term);
            }
        }
    }
    for (uint32_t t = 0; t < tokens; t++)
        put_rows(io->to + t * io->ld, (pair){ _mm256_load_ps(acc[t]), _mm256_load_ps(acc[t] + 8) }, io->n_rows, io->add);
}

typedef void tile_fn(const panel *p, uint32_t n_blocks, const x_tile *x, uint32_t tokens, const sums *io);
#define TILE(type)                                                                                                  \
    static __attribute__((noinline)) void tile_##type(const panel *p, uint32_t n, const x_tile *x, uint32_t tokens, const sums *io) \
    { tile(PLP_TYPE_##type, p, n, x, tokens, io); }
TILE(Q4_0) TILE(Q4_1) TILE(Q8_0) TILE(Q6_K)

typedef struct format {
    void   (*unpack)(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row);
    tile_fn *tile;
    uint32_t bytes_per_8;       /* bytes of 8 blocks */
} format;

static format format_of(int32_t type)
{
    switch (type) {
    case PLP_TYPE_Q4_0: return (format){ unpack_q4_0, tile_Q4_0, 8 * 18 };
    case PLP_TYPE_Q4_1: return (format){ unpack_q4_1, tile_Q4_1, 8 * 20 };
    case PLP_TYPE_Q8_0: return (format){ unpack_q8_0, tile_Q8_0, 8 * 34 };
    case PLP_TYPE_Q4_K: return (format){ unpack_q4_k, tile_Q4_1, 144 };
    default:            return (format){ unpack_q6_k, tile_Q6_K, 210 };
    }
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
