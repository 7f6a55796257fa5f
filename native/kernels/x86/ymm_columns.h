/*
 * kernels/x86/ymm_columns.h - tiers "avx2" and "avxvnni": products of a few tokens (decode), at the speed of memory
 *
 * Eight rows are read side by side. As soon as four weights of each are in a register (ymm_unpack.h) they meet the same four
 * activations of every token, broadcast: nothing is stored in between, and sums need not be folded, a lane being a row. The
 * next eight rows are one run of the file, and are fetched evenly meanwhile.
 *
 * Sums of vpmaddubsw's products stay in 16 bits as long as they fit, which avx2_panel.c reckons; vpdpbusd's are exact.
 */
#ifndef PLP_KERNELS_X86_YMM_COLUMNS_H
#define PLP_KERNELS_X86_YMM_COLUMNS_H

#include "kernels/x86/avx2.h"

/* Eight rows meet n tokens. All of this is registers, and what is asked of n and type is known, once it is inlined. */
typedef struct sink {
    int            n;
    x_stream       x;                                   /* of the first token; as packed.h has up to FEW_TOKENS */
    size_t         apart;                               /* bytes between tokens */
    const x_tile  *tile;                                /* n = TILE_TOKENS: these instead */
    const uint8_t *next, *due;                          /* of the next eight rows: fetched up to here, to be up to there */
    const uint8_t *own;                                 /* of these: what to fetch for a row, of those `stride` apart */
    size_t         stride;
    __m256i        narrow[8][2][TILE_TOKENS];           /* sums of 16 bits: [block][half of its columns][token] */
    __m256i        wide[8][2][TILE_TOKENS];             /* of 32 bits; both halves in [0], but in the form SUB */
    __m256         acc[TILE_TOKENS];
} sink;

/* Of block `at` and token t, in all lanes: four activations, their sums, scales. */
INLINE __m256i q_of(const sink *o, size_t at, const int c, const int t)
{
    return _mm256_set1_epi32((int)load_u32(o->n == TILE_TOKENS ? o->tile[at].q[c][t] : o->x.q + t * o->apart + 32 * at + 4 * c));
}
INLINE __m256i int_of(const sink *o, const void *in_stream, const void *in_tile, size_t at, const int t)
{
    return _mm256_set1_epi32((int)load_u32(o->n == TILE_TOKENS ? (const char *)in_tile + 4 * t : (const char *)in_stream + t * o->apart + 4 * at));
}
INLINE __m256 float_of(const sink *o, const void *in_stream, const void *in_tile, size_t at, const int t)
{
    return _mm256_castsi256_ps(int_of(o, in_stream, in_tile, at, t));
}
INLINE __m256i xi_of(const sink *o, size_t at, const int t) { return int_of(o, o->x.xi, o->tile[at].xi, at, t); }
INLINE __m256i x0_of(const sink *o, size_t at, const int t) { return int_of(o, o->x.x0, o->tile[at].x0, at, t); }
INLINE __m256  xs_of(const sink *o, size_t at, const int t) { return float_of(o, o->x.xs, o->tile[at].xs, at, t); }
INLINE __m256  xm_of(const sink *o, size_t at, const int t) { return float_of(o, o->x.xm, o->tile[at].xm, at, t); }

INLINE __m256i signed_products(__m256i w, __m256i q) { return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w)); }

INLINE void put_w(const int type, sink *o, uint32_t b, const int i, const int c, __m256i v)
{
    const int fit = columns_that_fit(type), half = plp_type_form(type) == PLP_FORM_SUB ? c / 4 : 0;
    UNROLL for (int t = 0; t < o->n; t++) {
        const __m256i q = q_of(o, b + (size_t)i, c, t);
        __m256i *narrow = &o->narrow[i][fit == 8 ? 0 : c / 4][t], *wide = &o->wide[i][half][t];
        if (HAS_DPBUSD)
            *wide = add_dots(*wide, v, q);
        else if (fit == 0)
            *wide = _mm256_add_epi32(*wide, add_pairs(signed_products(v, q)));
        else {
            *narrow = _mm256_add_epi16(*narrow, _mm256_maddubs_epi16(v, q));
            KEEP(*narrow);
            if (fit == 2 && c % 2) {
                *wide = _mm256_add_epi32(*wide, add_pairs(*narrow));
                *narrow = _mm256_setzero_si256();
            }
        }
    }
}

/* A half's dots less what the weights are too large, from -128 * sum(q). */
INLINE __m256 less_offset(const int type, __m256i dot, __m256i x)
{
    const int offset = weight_offset(type);
    return _mm256_cvtepi32_ps(offset ? _mm256_add_epi32(dot, _mm256_srai_epi32(x, __builtin_ctz(128u / (unsigned)offset))) : dot);
}

/* xs * sum(q) of a half, from -128 * sum(q). */
INLINE __m256 half_sum(__m256 xs, __m256i x) { return _mm256_mul_ps(xs, _mm256_mul_ps(_mm256_cvtepi32_ps(x), splat(-0x1p-7f))); }

/* Fetches as much of the next eight rows as a block of these has, in the order of the file, each line once: one that is on its way
 * already costs as much. Blocks of 256: also what this row has next, which may have left L1 since. */
INLINE void fetch_block(const int type, sink *o, const int i)
{
    const uint32_t bytes = bytes_per_8(type);
    o->due += bytes;
    UNROLL for (uint32_t line = 0; line < bytes / 64; line++, o->next += 64) __builtin_prefetch(o->next);
    if (o->next < o->due) {
        __builtin_prefetch(o->next);
        o->next += 64;
    }
    if (block_len(type) == 32) return;
    UNROLL for (uint32_t line = 0; line < bytes; line += 64) __builtin_prefetch(o->own + line);
    o->own += o->stride;
    if (i == 7) o->own += bytes - 8 * o->stride;
}

