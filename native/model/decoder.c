/*
 * model/decoder.c - pre-norm decoders with gated feed-forward and rotary positions: Llama and its kin
 *
 *   x = embed(ids)
 *   per layer   x += Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = rmsnorm(x)
 *               x += Wdown (silu(Wgate n) * Wup n),               n = rmsnorm(x)
 *   logits = Wout rmsnorm(x)
 */
#include "model/model.h"

#define OPS(call, ...) m->backend->ops->call(m->backend, __VA_ARGS__)

static void attention(plp_model *m, const plp_layer *y, const plp_batch *batch)
{
    const uint32_t n = batch->n_tok, d = m->n_embd, nq = m->n_heads * m->head_dim, nkv = m->n_kv_heads * m->head_dim;
    const plp_group *g = &m->group[y->group];
    const plp_attention a = { .group = y->group, .layer = y->index, .n_heads = m->n_heads, .n_kv_heads = m->n_kv_heads,
                              .head_dim = m->head_dim, .block_len = m->block_len, .kv_format = m->kv_format,
                              .window = g->window, .scale = m->attn_scale };

    OPS(rmsnorm, m->xn, m->x, d, y->attn_norm.data, n, d, m->eps);
    OPS(linear, (plp_product[]){ { &y->wq, y->bq.data, m->q, nq }, { &y->wk, y->bk.data, m->k, nkv },
                                 { &y->wv, y->bv.data, m->v, nkv } }, 3, m->xn, d, n);
    OPS(rope, m->q, nq, m->n_heads, m->head_dim, m->rope.n_rot, m->cs, m->rope.kind, n);
    OPS(rope, m->k, nkv, m->n_kv_heads, m->head_dim, m->rope.n_rot, m->cs, m->rope.kind, n);
    OPS(kv_store, &a, batch, m->k, m->v, nkv);
    OPS(attention, &a, batch, m->q, nq, m->attn, nq);
    OPS(linear, &(plp_product){ &y->wo, NULL, m->x, d, .add = true }, 1, m->attn, nq, n);
}

static void feed_forward(plp_model *m, const plp_layer *y, uint32_t n)
{
    const uint32_t d = m->n_embd, ff = m->n_ff;

    OPS(rmsnorm, m->xn, m->x, d, y->ffn_norm.data, n, d, m->eps);
    OPS(linear, (plp_product[]){ { &y->w_gate, NULL, m->gate, ff }, { &y->w_up, NULL, m->up, ff } }, 2, m->xn, d, n);
    OPS(glu, m->gate, m->gate, m->up, ff, n, ff, PLP_ACT_SILU);
    OPS(linear, &(plp_product){ &y->w_down, NULL, m->x, d, .add = true }, 1, m->gate, ff, n);
}

void plp_forward_decoder(plp_model *m, const plp_batch *batch)
{
    const uint32_t n = batch->n_tok;

    plp_rope_table(&m->rope, batch->pos, n, m->cs_host);
    OPS(upload, m->cs, m->cs_host, (size_t)n * m->rope.n_rot * sizeof *m->cs);
    OPS(embed, &m->embed, batch->ids, n, 1.0f, m->x);
    for (uint32_t i = 0; i < m->n_layers; i++) {
        attention(m, &m->layers[i], batch);
        feed_forward(m, &m->layers[i], n);
    }
    plp_model_logits(m, batch);
}
