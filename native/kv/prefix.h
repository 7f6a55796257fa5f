/*
 * kv/prefix.h - find blocks that already hold the keys and values of a token sequence
 *
 * A sealed block is found by (parent block, parent's generation, its own tokens): the tokens are
 * compared, the hash only leads to them. A chain starts at PLP_NO_BLOCK. Because a block's KV depends on
 * everything before it, equal tokens after different parents are different blocks. Every parent in the
 * index is in the index itself: when a block leaves, all that was found through it leaves too (held
 * blocks stay readable; they are only not findable any more).
 *
 * The index owns no references. It tells the pool which blocks are findable; the pool keeps those after
 * their last drop and asks the index which of them to evict.
 *
 * Threads  the engine's lock
 * Errors   insert may be refused memory: the block is then just not findable
 */
#ifndef PLP_KV_PREFIX_H
#define PLP_KV_PREFIX_H

#include "kv/pool.h"

typedef struct plp_prefix plp_prefix;

/* hash_mask: ~0 normally; 0 makes every hash equal (tests). Registers itself with plp_pool_on_evict. */
plp_status plp_prefix_open(plp_prefix **out, plp_pool *pool, uint32_t block_len, uint64_t hash_mask, plp_error *err);
/* Before the pool; NULL is fine. Blocks that were only cached are freed. */
void       plp_prefix_close(plp_prefix *x);

/* Make held block b findable as the child of `parent` with these block_len tokens. If an equal block is
 * findable already, returns it (with no new reference) and leaves b alone; else returns b. A parent that
 * is not findable cannot have findable children: b is then left alone too. */
plp_block  plp_prefix_insert(plp_prefix *x, plp_block parent, const int32_t *tokens, plp_block b);
/* The child of `parent` with exactly these tokens, or PLP_NO_BLOCK. Takes no reference. */
plp_block  plp_prefix_find(const plp_prefix *x, plp_block parent, const int32_t *tokens);
/* The child of `parent` that shares the longest head with tokens[0..n), n <= block_len; *n_match tokens
 * match (0: PLP_NO_BLOCK). Takes no reference. Looks at every child. */
plp_block  plp_prefix_find_head(const plp_prefix *x, plp_block parent, const int32_t *tokens, uint32_t n, uint32_t *n_match);
void       plp_prefix_remove(plp_prefix *x, plp_block b);           /* and its descendants; nothing if it is not there */
uint64_t   plp_prefix_count(const plp_prefix *x);                   /* findable blocks */
uint64_t   plp_prefix_bytes(const plp_prefix *x);                   /* metadata */
bool       plp_prefix_ok(const plp_prefix *x);

#endif
