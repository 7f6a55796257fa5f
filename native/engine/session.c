/* engine/session.c - one timeline of tokens: open and close, feed, rewind, fork, what it holds, the next token */
#include "engine/engine.h"
#include "base/mem.h"
#include "kv/store.h"

#include <string.h>

/* ---- entering ---- */

plp_status plp_session_enter(plp_session *s, plp_error *err)
{
    bool idle = false;
    if (!s)
        return plp_fail(err, PLP_E_ARG, "session: none given");
    if (!atomic_compare_exchange_strong(&s->busy, &idle, true))
        return plp_fail(err, PLP_E_BUSY, "this session is in use by another thread; wait for it, or use a session per thread");
    plp_mutex_lock(s->engine->lock);
    if (!s->engine->closed)
        return PLP_OK;
    plp_mutex_unlock(s->engine->lock);
    atomic_store(&s->busy, false);
    return plp_fail(err, PLP_E_CLOSED, "the model of this session was closed");
}

void plp_session_leave(plp_session *s)
{
    plp_mutex_unlock(s->engine->lock);
    atomic_store(&s->busy, false);
}

/* ---- open, close, fork ---- */

plp_status plp_session_make(plp_session **out, plp_engine *e, plp_error *err)
{
    plp_session *s = plp_zalloc(PLP_MEM_SESSION, 1, sizeof *s);
    if (!s)
        return plp_fail(err, PLP_E_NOMEM, "session: no memory");
    s->engine = e;
    e->n_references++;
    s->after = e->sessions;
    if (e->sessions)
        e->sessions->before = s;
    e->sessions = s;
    plp_guess_init(&s->guess);
    for (uint32_t g = 0; g < e->model->n_groups; g++)
        plp_table_init(&s->table[g], plp_group_len(e, g), plp_open_class(e, g));
    *out = s;
    return PLP_OK;
}

void plp_session_unmake(plp_session *s)
{
    plp_engine *e = s->engine;
    if (s->before)
        s->before->after = s->after;
    else
        e->sessions = s->after;
    if (s->after)
        s->after->before = s->before;
    plp_spill_forget(s);
    for (uint32_t g = 0; g < PLP_MAX_GROUPS; g++) {
        if (e->pool)
            plp_table_clear(&s->table[g], e->pool);
        plp_free(s->sealed[g]);
        if (s->open[g] != s->sealed[g])
            plp_free(s->open[g]);
    }
    plp_free(s->tokens);
    plp_free(s->logits);
    plp_free(s->guess.logits);
    plp_free(s->sample_work);
    plp_free(s->note);
    plp_free(s);
    e->n_references--;                      /* the engine's own, or the closing call's, is still there */
}

plp_status plp_session_open(plp_session **out, plp_engine *e, plp_error *err)
{
    plp_mutex_lock(e->lock);
    const plp_status s = e->closed ? plp_fail(err, PLP_E_CLOSED, "the model was closed") : plp_session_make(out, e, err);
    plp_mutex_unlock(e->lock);
    return s;
}

void plp_session_close(plp_session *s)
{
    if (!s)
        return;
    plp_engine *e = s->engine;
    plp_mutex_lock(e->lock);
    e->n_references++;                      /* for this call */
    plp_session_unmake(s);
    plp_mutex_unlock(e->lock);
    plp_engine_release(e);
}

plp_status plp_session_fork_locked(plp_session **out, plp_session *s, plp_error *err)
{
    plp_engine *e = s->engine;
    plp_session *f = NULL;
    plp_status status = plp_session_make(&f, e, err);
    if (status < 0)
        return status;
    if ((status = plp_session_append(f, s->tokens, s->n_tokens, err)) < 0)
        goto undo;
    for (uint32_t g = 0; g < e->model->n_groups; g++)
        if ((status = plp_table_fork(&f->table[g], &s->table[g], e->pool, err)) < 0)
            goto undo;
    f->n_computed = s->n_computed;
    f->n_published = s->n_published;
    f->guess.mode = s->guess.mode;
    memcpy(f->guess.rate, s->guess.rate, sizeof f->guess.rate);
    /* The generator is not copied: a fork is there to go another way, by the seed it is given. */
    if (s->has_logits) {
        const size_t bytes = e->model->n_vocab * sizeof *f->logits;
        if (!(f->logits = plp_alloc(PLP_MEM_SESSION, 1, bytes))) {
            status = plp_fail(err, PLP_E_NOMEM, "fork: no memory for logits");
            goto undo;
        }
        memcpy(f->logits, s->logits, bytes);
        f->has_logits = true;
    }
    *out = f;
    return PLP_OK;

undo:
    plp_session_unmake(f);
    return status;
}

