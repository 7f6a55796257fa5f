/*
 * backend/emu/emu.h - the emulator as a GPU: every portable kernel runs on the CPU, slowly, for tests
 */
#ifndef PLP_BACKEND_EMU_EMU_H
#define PLP_BACKEND_EMU_EMU_H

#include "backend/backend.h"
#include "backend/emu/simt.h"

/* The emulator as a backend. */
plp_status plp_emu_backend_open(plp_backend **out, plp_error *err);

/* By number, in the order of gpu/kernels/kernels.def. */
extern const plp_simt_body plp_emu_kernels[];

#endif
