/*
 * engine/spill.c - an idle session's blocks to a file, and back
 *
 * The second rung of the budget ladder, and only if a folder was given: when the budget refuses blocks to
 * somebody, the session that has been idle longest gives up the blocks that it alone holds. They are
 * written to an unlinked scratch file and read back, bit for bit, at that session's next step. Shared
 * blocks stay: others pay for them anyway.
 *
 * While a session is spilled its tables keep their entries for shared blocks; an entry that was spilled is
 * PLP_NO_BLOCK and `spilled` lists where it is. Such a table is not used before it is restored.
 */
#include "engine/engine.h"
#include "base/mem.h"

#include <string.h>

/* ---- places in the file: a list of free runs would be more than this needs; equal blocks of a few classes ---- */

static uint64_t take_place(plp_engine *e, uint32_t cls)
{
    plp_spill_class *c = &e->spill_class[cls];
    if (c->n_free)
        return c->free[--c->n_free];
    const uint64_t at = e->spill_end;
    e->spill_end += plp_pool_block_bytes(e->pool, cls);
    return at;
}

/* Best effort: a place that cannot be remembered is not used again. */
static void give_place(plp_engine *e, uint32_t cls, uint64_t at)
{
    plp_spill_class *c = &e->spill_class[cls];
    if (c->n_free == c->cap) {
        const uint32_t cap = c->cap * 2 + 64;
        uint64_t *more = plp_resize(PLP_MEM_KV, c->free, cap, sizeof *more);
        if (!more)
            return;
        c->free = more;
        c->cap = cap;
    }
    c->free[c->n_free++] = at;
}

/* ---- one session ---- */

static bool is_own(const plp_engine *e, plp_block b)
{
    return b != PLP_NO_BLOCK && plp_pool_refs(e->pool, b) == 1 && !plp_pool_is_mapped(e->pool, b);
}

static uint32_t count_own(const plp_session *s)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < s->engine->model->n_groups; g++)
        for (uint32_t i = s->table[g].first; i < s->table[g].n_blocks; i++)
            n += is_own(s->engine, s->table[g].blocks[i]);
    return n;
}

static plp_status spill_session(plp_session *s, plp_error *err)
{
    plp_engine *e = s->engine;
    const uint32_t n = count_own(s);
    plp_status status = PLP_OK;

    plp_guess_forget(s);
    /* Blocks reserved for tokens that did not come hold nothing. */
    for (uint32_t g = 0; g < e->model->n_groups; g++)
        plp_table_rewind(&s->table[g], e->pool, s->n_computed);
    plp_spilled *list = plp_alloc(PLP_MEM_SESSION, n ? n : 1, sizeof *list);
    void *room = plp_alloc(PLP_MEM_SESSION, e->largest_block, 1);
    if (!list || !room) {
        plp_free(list);
        plp_free(room);
        return plp_fail(err, PLP_E_NOMEM, "spill: no memory to list %u blocks", n);
    }
    for (uint32_t g = 0; g < e->model->n_groups && status == PLP_OK; g++)
        for (uint32_t i = s->table[g].n_blocks; i-- > s->table[g].first && status == PLP_OK; ) {
            const plp_block b = s->table[g].blocks[i];
            if (!is_own(e, b))
                continue;
            const uint32_t cls = plp_pool_class(e->pool, b);
            const size_t bytes = plp_pool_block_bytes(e->pool, cls);
            const uint64_t at = take_place(e, cls);
            e->backend->ops->download(e->backend, room, plp_pool_data(e->pool, b), bytes);
            if ((status = plp_scratch_write(e->spill_file, at, room, bytes, err)) < 0) {
                give_place(e, cls, at);
                break;
            }
            list[s->n_spilled++] = (plp_spilled){ .group = g, .index = i, .cls = cls, .place = at };
            if (e->prefix)
                plp_prefix_remove(e->prefix, b);        /* nobody may find what is not there */
            plp_pool_set_findable(e->pool, b, false);
            s->table[g].blocks[i] = PLP_NO_BLOCK;
            plp_pool_drop(e->pool, b);
            e->counters.blocks_spilled++;
        }
    plp_free(room);
    s->spilled = list;                      /* on failure too: what was written is there to be restored */
    if (!s->n_spilled) {
        plp_free(s->spilled);
        s->spilled = NULL;
    }
    return status;
}

plp_status plp_spill_idle(plp_engine *e, const plp_session *not_this, uint64_t *freed, plp_error *err)
{
    plp_session *idlest = NULL;
    plp_status status;
    plp_pool_stats before, after;

    *freed = 0;
    if (!e->spill_file)
        return PLP_OK;
    for (plp_session *s = e->sessions; s; s = s->after)
        if (s != not_this && !s->pinned && !s->spilled && !atomic_load(&s->busy) && (!idlest || s->last_used < idlest->last_used) && count_own(s))
            idlest = s;
    if (!idlest)
        return PLP_OK;
    plp_pool_get_stats(e->pool, &before);
    status = spill_session(idlest, err);
    plp_pool_trim(e->pool, UINT64_MAX);
    plp_pool_get_stats(e->pool, &after);
    *freed = before.held_bytes - after.held_bytes;
    return status;
}

void plp_spill_forget(plp_session *s)
{
    for (uint32_t k = 0; k < s->n_spilled; k++)
        give_place(s->engine, s->spilled[k].cls, s->spilled[k].place);
    plp_free(s->spilled);
    s->spilled = NULL;
    s->n_spilled = 0;
}

static plp_status take_one(plp_session *s, uint32_t cls, plp_block *b, plp_error *err)
{
    plp_engine *e = s->engine;
    uint64_t freed;
    plp_status status;
    while ((status = plp_pool_take(e->pool, cls, 1, b, err)) == PLP_E_BUDGET)
        if (plp_spill_idle(e, s, &freed, err) < 0 || !freed)
            break;
    return status;
}

plp_status plp_spill_restore(plp_session *s, plp_error *err)
{
    plp_engine *e = s->engine;
    plp_status status = PLP_OK;
    void *room = s->spilled ? plp_alloc(PLP_MEM_SESSION, e->largest_block, 1) : NULL;

    if (s->spilled && !room)
        return plp_fail(err, PLP_E_NOMEM, "spill: no memory to read a block back");
    while (s->n_spilled) {
        const plp_spilled *x = &s->spilled[s->n_spilled - 1];
        const size_t bytes = plp_pool_block_bytes(e->pool, x->cls);
        plp_block b;
        if ((status = take_one(s, x->cls, &b, err)) < 0)
            break;
        if ((status = plp_scratch_read(e->spill_file, x->place, room, bytes, err)) < 0) {
            plp_pool_drop(e->pool, b);
            break;
        }
        e->backend->ops->upload(e->backend, plp_pool_data(e->pool, b), room, bytes);
        s->table[x->group].blocks[x->index] = b;
        give_place(e, x->cls, x->place);
        e->counters.blocks_restored++;
        s->n_spilled--;
    }
    plp_free(room);
    if (status == PLP_OK && s->spilled) {
        plp_free(s->spilled);
        s->spilled = NULL;
        s->n_published = 0;                 /* findable again where the chain allows */
        plp_session_publish(s);
    }
    return status;
}
