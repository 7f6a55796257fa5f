/*
 * kernels/x86/ymm_sealed.h - tiers "avx2" and "avxvnni": attention over sealed q8 and q4 tiles by integer dots
 *
 * Layouts, formulas and their order: kernels/sealed.h. "avx2" widens keys to 16 bits, which meet the 16-bit query in vpmaddwd;
 * "avxvnni" takes the query as two signed bytes, q = 256 * high + low, so that vpdpbusd multiplies each with the unsigned keys.
 * Probabilities fit seven bits and meet V in vpmaddubsw, where two products of at most 127 * 128 do not saturate, or in
 * vpdpbusd. Up to four queries go through each stage side by side, as in avx512_sealed.c: a stage of one is a chain of dependent
 * steps, maxima and sums of four cost little more than those of one, and rows are loaded and widened once for all.
 */
#ifndef PLP_KERNELS_X86_YMM_SEALED_H
#define PLP_KERNELS_X86_YMM_SEALED_H

#include "kernels/x86/avx2.h"
#include "kernels/x86/sealed_group.h"

/* ---- four at a time ---------------------------------------------------------------------------- */

INLINE __m256 lane_of(__m128 v, int i) { return _mm256_broadcastss_ps(_mm_shuffle_ps(v, v, i * 0x55)); }
INLINE __m256i lane_of_i(__m128i v, int i) { return _mm256_broadcastd_epi32(_mm_shuffle_epi32(v, i * 0x55)); }

/* Lane i: the sum of v[i]. */
INLINE __m128i sum4(const __m256i v[GROUP])
{
    const __m256i d = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
}

/* to / most, or 0 where there is nothing. */
INLINE __m128 inverse_of(__m128 most, float to)
{
    return _mm_and_ps(_mm_cmp_ps(most, _mm_set1_ps(PLP_X_ZERO), _CMP_GE_OQ), _mm_div_ps(_mm_set1_ps(to), most));
}

/* ---- queries ----------------------------------------------------------------------------------- */

/* Queries times the tile's key scales, in 16 bits or their two bytes, and what undoes it. */
typedef struct queries {
    int16_t v[GROUP][HAS_DPBUSD ? 1 : MAX_DIM];
    int8_t  high[GROUP][HAS_DPBUSD ? MAX_DIM : 1], low[GROUP][HAS_DPBUSD ? MAX_DIM : 1];
    __m128i sum;
    __m128  back;
} queries;

INLINE __m256 scaled(const float *q, __m256 scale) { return _mm256_mul_ps(_mm256_loadu_ps(q), scale); }

