/*
 * kernels/x86/avx2_attention.c - tier "avx2": running softmax over f16 tiles
 *
 * Sixteen tokens are a pair of registers: a row of K times a broadcast query channel adds to sixteen scores at
 * once, without horizontal sums. Up to four queries share each widened row, four with eight tokens at a time; their
 * outputs, 32 or 16 channels at a time, stay in registers while V is read. The next tile is fetched meanwhile, K while K
 * is used, V with V, each line once: fetched twice, a Zen 3 takes 1.19 times as long. The many queries of a run share each
 * unit widened once.
 * Queries in lanes, as avx512_run.c has them, are no faster here (Zen 5, 8 to 64 queries: 8.7 to 12.6 products a cycle, so
 * 11.6 to 13.7 of 16): sixteen registers hold too few sums beside widened keys.
 */
#include "kernels/x86/avx2.h"

enum { UNIT = 16, GROUP = 4 };      /* tokens; queries */

/* What sixteen registers hold of n queries, beside what they meet: eights of tokens with two sums each, eights of channels. */
INLINE int token_eights(int n)   { return n < 4 ? 2 : 1; }
INLINE int channel_eights(int n) { return n < 4 ? 4 : 2; }

INLINE void put_halves(uint16_t *to, const float *x) { _mm_storeu_si128((void *)to, _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT)); }

static void kv_put(void *tile, uint32_t block_len, uint32_t slot, const float *k, const float *v, uint32_t head_dim)
{
    uint16_t *to_k = (uint16_t *)tile + slot, *to_v = (uint16_t *)tile + (size_t)(block_len + slot) * head_dim;
    for (uint32_t d = 0; d < head_dim; d += 8) {
        uint16_t h[8];
        put_halves(h, k + d);
        for (uint32_t i = 0; i < 8; i++) to_k[(size_t)(d + i) * block_len] = h[i];
        put_halves(to_v + d, v + d);
    }
}

/* One unit of a block, for queries i.. of a; K and V as halves in the block, or widened: floats [head_dim][UNIT], [UNIT][head_dim]. */
typedef struct unit {
    const void *k, *v;              /* of the unit's first token: row d of K at d * k_stride, each row of V head_dim long */
    size_t      k_stride;
    const char *next_k, *next_v;    /* what to fetch, UNIT * head_dim halves each; or NULL */
    uint32_t    n_rows;             /* of V that are there: fewer than UNIT in a block of 8 */
    uint32_t    lo[GROUP], hi[GROUP];
    bool        whole;              /* every range is all of the unit */
} unit;

INLINE __m256 eight(const bool widened, const void *p, size_t at)
{
    return widened ? _mm256_load_ps((const float *)p + at) : halves((const uint16_t *)p + at);
}

INLINE void scores(const int n, const bool widened, const plp_attn *a, uint32_t i, const unit *u, pair out[GROUP])
{
    const size_t dim = a->head_dim, next_row = widened ? UNIT : u->k_stride;
    const float *q = a->q + i * dim;
    const int eights = token_eights(n);
    UNROLL for (int first = 0; first < 2; first += eights) {
        __m256 even[GROUP][2], odd[GROUP][2];
        UNROLL for (int g = 0; g < n; g++)
            UNROLL for (int e = 0; e < eights; e++) even[g][e] = odd[g][e] = _mm256_setzero_ps();
        size_t at = 8 * (size_t)first;
        for (size_t d = 0; d < dim; d += 2) {
            if (!widened && u->next_k && (eights == 2 || d % 4 == 0))
                _mm_prefetch(u->next_k + (first * dim + d) * (size_t)eights * UNIT, _MM_HINT_T0);
            UNROLL for (int o = 0; o < 2; o++, at += next_row) {
                __m256 row[2];
                UNROLL for (int e = 0; e < eights; e++) row[e] = eight(widened, u->k, at + 8 * (size_t)e);
                UNROLL for (int g = 0; g < n; g++) {
                    const __m256 w = splat(q[g * dim + d + o]);
                    __m256 *sum = o ? odd[g] : even[g];
                    UNROLL for (int e = 0; e < eights; e++) sum[e] = _mm256_fmadd_ps(w, row[e], sum[e]);
                }
            }
        }
        UNROLL for (int g = 0; g < n; g++)
            UNROLL for (int e = 0; e < eights; e++) {
                const __m256 sum = _mm256_add_ps(even[g][e], odd[g][e]);
                if (first + e) out[g].b = sum;
                else           out[g].a = sum;
            }
    }
}

/* Channels d .. d + 8 * wide of n outputs. `whole` is known at compile time: a token that a query does not
 * see must not be touched, since 0 * NaN is NaN. */
