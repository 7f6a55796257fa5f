/*
 * kernels/x86/avx512_run.c - tier "avx512": many queries over a run of f16 blocks (prefill)
 *
 * Lanes are queries here, 16 a register, up to SLAB of them at a time: a score is a query channel times a
 * broadcast key, so that maxima and sums over the 16 tokens of a unit are plain vertical operations, and
 * nothing is folded across lanes. Queries and outputs are turned once per run, tiles widened once per slab.
 *
 *   work   queries [dim][SLAB] | outputs [dim][SLAB] | K [dim][UNIT] | V [UNIT][dim] | scores [UNIT][SLAB]
 */
#include "kernels/x86/avx512.h"

enum { UNIT = 16, SETS = 3, SLAB = 16 * SETS, TOKENS = 4, CHANNELS = 8 };      /* of a tile of scores, of outputs */

typedef struct slab {
    float    *q, *acc, *k, *v, *p;      /* the parts of `work`, in its order */
    uint32_t  dim;
    float     softcap;
    __m512    m[SETS], s[SETS];
} slab;

size_t plp_avx512_run_work(uint32_t head_dim)
{
    return sizeof(float) * (2 * SLAB * (size_t)head_dim + 2 * UNIT * (size_t)head_dim + UNIT * SLAB);
}

/* ---- turning: [n <= 16 queries][dim] to and from [dim][SLAB] -------------------------------- */

static void turn_in(float *to, const float *from, uint32_t n, uint32_t dim)
{
    if (n < 16)
        for (uint32_t d = 0; d < dim; d++)
            for (uint32_t i = 0; i < 16; i++) to[d * SLAB + i] = i < n ? from[i * dim + d] : 0;
    else
        for (uint32_t d = 0; d < dim; d += 4) {
            __m512i v[4];
            transpose_16x4(from + d, dim * sizeof(float), v);
            UNROLL for (int c = 0; c < 4; c++) _mm512_store_si512(to + (d + c) * SLAB, v[c]);
        }
}

static void turn_out(float *to, const float *from, uint32_t n, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d += 16)
        for (uint32_t i = 0; i < 16; i += 4) {
            __m512i v[4];
            transpose_16x4(from + d * SLAB + i, SLAB * sizeof(float), v);
            UNROLL for (uint32_t c = 0; c < 4; c++)
                if (i + c < n) _mm512_storeu_si512(to + (i + c) * dim + d, v[c]);
        }
}

static void widen(const slab *z, const uint16_t *k, uint32_t block_len, const uint16_t *v)
{
    for (uint32_t d = 0; d < z->dim; d++) _mm512_store_ps(z->k + d * UNIT, halves(k + (size_t)d * block_len));
    for (uint32_t e = 0; e < UNIT * z->dim; e += 16) _mm512_store_ps(z->v + e, halves(v + e));
}

/* The unit that comes next, into L2: widening it is all that waits for memory. */
static void fetch_unit(const uint16_t *tile, uint32_t slot, uint32_t block_len, uint32_t dim)
{
    const uint16_t *v = tile + (size_t)(block_len + slot) * dim;
    for (uint32_t d = 0; d < dim; d += block_len == UNIT ? 2 : 1)
        _mm_prefetch((const char *)(tile + (size_t)d * block_len + slot), _MM_HINT_T1);
    for (uint32_t e = 0; e < UNIT * dim; e += 32) _mm_prefetch((const char *)(v + e), _MM_HINT_T1);
}

/* ---- one unit ------------------------------------------------------------------------------- */

/* TOKENS tokens at a time: the two chains of each, over even and odd channels, stay in registers. */
INLINE void scores(const int sets, const slab *z)
{
    for (uint32_t t = 0; t < UNIT; t += TOKENS) {
        __m512 c[2][SETS][TOKENS];
        UNROLL for (int odd = 0; odd < 2; odd++)
            UNROLL for (int r = 0; r < sets; r++)
                UNROLL for (int i = 0; i < TOKENS; i++) c[odd][r][i] = _mm512_setzero_ps();
        const float *q = z->q, *k = z->k + t;
        for (uint32_t d = 0; d < z->dim; d += 2)
            UNROLL for (int odd = 0; odd < 2; odd++, q += SLAB, k += UNIT) {
                __m512 x[SETS];
                UNROLL for (int r = 0; r < sets; r++) x[r] = _mm512_load_ps(q + 16 * r);
                UNROLL for (int i = 0; i < TOKENS; i++) {
                    const __m512 y = splat(k[i]);
                    UNROLL for (int r = 0; r < sets; r++) c[odd][r][i] = _mm512_fmadd_ps(x[r], y, c[odd][r][i]);
                }
            }
        UNROLL for (int i = 0; i < TOKENS; i++)
            UNROLL for (int r = 0; r < sets; r++)
                _mm512_store_ps(z->p + (t + i) * SLAB + 16 * r, _mm512_add_ps(c[0][r][i], c[1][r][i]));
    }
}

