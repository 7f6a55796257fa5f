/*
 * model/decoder.c - decoders: attention and feed-forward in turn, each added to the residual stream
 *
 *   x = embed(ids) * embed_scale
 *   per layer   x += residual_scale * post(Wo attention(rope(norm(Wq n)), rope(norm(Wk n)), Wv n)),  n = pre(x)
 *               x += residual_scale * post(Wdown (act(Wgate n) * Wup n)),                            n = pre(x)
 *               x += post(Wproj (act(Wgate x) * input)),  input of the token and its embedding alone (Gemma 4)
 *               x *= out_scale
 *   logits = Wout norm(x)
 *
 * A layer with a running state has that in attention's place (recurrent.c). A layer that borrows keys and values
 * has Wq alone and attends to those of an earlier layer, which lie in its group's blocks already.
 * pre, post, the norms of q and k, biases, positions: each is there if the layer has it. A step of a
 * plain model costs nothing for what others have.
 */
#include "model/model.h"

#include <math.h>

void plp_model_norm(plp_model *m, float *y, const float *x, const plp_weight *w, const plp_weight *b, uint32_t n_rows, uint32_t n)
{
    if (m->arch->layer_norm)
        PLP_OPS(layernorm, y, x, n, w->data, b->data, n_rows, n, m->eps);
    else
        PLP_OPS(rmsnorm, y, x, n, w->data, n_rows, n, m->eps);
}

const float *plp_model_pre_norm(plp_model *m, const plp_weight *w, const plp_weight *b, uint32_t n)
{
    if (!w->data)
        return m->x;
    plp_model_norm(m, m->xn, m->x, w, b, n, m->n_embd);
    return m->xn;
}

void plp_model_add_to_residual(plp_model *m, float *y, const plp_weight *post, uint32_t n)
{
    const size_t size = (size_t)n * m->n_embd;
    if (post->data)
        plp_model_norm(m, y, y, post, &(plp_weight){ 0 }, n, m->n_embd);
    if (m->residual_scale != 1)
        PLP_OPS(scale, y, m->residual_scale, size);
    PLP_OPS(add, m->x, y, size);
}

/* Straight into x where nothing comes between. */
void plp_model_project_to_residual(plp_model *m, const plp_weight *w, const plp_weight *bias, const plp_weight *post,
                                   const float *in, uint32_t n)
{
    const bool direct = !post->data && m->residual_scale == 1;
    PLP_OPS(linear, &(plp_product){ w, bias->data, direct ? m->x : m->y, m->n_embd, .add = direct }, 1, in, w->k, n);
    if (!direct)
        plp_model_add_to_residual(m, m->y, post, n);
}

/* Norm of q or k, in place: per head, or over the whole projection. */
static void head_norm(plp_model *m, float *x, const plp_weight *w, uint32_t n_values, uint32_t n)
{
    if (w->data)
        PLP_OPS(rmsnorm, x, x, w->k, w->data, n * (n_values / w->k), w->k, m->eps);
}

