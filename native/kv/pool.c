/*
 * kv/pool.c - block ownership, eviction, the budget
 *
 * b = slab number * 64 + slot, so that a slab's free slots are one 64-bit word and any block is found
 * by two loads. A slab's bookkeeping is allocated with it and freed with it; only the directory of
 * pointers to slabs is ever moved. Slabs with free slots hang in one list per number of free slots;
 * another word says which lists are not empty, so the fullest slab is one count-trailing-zeros away.
 * Mapped blocks live in slabs without memory (`foreign`), one list of them per class.
 *
 * Every byte of `resident` is accounted here: a slab's bytes when it is mapped, less the whole pages
 * inside each cold slot. Costs are known before memory is touched, so the budget is never passed.
 */
#include "kv/pool.h"

#include <string.h>

#include "base/mem.h"
#include "base/platform.h"

enum { SLOTS = 64, SHUFFLE_SLABS = 16, WARM_SHARE = 64 };
#define NONE UINT32_MAX

typedef enum state { COLD, WARM, HELD, CACHED } state;

typedef struct block {
    uint32_t refs, generation;
    uint32_t next, prev;        /* WARM: in the class's warm list; CACHED: in the pool's (or the mapped) list */
    uint8_t  state;
    bool     findable;
} block;

typedef struct foreign {        /* of one mapped block */
    void *data;
    void (*gone)(void *context);
    void *context;
} foreign;

typedef struct slab {
    uint8_t *base;              /* NULL: a slab of mapped blocks */
    foreign *mapped;            /* [n_slots], only then */
    uint64_t free;              /* bit per slot: WARM or COLD */
    uint32_t next, prev;        /* slabs of this class with as many free slots */
    uint32_t cls, n_slots, n_held;
    block    blocks[];          /* [n_slots] */
} slab;

typedef struct list { uint32_t head, tail; uint64_t n; } list;     /* of blocks, oldest first */

typedef struct class {
    size_t   block_bytes, slab_bytes;
    uint32_t per_slab;
    bool     releases;          /* freed blocks give their pages back one by one */
    uint32_t with_free[SLOTS + 1];      /* slabs with this many free slots: first of a list */
    uint64_t counts;            /* bit k - 1: with_free[k] is not empty */
    uint32_t mapped_with_free;  /* slabs of mapped blocks with a free slot */
    list     warm;              /* only if releases */
    uint64_t n_slabs, n_blocks, n_held, n_cached, n_cold;
    uint64_t n_idle;            /* slabs without a held block: eviction can empty them */
    uint64_t n_mapped;          /* held and cached mapped blocks */
} class;

struct plp_pool {
    plp_slab_source source;
    uint64_t  budget, cache_limit, resident;
    size_t    page;
    bool      shuffle;
    uint64_t  random;
    uint32_t  n_classes;
    class     classes[PLP_MAX_CLASSES];

    slab    **slabs;            /* [n_numbers], NULL where a number is not in use */
    uint32_t *spare_numbers;    /* [n_spare] numbers below n_numbers that are not in use */
    uint32_t  n_numbers, n_spare, cap_numbers;

    list      cached, cached_mapped;
    uint64_t  cached_bytes, metadata;
    uint32_t  generation;       /* of the block taken last */
    uint64_t  n_evicted, n_taken;
    plp_block (*leaf)(void *context, plp_block b);
    void      (*forget)(void *context, plp_block b);
    void      *context;
};

/* ---- finding things ---- */

static slab  *slab_of(const plp_pool *p, plp_block b)  { return p->slabs[b / SLOTS]; }
static block *block_of(const plp_pool *p, plp_block b) { return &slab_of(p, b)->blocks[b % SLOTS]; }
static uint32_t n_free_of(const slab *s) { return (uint32_t)__builtin_popcountll(s->free); }
static uint64_t all_slots(uint32_t n)    { return n == SLOTS ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1; }
static uint32_t lowest(uint64_t bits)    { return (uint32_t)__builtin_ctzll(bits); }

/* The whole pages inside a slot; 0 bytes for a class that does not release. */
static size_t pages_inside(const plp_pool *p, const class *c, uint32_t slot, size_t *offset)
{
    const size_t begin = (slot * c->block_bytes + p->page - 1) / p->page * p->page;
    const size_t end = (slot + 1) * c->block_bytes / p->page * p->page;
    *offset = begin;
    return c->releases && end > begin ? end - begin : 0;
}

/* Bounds of the same over all slots: a slot that starts on a page has the most, one that does not
 * may lose up to a page on either side. */
