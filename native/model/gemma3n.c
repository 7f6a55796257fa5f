/*
 * model/gemma3n.c - Gemma 3n: several residual streams, of which each layer computes one and corrects all
 *
 *   h[0] = embed(ids) * embed_scale;  h[i] = Win[i] h[0], as large as h[0]
 *   per layer   p[j] = h[j] + sum over i of predict(p)[j][i] * h[i],                predict of h[active]
 *               n = norm(x),  x = p[active]
 *               x = (x + post(Wo attention(n)) + n + norm(Wr Wl n)) / sqrt(2)
 *               x += post(feed-forward(norm(x)))
 *               h[i] = p[i] + (correct(x)[i] + 1) * (x - p[active])
 *               h[i] += gate_input(scale * h[active]),  i > 0
 *   x = mean of h[0] and Wout[i] h[i], as large as h[0]
 *
 * predict and correct are small matrices on m = tanh(Wrouter norm(.) / n_embd), one number a stream. Numbers a
 * token are the host's, like a router's choice: a stream is mixed by scatter_add, row by row.
 * Source   AltUp (Baykal et al. 2023, arXiv 2301.13310), LAuReL (Menghani et al. 2024, arXiv 2411.07501)
 */
#include "model/model.h"
#include "base/mem.h"
#include "kernels/ref/math.h"

#include <math.h>

typedef struct plp_mixing {
    float   *modes, *coefs;                 /* the host's side of the model's */
    float   *factor, *minus_one;            /* [max_tokens] */
    int32_t *each;                          /* [max_tokens]: 0, 1, 2 .. */
} plp_mixing;

plp_status plp_streams_open(plp_model *m, plp_error *err)
{
    const size_t n = m->max_tokens, s = m->n_streams, d = m->n_embd;
    plp_mixing *x = m->mixing = plp_zalloc(PLP_MEM_SCRATCH, 1, sizeof *x);
    const plp_room rooms[] = {
        { &m->streams, s * n * d }, { &m->predicted, s * n * d }, { &m->laurel, n * d }, { &m->modes, n * s }, { &m->coefs, n * s * s },
    };

    if (!x || !(x->modes = plp_alloc(PLP_MEM_SCRATCH, n * s, sizeof *x->modes)) ||
        !(x->coefs = plp_alloc(PLP_MEM_SCRATCH, n * s * s, sizeof *x->coefs)) ||
        !(x->factor = plp_alloc(PLP_MEM_SCRATCH, n, sizeof *x->factor)) ||
        !(x->minus_one = plp_alloc(PLP_MEM_SCRATCH, n, sizeof *x->minus_one)) ||
        !(x->each = plp_alloc(PLP_MEM_SCRATCH, n, sizeof *x->each)))
        return plp_fail(err, PLP_E_NOMEM, "model: no memory to mix streams of %zu tokens", n);
    for (size_t i = 0; i < n; i++) {
        x->each[i] = (int32_t)i;
        x->minus_one[i] = -1;
    }
    return plp_rooms_make(m, rooms, sizeof rooms / sizeof *rooms, err);
}

void plp_streams_close(plp_model *m)
{
    plp_mixing *x = m->mixing;
    if (!x)
        return;
    plp_free(x->modes);
    plp_free(x->coefs);
    plp_free(x->factor);
    plp_free(x->minus_one);
    plp_free(x->each);
    plp_free(x);
}

static float *stream(const plp_model *m, float *all, uint32_t i) { return all + (size_t)i * m->max_tokens * m->n_embd; }

static void copy(plp_model *m, float *to, const float *from, uint32_t n)
{
    PLP_OPS(copy_block, to, from, (size_t)n * m->n_embd * sizeof *to);
}

/* The host's coefs = w m, m = tanh(Wrouter norm(x) / n_embd); xn is used up. */
static void read_coefs(plp_model *m, const plp_layer *y, const plp_weight *w, const float *x, uint32_t n)
{
    plp_mixing *mix = m->mixing;
    const size_t n_modes = (size_t)n * m->n_streams;

    plp_model_norm(m, m->xn, x, &y->stream_router_norm, &(plp_weight){ 0 }, n, m->n_embd);
    PLP_OPS(scale, m->xn, 1 / (float)m->n_embd, (size_t)n * m->n_embd);
    PLP_OPS(linear, &(plp_product){ &y->stream_router, NULL, m->modes, m->n_streams }, 1, m->xn, m->n_embd, n);
    PLP_OPS(download, mix->modes, m->modes, n_modes * sizeof *mix->modes);
    for (size_t i = 0; i < n_modes; i++)
        mix->modes[i] = plp_tanh(mix->modes[i]);
    PLP_OPS(upload, m->modes, mix->modes, n_modes * sizeof *mix->modes);
    PLP_OPS(linear, &(plp_product){ w, NULL, m->coefs, w->rows }, 1, m->modes, m->n_streams, n);
    PLP_OPS(download, mix->coefs, m->coefs, (size_t)n * w->rows * sizeof *mix->coefs);
}

