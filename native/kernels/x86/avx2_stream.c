/* kernels/x86/avx2_stream.c - tier "avx2": products of a few tokens; dots by vpmaddubsw */
#include "kernels/x86/ymm_stream.h"
