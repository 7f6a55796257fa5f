/* engine/engine.c - open and close an engine: file, vocabulary, backend, model, pool, index; and what it says of itself */
#include "engine/engine.h"
#include "backend/devices.h"
#include "base/mem.h"
#include "format/gguf.h"

#include <stdio.h>
#include <string.h>

void plp_engine_defaults(plp_engine_options *o)
{
    *o = (plp_engine_options){ .block_len = PLP_DEFAULT_BLOCK };
}

plp_status plp_machine_info(plp_machine *out, plp_error *err)
{
    const plp_kernels *k;
    const plp_status s = plp_kernels_get(&k, err);
    if (s < 0)
        return s;
    *out = (plp_machine){ .memory_bytes = plp_memory_bytes() };
    snprintf(out->tier, sizeof out->tier, "%s", k->tier);
    plp_cpu_describe(plp_cpu_features(), out->features, sizeof out->features);
    out->n_threads = plp_cpu_count(out->threads_reason, sizeof out->threads_reason);
    return PLP_OK;
}

/* ---- open ---- */

static plp_status check_options(plp_engine_options *o, plp_error *err)
{
    if (!o->block_len)
        o->block_len = PLP_DEFAULT_BLOCK;
    if (o->block_len < PLP_LEAST_BLOCK || o->block_len > PLP_MOST_BLOCK || (o->block_len & (o->block_len - 1)))
        return plp_fail(err, PLP_E_ARG, "block length %u; powers of two from %u to %u are possible", o->block_len, PLP_LEAST_BLOCK,
                        PLP_MOST_BLOCK);
    if (o->chunk_len > PLP_MAX_CHUNK)
        return plp_fail(err, PLP_E_ARG, "chunk length %u; up to %u are possible", o->chunk_len, PLP_MAX_CHUNK);
    if (o->n_threads > 1024)
        return plp_fail(err, PLP_E_ARG, "%u threads; up to 1024 are possible", o->n_threads);
    if (o->kv_format < PLP_KV_F16 || o->kv_format > PLP_KV_Q4)
        return plp_fail(err, PLP_E_ARG, "KV format %d; f16 (0), q8 (1) and q4 (2) are possible", o->kv_format);
    if (o->kv_format != PLP_KV_F16 && o->block_len != PLP_DEFAULT_BLOCK)
        return plp_fail(err, PLP_E_ARG, "quantised KV has blocks of %u tokens, not %u", PLP_DEFAULT_BLOCK, o->block_len);
    if (!o->kv_budget_bytes)
        o->kv_budget_bytes = plp_memory_bytes() / 2;
    return PLP_OK;
}

static plp_status open_backend(plp_engine *e, plp_error *err)
{
    const char *device = e->options.device ? e->options.device : "auto";
    const plp_status s = plp_backend_open(&e->backend, device, e->options.n_threads, err);
    if (s == PLP_OK && e->backend->ops->slab_map && e->options.kv_layout != PLP_LAYOUT_PAGED)
        return plp_fail(err, PLP_E_ARG, "contiguous KV is a baseline for the CPU; device \"%.40s\" has pages only", device);
    return s;
}

static plp_status open_pool(plp_engine *e, plp_error *err)
{
    const plp_engine_options *o = &e->options;
    plp_pool_spec spec = { .budget_bytes = o->kv_budget_bytes, .cache_bytes = o->kv_cache_bytes ? o->kv_cache_bytes : 1,
                           .shuffle = o->flags & PLP_ENGINE_SHUFFLE, .seed = 1 };
    plp_status s;

    for (uint32_t g = 0; g < e->model->n_groups; g++) {
        spec.block_bytes[plp_open_class(e, g)] = plp_model_block_bytes(e->model, g, PLP_KV_F16);
        spec.block_bytes[plp_sealed_class(e, g)] = plp_model_block_bytes(e->model, g, o->kv_format);
        spec.n_classes = plp_sealed_class(e, g) + 1;
    }
    for (uint32_t c = 0; c < spec.n_classes; c++)
        if (spec.block_bytes[c] > e->largest_block)
            e->largest_block = spec.block_bytes[c];
    for (uint32_t c = 1; c < spec.n_classes; c++)
        if (!spec.block_bytes[c])           /* groups with one format have no class for another, but a class has a size */
            spec.block_bytes[c] = spec.block_bytes[c - 1];
    if (e->backend->ops->slab_map)
        spec.source = (plp_slab_source){ .map = e->backend->ops->slab_map, .unmap = e->backend->ops->slab_unmap,
                                         .context = e->backend };
    if ((s = plp_pool_open(&e->pool, &spec, err)) < 0 || o->flags & PLP_ENGINE_NO_REUSE)
        return s;
    return plp_prefix_open(&e->prefix, e->pool, o->block_len, o->flags & PLP_ENGINE_ONE_HASH ? 0 : ~(uint64_t)0, err);
}

