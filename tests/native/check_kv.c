/*
 * check_kv.c - random programs over pool, index and tables, against a naive reference
 *
 * The reference is a plain token timeline per session. Every stored position carries a hash of the
 * timeline up to it, written into the block's own bytes, so any wrong sharing, copy, eviction or reuse
 * shows as a wrong value when a session reads back. After every step the three _ok() re-count
 * everything, and the owners of each block are counted from outside.
 */
#include "check.h"

#include "base/mem.h"
#include "kv_source.h"
#include "kv/prefix.h"
#include "kv/table.h"

enum { LEN = 4, N_SESSIONS = 10, MAX_TOKENS = 96, N_LOOSE = 12, N_FILES = 3, FILE_BLOCKS = 4 };

/* ---- the world ---- */

typedef struct session { plp_table table; int32_t tokens[MAX_TOKENS]; bool open; } session;

typedef struct setup {
    const char *name;
    size_t   block_bytes[2];
    uint64_t budget_blocks;         /* of class 0 */
    uint64_t cache_bytes, hash_mask;
    bool     shuffle, releases;
    uint64_t refuse_memory, refuse_slabs;       /* from which allocation on; UINT64_MAX: never */
} setup;

typedef struct world {
    source      source;
    plp_pool   *pool;
    plp_prefix *index;
    session     sessions[N_SESSIONS];
    plp_block   loose[N_LOOSE];     /* blocks of class 1, held directly */
    uint32_t    n_loose;
    struct { uint32_t data[FILE_BLOCKS][LEN]; int32_t tokens[FILE_BLOCKS * LEN]; plp_block blocks[FILE_BLOCKS];
             uint32_t n_alive, n_gone; bool held; } files[N_FILES];
    bool        refused;            /* an injected failure was reported */
    uint64_t    n_reused, n_forked, n_budget, n_copied_heads;
} world;

static uint32_t mix(uint32_t h, int32_t token)
{
    h = (h ^ (uint32_t)token) * 0x85ebca6bu + 0x27d4eb2fu;
    return h ^ h >> 15;
}

/* Values lie at both ends of a block (a mapped one has no more than them), so that a neighbour whose pages
 * are released cannot take some along. */
static uint32_t *values_of(const world *w, plp_block b) { return plp_pool_data(w->pool, b); }
static uint32_t *copy_of(const world *w, plp_block b)
{
    const size_t end = plp_pool_block_bytes(w->pool, plp_pool_class(w->pool, b));
    return plp_pool_is_mapped(w->pool, b) ? values_of(w, b) : values_of(w, b) + end / sizeof(uint32_t) - LEN;
}
static void copy_head(world *w, plp_block to, plp_block from, uint32_t n)
{
    memcpy(values_of(w, to), values_of(w, from), n * sizeof(uint32_t));
    memcpy(copy_of(w, to), copy_of(w, from), n * sizeof(uint32_t));
}

/* All values of a session that are still listed. */
static bool reads_back(const world *w, const session *s)
{
    uint32_t h = 0;
    for (uint32_t i = 0; i < s->table.n_tokens; i++) {
        h = mix(h, s->tokens[i]);
        if (i / LEN < s->table.first)
            continue;
        const plp_block b = s->table.blocks[i / LEN];
        if (values_of(w, b)[i % LEN] != h || copy_of(w, b)[i % LEN] != h)
            return false;
    }
    return true;
}

static void count_owner(plp_block *blocks, uint32_t *owners, uint32_t *n, plp_block b)
{
    uint32_t k = 0;
    while (k < *n && blocks[k] != b)
        k++;
    if (k == *n) {
        blocks[(*n)++] = b;
        owners[k] = 0;
    }
    owners[k]++;
}

