/*
 * kernels/arm/dotprod_sealed.c - tier "dotprod": attention over sealed q8 and q4 tiles with sdot
 *
 * A 16-bit query is two signed bytes, q = 256 * high + low; sdot's by-lane form multiplies four channels of four tokens
 * with one dword of either. Two queries' sums of 16 tokens, or four queries' of 8, stay in registers.
 */
#include "kernels/arm/planes.h"

typedef struct queries { int8_t high[GROUP][MAX_DIM], low[GROUP][MAX_DIM]; } queries;

INLINE void put_query(queries *o, int i, uint32_t at, int16x8_t v)
{
    vst1_s8(o->high[i] + at, vrshrn_n_s16(v, 8));
    vst1_s8(o->low[i] + at, vmovn_s16(v));          /* less 256 * high, it fits a signed byte */
}

INLINE void key_dots(const int form, const int n, const queries *q, const uint8_t *keys, uint32_t dim, int32x4_t dots[GROUP][4], const char *next)
{
    const int parts = n <= 2 ? 4 : 2;               /* vectors of four tokens per pass */
    const uint32_t passes = 4 / parts;
    for (uint32_t pass = 0; pass < passes; pass++) {
        int32x4_t high[GROUP][4], low[GROUP][4];
        UNROLL for (int i = 0; i < n; i++)
            UNROLL for (int part = 0; part < parts; part++) high[i][part] = low[i][part] = vdupq_n_s32(0);
        for (uint32_t j = 0; j < dim / 16; j++) {
            int8x16_t qh[GROUP], ql[GROUP];
            UNROLL for (int i = 0; i < n; i++) qh[i] = vld1q_s8(q->high[i] + 16 * j), ql[i] = vld1q_s8(q->low[i] + 16 * j);
            fetch_lines(form, next, dim, (form == Q8 ? 4 : 2) * j, form == Q8 ? 4 : 2, passes, pass);
/* The lane has to be a literal. */
#define PLANE(s)                                                                                    \
            UNROLL for (int part = 0; part < parts; part++) {                                       \
                const uint8x16_t u = plane(form, keys, j, s, pass * parts + part);                  \
                const int8x16_t k = vreinterpretq_s8_u8(form == Q8 ? veorq_u8(u, vdupq_n_u8(128)) : u); \
                UNROLL for (int i = 0; i < n; i++) {                                                \
                    high[i][part] = vdotq_laneq_s32(high[i][part], k, qh[i], s);                    \
                    low[i][part] = vdotq_laneq_s32(low[i][part], k, ql[i], s);                      \
                }                                                                                   \
            }
            PLANE(0) PLANE(1) PLANE(2) PLANE(3)
#undef PLANE
        }
        UNROLL for (int i = 0; i < n; i++)
            UNROLL for (int part = 0; part < parts; part++)
                dots[i][pass * parts + part] = vaddq_s32(vshlq_n_s32(high[i][part], 8), low[i][part]);
    }
}

typedef struct weights { int8x16_t of[GROUP]; } weights;

INLINE void put_weights(weights *o, int i, int8x16_t p) { o->of[i] = p; }

INLINE int32x4_t value_dots(const int form, const int8x16_t rows[4], const weights *w, int i)
{
    (void)form;
    int32x4_t sum = vdotq_laneq_s32(vdupq_n_s32(0), rows[0], w->of[i], 0);
    sum = vdotq_laneq_s32(sum, rows[1], w->of[i], 1);
    sum = vdotq_laneq_s32(sum, rows[2], w->of[i], 2);
    return vdotq_laneq_s32(sum, rows[3], w->of[i], 3);
}

#include "kernels/arm/sealed.h"

void plp_fill_dotprod_sealed(plp_kernels *k)
{
    k->attn_q8 = attn_q8;
    k->attn_q4 = attn_q4;
}