INLINE void gather_v(const int n, const int wide, const bool widened, const bool whole, plp_attn *a, uint32_t i, const unit *u, uint32_t d,
                     const float p[GROUP][UNIT])
{
    const size_t dim = a->head_dim;
    size_t at = d;
    float *to = a->acc + i * dim + d;
    __m256 acc[GROUP][4];
    UNROLL for (int g = 0; g < n; g++)
        UNROLL for (int c = 0; c < wide; c++) acc[g][c] = _mm256_loadu_ps(to + g * dim + 8 * c);
    for (uint32_t t = 0; t < (whole ? UNIT : u->n_rows); t++, at += dim) {
        if (!widened && u->next_v && (wide == 4 || d % 32 == 0))
            _mm_prefetch(u->next_v + (t * dim + d) * sizeof(uint16_t), _MM_HINT_T0);
        __m256 w[GROUP];
        UNROLL for (int g = 0; g < n; g++) w[g] = splat(p[g][t]);
        UNROLL for (int c = 0; c < wide; c++) {
            const __m256 v = eight(widened, u->v, at + 8 * (size_t)c);
            UNROLL for (int g = 0; g < n; g++)
                if (whole || (t >= u->lo[g] && t < u->hi[g])) acc[g][c] = _mm256_fmadd_ps(w[g], v, acc[g][c]);
        }
    }
    UNROLL for (int g = 0; g < n; g++)
        UNROLL for (int c = 0; c < wide; c++) _mm256_storeu_ps(to + g * dim + 8 * c, acc[g][c]);
}

INLINE void attend(const int n, const bool widened, const bool whole, plp_attn *a, uint32_t i, const unit *u)
{
    float p[GROUP][UNIT];
    pair score[GROUP];
    scores(n, widened, a, i, u, score);
    soften(n, a, i, score, whole ? NULL : u->lo, u->hi);
    UNROLL for (int g = 0; g < n; g++) {
        _mm256_storeu_ps(p[g], score[g].a);
        _mm256_storeu_ps(p[g] + 8, score[g].b);
    }
    uint32_t d = 0;
    const uint32_t wide = 8 * (uint32_t)channel_eights(n);
    for (; d + wide <= a->head_dim; d += wide) gather_v(n, channel_eights(n), widened, whole, a, i, u, d, p);
    for (; d < a->head_dim; d += 8) gather_v(n, 1, widened, whole, a, i, u, d, p);
}

typedef void attend_fn(plp_attn *a, uint32_t i, const unit *u);
#define ATTEND(n, source, widened)                                                                      \
    static __attribute__((noinline)) void attend_##n##_##source(plp_attn *a, uint32_t i, const unit *u) \
    {                                                                                                   \
        if (u->whole) attend(n, widened, true, a, i, u);                                                \
        else          attend(n, widened, false, a, i, u);                                               \
    }
ATTEND(1, halves, false) ATTEND(2, halves, false) ATTEND(3, halves, false) ATTEND(4, halves, false)
ATTEND(1, floats, true)  ATTEND(2, floats, true)  ATTEND(3, floats, true)  ATTEND(4, floats, true)
static attend_fn *const attend_halves[GROUP] = { attend_1_halves, attend_2_halves, attend_3_halves, attend_4_halves };
static attend_fn *const attend_floats[GROUP] = { attend_1_floats, attend_2_floats, attend_3_floats, attend_4_floats };

/* What queries i .. i + n see of a unit that begins at slot `at` of those that `seen` counts; false: nothing. */
static bool look(unit *u, plp_seen seen, uint32_t i, uint32_t n, uint32_t at)
{
    bool any = false;
    u->whole = true;
    for (uint32_t g = 0; g < n; g++) {
        const uint32_t from = seen.lo ? seen.lo[i + g] : 0, to = seen.hi ? seen.hi[i + g] : at + u->n_rows;
        u->lo[g] = from > at ? from - at : 0;
        u->hi[g] = to < at ? 0 : to - at < u->n_rows ? to - at : u->n_rows;
        u->whole = u->whole && u->lo[g] == 0 && u->hi[g] == UNIT;
        any = any || u->lo[g] < u->hi[g];
    }
    return any;
}

static unit unit_of(const uint16_t *tile, uint32_t block_len, uint32_t at, size_t dim)
{
    return (unit){ .k = tile + at, .v = tile + (block_len + at) * dim, .k_stride = block_len, .n_rows = block_len < UNIT ? block_len : UNIT };
}

