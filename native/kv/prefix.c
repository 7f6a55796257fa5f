/*
 * kv/prefix.c - a tree of token blocks with a hash table over its edges
 *
 * A node is one findable block. The hash table answers "the child with exactly these tokens" at once;
 * the lists of children answer "the child that begins like this" and say what becomes unreachable
 * when a block goes. Nodes and their tokens lie in two arrays that grow by doubling; a third maps a
 * block to its node. Removal never needs memory.
 */
#include "kv/prefix.h"

#include <string.h>

#include "base/mem.h"

#define NONE UINT32_MAX

typedef struct node {
    plp_block block;
    uint32_t  generation;       /* of block; the key of its children, so a reused index cannot match */
    uint32_t  hash;
    uint32_t  next;             /* same bucket; or the next unused node */
    uint32_t  parent;           /* NONE: starts a chain */
    uint32_t  first_child, next_sibling, prev_sibling;      /* newest first */
} node;

struct plp_prefix {
    plp_pool *pool;
    uint32_t  block_len;
    uint64_t  hash_mask;
    node     *nodes;            /* [cap_nodes] */
    int32_t  *tokens;           /* [cap_nodes][block_len] */
    uint32_t *buckets;          /* [n_buckets], a power of two */
    uint32_t *node_of;          /* [n_node_of] by block; NONE */
    uint32_t  cap_nodes, n_nodes, n_buckets, n_node_of;
    uint32_t  unused;           /* first node to hand out */
    uint32_t  first_root;
};

/* ---- looking things up ---- */

static const int32_t *tokens_of(const plp_prefix *x, uint32_t n)
{
    return x->tokens + (size_t)n * x->block_len;
}

