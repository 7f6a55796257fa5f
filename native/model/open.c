/* model/open.c - from a file to a model: its architecture's row, its positions, and how all that is in model.h comes together */
#include "model/model.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static const plp_arch archs[] = {
#define ARCH(name_, models_, since_, family_, ...) { .name = name_, .forward = plp_forward_##family_, __VA_ARGS__ },
#include "model/archs.def"
#undef ARCH
};

static void supported(char *out, size_t n)
{
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < sizeof archs / sizeof *archs && used < n; i++)
        used += (size_t)snprintf(out + used, n - used, "%s%s", i ? ", " : "", archs[i].name);
}

static plp_status find_arch(plp_model *m, plp_error *err)
{
    char list[600];
    const plp_status s = plp_meta_str(m->file, "general.architecture", "", m->architecture, sizeof m->architecture, err);
    if (s < 0)
        return s;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (!strcmp(archs[i].name, m->architecture)) {
            m->arch = &archs[i];
            return PLP_OK;
        }
    if (!m->architecture[0])
        return plp_fail(err, PLP_E_FILE, "general.architecture is missing; the file does not say what model it holds");
    supported(list, sizeof list);
    return plp_fail(err, PLP_E_UNSUPPORTED, "architecture \"%s\" is not supported; these are: %s", m->architecture, list);
}

static plp_status open_ropes(plp_model *m, uint32_t context_limit, plp_error *err)
{
    plp_rope_spec spec = { .arch = m->architecture, .head_dim = m->group[0].head_dim, .kind = m->arch->rope_kind,
                           .context_limit = context_limit ? context_limit : m->context_train, .smooth_yarn = m->arch->smooth_yarn };
    plp_status s = plp_rope_open(&m->rope[0], m->file, &spec, err);
    if (s < 0 || m->n_ropes < 2)
        return s;
    spec.unscaled = true;
    spec.head_dim = m->group[m->n_groups - 1].head_dim;
    spec.base = m->arch->local_base;
    return plp_rope_open(&m->rope[1], m->file, &spec, err);
}

plp_status plp_model_open(plp_model **out, const plp_file *f, plp_backend *b, const plp_model_options *o, plp_error *err)
{
    uint32_t max_k;
    plp_status s;
    plp_model *m = plp_zalloc(PLP_MEM_MODEL, 1, sizeof *m);

    if (!m)
        return plp_fail(err, PLP_E_NOMEM, "model: no memory");
    m->backend = b;
    m->file = f;
    m->max_tokens = o->max_tokens;
    m->block_len = o->block_len;
    m->kv_format = o->kv_format;
    if ((s = find_arch(m, err)) < 0 || (s = plp_model_read_shape(m, err)) < 0 || (s = plp_model_assign_layers(m, err)) < 0 ||
        (s = plp_model_bind(m, &max_k, err)) < 0 || (s = open_ropes(m, o->context_limit, err)) < 0 ||
        (s = plp_room_open(m, max_k, err)) < 0) {
        plp_model_close(m);
        return s;
    }
    *out = m;
    return PLP_OK;
}

plp_status plp_model_look(plp_model **out, const plp_file *f, uint32_t block_len, plp_error *err)
{
    plp_model *m = plp_zalloc(PLP_MEM_MODEL, 1, sizeof *m);
    plp_status s;

    if (!m)
        return plp_fail(err, PLP_E_NOMEM, "model: no memory");
    m->file = f;
    m->block_len = block_len;
    if ((s = find_arch(m, err)) < 0 || (s = plp_model_read_shape(m, err)) < 0 || (s = plp_model_assign_layers(m, err)) < 0) {
        plp_model_close(m);
        return s;
    }
    *out = m;
    return PLP_OK;
}

void plp_model_close(plp_model *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < 2; i++)
        plp_rope_close(&m->rope[i]);
    for (uint32_t i = 0; m->layers && i < m->n_layers; i++)
        plp_free(m->layers[i].experts);
    plp_room_close(m);
    plp_free(m->layers);
    plp_free(m);
}

void plp_model_forward(plp_model *m, const plp_batch *batch) { m->arch->forward(m, batch); }

size_t plp_model_block_bytes(const plp_model *m, uint32_t group, int32_t kv_format)
{
    const plp_group *g = &m->group[group];
    const size_t tiles = g->n_kv_heads * plp_tile_bytes(kv_format, g->head_dim, m->block_len);
    const size_t n = g->n_layers * (g->state_bytes ? g->state_bytes : tiles);
    return (n + 63) / 64 * 64;              /* the pool's alignment */
}
