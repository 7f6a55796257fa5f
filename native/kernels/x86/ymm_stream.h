/*
 * kernels/x86/ymm_stream.h - tiers "avx2" and "avxvnni": products of a few tokens (decode), at the speed of memory
 *
 * Rows are read strictly in file order, which is what the hardware prefetcher follows: sixteen rows are one
 * stream of 16 * n_blocks blocks, taken eight blocks at a time whatever n_blocks is. A step makes the 8 dot
 * products of its blocks (lane = block), turns them into terms, and stores those; after 16 rows the terms are
 * transposed and added in block order, one lane per row: the same additions as in a panel.
 *
 *   work   per token: terms f32 [16 rows][n_blocks], and 16 to spare
 *
 * avx2_panel.c says why no product of vpmaddubsw saturates; vpdpbusd's sums are exact.
 */
#ifndef PLP_KERNELS_X86_YMM_STREAM_H
#define PLP_KERNELS_X86_YMM_STREAM_H

#include "kernels/x86/avx2.h"

enum { STEP = 8, AHEAD_BYTES = 4096 };

/* Eight blocks. w[i]: block i; is_halves: w[2i] the first, w[2i + 1] the second halves of blocks 2i and 2i + 1.
 * s, m, m2: lane = block. */
typedef struct weights { __m256i w[8]; __m256 s, m, m2; } weights;

INLINE weights load_q8_0(const uint8_t *p)
{
    weights o;
    UNROLL for (int i = 0; i < 8; i++) o.w[i] = stored_q8(load_256(p + 34 * i + 2));
    o.m2 = o.m = o.s = eight_halves(p, 34);
    return o;
}

/* Halves of two blocks, a lane each. `at`: where in their dwords the fifth bits are, if the type has any. */
INLINE __m256i nibble_weights(const int type, __m256i q, const uint8_t *head_a, const uint8_t *head_b, const int at)
{
    if (is_looked_up(type)) return looked_up(type, q);
    if (!has_fifth_bits(type)) return q;
    const __m256i h = _mm256_set_m128i(_mm_cvtsi32_si128((int)load_u32(head_b - 4)), _mm_cvtsi32_si128((int)load_u32(head_a - 4)));
    const __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0, 0x0101010101010101);
    const __m256i spread = _mm256_shuffle_epi8(h, _mm256_add_epi8(byte, _mm256_set1_epi8((char)(at / 8))));
    return _mm256_or_si256(q, value_where(spread, _mm256_set1_epi64x((long long)0x8040201008040201), 16));
}

/* 32-blocks: a header that ends in the fifth bits, then 16 bytes with the first 16 weights in their low halves. */
INLINE weights load_nibbles(const int type, const uint8_t *p)
{
    const uint32_t bytes = bytes_per_8(type) / 8, head = bytes - 16;
    weights o;
    UNROLL for (int i = 0; i < 4; i++) {
        const uint8_t *a = p + 2 * i * bytes + head, *b = a + bytes;
        const __m256i v = two_128(a, b);
        o.w[2 * i] = nibble_weights(type, low4(v), a, b, 0);
        o.w[2 * i + 1] = nibble_weights(type, high4(v), a, b, 16);
    }
    if (type == PLP_TYPE_MXFP4) {
        uint8_t e[8];
        UNROLL for (int i = 0; i < 8; i++) e[i] = p[17 * i];
        o.s = e8m0(e);
        o.m2 = o.m = o.s;
    } else if (plp_type_form(type) == PLP_FORM_MIN) {
        const pair sm = eight_pairs(p, bytes);
        o.s = sm.a;
        o.m2 = o.m = sm.b;
    } else
        o.m2 = o.m = o.s = eight_halves(p, bytes);
    return o;
}

INLINE weights load_iq4_xs(const uint8_t *p)
{
    const uint64_t sc = plp_scales_iq4_xs(p + 2);
    weights o;
    UNROLL for (int i = 0; i < 4; i++) {
        const __m256i v = load_256(p + 8 + 32 * i);
        o.w[2 * i] = looked_up(PLP_TYPE_IQ4_XS, low4(v));
        o.w[2 * i + 1] = looked_up(PLP_TYPE_IQ4_XS, high4(v));
    }
    o.m2 = o.m = o.s = _mm256_mul_ps(splat(_cvtsh_ss(load_u16(p))), signed_bytes_ps(&sc));
    return o;
}

