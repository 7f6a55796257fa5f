/*
 * engine/ledger.c - what the pool holds, counted from the tables up
 *
 * The pool knows bytes per state of a block; what the bytes are for is only known here, where tokens are:
 * a held block's stored slots are token state (once, whoever shares it), its slots after the last stored
 * token are reserved for the next ones. A block that several tables list counts by the fullest of them.
 */
#include "engine/engine.h"
#include "base/mem.h"

/* Slots of block i that a table of n_tokens has stored. */
static uint32_t stored(const plp_table *t, uint32_t i)
{
    const uint32_t first = i * t->block_len;
    const uint32_t n = t->n_tokens > first ? t->n_tokens - first : 0;
    return n < t->block_len ? n : t->block_len;
}

/* Bytes of `slots` slots of a table's block, by its class. */
static uint64_t slot_bytes(const plp_engine *e, const plp_table *t, plp_block b, uint32_t slots)
{
    return plp_pool_block_bytes(e->pool, plp_pool_class(e->pool, b)) * (uint64_t)slots / t->block_len;
}

/* Does a session before this one in the list hold the block, too? Then it has been counted. Shared blocks are full, or forks of
 * one open block, so they stand at the same place of every table. */
static bool listed_before(const plp_session *s, uint32_t g, uint32_t i)
{
    const plp_block b = s->table[g].blocks[i];
    if (plp_pool_refs(s->engine->pool, b) == 1)
        return false;
    for (const plp_session *p = s->engine->sessions; p != s; p = p->after)
        if (i < p->table[g].n_blocks && p->table[g].blocks[i] == b)
            return true;
    return false;
}

static uint32_t most_stored(const plp_session *s, uint32_t g, uint32_t i)
{
    uint32_t most = stored(&s->table[g], i);
    if (most == s->table[g].block_len || plp_pool_refs(s->engine->pool, s->table[g].blocks[i]) == 1)
        return most;
    for (const plp_session *p = s->after; p; p = p->after)
        if (i < p->table[g].n_blocks && p->table[g].blocks[i] == s->table[g].blocks[i] && stored(&p->table[g], i) > most)
            most = stored(&p->table[g], i);
    return most;
}

static void count_sessions(const plp_engine *e, plp_memory *m)
{
    for (const plp_session *s = e->sessions; s; s = s->after)
        for (uint32_t g = 0; g < e->model->n_groups; g++) {
            const plp_table *t = &s->table[g];
            for (uint32_t i = t->first; i < t->n_blocks; i++) {
                const plp_block b = t->blocks[i];
                if (b == PLP_NO_BLOCK)          /* in the spill file */
                    continue;
                const uint64_t whole = slot_bytes(e, t, b, t->block_len);
                if (listed_before(s, g, i)) {
                    m->shared_saved += whole;
                    continue;
                }
                if (plp_pool_is_mapped(e->pool, b)) {
                    m->mapped += whole;
                    continue;
                }
                const uint32_t n = most_stored(s, g, i);
                m->token_state += slot_bytes(e, t, b, n);
                m->reserved += whole - slot_bytes(e, t, b, n);
                m->n_blocks++;
                if (g == 0)
                    m->n_tokens += n;
            }
        }
}

static void count_pinned(const plp_engine *e, plp_memory *m)
{
    for (const plp_session *s = e->sessions; s; s = s->after)
        for (uint32_t g = 0; s->pinned && g < e->model->n_groups; g++)
            for (uint32_t i = s->table[g].first; i < s->table[g].n_blocks; i++)
                if (!plp_pool_is_mapped(e->pool, s->table[g].blocks[i]))
                    m->pinned += slot_bytes(e, &s->table[g], s->table[g].blocks[i], stored(&s->table[g], i));
}

static void count(const plp_engine *e, plp_memory *m)
{
    plp_pool_stats p;
    plp_pool_get_stats(e->pool, &p);
    *m = (plp_memory){ .resident = p.resident_bytes, .external = p.free_bytes + p.slack_bytes, .cached = p.cached_bytes,
                       .weights = e->model->weights_bytes, .n_slabs = p.n_slabs, .budget = p.budget_bytes,
                       .scratch = plp_mem_bytes(PLP_MEM_SCRATCH),
                       .metadata = p.metadata_bytes + (e->prefix ? plp_prefix_bytes(e->prefix) : 0) + plp_mem_bytes(PLP_MEM_SESSION) };
    for (const plp_session *s = e->sessions; s; s = s->after)
        for (uint32_t k = 0; k < s->n_spilled; k++)
            m->spilled += plp_pool_block_bytes(e->pool, s->spilled[k].cls);
    count_sessions(e, m);
    count_pinned(e, m);
}

void plp_engine_memory(plp_engine *e, plp_memory *out)
{
    plp_mutex_lock(e->lock);
    count(e, out);
    plp_mutex_unlock(e->lock);
}

void plp_session_get_memory(plp_session *s, plp_session_memory *out)
{
    plp_engine *e = s->engine;
    *out = (plp_session_memory){ 0 };
    plp_mutex_lock(e->lock);
    for (uint32_t g = 0; !e->closed && g < e->model->n_groups; g++) {
        const plp_table *t = &s->table[g];
        for (uint32_t i = t->first; i < t->n_blocks; i++) {
            const plp_block b = t->blocks[i];
            if (b == PLP_NO_BLOCK)
                continue;
            const uint64_t whole = slot_bytes(e, t, b, t->block_len);
            const bool shared = plp_pool_refs(e->pool, b) > 1 || plp_pool_is_mapped(e->pool, b);
            *(shared ? &out->shared : &out->own) += slot_bytes(e, t, b, stored(t, i));
            if (listed_before(s, g, i) || plp_pool_is_mapped(e->pool, b)) {
                out->saved += whole;
                out->n_saved_blocks++;
            }
            if (!shared)
                out->reserved += whole - slot_bytes(e, t, b, stored(t, i));
            out->n_blocks++;
            out->n_shared_blocks += shared;
        }
    }
    for (uint32_t k = 0; !e->closed && k < s->n_spilled; k++)
        out->spilled += plp_pool_block_bytes(e->pool, s->spilled[k].cls);
    out->n_tokens = s->n_tokens;
    plp_mutex_unlock(e->lock);
}

bool plp_engine_check(plp_engine *e)
{
    plp_memory m;
    plp_mutex_lock(e->lock);
    count(e, &m);
    bool ok = plp_pool_ok(e->pool) && (!e->prefix || plp_prefix_ok(e->prefix));
    ok = ok && m.resident == m.token_state + m.reserved + m.internal + m.external + m.cached;
    for (const plp_session *s = e->sessions; s && ok; s = s->after)
        for (uint32_t g = 0; g < e->model->n_groups && ok; g++)
            ok = (s->spilled || plp_table_ok(&s->table[g], e->pool)) && s->table[g].n_tokens == s->n_computed && s->n_computed <= s->n_tokens;
    plp_mutex_unlock(e->lock);
    return ok;
}
