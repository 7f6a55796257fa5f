/*
 * model/weights.c - tensors by name: every shape follows from the counts, every type is one that runs
 *
 * A missing or odd tensor is an error that names it. Optional ones stay empty (data NULL). A tensor that
 * nothing asked for is an error too: the file then holds a variant of its architecture whose results
 * would silently be wrong.
 *
 * Fused matrices and stacked experts are bound as views, each a tensor of its own to the backend.
 */
#include "model/model.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MUST, MAY };

typedef struct binder {
    plp_model   *m;
    plp_error   *err;
    uint32_t     max_k, layer;
    const char **used;                      /* [n_used]: names of tensors, as the file's own pointers */
    uint64_t     n_used, n_tensors;
} binder;

/* A tensor name: `layer` counts where the format has a %u. */
static const char *name_of(const binder *b, char *out, size_t n, const char *format)
{
    if (!strncmp(format, "blk.%u.", 7))
        snprintf(out, n, "blk.%u.%s", b->layer, format + 7);
    else
        snprintf(out, n, "%s", format);
    return out;
}

static bool present(const binder *b, const char *format)
{
    char name[96];
    return plp_file_tensor_named(b->m->file, name_of(b, name, sizeof name, format)) != NULL;
}

/* The tensor [stack][rows][k]; rows 0: a vector [k]; stack 0: a matrix. *out NULL if it may be missing and is. */
static plp_status find(binder *b, const plp_tensor **out, int need, uint32_t stack, uint32_t rows, uint32_t k, const char *format)
{
    char name[96];
    const plp_tensor *t = plp_file_tensor_named(b->m->file, name_of(b, name, sizeof name, format));

    *out = NULL;
    if (!t)
        return need == MAY ? PLP_OK : plp_fail(b->err, PLP_E_FILE, "tensor %s is missing; the file is not a whole %s model",
                                               name, b->m->architecture);
    const uint64_t want[4] = { k, rows ? rows : 1, stack ? stack : 1, 1 };
    for (int i = 0; i < 4; i++)
        if (t->dims[i] != want[i])
            return plp_fail(b->err, PLP_E_FILE, "tensor %s is [%llu, %llu, %llu, %llu]; [%llu, %llu, %llu, 1] was expected", name,
                            (unsigned long long)t->dims[0], (unsigned long long)t->dims[1], (unsigned long long)t->dims[2],
                            (unsigned long long)t->dims[3], (unsigned long long)want[0], (unsigned long long)want[1],
                            (unsigned long long)want[2]);
    const plp_type_info *type = plp_type_get(t->type);
    if (!type)
        return plp_fail(b->err, PLP_E_UNSUPPORTED, "tensor %s has type %d (%s), which is not run", name, t->type, plp_type_name(t->type));
    if (!rows && t->type != PLP_TYPE_F32)
        return plp_fail(b->err, PLP_E_UNSUPPORTED, "tensor %s is a vector of type %s; F32 is run", name, type->name);
    if (!t->data)
        return plp_fail(b->err, PLP_E_FILE, "tensor %s lies past the end of the file", name);
    if (((uintptr_t)t->data & 3) && t->type == PLP_TYPE_F32)
        return plp_fail(b->err, PLP_E_FILE, "tensor %s is not aligned to 4 bytes", name);
    if (b->n_used == b->n_tensors)          /* more than the file has: one was bound twice */
        return plp_fail(b->err, PLP_E_FILE, "tensor %s is needed twice", name);
    b->used[b->n_used++] = t->name;
    if (rows && k > b->max_k)
        b->max_k = k;
    b->m->weights_bytes += t->n_bytes;
    b->m->n_params += want[0] * want[1] * want[2];
    *out = t;
    return PLP_OK;
}

