/*
 * model/weights.c - from a file to a model: hyperparameters, tensors by name, work space
 *
 * Nothing is taken on trust: every count is bounded, every tensor's shape follows from the counts, and a
 * missing or odd one is an error that names it. Optional tensors stay empty (data NULL).
 */
#include "model/model.h"
#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct arch {
    const char *name;
    void (*forward)(plp_model *m, const plp_batch *batch);
    int rope_kind;
} archs[] = {
#define ARCH(name, family, rope) { name, plp_forward_##family, rope },
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

/* ---- hyperparameters ---- */

typedef struct loader {
    plp_model      *m;
    const plp_file *f;
    plp_error      *err;
    uint32_t        max_k;
} loader;

static plp_status count(const loader *l, const char *rest, uint32_t fallback, uint32_t most, uint32_t *out)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", l->m->architecture, rest);
    const plp_status s = plp_meta_u32(l->f, name, fallback, out, l->err);
    if (s < 0)
        return s;
    if (*out == 0 && fallback == 0)
        return plp_fail(l->err, PLP_E_FILE, "%s is missing or 0; the file does not describe its model", name);
    if (*out == 0 || *out > most)
        return plp_fail(l->err, PLP_E_FILE, "%s is %u; 1 to %u are possible", name, *out, most);
    return PLP_OK;
}

static plp_status read_shape(loader *l)
{
    plp_model *m = l->m;
    char name[128];
    plp_status s;

    if ((s = count(l, "block_count", 0, 1024, &m->n_layers)) < 0 ||
        (s = count(l, "embedding_length", 0, 1u << 17, &m->n_embd)) < 0 ||
        (s = count(l, "feed_forward_length", 0, 1u << 20, &m->n_ff)) < 0 ||
        (s = count(l, "attention.head_count", 0, 1024, &m->n_heads)) < 0 ||
        (s = count(l, "attention.head_count_kv", m->n_heads, 1024, &m->n_kv_heads)) < 0 ||
        (s = count(l, "context_length", 0, 1u << 30, &m->context_train)) < 0 ||
        (s = count(l, "attention.key_length", m->n_embd / m->n_heads ? m->n_embd / m->n_heads : 1, 256, &m->head_dim)) < 0)
        return s;
    snprintf(name, sizeof name, "%s.attention.layer_norm_rms_epsilon", m->architecture);
    if ((s = plp_meta_f32(l->f, name, 1e-5f, &m->eps, l->err)) < 0)
        return s;
    if (!(m->eps >= 0) || !isfinite(m->eps))
        return plp_fail(l->err, PLP_E_FILE, "%s is %g; a small positive number is needed", name, m->eps);
    if (m->n_heads % m->n_kv_heads)
        return plp_fail(l->err, PLP_E_FILE, "%u attention heads do not share %u KV heads evenly", m->n_heads, m->n_kv_heads);
    if (m->head_dim % 16 || m->head_dim > 256)
        return plp_fail(l->err, PLP_E_UNSUPPORTED, "heads of %u dimensions; multiples of 16 up to 256 are run", m->head_dim);
    m->attn_scale = 1.0f / sqrtf((float)m->head_dim);
    return PLP_OK;
}

/* ---- tensors ---- */

enum { MUST, MAY };

/* A matrix [rows][k] (rows 0: a vector [k] in F32) called by the format. */
__attribute__((format(printf, 6, 7)))
static plp_status bind(loader *l, plp_weight *out, int need, uint32_t rows, uint32_t k, const char *format, ...)
{
    char name[96];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);

    const plp_tensor *t = plp_file_tensor_named(l->f, name);
    if (!t)
        return need == MAY ? PLP_OK : plp_fail(l->err, PLP_E_FILE, "tensor %s is missing; the file is not a whole %s model",
                                               name, l->m->architecture);
    const uint64_t want_rows = rows ? rows : 1, want_dims = rows ? 2 : 1;
    bool fits = t->dims[0] == k && t->dims[1] == want_rows && t->dims[2] == 1 && t->dims[3] == 1;
    if (!fits)
        return plp_fail(l->err, PLP_E_FILE, "tensor %s is [%llu, %llu, %llu, %llu]; [%u%s%.0u] was expected", name,
                        (unsigned long long)t->dims[0], (unsigned long long)t->dims[1], (unsigned long long)t->dims[2],
                        (unsigned long long)t->dims[3], k, want_dims == 2 ? ", " : "", rows);
    const plp_type_info *type = plp_type_get(t->type);
    if (!type)
        return plp_fail(l->err, PLP_E_UNSUPPORTED, "tensor %s has type %d (%s), which is not run", name, t->type, plp_type_name(t->type));
    if (!rows && t->type != PLP_TYPE_F32)
        return plp_fail(l->err, PLP_E_UNSUPPORTED, "tensor %s is a vector of type %s; F32 is run", name, type->name);
    if (!t->data)
        return plp_fail(l->err, PLP_E_FILE, "tensor %s lies past the end of the file", name);
    if (((uintptr_t)t->data & 3) && t->type == PLP_TYPE_F32)
        return plp_fail(l->err, PLP_E_FILE, "tensor %s is not aligned to 4 bytes", name);
    if (rows && k > l->max_k)
        l->max_k = k;
    l->m->weights_bytes += t->n_bytes;
    l->m->n_params += (uint64_t)k * want_rows;
    return l->m->backend->ops->weight(l->m->backend, t, out, l->err);
}

