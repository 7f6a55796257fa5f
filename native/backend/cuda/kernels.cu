/* backend/cuda/kernels.cu - the portable kernels compiled for CUDA, and their table by number */
#include "backend/gpu/kernels/tile.h"
#include "backend/gpu/kernels/prelude_cuda.h"
#include "backend/gpu/kernels/args.h"
#include "backend/gpu/kernels/all.h"

#include "backend/cuda/cuda_kernels.h"

const void *const plp_cuda_kernels[] = {
#define GPU_KERNEL(name, args) (const void *)plp_k_##name,
#include "backend/gpu/kernels/kernels.def"
#undef GPU_KERNEL
};
const unsigned plp_cuda_args_bytes[] = {
#define GPU_KERNEL(name, args) sizeof(args),
#include "backend/gpu/kernels/kernels.def"
#undef GPU_KERNEL
};
