/*
 * backend/cpu/attention.c - store keys and values in blocks, and attend them through the table
 *
 * A context is summed in splits of PLP_SPLIT_LEN positions, each by a running softmax over its blocks, and
 * the splits are folded in order: the same bits whether one thread walks them in turn (prefill) or several
 * share them (decode).
 *
 *   few tokens    pieces are (sequence, split) or, with little context, (sequence, split, kv head); inside,
 *                 blocks outside and heads inside, so that a block is one stream; partial sums are stored
 *                 and folded in a second run
 *   many tokens   pieces are (sequence, tile of tokens, kv head); splits one after the other, each a run of blocks
 *
 * Queries of one kv head: tile's token i, head g of the group -> query i * G + g.
 */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { FEW_TOKENS = 4, MAX_TILE = 16, TILE_QUERIES = 64, MAX_RUN = PLP_SPLIT_LEN / 8 };

typedef struct job {
    plp_cpu             *c;
    const plp_attention *a;
    const plp_batch     *batch;
    const float         *q, *k, *v;
    size_t               ldq, ldo;
    float               *out;
    uint32_t             group_size, tile_len, heads_a_piece;
    size_t               tile_bytes, open_tile_bytes;       /* sealed and f16 */
} job;

static size_t state_floats(uint32_t n_q, uint32_t head_dim) { return (size_t)n_q * (head_dim + 2); }

static void *aligned(void *p) { return (void *)(((uintptr_t)p + 63) & ~(uintptr_t)63); }

/* m | s | acc, as one run of floats. */
static plp_attn state_at(const job *j, float *p, uint32_t n_q, const float *q)
{
    return (plp_attn){ .n_q = n_q, .head_dim = j->a->head_dim, .q = q, .m = p, .s = p + n_q,
                       .acc = p + 2 * n_q, .softcap = j->a->softcap };
}

static void state_reset(plp_attn *s)
{
    for (uint32_t i = 0; i < s->n_q; i++) {
        s->m[i] = -INFINITY;
        s->s[i] = 0;
    }
    memset(s->acc, 0, (size_t)s->n_q * s->head_dim * sizeof *s->acc);
}

static uint32_t tile_len(uint32_t group_size)
{
    const uint32_t n = TILE_QUERIES / group_size;
    return n < 1 ? 1 : n > MAX_TILE ? MAX_TILE : n;
}

static uint32_t first_visible(const plp_attention *a, uint32_t pos)
{
    return a->window && pos + 1 > a->window ? pos + 1 - a->window : 0;
}

/* ---- one thread, blocks [b0, b1) of one sequence, heads [h0, h1) ---- */

typedef struct tile {
    const plp_seq *seq;
    uint32_t       pos0, n_tok;         /* positions of the tile's tokens */
    uint32_t       h0, h1;
    plp_attn      *state;               /* [h1 - h0] */
    uint32_t      *lo, *hi;             /* [n_tok * group_size] scratch */
} tile;

enum which { SEALED, OPEN, EITHER };

/* Which slots of block b each query sees; false if none does. EITHER: the formats are one. */
static bool see(const job *j, const tile *t, uint32_t b, enum which which, plp_seen *seen)
{
    const uint32_t len = j->a->block_len, first = b * len;
    bool all = true, any = false;

    if (!j->a->window && first + len <= t->pos0 && which != OPEN) {     /* wholly before the tile */
        *seen = (plp_seen){ 0 };
        return true;
    }
    for (uint32_t i = 0; i < t->n_tok; i++) {
        const uint32_t pos = t->pos0 + i, from = first_visible(j->a, pos);
        const bool mine = which == EITHER || (which == OPEN) == (pos / len == b);
        uint32_t lo = from > first ? from - first : 0, hi = pos + 1 > first ? pos + 1 - first : 0;
        if (hi > len)
            hi = len;
        if (!mine || lo >= hi)
            lo = hi = 0;
        all &= lo == 0 && hi == len;
        any |= lo < hi;
        for (uint32_t g = 0; g < j->group_size; g++) {
            t->lo[i * j->group_size + g] = lo;
            t->hi[i * j->group_size + g] = hi;
        }
    }
    *seen = all ? (plp_seen){ 0 } : (plp_seen){ t->lo, t->hi };
    return any;
}

static const char *block_tile(const job *j, void *const *blocks, uint32_t b, uint32_t h, size_t tile_bytes)
{
    return (const char *)blocks[b] + ((size_t)j->a->layer * j->a->n_kv_heads + h) * tile_bytes;
}

