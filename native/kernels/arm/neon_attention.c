/*
 * kernels/arm/neon_attention.c - attention over one f16 tile, sixteen tokens at a time
 *
 * K lies [head_dim][token], so a vector holds one channel of four tokens and scores need no horizontal sums.
 * Up to four queries that see the same slots go together (the heads of one token, in practice): each f16 is then
 * widened once for all of them. Scores are made for eight tokens at a time, so that the two chains of four
 * queries (16 vectors) fit in registers with what they read.
 *
 * Bounds   K is read for all 16 slots of a unit, used or not; with blocks of 8 the second half of that is the
 *          next channel's, or V's, first slots: inside the tile, and masked
 */
#include "kernels/arm/arm.h"
#include "kernels/arm/soften.h"
#include "kernels/ref/ref.h"

enum { MAX_TOGETHER = 4 };

static void kv_put(void *tile, uint32_t block_len, uint32_t slot, const float *k, const float *v, uint32_t head_dim)
{
    uint16_t *to_k = (uint16_t *)tile + slot, *to_v = (uint16_t *)tile + (size_t)(block_len + slot) * head_dim;
    for (uint32_t d = 0; d < head_dim; d += 4, to_k += (size_t)4 * block_len) {
        const uint16x4_t h = vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(k + d)));
        vst1_lane_u16(to_k, h, 0);
        vst1_lane_u16(to_k + block_len, h, 1);
        vst1_lane_u16(to_k + 2 * (size_t)block_len, h, 2);
        vst1_lane_u16(to_k + 3 * (size_t)block_len, h, 3);
        vst1_u16(to_v + d, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(v + d))));
    }
}

/* Scores of n queries with tokens first..first+8: for each, the chains over even and odd channels, then their sum. Meanwhile
 * half a tile is fetched from `ahead` on (or NULL), evenly, so that the misses never pile up. */
INLINE void scores(uint32_t n, const float *q, uint32_t head_dim, const uint16_t *k, uint32_t block_len,
                   uint32_t first, float p[][UNIT], const char *ahead)
{
    float32x4_t even[MAX_TOGETHER][2], odd[MAX_TOGETHER][2];
    UNROLL for (uint32_t i = 0; i < n; i++)
        even[i][0] = even[i][1] = odd[i][0] = odd[i][1] = vdupq_n_f32(0);

    for (uint32_t d = 0; d < head_dim; d += 4) {
        float32x4_t channels[MAX_TOGETHER], v[2];
        if (ahead) {
            for (uint32_t line = 0; line < 8 * block_len; line += 64)
                __builtin_prefetch(ahead + line);
            ahead += 8 * block_len;
        }
        UNROLL for (uint32_t i = 0; i < n; i++)
            channels[i] = vld1q_f32(q + (size_t)i * head_dim + d);
/* The lane has to be a literal. */
#define CHANNEL(c, chain)                                                                   \
        halves8(k + first, v);                                                              \
        k += block_len;                                                                     \
        UNROLL for (uint32_t i = 0; i < n; i++)                                             \
            UNROLL for (int j = 0; j < 2; j++)                                              \
                chain[i][j] = vfmaq_laneq_f32(chain[i][j], v[j], channels[i], c);
        CHANNEL(0, even) CHANNEL(1, odd) CHANNEL(2, even) CHANNEL(3, odd)
#undef CHANNEL
    }
    UNROLL for (uint32_t i = 0; i < n; i++)
        UNROLL for (int j = 0; j < 2; j++)
            vst1q_f32(&p[i][first + 4 * j], vaddq_f32(even[i][j], odd[i][j]));
}

/* acc[i][d] += p[i][t] v[t][d], t in order over [lo, hi), 16 channels of n queries in registers at a time. */
INLINE void weigh(uint32_t n, float *acc, uint32_t head_dim, const uint16_t *v, float p[][UNIT], uint32_t lo, uint32_t hi)
{
    for (uint32_t d = 0; d < head_dim; d += 16) {
        float32x4_t sum[MAX_TOGETHER][4], w[4];
        UNROLL for (uint32_t i = 0; i < n; i++)
            UNROLL for (int j = 0; j < 4; j++)
                sum[i][j] = vld1q_f32(acc + (size_t)i * head_dim + d + 4 * j);
        for (uint32_t t = lo; t < hi; t++) {
            halves8(v + (size_t)t * head_dim + d, w);
            halves8(v + (size_t)t * head_dim + d + 8, w + 2);
            UNROLL for (uint32_t i = 0; i < n; i++)
                UNROLL for (int j = 0; j < 4; j++)
                    sum[i][j] = vfmaq_n_f32(sum[i][j], w[j], p[i][t]);
        }
        UNROLL for (uint32_t i = 0; i < n; i++)
            UNROLL for (int j = 0; j < 4; j++)
                vst1q_f32(acc + (size_t)i * head_dim + d + 4 * j, sum[i][j]);
    }
}