static plp_status bind_layer(loader *l, uint32_t i)
{
    plp_model *m = l->m;
    plp_layer *y = &m->layers[i];
    const uint32_t d = m->n_embd, nq = m->n_heads * m->head_dim, nkv = m->n_kv_heads * m->head_dim;
    plp_status s;

    y->index = i;
    if ((s = bind(l, &y->attn_norm, MUST, 0, d, "blk.%u.attn_norm.weight", i)) < 0 ||
        (s = bind(l, &y->wq, MUST, nq, d, "blk.%u.attn_q.weight", i)) < 0 ||
        (s = bind(l, &y->wk, MUST, nkv, d, "blk.%u.attn_k.weight", i)) < 0 ||
        (s = bind(l, &y->wv, MUST, nkv, d, "blk.%u.attn_v.weight", i)) < 0 ||
        (s = bind(l, &y->wo, MUST, d, nq, "blk.%u.attn_output.weight", i)) < 0 ||
        (s = bind(l, &y->bq, MAY, 0, nq, "blk.%u.attn_q.bias", i)) < 0 ||
        (s = bind(l, &y->bk, MAY, 0, nkv, "blk.%u.attn_k.bias", i)) < 0 ||
        (s = bind(l, &y->bv, MAY, 0, nkv, "blk.%u.attn_v.bias", i)) < 0 ||
        (s = bind(l, &y->ffn_norm, MUST, 0, d, "blk.%u.ffn_norm.weight", i)) < 0 ||
        (s = bind(l, &y->w_gate, MUST, m->n_ff, d, "blk.%u.ffn_gate.weight", i)) < 0 ||
        (s = bind(l, &y->w_up, MUST, m->n_ff, d, "blk.%u.ffn_up.weight", i)) < 0 ||
        (s = bind(l, &y->w_down, MUST, d, m->n_ff, "blk.%u.ffn_down.weight", i)) < 0)
        return s;
    return PLP_OK;
}

static plp_status bind_all(loader *l)
{
    plp_model *m = l->m;
    const plp_tensor *embed = plp_file_tensor_named(l->f, "token_embd.weight");
    plp_status s;

    if (!embed)
        return plp_fail(l->err, PLP_E_FILE, "tensor token_embd.weight is missing; the file holds no whole model");
    if (embed->dims[1] == 0 || embed->dims[1] > 1u << 24)
        return plp_fail(l->err, PLP_E_FILE, "tensor token_embd.weight has %llu rows; a vocabulary of up to 16,777,216 is possible",
                        (unsigned long long)embed->dims[1]);
    m->n_vocab = (uint32_t)embed->dims[1];
    if (!(m->layers = plp_zalloc(PLP_MEM_MODEL, m->n_layers, sizeof *m->layers)))
        return plp_fail(l->err, PLP_E_NOMEM, "model: no memory for %u layers", m->n_layers);
    if ((s = bind(l, &m->embed, MUST, m->n_vocab, m->n_embd, "token_embd.weight")) < 0 ||
        (s = bind(l, &m->output_norm, MUST, 0, m->n_embd, "output_norm.weight")) < 0 ||
        (s = bind(l, &m->output, MAY, m->n_vocab, m->n_embd, "output.weight")) < 0)
        return s;
    if (!m->output.data)                    /* tied */
        m->output = m->embed;
    for (uint32_t i = 0; i < m->n_layers; i++)
        if ((s = bind_layer(l, i)) < 0)
            return s;
    m->n_groups = 1;
    m->group[0] = (plp_group){ .n_layers = m->n_layers };
    return PLP_OK;
}

/* ---- work space ---- */

