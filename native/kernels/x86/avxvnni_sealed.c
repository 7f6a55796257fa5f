/* kernels/x86/avxvnni_sealed.c - tier "avxvnni": attention over sealed tiles; dots by vpdpbusd */
#include "kernels/x86/ymm_sealed.h"
