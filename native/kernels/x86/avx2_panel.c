/*
 * kernels/x86/avx2_panel.c - tier "avx2": products of many tokens (prefill)
 *
 * Sixteen rows are unpacked into a panel, up to 24 blocks long (ymm_unpack.h), that then meets all tokens, four at a time.
 * vpmaddubsw multiplies unsigned by signed bytes and adds pairs in 16 bits, saturating; that nothing saturates, and how
 * often sums must be widened, depends on the weights:
 *
 *   0..15     a whole block fits, 8 columns:   8 * 2 * 15 * 127 = 30480
 *   0..31     four columns fit:                 4 * 2 * 31 * 127 = 31496
 *   0..63     two columns fit:                  2 * 2 * 63 * 127 = 32004
 *   signed    none: |w| times x with the sign of w (2 * 128 * 127 = 32512) would need both steps for each column. Weights and
 *             activations are 16-bit pairs for vpmaddwd: as many multiplications as with |w|, widening included, and less around.
 */
#define GROUPS 2
#define SIGNED_BYTES 2
#include "kernels/x86/ymm_panel.h"

typedef __m256i dots[GROUPS][TILE_TOKENS];

/* Dots over columns c0..c1, of which `n` are added before they are widened. */
INLINE void unsigned_dots(const int groups, const int wide, const int n, const uint8_t *w, const x_tile *x, const int c0, const int c1, dots dot)
{
    UNROLL for (int first = c0; first < c1; first += n) {
        dots sum;
        UNROLL for (int c = first; c < first + n; c++) {
            __m256i wc[GROUPS];
            load_column(groups, w, c, wc);
            UNROLL for (int t = 0; t < wide; t++) {
                const __m256i q = x_at(x, c, t);
                UNROLL for (int g = 0; g < groups; g++) {
                    const __m256i v = _mm256_maddubs_epi16(wc[g], q);
                    sum[g][t] = c == first ? v : _mm256_add_epi16(sum[g][t], v);
                    KEEP(sum[g][t]);
                }
            }
        }
        UNROLL for (int g = 0; g < groups; g++)
            UNROLL for (int t = 0; t < wide; t++)
                dot[g][t] = first == c0 ? add_pairs(sum[g][t]) : _mm256_add_epi32(dot[g][t], add_pairs(sum[g][t]));
    }
}

/* Activations as the pairs of put_signed. */
typedef struct words { _Alignas(32) int32_t of[16][TILE_TOKENS]; } words;

INLINE void words_of(const x_tile *x, words *o)
{
    UNROLL for (int i = 0; i < 4; i++) {
        const __m256i v = load_256(x->q[2 * i]);
        _mm256_store_si256((void *)o->of[4 * i], even_bytes(v));
        _mm256_store_si256((void *)o->of[4 * i + 2], odd_bytes(v));
    }
    IN_MEMORY(*o);
}

INLINE void signed_dots(const int groups, const int wide, const uint8_t *w, const words *x, dots dot)
{
    UNROLL for (int c = 0; c < 16; c++) {
        __m256i wc[GROUPS];
        load_column(groups, w, c, wc);
        UNROLL for (int t = 0; t < wide; t++) {
            const __m256i q = _mm256_set1_epi32(x->of[c][t]);
            UNROLL for (int g = 0; g < groups; g++) {
                const __m256i v = _mm256_madd_epi16(wc[g], q);
                dot[g][t] = c == 0 ? v : _mm256_add_epi32(dot[g][t], v);
                KEEP(dot[g][t]);
            }
        }
    }
}

/* n: columns that fit in 16 bits; 0: signed weights. The first `wide` tokens are multiplied. */
INLINE void tile(const int form, const int n, const int groups, const int wide, const panel *p, uint32_t n_blocks, const x_tile *x,
                 uint32_t tokens, int shift, const sums *io, ahead *next)
{
    const bool too_large = n > 0 && (form == PLP_FORM_SYM || form == PLP_FORM_SUB);
    const uint8_t *w = p->w;
    tile_sums acc;
    ahead a = *next;                    /* in registers: through memory a fetch takes five cycles */
    words q[CHUNK_BLOCKS];
    take_sums(&acc, io);
    if (n == 0)                         /* all at once: a block that waits for its own is slower by a tenth */
        for (uint32_t b = 0; b < n_blocks; b++) words_of(x + b, q + b);
    for (uint32_t b = 0; b < n_blocks; b++, x++, w += BLOCK_BYTES * (n ? 1 : SIGNED_BYTES)) {
        dots dot, second;
        half_sums half;
        starts start;
        const char *soon = (const char *)(x + (n ? 4 : n_blocks));
        fetch_step(&a);
        UNROLL for (int line = 0; line < 3; line++) __builtin_prefetch(soon + 64 * line);
        if (too_large) start = starts_of(form, x, shift);
        if (form == PLP_FORM_MN2) half = half_sums_of(x);
        if (n == 0) signed_dots(groups, wide, w, q + b, dot);
        else        unsigned_dots(groups, wide, n, w, x, 0, form == PLP_FORM_SUB ? 4 : 8, dot);
        if (form == PLP_FORM_SUB) unsigned_dots(groups, wide, n, w, x, 4, 8, second);
        UNROLL for (int t = 0; t < wide; t++)
            UNROLL for (int g = 0; g < groups; g++)
                add_term(form, &acc, p, b, 8 * g, x, t, too_large ? &start : NULL, &half, dot[g][t], second[g][t]);
    }
    *next = a;
    put_sums(groups, &acc, tokens, io);
}

#define TILE(form, n, groups)                                                                                                 \
    static __attribute__((noinline)) void tile_##form##_##n##_##groups(const panel *p, uint32_t n_blocks, const x_tile *x,    \
                                                                       uint32_t tokens, int shift, const sums *io, ahead *next) \
    {                                                                                                                         \
        if (tokens > 2) tile(PLP_FORM_##form, n, groups, TILE_TOKENS, p, n_blocks, x, tokens, shift, io, next);               \
        else            tile(PLP_FORM_##form, n, groups, 2, p, n_blocks, x, tokens, shift, io, next);                         \
    }
#define TILES(form, n) TILE(form, n, 1) TILE(form, n, 2)                                                                      \
    static tile_fn *const tiles_##form##_##n[GROUPS] = { tile_##form##_##n##_1, tile_##form##_##n##_2 };
TILES(SYM, 8) TILES(MIN, 8) TILES(SYM, 4) TILES(MIN, 4) TILES(SYM, 0) TILES(SUB, 4) TILES(SUB, 2) TILES(MN2, 2)

static tile_fn *tile_of(int32_t type, uint32_t groups)
{
    static tile_fn *const *const tiles[][9] = {
        [PLP_FORM_SYM] = { [8] = tiles_SYM_8, [4] = tiles_SYM_4, [0] = tiles_SYM_0 },
        [PLP_FORM_MIN] = { [8] = tiles_MIN_8, [4] = tiles_MIN_4 },
        [PLP_FORM_SUB] = { [4] = tiles_SUB_4, [2] = tiles_SUB_2 },
        [PLP_FORM_MN2] = { [2] = tiles_MN2_2 },
    };
    return tiles[plp_type_form(type)][columns_that_fit(type)][groups - 1];
}
