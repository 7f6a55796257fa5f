/*
 * engine/files.c - prefixes and sessions on disk: what a timeline's blocks are in a store, and back
 *
 * Runs of a file, by tag: a pool class (group and format) holds that group's blocks, the unfinished last
 * one in the open class. A session file ends with one more run of one block: its tag says how many tokens
 * were computed (bits 8 and up), and it holds what the last of them predicted (LOGITS), so that nothing is
 * computed on resuming, or nothing (STATE).
 *
 * Restored blocks lie in the mapping and are shared with whoever maps the file; the first write copies.
 */
#include "engine/engine.h"
#include "base/mem.h"
#include "kv/store.h"

#include <string.h>

enum { TAG_STATE = 200, TAG_LOGITS = 201, TAG_COMPUTED_SHIFT = 8 };

static uint32_t tag_kind(uint32_t tag)      { return tag & 255; }
static bool     is_blocks(uint32_t tag)     { return tag < TAG_STATE; }

/* Not of a closed engine, whose model is gone. */
static plp_store_shape shape_of(const plp_engine *e)
{
    plp_store_shape s = { .block_len = e->options.block_len, .n_layers = e->model->n_layers, .n_kv_heads = e->model->n_kv_heads,
                          .head_dim = e->model->head_dim, .kv_format = (uint32_t)e->options.kv_format };
    memcpy(s.fingerprint, e->fingerprint, sizeof s.fingerprint);
    return s;
}

/* ---- write ---- */

typedef struct source {
    const plp_session   *session;
    const plp_store_info *info;
    void                *room;              /* one block in host memory, or the logits padded */
} source;

/* Places after the last token hold whatever that memory held before, perhaps another conversation's keys.
 * A file gets zeros there, and so the same bytes whoever writes it. A running state has no such places. */
static void clear_tail(const plp_engine *e, uint32_t group, uint16_t *block, uint32_t n_stored)
{
    const plp_group *g = &e->model->group[group];
    const size_t len = g->block_len, dim = g->head_dim, tile = len * dim, n_tiles = (size_t)g->n_layers * g->n_kv_heads;

    if (g->state_bytes)
        return;
    for (size_t t = 0; t < n_tiles; t++, block += 2 * tile) {
        for (size_t d = 0; d < dim; d++)                    /* K [head_dim][block_len] */
            memset(block + d * len + n_stored, 0, (len - n_stored) * sizeof *block);
        memset(block + tile + n_stored * dim, 0, (len - n_stored) * dim * sizeof *block);     /* V [block_len][head_dim] */
    }
}

static const void *block_bytes(void *context, uint32_t run, uint32_t i)
{
    const source *src = context;
    const plp_engine *e = src->session->engine;
    const plp_store_run *r = &src->info->runs[run];

    if (!is_blocks(r->tag)) {
        memset(src->room, 0, r->block_bytes);
        if (tag_kind(r->tag) == TAG_LOGITS)
            memcpy(src->room, src->session->logits, e->model->n_vocab * sizeof(float));
        return src->room;
    }
    const uint32_t g = plp_group_of_class(r->tag);
    const plp_table *t = &src->session->table[g];
    const plp_block b = t->blocks[r->first + i];
    const uint32_t start = (r->first + i) * t->block_len, n = t->n_tokens - start;
    e->backend->ops->download(e->backend, src->room, plp_pool_data(e->pool, b), r->block_bytes);
    if (n < t->block_len)                   /* the open one: always f16 */
        clear_tail(e, g, src->room, n);
    return src->room;
}

/* Runs for the blocks of tokens [from, n_tokens) of every group; a table that dropped blocks behind its window starts later. */
static void list_runs(const plp_session *s, uint32_t n_tokens, uint32_t from, plp_store_info *info)
{
    const plp_engine *e = s->engine;

    for (uint32_t g = 0; g < e->model->n_groups; g++) {
        const uint32_t len = plp_group_len(e, g), full = n_tokens / len, end = (n_tokens + len - 1) / len, from_block = from / len;
        const uint32_t first = s->table[g].first > from_block ? s->table[g].first : from_block;
        const uint32_t open = plp_open_class(e, g), sealed = plp_sealed_class(e, g);
        const uint32_t whole = open == sealed ? end : full;
        if (whole > first)
            info->runs[info->n_runs++] = (plp_store_run){ plp_pool_block_bytes(e->pool, sealed), whole - first, first, sealed };
        if (end > whole)
            info->runs[info->n_runs++] = (plp_store_run){ plp_pool_block_bytes(e->pool, open), 1, whole, open };
    }
}

