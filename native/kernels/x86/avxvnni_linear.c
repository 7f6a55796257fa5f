/* kernels/x86/avxvnni_linear.c - tier "avxvnni": what it does better than "avx2" */
#include "kernels/x86/ymm_linear.h"

void plp_fill_avxvnni(plp_kernels *k)
{
    plp_avxvnni_fill_sealed(k);
    fill_linear(k);
}
