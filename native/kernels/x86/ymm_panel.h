/*
 * kernels/x86/ymm_panel.h - tiers "avx2" and "avxvnni": products of many tokens: rows unpacked into panels, which meet all of them
 *
 * avx2_panel.c and avxvnni_panel.c set GROUPS, the eights of rows in a panel, and SIGNED_BYTES, what a weight takes of a type
 * that stays signed (avx2.h: is_signed), include this and define the tiles:
 *   tile_fn *tile_of(type, groups)      for so many eights of rows, 1..GROUPS
 *
 *   panel   w [block][k / 4: 8][ROWS][4], or of types that stay signed 16-bit pairs [block][16][ROWS][2], in the order of put_w
 *           | s [block][ROWS] | m | m2
 *   work    panel | eight rows staged where a matrix ends | float sums between chunks [token][ROWS], whole tiles
 */
#ifndef PLP_KERNELS_X86_YMM_PANEL_H
#define PLP_KERNELS_X86_YMM_PANEL_H

#include "kernels/x86/avx2.h"

enum { ROWS = 8 * GROUPS, BLOCK_BYTES = 32 * ROWS };

typedef struct panel {
    uint8_t w[CHUNK_BLOCKS * BLOCK_BYTES * SIGNED_BYTES];
    float   s[CHUNK_BLOCKS][ROWS], m[CHUNK_BLOCKS][ROWS], m2[CHUNK_BLOCKS][ROWS];
} panel;

/* Eight rows of a panel, from `row` on. */
typedef struct sink { panel *to; uint32_t row; } sink;

/* Signed, columns 2i and 2i + 1 are pairs 4i .. 4i + 3: bytes 0 and 2 of each, then 1 and 3 of each. No shuffle makes those. */
INLINE void put_w(const int type, const sink *o, uint32_t b, const int i, const int c, __m256i v)
{
    uint8_t *block = o->to->w + (b + i) * BLOCK_BYTES * (is_signed(type) ? SIGNED_BYTES : 1) + o->row * 4;
    if (!is_signed(type)) {
        _mm256_store_si256((void *)(block + c * ROWS * 4), v);
        return;
    }
    _mm256_store_si256((void *)(block + (c / 2 * 4 + c % 2) * ROWS * 4), even_bytes(v));
    _mm256_store_si256((void *)(block + (c / 2 * 4 + c % 2 + 2) * ROWS * 4), odd_bytes(v));
}

INLINE void put_scales(const int type, const sink *o, uint32_t b, const int i, __m256 s, __m256 m, __m256 m2)
{
    const int form = plp_type_form(type);
    _mm256_store_ps(o->to->s[b + i] + o->row, s);
    if (form != PLP_FORM_SYM) _mm256_store_ps(o->to->m[b + i] + o->row, m);
    if (form == PLP_FORM_MN2) _mm256_store_ps(o->to->m2[b + i] + o->row, m2);
}

#include "kernels/x86/ymm_unpack.h"

/* The next rows' bytes, one run of the file, fetched in even steps: all at once they would be waited for. */
typedef struct ahead {
    const uint8_t *at;
    uint32_t       left, pace;      /* lines, a step's */
} ahead;

static ahead ahead_of(const uint8_t *at, size_t n_bytes, uint32_t n_steps)
{
    const uint32_t lines = (uint32_t)(n_bytes / 64);
    return (ahead){ at, lines, (lines + n_steps - 1) / n_steps };
}

INLINE void fetch_step(ahead *a)
{
    for (uint32_t i = a->pace; i > 0 && a->left > 0; i--, a->left--, a->at += 64) __builtin_prefetch(a->at, 0, 2);
}

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
static tile_fn *tile_of(int32_t type, uint32_t groups);

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
    float *to = acc->of[t] + row;
    const __m256 s = _mm256_load_ps(p->s[b] + row), m = _mm256_load_ps(p->m[b] + row), m2 = _mm256_load_ps(p->m2[b] + row);
    const __m256 none = _mm256_setzero_ps();
    const __m256 half0 = form == PLP_FORM_MN2 ? splat(half->of[0][t]) : none, half1 = form == PLP_FORM_MN2 ? splat(half->of[1][t]) : none;
    const __m256 d1 = form == PLP_FORM_SUB ? _mm256_cvtepi32_ps(second) : none;
    const __m256 term = term_of(form, s, m, m2, splat(x->xs[t]), splat(x->xm[t]), half0, half1, _mm256_cvtepi32_ps(dot), d1);
    _mm256_store_ps(to, _mm256_add_ps(_mm256_load_ps(to), term));
}

