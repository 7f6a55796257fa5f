/*
 * kv/pool.c - who owns a block, which one is evicted, what the budget allows
 *
 * Costs are known before memory is touched (kv/slab.h says how bytes are counted), so the budget is
 * never passed, not even for a moment.
 */
#include "kv/pool.h"

#include "base/mem.h"
#include "base/platform.h"
#include "kv/slab.h"

enum {
    SHUFFLE_SLABS = 16,         /* mapped at a time under shuffle, so that there is an order to shuffle */
    WARM_SHARE = 64,            /* one warm block for so many used ones: beams and rewinds free and take all the time */
};

/* ---- a block's life ---- */

static void held_in_slab(plp_pool *p, plp_slab *s, int change)
{
    if (s->base && !s->n_held && change > 0) p->classes[s->cls].n_idle--;
    s->n_held += (uint32_t)change;
    if (s->base && !s->n_held && change < 0) p->classes[s->cls].n_idle++;
}

/* The block has left held or cached for good. */
static void set_block_free(plp_pool *p, plp_block b)
{
    plp_slab *s = plp_slab_of(p, b);
    plp_class *c = &p->classes[s->cls];
    plp_block_info *x = plp_block_of(p, b);
    const uint32_t number = b / PLP_SLOTS, slot = b % PLP_SLOTS;

    x->findable = false;
    x->generation = 0;
    x->state = PLP_BLOCK_WARM;
    plp_slab_set_free(p, number, s->free | UINT64_C(1) << slot);
    if (!s->base) {
        const plp_foreign gone = s->mapped[slot];
        c->n_mapped--;
        if (s->free == plp_all_slots(s->n_slots)) {
            plp_slab_set_free(p, number, 0);
            plp_slab_delete(p, number);
        }
        if (gone.gone)
            gone.gone(gone.context);
        return;
    }
    if (c->releases)
        plp_list_append(p, &c->warm, b);
    const uint64_t n_used = c->n_held + c->n_cached;
    if (s->free == plp_all_slots(s->n_slots) && (c->releases || !n_used || s->next != PLP_NONE))
        plp_slab_unmap(p, number);
    if (!n_used)
        plp_slab_unmap_empty(p, c);        /* a kept spare, or slabs that shuffle mapped ahead */
    if (c->releases)
        plp_slab_cool(p, c, p->shuffle ? 0 : n_used / WARM_SHARE);
}

