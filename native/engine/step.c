/*
 * engine/step.c - steps: callers combined into batches, KV reserved, one forward pass, KV committed
 *
 * Whoever calls first leads: it takes what has queued up, small requests first, up to one batch, and
 * serves it; who arrives meanwhile waits and is in the next one, led by the first of them. A caller alone
 * never waits and no thread exists for this.
 */
#include "engine/engine.h"
#include "base/mem.h"
#include "base/platform.h"

#include <math.h>
#include <string.h>

/* ---- one request's KV ---- */

static bool make_addresses(plp_session *s, uint32_t n_groups, uint32_t n_blocks)
{
    if (n_blocks <= s->cap_addresses)
        return true;
    const uint32_t cap = n_blocks + n_blocks / 2 + 8;
    for (uint32_t g = 0; g < n_groups; g++) {
        void **sealed = plp_resize(PLP_MEM_SESSION, s->sealed[g], cap, sizeof *sealed);
        if (sealed)
            s->sealed[g] = sealed;
        void **open = plp_resize(PLP_MEM_SESSION, s->open[g], cap, sizeof *open);
        if (open)
            s->open[g] = open;
        if (!sealed || !open)
            return false;
    }
    s->cap_addresses = cap;
    return true;
}

/* Blocks of a group that this step completes, where sealed blocks are another class than open ones. */
static uint32_t n_sealing(const plp_engine *e, const plp_session *s, uint32_t g, uint32_t n)
{
    const uint32_t len = plp_group_len(e, g);
    return plp_sealed_class(e, g) == plp_open_class(e, g) ? 0 : (s->n_computed + n) / len - s->n_computed / len;
}

/* The baseline of a reservation that is committed at once: touch every page of it. */
static void commit_pages(plp_engine *e, const plp_session *s)
{
    for (uint32_t g = 0; g < e->model->n_groups; g++)
        for (uint32_t i = 0; i < s->table[g].n_blocks; i++) {
            volatile char *p = plp_pool_data(e->pool, s->table[g].blocks[i]);
            for (size_t at = 0; at < plp_pool_block_bytes(e->pool, s->table[g].open_class); at += 4096)
                p[at] = 0;
        }
}

/* Tokens beyond the computed ones to have blocks for: this step's, or all that a contiguous layout reserves. */
static uint32_t reach(const plp_engine *e, const plp_request *r)
{
    const plp_session *s = r->session;
    const uint32_t whole = s->n_reserved ? s->n_reserved : e->options.context_limit;
    if (e->options.kv_layout == PLP_LAYOUT_PAGED || whole < s->n_computed + r->n_tok)
        return r->n_tok;
    return whole - s->n_computed;
}

/* Give back what the step would have used: reserved blocks of all groups, and the sealed ones that the first n_taken got. */
static void give_back(plp_engine *e, plp_request *r, uint32_t n_taken)
{
    plp_session *s = r->session;

    for (uint32_t g = 0; g < e->model->n_groups; g++) {
        plp_table_rewind(&s->table[g], e->pool, s->n_computed);
        for (uint32_t k = 0; g < n_taken && k < n_sealing(e, s, g, r->n_tok); k++)
            plp_pool_drop(e->pool, r->sealed[g][k]);
    }
}

/* Every position that this step stores in group g is made writable; an open block that others hold too is copied. */
static plp_status reserve_open(plp_engine *e, plp_request *r, uint32_t g)
{
    plp_table *t = &r->session->table[g];
    plp_copy copy;
    const plp_status status = plp_table_reserve(t, e->pool, reach(e, r), &copy, &r->error);

    if (status < 0 || copy.to == PLP_NO_BLOCK)
        return status;
    e->backend->ops->copy_block(e->backend, plp_pool_data(e->pool, copy.to), plp_pool_data(e->pool, copy.from),
                                plp_pool_block_bytes(e->pool, t->open_class));
    plp_table_copied(t, e->pool, &copy);
    e->counters.blocks_forked++;
    return PLP_OK;
}

/* Where group g's blocks lie, for the pass (plp_seq): those before this step's as they are, those that it completes in
 * their sealed and in their open block. */
