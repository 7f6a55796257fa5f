/*
 * backend/cpu/state.c - layers whose past is a running state, kept in blocks like keys and values
 *
 * A piece is (sequence, run of channels): channels are independent, and within one the tokens come in
 * order, so neither threads nor chunks change a bit.
 */
#include "backend/cpu/cpu.h"

#include <string.h>

enum { MAX_CONV = 8, CHANNELS = 128 };

typedef struct job {
    plp_cpu         *c;
    const plp_state *s;
    const plp_batch *batch;
    const float     *bcu, *w;
    float           *y;
    uint32_t         len, width;
} job;

/* The layer's state in block i of the sequence's table. */
static float *state_in(const job *j, void *const *blocks, uint32_t i)
{
    return (float *)((char *)blocks[i] + j->s->layer * j->s->bytes);
}

static void load(const job *j, const plp_seq *seq, uint32_t c0, uint32_t n, float past[MAX_CONV][CHANNELS])
{
    const uint32_t group = j->s->group, block = seq->pos0 / j->s->block_len;
    const bool begins = seq->pos0 % j->s->block_len == 0;       /* then the state is at the end of the block before */

    for (uint32_t k = 0; k + 1 < j->len; k++) {
        if (seq->pos0 == 0) {
            memset(past[k], 0, n * sizeof **past);
            continue;
        }
        const float *from = begins ? state_in(j, seq->sealed[group], block - 1) : state_in(j, seq->open[group], block);
        memcpy(past[k], from + (size_t)k * j->width + c0, n * sizeof **past);
    }
}

static void store(const job *j, const plp_seq *seq, uint32_t pos, uint32_t c0, uint32_t n, float past[MAX_CONV][CHANNELS])
{
    const uint32_t group = j->s->group, block = pos / j->s->block_len;
    const bool ends = (pos + 1) % j->s->block_len == 0;
    float *to = state_in(j, ends ? seq->sealed[group] : seq->open[group], block);

    for (uint32_t k = 0; k + 1 < j->len; k++)
        memcpy(to + (size_t)k * j->width + c0, past[k], n * sizeof **past);
}

static void convolve(const job *j, const plp_seq *seq, uint32_t c0, uint32_t n)
{
    float past[MAX_CONV][CHANNELS];

    load(j, seq, c0, n, past);
    for (uint32_t t = 0; t < seq->n_tok; t++) {
        const float *b = j->bcu + (size_t)(seq->row0 + t) * 3 * j->width + c0, *c = b + j->width, *u = c + j->width;
        float *y = j->y + (size_t)(seq->row0 + t) * j->width + c0;
        const uint32_t pos = seq->pos0 + t;

        for (uint32_t i = 0; i < n; i++) {
            const float *w = j->w + (size_t)(c0 + i) * j->len;
            float sum = 0;
            past[j->len - 1][i] = b[i] * u[i];
            for (uint32_t k = 0; k < j->len; k++)
                sum += w[k] * past[k][i];
            y[i] = c[i] * sum;
        }
        for (uint32_t k = 0; k + 1 < j->len; k++)
            memcpy(past[k], past[k + 1], n * sizeof **past);
        if ((pos + 1) % j->s->block_len == 0 || t + 1 == seq->n_tok)
            store(j, seq, pos, c0, n, past);
    }
}

static void convolve_pieces(void *arg, uint32_t id, uint32_t n_threads)
{
    const job *j = arg;
    const uint32_t a_seq = (j->width + CHANNELS - 1) / CHANNELS;

    for (uint32_t piece; (piece = plp_team_next(j->c->team)) < a_seq * j->batch->n_seq; ) {
        const uint32_t c0 = piece % a_seq * CHANNELS, n = j->width - c0 < CHANNELS ? j->width - c0 : CHANNELS;
        convolve(j, &j->batch->seq[piece / a_seq], c0, n);
    }
}

void plp_cpu_short_conv(plp_backend *b, const plp_state *s, const plp_batch *batch, const float *bcu, const plp_weight *w, float *y)
{
    plp_cpu *c = (plp_cpu *)b;
    job j = { .c = c, .s = s, .batch = batch, .bcu = bcu, .w = w->data, .y = y, .len = w->k, .width = w->rows };

    if ((uint64_t)batch->n_tok * j.width < PLP_ALONE_ELEMENTS)
        plp_team_run_alone(c->team, convolve_pieces, &j);
    else
        plp_team_run(c->team, convolve_pieces, &j);
}
