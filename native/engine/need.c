/*
 * engine/need.c - what the KV of a model takes, told by its file's header alone
 *
 * The same code reads the shape as when the model is opened, and the same rule says what lies behind a window, so
 * that a plan is what a session will hold and not an estimate.
 */
#include "engine/engine.h"

plp_status plp_kv_shape_of(const plp_file *f, uint32_t block_len, plp_kv_shape *out, plp_error *err)
{
    plp_model *m;
    const plp_status s = plp_model_look(&m, f, block_len ? block_len : PLP_DEFAULT_BLOCK, err);

    if (s < 0)
        return s;
    *out = (plp_kv_shape){ .n_layers = m->n_layers, .context_train = m->context_train, .n_groups = m->n_groups };
    for (uint32_t g = 0; g < m->n_groups; g++) {
        const plp_group *of = &m->group[g];
        out->group[g] = (plp_kv_group){ .n_layers = of->n_layers, .window = of->window, .block_len = of->block_len, .is_state = of->state_bytes != 0 };
        for (int32_t format = PLP_KV_F16; format <= PLP_KV_Q4; format++)
            out->group[g].block_bytes[format] = plp_model_block_bytes(m, g, format);
    }
    plp_model_close(m);
    return PLP_OK;
}

uint64_t plp_kv_shape_bytes(const plp_kv_shape *s, int32_t kv_format, uint32_t n_tokens)
{
    uint64_t bytes = 0;

    if (kv_format < PLP_KV_F16 || kv_format > PLP_KV_Q4)
        return 0;
    for (uint32_t g = 0; g < s->n_groups && g < PLP_MAX_GROUPS; g++) {
        const plp_kv_group *of = &s->group[g];
        const uint32_t len = of->block_len ? of->block_len : 1;
        const uint64_t first = plp_kept_from(of->window, len, of->is_state, n_tokens) / len, whole = n_tokens / len;
        bytes += (whole - first) * of->block_bytes[kv_format] + (n_tokens % len ? of->block_bytes[PLP_KV_F16] : 0);
    }
    return bytes;
}
