/*
 * kv/pool.h - the blocks that all sessions of an engine share
 *
 * A block stores keys and values of block_len consecutive tokens, all layers of one group, in one
 * format. Blocks of one size form a class. A class takes memory from its source in slabs (about
 * 2 MiB, at least four blocks), never clears it, and gives empty slabs back. A block is named by
 * index; indices are stable for a block's life and reused afterwards (its generation then changes).
 *
 *   free    in a slab, no owner                      reused first from the fullest slab, so slabs empty out
 *   held    refs > 0                                 data is readable; writable only while refs == 1
 *   cached  refs == 0, but findable by the index     evicted least recently used first, tails before heads
 *   mapped  data lies in a file mapping (adopted)    held or cached like others, no pool bytes
 *
 * Units    *_bytes bytes; n_* blocks or slabs
 * Owner    the pool owns storage; whoever takes or keeps a block owes one drop
 * Threads  the engine's lock; kernels may read a block while it is held
 * Errors   PLP_E_BUDGET (err->wanted, err->available in bytes) or PLP_E_NOMEM; on failure nothing changed
 * Always   n_free + n_held + n_cached == n_blocks of each class; resident == slabs * slab_bytes <= budget
 */
#ifndef PLP_KV_POOL_H
#define PLP_KV_POOL_H

#include "base/status.h"

typedef uint32_t plp_block;
#define PLP_NO_BLOCK   UINT32_MAX
#define PLP_MAX_CLASSES 16u

/* Where slabs come from: the OS, or a device. NULL functions: plp_pages_map / unmap. */
typedef struct plp_slab_source {
    void *(*map)(void *context, size_t n_bytes);
    void  (*unmap)(void *context, void *p, size_t n_bytes);
    void  *context;
} plp_slab_source;

typedef struct plp_pool_spec {
    uint32_t        n_classes;
    size_t          block_bytes[PLP_MAX_CLASSES];   /* a multiple of 64 */
    size_t          slab_bytes;                     /* 0: 2 MiB, rounded up to four blocks and pages */
    uint64_t        budget_bytes;
    bool            shuffle;                        /* hand out free blocks in random order (seeded) */
    plp_slab_source source;
} plp_pool_spec;

typedef struct plp_pool plp_pool;

plp_status plp_pool_open(plp_pool **out, const plp_pool_spec *spec, plp_error *err);
void       plp_pool_close(plp_pool *p);                 /* NULL is fine; all storage goes back */

/* All n or none, refs 1 each. Evicts cached blocks (of any class) when the budget is reached. */
plp_status plp_pool_take(plp_pool *p, uint32_t cls, uint32_t n, plp_block *out, plp_error *err);
/* Give a block index to memory that somebody else owns (a mapped prefix file), refs 1. `gone` is called
 * when the block leaves the pool for good. */
plp_status plp_pool_adopt(plp_pool *p, uint32_t cls, void *data, void (*gone)(void *context), void *context,
                          plp_block *out, plp_error *err);
void       plp_pool_keep(plp_pool *p, plp_block b);     /* one more owner; revives a cached block */
void       plp_pool_drop(plp_pool *p, plp_block b);     /* last drop: to the cache if findable, else free */

void      *plp_pool_data(const plp_pool *p, plp_block b);
uint32_t   plp_pool_class(const plp_pool *p, plp_block b);
uint32_t   plp_pool_refs(const plp_pool *p, plp_block b);
uint32_t   plp_pool_generation(const plp_pool *p, plp_block b);   /* changes whenever b is handed out anew */
bool       plp_pool_is_mapped(const plp_pool *p, plp_block b);

/* Set by the prefix index: a findable block is cached on its last drop; before a cached block is
 * evicted, forget(context, b) removes it from the index. */
void       plp_pool_set_findable(plp_pool *p, plp_block b, bool findable);
void       plp_pool_on_evict(plp_pool *p, void (*forget)(void *context, plp_block b), void *context);

/* Evict cached blocks until `bytes` went back to the source or none are left; returns bytes given back. */
uint64_t   plp_pool_trim(plp_pool *p, uint64_t bytes);

typedef struct plp_pool_stats {
    uint64_t resident_bytes, held_bytes, cached_bytes, free_bytes, mapped_bytes, slack_bytes; /* slack: slab tails */
    uint64_t metadata_bytes, budget_bytes;
    uint64_t n_slabs, n_blocks, n_held, n_cached, n_free, n_mapped;     /* n_blocks without mapped ones */
    uint64_t n_evicted, n_taken;                                        /* since open */
} plp_pool_stats;
void plp_pool_get_stats(const plp_pool *p, plp_pool_stats *out);
bool plp_pool_ok(const plp_pool *p);                    /* re-counts `Always`; tests, debug */

#endif