plp_status plp_session_reserve(plp_session *s, uint32_t n_tokens, plp_error *err)
{
    plp_status status = plp_session_enter(s, err);
    if (status < 0)
        return status;
    if (s->n_computed)
        status = plp_fail(err, PLP_E_ARG, "session: %u tokens are computed, so the reservation is made", s->n_computed);
    else if (n_tokens > s->engine->options.context_limit)
        status = plp_fail_amount(err, PLP_E_CONTEXT, n_tokens, s->engine->options.context_limit, "session: a reservation of %u tokens; "
                                 "the context holds %u", n_tokens, s->engine->options.context_limit);
    else
        s->n_reserved = n_tokens;
    plp_session_leave(s);
    return status;
}

plp_status plp_session_fork(plp_session **out, plp_session *s, plp_error *err)
{
    plp_status status = plp_session_enter(s, err);
    if (status < 0)
        return status;
    if ((status = plp_spill_restore(s, err)) == PLP_OK)
        status = plp_session_fork_locked(out, s, err);
    plp_session_leave(s);
    return status;
}

/* ---- the timeline ---- */

plp_status plp_session_append(plp_session *s, const int32_t *tokens, uint32_t n, plp_error *err)
{
    const plp_engine *e = s->engine;
    const uint64_t total = (uint64_t)s->n_tokens + n;

    if (total > e->options.context_limit)
        return plp_fail_amount(err, PLP_E_CONTEXT, total, e->options.context_limit, "the context holds %u tokens; %llu are wanted "
                               "(%u there, %u new). Rewind, or open with a larger context", e->options.context_limit,
                               (unsigned long long)total, s->n_tokens, n);
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= e->model->n_vocab)
            return plp_fail(err, PLP_E_ARG, "token %u of %u is %d; ids from 0 to %u are possible", i, n, tokens[i], e->model->n_vocab - 1);
    if (total > s->cap_tokens) {
        const uint32_t cap = (uint32_t)(total + total / 2 + 64);
        int32_t *more = plp_resize(PLP_MEM_SESSION, s->tokens, cap, sizeof *more);
        if (!more)
            return plp_fail(err, PLP_E_NOMEM, "session: no memory for %u tokens", cap);
        s->tokens = more;
        s->cap_tokens = cap;
    }
    if (n) {
        memcpy(s->tokens + s->n_tokens, tokens, n * sizeof *tokens);
        s->n_tokens += n;
        s->has_logits = false;
    }
    return PLP_OK;
}

/* How much of `stored` a window group can go on from: all of it, if the window before it is still there. */
static uint32_t resumable(const plp_engine *e, const plp_session *s, uint32_t stored)
{
    for (uint32_t g = 0; g < e->model->n_groups; g++) {
        const plp_table *t = &s->table[g];
        const uint32_t window = e->model->group[g].window, gone = t->first * t->block_len;
        if (window && gone && (stored < window || gone > stored - window))
            return 0;
    }
    return stored;
}

void plp_session_cut(plp_session *s, uint32_t n, bool want_logits)
{
    const plp_engine *e = s->engine;
    uint32_t stored = n < s->n_computed ? n : s->n_computed;

    plp_guess_forget(s);
    if (n == s->n_tokens && s->n_computed == n && !want_logits)
        return;
    /* Logits belong to the last token: after a cut it is computed again. */
    if (want_logits && stored == n && n > 0)
        stored = n - 1;
    /* A block that is not f16 any more cannot be continued: its head is stored again. Of a running state the
     * block knows its end only. */
    for (uint32_t g = 0; stored < s->n_computed && g < e->model->n_groups; g++) {
        const plp_table *t = &s->table[g];
        const uint32_t len = t->block_len, i = stored / len;
        if (stored % len == 0)
            continue;
        if (e->model->group[g].state_bytes || (i >= t->first && plp_pool_class(e->pool, t->blocks[i]) != t->open_class))
            stored -= stored % len;
    }
    if (stored < s->n_computed) {
        stored = resumable(e, s, stored);
        for (uint32_t g = 0; g < e->model->n_groups; g++)
            plp_table_rewind(&s->table[g], e->pool, stored);
        s->n_computed = stored;
        if (s->n_published > stored / e->options.block_len)
            s->n_published = stored / e->options.block_len;
        s->has_logits = false;
    }
    if (n < s->n_tokens)
        s->has_logits = false;
    s->n_tokens = n;
}

