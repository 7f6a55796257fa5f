/*
 * kernels/x86/avx512_stream.c - tier "avx512": products of a few tokens (decode), at the speed of memory
 *
 * Rows are read strictly in file order, which is what the hardware prefetcher follows: sixteen rows are one stream of
 * 16 * n_blocks blocks, taken sixteen blocks at a time whatever n_blocks is. A step makes the 16 dot products of its
 * blocks (lane = block), turns them into terms, and stores those; after 16 rows the terms are transposed and added in
 * block order, one lane per row: the same additions as in a panel. Where the next blocks are fetched ahead, a Zen 5 decodes
 * 1.1 to 1.2 times as fast; a Zen 4, with one token, 0.87 times: there they only take the hardware's place in the miss
 * buffers, so whoever calls says which it is.
 *
 *   work   per token: terms f32 [16 rows][n_blocks], and 16 to spare
 *
 * Weights stay unsigned: nibbles and bits as they are, Q8_0 and what is looked up + 128; the dot product is corrected
 * by -offset * sum(q), which xi and x0 hold for an offset of 128.
 */
#include "kernels/x86/avx512.h"

enum { STEP = 16, AHEAD_BYTES = 4096 };

INLINE __m512i pair_32(const void *a, const void *b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(load_256(a)), load_256(b), 1);
}
INLINE __m512i low4(__m512i v)  { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
INLINE __m512i high4(__m512i v) { return low4(_mm512_srli_epi16(v, 4)); }

/* Sixteen blocks. w[i]: blocks 2i and 2i + 1 in order; is_halves: w[2i] the first, w[2i + 1] the second
 * halves of blocks 4i..4i+3; Q4_K: in the order of x_stream's pair. s, m, m2: lane = block. */
typedef struct weights { __m512i w[8]; __m512 s, m, m2; } weights;

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
    o.m = o.m2 = o.s;
    return o;
}

/* Four blocks fill a little more than a register: the nibbles come out of two overlapping loads, which costs less
 * than putting four 16-byte pieces together. */
INLINE weights load_q4_0(const uint8_t *p)
{
    /* Words 9b + 1 .. 9b + 8 of the first load; the second begins at its word 4. */
    const __m512i pick = _mm512_set_epi16(63, 62, 61, 60, 31, 30, 29, 28, 26, 25, 24, 23, 22, 21, 20, 19,
                                          17, 16, 15, 14, 13, 12, 11, 10, 8, 7, 6, 5, 4, 3, 2, 1);
    weights o;
    __m512i d = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < 4; i++) {
        const uint8_t *at = p + 72 * i;                             /* words 0, 9, 18, 27 are scales */
        const __m512i v = load_512(at), nibbles = _mm512_permutex2var_epi16(v, pick, load_512(at + 8));
        o.w[2 * i] = low4(nibbles);
        o.w[2 * i + 1] = high4(nibbles);
        d = _mm512_mask_permutexvar_epi16(d, (__mmask32)(15u << 4 * i), _mm512_set1_epi64(0x001b001200090000), v);
    }
    o.s = _mm512_cvtph_ps(_mm512_castsi512_si256(d));
    o.m = o.m2 = o.s;
    return o;
}

INLINE weights load_q4_1(const uint8_t *p)
{
    const __m512i pick = _mm512_setr_epi32(1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 28, 29, 30, 31);
    weights o;
    __m512i d = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < 4; i++) {
        const uint8_t *at = p + 80 * i;                             /* dwords 0, 5, 10, 15: scale and minimum */
        const __m512i v = load_512(at), nibbles = _mm512_permutex2var_epi32(v, pick, load_512(at + 16));
        o.w[2 * i] = low4(nibbles);
        o.w[2 * i + 1] = high4(nibbles);
        d = _mm512_mask_permutexvar_epi32(d, (__mmask16)(15u << 4 * i), _mm512_setr4_epi32(0, 5, 10, 15), v);
    }
    o.s = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(d));
    o.m = o.m2 = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(d, 16)));
    return o;
}

/* Fifth bits of four blocks, lowest block first. */
INLINE __m512i add_fifth(__m512i q, __m128i words, const int which)
{
    const __mmask64 set_ones = _cvtu64_mask64((uint64_t)(which ? _mm_extract_epi64(words, 1) : _mm_extract_epi64(words, 0)));
    return _mm512_mask_add_epi8(q, set_ones, q, _mm512_set1_epi8(16));
}

