/*
 * kernels/arm/linear.h - quantised products (x_pack, linear), written once for the three ARM tiers
 *
 * A tier's file defines how it makes integer dots, then includes this. It brings:
 *
 *   GROUP_ROWS            rows in one accumulator vector: 4 (4 rows x 1 token) or 2 (2 rows x 2 tokens)
 *   quad_dot(q, x, first, n, max)         dots of 4 rows with one token, over halves first..first+n of a block
 *   put_weights(dst, quad, v)             16 values of 4 rows into a panel's half block
 *   put_tokens(dst, v)                    16 values of 4 tokens into a tile's half block
 *   tile_dots(w, x, n, max, d)            adds to d[8] the dots of 8 rows and 4 tokens over n half blocks
 *
 * One to three tokens (decode) are multiplied straight from the file's layout, four rows at a time, each row
 * read linearly: the time is the memory's. From four tokens on (prefill), 16 rows x 512 columns at a time are
 * unpacked into an int8 panel that fits in L1 and is used for every tile of four tokens; partial sums wait in
 * `work` between column chunks. Both add the same terms in the same order, so they agree bit for bit.
 *
 *   activations, n < 4    [token][k/32] { q[32], xs, xm, xh[2] }             xs scale, xm = xs * sum(q), xh of its halves
 *                n >= 4   [n/4][k/32] { q[2 halves][64], xs[4], xm[4], xh[2][4] }      tokens past n are zero
 *   panel                 [2][chunk] { q[2 halves][128], a, b, c }           8 rows each; a, b, c one per lane
 *   partial sums          [n/4][2][8 groups][4 lanes]
 *
 * Source   the contract in kernels/kernels.h; rates and shapes from measurements of sdot and smmla bounds
 *          (8 sdot + 4 float steps per 4 rows x 1 token and block; 4 smmla + 4 float steps per 2 x 2)
 */
#ifndef PLP_KERNELS_ARM_LINEAR_H
#define PLP_KERNELS_ARM_LINEAR_H

#include "kernels/arm/arm.h"
#include "kernels/arm/formats.h"
#include "kernels/ref/ref.h"

enum {
    TILE_TOKENS  = 4,
    TILE_ROWS    = 8,
    N_GROUPS     = 8,                           /* accumulator vectors of a tile */
    ROW_GROUPS   = TILE_ROWS / GROUP_ROWS,
    TOKEN_GROUPS = N_GROUPS / ROW_GROUPS,
    STRIP_ROWS   = 16,                          /* rows whose panel is in L1 at a time */
    STRIP_TILES  = STRIP_ROWS / TILE_ROWS,
    CHUNK_BLOCKS = 16,                          /* 512 columns: a multiple of every unit */
    DIRECT_MAX   = 3,                           /* tokens that are multiplied without a panel */
};

typedef struct x_block {
    int8_t q[32];
    float  xs, xm, xh[2];
} x_block;

typedef struct x_tile {
    int8_t q[2][TILE_TOKENS * 16];
    float  xs[TILE_TOKENS], xm[TILE_TOKENS], xh[2][TILE_TOKENS];
} x_tile;

typedef struct panel_block {
    int8_t q[2][TILE_ROWS * 16];
    float  a[ROW_GROUPS][4], b[ROW_GROUPS][4], c[ROW_GROUPS][4];
} panel_block;

INLINE size_t lines(size_t n_bytes) { return (n_bytes + 63) / 64 * 64; }
INLINE uint32_t n_tiles(uint32_t n) { return n / TILE_TOKENS + (n % TILE_TOKENS != 0); }

/* ---- activations --------------------------------------------------------------------------- */