static plp_status write_store(const plp_session *s, const char *path, const plp_store_info *info, plp_error *err)
{
    size_t most = 64;
    for (uint32_t i = 0; i < info->n_runs; i++)
        if (info->runs[i].block_bytes > most)
            most = info->runs[i].block_bytes;
    void *room = plp_alloc(PLP_MEM_SESSION, most, 1);
    if (!room)
        return plp_fail(err, PLP_E_NOMEM, "%s: no memory to write it", path);
    const plp_status status = plp_store_save(path, info, block_bytes, &(source){ s, info, room }, err);
    plp_free(room);
    return status;
}

plp_status plp_prefix_save(plp_session *s, uint32_t n, const char *path, plp_error *err)
{
    plp_session *cut = NULL;
    plp_status status = plp_session_enter(s, err);
    if (status < 0)
        return status;
    plp_engine *e = s->engine;
    plp_store_info info = { .kind = PLP_STORE_PREFIX, .shape = shape_of(e), .n_tokens = n, .tokens = s->tokens,
                            .note = s->note, .note_bytes = s->note_bytes };

    if (n == 0 || n > s->n_computed)
        status = plp_fail(err, PLP_E_ARG, "prefix of %u tokens; the session has %u computed ones", n, s->n_computed);
    else if ((status = plp_spill_restore(s, err)) == PLP_OK && (status = plp_session_fork_locked(&cut, s, err)) == PLP_OK) {
        plp_session_cut(cut, n, false);
        if (cut->n_computed < n)            /* a quantised block in the middle of which the prefix ends */
            info.n_tokens = cut->n_computed;
        list_runs(cut, info.n_tokens, 0, &info);
        status = info.n_tokens ? write_store(cut, path, &info, err)
                               : plp_fail(err, PLP_E_ARG, "prefix of %u of %u tokens: it can end where the session does, or after each "
                                          "%u tokens", n, s->n_computed, plp_group_len(e, e->model->n_groups - 1));
        plp_session_unmake(cut);
    }
    plp_session_leave(s);
    return status;
}

/* ---- read ---- */

static plp_status open_store(plp_store **out, const plp_engine *e, const char *path, uint32_t kind, plp_error *err)
{
    const plp_store_shape shape = shape_of(e);
    return plp_store_open(out, path, kind, &shape, err);
}

static plp_status check_tokens(const plp_engine *e, const plp_store_info *info, const char *path, plp_error *err)
{
    for (uint32_t i = 0; i < info->n_tokens; i++)
        if (info->tokens[i] < 0 || (uint32_t)info->tokens[i] >= e->model->n_vocab)
            return plp_fail(err, PLP_E_FILE, "%s: token %u is %d, outside the vocabulary", path, i, info->tokens[i]);
    return PLP_OK;
}

static plp_status adopt_block(plp_session *s, plp_store *store, uint32_t cls, void *data, plp_error *err)
{
    plp_engine *e = s->engine;
    plp_block b;
    plp_status status;

    if (e->backend->ops->slab_map) {        /* blocks lie with the device, the file's pages do not */
        if ((status = plp_pool_take(e->pool, cls, 1, &b, err)) < 0)
            return status;
        e->backend->ops->upload(e->backend, plp_pool_data(e->pool, b), data, plp_pool_block_bytes(e->pool, cls));
    } else {
        plp_store_keep(store);
        if ((status = plp_pool_adopt(e->pool, cls, data, plp_store_drop, store, &b, err)) < 0) {
            plp_store_drop(store);
            return status;
        }
    }
    if ((status = plp_table_adopt(&s->table[plp_group_of_class(cls)], e->pool, b, err)) < 0)
        plp_pool_drop(e->pool, b);
    return status;
}

/* Whether a run holds blocks of this model, by its tag and their size. */
static bool fits(const plp_engine *e, const plp_store_run *run)
{
    const uint32_t g = plp_group_of_class(run->tag);
    return g < e->model->n_groups && (run->tag == plp_open_class(e, g) || run->tag == plp_sealed_class(e, g)) &&
           run->block_bytes == plp_pool_block_bytes(e->pool, run->tag);
}

/* Whether a table that ends at n tokens has every block that the next one looks back to. */
static bool whole(const plp_engine *e, uint32_t g, const plp_table *t, uint32_t n)
{
    const plp_group *of = &e->model->group[g];
    const uint64_t gone = (uint64_t)t->first * t->block_len;
    return !gone || (of->state_bytes ? gone < n : of->window && gone + of->window <= (uint64_t)n + 1);
}

