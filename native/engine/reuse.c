/*
 * engine/reuse.c - what of a timeline is already there
 *
 * sync compares the new timeline with the session's own, token by token, then looks on in the index:
 * whole blocks are shared, and of the first block that matches only in part the matching head is copied,
 * so that reuse is exact to the token. At least one token is left to compute, because the caller wants
 * the logits after the last one.
 *
 * publish is the other side: blocks that became whole are entered in the index; where an equal block is
 * there already (two sessions computed the same prompt), this session takes that one and drops its own.
 */
#include "engine/engine.h"
#include "base/mem.h"

#include <string.h>

/* ---- other groups' blocks with the same tokens ---- */

static bool make_companions(plp_engine *e, plp_block b)
{
    const uint32_t others = e->model->n_groups - 1;
    if (b < e->n_companions)
        return true;
    const size_t cap = (size_t)b + b / 2 + 64;
    plp_companion *more = plp_resize(PLP_MEM_KV, e->companions, cap * others, sizeof *more);
    if (!more)
        return false;
    memset(more + (size_t)e->n_companions * others, 0, (cap - e->n_companions) * others * sizeof *more);
    e->companions = more;
    e->n_companions = (uint32_t)cap;
    return true;
}

static plp_block companion(const plp_engine *e, plp_block b, uint32_t g)
{
    const uint32_t others = e->model->n_groups - 1;
    if (b >= e->n_companions)
        return PLP_NO_BLOCK;
    const plp_companion *c = &e->companions[(size_t)b * others + g - 1];
    return c->of_generation && c->of_generation == plp_pool_generation(e->pool, b) &&
           c->generation == plp_pool_generation(e->pool, c->block) ? c->block : PLP_NO_BLOCK;
}

/* Best effort: without a companion the block is just not enough for a whole reuse. */
static void set_companions(plp_session *s, uint32_t i)
{
    plp_engine *e = s->engine;
    const uint32_t others = e->model->n_groups - 1;
    const plp_block b = s->table[0].blocks[i];

    if (!others || !make_companions(e, b))
        return;
    for (uint32_t g = 1; g <= others; g++) {
        const uint32_t end = (i + 1) * e->options.block_len, len = plp_group_len(e, g);
        if (end % len)
            continue;
        const plp_block c = s->table[g].blocks[end / len - 1];
        if (c == PLP_NO_BLOCK || companion(e, b, g) != PLP_NO_BLOCK)
            continue;
        plp_pool_set_findable(e->pool, c, true);        /* cached on its last drop, like the block itself */
        e->companions[(size_t)b * others + g - 1] = (plp_companion){ plp_pool_generation(e->pool, b), c, plp_pool_generation(e->pool, c) };
    }
}

/* ---- publish ---- */

void plp_session_publish(plp_session *s)
{
    plp_engine *e = s->engine;
    const uint32_t len = e->options.block_len;
    plp_table *t = &s->table[0];

    for (; s->n_published < s->n_computed / len; s->n_published++) {
        const uint32_t i = s->n_published;
        if (!e->prefix || i < t->first || (i && t->blocks[i - 1] == PLP_NO_BLOCK))
            continue;
        const plp_block parent = i ? t->blocks[i - 1] : PLP_NO_BLOCK, mine = t->blocks[i];
        const plp_block known = plp_prefix_insert(e->prefix, parent, s->tokens + (size_t)i * len, mine);
        if (known != mine) {
            plp_pool_keep(e->pool, known);
            plp_table_replace(t, e->pool, i, known);
        }
        set_companions(s, i);
    }
}

/* ---- adopt ---- */

/* The chain of findable blocks that goes on from the table with these tokens: *chain (to be freed) and its length. */
static uint32_t find_chain(const plp_session *s, const int32_t *tokens, uint32_t n, plp_block **chain)
{
    const plp_engine *e = s->engine;
    const uint32_t len = e->options.block_len;
    const plp_table *t = &s->table[0];
    const uint32_t most = n > t->n_tokens + 1 ? (n - 1 - t->n_tokens) / len : 0;    /* one token stays to be computed */
    plp_block parent = t->n_tokens ? t->blocks[t->n_tokens / len - 1] : PLP_NO_BLOCK;
    uint32_t found = 0;

    *chain = NULL;
    if (!most || (t->n_tokens && parent == PLP_NO_BLOCK) || !(*chain = plp_alloc(PLP_MEM_SESSION, most, sizeof **chain)))
        return 0;
    while (found < most && (parent = plp_prefix_find(e->prefix, parent, tokens + t->n_tokens + (size_t)found * len)) != PLP_NO_BLOCK)
        (*chain)[found++] = parent;
    return found;
}

/* First block of a group that positions from `end` on still see; 0 without a window. */
static uint32_t first_needed(const plp_engine *e, uint32_t g, uint32_t end)
{
    const uint32_t window = e->model->group[g].window;
    return window && end > window ? (end - window) / plp_group_len(e, g) : 0;
}

