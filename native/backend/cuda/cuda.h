/*
 * backend/cuda/cuda.h - NVIDIA GPUs: a device for the GPU backend, in a library of its own
 *
 * libplp does not link CUDA. cuda.c looks for libplp_cuda.so when it is asked for the device: the file that
 * PLP_CUDA_LIBRARY names, or the one beside the library that this code is in. It holds the CUDA runtime, the
 * kernels for every supported GPU, and cuda_device.c, and needs nothing of libplp. So a machine without a
 * driver loads and runs everything else.
 */
#ifndef PLP_BACKEND_CUDA_CUDA_H
#define PLP_BACKEND_CUDA_CUDA_H

#include "backend/gpu/device.h"

/* PLP_E_UNSUPPORTED with the reason: no library, no driver, no GPU. */
plp_status plp_cuda_backend_open(plp_backend **out, plp_error *err);

/* What the library exports. The number changes with device.h; both sides must agree. */
#define PLP_CUDA_INTERFACE 1
typedef struct plp_cuda_library {
    uint32_t   interface;
    plp_status (*open)(plp_gpu_device **out, plp_error *err);
    /* The GPU in words ("NVIDIA H100, compute 9.0, 79 GiB"), or why there is none; true: there is one. */
    bool       (*describe)(char *out, size_t n_bytes);
} plp_cuda_library;
typedef const plp_cuda_library *(*plp_cuda_entry)(void);
#define PLP_CUDA_ENTRY "plp_cuda_library_get"

/* The device in words, or why there is none. */
bool plp_cuda_describe(char *out, size_t n_bytes);

#endif
