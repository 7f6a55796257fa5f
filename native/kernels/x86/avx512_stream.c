/*
 * kernels/x86/avx512_stream.c - tier "avx512": products of a few tokens (decode), at the speed of memory
 *
 * Rows are read strictly in file order, which is what the hardware prefetcher follows: sixteen rows are one
 * stream of 16 * n_blocks blocks, taken sixteen blocks at a time whatever n_blocks is. A step makes the 16
 * dot products of its blocks (lane = block), turns them into terms, and stores those; after 16 rows the
 * terms are transposed and added in block order, one lane per row: the same additions as in a panel.
 *
 *   work   per token: terms f32 [16 rows][n_blocks], and 16 to spare
 *
 * Weights stay unsigned: nibbles as they are, Q8_0 + 128, Q6_K + 32; the dot product is corrected by
 * -offset * sum(q), which xi and x0 hold for an offset of 128.
 */
#include "kernels/x86/avx512.h"

enum { STEP = 16, AHEAD_BYTES = 4096 };

INLINE __m512i pair_32(const void *a, const void *b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(load_256(a)), load_256(b), 1);
}
INLINE __m512i low4(__m512i v)  { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
INLINE __m512i high4(__m512i v) { return low4(_mm512_srli_epi16(v, 4)); }

/* Sixteen blocks. w[i]: blocks 2i and 2i + 1 in order (Q4_0, Q4_1: w[2i] the first, w[2i + 1] the second
 * halves of blocks 4i..4i+3). s, m: lane = block. */
typedef struct weights { __m512i w[8]; __m512 s, m; } weights;

INLINE weights load_q8_0(const uint8_t *p)
{
    weights o;
    __m512i d = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < 8; i++) {
        const uint8_t *at = p + 68 * i;                             /* words 0 and 17 of 64 bytes are scales */
        o.w[i] = _mm512_xor_si512(pair_32(at + 2, at + 36), _mm512_set1_epi8((char)0x80));
        d = _mm512_mask_permutexvar_epi16(d, (__mmask32)(3u << 2 * i), _mm512_set1_epi32(17 << 16), load_512(at));
    }
    o.s = _mm512_cvtph_ps(_mm512_castsi512_si256(d));
    o.m = o.s;
    return o;
}

INLINE weights load_q4_0(const uint8_t *p)
{
    weights o;
    __m512i d = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < 4; i++) {
        const uint8_t *at = p + 72 * i;                             /* words 0, 9, 18, 27 are scales */
        const __m512i v = load_4x16(at + 2, 18);
        o.w[2 * i] = low4(v);
        o.w[2 * i + 1] = high4(v);
        d = _mm512_mask_permutexvar_epi16(d, (__mmask32)(15u << 4 * i), _mm512_set1_epi64(0x001b001200090000), load_512(at));
    }
    o.s = _mm512_cvtph_ps(_mm512_castsi512_si256(d));
    o.m = o.s;
    return o;
}

INLINE weights load_q4_1(const uint8_t *p)
{
    weights o;
    __m512i d = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < 4; i++) {
        const uint8_t *at = p + 80 * i;                             /* dwords 0, 5, 10, 15: scale and minimum */
        const __m512i v = load_4x16(at + 4, 20);
        o.w[2 * i] = low4(v);
        o.w[2 * i + 1] = high4(v);
        d = _mm512_mask_permutexvar_epi32(d, (__mmask16)(15u << 4 * i),
                                          _mm512_setr4_epi32(0, 5, 10, 15), load_512(at));
    }
    o.s = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(d));
    o.m = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(d, 16)));
    return o;
}

INLINE __m512 two_halves(uint16_t low, uint16_t high)               /* eight lanes each */
{
    return _mm512_cvtph_ps(_mm256_set_m128i(_mm_set1_epi16((short)high), _mm_set1_epi16((short)low)));
}

INLINE weights load_q4_k(const uint8_t *p)
{
    const __m512i shift = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    weights o;
    UNROLL for (int i = 0; i < 8; i++) {                            /* 32 bytes: a block's low and the next one's high */
        const __m512i v = _mm512_broadcast_i64x4(load_256(p + i / 4 * 144 + 16 + i % 4 * 32));
        o.w[i] = low4(_mm512_srlv_epi64(v, shift));
    }
    uint64_t sc[2], min[2];
    q4_k_scales(p + 4, &sc[0], &min[0]);
    q4_k_scales(p + 148, &sc[1], &min[1]);
    const __m512 d = two_halves(load_u16(p), load_u16(p + 144)), dmin = two_halves(load_u16(p + 2), load_u16(p + 146));
    o.s = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_128(sc))));
    o.m = _mm512_mul_ps(_mm512_xor_ps(dmin, splat(-0.0f)), _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_128(min))));
    return o;
}