static size_t most_inside(const plp_pool *p, const class *c)
{
    return c->releases ? c->block_bytes / p->page * p->page : 0;
}
static size_t least_inside(const plp_pool *p, const class *c)
{
    return most_inside(p, c) - (c->releases && c->block_bytes % p->page ? p->page : 0);
}
/* What a slab costs before any of its blocks is taken. */
static size_t bare_slab_bytes(const plp_pool *p, const class *c)
{
    size_t bytes = c->slab_bytes, offset;
    for (uint32_t i = 0; i < c->per_slab; i++)
        bytes -= pages_inside(p, c, i, &offset);
    return bytes;
}

/* xorshift64: the order only has to be irregular and repeatable */
static uint64_t next_random(plp_pool *p)
{
    p->random ^= p->random << 13;
    p->random ^= p->random >> 7;
    return p->random ^= p->random << 17;
}

/* ---- lists ---- */

static void list_append(plp_pool *p, list *l, plp_block b)
{
    block *x = block_of(p, b);
    x->next = NONE;
    x->prev = l->tail;
    if (l->tail == NONE) l->head = b;
    else                 block_of(p, l->tail)->next = b;
    l->tail = b;
    l->n++;
}

static void list_remove(plp_pool *p, list *l, plp_block b)
{
    block *x = block_of(p, b);
    if (x->prev == NONE) l->head = x->next;
    else                 block_of(p, x->prev)->next = x->next;
    if (x->next == NONE) l->tail = x->prev;
    else                 block_of(p, x->next)->prev = x->prev;
    l->n--;
}

static void slab_link(plp_pool *p, uint32_t number, uint32_t *head)
{
    slab *s = p->slabs[number];
    s->prev = NONE;
    s->next = *head;
    if (*head != NONE)
        p->slabs[*head]->prev = number;
    *head = number;
}

static void slab_unlink(plp_pool *p, uint32_t number, uint32_t *head)
{
    slab *s = p->slabs[number];
    if (s->prev == NONE) *head = s->next;
    else                 p->slabs[s->prev]->next = s->next;
    if (s->next != NONE)
        p->slabs[s->next]->prev = s->prev;
}

/* Change which slots of a slab are free, and the list it hangs in. */
static void set_free(plp_pool *p, uint32_t number, uint64_t free)
{
    slab *s = p->slabs[number];
    class *c = &p->classes[s->cls];
    const uint32_t before = n_free_of(s);

    s->free = free;
    const uint32_t after = n_free_of(s);
    if (!s->base) {
        if (!before && after) slab_link(p, number, &c->mapped_with_free);
        if (before && !after) slab_unlink(p, number, &c->mapped_with_free);
        return;
    }
    if (before) {
        slab_unlink(p, number, &c->with_free[before]);
        if (c->with_free[before] == NONE)
            c->counts &= ~(UINT64_C(1) << (before - 1));
    }
    if (after) {
        slab_link(p, number, &c->with_free[after]);
        c->counts |= UINT64_C(1) << (after - 1);
    }
}

/* ---- slabs ---- */

/* A slab number whose directory entry is free, or NONE if memory is refused. */
static uint32_t new_number(plp_pool *p)
{
    if (p->n_spare)
        return p->spare_numbers[--p->n_spare];
    if (p->n_numbers == p->cap_numbers) {
        const uint32_t cap = p->cap_numbers ? p->cap_numbers * 2 : 64;
        void *slabs, *spare;

        if (cap > NONE / SLOTS)                                 /* PLP_NO_BLOCK stays out of reach */
            return NONE;
        if (!(slabs = plp_resize(PLP_MEM_KV, p->slabs, cap, sizeof *p->slabs)))
            return NONE;
        p->slabs = slabs;
        if (!(spare = plp_resize(PLP_MEM_KV, p->spare_numbers, cap, sizeof *p->spare_numbers)))
            return NONE;
        p->spare_numbers = spare;
        p->metadata += (cap - p->cap_numbers) * (sizeof *p->slabs + sizeof *p->spare_numbers);
        p->cap_numbers = cap;
    }
    return p->n_numbers++;
}

static size_t slab_metadata(const slab *s)
{
    return sizeof *s + s->n_slots * (sizeof(block) + (s->mapped ? sizeof(foreign) : 0));
}

static void delete_slab(plp_pool *p, uint32_t number)
{
    slab *s = p->slabs[number];
    p->metadata -= slab_metadata(s);
    plp_free(s->mapped);
    plp_free(s);
    p->slabs[number] = NULL;
    p->spare_numbers[p->n_spare++] = number;
}

