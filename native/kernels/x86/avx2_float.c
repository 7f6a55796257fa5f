/*
 * kernels/x86/avx2_float.c - tier "avx2": products in f32
 *
 * Types without an integer form that are not F32, F16 or BF16 have their rows dequantised first. work: f32 [4][k].
 * Four rows at a time are eight chains of fused multiply-adds, enough to hide their latency.
 */
#include "kernels/x86/avx2.h"

enum { ROWS = 4 };

INLINE float weight_at(const int type, const uint8_t *p, uint32_t i)
{
    float f;
    if (type == PLP_TYPE_F32) {
        memcpy(&f, p + 4 * (size_t)i, 4);
        return f;
    }
    const uint16_t h = load_u16(p + 2 * (size_t)i);
    return type == PLP_TYPE_F16 ? plp_half(h) : plp_from_bits((uint32_t)h << 16);
}

INLINE __m256 load_weights(const int type, const uint8_t *p, uint32_t i)
{
    if (type == PLP_TYPE_F32) return _mm256_loadu_ps((const float *)p + i);
    if (type == PLP_TYPE_F16) return halves((const uint16_t *)p + i);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128((const uint16_t *)p + i)), 16));
}

INLINE void products(const int type, const uint8_t *const p[ROWS], const float *x, uint32_t k, float out[ROWS])
{
    pair acc[ROWS];
    uint32_t i = 0;
    UNROLL for (int r = 0; r < ROWS; r++) acc[r] = (pair){ _mm256_setzero_ps(), _mm256_setzero_ps() };
    for (; i + 16 <= k; i += 16) {
        const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        UNROLL for (int r = 0; r < ROWS; r++) {
            acc[r].a = _mm256_fmadd_ps(load_weights(type, p[r], i), a, acc[r].a);
            acc[r].b = _mm256_fmadd_ps(load_weights(type, p[r], i + 8), b, acc[r].b);
        }
    }
    for (int r = 0; r < ROWS; r++) {
        float lane[16];
        if (i == k) {
            out[r] = fold16(acc[r]);
            continue;
        }
        _mm256_storeu_ps(lane, acc[r].a);
        _mm256_storeu_ps(lane + 8, acc[r].b);
        for (uint32_t j = i; j < k; j++) lane[j - i] = __builtin_fmaf(weight_at(type, p[r], j), x[j], lane[j - i]);
        out[r] = plp_fold16(lane);
    }
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
        for (uint32_t t = 0; t < n; t++) {
            float out[ROWS];
            products(type, p, x + t * ldx, w->k, out);
            for (uint32_t i = 0; i < ROWS && r + i < r1; i++) {
                float *to = y + t * ldy + r + i;
                *to = add ? *to + out[i] : out[i];
            }
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

size_t plp_avx2_float_work(uint32_t k) { return sizeof(float) * ROWS * round_up(k, 16); }

void plp_fill_avx2_float(plp_kernels *k) { k->linear_f = linear_f; }
