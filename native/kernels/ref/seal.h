/* kernels/ref/seal.h - the scalar half of sealing: how a range becomes a scale and a minimum (kernels/sealed.h) */
#ifndef PLP_KERNELS_REF_SEAL_H
#define PLP_KERNELS_REF_SEAL_H

#include "kernels/kernels.h"
#include "kernels/ref/math.h"
#include "kernels/ref/ref.h"

static inline float inverse(float s)                                               { return s >= PLP_X_ZERO ? 1.0f / s : 0.0f; }
/* Rounds; values beyond the magic constant's range saturate first. */
static inline int   nearest(float x, int lo, int hi)
{
    return plp_round_int(x < (float)lo ? (float)lo : x > (float)hi ? (float)hi : x);
}

typedef struct range { float lo, hi; } range;

static inline void widen(range *r, float x)
{
    r->lo = x < r->lo ? x : r->lo;
    r->hi = x > r->hi ? x : r->hi;
}

/* Units such that the widest range and the farthest minimum of the tile just fit their 8 bits. */
typedef struct units { uint16_t scale, min; float us, um, inv_us, inv_um; } units;

static inline units units_of(const range *r, uint32_t n)
{
    float width = 0, far = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float w = r[i].hi - r[i].lo, a = __builtin_fabsf(r[i].lo);
        width = w > width ? w : width;
        far = a > far ? a : far;
    }
    units u = { .scale = plp_f32_to_f16(width / (15.0f * 255.0f)), .min = plp_f32_to_f16(far / 127.0f) };
    u.us = plp_half(u.scale), u.um = plp_half(u.min);
    u.inv_us = inverse(u.us), u.inv_um = inverse(u.um);
    return u;
}

/* A range's 8-bit minimum and scale; returns what turns a value into its nibble. */
typedef struct steps { float min, inv; } steps;

static inline steps quantise_range(range r, const units *u, uint8_t *scale, int8_t *min)
{
    *min = (int8_t)nearest(r.lo * u->inv_um, -127, 127);
    const float m = u->um * (float)*min;
    const int s = nearest((r.hi - m) * (1.0f / 15.0f) * u->inv_us, 0, 255);
    *scale = (uint8_t)(s == 0 && r.hi > m ? 1 : s);
    return (steps){ m, inverse(u->us * (float)*scale) };
}

#endif