/* Rows [row0, row0 + rows) of matrix `i` of a stack whose matrices have `of` rows each. */
static plp_status view(binder *b, plp_weight *out, const plp_tensor *t, uint64_t i, uint32_t of, uint32_t row0, uint32_t rows)
{
    plp_tensor part = *t;
    part.n_dims = rows > 1 ? 2 : 1;
    part.dims[1] = rows;
    part.dims[2] = 1;
    part.n_bytes = rows * t->row_bytes;
    part.data = (const char *)t->data + (i * of + row0) * t->row_bytes;
    return b->m->backend->ops->weight(b->m->backend, &part, out, b->err);
}

static plp_status bind(binder *b, plp_weight *out, int need, uint32_t rows, uint32_t k, const char *format)
{
    const plp_tensor *t;
    const plp_status s = find(b, &t, need, 0, rows, k, format);
    return s < 0 || !t ? s : b->m->backend->ops->weight(b->m->backend, t, out, b->err);
}

/* One tensor whose rows (or, k 0, elements) are those of n weights, one after the other. */
static plp_status bind_parts(binder *b, plp_weight *const *out, const uint32_t *rows, uint32_t n, int need, uint32_t k, const char *format)
{
    const plp_tensor *t;
    uint32_t total = 0, at = 0;
    plp_status s;

    for (uint32_t i = 0; i < n; i++)
        total += rows[i];
    s = k ? find(b, &t, need, 0, total, k, format) : find(b, &t, need, 0, 0, total, format);
    for (uint32_t i = 0; s >= 0 && t && i < n; at += rows[i++]) {
        if (k) {
            s = view(b, out[i], t, 0, total, at, rows[i]);
        } else {
            plp_tensor part = *t;
            part.dims[0] = rows[i];
            part.n_bytes = part.row_bytes = rows[i] * sizeof(float);
            part.data = (const float *)t->data + at;
            s = b->m->backend->ops->weight(b->m->backend, &part, out[i], b->err);
        }
    }
    return s;
}

/* ---- attention ---- */

static plp_status bind_qkv(binder *b, plp_layer *y)
{
    const plp_model *m = b->m;
    const plp_group *g = &m->group[y->group];
    const uint32_t d = m->n_embd, nq = m->n_heads * g->head_dim, nkv = g->n_kv_heads * g->head_dim;
    const int kv = y->borrows ? MAY : MUST;         /* a layer that borrows them may bring its own: they are not used */
    const uint32_t nqg = m->arch->gated_attention ? 2 * nq : nq, rows[] = { nqg, nkv, nkv };
    plp_status s;

    if (present(b, "blk.%u.attn_qkv.weight")) {
        if ((s = bind_parts(b, (plp_weight *[]){ &y->wq, &y->wk, &y->wv }, rows, 3, MUST, d, "blk.%u.attn_qkv.weight")) < 0)
            return s;
        return bind_parts(b, (plp_weight *[]){ &y->bq, &y->bk, &y->bv }, rows, 3, MAY, 0, "blk.%u.attn_qkv.bias");
    }
    if ((s = bind(b, &y->wq, MUST, nqg, d, "blk.%u.attn_q.weight")) < 0 ||
        (s = bind(b, &y->wk, kv, nkv, d, "blk.%u.attn_k.weight")) < 0 ||
        (s = bind(b, &y->wv, m->arch->value_norm ? MAY : kv, nkv, d, "blk.%u.attn_v.weight")) < 0 ||
        (s = bind(b, &y->bq, MAY, 0, nqg, "blk.%u.attn_q.bias")) < 0 ||
        (s = bind(b, &y->bk, MAY, 0, nkv, "blk.%u.attn_k.bias")) < 0)
        return s;
    return bind(b, &y->bv, MAY, 0, nkv, "blk.%u.attn_v.bias");
}

/* ---- what is in attention's place in a layer with a running state ---- */

