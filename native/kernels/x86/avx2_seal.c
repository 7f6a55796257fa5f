/*
 * kernels/x86/avx2_seal.c - tiers "avx2" and above: an f16 tile quantised to q8 or q4
 *
 * Layouts and formulas: kernels/sealed.h; scales of ranges: ref/seal.h. Four neighbours (channels of K, tokens of V)
 * share a dword of the sealed tile, so sixteen tokens or eight channels are quantised as integers and put
 * together by shifts.
 */
#include "kernels/ref/seal.h"
#include "kernels/sealed.h"
#include "kernels/x86/avx2.h"

enum { LEN = PLP_SEALED_LEN, MAX_RANGES = PLP_MAX_HEAD_DIM };

INLINE __m256 magnitude(__m256 v) { return _mm256_andnot_ps(splat(-0.0f), v); }
INLINE float  min8(__m256 v)      { return -max8(negate(v)); }
INLINE uint16_t half_of(float f)  { return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT); }

INLINE __m256i rounded(__m256 x, float lo, float hi)
{
    return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(x, splat(lo)), splat(hi)));
}
/* v's lowest bits at bit `shift` of what is there. */
INLINE void put_bits(__m256i *o, __m256i v, int shift) { *o = _mm256_or_si256(*o, _mm256_sll_epi32(v, _mm_cvtsi32_si128(shift))); }

INLINE const uint16_t *k_row(const uint16_t *tile, uint32_t c)                { return tile + c * LEN; }
INLINE const uint16_t *v_row(const uint16_t *tile, uint32_t d, uint32_t t)    { return tile + (LEN + t) * d; }
INLINE uint32_t group_end(uint32_t g, uint32_t d)                             { return (g + 1) * PLP_V_GROUP < d ? (g + 1) * PLP_V_GROUP : d; }

static void kv_seal_q8(const void *f16_tile, void *out, uint32_t d)
{
    const uint16_t *from = f16_tile;
    const plp_q8_tile to = plp_q8_at(out, d);

    for (uint32_t c = 0; c < d; c += 4) {
        __m256i word[2] = { _mm256_setzero_si256(), _mm256_setzero_si256() };
        for (uint32_t i = 0; i < 4; i++) {
            const __m256 a = halves(k_row(from, c + i)), b = halves(k_row(from, c + i) + 8);
            const uint16_t scale = half_of(max8(_mm256_max_ps(magnitude(a), magnitude(b))) / 127.0f);
            const __m256 inv = splat(inverse(_cvtsh_ss(scale)));
            ((uint16_t *)to.k_scale)[c + i] = scale;
            put_bits(&word[0], _mm256_add_epi32(rounded(_mm256_mul_ps(a, inv), -127, 127), _mm256_set1_epi32(128)), (int)(8 * i));
            put_bits(&word[1], _mm256_add_epi32(rounded(_mm256_mul_ps(b, inv), -127, 127), _mm256_set1_epi32(128)), (int)(8 * i));
        }
        _mm256_storeu_si256((void *)(to.k + c * LEN), word[0]);
        _mm256_storeu_si256((void *)(to.k + c * LEN + 32), word[1]);
    }
    for (uint32_t g = 0; g < plp_v_groups(d); g++)
        for (uint32_t t = 0; t < LEN; t += 4) {
            const uint32_t c0 = g * PLP_V_GROUP, end = group_end(g, d);
            float inv[4];
            for (uint32_t i = 0; i < 4; i++) {
                __m256 most = _mm256_setzero_ps();
                for (uint32_t c = c0; c < end; c += 8) most = _mm256_max_ps(most, magnitude(halves(v_row(from, d, t + i) + c)));
                const uint16_t scale = half_of(max8(most) / 127.0f);
                ((uint16_t *)to.v_scale)[g * LEN + t + i] = scale;
                inv[i] = inverse(_cvtsh_ss(scale));
            }
            for (uint32_t c = c0; c < end; c += 8) {
                __m256i word = _mm256_setzero_si256();
                for (uint32_t i = 0; i < 4; i++) {
                    const __m256i n = rounded(_mm256_mul_ps(halves(v_row(from, d, t + i) + c), splat(inv[i])), -127, 127);
                    put_bits(&word, _mm256_and_si256(n, _mm256_set1_epi32(255)), (int)(8 * i));
                }
                _mm256_storeu_si256((void *)(to.v + (t / 4 * d + c) * 4), word);
            }
        }
}