static void check_world(const world *w, const char *name, long step, const char *what)
{
    static plp_block blocks[4096];
    static uint32_t owners[4096];
    uint32_t n = 0, n_held = 0;
    plp_pool_stats t;

    CHECK(plp_pool_ok(w->pool), "%s step %ld after %s", name, step, what);
    CHECK(plp_prefix_ok(w->index), "%s step %ld after %s", name, step, what);
    for (int i = 0; i < N_SESSIONS; i++) {
        const session *s = &w->sessions[i];
        if (!s->open)
            continue;
        CHECK(plp_table_ok(&s->table, w->pool), "%s step %ld after %s: session %d", name, step, what, i);
        CHECK(reads_back(w, s), "%s step %ld after %s: session %d", name, step, what, i);
        for (uint32_t k = s->table.first; k < s->table.n_blocks; k++)
            count_owner(blocks, owners, &n, s->table.blocks[k]);
    }
    for (uint32_t i = 0; i < w->n_loose; i++)
        count_owner(blocks, owners, &n, w->loose[i]);
    for (int f = 0; f < N_FILES; f++)
        for (int k = 0; w->files[f].held && k < FILE_BLOCKS; k++)
            count_owner(blocks, owners, &n, w->files[f].blocks[k]);
    for (uint32_t k = 0; k < n; k++) {
        CHECK(plp_pool_refs(w->pool, blocks[k]) == owners[k], "%s step %ld after %s: block %u has %u refs, %u owners",
              name, step, what, blocks[k], plp_pool_refs(w->pool, blocks[k]), owners[k]);
        n_held += !plp_pool_is_mapped(w->pool, blocks[k]);
    }
    plp_pool_get_stats(w->pool, &t);
    CHECK(t.n_held == n_held, "%s step %ld after %s: %llu held, %u counted", name, step, what,
          (unsigned long long)t.n_held, n_held);
    CHECK(t.reserved_bytes == w->source.mapped_bytes && t.resident_bytes <= t.reserved_bytes,
          "%s step %ld after %s: slabs", name, step, what);
    for (int f = 0; f < N_FILES; f++)
        CHECK(w->files[f].n_gone <= w->files[f].n_alive, "%s step %ld after %s: gone twice", name, step, what);
}

/* ---- what a session can do ---- */

static uint64_t n_evicted(const world *w)
{
    plp_pool_stats t;
    plp_pool_get_stats(w->pool, &t);
    return t.n_evicted;
}

static void note(world *w, plp_status status)
{
    CHECK(status == PLP_OK || status == PLP_E_NOMEM || status == PLP_E_BUDGET, "status %d", status);
    w->n_budget += status == PLP_E_BUDGET;
    if (status == PLP_E_NOMEM) {                /* the injected failure has struck; from here on memory is there */
        w->refused = true;
        plp_mem_fail_after(-1);
        w->source.refuse_after = -1;
    }
}

/* Register full blocks, and use the equal block that somebody else registered first. */
static void seal(world *w, session *s, uint32_t from)
{
    for (uint32_t i = from / LEN; i < s->table.n_tokens / LEN; i++) {
        const plp_block b = s->table.blocks[i], up = i ? s->table.blocks[i - 1] : PLP_NO_BLOCK;
        if (i && up == PLP_NO_BLOCK)
            continue;                           /* the parent was dropped behind the window */
        const plp_block have = plp_prefix_insert(w->index, up, s->tokens + i * LEN, b);
        if (have != b) {
            plp_pool_keep(w->pool, have);
            plp_table_replace(&s->table, w->pool, i, have);
        }
    }
}

static plp_status append(world *w, session *s, uint32_t n)
{
    const uint32_t from = s->table.n_tokens, n_blocks = s->table.n_blocks;
    plp_copy copy;
    plp_status status;

    if (from + n > MAX_TOKENS)
        n = MAX_TOKENS - from;
    if (from % LEN && s->table.blocks[from / LEN] == PLP_NO_BLOCK) {    /* rewound behind the window */
        CHECK(plp_table_reserve(&s->table, w->pool, 1, &copy, NULL) == PLP_E_ARG, "wrote into a dropped block");
        plp_table_rewind(&s->table, w->pool, from / LEN * LEN);
        return append(w, s, n);
    }
    const uint64_t evicted = n_evicted(w);
    status = plp_table_reserve(&s->table, w->pool, n, &copy, NULL);
    if (status) {
        CHECK(status != PLP_E_BUDGET || n_evicted(w) == evicted, "evicted in vain");
        CHECK(s->table.n_blocks == n_blocks && s->table.n_tokens == from, "a failed reserve changed the table");
        note(w, status);
        return status;
    }
    if (copy.to != PLP_NO_BLOCK) {
        CHECK(copy.n_tokens == from % LEN, "copies %u of %u", copy.n_tokens, from % LEN);
        copy_head(w, copy.to, copy.from, copy.n_tokens);
        plp_table_copied(&s->table, w->pool, &copy);
        w->n_forked++;
    }
    uint32_t h = 0;
    for (uint32_t i = 0; i < from; i++)
        h = mix(h, s->tokens[i]);
    for (uint32_t i = from; i < from + n; i++) {
        const plp_block b = s->table.blocks[i / LEN];
        s->tokens[i] = (int32_t)(check_random() % 2);           /* two tokens only, so that timelines often meet */
        h = mix(h, s->tokens[i]);
        CHECK(plp_pool_refs(w->pool, b) == 1 && !plp_pool_is_mapped(w->pool, b) && !plp_pool_is_findable(w->pool, b),
              "block %u is not this session's alone", b);
        values_of(w, b)[i % LEN] = copy_of(w, b)[i % LEN] = h;
    }
    plp_table_advance(&s->table, n);
    seal(w, s, from);
    return PLP_OK;
}