static void attend_blocks(const job *j, const tile *t, uint32_t b0, uint32_t b1)
{
    const plp_kernels *k = j->c->k;
    void (*const attend)(plp_attn *, const void *, uint32_t, plp_seen, const void *) =
        j->a->kv_format == PLP_KV_Q8 ? k->attn_q8 : j->a->kv_format == PLP_KV_Q4 ? k->attn_q4 : k->attn_f16;
    const uint32_t group = j->a->group, len = j->a->block_len;
    void *const *sealed = t->seq->sealed[group], *const *open = t->seq->open[group];
    const bool one_format = j->a->kv_format == PLP_KV_F16;
    const uint32_t n_heads = t->h1 - t->h0, ahead = plp_attn_ahead(j->tile_bytes);
    plp_seen seen;

    for (uint32_t b = b0; b < b1; b++) {
        if (see(j, t, b, one_format ? EITHER : SEALED, &seen))
            for (uint32_t h = t->h0; h < t->h1; h++) {
                const uint32_t later = h - t->h0 + ahead, then = b + later / n_heads;
                const char *next = then < b1 && sealed[then] ? block_tile(j, sealed, then, t->h0 + later % n_heads, j->tile_bytes) : NULL;
                if (b + 1 < b1 && sealed[b + 1])    /* its address looked up now: pages of the next block are elsewhere */
                    __builtin_prefetch(block_tile(j, sealed, b + 1, h, j->tile_bytes));
                attend(&t->state[h - t->h0], block_tile(j, sealed, b, h, j->tile_bytes), len, seen, next);
            }
        if (!one_format && open[b] && see(j, t, b, OPEN, &seen))
            for (uint32_t h = t->h0; h < t->h1; h++)
                k->attn_f16(&t->state[h - t->h0], block_tile(j, open, b, h, j->open_tile_bytes), len, seen, NULL);
    }
}

/* The tile's queries of head h, scaled: [n_tok][group_size][head_dim] */
static void gather_queries(const job *j, const tile *t, uint32_t h, float *to)
{
    const size_t n = (size_t)j->group_size * j->a->head_dim;
    for (uint32_t i = 0; i < t->n_tok; i++) {
        const float *from = j->q + (t->seq->row0 + t->pos0 - t->seq->pos0 + i) * j->ldq + h * n;
        memcpy(to + i * n, from, n * sizeof *to);
        j->c->k->scale(to + i * n, j->a->scale, (uint32_t)n);
    }
}

static void finish(const job *j, const tile *t, uint32_t h, const plp_attn *total)
{
    const uint32_t G = j->group_size, d = j->a->head_dim;
    for (uint32_t i = 0; i < t->n_tok; i++) {
        const plp_attn one = { .n_q = G, .head_dim = d, .m = total->m + i * G, .s = total->s + i * G,
                               .acc = total->acc + (size_t)i * G * d };
        float *to = j->out + (t->seq->row0 + t->pos0 - t->seq->pos0 + i) * j->ldo + (size_t)h * G * d;
        j->c->k->attn_finish(&one, j->a->sinks ? j->a->sinks + h * G : NULL, to, d);
    }
}

/* ---- many tokens ---- */

/* The tile's head over f16 blocks from b0 on, up to position `to`. */
static void attend_run(const job *j, const tile *t, uint32_t b0, uint32_t to, const void **tiles, void *work)
{
    const uint32_t len = j->a->block_len, base = b0 * len;
    for (uint32_t b = b0; b * len < to; b++) tiles[b - b0] = block_tile(j, t->seq->sealed[j->a->group], b, t->h0, j->tile_bytes);
    for (uint32_t i = 0; i < t->n_tok; i++) {
        const uint32_t pos = t->pos0 + i, from = first_visible(j->a, pos), end = pos + 1 < to ? pos + 1 : to;
        const uint32_t hi = end > base ? end - base : 0, lo = from > base ? from - base : 0;
        for (uint32_t g = 0; g < j->group_size; g++) {
            t->lo[i * j->group_size + g] = lo < hi ? lo : hi;
            t->hi[i * j->group_size + g] = hi;
        }
    }
    j->c->k->attn_f16_run(t->state, tiles, len, (plp_seen){ t->lo, t->hi }, work);
}