/* Block i of another group, found through the block of the chain that ends with it. */
static plp_block found_through(const plp_session *s, const plp_block *chain, uint32_t g, uint32_t i)
{
    const plp_engine *e = s->engine;
    const uint32_t len = e->options.block_len, last = (i + 1) * plp_group_len(e, g) / len - 1;
    return companion(e, chain[last - s->table[0].n_tokens / len], g);
}

/* The longest part of the chain after which every other group's window is complete. */
static uint32_t usable(const plp_session *s, const plp_block *chain, uint32_t n)
{
    const plp_engine *e = s->engine;
    const uint32_t at = s->table[0].n_tokens;

    for (; n; n--) {
        const uint32_t end = at + n * e->options.block_len;
        bool whole = true;
        for (uint32_t g = 1; whole && g < e->model->n_groups; g++) {
            const uint32_t len = plp_group_len(e, g);
            whole = end % len == 0;
            for (uint32_t i = first_needed(e, g, end); whole && i < end / len; i++)
                whole = i < at / len ? i >= s->table[g].first : found_through(s, chain, g, i) != PLP_NO_BLOCK;
        }
        if (whole)
            return n;
    }
    return 0;
}

static bool adopt_one(plp_session *s, uint32_t g, plp_block b)
{
    plp_engine *e = s->engine;
    if (b == PLP_NO_BLOCK)
        return plp_table_adopt_gap(&s->table[g], e->pool, NULL) == PLP_OK;
    plp_pool_keep(e->pool, b);
    if (plp_table_adopt(&s->table[g], e->pool, b, NULL) == PLP_OK)
        return true;
    plp_pool_drop(e->pool, b);
    return false;
}

/* Append whole blocks from the index while they match. */
static void adopt_blocks(plp_session *s, const int32_t *tokens, uint32_t n)
{
    plp_engine *e = s->engine;
    const uint32_t len = e->options.block_len, at = s->table[0].n_tokens;
    plp_block *chain;
    bool ok = true;

    for (uint32_t g = 0; g < e->model->n_groups; g++)
        if (at % plp_group_len(e, g))
            return;
    const uint32_t found = find_chain(s, tokens, n, &chain), take = usable(s, chain, found), end = at + take * len;
    /* Group 0 last: the others are found relative to where it ends. */
    for (uint32_t g = e->model->n_groups; ok && g--; )
        for (uint32_t i = at / plp_group_len(e, g); ok && i < end / plp_group_len(e, g); i++)
            ok = adopt_one(s, g, g == 0 ? chain[i - at / len] : i < first_needed(e, g, end) ? PLP_NO_BLOCK : found_through(s, chain, g, i));
    for (uint32_t g = 0; !ok && g < e->model->n_groups; g++)
        plp_table_rewind(&s->table[g], e->pool, 0);     /* no memory for a list: what lay before the gaps is gone, too */
    s->n_published = s->table[0].n_tokens / len;
    plp_free(chain);
}

/* ---- the head of a block that matches only in part ---- */