/* The block is complete: its term is added. */
INLINE void put_scales(const int type, sink *o, uint32_t b, const int i, __m256 s, __m256 m, __m256 m2)
{
    const int form = plp_type_form(type), fit = HAS_DPBUSD ? 0 : columns_that_fit(type);
    const size_t at = b + (size_t)i;
    fetch_block(type, o, i);
    UNROLL for (int t = 0; t < o->n; t++) {
        const __m256 xs = xs_of(o, at, t);
        __m256i x0 = _mm256_setzero_si256(), x1 = x0, first = o->wide[i][0][t], second = o->wide[i][1][t];
        if (fit >= 4) first = add_pairs(o->narrow[i][0][t]), second = add_pairs(o->narrow[i][1][t]);
        if (fit == 4 && form != PLP_FORM_SUB) first = _mm256_add_epi32(first, second);
        if (weight_offset(type) || form == PLP_FORM_MN2) x0 = xi_of(o, at, t);
        if (form == PLP_FORM_SUB || form == PLP_FORM_MN2) {
            x1 = x0;
            x0 = x0_of(o, at, t);
            x1 = _mm256_sub_epi32(x1, x0);
        }
        const __m256 xm = form == PLP_FORM_MIN ? xm_of(o, at, t) : xs;
        const __m256 term = term_of(form, s, m, m2, xs, xm, half_sum(xs, x0), half_sum(xs, x1), less_offset(type, first, x0), less_offset(type, second, x1));
        o->acc[t] = _mm256_add_ps(o->acc[t], term);
        UNROLL for (int half = 0; half < 2; half++) o->narrow[i][half][t] = o->wide[i][half][t] = _mm256_setzero_si256();
    }
}

#include "kernels/x86/ymm_unpack.h"

/* Of four tokens the sums fit the registers where one block or two are unpacked at a time. */
INLINE bool suits(const int type, uint32_t n)
{
    const int form = plp_type_form(type);
    return n <= FEW_TOKENS || (n == TILE_TOKENS && (form == PLP_FORM_SYM || form == PLP_FORM_MIN));
}
bool TIER(columns_suit)(int32_t type, uint32_t n) { return suits(type, n); }

INLINE void column(const int type, const int n, const uint8_t *p, size_t stride, uint32_t n_blocks, const void *packed, float y[][8])
{
    const x_stream no_stream = { 0 };
    sink o = { .n = n, .x = n == TILE_TOKENS ? no_stream : stream_view(packed, n_blocks, 0), .apart = stream_bytes(n_blocks), .tile = packed,
               .next = p + 8 * stride, .due = p + 8 * stride, .own = p + bytes_per_8(type), .stride = stride };
    if (!suits(type, (uint32_t)n)) return;
    UNROLL for (int t = 0; t < n; t++) {
        o.acc[t] = _mm256_setzero_ps();
        UNROLL for (int i = 0; i < 8; i++)
            UNROLL for (int half = 0; half < 2; half++) o.narrow[i][half][t] = o.wide[i][half][t] = _mm256_setzero_si256();
    }
    unpack(type, p, stride, n_blocks, &o);
    UNROLL for (int t = 0; t < n; t++) _mm256_storeu_ps(y[t], o.acc[t]);
}

typedef void column_fn(const uint8_t *p, size_t stride, uint32_t n_blocks, const void *packed, float y[][8]);
#define COLUMN(NAME, n)                                                                                                     \
    static __attribute__((noinline)) void column_##NAME##_##n(const uint8_t *p, size_t stride, uint32_t n_blocks,           \
                                                              const void *packed, float y[][8])                             \
    { column(PLP_TYPE_##NAME, n, p, stride, n_blocks, packed, y); }
#define COLUMNS(NAME)                                                                                                       \
    COLUMN(NAME, 1) COLUMN(NAME, 2) COLUMN(NAME, 3) COLUMN(NAME, 4)                                                         \
    static column_fn *const columns_##NAME[TILE_TOKENS] = { column_##NAME##_1, column_##NAME##_2, column_##NAME##_3, column_##NAME##_4 };
EACH_INTEGER_TYPE(COLUMNS)

static column_fn *column_of(int32_t type, uint32_t n)
{
#define COLUMN_OF(NAME) case PLP_TYPE_##NAME: return columns_##NAME[n - 1];
    switch (type) { default: EACH_INTEGER_TYPE(COLUMN_OF) }
#undef COLUMN_OF
}

void TIER(columns)(const plp_rows *w, uint32_t r0, uint32_t r1, const void *packed, uint32_t n, float *y, size_t ldy, bool add)
{
    column_fn *const multiply = column_of(w->type, n);
    const uint8_t *data = w->data;
    float out[TILE_TOKENS][8];
    uint32_t r = r0;
    for (; r + 8 <= r1; r += 8) {
        multiply(data + r * w->row_bytes, w->row_bytes, w->k / 32, packed, out);
        for (uint32_t t = 0; t < n; t++) put_8_rows(y + t * ldy + r, _mm256_loadu_ps(out[t]), 8, add);
    }
    for (; r < r1; r++) {                               /* each alone, as if there were eight of it */
        multiply(data + r * w->row_bytes, 0, w->k / 32, packed, out);
        for (uint32_t t = 0; t < n; t++) put_8_rows(y + t * ldy + r, _mm256_loadu_ps(out[t]), 1, add);
    }
}

#endif