static plp_status make_room(loader *l)
{
    plp_model *m = l->m;
    const size_t n = m->max_tokens, nq = (size_t)m->n_heads * m->head_dim, nkv = (size_t)m->n_kv_heads * m->head_dim;
    const struct { float **p; size_t width; } rooms[] = {
        { &m->x, m->n_embd }, { &m->xn, m->n_embd }, { &m->q, nq }, { &m->k, nkv }, { &m->v, nkv }, { &m->attn, nq },
        { &m->gate, m->n_ff }, { &m->up, m->n_ff }, { &m->cs, m->rope.n_rot },
    };
    plp_status s;

    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
        if ((s = m->backend->ops->buffer(m->backend, n * rooms[i].width * sizeof(float), (void **)rooms[i].p, l->err)) < 0)
            return s;
    if ((s = m->backend->ops->buffer(m->backend, PLP_LOGIT_ROWS * (size_t)m->n_vocab * sizeof(float), (void **)&m->logits, l->err)) < 0)
        return s;
    if (!(m->cs_host = plp_alloc(PLP_MEM_SCRATCH, n * m->rope.n_rot, sizeof(float))))
        return plp_fail(l->err, PLP_E_NOMEM, "model: no memory for %zu positions", n);
    return m->backend->ops->plan(m->backend, &(plp_plan){ .max_tokens = m->max_tokens, .max_k = l->max_k, .n_heads = m->n_heads,
                                 .n_kv_heads = m->n_kv_heads, .head_dim = m->head_dim }, l->err);
}

/* ---- open and close ---- */

static plp_status find_arch(loader *l, const struct arch **out)
{
    char list[400];
    plp_status s = plp_meta_str(l->f, "general.architecture", "", l->m->architecture, sizeof l->m->architecture, l->err);
    if (s < 0)
        return s;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (!strcmp(archs[i].name, l->m->architecture)) {
            *out = &archs[i];
            return PLP_OK;
        }
    if (!l->m->architecture[0])
        return plp_fail(l->err, PLP_E_FILE, "general.architecture is missing; the file does not say what model it holds");
    supported(list, sizeof list);
    return plp_fail(l->err, PLP_E_UNSUPPORTED, "architecture \"%s\" is not supported; these are: %s", l->m->architecture, list);
}

plp_status plp_model_open(plp_model **out, const plp_file *f, plp_backend *b, const plp_model_options *o, plp_error *err)
{
    const struct arch *arch;
    plp_status s;
    plp_model *m = plp_zalloc(PLP_MEM_MODEL, 1, sizeof *m);
    loader l = { .m = m, .f = f, .err = err };

    if (!m)
        return plp_fail(err, PLP_E_NOMEM, "model: no memory");
    m->backend = b;
    m->file = f;
    m->max_tokens = o->max_tokens;
    m->block_len = o->block_len;
    m->kv_format = o->kv_format;
    if ((s = find_arch(&l, &arch)) < 0 || (s = read_shape(&l)) < 0 || (s = bind_all(&l)) < 0 ||
        (s = plp_rope_open(&m->rope, f, m->architecture, m->head_dim, arch->rope_kind, err)) < 0 || (s = make_room(&l)) < 0) {
        plp_model_close(m);
        return s;
    }
    m->forward = arch->forward;
    *out = m;
    return PLP_OK;
}

void plp_model_close(plp_model *m)
{
    if (!m)
        return;
    plp_rope_close(&m->rope);
    plp_free(m->layers);
    plp_free(m->cs_host);
    plp_free(m);
}

/* A few rows at a time: logits are wide (0.5 MB a row for 128k tokens). xn and x are free by now. */
void plp_model_logits(plp_model *m, const plp_batch *batch)
{
    const plp_ops *ops = m->backend->ops;
    const size_t bytes = m->n_vocab * sizeof(float);

    for (uint32_t i = 0; i < batch->n_out; i += PLP_LOGIT_ROWS) {
        const uint32_t n = batch->n_out - i < PLP_LOGIT_ROWS ? batch->n_out - i : PLP_LOGIT_ROWS;
        ops->gather(m->backend, m->xn, m->x, m->n_embd, batch->out_rows + i, n);
        ops->rmsnorm(m->backend, m->xn, m->xn, m->n_embd, m->output_norm.data, n, m->n_embd, m->eps);
        ops->linear(m->backend, &(plp_product){ &m->output, NULL, m->logits, m->n_vocab }, 1, m->xn, m->n_embd, n);
        for (uint32_t t = 0; t < n; t++)
            ops->download(m->backend, batch->out[i + t], m->logits + (size_t)t * m->n_vocab, bytes);
    }
}

void plp_model_forward(plp_model *m, const plp_batch *batch) { m->forward(m, batch); }

size_t plp_model_block_bytes(const plp_model *m, uint32_t group, int32_t kv_format)
{
    const size_t n = m->group[group].n_layers * (size_t)m->n_kv_heads * plp_tile_bytes(kv_format, m->head_dim, m->block_len);
    return (n + 63) / 64 * 64;              /* the pool's alignment */
}