static plp_status bind_conv(binder *b, plp_layer *y, const char *format)
{
    char name[96];
    const plp_status s = bind(b, &y->conv, MUST, b->m->conv_width, b->m->conv_len, format);

    if (s == PLP_OK && y->conv.type != PLP_TYPE_F32)
        return plp_fail(b->err, PLP_E_UNSUPPORTED, "tensor %s is of type %s; F32 is run", name_of(b, name, sizeof name, format),
                        plp_type_name(y->conv.type));
    return s;
}

static plp_status bind_short_conv(binder *b, plp_layer *y)
{
    const uint32_t d = b->m->n_embd;
    plp_status s;

    if ((s = bind(b, &y->attn_norm, MUST, 0, d, "blk.%u.attn_norm.weight")) < 0 ||
        (s = bind_conv(b, y, "blk.%u.shortconv.conv.weight")) < 0 ||
        (s = bind(b, &y->conv_in, MUST, 3 * d, d, "blk.%u.shortconv.in_proj.weight")) < 0)
        return s;
    return bind(b, &y->conv_out, MUST, d, d, "blk.%u.shortconv.out_proj.weight");
}

static plp_status bind_delta_net(binder *b, plp_layer *y)
{
    const plp_model *m = b->m;
    const uint32_t d = m->n_embd, heads = m->delta.n_v_heads, values = heads * m->delta.head_dim;
    plp_status s;

    if ((s = bind(b, &y->attn_norm, MUST, 0, d, "blk.%u.attn_norm.weight")) < 0 ||
        (s = bind(b, &y->conv_in, MUST, m->conv_width, d, "blk.%u.attn_qkv.weight")) < 0 ||
        (s = bind(b, &y->z, MUST, values, d, "blk.%u.attn_gate.weight")) < 0 ||
        (s = bind_conv(b, y, "blk.%u.ssm_conv1d.weight")) < 0 ||
        (s = bind(b, &y->alpha, MUST, heads, d, "blk.%u.ssm_alpha.weight")) < 0 ||
        (s = bind(b, &y->beta, MUST, heads, d, "blk.%u.ssm_beta.weight")) < 0 ||
        (s = bind(b, &y->a, MUST, 0, heads, "blk.%u.ssm_a")) < 0 ||
        (s = bind(b, &y->dt, MUST, 0, heads, "blk.%u.ssm_dt.bias")) < 0 ||
        (s = bind(b, &y->delta_norm, MUST, 0, m->delta.head_dim, "blk.%u.ssm_norm.weight")) < 0)
        return s;
    return bind(b, &y->conv_out, MUST, d, values, "blk.%u.ssm_out.weight");
}

static plp_status bind_attention(binder *b, plp_layer *y)
{
    const plp_model *m = b->m;
    const plp_arch *a = m->arch;
    const plp_group *g = &m->group[y->group];
    const uint32_t d = m->n_embd, nq = m->n_heads * g->head_dim, nkv = g->n_kv_heads * g->head_dim;
    const bool whole = a->qk_norm == PLP_QK_NORM_WHOLE;
    plp_status s;

    if (a->norms != PLP_NORM_POST && (s = bind(b, &y->attn_norm, MUST, 0, d, "blk.%u.attn_norm.weight")) < 0)
        return s;
    if (a->layer_norm && (s = bind(b, &y->attn_norm_b, MAY, 0, d, "blk.%u.attn_norm.bias")) < 0)
        return s;
    if (a->norms != PLP_NORM_PRE && (s = bind(b, &y->attn_post_norm, MUST, 0, d, "blk.%u.post_attention_norm.weight")) < 0)
        return s;
    if (a->qk_norm && ((s = bind(b, &y->q_norm, MUST, 0, whole ? nq : g->head_dim, "blk.%u.attn_q_norm.weight")) < 0 ||
                       (s = bind(b, &y->k_norm, y->borrows ? MAY : MUST, 0, whole ? nkv : g->head_dim, "blk.%u.attn_k_norm.weight")) < 0))
        return s;
    if (a->sinks && (s = bind(b, &y->sinks, MUST, 0, m->n_heads, "blk.%u.attn_sinks.weight")) < 0)
        return s;
    if ((s = bind_qkv(b, y)) < 0 || (s = bind(b, &y->wo, MUST, d, nq, "blk.%u.attn_output.weight")) < 0)
        return s;
    return bind(b, &y->bo, MAY, 0, d, "blk.%u.attn_output.bias");
}