static void list_addresses(plp_engine *e, plp_request *r, uint32_t g)
{
    plp_session *s = r->session;
    const plp_table *t = &s->table[g];
    const uint32_t first = s->n_computed / t->block_len, end = (s->n_computed + r->n_tok + t->block_len - 1) / t->block_len;
    const uint32_t sealing = n_sealing(e, s, g, r->n_tok);

    for (uint32_t i = 0; i < end; i++) {
        void *at = t->blocks[i] == PLP_NO_BLOCK ? NULL : plp_pool_data(e->pool, t->blocks[i]);
        const bool written = i >= first, completed = written && i < first + sealing;
        s->open[g][i] = written ? at : NULL;
        s->sealed[g][i] = completed ? plp_pool_data(e->pool, r->sealed[g][i - first]) : at;
    }
}

/* Everything the request will write is made writable, or nothing changes. */
static plp_status reserve_once(plp_engine *e, plp_request *r)
{
    plp_session *s = r->session;
    const uint32_t most = (s->n_computed + r->n_tok + e->options.block_len - 1) / e->options.block_len;
    plp_status status;

    if (!s->logits && !(s->logits = plp_alloc(PLP_MEM_SESSION, e->model->n_vocab, sizeof *s->logits)))
        return plp_fail(&r->error, PLP_E_NOMEM, "session: no memory for logits");
    if (!make_addresses(s, e->model->n_groups, most))
        return plp_fail(&r->error, PLP_E_NOMEM, "session: no memory for a table of %u blocks", most);
    for (uint32_t g = 0; g < e->model->n_groups; g++) {
        const uint32_t sealing = n_sealing(e, s, g, r->n_tok);
        if ((status = reserve_open(e, r, g)) < 0 ||
            (sealing && (status = plp_pool_take(e->pool, plp_sealed_class(e, g), sealing, r->sealed[g], &r->error)) < 0)) {
            give_back(e, r, g);
            return status;
        }
    }
    if (e->options.kv_layout == PLP_LAYOUT_CONTIGUOUS && s->n_computed == 0)
        commit_pages(e, s);
    for (uint32_t g = 0; g < e->model->n_groups; g++)
        list_addresses(e, r, g);
    return PLP_OK;
}

/* The budget ladder: the pool evicts cached blocks by itself; then idle sessions spill; then this one is refused. */
static plp_status reserve(plp_engine *e, plp_request *r)
{
    plp_status status = plp_spill_restore(r->session, &r->error);
    uint64_t freed;

    while (status == PLP_OK && (status = reserve_once(e, r)) == PLP_E_BUDGET) {
        const plp_error refusal = r->error;
        if ((status = plp_spill_idle(e, r->session, &freed, &r->error)) == PLP_OK && !freed) {
            r->error = refusal;
            status = PLP_E_BUDGET;
            break;
        }
    }
    if (status == PLP_E_BUDGET)
        e->counters.budget_refusals++;
    return status;
}

void plp_session_advance(plp_session *s, uint32_t n)
{
    plp_engine *e = s->engine;

    for (uint32_t g = 0; g < e->model->n_groups; g++)
        plp_table_advance(&s->table[g], n);
    s->n_computed += n;
    e->counters.tokens_computed += n;
    s->has_logits = s->n_computed == s->n_tokens;
    plp_session_publish(s);
    for (uint32_t g = 0; g < e->model->n_groups; g++) {
        const plp_group *of = &e->model->group[g];
        plp_table_drop_before(&s->table[g], e->pool, plp_kept_from(of->window, of->block_len, of->state_bytes != 0, s->n_computed));
    }
}

static void commit(plp_engine *e, plp_request *r)
{
    plp_session *s = r->session;

    for (uint32_t g = 0; g < e->model->n_groups; g++) {
        const uint32_t first = s->n_computed / plp_group_len(e, g), sealing = n_sealing(e, s, g, r->n_tok);
        for (uint32_t i = 0; i < sealing; i++)
            plp_table_replace(&s->table[g], e->pool, first + i, r->sealed[g][i]);
    }
    e->counters.blocks_sealed += n_sealing(e, s, 0, r->n_tok);
    s->last_used = e->counters.steps;
    plp_session_advance(s, r->n_tok);
}

/* ---- a batch ---- */

/* Unlink up to a batch of requests; those with the fewest tokens first, so that a session that
 * generates does not wait behind prompts. */
static uint32_t collect(plp_engine *e)
{
    uint32_t n = 0, room = e->max_tokens;

    for (int pass = 0; pass < 2; pass++)
        for (plp_request **link = &e->queue; *link && room; ) {
            plp_request *r = *link;
            uint32_t pending = r->session->n_tokens - r->session->n_computed;
            if (pending > r->cap)
                pending = r->cap;
            if (pass == 0 && pending > PLP_LOGIT_ROWS) {
                link = &r->next;
                continue;
            }
            r->n_tok = pending < room ? pending : room;
            room -= r->n_tok;
            e->batch[n++] = r;
            *link = r->next;
        }
    e->queue_end = &e->queue;
    for (plp_request *r = e->queue; r; r = r->next)
        e->queue_end = &r->next;
    return n;
}

