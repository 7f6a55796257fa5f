/*
 * kernels/arm/neon_seal.c - every ARM tier: an f16 tile quantised to q8 or q4
 *
 * Layouts and formulas: kernels/sealed.h; ref/seal.h step by step, four scales at a time. Four neighbours (channels of K, tokens
 * of V) lie together in the sealed tile, byte by byte: what a store of four interleaved vectors does.
 */
#include "kernels/arm/planes.h"
#include "kernels/ref/ref.h"

enum { MAX_RANGES = PLP_MAX_HEAD_DIM };

INLINE const uint16_t *k_row(const uint16_t *tile, uint32_t c)             { return tile + c * LEN; }
INLINE const uint16_t *v_row(const uint16_t *tile, uint32_t d, uint32_t t) { return tile + (LEN + t) * d; }
INLINE uint32_t group_end(uint32_t g, uint32_t d)                          { return (g + 1) * PLP_V_GROUP < d ? (g + 1) * PLP_V_GROUP : d; }

INLINE void halves16(const uint16_t *p, float32x4_t v[4])
{
    halves8(p, v);
    halves8(p + 8, v + 2);
}

/* 1 / s, or 0 where that could overflow. */
INLINE float32x4_t inverse4(float32x4_t s)
{
    const uint32x4_t some = vcgeq_f32(s, vdupq_n_f32(PLP_X_ZERO));
    return vreinterpretq_f32_u32(vandq_u32(some, vreinterpretq_u32_f32(vdivq_f32(vdupq_n_f32(1.0f), s))));
}

/* Lane i: the largest, or smallest, lane of v[i]. */
INLINE float32x4_t most4(const float32x4_t v[4])  { return vpmaxq_f32(vpmaxq_f32(v[0], v[1]), vpmaxq_f32(v[2], v[3])); }
INLINE float32x4_t least4(const float32x4_t v[4]) { return vpminq_f32(vpminq_f32(v[0], v[1]), vpminq_f32(v[2], v[3])); }

/* ---- q8 -------------------------------------------------------------------------------------- */

/* Sixteen values times `inv`, rounded to -127..127. */
INLINE int8x16_t bytes_of(const uint16_t *p, float inv)
{
    float32x4_t v[4];
    halves16(p, v);
    int16x8_t w[2];
    UNROLL for (int j = 0; j < 2; j++)
        w[j] = vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[2 * j], inv))), vcvtnq_s32_f32(vmulq_n_f32(v[2 * j + 1], inv)));
    return vmaxq_s8(vqmovn_high_s16(vqmovn_s16(w[0]), w[1]), vdupq_n_s8(-127));
}

/* Four largest magnitudes become scales as stored; returns their inverses. */
INLINE float32x4_t put_scales(uint16_t *to, float32x4_t most)
{
    const float16x4_t scale = vcvt_f16_f32(vdivq_f32(most, vdupq_n_f32(127.0f)));
    vst1_u16(to, vreinterpret_u16_f16(scale));
    return inverse4(vcvt_f32_f16(scale));
}

INLINE float32x4_t magnitude16(const uint16_t *p)
{
    float32x4_t v[4];
    halves16(p, v);
    return vmaxq_f32(vmaxq_f32(vabsq_f32(v[0]), vabsq_f32(v[1])), vmaxq_f32(vabsq_f32(v[2]), vabsq_f32(v[3])));
}

static void kv_seal_q8(const void *f16_tile, void *out, uint32_t d)
{
    const uint16_t *from = f16_tile;
    const plp_q8_tile to = plp_q8_at(out, d);
    float32x4_t most[4];
    float inv[4];

    for (uint32_t c = 0; c < d; c += 4) {
        uint8x16x4_t word;
        UNROLL for (uint32_t i = 0; i < 4; i++) most[i] = magnitude16(k_row(from, c + i));
        vst1q_f32(inv, put_scales((uint16_t *)to.k_scale + c, most4(most)));
        UNROLL for (uint32_t i = 0; i < 4; i++)
            word.val[i] = veorq_u8(vreinterpretq_u8_s8(bytes_of(k_row(from, c + i), inv[i])), vdupq_n_u8(128));
        vst4q_u8((uint8_t *)to.k + c * LEN, word);
    }
    for (uint32_t g = 0; g < plp_v_groups(d); g++)
        for (uint32_t t = 0; t < LEN; t += 4) {
            const uint32_t c0 = g * PLP_V_GROUP, end = group_end(g, d);
            UNROLL for (uint32_t i = 0; i < 4; i++) {
                most[i] = magnitude16(v_row(from, d, t + i) + c0);
                for (uint32_t c = c0 + 16; c < end; c += 16) most[i] = vmaxq_f32(most[i], magnitude16(v_row(from, d, t + i) + c));
            }
            vst1q_f32(inv, put_scales((uint16_t *)to.v_scale + g * LEN + t, most4(most)));
            for (uint32_t c = c0; c < end; c += 16) {
                int8x16x4_t word;
                UNROLL for (uint32_t i = 0; i < 4; i++) word.val[i] = bytes_of(v_row(from, d, t + i) + c, inv[i]);
                vst4q_s8((int8_t *)to.v + (t / 4 * d + c) * 4, word);
            }
        }
}