/* ---- feed-forward ---- */

static plp_status bind_dense(binder *b, plp_layer *y)
{
    const uint32_t d = b->m->n_embd, ff = y->n_ff;
    const bool gated = !b->m->arch->plain_mlp, fused = gated && !present(b, "blk.%u.ffn_gate.weight");
    const uint32_t both[] = { ff, ff };
    plp_status s;

    if (!ff)
        return plp_fail(b->err, PLP_E_FILE, "layer %u has no experts, and %s.feed_forward_length is missing", b->layer, b->m->architecture);
    if (fused) {
        if ((s = bind_parts(b, (plp_weight *[]){ &y->w_gate, &y->w_up }, both, 2, MUST, d, "blk.%u.ffn_up.weight")) < 0 ||
            (s = bind_parts(b, (plp_weight *[]){ &y->b_gate, &y->b_up }, both, 2, MAY, 0, "blk.%u.ffn_up.bias")) < 0)
            return s;
    } else {
        if (gated && ((s = bind(b, &y->w_gate, MUST, ff, d, "blk.%u.ffn_gate.weight")) < 0 ||
                      (s = bind(b, &y->b_gate, MAY, 0, ff, "blk.%u.ffn_gate.bias")) < 0))
            return s;
        if ((s = bind(b, &y->w_up, MUST, ff, d, "blk.%u.ffn_up.weight")) < 0 ||
            (s = bind(b, &y->b_up, MAY, 0, ff, "blk.%u.ffn_up.bias")) < 0)
            return s;
    }
    if ((s = bind(b, &y->w_down, MUST, d, ff, "blk.%u.ffn_down.weight")) < 0)
        return s;
    return bind(b, &y->b_down, MAY, 0, d, "blk.%u.ffn_down.bias");
}

/* A width that the metadata may leave out: then it is the first such tensor's. */
static plp_status width_of(binder *b, uint32_t *width, const char *format)
{
    char name[96];
    const plp_tensor *t = plp_file_tensor_named(b->m->file, name_of(b, name, sizeof name, format));
    if (*width || !t)
        return PLP_OK;
    if (t->dims[1] == 0 || t->dims[1] > 1u << 20)
        return plp_fail(b->err, PLP_E_FILE, "tensor %s has %llu rows; 1 to 1,048,576 are possible", name, (unsigned long long)t->dims[1]);
    *width = (uint32_t)t->dims[1];
    return PLP_OK;
}

/* One stacked tensor into member `offset` of every expert. */
static plp_status bind_stack(binder *b, plp_layer *y, size_t offset, int need, uint32_t rows, uint32_t k, const char *format)
{
    const uint32_t n = b->m->n_experts;
    const plp_tensor *t;
    /* Biases are [n][rows]: a stack of one row each. */
    plp_status s = k ? find(b, &t, need, n, rows, k, format) : find(b, &t, need, 0, n, rows, format);

    if (s >= 0 && t && !k && t->type != PLP_TYPE_F32)
        return plp_fail(b->err, PLP_E_UNSUPPORTED, "tensor %s holds biases of type %s; F32 is run", t->name, plp_type_name(t->type));
    for (uint32_t i = 0; s >= 0 && t && i < n; i++)
        s = view(b, (plp_weight *)((char *)&y->experts[i] + offset), t, i, k ? rows : 1, 0, k ? rows : 1);
    return s;
}