void plp_model_attend(plp_model *m, const plp_layer *y, const plp_batch *batch, const float *in)
{
    const plp_group *g = &m->group[y->group];
    const uint32_t n = batch->n_tok, d = m->n_embd, dim = g->head_dim, nq = m->n_heads * dim, nkv = g->n_kv_heads * dim;
    const plp_attention a = { .group = y->group, .layer = y->index, .n_heads = m->n_heads, .n_kv_heads = g->n_kv_heads,
                              .head_dim = dim, .block_len = m->block_len, .kv_format = m->kv_format, .window = g->window,
                              .scale = m->attn_scale, .softcap = m->attn_softcap, .sinks = y->sinks.data };
    const plp_rope *r = y->rope == PLP_NO_ROPE ? NULL : &m->rope[y->rope];
    const bool gated = m->arch->gated_attention;

    PLP_OPS(linear, (plp_product[]){ { &y->wq, y->bq.data, gated ? m->qg : m->q, y->wq.rows }, { &y->wk, y->bk.data, m->k, nkv },
                                     { &y->wv, y->bv.data, m->v, nkv } }, y->borrows ? 1 : y->wv.data ? 3 : 2, in, d, n);
    if (gated) {
        PLP_OPS(gather, m->q, m->qg, dim, m->every_other, n * m->n_heads);
        PLP_OPS(gather, m->qgate, m->qg, dim, m->every_other + m->max_tokens * m->n_heads, n * m->n_heads);
    }
    head_norm(m, m->q, &y->q_norm, nq, n);
    if (r)
        PLP_OPS(rope, m->q, nq, m->n_heads, dim, r->n_rot, m->cs[y->rope], r->kind, n);
    if (!y->borrows) {
        if (!y->wv.data)
            PLP_OPS(copy_block, m->v, m->k, (size_t)n * nkv * sizeof *m->v);
        if (m->arch->value_norm)
            PLP_OPS(rmsnorm, m->v, m->v, dim, NULL, n * g->n_kv_heads, dim, m->eps);
        head_norm(m, m->k, &y->k_norm, nkv, n);
        if (r)
            PLP_OPS(rope, m->k, nkv, g->n_kv_heads, dim, r->n_rot, m->cs[y->rope], r->kind, n);
        PLP_OPS(kv_store, &a, batch, m->k, m->v, nkv);
    }
    PLP_OPS(attention, &a, batch, m->q, nq, m->attn, nq);
    if (gated)
        PLP_OPS(glu, m->attn, m->qgate, m->attn, nq, n, nq, PLP_ACT_SIGMOID);
}

static void attention(plp_model *m, const plp_layer *y, const plp_batch *batch)
{
    plp_model_attend(m, y, batch, plp_model_pre_norm(m, &y->attn_norm, &y->attn_norm_b, batch->n_tok));
    plp_model_project_to_residual(m, &y->wo, &y->bo, &y->attn_post_norm, m->attn, batch->n_tok);
}

/* y = post(y) + post(mixture(pre(x))): experts beside a dense feed-forward, which the router chooses by x itself */
static void add_mixture(plp_model *m, const plp_layer *y, uint32_t n)
{
    const uint32_t d = m->n_embd;
    const plp_weight none = { 0 };

    plp_model_norm(m, m->y, m->y, &y->mlp_post_norm, &none, n, d);
    plp_model_norm(m, m->expert_x, m->x, &y->router_norm, &none, n, d);
    PLP_OPS(scale, m->expert_x, 1 / sqrtf((float)d), (size_t)n * d);
    plp_model_norm(m, m->xn, m->x, &y->experts_norm, &none, n, d);
    plp_experts_run(m, y, m->xn, m->expert_x, m->mixture, n);
    plp_model_norm(m, m->mixture, m->mixture, &y->experts_post_norm, &none, n, d);
    PLP_OPS(add, m->y, m->mixture, (size_t)n * d);
}

void plp_model_feed_forward(plp_model *m, const plp_layer *y, uint32_t n)
{
    const uint32_t d = m->n_embd, ff = y->n_ff;
    const float *in = plp_model_pre_norm(m, &y->ffn_norm, &y->ffn_norm_b, n);

    if (y->experts && !y->w_up.data) {
        plp_experts_run(m, y, in, in, m->y, n);
        plp_model_add_to_residual(m, m->y, &y->ffn_post_norm, n);
        return;
    }
    if (m->arch->plain_mlp) {
        PLP_OPS(linear, &(plp_product){ &y->w_up, y->b_up.data, m->gate, ff }, 1, in, d, n);
        PLP_OPS(glu, m->gate, m->gate, NULL, ff, n, ff, m->arch->act);
    } else {
        PLP_OPS(linear, (plp_product[]){ { &y->w_gate, y->b_gate.data, m->gate, ff }, { &y->w_up, y->b_up.data, m->up, ff } },
                2, in, d, n);
        if (y->sparse)
            PLP_OPS(keep_largest, m->gate, n, ff, y->spread);
        PLP_OPS(glu, m->gate, m->gate, m->up, ff, n, ff, m->arch->act);
    }
    if (y->experts) {
        PLP_OPS(linear, &(plp_product){ &y->w_down, y->b_down.data, m->y, d }, 1, m->gate, ff, n);
        add_mixture(m, y, n);
        plp_model_add_to_residual(m, m->y, &y->ffn_post_norm, n);
        return;
    }
    plp_model_project_to_residual(m, &y->w_down, &y->b_down, &y->ffn_post_norm, m->gate, n);
}