/* A new session with the beginning of a timeline that the index may know. */
static void reuse(world *w, session *s, const int32_t *tokens, uint32_t n)
{
    plp_block up = PLP_NO_BLOCK, b;
    uint32_t k = 0, n_match;
    plp_copy copy;
    plp_status status;

    plp_table_init(&s->table, LEN, 0);
    s->open = true;
    memcpy(s->tokens, tokens, n * sizeof *tokens);
    for (; k + LEN <= n && (b = plp_prefix_find(w->index, up, tokens + k)) != PLP_NO_BLOCK; k += LEN, up = b) {
        plp_pool_keep(w->pool, b);
        if ((status = plp_table_adopt(&s->table, w->pool, b, NULL))) {
            plp_pool_drop(w->pool, b);
            note(w, status);
            return;
        }
        w->n_reused++;
    }
    b = plp_prefix_find_head(w->index, up, tokens + k, n - k < LEN ? n - k : LEN, &n_match);
    CHECK((b == PLP_NO_BLOCK) == (n_match == 0), "head of %u tokens", n_match);
    if (b == PLP_NO_BLOCK || n_match == LEN)
        return;
    plp_pool_keep(w->pool, b);                  /* else making room for the copy could evict its source */
    if (!(status = plp_table_reserve(&s->table, w->pool, n_match, &copy, NULL))) {
        copy_head(w, s->table.blocks[k / LEN], b, n_match);
        plp_table_advance(&s->table, n_match);
        w->n_copied_heads++;
    } else
        note(w, status);
    plp_pool_drop(w->pool, b);
}

static void file_gone(void *context) { ++*(uint32_t *)context; }

/* A mapped chain: adopted block by block, registered, held until let go. */
static void adopt_file(world *w, int f)
{
    plp_block up = PLP_NO_BLOCK;
    uint32_t h = 0;
    int n = 0;

    if (w->files[f].held) {
        while (n < FILE_BLOCKS)
            plp_pool_drop(w->pool, w->files[f].blocks[FILE_BLOCKS - ++n]);
        w->files[f].held = false;
        return;
    }
    if (w->files[f].n_alive != w->files[f].n_gone)
        return;                                 /* still cached from last time */
    for (int i = 0; i < FILE_BLOCKS * LEN; i++) {
        w->files[f].tokens[i] = (int32_t)(check_random() % 2);
        h = mix(h, w->files[f].tokens[i]);
        w->files[f].data[i / LEN][i % LEN] = h;
    }
    for (; n < FILE_BLOCKS; n++) {
        plp_block *b = &w->files[f].blocks[n];
        const plp_status status = plp_pool_adopt(w->pool, 0, w->files[f].data[n], file_gone, &w->files[f].n_gone, b, NULL);
        if (status) {
            note(w, status);
            while (n)
                plp_pool_drop(w->pool, w->files[f].blocks[--n]);
            return;
        }
        w->files[f].n_alive++;
        up = plp_prefix_insert(w->index, up, w->files[f].tokens + n * LEN, *b);
    }
    w->files[f].held = true;
}