/* Bookkeeping of a slab of n slots, none of them free and in no list; NONE if memory is refused. */
static uint32_t create_slab(plp_pool *p, uint32_t cls, uint32_t n_slots, bool mapped)
{
    const uint32_t number = new_number(p);
    slab *s = NULL;

    if (number == NONE)
        return NONE;
    if ((s = plp_zalloc(PLP_MEM_KV, 1, sizeof *s + n_slots * sizeof(block)))) {
        s->cls = cls;
        s->n_slots = n_slots;
        if (mapped && !(s->mapped = plp_zalloc(PLP_MEM_KV, n_slots, sizeof(foreign)))) {
            plp_free(s);
            s = NULL;
        }
    }
    p->slabs[number] = s;
    if (!s) {
        p->spare_numbers[p->n_spare++] = number;
        return NONE;
    }
    p->metadata += slab_metadata(s);
    return number;
}

/* One more slab of free blocks for a class. The caller has checked the budget. */
static bool map_slab(plp_pool *p, uint32_t cls)
{
    class *c = &p->classes[cls];
    const uint32_t number = create_slab(p, cls, c->per_slab, false);

    if (number == NONE)
        return false;
    slab *s = p->slabs[number];
    if (!(s->base = p->source.map(p->source.context, c->slab_bytes))) {
        delete_slab(p, number);
        return false;
    }
    for (uint32_t i = 0; i < s->n_slots; i++)
        s->blocks[i].state = c->releases ? COLD : WARM;
    if (c->releases)
        c->n_cold += s->n_slots;
    p->resident += bare_slab_bytes(p, c);
    c->n_slabs++;
    c->n_idle++;
    c->n_blocks += s->n_slots;
    set_free(p, number, all_slots(s->n_slots));
    return true;
}

/* Give back a slab whose blocks are all free. */
static void unmap_slab(plp_pool *p, uint32_t number)
{
    slab *s = p->slabs[number];
    class *c = &p->classes[s->cls];
    size_t bytes = c->slab_bytes, offset;

    for (uint32_t i = 0; i < s->n_slots; i++) {
        if (s->blocks[i].state == COLD) {
            bytes -= pages_inside(p, c, i, &offset);
            c->n_cold--;
        } else if (c->releases)
            list_remove(p, &c->warm, number * SLOTS + i);
    }
    set_free(p, number, 0);
    p->source.unmap(p->source.context, s->base, c->slab_bytes);
    p->resident -= bytes;
    c->n_slabs--;
    c->n_idle--;
    c->n_blocks -= s->n_slots;
    delete_slab(p, number);
}

static void unmap_empty_slabs(plp_pool *p, class *c)
{
    while (c->with_free[c->per_slab] != NONE)
        unmap_slab(p, c->with_free[c->per_slab]);
}

/* Release the pages of the class's oldest warm blocks until at most `keep` are left. */
static void cool(plp_pool *p, class *c, uint64_t keep)
{
    while (c->warm.n > keep) {
        const plp_block b = c->warm.head;
        size_t offset;
        const size_t n = pages_inside(p, c, b % SLOTS, &offset);

        list_remove(p, &c->warm, b);
        block_of(p, b)->state = COLD;
        c->n_cold++;
        p->source.release(p->source.context, slab_of(p, b)->base + offset, n);
        p->resident -= n;
    }
}

/* ---- a block's life ---- */

static void held_in_slab(plp_pool *p, slab *s, int change)
{
    if (s->base && !s->n_held && change > 0) p->classes[s->cls].n_idle--;
    s->n_held += (uint32_t)change;
    if (s->base && !s->n_held && change < 0) p->classes[s->cls].n_idle++;
}

/* The block has left held or cached for good. */
static void set_block_free(plp_pool *p, plp_block b)
{
    slab *s = slab_of(p, b);
    class *c = &p->classes[s->cls];
    block *x = block_of(p, b);
    const uint32_t number = b / SLOTS, slot = b % SLOTS;

    x->findable = false;
    x->generation = 0;
    x->state = WARM;
    set_free(p, number, s->free | UINT64_C(1) << slot);
    if (!s->base) {
        const foreign gone = s->mapped[slot];
        c->n_mapped--;
        if (s->free == all_slots(s->n_slots)) {
            set_free(p, number, 0);
            delete_slab(p, number);
        }
        if (gone.gone)
            gone.gone(gone.context);
        return;
    }
    if (c->releases)
        list_append(p, &c->warm, b);
    const uint64_t n_used = c->n_held + c->n_cached;
    if (s->free == all_slots(s->n_slots) && (c->releases || !n_used || s->next != NONE))
        unmap_slab(p, number);
    if (!n_used)
        unmap_empty_slabs(p, c);        /* a kept spare, or slabs that shuffle mapped ahead */
    if (c->releases)
        cool(p, c, p->shuffle ? 0 : n_used / WARM_SHARE);
}

