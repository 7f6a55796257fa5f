/*
 * kv/table.h - one session's logical-to-physical block list, for one group of layers
 *
 *   position  0 ........ 15 | 16 ....... 31 | 32 .. 36
 *   block     [ sealed     ] [ sealed      ] [ open    ]        n_tokens = 37
 *
 * A table owns one reference to each block it lists. Blocks before `first` were dropped behind a
 * sliding window (their entries are PLP_NO_BLOCK). The single write point is plp_table_reserve: it
 * makes every position in [n_tokens, n_tokens + n) writable, which means that an open block whose
 * count is above one (a fork) is replaced by a copy first. The copying itself is the caller's: the
 * table says what to copy.
 *
 * Threads  the engine's lock
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

typedef struct plp_copy { plp_block from, to; uint32_t n_tokens; } plp_copy;

void       plp_table_init(plp_table *t, uint32_t block_len, uint32_t open_class);
void       plp_table_clear(plp_table *t, plp_pool *p);                  /* drops tails first; frees the list */
/* Make the next n positions writable. All or nothing. *copy (to != PLP_NO_BLOCK) must be carried out
 * before anything is written, and before the pool is touched again; `from` stays held until
 * plp_table_copied. n_tokens does not change. */
plp_status plp_table_reserve(plp_table *t, plp_pool *p, uint32_t n, plp_copy *copy, plp_error *err);
void       plp_table_copied(plp_table *t, plp_pool *p, const plp_copy *copy);
void       plp_table_advance(plp_table *t, uint32_t n);                 /* n reserved positions are now stored */
void       plp_table_rewind(plp_table *t, plp_pool *p, uint32_t n);     /* n tokens remain; later blocks dropped */
plp_status plp_table_fork(plp_table *out, const plp_table *t, plp_pool *p, plp_error *err);   /* keeps every block */
/* Append a whole block that already holds the next block_len tokens; takes over one reference. */
plp_status plp_table_adopt(plp_table *t, plp_pool *p, plp_block b, plp_error *err);
void       plp_table_replace(plp_table *t, plp_pool *p, uint32_t i, plp_block b);  /* sealing: drops the old, takes over b */
void       plp_table_drop_before(plp_table *t, plp_pool *p, uint32_t position);   /* sliding window */
bool       plp_table_ok(const plp_table *t, const plp_pool *p);

#endif