static void finish(plp_request *r, plp_status status)
{
    r->status = status;
    r->done = true;
}

/* One more token to the batch; its logits to `out`, unless that is NULL. */
static void add_token(plp_engine *e, plp_batch *b, int32_t id, uint32_t pos, float *out)
{
    if (out) {
        e->out_rows[b->n_out] = (int32_t)b->n_tok;
        e->out[b->n_out++] = out;
    }
    e->ids[b->n_tok] = id;
    e->pos[b->n_tok++] = (int32_t)pos;
}

/* Fill the batch from requests whose KV could be reserved; the others are finished with their error. A session alone
 * in its batch may have guesses computed, whose number is returned. */
static uint32_t fill(plp_engine *e, uint32_t n_requests, plp_batch *b)
{
    const size_t n_vocab = e->model->n_vocab;
    uint32_t kept = 0, n_guesses = 0;

    *b = (plp_batch){ .ids = e->ids, .pos = e->pos, .seq = e->seqs, .out_rows = e->out_rows, .out = e->out };
    for (uint32_t i = 0; i < n_requests; i++) {
        plp_request *r = e->batch[i];
        plp_session *s = r->session;
        const plp_status status = reserve(e, r);
        if (status < 0) {
            finish(r, status);
            continue;
        }
        e->batch[kept++] = r;
        plp_guess_forget(s);
        if (n_requests == 1 && !r->logits)
            n_guesses = plp_guess_next(s);
        e->seqs[b->n_seq++] = (plp_seq){ .row0 = b->n_tok, .n_tok = r->n_tok + n_guesses, .pos0 = s->n_computed,
                                         .sealed = (void *const *const *)s->sealed, .open = (void *const *const *)s->open };
        for (uint32_t t = 0; t < r->n_tok; t++) {
            const uint32_t at = s->n_computed + t;
            add_token(e, b, s->tokens[at], at, r->logits ? r->logits + (size_t)t * n_vocab : at + 1 == s->n_tokens ? s->logits : NULL);
        }
        for (uint32_t t = 0; t < n_guesses; t++)
            add_token(e, b, s->guess.ids[t], s->n_tokens + t, s->guess.logits + (size_t)t * n_vocab);
    }
    return n_guesses;
}

static void refuse_all(plp_engine *e, uint32_t n, plp_status status, const plp_error *error)
{
    for (uint32_t i = 0; i < n; i++) {
        plp_request *r = e->batch[i];
        plp_guess_forget(r->session);
        give_back(e, r, e->model->n_groups);
        r->error = *error;
        finish(r, status);
    }
}

/* How many prompt tokens the next steps take: which tokens share a step changes no number. */
static void set_pace(plp_engine *e, uint32_t n_tok, uint64_t ns)
{
    if (!e->paced || n_tok < PLP_CHUNK_STEP || ns == 0)
        return;
    const uint64_t n = n_tok * PLP_CHUNK_NS / ns / PLP_CHUNK_STEP * PLP_CHUNK_STEP;
    e->pace = n < PLP_CHUNK_STEP ? PLP_CHUNK_STEP : n > e->options.chunk_len ? e->options.chunk_len : (uint32_t)n;
}

/* One batch; lock held on entry and on return. */
static void serve(plp_engine *e)
{
    const uint32_t n_requests = collect(e);
    plp_error error = { 0 };
    plp_status status;
    plp_batch b;

    const uint32_t n_guesses = fill(e, n_requests, &b);
    if (b.n_seq == 0)
        return;
    plp_mutex_unlock(e->lock);
    const uint64_t began = plp_now_ns();
    if ((status = e->backend->ops->prepare(e->backend, &b, &error)) == PLP_OK) {
        plp_mem_guard(true);
        plp_model_forward(e->model, &b);
        plp_mem_guard(false);
    }
    plp_mutex_lock(e->lock);
    if (status < 0) {
        refuse_all(e, b.n_seq, status, &error);
        return;
    }
    const uint64_t took = plp_now_ns() - began;
    if (b.n_tok == 1 + n_guesses)
        plp_guess_timed(e, n_guesses, took);
    e->counters.steps++;
    set_pace(e, b.n_tok, took);
    for (uint32_t i = 0; i < b.n_seq; i++) {
        plp_request *r = e->batch[i];
        plp_session *s = r->session;
        commit(e, r);
        if (r->logits && s->has_logits)
            memcpy(s->logits, r->logits + (size_t)(r->n_tok - 1) * e->model->n_vocab, e->model->n_vocab * sizeof *s->logits);
        finish(r, PLP_OK);
    }
}