/* Scores of one set -> probabilities relative to its maxima, which may rise; s and outputs follow. seen[t]: lanes
 * that see token t; NULL: all. */
INLINE void soften_set(slab *z, int r, const __mmask16 *seen)
{
    __m512 x[UNIT], top = splat(-__builtin_inff());
    __mmask16 live = seen ? 0 : 0xffff;
    float *p = z->p + 16 * r;
    UNROLL for (int t = 0; t < UNIT; t++) {
        x[t] = _mm512_load_ps(p + t * SLAB);
        if (z->softcap > 0) x[t] = _mm512_mul_ps(splat(z->softcap), tanh16(_mm512_div_ps(x[t], splat(z->softcap))));
        if (seen) {
            x[t] = _mm512_mask_blend_ps(seen[t], splat(-__builtin_inff()), x[t]);
            live |= seen[t];
        }
        top = _mm512_max_ps(top, x[t]);
    }
    const __mmask16 rise = _mm512_mask_cmp_ps_mask(live, top, z->m[r], _CMP_GT_OQ);
    if (rise) {
        const __m512 c = exp16(_mm512_sub_ps(z->m[r], top));
        z->m[r] = _mm512_mask_mov_ps(z->m[r], rise, top);
        z->s[r] = _mm512_mask_mul_ps(z->s[r], rise, z->s[r], c);
        for (uint32_t d = 0; d < z->dim; d++) {
            float *acc = z->acc + d * SLAB + 16 * r;
            const __m512 v = _mm512_load_ps(acc);
            _mm512_store_ps(acc, _mm512_mask_mul_ps(v, rise, v, c));
        }
    }
    UNROLL for (int t = 0; t < UNIT; t++) {
        x[t] = exp16(_mm512_sub_ps(x[t], z->m[r]));
        _mm512_store_ps(p + t * SLAB, x[t]);
    }
    UNROLL for (int half = UNIT / 2; half; half /= 2)
        UNROLL for (int t = 0; t < half; t++) x[t] = _mm512_add_ps(x[t], x[t + half]);
    z->s[r] = _mm512_mask_add_ps(z->s[r], live, z->s[r], x[0]);
}

/* The outputs' channels d .. d + CHANNELS. A token that a query does not see must not be touched: 0 * NaN is NaN. */
INLINE void gather_v(const int sets, const slab *z, uint32_t d, const __mmask16 (*seen)[UNIT])
{
    __m512 acc[SETS][CHANNELS];
    float *to = z->acc + d * SLAB;
    UNROLL for (int c = 0; c < CHANNELS; c++)
        UNROLL for (int r = 0; r < sets; r++) acc[r][c] = _mm512_load_ps(to + c * SLAB + 16 * r);
    for (uint32_t t = 0; t < UNIT; t++) {
        const float *v = z->v + t * z->dim + d;
        __m512 p[SETS];
        UNROLL for (int r = 0; r < sets; r++) p[r] = _mm512_load_ps(z->p + t * SLAB + 16 * r);
        UNROLL for (int c = 0; c < CHANNELS; c++) {
            const __m512 y = splat(v[c]);
            UNROLL for (int r = 0; r < sets; r++)
                acc[r][c] = seen ? _mm512_mask3_fmadd_ps(p[r], y, acc[r][c], seen[r][t]) : _mm512_fmadd_ps(p[r], y, acc[r][c]);
        }
    }
    UNROLL for (int c = 0; c < CHANNELS; c++)
        UNROLL for (int r = 0; r < sets; r++) _mm512_store_ps(to + c * SLAB + 16 * r, acc[r][c]);
}

INLINE void attend(const int sets, slab *z, const __mmask16 (*seen)[UNIT])
{
    scores(sets, z);
    UNROLL for (int r = 0; r < sets; r++) soften_set(z, r, seen ? seen[r] : NULL);
    for (uint32_t d = 0; d < z->dim; d += CHANNELS) gather_v(sets, z, d, seen);
}

