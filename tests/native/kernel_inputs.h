/* kernel_inputs.h - what the checks of kernels share: inputs that end at a guard page, bitwise comparison */
#ifndef KERNEL_INPUTS_H
#define KERNEL_INPUTS_H

#include "check.h"

#include "kernels/kernels.h"
#include "kernels/ref/math.h"
#include "kernels/ref/ref.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

enum { N_KINDS = 5 };
static const char *const kinds[N_KINDS] = { "random", "huge", "tiny", "sparse", "outliers" };

static const plp_kernels *ref(void) { return plp_kernels_at(0); }

static float value(int kind, uint32_t i)
{
    const float u = check_uniform();
    switch (kind) {
    case 1:  return u * 1e15f;
    case 2:  return u * (i % 3 ? 1e-30f : 1e-41f);                      /* also denormal numbers */
    case 3:  return i / 32 % 3 ? (i % 2 ? 0.0f : -0.0f) : i % 7 ? 0 : u;    /* whole blocks of zeros of both signs */
    case 4:  return i % 97 ? u : u * 50;
    default: return u;
    }
}

static float *guarded_floats(size_t n, int kind)
{
    float *x = guarded(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = value(kind, (uint32_t)i);
    return x;
}
static void unguard_floats(float *x, size_t n) { unguard(x, n * sizeof *x); }

/* The first index where the bits differ, or -1. */
static long differs(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (plp_bits(a[i]) != plp_bits(b[i])) return (long)i;
    return -1;
}

/* One line per kernel and tier. A line of kernels.def that neither file checks does not compile: the other
 * file's kernels are named there as `elsewhere`. */
typedef struct kernel_check { const char *name; void (*check)(const plp_kernels *k); } kernel_check;
static void elsewhere(const plp_kernels *k) { (void)k; }

static void check_each(const kernel_check *all, unsigned n)
{
    for (uint32_t tier = 0; tier < plp_kernels_count(); tier++) {
        const plp_kernels *k = plp_kernels_at(tier);
        for (unsigned i = 0; i < n; i++) {
            const long failed = check_failed;
            if (all[i].check == elsewhere) continue;
            all[i].check(k);
            printf("  %-8s %-29s %s\n", k->tier, all[i].name, check_failed == failed ? "ok" : "FAILED");
        }
    }
}

#endif