INLINE weights load_q6_k(const uint8_t *p)
{
    const __m512i up = _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2), down = _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2);
    const __m512i two_bits = _mm512_set1_epi8(0x30);
    weights o;
    UNROLL for (int i = 0; i < 4; i++) {                            /* 128 weights: four blocks */
        const uint8_t *at = p + i / 2 * 210;
        const __m512i low = load_512(at + i % 2 * 64), high = _mm512_broadcast_i64x4(load_256(at + 128 + i % 2 * 32));
        o.w[2 * i] = _mm512_or_si512(low4(low), _mm512_and_si512(_mm512_sllv_epi64(high, up), two_bits));
        o.w[2 * i + 1] = _mm512_or_si512(high4(low), _mm512_and_si512(_mm512_srlv_epi64(high, down), two_bits));
    }
    const __m256i sc = _mm256_set_m128i(load_128(p + 210 + 192), load_128(p + 192));
    const __m512 d = two_halves(load_u16(p + 208), load_u16(p + 418));
    o.s = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_srai_epi16(_mm256_slli_epi16(sc, 8), 8))));
    o.m = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_srai_epi16(sc, 8))));
    return o;
}

/* ---- dot products ------------------------------------------------------------------------- */

INLINE __m512i add_pairs_32(__m512i a, __m512i b)
{
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}
INLINE __m512i add_pairs_64(__m512i a, __m512i b)
{
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}
/* In each 128-bit lane: the sums of that lane of v[0..3]. */
INLINE __m512i add_lanes(const __m512i v[4])
{
    return add_pairs_64(add_pairs_32(v[0], v[1]), add_pairs_32(v[2], v[3]));
}

/* The terms of 16 blocks whose activations begin at entry `at` of x. */
INLINE __m512 terms(const int type, const weights *o, x_stream x, uint32_t at)
{
    const __m512i zero = _mm512_setzero_si512();
    const __m512 xs = _mm512_loadu_ps(x.xs + at);
    __m512i a[8], dot;
    if (type == PLP_TYPE_Q4_0 || type == PLP_TYPE_Q4_1) {
        UNROLL for (int i = 0; i < 4; i++)
            a[i] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, o->w[2 * i], load_512(x.first + 16 * at + 64 * i)),
                                       o->w[2 * i + 1], load_512(x.second + 16 * at + 64 * i));
        const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        dot = _mm512_permutexvar_epi32(in_order, add_lanes(a));
    } else {
        UNROLL for (int i = 0; i < 8; i++) a[i] = _mm512_dpbusd_epi32(zero, o->w[i], load_512(x.q + 32 * at + 64 * i));
        const __m512i low = add_lanes(a), high = add_lanes(a + 4);  /* lanes: even first, even second, odd first, odd second halves */
        const __m512i in_order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
        const __m512i first = _mm512_shuffle_i32x4(low, high, 0x88), second = _mm512_shuffle_i32x4(low, high, 0xdd);
        if (type == PLP_TYPE_Q6_K) {
            const __m512i x0 = load_512(x.x0 + at), x1 = _mm512_sub_epi32(load_512(x.xi + at), x0);
            const __m512i d0 = _mm512_add_epi32(_mm512_permutexvar_epi32(in_order, first), _mm512_srai_epi32(x0, 2));
            const __m512i d1 = _mm512_add_epi32(_mm512_permutexvar_epi32(in_order, second), _mm512_srai_epi32(x1, 2));
            return _mm512_mul_ps(_mm512_fmadd_ps(o->m, _mm512_cvtepi32_ps(d1), _mm512_mul_ps(o->s, _mm512_cvtepi32_ps(d0))), xs);
        }
        dot = _mm512_permutexvar_epi32(in_order, _mm512_add_epi32(first, second));
    }
    if (type == PLP_TYPE_Q8_0) dot = _mm512_add_epi32(dot, load_512(x.xi + at));
    if (type == PLP_TYPE_Q4_0) dot = _mm512_add_epi32(dot, _mm512_srai_epi32(load_512(x.xi + at), 4));
    const __m512 t = _mm512_mul_ps(_mm512_mul_ps(o->s, xs), _mm512_cvtepi32_ps(dot));
    return type == PLP_TYPE_Q4_1 || type == PLP_TYPE_Q4_K ? _mm512_fmadd_ps(o->m, _mm512_loadu_ps(x.xm + at), t) : t;
}

/* ---- rows --------------------------------------------------------------------------------- */

INLINE size_t terms_len(uint32_t n_blocks) { return (size_t)16 * n_blocks + 16; }