/* Queries i..i+n, all with slots [lo, hi) of the unit whose first token k and v point at. */
INLINE void attend(plp_attn *a, uint32_t i, uint32_t n, const uint16_t *k, uint32_t block_len, const uint16_t *v,
                   uint32_t lo, uint32_t hi, const char *next)
{
    const size_t at = (size_t)i * a->head_dim;
    float p[MAX_TOGETHER][UNIT];

    const char *next_v = next ? next + (size_t)2 * a->head_dim * block_len : NULL;
    scores(n, a->q + at, a->head_dim, k, block_len, 0, p, next);
    scores(n, a->q + at, a->head_dim, k, block_len, 8, p, next_v);
    for (uint32_t j = 0; j < n; j++) {
        float32x4_t w[4];
        UNROLL for (int part = 0; part < 4; part++) w[part] = vld1q_f32(p[j] + 4 * part);
        soften(a, i + j, w, lo, hi);
        UNROLL for (int part = 0; part < 4; part++) vst1q_f32(p[j] + 4 * part, w[part]);
    }
    weigh(n, a->acc + at, a->head_dim, v, p, lo, hi);
}

/* The slots of a unit that starts at u which query i sees; lo >= hi: none. */
INLINE void seen_slots(plp_seen seen, uint32_t i, uint32_t block_len, uint32_t u, uint32_t *lo, uint32_t *hi)
{
    const uint32_t from = seen.lo ? seen.lo[i] : 0, to = seen.hi ? seen.hi[i] : block_len;
    *lo = from > u ? from - u : 0;
    *hi = to < u ? 0 : to - u < UNIT ? to - u : UNIT;
}

static void attn_f16(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const uint16_t *k = tile, *v = k + (size_t)a->head_dim * block_len;

    for (uint32_t u = 0; u < block_len; u += UNIT, k += UNIT, v += (size_t)UNIT * a->head_dim)
        for (uint32_t i = 0, n; i < a->n_q; i += n) {
            uint32_t lo, hi, lo2, hi2;
            seen_slots(seen, i, block_len, u, &lo, &hi);
            for (n = 1; n < MAX_TOGETHER && i + n < a->n_q; n++) {
                seen_slots(seen, i + n, block_len, u, &lo2, &hi2);
                if (lo2 != lo || hi2 != hi)
                    break;
            }
            if (lo >= hi)
                continue;
            switch (n) {
            case 1: attend(a, i, 1, k, block_len, v, lo, hi, next); break;
            case 2: attend(a, i, 2, k, block_len, v, lo, hi, next); break;
            case 3: attend(a, i, 3, k, block_len, v, lo, hi, next); break;
            case 4: attend(a, i, 4, k, block_len, v, lo, hi, next); break;
            }
            next = NULL;        /* fetched once */
        }
}

enum { MANY = 8 };         /* queries from which on lanes are better queries than tokens: neon_run.c */

static size_t attn_run_work(uint32_t n_q, uint32_t head_dim)
{
    const size_t in_turn = plp_attn_in_turn_work(n_q, head_dim), lanes = plp_neon_run_work(head_dim);
    return in_turn > lanes ? in_turn : lanes;
}

static void attn_f16_run(plp_attn *a, const void *const *tiles, uint32_t block_len, plp_seen seen, void *work)
{
    if (a->n_q < MANY || block_len % UNIT) plp_attn_in_turn(attn_f16, a, tiles, block_len, seen, work);
    else plp_neon_run(a, tiles, block_len, seen, work);
}

void plp_fill_neon_attention(plp_kernels *k)
{
    k->kv_put = kv_put;
    k->attn_f16 = attn_f16;
    k->attn_run_work = attn_run_work;
    k->attn_f16_run = attn_f16_run;
}
