/*
 * kernels/arm/sealed.h - attention over sealed q8 and q4 tiles by integer dots, written once for the tiers
 *
 * Layouts, formulas and their order: kernels/sealed.h. Up to four queries go through each stage side by side, so that
 * the tile's rows are loaded (and widened, or split into nibbles) once for all, and maxima, divisions and sums of four
 * cost as much as those of one. A tier's file defines how it multiplies, then includes this. It brings:
 *
 *   queries               up to GROUP queries as integers
 *   put_query(o, i, at, v)                eight channels of query i, as PLACES at..at+8 of its row (at % 8 == 0)
 *   key_dots(form, n, q, keys, dim, dots, next)      for n queries: dots of 16 tokens
 *   weights, put_weights(o, i, p)         sixteen probabilities of query i as int8 of 0..127
 *   value_dots(form, rows, w, i)          four channels' dots with query i's weights; row r: four channels of tokens 4r..4r+3
 *
 * Places: kernels/arm/planes.h.
 */
#ifndef PLP_KERNELS_ARM_SEALED_H
#define PLP_KERNELS_ARM_SEALED_H

#include "kernels/arm/planes.h"
#include "kernels/ref/ref.h"

/* What attention needs of a tile besides its rows, as floats. */
typedef struct sealed {
    const uint8_t *k;
    const int8_t  *v;
    uint32_t       dim, n_groups;
    float          k_scale[MAX_DIM], k_min[MAX_DIM];
    float          v_scale[MAX_GROUPS][LEN], v_min[MAX_GROUPS][LEN];
} sealed;

/* Queries that see something of the block, n <= GROUP of them. */
typedef struct group { uint32_t n, i[GROUP], lo[GROUP], hi[GROUP]; } group;

/* Lane i: f(f(lanes 0, 1), f(lanes 2, 3)) of v[i], and likewise with lanes 0, 2 and 1, 3: how sum16 ends. */
INLINE float32x4_t most4(const float32x4_t v[4]) { return vpmaxq_f32(vpmaxq_f32(v[0], v[1]), vpmaxq_f32(v[2], v[3])); }

INLINE float32x4_t halves_sum(float32x4_t a, float32x4_t b)
{
    const float64x2_t x = vreinterpretq_f64_f32(a), y = vreinterpretq_f64_f32(b);
    return vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(x, y)), vreinterpretq_f32_f64(vzip2q_f64(x, y)));
}
INLINE float32x4_t fold4(const float32x4_t v[4]) { return vpaddq_f32(halves_sum(v[0], v[1]), halves_sum(v[2], v[3])); }

/* limit / most, or 0 where that could overflow. */
INLINE float32x4_t inverse4(float32x4_t most, float limit)
{
    const uint32x4_t some = vcgeq_f32(most, vdupq_n_f32(PLP_X_ZERO));
    return vreinterpretq_f32_u32(vandq_u32(some, vreinterpretq_u32_f32(vdivq_f32(vdupq_n_f32(limit), most))));
}

/* Lane i, which has to be a literal after unrolling. */
INLINE float32x4_t lane_of(float32x4_t v, int i)
{
    return i == 0 ? vdupq_laneq_f32(v, 0) : i == 1 ? vdupq_laneq_f32(v, 1) : i == 2 ? vdupq_laneq_f32(v, 2) : vdupq_laneq_f32(v, 3);
}

INLINE int16x8_t rounded8(float32x4_t a, float32x4_t b)         /* the results fit */
{
    return vuzp1q_s16(vreinterpretq_s16_s32(vcvtnq_s32_f32(a)), vreinterpretq_s16_s32(vcvtnq_s32_f32(b)));
}

/* ---- queries --------------------------------------------------------------------------------- */