static void attend_tile(const job *j, const plp_seq *seq, uint32_t index, uint32_t h, float *work)
{
    const uint32_t len = j->a->block_len, n = j->tile_len * j->group_size;
    tile t = { .seq = seq, .pos0 = seq->pos0 + index * j->tile_len, .n_tok = j->tile_len, .h0 = h, .h1 = h + 1 };

    if (t.pos0 + t.n_tok > seq->pos0 + seq->n_tok)
        t.n_tok = seq->pos0 + seq->n_tok - t.pos0;
    const uint32_t n_q = t.n_tok * j->group_size, end = t.pos0 + t.n_tok;
    float *q = (float *)((const void **)work + MAX_RUN);
    plp_attn total = state_at(j, q + (size_t)n * j->a->head_dim, n_q, q);
    plp_attn part = state_at(j, total.m + state_floats(n, j->a->head_dim), n_q, q);
    t.lo = (uint32_t *)(part.m + state_floats(n, j->a->head_dim));
    t.hi = t.lo + n;
    t.state = &part;
    void *run_work = aligned(t.hi + n);
    const bool one_format = j->a->kv_format == PLP_KV_F16;

    gather_queries(j, &t, h, q);
    state_reset(&total);
    for (uint32_t from = first_visible(j->a, t.pos0) / PLP_SPLIT_LEN * PLP_SPLIT_LEN; from < end; from += PLP_SPLIT_LEN) {
        const uint32_t to = from + PLP_SPLIT_LEN < end ? from + PLP_SPLIT_LEN : end;
        const uint32_t first = first_visible(j->a, t.pos0) / len, b0 = from / len > first ? from / len : first;
        state_reset(&part);
        if (one_format)
            attend_run(j, &t, b0, to, (const void **)work, run_work);
        else
            attend_blocks(j, &t, b0, (to + len - 1) / len);
        j->c->k->attn_merge(&total, &part);
    }
    finish(j, &t, h, &total);
}

/* ---- few tokens ---- */

typedef struct splits { uint32_t first, n; } splits;

static splits splits_of(const plp_attention *a, const plp_seq *seq)
{
    const uint32_t first = first_visible(a, seq->pos0) / PLP_SPLIT_LEN;
    return (splits){ first, (seq->pos0 + seq->n_tok - 1) / PLP_SPLIT_LEN + 1 - first };
}

static float *part_at(const job *j, size_t split, uint32_t n_tok, uint32_t h)
{
    return j->c->parts + split * state_floats(FEW_TOKENS * j->a->n_heads, j->a->head_dim)
                       + state_floats(n_tok * j->group_size, j->a->head_dim) * h;
}

/* part: where the sequence's splits begin in the parts. */
static void attend_split(const job *j, const plp_seq *seq, size_t part, uint32_t split, uint32_t h0, uint32_t h1, float *work)
{
    const uint32_t len = j->a->block_len, n_q = seq->n_tok * j->group_size, end = seq->pos0 + seq->n_tok;
    const splits s = splits_of(j->a, seq);
    tile t = { .seq = seq, .pos0 = seq->pos0, .n_tok = seq->n_tok, .h0 = h0, .h1 = h1 };

    t.state = (plp_attn *)work;
    float *q = (float *)(t.state + j->a->n_kv_heads);
    t.lo = (uint32_t *)(q + (size_t)FEW_TOKENS * j->a->n_heads * j->a->head_dim);
    t.hi = t.lo + n_q;
    for (uint32_t h = h0; h < h1; h++, q += (size_t)n_q * j->a->head_dim) {
        gather_queries(j, &t, h, q);
        t.state[h - h0] = state_at(j, part_at(j, part + split, seq->n_tok, h), n_q, q);
        state_reset(&t.state[h - h0]);
    }
    const uint32_t from = (s.first + split) * PLP_SPLIT_LEN, first = first_visible(j->a, t.pos0) / len;
    const uint32_t to = from + PLP_SPLIT_LEN < end ? from + PLP_SPLIT_LEN : end;
    attend_blocks(j, &t, from / len > first ? from / len : first, (to + len - 1) / len);
}

static void fold_splits(const job *j, const plp_seq *seq, size_t part, uint32_t h, float *work)
{
    const uint32_t n_q = seq->n_tok * j->group_size;
    const splits s = splits_of(j->a, seq);
    const tile t = { .seq = seq, .pos0 = seq->pos0, .n_tok = seq->n_tok };
    plp_attn total = state_at(j, work, n_q, NULL);

    state_reset(&total);
    for (uint32_t i = 0; i < s.n; i++) {
        const plp_attn one = state_at(j, part_at(j, part + i, seq->n_tok, h), n_q, NULL);
        j->c->k->attn_merge(&total, &one);
    }
    finish(j, &t, h, &total);
}

/* ---- handing out ---- */

static bool is_few(const plp_seq *seq) { return seq->n_tok <= FEW_TOKENS; }

