/*
 * kernels/ref/sealed.c - seal an f16 tile to q8 or q4, and attend sealed tiles by integer dots, in plain C
 *
 * Layouts, formulas and their order: kernels/sealed.h.
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/math.h"
#include "kernels/ref/seal.h"
#include "kernels/sealed.h"

enum { LEN = PLP_SEALED_LEN };

static inline float k_at(const uint16_t *tile, uint32_t c, uint32_t t)             { return plp_half(tile[c * LEN + t]); }
static inline float v_at(const uint16_t *tile, uint32_t d, uint32_t c, uint32_t t) { return plp_half(tile[(LEN + t) * d + c]); }

/* plp_fold16 works in place; the lanes are still wanted. */
static float fold_copy(const float lane[LEN])
{
    float copy[LEN];
    memcpy(copy, lane, sizeof copy);
    return plp_fold16(copy);
}

/* ---- seal ---- */

static void kv_seal_q8(const void *f16_tile, void *out, uint32_t d)
{
    const uint16_t *from = f16_tile;
    const plp_q8_tile to = plp_q8_at(out, d);
    uint8_t *k = (uint8_t *)to.k;
    int8_t *v = (int8_t *)to.v;

    for (uint32_t c = 0; c < d; c++) {
        float most = 0;
        for (uint32_t t = 0; t < LEN; t++) {
            const float x = __builtin_fabsf(k_at(from, c, t));
            most = x > most ? x : most;
        }
        const uint16_t scale = plp_f32_to_f16(most / 127.0f);
        const float inv = inverse(plp_half(scale));
        ((uint16_t *)to.k_scale)[c] = scale;
        for (uint32_t t = 0; t < LEN; t++)
            k[(c / 4 * LEN + t) * 4 + c % 4] = (uint8_t)(nearest(k_at(from, c, t) * inv, -127, 127) + 128);
    }
    for (uint32_t g = 0; g < plp_v_groups(d); g++)
        for (uint32_t t = 0; t < LEN; t++) {
            const uint32_t end = (g + 1) * PLP_V_GROUP < d ? (g + 1) * PLP_V_GROUP : d;
            float most = 0;
            for (uint32_t c = g * PLP_V_GROUP; c < end; c++) {
                const float x = __builtin_fabsf(v_at(from, d, c, t));
                most = x > most ? x : most;
            }
            const uint16_t scale = plp_f32_to_f16(most / 127.0f);
            const float inv = inverse(plp_half(scale));
            ((uint16_t *)to.v_scale)[g * LEN + t] = scale;
            for (uint32_t c = g * PLP_V_GROUP; c < end; c++)
                v[(t / 4 * d + c) * 4 + t % 4] = (int8_t)nearest(v_at(from, d, c, t) * inv, -127, 127);
        }
}

static void kv_seal_q4(const void *f16_tile, void *out, uint32_t d)
{
    const uint16_t *from = f16_tile;
    const plp_q4_tile to = plp_q4_at(out, d);
    const uint32_t groups = plp_v_groups(d);
    uint8_t *k = (uint8_t *)to.k, *v = (uint8_t *)to.v;
    uint16_t *unit = (uint16_t *)to.units;
    range r[PLP_MAX_HEAD_DIM];

    for (uint32_t c = 0; c < d; c++) {
        r[c] = (range){ k_at(from, c, 0), k_at(from, c, 0) };
        for (uint32_t t = 1; t < LEN; t++)
            widen(&r[c], k_at(from, c, t));
    }
    units u = units_of(r, d);
    unit[0] = u.scale, unit[1] = u.min;
    for (uint32_t i = 0; i < LEN * d / 2; i++)
        k[i] = v[i] = 0;
    for (uint32_t c = 0; c < d; c++) {
        const steps s = quantise_range(r[c], &u, (uint8_t *)to.k_scale + c, (int8_t *)to.k_min + c);
        const uint32_t j = c < d / 2 ? c : c - d / 2, shift = c < d / 2 ? 0 : 4;
        for (uint32_t t = 0; t < LEN; t++)
            k[(j / 4 * LEN + t) * 4 + j % 4] |= (uint8_t)((uint32_t)nearest((k_at(from, c, t) - s.min) * s.inv, 0, 15) << shift);
    }
    for (uint32_t g = 0; g < groups; g++)
        for (uint32_t t = 0; t < LEN; t++) {
            const uint32_t c0 = g * PLP_V_GROUP, end = c0 + PLP_V_GROUP < d ? c0 + PLP_V_GROUP : d;
            r[g * LEN + t] = (range){ v_at(from, d, c0, t), v_at(from, d, c0, t) };
            for (uint32_t c = c0 + 1; c < end; c++)
                widen(&r[g * LEN + t], v_at(from, d, c, t));
        }
    u = units_of(r, groups * LEN);
    unit[2] = u.scale, unit[3] = u.min;
    for (uint32_t g = 0; g < groups; g++)
        for (uint32_t t = 0; t < LEN; t++) {
            const uint32_t c0 = g * PLP_V_GROUP, end = c0 + PLP_V_GROUP < d ? c0 + PLP_V_GROUP : d, i = g * LEN + t;
            const steps s = quantise_range(r[i], &u, (uint8_t *)to.v_scale + i, (int8_t *)to.v_min + i);
            for (uint32_t c = c0; c < end; c++)
                v[(t % 8 / 4 * d + c) * 4 + t % 4] |= (uint8_t)((uint32_t)nearest((v_at(from, d, c, t) - s.min) * s.inv, 0, 15) << (t < 8 ? 0 : 4));
        }
}