/* ---- q4 -------------------------------------------------------------------------------------- */

/* Ranges of channels or of tokens' groups; then the minimum and inverse step of each, as the tile stands for them. */
typedef struct ranges { float lo[MAX_RANGES], hi[MAX_RANGES], min[MAX_RANGES], inv[MAX_RANGES]; } ranges;

/* n ranges, n % 4 == 0: the tile's units (scale, minimum), each range's 8-bit scale and minimum, and what they come to. */
static void quantise_ranges(ranges *r, uint32_t n, uint16_t *units, uint8_t *scale, int8_t *min)
{
    float32x4_t width = vdupq_n_f32(0), far = width;
    for (uint32_t i = 0; i < n; i += 4) {
        const float32x4_t lo = vld1q_f32(r->lo + i);
        width = vmaxq_f32(width, vsubq_f32(vld1q_f32(r->hi + i), lo));
        far = vmaxq_f32(far, vabsq_f32(lo));
    }
    const float32x4_t tops = { vmaxvq_f32(width) / (15.0f * 255.0f), vmaxvq_f32(far) / 127.0f, 0, 0 };
    const float16x4_t stored = vcvt_f16_f32(tops);
    const float32x4_t unit = vcvt_f32_f16(stored), inverse = inverse4(unit);
    units[0] = vget_lane_u16(vreinterpret_u16_f16(stored), 0);
    units[1] = vget_lane_u16(vreinterpret_u16_f16(stored), 1);

    for (uint32_t i = 0; i < n; i += 4) {
        const float32x4_t lo = vld1q_f32(r->lo + i), hi = vld1q_f32(r->hi + i);
        const int32x4_t m = vmaxq_s32(vminq_s32(vcvtnq_s32_f32(vmulq_laneq_f32(lo, inverse, 1)), vdupq_n_s32(127)), vdupq_n_s32(-127));
        const float32x4_t from = vmulq_laneq_f32(vcvtq_f32_s32(m), unit, 1);
        const float32x4_t steps = vmulq_laneq_f32(vmulq_n_f32(vsubq_f32(hi, from), 1.0f / 15.0f), inverse, 0);
        int32x4_t s = vmaxq_s32(vminq_s32(vcvtnq_s32_f32(steps), vdupq_n_s32(255)), vdupq_n_s32(0));
        /* A range that is not empty has a scale: 1 where it rounds to 0. */
        s = vreinterpretq_s32_u32(vorrq_u32(vreinterpretq_u32_s32(s),
                vandq_u32(vandq_u32(vceqzq_s32(s), vcgtq_f32(hi, from)), vdupq_n_u32(1))));
        vst1q_f32(r->min + i, from);
        vst1q_f32(r->inv + i, inverse4(vmulq_laneq_f32(vcvtq_f32_s32(s), unit, 0)));
        const int32x2_t both = vreinterpret_s32_s8(vmovn_s16(vcombine_s16(vmovn_s32(s), vmovn_s32(m))));
        vst1_lane_s32((int32_t *)(void *)(scale + i), both, 0);
        vst1_lane_s32((int32_t *)(void *)(min + i), both, 1);
    }
}

