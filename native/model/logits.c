/* model/logits.c - from hidden states to logits: final norm, output matrix, scale, soft cap */
#include "model/model.h"

/* A few rows at a time: logits are wide (0.5 MB a row for 128k tokens). xn is free by now. */
void plp_model_logits(plp_model *m, const plp_batch *batch)
{
    const size_t bytes = m->n_vocab * sizeof(float);

    for (uint32_t i = 0; i < batch->n_out; i += PLP_LOGIT_ROWS) {
        const uint32_t n = batch->n_out - i < PLP_LOGIT_ROWS ? batch->n_out - i : PLP_LOGIT_ROWS;
        PLP_OPS(gather, m->xn, m->x, m->n_embd, batch->out_rows + i, n);
        plp_model_norm(m, m->xn, m->xn, &m->output_norm, &m->output_norm_b, n, m->n_embd);
        PLP_OPS(linear, &(plp_product){ &m->output, m->output_b.data, m->logits, m->n_vocab }, 1, m->xn, m->n_embd, n);
        if (m->logit_scale != 1)
            PLP_OPS(scale, m->logits, m->logit_scale, (size_t)n * m->n_vocab);
        if (m->logit_softcap > 0)
            PLP_OPS(softcap, m->logits, m->logit_softcap, (size_t)n * m->n_vocab);
        for (uint32_t t = 0; t < n; t++)
            PLP_OPS(download, batch->out[i + t], m->logits + (size_t)t * m->n_vocab, bytes);
    }
}