static plp_status bind_stacks(binder *b, plp_layer *y)
{
    const uint32_t d = b->m->n_embd, ff = b->m->n_ff_expert;
    const plp_tensor *t;
    plp_status s = bind_stack(b, y, offsetof(plp_expert, down), MUST, d, ff, "blk.%u.ffn_down_exps.weight");

    if (s < 0)
        return s;
    if (!present(b, "blk.%u.ffn_gate_up_exps.weight")) {
        if ((s = bind_stack(b, y, offsetof(plp_expert, gate), MUST, ff, d, "blk.%u.ffn_gate_exps.weight")) < 0)
            return s;
        return bind_stack(b, y, offsetof(plp_expert, up), MUST, ff, d, "blk.%u.ffn_up_exps.weight");
    }
    s = find(b, &t, MUST, b->m->n_experts, 2 * ff, d, "blk.%u.ffn_gate_up_exps.weight");
    for (uint32_t i = 0; s >= 0 && i < b->m->n_experts; i++)
        if ((s = view(b, &y->experts[i].gate, t, i, 2 * ff, 0, ff)) >= 0)
            s = view(b, &y->experts[i].up, t, i, 2 * ff, ff, ff);
    return s;
}

/* Files of early converters have a tensor for each expert instead of stacks. */
static plp_status bind_one_by_one(binder *b, plp_layer *y)
{
    const uint32_t d = b->m->n_embd, ff = b->m->n_ff_expert;
    char gate[48], up[48], down[48];
    plp_status s = PLP_OK;

    for (uint32_t i = 0; s >= 0 && i < b->m->n_experts; i++) {
        snprintf(gate, sizeof gate, "blk.%%u.ffn_gate.%u.weight", i);
        snprintf(up, sizeof up, "blk.%%u.ffn_up.%u.weight", i);
        snprintf(down, sizeof down, "blk.%%u.ffn_down.%u.weight", i);
        if ((s = bind(b, &y->experts[i].gate, MUST, ff, d, gate)) >= 0 && (s = bind(b, &y->experts[i].up, MUST, ff, d, up)) >= 0)
            s = bind(b, &y->experts[i].down, MUST, d, ff, down);
    }
    return s;
}

static plp_status bind_shared(binder *b, plp_layer *y)
{
    const uint32_t d = b->m->n_embd;
    const uint32_t ff = b->m->n_ff_shared;
    plp_status s;

    if (!present(b, "blk.%u.ffn_up_shexp.weight"))
        return PLP_OK;
    if ((s = bind(b, &y->shared.gate, MUST, ff, d, "blk.%u.ffn_gate_shexp.weight")) < 0 ||
        (s = bind(b, &y->shared.up, MUST, ff, d, "blk.%u.ffn_up_shexp.weight")) < 0 ||
        (s = bind(b, &y->shared.down, MUST, d, ff, "blk.%u.ffn_down_shexp.weight")) < 0)
        return s;
    return bind(b, &y->shared_gate, MAY, 0, d, "blk.%u.ffn_gate_inp_shexp.weight");
}