/* A row of a table, and a projection of the embedding. */
void plp_model_layer_inputs(plp_model *m, const plp_batch *batch)
{
    const uint32_t n = batch->n_tok, p = m->n_embd_layer, all = m->n_layers * p;

    PLP_OPS(embed, &m->layer_embed, batch->ids, n, sqrtf((float)p), m->inputs);
    PLP_OPS(linear, &(plp_product){ &m->layer_proj, NULL, m->inputs_x, all }, 1, m->x, m->n_embd, n);
    PLP_OPS(scale, m->inputs_x, 1 / sqrtf((float)m->n_embd), (size_t)n * all);
    PLP_OPS(rmsnorm, m->inputs_x, m->inputs_x, p, m->layer_proj_norm.data, n * m->n_layers, p, m->eps);
    PLP_OPS(add, m->inputs, m->inputs_x, (size_t)n * all);
    PLP_OPS(scale, m->inputs, sqrtf(0.5f), (size_t)n * all);
}

void plp_model_gate_input(plp_model *m, const plp_layer *y, uint32_t layer, const float *from, uint32_t n)
{
    const uint32_t p = m->n_embd_layer;

    for (uint32_t t = 0; t < n; t++)
        m->input_rows[t] = (int32_t)(t * m->n_layers + layer);
    PLP_OPS(gather, m->input, m->inputs, p, m->input_rows, n);
    PLP_OPS(linear, &(plp_product){ &y->input_gate, NULL, m->inputs_x, p }, 1, from, m->n_embd, n);
    PLP_OPS(glu, m->input, m->inputs_x, m->input, p, n, p, m->arch->act);
    PLP_OPS(linear, &(plp_product){ &y->input_proj, NULL, m->y, m->n_embd }, 1, m->input, p, n);
    plp_model_norm(m, m->y, m->y, &y->input_post_norm, &(plp_weight){ 0 }, n, m->n_embd);
}

void plp_model_rotate(plp_model *m, const plp_batch *batch)
{
    for (uint32_t i = 0; i < m->n_ropes; i++) {
        plp_rope_table(&m->rope[i], batch->pos, batch->n_tok, m->cs_host);
        PLP_OPS(upload, m->cs[i], m->cs_host, (size_t)batch->n_tok * m->rope[i].n_rot * sizeof *m->cs_host);
    }
}

void plp_forward_decoder(plp_model *m, const plp_batch *batch)
{
    const uint32_t n = batch->n_tok;

    plp_model_rotate(m, batch);
    PLP_OPS(embed, &m->embed, batch->ids, n, m->embed_scale, m->x);
    if (m->n_embd_layer)
        plp_model_layer_inputs(m, batch);
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const plp_layer *y = &m->layers[i];
        if (y->attends)
            attention(m, y, batch);
        else
            plp_recurrent_run(m, y, batch);
        plp_model_feed_forward(m, y, n);
        if (m->n_embd_layer) {
            plp_model_gate_input(m, y, i, m->x, n);
            PLP_OPS(add, m->x, m->y, (size_t)n * m->n_embd);
        }
        if (y->out_scale)
            PLP_OPS(scale, m->x, *y->out_scale, (size_t)n * m->n_embd);
    }
    plp_model_logits(m, batch);
}