INLINE void quantise_queries(const int n, const float *q, const float *scale, size_t dim, queries *o)
{
    __m256 most8[GROUP];
    __m256i sum[GROUP];
    UNROLL for (int i = 0; i < GROUP; i++) most8[i] = _mm256_setzero_ps(), sum[i] = _mm256_setzero_si256();
    for (size_t c = 0; c < dim; c += 8) {
        const __m256 s = _mm256_loadu_ps(scale + c);
        UNROLL for (int i = 0; i < n; i++)
            most8[i] = _mm256_max_ps(most8[i], _mm256_andnot_ps(splat(-0.0f), scaled(q + i * dim + c, s)));
    }
    const __m128 most = most4(most8), inverse = inverse_of(most, 32512.0f);
    for (size_t c = 0; c < dim; c += 16) {
        const __m256 first = _mm256_loadu_ps(scale + c), second = _mm256_loadu_ps(scale + c + 8);
        UNROLL for (int i = 0; i < n; i++) {
            const __m256 inv = lane_of(inverse, i);
            const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(scaled(q + i * dim + c, first), inv));
            const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(scaled(q + i * dim + c + 8, second), inv));
            const __m256i v = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(v, _mm256_set1_epi16(1)));
            if (HAS_DPBUSD) {
                const __m256i high = _mm256_srai_epi16(_mm256_add_epi16(v, _mm256_set1_epi16(128)), 8);
                const __m256i low = _mm256_and_si256(v, _mm256_set1_epi16(255));
                _mm_storeu_si128((void *)(o->high[i] + c), _mm_packs_epi16(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
                _mm_storeu_si128((void *)(o->low[i] + c), _mm_packus_epi16(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
            } else
                _mm256_storeu_si256((void *)(o->v[i] + c), v);
        }
    }
    o->sum = sum4(sum);
    o->back = _mm_div_ps(most, _mm_set1_ps(32512.0f));
}

/* ---- keys -------------------------------------------------------------------------------------- */

/* Sums of eight tokens for n queries. By vpmaddwd: pairs of channels, [0] of tokens 0, 1, 4, 5, [1] of 2, 3, 6, 7. By vpdpbusd:
 * [0] the high bytes, [1] the low ones. */
typedef struct dots { __m256i of[GROUP][2]; } dots;

/* Keys of eight tokens times the queries' four channels from c on. */
INLINE void add_keys(const int n, dots *o, __m256i k, const queries *q, size_t c)
{
    const __m256i zero = _mm256_setzero_si256();
    const __m256i first = _mm256_unpacklo_epi8(k, zero), second = _mm256_unpackhi_epi8(k, zero);
    UNROLL for (int i = 0; i < n; i++)
        if (HAS_DPBUSD) {
            o->of[i][0] = add_dots(o->of[i][0], k, _mm256_set1_epi32((int)load_u32(q->high[i] + c)));
            o->of[i][1] = add_dots(o->of[i][1], k, _mm256_set1_epi32((int)load_u32(q->low[i] + c)));
        } else {
            const __m256i w = _mm256_set1_epi64x((long long)load_u64(q->v[i] + c));
            o->of[i][0] = _mm256_add_epi32(o->of[i][0], _mm256_madd_epi16(first, w));
            o->of[i][1] = _mm256_add_epi32(o->of[i][1], _mm256_madd_epi16(second, w));
            KEEP(o->of[i][0]);
            KEEP(o->of[i][1]);
        }
}

/* Scores of 16 tokens from keys [n_rows][16][4], `correction` added to each sum. nibbles: low ones are the first half of the
 * channels, high ones the second. `next`, or NULL: a line of the tile to come is fetched with each half row, evenly: few can be
 * on their way at a time. */
INLINE void scores(const int n, const bool nibbles, const uint8_t *keys, size_t n_rows, const queries *q, __m128i correction,
                   const char *next, pair out[GROUP])
{
    UNROLL for (int half = 0; half < 2; half++) {
        dots d;
        UNROLL for (int i = 0; i < n; i++) d.of[i][0] = d.of[i][1] = _mm256_setzero_si256();
        for (size_t j = 0; j < n_rows; j++) {
            const __m256i k = load_256(keys + 64 * j + 32 * half);
            if (next) _mm_prefetch(next + 64 * (half * n_rows + j), _MM_HINT_T0);
            add_keys(n, &d, nibbles ? low4(k) : k, q, 4 * j);
            if (nibbles) add_keys(n, &d, high4(k), q, 4 * (n_rows + j));
        }
        UNROLL for (int i = 0; i < n; i++) {
            const __m256i sum = HAS_DPBUSD ? _mm256_add_epi32(_mm256_slli_epi32(d.of[i][0], 8), d.of[i][1])
                                           : _mm256_hadd_epi32(d.of[i][0], d.of[i][1]);
            const __m256 score = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(sum, lane_of_i(correction, i))), lane_of(q->back, i));
            if (half) out[i].b = score;
            else      out[i].a = score;
        }
    }
}

/* What `scores` has not fetched. */
INLINE void fetch(const char *next, size_t from, size_t to)
{
    if (next)
        for (; from < to; from += 64) _mm_prefetch(next + from, _MM_HINT_T0);
}

/* ---- values ------------------------------------------------------------------------------------ */

/* Probabilities times V's scales in seven bits, four tokens a dword, and what undoes it. */
typedef struct weights { int32_t of[GROUP][4]; __m128 back; } weights;