static const char *step(world *w)
{
    session *s = &w->sessions[check_random() % N_SESSIONS], *other = &w->sessions[check_random() % N_SESSIONS];
    const uint32_t roll = check_random() % 100;

    if (roll < 4) {
        adopt_file(w, (int)(check_random() % N_FILES));
        return "adopt";
    }
    if (roll < 10 && w->n_loose < N_LOOSE) {
        const uint32_t n = 1 + check_random() % (N_LOOSE - w->n_loose);
        const uint64_t evicted = n_evicted(w);
        const plp_status status = plp_pool_take(w->pool, 1, n, w->loose + w->n_loose, NULL);
        CHECK(status != PLP_E_BUDGET || n_evicted(w) == evicted, "evicted in vain");
        if (status) note(w, status);
        else        w->n_loose += n;
        return "take";
    }
    if (roll < 16 && w->n_loose) {
        const uint32_t i = check_random() % w->n_loose;
        plp_pool_drop(w->pool, w->loose[i]);
        w->loose[i] = w->loose[--w->n_loose];
        return "drop";
    }
    if (roll < 18) {
        plp_pool_trim(w->pool, check_random() % 3 ? check_random() % 40000 : UINT64_MAX);
        return "trim";
    }
    if (!s->open) {
        if (other->open && roll < 50) {
            const plp_status status = plp_table_fork(&s->table, &other->table, w->pool, NULL);
            if (status) {
                note(w, status);
                return "failed fork";
            }
            memcpy(s->tokens, other->tokens, sizeof s->tokens);
            s->open = true;
            return "fork";
        }
        if (roll < 60) {
            const int32_t *tokens = w->files[check_random() % N_FILES].tokens;
            reuse(w, s, tokens, check_random() % (FILE_BLOCKS * LEN + 1));
        } else                                  /* any timeline, open or closed: its blocks may be cached */
            reuse(w, s, other->tokens, check_random() % (other->table.n_tokens + 1));
        return "reuse";
    }
    if (roll < 60) {
        append(w, s, 1 + check_random() % (check_random() % 4 ? 3 : 24));
        return "append";
    }
    if (roll < 66) {
        plp_copy copy;                          /* reserved and then not used */
        if (s->table.n_tokens % LEN == 0 && s->table.n_tokens + 9 < MAX_TOKENS)
            note(w, plp_table_reserve(&s->table, w->pool, 9, &copy, NULL));
        return "reserve";
    }
    if (roll < 78) {
        plp_table_rewind(&s->table, w->pool, s->table.n_tokens - check_random() % (s->table.n_tokens + 1) / (1 + check_random() % 4));
        return "rewind";
    }
    if (roll < 82) {
        plp_table_drop_before(&s->table, w->pool, check_random() % (s->table.n_tokens + 1));
        return "window";
    }
    if (roll < 83 && s->table.n_tokens % LEN == 0 && s->table.n_tokens + LEN <= MAX_TOKENS) {
        const plp_status status = plp_table_adopt_gap(&s->table, w->pool, NULL);
        if (status) note(w, status);
        for (uint32_t i = 0; !status && i < LEN; i++)
            s->tokens[s->table.n_tokens - LEN + i] = (int32_t)(check_random() % 2);
        return "gap";
    }
    if (roll < 85 && s->table.n_blocks > s->table.first) {
        plp_prefix_remove(w->index, s->table.blocks[s->table.first]);
        return "remove";
    }
    plp_table_clear(&s->table, w->pool);
    s->open = false;
    return "close";
}