/* 32 floats to int8; returns the scale, and the sums of the int8 values of both halves. */
INLINE float quantise(const float *x, int8x16_t q[2], float sum[2])
{
    float32x4_t v[8], top = vdupq_n_f32(0);
    UNROLL for (int i = 0; i < 8; i++) {
        v[i] = vld1q_f32(x + 4 * i);
        top = vmaxq_f32(top, vabsq_f32(v[i]));
    }
    const float amax = vmaxvq_f32(top);
    const float32x4_t inverse = vdupq_n_f32(amax >= PLP_X_ZERO ? 127.0f / amax : 0.0f);
    int16x8_t w[4];
    UNROLL for (int i = 0; i < 4; i++)
        w[i] = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(vmulq_f32(v[2 * i], inverse))),
                            vqmovn_s32(vcvtnq_s32_f32(vmulq_f32(v[2 * i + 1], inverse))));
    q[0] = vcombine_s8(vqmovn_s16(w[0]), vqmovn_s16(w[1]));
    q[1] = vcombine_s8(vqmovn_s16(w[2]), vqmovn_s16(w[3]));
    UNROLL for (int h = 0; h < 2; h++)
        sum[h] = (float)vaddlvq_s8(q[h]);
    return amax >= PLP_X_ZERO ? amax / 127.0f : 0.0f;
}

static size_t x_bytes(uint32_t n, uint32_t k)
{
    _Static_assert(sizeof(x_tile) == TILE_TOKENS * sizeof(x_block), "or the size might shrink as n grows");
    return lines(n <= DIRECT_MAX ? (size_t)n * (k / 32) * sizeof(x_block)
                                 : (size_t)n_tiles(n) * (k / 32) * sizeof(x_tile));
}

static void x_pack(const float *x, size_t ldx, uint32_t n, uint32_t k, uint32_t t0, uint32_t t1, void *out)
{
    const uint32_t n_blocks = k / 32;

    if (n <= DIRECT_MAX) {
        for (uint32_t t = t0; t < t1; t++)
            for (uint32_t b = 0; b < n_blocks; b++) {
                x_block *o = (x_block *)out + (size_t)t * n_blocks + b;
                int8x16_t q[2];
                float sum[2];
                o->xs = quantise(x + t * ldx + b * 32, q, sum);
                o->xm = o->xs * (sum[0] + sum[1]);
                o->xh[0] = o->xs * sum[0];
                o->xh[1] = o->xs * sum[1];
                vst1q_s8(o->q, q[0]);
                vst1q_s8(o->q + 16, q[1]);
            }
        return;
    }
    for (uint32_t t = t0; t < t1; t += TILE_TOKENS)
        for (uint32_t b = 0; b < n_blocks; b++) {
            x_tile *o = (x_tile *)out + (size_t)(t / TILE_TOKENS) * n_blocks + b;
            int8x16_t q[2][TILE_TOKENS];
            for (uint32_t j = 0; j < TILE_TOKENS; j++) {
                int8x16_t halves[2] = { vdupq_n_s8(0), vdupq_n_s8(0) };
                float sum[2] = { 0, 0 };
                o->xs[j] = t + j < n ? quantise(x + (t + j) * ldx + b * 32, halves, sum) : 0;
                o->xm[j] = o->xs[j] * (sum[0] + sum[1]);
                o->xh[0][j] = o->xs[j] * sum[0];
                o->xh[1][j] = o->xs[j] * sum[1];
                q[0][j] = halves[0];
                q[1][j] = halves[1];
            }
            put_tokens(o->q[0], q[0]);
            put_tokens(o->q[1], q[1]);
        }
}

/* ---- the one float term of a block ---------------------------------------------------------- */

/* A token's factors: xs, xm, xh; a row's: a, b, c. */
typedef struct x_factors { float32x4_t s, m, h0, h1; } x_factors;
typedef struct w_factors { float32x4_t a, b, c; } w_factors;

/* d: the block's dots (SUB: of its first half), e: of the second half. Plain products where the contract has them. */
INLINE float32x4_t term(int form, w_factors w, x_factors x, int32x4_t d, int32x4_t e)
{
    const float32x4_t dot = vcvtq_f32_s32(d);
    if (form == PLP_FORM_SUB)
        return vmulq_f32(vfmaq_f32(vmulq_f32(w.a, dot), w.b, vcvtq_f32_s32(e)), x.s);
    const float32x4_t product = vmulq_f32(vmulq_f32(w.a, x.s), dot);
    if (form == PLP_FORM_MN2)
        return vfmaq_f32(vfmaq_f32(product, w.b, x.h0), w.c, x.h1);
    return form == PLP_FORM_MIN ? vfmaq_f32(product, w.b, x.m) : product;
}