INLINE weights load_q5_0(const uint8_t *p)
{
    /* Words 11b + 3 .. 11b + 10 of four blocks; the second load begins at word 12. */
    const __m512i pick = _mm512_set_epi16(63, 62, 61, 60, 59, 58, 57, 56, 52, 51, 50, 49, 48, 47, 46, 45,
                                          21, 20, 19, 18, 17, 16, 15, 14, 10, 9, 8, 7, 6, 5, 4, 3);
    const __m512i heads = _mm512_zextsi128_si512(_mm_setr_epi16(1, 12, 23, 54, 2, 13, 24, 55));
    const __m512i scales = _mm512_set1_epi64(0x00350016000b0000);
    weights o;
    __m512i d = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < 4; i++) {
        const uint8_t *at = p + 88 * i;
        const __m512i v = load_512(at), z = load_512(at + 24), q = _mm512_permutex2var_epi16(v, pick, z);
        const __m128i fifth = _mm512_castsi512_si128(_mm512_permutex2var_epi16(v, heads, z));
        o.w[2 * i] = add_fifth(low4(q), fifth, 0);
        o.w[2 * i + 1] = add_fifth(high4(q), fifth, 1);
        d = _mm512_mask_blend_epi16((__mmask32)(15u << 4 * i), d, _mm512_permutex2var_epi16(v, scales, z));
    }
    o.s = _mm512_cvtph_ps(_mm512_castsi512_si256(d));
    o.m = o.m2 = o.s;
    return o;
}

INLINE weights load_q5_1(const uint8_t *p)
{
    /* Dwords 6b + 2 .. 6b + 5 of four blocks; the second load begins at dword 8. */
    const __m512i pick = _mm512_setr_epi32(2, 3, 4, 5, 8, 9, 10, 11, 14, 15, 24, 25, 28, 29, 30, 31);
    const __m512i heads = _mm512_zextsi128_si512(_mm_setr_epi16(2, 14, 26, 54, 3, 15, 27, 55));     /* words */
    weights o;
    __m512i d = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < 4; i++) {
        const uint8_t *at = p + 96 * i;
        const __m512i v = load_512(at), z = load_512(at + 32), q = _mm512_permutex2var_epi32(v, pick, z);
        const __m128i fifth = _mm512_castsi512_si128(_mm512_permutex2var_epi16(v, heads, z));
        o.w[2 * i] = add_fifth(low4(q), fifth, 0);
        o.w[2 * i + 1] = add_fifth(high4(q), fifth, 1);
        d = _mm512_mask_blend_epi32((__mmask16)(15u << 4 * i), d, _mm512_permutex2var_epi32(v, _mm512_setr4_epi32(0, 6, 12, 26), z));
    }
    o.s = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(d));
    o.m = o.m2 = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(d, 16)));
    return o;
}

INLINE weights load_iq4_nl(const uint8_t *p)
{
    weights o = load_q4_0(p);
    UNROLL for (int i = 0; i < 8; i++) o.w[i] = looked_up(plp_iq4_values, o.w[i]);
    return o;
}

INLINE weights load_mxfp4(const uint8_t *p)
{
    /* Bytes 17b + 1 .. 17b + 16 of four blocks; the second load begins at byte 4. */
    const __m512i pick = _mm512_set_epi64(
        0x7f7e7d7c3f3e3d3c, 0x3b3a393837363534, 0x3231302f2e2d2c2b, 0x2a29282726252423,
        0x21201f1e1d1c1b1a, 0x1918171615141312, 0x100f0e0d0c0b0a09, 0x0807060504030201);
    const __m512i scales = _mm512_set1_epi32(0x33221100);           /* bytes 0, 17, 34, 51 */
    weights o;
    __m512i e = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < 4; i++) {
        const uint8_t *at = p + 68 * i;
        const __m512i v = load_512(at), q = _mm512_permutex2var_epi8(v, pick, load_512(at + 4));
        o.w[2 * i] = looked_up(plp_fp4_values, low4(q));
        o.w[2 * i + 1] = looked_up(plp_fp4_values, high4(q));
        e = _mm512_mask_permutexvar_epi8(e, (__mmask64)(15u << 4 * i), scales, v);
    }
    o.s = e8m0(_mm512_castsi512_si128(e));
    o.m = o.m2 = o.s;
    return o;
}

