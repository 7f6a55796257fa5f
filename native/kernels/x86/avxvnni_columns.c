/* kernels/x86/avxvnni_columns.c - tier "avxvnni": products of a few tokens; dots by vpdpbusd */
#include "kernels/x86/ymm_columns.h"