static plp_status bind_experts(binder *b, plp_layer *y)
{
    plp_model *m = b->m;
    const uint32_t d = m->n_embd;
    const bool apart = present(b, "blk.%u.ffn_up.0.weight");
    const plp_tensor *choice, *scale;
    plp_status s;

    if ((s = width_of(b, &m->n_ff_expert, apart ? "blk.%u.ffn_up.0.weight" : "blk.%u.ffn_up_exps.weight")) < 0 ||
        (s = width_of(b, &m->n_ff_shared, "blk.%u.ffn_up_shexp.weight")) < 0)
        return s;
    if (!m->n_ff_expert)
        m->n_ff_expert = m->n_ff;
    if (!(y->experts = plp_zalloc(PLP_MEM_MODEL, m->n_experts, sizeof *y->experts)))
        return plp_fail(b->err, PLP_E_NOMEM, "model: no memory for %u experts", m->n_experts);
    if ((s = bind(b, &y->router, MUST, m->n_experts, d, "blk.%u.ffn_gate_inp.weight")) < 0 ||
        (s = bind(b, &y->router_b, MAY, 0, m->n_experts, "blk.%u.ffn_gate_inp.bias")) < 0 ||
        (s = find(b, &choice, MAY, 0, 0, m->n_experts, "blk.%u.exp_probs_b.bias")) < 0 ||
        (s = find(b, &scale, MAY, 0, 0, m->n_experts, "blk.%u.ffn_down_exps.scale")) < 0 ||
        (s = apart ? bind_one_by_one(b, y) : bind_stacks(b, y)) < 0 ||
        (s = bind_stack(b, y, offsetof(plp_expert, b_gate), MAY, m->n_ff_expert, 0, "blk.%u.ffn_gate_exps.bias")) < 0 ||
        (s = bind_stack(b, y, offsetof(plp_expert, b_up), MAY, m->n_ff_expert, 0, "blk.%u.ffn_up_exps.bias")) < 0 ||
        (s = bind_stack(b, y, offsetof(plp_expert, b_down), MAY, d, 0, "blk.%u.ffn_down_exps.bias")) < 0)
        return s;
    y->choice_bias = choice ? choice->data : NULL;
    y->expert_scale = scale ? scale->data : NULL;
    return bind_shared(b, y);
}

/* Experts beside the dense feed-forward that is bound already. */
static plp_status bind_experts_beside(binder *b, plp_layer *y)
{
    const uint32_t d = b->m->n_embd;
    plp_status s;

    b->m->experts_beside = true;
    if ((s = bind(b, &y->router_norm, MUST, 0, d, "blk.%u.ffn_gate_inp.scale")) < 0 ||
        (s = bind(b, &y->mlp_post_norm, MUST, 0, d, "blk.%u.post_ffw_norm_1.weight")) < 0 ||
        (s = bind(b, &y->experts_norm, MUST, 0, d, "blk.%u.pre_ffw_norm_2.weight")) < 0 ||
        (s = bind(b, &y->experts_post_norm, MUST, 0, d, "blk.%u.post_ffw_norm_2.weight")) < 0)
        return s;
    return bind_experts(b, y);
}

static plp_status bind_feed_forward(binder *b, plp_layer *y)
{
    const plp_arch *a = b->m->arch;
    const uint32_t d = b->m->n_embd;
    char norm[64];
    plp_status s;

    snprintf(norm, sizeof norm, "blk.%%u.%s.weight", a->ffn_norm_name ? a->ffn_norm_name : "ffn_norm");
    if (a->norms != PLP_NORM_POST && (s = bind(b, &y->ffn_norm, MUST, 0, d, norm)) < 0)
        return s;
    if (a->layer_norm && (s = bind(b, &y->ffn_norm_b, MAY, 0, d, "blk.%u.ffn_norm.bias")) < 0)
        return s;
    if (a->norms != PLP_NORM_PRE && (s = bind(b, &y->ffn_post_norm, MUST, 0, d, "blk.%u.post_ffw_norm.weight")) < 0)
        return s;
    const bool experts = b->m->n_experts && present(b, "blk.%u.ffn_gate_inp.weight");
    const bool dense = !experts || present(b, "blk.%u.ffn_up.weight");
    if (dense && (s = bind_dense(b, y)) < 0)
        return s;
    return !experts ? PLP_OK : dense ? bind_experts_beside(b, y) : bind_experts(b, y);
}