INLINE __m512 two_halves(uint16_t low, uint16_t high)               /* eight lanes each */
{
    return _mm512_cvtph_ps(_mm256_set_m128i(_mm_set1_epi16((short)high), _mm_set1_epi16((short)low)));
}

INLINE weights load_iq4_xs(const uint8_t *p)                        /* two 256-blocks, as all below */
{
    weights o;
    UNROLL for (int i = 0; i < 4; i++) {
        const __m512i q = load_512(p + i / 2 * 136 + 8 + i % 2 * 64);
        o.w[2 * i] = looked_up(plp_iq4_values, low4(q));
        o.w[2 * i + 1] = looked_up(plp_iq4_values, high4(q));
    }
    const __m128i sc = _mm_set_epi64x((long long)plp_scales_iq4_xs(p + 138), (long long)plp_scales_iq4_xs(p + 2));
    o.s = _mm512_mul_ps(two_halves(load_u16(p), load_u16(p + 136)), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sc)));
    o.m = o.m2 = o.s;
    return o;
}

/* Headers of Q4_K and Q5_K: d | dmin, then the dwords a b c of 6-bit fields: scales are a & 63, then c low with a's top
 * bits; minimums are b & 63, then c high with b's. */
INLINE void two_headers(const uint8_t *p, const size_t apart, weights *o)
{
    const __m256i h = _mm256_set_m128i(load_128(p + apart), load_128(p));
    const __m256i ab = _mm256_srlv_epi32(_mm256_shuffle_epi32(h, _MM_SHUFFLE(2, 1, 2, 1)), _mm256_setr_epi32(0, 0, 2, 2, 0, 0, 2, 2));
    const __m256i cc = _mm256_srlv_epi32(_mm256_shuffle_epi32(h, _MM_SHUFFLE(3, 3, 3, 3)), _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4));
    const __m256i fields = _mm256_or_si256(
        _mm256_and_si256(ab, _mm256_set_epi32(0x30303030, 0x30303030, 0x3f3f3f3f, 0x3f3f3f3f, 0x30303030, 0x30303030, 0x3f3f3f3f, 0x3f3f3f3f)),
        _mm256_and_si256(cc, _mm256_set_epi32(0x0f0f0f0f, 0x0f0f0f0f, 0, 0, 0x0f0f0f0f, 0x0f0f0f0f, 0, 0)));
    const __m256i order = _mm256_permutevar8x32_epi32(fields, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
    const __m512 d = two_halves(load_u16(p), load_u16(p + apart)), dmin = two_halves(load_u16(p + 2), load_u16(p + apart + 2));
    o->s = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm256_castsi256_si128(order))));
    o->m2 = o->m = _mm512_mul_ps(_mm512_xor_ps(dmin, splat(-0.0f)), _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm256_extracti128_si256(order, 1))));
}

/* Runs 2i and 2i + 1 of 32 bytes each are one register; interleaving the four makes dword i of
 * their halves neighbours. */
INLINE weights load_q4_k(const uint8_t *p)
{
    weights o;
    const __m512i r0 = load_512(p + 16), r1 = load_512(p + 80), r2 = load_512(p + 160), r3 = load_512(p + 224);
    const __m512i a = _mm512_unpacklo_epi32(r0, r1), b = _mm512_unpacklo_epi32(r2, r3);
    const __m512i c = _mm512_unpackhi_epi32(r0, r1), e = _mm512_unpackhi_epi32(r2, r3);
    const __m512i packed[4] = { _mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b),
                                _mm512_unpacklo_epi64(c, e), _mm512_unpackhi_epi64(c, e) };
    UNROLL for (int i = 0; i < 4; i++) {
        o.w[i] = low4(packed[i]);
        o.w[i + 4] = high4(packed[i]);
    }
    two_headers(p, 144, &o);
    return o;
}

/* A block's two scales side by side, signed bytes, times d. */
INLINE void two_scales(__m256i sc, __m512 d, weights *o)
{
    o->s = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_srai_epi16(_mm256_slli_epi16(sc, 8), 8))));
    o->m2 = o->m = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_srai_epi16(sc, 8))));
}