/* Put a store's blocks behind what the session's tables hold; n_tokens: where the last of them ends. */
static plp_status adopt_runs(plp_session *s, plp_store *store, const char *path, uint32_t n_tokens, plp_error *err)
{
    plp_engine *e = s->engine;
    const plp_store_info *info = plp_store_get(store);
    plp_status status = PLP_OK;

    for (uint32_t r = 0; r < info->n_runs; r++) {
        const plp_store_run *run = &info->runs[r];
        if (!is_blocks(run->tag))
            continue;
        if (!fits(e, run))
            return plp_fail(err, PLP_E_FILE, "%s: run %u holds blocks of another model", path, r);
        const uint32_t g = plp_group_of_class(run->tag);
        plp_table *t = &s->table[g];
        const uint32_t len = t->block_len, end = (n_tokens + len - 1) / len;
        while (t->n_tokens / len < run->first && e->model->group[g].window)
            if ((status = plp_table_adopt_gap(t, e->pool, err)) < 0)
                return status;
        if (t->n_tokens / len != run->first || run->first + run->n_blocks > end)
            return plp_fail(err, PLP_E_FILE, "%s: run %u is at block %u; block %u follows", path, r, run->first, t->n_tokens / len);
        for (uint32_t i = 0; i < run->n_blocks; i++)
            if ((status = adopt_block(s, store, run->tag, plp_store_block(store, r, i), err)) < 0)
                return status;
    }
    for (uint32_t g = 0; g < e->model->n_groups; g++) {
        if (s->table[g].n_tokens < n_tokens)
            return plp_fail(err, PLP_E_FILE, "%s: holds blocks for %u of its %u tokens", path, s->table[g].n_tokens, n_tokens);
        if (!whole(e, g, &s->table[g], n_tokens))
            return plp_fail(err, PLP_E_FILE, "%s: lacks blocks that its next token looks back to", path);
        plp_table_rewind(&s->table[g], e->pool, n_tokens);
    }
    s->n_computed = n_tokens;
    return PLP_OK;
}

plp_status plp_prefix_load(plp_engine *e, const char *path, uint64_t *pin, uint32_t *n_tokens, plp_error *err)
{
    plp_store *store;
    plp_session *s = NULL;
    plp_status status;

    plp_mutex_lock(e->lock);
    if (e->closed)
        status = plp_fail(err, PLP_E_CLOSED, "the model was closed");
    else if ((status = open_store(&store, e, path, PLP_STORE_PREFIX, err)) == PLP_OK) {
        const plp_store_info *info = plp_store_get(store);
        if ((status = check_tokens(e, info, path, err)) == PLP_OK && (status = plp_session_make(&s, e, err)) == PLP_OK &&
            (status = plp_session_append(s, info->tokens, info->n_tokens, err)) == PLP_OK &&
            (status = adopt_runs(s, store, path, info->n_tokens, err)) == PLP_OK) {
            plp_session_publish(s);
            s->pinned = true;
            s->pin_id = *pin = ++e->next_pin;
            *n_tokens = info->n_tokens;
        } else if (s) {
            plp_session_unmake(s);
        }
        plp_store_drop(store);
    }
    plp_mutex_unlock(e->lock);
    return status;
}

plp_status plp_session_save(plp_session *s, const char *path, const char *prefix_path, plp_error *err)
{
    plp_store *prefix = NULL;
    plp_status status = plp_session_enter(s, err);
    if (status < 0)
        return status;
    plp_engine *e = s->engine;
    plp_store_info info = { .kind = PLP_STORE_SESSION, .shape = shape_of(e), .n_tokens = s->n_tokens, .tokens = s->tokens,
                            .note = s->note, .note_bytes = s->note_bytes };
    uint32_t from = 0;

    status = plp_spill_restore(s, err);
    if (status == PLP_OK && prefix_path && (status = open_store(&prefix, e, prefix_path, PLP_STORE_PREFIX, err)) == PLP_OK) {
        const plp_store_info *p = plp_store_get(prefix);
        if (p->n_tokens <= s->n_computed && !memcmp(p->tokens, s->tokens, p->n_tokens * sizeof *p->tokens)) {
            from = p->n_tokens / e->options.block_len * e->options.block_len;
            info.ref_path = prefix_path;
            info.ref_id = plp_store_id(prefix);
            info.ref_tokens = from;
        } else {
            status = plp_fail(err, PLP_E_ARG, "%s: the session does not begin with this prefix", prefix_path);
        }
    }
    if (status == PLP_OK) {
        list_runs(s, s->n_computed, from, &info);
        const bool logits = s->has_logits;
        const uint64_t bytes = logits ? (e->model->n_vocab * sizeof(float) + 63) / 64 * 64 : 64;
        if (s->n_tokens)
            info.runs[info.n_runs++] = (plp_store_run){ bytes, 1, 0, (logits ? TAG_LOGITS : TAG_STATE) | s->n_computed << TAG_COMPUTED_SHIFT };
        status = write_store(s, path, &info, err);
    }
    plp_store_drop(prefix);
    plp_session_leave(s);
    return status;
}

