/*
 * backend/gpu/device.h - what the GPU backend asks of a device: memory, and lists of kernels to run in order
 *
 * The backend (gpu.c) turns operations into commands and never looks at what drives them: the emulator
 * (backend/emu), CUDA (backend/cuda), Metal (backend/metal).
 *
 * A command is a kernel by number (gpu/kernels/kernels.def), its groups, threads and arguments. All bytes
 * of a command are defined, so two lists are the same work if their bytes are the same: a device may replay
 * what it captured.
 *
 * Addresses are the device's and 64 bits wide; the host reaches what they name by write and read, and one
 * staging area directly.
 *
 * Order    a list starts after everything before it is done; commands of a list follow each other
 * Errors   run cannot fail: what goes wrong is said by the next wait, and from then on by every one
 * Threads  one caller at a time (the backend's lock)
 */
#ifndef PLP_BACKEND_GPU_DEVICE_H
#define PLP_BACKEND_GPU_DEVICE_H

#include "backend/backend.h"

#define PLP_GPU_ARGS_BYTES 144

typedef struct plp_gpu_command {
    uint32_t kernel, n_threads;
    uint32_t groups[2];
    uint8_t  args[PLP_GPU_ARGS_BYTES] __attribute__((aligned(8)));
} plp_gpu_command;

typedef struct plp_gpu_device plp_gpu_device;

typedef struct plp_gpu_driver {
    const char *name;
    void       (*close)(plp_gpu_device *d);
    /* Device memory, aligned to 256 bytes at least; contents undefined. */
    plp_status (*memory)(plp_gpu_device *d, size_t n_bytes, void **out, plp_error *err);
    void       (*release)(plp_gpu_device *d, void *address, size_t n_bytes);
    /* The staging area, in place of the one before: host writes at *host, kernels read at *address. */
    plp_status (*staging)(plp_gpu_device *d, size_t n_bytes, void **host, void **address, plp_error *err);
    /* Host memory that outlives the device, as the device sees it; NULL if it must be copied. */
    void      *(*weights)(plp_gpu_device *d, const void *host, size_t n_bytes);
    /* Start a list. The first n_staged bytes of the staging area are what it may read. */
    void       (*run)(plp_gpu_device *d, const plp_gpu_command *list, uint32_t n, size_t n_staged);
    plp_status (*wait)(plp_gpu_device *d, plp_error *err);
    /* With nothing running. */
    void       (*write)(plp_gpu_device *d, void *address, const void *host, size_t n_bytes);
    void       (*read)(plp_gpu_device *d, void *host, const void *address, size_t n_bytes);
} plp_gpu_driver;

struct plp_gpu_device { const plp_gpu_driver *driver; };

/* A backend over a device, which it takes over (also on failure). */
plp_status plp_gpu_backend_open(plp_backend **out, plp_gpu_device *d, plp_error *err);

#endif
