/*
 * kernels/x86/avx512_sealed.c - tier "avx512": attention over sealed q8 and q4 tiles by integer dots
 *
 * Layouts, formulas and their order: kernels/sealed.h. A 16-bit query is two signed bytes, q = 256 * high + low,
 * so that vpdpbusd multiplies each with the unsigned keys; sixteen tokens are one register. Probabilities fit
 * seven bits and meet V sixteen channels at a time. Up to four queries go through each stage side by side: a
 * stage of one is a chain of dependent steps, maxima and sums of four cost as much as those of one, and the tile's
 * rows are loaded once for all.
 */
#include "kernels/x86/avx512.h"
#include "kernels/x86/sealed_group.h"

/* ---- queries --------------------------------------------------------------------------------- */

/* Queries times the tile's key scales, in bytes, and what undoes it. Four channels are a dword; `dword_at` says where. */
typedef struct queries {
    int8_t  high[GROUP][MAX_DIM], low[GROUP][MAX_DIM];
    __m128i sum;
    __m128  back;
} queries;

/* Packing 64 channels leaves dword j of 16 at place 4 * (j % 4) + j / 4, and there it stays. */
INLINE size_t dword_at(size_t j) { return 4 * ((j & ~(size_t)15) + j % 4 * 4 + j % 16 / 4); }

/* Lane i: the sum of v[i]. */
INLINE __m128i sum4(const __m512i v[4])
{
    const __m512i lanes = add_lanes(v);
    const __m256i d = _mm256_add_epi32(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64(lanes, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
}

INLINE void quantise_queries(const int n, const float *q, const float *scale, size_t dim, queries *o)
{
    __m512 most16[4];
    __m512i sum[4];
    UNROLL for (int i = 0; i < 4; i++) most16[i] = _mm512_setzero_ps(), sum[i] = _mm512_setzero_si512();
    for (size_t c = 0; c < dim; c += 16) {
        const __m512 s = _mm512_loadu_ps(scale + c);
        UNROLL for (int i = 0; i < n; i++)
            most16[i] = _mm512_max_ps(most16[i], _mm512_abs_ps(_mm512_mul_ps(_mm512_loadu_ps(q + i * dim + c), s)));
    }
    const __m128 most = most4(most16), some = _mm_cmp_ps(most, _mm_set1_ps(PLP_X_ZERO), _CMP_GE_OQ);
    const __m128 inverse = _mm_and_ps(some, _mm_div_ps(_mm_set1_ps(32512.0f), most));
    for (size_t c = 0; c < dim; c += 64)
        UNROLL for (int i = 0; i < n; i++) {
            const __m512 inv = lane_of(inverse, i);
            __m512i v[4];
            UNROLL for (size_t part = 0; part < 4; part++) {
                const size_t at = c + 16 * part;
                v[part] = at >= dim ? _mm512_setzero_si512() : _mm512_cvtps_epi32(_mm512_mul_ps(
                    _mm512_mul_ps(_mm512_loadu_ps(q + i * dim + at), _mm512_loadu_ps(scale + at)), inv));
            }
            const __m512i a = _mm512_packs_epi32(v[0], v[1]), b = _mm512_packs_epi32(v[2], v[3]);
            const __m512i ones = _mm512_set1_epi16(1), half = _mm512_set1_epi16(128), byte = _mm512_set1_epi16(255);
            sum[i] = _mm512_dpwssd_epi32(_mm512_dpwssd_epi32(sum[i], a, ones), b, ones);
            _mm512_storeu_si512(o->high[i] + c, _mm512_packs_epi16(_mm512_srai_epi16(_mm512_add_epi16(a, half), 8),
                                                                   _mm512_srai_epi16(_mm512_add_epi16(b, half), 8)));
            _mm512_storeu_si512(o->low[i] + c, _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte)));
        }
    o->sum = sum4(sum);
    o->back = _mm_div_ps(most, _mm_set1_ps(32512.0f));
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Sums of 16 tokens, for n queries. */
typedef struct dots { __m512i high[GROUP], low[GROUP]; } dots;

INLINE __m512i dword(const void *p) { return _mm512_set1_epi32((int)load_u32(p)); }

/* Keys [n_rows][16][4] times the queries' channels from 4 * first on; nibble 1 takes low nibbles, 2 high ones, 0 bytes.
 * `next`, or NULL: a line of the tile to come is fetched with each row, evenly: few can be on their way at a time. */
INLINE void add_keys(const int n, dots *o, const uint8_t *keys, size_t n_rows, const queries *q, size_t first, const int nibble,
                     const char *next)
{
    for (size_t j = 0; j < n_rows; j++) {
        const size_t at = dword_at(first + j);
        __m512i k = load_512(keys + j * 64);
        if (next) _mm_prefetch(next + j * 64, _MM_HINT_T0);
        if (nibble == 1) k = _mm512_and_si512(k, _mm512_set1_epi8(15));
        if (nibble == 2) k = _mm512_and_si512(_mm512_srli_epi16(k, 4), _mm512_set1_epi8(15));
        UNROLL for (int i = 0; i < n; i++) {
            o->high[i] = _mm512_dpbusd_epi32(o->high[i], k, dword(q->high[i] + at));
            o->low[i] = _mm512_dpbusd_epi32(o->low[i], k, dword(q->low[i] + at));
        }
    }
}

INLINE void fetch(const char *next, size_t from, size_t to)
{
    if (next)
        for (; from < to; from += 64) _mm_prefetch(next + from, _MM_HINT_T0);
}

INLINE __m512 whole(const dots *o, int i, __m128 back)
{
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(o->high[i], 8), o->low[i])), lane_of(back, i));
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Probabilities times V's scales in seven bits, four tokens a dword, and what undoes it. */
typedef struct weights { uint8_t of[GROUP][LEN]; __m128 back; } weights;

