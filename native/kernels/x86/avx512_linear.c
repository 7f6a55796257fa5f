/*
 * kernels/x86/avx512_linear.c - tier "avx512": which product path takes how many tokens
 *
 * Activations are packed by the tier below (avx2_pack.c) and, for a few tokens, once more in an order of this tier:
 * packed.h has the shapes and says when each is used.
 */
#include "kernels/x86/avx512.h"

/* Measured on a Zen 5, 1B and 135M shapes: with 3 tokens columns overtake streams, with 64 they are level with panels. */
enum { FEW = 2, SOME = 48 };

/* Two 256-blocks as Q4_K's rows come out of their interleaving: run r of 32 bytes holds block 2r low and 2r + 1 high;
 * lanes are first halves of runs 0 2 4 6, second halves, then the same of runs 1 3 5 7. */
static void pack_pairs(const x_stream v, uint32_t n_blocks)
{
    const __m512i at = _mm512_setr_epi32(0, 32, 64, 96, 4, 36, 68, 100, 16, 48, 80, 112, 20, 52, 84, 116);     /* dwords */
    int32_t *to = (int32_t *)v.pair;
    for (uint32_t b = 0; b < n_blocks; b += 8, to += 128)
        UNROLL for (int c = 0; c < 4; c++) {
            const int8_t *from = v.q + 32 * b + 4 * c;
            _mm512_storeu_si512(to + 16 * c, _mm512_i32gather_epi32(at, from, 4));
            _mm512_storeu_si512(to + 16 * (c + 4), _mm512_i32gather_epi32(at, from + 32, 4));
        }
}

static void x_pack(const float *x, size_t ldx, uint32_t n, uint32_t k, uint32_t t0, uint32_t t1, void *out)
{
    plp_x86_x_pack(x, ldx, n, k, t0, t1, n <= FEW, out);
    if (n <= FEW && k % 256 == 0)
        for (uint32_t t = t0; t < t1 && t < n; t++) pack_pairs(stream_view(out, k / 32, t), k / 32);
}

static size_t linear_work(uint32_t n, uint32_t k)
{
    const size_t stream = plp_avx512_stream_work(n < FEW ? n : FEW, k), columns = plp_avx512_columns_work(n < SOME ? n : SOME);
    return larger(larger(stream, columns), larger(plp_avx512_panel_work(n, k), plp_avx512_float_work(k)));
}

/* Nibbles of 16 bytes, of a single token: putting four blocks into a register takes more than it saves. On a Zen 5 8,192 x 2,048
 * of Q4_0 took 0.53 ms here and 0.33 by the tier below, and all of Q4_1's model, before blocks were fetched ahead, 1.14 times as
 * long; on a Zen 4 it was 0.96 and 0.89. Packed activations and `work` are the same. */
static bool is_narrow(const plp_rows *w, uint32_t n) { return n == 1 && (w->type == PLP_TYPE_Q4_0 || w->type == PLP_TYPE_Q4_1); }

INLINE void linear_by(const bool fetching, const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y,
                      size_t ldy, bool add, void *work)
{
    if (fetching && is_narrow(w, n)) plp_avx2_columns(w, r0, r1, x, n, y, ldy, add);
    else if (n <= FEW) plp_avx512_stream(w, r0, r1, x, n, y, ldy, add, fetching, work);
    else (n <= SOME ? plp_avx512_columns : plp_avx512_panel)(w, r0, r1, x, n, y, ldy, add, work);
}

static void linear(const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy, bool add, void *work)
{
    linear_by(true, w, r0, r1, x, n, y, ldy, add, work);
}

static void linear_zen4(const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy, bool add, void *work)
{
    linear_by(false, w, r0, r1, x, n, y, ldy, add, work);
}

void plp_fill_avx512(plp_kernels *k)
{
    plp_fill_avx512_float(k);
    plp_fill_avx512_vector(k);
    plp_fill_avx512_attention(k);
    plp_fill_avx512_sealed(k);
    k->panel_rows = 3 * PLP_ROW_STEP;
    k->x_pack = x_pack;
    k->linear_work = linear_work;
    k->linear = plp_cpu_features() & PLP_CPU_ZEN4 ? linear_zen4 : linear;
}
