/*
 * kernels/x86/avx2_stream.c - tier "avx2": products of a few tokens (decode), at the speed of memory
 *
 * Rows are read strictly in file order, which is what the hardware prefetcher follows: sixteen rows are one
 * stream of 16 * n_blocks blocks, taken eight blocks at a time whatever n_blocks is. A step makes the 8 dot
 * products of its blocks (lane = block), turns them into terms, and stores those; after 16 rows the terms are
 * transposed and added in block order, one lane per row: the same additions as in a panel.
 *
 *   work   per token: terms f32 [16 rows][n_blocks], and 16 to spare
 *
 * avx2_panel.c says why no product saturates.
 */
#include "kernels/x86/avx2.h"

enum { STEP = 8, AHEAD_BYTES = 4096 };

/* Eight blocks. w[i]: block i (nibbles of Q4_0 and Q4_1: w[2i] the first, w[2i + 1] the second halves of
 * blocks 2i and 2i + 1). s, m: lane = block. */
typedef struct weights { __m256i w[8]; __m256 s, m; } weights;

INLINE __m128i eight_halves(const uint8_t *p, size_t stride)
{
    __m128i h = _mm_cvtsi32_si128(load_u16(p));
    h = _mm_insert_epi16(h, load_u16(p + stride), 1);
    h = _mm_insert_epi16(h, load_u16(p + 2 * stride), 2);
    h = _mm_insert_epi16(h, load_u16(p + 3 * stride), 3);
    h = _mm_insert_epi16(h, load_u16(p + 4 * stride), 4);
    h = _mm_insert_epi16(h, load_u16(p + 5 * stride), 5);
    h = _mm_insert_epi16(h, load_u16(p + 6 * stride), 6);
    return _mm_insert_epi16(h, load_u16(p + 7 * stride), 7);
}

INLINE weights load_q8_0(const uint8_t *p)
{
    weights o;
    UNROLL for (int i = 0; i < 8; i++) o.w[i] = load_256(p + 34 * i + 2);
    o.m = o.s = _mm256_cvtph_ps(eight_halves(p, 34));
    return o;
}

INLINE weights load_nibbles(const uint8_t *p, const int head)
{
    const int bytes = head + 16;
    weights o;
    UNROLL for (int i = 0; i < 4; i++) {
        const __m256i v = two_128(p + 2 * i * bytes + head, p + (2 * i + 1) * bytes + head);
        o.w[2 * i] = low4(v);
        o.w[2 * i + 1] = high4(v);
    }
    o.m = o.s = _mm256_cvtph_ps(eight_halves(p, bytes));
    if (head == 4) o.m = _mm256_cvtph_ps(eight_halves(p + 2, bytes));
    return o;
}

INLINE weights load_q4_k(const uint8_t *p)
{
    uint64_t sc, min;
    weights o;
    UNROLL for (int i = 0; i < 4; i++) {
        const __m256i v = load_256(p + 16 + 32 * i);
        o.w[2 * i] = low4(v);
        o.w[2 * i + 1] = high4(v);
    }
    q4_k_scales(p + 4, &sc, &min);
    o.s = _mm256_mul_ps(splat(_cvtsh_ss(load_u16(p))), bytes_ps(&sc));
    o.m = _mm256_mul_ps(splat(-_cvtsh_ss(load_u16(p + 2))), bytes_ps(&min));
    return o;
}

INLINE weights load_q6_k(const uint8_t *p)
{
    const __m256i two_bits = _mm256_set1_epi8(0x30);
    weights o;
    UNROLL for (int half = 0; half < 2; half++) {
        const __m256i a = load_256(p + 64 * half), e = load_256(p + 64 * half + 32), h = load_256(p + 128 + 32 * half);
        o.w[4 * half] = _mm256_or_si256(low4(a), _mm256_and_si256(_mm256_slli_epi16(h, 4), two_bits));
        o.w[4 * half + 1] = _mm256_or_si256(low4(e), _mm256_and_si256(_mm256_slli_epi16(h, 2), two_bits));
        o.w[4 * half + 2] = _mm256_or_si256(high4(a), _mm256_and_si256(h, two_bits));
        o.w[4 * half + 3] = _mm256_or_si256(high4(e), _mm256_and_si256(_mm256_srli_epi16(h, 2), two_bits));
    }
    const __m128i sc = load_128(p + 192);                           /* a block's two scales side by side */
    const __m256 d = splat(_cvtsh_ss(load_u16(p + 208)));
    o.s = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_srai_epi16(_mm_slli_epi16(sc, 8), 8))));
    o.m = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_srai_epi16(sc, 8))));
    return o;
}

/* ---- dot products ------------------------------------------------------------------------- */