/* m (1..4) outputs of one token, rows r..r+m. */
INLINE void store(float *y, float32x4_t v, uint32_t m, bool add)
{
    if (m == 4) {
        vst1q_f32(y, add ? vaddq_f32(vld1q_f32(y), v) : v);
        return;
    }
    float part[4];
    vst1q_f32(part, v);
    for (uint32_t i = 0; i < m; i++)
        y[i] = add ? y[i] + part[i] : part[i];
}

/* Addresses of four rows from r on; rows past the last are the last one again, and never stored. */
INLINE void quad_rows(const plp_rows *w, uint32_t r, uint32_t r1, const uint8_t *at[4])
{
    UNROLL for (uint32_t i = 0; i < 4; i++)
        at[i] = (const uint8_t *)w->data + (size_t)(r + i < r1 ? r + i : r1 - 1) * w->row_bytes;
}

/* ---- decode: from the file's bytes to sums -------------------------------------------------- */

INLINE void direct_tokens(int type, int form, uint32_t n, const plp_rows *w, uint32_t r0, uint32_t r1,
                          const x_block *x, float *y, size_t ldy, bool add)
{
    const uint32_t n_blocks = w->k / 32;

    for (uint32_t r = r0; r < r1; r += 4) {
        const uint8_t *at[4];
        float32x4_t acc[DIRECT_MAX];
        scales s;
        quad_rows(w, r, r1, at);
        UNROLL for (uint32_t t = 0; t < n; t++)
            acc[t] = vdupq_n_f32(0);

        for (uint32_t block = 0; block < n_blocks; block += unit_blocks(type)) {
            quad_scales(type, at, &s);
            for (uint32_t i = 0; i < unit_blocks(type); i++) {
                int8x16_t q[4][2];
                UNROLL for (int row = 0; row < 4; row++)
                    block_values(type, at[row], i, q[row]);
                UNROLL for (uint32_t t = 0; t < n; t++) {
                    const x_block *xb = x + (size_t)t * n_blocks + block + i;
                    const int8x16_t v[2] = { vld1q_s8(xb->q), vld1q_s8(xb->q + 16) };
                    int32x4_t d, e = vdupq_n_s32(0);
                    if (form == PLP_FORM_SUB) {
                        d = quad_dot(q, v, 0, 1, max_value(type));
                        e = quad_dot(q, v, 1, 1, max_value(type));
                    } else {
                        d = quad_dot(q, v, 0, 2, max_value(type));
                    }
                    const x_factors xf = { vdupq_n_f32(xb->xs), vdupq_n_f32(xb->xm), vdupq_n_f32(xb->xh[0]), vdupq_n_f32(xb->xh[1]) };
                    acc[t] = vaddq_f32(acc[t], term(form, (w_factors){ s.a[i], s.b[i], s.c[i] }, xf, d, e));
                }
            }
            UNROLL for (int row = 0; row < 4; row++)
                at[row] += unit_bytes(type);
        }
        UNROLL for (uint32_t t = 0; t < n; t++)
            store(y + t * ldy + r, acc[t], r1 - r < 4 ? r1 - r : 4, add);
    }
}

INLINE void direct(int type, int form, const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n,
                   float *y, size_t ldy, bool add)
{
    _Static_assert(DIRECT_MAX == 3, "one case per token count");
    switch (n) {
    case 1: direct_tokens(type, form, 1, w, r0, r1, x, y, ldy, add); break;
    case 2: direct_tokens(type, form, 2, w, r0, r1, x, y, ldy, add); break;
    case 3: direct_tokens(type, form, 3, w, r0, r1, x, y, ldy, add); break;
    }
}

/* ---- prefill: panel and tiles --------------------------------------------------------------- */

/* One scale per row of a quad, as the tile's accumulators hold rows. */
INLINE void put_scales(float (*dst)[4], uint32_t quad, float32x4_t v)
{
    if (GROUP_ROWS == 4) {
        vst1q_f32(dst[quad], v);
    } else {
        vst1q_f32(dst[2 * quad], vzip1q_f32(v, v));
        vst1q_f32(dst[2 * quad + 1], vzip2q_f32(v, v));
    }
}

