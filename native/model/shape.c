/*
 * model/shape.c - hyperparameters: counts, scales, and which layer has which window and positions
 *
 * Nothing is taken on trust: every count is bounded, every scale finite; an odd one is an error that names
 * its key.
 * Source   GGUF specification; key names as in gguf-py's constants
 */
#include "model/model.h"
#include "base/mem.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { KEY_LEN = 128, MAX_DELTA_HEADS = 1024, MAX_LAYER_INPUT = 1 << 14 };

/* Of a block's states in all layers: what a model may ask for, and, a token, what makes its blocks longer. */
#define MOST_STATE_BYTES   ((size_t)1 << 30)
#define STATE_BYTES_A_TOKEN 16384u
#define MOST_STATE_LEN      256u

static const char *key_of(const plp_model *m, char *out, const char *rest)
{
    snprintf(out, KEY_LEN, "%s.%s", m->architecture, rest);
    return out;
}

/* A count from 1 to `most`. fallback 0: the file must have it. */
static plp_status count(const plp_model *m, const char *rest, uint32_t fallback, uint32_t most, uint32_t *out, plp_error *err)
{
    char key[KEY_LEN];
    const plp_status s = plp_meta_u32(m->file, key_of(m, key, rest), fallback, out, err);
    if (s < 0)
        return s;
    if (*out == 0 && fallback == 0)
        return plp_fail(err, PLP_E_FILE, "%s is missing or 0; the file does not describe its model", key);
    if (*out == 0 || *out > most)
        return plp_fail(err, PLP_E_FILE, "%s is %u; 1 to %u are possible", key, *out, most);
    return PLP_OK;
}

/* A count from 0 to `most`; 0 where the file has none. */
static plp_status maybe(const plp_model *m, const char *rest, uint32_t most, uint32_t *out, plp_error *err)
{
    char key[KEY_LEN];
    const plp_status s = plp_meta_u32(m->file, key_of(m, key, rest), 0, out, err);
    if (s < 0 || *out <= most)
        return s;
    return plp_fail(err, PLP_E_FILE, "%s is %u; 0 to %u are possible", key, *out, most);
}

/* A positive, finite number; 0 in the file stands for the fallback. */
static plp_status number(const plp_model *m, const char *rest, float fallback, float *out, plp_error *err)
{
    char key[KEY_LEN];
    const plp_status s = plp_meta_f32(m->file, key_of(m, key, rest), fallback, out, err);
    if (s < 0)
        return s;
    if (*out == 0)
        *out = fallback;
    if (!(*out >= 0) || !isfinite(*out))
        return plp_fail(err, PLP_E_FILE, "%s is %g; a positive number is needed", key, *out);
    return PLP_OK;
}

/* A count of each layer, from `least` to `most`: one for all, or a list. fallback 0: 0 where the file has none. */
static plp_status per_layer(plp_model *m, const char *rest, uint32_t fallback, uint32_t least, uint32_t most, size_t member, plp_error *err)
{
    char key[KEY_LEN];
    const int64_t at = plp_file_find(m->file, key_of(m, key, rest));
    const uint32_t in_file = m->n_layers + m->n_drafting;
    plp_meta meta = { 0 };
    uint32_t one = 0;
    plp_status s;

    if (at >= 0 && (s = plp_file_meta(m->file, (uint64_t)at, &meta, err)) < 0)
        return s;
    const bool list = meta.type == PLP_META_ARRAY;
    if (list && meta.n != in_file)
        return plp_fail(err, PLP_E_FILE, "%s has %llu elements for %u layers", key, (unsigned long long)meta.n, in_file);
    if (!list && (s = fallback ? count(m, rest, fallback, most, &one, err) : maybe(m, rest, most, &one, err)) < 0)
        return s;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        int64_t n = one;
        if (list && (s = plp_file_i64(m->file, (uint64_t)at, i, &n, err)) < 0)
            return s;
        if (list && (n < least || n > most))
            return plp_fail(err, PLP_E_FILE, "%s: layer %u has %lld; %u to %u are possible", key, i, (long long)n, least, most);
        *(uint32_t *)((char *)&m->layers[i] + member) = (uint32_t)n;
    }
    return PLP_OK;
}