/* Multiply-xorshift over the parent's generation and the tokens; quality matters only for speed. */
static uint32_t hash_of(const plp_prefix *x, uint32_t parent, const int32_t *tokens)
{
    uint64_t h = parent == NONE ? 0 : x->nodes[parent].generation;

    for (uint32_t i = 0; i < x->block_len; i++) {
        h = (h ^ (uint32_t)tokens[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return (uint32_t)((h ^ h >> 32) & x->hash_mask);
}

static uint32_t node_at(const plp_prefix *x, plp_block b)
{
    const uint32_t n = b < x->n_node_of ? x->node_of[b] : NONE;
    return n != NONE && x->nodes[n].generation == plp_pool_generation(x->pool, b) ? n : NONE;
}

/* The node under which children of `parent` are found; false if there can be none. */
static bool parent_node(const plp_prefix *x, plp_block parent, uint32_t *out)
{
    *out = NONE;
    return parent == PLP_NO_BLOCK || (*out = node_at(x, parent)) != NONE;
}

static uint32_t find_node(const plp_prefix *x, uint32_t parent, const int32_t *tokens, uint32_t hash)
{
    if (!x->n_buckets)
        return NONE;
    for (uint32_t n = x->buckets[hash & (x->n_buckets - 1)]; n != NONE; n = x->nodes[n].next)
        if (x->nodes[n].hash == hash && x->nodes[n].parent == parent &&
            !memcmp(tokens_of(x, n), tokens, x->block_len * sizeof *tokens))
            return n;
    return NONE;
}

static uint32_t *first_child_of(plp_prefix *x, uint32_t parent)
{
    return parent == NONE ? &x->first_root : &x->nodes[parent].first_child;
}

/* ---- removal ---- */

static void unlink_leaf(plp_prefix *x, uint32_t n)
{
    node *v = &x->nodes[n];
    uint32_t *at = &x->buckets[v->hash & (x->n_buckets - 1)];

    while (*at != n)
        at = &x->nodes[*at].next;
    *at = v->next;
    if (v->prev_sibling == NONE) *first_child_of(x, v->parent) = v->next_sibling;
    else                         x->nodes[v->prev_sibling].next_sibling = v->next_sibling;
    if (v->next_sibling != NONE)
        x->nodes[v->next_sibling].prev_sibling = v->prev_sibling;
    x->node_of[v->block] = NONE;
    v->next = x->unused;
    x->unused = n;
    x->n_nodes--;
}

/* Remove all that is found through node n: leaves first, so that cached tails are freed before heads. */
static void remove_below(plp_prefix *x, uint32_t n)
{
    uint32_t at = n;

    for (;;) {
        while (x->nodes[at].first_child != NONE)
            at = x->nodes[at].first_child;
        if (at == n)
            return;
        const plp_block b = x->nodes[at].block;
        const uint32_t up = x->nodes[at].parent;
        unlink_leaf(x, at);
        plp_pool_set_findable(x->pool, b, false);
        at = up;
    }
}

/* ---- what the pool calls ---- */

static void forget(void *context, plp_block b)
{
    plp_prefix *x = context;
    const uint32_t n = node_at(x, b);

    if (n == NONE)
        return;
    remove_below(x, n);
    unlink_leaf(x, n);
}

static plp_block leaf(void *context, plp_block b)
{
    const plp_prefix *x = context;
    uint32_t n = node_at(x, b);

    if (n == NONE)
        return b;
    for (uint32_t c = x->nodes[n].first_child; c != NONE;) {
        if (plp_pool_refs(x->pool, x->nodes[c].block)) {
            c = x->nodes[c].next_sibling;       /* held: not evictable, whatever lies below it */
        } else {
            n = c;
            c = x->nodes[n].first_child;
        }
    }
    return x->nodes[n].block;
}

/* ---- insertion ---- */

static bool grow_nodes(plp_prefix *x)
{
    const uint32_t cap = x->cap_nodes ? x->cap_nodes * 2 : 64;
    void *nodes, *tokens;

    if (x->unused != NONE)
        return true;
    if (cap < x->cap_nodes || !(nodes = plp_resize(PLP_MEM_KV, x->nodes, cap, sizeof *x->nodes)))
        return false;
    x->nodes = nodes;
    if (!(tokens = plp_resize(PLP_MEM_KV, x->tokens, (size_t)cap * x->block_len, sizeof *x->tokens)))
        return false;
    x->tokens = tokens;
    for (uint32_t n = cap; n-- > x->cap_nodes;) {
        x->nodes[n].next = x->unused;
        x->unused = n;
    }
    x->cap_nodes = cap;
    return true;
}

static bool grow_node_of(plp_prefix *x, plp_block b)
{
    uint64_t n = x->n_node_of ? x->n_node_of : 256;
    uint32_t *node_of;

    if (b < x->n_node_of)
        return true;
    while (n <= b)
        n *= 2;
    if (n > UINT32_MAX || !(node_of = plp_resize(PLP_MEM_KV, x->node_of, (size_t)n, sizeof *node_of)))
        return false;
    memset(node_of + x->n_node_of, 0xff, (size_t)(n - x->n_node_of) * sizeof *node_of);     /* NONE */
    x->node_of = node_of;
    x->n_node_of = (uint32_t)n;
    return true;
}

/* At most one node per bucket on average. Without memory for more buckets the old ones still serve. */
static bool grow_buckets(plp_prefix *x)
{
    const uint32_t n = x->n_buckets ? x->n_buckets * 2 : 64;
    uint32_t *buckets;

    if (x->n_nodes < x->n_buckets || n < x->n_buckets || !(buckets = plp_alloc(PLP_MEM_KV, n, sizeof *buckets)))
        return x->n_buckets > 0;
    memset(buckets, 0xff, n * sizeof *buckets);             /* NONE */
    for (uint32_t k = 0; k < x->n_buckets; k++)
        for (uint32_t at = x->buckets[k], next; at != NONE; at = next) {
            uint32_t *to = &buckets[x->nodes[at].hash & (n - 1)];
            next = x->nodes[at].next;
            x->nodes[at].next = *to;
            *to = at;
        }
    plp_free(x->buckets);
    x->buckets = buckets;
    x->n_buckets = n;
    return true;
}

plp_block plp_prefix_insert(plp_prefix *x, plp_block parent, const int32_t *tokens, plp_block b)
{
    uint32_t up, found;

    if (!parent_node(x, parent, &up) || node_at(x, b) != NONE)
        return b;
    const uint32_t hash = hash_of(x, up, tokens);
    if ((found = find_node(x, up, tokens, hash)) != NONE)
        return x->nodes[found].block;
    if (!grow_nodes(x) || !grow_node_of(x, b) || !grow_buckets(x))
        return b;

    const uint32_t n = x->unused;
    node *v = &x->nodes[n];
    uint32_t *first = first_child_of(x, up), *bucket = &x->buckets[hash & (x->n_buckets - 1)];
    x->unused = v->next;
    *v = (node){ .block = b, .generation = plp_pool_generation(x->pool, b), .hash = hash, .next = *bucket, .parent = up,
                 .first_child = NONE, .next_sibling = *first, .prev_sibling = NONE };
    if (*first != NONE)
        x->nodes[*first].prev_sibling = n;
    *first = n;
    *bucket = n;
    memcpy(x->tokens + (size_t)n * x->block_len, tokens, x->block_len * sizeof *tokens);
    x->node_of[b] = n;
    x->n_nodes++;
    plp_pool_set_findable(x->pool, b, true);
    return b;
}

/* ---- the rest of the interface ---- */

plp_status plp_prefix_open(plp_prefix **out, plp_pool *pool, uint32_t block_len, uint64_t hash_mask, plp_error *err)
{
    plp_prefix *x;

    if (block_len == 0)
        return plp_fail(err, PLP_E_ARG, "kv prefix: blocks of 0 tokens");
    if (!(x = plp_zalloc(PLP_MEM_KV, 1, sizeof *x)))
        return plp_fail_amount(err, PLP_E_NOMEM, sizeof *x, 0, "kv prefix: no memory for its bookkeeping");
    x->pool = pool;
    x->block_len = block_len;
    x->hash_mask = hash_mask;
    x->unused = x->first_root = NONE;
    plp_pool_on_evict(pool, leaf, forget, x);
    *out = x;
    return PLP_OK;
}

void plp_prefix_close(plp_prefix *x)
{
    if (!x)
        return;
    while (x->first_root != NONE)
        plp_prefix_remove(x, x->nodes[x->first_root].block);
    plp_pool_on_evict(x->pool, NULL, NULL, NULL);
    plp_free(x->nodes);
    plp_free(x->tokens);
    plp_free(x->buckets);
    plp_free(x->node_of);
    plp_free(x);
}

plp_block plp_prefix_find(const plp_prefix *x, plp_block parent, const int32_t *tokens)
{
    uint32_t up, n;

    if (!parent_node(x, parent, &up))
        return PLP_NO_BLOCK;
    n = find_node(x, up, tokens, hash_of(x, up, tokens));
    return n == NONE ? PLP_NO_BLOCK : x->nodes[n].block;
}

plp_block plp_prefix_find_head(const plp_prefix *x, plp_block parent, const int32_t *tokens, uint32_t n, uint32_t *n_match)
{
    plp_block best = PLP_NO_BLOCK;
    uint32_t up;

    *n_match = 0;
    if (!parent_node(x, parent, &up))
        return PLP_NO_BLOCK;
    for (uint32_t at = up == NONE ? x->first_root : x->nodes[up].first_child; at != NONE && *n_match < n;
         at = x->nodes[at].next_sibling) {
        const int32_t *have = tokens_of(x, at);
        uint32_t k = 0;
        while (k < n && have[k] == tokens[k])
            k++;
        if (k > *n_match) {
            *n_match = k;
            best = x->nodes[at].block;
        }
    }
    return best;
}

void plp_prefix_remove(plp_prefix *x, plp_block b)
{
    const uint32_t n = node_at(x, b);

    if (n == NONE)
        return;
    remove_below(x, n);
    unlink_leaf(x, n);
    plp_pool_set_findable(x->pool, b, false);
}

uint64_t plp_prefix_count(const plp_prefix *x)
{
    return x->n_nodes;
}

uint64_t plp_prefix_bytes(const plp_prefix *x)
{
    return sizeof *x + x->cap_nodes * (sizeof *x->nodes + (uint64_t)x->block_len * sizeof *x->tokens) +
           x->n_buckets * sizeof *x->buckets + x->n_node_of * sizeof *x->node_of;
}

bool plp_prefix_ok(const plp_prefix *x)
{
    uint64_t n_in_buckets = 0, n_in_tree = 0, n_mapped = 0, n_unused = 0;

    for (uint32_t k = 0; k < x->n_buckets; k++)
        for (uint32_t n = x->buckets[k]; n != NONE; n = x->nodes[n].next) {
            const node *v = &x->nodes[n];
            if (++n_in_buckets > x->n_nodes || (v->hash & (x->n_buckets - 1)) != k ||
                v->hash != hash_of(x, v->parent, tokens_of(x, n)) || node_at(x, v->block) != n ||
                !plp_pool_is_findable(x->pool, v->block))
                return false;
        }
    for (uint32_t k = 0; k < x->n_node_of; k++)
        n_mapped += x->node_of[k] != NONE;
    for (uint32_t n = x->unused; n != NONE && n_unused <= x->cap_nodes; n = x->nodes[n].next)
        n_unused++;
    /* The tree, depth first: down, else along, else up and along. */
    for (uint32_t n = x->first_root, before = NONE, up = NONE; n != NONE;) {
        const node *v = &x->nodes[n];
        if (++n_in_tree > x->n_nodes || v->parent != up || v->prev_sibling != before)
            return false;
        if (v->first_child != NONE) {
            up = n;
            before = NONE;
            n = v->first_child;
            continue;
        }
        while (v->next_sibling == NONE && v->parent != NONE) {
            n = v->parent;
            v = &x->nodes[n];
        }
        up = v->parent;
        before = n;
        n = v->next_sibling;
    }
    return n_in_buckets == x->n_nodes && n_mapped == x->n_nodes && n_in_tree == x->n_nodes &&
           n_unused + x->n_nodes == x->cap_nodes;
}