static void attn_f16(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const size_t dim = a->head_dim;
    const uint16_t *follow = next;
    for (uint32_t at = 0; at < block_len; at += UNIT) {
        unit u = unit_of(tile, block_len, at, dim);
        if (follow) {
            u.next_k = (const char *)(follow + at * dim);
            u.next_v = (const char *)(follow + (block_len + at) * dim);
        }
        for (uint32_t i = 0; i < a->n_q; i += GROUP) {
            const uint32_t n = a->n_q - i < GROUP ? a->n_q - i : GROUP;
            if (!look(&u, seen, i, n, at)) continue;
            attend_halves[n - 1](a, i, &u);
            u.next_k = u.next_v = NULL;
        }
    }
}

/* Many queries. Each unit is widened once for all of them, where they are more than two groups: it takes as long as one does. Then a
 * row costs nothing, and three queries, which take sixteen tokens at a time, load less for each product than four. */
enum { WIDEN_FROM = 2 * GROUP + 1, RUN_GROUP = 3 };

static size_t attn_run_work(uint32_t n_q, uint32_t head_dim) { (void)n_q; return 2 * UNIT * sizeof(float) * (size_t)head_dim; }

static void widen(unit *u, size_t dim, float *k, float *v)
{
    const uint16_t *from_k = u->k, *from_v = u->v;
    for (size_t d = 0; d < dim; d++, from_k += u->k_stride) {
        _mm256_store_ps(k + d * UNIT, halves(from_k));
        _mm256_store_ps(k + d * UNIT + 8, halves(from_k + 8));
    }
    for (size_t e = 0; e < u->n_rows * dim; e += 8) _mm256_store_ps(v + e, halves(from_v + e));
    u->k = k;
    u->v = v;
}

static void attn_f16_run(plp_attn *a, const void *const *tiles, uint32_t block_len, plp_seen seen, void *work)
{
    const size_t dim = a->head_dim;
    const bool many = a->n_q >= WIDEN_FROM;
    const uint32_t group = many ? RUN_GROUP : GROUP;
    float *k = work, *v = k + UNIT * dim;
    uint32_t begin = UINT32_MAX, end = 0;
    for (uint32_t i = 0; i < a->n_q; i++)
        if (seen.lo[i] < seen.hi[i]) {
            begin = seen.lo[i] < begin ? seen.lo[i] : begin;
            end = seen.hi[i] > end ? seen.hi[i] : end;
        }
    const uint32_t step = block_len < UNIT ? block_len : UNIT;
    for (uint32_t at = begin / step * step; at < end; at += step) {
        unit u = unit_of(tiles[at / block_len], block_len, at % block_len, dim);
        if (many) widen(&u, dim, k, v);
        for (uint32_t i = 0; i < a->n_q; i += group) {
            const uint32_t n = a->n_q - i < group ? a->n_q - i : group;
            if (look(&u, seen, i, n, at)) (many ? attend_floats : attend_halves)[n - 1](a, i, &u);
        }
    }
}

static void attn_merge(plp_attn *into, const plp_attn *part)
{
    for (uint32_t i = 0; i < into->n_q; i++) {
        if (part->m[i] == -__builtin_inff()) continue;
        float *acc = into->acc + (size_t)i * into->head_dim;
        const float *from = part->acc + (size_t)i * into->head_dim;
        const float m = part->m[i] > into->m[i] ? part->m[i] : into->m[i];
        const float x = plp_exp(into->m[i] - m), y = plp_exp(part->m[i] - m);
        into->m[i] = m;
        into->s[i] = __builtin_fmaf(part->s[i], y, into->s[i] * x);
        for (uint32_t d = 0; d < into->head_dim; d += 8)
            _mm256_storeu_ps(acc + d, _mm256_fmadd_ps(_mm256_loadu_ps(from + d), splat(y),
                                                      _mm256_mul_ps(_mm256_loadu_ps(acc + d), splat(x))));
    }
}

static void attn_finish(const plp_attn *a, const float *sink, float *out, size_t ld_out)
{
    for (uint32_t i = 0; i < a->n_q; i++) {
        const float s = sink ? a->s[i] + plp_exp(sink[i] - a->m[i]) : a->s[i];
        for (uint32_t d = 0; d < a->head_dim; d += 8)
            _mm256_storeu_ps(out + i * ld_out + d, _mm256_div_ps(_mm256_loadu_ps(a->acc + (size_t)i * a->head_dim + d), splat(s)));
    }
}

void plp_fill_avx2_attention(plp_kernels *k)
{
    k->kv_put = kv_put;
    k->attn_f16 = attn_f16;
    k->attn_run_work = attn_run_work;
    k->attn_f16_run = attn_f16_run;
    k->attn_merge = attn_merge;
    k->attn_finish = attn_finish;
}