/* Said at once: a session could only ever be refused, and closing others would not help it. */
static plp_status check_budget(const plp_engine *e, plp_error *err)
{
    const uint64_t budget = e->options.kv_budget_bytes;
    uint64_t least = 0;

    for (uint32_t g = 0; g < e->model->n_groups; g++)
        least += plp_pool_least_bytes(e->pool, plp_open_class(e, g), 1);
    if (budget < least)
        return plp_fail_amount(err, PLP_E_BUDGET, least, budget, "a KV budget of %llu bytes is too small for even one token of this "
                               "model: it needs at least %llu KiB", (unsigned long long)budget, (unsigned long long)(least + 1023) / 1024);
    return PLP_OK;
}

static plp_status open_batch(plp_engine *e, plp_error *err)
{
    const size_t n = e->max_tokens;
    e->ids = plp_alloc(PLP_MEM_SESSION, n, sizeof *e->ids);
    e->pos = plp_alloc(PLP_MEM_SESSION, n, sizeof *e->pos);
    e->out_rows = plp_alloc(PLP_MEM_SESSION, n, sizeof *e->out_rows);
    e->out = plp_alloc(PLP_MEM_SESSION, n, sizeof *e->out);
    e->seqs = plp_alloc(PLP_MEM_SESSION, n, sizeof *e->seqs);
    e->batch = plp_alloc(PLP_MEM_SESSION, n, sizeof *e->batch);
    if (!e->ids || !e->pos || !e->out_rows || !e->out || !e->seqs || !e->batch)
        return plp_fail(err, PLP_E_NOMEM, "engine: no memory for batches of %zu tokens", n);
    return PLP_OK;
}

static plp_status open_parts(plp_engine *e, const char *path, plp_error *err)
{
    const plp_engine_options *o = &e->options;
    plp_status s;
    if ((s = check_options(&e->options, err)) < 0 || (s = plp_file_open(&e->file, path, 0, err)) < 0 ||
        (s = plp_vocab_open(&e->vocab, e->file, err)) < 0 || (s = open_backend(e, err)) < 0)
        return s;
    e->paced = !e->options.chunk_len;
    if (e->paced)
        e->options.chunk_len = PLP_PACED_CHUNK;
    e->pace = e->paced ? PLP_FIRST_CHUNK : e->options.chunk_len;
    plp_guess_start(e);
    e->max_tokens = e->options.chunk_len > PLP_LOGIT_ROWS ? e->options.chunk_len : PLP_LOGIT_ROWS;
    const plp_model_options mo = { .max_tokens = e->max_tokens, .block_len = e->options.block_len,
                                   .kv_format = e->options.kv_format, .context_limit = e->options.context_limit };
    if ((s = plp_model_open(&e->model, e->file, e->backend, &mo, err)) < 0)
        return s;
    plp_vocab_info vi;
    plp_vocab_get_info(e->vocab, &vi);
    if (vi.n_tokens > e->model->n_vocab)
        return plp_fail(err, PLP_E_FILE, "the vocabulary has %u tokens, but token_embd.weight only %u rows", vi.n_tokens,
                        e->model->n_vocab);
    if (!e->options.context_limit)
        e->options.context_limit = e->model->context_train;
    if (e->options.flags & PLP_ENGINE_PREFETCH)
        plp_file_willneed(e->file);
    if (e->options.flags & PLP_ENGINE_MLOCK && (s = plp_file_lock(e->file, err)) < 0)
        return s;
    if ((s = open_pool(e, err)) < 0 || (s = check_budget(e, err)) < 0 || (o->spill_dir && (s = plp_scratch_open(&e->spill_file, o->spill_dir, err)) < 0))
        return s;
    plp_engine_set_fingerprint(e);
    return open_batch(e, err);
}

/* Everything but the shell (lock, references), which sessions may still point to. */
static void close_parts(plp_engine *e)
{
    plp_prefix_close(e->prefix);
    plp_pool_close(e->pool);
    plp_model_close(e->model);
    if (e->backend)
        e->backend->ops->close(e->backend);
    plp_vocab_close(e->vocab);
    plp_file_close(e->file);
    plp_free(e->ids);
    plp_free(e->pos);
    plp_free(e->out_rows);
    plp_free(e->out);
    plp_free(e->seqs);
    plp_free(e->batch);
    plp_free(e->companions);
    plp_scratch_close(e->spill_file);
    for (uint32_t c = 0; c < PLP_N_CLASSES; c++)
        plp_free(e->spill_class[c].free);
    e->prefix = NULL, e->pool = NULL, e->model = NULL, e->backend = NULL, e->vocab = NULL, e->file = NULL;
}