/* to += (coef + more) * x, coef the `at`-th of each token's `of` */
static void mix_in(plp_model *m, float *to, const float *x, uint32_t at, uint32_t of, float more, uint32_t n)
{
    plp_mixing *mix = m->mixing;

    for (uint32_t t = 0; t < n; t++)
        mix->factor[t] = mix->coefs[(size_t)t * of + at] + more;
    PLP_OPS(scatter_add, to, x, m->n_embd, mix->each, mix->factor, n);
}

static void predict(plp_model *m, const plp_layer *y, uint32_t n)
{
    const uint32_t s = m->n_streams;

    read_coefs(m, y, &y->predict, stream(m, m->streams, m->active_stream), n);
    for (uint32_t j = 0; j < s; j++) {
        copy(m, stream(m, m->predicted, j), stream(m, m->streams, j), n);
        for (uint32_t i = 0; i < s; i++)
            mix_in(m, stream(m, m->predicted, j), stream(m, m->streams, i), j * s + i, s * s, 0, n);
    }
}

static void correct(plp_model *m, const plp_layer *y, uint32_t n)
{
    plp_mixing *mix = m->mixing;

    read_coefs(m, y, &y->correct, m->x, n);
    PLP_OPS(scatter_add, m->x, stream(m, m->predicted, m->active_stream), m->n_embd, mix->each, mix->minus_one, n);
    for (uint32_t i = 0; i < m->n_streams; i++) {
        copy(m, stream(m, m->streams, i), stream(m, m->predicted, i), n);
        mix_in(m, stream(m, m->streams, i), m->x, i, m->n_streams, 1, n);
    }
}

/* laurel = n + norm(Wr Wl n), n in xn */
static void low_rank(plp_model *m, const plp_layer *y, uint32_t n)
{
    const uint32_t d = m->n_embd, rank = y->laurel_l.rows;

    PLP_OPS(linear, &(plp_product){ &y->laurel_l, NULL, m->gate, rank }, 1, m->xn, d, n);
    PLP_OPS(linear, &(plp_product){ &y->laurel_r, NULL, m->laurel, d }, 1, m->gate, rank, n);
    plp_model_norm(m, m->laurel, m->laurel, &y->laurel_norm, &(plp_weight){ 0 }, n, d);
    PLP_OPS(add, m->laurel, m->xn, (size_t)n * d);
}

static void run_layer(plp_model *m, uint32_t layer, const plp_batch *batch)
{
    const plp_layer *y = &m->layers[layer];
    const uint32_t n = batch->n_tok;
    const size_t size = (size_t)n * m->n_embd;

    predict(m, y, n);
    copy(m, m->x, stream(m, m->predicted, m->active_stream), n);
    const float *in = plp_model_pre_norm(m, &y->attn_norm, &y->attn_norm_b, n);
    low_rank(m, y, n);
    plp_model_attend(m, y, batch, in);
    plp_model_project_to_residual(m, &y->wo, &y->bo, &y->attn_post_norm, m->attn, n);
    PLP_OPS(add, m->x, m->laurel, size);
    PLP_OPS(scale, m->x, sqrtf(0.5f), size);
    plp_model_feed_forward(m, y, n);
    correct(m, y, n);
    PLP_OPS(weigh, m->xn, stream(m, m->streams, m->active_stream), y->correct_scale.data, n, m->n_embd);
    plp_model_gate_input(m, y, layer, m->xn, n);
    for (uint32_t i = 1; i < m->n_streams; i++)
        PLP_OPS(add, stream(m, m->streams, i), m->y, size);
}

void plp_forward_gemma3n(plp_model *m, const plp_batch *batch)
{
    const uint32_t n = batch->n_tok, d = m->n_embd;
    float *first = m->streams;

    plp_model_rotate(m, batch);
    PLP_OPS(embed, &m->embed, batch->ids, n, m->embed_scale, m->x);
    plp_model_layer_inputs(m, batch);
    copy(m, first, m->x, n);
    for (uint32_t i = 1; i < m->n_streams; i++) {
        PLP_OPS(linear, &(plp_product){ &m->stream_in[i - 1], NULL, stream(m, m->streams, i), d }, 1, first, d, n);
        PLP_OPS(match_size, stream(m, m->streams, i), first, n, d);
    }
    for (uint32_t i = 0; i < m->n_layers; i++)
        run_layer(m, i, batch);
    copy(m, m->x, first, n);
    for (uint32_t i = 1; i < m->n_streams; i++) {
        PLP_OPS(linear, &(plp_product){ &m->stream_out[i - 1], NULL, m->y, d }, 1, stream(m, m->streams, i), d, n);
        PLP_OPS(match_size, m->y, first, n, d);
        PLP_OPS(add, m->x, m->y, (size_t)n * d);
    }
    PLP_OPS(scale, m->x, 1 / (float)m->n_streams, (size_t)n * d);
    plp_model_logits(m, batch);
}
