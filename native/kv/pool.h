/*
 * kv/pool.h - the blocks that all sessions of an engine share
 *
 * A block stores keys and values of block_len consecutive tokens, all layers of one group, in one
 * format. Blocks of one size form a class. A class gets address space from its source in slabs
 * (about 2 MiB, 4 to 64 blocks) and never clears them. A block is named by index: one number means
 * the same block on every backend. Indices are reused (the generation then changes) and have gaps:
 * use them as keys, not as sizes.
 *
 *   cold    free, its pages are with the OS          costs nothing; a fresh slab is all cold
 *   warm    free, its pages are still here           a few, at most 1/64 of the class's used blocks
 *   held    refs > 0                                 data is readable; writable only while refs == 1
 *   cached  refs == 0, but findable by the index     evicted least recently used first, tails before heads
 *   mapped  data lies in memory of somebody else     held or cached like others, but no pool bytes
 *
 * Memory follows the blocks that are used, not the slabs they lie in. Sessions that grow in turn
 * scatter over all slabs, and waiting for whole slabs to empty would then give nothing back. So the
 * pages of a freed block are released one by one, the slab stays as address space, and the budget
 * counts pages. A slab whose blocks are all free is unmapped at once; new blocks come from the
 * fullest slab, so slabs empty out. Where the source cannot release pages (a device), or blocks are
 * smaller than two pages, a slab is committed and given back as a whole, and one empty slab per
 * class is kept while the class has used blocks.
 *
 * Units    *_bytes bytes; n_* blocks or slabs
 * Owner    the pool owns storage; whoever takes or keeps a block owes one drop
 * Threads  the engine's lock; kernels may read a block while it is held
 * Errors   PLP_E_BUDGET (err->wanted, err->available in bytes; nothing changed), PLP_E_NOMEM (no block
 *          was taken; cached ones may be gone), PLP_E_ARG
 * Always   n_free + n_held + n_cached == n_blocks of each class;
 *          resident == held + cached + free + slack <= budget (bytes)
 */
#ifndef PLP_KV_POOL_H
#define PLP_KV_POOL_H

#include "base/status.h"

typedef uint32_t plp_block;
#define PLP_NO_BLOCK   UINT32_MAX
#define PLP_MAX_CLASSES 16u

/* Where slabs come from: the OS, or a device. map returns page-aligned memory or NULL. All NULL:
 * plp_pages_map, _unmap, _release. release gives pages back but keeps the address; it is NULL where
 * that cannot be. A source with release commits a page when it is first written. */
typedef struct plp_slab_source {
    void *(*map)(void *context, size_t n_bytes);
    void  (*unmap)(void *context, void *p, size_t n_bytes);
    void  (*release)(void *context, void *p, size_t n_bytes);
    void  *context;
} plp_slab_source;

typedef struct plp_pool_spec {
    uint32_t        n_classes;
    size_t          block_bytes[PLP_MAX_CLASSES];   /* a multiple of 64 */
    size_t          slab_bytes;                     /* wish; 0: 2 MiB. Becomes whole blocks, 4 to 64, and whole pages */
    uint64_t        budget_bytes;
    uint64_t        cache_bytes;                    /* most that cached blocks may occupy; 0: as the budget allows */
    bool            shuffle;                        /* hand out free blocks in random order, 16 slabs at a time */
    uint64_t        seed;                           /* of that order */
    plp_slab_source source;
} plp_pool_spec;

typedef struct plp_pool plp_pool;

plp_status plp_pool_open(plp_pool **out, const plp_pool_spec *spec, plp_error *err);
void       plp_pool_close(plp_pool *p);                 /* NULL is fine; all storage goes back */

/* All n or none, refs 1 each. Evicts cached blocks (of any class) when the budget is reached. */
plp_status plp_pool_take(plp_pool *p, uint32_t cls, uint32_t n, plp_block *out, plp_error *err);
/* The least budget in which n blocks of a class can be taken, if there is nothing else. */
uint64_t   plp_pool_least_bytes(const plp_pool *p, uint32_t cls, uint32_t n);
/* Give a block index to memory that somebody else owns (a mapped prefix file), refs 1. `gone` (may be
 * NULL) is called when the block leaves the pool for good. */
plp_status plp_pool_adopt(plp_pool *p, uint32_t cls, void *data, void (*gone)(void *context), void *context,
                          plp_block *out, plp_error *err);
void       plp_pool_keep(plp_pool *p, plp_block b);     /* one more owner; revives a cached block */
void       plp_pool_drop(plp_pool *p, plp_block b);     /* last drop: to the cache if findable, else free */

void      *plp_pool_data(const plp_pool *p, plp_block b);
uint32_t   plp_pool_class(const plp_pool *p, plp_block b);
size_t     plp_pool_block_bytes(const plp_pool *p, uint32_t cls);
uint32_t   plp_pool_refs(const plp_pool *p, plp_block b);               /* 0 also for an index not in use */
uint32_t   plp_pool_generation(const plp_pool *p, plp_block b);   /* changes whenever b is handed out anew; 0: not in use */
bool       plp_pool_is_mapped(const plp_pool *p, plp_block b);
bool       plp_pool_is_findable(const plp_pool *p, plp_block b);

/* Set by the prefix index, and by who finds further blocks through those of the index: a findable block is
 * cached on its last drop, and a cached block that stops being findable is freed. Before a cached block is evicted, the pool asks leaf(context, b) for a cached
 * descendant of b without cached children (or b itself) and evicts that one; forget(context, b) removes
 * it from the index. Neither may take, keep or drop. */
void       plp_pool_set_findable(plp_pool *p, plp_block b, bool findable);
void       plp_pool_on_evict(plp_pool *p, plp_block (*leaf)(void *context, plp_block b),
                             void (*forget)(void *context, plp_block b), void *context);

/* Give back at least `bytes` to the source: warm blocks and empty slabs, then cached blocks whose eviction
 * gives something back, then cached mapped ones (they count nothing). Returns bytes given back. */
uint64_t   plp_pool_trim(plp_pool *p, uint64_t bytes);

typedef struct plp_pool_stats {
    uint64_t resident_bytes;        /* committed: what the source gave and has not got back */
    uint64_t held_bytes, cached_bytes;
    uint64_t free_bytes;            /* resident bytes of free blocks: warm ones, and pages shared with a neighbour */
    uint64_t slack_bytes;           /* slab tails after the last block */
    uint64_t mapped_bytes;          /* held and cached mapped blocks; not resident */
    uint64_t reserved_bytes;        /* address space of all slabs */
    uint64_t metadata_bytes, budget_bytes;
    uint64_t n_slabs, n_blocks, n_held, n_cached, n_free;   /* without mapped ones */
    uint64_t n_mapped;                                      /* held and cached */
    uint64_t n_evicted, n_taken;                            /* since open */
} plp_pool_stats;
void plp_pool_get_stats(const plp_pool *p, plp_pool_stats *out);
bool plp_pool_ok(const plp_pool *p);                    /* re-counts `Always`; tests, debug */

#endif
