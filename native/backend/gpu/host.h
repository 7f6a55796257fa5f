/* backend/gpu/host.h - the kernels' arguments as the host writes them; for .c files only (short integer names) */
#ifndef PLP_BACKEND_GPU_HOST_H
#define PLP_BACKEND_GPU_HOST_H

#include <stdint.h>

typedef uint8_t  u8;
typedef int8_t   i8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef int32_t  i32;
typedef uint64_t u64;
#define DEVICE
#include "backend/gpu/kernels/args.h"
#undef DEVICE

enum {
#define GPU_KERNEL(name, args) K_##name,
#include "backend/gpu/kernels/kernels.def"
#undef GPU_KERNEL
    N_KERNELS
};

#endif