static void cache_remove(plp_pool *p, plp_block b)
{
    slab *s = slab_of(p, b);
    if (!s->base) {
        list_remove(p, &p->cached_mapped, b);
        return;
    }
    list_remove(p, &p->cached, b);
    p->classes[s->cls].n_cached--;
    p->cached_bytes -= p->classes[s->cls].block_bytes;
}

/* Evict a cached block, or a cached descendant of it: a parent never goes before its children. */
static void evict(plp_pool *p, plp_block b)
{
    if (p->leaf)
        b = p->leaf(p->context, b);
    if (p->forget)
        p->forget(p->context, b);       /* may free other cached blocks that only b led to */
    cache_remove(p, b);
    p->n_evicted++;
    set_block_free(p, b);
}

/* Does evicting this block bring memory nearer for class `cls` (NONE: for the source)? */
static bool helps(const plp_pool *p, plp_block b, uint32_t cls)
{
    const slab *s = slab_of(p, b);
    return s->cls == cls || p->classes[s->cls].releases || !s->n_held;
}

/* Evict the least recently used block that helps. Where memory comes in whole slabs the rest of its
 * slab goes with it: evicting strictly by age would thin out many slabs before one is empty. */
static bool evict_for(plp_pool *p, uint32_t cls)
{
    plp_block b = p->cached.head;

    while (b != NONE && !helps(p, b, cls))
        b = block_of(p, b)->next;
    if (b == NONE)
        return false;
    const slab *s = slab_of(p, b);
    const uint32_t number = b / SLOTS, n_slots = s->n_slots;
    if (s->cls == cls || p->classes[s->cls].releases) {
        evict(p, b);
        return true;
    }
    for (uint32_t i = 0; i < n_slots; i++)
        while (p->slabs[number] == s && s->blocks[i].state == CACHED)
            evict(p, number * SLOTS + i);
    return true;
}

/* One step towards room for class `cls`; false when there is nothing left to give up. */
static bool make_room(plp_pool *p, uint32_t cls)
{
    for (uint32_t i = 0; i < p->n_classes; i++) {
        class *c = &p->classes[i];
        if (i != cls && c->warm.n) {
            cool(p, c, c->warm.n - 1);
            return true;
        }
        if (i != cls && c->with_free[c->per_slab] != NONE) {
            unmap_slab(p, c->with_free[c->per_slab]);
            return true;
        }
    }
    return evict_for(p, cls);
}

/* How many blocks of a class could be taken, up to `want`, if all that may go went? Errs, by less than a
 * page per block, on the side of refusing, so that nothing is evicted in vain. */
static uint64_t could_take(const plp_pool *p, uint32_t cls, uint64_t want)
{
    const class *c = &p->classes[cls];
    uint64_t room = p->budget - p->resident;
    uint64_t n = c->n_blocks - c->n_held - c->n_cold;          /* warm, cached: their bytes are here */
    uint64_t more;

    for (uint32_t i = 0; i < p->n_classes; i++) {
        const class *d = &p->classes[i];
        if (i != cls)
            room += (d->n_blocks - d->n_held - d->n_cold) * least_inside(p, d) + d->n_idle * bare_slab_bytes(p, d);
    }
    const size_t inside = most_inside(p, c), bare = bare_slab_bytes(p, c);
    more = inside && room / inside < c->n_cold ? room / inside : c->n_cold;
    n += more;
    room -= more * inside;
    const size_t slab_bytes = bare + c->per_slab * inside;
    n += room / slab_bytes * c->per_slab;
    room %= slab_bytes;
    if (room >= bare && inside)
        n += (room - bare) / inside;
    return n < want ? n : want;
}

static plp_block choose_free(plp_pool *p, class *c)
{
    uint32_t number, slot;

    if (c->warm.n)
        return c->warm.tail;            /* the newest: its pages are here, perhaps in the CPU's cache */
    if (!c->counts)
        return PLP_NO_BLOCK;
    if (!p->shuffle) {
        number = c->with_free[lowest(c->counts) + 1];
        return number * SLOTS + lowest(p->slabs[number]->free);
    }
    uint64_t counts = c->counts;
    for (uint32_t skip = (uint32_t)(next_random(p) % (uint32_t)__builtin_popcountll(counts)); skip; skip--)
        counts &= counts - 1;
    number = c->with_free[lowest(counts) + 1];
    uint64_t free = p->slabs[number]->free;
    for (slot = (uint32_t)(next_random(p) % (uint32_t)__builtin_popcountll(free)); slot; slot--)
        free &= free - 1;
    return number * SLOTS + lowest(free);
}