/* ---- panels over rows and chunks of k, each for all tokens ----------------------------------------- */

enum { STAGE_BYTES = 16 * CHUNK_BLOCKS * 34 };

typedef struct panel_work {
    panel   p;
    uint8_t stage[STAGE_BYTES];     /* a multiple of 64 */
    float   sums[];
} panel_work;

typedef void unpack_fn(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *to, uint32_t row);

#define UNPACK(NAME)                                                                                                             \
    static __attribute__((noinline)) void unpack_##NAME(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *to, uint32_t row) \
    {                                                                                                                            \
        sink o = { to, row };                                                                                                    \
        unpack(PLP_TYPE_##NAME, p, stride, n_blocks, &o);                                                                        \
    }
EACH_INTEGER_TYPE(UNPACK)

static unpack_fn *unpack_of(int32_t type)
{
#define UNPACK_OF(NAME) case PLP_TYPE_##NAME: return unpack_##NAME;
    switch (type) { default: EACH_INTEGER_TYPE(UNPACK_OF) }
#undef UNPACK_OF
}

size_t TIER(panel_work)(uint32_t n, uint32_t k)
{
    const size_t sums_bytes = sizeof(float) * ROWS * round_up(n, TILE_TOKENS);
    return sizeof(panel_work) + (chunk_blocks(k / 32) < k / 32 ? round_up(sums_bytes, 64) : 0);
}

void TIER(panel)(const plp_rows *rows, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy,
                 bool add, void *work)
{
    panel_work *z = work;
    unpack_fn *const unpack_8 = unpack_of(rows->type);
    const uint32_t n_blocks = rows->k / 32, chunk = chunk_blocks(n_blocks), n_tiles = round_up(n, TILE_TOKENS) / TILE_TOKENS;
    const uint32_t per_8 = bytes_per_8(rows->type);
    const int shift = weight_offset(rows->type) ? __builtin_ctz(128u / weight_offset(rows->type)) : 0;
    const size_t stride = rows->row_bytes;
    const uint8_t *data = rows->data;

    for (uint32_t r = r0; r < r1; r += ROWS) {
        const uint32_t n_rows = r1 - r < ROWS ? r1 - r : ROWS, groups = (n_rows + 7) / 8;
        tile_fn *const multiply = tile_of(rows->type, groups);
        ahead next = ahead_of(data + (size_t)(r + ROWS) * stride, ROWS * stride, n_tiles * n_blocks);
        for (uint32_t b0 = 0; b0 < n_blocks; b0 += chunk) {
            const uint32_t len = n_blocks - b0 < chunk ? n_blocks - b0 : chunk;
            const bool last = b0 + len == n_blocks;
            const size_t chunk_bytes = (size_t)len * per_8 / 8;
            const uint8_t *p = data + r * stride + (size_t)b0 * per_8 / 8;
            for (uint32_t g = 0; g < groups; g++) {
                const uint8_t *from = p + 8 * g * stride;
                if (n_rows - 8 * g >= 8) unpack_8(from, stride, len, &z->p, 8 * g);
                else unpack_8(stage_rows(from, stride, n_rows - 8 * g, chunk_bytes, z->stage), chunk_bytes, len, &z->p, 8 * g);
            }
            for (uint32_t t = 0; t < n_tiles; t++) {
                const uint32_t left = n - t * TILE_TOKENS;
                float *partial = z->sums + (size_t)t * TILE_TOKENS * ROWS;
                sums io = { b0 ? partial : NULL, partial, ROWS, false, 8 * groups };
                if (last) io = (sums){ io.from, y + (size_t)t * TILE_TOKENS * ldy + r, ldy, add, n_rows };
                multiply(&z->p, len, (const x_tile *)x + tile_offset(n_tiles, b0, len, t), left < TILE_TOKENS ? left : TILE_TOKENS, shift, &io, &next);
            }
        }
    }
}

#endif
