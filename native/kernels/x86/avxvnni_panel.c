/*
 * kernels/x86/avxvnni_panel.c - tier "avxvnni": products of many tokens (prefill)
 *
 * As avx2_panel.c, but vpdpbusd adds products of unsigned with signed bytes in 32 bits, exactly: every type is stored unsigned,
 * and what that is too much is taken off the sums. Twenty-four rows by four tokens: twelve sums, three registers of weights and one
 * of activations are the register file.
 */
#define GROUPS 3
#define SIGNED_BYTES 1
#include "kernels/x86/ymm_panel.h"

/* The first `wide` tokens are multiplied. */
INLINE void tile(const int form, const int groups, const int wide, const panel *p, uint32_t n_blocks, const x_tile *x, uint32_t tokens,
                 int shift, const sums *io, ahead *next)
{
    const bool too_large = form == PLP_FORM_SYM || form == PLP_FORM_SUB;
    const uint8_t *w = p->w;
    tile_sums acc;
    ahead a = *next;                    /* in registers: through memory a fetch takes five cycles */
    take_sums(&acc, io);
    for (uint32_t b = 0; b < n_blocks; b++, x++, w += BLOCK_BYTES) {
        __m256i dot[2][GROUPS][TILE_TOKENS];
        half_sums half;
        starts start;
        fetch_step(&a);
        UNROLL for (int line = 0; line < 3; line++) __builtin_prefetch((const char *)(x + 4) + 64 * line);
        if (too_large) start = starts_of(form, x, shift);
        if (form == PLP_FORM_MN2) half = half_sums_of(x);
        UNROLL for (int c = 0; c < 8; c++) {
            const int part = form == PLP_FORM_SUB ? c / 4 : 0;
            __m256i wc[GROUPS];
            load_column(groups, w, c, wc);
            UNROLL for (int t = 0; t < wide; t++) {
                const __m256i q = x_at(x, c, t);
                UNROLL for (int g = 0; g < groups; g++) {
                    __m256i *d = &dot[part][g][t];
                    *d = add_dots(c == 4 * part ? _mm256_setzero_si256() : *d, wc[g], q);
                }
            }
        }
        UNROLL for (int t = 0; t < wide; t++)
            UNROLL for (int g = 0; g < groups; g++)
                add_term(form, &acc, p, b, 8 * g, x, t, too_large ? &start : NULL, &half, dot[0][g][t], dot[1][g][t]);
    }
    *next = a;
    put_sums(groups, &acc, tokens, io);
}

#define TILE(form, groups)                                                                                                    \
    static __attribute__((noinline)) void tile_##form##_##groups(const panel *p, uint32_t n_blocks, const x_tile *x,          \
                                                                 uint32_t tokens, int shift, const sums *io, ahead *next)     \
    {                                                                                                                         \
        if (tokens > 2) tile(PLP_FORM_##form, groups, TILE_TOKENS, p, n_blocks, x, tokens, shift, io, next);                  \
        else            tile(PLP_FORM_##form, groups, 2, p, n_blocks, x, tokens, shift, io, next);                            \
    }
#define TILES(form) TILE(form, 1) TILE(form, 2) TILE(form, 3)
#define ROW(form) [PLP_FORM_##form] = { tile_##form##_1, tile_##form##_2, tile_##form##_3 }
TILES(SYM) TILES(MIN) TILES(SUB) TILES(MN2)
static tile_fn *const tiles[][GROUPS] = { ROW(SYM), ROW(MIN), ROW(SUB), ROW(MN2) };

static tile_fn *tile_of(int32_t type, uint32_t groups) { return tiles[plp_type_form(type)][groups - 1]; }