/* One program; true if an injected failure was met. */
static bool run_program(const setup *c, uint64_t seed, long n_steps)
{
    static world w;
    plp_pool_spec spec = { .n_classes = 2, .block_bytes = { c->block_bytes[0], c->block_bytes[1] },
                           .slab_bytes = 6 * c->block_bytes[0], .budget_bytes = c->budget_blocks * c->block_bytes[0],
                           .cache_bytes = c->cache_bytes, .shuffle = c->shuffle, .seed = seed };
    const uint64_t bytes = plp_mem_bytes(PLP_MEM_KV);
    plp_pool_stats t;
    plp_status status;

    memset(&w, 0, sizeof w);
    check_state = seed * 2 + 0x9e3779b97f4a7c15u;
    w.source = (source){ .page = plp_page_bytes(), .refuse_after = (int64_t)c->refuse_slabs };
    spec.source = (plp_slab_source){ source_map, source_unmap, c->releases ? source_release : NULL, &w.source };
    plp_mem_fail_after((int64_t)c->refuse_memory);
    while ((status = plp_pool_open(&w.pool, &spec, NULL)))
        note(&w, status);
    while ((status = plp_prefix_open(&w.index, w.pool, LEN, c->hash_mask, NULL)))
        note(&w, status);
    for (long i = 0; i < n_steps; i++) {
        const char *what = step(&w);
        check_world(&w, c->name, i, what);
    }
    plp_mem_fail_after(-1);
    if (n_steps >= 5000)
        CHECK(w.n_reused && w.n_forked && w.n_copied_heads, "%s: reused %llu, forked %llu, heads %llu", c->name,
              (unsigned long long)w.n_reused, (unsigned long long)w.n_forked, (unsigned long long)w.n_copied_heads);
    if (n_steps >= 5000 && c->budget_blocks <= 60)
        CHECK(w.n_budget, "%s: the budget never mattered", c->name);

    for (int i = 0; i < N_SESSIONS; i++)
        if (w.sessions[i].open)
            plp_table_clear(&w.sessions[i].table, w.pool);
    while (w.n_loose)
        plp_pool_drop(w.pool, w.loose[--w.n_loose]);
    for (int f = 0; f < N_FILES; f++)
        if (w.files[f].held)
            adopt_file(&w, f);
    CHECK(plp_pool_ok(w.pool) && plp_prefix_ok(w.index), "%s: after closing", c->name);
    plp_pool_get_stats(w.pool, &t);
    CHECK(t.n_held == 0, "%s: held after closing", c->name);
    if (seed % 2)
        plp_pool_trim(w.pool, UINT64_MAX);
    plp_prefix_close(w.index);
    plp_pool_get_stats(w.pool, &t);
    CHECK(t.resident_bytes == 0 && t.n_slabs == 0 && w.source.mapped_bytes == 0, "%s: memory kept when nothing is used", c->name);
    plp_pool_close(w.pool);
    for (int f = 0; f < N_FILES; f++)
        CHECK(w.files[f].n_gone == w.files[f].n_alive, "%s: file %d: %u blocks adopted, %u gone", c->name, f,
              w.files[f].n_alive, w.files[f].n_gone);
    CHECK(plp_mem_bytes(PLP_MEM_KV) == bytes, "%s: heap bytes leaked", c->name);
    return w.refused;
}

#define NEVER UINT64_MAX
static const setup setups[] = {
    { "small blocks",       { 64, 192 },      256, 0,     ~UINT64_C(0), false, true,  NEVER, NEVER },
    { "pages",              { 8192, 16384 },  40, 0,      ~UINT64_C(0), false, true,  NEVER, NEVER },
    { "pages, roomy",       { 8192, 16384 },  4000, 0,    ~UINT64_C(0), false, true,  NEVER, NEVER },
    { "not whole pages",    { 12864, 8256 },  40, 0,      ~UINT64_C(0), false, true,  NEVER, NEVER },
    { "no release",         { 8192, 16384 },  48, 0,      ~UINT64_C(0), false, false, NEVER, NEVER },
    { "equal hashes",       { 8192, 16384 },  60, 0,      0,            false, true,  NEVER, NEVER },
    { "little cache",       { 8192, 16384 },  200, 65536, ~UINT64_C(0), false, true,  NEVER, NEVER },
    { "shuffle",            { 8192, 16384 },  60, 0,      ~UINT64_C(0), true,  true,  NEVER, NEVER },
    { "shuffle, no release",{ 8192, 12864 },  400, 0,     ~UINT64_C(0), true,  false, NEVER, NEVER },
};
enum { N_SETUPS = sizeof setups / sizeof *setups };

static void random_programs(void)
{
    for (int i = 0; i < N_SETUPS; i++)
        for (uint64_t seed = 1; seed <= 4; seed++)
            run_program(&setups[i], seed * 1000 + i, 5000);
}

/* The n-th allocation and all later ones fail until somebody reports it; for every n that matters. */
static void memory_refused(void)
{
    for (int i = 0; i < N_SETUPS; i += 2) {
        setup c = setups[i];
        long n_met = 0;
        for (c.refuse_memory = 0; run_program(&c, 77 + i, 150); c.refuse_memory++)
            n_met++;
        CHECK(n_met > 10, "%s: only %ld failures met", c.name, n_met);
    }
}

static void slabs_refused(void)
{
    for (int i = 0; i < N_SETUPS; i++) {
        setup c = setups[i];
        long n_met = 0;
        for (c.refuse_slabs = 0; run_program(&c, 99 + i, 150); c.refuse_slabs++)
            n_met++;
        CHECK(n_met > 0, "%s: no failure met", c.name);
    }
}

int main(void)
{
    RUN(random_programs);
    RUN(memory_refused);
    RUN(slabs_refused);
    return check_done();
}