static void cache_remove(plp_pool *p, plp_block b)
{
    plp_slab *s = plp_slab_of(p, b);
    if (!s->base) {
        plp_list_remove(p, &p->cached_mapped, b);
        return;
    }
    plp_list_remove(p, &p->cached, b);
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

/* Does evicting this block bring memory nearer for class `cls` (PLP_NONE: for the source)? */
static bool helps(const plp_pool *p, plp_block b, uint32_t cls)
{
    const plp_slab *s = plp_slab_of(p, b);
    return s->cls == cls || p->classes[s->cls].releases || !s->n_held;
}

/* Evict the least recently used block that helps. Where memory comes in whole slabs the rest of its
 * slab goes with it: evicting strictly by age would thin out many slabs before one is empty. */
static bool evict_for(plp_pool *p, uint32_t cls)
{
    plp_block b = p->cached.head;

    while (b != PLP_NONE && !helps(p, b, cls))
        b = plp_block_of(p, b)->next;
    if (b == PLP_NONE)
        return false;
    const plp_slab *s = plp_slab_of(p, b);
    const uint32_t number = b / PLP_SLOTS, n_slots = s->n_slots;
    if (s->cls == cls || p->classes[s->cls].releases) {
        evict(p, b);
        return true;
    }
    for (uint32_t i = 0; i < n_slots; i++)
        while (p->slabs[number] == s && s->blocks[i].state == PLP_BLOCK_CACHED)
            evict(p, number * PLP_SLOTS + i);
    return true;
}

/* One step towards room for class `cls`; false when there is nothing left to give up. */
static bool make_room(plp_pool *p, uint32_t cls)
{
    for (uint32_t i = 0; i < p->n_classes; i++) {
        plp_class *c = &p->classes[i];
        if (i != cls && c->warm.n) {
            plp_slab_cool(p, c, c->warm.n - 1);
            return true;
        }
        if (i != cls && c->with_free[c->per_slab] != PLP_NONE) {
            plp_slab_unmap(p, c->with_free[c->per_slab]);
            return true;
        }
    }
    return evict_for(p, cls);
}

/* How many blocks of a class could be taken, up to `want`, if all that may go went? Errs, by less than a
 * page per block, on the side of refusing, so that nothing is evicted in vain. */
static uint64_t could_take(const plp_pool *p, uint32_t cls, uint64_t want)
{
    const plp_class *c = &p->classes[cls];
    uint64_t room = p->budget - p->resident;
    uint64_t n = c->n_blocks - c->n_held - c->n_cold;          /* warm, cached: their bytes are here */
    uint64_t more;

    for (uint32_t i = 0; i < p->n_classes; i++) {
        const plp_class *d = &p->classes[i];
        if (i != cls)
            room += (d->n_blocks - d->n_held - d->n_cold) * d->least_inside + d->n_idle * d->bare_bytes;
    }
    const size_t inside = c->most_inside, bare = c->bare_bytes;
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

static void hand_out(plp_pool *p, plp_block b)
{
    plp_slab *s = plp_slab_of(p, b);
    plp_block_info *x = plp_block_of(p, b);

    plp_slab_claim(p, b);
    if (++p->generation == 0)
        p->generation = 1;
    x->refs = 1;
    x->generation = p->generation;
    x->state = PLP_BLOCK_HELD;
    x->findable = false;
    held_in_slab(p, s, 1);
}

static plp_status take_one(plp_pool *p, uint32_t cls, plp_block *out)
{
    plp_class *c = &p->classes[cls];
    size_t offset;

    for (;;) {
        const plp_block b = plp_slab_choose(p, c);
        uint64_t cost = c->bare_bytes + plp_slab_pages_inside(p, c, 0, &offset);

        if (b != PLP_NO_BLOCK)
            cost = plp_block_of(p, b)->state == PLP_BLOCK_COLD ? plp_slab_pages_inside(p, c, b % PLP_SLOTS, &offset) : 0;
        if (cost > p->budget - p->resident) {
            if (!make_room(p, cls))
                return PLP_E_BUDGET;
            continue;
        }
        if (b != PLP_NO_BLOCK) {
            hand_out(p, b);
            c->n_held++;
            *out = b;
            return PLP_OK;
        }
        /* The system may refuse before the budget does. */
        if (!plp_slab_map(p, cls) && !evict_for(p, cls))
            return PLP_E_NOMEM;
        for (uint32_t i = 1; p->shuffle && i < SHUFFLE_SLABS; i++)
            if (c->slab_bytes > p->budget - p->resident || !plp_slab_map(p, cls))
                break;
    }
}

/* ---- the interface ---- */

/* No huge pages: one of them would commit the cold blocks around a used one, and the kernel would put
 * released blocks back when it tidies up. */
static void *map_pages(void *context, size_t n)
{
    void *q = plp_pages_map(n);
    (void)context;
    if (q)
        plp_pages_small(q, n);
    return q;
}
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
    p->cached = p->cached_mapped = (plp_list){ PLP_NONE, PLP_NONE, 0 };
    for (uint32_t i = 0; i < p->n_classes; i++)
        plp_class_init(&p->classes[i], p, spec->block_bytes[i], spec->slab_bytes);
    *out = p;
    return PLP_OK;
}

void plp_pool_close(plp_pool *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->n_numbers; i++) {
        plp_slab *s = p->slabs[i];
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

uint64_t plp_pool_least_bytes(const plp_pool *p, uint32_t cls, uint32_t n)
{
    const plp_class *c = &p->classes[cls];
    const uint64_t slab_bytes = c->bare_bytes + (uint64_t)c->per_slab * c->most_inside;
    const uint32_t rest = n % c->per_slab;

    return n / c->per_slab * slab_bytes + (rest ? c->bare_bytes + (uint64_t)rest * c->most_inside : 0);
}

static unsigned long long kib(uint64_t bytes)    { return bytes / 1024; }

static bool any_held(const plp_pool *p)
{
    for (uint32_t i = 0; i < p->n_classes; i++)
        if (p->classes[i].n_held)
            return true;
    return false;
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
    while (!status && got < n)
        if (!(status = take_one(p, cls, &out[got])))
            got++;
    if (!status) {
        p->n_taken += n;
        return PLP_OK;
    }
    while (got)
        plp_pool_drop(p, out[--got]);
    if (status == PLP_E_NOMEM)
        return plp_fail_amount(err, status, wanted, 0, "kv pool: the system refused memory for %u blocks", n);
    if (!any_held(p))           /* nothing that could be closed would help */
        return plp_fail_amount(err, status, wanted, could * p->classes[cls].block_bytes,
                               "kv pool: %u block%s a budget of at least %llu KiB, and it is %llu KiB", n, n == 1 ? " needs" : "s need",
                               kib(plp_pool_least_bytes(p, cls, n) + 1023), kib(p->budget));
    return plp_fail_amount(err, status, wanted, could * p->classes[cls].block_bytes,
                           "kv pool: %u block%s (%llu KiB) do not fit in the budget of %llu KiB, of which %llu KiB "
                           "are in use; raise the budget, or close a session", n, n == 1 ? "" : "s", kib(wanted), kib(p->budget),
                           kib(p->resident - p->cached_bytes));
}

plp_status plp_pool_adopt(plp_pool *p, uint32_t cls, void *data, void (*gone)(void *context), void *context,
                          plp_block *out, plp_error *err)
{
    if (cls >= p->n_classes || !data)
        return plp_fail(err, PLP_E_ARG, "kv pool: nothing to adopt, or class %u of %u", cls, p->n_classes);
    plp_class *c = &p->classes[cls];
    if (c->mapped_with_free == PLP_NONE) {
        const uint32_t number = plp_slab_create(p, cls, PLP_SLOTS, true);
        if (number == PLP_NONE)
            return plp_fail_amount(err, PLP_E_NOMEM, sizeof(plp_slab), 0, "kv pool: no memory for a mapped block");
        plp_slab_set_free(p, number, plp_all_slots(PLP_SLOTS));
    }
    const uint32_t number = c->mapped_with_free, slot = plp_lowest_bit(p->slabs[number]->free);
    p->slabs[number]->mapped[slot] = (plp_foreign){ data, gone, context };
    c->n_mapped++;
    hand_out(p, number * PLP_SLOTS + slot);
    *out = number * PLP_SLOTS + slot;
    return PLP_OK;
}

void plp_pool_keep(plp_pool *p, plp_block b)
{
    plp_block_info *x = plp_block_of(p, b);
    if (x->refs++)
        return;
    plp_slab *s = plp_slab_of(p, b);
    cache_remove(p, b);
    x->state = PLP_BLOCK_HELD;
    held_in_slab(p, s, 1);
    if (s->base)
        p->classes[s->cls].n_held++;
}

void plp_pool_drop(plp_pool *p, plp_block b)
{
    plp_block_info *x = plp_block_of(p, b);
    if (--x->refs)
        return;
    plp_slab *s = plp_slab_of(p, b);
    plp_class *c = &p->classes[s->cls];
    held_in_slab(p, s, -1);
    if (s->base)
        c->n_held--;
    if (!x->findable) {
        set_block_free(p, b);
        return;
    }
    x->state = PLP_BLOCK_CACHED;
    if (!s->base) {
        plp_list_append(p, &p->cached_mapped, b);
        return;
    }
    plp_list_append(p, &p->cached, b);
    c->n_cached++;
    p->cached_bytes += c->block_bytes;
    while (p->cached_bytes > p->cache_limit)
        evict(p, p->cached.head);
}

void *plp_pool_data(const plp_pool *p, plp_block b)
{
    const plp_slab *s = plp_slab_of(p, b);
    return s->base ? s->base + b % PLP_SLOTS * p->classes[s->cls].block_bytes : s->mapped[b % PLP_SLOTS].data;
}

static const plp_block_info *in_use(const plp_pool *p, plp_block b)
{
    const plp_slab *s = b / PLP_SLOTS < p->n_numbers ? plp_slab_of(p, b) : NULL;
    return s && b % PLP_SLOTS < s->n_slots && !(s->free >> b % PLP_SLOTS & 1) ? &s->blocks[b % PLP_SLOTS] : NULL;
}

uint32_t plp_pool_class(const plp_pool *p, plp_block b)            { return plp_slab_of(p, b)->cls; }
size_t   plp_pool_block_bytes(const plp_pool *p, uint32_t cls)     { return p->classes[cls].block_bytes; }
bool     plp_pool_is_mapped(const plp_pool *p, plp_block b)        { return !plp_slab_of(p, b)->base; }
bool     plp_pool_is_findable(const plp_pool *p, plp_block b)      { return plp_block_of(p, b)->findable; }
uint32_t plp_pool_refs(const plp_pool *p, plp_block b)             { const plp_block_info *x = in_use(p, b); return x ? x->refs : 0; }
uint32_t plp_pool_generation(const plp_pool *p, plp_block b)       { const plp_block_info *x = in_use(p, b); return x ? x->generation : 0; }

void plp_pool_set_findable(plp_pool *p, plp_block b, bool findable)
{
    plp_block_info *x = plp_block_of(p, b);
    x->findable = findable;
    if (!findable && x->state == PLP_BLOCK_CACHED) {
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
            plp_slab_cool(p, &p->classes[i], 0);
            plp_slab_unmap_empty(p, &p->classes[i]);
        }
        if (before - p->resident >= bytes || !evict_for(p, PLP_NONE))
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
        const plp_class *c = &p->classes[i];
        bytes += (c->n_blocks - c->n_held - c->n_cached) * c->block_bytes;
        if (c->n_cold && c->block_bytes % p->page == 0)         /* every slot has the same whole pages */
            bytes -= c->n_cold * plp_slab_pages_inside(p, c, 0, &offset);
    }
    for (uint32_t k = 0; k < p->n_numbers; k++) {
        const plp_slab *s = p->slabs[k];
        if (!s || !s->base || p->classes[s->cls].block_bytes % p->page == 0)
            continue;
        for (uint32_t i = 0; i < s->n_slots; i++)
            if (s->blocks[i].state == PLP_BLOCK_COLD)
                bytes -= plp_slab_pages_inside(p, &p->classes[s->cls], i, &offset);
    }
    return bytes;
}

void plp_pool_get_stats(const plp_pool *p, plp_pool_stats *out)
{
    plp_pool_stats s = { .resident_bytes = p->resident, .cached_bytes = p->cached_bytes, .metadata_bytes = p->metadata,
                         .budget_bytes = p->budget, .n_evicted = p->n_evicted, .n_taken = p->n_taken };

    for (uint32_t i = 0; i < p->n_classes; i++) {
        const plp_class *c = &p->classes[i];
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

bool plp_pool_ok(const plp_pool *p)
{
    uint64_t cached = 0, cached_bytes = 0, cached_mapped = 0;
    plp_pool_stats t;

    if (!plp_slabs_ok(p))
        return false;
    for (uint32_t i = 0; i < p->n_classes; i++) {
        cached += p->classes[i].n_cached;
        cached_bytes += p->classes[i].n_cached * p->classes[i].block_bytes;
    }
    for (uint32_t k = 0; k < p->n_numbers; k++)
        for (uint32_t i = 0; p->slabs[k] && !p->slabs[k]->base && i < p->slabs[k]->n_slots; i++)
            cached_mapped += p->slabs[k]->blocks[i].state == PLP_BLOCK_CACHED;
    plp_pool_get_stats(p, &t);
    return plp_list_ok(p, &p->cached, PLP_BLOCK_CACHED) && p->cached.n == cached && p->cached_bytes == cached_bytes &&
           plp_list_ok(p, &p->cached_mapped, PLP_BLOCK_CACHED) && p->cached_mapped.n == cached_mapped &&
           p->cached_bytes <= p->cache_limit && p->resident <= p->budget &&
           t.resident_bytes == t.held_bytes + t.cached_bytes + t.free_bytes + t.slack_bytes;
}