static plp_status take_one(plp_pool *p, uint32_t cls, plp_block *out)
{
    class *c = &p->classes[cls];
    size_t offset;

    for (;;) {
        const plp_block b = choose_free(p, c);
        uint64_t cost = bare_slab_bytes(p, c) + pages_inside(p, c, 0, &offset);

        if (b != PLP_NO_BLOCK)
            cost = block_of(p, b)->state == COLD ? pages_inside(p, c, b % SLOTS, &offset) : 0;
        if (cost > p->budget - p->resident) {
            if (!make_room(p, cls))
                return PLP_E_BUDGET;
            continue;
        }
        if (b != PLP_NO_BLOCK) {
            p->resident += cost;
            *out = b;
            return PLP_OK;
        }
        /* The system may refuse before the budget does. */
        if (!map_slab(p, cls) && !evict_for(p, cls))
            return PLP_E_NOMEM;
        for (uint32_t i = 1; p->shuffle && i < SHUFFLE_SLABS; i++)
            if (c->slab_bytes > p->budget - p->resident || !map_slab(p, cls))
                break;
    }
}

static void hand_out(plp_pool *p, plp_block b)
{
    slab *s = slab_of(p, b);
    block *x = block_of(p, b);

    if (++p->generation == 0)
        p->generation = 1;
    x->refs = 1;
    x->generation = p->generation;
    x->state = HELD;
    x->findable = false;
    set_free(p, b / SLOTS, s->free & ~(UINT64_C(1) << b % SLOTS));
    held_in_slab(p, s, 1);
}

/* ---- the interface ---- */

static void *map_pages(void *context, size_t n)               { (void)context; return plp_pages_map(n); }
static void  unmap_pages(void *context, void *q, size_t n)    { (void)context; plp_pages_unmap(q, n); }
static void  release_pages(void *context, void *q, size_t n)  { (void)context; plp_pages_release(q, n); }

plp_status plp_pool_open(plp_pool **out, const plp_pool_spec *spec, plp_error *err)
{
    plp_pool *p;

    if (spec->n_classes == 0 || spec->n_classes > PLP_MAX_CLASSES)
        return plp_fail(err, PLP_E_ARG, "kv pool: %u block classes; 1 to %u are possible",
                        spec->n_classes, PLP_MAX_CLASSES);
    if (!spec->source.map != !spec->source.unmap || (spec->source.release && !spec->source.map))
        return plp_fail(err, PLP_E_ARG, "kv pool: a slab source needs both map and unmap");
    for (uint32_t i = 0; i < spec->n_classes; i++)
        if (spec->block_bytes[i] == 0 || spec->block_bytes[i] % 64 || spec->block_bytes[i] > SIZE_MAX / 256)
            return plp_fail(err, PLP_E_ARG, "kv pool: a block of %zu bytes; it must be a multiple of 64 bytes "
                            "that fits in memory", spec->block_bytes[i]);
    if (!(p = plp_zalloc(PLP_MEM_KV, 1, sizeof *p)))
        return plp_fail_amount(err, PLP_E_NOMEM, sizeof *p, 0, "kv pool: no memory for its bookkeeping");

    p->source = spec->source;
    if (!p->source.map)
        p->source = (plp_slab_source){ map_pages, unmap_pages, release_pages, NULL };
    p->budget = spec->budget_bytes;
    p->cache_limit = spec->cache_bytes ? spec->cache_bytes : UINT64_MAX;
    p->page = plp_page_bytes();
    p->shuffle = spec->shuffle;
    p->random = spec->seed * 2 + 0x9e3779b97f4a7c15u;           /* odd: never the fixed point 0 */
    p->n_classes = spec->n_classes;
    p->metadata = sizeof *p;
    p->cached = p->cached_mapped = (list){ NONE, NONE, 0 };
    for (uint32_t i = 0; i < p->n_classes; i++) {
        class *c = &p->classes[i];
        const size_t wish = spec->slab_bytes ? spec->slab_bytes : 2u << 20;
        size_t fit = wish / spec->block_bytes[i];

        c->block_bytes = spec->block_bytes[i];
        c->slab_bytes = ((fit < 4 ? 4 : fit > SLOTS ? SLOTS : fit) * c->block_bytes + p->page - 1) / p->page * p->page;
        fit = c->slab_bytes / c->block_bytes;                   /* rounding up to pages may have made room */
        c->per_slab = fit > SLOTS ? SLOTS : (uint32_t)fit;
        c->releases = p->source.release && c->block_bytes >= 2 * p->page;
        for (uint32_t k = 0; k <= SLOTS; k++)
            c->with_free[k] = NONE;
        c->mapped_with_free = NONE;
        c->warm = (list){ NONE, NONE, 0 };
    }
    *out = p;
    return PLP_OK;
}