/* In each byte: `value` (a power of two) if bit `bit` is set. */
INLINE __m256i value_of_bit(__m256i h, const int bit, const int value)
{
    const int up = __builtin_ctz((unsigned)value) - bit;
    return _mm256_and_si256(up >= 0 ? _mm256_slli_epi16(h, up) : _mm256_srli_epi16(h, -up), _mm256_set1_epi8((char)value));
}

/* Q5_K has fifth bits, of all eight blocks in a byte, before the nibbles. */
INLINE weights load_q45_k(const int type, const uint8_t *p)
{
    const bool five = type == PLP_TYPE_Q5_K;
    const __m256i h = load_256(p + 16);
    uint64_t sc, min;
    weights o;
    UNROLL for (int i = 0; i < 4; i++) {
        const __m256i v = load_256(p + (five ? 48 : 16) + 32 * i);
        o.w[2 * i] = low4(v);
        o.w[2 * i + 1] = high4(v);
    }
    if (five) UNROLL for (int i = 0; i < 8; i++) o.w[i] = _mm256_or_si256(o.w[i], value_of_bit(h, i, 16));
    plp_scales_q4_k(p + 4, &sc, &min);
    o.s = _mm256_mul_ps(splat(_cvtsh_ss(load_u16(p))), bytes_ps(&sc));
    o.m2 = o.m = _mm256_mul_ps(splat(-_cvtsh_ss(load_u16(p + 2))), bytes_ps(&min));
    return o;
}

INLINE weights load_q2_k(const uint8_t *p)
{
    const __m128i sc = load_128(p), low = _mm_set1_epi8(15);
    const __m256i scales = _mm256_broadcastsi128_si256(_mm_and_si128(sc, low));
    weights o;
    UNROLL for (int i = 0; i < 8; i++) {                            /* a lane's words times its scale: no byte carries */
        const __m256i index = _mm256_set_m128i(_mm_set1_epi16((short)(0x8001 + 2 * i)), _mm_set1_epi16((short)(0x8000 + 2 * i)));
        o.w[i] = _mm256_mullo_epi16(two_bits(load_256(p + 16 + i / 4 * 32), i % 4 * 2), _mm256_shuffle_epi8(scales, index));
    }
    const pair m = two_scales(-_cvtsh_ss(load_u16(p + 82)), _mm_and_si128(_mm_srli_epi16(sc, 4), low));
    o.m = m.a;
    o.m2 = m.b;
    o.s = splat(_cvtsh_ss(load_u16(p + 80)));
    return o;
}

INLINE weights load_q3_k(const uint8_t *p)
{
    const __m256i h = load_256(p);
    uint64_t sc[2];
    weights o;
    UNROLL for (int i = 0; i < 8; i++)
        o.w[i] = _mm256_or_si256(two_bits(load_256(p + 32 + i / 4 * 32), i % 4 * 2), value_of_bit(h, i, 4));
    plp_scales_q3_k(p + 96, sc);
    const pair s = two_scales(_cvtsh_ss(load_u16(p + 108)), load_128(sc));
    o.s = s.a;
    o.m2 = o.m = s.b;
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
    const pair s = two_scales(_cvtsh_ss(load_u16(p + 208)), load_128(p + 192));
    o.s = s.a;
    o.m2 = o.m = s.b;
    return o;
}

/* ---- dot products ------------------------------------------------------------------------- */

/* In each 128-bit lane: the sums of a's two qwords beside each other, then of b's; of dwords 0 and 1, 2 and 3 of both. Two shuffles
 * and an addition, of any numbers: vphadd is more than that on every AMD CPU. */
#define FOLD_64(add, a, b) add(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b))
#define FOLD_32(add, a, b) add(shuffle_32(a, b, 0x88), shuffle_32(a, b, 0xdd))
#define shuffle_32(a, b, by) _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), by))

/* In each 128-bit lane: the sums of that lane of v[0..3]. */
INLINE __m256i add_lanes(const __m256i v[4])
{
    const __m256i a = FOLD_64(_mm256_add_epi32, v[0], v[1]), b = FOLD_64(_mm256_add_epi32, v[2], v[3]);
    return FOLD_32(_mm256_add_epi32, a, b);
}

INLINE __m256i widen(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }
INLINE __m256i signed_products(__m256i w, __m256i q) { return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w)); }

/* How often sums of vpmaddubsw's products may be added in pairs before 16 bits are too few: eight of at most 31 * 127 fit,
 * four of 63 * 127, sixteen of 15 * 127. vpdpbusd does better than one step, not than two. 0: not at all, as for signed bytes. */