static uint32_t pieces_of(const job *j, const plp_seq *seq)
{
    if (is_few(seq))
        return splits_of(j->a, seq).n * (j->a->n_kv_heads / j->heads_a_piece);
    return (seq->n_tok + j->tile_len - 1) / j->tile_len * j->a->n_kv_heads;
}

static void attend_pieces(void *arg, uint32_t id, uint32_t n_threads)
{
    const job *j = arg;
    const uint32_t heads = j->a->n_kv_heads;
    float *work = plp_cpu_work(j->c, id);
    uint32_t s = 0, before = 0;
    size_t part = 0;

    for (uint32_t piece; ; ) {
        piece = plp_team_next(j->c->team);
        while (s < j->batch->n_seq && piece >= before + pieces_of(j, &j->batch->seq[s])) {
            if (is_few(&j->batch->seq[s]))
                part += splits_of(j->a, &j->batch->seq[s]).n;
            before += pieces_of(j, &j->batch->seq[s++]);
        }
        if (s == j->batch->n_seq)
            return;
        const plp_seq *seq = &j->batch->seq[s];
        const uint32_t i = piece - before;
        if (is_few(seq)) {
            const uint32_t a_split = heads / j->heads_a_piece, h0 = i % a_split * j->heads_a_piece;
            attend_split(j, seq, part, i / a_split, h0, h0 + j->heads_a_piece, work);
        } else {
            attend_tile(j, seq, i / heads, i % heads, work);
        }
    }
}

static void fold_pieces(void *arg, uint32_t id, uint32_t n_threads)
{
    const job *j = arg;
    const uint32_t heads = j->a->n_kv_heads;
    float *work = plp_cpu_work(j->c, id);
    uint32_t piece = plp_team_next(j->c->team), before = 0;
    size_t part = 0;

    for (uint32_t s = 0; s < j->batch->n_seq; s++) {
        const plp_seq *seq = &j->batch->seq[s];
        if (!is_few(seq))
            continue;
        for (; piece < before + heads; piece = plp_team_next(j->c->team))
            fold_splits(j, seq, part, piece - before, work);
        before += heads;
        part += splits_of(j->a, seq).n;
    }
}

/* For work too small to wake the team: the caller takes every piece. */
static void run(const job *j, plp_team_fn fn, uint64_t elements)
{
    plp_team *team = j->c->team;
    if (elements < PLP_ALONE_ELEMENTS)
        plp_team_run_alone(team, fn, (void *)j);
    else
        plp_team_run(team, fn, (void *)j);
}

void plp_cpu_attention(plp_backend *b, const plp_attention *a, const plp_batch *batch, const float *q, size_t ldq,
                       float *out, size_t ldo)
{
    plp_cpu *c = (plp_cpu *)b;
    job j = { .c = c, .a = a, .batch = batch, .q = q, .ldq = ldq, .out = out, .ldo = ldo,
              .group_size = a->n_heads / a->n_kv_heads, .heads_a_piece = a->n_kv_heads,
              .tile_bytes = plp_tile_bytes(a->kv_format, a->head_dim, a->block_len),
              .open_tile_bytes = plp_tile_bytes(PLP_KV_F16, a->head_dim, a->block_len) };
    uint64_t visited = 0, all_splits = 0, folded = 0;

    j.tile_len = tile_len(j.group_size);
    for (uint32_t s = 0; s < batch->n_seq; s++) {
        const uint32_t end = batch->seq[s].pos0 + batch->seq[s].n_tok;
        visited += (uint64_t)batch->seq[s].n_tok * (end - first_visible(a, batch->seq[s].pos0));
        if (is_few(&batch->seq[s])) {
            all_splits += splits_of(a, &batch->seq[s]).n;
            folded += splits_of(a, &batch->seq[s]).n * batch->seq[s].n_tok;
        }
    }
    /* Whole blocks stream best; single heads balance when there is little to hand out. */
    if (all_splits < 4 * plp_team_size(c->team))
        j.heads_a_piece = 1;
    run(&j, attend_pieces, visited * a->n_heads * a->head_dim);
    if (all_splits)
        run(&j, fold_pieces, folded * a->n_heads * a->head_dim);
}

size_t plp_cpu_attention_work(const plp_kernels *k, const plp_plan *p)
{
    const uint32_t n_q = p->group_size > TILE_QUERIES ? p->group_size : TILE_QUERIES, few = FEW_TOKENS * p->n_heads;
    const size_t many_bytes = MAX_RUN * sizeof(void *) + 64 + k->attn_run_work(n_q, p->head_dim)
                              + ((size_t)n_q * p->head_dim + 2 * state_floats(n_q, p->head_dim) + 2 * n_q) * sizeof(float);
    const size_t few_bytes = p->n_kv_heads * sizeof(plp_attn) + ((size_t)few * p->head_dim + 2 * few) * sizeof(float);
    const size_t fold_bytes = state_floats(few, p->head_dim) * sizeof(float);
    const size_t most = many_bytes > few_bytes ? many_bytes : few_bytes;
    return most > fold_bytes ? most : fold_bytes;
}

