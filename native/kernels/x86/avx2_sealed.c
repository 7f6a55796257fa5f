/* kernels/x86/avx2_sealed.c - tier "avx2": attention over sealed tiles; dots by vpmaddwd and vpmaddubsw */
#include "kernels/x86/ymm_sealed.h"
