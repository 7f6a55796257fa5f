/* kernels/x86/avx2_linear.c - tier "avx2": which product path takes how many tokens (packed.h) */
#include "kernels/x86/avx2.h"

static size_t linear_work(uint32_t n, uint32_t k)
{
    const size_t product = larger(plp_avx2_stream_work(n < STREAM_TOKENS ? n : STREAM_TOKENS, k), plp_avx2_panel_work(n, k));
    return larger(product, plp_avx2_float_work(k));
}

static void linear(const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy,
                   bool add, void *work)
{
    (n <= STREAM_TOKENS ? plp_avx2_stream : plp_avx2_panel)(w, r0, r1, x, n, y, ldy, add, work);
}

void plp_fill_avx2(plp_kernels *k)
{
    plp_fill_avx2_pack(k);
    plp_fill_avx2_float(k);
    plp_fill_avx2_vector(k);
    plp_fill_avx2_attention(k);
    plp_fill_avx2_sealed(k);
    plp_fill_avx2_seal(k);
    k->linear_work = linear_work;
    k->linear = linear;
}
