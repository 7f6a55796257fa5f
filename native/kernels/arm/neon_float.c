/*
 * kernels/arm/neon_float.c - linear_f: weights without an integer form times f32 activations
 *
 * F32, F16 and BF16 are read in place; rows of any other type are dequantised into `work` first.
 *
 * A sum16 has sixteen lanes, four vectors; a fused multiply-add takes four cycles and two start per cycle, so
 * one sum alone would leave half of them unused. One token: four rows at a time. More: 2 rows x 2 tokens,
 * which also halves the loads. Either way each output is the same chain of the same lanes.
 */
#include "kernels/arm/arm.h"
#include "kernels/arm/vector.h"

/* 16 weights at element i of a row. */
INLINE void load_weights(int type, const void *row, uint32_t i, float32x4_t v[4])
{
    UNROLL for (int j = 0; j < 4; j++)
        if (type == PLP_TYPE_F32)
            v[j] = vld1q_f32((const float *)row + i + 4 * j);
        else {
            const uint16x4_t h = vld1_u16((const uint16_t *)row + i + 4 * j);
            v[j] = type == PLP_TYPE_F16 ? vcvt_f32_f16(vreinterpret_f16_u16(h))
                                        : vreinterpretq_f32_u32(vshll_n_u16(h, 16));
        }
}

INLINE void load_weights_part(int type, const void *row, uint32_t i, uint32_t m, float32x4_t v[4])
{
    float part[16] = { 0 };
    const size_t size = type == PLP_TYPE_F32 ? 4 : 2;
    memcpy(part, (const char *)row + i * size, m * size);
    load_weights(type, part, 0, v);
}

INLINE void products(uint32_t n_rows, uint32_t n_tokens, float32x4_t w[][4], float32x4_t x[][4], float32x4_t lanes[][2][4])
{
    UNROLL for (uint32_t r = 0; r < n_rows; r++)
        UNROLL for (uint32_t t = 0; t < n_tokens; t++)
            UNROLL for (int j = 0; j < 4; j++)
                lanes[r][t][j] = vfmaq_f32(lanes[r][t][j], w[r][j], x[t][j]);
}

/* n_rows x n_tokens outputs; the pointers may repeat, the outputs are then equal. */
INLINE void block(int type, uint32_t n_rows, uint32_t n_tokens, const void *const rows[], const float *const x[],
                  uint32_t k, float out[][2])
{
    float32x4_t lanes[4][2][4], w[4][4], v[2][4];
    uint32_t i = 0;

    UNROLL for (uint32_t r = 0; r < n_rows; r++)
        UNROLL for (uint32_t t = 0; t < n_tokens; t++)
            UNROLL for (int j = 0; j < 4; j++)
                lanes[r][t][j] = vdupq_n_f32(0);
    for (; i + 16 <= k; i += 16) {
        UNROLL for (uint32_t r = 0; r < n_rows; r++)
            load_weights(type, rows[r], i, w[r]);
        UNROLL for (uint32_t t = 0; t < n_tokens; t++)
            UNROLL for (int j = 0; j < 4; j++)
                v[t][j] = vld1q_f32(x[t] + i + 4 * j);
        products(n_rows, n_tokens, w, v, lanes);
    }
    if (i < k) {
        float32x4_t last[4][2][4];
        memcpy(last, lanes, sizeof last);
        UNROLL for (uint32_t r = 0; r < n_rows; r++)
            load_weights_part(type, rows[r], i, k - i, w[r]);
        UNROLL for (uint32_t t = 0; t < n_tokens; t++)
            load_part(x[t] + i, k - i, v[t]);
        products(n_rows, n_tokens, w, v, last);
        UNROLL for (uint32_t r = 0; r < n_rows; r++)
            UNROLL for (uint32_t t = 0; t < n_tokens; t++)
                select_part(k - i, last[r][t], lanes[r][t]);
    }
    UNROLL for (uint32_t r = 0; r < n_rows; r++)
        UNROLL for (uint32_t t = 0; t < n_tokens; t++)
            out[r][t] = fold16(lanes[r][t]);
}

/* Rows r..r+n_rows as `block` reads them; past the last one it again, computed and not stored. */
INLINE void find_rows(int type, uint32_t n_rows, const plp_rows *w, uint32_t r, uint32_t r1, float *work, const void *rows[])
{
    const plp_type_info *info = type == w->type ? NULL : plp_type_get(w->type);
    for (uint32_t i = 0; i < n_rows; i++) {
        rows[i] = (const char *)w->data + (size_t)(r + i < r1 ? r + i : r1 - 1) * w->row_bytes;
        if (info) {
            info->dequantize(rows[i], work + (size_t)i * w->k, w->k);
            rows[i] = work + (size_t)i * w->k;
        }
    }
}

INLINE void blocks(int type, uint32_t n_rows, uint32_t n_tokens, const plp_rows *w, uint32_t r0, uint32_t r1,
                   const float *x, size_t ldx, uint32_t n, float *y, size_t ldy, bool add, float *work)
{
    for (uint32_t r = r0; r < r1; r += n_rows) {
        const void *rows[PLP_ARM_FLOAT_ROWS];
        find_rows(type, n_rows, w, r, r1, work, rows);
        for (uint32_t t = 0; t < n; t += n_tokens) {
            const float *tokens[2];
            float out[4][2];
            UNROLL for (uint32_t i = 0; i < n_tokens; i++)
                tokens[i] = x + (t + i < n ? t + i : n - 1) * ldx;
            block(type, n_rows, n_tokens, rows, tokens, w->k, out);
            for (uint32_t i = 0; i < n_rows && r + i < r1; i++)
                for (uint32_t j = 0; j < n_tokens && t + j < n; j++) {
                    float *to = y + (t + j) * ldy + r + i;
                    *to = add ? *to + out[i][j] : out[i][j];
                }
        }
    }
}

/* By the type that `block` reads. */
INLINE void run(int type, const plp_rows *w, uint32_t r0, uint32_t r1, const float *x, size_t ldx, uint32_t n, float *y,
                size_t ldy, bool add, float *work)
{
    if (n == 1) blocks(type, 4, 1, w, r0, r1, x, ldx, n, y, ldy, add, work);
    else        blocks(type, 2, 2, w, r0, r1, x, ldx, n, y, ldy, add, work);
}

static void linear_f(const plp_rows *w, uint32_t r0, uint32_t r1, const float *x, size_t ldx, uint32_t n, float *y,
                     size_t ldy, bool add, void *work)
{
    switch (w->type) {
    case PLP_TYPE_F16:  run(PLP_TYPE_F16,  w, r0, r1, x, ldx, n, y, ldy, add, work); break;
    case PLP_TYPE_BF16: run(PLP_TYPE_BF16, w, r0, r1, x, ldx, n, y, ldy, add, work); break;
    default:            run(PLP_TYPE_F32,  w, r0, r1, x, ldx, n, y, ldy, add, work); break;
    }
}

void plp_fill_neon_float(plp_kernels *k) { k->linear_f = linear_f; }