/* A gated delta net's heads, and which layers attend. */
static plp_status read_delta(plp_model *m, plp_error *err)
{
    plp_delta *d = &m->delta;
    uint32_t every, n_values;
    char key[KEY_LEN];
    plp_status s;

    if ((s = count(m, "ssm.conv_kernel", 0, PLP_MAX_CONV, &m->conv_len, err)) < 0 ||
        (s = count(m, "ssm.state_size", 0, PLP_MAX_DELTA_DIM, &d->head_dim, err)) < 0 ||
        (s = count(m, "ssm.group_count", 0, MAX_DELTA_HEADS, &d->n_k_heads, err)) < 0 ||
        (s = count(m, "ssm.time_step_rank", 0, MAX_DELTA_HEADS, &d->n_v_heads, err)) < 0 ||
        (s = count(m, "ssm.inner_size", 0, MAX_DELTA_HEADS * PLP_MAX_DELTA_DIM, &n_values, err)) < 0 ||
        (s = count(m, "full_attention_interval", 4, PLP_MAX_LAYERS, &every, err)) < 0)
        return s;
    if (d->head_dim % 16)
        return plp_fail(err, PLP_E_UNSUPPORTED, "%s is %u; multiples of 16 up to %u are run", key_of(m, key, "ssm.state_size"), d->head_dim,
                        PLP_MAX_DELTA_DIM);
    if (d->n_v_heads % d->n_k_heads)
        return plp_fail(err, PLP_E_FILE, "%s is %u: that many value heads do not share %u key heads evenly",
                        key_of(m, key, "ssm.time_step_rank"), d->n_v_heads, d->n_k_heads);
    if (n_values != d->n_v_heads * d->head_dim)
        return plp_fail(err, PLP_E_UNSUPPORTED, "%s is %u; %u value heads as wide as keys, %u, are run", key_of(m, key, "ssm.inner_size"),
                        n_values, d->n_v_heads, d->head_dim);
    m->conv_width = (2 * d->n_k_heads + d->n_v_heads) * d->head_dim;
    for (uint32_t i = 0; i < m->n_layers; i++)
        m->layers[i].attends &= (i + 1) % every == 0;
    return PLP_OK;
}

static plp_status check_heads(uint32_t key_dim, uint32_t value_dim, plp_error *err)
{
    if (value_dim != key_dim)
        return plp_fail(err, PLP_E_UNSUPPORTED, "keys of %u dimensions and values of %u; heads with both alike are run", key_dim, value_dim);
    if (key_dim % 16)
        return plp_fail(err, PLP_E_UNSUPPORTED, "heads of %u dimensions; multiples of 16 up to %u are run", key_dim, PLP_MAX_HEAD_DIM);
    return PLP_OK;
}

