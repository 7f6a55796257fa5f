/*
 * backend/gpu/kernels/tile.h - shapes of the product's tiles, for the preludes and linear.h
 *
 * A matrix unit multiplies a tile of 16 weight rows by 8 tokens over one 32-block (or half of it): exact
 * integers, because a scale belongs to each block. Staged values lie in shared memory as tile_value, rows
 * TILE_STRIDE apart; the 16 values of padding keep eight rows in different banks.
 *
 *   tile_dot32(w, x, scratch, d)   d[e] = the dot of row TILE_ROW(LANE, e) and token TILE_COL(LANE, e) over 32
 *   tile_dot16(w, x, scratch, d)   over 16
 *
 *   tile_put4(to, q)               four int8 values into a staged row
 *
 * All lanes call together. scratch: 128 floats of the simdgroup's own, for units whose registers cannot be
 * read directly. TILE_PORTABLE: the prelude has no matrix unit, linear.h brings plain ones.
 */
#define TILE_BLOCKS  4u                         /* 32-blocks staged at a time */
#define TILE_STRIDE  (TILE_BLOCKS * 32u + 16u)
#define TILE_ROW(lane, e) ((lane) / 4 + (e) / 2 * 8)
#define TILE_COL(lane, e) ((lane) % 4 * 2 + (e) % 2)