/* 32 bytes twice, rotated to the left: by left0 for the first of two blocks, by left1 for the second. What comes from a
 * neighbouring byte is masked off by `only`. */
INLINE __m512i spread(const uint8_t *p, const int left0, const int left1)
{
    const __m512i by = _mm512_setr_epi64(left0, left0, left0, left0, left1, left1, left1, left1);
    return _mm512_rolv_epi64(_mm512_broadcast_i64x4(load_256(p)), by);
}
INLINE __m512i only(__m512i v, int bits) { return _mm512_and_si512(v, _mm512_set1_epi8((char)bits)); }

INLINE weights load_q5_k(const uint8_t *p)
{
    weights o;
    UNROLL for (int i = 0; i < 8; i++) {                            /* low nibbles are one block, high ones the next */
        const uint8_t *at = p + i / 4 * 176;
        const int bit = i % 4 * 2;
        const __m512i low = only(spread(at + 48 + i % 4 * 32, 0, 60), 15);
        o.w[i] = _mm512_or_si512(low, only(spread(at + 16, (4 - bit) & 63, (3 - bit) & 63), 16));
    }
    two_headers(p, 176, &o);
    return o;
}

/* Bits 2j and 2j + 1 of 32 bytes are block j's, the next 32 bytes hold blocks 4 to 7. */
INLINE __m512i two_bits(const uint8_t *p, const int i)
{
    return only(spread(p + i / 2 * 32, (64 - 4 * (i % 2)) & 63, 62 - 4 * (i % 2)), 3);
}

INLINE weights load_q3_k(const uint8_t *p)
{
    uint64_t sc[4];
    weights o;
    UNROLL for (int i = 0; i < 8; i++) {
        const uint8_t *at = p + i / 4 * 110;
        const int bit = i % 4 * 2;
        o.w[i] = _mm512_or_si512(two_bits(at + 32, i % 4), only(spread(at, (2 - bit) & 63, (1 - bit) & 63), 4));
    }
    plp_scales_q3_k(p + 96, sc);
    plp_scales_q3_k(p + 206, sc + 2);
    two_scales(load_256(sc), two_halves(load_u16(p + 108), load_u16(p + 218)), &o);
    return o;
}

INLINE weights load_q2_k(const uint8_t *p)
{
    const __m256i sc = _mm256_set_m128i(load_128(p + 84), load_128(p)), low = _mm256_and_si256(sc, _mm256_set1_epi8(15));
    const __m256i min = _mm256_and_si256(_mm256_srli_epi16(sc, 4), _mm256_set1_epi8(15));
    const __m512i word = _mm512_set1_epi32((int)0x80008000), one = _mm512_set1_epi32(0x10001);     /* a byte as a word, twice */
    const __m512i lanes = _mm512_add_epi32(word, _mm512_mullo_epi32(one, _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)));
    const __m512 dmin = _mm512_xor_ps(two_halves(load_u16(p + 82), load_u16(p + 166)), splat(-0.0f));
    weights o;
    UNROLL for (int i = 0; i < 8; i++) {                            /* a lane's words times its scale: no byte carries */
        const __m512i scales = _mm512_broadcast_i32x4(i < 4 ? _mm256_castsi256_si128(low) : _mm256_extracti128_si256(low, 1));
        o.w[i] = _mm512_mullo_epi16(two_bits(p + i / 4 * 84 + 16, i % 4),
                                    _mm512_shuffle_epi8(scales, _mm512_add_epi32(lanes, _mm512_set1_epi32(i % 4 * 0x40004))));
    }
    two_scales(min, dmin, &o);
    o.m2 = o.m;
    o.m = o.s;
    o.s = two_halves(load_u16(p + 80), load_u16(p + 164));
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
    two_scales(sc, two_halves(load_u16(p + 208), load_u16(p + 418)), &o);
    return o;
}

/* ---- dot products ------------------------------------------------------------------------- */

/* -128 * sum(q), shifted to the weights' own offset. */
INLINE __m512i offset_of(const int type, __m512i x)
{
    switch (type) {
    case PLP_TYPE_Q3_K: return _mm512_srai_epi32(x, 5);             /* 4 */
    case PLP_TYPE_Q4_0: return _mm512_srai_epi32(x, 4);             /* 8 */
    case PLP_TYPE_Q5_0: return _mm512_srai_epi32(x, 3);             /* 16 */
    case PLP_TYPE_Q6_K: return _mm512_srai_epi32(x, 2);             /* 32 */
    default:            return x;
    }
}

