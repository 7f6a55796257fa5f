/* backend/cuda/cuda_kernels.h - what kernels.cu gives the host code of the same library */
#ifndef PLP_BACKEND_CUDA_CUDA_KERNELS_H
#define PLP_BACKEND_CUDA_CUDA_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif
/* Host handles of the kernels and the sizes of their arguments, in the order of gpu/kernels/kernels.def. */
extern const void *const plp_cuda_kernels[];
extern const unsigned    plp_cuda_args_bytes[];
#ifdef __cplusplus
}
#endif

#endif
