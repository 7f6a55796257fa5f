/*
 * backend/emu/simt.h - a GPU's group of threads on one CPU thread: a fiber each, in shuffled order
 *
 * A launch runs its groups one after the other. In a group every thread is a fiber with its own stack;
 * fibers change places only at barriers and simdgroup operations, in an order that is drawn anew for each
 * group. So a kernel that lacks a barrier reads what has not been written yet, and one whose threads do not
 * all come to a barrier is found out. What it cannot show: races between two barriers that no order of
 * whole pieces brings out, the weaker memory of a GPU, speed.
 *
 * Works under AddressSanitizer (each switch is announced to it).
 *
 * Errors   plp_simt_launch: false and a sentence in `error`; memory that the kernel wrote is then undefined
 * Threads  one launch at a time in the process (plp_simt_launch locks)
 */
#ifndef PLP_BACKEND_EMU_SIMT_H
#define PLP_BACKEND_EMU_SIMT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLP_SIMT_MAX_THREADS 1024

typedef void (*plp_simt_body)(const void *args);

/* What a running thread may ask; set by the emulator. */
typedef struct plp_simt_state {
    uint32_t group[2];
    int      thread, n_threads;
} plp_simt_state;
extern plp_simt_state plp_simt;

/* seed 0: threads in order; else the seed of the orders. n_threads: a multiple of 32. */
bool plp_simt_launch(plp_simt_body body, const void *args, const uint32_t groups[2], uint32_t n_threads,
                     uint32_t seed, char *error, size_t error_bytes);

/* For kernels only. site: the same for all who meet, a source line. */
void     plp_simt_barrier(uint32_t site);
void     plp_simt_barrier_simd(uint32_t site);
uint32_t plp_simt_xor(uint32_t value, uint32_t mask);       /* the value of lane ^ mask */

#endif
