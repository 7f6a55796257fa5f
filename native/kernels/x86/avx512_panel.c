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
#define SETS_OF(form) ((form) == PLP_FORM_SUB ? 2u : 3u)
#include "kernels/x86/avx512_unpack.h"

enum { SETS = 3, PANEL_ROWS = 16 * SETS, STAGE_BYTES = 16 * CHUNK_BLOCKS * 34 };

typedef struct panel {
    uint8_t w[CHUNK_BLOCKS][8][PANEL_ROWS * 4];
    float   s[CHUNK_BLOCKS * PANEL_ROWS], m[CHUNK_BLOCKS * PANEL_ROWS], m2[CHUNK_BLOCKS * PANEL_ROWS];
} panel;

/* The file bytes that are unpacked next, fetched into L2 in even steps meanwhile: all at once they would be waited for. */
typedef struct ahead {
    const uint8_t *row;
    size_t         stride;
    uint32_t       lines, line;     /* of a row, the next of this row */
    uint32_t       left, pace;      /* lines of all rows, a step's */
} ahead;

INLINE ahead ahead_of(const uint8_t *p, size_t stride, uint32_t n_rows, size_t row_bytes, uint32_t n_steps)
{
    const uint32_t lines = (uint32_t)(row_bytes / 64) + 2, all = n_rows * lines;
    return (ahead){ p, stride, lines, 0, all, (all + n_steps - 1) / n_steps };
}

INLINE void fetch_step(ahead *a)
{
    for (uint32_t i = a->pace; i > 0 && a->left > 0; i--, a->left--) {
        __builtin_prefetch(a->row + a->line * 64, 0, 2);
        if (++a->line == a->lines) a->line = 0, a->row += a->stride;
    }
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

INLINE void tile(const int form, const int sets, const int tokens, const panel *p, uint32_t n_blocks, const x_tile *x, const sums *io)
{
    __m512 acc[SETS][TILE_TOKENS];
    UNROLL for (int r = 0; r < sets; r++)
        UNROLL for (int t = 0; t < tokens; t++)
            acc[r][t] = io->from ? _mm512_loadu_ps(io->from + t * PANEL_ROWS + r * 16) : _mm512_setzero_ps();

    const uint8_t *w = p->w[0][0];
    const float *s = p->s, *m = p->m, *m2 = p->m2;
    const uint32_t apart = SETS_OF(form);
    for (uint32_t b = 0; b < n_blocks; b++, x++, w += 512 * apart, s += 16 * apart, m += 16 * apart, m2 += 16 * apart) {
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
                wc[r] = _mm512_load_si512(w + (c * apart + r) * 64);
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
    const uint32_t step = 16 * SETS_OF(f.form);
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
                const set o = { z->p.w[0][0] + s * 64, z->p.s + s * 16, z->p.m + s * 16, z->p.m2 + s * 16, 0 };
                if (left >= 16) f.unpack(p + s * 16 * stride, stride, len, o);
                else f.unpack(stage_rows(p + s * 16 * stride, stride, left, chunk_bytes, z->stage), chunk_bytes, len, o);
            }
            ahead next = last ? ahead_of(data + (size_t)(r + step) * stride, stride, step, chunk_bytes, n_tiles)
                              : ahead_of(p + chunk_bytes, stride, n_rows, chunk_bytes, n_tiles);

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
                fetch_step(&next);
                tile_for[f.form][sets - 1][tokens - 1](&z->p, len, (const x_tile *)x + tile_offset(n_tiles, b0, len, t), &io);
            }
        }
    }
}