/* ---- attend ---- */

/* The sums of the contract are exact; those of a query that is infinite or NaN wrap, as they do in vector registers. */
static inline int32_t add_product(int32_t sum, int32_t a, int32_t b) { return (int32_t)((uint32_t)sum + (uint32_t)a * (uint32_t)b); }

/* Queries times scales as integers of up to 32512; returns the factor that undoes it. */
static float quantise_query(const float *q, const float *scale, uint32_t d, int32_t *q16)
{
    float x[PLP_MAX_HEAD_DIM], most = 0;
    for (uint32_t c = 0; c < d; c++) {
        x[c] = q[c] * scale[c];
        most = __builtin_fabsf(x[c]) > most ? __builtin_fabsf(x[c]) : most;
    }
    const float inv = most >= PLP_X_ZERO ? 32512.0f / most : 0.0f;
    for (uint32_t c = 0; c < d; c++)
        q16[c] = plp_round_int(x[c] * inv);
    return most / 32512.0f;
}

/* Scores become probabilities, and the state what it must be for them. */
static void soften(plp_attn *a, uint32_t i, float p[LEN], uint32_t lo, uint32_t hi)
{
    float *acc = a->acc + (size_t)i * a->head_dim, m = a->m[i];

    for (uint32_t t = 0; t < LEN; t++) {
        if (a->softcap > 0)
            p[t] = a->softcap * plp_tanh(p[t] / a->softcap);
        if (t < lo || t >= hi)
            p[t] = -__builtin_inff();
        m = p[t] > m ? p[t] : m;
    }
    if (m > a->m[i]) {
        const float c = plp_exp(a->m[i] - m);
        a->m[i] = m;
        a->s[i] *= c;
        for (uint32_t d = 0; d < a->head_dim; d++)
            acc[d] *= c;
    }
    for (uint32_t t = 0; t < LEN; t++)
        p[t] = plp_exp(p[t] - m);
    a->s[i] = a->s[i] + fold_copy(p);
}

/* Probabilities times V's scales as integers of up to 127; returns the factor that undoes it. */
static float quantise_p(const float p[LEN], const float scale[LEN], int32_t pq[LEN])
{
    float e[LEN], most = 0;
    for (uint32_t t = 0; t < LEN; t++) {
        e[t] = p[t] * scale[t];
        most = e[t] > most ? e[t] : most;
    }
    const float inv = most >= PLP_X_ZERO ? 127.0f / most : 0.0f;
    for (uint32_t t = 0; t < LEN; t++)
        pq[t] = plp_round_int(e[t] * inv);
    return most / 127.0f;
}

