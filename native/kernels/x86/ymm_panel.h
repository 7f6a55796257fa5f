/*
 * kernels/x86/ymm_panel.h - tiers "avx2" and "avxvnni": panels over rows and chunks of k, each for all tokens
 *
 * Included after ymm_unpack.h by a tier that has defined its tiles:
 *   tile_fn *tile_of(type, groups)      for so many eights of rows, 1..GROUPS
 *
 *   work    panel | eight rows staged where a matrix ends | float sums between chunks [token][ROWS], whole tiles
 */
#ifndef PLP_KERNELS_X86_YMM_PANEL_H
#define PLP_KERNELS_X86_YMM_PANEL_H

enum { STAGE_BYTES = 16 * CHUNK_BLOCKS * 34 };

typedef struct panel_work {
    panel   p;
    uint8_t stage[STAGE_BYTES];     /* a multiple of 64 */
    float   sums[];
} panel_work;

typedef void unpack_fn(const uint8_t *p, size_t stride, uint32_t n_blocks, panel *o, uint32_t row);

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
    unpack_fn *const unpack = unpack_of(rows->type);
    const uint32_t n_blocks = rows->k / 32, chunk = chunk_blocks(n_blocks), n_tiles = round_up(n, TILE_TOKENS) / TILE_TOKENS;
    const uint32_t per_8 = bytes_per_8(rows->type);
    const int shift = weight_offset(rows->type) ? __builtin_ctz(128u / weight_offset(rows->type)) : 0;
    const size_t stride = rows->row_bytes;
    const uint8_t *data = rows->data;

    for (uint32_t r = r0; r < r1; r += ROWS) {
        const uint32_t n_rows = r1 - r < ROWS ? r1 - r : ROWS, groups = (n_rows + 7) / 8;
        tile_fn *const multiply = tile_of(rows->type, groups);
        for (uint32_t b0 = 0; b0 < n_blocks; b0 += chunk) {
            const uint32_t len = n_blocks - b0 < chunk ? n_blocks - b0 : chunk;
            const bool last = b0 + len == n_blocks;
            const size_t chunk_bytes = (size_t)len * per_8 / 8;
            const uint8_t *p = data + r * stride + (size_t)b0 * per_8 / 8;
            ahead next = last ? ahead_of(data + (size_t)(r + ROWS) * stride, stride, ROWS, chunk_bytes, n_tiles * len)
                              : ahead_of(p + chunk_bytes, stride, n_rows, chunk_bytes, n_tiles * len);

            for (uint32_t g = 0; g < groups; g++) {
                const uint8_t *from = p + 8 * g * stride;
                if (n_rows - 8 * g >= 8) unpack(from, stride, len, &z->p, 8 * g);
                else unpack(stage_rows(from, stride, n_rows - 8 * g, chunk_bytes, z->stage), chunk_bytes, len, &z->p, 8 * g);
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
