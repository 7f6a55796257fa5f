/* kv/table.c - a session's block list: an array, and the rule about who may write where */
#include "kv/table.h"

#include <string.h>

#include "base/mem.h"

static uint32_t blocks_for(const plp_table *t, uint64_t n_tokens)
{
    return (uint32_t)((n_tokens + t->block_len - 1) / t->block_len);
}

/* Room in the list for n blocks; it doubles, so that growing by one is cheap on average. */
static plp_status make_list(plp_table *t, uint32_t n, plp_error *err)
{
    uint64_t cap = t->cap_blocks ? t->cap_blocks : 16;
    plp_block *blocks;

    if (n <= t->cap_blocks)
        return PLP_OK;
    while (cap < n)
        cap *= 2;
    if (cap > UINT32_MAX || !(blocks = plp_resize(PLP_MEM_KV, t->blocks, (size_t)cap, sizeof *blocks)))
        return plp_fail_amount(err, PLP_E_NOMEM, cap * sizeof *blocks, 0, "kv table: no memory to list %u blocks", n);
    t->blocks = blocks;
    t->cap_blocks = (uint32_t)cap;
    return PLP_OK;
}

/* Drop entries [n, n_blocks), the last first, so that the cache gives up tails before heads. */
static void drop_from(plp_table *t, plp_pool *p, uint32_t n)
{
    while (t->n_blocks > n) {
        const plp_block b = t->blocks[--t->n_blocks];
        if (b != PLP_NO_BLOCK)
            plp_pool_drop(p, b);
    }
    if (t->first > t->n_blocks)
        t->first = t->n_blocks;
}

void plp_table_init(plp_table *t, uint32_t block_len, uint32_t open_class)
{
    *t = (plp_table){ .block_len = block_len, .open_class = open_class };
}

void plp_table_clear(plp_table *t, plp_pool *p)
{
    drop_from(t, p, 0);
    plp_free(t->blocks);
    plp_table_init(t, t->block_len, t->open_class);
}

plp_status plp_table_reserve(plp_table *t, plp_pool *p, uint32_t n, plp_copy *copy, plp_error *err)
{
    const uint64_t end = (uint64_t)t->n_tokens + n;
    const uint32_t open = t->n_tokens / t->block_len, n_kept = t->n_tokens % t->block_len;
    bool fork = false;
    plp_status status;

    *copy = (plp_copy){ PLP_NO_BLOCK, PLP_NO_BLOCK, 0 };
    if (n == 0)
        return PLP_OK;
    if (end > UINT32_MAX - t->block_len)
        return plp_fail(err, PLP_E_ARG, "kv table: %llu positions are more than a table can list", (unsigned long long)end);
    if (n_kept) {
        const plp_block b = t->blocks[open];
        if (b == PLP_NO_BLOCK)
            return plp_fail(err, PLP_E_ARG, "kv table: position %u lies in a block that was dropped behind the window; "
                            "rewind to its start and store it again", t->n_tokens);
        if (plp_pool_class(p, b) != t->open_class)
            return plp_fail(err, PLP_E_ARG, "kv table: position %u lies in a block sealed in another format; rewind to "
                            "its start and store it again", t->n_tokens);
        fork = plp_pool_refs(p, b) > 1 || plp_pool_is_mapped(p, b) || plp_pool_is_findable(p, b);
    }
    const uint32_t want = blocks_for(t, end), before = t->n_blocks;
    const uint32_t n_new = want > before ? want - before : 0;
    if ((status = make_list(t, before + n_new + fork, err)))
        return status;
    /* The copy is taken behind the others and then trades places with the block that it copies. */
    if ((status = plp_pool_take(p, t->open_class, n_new + fork, t->blocks + before, err)))
        return status;
    t->n_blocks = before + n_new;
    if (fork) {
        *copy = (plp_copy){ t->blocks[open], t->blocks[before + n_new], n_kept };
        t->blocks[open] = copy->to;
    }
    return PLP_OK;
}