static uint32_t common(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* The unfinished last block of a pinned prefix that ends where this table does: its tail is not in the index. */
static plp_block pinned_tail(const plp_session *s, const int32_t *tokens, uint32_t n, uint32_t *n_match)
{
    const plp_table *t = &s->table[0];
    const uint32_t at = t->n_tokens, len = s->engine->options.block_len;
    plp_block best = PLP_NO_BLOCK;

    for (const plp_session *p = s->engine->sessions; p; p = p->after) {
        if (!p->pinned || p->n_computed <= at || p->n_computed >= at + len || p->n_computed / len != at / len)
            continue;
        if (at && p->table[0].blocks[at / len - 1] != t->blocks[at / len - 1])
            continue;
        const uint32_t most = p->n_computed - at < n ? p->n_computed - at : n;
        const uint32_t match = common(p->tokens + at, tokens, most);
        if (match > *n_match) {
            *n_match = match;
            best = p->table[0].blocks[at / len];
        }
    }
    return best;
}

/* Copy the matching head of a block that agrees only in part. Best effort: failing means computing it. */
static void copy_head(plp_session *s, const int32_t *tokens, uint32_t n)
{
    plp_engine *e = s->engine;
    const uint32_t len = e->options.block_len;
    plp_table *t = &s->table[0];
    const uint32_t at = t->n_tokens, most = n - 1 - at < len ? n - 1 - at : len;
    uint32_t match = 0, tail_match = 0;
    plp_copy copy;

    if (at % len || most == 0 || e->options.kv_format != PLP_KV_F16 || e->model->n_groups > 1 ||
        (at && t->blocks[at / len - 1] == PLP_NO_BLOCK))
        return;
    plp_block from = plp_prefix_find_head(e->prefix, at ? t->blocks[at / len - 1] : PLP_NO_BLOCK, tokens + at, most, &match);
    const plp_block tail = pinned_tail(s, tokens + at, most, &tail_match);
    if (tail_match > match) {
        from = tail;
        match = tail_match;
    }
    if (from == PLP_NO_BLOCK || match == 0)
        return;
    plp_pool_keep(e->pool, from);           /* the reservation must not evict what it is for */
    if (plp_table_reserve(t, e->pool, match, &copy, NULL) == PLP_OK) {
        e->backend->ops->copy_block(e->backend, plp_pool_data(e->pool, t->blocks[at / len]), plp_pool_data(e->pool, from),
                                    plp_pool_block_bytes(e->pool, t->open_class));
        plp_table_copied(t, e->pool, &copy);
        plp_table_advance(t, match);
    }
    plp_pool_drop(e->pool, from);
}

/* With several groups of layers a tail is not copied, and a running state is known at few places: where a pinned
 * prefix reaches further than what was found, whole, go on from it like a fork. Best effort. */
static void adopt_pinned(plp_session *s, const int32_t *tokens, uint32_t n)
{
    plp_engine *e = s->engine;
    const plp_session *best = NULL;
    plp_table copy[PLP_MAX_GROUPS];
    uint32_t g = 0;

    for (const plp_session *p = e->sessions; p; p = p->after)
        if (p->pinned && p->n_computed < n && p->n_computed > (best ? best->n_computed : s->table[0].n_tokens) &&
            !memcmp(p->tokens, tokens, p->n_computed * sizeof *tokens))
            best = p;
    if (!best || e->model->n_groups == 1)
        return;
    while (g < e->model->n_groups && plp_table_fork(&copy[g], &best->table[g], e->pool, NULL) == PLP_OK)
        g++;
    const bool whole = g == e->model->n_groups;
    while (g--) {
        plp_table_clear(whole ? &s->table[g] : &copy[g], e->pool);
        if (whole)
            s->table[g] = copy[g];
    }
    if (whole)
        s->n_published = best->n_published;
}

/* Own blocks may end in the middle of one of which the index knows more: then go back to its start. */
static void reuse(plp_session *s, const int32_t *tokens, uint32_t n)
{
    plp_engine *e = s->engine;
    plp_table *t = &s->table[0];
    const uint32_t len = e->options.block_len, start = t->n_tokens / len * len, most = n - 1 - start < len ? n - 1 - start : len;
    const plp_block parent = start ? t->blocks[start / len - 1] : PLP_NO_BLOCK;
    plp_block better = PLP_NO_BLOCK;
    uint32_t match = 0;

    if (t->n_tokens > start && n - 1 > t->n_tokens && e->model->n_groups == 1 && (!start || parent != PLP_NO_BLOCK)) {
        better = plp_prefix_find_head(e->prefix, parent, tokens + start, most, &match);
        if (better != PLP_NO_BLOCK && match > t->n_tokens - start) {
            plp_pool_keep(e->pool, better);     /* it may be our own, of which the rewind lets go */
            plp_table_rewind(t, e->pool, start);
        } else
            better = PLP_NO_BLOCK;
    }
    adopt_blocks(s, tokens, n);
    copy_head(s, tokens, n);
    adopt_pinned(s, tokens, n);
    if (better != PLP_NO_BLOCK)
        plp_pool_drop(e->pool, better);
    s->n_computed = t->n_tokens;
}

plp_status plp_session_sync(plp_session *s, const int32_t *tokens, uint32_t n, plp_sync *report, plp_error *err)
{
    plp_status status = plp_session_enter(s, err);
    if (status < 0)
        return status;
    plp_engine *e = s->engine;
    plp_sync did = { 0 };

    atomic_store(&s->cancelled, false);     /* a cancel that came while nothing ran does not hit what starts now */

    if (n > e->options.context_limit)
        status = plp_fail_amount(err, PLP_E_CONTEXT, n, e->options.context_limit, "the context holds %u tokens; a timeline of %u "
                                 "was given. Shorten it, or open with a larger context", e->options.context_limit, n);
    else if (n && !tokens)
        status = plp_fail(err, PLP_E_ARG, "sync: %u tokens, but no array", n);
    for (uint32_t i = 0; status == PLP_OK && i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= e->model->n_vocab)
            status = plp_fail(err, PLP_E_ARG, "token %u of %u is %d; ids from 0 to %u are possible", i, n, tokens[i], e->model->n_vocab - 1);
    if (status < 0 || (status = plp_spill_restore(s, err)) < 0) {
        plp_session_leave(s);
        return status;
    }

    const uint32_t old = s->n_tokens, same = common(s->tokens, tokens, n < old ? n : old);
    if (same < n || same < old || !plp_session_logits(s)) {
        /* Without new tokens the last one is computed once more, for its logits. */
        plp_session_cut(s, same, same == n);
        did.n_kept = s->n_computed;
        status = plp_session_append(s, tokens + same, n - same, err);
        if (status == PLP_OK && e->prefix && n)
            reuse(s, tokens, n);
    } else {
        did.n_kept = n;
    }
    did.n_dropped = old - same;
    did.n_reused = s->n_computed > did.n_kept ? s->n_computed - did.n_kept : 0;
    did.n_pending = s->n_tokens - s->n_computed;
    e->counters.tokens_reused += did.n_reused;
    plp_session_leave(s);
    if (status == PLP_OK && report)
        *report = did;
    return status;
}