size_t plp_cpu_attention_parts(const plp_plan *p, const plp_batch *batch)
{
    size_t n = 0;
    for (uint32_t s = 0; s < batch->n_seq; s++)
        if (is_few(&batch->seq[s]))
            n += (batch->seq[s].pos0 + batch->seq[s].n_tok - 1) / PLP_SPLIT_LEN + 1;
    return n * state_floats(FEW_TOKENS * p->n_heads, p->head_dim) * sizeof(float);
}

/* ---- store ---- */

enum { STORE_PIECE = 16 };

/* Piece: one head of up to STORE_PIECE tokens of one sequence, cut at multiples of it so that two threads
 * do not write into one cache line of a block. */
static void store_pieces(void *arg, uint32_t id, uint32_t n_threads)
{
    const job *j = arg;
    const plp_attention *a = j->a;
    uint32_t piece = plp_team_next(j->c->team), before = 0;

    for (uint32_t s = 0; s < j->batch->n_seq; s++) {
        const plp_seq *seq = &j->batch->seq[s];
        const uint32_t first = seq->pos0 / STORE_PIECE, last = (seq->pos0 + seq->n_tok - 1) / STORE_PIECE;
        const uint32_t n = (last - first + 1) * a->n_kv_heads;
        for (; piece < before + n; piece = plp_team_next(j->c->team)) {
            const uint32_t h = (piece - before) % a->n_kv_heads, run = first + (piece - before) / a->n_kv_heads;
            uint32_t p = run * STORE_PIECE, end = p + STORE_PIECE;
            if (p < seq->pos0)
                p = seq->pos0;
            if (end > seq->pos0 + seq->n_tok)
                end = seq->pos0 + seq->n_tok;
            for (; p < end; p++) {
                const size_t at = (seq->row0 + p - seq->pos0) * j->ldq + (size_t)h * a->head_dim;
                void *block = (void *)block_tile(j, seq->open[a->group], p / a->block_len, h, j->open_tile_bytes);
                j->c->k->kv_put(block, a->block_len, p % a->block_len, j->k + at, j->v + at, a->head_dim);
            }
        }
        before += n;
    }
}

enum { SEAL_COST = 8 };             /* times a store */

/* Piece: one head of one block that this batch completes. */
static void seal_pieces(void *arg, uint32_t id, uint32_t n_threads)
{
    const job *j = arg;
    const plp_attention *a = j->a;
    void (*const seal)(const void *, void *, uint32_t) = a->kv_format == PLP_KV_Q8 ? j->c->k->kv_seal_q8 : j->c->k->kv_seal_q4;
    uint32_t piece = plp_team_next(j->c->team), before = 0;

    for (uint32_t s = 0; s < j->batch->n_seq; s++) {
        const plp_seq *seq = &j->batch->seq[s];
        const uint32_t first = seq->pos0 / a->block_len, n = (seq->pos0 + seq->n_tok) / a->block_len - first;
        for (; piece < before + n * a->n_kv_heads; piece = plp_team_next(j->c->team)) {
            const uint32_t b = first + (piece - before) / a->n_kv_heads, h = (piece - before) % a->n_kv_heads;
            seal(block_tile(j, seq->open[a->group], b, h, j->open_tile_bytes),
                 (void *)block_tile(j, seq->sealed[a->group], b, h, j->tile_bytes), a->head_dim);
        }
        before += n * a->n_kv_heads;
    }
}

void plp_cpu_kv_store(plp_backend *b, const plp_attention *a, const plp_batch *batch, const float *k, const float *v, size_t ld)
{
    const job j = { .c = (plp_cpu *)b, .a = a, .batch = batch, .k = k, .v = v, .ldq = ld,
                    .tile_bytes = plp_tile_bytes(a->kv_format, a->head_dim, a->block_len),
                    .open_tile_bytes = plp_tile_bytes(PLP_KV_F16, a->head_dim, a->block_len) };
    run(&j, store_pieces, (uint64_t)batch->n_tok * a->n_kv_heads * a->head_dim);
    if (a->kv_format != PLP_KV_F16)
        run(&j, seal_pieces, (uint64_t)batch->n_tok * a->n_kv_heads * a->head_dim * SEAL_COST);
}
