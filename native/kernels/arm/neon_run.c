/*
 * kernels/arm/neon_run.c - many queries over a run of f16 blocks (prefill): lanes are queries
 *
 * Four queries a vector, up to SLAB of them at a time: a score is a query channel times one lane of the keys, so that maxima
 * and sums over the 16 tokens of a unit are plain vertical operations. The chains over even and odd channels are walked one
 * after the other, eight tokens at a time: then 24 sums stay in registers, and five loads feed 24 multiply-adds. Queries and
 * outputs are turned once per run; keys and values are widened as they are met, which costs less than a widened copy.
 *
 *   work   queries [dim][SLAB] | outputs [dim][SLAB] | scores [UNIT][SLAB]
 */
#include "kernels/arm/arm.h"
#include "kernels/arm/soften.h"

enum { SETS = 3, SLAB = 4 * SETS, CHANNELS = 8 };

typedef struct slab {
    float       *q, *acc, *p;           /* the parts of `work`, in its order */
    uint32_t     dim, block_len;
    float        softcap;
    float32x4_t  m[SETS], s[SETS];
} slab;

/* Lanes that see token t. */
typedef struct mask { uint32x4_t t[UNIT]; } mask;

size_t plp_neon_run_work(uint32_t head_dim) { return sizeof(float) * SLAB * (2 * (size_t)head_dim + UNIT); }

/* ---- turning: [4 queries][dim] to and from [dim][SLAB] --------------------------------------- */

INLINE void transpose(float32x4_t v[4])
{
    const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(v[0], v[1])), b = vreinterpretq_f64_f32(vtrn2q_f32(v[0], v[1]));
    const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(v[2], v[3])), d = vreinterpretq_f64_f32(vtrn2q_f32(v[2], v[3]));
    v[0] = vreinterpretq_f32_f64(vzip1q_f64(a, c));
    v[1] = vreinterpretq_f32_f64(vzip1q_f64(b, d));
    v[2] = vreinterpretq_f32_f64(vzip2q_f64(a, c));
    v[3] = vreinterpretq_f32_f64(vzip2q_f64(b, d));
}

/* Lanes past the n-th are the last query again, and never stored. */
static void turn_in(float *to, const float *from, uint32_t n, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d += 4) {
        float32x4_t v[4];
        UNROLL for (uint32_t i = 0; i < 4; i++) v[i] = vld1q_f32(from + (size_t)(i < n ? i : n - 1) * dim + d);
        transpose(v);
        UNROLL for (uint32_t i = 0; i < 4; i++) vst1q_f32(to + (d + i) * SLAB, v[i]);
    }
}

static void turn_out(float *to, const float *from, uint32_t n, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d += 4) {
        float32x4_t v[4];
        UNROLL for (uint32_t i = 0; i < 4; i++) v[i] = vld1q_f32(from + (d + i) * SLAB);
        transpose(v);
        UNROLL for (uint32_t i = 0; i < 4; i++)
            if (i < n) vst1q_f32(to + (size_t)i * dim + d, v[i]);
    }
}

/* ---- one unit --------------------------------------------------------------------------------- */

/* Lane by lane, which has to be a literal: sum[r][i] += x[r] * y[i] for eight y. */
#define STEP(i) UNROLL for (int r = 0; r < sets; r++) sum[r][i] = vfmaq_laneq_f32(sum[r][i], x[r], y[(i) / 4], (i) % 4);
#define EIGHT_STEPS STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)

/* What a pass of the scores fetches, a line each step: it makes dim / 2 of them. */
typedef struct ahead { const char *at; size_t step; } ahead;

/* Eight tokens, every other channel; `odd`: the second chain, added to the first. */
INLINE void chain(const int sets, const slab *z, const uint16_t *k, int odd, float *p, ahead next)
{
    float32x4_t sum[SETS][8];
    const float *q = z->q + odd * SLAB;
    UNROLL for (int r = 0; r < sets; r++)
        UNROLL for (int i = 0; i < 8; i++) sum[r][i] = vdupq_n_f32(0);
    k += odd * z->block_len;
    for (uint32_t d = 0; d < z->dim; d += 2, q += 2 * SLAB, k += 2 * (size_t)z->block_len, next.at += next.step) {
        float32x4_t x[SETS], y[2];
        __builtin_prefetch(next.at);
        halves8(k, y);
        UNROLL for (int r = 0; r < sets; r++) x[r] = vld1q_f32(q + 4 * r);
        EIGHT_STEPS
    }
    UNROLL for (int i = 0; i < 8; i++)
        UNROLL for (int r = 0; r < sets; r++) {
            float *to = p + i * SLAB + 4 * r;
            vst1q_f32(to, odd ? vaddq_f32(vld1q_f32(to), sum[r][i]) : sum[r][i]);
        }
}