/* The prefix's whole blocks, as far as the session file counts on them. */
static plp_status adopt_reference(plp_session *s, const plp_store_info *info, plp_error *err)
{
    plp_engine *e = s->engine;
    plp_store *prefix;
    plp_status status = open_store(&prefix, e, info->ref_path, PLP_STORE_PREFIX, err);

    if (status < 0)
        return status;
    const plp_store_info *p = plp_store_get(prefix);
    if (plp_store_id(prefix) != info->ref_id || p->n_tokens < info->ref_tokens || info->ref_tokens > info->n_tokens ||
        memcmp(p->tokens, info->tokens, info->ref_tokens * sizeof *p->tokens))
        status = plp_fail(err, PLP_E_FILE, "%s: is not the prefix that the session was saved with", info->ref_path);
    for (uint32_t r = 0; status == PLP_OK && r < p->n_runs; r++) {
        const plp_store_run *run = &p->runs[r];
        const uint32_t g = plp_group_of_class(run->tag);
        if (!fits(e, run) || run->tag != plp_sealed_class(e, g))
            continue;
        plp_table *t = &s->table[g];
        const uint32_t len = t->block_len, n = info->ref_tokens / len;
        while (status == PLP_OK && t->n_tokens / len < run->first)
            status = plp_table_adopt_gap(t, e->pool, err);
        for (uint32_t i = 0; status == PLP_OK && i < run->n_blocks && run->first + i < n; i++)
            status = adopt_block(s, prefix, run->tag, plp_store_block(prefix, r, i), err);
    }
    plp_store_drop(prefix);
    return status;
}

static plp_status resume(plp_session *s, plp_store *store, const char *path, plp_error *err)
{
    plp_engine *e = s->engine;
    const plp_store_info *info = plp_store_get(store);
    const plp_store_run *last = info->n_runs ? &info->runs[info->n_runs - 1] : NULL;
    const uint32_t n_computed = last ? last->tag >> TAG_COMPUTED_SHIFT : 0;
    plp_status status;

    if (info->note_bytes) {
        if (!(s->note = plp_alloc(PLP_MEM_SESSION, info->note_bytes, 1)))
            return plp_fail(err, PLP_E_NOMEM, "%s: no memory for its note", path);
        memcpy(s->note, info->note, info->note_bytes);
        s->note_bytes = info->note_bytes;
    }
    if (!info->n_tokens)
        return PLP_OK;                      /* an empty session */
    if (!last || is_blocks(last->tag) || n_computed > info->n_tokens)
        return plp_fail(err, PLP_E_FILE, "%s: does not say how far it was computed", path);
    if ((status = check_tokens(e, info, path, err)) < 0 || (status = plp_session_append(s, info->tokens, info->n_tokens, err)) < 0 ||
        (info->ref_path && (status = adopt_reference(s, info, err)) < 0) ||
        (status = adopt_runs(s, store, path, n_computed, err)) < 0)
        return status;
    if (tag_kind(last->tag) == TAG_LOGITS) {
        const size_t bytes = e->model->n_vocab * sizeof *s->logits;
        if (last->block_bytes < bytes || s->n_computed != s->n_tokens)
            return plp_fail(err, PLP_E_FILE, "%s: its logits are those of another model", path);
        if (!(s->logits = plp_alloc(PLP_MEM_SESSION, 1, bytes)))
            return plp_fail(err, PLP_E_NOMEM, "%s: no memory for logits", path);
        memcpy(s->logits, plp_store_block(store, info->n_runs - 1, 0), bytes);
        s->has_logits = true;
    }
    plp_session_publish(s);
    return PLP_OK;
}

plp_status plp_session_resume(plp_session **out, plp_engine *e, const char *path, plp_error *err)
{
    plp_store *store;
    plp_session *s = NULL;
    plp_status status;

    plp_mutex_lock(e->lock);
    if (e->closed)
        status = plp_fail(err, PLP_E_CLOSED, "the model was closed");
    else if ((status = open_store(&store, e, path, PLP_STORE_SESSION, err)) == PLP_OK) {
        if ((status = plp_session_make(&s, e, err)) == PLP_OK && (status = resume(s, store, path, err)) < 0)
            plp_session_unmake(s);
        plp_store_drop(store);
    }
    plp_mutex_unlock(e->lock);
    if (status == PLP_OK)
        *out = s;
    return status;
}