/* Sixteen values as steps from `min`, 0..15. */
INLINE uint8x16_t nibbles_of(const uint16_t *p, float min, float inv)
{
    float32x4_t v[4];
    halves16(p, v);
    uint16x8_t w[2];
    UNROLL for (int j = 0; j < 4; j++) v[j] = vmulq_n_f32(vsubq_f32(v[j], vdupq_n_f32(min)), inv);
    UNROLL for (int j = 0; j < 2; j++) w[j] = vqmovun_high_s32(vqmovun_s32(vcvtnq_s32_f32(v[2 * j])), vcvtnq_s32_f32(v[2 * j + 1]));
    return vminq_u8(vqmovn_high_u16(vqmovn_u16(w[0]), w[1]), vdupq_n_u8(15));
}

INLINE void spread16(const uint16_t *p, float32x4_t *lo, float32x4_t *hi)
{
    float32x4_t v[4];
    halves16(p, v);
    *lo = vminq_f32(vminq_f32(v[0], v[1]), vminq_f32(v[2], v[3]));
    *hi = vmaxq_f32(vmaxq_f32(v[0], v[1]), vmaxq_f32(v[2], v[3]));
}

static void seal_q4_keys(const uint16_t *from, plp_q4_tile to, uint32_t d)
{
    ranges r;
    for (uint32_t c = 0; c < d; c += 4) {
        float32x4_t lo[4], hi[4];
        UNROLL for (uint32_t i = 0; i < 4; i++) spread16(k_row(from, c + i), &lo[i], &hi[i]);
        vst1q_f32(r.lo + c, least4(lo));
        vst1q_f32(r.hi + c, most4(hi));
    }
    quantise_ranges(&r, d, (uint16_t *)to.units, (uint8_t *)to.k_scale, (int8_t *)to.k_min);
    for (uint32_t c = 0; c < d / 2; c += 4) {
        uint8x16x4_t word;
        UNROLL for (uint32_t i = 0; i < 4; i++) {
            const uint32_t low = c + i, high = d / 2 + c + i;
            word.val[i] = vsliq_n_u8(nibbles_of(k_row(from, low), r.min[low], r.inv[low]),
                                     nibbles_of(k_row(from, high), r.min[high], r.inv[high]), 4);
        }
        vst4q_u8((uint8_t *)to.k + c * LEN, word);
    }
}

static void seal_q4_values(const uint16_t *from, plp_q4_tile to, uint32_t d)
{
    ranges r;
    for (uint32_t g = 0; g < plp_v_groups(d); g++)
        for (uint32_t t = 0; t < LEN; t += 4) {
            float32x4_t lo[4], hi[4];
            UNROLL for (uint32_t i = 0; i < 4; i++) {
                const uint16_t *row = v_row(from, d, t + i);
                spread16(row + g * PLP_V_GROUP, &lo[i], &hi[i]);
                for (uint32_t c = g * PLP_V_GROUP + 16; c < group_end(g, d); c += 16) {
                    float32x4_t less, more;
                    spread16(row + c, &less, &more);
                    lo[i] = vminq_f32(lo[i], less);
                    hi[i] = vmaxq_f32(hi[i], more);
                }
            }
            vst1q_f32(r.lo + g * LEN + t, least4(lo));
            vst1q_f32(r.hi + g * LEN + t, most4(hi));
        }
    quantise_ranges(&r, plp_v_groups(d) * LEN, (uint16_t *)to.units + 2, (uint8_t *)to.v_scale, (int8_t *)to.v_min);
    for (uint32_t t = 0; t < LEN / 2; t += 4)
        for (uint32_t c = 0; c < d; c += 16) {
            const uint32_t first = c / PLP_V_GROUP * LEN + t;
            uint8x16x4_t word;
            UNROLL for (uint32_t i = 0; i < 4; i++) {
                const uint32_t low = first + i, high = low + LEN / 2;
                word.val[i] = vsliq_n_u8(nibbles_of(v_row(from, d, t + i) + c, r.min[low], r.inv[low]),
                                         nibbles_of(v_row(from, d, LEN / 2 + t + i) + c, r.min[high], r.inv[high]), 4);
            }
            vst4q_u8((uint8_t *)to.v + (t / 4 * d + c) * 4, word);
        }
}

static void kv_seal_q4(const void *f16_tile, void *out, uint32_t d)
{
    seal_q4_keys(f16_tile, plp_q4_at(out, d), d);
    seal_q4_values(f16_tile, plp_q4_at(out, d), d);
}

void plp_fill_neon_seal(plp_kernels *k)
{
    k->kv_seal_q8 = kv_seal_q8;
    k->kv_seal_q4 = kv_seal_q4;
}
