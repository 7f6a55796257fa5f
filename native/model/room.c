/*
 * model/room.c - work space: what a pass over the largest batch writes, made once when the model opens
 *
 * Rooms in backend memory are as wide as this model needs them and absent where it does not. What the host reads or
 * writes besides lies in plain memory.
 */
#include "model/model.h"
#include "base/mem.h"

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

plp_status plp_rooms_make(plp_model *m, const plp_room *rooms, size_t n, plp_error *err)
{
    plp_status s = PLP_OK;

    for (size_t i = 0; s >= 0 && i < n; i++)
        if (rooms[i].floats)
            s = m->backend->ops->buffer(m->backend, rooms[i].floats * sizeof(float), (void **)rooms[i].p, err);
    return s;
}

/* The largest of everything, over the groups that attend. */
static plp_plan plan_of(const plp_model *m, uint32_t max_k)
{
    plp_plan plan = { .max_tokens = m->max_tokens, .max_k = max_k, .n_heads = m->n_heads, .block_len = m->block_len };

    for (uint32_t i = 0; i < m->n_groups; i++) {
        const plp_group *g = &m->group[i];
        if (g->state_bytes)
            continue;
        plan.head_dim = (uint32_t)larger(plan.head_dim, g->head_dim);
        plan.n_kv_heads = (uint32_t)larger(plan.n_kv_heads, g->n_kv_heads);
        plan.group_size = (uint32_t)larger(plan.group_size, m->n_heads / g->n_kv_heads);
    }
    return plan;
}

static size_t widest_kv(const plp_model *m)
{
    size_t width = 0;
    for (uint32_t i = 0; i < m->n_groups; i++)
        if (!m->group[i].state_bytes)
            width = larger(width, (size_t)m->group[i].n_kv_heads * m->group[i].head_dim);
    return width;
}

static plp_status make_rooms(plp_model *m, const plp_plan *plan, plp_error *err)
{
    const size_t n = m->max_tokens, d = m->n_embd, q = (size_t)m->n_heads * plan->head_dim, kv = widest_kv(m);
    const size_t ff = larger(m->n_ff, larger(m->n_ff_expert, m->n_ff_shared)), rows = n * m->n_layers * m->n_embd_layer;
    const size_t values = (size_t)m->delta.n_v_heads * m->delta.head_dim;      /* of a gated delta net */
    const size_t mixed = values ? m->conv_width : m->conv_len ? 3 * d : 0;
    const bool gated = m->arch->gated_attention;
    const plp_room rooms[] = {
        { &m->x, n * d }, { &m->xn, n * d }, { &m->y, n * d },
        { &m->q, n * q }, { &m->k, n * kv }, { &m->v, n * kv }, { &m->attn, n * larger(q, values) },
        { &m->qg, gated ? n * 2 * q : 0 }, { &m->qgate, gated ? n * q : 0 },
        { &m->gate, n * ff }, { &m->up, n * ff },
        { &m->cs[0], n * m->rope[0].n_rot }, { &m->cs[1], n * m->rope[1].n_rot },
        { &m->mixed, n * mixed }, { &m->convolved, values ? n * m->conv_width : 0 },
        { &m->z, n * values }, { &m->alpha, n * m->delta.n_v_heads }, { &m->beta, n * m->delta.n_v_heads },
        { &m->inputs, rows }, { &m->inputs_x, rows }, { &m->input, n * m->n_embd_layer },
        { &m->mixture, m->experts_beside ? n * d : 0 },
        { &m->logits, PLP_LOGIT_ROWS * (size_t)m->n_vocab },
    };
    return plp_rooms_make(m, rooms, sizeof rooms / sizeof *rooms, err);
}

/* Rows 0, 2, 4 .. of a gated projection are its queries, 1, 3, 5 .. their gates. */
static plp_status make_every_other(plp_model *m, plp_error *err)
{
    const size_t rows = (size_t)m->max_tokens * m->n_heads;

    if (!(m->every_other = plp_alloc(PLP_MEM_SCRATCH, 2 * rows, sizeof *m->every_other)))
        return plp_fail(err, PLP_E_NOMEM, "model: no memory for %zu rows", rows);
    for (size_t i = 0; i < rows; i++) {
        m->every_other[i] = (int32_t)(2 * i);
        m->every_other[rows + i] = (int32_t)(2 * i + 1);
    }
    return PLP_OK;
}

static plp_status make_host_rooms(plp_model *m, plp_error *err)
{
    const size_t n = m->max_tokens;

    if (!(m->cs_host = plp_alloc(PLP_MEM_SCRATCH, n * larger(m->rope[0].n_rot, m->rope[1].n_rot), sizeof *m->cs_host)))
        return plp_fail(err, PLP_E_NOMEM, "model: no memory for %zu positions", n);
    if (m->n_embd_layer && !(m->input_rows = plp_alloc(PLP_MEM_SCRATCH, n, sizeof *m->input_rows)))
        return plp_fail(err, PLP_E_NOMEM, "model: no memory for %zu rows", n);
    return m->arch->gated_attention ? make_every_other(m, err) : PLP_OK;
}

/* Operations that a backend may leave out, for the models that cannot do without. */
static bool backend_runs(const plp_model *m)
{
    const plp_ops *ops = m->backend->ops;
    return (!m->n_experts || ops->scatter_add) && (!m->conv_len || ops->short_conv) && (!m->delta.n_v_heads || ops->delta_rule) &&
           (!m->n_streams || (ops->weigh && ops->match_size && ops->keep_largest && ops->scatter_add));
}

plp_status plp_room_open(plp_model *m, uint32_t max_k, plp_error *err)
{
    const plp_plan plan = plan_of(m, max_k);
    plp_status s;

    if (!backend_runs(m))
        return plp_fail(err, PLP_E_UNSUPPORTED, "the %s backend does not run %s models yet; \"cpu\" does", m->backend->ops->name,
                        m->architecture);
    if ((s = make_rooms(m, &plan, err)) < 0 || (s = make_host_rooms(m, err)) < 0 ||
        (m->n_experts && (s = plp_experts_open(m, err)) < 0) || (m->n_streams && (s = plp_streams_open(m, err)) < 0))
        return s;
    return m->backend->ops->plan(m->backend, &plan, err);
}

void plp_room_close(plp_model *m)
{
    plp_experts_close(m);
    plp_streams_close(m);
    plp_free(m->cs_host);
    plp_free(m->input_rows);
    plp_free(m->every_other);
}