INLINE void quantise_p(const int n, const __m512 p[4], __m512 scale, weights *o)
{
    __m512 e[4];
    UNROLL for (int i = 0; i < 4; i++) e[i] = i < n ? _mm512_mul_ps(p[i], scale) : _mm512_setzero_ps();
    const __m128 most = _mm_max_ps(most4(e), _mm_setzero_ps()), some = _mm_cmp_ps(most, _mm_set1_ps(PLP_X_ZERO), _CMP_GE_OQ);
    const __m128 inverse = _mm_and_ps(some, _mm_div_ps(_mm_set1_ps(127.0f), most));
    UNROLL for (int i = 0; i < n; i++)
        _mm_storeu_si128((void *)o->of[i], _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(e[i], lane_of(inverse, i)))));
    o->back = _mm_div_ps(most, _mm_set1_ps(127.0f));
}

/* ---- q8 -------------------------------------------------------------------------------------- */

INLINE void attend_q8(const int n, plp_attn *a, const group *g, const plp_q8_tile *x, const float *k_scale, const char *next)
{
    const size_t dim = a->head_dim;
    queries q;
    dots d;
    __m512 p[GROUP];
    quantise_queries(n, a->q + g->i * dim, k_scale, dim, &q);
    const __m128i start = _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(q.sum, 7));     /* keys are 128 too large */
    UNROLL for (int i = 0; i < n; i++) {
        d.high[i] = _mm512_setzero_si512();
        d.low[i] = lane_of_i(start, i);
    }
    add_keys(n, &d, x->k, dim / 4, &q, 0, 0, next);
    UNROLL for (int i = 0; i < n; i++) p[i] = whole(&d, i, q.back);
    soften(n, a, g->i, p, g->lo, g->hi);
    for (size_t v = 0, c = 0; c < dim; v++) {
        const size_t end = c + PLP_V_GROUP < dim ? c + PLP_V_GROUP : dim;
        weights w;
        quantise_p(n, p, halves(x->v_scale + v * LEN), &w);
        for (; c < end; c += 16) {
            fetch(next, 16 * (dim + c), 16 * (dim + c) + 256);
            UNROLL for (int i = 0; i < n; i++) {
                __m512i sum = _mm512_setzero_si512();
                float *acc = a->acc + (g->i + i) * dim + c;
                UNROLL for (int r = 0; r < 4; r++) sum = _mm512_dpbusd_epi32(sum, dword(w.of[i] + 4 * r), load_512(x->v + (r * dim + c) * 4));
                if (is_live(g, i))
                    _mm512_storeu_ps(acc, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), lane_of(w.back, i), _mm512_loadu_ps(acc)));
            }
        }
    }
    fetch(next, dim * 32, plp_q8_bytes((uint32_t)dim));
}