plp_status plp_engine_open(plp_engine **out, const char *path, const plp_engine_options *o, plp_error *err)
{
    plp_engine *e = plp_zalloc(PLP_MEM_OTHER, 1, sizeof *e);
    if (!e || !(e->lock = plp_mutex_open())) {
        plp_free(e);
        return plp_fail(err, PLP_E_NOMEM, "engine: no memory");
    }
    e->n_references = 1;
    e->queue_end = &e->queue;
    if (o)
        e->options = *o;
    else
        plp_engine_defaults(&e->options);
    const plp_status s = path ? open_parts(e, path, err) : plp_fail(err, PLP_E_ARG, "engine: no path given");
    e->options.device = NULL;               /* the caller's strings are not kept */
    e->options.spill_dir = NULL;
    if (s < 0) {
        close_parts(e);
        plp_engine_release(e);
        return s;
    }
    *out = e;
    return PLP_OK;
}

/* ---- close ---- */

void plp_engine_release(plp_engine *e)
{
    plp_mutex_lock(e->lock);
    const bool last = --e->n_references == 0;
    plp_mutex_unlock(e->lock);
    if (last) {
        plp_mutex_close(e->lock);
        plp_free(e);
    }
}

void plp_engine_close(plp_engine *e)
{
    if (!e)
        return;
    plp_mutex_lock(e->lock);
    e->closed = true;                       /* nobody new enters; those inside finish their batch */
    while (e->leading || e->queue)
        plp_mutex_wait(e->lock);
    for (plp_session *s = e->sessions, *after; s; s = after) {
        after = s->after;
        plp_spill_forget(s);
        /* A call that holds the session but is not in a step will find `closed` when it takes the lock. */
        for (uint32_t g = 0; g < PLP_MAX_GROUPS; g++)
            plp_table_clear(&s->table[g], e->pool);
        if (s->pinned)
            plp_session_unmake(s);
    }
    close_parts(e);
    plp_mutex_unlock(e->lock);
    plp_engine_release(e);
}

/* ---- information ---- */

void plp_engine_get_info(const plp_engine *e, plp_engine_info *out)
{
    const plp_model *m = e->model;
    *out = (plp_engine_info){
        .n_layers = m->n_layers, .n_embd = m->n_embd, .n_vocab = m->n_vocab,
        .n_heads = m->n_heads, .n_kv_heads = m->n_kv_heads, .head_dim = m->head_dim, .context_train = m->context_train,
        .context_limit = e->options.context_limit, .block_len = e->options.block_len, .weights_bytes = m->weights_bytes,
        .n_params = m->n_params, .kv_budget_bytes = e->options.kv_budget_bytes, .kv_format = e->options.kv_format,
    };
    for (uint32_t g = 0; g < m->n_groups; g++)
        out->kv_bytes_per_token += plp_model_block_bytes(m, g, PLP_KV_F16) / plp_group_len(e, g);
    memcpy(out->architecture, m->architecture, sizeof out->architecture);
    snprintf(out->device, sizeof out->device, "%s", e->backend->ops->name);
    e->backend->ops->describe(e->backend, out->tier, sizeof out->tier, &out->n_threads);
}

const plp_vocab *plp_engine_vocab(const plp_engine *e) { return e->vocab; }
const plp_file  *plp_engine_file(const plp_engine *e)  { return e->file; }

void plp_engine_counters(plp_engine *e, plp_counters *out)
{
    plp_pool_stats p;
    plp_mutex_lock(e->lock);
    *out = e->counters;
    plp_pool_get_stats(e->pool, &p);
    out->blocks_evicted = p.n_evicted;
    plp_mutex_unlock(e->lock);
}

plp_status plp_engine_trim(plp_engine *e, uint64_t bytes, uint64_t *freed, plp_error *err)
{
    plp_mutex_lock(e->lock);
    uint64_t n = plp_pool_trim(e->pool, bytes), more = 1;
    plp_status status = PLP_OK;
    while (n < bytes && more && (status = plp_spill_idle(e, NULL, &more, err)) == PLP_OK)
        n += more;
    plp_mutex_unlock(e->lock);
    if (freed)
        *freed = n;
    return status;
}
