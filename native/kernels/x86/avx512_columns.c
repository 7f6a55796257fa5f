/*
 * kernels/x86/avx512_columns.c - tier "avx512": products of some tokens: sessions decoding together, guesses, short prompts
 *
 * More tokens than streams are good for, where each one meets a row's blocks anew; too few for panels of 48 rows, whose
 * reading jumps from row to row with little work between. Here sixteen rows, one register, are unpacked into L1, 256
 * weights of each at a time, and meet all tokens, whose activations are broadcast from their tiles as they are multiplied.
 * The next sixteen rows are one run of the file, and are fetched evenly meanwhile: in bursts, memory would idle between.
 *
 *   work   column | 16 rows staged where a matrix ends | f32 sums [token][16 rows]
 */
#define SETS_OF(form) 1u
#include "kernels/x86/avx512_unpack.h"

enum { ROWS = 16, GROUP = 2 * TILE_TOKENS, STRETCH = 8, STAGE_BYTES = ROWS * STRETCH * 34 };

typedef struct column {
    uint8_t w[STRETCH][8][ROWS * 4];
    float   s[STRETCH * ROWS], m[STRETCH * ROWS], m2[STRETCH * ROWS];
} column;

typedef struct column_work {
    column  p;
    uint8_t stage[STAGE_BYTES];     /* a multiple of 64 */
    float   sums[][ROWS];
} column_work;

/* What is fetched while a block is multiplied. */
typedef struct fetch {
    const uint8_t *from;
    uint32_t       block_bytes;
} fetch;

/* Sixteen rows of up to STRETCH blocks times up to two tiles of tokens; `apart` records lie between the tiles. */
INLINE void multiply(const int form, const int tokens, const column *p, uint32_t n_blocks, const x_tile *x, size_t apart, float (*sums)[ROWS],
                     const fetch *f)
{
    const uint8_t *next = f->from;
    __m512 acc[GROUP];
    UNROLL for (int t = 0; t < tokens; t++) acc[t] = _mm512_load_ps(sums[t]);

    const uint8_t *w = p->w[0][0];
    for (uint32_t b = 0; b < n_blocks; b++, x++, w += 8 * 64) {
        const x_tile *of[2] = { x, x + apart };
        for (uint32_t i = 0; i < f->block_bytes; i += 64) __builtin_prefetch(next + i, 0, 3);
        next += f->block_bytes;
        __m512i dot[GROUP];
        __m512 first[GROUP];
        float xh[2][2][TILE_TOKENS];
        UNROLL for (int t = 0; t < tokens; t++) {
            const x_tile *xt = of[t / TILE_TOKENS];
            const int i = t % TILE_TOKENS;
            dot[t] = form == PLP_FORM_SYM ? _mm512_set1_epi32(xt->xi[i]) : form == PLP_FORM_SUB ? _mm512_set1_epi32(xt->x0[i]) : _mm512_setzero_si512();
        }
        if (form == PLP_FORM_MN2)
            UNROLL for (int i = 0; i * TILE_TOKENS < tokens; i++) half_sums(of[i], xh[i]);
        const __m512 s = _mm512_load_ps(p->s + b * ROWS), m = form == PLP_FORM_SYM ? s : _mm512_load_ps(p->m + b * ROWS);
        UNROLL for (int c = 0; c < 8; c++) {
            if (form == PLP_FORM_SUB && c == 4)
                UNROLL for (int t = 0; t < tokens; t++) {
                    const x_tile *xt = of[t / TILE_TOKENS];
                    first[t] = _mm512_mul_ps(s, _mm512_cvtepi32_ps(dot[t]));
                    dot[t] = _mm512_set1_epi32(xt->xi[t % TILE_TOKENS] - xt->x0[t % TILE_TOKENS]);
                }
            const __m512i wc = _mm512_load_si512(w + c * 64);
            UNROLL for (int t = 0; t < tokens; t++)
                dot[t] = _mm512_dpbusd_epi32(dot[t], wc, _mm512_set1_epi32((int)load_u32(of[t / TILE_TOKENS]->q[c][t % TILE_TOKENS])));
        }
        UNROLL for (int t = 0; t < tokens; t++) {
            const x_tile *xt = of[t / TILE_TOKENS];
            const int i = t % TILE_TOKENS;
            const __m512 xs = splat(xt->xs[i]), d = _mm512_cvtepi32_ps(dot[t]);
            __m512 term;
            if (form == PLP_FORM_SUB) term = _mm512_mul_ps(_mm512_fmadd_ps(m, d, first[t]), xs);
            else                      term = _mm512_mul_ps(_mm512_mul_ps(s, xs), d);
            if (form == PLP_FORM_MIN) term = _mm512_fmadd_ps(m, splat(xt->xm[i]), term);
            if (form == PLP_FORM_MN2)
                term = _mm512_fmadd_ps(_mm512_load_ps(p->m2 + b * ROWS), splat(xh[t / TILE_TOKENS][1][i]),
                                       _mm512_fmadd_ps(m, splat(xh[t / TILE_TOKENS][0][i]), term));
            acc[t] = _mm512_add_ps(acc[t], term);
        }
    }
    UNROLL for (int t = 0; t < tokens; t++) _mm512_store_ps(sums[t], acc[t]);
}

