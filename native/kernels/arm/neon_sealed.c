/*
 * kernels/arm/neon_sealed.c - tier "neon": attention over sealed q8 and q4 tiles by widening multiplies
 *
 * Keys are widened to 16 bits, once for up to four queries, and multiplied with the 16-bit query; a vector of sums holds one
 * token's four channels until the end. Probabilities fit seven bits and meet V in 8-bit multiplies: a 16-bit lane takes
 * two products of at most 127 * 127, or all four of a channel's quads with nibbles (4 * 127 * 15).
 */
#include "kernels/arm/planes.h"

typedef struct queries { _Alignas(16) int16_t v[GROUP][MAX_DIM]; } queries;

INLINE void put_query(queries *o, int i, uint32_t at, int16x8_t v) { vst1q_s16(o->v[i] + at, v); }

INLINE void key_dots(const int form, const int n, const queries *q, const uint8_t *keys, uint32_t dim, int32x4_t dots[GROUP][4], const char *next)
{
    const int parts = n == 1 ? 4 : n == 2 ? 2 : 1;  /* vectors of four tokens per pass: 16 sums in registers */
    const uint32_t passes = 4 / parts;
    for (uint32_t pass = 0; pass < passes; pass++) {
        int32x4_t sum[GROUP][4][4];
        UNROLL for (int i = 0; i < n; i++)
            UNROLL for (int part = 0; part < parts; part++)
                UNROLL for (int t = 0; t < 4; t++) sum[i][part][t] = vdupq_n_s32(0);
        for (uint32_t j = 0; j < dim / 16; j++) {
            fetch_lines(form, next, dim, (form == Q8 ? 4 : 2) * j, form == Q8 ? 4 : 2, passes, pass);
            int16x8_t eight[GROUP];
            UNROLL for (int s = 0; s < 4; s++) {
                int64x2_t four[GROUP];              /* four channels, twice */
                UNROLL for (int i = 0; i < n; i++) {
                    if (s % 2 == 0) eight[i] = vld1q_s16(q->v[i] + 16 * j + 4 * s);
                    four[i] = s % 2 ? vdupq_laneq_s64(vreinterpretq_s64_s16(eight[i]), 1) : vdupq_laneq_s64(vreinterpretq_s64_s16(eight[i]), 0);
                }
                UNROLL for (int part = 0; part < parts; part++) {
                    const uint8x16_t u = plane(form, keys, j, s, pass * parts + part), less = vdupq_n_u8(128);
                    const uint16x8_t w[2] = { form == Q8 ? vsubl_u8(vget_low_u8(u), vget_low_u8(less)) : vmovl_u8(vget_low_u8(u)),
                                              form == Q8 ? vsubl_high_u8(u, less) : vmovl_high_u8(u) };
                    UNROLL for (int i = 0; i < n; i++)
                        UNROLL for (int pair = 0; pair < 2; pair++) {
                            int32x4_t *to = &sum[i][part][2 * pair];
                            const int16x8_t k = vreinterpretq_s16_u16(w[pair]), x = vreinterpretq_s16_s64(four[i]);
                            to[0] = vmlal_s16(to[0], vget_low_s16(k), vget_low_s16(x));
                            to[1] = vmlal_high_s16(to[1], k, x);
                        }
                }
            }
        }
        UNROLL for (int i = 0; i < n; i++)
            UNROLL for (int part = 0; part < parts; part++) {
                const int32x4_t *s = sum[i][part];
                dots[i][pass * parts + part] = vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]));
            }
    }
}

/* Four tokens' weights, in every dword. */
typedef struct weights { int8x16_t of[GROUP][4]; } weights;

INLINE void put_weights(weights *o, int i, int8x16_t p)
{
    const int32x4_t v = vreinterpretq_s32_s8(p);
    o->of[i][0] = vreinterpretq_s8_s32(vdupq_laneq_s32(v, 0));
    o->of[i][1] = vreinterpretq_s8_s32(vdupq_laneq_s32(v, 1));
    o->of[i][2] = vreinterpretq_s8_s32(vdupq_laneq_s32(v, 2));
    o->of[i][3] = vreinterpretq_s8_s32(vdupq_laneq_s32(v, 3));
}

INLINE int16x8_t low_products(int8x16_t a, int8x16_t b)                  { return vmull_s8(vget_low_s8(a), vget_low_s8(b)); }
INLINE int16x8_t add_low(int16x8_t sum, int8x16_t a, int8x16_t b)         { return vmlal_s8(sum, vget_low_s8(a), vget_low_s8(b)); }

INLINE int32x4_t value_dots(const int form, const int8x16_t rows[4], const weights *w, int i)
{
    const int8x16_t *p = w->of[i];
    int16x8_t a = add_low(low_products(rows[0], p[0]), rows[1], p[1]);
    int16x8_t b = vmlal_high_s8(vmull_high_s8(rows[0], p[0]), rows[1], p[1]);
    if (form == Q4) {
        a = add_low(add_low(a, rows[2], p[2]), rows[3], p[3]);
        b = vmlal_high_s8(vmlal_high_s8(b, rows[2], p[2]), rows[3], p[3]);
        return vpaddlq_s16(vpaddq_s16(a, b));
    }
    const int32x4_t c = vpadalq_s16(vpaddlq_s16(a), add_low(low_products(rows[2], p[2]), rows[3], p[3]));
    const int32x4_t d = vpadalq_s16(vpaddlq_s16(b), vmlal_high_s8(vmull_high_s8(rows[2], p[2]), rows[3], p[3]));
    return vpaddq_s32(c, d);
}

#include "kernels/arm/sealed.h"

void plp_fill_neon_sealed(plp_kernels *k)
{
    k->attn_q8 = attn_q8;
    k->attn_q4 = attn_q4;
}