/* Columns [b0, b1) (in blocks, b0 at a unit's start) of rows r..r+4 into one quad of a panel. */
INLINE void unpack(int type, const plp_rows *w, uint32_t r, uint32_t r1, uint32_t b0, uint32_t b1,
                   panel_block *panel, uint32_t quad)
{
    const uint8_t *at[4];
    quad_rows(w, r, r1, at);
    for (int row = 0; row < 4; row++)
        at[row] += b0 / unit_blocks(type) * unit_bytes(type);

    for (uint32_t block = b0; block < b1; block += unit_blocks(type)) {
        scales s;
        quad_scales(type, at, &s);
        for (uint32_t i = 0; i < unit_blocks(type); i++, panel++) {
            int8x16_t q[4][2];
            UNROLL for (int row = 0; row < 4; row++)
                block_values(type, at[row], i, q[row]);
            UNROLL for (int h = 0; h < 2; h++) {
                const int8x16_t v[4] = { q[0][h], q[1][h], q[2][h], q[3][h] };
                put_weights(panel->q[h], quad, v);
            }
            put_scales(panel->a, quad, s.a[i]);
            put_scales(panel->b, quad, s.b[i]);
            if (plp_type_form(type) == PLP_FORM_MN2)
                put_scales(panel->c, quad, s.c[i]);
        }
        UNROLL for (int row = 0; row < 4; row++)
            at[row] += unit_bytes(type);
    }
}

/* Token factors as the accumulators hold tokens: one token in all lanes, or two alternating. */
INLINE float32x4_t token_scales(const float *xs, uint32_t group)
{
    if (GROUP_ROWS == 4)
        return vld1q_dup_f32(xs + group);
    const float32x2_t two = vld1_f32(xs + 2 * group);
    return vcombine_f32(two, two);
}

/* Rows of quad `quad` for token t, out of a tile's accumulators. */
INLINE float32x4_t tile_column(const float32x4_t acc[N_GROUPS], uint32_t quad, uint32_t t)
{
    if (GROUP_ROWS == 4)
        return acc[quad * TOKEN_GROUPS + t];
    const float32x4_t low = acc[2 * quad * TOKEN_GROUPS + t / 2], high = acc[(2 * quad + 1) * TOKEN_GROUPS + t / 2];
    return t % 2 ? vuzp2q_f32(low, high) : vuzp1q_f32(low, high);
}

/* 8 rows x 4 tokens over n_blocks blocks. */
INLINE void tile(int type, int form, const panel_block *w, const x_tile *x, uint32_t n_blocks, float32x4_t acc[N_GROUPS])
{
    for (uint32_t block = 0; block < n_blocks; block++, w++, x++) {
        int32x4_t d[N_GROUPS], e[N_GROUPS];
        UNROLL for (int g = 0; g < N_GROUPS; g++)
            d[g] = e[g] = vdupq_n_s32(0);
        if (form == PLP_FORM_SUB) {
            tile_dots(w->q[0], x->q[0], 1, max_value(type), d);
            tile_dots(w->q[1], x->q[1], 1, max_value(type), e);
        } else {
            tile_dots(w->q[0], x->q[0], 2, max_value(type), d);
        }
        UNROLL for (int g = 0; g < N_GROUPS; g++) {
            const uint32_t rows = g / TOKEN_GROUPS, tokens = g % TOKEN_GROUPS;
            const w_factors wf = { vld1q_f32(w->a[rows]), vld1q_f32(w->b[rows]),
                                   form == PLP_FORM_MN2 ? vld1q_f32(w->c[rows]) : vdupq_n_f32(0) };
            const x_factors xf = { token_scales(x->xs, tokens), token_scales(x->xm, tokens),
                                   token_scales(x->xh[0], tokens), token_scales(x->xh[1], tokens) };
            acc[g] = vaddq_f32(acc[g], term(form, wf, xf, d[g], e[g]));
        }
    }
}