INLINE int narrow_steps(int type)
{
    switch (type) {
    case PLP_TYPE_Q3_K: case PLP_TYPE_Q4_K: case PLP_TYPE_Q5_K: return 2;
    case PLP_TYPE_Q4_0: case PLP_TYPE_Q4_1: return HAS_DPBUSD ? 0 : 3;
    case PLP_TYPE_Q5_0: case PLP_TYPE_Q5_1: case PLP_TYPE_MXFP4: return HAS_DPBUSD ? 0 : 2;
    default: return HAS_DPBUSD || is_signed(type) ? 0 : 1;
    }
}

/* add_lanes of such products: the fewer registers are left, the fewer are widened. */
INLINE __m256i add_narrow_lanes(const int steps, const __m256i v[4])
{
    const __m256i a = FOLD_64(_mm256_add_epi16, v[0], v[1]), b = FOLD_64(_mm256_add_epi16, v[2], v[3]);
    return steps == 2 ? widen(FOLD_32(_mm256_add_epi16, a, b)) : FOLD_32(_mm256_add_epi32, widen(a), widen(b));
}

/* Dots of four bytes each: of one register with another, and of two with two. */
INLINE __m256i dots(const int type, __m256i w, __m256i q)
{
    return is_signed(type) ? widen(signed_products(w, q)) : add_dots(_mm256_setzero_si256(), w, q);
}
INLINE __m256i dots_of_two(const int type, const __m256i w[2], __m256i q0, __m256i q1)
{
    if (is_signed(type)) return _mm256_add_epi32(dots(type, w[0], q0), dots(type, w[1], q1));
    return add_dots(dots(type, w[0], q0), w[1], q1);
}

/* Dots less what the weights are too large, from -128 * sum(q). */
INLINE __m256i less_offset(const int type, __m256i dot, __m256i x)
{
    return weight_offset(type) ? _mm256_add_epi32(dot, _mm256_srai_epi32(x, __builtin_ctz(128u / weight_offset(type)))) : dot;
}

/* xs * sum(q) of a half of each block, from -128 * sum(q). */
INLINE __m256 half_sum(__m256 xs, __m256i x) { return _mm256_mul_ps(xs, _mm256_mul_ps(_mm256_cvtepi32_ps(x), splat(-0x1p-7f))); }

