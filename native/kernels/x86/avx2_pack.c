/*
 * kernels/x86/avx2_pack.c - tiers "avx2" and above: activations quantised and packed
 *
 * packed.h has the two shapes. Four blocks are quantised at once: four of one token, or one of four tokens.
 */
#include "kernels/x86/avx2.h"

/* Four 32-blocks quantised at once; lane i of the vectors belongs to block i. */
typedef struct x_blocks {
    __m256i q[4];
    __m128  xs, xm;
    __m128i xi, x0;
} x_blocks;

static const float zeros[32];           /* stands for a block that is not there */

INLINE __m256 magnitude(const float *x)
{
    const __m256 bits = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256 a = _mm256_max_ps(_mm256_and_ps(_mm256_loadu_ps(x), bits), _mm256_and_ps(_mm256_loadu_ps(x + 8), bits));
    const __m256 b = _mm256_max_ps(_mm256_and_ps(_mm256_loadu_ps(x + 16), bits), _mm256_and_ps(_mm256_loadu_ps(x + 24), bits));
    return _mm256_max_ps(a, b);
}
INLINE __m256 max_pairs(__m256 a, __m256 b) { return _mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)); }
INLINE __m128i times_minus_128(__m128i v)   { return _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(v, 7)); }

/* 32 numbers times v, rounded, as bytes in order. */
INLINE __m256i round32(const float *x, __m256 v)
{
    __m256i r[4];
    UNROLL for (int i = 0; i < 4; i++) r[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), v));
    const __m256i lanes = _mm256_packs_epi16(_mm256_packs_epi32(r[0], r[1]), _mm256_packs_epi32(r[2], r[3]));
    return _mm256_permutevar8x32_epi32(lanes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

INLINE x_blocks quantise(const float *const x[4])
{
    const __m256d m01 = _mm256_castps_pd(max_pairs(magnitude(x[0]), magnitude(x[1])));
    const __m256d m23 = _mm256_castps_pd(max_pairs(magnitude(x[2]), magnitude(x[3])));
    const __m256 m = _mm256_max_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(m01, m23)), _mm256_castpd_ps(_mm256_unpackhi_pd(m01, m23)));
    const __m128 amax = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    const __m128 some = _mm_cmp_ps(amax, _mm_set1_ps(PLP_X_ZERO), _CMP_GE_OQ);
    const __m128 inverse = _mm_and_ps(some, _mm_div_ps(_mm_set1_ps(127), amax));
    __m256i sum[4];
    x_blocks o;
    UNROLL for (int i = 0; i < 4; i++) {
        const __m256 v = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(inverse), _mm256_set1_epi32(i));
        o.q[i] = round32(x[i], v);
        sum[i] = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), o.q[i]), _mm256_set1_epi16(1));
    }
    const __m256i sums = _mm256_hadd_epi32(_mm256_hadd_epi32(sum[0], sum[1]), _mm256_hadd_epi32(sum[2], sum[3]));
    const __m128i first = _mm256_castsi256_si128(sums), all = _mm_add_epi32(first, _mm256_extracti128_si256(sums, 1));
    o.xs = _mm_and_ps(some, _mm_div_ps(amax, _mm_set1_ps(127)));
    o.xm = _mm_mul_ps(o.xs, _mm_cvtepi32_ps(all));
    o.xi = times_minus_128(all);
    o.x0 = times_minus_128(first);
    return o;
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

void plp_x86_x_pack(const float *x, size_t ldx, uint32_t n, uint32_t k, uint32_t t0, uint32_t t1, bool streamed, void *out)
{
    if (streamed)
        for (uint32_t t = t0; t < t1 && t < n; t++) pack_stream(x + t * ldx, k / 32, out, t);
    else
        for (uint32_t t = t0; t < t1 && t < n; t += TILE_TOKENS) pack_tile(x, ldx, n, k / 32, t, out);
}

static void x_pack(const float *x, size_t ldx, uint32_t n, uint32_t k, uint32_t t0, uint32_t t1, void *out)
{
    plp_x86_x_pack(x, ldx, n, k, t0, t1, n <= FEW_TOKENS, out);
}

void plp_fill_avx2_pack(plp_kernels *k)
{
    k->x_bytes = packed_bytes;
    k->x_pack = x_pack;
}
