/*
 * model/recurrent.c - what layers with a running state have in attention's place
 *
 *   short convolution   x += Wout (c * conv(b * u)),  b, c, u the thirds of Win n
 *   gated delta net     x += Wout (silu(Wz n) * norm(rule(q, k, v, alpha, beta))),  q, k, v of silu(conv(Win n)),
 *                       alpha = Walpha n, beta = Wbeta n; the state holds the convolution's inputs, then the rule's
 */
#include "model/model.h"

static void short_convolution(plp_model *m, const plp_layer *y, const plp_state *s, const plp_batch *batch, const float *in)
{
    const uint32_t n = batch->n_tok, d = m->n_embd;

    PLP_OPS(linear, &(plp_product){ &y->conv_in, NULL, m->mixed, 3 * d }, 1, in, d, n);
    PLP_OPS(short_conv, s, batch, m->mixed, true, &y->conv, m->y);
    PLP_OPS(linear, &(plp_product){ &y->conv_out, NULL, m->x, d, .add = true }, 1, m->y, d, n);
}

static void gated_delta_net(plp_model *m, const plp_layer *y, const plp_state *s, const plp_batch *batch, const float *in)
{
    const uint32_t n = batch->n_tok, d = m->n_embd, heads = m->delta.n_v_heads, values = heads * m->delta.head_dim, width = m->conv_width;
    plp_state rule = *s;
    plp_delta shape = m->delta;

    rule.at = (size_t)(m->conv_len - 1) * width * sizeof(float);
    shape.a = y->a.data;
    shape.dt = y->dt.data;
    PLP_OPS(linear, (plp_product[]){ { &y->conv_in, NULL, m->mixed, width }, { &y->z, NULL, m->z, values },
                                     { &y->alpha, NULL, m->alpha, heads }, { &y->beta, NULL, m->beta, heads } }, 4, in, d, n);
    PLP_OPS(short_conv, s, batch, m->mixed, false, &y->conv, m->convolved);
    PLP_OPS(glu, m->convolved, m->convolved, NULL, width, n, width, PLP_ACT_SILU);
    PLP_OPS(delta_rule, &rule, batch, &shape, m->convolved, m->alpha, m->beta, m->attn);
    PLP_OPS(rmsnorm, m->attn, m->attn, m->delta.head_dim, y->delta_norm.data, n * heads, m->delta.head_dim, m->eps);
    PLP_OPS(glu, m->attn, m->z, m->attn, values, n, values, PLP_ACT_SILU);
    PLP_OPS(linear, &(plp_product){ &y->conv_out, NULL, m->x, d, .add = true }, 1, m->attn, values, n);
}

void plp_recurrent_run(plp_model *m, const plp_layer *y, const plp_batch *batch)
{
    const plp_group *g = &m->group[y->group];
    const plp_state s = { .group = y->group, .layer = y->index, .block_len = g->block_len, .bytes = g->state_bytes };
    const float *in = plp_model_pre_norm(m, &y->attn_norm, &y->attn_norm_b, batch->n_tok);

    (m->delta.n_v_heads ? gated_delta_net : short_convolution)(m, y, &s, batch, in);
}