/* xs * sum(q) of a half of each block, from -128 * sum(q). */
INLINE __m512 half_sum(__m512 xs, __m512i x) { return _mm512_mul_ps(xs, _mm512_mul_ps(_mm512_cvtepi32_ps(x), splat(-0x1p-7f))); }

/* The terms of 16 blocks whose activations begin at entry `at` of x. */
INLINE __m512 terms(const int type, const weights *o, x_stream x, uint32_t at)
{
    const int form = plp_type_form(type);
    const __m512i zero = _mm512_setzero_si512();
    const __m512 xs = _mm512_loadu_ps(x.xs + at);
    __m512i a[8], dot;
    if (is_halves(type)) {
        UNROLL for (int i = 0; i < 4; i++)
            a[i] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, o->w[2 * i], load_512(x.first + 16 * at + 64 * i)),
                                       o->w[2 * i + 1], load_512(x.second + 16 * at + 64 * i));
        const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        dot = _mm512_permutexvar_epi32(in_order, add_lanes(a));
    } else if (type == PLP_TYPE_Q4_K) {
        const int32_t *pair = x.pair + 16 * at;
        __m512i low = zero, high = zero;                            /* even blocks, odd blocks; halves apart */
        UNROLL for (int i = 0; i < 4; i++) {
            low = _mm512_dpbusd_epi32(low, o->w[i], load_512(pair + 16 * i));
            high = _mm512_dpbusd_epi32(high, o->w[i + 4], load_512(pair + 16 * (i + 4)));
        }
        const __m512i both = _mm512_add_epi32(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xdd));
        dot = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15), both);
    } else {
        UNROLL for (int i = 0; i < 8; i++) a[i] = _mm512_dpbusd_epi32(zero, o->w[i], load_512(x.q + 32 * at + 64 * i));
        const __m512i low = add_lanes(a), high = add_lanes(a + 4);  /* lanes: even first, even second, odd first, odd second halves */
        const __m512i in_order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
        const __m512i first = _mm512_shuffle_i32x4(low, high, 0x88), second = _mm512_shuffle_i32x4(low, high, 0xdd);
        if (form == PLP_FORM_SUB) {
            const __m512i x0 = load_512(x.x0 + at), x1 = _mm512_sub_epi32(load_512(x.xi + at), x0);
            const __m512i d0 = _mm512_add_epi32(_mm512_permutexvar_epi32(in_order, first), offset_of(type, x0));
            const __m512i d1 = _mm512_add_epi32(_mm512_permutexvar_epi32(in_order, second), offset_of(type, x1));
            return _mm512_mul_ps(_mm512_fmadd_ps(o->m, _mm512_cvtepi32_ps(d1), _mm512_mul_ps(o->s, _mm512_cvtepi32_ps(d0))), xs);
        }
        dot = _mm512_permutexvar_epi32(in_order, _mm512_add_epi32(first, second));
    }
    if (form == PLP_FORM_SYM) dot = _mm512_add_epi32(dot, offset_of(type, load_512(x.xi + at)));
    const __m512 t = _mm512_mul_ps(_mm512_mul_ps(o->s, xs), _mm512_cvtepi32_ps(dot));
    if (form == PLP_FORM_MIN) return _mm512_fmadd_ps(o->m, _mm512_loadu_ps(x.xm + at), t);
    if (form == PLP_FORM_MN2) {
        const __m512i x0 = load_512(x.x0 + at), x1 = _mm512_sub_epi32(load_512(x.xi + at), x0);
        return _mm512_fmadd_ps(o->m2, half_sum(xs, x1), _mm512_fmadd_ps(o->m, half_sum(xs, x0), t));
    }
    return t;
}

/* ---- rows --------------------------------------------------------------------------------- */

size_t plp_avx512_stream_work(uint32_t n, uint32_t k) { return n * terms_len(k / 32) * sizeof(float); }

