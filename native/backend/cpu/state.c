/*
 * backend/cpu/state.c - layers whose past is a running state, kept in blocks like keys and values
 *
 * A piece is (sequence, run of channels) or (sequence, head): these are independent, and within one the
 * tokens come in order, so neither threads nor chunks change a bit.
 */
#include "backend/cpu/cpu.h"
#include "kernels/ref/math.h"

#include <math.h>
#include <string.h>

enum { CHANNELS = 128 };            /* of a piece of a convolution: its past fits in L1 */

/* The state in block i of the sequence's table. */
static float *state_in(const plp_state *s, const plp_seq *seq, uint32_t i)
{
    return (float *)((char *)seq->sealed[s->group][i] + s->layer * s->bytes + s->at);
}

/* The state that the sequence goes on from; NULL: it begins. */
static const float *state_before(const plp_state *s, const plp_seq *seq)
{
    return seq->pos0 ? state_in(s, seq, (seq->pos0 - 1) / s->block_len) : NULL;
}

/* ---- short convolutions ---- */

typedef struct conv_job {
    plp_cpu         *c;
    const plp_state *s;
    const plp_batch *batch;
    const float     *x, *w;
    float           *y;
    uint32_t         len, width;
    bool             gated;
} conv_job;

static void convolve(const conv_job *j, const plp_seq *seq, uint32_t c0, uint32_t n)
{
    const float *before = state_before(j->s, seq);
    const uint32_t n_past = j->len - 1;
    float past[PLP_MAX_CONV][CHANNELS];

    for (uint32_t k = 0; k < n_past; k++) {
        if (before)
            memcpy(past[k], before + (size_t)k * j->width + c0, n * sizeof **past);
        else
            memset(past[k], 0, n * sizeof **past);
    }
    for (uint32_t t = 0; t < seq->n_tok; t++) {
        const float *x = j->x + (size_t)(seq->row0 + t) * (j->gated ? 3 : 1) * j->width + c0, *c = x + j->width, *u = c + j->width;
        float *y = j->y + (size_t)(seq->row0 + t) * j->width + c0;
        const uint32_t pos = seq->pos0 + t;

        for (uint32_t i = 0; i < n; i++) {
            const float *w = j->w + (size_t)(c0 + i) * j->len;
            float sum = 0;
            past[n_past][i] = j->gated ? x[i] * u[i] : x[i];
            for (uint32_t k = 0; k < j->len; k++)
                sum += w[k] * past[k][i];
            y[i] = j->gated ? c[i] * sum : sum;
        }
        for (uint32_t k = 0; k < n_past; k++)
            memcpy(past[k], past[k + 1], n * sizeof **past);
        if ((pos + 1) % j->s->block_len == 0 || t + 1 == seq->n_tok)
            for (uint32_t k = 0; k < n_past; k++)
                memcpy(state_in(j->s, seq, pos / j->s->block_len) + (size_t)k * j->width + c0, past[k], n * sizeof **past);
    }
}

static void convolve_pieces(void *arg, uint32_t id, uint32_t n_threads)
{
    const conv_job *j = arg;
    const uint32_t a_seq = (j->width + CHANNELS - 1) / CHANNELS;

    for (uint32_t piece; (piece = plp_team_next(j->c->team)) < a_seq * j->batch->n_seq; ) {
        const uint32_t c0 = piece % a_seq * CHANNELS, n = j->width - c0 < CHANNELS ? j->width - c0 : CHANNELS;
        convolve(j, &j->batch->seq[piece / a_seq], c0, n);
    }
}

void plp_cpu_short_conv(plp_backend *b, const plp_state *s, const plp_batch *batch, const float *x, bool gated, const plp_weight *w, float *y)
{
    plp_cpu *c = (plp_cpu *)b;
    conv_job j = { .c = c, .s = s, .batch = batch, .x = x, .gated = gated, .w = w->data, .y = y, .len = w->k, .width = w->rows };

    if ((uint64_t)batch->n_tok * j.width < PLP_ALONE_ELEMENTS)
        plp_team_run_alone(c->team, convolve_pieces, &j);
    else
        plp_team_run(c->team, convolve_pieces, &j);
}

/* ---- gated delta nets ---- */

typedef struct delta_job {
    plp_cpu         *c;
    const plp_state *s;
    const plp_batch *batch;
    const plp_delta *d;
    const float     *qkv, *alpha, *beta;
    float           *y;
} delta_job;

#define PLP_UNIT_EPS 1e-6f          /* added to the square of a length */

/* y = x / length(x) * a */
static void unit(const plp_kernels *k, float *y, const float *x, uint32_t n, float a)
{
    k->rmsnorm(y, x, NULL, n, PLP_UNIT_EPS / (float)n);
    k->scale(y, a / sqrtf((float)n), n);
}

/* In double precision: libraries differ in their float functions. */
static float softplus(float x) { return x > 20 ? x : (float)log1p(exp((double)x)); }

static void run_head(const delta_job *j, const plp_seq *seq, uint32_t head)
{
    const plp_delta *d = j->d;
    const plp_kernels *kernels = j->c->k;
    const uint32_t n = d->head_dim, len = j->s->block_len, k_head = head % d->n_k_heads;
    const size_t width = ((size_t)2 * d->n_k_heads + d->n_v_heads) * n, offset = (size_t)head * n * n, bytes = (size_t)n * n * sizeof(float);
    const float *before = state_before(j->s, seq);
    float q[PLP_MAX_DELTA_DIM], k[PLP_MAX_DELTA_DIM], *state = NULL;

    for (uint32_t t = 0; t < seq->n_tok; t++) {
        const uint32_t pos = seq->pos0 + t;
        const size_t row = seq->row0 + t, at = row * d->n_v_heads + head;
        const float *x = j->qkv + row * width;

        if (t == 0 || pos % len == 0) {         /* the state lives in the block that it is stored in */
            const float *from = state ? state : before ? before + offset : NULL;
            state = state_in(j->s, seq, pos / len) + offset;
            if (!from)
                memset(state, 0, bytes);
            else if (from != state)
                memcpy(state, from, bytes);
        }
        unit(kernels, q, x + (size_t)k_head * n, n, 1 / sqrtf((float)n));
        unit(kernels, k, x + ((size_t)d->n_k_heads + k_head) * n, n, 1);
        kernels->delta_rule(state, q, k, x + ((size_t)2 * d->n_k_heads + head) * n, plp_exp(d->a[head] * softplus(j->alpha[at] + d->dt[head])),
                            1 / (1 + plp_exp(-j->beta[at])), j->y + at * n, n);
    }
}

static void delta_pieces(void *arg, uint32_t id, uint32_t n_threads)
{
    const delta_job *j = arg;
    const uint32_t n_heads = j->d->n_v_heads;

    for (uint32_t piece; (piece = plp_team_next(j->c->team)) < n_heads * j->batch->n_seq; )
        run_head(j, &j->batch->seq[piece / n_heads], piece % n_heads);
}

void plp_cpu_delta_rule(plp_backend *b, const plp_state *s, const plp_batch *batch, const plp_delta *d, const float *qkv,
                        const float *alpha, const float *beta, float *y)
{
    plp_cpu *c = (plp_cpu *)b;
    delta_job j = { .c = c, .s = s, .batch = batch, .d = d, .qkv = qkv, .alpha = alpha, .beta = beta, .y = y };

    if ((uint64_t)batch->n_tok * d->n_v_heads * d->head_dim * d->head_dim < PLP_ALONE_ELEMENTS)
        plp_team_run_alone(c->team, delta_pieces, &j);
    else
        plp_team_run(c->team, delta_pieces, &j);
}
