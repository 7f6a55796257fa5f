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

/* Four 32-blocks quantised at once; lane i of the vectors belongs to block i. */
typedef struct x_blocks {
    __m256i q[4];
    __m128  xs, xm;
    __m128i xi, x0;
} x_blocks;

static const float zeros[32];               /* stands for a block that is not there */

INLINE __m256 magnitude(const float *x)
{
    const __m512 m = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(x)), _mm512_abs_ps(_mm512_loadu_ps(x + 16)));
    return _mm256_max_ps(_mm512_castps512_ps256(m), _mm512_extractf32x8_ps(m, 1));
}
INLINE __m256 max_pairs(__m256 a, __m256 b) { return _mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)); }
INLINE __m128i times_minus_128(__m128i v)   { return _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(v, 7)); }

INLINE x_blocks quantise(const float *const x[4])
{
    const __m256d m01 = _mm256_castps_pd(max_pairs(magnitude(x[0]), magnitude(x[1])));
    const __m256d m23 = _mm256_castps_pd(max_pairs(magnitude(x[2]), magnitude(x[3])));
    const __m256 m = _mm256_max_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(m01, m23)), _mm256_castpd_ps(_mm256_unpackhi_pd(m01, m23)));
    const __m128 amax = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    const __mmask8 some = _mm_cmp_ps_mask(amax, _mm_set1_ps(PLP_X_ZERO), _CMP_GE_OQ);
    const __m128 inverse = _mm_maskz_div_ps(some, _mm_set1_ps(127), amax);
    __m256i sum[4];
    x_blocks o;
    UNROLL for (int i = 0; i < 4; i++) {
        const __m512 v = _mm512_permutexvar_ps(_mm512_set1_epi32(i), _mm512_castps128_ps512(inverse));
        const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x[i]), v));
        const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x[i] + 16), v));
        o.q[i] = _mm256_set_m128i(_mm512_cvtepi32_epi8(b), _mm512_cvtepi32_epi8(a));
        sum[i] = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), o.q[i]);
    }
    const __m256i sums = _mm256_hadd_epi32(_mm256_hadd_epi32(sum[0], sum[1]), _mm256_hadd_epi32(sum[2], sum[3]));
    const __m128i first = _mm256_castsi256_si128(sums), all = _mm_add_epi32(first, _mm256_extracti128_si256(sums, 1));
    o.xs = _mm_maskz_div_ps(some, amax, _mm_set1_ps(127));
    o.xm = _mm_mul_ps(o.xs, _mm_cvtepi32_ps(all));
    o.xi = times_minus_128(all);
    o.x0 = times_minus_128(first);
    return o;
}

/* Two 256-blocks as Q4_K's rows come out of their interleaving: run r of 32 bytes holds block 2r low and 2r + 1 high;
 * lanes are first halves of runs 0 2 4 6, second halves, then the same of runs 1 3 5 7. */
static void pack_pairs(const x_stream v, uint32_t n_blocks)
{
    const __m512i at = _mm512_setr_epi32(0, 32, 64, 96, 4, 36, 68, 100, 16, 48, 80, 112, 20, 52, 84, 116);     /* dwords */
    int32_t *to = (int32_t *)v.pair;
    for (uint32_t b = 0; b < n_blocks; b += 8, to += 128)
        UNROLL for (int c = 0; c < 4; c++) {
            const int8_t *from = v.q + 32 * b + 4 * c;
            _mm512_storeu_si512(to + 16 * c, _mm512_i32gather_epi32(at, from, 4));
            _mm512_storeu_si512(to + 16 * (c + 4), _mm512_i32gather_epi32(at, from + 32, 4));
        }
}