/* next: the unit after this one (or this one again), fetched evenly: rows of keys, then values. */
INLINE void scores(const int sets, const slab *z, const uint16_t *k, const uint16_t *next_k, const uint16_t *next_v)
{
    const size_t rows = 2 * (size_t)z->block_len * sizeof *k;
    chain(sets, z, k, 0, z->p, (ahead){ (const char *)next_k, rows });
    chain(sets, z, k, 1, z->p, (ahead){ (const char *)(next_k + z->block_len), rows });
    chain(sets, z, k + 8, 0, z->p + 8 * SLAB, (ahead){ (const char *)next_v, 64 });
    chain(sets, z, k + 8, 1, z->p + 8 * SLAB, (ahead){ (const char *)next_v, 0 });
}

/* Scores of one set -> weights relative to its maxima, which may rise; s and outputs follow. seen NULL: all of it. */
INLINE void soften_set(slab *z, int r, const mask *seen)
{
    const float32x4_t never = vdupq_n_f32(-__builtin_inff()), one = vdupq_n_f32(1.0f);
    float32x4_t x[UNIT], top = never;
    uint32x4_t live = vdupq_n_u32(seen ? 0 : ~0u);
    float *p = z->p + 4 * r;
    UNROLL for (int t = 0; t < UNIT; t++) {
        x[t] = vld1q_f32(p + t * SLAB);
        if (z->softcap > 0) x[t] = vmulq_n_f32(tanh4(vdivq_f32(x[t], vdupq_n_f32(z->softcap))), z->softcap);
        if (seen) {
            x[t] = vbslq_f32(seen->t[t], x[t], never);
            live = vorrq_u32(live, seen->t[t]);
        }
        top = vmaxnmq_f32(top, x[t]);
    }
    const uint32x4_t rise = vandq_u32(live, vcgtq_f32(top, z->m[r]));
    if (vmaxvq_u32(rise)) {
        const float32x4_t c = vbslq_f32(rise, exp4(vsubq_f32(z->m[r], top)), one);
        z->m[r] = vbslq_f32(rise, top, z->m[r]);
        z->s[r] = vmulq_f32(z->s[r], c);
        for (uint32_t d = 0; d < z->dim; d++) {
            float *acc = z->acc + d * SLAB + 4 * r;
            vst1q_f32(acc, vmulq_f32(vld1q_f32(acc), c));
        }
    }
    UNROLL for (int t = 0; t < UNIT; t++) {
        x[t] = exp4(vsubq_f32(x[t], z->m[r]));
        vst1q_f32(p + t * SLAB, x[t]);
    }
    UNROLL for (int half = UNIT / 2; half; half /= 2)
        UNROLL for (int t = 0; t < half; t++) x[t] = vaddq_f32(x[t], x[t + half]);
    z->s[r] = vbslq_f32(live, vaddq_f32(z->s[r], x[0]), z->s[r]);
}

/* Eight channels of the outputs, from d on. A token that a query does not see must not be touched: 0 * NaN is NaN. */
INLINE void weigh(const int sets, const slab *z, const uint16_t *v, uint32_t d, const mask *seen)
{
    float32x4_t sum[SETS][CHANNELS];
    float *to = z->acc + d * SLAB;
    UNROLL for (int c = 0; c < CHANNELS; c++)
        UNROLL for (int r = 0; r < sets; r++) sum[r][c] = vld1q_f32(to + c * SLAB + 4 * r);
    const float *p = z->p;
    v += d;
    for (uint32_t t = 0; t < UNIT; t++, v += z->dim, p += SLAB) {
        float32x4_t x[SETS], y[2];
        halves8(v, y);
        UNROLL for (int r = 0; r < sets; r++) x[r] = vld1q_f32(p + 4 * r);
        if (!seen) {
            EIGHT_STEPS
        } else {
#define KEPT(i) UNROLL for (int r = 0; r < sets; r++) \
            sum[r][i] = vbslq_f32(seen[r].t[t], vfmaq_laneq_f32(sum[r][i], x[r], y[(i) / 4], (i) % 4), sum[r][i]);
            KEPT(0) KEPT(1) KEPT(2) KEPT(3) KEPT(4) KEPT(5) KEPT(6) KEPT(7)
#undef KEPT
        }
    }
    UNROLL for (int c = 0; c < CHANNELS; c++)
        UNROLL for (int r = 0; r < sets; r++) vst1q_f32(to + c * SLAB + 4 * r, sum[r][c]);
}

/* A unit's first key and first value, and the next unit's. */
typedef struct unit { const uint16_t *k, *v, *next_k, *next_v; } unit;

INLINE void attend(const int sets, slab *z, const unit *u, const mask *seen)
{
    scores(sets, z, u->k, u->next_k, u->next_v);
    UNROLL for (int r = 0; r < sets; r++) soften_set(z, r, seen ? seen + r : NULL);
    for (uint32_t d = 0; d < z->dim; d += CHANNELS) weigh(sets, z, u->v, d, seen);
}

typedef void attend_fn(slab *z, const unit *u, const mask *seen);
#define ATTEND(sets)                                                                                \
    static __attribute__((noinline)) void whole_##sets(slab *z, const unit *u, const mask *seen)    \
    { (void)seen; attend(sets, z, u, NULL); }                                                       \
    static __attribute__((noinline)) void masked_##sets(slab *z, const unit *u, const mask *seen)   \
    { attend(sets, z, u, seen); }