size_t plp_avx512_stream_work(uint32_t n, uint32_t k) { return n * terms_len(k / 32) * sizeof(float); }

/* The rows' blocks as one stream: 16 at a time; the last step of fewer than 16 rows may be a short one. */
INLINE void stream(const int type, const uint8_t *p, uint32_t n_rows, uint32_t n_blocks, const x_stream *x, uint32_t n, float *out)
{
    const size_t step_bytes = STEP * (type == PLP_TYPE_Q8_0 ? 34 : type == PLP_TYPE_Q4_0 ? 18 : type == PLP_TYPE_Q4_1 ? 20
                                      : type == PLP_TYPE_Q4_K ? 144 / 8 : 0) + (type == PLP_TYPE_Q6_K ? 420 : 0);
    const uint32_t total = n_rows * n_blocks;
    uint32_t at = 0;
    uint8_t last[STEP * 34];
    for (uint32_t b = 0; b < total; b += STEP, p += step_bytes) {
        if (total - b < STEP) {
            memset(last, 0, sizeof last);
            memcpy(last, p, step_bytes * (total - b) / STEP);
            p = last;
        }
        UNROLL for (size_t i = 0; i < step_bytes; i += 64) _mm_prefetch((const char *)p + AHEAD_BYTES + i, _MM_HINT_T0);
        weights o;
        switch (type) {
        case PLP_TYPE_Q8_0: o = load_q8_0(p); break;
        case PLP_TYPE_Q4_0: o = load_q4_0(p); break;
        case PLP_TYPE_Q4_1: o = load_q4_1(p); break;
        case PLP_TYPE_Q4_K: o = load_q4_k(p); break;
        default:            o = load_q6_k(p); break;
        }
        for (uint32_t t = 0; t < n; t++) _mm512_storeu_ps(out + t * terms_len(n_blocks) + b, terms(type, &o, x[t], at));
        at += STEP;
        if (at >= n_blocks) at = n_blocks >= STEP ? at - n_blocks : at % n_blocks;
    }
}

/* Lane r: the terms of row r added in block order. */
INLINE __m512 add_terms(const float *from, uint32_t n_blocks)
{
    __m512 acc = _mm512_setzero_ps();
    __m512i v[4];
    for (uint32_t b = 0; b < n_blocks; b += 4) {
        transpose_16x4(from + b, n_blocks * sizeof(float), v);
        for (uint32_t i = 0; i < 4 && b + i < n_blocks; i++) acc = _mm512_add_ps(acc, _mm512_castsi512_ps(v[i]));
    }
    return acc;
}

INLINE void rows_of(const int type, const plp_rows *w, uint32_t r0, uint32_t r1, const x_stream *x, uint32_t n, float *y,
                    size_t ldy, bool add, float *work)
{
    const uint32_t n_blocks = w->k / 32;
    for (uint32_t r = r0; r < r1; r += 16) {
        const uint32_t n_rows = r1 - r < 16 ? r1 - r : 16;
        const __mmask16 mask = lanes_below(n_rows);
        stream(type, (const uint8_t *)w->data + r * w->row_bytes, n_rows, n_blocks, x, n, work);
        for (uint32_t t = 0; t < n; t++) {
            float *to = y + t * ldy + r;
            __m512 v = add_terms(work + t * terms_len(n_blocks), n_blocks);
            if (add) v = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), v);
            _mm512_mask_storeu_ps(to, mask, v);
        }
    }
}

void plp_avx512_stream(const plp_rows *w, uint32_t r0, uint32_t r1, const void *packed, uint32_t n, float *y, size_t ldy,
                       bool add, void *work)
{
    x_stream x[STREAM_TOKENS];
    for (uint32_t t = 0; t < n; t++) x[t] = stream_view(packed, w->k / 32, t);
    switch (w->type) {
    case PLP_TYPE_Q8_0: rows_of(PLP_TYPE_Q8_0, w, r0, r1, x, n, y, ldy, add, work); break;
    case PLP_TYPE_Q4_0: rows_of(PLP_TYPE_Q4_0, w, r0, r1, x, n, y, ldy, add, work); break;
    case PLP_TYPE_Q4_1: rows_of(PLP_TYPE_Q4_1, w, r0, r1, x, n, y, ldy, add, work); break;
    case PLP_TYPE_Q4_K: rows_of(PLP_TYPE_Q4_K, w, r0, r1, x, n, y, ldy, add, work); break;
    case PLP_TYPE_Q6_K: rows_of(PLP_TYPE_Q6_K, w, r0, r1, x, n, y, ldy, add, work); break;
    }
}