void plp_pool_close(plp_pool *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->n_numbers; i++) {
        slab *s = p->slabs[i];
        if (!s)
            continue;
        if (s->base)
            p->source.unmap(p->source.context, s->base, p->classes[s->cls].slab_bytes);
        for (uint32_t k = 0; !s->base && k < s->n_slots; k++)
            if (!(s->free >> k & 1) && s->mapped[k].gone)
                s->mapped[k].gone(s->mapped[k].context);
        plp_free(s->mapped);
        plp_free(s);
    }
    plp_free(p->slabs);
    plp_free(p->spare_numbers);
    plp_free(p);
}

plp_status plp_pool_take(plp_pool *p, uint32_t cls, uint32_t n, plp_block *out, plp_error *err)
{
    plp_status status = PLP_OK;
    uint32_t got = 0;

    if (cls >= p->n_classes)
        return plp_fail(err, PLP_E_ARG, "kv pool: class %u of %u", cls, p->n_classes);
    const uint64_t wanted = (uint64_t)n * p->classes[cls].block_bytes;
    const uint64_t could = could_take(p, cls, n);
    if (could < n)
        status = PLP_E_BUDGET;
    for (; !status && got < n; got++) {
        if ((status = take_one(p, cls, &out[got])))
            break;
        class *c = &p->classes[cls];
        block *x = block_of(p, out[got]);
        if (x->state == COLD)
            c->n_cold--;
        else if (c->releases)
            list_remove(p, &c->warm, out[got]);
        hand_out(p, out[got]);
        c->n_held++;
    }
    if (!status) {
        p->n_taken += n;
        return PLP_OK;
    }
    while (got)
        plp_pool_drop(p, out[--got]);
    if (status == PLP_E_NOMEM)
        return plp_fail_amount(err, status, wanted, 0, "kv pool: the system refused memory for %u blocks", n);
    return plp_fail_amount(err, status, wanted, could * p->classes[cls].block_bytes,
                           "kv pool: %u blocks (%llu bytes) do not fit in the budget of %llu bytes, of which %llu "
                           "are in use; close a session or raise the budget", n, (unsigned long long)wanted,
                           (unsigned long long)p->budget, (unsigned long long)(p->resident - p->cached_bytes));
}

plp_status plp_pool_adopt(plp_pool *p, uint32_t cls, void *data, void (*gone)(void *context), void *context,
                          plp_block *out, plp_error *err)
{
    if (cls >= p->n_classes || !data)
        return plp_fail(err, PLP_E_ARG, "kv pool: nothing to adopt, or class %u of %u", cls, p->n_classes);
    class *c = &p->classes[cls];
    if (c->mapped_with_free == NONE) {
        const uint32_t number = create_slab(p, cls, SLOTS, true);
        if (number == NONE)
            return plp_fail_amount(err, PLP_E_NOMEM, sizeof(slab), 0, "kv pool: no memory for a mapped block");
        set_free(p, number, all_slots(SLOTS));
    }
    const uint32_t number = c->mapped_with_free, slot = lowest(p->slabs[number]->free);
    p->slabs[number]->mapped[slot] = (foreign){ data, gone, context };
    c->n_mapped++;
    hand_out(p, number * SLOTS + slot);
    *out = number * SLOTS + slot;
    return PLP_OK;
}

void plp_pool_keep(plp_pool *p, plp_block b)
{
    block *x = block_of(p, b);
    if (x->refs++)
        return;
    slab *s = slab_of(p, b);
    cache_remove(p, b);
    x->state = HELD;
    held_in_slab(p, s, 1);
    if (s->base)
        p->classes[s->cls].n_held++;
}