INLINE __m256i widen(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

/* In each 128-bit lane: the sums of that lane of v[0..3]. */
INLINE __m256i add_lanes(const __m256i v[4])
{
    return _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
}

/* The terms of 8 blocks whose activations begin at entry `at` of x. */
INLINE __m256 terms(const int type, const weights *o, x_stream x, uint32_t at)
{
    const __m256 xs = _mm256_loadu_ps(x.xs + at);
    __m256i a[8], dot;
    if (type == PLP_TYPE_Q4_0 || type == PLP_TYPE_Q4_1) {
        UNROLL for (int i = 0; i < 4; i++)
            a[i] = widen(_mm256_add_epi16(_mm256_maddubs_epi16(o->w[2 * i], load_256(x.first + 16 * at + 32 * i)),
                                          _mm256_maddubs_epi16(o->w[2 * i + 1], load_256(x.second + 16 * at + 32 * i))));
        /* lanes: even blocks, odd blocks */
        dot = _mm256_permutevar8x32_epi32(add_lanes(a), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    } else {
        UNROLL for (int i = 0; i < 8; i++) {
            const __m256i q = load_256(x.q + 32 * at + 32 * i);
            a[i] = widen(type == PLP_TYPE_Q8_0 ? _mm256_maddubs_epi16(_mm256_abs_epi8(o->w[i]), _mm256_sign_epi8(q, o->w[i]))
                                               : _mm256_maddubs_epi16(o->w[i], q));
        }
        const __m256i low = add_lanes(a), high = add_lanes(a + 4);  /* lanes: first halves, second halves */
        const __m256i first = _mm256_permute2x128_si256(low, high, 0x20), second = _mm256_permute2x128_si256(low, high, 0x31);
        if (type == PLP_TYPE_Q6_K) {
            const __m256i x0 = load_256(x.x0 + at), x1 = _mm256_sub_epi32(load_256(x.xi + at), x0);
            const __m256 d0 = _mm256_cvtepi32_ps(_mm256_add_epi32(first, _mm256_srai_epi32(x0, 2)));
            const __m256 d1 = _mm256_cvtepi32_ps(_mm256_add_epi32(second, _mm256_srai_epi32(x1, 2)));
            return _mm256_mul_ps(_mm256_fmadd_ps(o->m, d1, _mm256_mul_ps(o->s, d0)), xs);
        }
        dot = _mm256_add_epi32(first, second);
    }
    if (type == PLP_TYPE_Q4_0) dot = _mm256_add_epi32(dot, _mm256_srai_epi32(load_256(x.xi + at), 4));
    const __m256 t = _mm256_mul_ps(_mm256_mul_ps(o->s, xs), _mm256_cvtepi32_ps(dot));
    return type == PLP_TYPE_Q4_1 || type == PLP_TYPE_Q4_K ? _mm256_fmadd_ps(o->m, _mm256_loadu_ps(x.xm + at), t) : t;
}

/* ---- rows --------------------------------------------------------------------------------- */

INLINE size_t terms_len(uint32_t n_blocks) { return (size_t)16 * n_blocks + 16; }

size_t plp_avx2_stream_work(uint32_t n, uint32_t k) { return n * terms_len(k / 32) * sizeof(float); }

INLINE uint32_t step_bytes(const int type)
{
    switch (type) {
    case PLP_TYPE_Q8_0: return 8 * 34;
    case PLP_TYPE_Q4_0: return 8 * 18;
    case PLP_TYPE_Q4_1: return 8 * 20;
    case PLP_TYPE_Q4_K: return 144;
    default:            return 210;
    }
}

/* The rows' blocks as one stream: 8 at a time; the last step of fewer than 16 rows may be a short one. */
INLINE void stream(const int type, const uint8_t *p, uint32_t n_rows, uint32_t n_blocks, const x_stream *x, uint32_t n, float *out)
{
    const uint32_t bytes = step_bytes(type), total = n_rows * n_blocks;
    uint32_t at = 0;
    uint8_t last[8 * 34];
    for (uint32_t b = 0; b < total; b += STEP, p += bytes) {
        if (total - b < STEP) {
            memset(last, 0, sizeof last);
            memcpy(last, p, (size_t)bytes * (total - b) / STEP);
            p = last;
        }
        UNROLL for (uint32_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + AHEAD_BYTES + i);
        weights o;
        switch (type) {
        case PLP_TYPE_Q8_0: o = load_q8_0(p); break;
        case PLP_TYPE_Q4_0: o = load_nibbles(p, 2); break;
        case PLP_TYPE_Q4_1: o = load_nibbles(p, 4); break;
        case PLP_TYPE_Q4_K: o = load_q4_k(p); break;
        default:            o = load_q6_k(p); break;
        }
        for (uint32_t t = 0; t < n; t++) _mm256_storeu_ps(out + t * terms_len(n_blocks) + b, terms(type, &o, x[t], at));
        at += STEP;
        if (at >= n_blocks) at = n_blocks >= STEP ? at - n_blocks : at % n_blocks;
    }
}

/* Lane r: the terms of rows r added in block order. */
INLINE __m256 add_terms(const float *from, uint32_t n_blocks)
{
    __m256 acc = _mm256_setzero_ps();
    __m256i v[4];
    for (uint32_t b = 0; b < n_blocks; b += 4) {
        transpose_8x4(from + b, n_blocks * sizeof(float), v);
        for (uint32_t i = 0; i < 4 && b + i < n_blocks; i++) acc = _mm256_add_ps(acc, _mm256_castsi256_ps(v[i]));
    }
    return acc;
}

INLINE void rows_of(const int type, const plp_rows *w, uint32_t r0, uint32_t r1, const x_stream *x, uint32_t n, float *y,
                    size_t ldy, bool add, float *work)
{
    const uint32_t n_blocks = w->k / 32;
    for (uint32_t r = r0; r < r1; r += 16) {
        const uint32_t n_rows = r1 - r < 16 ? r1 - r : 16;
        stream(type, (const uint8_t *)w->data + r * w->row_bytes, n_rows, n_blocks, x, n, work);
        for (uint32_t t = 0; t < n; t++) {
            const float *from = work + t * terms_len(n_blocks);
            const pair v = { add_terms(from, n_blocks), add_terms(from + 8 * (size_t)n_blocks, n_blocks) };
            put_rows(y + t * ldy + r, v, n_rows, add);
        }
    }
}

void plp_avx2_stream(const plp_rows *w, uint32_t r0, uint32_t r1, const void *packed, uint32_t n, float *y, size_t ldy,
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