ATTEND(1) ATTEND(2) ATTEND(3)
static attend_fn *const attend_for[SETS][2] = { { masked_1, whole_1 }, { masked_2, whole_2 }, { masked_3, whole_3 } };

/* ---- runs ------------------------------------------------------------------------------------- */

/* Slots [lo, hi) that each lane sees, and what all of them, or any, see. */
typedef struct sight { uint32x4_t lo[SETS], hi[SETS]; uint32_t first, last, whole_from, whole_to; } sight;

static sight sight_of(const uint32_t *lo, const uint32_t *hi, uint32_t n)
{
    sight o = { .first = UINT32_MAX, .whole_to = UINT32_MAX };
    for (uint32_t j = 0; j < n; j++) {
        if (lo[j] >= hi[j]) { o.whole_to = 0; continue; }
        if (lo[j] < o.first) o.first = lo[j];
        if (lo[j] > o.whole_from) o.whole_from = lo[j];
        if (hi[j] > o.last) o.last = hi[j];
        if (hi[j] < o.whole_to) o.whole_to = hi[j];
    }
    for (uint32_t r = 0; r < (n + 3) / 4; r++) {
        uint32_t a[4], b[4];
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t j = 4 * r + i < n ? 4 * r + i : n - 1;
            a[i] = lo[j], b[i] = hi[j];
        }
        o.lo[r] = vld1q_u32(a), o.hi[r] = vld1q_u32(b);
    }
    return o;
}

/* n numbers of queries as lanes, and back. */
static void lanes_in(float32x4_t v[SETS], const float *from, uint32_t n)
{
    for (uint32_t r = 0; r < (n + 3) / 4; r++) {
        float four[4];
        for (uint32_t i = 0; i < 4; i++) four[i] = from[4 * r + i < n ? 4 * r + i : n - 1];
        v[r] = vld1q_f32(four);
    }
}

static void lanes_out(float *to, const float32x4_t v[SETS], uint32_t n)
{
    for (uint32_t r = 0; r < (n + 3) / 4; r++) {
        float four[4];
        vst1q_f32(four, v[r]);
        for (uint32_t i = 0; i < 4 && 4 * r + i < n; i++) to[4 * r + i] = four[i];
    }
}

/* Queries i .. i + n of a. */
static void run_slab(plp_attn *a, uint32_t i, uint32_t n, const void *const *tiles, uint32_t block_len, plp_seen seen, float *work)
{
    const uint32_t dim = a->head_dim, sets = (n + 3) / 4;
    const sight s = sight_of(seen.lo + i, seen.hi + i, n);
    slab z = { .q = work, .acc = work + SLAB * dim, .p = work + 2 * SLAB * dim, .dim = dim, .block_len = block_len, .softcap = a->softcap };

    if (s.last == 0) return;
    for (uint32_t r = 0; r < sets; r++) {
        const size_t at = (size_t)(i + 4 * r) * dim;
        turn_in(z.q + 4 * r, a->q + at, n - 4 * r, dim);
        turn_in(z.acc + 4 * r, a->acc + at, n - 4 * r, dim);
    }
    lanes_in(z.m, a->m + i, n);
    lanes_in(z.s, a->s + i, n);
    for (uint32_t at = s.first / UNIT * UNIT; at < s.last; at += UNIT) {
        const uint32_t slot = at % block_len, then = at + UNIT < s.last ? at + UNIT : at, then_slot = then % block_len;
        const uint16_t *tile = tiles[at / block_len], *next = tiles[then / block_len];
        const unit u = { tile + slot, tile + (size_t)(block_len + slot) * dim, next + then_slot, next + (size_t)(block_len + then_slot) * dim };
        const bool whole = at >= s.whole_from && at + UNIT <= s.whole_to;
        mask sees[SETS];
        if (!whole)
            for (uint32_t r = 0; r < sets; r++)
                for (uint32_t t = 0; t < UNIT; t++)
                    sees[r].t[t] = vandq_u32(vcleq_u32(s.lo[r], vdupq_n_u32(at + t)), vcgtq_u32(s.hi[r], vdupq_n_u32(at + t)));
        attend_for[sets - 1][whole](&z, &u, sees);
    }
    for (uint32_t r = 0; r < sets; r++) turn_out(a->acc + (size_t)(i + 4 * r) * dim, z.acc + 4 * r, n - 4 * r, dim);
    lanes_out(a->m + i, z.m, n);
    lanes_out(a->s + i, z.s, n);
}

void plp_neon_run(plp_attn *a, const void *const *tiles, uint32_t block_len, plp_seen seen, void *work)
{
    for (uint32_t i = 0; i < a->n_q; i += SLAB)
        run_slab(a, i, a->n_q - i < SLAB ? a->n_q - i : SLAB, tiles, block_len, seen, work);
}
