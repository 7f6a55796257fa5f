/*
 * bench/kernels/peak.h - a loop of independent chains, for the peak_*.c
 *
 * CHAINS accumulators hide any latency of today's cores, and fit the registers of the smallest set. The
 * empty asm keeps each in its register and the inputs unknown, so that nothing is folded or left out.
 */
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H

#include "bench.h"

enum { CHAINS = 12 };

#define PEAK(name, type, zero, constraint, step)                                              \
    static void name(uint64_t n)                                                              \
    {                                                                                         \
        type a[CHAINS], x = zero, y = zero;                                                   \
        _Pragma("GCC unroll 12")                                                              \
        for (int c = 0; c < CHAINS; c++) a[c] = zero;                                         \
        for (uint64_t i = 0; i < n; i++) {                                                    \
            __asm__ volatile("" : constraint(x), constraint(y));                              \
            _Pragma("GCC unroll 12")                                                          \
            for (int c = 0; c < CHAINS; c++) {                                                \
                a[c] = step(a[c], x, y);                                                      \
                __asm__ volatile("" : constraint(a[c]));                                      \
            }                                                                                 \
        }                                                                                     \
    }

#endif