typedef void attend_fn(slab *z, const __mmask16 (*seen)[UNIT]);
#define ATTEND(sets)                                                                                \
    static __attribute__((noinline)) void whole_##sets(slab *z, const __mmask16 (*seen)[UNIT])      \
    { (void)seen; attend(sets, z, NULL); }                                                          \
    static __attribute__((noinline)) void masked_##sets(slab *z, const __mmask16 (*seen)[UNIT])     \
    { attend(sets, z, seen); }
ATTEND(1) ATTEND(2) ATTEND(3)
static attend_fn *const attend_for[SETS][2] = { { masked_1, whole_1 }, { masked_2, whole_2 }, { masked_3, whole_3 } };

/* ---- runs ----------------------------------------------------------------------------------- */

/* Queries i .. i + n of a. */
static void run_slab(plp_attn *a, uint32_t i, uint32_t n, const void *const *tiles, uint32_t block_len,
                     const uint32_t *lo, const uint32_t *hi, float *work)
{
    const uint32_t dim = a->head_dim, sets = (n + 15) / 16;
    slab z = { .q = work, .dim = dim, .softcap = a->softcap };
    z.acc = z.q + SLAB * dim;
    z.k = z.acc + SLAB * dim;
    z.v = z.k + UNIT * dim;
    z.p = z.v + UNIT * dim;

    __m512i from[SETS], to[SETS];
    uint32_t first = UINT32_MAX, last = 0, whole_from = 0, whole_to = UINT32_MAX;
    for (uint32_t r = 0; r < sets; r++) {
        const uint32_t at = i + 16 * r, here = n - 16 * r < 16 ? n - 16 * r : 16;
        const __mmask16 mask = lanes_below(here);
        turn_in(z.q + 16 * r, a->q + (size_t)at * dim, here, dim);
        turn_in(z.acc + 16 * r, a->acc + (size_t)at * dim, here, dim);
        z.m[r] = _mm512_maskz_loadu_ps(mask, a->m + at);
        z.s[r] = _mm512_maskz_loadu_ps(mask, a->s + at);
        from[r] = _mm512_maskz_loadu_epi32(mask, lo + at);
        to[r] = _mm512_maskz_loadu_epi32(mask, hi + at);
        for (uint32_t j = at; j < at + here; j++) {
            if (lo[j] >= hi[j]) { whole_to = 0; continue; }
            if (lo[j] < first) first = lo[j];
            if (lo[j] > whole_from) whole_from = lo[j];
            if (hi[j] > last) last = hi[j];
            if (hi[j] < whole_to) whole_to = hi[j];
        }
    }
    for (uint32_t at = first / UNIT * UNIT; at < last; at += UNIT) {
        const uint16_t *tile = tiles[at / block_len], *v = tile + (size_t)dim * block_len;
        const bool whole = at >= whole_from && at + UNIT <= whole_to;
        __mmask16 seen[SETS][UNIT];
        if (!whole)
            for (uint32_t r = 0; r < sets; r++)
                for (uint32_t t = 0; t < UNIT; t++) {
                    const __m512i slot = _mm512_set1_epi32((int)(at + t));
                    seen[r][t] = _mm512_mask_cmplt_epu32_mask(_mm512_cmple_epu32_mask(from[r], slot), slot, to[r]);
                }
        if (at + UNIT < last) fetch_unit(tiles[(at + UNIT) / block_len], (at + UNIT) % block_len, block_len, dim);
        widen(&z, tile + at % block_len, block_len, v + (size_t)(at % block_len) * dim);
        attend_for[sets - 1][whole](&z, seen);
    }
    for (uint32_t r = 0; r < sets; r++) {
        const uint32_t at = i + 16 * r, here = n - 16 * r < 16 ? n - 16 * r : 16;
        turn_out(a->acc + (size_t)at * dim, z.acc + 16 * r, here, dim);
        _mm512_mask_storeu_ps(a->m + at, lanes_below(here), z.m[r]);
        _mm512_mask_storeu_ps(a->s + at, lanes_below(here), z.s[r]);
    }
}

void plp_avx512_run(plp_attn *a, const void *const *tiles, uint32_t block_len, plp_seen seen, void *work)
{
    for (uint32_t i = 0, n; i < a->n_q; i += n) {
        n = a->n_q - i < SLAB ? a->n_q - i : SLAB;
        run_slab(a, i, n, tiles, block_len, seen.lo, seen.hi, work);
    }
}