void plp_pool_drop(plp_pool *p, plp_block b)
{
    block *x = block_of(p, b);
    if (--x->refs)
        return;
    slab *s = slab_of(p, b);
    class *c = &p->classes[s->cls];
    held_in_slab(p, s, -1);
    if (s->base)
        c->n_held--;
    if (!x->findable) {
        set_block_free(p, b);
        return;
    }
    x->state = CACHED;
    if (!s->base) {
        list_append(p, &p->cached_mapped, b);
        return;
    }
    list_append(p, &p->cached, b);
    c->n_cached++;
    p->cached_bytes += c->block_bytes;
    while (p->cached_bytes > p->cache_limit)
        evict(p, p->cached.head);
}

void *plp_pool_data(const plp_pool *p, plp_block b)
{
    const slab *s = slab_of(p, b);
    return s->base ? s->base + b % SLOTS * p->classes[s->cls].block_bytes : s->mapped[b % SLOTS].data;
}

static const block *in_use(const plp_pool *p, plp_block b)
{
    const slab *s = b / SLOTS < p->n_numbers ? slab_of(p, b) : NULL;
    return s && b % SLOTS < s->n_slots && !(s->free >> b % SLOTS & 1) ? &s->blocks[b % SLOTS] : NULL;
}

uint32_t plp_pool_class(const plp_pool *p, plp_block b)            { return slab_of(p, b)->cls; }
size_t   plp_pool_block_bytes(const plp_pool *p, uint32_t cls)     { return p->classes[cls].block_bytes; }
bool     plp_pool_is_mapped(const plp_pool *p, plp_block b)        { return !slab_of(p, b)->base; }
bool     plp_pool_is_findable(const plp_pool *p, plp_block b)      { return block_of(p, b)->findable; }
uint32_t plp_pool_refs(const plp_pool *p, plp_block b)             { const block *x = in_use(p, b); return x ? x->refs : 0; }
uint32_t plp_pool_generation(const plp_pool *p, plp_block b)       { const block *x = in_use(p, b); return x ? x->generation : 0; }

void plp_pool_set_findable(plp_pool *p, plp_block b, bool findable)
{
    block *x = block_of(p, b);
    x->findable = findable;
    if (!findable && x->state == CACHED) {
        cache_remove(p, b);
        set_block_free(p, b);
    }
}

void plp_pool_on_evict(plp_pool *p, plp_block (*leaf)(void *context, plp_block b),
                       void (*forget)(void *context, plp_block b), void *context)
{
    p->leaf = leaf;
    p->forget = forget;
    p->context = context;
}

uint64_t plp_pool_trim(plp_pool *p, uint64_t bytes)
{
    const uint64_t before = p->resident;

    for (;;) {
        for (uint32_t i = 0; i < p->n_classes; i++) {
            cool(p, &p->classes[i], 0);
            unmap_empty_slabs(p, &p->classes[i]);
        }
        if (before - p->resident >= bytes || !evict_for(p, NONE))
            break;
    }
    while (before - p->resident < bytes && p->cached_mapped.n)
        evict(p, p->cached_mapped.head);
    return before - p->resident;
}

/* ---- what there is ---- */

static uint64_t resident_free_bytes(const plp_pool *p)
{
    uint64_t bytes = 0;
    size_t offset;

    for (uint32_t i = 0; i < p->n_classes; i++) {
        const class *c = &p->classes[i];
        bytes += (c->n_blocks - c->n_held - c->n_cached) * c->block_bytes;
        if (c->n_cold && c->block_bytes % p->page == 0)         /* every slot has the same whole pages */
            bytes -= c->n_cold * pages_inside(p, c, 0, &offset);
    }
    for (uint32_t k = 0; k < p->n_numbers; k++) {
        const slab *s = p->slabs[k];
        if (!s || !s->base || p->classes[s->cls].block_bytes % p->page == 0)
            continue;
        for (uint32_t i = 0; i < s->n_slots; i++)
            if (s->blocks[i].state == COLD)
                bytes -= pages_inside(p, &p->classes[s->cls], i, &offset);
    }
    return bytes;
}

void plp_pool_get_stats(const plp_pool *p, plp_pool_stats *out)
{
    plp_pool_stats s = { .resident_bytes = p->resident, .cached_bytes = p->cached_bytes, .metadata_bytes = p->metadata,
                         .budget_bytes = p->budget, .n_evicted = p->n_evicted, .n_taken = p->n_taken };

    for (uint32_t i = 0; i < p->n_classes; i++) {
        const class *c = &p->classes[i];
        s.held_bytes += c->n_held * c->block_bytes;
        s.mapped_bytes += c->n_mapped * c->block_bytes;
        s.reserved_bytes += c->n_slabs * c->slab_bytes;
        s.slack_bytes += c->n_slabs * (c->slab_bytes - c->per_slab * c->block_bytes);
        s.n_slabs += c->n_slabs;
        s.n_blocks += c->n_blocks;
        s.n_held += c->n_held;
        s.n_cached += c->n_cached;
        s.n_mapped += c->n_mapped;
    }
    s.n_free = s.n_blocks - s.n_held - s.n_cached;
    s.free_bytes = resident_free_bytes(p);
    *out = s;
}

