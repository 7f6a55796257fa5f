/* kernels/x86/avx2_columns.c - tier "avx2": products of a few tokens; dots by vpmaddubsw */
#include "kernels/x86/ymm_columns.h"
