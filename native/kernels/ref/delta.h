/*
 * kernels/ref/delta.h - the gated delta rule in plain C, for every tier
 *
 * Columns of the state are independent, and within one every product and sum is rounded apart, rows in order.
 * So a compiler may use vectors of any width and the bits stay: the tiers include this and differ in nothing
 * but the flags of their file.
 */
#ifndef PLP_KERNELS_REF_DELTA_H
#define PLP_KERNELS_REF_DELTA_H

#include "kernels/kernels.h"

static inline void plp_delta_rule(float *restrict state, const float *restrict q, const float *restrict k, const float *restrict v,
                                  float decay, float beta, float *restrict y, uint32_t n)
{
    float sum[PLP_MAX_DELTA_DIM], delta[PLP_MAX_DELTA_DIM];

    for (uint32_t j = 0; j < n; j++) sum[j] = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float *row = state + i * n;
        for (uint32_t j = 0; j < n; j++) sum[j] = sum[j] + k[i] * (row[j] * decay);
    }
    for (uint32_t j = 0; j < n; j++) {
        delta[j] = (v[j] - sum[j]) * beta;
        sum[j] = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        float *row = state + i * n;
        for (uint32_t j = 0; j < n; j++) {
            row[j] = row[j] * decay + k[i] * delta[j];
            sum[j] = sum[j] + q[i] * row[j];
        }
    }
    for (uint32_t j = 0; j < n; j++) y[j] = sum[j];
}

#endif