static void pack_stream(const float *x, uint32_t n_blocks, void *packed, uint32_t token)
{
    const x_stream v = stream_view(packed, n_blocks, token);
    int8_t *q = (int8_t *)v.q, *first = (int8_t *)v.first, *second = (int8_t *)v.second;
    float *xs = (float *)v.xs, *xm = (float *)v.xm;
    int32_t *xi = (int32_t *)v.xi, *x0 = (int32_t *)v.x0;
    for (uint32_t b = 0; b < n_blocks; b += 4) {            /* up to three blocks too many: written over below */
        const float *from[4];
        for (uint32_t i = 0; i < 4; i++) from[i] = b + i < n_blocks ? x + (b + i) * 32 : zeros;
        const x_blocks o = quantise(from);
        _mm_storeu_ps(xs + b, o.xs);
        _mm_storeu_ps(xm + b, o.xm);
        _mm_storeu_si128((void *)(xi + b), o.xi);
        _mm_storeu_si128((void *)(x0 + b), o.x0);
        UNROLL for (uint32_t i = 0; i < 4; i++) {
            _mm256_storeu_si256((void *)(q + 32 * (b + i)), o.q[i]);
            _mm_storeu_si128((void *)(first + 16 * (b + i)), _mm256_castsi256_si128(o.q[i]));
            _mm_storeu_si128((void *)(second + 16 * (b + i)), _mm256_extracti128_si256(o.q[i], 1));
        }
    }
    for (uint32_t b = n_blocks; b < n_blocks + 16; b++) {   /* round again */
        const uint32_t from = b - n_blocks;
        _mm256_storeu_si256((void *)(q + 32 * b), load_256(q + 32 * from));
        _mm_storeu_si128((void *)(first + 16 * b), load_128(first + 16 * from));
        _mm_storeu_si128((void *)(second + 16 * b), load_128(second + 16 * from));
        xs[b] = xs[from];
        xm[b] = xm[from];
        xi[b] = xi[from];
        x0[b] = x0[from];
    }
    if (n_blocks % 8 == 0) pack_pairs(v, n_blocks);
}

/* Tokens t..t+4 of n; the ones past n are zeros. */
static void pack_tile(const float *x, size_t ldx, uint32_t n, uint32_t n_blocks, uint32_t t, x_tile *packed)
{
    const uint32_t n_tiles = round_up(n, TILE_TOKENS) / TILE_TOKENS, chunk = chunk_blocks(n_blocks);
    for (uint32_t b0 = 0; b0 < n_blocks; b0 += chunk) {
        const uint32_t len = n_blocks - b0 < chunk ? n_blocks - b0 : chunk;
        x_tile *to = packed + tile_offset(n_tiles, b0, len, t / TILE_TOKENS);
        for (uint32_t b = b0; b < b0 + len; b++, to++) {
            const float *from[TILE_TOKENS];
            for (uint32_t i = 0; i < TILE_TOKENS; i++) from[i] = t + i < n ? x + (t + i) * ldx + b * 32 : zeros;
            const x_blocks o = quantise(from);
            const __m256i a = _mm256_unpacklo_epi32(o.q[0], o.q[1]), c = _mm256_unpacklo_epi32(o.q[2], o.q[3]);
            const __m256i d = _mm256_unpackhi_epi32(o.q[0], o.q[1]), e = _mm256_unpackhi_epi32(o.q[2], o.q[3]);
            const __m256i column[4] = { _mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c),
                                        _mm256_unpacklo_epi64(d, e), _mm256_unpackhi_epi64(d, e) };
            UNROLL for (int j = 0; j < 4; j++) {
                _mm_storeu_si128((void *)to->q[j], _mm256_castsi256_si128(column[j]));
                _mm_storeu_si128((void *)to->q[j + 4], _mm256_extracti128_si256(column[j], 1));
            }
            _mm_storeu_ps(to->xs, o.xs);
            _mm_storeu_ps(to->xm, o.xm);
            _mm_storeu_si128((void *)to->xi, o.xi);
            _mm_storeu_si128((void *)to->x0, o.x0);
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
    plp_fill_avx512_sealed(k);
    k->x_bytes = x_bytes;
    k->x_pack = x_pack;
    k->linear_work = linear_work;
    k->linear = linear;
}