plp_status plp_session_feed(plp_session *s, const int32_t *tokens, uint32_t n, plp_error *err)
{
    plp_status status = plp_session_enter(s, err);
    if (status < 0)
        return status;
    status = n && !tokens ? plp_fail(err, PLP_E_ARG, "feed: %u tokens, but no array", n) : plp_session_append(s, tokens, n, err);
    if (status == PLP_OK)
        plp_guess_fed(s, n);
    plp_session_leave(s);
    return status;
}

plp_status plp_session_rewind(plp_session *s, uint32_t n, plp_error *err)
{
    plp_status status = plp_session_enter(s, err);
    if (status < 0)
        return status;
    if (n > s->n_tokens)
        status = plp_fail(err, PLP_E_ARG, "rewind to %u tokens: the timeline has %u", n, s->n_tokens);
    else if (n < s->n_tokens && (status = plp_spill_restore(s, err)) == PLP_OK)
        plp_session_cut(s, n, true);
    plp_session_leave(s);
    return status;
}

void plp_session_cancel(plp_session *s) { atomic_store(&s->cancelled, true); }

uint32_t plp_session_n_tokens(plp_session *s)   { return s->n_tokens; }
uint32_t plp_session_n_computed(plp_session *s) { return s->n_computed; }

plp_status plp_session_tokens(plp_session *s, int32_t *out, uint32_t cap, uint32_t *n, plp_error *err)
{
    plp_status status = plp_session_enter(s, err);
    if (status < 0)
        return status;
    *n = s->n_tokens;
    if (cap < s->n_tokens)
        status = plp_fail(err, PLP_E_ARG, "tokens: room for %u, the timeline has %u", cap, s->n_tokens);
    else if (s->n_tokens)
        memcpy(out, s->tokens, s->n_tokens * sizeof *out);
    plp_session_leave(s);
    return status;
}

/* ---- the caller's note ---- */

plp_status plp_session_set_note(plp_session *s, const void *note, size_t n, plp_error *err)
{
    void *copy = NULL;
    plp_status status = plp_session_enter(s, err);
    if (status < 0)
        return status;
    if (n > PLP_STORE_MAX_NOTE)
        status = plp_fail(err, PLP_E_ARG, "a note of %zu bytes; a file takes up to %d", n, PLP_STORE_MAX_NOTE);
    else if (n && !(copy = plp_alloc(PLP_MEM_SESSION, n, 1)))
        status = plp_fail(err, PLP_E_NOMEM, "session: no memory for a note of %zu bytes", n);
    if (status == PLP_OK) {
        if (n)
            memcpy(copy, note, n);
        plp_free(s->note);
        s->note = copy;
        s->note_bytes = (uint32_t)n;
    }
    plp_session_leave(s);
    return status;
}

const void *plp_session_note(plp_session *s, size_t *n)
{
    *n = s->note_bytes;
    return s->note;
}

/* ---- the next token ---- */

const float *plp_session_logits(plp_session *s)
{
    return s->has_logits && s->n_computed == s->n_tokens ? s->logits : NULL;
}

plp_status plp_session_sample(plp_session *s, const plp_sampling *p, int32_t *token, float *logprob, plp_error *err)
{
    plp_status status = plp_session_enter(s, err);
    if (status < 0)
        return status;
    const uint32_t n_vocab = s->engine->model->n_vocab;
    if (!plp_session_logits(s))
        status = plp_fail(err, PLP_E_ARG, s->n_tokens ? "sample: %u tokens are not computed yet" : "sample: the session has no tokens "
                          "yet (%u pending); feed at least one", s->n_tokens - s->n_computed);
    if (status == PLP_OK && !s->sample_work && !(s->sample_work = plp_alloc(PLP_MEM_SESSION, n_vocab, PLP_SAMPLE_BYTES)))
        status = plp_fail(err, PLP_E_NOMEM, "sample: no memory for %u candidates", n_vocab);
    if (status == PLP_OK && (!s->rng_seeded || s->seed != p->seed)) {
        plp_rng_seed(&s->rng, p->seed);
        s->seed = p->seed;
        s->rng_seeded = true;
    }
    /* The session is busy, so its logits stay; others need not wait for this. */
    plp_mutex_unlock(s->engine->lock);
    if (status == PLP_OK)
        status = plp_sample(s->logits, n_vocab, s->tokens, s->n_tokens, p, &s->rng, s->sample_work, token, logprob, err);
    atomic_store(&s->busy, false);
    return status;
}
