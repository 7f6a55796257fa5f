/*
 * kernels/x86/avx512_linear.c - tier "avx512": packing activations, and which product path takes them
 *
 * avx512.h has the packed shapes and says when each is used.
 */
#include "kernels/x86/avx512.h"

INLINE size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Callers size by their largest n and k and then use less: both shapes must fit. */
static size_t x_bytes(uint32_t n, uint32_t k)
{
    const uint32_t streamed = n < STREAM_TOKENS ? n : STREAM_TOKENS;
    return larger(streamed * stream_bytes(k / 32), (size_t)round_up(n, TILE_TOKENS) * (k / 32) * sizeof(x_tile) / TILE_TOKENS);
}

typedef struct x_block {
    __m256i q;
    float   xs;
    int32_t sum0, sum1;     /* of the first and second 16 */
} x_block;

INLINE x_block quantise(const float *x)
{
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    const float amax = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    const int zero = amax < PLP_X_ZERO;
    const __m512 inverse = splat(zero ? 0 : 127.0f / amax);
    const __m128i qa = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(a, inverse)));
    const __m128i qb = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(b, inverse)));
    const __m256i q = _mm256_set_m128i(qb, qa);
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), q);
    const __m256i pairs = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
    const __m256i all = _mm256_add_epi32(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
    return (x_block){ q, zero ? 0 : amax / 127.0f, _mm256_extract_epi32(all, 0), _mm256_extract_epi32(all, 4) };
}

static void pack_stream(const float *x, uint32_t n_blocks, void *packed, uint32_t token)
{
    const x_stream v = stream_view(packed, n_blocks, token);
    int8_t *q = (int8_t *)v.q, *first = (int8_t *)v.first, *second = (int8_t *)v.second;
    float *xs = (float *)v.xs, *xm = (float *)v.xm;
    int32_t *xi = (int32_t *)v.xi, *x0 = (int32_t *)v.x0;
    const uint32_t n = stream_padded(n_blocks);
    for (uint32_t b = 0; b < n; b++) {
        if (b < n_blocks) {
            const x_block block = quantise(x + b * 32);
            _mm256_storeu_si256((void *)(q + 32 * b), block.q);
            xs[b] = block.xs;
            xm[b] = block.xs * (float)(block.sum0 + block.sum1);
            xi[b] = -128 * (block.sum0 + block.sum1);
            x0[b] = -128 * block.sum0;
        } else {                                                    /* round again */
            const uint32_t from = b - n_blocks;
            _mm256_storeu_si256((void *)(q + 32 * b), load_256(q + 32 * from));
            xs[b] = xs[from];
            xm[b] = xm[from];
            xi[b] = xi[from];
            x0[b] = x0[from];
        }
        _mm_storeu_si128((void *)(first + 16 * b), load_128(q + 32 * b));
        _mm_storeu_si128((void *)(second + 16 * b), load_128(q + 32 * b + 16));
    }
}

/* Tokens t..t+4 of n; the ones past n are zeros. */
static void pack_tile(const float *x, size_t ldx, uint32_t n, uint32_t n_blocks, uint32_t t, x_tile *packed)
{
    const uint32_t n_tiles = round_up(n, TILE_TOKENS) / TILE_TOKENS, chunk = chunk_blocks(n_blocks);
    for (uint32_t b = 0; b < n_blocks; b++) {
        const uint32_t b0 = b / chunk * chunk, len = n_blocks - b0 < chunk ? n_blocks - b0 : chunk;
        x_tile *o = packed + tile_offset(n_tiles, b0, len, t / TILE_TOKENS) + (b - b0);
        for (uint32_t i = 0; i < TILE_TOKENS; i++) {
            x_block block = { _mm256_setzero_si256(), 0, 0, 0 };
            if (t + i < n) block = quantise(x + (t + i) * ldx + b * 32);
            uint32_t q[8];
            _mm256_storeu_si256((void *)q, block.q);
            for (int c = 0; c < 8; c++) memcpy(o->q[c][i], &q[c], 4);
            o->xs[i] = block.xs;
            o->xm[i] = block.xs * (float)(block.sum0 + block.sum1);
            o->xi[i] = -128 * (block.sum0 + block.sum1);
            o->x0[i] = -128 * block.sum0;
        }
    }
}

static void x_pack(const float *x, size_t ldx, uint32_t n, uint32_t k, uint32_t t0, uint32_t t1, void *out)
{
    if (n <= STREAM_TOKENS)
        for (uint32_t t = t0; t < t1 && t < n; t++) pack_stream(x + t * ldx, k / 32, out, t);
    else
        for (uint32_t t = t0; t < t1 && t < n; t += TILE_TOKENS) pack_tile(x, ldx, n, k / 32, t, out);
}

static size_t linear_work(uint32_t n, uint32_t k)
{
    const size_t product = larger(plp_avx512_stream_work(n < STREAM_TOKENS ? n : STREAM_TOKENS, k), plp_avx512_panel_work(n, k));
    return larger(product, plp_avx512_float_work(k));
}

static void linear(const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy,
                   bool add, void *work)
{
    (n <= STREAM_TOKENS ? plp_avx512_stream : plp_avx512_panel)(w, r0, r1, x, n, y, ldy, add, work);
}

void plp_fill_avx512(plp_kernels *k)
{
    plp_fill_avx512_float(k);
    plp_fill_avx512_vector(k);
    plp_fill_avx512_attention(k);
    k->x_bytes = x_bytes;
    k->x_pack = x_pack;
    k->linear_work = linear_work;
    k->linear = linear;
}
