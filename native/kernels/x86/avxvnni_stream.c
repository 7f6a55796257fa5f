/* kernels/x86/avxvnni_stream.c - tier "avxvnni": products of a few tokens; dots by vpdpbusd */
#include "kernels/x86/ymm_stream.h"
