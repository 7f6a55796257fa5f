/*
 * kv/slab.h - the inside of the pool: slabs, their pages, and lists of blocks (for kv/pool.c)
 *
 *   b = slab number * 64 + slot     so a slab's free slots are one 64-bit word, and any block is found
 *                                   by two loads
 *
 *   slabs ->  [ * | * | 0 | * ... ]          0: the number is spare
 *               |
 *               v   base -> [ block 0 | block 1 | ... | slack ]    (or mapped[]: memory of others)
 *             plp_slab { free bits, list links, blocks[n_slots] }
 *
 * A slab's bookkeeping is allocated with it and freed with it; only the directory of pointers moves.
 * Slabs with free slots hang in one list per number of free slots, and a word says which lists are not
 * empty: the fullest slab is one count-trailing-zeros away.
 *
 * slab.c accounts for every byte of `resident`: a slab's bytes when it is mapped, less the whole pages
 * inside each cold slot. It does not look at budgets or owners; pool.c does, before it calls.
 *
 * Threads  the engine's lock
 */
#ifndef PLP_KV_SLAB_H
#define PLP_KV_SLAB_H

#include "kv/pool.h"

enum { PLP_SLOTS = 64 };
#define PLP_NONE UINT32_MAX             /* no slab number, no block */

typedef enum plp_block_state { PLP_BLOCK_COLD, PLP_BLOCK_WARM, PLP_BLOCK_HELD, PLP_BLOCK_CACHED } plp_block_state;

typedef struct plp_block_info {
    uint32_t refs;              /* > 0 only if HELD */
    uint32_t generation;        /* 0 if free */
    uint32_t next, prev;        /* WARM: in the class's warm list; CACHED: in the pool's (or the mapped) list */
    uint8_t  state;             /* plp_block_state */
    bool     findable;
} plp_block_info;

typedef struct plp_foreign {    /* of one mapped block */
    void *data;
    void (*gone)(void *context);
    void *context;
} plp_foreign;

typedef struct plp_slab {
    uint8_t *base;              /* NULL: a slab of mapped blocks */
    plp_foreign *mapped;        /* [n_slots], only then */
    uint64_t free;              /* bit per slot: WARM or COLD */
    uint32_t next, prev;        /* slabs of this class with as many free slots */
    uint32_t cls, n_slots, n_held;
    plp_block_info blocks[];    /* [n_slots] */
} plp_slab;

typedef struct plp_list { uint32_t head, tail; uint64_t n; } plp_list;      /* of blocks, oldest first */

typedef struct plp_class {
    size_t   block_bytes, slab_bytes;
    size_t   bare_bytes;        /* what a slab costs before any of its blocks is taken */
    size_t   least_inside, most_inside;     /* bytes of whole pages inside a slot; 0 unless releases */
    uint32_t per_slab;
    bool     releases;          /* freed blocks give their pages back one by one */
    uint32_t with_free[PLP_SLOTS + 1];      /* slabs with this many free slots: first of a list */
    uint64_t counts;            /* bit k - 1: with_free[k] is not empty */
    uint32_t mapped_with_free;  /* slabs of mapped blocks with a free slot */
    plp_list warm;              /* only if releases */
    uint64_t n_slabs, n_blocks, n_held, n_cached, n_cold;
    uint64_t n_idle;            /* slabs without a held block: eviction can empty them */
    uint64_t n_mapped;          /* held and cached mapped blocks */
} plp_class;

struct plp_pool {
    plp_slab_source source;
    uint64_t   budget, cache_limit, resident;
    size_t     page;
    bool       shuffle;
    uint64_t   random;
    uint32_t   n_classes;
    plp_class  classes[PLP_MAX_CLASSES];

    plp_slab **slabs;           /* [n_numbers], NULL where a number is spare */
    uint32_t  *spare_numbers;   /* [n_spare], below n_numbers */
    uint32_t   n_numbers, n_spare, cap_numbers;

    plp_list   cached, cached_mapped;
    uint64_t   cached_bytes, metadata;
    uint32_t   generation;      /* of the block taken last */
    uint64_t   n_evicted, n_taken;
    plp_block (*leaf)(void *context, plp_block b);
    void      (*forget)(void *context, plp_block b);
    void      *context;
};

static inline plp_slab *plp_slab_of(const plp_pool *p, plp_block b)        { return p->slabs[b / PLP_SLOTS]; }
static inline plp_block_info *plp_block_of(const plp_pool *p, plp_block b) { return &plp_slab_of(p, b)->blocks[b % PLP_SLOTS]; }
static inline uint64_t plp_all_slots(uint32_t n)    { return n == PLP_SLOTS ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1; }
static inline uint32_t plp_lowest_bit(uint64_t v)   { return (uint32_t)__builtin_ctzll(v); }
static inline uint32_t plp_slab_n_free(const plp_slab *s) { return (uint32_t)__builtin_popcountll(s->free); }

void     plp_list_append(plp_pool *p, plp_list *l, plp_block b);
void     plp_list_remove(plp_pool *p, plp_list *l, plp_block b);
bool     plp_list_ok(const plp_pool *p, const plp_list *l, plp_block_state want);   /* ends, links agree, n is right */

/* Sizes of a class whose source and page size are set. slab_wish as in plp_pool_spec. */
void     plp_class_init(plp_class *c, const plp_pool *p, size_t block_bytes, size_t slab_wish);
/* The whole pages inside a slot; 0 bytes for a class that does not release. */
size_t   plp_slab_pages_inside(const plp_pool *p, const plp_class *c, uint32_t slot, size_t *offset);

/* Bookkeeping of n slots, none of them free, in no list; PLP_NONE if memory is refused. */
uint32_t plp_slab_create(plp_pool *p, uint32_t cls, uint32_t n_slots, bool mapped);
void     plp_slab_delete(plp_pool *p, uint32_t number);
bool     plp_slab_map(plp_pool *p, uint32_t cls);               /* one more slab of free blocks, if memory is not refused */
void     plp_slab_unmap(plp_pool *p, uint32_t number);          /* all of its blocks must be free */
void     plp_slab_unmap_empty(plp_pool *p, plp_class *c);
void     plp_slab_cool(plp_pool *p, plp_class *c, uint64_t keep);   /* release oldest warm blocks until `keep` are left */
void     plp_slab_set_free(plp_pool *p, uint32_t number, uint64_t free);    /* and hang it in the right list */
/* The free block to hand out next, PLP_NO_BLOCK if the class has none. */
plp_block plp_slab_choose(plp_pool *p, plp_class *c);
/* Mark a free block as used again; its pages count from now on. */
void     plp_slab_claim(plp_pool *p, plp_block b);
bool     plp_slabs_ok(const plp_pool *p);                       /* re-counts all counters and `resident` */

#endif