/* Queries times the tile's key scales as integers; returns what undoes it. q4: *floor, what the keys' minimums add to every score. */
INLINE float32x4_t quantise_queries(const int form, const int n, const plp_attn *a, const group *g, const sealed *x, queries *o,
                                    float32x4_t *floor)
{
    const uint32_t dim = x->dim;
    const float *from[GROUP];
    float32x4_t most[4], low[4];
    UNROLL for (int i = 0; i < 4; i++) {
        most[i] = low[i] = vdupq_n_f32(0);
        if (i < n) from[i] = a->q + (size_t)g->i[i] * dim;
    }
    for (uint32_t c = 0; c < dim; c += 8) {
        const float32x4_t s[2] = { vld1q_f32(x->k_scale + c), vld1q_f32(x->k_scale + c + 4) };
        UNROLL for (int i = 0; i < n; i++)
            UNROLL for (int j = 0; j < 2; j++)
                most[i] = vmaxq_f32(most[i], vabsq_f32(vmulq_f32(vld1q_f32(from[i] + c + 4 * j), s[j])));
    }
    const float32x4_t top = most4(most), inverse = inverse4(top, 32512.0f);
    float32x4_t inv[GROUP];
    UNROLL for (int i = 0; i < n; i++) inv[i] = lane_of(inverse, i);
    for (uint32_t c = 0; c < dim; c += 8) {
        const uint32_t half = dim / 2, at = form == Q8 ? c : c < half ? 2 * c : 2 * (c - half) + 8;
        const float32x4_t s[2] = { vld1q_f32(x->k_scale + c), vld1q_f32(x->k_scale + c + 4) };
        UNROLL for (int i = 0; i < n; i++)
            put_query(o, i, at, rounded8(vmulq_f32(vmulq_f32(vld1q_f32(from[i] + c), s[0]), inv[i]),
                                         vmulq_f32(vmulq_f32(vld1q_f32(from[i] + c + 4), s[1]), inv[i])));
    }
    if (form == Q4) {
        UNROLL for (int i = 0; i < n; i++) {
            float32x4_t lanes[4] = { low[i], low[i], low[i], low[i] };
            for (uint32_t c = 0; c < dim; c += 16)
                UNROLL for (int j = 0; j < 4; j++)
                    lanes[j] = vfmaq_f32(lanes[j], vld1q_f32(from[i] + c + 4 * j), vld1q_f32(x->k_min + c + 4 * j));
            low[i] = vaddq_f32(vaddq_f32(lanes[0], lanes[2]), vaddq_f32(lanes[1], lanes[3]));
        }
        *floor = fold4(low);
    }
    return vdivq_f32(top, vdupq_n_f32(32512.0f));
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Probabilities times a group's scales as integers; returns what undoes it. q4: *base, what the values' minimums add. */
INLINE float32x4_t quantise_p(const int form, const int n, const float32x4_t p[GROUP][4], const float *scale, const float *min, weights *o,
                              float32x4_t *base)
{
    float32x4_t s[4], most[4], e[GROUP][4];
    UNROLL for (int j = 0; j < 4; j++) s[j] = vld1q_f32(scale + 4 * j);
    UNROLL for (int i = 0; i < 4; i++) {
        most[i] = vdupq_n_f32(0);
        if (i >= n) continue;
        UNROLL for (int j = 0; j < 4; j++) e[i][j] = vmulq_f32(p[i][j], s[j]);
        most[i] = vmaxq_f32(vmaxq_f32(e[i][0], e[i][1]), vmaxq_f32(e[i][2], e[i][3]));
    }
    const float32x4_t top = most4(most), inverse = inverse4(top, 127.0f);
    UNROLL for (int i = 0; i < n; i++) {
        const float32x4_t inv = lane_of(inverse, i);
        put_weights(o, i, vuzp1q_s8(vreinterpretq_s8_s16(rounded8(vmulq_f32(e[i][0], inv), vmulq_f32(e[i][1], inv))),
                                    vreinterpretq_s8_s16(rounded8(vmulq_f32(e[i][2], inv), vmulq_f32(e[i][3], inv)))));
    }
    if (form == Q4) {
        float32x4_t low[4];
        UNROLL for (int j = 0; j < 4; j++) s[j] = vld1q_f32(min + 4 * j);
        UNROLL for (int i = 0; i < 4; i++)
            low[i] = i < n ? vaddq_f32(vaddq_f32(vmulq_f32(p[i][0], s[0]), vmulq_f32(p[i][2], s[2])),
                                       vaddq_f32(vmulq_f32(p[i][1], s[1]), vmulq_f32(p[i][3], s[3]))) : vdupq_n_f32(0);
        *base = fold4(low);
    }
    return vdivq_f32(top, vdupq_n_f32(127.0f));
}

INLINE void weigh_values(const int form, const int n, plp_attn *a, const group *g, const sealed *x, const float32x4_t p[GROUP][4])
{
    const uint32_t dim = x->dim;
    float *acc[GROUP];
    UNROLL for (int i = 0; i < n; i++) acc[i] = a->acc + (size_t)g->i[i] * dim;
    for (uint32_t v = 0, c = 0; v < x->n_groups; v++) {
        const uint32_t end = c + PLP_V_GROUP < dim ? c + PLP_V_GROUP : dim;
        weights w;
        float32x4_t base, add[GROUP];
        const float32x4_t back = quantise_p(form, n, p, x->v_scale[v], x->v_min[v], &w, &base);
        if (form == Q4)
            UNROLL for (int i = 0; i < n; i++) add[i] = lane_of(base, i);
        for (; c < end; c += 4) {
            int8x16_t rows[4];
            value_rows(form, x->v, dim, c, rows);
            UNROLL for (int i = 0; i < n; i++) {
                const float32x4_t dot = vcvtq_f32_s32(value_dots(form, rows, &w, i));
                float32x4_t sum = vfmaq_f32(vld1q_f32(acc[i] + c), dot, lane_of(back, i));
                if (form == Q4) sum = vaddq_f32(sum, add[i]);
                vst1q_f32(acc[i] + c, sum);
            }
        }
    }
}

/* ---- a tile ---------------------------------------------------------------------------------- */

INLINE void attend(const int form, const int n, plp_attn *a, const group *g, const sealed *x, const char *next)
{
    queries q;
    int32x4_t dots[GROUP][4];
    float32x4_t floor, p[GROUP][4];
    const float32x4_t back = quantise_queries(form, n, a, g, x, &q, &floor);
    key_dots(form, n, &q, x->k, x->dim, dots, next);
    UNROLL for (int i = 0; i < n; i++) {
        UNROLL for (int j = 0; j < 4; j++) {
            p[i][j] = vmulq_f32(vcvtq_f32_s32(dots[i][j]), lane_of(back, i));
            if (form == Q4) p[i][j] = vaddq_f32(p[i][j], lane_of(floor, i));
        }
        soften(a, g->i[i], p[i], g->lo[i], g->hi[i]);
    }
    weigh_values(form, n, a, g, x, p);
}

/* Up to GROUP of the queries from *i on that see something; *i moves on. */
INLINE group next_group(const plp_attn *a, plp_seen seen, uint32_t *i)
{
    group g = { 0 };
    for (; *i < a->n_q && g.n < GROUP; ++*i) {
        const uint32_t lo = seen.lo ? seen.lo[*i] : 0, hi = seen.hi ? seen.hi[*i] : LEN;
        if (lo >= hi) continue;
        g.i[g.n] = *i, g.lo[g.n] = lo, g.hi[g.n] = hi;
        g.n++;
    }
    return g;
}

INLINE void attend_all(const int form, plp_attn *a, const sealed *x, plp_seen seen, const char *next)
{
    for (uint32_t i = 0; i < a->n_q;) {
        const group g = next_group(a, seen, &i);
        switch (g.n) {
        case 0: return;
        case 1: attend(form, 1, a, &g, x, next); break;
        case 2: attend(form, 2, a, &g, x, next); break;
        case 3: attend(form, 3, a, &g, x, next); break;
        case 4: attend(form, 4, a, &g, x, next); break;
        }
        if (next) fetch_scales(form, x->dim, next);
        next = NULL;        /* fetched once */
    }
}

/* Its other members are written whole: clearing kilobytes first would cost more than some stages. */
INLINE void open_tile(sealed *x, const uint8_t *k, const void *v, uint32_t dim)
{
    x->k = k;
    x->v = v;
    x->dim = dim;
    x->n_groups = plp_v_groups(dim);
}

static void attn_q8(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const plp_q8_tile t = plp_q8_at(tile, a->head_dim);
    sealed x;
    open_tile(&x, t.k, t.v, a->head_dim);
    for (uint32_t c = 0; c < x.dim; c += 8) half_scales(t.k_scale + c, x.k_scale + c);
    for (uint32_t v = 0; v < x.n_groups; v++)
        UNROLL for (uint32_t j = 0; j < LEN; j += 8) half_scales(t.v_scale + v * LEN + j, x.v_scale[v] + j);
    attend_all(Q8, a, &x, seen, next);
}

static void attn_q4(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const plp_q4_tile t = plp_q4_at(tile, a->head_dim);
    sealed x;
    open_tile(&x, t.k, t.v, a->head_dim);
    float unit[8];
    for (uint32_t i = 0; i < 4; i++) unit[i] = plp_half(t.units[i]);
    for (uint32_t c = 0; c < x.dim; c += 16) {
        bytes_times(t.k_scale + c, unit[0], x.k_scale + c);
        signed_times(t.k_min + c, unit[1], x.k_min + c);
    }
    for (uint32_t v = 0; v < x.n_groups; v++) {
        bytes_times(t.v_scale + v * LEN, unit[2], x.v_scale[v]);
        signed_times(t.v_min + v * LEN, unit[3], x.v_min[v]);
    }
    attend_all(Q4, a, &x, seen, next);
}

#endif
