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

#include <string.h>

void plp_session_publish(plp_session *s)
{
    plp_engine *e = s->engine;
    const uint32_t len = e->options.block_len;
    plp_table *t = &s->table[0];

    for (; s->n_published < s->n_computed / len; s->n_published++) {
        const uint32_t i = s->n_published;
        if (!e->prefix || e->model->n_groups > 1)
            continue;
        const plp_block parent = i ? t->blocks[i - 1] : PLP_NO_BLOCK, mine = t->blocks[i];
        const plp_block known = plp_prefix_insert(e->prefix, parent, s->tokens + (size_t)i * len, mine);
        if (known != mine) {
            plp_pool_keep(e->pool, known);
            plp_table_replace(t, e->pool, i, known);
        }
    }
}

/* Append whole blocks from the index while they match and one token stays to be computed. */
static void adopt_blocks(plp_session *s, const int32_t *tokens, uint32_t n)
{
    plp_engine *e = s->engine;
    const uint32_t len = e->options.block_len;
    plp_table *t = &s->table[0];

    while (t->n_tokens % len == 0 && t->n_tokens + len < n) {
        const uint32_t i = t->n_tokens / len;
        const plp_block b = plp_prefix_find(e->prefix, i ? t->blocks[i - 1] : PLP_NO_BLOCK, tokens + t->n_tokens);
        if (b == PLP_NO_BLOCK)
            return;
        plp_pool_keep(e->pool, b);
        if (plp_table_adopt(t, e->pool, b, NULL) < 0) {
            plp_pool_drop(e->pool, b);
            return;
        }
        s->n_published = i + 1;
    }
}

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

    if (at % len || most == 0 || e->options.kv_format != PLP_KV_F16)
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

plp_status plp_session_sync(plp_session *s, const int32_t *tokens, uint32_t n, plp_sync *report, plp_error *err)
{
    plp_status status = plp_session_enter(s, err);
    if (status < 0)
        return status;
    plp_engine *e = s->engine;
    const uint32_t len = e->options.block_len;
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
    if (status < 0) {
        plp_session_leave(s);
        return status;
    }

    const uint32_t old = s->n_tokens, same = common(s->tokens, tokens, n < old ? n : old);
    const bool unchanged = same == n && same == old && plp_session_logits(s);
    if (!unchanged) {
        plp_session_cut(s, same);
        if (s->n_computed == n && n)        /* nothing new: the last token gives the logits once more */
            plp_session_cut(s, s->n_computed), s->has_logits = false;
    }
    did.n_dropped = old - same;
    did.n_kept = s->n_computed;

    if (!unchanged && (status = plp_session_append(s, tokens + same, n - same, err)) == PLP_OK && e->prefix && e->model->n_groups == 1) {
        plp_table *t = &s->table[0];
        /* Own blocks go on in the middle of one; the index may know more of it than we kept. */
        const uint32_t start = t->n_tokens / len * len;
        uint32_t match = 0;
        if (t->n_tokens % len && n - 1 > t->n_tokens) {
            const uint32_t most = n - 1 - start < len ? n - 1 - start : len;
            plp_prefix_find_head(e->prefix, start ? t->blocks[start / len - 1] : PLP_NO_BLOCK, tokens + start, most, &match);
            if (match > t->n_tokens - start)
                plp_table_rewind(t, e->pool, start);
        }
        adopt_blocks(s, tokens, n);
        copy_head(s, tokens, n);
        s->n_computed = t->n_tokens;
    }
    did.n_reused = s->n_computed > did.n_kept ? s->n_computed - did.n_kept : 0;
    did.n_pending = s->n_tokens - s->n_computed;
    e->counters.tokens_reused += did.n_reused;
    plp_session_leave(s);
    if (status == PLP_OK && report)
        *report = did;
    return status;
}