typedef struct strip {
    panel_block panel[STRIP_TILES][CHUNK_BLOCKS];
    float       sums[][STRIP_TILES][N_GROUPS][4];       /* per tile of tokens */
} strip;

static size_t linear_work(uint32_t n, uint32_t k)
{
    const size_t strips = n <= DIRECT_MAX ? 0 : sizeof(strip) + n_tiles(n) * sizeof(float[STRIP_TILES][N_GROUPS][4]);
    const size_t rows = (size_t)PLP_ARM_FLOAT_ROWS * k * sizeof(float);
    return lines(strips > rows ? strips : rows);
}

INLINE void strips(int type, int form, const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n,
                   float *y, size_t ldy, bool add, strip *s)
{
    const uint32_t n_blocks = w->k / 32;

    for (uint32_t r = r0; r < r1; r += STRIP_ROWS) {
        const uint32_t n_rows = r1 - r < STRIP_ROWS ? r1 - r : STRIP_ROWS;
        for (uint32_t b0 = 0; b0 < n_blocks; b0 += CHUNK_BLOCKS) {
            const uint32_t b1 = n_blocks - b0 < CHUNK_BLOCKS ? n_blocks : b0 + CHUNK_BLOCKS;
            for (uint32_t quad = 0; quad < STRIP_ROWS / 4; quad++)
                unpack(type, w, r + quad * 4, r1, b0, b1, s->panel[quad / 2], quad % 2);

            for (uint32_t t = 0; t < n; t += TILE_TOKENS) {
                const x_tile *xt = (const x_tile *)x + (size_t)(t / TILE_TOKENS) * n_blocks + b0;
                const uint32_t tokens = n - t < TILE_TOKENS ? n - t : TILE_TOKENS;
                for (uint32_t half = 0; half < STRIP_TILES && half * TILE_ROWS < n_rows; half++) {
                    float (*sums)[4] = s->sums[t / TILE_TOKENS][half];
                    float32x4_t acc[N_GROUPS];
                    UNROLL for (int g = 0; g < N_GROUPS; g++)
                        acc[g] = b0 ? vld1q_f32(sums[g]) : vdupq_n_f32(0);
                    tile(type, form, s->panel[half], xt, b1 - b0, acc);
                    if (b1 < n_blocks) {
                        UNROLL for (int g = 0; g < N_GROUPS; g++)
                            vst1q_f32(sums[g], acc[g]);
                        continue;
                    }
                    UNROLL for (uint32_t i = 0; i < TILE_TOKENS; i++)
                        UNROLL for (uint32_t quad = 0; quad < 2; quad++) {
                            const uint32_t row = half * TILE_ROWS + quad * 4;
                            if (i < tokens && row < n_rows)
                                store(y + (t + i) * ldy + r + row, tile_column(acc, quad, i),
                                      n_rows - row < 4 ? n_rows - row : 4, add);
                        }
                }
            }
        }
    }
}

/* ---- one entry, a switch over the formats ---------------------------------------------------- */

#define RUN_FLT(id)
#define RUN_INT(id, form)                                                           \
    case id:                                                                        \
        if (n <= DIRECT_MAX) direct(id, form, w, r0, r1, x, n, y, ldy, add);         \
        else                 strips(id, form, w, r0, r1, x, n, y, ldy, add, work);   \
        break;
#define RUN_SYM(id) RUN_INT(id, PLP_FORM_SYM)
#define RUN_MIN(id) RUN_INT(id, PLP_FORM_MIN)
#define RUN_SUB(id) RUN_INT(id, PLP_FORM_SUB)
#define RUN_MN2(id) RUN_INT(id, PLP_FORM_MN2)

static void linear(const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy,
                   bool add, void *work)
{
    switch (w->type) {
#define QUANT(id, NAME, len, bytes, form) RUN_##form(id)
#include "format/quants.def"
#undef QUANT
    }
}

INLINE void fill_linear(plp_kernels *k)
{
    k->x_bytes = x_bytes;
    k->x_pack = x_pack;
    k->linear_work = linear_work;
    k->linear = linear;
}

#endif