static void attn_q8(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const plp_q8_tile x = plp_q8_at(tile, a->head_dim);
    float k_scale[MAX_DIM];
    for (uint32_t c = 0; c < a->head_dim; c += 16) _mm512_storeu_ps(k_scale + c, halves(x.k_scale + c));
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

/* ---- q4 -------------------------------------------------------------------------------------- */

/* 8-bit scales or minimums times their unit. */
INLINE __m512 bytes_times(const uint8_t *p, __m512 unit) { return _mm512_mul_ps(unit, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_128(p)))); }
INLINE __m512 signed_times(const int8_t *p, __m512 unit) { return _mm512_mul_ps(unit, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_128(p)))); }

/* What a stage needs of the tile besides its rows. */
typedef struct scales { float k[MAX_DIM], k_min[MAX_DIM]; __m512 v, v_min; } scales;

INLINE void attend_q4(const int n, plp_attn *a, const group *g, const plp_q4_tile *x, const scales *s, const char *next)
{
    const size_t dim = a->head_dim;
    const __m512i low4 = _mm512_set1_epi8(15);
    const float *from = a->q + g->i * dim;
    queries q;
    dots d;
    __m512 p[GROUP], floor16[4];
    quantise_queries(n, from, s->k, dim, &q);
    UNROLL for (int i = 0; i < 4; i++) {
        floor16[i] = _mm512_setzero_ps();
        for (size_t c = 0; i < n && c < dim; c += 16)
            floor16[i] = _mm512_fmadd_ps(_mm512_loadu_ps(from + i * dim + c), _mm512_loadu_ps(s->k_min + c), floor16[i]);
        d.high[i] = d.low[i] = _mm512_setzero_si512();
    }
    const __m128 floor = fold4(floor16);
    add_keys(n, &d, x->k, dim / 8, &q, 0, 1, next);
    add_keys(n, &d, x->k, dim / 8, &q, dim / 8, 2, next ? next + dim * 8 : NULL);
    fetch(next, dim * 16, plp_q4_bytes((uint32_t)dim));
    UNROLL for (int i = 0; i < n; i++) p[i] = _mm512_add_ps(whole(&d, i, q.back), lane_of(floor, i));
    soften(n, a, g->i, p, g->lo, g->hi);
    for (size_t v = 0, c = 0; c < dim; v++) {
        const __m512 scale = bytes_times(x->v_scale + v * LEN, s->v), min = signed_times(x->v_min + v * LEN, s->v_min);
        const size_t end = c + PLP_V_GROUP < dim ? c + PLP_V_GROUP : dim;
        weights w;
        __m512 base16[4];
        quantise_p(n, p, scale, &w);
        UNROLL for (int i = 0; i < 4; i++) base16[i] = i < n ? _mm512_mul_ps(p[i], min) : _mm512_setzero_ps();
        const __m128 base = fold4(base16);
        for (; c < end; c += 16) {
            const __m512i v0 = load_512(x->v + c * 4), v1 = load_512(x->v + (dim + c) * 4);
            const __m512i row[4] = { _mm512_and_si512(v0, low4), _mm512_and_si512(v1, low4),
                                     _mm512_and_si512(_mm512_srli_epi16(v0, 4), low4), _mm512_and_si512(_mm512_srli_epi16(v1, 4), low4) };
            UNROLL for (int i = 0; i < n; i++) {
                float *acc = a->acc + (g->i + i) * dim + c;
                __m512i sum = _mm512_setzero_si512();
                UNROLL for (int r = 0; r < 4; r++) sum = _mm512_dpbusd_epi32(sum, row[r], dword(w.of[i] + 4 * r));
                const __m512 now = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), lane_of(w.back, i), _mm512_loadu_ps(acc));
                if (is_live(g, i)) _mm512_storeu_ps(acc, _mm512_add_ps(now, lane_of(base, i)));
            }
        }
    }
}

static void attn_q4(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const plp_q4_tile x = plp_q4_at(tile, a->head_dim);
    const __m512 k_unit = splat(plp_half(x.units[0])), min_unit = splat(plp_half(x.units[1]));
    scales s;
    s.v = splat(plp_half(x.units[2]));
    s.v_min = splat(plp_half(x.units[3]));

    for (uint32_t c = 0; c < a->head_dim; c += 16) {
        _mm512_storeu_ps(s.k + c, bytes_times(x.k_scale + c, k_unit));
        _mm512_storeu_ps(s.k_min + c, signed_times(x.k_min + c, min_unit));
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

void plp_fill_avx512_sealed(plp_kernels *k)
{
    k->attn_q8 = attn_q8;
    k->attn_q4 = attn_q4;
}