/* Queue n requests and return when all are done; lock held on entry and on return. */
static void run(plp_engine *e, plp_request *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (r[i].done)
            continue;
        r[i].next = NULL;
        *e->queue_end = &r[i];
        e->queue_end = &r[i].next;
    }
    for (;;) {
        uint32_t done = 0;
        for (uint32_t i = 0; i < n; i++)
            done += r[i].done;
        if (done == n)
            return;
        if (e->leading) {
            plp_mutex_wait(e->lock);
            continue;
        }
        e->leading = true;
        serve(e);
        e->leading = false;
        plp_mutex_wake_all(e->lock);
    }
}

/* ---- public ---- */

static plp_status step(plp_session *s, float *logits, uint32_t cap, uint32_t *n_done, uint32_t *n_pending, plp_error *err)
{
    plp_status status = plp_session_enter(s, err);
    if (status < 0)
        return status;
    plp_engine *e = s->engine;
    plp_request r = { .session = s, .logits = logits, .cap = cap < e->pace ? cap : e->pace };

    if (atomic_exchange(&s->cancelled, false)) {
        status = plp_fail(err, PLP_E_CANCELLED, "cancelled with %u of %u tokens computed", s->n_computed, s->n_tokens);
    } else if (s->n_computed < s->n_tokens) {
        run(e, &r, 1);
        status = r.status;
        if (status < 0 && err)
            *err = r.error;
    }
    if (n_done)
        *n_done = status == PLP_OK ? r.n_tok : 0;
    if (n_pending)
        *n_pending = s->n_tokens - s->n_computed;
    plp_session_leave(s);
    return status;
}

plp_status plp_session_step(plp_session *s, uint32_t *n_pending, plp_error *err)
{
    return step(s, NULL, UINT32_MAX, NULL, n_pending, err);
}

plp_status plp_session_step_logits(plp_session *s, float *logits, uint32_t cap, uint32_t *n_done, uint32_t *n_pending, plp_error *err)
{
    if (!logits || cap == 0)
        return plp_fail(err, PLP_E_ARG, "step: no room for logits");
    return step(s, logits, cap, n_done, n_pending, err);
}

/* Enter s[i] for a step with the others, without keeping the lock: it is busy, so it stays as it is. */
static plp_status join(plp_session *const *s, uint32_t i, plp_request *r, plp_error *err)
{
    plp_status status = plp_session_enter(s[i], err);
    if (status < 0)
        return status;
    const plp_engine *e = s[i]->engine;
    const bool there = s[i]->n_computed == s[i]->n_tokens;      /* its last tokens were guessed, so it has their logits */
    *r = (plp_request){ .session = s[i], .cap = e->pace, .done = there };
    plp_mutex_unlock(e->lock);
    if (e != s[0]->engine)
        status = plp_fail(err, PLP_E_ARG, "step: session %u belongs to another model than session 0", i);
    else if (there && s[i]->guess.mode == PLP_SPECULATE_OFF)
        status = plp_fail(err, PLP_E_ARG, "step: session %u has nothing to compute", i);
    if (status < 0)
        atomic_store(&s[i]->busy, false);
    return status;
}

plp_status plp_step_many(plp_session *const *s, uint32_t n, plp_error *err)
{
    plp_request *r = plp_zalloc(PLP_MEM_SESSION, n, sizeof *r);
    plp_status status = PLP_OK;
    uint32_t joined = 0;

    if (!r)
        return plp_fail(err, PLP_E_NOMEM, "step: no memory for %u sessions", n);
    while (joined < n && (status = join(s, joined, &r[joined], err)) == PLP_OK)
        joined++;
    if (status == PLP_OK && n) {
        plp_engine *e = s[0]->engine;
        plp_mutex_lock(e->lock);
        run(e, r, n);
        plp_mutex_unlock(e->lock);
        for (uint32_t i = 0; i < n && status == PLP_OK; i++)
            if ((status = r[i].status) < 0 && err)
                *err = r[i].error;
    }
    for (uint32_t i = 0; i < joined; i++)
        atomic_store(&s[i]->busy, false);
    plp_free(r);
    return status;
}
