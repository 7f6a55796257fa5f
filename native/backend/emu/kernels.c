/* backend/emu/kernels.c - the portable kernels compiled for the emulator, and their table */
#include "backend/gpu/kernels/tile.h"
#include "backend/gpu/kernels/prelude_c.h"
#include "backend/gpu/kernels/args.h"
#include "backend/gpu/kernels/all.h"

#include "backend/emu/emu.h"

#define GPU_KERNEL(name, args) static void run_##name(const void *a) { plp_k_##name(*(const args *)a); }
#include "backend/gpu/kernels/kernels.def"
#undef GPU_KERNEL

#ifndef PLP_EMU_TABLE
#define PLP_EMU_TABLE plp_emu_kernels
#endif
const plp_simt_body PLP_EMU_TABLE[] = {
#define GPU_KERNEL(name, args) run_##name,
#include "backend/gpu/kernels/kernels.def"
#undef GPU_KERNEL
};
