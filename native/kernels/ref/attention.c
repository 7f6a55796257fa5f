/*
 * kernels/ref/attention.c - running softmax over f16 tiles, one block at a time, in plain C
 *
 * Tile     [ K [head_dim][block_len] | V [block_len][head_dim] ] of f16; block_len % 16 == 0
 * State    plp_attn: m, s, acc per query; a block only ever updates it, so that blocks may lie anywhere
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/math.h"

enum { UNIT = 16 };         /* tokens per step of the running softmax, whatever the block length */

static void kv_put(void *tile, uint32_t block_len, uint32_t slot, const float *k, const float *v, uint32_t head_dim)
{
    uint16_t *to_k = (uint16_t *)tile + slot, *to_v = (uint16_t *)tile + (size_t)(block_len + slot) * head_dim;
    for (uint32_t d = 0; d < head_dim; d++) {
        to_k[(size_t)d * block_len] = plp_f32_to_f16(k[d]);
        to_v[d] = plp_f32_to_f16(v[d]);
    }
}

/* One query over slots [lo, hi) of one unit; k points at the unit's first token. */
static void attend(const plp_attn *a, uint32_t i, const uint16_t *k, uint32_t block_len, const uint16_t *v,
                   uint32_t lo, uint32_t hi)
{
    const float *q = a->q + (size_t)i * a->head_dim;
    float *acc = a->acc + (size_t)i * a->head_dim;
    float p[UNIT], m = a->m[i];

    for (uint32_t t = 0; t < UNIT; t++) {
        p[t] = -__builtin_inff();
        if (t < lo || t >= hi) continue;
        float c0 = 0, c1 = 0;
        for (uint32_t d = 0; d < a->head_dim; d += 2) {
            c0 = __builtin_fmaf(q[d], plp_half(k[(size_t)d * block_len + t]), c0);
            c1 = __builtin_fmaf(q[d + 1], plp_half(k[(size_t)(d + 1) * block_len + t]), c1);
        }
        p[t] = c0 + c1;
        if (a->softcap > 0) p[t] = a->softcap * plp_tanh(p[t] / a->softcap);
        m = p[t] > m ? p[t] : m;
    }
    if (m > a->m[i]) {
        const float c = plp_exp(a->m[i] - m);
        a->m[i] = m;
        a->s[i] *= c;
        for (uint32_t d = 0; d < a->head_dim; d++) acc[d] *= c;
    }
    for (uint32_t t = 0; t < UNIT; t++) p[t] = plp_exp(p[t] - m);
    for (uint32_t t = lo; t < hi; t++)
        for (uint32_t d = 0; d < a->head_dim; d++)
            acc[d] = __builtin_fmaf(p[t], plp_half(v[(size_t)t * a->head_dim + d]), acc[d]);
    a->s[i] = a->s[i] + plp_fold16(p);
}

static void attn_f16(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next)
{
    const uint16_t *k = tile, *v = k + (size_t)a->head_dim * block_len;
    for (uint32_t u = 0; u < block_len; u += UNIT)
        for (uint32_t i = 0; i < a->n_q; i++) {
            const uint32_t from = seen.lo ? seen.lo[i] : 0, to = seen.hi ? seen.hi[i] : block_len;
            const uint32_t lo = from > u ? from - u : 0, hi = to < u ? 0 : to - u < UNIT ? to - u : UNIT;
            if (lo < hi) attend(a, i, k + u, block_len, v + (size_t)u * a->head_dim, lo, hi);
        }
}

/* ---- a run of blocks ------------------------------------------------------------------------ */

size_t plp_attn_in_turn_work(uint32_t n_q, uint32_t head_dim)
{
    (void)head_dim;
    return 2 * (size_t)n_q * sizeof(uint32_t);
}

void plp_attn_in_turn(plp_attend_fn *attend_block, plp_attn *a, const void *const *tiles, uint32_t block_len, plp_seen seen, void *work)
{
    uint32_t *lo = work, *hi = lo + a->n_q, end = 0;
    for (uint32_t i = 0; i < a->n_q; i++) end = seen.lo[i] < seen.hi[i] && seen.hi[i] > end ? seen.hi[i] : end;
    for (uint32_t b = 0; b * block_len < end; b++) {
        const uint32_t first = b * block_len;
        bool all = true, any = false;
        for (uint32_t i = 0; i < a->n_q; i++) {
            lo[i] = seen.lo[i] > first ? seen.lo[i] - first : 0;
            hi[i] = seen.hi[i] < first ? 0 : seen.hi[i] - first < block_len ? seen.hi[i] - first : block_len;
            if (lo[i] > hi[i]) lo[i] = hi[i];
            all &= lo[i] == 0 && hi[i] == block_len;
            any |= lo[i] < hi[i];
        }
        if (any) attend_block(a, tiles[b], block_len, all ? (plp_seen){ NULL, NULL } : (plp_seen){ lo, hi }, NULL);
    }
}

static void attn_f16_run(plp_attn *a, const void *const *tiles, uint32_t block_len, plp_seen seen, void *work)
{
    plp_attn_in_turn(attn_f16, a, tiles, block_len, seen, work);
}

static void attn_merge(plp_attn *into, const plp_attn *part)
{
    for (uint32_t i = 0; i < into->n_q; i++) {
        if (part->m[i] == -__builtin_inff()) continue;      /* it saw nothing, and inf - inf is no number */
        float *acc = into->acc + (size_t)i * into->head_dim;
        const float *from = part->acc + (size_t)i * into->head_dim;
        const float m = part->m[i] > into->m[i] ? part->m[i] : into->m[i];
        const float x = plp_exp(into->m[i] - m), y = plp_exp(part->m[i] - m);
        into->m[i] = m;
        into->s[i] = __builtin_fmaf(part->s[i], y, into->s[i] * x);
        for (uint32_t d = 0; d < into->head_dim; d++) acc[d] = __builtin_fmaf(from[d], y, acc[d] * x);
    }
}

static void attn_finish(const plp_attn *a, const float *sink, float *out, size_t ld_out)
{
    for (uint32_t i = 0; i < a->n_q; i++) {
        const float s = sink ? a->s[i] + plp_exp(sink[i] - a->m[i]) : a->s[i];
        for (uint32_t d = 0; d < a->head_dim; d++) out[i * ld_out + d] = a->acc[(size_t)i * a->head_dim + d] / s;
    }
}

void plp_fill_ref_attention(plp_kernels *k)
{
    k->kv_put = kv_put;
    k->attn_f16 = attn_f16;
    k->attn_run_work = plp_attn_in_turn_work;
    k->attn_f16_run = attn_f16_run;
    k->attn_merge = attn_merge;
    k->attn_finish = attn_finish;
}