/* A list is whole: it ends, links agree both ways, all its blocks are in the state, and n is right. */
static bool list_ok(const plp_pool *p, const list *l, state want)
{
    uint64_t n = 0;
    plp_block before = NONE;

    for (plp_block b = l->head; b != NONE; before = b, b = block_of(p, b)->next) {
        const block *x = block_of(p, b);
        if (n++ == l->n || x->state != want || x->prev != before)
            return false;
    }
    return n == l->n && before == l->tail;
}

bool plp_pool_ok(const plp_pool *p)
{
    class seen[PLP_MAX_CLASSES];
    uint64_t resident = 0, metadata = sizeof *p, cached_mapped = 0, n_numbers = 0, warm[PLP_MAX_CLASSES];

    memset(seen, 0, sizeof seen);
    memset(warm, 0, sizeof warm);
    for (uint32_t k = 0; k < p->n_numbers; k++) {
        const slab *s = p->slabs[k];
        if (!s)
            continue;
        const class *c = &p->classes[s->cls];
        class *n = &seen[s->cls];
        uint32_t n_held = 0;
        n_numbers++;
        metadata += slab_metadata(s);
        if (s->base) {
            resident += c->slab_bytes;
            n->n_slabs++;
            n->n_blocks += s->n_slots;
        }
        for (uint32_t i = 0; i < s->n_slots; i++) {
            const block *x = &s->blocks[i];
            const bool is_free = s->free >> i & 1;
            size_t offset;

            if (is_free != (x->state == COLD || x->state == WARM) || (x->refs > 0) != (x->state == HELD) ||
                (x->state == CACHED && !x->findable) || (is_free && x->findable) || is_free != !x->generation)
                return false;
            n_held += x->state == HELD;
            if (!s->base) {
                n->n_mapped += !is_free;
                cached_mapped += x->state == CACHED;
                continue;
            }
            n->n_held += x->state == HELD;
            n->n_cached += x->state == CACHED;
            n->n_cold += x->state == COLD;
            warm[s->cls] += x->state == WARM;
            if (x->state == COLD)
                resident -= pages_inside(p, c, i, &offset);
        }
        if (n_held != s->n_held || (s->free & ~all_slots(s->n_slots)))
            return false;
        n->n_idle += s->base && !n_held;
    }
    uint64_t cached = 0, cached_bytes = 0;
    for (uint32_t i = 0; i < p->n_classes; i++) {
        const class *c = &p->classes[i], *n = &seen[i];
        if (c->n_slabs != n->n_slabs || c->n_blocks != n->n_blocks || c->n_held != n->n_held || c->n_idle != n->n_idle ||
            c->n_cached != n->n_cached || c->n_cold != n->n_cold || c->n_mapped != n->n_mapped)
            return false;
        if (!list_ok(p, &c->warm, WARM) || (c->releases && c->warm.n != warm[i]) || (!c->releases && c->n_cold))
            return false;
        for (uint32_t k = 1; k <= SLOTS; k++) {
            if ((c->with_free[k] != NONE) != (c->counts >> (k - 1) & 1))
                return false;
            for (uint32_t at = c->with_free[k]; at != NONE; at = p->slabs[at]->next)
                if (p->slabs[at]->cls != i || n_free_of(p->slabs[at]) != k)
                    return false;
        }
        cached += n->n_cached;
        cached_bytes += n->n_cached * c->block_bytes;
    }
    plp_pool_stats t;
    plp_pool_get_stats(p, &t);
    return list_ok(p, &p->cached, CACHED) && p->cached.n == cached && p->cached_bytes == cached_bytes &&
           list_ok(p, &p->cached_mapped, CACHED) && p->cached_mapped.n == cached_mapped &&
           n_numbers + p->n_spare == p->n_numbers && p->resident == resident && resident <= p->budget &&
           metadata + p->cap_numbers * (sizeof *p->slabs + sizeof *p->spare_numbers) == p->metadata &&
           t.resident_bytes == t.held_bytes + t.cached_bytes + t.free_bytes + t.slack_bytes;
}