INLINE __m256i nibbles_of(const uint16_t *p, steps s)
{
    return rounded(_mm256_mul_ps(_mm256_sub_ps(halves(p), splat(s.min)), splat(s.inv)), 0, 15);
}

static void seal_q4_keys(const uint16_t *from, plp_q4_tile to, uint32_t d)
{
    range r[MAX_RANGES];
    steps s[MAX_RANGES];
    for (uint32_t c = 0; c < d; c++) {
        const __m256 a = halves(k_row(from, c)), b = halves(k_row(from, c) + 8);
        r[c] = (range){ min8(_mm256_min_ps(a, b)), max8(_mm256_max_ps(a, b)) };
    }
    const units u = units_of(r, d);
    ((uint16_t *)to.units)[0] = u.scale, ((uint16_t *)to.units)[1] = u.min;
    for (uint32_t c = 0; c < d; c++) s[c] = quantise_range(r[c], &u, (uint8_t *)to.k_scale + c, (int8_t *)to.k_min + c);
    for (uint32_t c = 0; c < d / 2; c += 4)
        for (uint32_t part = 0; part < 2; part++) {                 /* tokens 0..7, 8..15 */
            __m256i word = _mm256_setzero_si256();
            for (uint32_t i = 0; i < 4; i++) {
                put_bits(&word, nibbles_of(k_row(from, c + i) + 8 * part, s[c + i]), (int)(8 * i));
                put_bits(&word, nibbles_of(k_row(from, d / 2 + c + i) + 8 * part, s[d / 2 + c + i]), (int)(8 * i + 4));
            }
            _mm256_storeu_si256((void *)(to.k + c * LEN + 32 * part), word);
        }
}

static void seal_q4_values(const uint16_t *from, plp_q4_tile to, uint32_t d)
{
    const uint32_t groups = plp_v_groups(d);
    range r[MAX_RANGES];
    steps s[MAX_RANGES];
    for (uint32_t g = 0; g < groups; g++)
        for (uint32_t t = 0; t < LEN; t++) {
            const uint16_t *row = v_row(from, d, t);
            const uint32_t c0 = g * PLP_V_GROUP;
            __m256 lo = halves(row + c0), hi = lo;
            for (uint32_t c = c0 + 8; c < group_end(g, d); c += 8) lo = _mm256_min_ps(lo, halves(row + c)), hi = _mm256_max_ps(hi, halves(row + c));
            r[g * LEN + t] = (range){ min8(lo), max8(hi) };
        }
    const units u = units_of(r, groups * LEN);
    ((uint16_t *)to.units)[2] = u.scale, ((uint16_t *)to.units)[3] = u.min;
    for (uint32_t i = 0; i < groups * LEN; i++) s[i] = quantise_range(r[i], &u, (uint8_t *)to.v_scale + i, (int8_t *)to.v_min + i);
    for (uint32_t t = 0; t < LEN / 2; t += 4)
        for (uint32_t c = 0; c < d; c += 8) {
            const steps *of = s + c / PLP_V_GROUP * LEN;
            __m256i word = _mm256_setzero_si256();
            for (uint32_t i = 0; i < 4; i++) {
                put_bits(&word, nibbles_of(v_row(from, d, t + i) + c, of[t + i]), (int)(8 * i));
                put_bits(&word, nibbles_of(v_row(from, d, LEN / 2 + t + i) + c, of[LEN / 2 + t + i]), (int)(8 * i + 4));
            }
            _mm256_storeu_si256((void *)(to.v + (t / 4 * d + c) * 4), word);
        }
}

static void kv_seal_q4(const void *f16_tile, void *out, uint32_t d)
{
    seal_q4_keys(f16_tile, plp_q4_at(out, d), d);
    seal_q4_values(f16_tile, plp_q4_at(out, d), d);
}

void plp_fill_avx2_seal(plp_kernels *k)
{
    k->kv_seal_q8 = kv_seal_q8;
    k->kv_seal_q4 = kv_seal_q4;
}