static plp_status read_counts(plp_model *m, plp_error *err)
{
    const bool recurrent = m->arch->short_conv || m->arch->delta_net;
    uint32_t value_dim, value_dim_window;
    plp_status s;

    if ((s = count(m, "block_count", 0, PLP_MAX_LAYERS, &m->n_layers, err)) < 0 ||
        (s = maybe(m, "nextn_predict_layers", m->n_layers - 1, &m->n_drafting, err)) < 0 ||
        (s = count(m, "embedding_length", 0, 1u << 17, &m->n_embd, err)) < 0 ||
        (s = count(m, "attention.head_count", 0, 1024, &m->n_heads, err)) < 0 ||
        (s = count(m, "context_length", 0, 1u << 30, &m->context_train, err)) < 0 ||
        (s = count(m, "attention.key_length", m->n_embd / m->n_heads ? m->n_embd / m->n_heads : 1, PLP_MAX_HEAD_DIM, &m->head_dim, err)) < 0 ||
        (s = count(m, "attention.value_length", m->head_dim, PLP_MAX_HEAD_DIM, &value_dim, err)) < 0 ||
        (s = count(m, "attention.key_length_swa", m->head_dim, PLP_MAX_HEAD_DIM, &m->head_dim_window, err)) < 0 ||
        (s = count(m, "attention.value_length_swa", m->head_dim_window, PLP_MAX_HEAD_DIM, &value_dim_window, err)) < 0 ||
        (s = maybe(m, "embedding_length_per_layer_input", MAX_LAYER_INPUT, &m->n_embd_layer, err)) < 0 ||
        (s = number(m, m->arch->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", 1e-5f, &m->eps, err)) < 0)
        return s;
    m->n_layers -= m->n_drafting;
    if (!(m->layers = plp_zalloc(PLP_MEM_MODEL, m->n_layers, sizeof *m->layers)))
        return plp_fail(err, PLP_E_NOMEM, "model: no memory for %u layers", m->n_layers);
    if ((s = per_layer(m, "attention.head_count_kv", m->n_heads, recurrent ? 0 : 1, 1024, offsetof(plp_layer, n_kv_heads), err)) < 0)
        return s;
    for (uint32_t i = 0; i < m->n_layers; i++)
        m->layers[i].attends = m->layers[i].n_kv_heads != 0;
    if ((m->arch->delta_net && (s = read_delta(m, err)) < 0) ||
        (m->arch->short_conv && (s = count(m, "shortconv.l_cache", 0, PLP_MAX_CONV, &m->conv_len, err)) < 0))
        return s;
    if (m->arch->short_conv)
        m->conv_width = m->n_embd;
    if ((s = check_heads(m->head_dim, value_dim, err)) < 0)
        return s;
    return check_heads(m->head_dim_window, value_dim_window, err);
}

enum gating { GATING_UNSAID, GATING_SOFTMAX, GATING_SIGMOID, GATING_SOFTMAX_CHOSEN };

static plp_status read_experts(plp_model *m, plp_error *err)
{
    char key[KEY_LEN];
    uint32_t gating, groups;
    bool normalised;
    plp_status s;

    if ((s = maybe(m, "expert_count", PLP_MAX_EXPERTS, &m->n_experts, err)) < 0 ||
        (s = per_layer(m, "feed_forward_length", 0, 0, 1u << 20, offsetof(plp_layer, n_ff), err)) < 0)
        return s;
    for (uint32_t i = 0; i < m->n_layers; i++)
        m->n_ff = m->n_ff < m->layers[i].n_ff ? m->layers[i].n_ff : m->n_ff;
    if (!m->n_experts)
        return m->n_ff ? PLP_OK : plp_fail(err, PLP_E_FILE, "%s is missing or 0; the file does not describe its model",
                                           key_of(m, key, "feed_forward_length"));
    if ((s = count(m, "expert_used_count", 0, m->n_experts, &m->n_chosen, err)) < 0 ||
        (s = maybe(m, "expert_feed_forward_length", 1u << 20, &m->n_ff_expert, err)) < 0 ||
        (s = maybe(m, "expert_shared_feed_forward_length", 1u << 20, &m->n_ff_shared, err)) < 0 ||
        (s = maybe(m, "expert_gating_func", 1u << 20, &gating, err)) < 0 ||
        (s = maybe(m, "expert_group_count", PLP_MAX_EXPERTS, &groups, err)) < 0 ||
        (s = number(m, "expert_weights_scale", 1, &m->expert_scale, err)) < 0 ||
        (s = plp_meta_bool(m->file, key_of(m, key, "expert_weights_norm"), !m->arch->route_all, &normalised, err)) < 0)
        return s;
    /* A softmax over the chosen ones is the softmax over all, divided by its sum over the chosen. */
    m->route_all = !normalised && gating != GATING_SOFTMAX_CHOSEN;
    m->route_sigmoid = gating == GATING_SIGMOID;
    if (gating > GATING_SOFTMAX_CHOSEN)
        return plp_fail(err, PLP_E_UNSUPPORTED, "%s is %u; experts weighted by a softmax (1, 3) or sigmoids (2) are run", key_of(m, key, "expert_gating_func"), gating);
    if (groups > 1)
        return plp_fail(err, PLP_E_UNSUPPORTED, "%s is %u; experts without groups are run", key_of(m, key, "expert_group_count"), groups);
    return PLP_OK;
}

static plp_status read_scales(plp_model *m, plp_error *err)
{
    const bool wide = m->arch->wide_query_layers == m->n_layers;
    const float query_width = wide ? (float)m->n_embd / m->n_heads : (float)m->head_dim;
    float logit_divisor;
    plp_status s;

    if ((s = number(m, "attention.scale", m->arch->unscaled_scores ? 1 : 1.0f / sqrtf(query_width), &m->attn_scale, err)) < 0 ||
        (s = number(m, "attn_logit_softcapping", m->arch->attn_softcap, &m->attn_softcap, err)) < 0 ||
        (s = number(m, "final_logit_softcapping", m->arch->logit_softcap, &m->logit_softcap, err)) < 0 ||
        (s = number(m, "embedding_scale", m->arch->embed_sqrt ? sqrtf((float)m->n_embd) : 1, &m->embed_scale, err)) < 0 ||
        (s = number(m, "residual_scale", 1, &m->residual_scale, err)) < 0 ||
        (s = number(m, "logit_scale", 1, &logit_divisor, err)) < 0)
        return s;
    m->logit_scale = 1 / logit_divisor;
    return PLP_OK;
}

/* Several residual streams, and how much of each layer's gate is kept: -infinity stands for all of it. */
static plp_status read_streams(plp_model *m, plp_error *err)
{
    char key[KEY_LEN];
    const int64_t at = plp_file_find(m->file, key_of(m, key, "activation_sparsity_scale"));
    plp_meta meta = { 0 };
    plp_status s;

    if (at >= 0 && (s = plp_file_meta(m->file, (uint64_t)at, &meta, err)) < 0)
        return s;
    if (meta.type != PLP_META_ARRAY || meta.n != m->n_layers)
        return plp_fail(err, PLP_E_FILE, "%s is missing or has not an element for each of %u layers", key, m->n_layers);
    for (uint32_t i = 0; i < m->n_layers; i++) {
        double spread;
        if ((s = plp_file_f64(m->file, (uint64_t)at, i, &spread, err)) < 0)
            return s;
        m->layers[i].sparse = spread != -INFINITY;
        m->layers[i].spread = (float)spread;
        if (m->layers[i].sparse && !isfinite(spread))
            return plp_fail(err, PLP_E_FILE, "%s: layer %u has %g; a number or -infinity is possible", key, i, spread);
    }
    if (!m->n_embd_layer)
        return plp_fail(err, PLP_E_FILE, "%s is missing or 0; the file does not describe its model", key_of(m, key, "embedding_length_per_layer_input"));
    if ((s = count(m, "altup.num_inputs", 0, PLP_MAX_STREAMS, &m->n_streams, err)) < 0)
        return s;
    return maybe(m, "altup.active_idx", m->n_streams - 1, &m->active_stream, err);
}

plp_status plp_model_read_shape(plp_model *m, plp_error *err)
{
    plp_status s;
    if ((s = read_counts(m, err)) < 0 || (s = read_experts(m, err)) < 0)
        return s;
    if (m->arch->streams && (s = read_streams(m, err)) < 0)
        return s;
    return read_scales(m, err);
}

/* ---- windows and positions ---- */

/* windowed[i]: by the file's pattern (a flag per layer, or every n-th full), else by the architecture's. */
static plp_status read_windows(plp_model *m, uint32_t window, bool *windowed, plp_error *err)
{
    char key[KEY_LEN];
    uint32_t full_every = m->arch->full_every;
    const int64_t at = window ? plp_file_find(m->file, key_of(m, key, "attention.sliding_window_pattern")) : -1;
    plp_meta meta;
    plp_status s;

    if (at >= 0 && (s = plp_file_meta(m->file, (uint64_t)at, &meta, err)) < 0)
        return s;
    if (at >= 0 && meta.type == PLP_META_ARRAY) {
        if (meta.n != m->n_layers)
            return plp_fail(err, PLP_E_FILE, "%s has %llu elements for %u layers", key, (unsigned long long)meta.n, m->n_layers);
        for (uint32_t i = 0; i < m->n_layers; i++) {
            int64_t flag;
            if ((s = plp_file_i64(m->file, (uint64_t)at, i, &flag, err)) < 0)
                return s;
            windowed[i] = flag != 0;
        }
        return PLP_OK;
    }
    if (at >= 0 && (s = plp_meta_u32(m->file, key, 0, &full_every, err)) < 0)
        return s;
    for (uint32_t i = 0; i < m->n_layers; i++)
        windowed[i] = window && (full_every == 0 || (i + 1) % full_every != 0);
    return PLP_OK;
}

/* Layers with a running state: a group whose blocks hold it. Each block costs as much as another, however many
 * tokens it stands for, so those of large states stand for more: less is kept, and more computed again after
 * a rewind. */
static plp_status assign_states(plp_model *m, plp_error *err)
{
    const plp_delta *d = &m->delta;
    const size_t bytes = ((size_t)(m->conv_len - 1) * m->conv_width + (size_t)d->n_v_heads * d->head_dim * d->head_dim) * sizeof(float);
    uint32_t n = 0, len = m->block_len;

    for (uint32_t i = 0; i < m->n_layers; i++)
        n += !m->layers[i].attends;
    if (!n)
        return PLP_OK;
    if (n == m->n_layers)
        return plp_fail(err, PLP_E_UNSUPPORTED, "no layer attends; models with at least one that does are run");
    if (bytes > MOST_STATE_BYTES / n)
        return plp_fail(err, PLP_E_FILE, "%s: the running state of %u layers is %zu bytes each; %zu in all are possible", m->architecture,
                        n, bytes, MOST_STATE_BYTES);
    while (len < MOST_STATE_LEN && n * bytes / len > STATE_BYTES_A_TOKEN)
        len *= 2;
    m->n_groups = 2;
    m->group[1] = (plp_group){ .window = 1, .block_len = len, .state_bytes = bytes };
    return PLP_OK;
}

/* Its place in the group, whose layers all have the same heads. */
static plp_status join_group(plp_model *m, plp_layer *y, uint32_t layer, bool windowed, bool borrows, plp_error *err)
{
    plp_group *g = &m->group[y->group];

    if (borrows && (!g->n_layers || !y->attends))
        return plp_fail(err, PLP_E_FILE, "%s.attention.shared_kv_layers: no layer before layer %u has keys and values for it", m->architecture, layer);
    y->borrows = borrows;
    y->index = borrows ? g->n_layers - 1 : g->n_layers++;
    if (!y->attends)
        return PLP_OK;
    if (m->n_heads % y->n_kv_heads)
        return plp_fail(err, PLP_E_FILE, "%u attention heads do not share %u KV heads evenly", m->n_heads, y->n_kv_heads);
    if (g->n_kv_heads && g->n_kv_heads != y->n_kv_heads)
        return plp_fail(err, PLP_E_UNSUPPORTED, "%s.attention.head_count_kv: layer %u has %u, others with the same window have %u; the same number is run",
                        m->architecture, layer, y->n_kv_heads, g->n_kv_heads);
    g->n_kv_heads = y->n_kv_heads;
    g->head_dim = windowed ? m->head_dim_window : m->head_dim;
    return PLP_OK;
}

plp_status plp_model_assign_layers(plp_model *m, plp_error *err)
{
    const plp_arch *a = m->arch;
    bool windowed[PLP_MAX_LAYERS];
    uint32_t window = 0, n_windowed = 0, n_borrowing;
    plp_status s;

    if (!m->conv_len && (s = maybe(m, "attention.sliding_window", UINT32_MAX, &window, err)) < 0)
        return s;
    if (window == 0)
        window = a->window;
    if ((s = maybe(m, "attention.shared_kv_layers", m->n_layers - 1, &n_borrowing, err)) < 0)
        return s;
    if ((s = read_windows(m, window, windowed, err)) < 0)
        return s;
    for (uint32_t i = 0; i < m->n_layers; i++)
        n_windowed += windowed[i];
    m->n_groups = n_windowed && n_windowed < m->n_layers ? 2 : 1;
    m->group[m->n_groups - 1].window = n_windowed ? window : 0;
    m->n_ropes = a->local_rope && n_windowed ? 2 : 1;
    for (uint32_t g = 0; g < m->n_groups; g++)
        m->group[g].block_len = m->block_len;
    if ((s = assign_states(m, err)) < 0)
        return s;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        plp_layer *y = &m->layers[i];
        const bool no_rope = (a->no_rope_every && (i + 1) % a->no_rope_every == 0) || (a->no_rope_full && window && !windowed[i]);
        y->group = windowed[i] || !y->attends ? m->n_groups - 1 : 0;
        if ((s = join_group(m, y, i, windowed[i], i >= m->n_layers - n_borrowing, err)) < 0)
            return s;
        y->rope = no_rope ? PLP_NO_ROPE : windowed[i] && a->local_rope ? 1 : 0;
    }
    m->n_kv_heads = m->group[0].n_kv_heads;
    m->head_dim = m->group[0].head_dim;
    return PLP_OK;
}
