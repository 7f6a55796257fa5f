/*
 * kernels/x86/avx512_float.c - tier "avx512": products in f32
 *
 * Types without an integer form that are not one of these three have their rows dequantised first.
 * work: f32 [4][k].
 *
 * Four rows by one or four tokens at a time. Each (row, token) is one chain of fused multiply-adds in 16
 * lanes, as sum16 demands; the blocking gives the 4 to 16 independent chains that hide their latency.
 */
#include "kernels/x86/avx512.h"

enum { ROWS = 4, TOKENS = 4 };

INLINE __m512 load_weights(const int type, const uint8_t *p, uint32_t i, __mmask16 mask)
{
    if (type == PLP_TYPE_F32) return _mm512_maskz_loadu_ps(mask, (const float *)p + i);
    const __m256i v = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)p + i);
    if (type == PLP_TYPE_F16) return _mm512_cvtph_ps(v);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

/* Rows p[0..ROWS) times tokens x, x + ldx, ... of length k -> out. */
INLINE void products(const int type, const int tokens, const uint8_t *const p[ROWS], const float *x, size_t ldx, uint32_t k,
                     float out[ROWS][TOKENS])
{
    __m512 acc[ROWS][TOKENS];
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int t = 0; t < tokens; t++) acc[r][t] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < k; i += 16) {
        const __mmask16 mask = lanes_below(k - i);
        __m512 w[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) w[r] = load_weights(type, p[r], i, mask);
        UNROLL for (int t = 0; t < tokens; t++) {
            const __m512 v = _mm512_maskz_loadu_ps(mask, x + t * ldx + i);
            UNROLL for (int r = 0; r < ROWS; r++) acc[r][t] = _mm512_mask3_fmadd_ps(w[r], v, acc[r][t], mask);
        }
    }
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int t = 0; t < tokens; t++) out[r][t] = fold16(acc[r][t]);
}

INLINE void rows_of(const int type, const plp_rows *w, uint32_t r0, uint32_t r1, const float *x, size_t ldx, uint32_t n,
                    float *y, size_t ldy, bool add, void (*dequantize)(const void *, float *, size_t), float *work)
{
    for (uint32_t r = r0; r < r1; r += ROWS) {
        const uint8_t *p[ROWS];                                     /* past the end: the last row again */
        for (uint32_t i = 0; i < ROWS; i++) {
            p[i] = (const uint8_t *)w->data + (r + i < r1 ? r + i : r1 - 1) * w->row_bytes;
            if (!dequantize) continue;
            dequantize(p[i], work + i * w->k, w->k);
            p[i] = (const uint8_t *)(work + i * w->k);
        }
        for (uint32_t t = 0; t < n;) {
            const uint32_t tokens = n - t >= TOKENS ? TOKENS : 1;
            float out[ROWS][TOKENS];
            if (tokens == TOKENS) products(type, TOKENS, p, x + t * ldx, ldx, w->k, out);
            else                  products(type, 1, p, x + t * ldx, ldx, w->k, out);
            for (uint32_t j = 0; j < tokens; j++)
                for (uint32_t i = 0; i < ROWS && r + i < r1; i++) {
                    float *to = y + (t + j) * ldy + r + i;
                    *to = add ? *to + out[i][j] : out[i][j];
                }
            t += tokens;
        }
    }
}

static void linear_f(const plp_rows *w, uint32_t r0, uint32_t r1, const float *x, size_t ldx, uint32_t n, float *y,
                     size_t ldy, bool add, void *work)
{
    switch (w->type) {
    case PLP_TYPE_F32:  rows_of(PLP_TYPE_F32, w, r0, r1, x, ldx, n, y, ldy, add, NULL, NULL); break;
    case PLP_TYPE_F16:  rows_of(PLP_TYPE_F16, w, r0, r1, x, ldx, n, y, ldy, add, NULL, NULL); break;
    case PLP_TYPE_BF16: rows_of(PLP_TYPE_BF16, w, r0, r1, x, ldx, n, y, ldy, add, NULL, NULL); break;
    default:
        rows_of(PLP_TYPE_F32, w, r0, r1, x, ldx, n, y, ldy, add, plp_type_get(w->type)->dequantize, work);
    }
}

size_t plp_avx512_float_work(uint32_t k) { return sizeof(float) * ROWS * round_up(k, 16); }

void plp_fill_avx512_float(plp_kernels *k) { k->linear_f = linear_f; }