/* The residual streams of a layer, and the step of low rank beside its attention. */
static plp_status bind_streams(binder *b, plp_layer *y)
{
    const uint32_t d = b->m->n_embd, n = b->m->n_streams;
    uint32_t rank = 0;
    plp_status s;

    if ((s = width_of(b, &rank, "blk.%u.laurel_l.weight")) < 0 ||
        (s = bind(b, &y->laurel_l, MUST, rank, d, "blk.%u.laurel_l.weight")) < 0 ||
        (s = bind(b, &y->laurel_r, MUST, d, rank, "blk.%u.laurel_r.weight")) < 0 ||
        (s = bind(b, &y->laurel_norm, MUST, 0, d, "blk.%u.laurel_post_norm.weight")) < 0 ||
        (s = bind(b, &y->stream_router, MUST, n, d, "blk.%u.altup_router.weight")) < 0 ||
        (s = bind(b, &y->stream_router_norm, MUST, 0, d, "blk.%u.altup_router_norm.weight")) < 0 ||
        (s = bind(b, &y->predict, MUST, n * n, n, "blk.%u.altup_predict_coef.weight")) < 0 ||
        (s = bind(b, &y->correct, MUST, n, n, "blk.%u.altup_correct_coef.weight")) < 0)
        return s;
    if (rank > y->n_ff)
        return plp_fail(b->err, PLP_E_UNSUPPORTED, "tensor blk.%u.laurel_l.weight has %u rows; up to feed_forward_length, %u, are run",
                        b->layer, rank, y->n_ff);
    return bind(b, &y->correct_scale, MUST, 0, d, "blk.%u.altup_correct_scale.weight");
}

/* What the layer gets besides the residual stream, and what its result is scaled by. */
static plp_status bind_layer_input(binder *b, plp_layer *y)
{
    const uint32_t d = b->m->n_embd, p = b->m->n_embd_layer;
    const plp_tensor *scale;
    plp_status s;

    if (p && ((s = bind(b, &y->input_gate, MUST, p, d, "blk.%u.inp_gate.weight")) < 0 ||
              (s = bind(b, &y->input_proj, MUST, d, p, "blk.%u.proj.weight")) < 0 ||
              (s = bind(b, &y->input_post_norm, MUST, 0, d, "blk.%u.post_norm.weight")) < 0))
        return s;
    if ((s = find(b, &scale, MAY, 0, 0, 1, "blk.%u.layer_output_scale.weight")) < 0)
        return s;
    y->out_scale = scale ? scale->data : NULL;
    return PLP_OK;
}

/* ---- the whole ---- */

static int by_address(const void *a, const void *b)
{
    const uintptr_t p = (uintptr_t)*(const char *const *)a, q = (uintptr_t)*(const char *const *)b;
    return p < q ? -1 : p > q;
}

/* rope.c reads the first three; old files store the frequencies that it computes; layers after the last one
 * draft further tokens. */
static bool is_known(const plp_model *m, const char *name)
{
    if (!strncmp(name, "blk.", 4) && strtoul(name + 4, NULL, 10) >= m->n_layers)
        return m->n_drafting > 0;
    return !strcmp(name, "rope_freqs.weight") || !strcmp(name, "rope_factors_long.weight") ||
           !strcmp(name, "rope_factors_short.weight") || strstr(name, ".attn_rot_embd");
}

static plp_status none_left(binder *b)
{
    plp_tensor_info info;
    plp_status s;

    qsort(b->used, b->n_used, sizeof *b->used, by_address);
    for (uint64_t i = 0; i < b->n_tensors; i++) {
        if ((s = plp_file_tensor(b->m->file, i, &info, b->err)) < 0)
            return s;
        if (!is_known(b->m, info.name) && !bsearch(&info.name, b->used, b->n_used, sizeof *b->used, by_address))
            return plp_fail(b->err, PLP_E_UNSUPPORTED, "tensor %s has no place in a %s model as it is run here; without it the "
                            "results would be wrong", info.name, b->m->architecture);
    }
    return PLP_OK;
}