INLINE void quantise_p(const int n, const pair p[GROUP], pair scale, weights *o)
{
    pair e[GROUP];
    __m256 most8[GROUP];
    UNROLL for (int i = 0; i < GROUP; i++) most8[i] = _mm256_setzero_ps();
    UNROLL for (int i = 0; i < n; i++) {
        e[i] = (pair){ _mm256_mul_ps(p[i].a, scale.a), _mm256_mul_ps(p[i].b, scale.b) };
        most8[i] = _mm256_max_ps(_mm256_max_ps(e[i].a, e[i].b), _mm256_setzero_ps());
    }
    const __m128 most = most4(most8), inverse = inverse_of(most, 127.0f);
    UNROLL for (int i = 0; i < n; i++) {
        const __m256 inv = lane_of(inverse, i);
        const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(e[i].a, inv)),
                                                                          _mm256_cvtps_epi32(_mm256_mul_ps(e[i].b, inv))), 0xd8);
        _mm_storeu_si128((void *)o->of[i], _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
    o->back = _mm_div_ps(most, _mm_set1_ps(127.0f));
    IN_MEMORY(o->of);
}

/* ---- q8 ---------------------------------------------------------------------------------------- */

INLINE void attend_q8(const int n, plp_attn *a, const group *g, const plp_q8_tile *x, const float *k_scale, const char *next)
{
    const size_t dim = a->head_dim;
    queries q;
    pair p[GROUP];
    quantise_queries(n, a->q + g->i * dim, k_scale, dim, &q);
    const __m128i start = _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(q.sum, 7));     /* keys are 128 too large */
    scores(n, false, x->k, dim / 4, &q, start, next, p);
    fetch(next, 32 * dim, plp_q8_bytes((uint32_t)dim));
    soften(n, a, g->i, p, g->lo, g->hi);
    for (size_t v = 0, c = 0; c < dim; v++) {
        const uint16_t *scale = x->v_scale + v * LEN;
        const size_t end = c + PLP_V_GROUP < dim ? c + PLP_V_GROUP : dim;
        weights w;
        quantise_p(n, p, (pair){ halves(scale), halves(scale + 8) }, &w);
        for (; c < end; c += 8) {
            __m256i row[4];
            UNROLL for (int r = 0; r < 4; r++) row[r] = load_256(x->v + (r * dim + c) * 4);
            UNROLL for (int i = 0; i < n; i++) {
                float *acc = a->acc + (g->i + i) * dim + c;
                __m256i sum = _mm256_setzero_si256();
                UNROLL for (int r = 0; r < 4; r++) sum = add_dots(sum, _mm256_set1_epi32(w.of[i][r]), row[r]);
                if (is_live(g, i)) _mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), lane_of(w.back, i), _mm256_loadu_ps(acc)));
            }
        }
    }
}

static void attn_q8(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const plp_q8_tile x = plp_q8_at(tile, a->head_dim);
    float k_scale[MAX_DIM];
    for (uint32_t c = 0; c < a->head_dim; c += 8) _mm256_storeu_ps(k_scale + c, halves(x.k_scale + c));
    for (uint32_t i = 0, n; i < a->n_q; i += n, next = NULL) {
        const group g = next_group(a, seen, i, &n);
        if (is_blind(&g, n)) continue;
        switch (n) {
        case 1: attend_q8(1, a, &g, &x, k_scale, next); break;
        case 2: attend_q8(2, a, &g, &x, k_scale, next); break;
        case 3: attend_q8(3, a, &g, &x, k_scale, next); break;
        case 4: attend_q8(4, a, &g, &x, k_scale, next); break;
        }
    }
}

/* ---- q4 ---------------------------------------------------------------------------------------- */

/* Eight 8-bit scales or minimums times their unit. */
INLINE __m256 bytes_times(const uint8_t *p, __m256 unit) { return _mm256_mul_ps(unit, bytes_ps(p)); }
INLINE __m256 signed_times(const int8_t *p, __m256 unit) { return _mm256_mul_ps(unit, signed_bytes_ps(p)); }

/* What a stage needs of the tile besides its rows. */
typedef struct scales { float k[MAX_DIM], k_min[MAX_DIM]; __m256 v, v_min; } scales;

/* Eight channels of V, four tokens a row, times one query's weights. */
INLINE __m256i nibble_dots(const __m256i row[4], const int32_t w[4])
{
    __m256i sum = _mm256_setzero_si256();
    if (HAS_DPBUSD) {
        UNROLL for (int r = 0; r < 4; r++) sum = add_dots(sum, row[r], _mm256_set1_epi32(w[r]));
        return sum;
    }
    UNROLL for (int r = 0; r < 4; r++) sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(row[r], _mm256_set1_epi32(w[r])));
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