typedef void multiply_fn(const column *p, uint32_t n_blocks, const x_tile *x, size_t apart, float (*sums)[ROWS], const fetch *f);
#define COLUMN(form, tokens)                                                                                               \
    static __attribute__((noinline)) void multiply_##form##_##tokens(const column *p, uint32_t n, const x_tile *x, size_t apart, \
                                                                     float (*sums)[ROWS], const fetch *f)                   \
    { multiply(PLP_FORM_##form, tokens, p, n, x, apart, sums, f); }
#define COLUMNS(form) COLUMN(form, 1) COLUMN(form, 2) COLUMN(form, 3) COLUMN(form, 4) COLUMN(form, 5) COLUMN(form, 6) COLUMN(form, 7) COLUMN(form, 8)
COLUMNS(SYM) COLUMNS(MIN) COLUMNS(SUB) COLUMNS(MN2)
#define EACH(form) { multiply_##form##_1, multiply_##form##_2, multiply_##form##_3, multiply_##form##_4, \
                     multiply_##form##_5, multiply_##form##_6, multiply_##form##_7, multiply_##form##_8 }
static multiply_fn *const multiply_for[][GROUP] = {
    [PLP_FORM_SYM] = EACH(SYM), [PLP_FORM_MIN] = EACH(MIN), [PLP_FORM_SUB] = EACH(SUB), [PLP_FORM_MN2] = EACH(MN2),
};

size_t plp_avx512_columns_work(uint32_t n) { return sizeof(column_work) + sizeof(float) * ROWS * n; }

void plp_avx512_columns(const plp_rows *rows, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy,
                        bool add, void *work)
{
    column_work *z = work;
    const format f = format_of(rows->type);
    const uint32_t n_blocks = rows->k / 32, chunk = chunk_blocks(n_blocks), n_tiles = round_up(n, TILE_TOKENS) / TILE_TOKENS;
    const size_t stride = rows->row_bytes;
    const set to = { .w = z->p.w[0][0], .s = z->p.s, .m = z->p.m, .m2 = z->p.m2 };

    for (uint32_t r = r0; r < r1; r += ROWS) {
        const uint8_t *p = (const uint8_t *)rows->data + r * stride, *next = p + ROWS * stride;
        const uint32_t n_rows = r1 - r < ROWS ? r1 - r : ROWS;
        memset(z->sums, 0, sizeof *z->sums * n);
        for (uint32_t b0 = 0; b0 < n_blocks; b0 += chunk) {                    /* as activations are packed */
            const uint32_t len = n_blocks - b0 < chunk ? n_blocks - b0 : chunk;
            const x_tile *tiles = (const x_tile *)x + tile_offset(n_tiles, b0, len, 0);
            for (uint32_t b = 0, part; b < len; b += part) {
                part = len - b < STRETCH ? len - b : STRETCH;
                const size_t bytes = (size_t)part * f.bytes_per_8 / 8;
                if (n_rows == ROWS) f.unpack(p, stride, part, to);
                else f.unpack(stage_rows(p, stride, n_rows, bytes, z->stage), bytes, part, to);
                fetch then = { next, ROWS * f.bytes_per_8 / 8 };
                for (uint32_t t = 0; t < n; t += GROUP) {
                    const uint32_t tokens = n - t < GROUP ? n - t : GROUP;
                    multiply_for[f.form][tokens - 1](&z->p, part, tiles + t / TILE_TOKENS * len + b, len, z->sums + t, &then);
                    then.block_bytes = 0;
                }
                p += bytes;
                next += ROWS * bytes;
            }
        }
        const __mmask16 mask = lanes_below(n_rows);
        for (uint32_t t = 0; t < n; t++) {
            float *at = y + t * ldy + r;
            const __m512 v = _mm512_load_ps(z->sums[t]);
            _mm512_mask_storeu_ps(at, mask, add ? _mm512_add_ps(_mm512_maskz_loadu_ps(mask, at), v) : v);
        }
    }
}