void plp_table_copied(plp_table *t, plp_pool *p, const plp_copy *copy)
{
    (void)t;
    if (copy->to != PLP_NO_BLOCK)
        plp_pool_drop(p, copy->from);
}

void plp_table_advance(plp_table *t, uint32_t n)
{
    t->n_tokens += n;
}

void plp_table_rewind(plp_table *t, plp_pool *p, uint32_t n)
{
    if (n < t->n_tokens)
        t->n_tokens = n;
    drop_from(t, p, blocks_for(t, t->n_tokens));
}

plp_status plp_table_fork(plp_table *out, const plp_table *t, plp_pool *p, plp_error *err)
{
    const uint32_t n = blocks_for(t, t->n_tokens);
    plp_table copy;
    plp_status status;

    plp_table_init(&copy, t->block_len, t->open_class);
    if ((status = make_list(&copy, n, err)))
        return status;
    if (n)
        memcpy(copy.blocks, t->blocks, n * sizeof *copy.blocks);
    for (uint32_t i = t->first; i < n; i++)
        plp_pool_keep(p, copy.blocks[i]);
    copy.n_blocks = n;
    copy.n_tokens = t->n_tokens;
    copy.first = t->first < n ? t->first : n;
    *out = copy;
    return PLP_OK;
}

plp_status plp_table_adopt(plp_table *t, plp_pool *p, plp_block b, plp_error *err)
{
    plp_status status;

    if (t->n_tokens % t->block_len)
        return plp_fail(err, PLP_E_ARG, "kv table: a whole block cannot follow position %u, inside a block", t->n_tokens);
    if (t->n_tokens > UINT32_MAX - 2 * t->block_len)
        return plp_fail(err, PLP_E_ARG, "kv table: no position is left after %u", t->n_tokens);
    if ((status = make_list(t, t->n_tokens / t->block_len + 1, err)))
        return status;
    drop_from(t, p, t->n_tokens / t->block_len);
    t->blocks[t->n_blocks++] = b;
    t->n_tokens += t->block_len;
    return PLP_OK;
}

plp_status plp_table_adopt_gap(plp_table *t, plp_pool *p, plp_error *err)
{
    const plp_status status = plp_table_adopt(t, p, PLP_NO_BLOCK, err);
    if (status)
        return status;
    for (uint32_t i = t->n_blocks - 1; i > t->first; i--) {
        plp_pool_drop(p, t->blocks[i - 1]);
        t->blocks[i - 1] = PLP_NO_BLOCK;
    }
    t->first = t->n_blocks;
    return PLP_OK;
}

void plp_table_replace(plp_table *t, plp_pool *p, uint32_t i, plp_block b)
{
    const plp_block old = t->blocks[i];
    t->blocks[i] = b;
    plp_pool_drop(p, old);
}

void plp_table_drop_before(plp_table *t, plp_pool *p, uint32_t position)
{
    const uint32_t last = (position < t->n_tokens ? position : t->n_tokens) / t->block_len;

    for (uint32_t i = last; i > t->first; i--) {
        plp_pool_drop(p, t->blocks[i - 1]);
        t->blocks[i - 1] = PLP_NO_BLOCK;
    }
    if (last > t->first)
        t->first = last;
}

bool plp_table_ok(const plp_table *t, const plp_pool *p)
{
    const uint32_t n_stored = blocks_for(t, t->n_tokens);

    if (t->n_blocks > t->cap_blocks || t->n_blocks < n_stored || t->first > t->n_blocks)
        return false;
    for (uint32_t i = 0; i < t->n_blocks; i++) {
        const plp_block b = t->blocks[i];
        if ((b == PLP_NO_BLOCK) != (i < t->first))
            return false;
        if (b == PLP_NO_BLOCK)
            continue;
        if (plp_pool_refs(p, b) == 0)
            return false;
        if (i >= n_stored && (plp_pool_refs(p, b) != 1 || plp_pool_is_mapped(p, b) || plp_pool_is_findable(p, b) ||
                              plp_pool_class(p, b) != t->open_class))
            return false;
    }
    return true;
}