static plp_status bind_vocabulary(binder *b)
{
    plp_model *m = b->m;
    const plp_tensor *embed = plp_file_tensor_named(m->file, "token_embd.weight");
    const bool other = m->arch->final_norm_name && !present(b, "output_norm.weight");
    char norm[64];
    plp_status s;

    if (!embed)
        return plp_fail(b->err, PLP_E_FILE, "tensor token_embd.weight is missing; the file holds no whole model");
    if (embed->dims[1] == 0 || embed->dims[1] > 1u << 24)
        return plp_fail(b->err, PLP_E_FILE, "tensor token_embd.weight has %llu rows; a vocabulary of up to 16,777,216 is possible",
                        (unsigned long long)embed->dims[1]);
    m->n_vocab = (uint32_t)embed->dims[1];
    snprintf(norm, sizeof norm, "%s.weight", other ? m->arch->final_norm_name : "output_norm");
    if ((s = bind(b, &m->embed, MUST, m->n_vocab, m->n_embd, "token_embd.weight")) < 0 ||
        (s = bind(b, &m->output_norm, MUST, 0, m->n_embd, norm)) < 0 ||
        (m->arch->layer_norm && (s = bind(b, &m->output_norm_b, MAY, 0, m->n_embd, "output_norm.bias")) < 0) ||
        (s = bind(b, &m->output, MAY, m->n_vocab, m->n_embd, "output.weight")) < 0 ||
        (s = bind(b, &m->output_b, MAY, 0, m->n_vocab, "output.bias")) < 0)
        return s;
    if (!m->output.data)                    /* tied */
        m->output = m->embed;
    const uint32_t inputs = m->n_layers * m->n_embd_layer;
    if (inputs && ((s = bind(b, &m->layer_embed, MUST, m->n_vocab, inputs, "per_layer_token_embd.weight")) < 0 ||
                   (s = bind(b, &m->layer_proj, MUST, inputs, m->n_embd, "per_layer_model_proj.weight")) < 0))
        return s;
    if (inputs && (s = bind(b, &m->layer_proj_norm, MUST, 0, m->n_embd_layer, "per_layer_proj_norm.weight")) < 0)
        return s;
    return PLP_OK;
}

/* A stack of matrices, each a weight of its own. */
static plp_status bind_each(binder *b, plp_weight *out, uint32_t n, uint32_t rows, uint32_t k, const char *name)
{
    const plp_tensor *t;
    plp_status s = find(b, &t, MUST, n, rows, k, name);

    for (uint32_t i = 0; s >= 0 && i < n; i++)
        s = view(b, &out[i], t, i, rows, 0, rows);
    return s;
}

plp_status plp_model_bind(plp_model *m, uint32_t *max_k, plp_error *err)
{
    binder b = { .m = m, .err = err, .n_tensors = plp_file_n_tensors(m->file) };
    plp_status s;

    if (!(b.used = plp_alloc(PLP_MEM_MODEL, b.n_tensors + 1, sizeof *b.used)))
        return plp_fail(err, PLP_E_NOMEM, "model: no memory for %llu names", (unsigned long long)b.n_tensors);
    s = bind_vocabulary(&b);
    if (s >= 0 && m->n_streams > 1 && (s = bind_each(&b, m->stream_in, m->n_streams - 1, m->n_embd, m->n_embd, "altup_proj.weight")) >= 0)
        s = bind_each(&b, m->stream_out, m->n_streams - 1, m->n_embd, m->n_embd, "altup_unembd_proj.weight");
    for (; s >= 0 && b.layer < m->n_layers; b.layer++) {
        plp_layer *y = &m->layers[b.layer];
        s = y->attends ? bind_attention(&b, y) : m->arch->delta_net ? bind_delta_net(&b, y) : bind_short_conv(&b, y);
        if (s >= 0 && (s = bind_feed_forward(&b, y)) >= 0 && (s = bind_layer_input(&b, y)) >= 0 && m->n_streams)
            s = bind_streams(&b, y);
    }
    if (s >= 0)
        s = none_left(&b);
    plp_free(b.used);
    *max_k = b.max_k;
    return s;
}
