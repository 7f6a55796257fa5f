/*
 * text/merge.h - joining neighbours until nothing joins: the core of BPE and of SentencePiece merging
 *
 * A word is a chain of symbols. While some pair of neighbours may merge, the one with the smallest
 * key does; of equals the leftmost. Keys are merge ranks or scores turned into ranks.
 *
 * Time     n log n through a heap; short words by looking for the smallest pair each time
 * Memory   40 bytes per symbol, kept for the next word
 * Stack    constant
 * Owner    plp_merger_close frees; a merger belongs to one call
 */
#ifndef PLP_TEXT_MERGE_H
#define PLP_TEXT_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLP_NO_PAIR UINT32_MAX

typedef struct plp_symbol {
    uint32_t prev, next;        /* chain; the last symbol's next is the sentinel's index */
    uint32_t start;             /* where its text begins; it ends where its successor's begins */
    uint32_t id;                /* a token, or PLP_NO_PAIR for a character that is none */
    uint32_t key, to;           /* of the pair (this, next): key or PLP_NO_PAIR, and what it makes */
} plp_symbol;

typedef struct plp_merger {
    plp_symbol *symbols;
    uint64_t   *heap;           /* key << 32 | symbol */
    uint32_t    cap;            /* symbols there is room for */
    uint32_t    n_heap;
} plp_merger;

/* The key of the pair symbols[left], symbols[right] and in *to what it makes; or PLP_NO_PAIR. */
typedef uint32_t (*plp_pair_fn)(const void *context, const plp_symbol *symbols, uint32_t left, uint32_t right, uint32_t *to);

/* Room for n symbols and the sentinel; false: no memory. */
bool plp_merger_reserve(plp_merger *m, uint32_t n);
void plp_merger_close(plp_merger *m);
/* symbols[0..n) have start and id; symbols[n].start is the end. The result is the chain from symbols[0]. */
void plp_merger_run(plp_merger *m, uint32_t n, plp_pair_fn pair, const void *context);

#endif
