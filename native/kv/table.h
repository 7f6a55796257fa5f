/*
 * kv/table.h - one session's logical-to-physical block list, for one group of layers
 *
 *   position  0 ........ 15 | 16 ....... 31 | 32 .. 36
 *   block     [ sealed     ] [ sealed      ] [ open    ]        n_tokens = 37
 *
 * A table owns one reference to each block it lists. Blocks before `first` were dropped behind a
 * sliding window (their entries are PLP_NO_BLOCK). The single write point is plp_table_reserve: it
 * makes every position in [n_tokens, n_tokens + n) writable, which means that an open block that is
 * not this table's alone to write (count above one after a fork; findable or mapped after a rewind
 * into a sealed block) is replaced by a copy first. The copying itself is the caller's: the table
 * says what to copy.
 *
 * A sealed block of another class than open_class cannot be continued: after rewinding into one, the
 * caller rewinds on to its start and stores its tokens again. The same holds for a block that was
 * dropped behind the window.
 *
 * Threads  the engine's lock
 * Always   entries [first, n_blocks) are held; n_blocks >= n_tokens / block_len rounded up; reserved
 *          blocks after that are this table's alone
 */
#ifndef PLP_KV_TABLE_H
#define PLP_KV_TABLE_H

#include "kv/pool.h"

typedef struct plp_table {
    plp_block *blocks;          /* [n_blocks] */
    uint32_t   n_blocks, cap_blocks;
    uint32_t   n_tokens;        /* stored, from position 0 */
    uint32_t   first;           /* blocks before this one were dropped (sliding window) */
    uint32_t   block_len;
    uint32_t   open_class;      /* pool class of blocks being written */
} plp_table;

typedef struct plp_copy { plp_block from, to; uint32_t n_tokens; } plp_copy;    /* the first n_tokens of the block */

void       plp_table_init(plp_table *t, uint32_t block_len, uint32_t open_class);
void       plp_table_clear(plp_table *t, plp_pool *p);                  /* drops tails first; frees the list */
/* Make the next n positions writable. All or nothing. A *copy with to != PLP_NO_BLOCK must be carried
 * out before anything is written; `from` stays held until plp_table_copied. n_tokens does not change.
 * Errors: as plp_pool_take; PLP_E_NOMEM; PLP_E_ARG for a block that cannot be continued (see above). */
plp_status plp_table_reserve(plp_table *t, plp_pool *p, uint32_t n, plp_copy *copy, plp_error *err);
void       plp_table_copied(plp_table *t, plp_pool *p, const plp_copy *copy);  /* nothing if there was no copy */
void       plp_table_advance(plp_table *t, uint32_t n);                 /* n reserved positions are now stored */
void       plp_table_rewind(plp_table *t, plp_pool *p, uint32_t n);     /* n tokens remain; later blocks dropped */
plp_status plp_table_fork(plp_table *out, const plp_table *t, plp_pool *p, plp_error *err);   /* keeps every stored block */
/* Append a whole block that already holds the next block_len tokens; takes over one reference. The
 * table must end at a block's end; blocks that were reserved go. */
plp_status plp_table_adopt(plp_table *t, plp_pool *p, plp_block b, plp_error *err);
/* Append block_len positions whose block lies behind the window already; every block before them goes too. */
plp_status plp_table_adopt_gap(plp_table *t, plp_pool *p, plp_error *err);
void       plp_table_replace(plp_table *t, plp_pool *p, uint32_t i, plp_block b);  /* sealing: drops the old, takes over b */
void       plp_table_drop_before(plp_table *t, plp_pool *p, uint32_t position);   /* whole blocks only (sliding window) */
bool       plp_table_ok(const plp_table *t, const plp_pool *p);

#endif