INLINE void attend_q4(const int n, plp_attn *a, const group *g, const plp_q4_tile *x, const scales *s, const char *next)
{
    const size_t dim = a->head_dim;
    const float *from = a->q + g->i * dim;
    queries q;
    pair p[GROUP], floor16[GROUP];
    quantise_queries(n, from, s->k, dim, &q);
    UNROLL for (int i = 0; i < GROUP; i++) {
        pair sum = { _mm256_setzero_ps(), _mm256_setzero_ps() };
        for (size_t c = 0; i < n && c < dim; c += 16) {
            sum.a = _mm256_fmadd_ps(_mm256_loadu_ps(from + i * dim + c), _mm256_loadu_ps(s->k_min + c), sum.a);
            sum.b = _mm256_fmadd_ps(_mm256_loadu_ps(from + i * dim + c + 8), _mm256_loadu_ps(s->k_min + c + 8), sum.b);
        }
        floor16[i] = sum;
    }
    const __m128 floor = fold4(floor16);
    scores(n, true, x->k, dim / 8, &q, _mm_setzero_si128(), next, p);
    fetch(next, 16 * dim, plp_q4_bytes((uint32_t)dim));
    UNROLL for (int i = 0; i < n; i++)
        p[i] = (pair){ _mm256_add_ps(p[i].a, lane_of(floor, i)), _mm256_add_ps(p[i].b, lane_of(floor, i)) };
    soften(n, a, g->i, p, g->lo, g->hi);
    for (size_t v = 0, c = 0; c < dim; v++) {
        const uint8_t *scale = x->v_scale + v * LEN;
        const int8_t *min = x->v_min + v * LEN;
        const pair low = { signed_times(min, s->v_min), signed_times(min + 8, s->v_min) };
        const size_t end = c + PLP_V_GROUP < dim ? c + PLP_V_GROUP : dim;
        weights w;
        pair base16[GROUP];
        quantise_p(n, p, (pair){ bytes_times(scale, s->v), bytes_times(scale + 8, s->v) }, &w);
        UNROLL for (int i = 0; i < GROUP; i++) base16[i] = i < n ? (pair){ _mm256_mul_ps(p[i].a, low.a), _mm256_mul_ps(p[i].b, low.b) } : low;
        const __m128 base = fold4(base16);
        for (; c < end; c += 8) {
            const __m256i v0 = load_256(x->v + c * 4), v1 = load_256(x->v + (dim + c) * 4);
            const __m256i row[4] = { low4(v0), low4(v1), high4(v0), high4(v1) };
            UNROLL for (int i = 0; i < n; i++) {
                float *acc = a->acc + (g->i + i) * dim + c;
                const __m256 sum = _mm256_cvtepi32_ps(nibble_dots(row, w.of[i]));
                const __m256 now = _mm256_fmadd_ps(sum, lane_of(w.back, i), _mm256_loadu_ps(acc));
                if (is_live(g, i)) _mm256_storeu_ps(acc, _mm256_add_ps(now, lane_of(base, i)));
            }
        }
    }
}

static void attn_q4(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const plp_q4_tile x = plp_q4_at(tile, a->head_dim);
    const __m256 k_unit = splat(plp_half(x.units[0])), min_unit = splat(plp_half(x.units[1]));
    scales s;
    s.v = splat(plp_half(x.units[2]));
    s.v_min = splat(plp_half(x.units[3]));

    for (uint32_t c = 0; c < a->head_dim; c += 8) {
        _mm256_storeu_ps(s.k + c, bytes_times(x.k_scale + c, k_unit));
        _mm256_storeu_ps(s.k_min + c, signed_times(x.k_min + c, min_unit));
    }
    for (uint32_t i = 0, n; i < a->n_q; i += n, next = NULL) {
        const group g = next_group(a, seen, i, &n);
        if (is_blind(&g, n)) continue;
        switch (n) {
        case 1: attend_q4(1, a, &g, &x, &s, next); break;
        case 2: attend_q4(2, a, &g, &x, &s, next); break;
        case 3: attend_q4(3, a, &g, &x, &s, next); break;
        case 4: attend_q4(4, a, &g, &x, &s, next); break;
        }
    }
}

void TIER(fill_sealed)(plp_kernels *k)
{
    k->attn_q8 = attn_q8;
    k->attn_q4 = attn_q4;
}

#endif