static void attn_q8(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const uint32_t d = a->head_dim;
    const plp_q8_tile x = plp_q8_at(tile, d);
    float k_scale[PLP_MAX_HEAD_DIM];

    for (uint32_t c = 0; c < d; c++)
        k_scale[c] = plp_half(x.k_scale[c]);
    for (uint32_t i = 0; i < a->n_q; i++) {
        const uint32_t lo = seen.lo ? seen.lo[i] : 0, hi = seen.hi ? seen.hi[i] : LEN;
        float p[LEN], v_scale[LEN], *acc = a->acc + (size_t)i * d;
        int32_t q16[PLP_MAX_HEAD_DIM], pq[LEN];

        if (lo >= hi)
            continue;
        const float back = quantise_query(a->q + (size_t)i * d, k_scale, d, q16);
        for (uint32_t t = 0; t < LEN; t++) {
            int32_t dot = 0;
            for (uint32_t c = 0; c < d; c++)
                dot = add_product(dot, q16[c], x.k[(c / 4 * LEN + t) * 4 + c % 4] - 128);
            p[t] = (float)dot * back;
        }
        soften(a, i, p, lo, hi);
        for (uint32_t g = 0; g < plp_v_groups(d); g++) {
            for (uint32_t t = 0; t < LEN; t++)
                v_scale[t] = plp_half(x.v_scale[g * LEN + t]);
            const float b = quantise_p(p, v_scale, pq);
            for (uint32_t c = g * PLP_V_GROUP; c < (g + 1) * PLP_V_GROUP && c < d; c++) {
                int32_t dot = 0;
                for (uint32_t t = 0; t < LEN; t++)
                    dot = add_product(dot, pq[t], x.v[(t / 4 * d + c) * 4 + t % 4]);
                acc[c] = __builtin_fmaf((float)dot, b, acc[c]);
            }
        }
    }
}

static void attn_q4(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const uint32_t d = a->head_dim;
    const plp_q4_tile x = plp_q4_at(tile, d);
    const float uks = plp_half(x.units[0]), ukm = plp_half(x.units[1]), uvs = plp_half(x.units[2]), uvm = plp_half(x.units[3]);
    float k_scale[PLP_MAX_HEAD_DIM], k_min[PLP_MAX_HEAD_DIM];

    for (uint32_t c = 0; c < d; c++) {
        k_scale[c] = uks * (float)x.k_scale[c];
        k_min[c] = ukm * (float)x.k_min[c];
    }
    for (uint32_t i = 0; i < a->n_q; i++) {
        const uint32_t lo = seen.lo ? seen.lo[i] : 0, hi = seen.hi ? seen.hi[i] : LEN;
        const float *q = a->q + (size_t)i * d;
        float p[LEN], scale[LEN], lanes[LEN] = { 0 }, *acc = a->acc + (size_t)i * d;
        int32_t q16[PLP_MAX_HEAD_DIM], pq[LEN];

        if (lo >= hi)
            continue;
        for (uint32_t c = 0; c < d; c++)
            lanes[c % LEN] = __builtin_fmaf(q[c], k_min[c], lanes[c % LEN]);
        const float floor = fold_copy(lanes), back = quantise_query(q, k_scale, d, q16);
        for (uint32_t t = 0; t < LEN; t++) {
            int32_t dot = 0;
            for (uint32_t c = 0; c < d; c++) {
                const uint32_t j = c < d / 2 ? c : c - d / 2;
                dot = add_product(dot, q16[c], x.k[(j / 4 * LEN + t) * 4 + j % 4] >> (c < d / 2 ? 0 : 4) & 15);
            }
            p[t] = (float)dot * back + floor;
        }
        soften(a, i, p, lo, hi);
        for (uint32_t g = 0; g < plp_v_groups(d); g++) {
            for (uint32_t t = 0; t < LEN; t++) {
                scale[t] = uvs * (float)x.v_scale[g * LEN + t];
                lanes[t] = p[t] * (uvm * (float)x.v_min[g * LEN + t]);
            }
            const float b = quantise_p(p, scale, pq), base = fold_copy(lanes);
            for (uint32_t c = g * PLP_V_GROUP; c < (g + 1) * PLP_V_GROUP && c < d; c++) {
                int32_t dot = 0;
                for (uint32_t t = 0; t < LEN; t++)
                    dot = add_product(dot, pq[t], x.v[(t % 8 / 4 * d + c) * 4 + t % 4] >> (t < 8 ? 0 : 4) & 15);
                acc[c] = __builtin_fmaf((float)dot, b, acc[c]) + base;
            }
        }
    }
}

void plp_fill_ref_sealed(plp_kernels *k)
{
    k->kv_seal_q8 = kv_seal_q8;
    k->kv_seal_q4 = kv_seal_q4;
    k->attn_q8 = attn_q8;
    k->attn_q4 = attn_q4;
}
