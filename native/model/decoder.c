/*
 * model/decoder.c - decoders: attention and feed-forward in turn, each added to the residual stream
 *
 *   x = embed(ids) * embed_scale
 *   per layer   x += residual_scale * post(Wo attention(rope(norm(Wq n)), rope(norm(Wk n)), Wv n)),  n = pre(x)
 *               x += residual_scale * post(Wdown (act(Wgate n) * Wup n)),                            n = pre(x)
 *   logits = Wout norm(x)
 *
 * A layer with a running state has that in attention's place (recurrent.c).
 * pre, post, the norms of q and k, biases, positions: each is there if the layer has it. A step of a
 * plain model costs nothing for what others have.
 */
#include "model/model.h"

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

/* x += residual_scale * post(y) */
static void add_to_residual(plp_model *m, float *y, const plp_weight *post, uint32_t n)
{
    const size_t size = (size_t)n * m->n_embd;
    if (post->data)
        plp_model_norm(m, y, y, post, &(plp_weight){ 0 }, n, m->n_embd);
    if (m->residual_scale != 1)
        PLP_OPS(scale, y, m->residual_scale, size);
    PLP_OPS(add, m->x, y, size);
}

/* The same for y = w in + bias; straight into x where nothing comes between. */
static void project_to_residual(plp_model *m, const plp_weight *w, const plp_weight *bias, const plp_weight *post,
                                const float *in, uint32_t n)
{
    const bool direct = !post->data && m->residual_scale == 1;
    PLP_OPS(linear, &(plp_product){ w, bias->data, direct ? m->x : m->y, m->n_embd, .add = direct }, 1, in, w->k, n);
    if (!direct)
        add_to_residual(m, m->y, post, n);
}

/* Norm of q or k, in place: per head, or over the whole projection. */
static void head_norm(plp_model *m, float *x, const plp_weight *w, uint32_t n_heads, uint32_t n)
{
    const uint32_t width = w->k, rows = n * (n_heads * m->head_dim / width);
    if (w->data)
        PLP_OPS(rmsnorm, x, x, width, w->data, rows, width, m->eps);
}

static void attention(plp_model *m, const plp_layer *y, const plp_batch *batch)
{
    const uint32_t n = batch->n_tok, d = m->n_embd, nq = m->n_heads * m->head_dim, nkv = m->n_kv_heads * m->head_dim;
    const plp_attention a = { .group = y->group, .layer = y->index, .n_heads = m->n_heads, .n_kv_heads = m->n_kv_heads,
                              .head_dim = m->head_dim, .block_len = m->block_len, .kv_format = m->kv_format,
                              .window = m->group[y->group].window, .scale = m->attn_scale, .softcap = m->attn_softcap,
                              .sinks = y->sinks.data };
    const bool gated = m->arch->gated_attention;

    const float *in = plp_model_pre_norm(m, &y->attn_norm, &y->attn_norm_b, n);
    PLP_OPS(linear, (plp_product[]){ { &y->wq, y->bq.data, gated ? m->qg : m->q, y->wq.rows }, { &y->wk, y->bk.data, m->k, nkv },
                                     { &y->wv, y->bv.data, m->v, nkv } }, 3, in, d, n);
    if (gated) {
        PLP_OPS(gather, m->q, m->qg, m->head_dim, m->every_other, n * m->n_heads);
        PLP_OPS(gather, m->qgate, m->qg, m->head_dim, m->every_other + m->max_tokens * m->n_heads, n * m->n_heads);
    }
    if (m->arch->qk_norm) {
        head_norm(m, m->q, &y->q_norm, m->n_heads, n);
        head_norm(m, m->k, &y->k_norm, m->n_kv_heads, n);
    }
    if (y->rope != PLP_NO_ROPE) {
        const plp_rope *r = &m->rope[y->rope];
        PLP_OPS(rope, m->q, nq, m->n_heads, m->head_dim, r->n_rot, m->cs[y->rope], r->kind, n);
        PLP_OPS(rope, m->k, nkv, m->n_kv_heads, m->head_dim, r->n_rot, m->cs[y->rope], r->kind, n);
    }
    PLP_OPS(kv_store, &a, batch, m->k, m->v, nkv);
    PLP_OPS(attention, &a, batch, m->q, nq, m->attn, nq);
    if (gated)
        PLP_OPS(glu, m->attn, m->qgate, m->attn, nq, n, nq, PLP_ACT_SIGMOID);
    project_to_residual(m, &y->wo, &y->bo, &y->attn_post_norm, m->attn, n);
}

static void feed_forward(plp_model *m, const plp_layer *y, uint32_t n)
{
    const uint32_t d = m->n_embd, ff = m->n_ff;
    const float *in = plp_model_pre_norm(m, &y->ffn_norm, &y->ffn_norm_b, n);

    if (y->experts) {
        plp_experts_run(m, y, in, m->y, n);
        add_to_residual(m, m->y, &y->ffn_post_norm, n);
        return;
    }
    if (m->arch->plain_mlp) {
        PLP_OPS(linear, &(plp_product){ &y->w_up, y->b_up.data, m->gate, ff }, 1, in, d, n);
        PLP_OPS(glu, m->gate, m->gate, NULL, ff, n, ff, m->arch->act);
    } else {
        PLP_OPS(linear, (plp_product[]){ { &y->w_gate, y->b_gate.data, m->gate, ff }, { &y->w_up, y->b_up.data, m->up, ff } },
                2, in, d, n);
        PLP_OPS(glu, m->gate, m->gate, m->up, ff, n, ff, m->arch->act);
    }
    project_to_residual(m, &y->w_down, &y->b_down, &y->ffn_post_norm, m->gate, n);
}

void plp_forward_decoder(plp_model *m, const plp_batch *batch)
{
    const uint32_t n = batch->n_tok;

    for (uint32_t i = 0; i < m->n_ropes; i++) {
        plp_rope_table(&m->rope[i], batch->pos, n, m->cs_host);
        PLP_OPS(upload, m->cs[i], m->cs_host, (size_t)n * m->rope[i].n_rot * sizeof *m->cs_host);
    }
    PLP_OPS(embed, &m->embed, batch->ids, n, m->embed_scale, m->x);
    for (uint32_t i = 0; i < m->n_layers; i++) {
        if (m->layers[i].attends)
            attention(m, &m->layers[i], batch);
        else
            plp_recurrent_run(m, &m->layers[i], batch);
        feed_forward(m, &m->layers[i], n);
    }
    plp_model_logits(m, batch);
}
