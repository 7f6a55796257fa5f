/* model/open.c - from a file to a model: its architecture's row, work space, close */
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

static plp_status make_room(plp_model *m, uint32_t max_k, plp_error *err)
{
    const plp_ops *ops = m->backend->ops;
    const size_t n = m->max_tokens, p = m->n_embd_layer;
    plp_plan plan = { .max_tokens = m->max_tokens, .max_k = max_k, .n_heads = m->n_heads, .block_len = m->block_len };
    size_t nkv = 0;
    const size_t values = (size_t)m->delta.n_v_heads * m->delta.head_dim;      /* of a gated delta net */
    for (uint32_t g = 0; g < m->n_groups; g++) {
        const plp_group *of = &m->group[g];
        if (of->state_bytes)
            continue;
        const uint32_t sharing = m->n_heads / of->n_kv_heads;
        nkv = nkv < (size_t)of->n_kv_heads * of->head_dim ? (size_t)of->n_kv_heads * of->head_dim : nkv;
        plan.head_dim = plan.head_dim < of->head_dim ? of->head_dim : plan.head_dim;
        plan.n_kv_heads = plan.n_kv_heads < of->n_kv_heads ? of->n_kv_heads : plan.n_kv_heads;
        plan.group_size = plan.group_size < sharing ? sharing : plan.group_size;
    }
    const size_t nq = (size_t)m->n_heads * plan.head_dim;
    size_t ff = m->n_ff > m->n_ff_expert ? m->n_ff : m->n_ff_expert;
    if (ff < m->n_ff_shared)
        ff = m->n_ff_shared;
    const struct { float **p; size_t width; } rooms[] = {
        { &m->x, m->n_embd }, { &m->xn, m->n_embd }, { &m->y, m->n_embd }, { &m->q, nq }, { &m->k, nkv }, { &m->v, nkv },
        { &m->attn, nq > values ? nq : values }, { &m->gate, ff }, { &m->up, ff }, { &m->cs[0], m->rope[0].n_rot }, { &m->cs[1], m->rope[1].n_rot },
        { &m->mixed, values ? m->conv_width : m->conv_len ? 3 * (size_t)m->n_embd : 0 }, { &m->convolved, values ? m->conv_width : 0 },
        { &m->z, values }, { &m->alpha, m->delta.n_v_heads }, { &m->beta, m->delta.n_v_heads },
        { &m->inputs, m->n_layers * p }, { &m->inputs_x, m->n_layers * p }, { &m->input, p }, { &m->mixture, m->experts_beside ? m->n_embd : 0 },
        { &m->qg, m->arch->gated_attention ? 2 * nq : 0 }, { &m->qgate, m->arch->gated_attention ? nq : 0 },
    };
    const uint32_t widest = m->rope[0].n_rot > m->rope[1].n_rot ? m->rope[0].n_rot : m->rope[1].n_rot;
    plp_status s;

    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
        if (rooms[i].width && (s = ops->buffer(m->backend, n * rooms[i].width * sizeof(float), (void **)rooms[i].p, err)) < 0)
            return s;
    if ((s = ops->buffer(m->backend, PLP_LOGIT_ROWS * (size_t)m->n_vocab * sizeof(float), (void **)&m->logits, err)) < 0)
        return s;
    if (!(m->cs_host = plp_alloc(PLP_MEM_SCRATCH, n * widest, sizeof(float))))
        return plp_fail(err, PLP_E_NOMEM, "model: no memory for %zu positions", n);
    if (m->arch->gated_attention) {
        const size_t rows = n * m->n_heads;
        if (!(m->every_other = plp_alloc(PLP_MEM_SCRATCH, 2 * rows, sizeof *m->every_other)))
            return plp_fail(err, PLP_E_NOMEM, "model: no memory for %zu rows", rows);
        for (size_t i = 0; i < 2 * rows; i++)
            m->every_other[i] = (int32_t)(i < rows ? 2 * i : 2 * (i - rows) + 1);
    }
    if ((m->n_experts && !ops->scatter_add) || (m->conv_len && !ops->short_conv) || (m->delta.n_v_heads && !ops->delta_rule))
        return plp_fail(err, PLP_E_UNSUPPORTED, "the %s backend does not run %s models yet; \"cpu\" does", ops->name, m->architecture);
    if (m->n_experts && (s = plp_experts_open(m, err)) < 0)
        return s;
    if (m->n_streams && (s = plp_streams_open(m, err)) < 0)
        return s;
    if (p && !(m->input_rows = plp_alloc(PLP_MEM_SCRATCH, n, sizeof *m->input_rows)))
        return plp_fail(err, PLP_E_NOMEM, "model: no memory for %zu rows", n);
    return ops->plan(m->backend, &plan, err);
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
        (s = make_room(m, max_k, err)) < 0) {
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
    plp_experts_close(m);
    plp_streams_close(m);
    plp_free(m->layers);
    plp_free(m->cs_host);
    plp_free(m->every_other);
    plp_free(m->input_rows);
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