/* The rows' blocks as one stream: 16 at a time; the last step of fewer than 16 rows may be a short one. */
INLINE void stream(const int type, const uint8_t *p, uint32_t n_rows, uint32_t n_blocks, const x_stream *x, uint32_t n, bool fetching, float *out)
{
    const size_t step_bytes = STEP / 8 * bytes_per_8(type);
    const uint32_t total = n_rows * n_blocks;
    uint32_t at = 0;
    uint8_t last[STEP * 34];
    for (uint32_t b = 0; b < total; b += STEP, p += step_bytes) {
        if (total - b < STEP) {
            memset(last, 0, sizeof last);
            memcpy(last, p, step_bytes * (total - b) / STEP);
            p = last;
        }
        if (fetching)
            UNROLL for (size_t i = 0; i < step_bytes; i += 64) _mm_prefetch((const char *)p + AHEAD_BYTES + i, _MM_HINT_T0);
        weights o;
        switch (type) {
        case PLP_TYPE_Q8_0: o = load_q8_0(p); break;
        case PLP_TYPE_Q4_0: o = load_q4_0(p); break;
        case PLP_TYPE_Q4_1: o = load_q4_1(p); break;
        case PLP_TYPE_Q5_0: o = load_q5_0(p); break;
        case PLP_TYPE_Q5_1: o = load_q5_1(p); break;
        case PLP_TYPE_IQ4_NL: o = load_iq4_nl(p); break;
        case PLP_TYPE_MXFP4:  o = load_mxfp4(p); break;
        case PLP_TYPE_IQ4_XS: o = load_iq4_xs(p); break;
        case PLP_TYPE_Q2_K: o = load_q2_k(p); break;
        case PLP_TYPE_Q3_K: o = load_q3_k(p); break;
        case PLP_TYPE_Q4_K: o = load_q4_k(p); break;
        case PLP_TYPE_Q5_K: o = load_q5_k(p); break;
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
                    size_t ldy, bool add, bool fetching, float *work)
{
    const uint32_t n_blocks = w->k / 32;
    for (uint32_t r = r0; r < r1; r += 16) {
        const uint32_t n_rows = r1 - r < 16 ? r1 - r : 16;
        const __mmask16 mask = lanes_below(n_rows);
        stream(type, (const uint8_t *)w->data + r * w->row_bytes, n_rows, n_blocks, x, n, fetching, work);
        for (uint32_t t = 0; t < n; t++) {
            float *to = y + t * ldy + r;
            __m512 v = add_terms(work + t * terms_len(n_blocks), n_blocks);
            if (add) v = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), v);
            _mm512_mask_storeu_ps(to, mask, v);
        }
    }
}

/* One token is the case that counts: its views stay in registers, and so do constants if each type's loop is alone. */
typedef void rows_fn(const plp_rows *w, uint32_t r0, uint32_t r1, const x_stream *x, uint32_t n, float *y, size_t ldy, bool add, bool fetching,
                     float *work);
#define ROWS(NAME)                                                                                                      \
    static __attribute__((noinline)) void one_##NAME(const plp_rows *w, uint32_t r0, uint32_t r1, const x_stream *x, uint32_t n, \
                                                     float *y, size_t ldy, bool add, bool fetching, float *work)           \
    { const x_stream first = x[0]; (void)n; rows_of(PLP_TYPE_##NAME, w, r0, r1, &first, 1, y, ldy, add, fetching, work); } \
    static __attribute__((noinline)) void more_##NAME(const plp_rows *w, uint32_t r0, uint32_t r1, const x_stream *x, uint32_t n, \
                                                      float *y, size_t ldy, bool add, bool fetching, float *work)          \
    { (void)fetching; rows_of(PLP_TYPE_##NAME, w, r0, r1, x, n, y, ldy, add, true, work); }
EACH_INTEGER_TYPE(ROWS)

void plp_avx512_stream(const plp_rows *w, uint32_t r0, uint32_t r1, const void *packed, uint32_t n, float *y, size_t ldy,
                       bool add, bool fetching, void *work)
{
    x_stream x[FEW_TOKENS];
    rows_fn *rows = NULL;
    for (uint32_t t = 0; t < n; t++) x[t] = stream_view(packed, w->k / 32, t);
#define CHOOSE(NAME) case PLP_TYPE_##NAME: rows = n == 1 ? one_##NAME : more_##NAME; break;
    switch (w->type) { EACH_INTEGER_TYPE(CHOOSE) }
    if (rows) rows(w, r0, r1, x, n, y, ldy, add, fetching, work);
}