/* The terms of 8 blocks whose activations begin at entry `at` of x. */
INLINE __m256 terms(const int type, const weights *o, x_stream x, uint32_t at)
{
    const int form = plp_type_form(type);
    const __m256 xs = _mm256_loadu_ps(x.xs + at);
    __m256i a[8], dot;
    if (is_halves(type)) {
        const int steps = narrow_steps(type);
        UNROLL for (int i = 0; i < 4; i++) {
            const __m256i q0 = load_256(x.first + 16 * at + 32 * i), q1 = load_256(x.second + 16 * at + 32 * i);
            a[i] = steps ? _mm256_add_epi16(_mm256_maddubs_epi16(o->w[2 * i], q0), _mm256_maddubs_epi16(o->w[2 * i + 1], q1))
                         : dots_of_two(type, o->w + 2 * i, q0, q1);
        }
        /* lanes: even blocks, odd blocks */
        dot = _mm256_permutevar8x32_epi32(steps ? add_narrow_lanes(steps - 1, a) : add_lanes(a), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    } else {
        const int steps = narrow_steps(type);
        UNROLL for (int i = 0; i < 8; i++) {
            const __m256i q = load_256(x.q + 32 * at + 32 * i);
            a[i] = steps ? _mm256_maddubs_epi16(o->w[i], q) : dots(type, o->w[i], q);
        }
        const __m256i low = steps ? add_narrow_lanes(steps, a) : add_lanes(a);      /* lanes: first halves, second halves */
        const __m256i high = steps ? add_narrow_lanes(steps, a + 4) : add_lanes(a + 4);
        const __m256i first = _mm256_inserti128_si256(low, _mm256_castsi256_si128(high), 1);
        const __m256i second = _mm256_blend_epi32(high, _mm256_castsi128_si256(_mm256_extracti128_si256(low, 1)), 15);
        if (form == PLP_FORM_SUB) {
            const __m256i x0 = load_256(x.x0 + at), x1 = _mm256_sub_epi32(load_256(x.xi + at), x0);
            const __m256 d0 = _mm256_cvtepi32_ps(less_offset(type, first, x0));
            const __m256 d1 = _mm256_cvtepi32_ps(less_offset(type, second, x1));
            return _mm256_mul_ps(_mm256_fmadd_ps(o->m, d1, _mm256_mul_ps(o->s, d0)), xs);
        }
        dot = _mm256_add_epi32(first, second);
    }
    dot = less_offset(type, dot, load_256(x.xi + at));
    const __m256 t = _mm256_mul_ps(_mm256_mul_ps(o->s, xs), _mm256_cvtepi32_ps(dot));
    if (form == PLP_FORM_MIN) return _mm256_fmadd_ps(o->m, _mm256_loadu_ps(x.xm + at), t);
    if (form == PLP_FORM_MN2) {
        const __m256i x0 = load_256(x.x0 + at), x1 = _mm256_sub_epi32(load_256(x.xi + at), x0);
        return _mm256_fmadd_ps(o->m2, half_sum(xs, x1), _mm256_fmadd_ps(o->m, half_sum(xs, x0), t));
    }
    return t;
}

/* ---- rows --------------------------------------------------------------------------------- */


size_t TIER(stream_work)(uint32_t n, uint32_t k) { return n * terms_len(k / 32) * sizeof(float); }

/* The rows' blocks as one stream: 8 at a time; the last step of fewer than 16 rows may be a short one. */
INLINE void stream(const int type, const uint8_t *p, uint32_t n_rows, uint32_t n_blocks, const x_stream *x, uint32_t n, float *out)
{
    const uint32_t bytes = bytes_per_8(type), total = n_rows * n_blocks;
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
        case PLP_TYPE_Q2_K: o = load_q2_k(p); break;
        case PLP_TYPE_Q3_K: o = load_q3_k(p); break;
        case PLP_TYPE_Q4_K: case PLP_TYPE_Q5_K: o = load_q45_k(type, p); break;
        case PLP_TYPE_Q6_K: o = load_q6_k(p); break;
        case PLP_TYPE_Q8_0: o = load_q8_0(p); break;
        case PLP_TYPE_IQ4_XS: o = load_iq4_xs(p); break;
        default:            o = load_nibbles(type, p); break;
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

typedef void stream_fn(const uint8_t *p, uint32_t n_rows, uint32_t n_blocks, const x_stream *x, uint32_t n, float *out);

/* Each type's loop alone in its function, once for one token, so that its constants stay in registers. */
#define STREAM(NAME)                                                                                                        \
    static __attribute__((noinline)) void one_##NAME(const uint8_t *p, uint32_t n_rows, uint32_t n_blocks, const x_stream *x, \
                                                     uint32_t n, float *out)                                                \
    { stream(PLP_TYPE_##NAME, p, n_rows, n_blocks, x, 1, out); }                                                            \
    static __attribute__((noinline)) void few_##NAME(const uint8_t *p, uint32_t n_rows, uint32_t n_blocks, const x_stream *x, \
                                                     uint32_t n, float *out)                                                \
    { stream(PLP_TYPE_##NAME, p, n_rows, n_blocks, x, n, out); }
EACH_INTEGER_TYPE(STREAM)

static void rows_of(stream_fn *multiply, const plp_rows *w, uint32_t r0, uint32_t r1, const x_stream *x, uint32_t n, float *y,
                    size_t ldy, bool add, float *work)
{
    const uint32_t n_blocks = w->k / 32;
    for (uint32_t r = r0; r < r1; r += 16) {
        const uint32_t n_rows = r1 - r < 16 ? r1 - r : 16;
        multiply((const uint8_t *)w->data + r * w->row_bytes, n_rows, n_blocks, x, n, work);
        for (uint32_t t = 0; t < n; t++) {
            const float *from = work + t * terms_len(n_blocks);
            const pair v = { add_terms(from, n_blocks), add_terms(from + 8 * (size_t)n_blocks, n_blocks) };
            put_rows(y + t * ldy + r, v, n_rows, add);
        }
    }
}

void TIER(stream)(const plp_rows *w, uint32_t r0, uint32_t r1, const void *packed, uint32_t n, float *y, size_t ldy,
                  bool add, void *work)
{
    x_stream x[STREAM_TOKENS];
    for (uint32_t t = 0; t < n; t++) x[t] = stream_view(packed, w->k / 32, t);
#define RUN(NAME) case PLP_TYPE_##NAME: rows_of(n == 1 ? one_##NAME : few_##NAME, w, r0, r1, x, n, y, ldy, add, work); break;
    switch (w->type) { EACH_INTEGER_TYPE(RUN) }
#undef RUN
}

#endif
