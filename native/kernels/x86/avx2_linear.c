/* kernels/x86/avx2_linear.c - tier "avx2": what it is made of */
#include "kernels/x86/ymm_linear.h"

void plp_fill_avx2(plp_kernels *k)
{
    plp_fill_avx2_pack(k);
    plp_fill_avx2_float(k);
    plp_fill_avx2_vector(k);
    plp_fill_avx2_attention(k);
    plp_avx2_fill_sealed(k);
    plp_fill_avx2_seal(k);
    fill_linear(k);
}
