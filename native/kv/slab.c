/* kv/slab.c - slabs from the source, their pages, and which free block comes next */
#include "kv/slab.h"

#include <string.h>

#include "base/mem.h"

enum { FIRST_NUMBERS = 64 };

size_t plp_slab_pages_inside(const plp_pool *p, const plp_class *c, uint32_t slot, size_t *offset)
{
    const size_t begin = (slot * c->block_bytes + p->page - 1) / p->page * p->page;
    const size_t end = (slot + 1) * c->block_bytes / p->page * p->page;
    *offset = begin;
    return c->releases && end > begin ? end - begin : 0;
}

void plp_class_init(plp_class *c, const plp_pool *p, size_t block_bytes, size_t slab_wish)
{
    size_t n = (slab_wish ? slab_wish : 2u << 20) / block_bytes, offset;

    n = n < 4 ? 4 : n > PLP_SLOTS ? PLP_SLOTS : n;
    c->block_bytes = block_bytes;
    c->slab_bytes = (n * block_bytes + p->page - 1) / p->page * p->page;
    n = c->slab_bytes / block_bytes;                        /* rounding up to pages may have made room */
    c->per_slab = n > PLP_SLOTS ? PLP_SLOTS : (uint32_t)n;
    c->releases = p->source.release && block_bytes >= 2 * p->page;
    c->bare_bytes = c->slab_bytes;
    for (uint32_t i = 0; i < c->per_slab; i++)
        c->bare_bytes -= plp_slab_pages_inside(p, c, i, &offset);
    if (c->releases) {                  /* a slot that starts inside a page loses up to one more at its end */
        c->most_inside = block_bytes / p->page * p->page;
        c->least_inside = c->most_inside - (block_bytes % p->page ? p->page : 0);
    }
    for (uint32_t k = 0; k <= PLP_SLOTS; k++)
        c->with_free[k] = PLP_NONE;
    c->mapped_with_free = PLP_NONE;
    c->warm = (plp_list){ PLP_NONE, PLP_NONE, 0 };
}

/* ---- lists ---- */

void plp_list_append(plp_pool *p, plp_list *l, plp_block b)
{
    plp_block_info *x = plp_block_of(p, b);
    x->next = PLP_NONE;
    x->prev = l->tail;
    if (l->tail == PLP_NONE) l->head = b;
    else                     plp_block_of(p, l->tail)->next = b;
    l->tail = b;
    l->n++;
}

void plp_list_remove(plp_pool *p, plp_list *l, plp_block b)
{
    plp_block_info *x = plp_block_of(p, b);
    if (x->prev == PLP_NONE) l->head = x->next;
    else                     plp_block_of(p, x->prev)->next = x->next;
    if (x->next == PLP_NONE) l->tail = x->prev;
    else                     plp_block_of(p, x->next)->prev = x->prev;
    l->n--;
}

static void slab_link(plp_pool *p, uint32_t number, uint32_t *head)
{
    plp_slab *s = p->slabs[number];
    s->prev = PLP_NONE;
    s->next = *head;
    if (*head != PLP_NONE)
        p->slabs[*head]->prev = number;
    *head = number;
}

static void slab_unlink(plp_pool *p, uint32_t number, uint32_t *head)
{
    plp_slab *s = p->slabs[number];
    if (s->prev == PLP_NONE) *head = s->next;
    else                     p->slabs[s->prev]->next = s->next;
    if (s->next != PLP_NONE)
        p->slabs[s->next]->prev = s->prev;
}

void plp_slab_set_free(plp_pool *p, uint32_t number, uint64_t free)
{
    plp_slab *s = p->slabs[number];
    plp_class *c = &p->classes[s->cls];
    const uint32_t before = plp_slab_n_free(s);

    s->free = free;
    const uint32_t after = plp_slab_n_free(s);
    if (!s->base) {
        if (!before && after) slab_link(p, number, &c->mapped_with_free);
        if (before && !after) slab_unlink(p, number, &c->mapped_with_free);
        return;
    }
    if (before) {
        slab_unlink(p, number, &c->with_free[before]);
        if (c->with_free[before] == PLP_NONE)
            c->counts &= ~(UINT64_C(1) << (before - 1));
    }
    if (after) {
        slab_link(p, number, &c->with_free[after]);
        c->counts |= UINT64_C(1) << (after - 1);
    }
}

/* ---- slabs ---- */

/* A slab number whose directory entry is free, or PLP_NONE if memory is refused. */
static uint32_t new_number(plp_pool *p)
{
    if (p->n_spare)
        return p->spare_numbers[--p->n_spare];
    if (p->n_numbers == p->cap_numbers) {
        const uint32_t cap = p->cap_numbers ? p->cap_numbers * 2 : FIRST_NUMBERS;
        void *slabs, *spare;

        if (cap > PLP_NONE / PLP_SLOTS)                         /* PLP_NO_BLOCK stays out of reach */
            return PLP_NONE;
        if (!(slabs = plp_resize(PLP_MEM_KV, p->slabs, cap, sizeof *p->slabs)))
            return PLP_NONE;
        p->slabs = slabs;
        if (!(spare = plp_resize(PLP_MEM_KV, p->spare_numbers, cap, sizeof *p->spare_numbers)))
            return PLP_NONE;
        p->spare_numbers = spare;
        p->metadata += (cap - p->cap_numbers) * (sizeof *p->slabs + sizeof *p->spare_numbers);
        p->cap_numbers = cap;
    }
    return p->n_numbers++;
}

static size_t slab_metadata(const plp_slab *s)
{
    return sizeof *s + s->n_slots * (sizeof(plp_block_info) + (s->mapped ? sizeof(plp_foreign) : 0));
}

void plp_slab_delete(plp_pool *p, uint32_t number)
{
    plp_slab *s = p->slabs[number];
    p->metadata -= slab_metadata(s);
    plp_free(s->mapped);
    plp_free(s);
    p->slabs[number] = NULL;
    p->spare_numbers[p->n_spare++] = number;
}

uint32_t plp_slab_create(plp_pool *p, uint32_t cls, uint32_t n_slots, bool mapped)
{
    const uint32_t number = new_number(p);
    plp_slab *s = NULL;

    if (number == PLP_NONE)
        return PLP_NONE;
    if ((s = plp_zalloc(PLP_MEM_KV, 1, sizeof *s + n_slots * sizeof(plp_block_info)))) {
        s->cls = cls;
        s->n_slots = n_slots;
        for (uint32_t i = 0; i < n_slots; i++)
            s->blocks[i].state = PLP_BLOCK_WARM;
        if (mapped && !(s->mapped = plp_zalloc(PLP_MEM_KV, n_slots, sizeof(plp_foreign)))) {
            plp_free(s);
            s = NULL;
        }
    }
    p->slabs[number] = s;
    if (!s) {
        p->spare_numbers[p->n_spare++] = number;
        return PLP_NONE;
    }
    p->metadata += slab_metadata(s);
    return number;
}

bool plp_slab_map(plp_pool *p, uint32_t cls)
{
    plp_class *c = &p->classes[cls];
    const uint32_t number = plp_slab_create(p, cls, c->per_slab, false);

    if (number == PLP_NONE)
        return false;
    plp_slab *s = p->slabs[number];
    if (!(s->base = p->source.map(p->source.context, c->slab_bytes))) {
        plp_slab_delete(p, number);
        return false;
    }
    if (c->releases) {                      /* nothing is committed before it is written */
        for (uint32_t i = 0; i < s->n_slots; i++)
            s->blocks[i].state = PLP_BLOCK_COLD;
        c->n_cold += s->n_slots;
    }
    p->resident += c->bare_bytes;
    c->n_slabs++;
    c->n_idle++;
    c->n_blocks += s->n_slots;
    plp_slab_set_free(p, number, plp_all_slots(s->n_slots));
    return true;
}

void plp_slab_unmap(plp_pool *p, uint32_t number)
{
    plp_slab *s = p->slabs[number];
    plp_class *c = &p->classes[s->cls];
    size_t bytes = c->slab_bytes, offset;

    for (uint32_t i = 0; i < s->n_slots; i++) {
        if (s->blocks[i].state == PLP_BLOCK_COLD) {
            bytes -= plp_slab_pages_inside(p, c, i, &offset);
            c->n_cold--;
        } else if (c->releases)
            plp_list_remove(p, &c->warm, number * PLP_SLOTS + i);
    }
    plp_slab_set_free(p, number, 0);
    p->source.unmap(p->source.context, s->base, c->slab_bytes);
    p->resident -= bytes;
    c->n_slabs--;
    c->n_idle--;
    c->n_blocks -= s->n_slots;
    plp_slab_delete(p, number);
}

void plp_slab_unmap_empty(plp_pool *p, plp_class *c)
{
    while (c->with_free[c->per_slab] != PLP_NONE)
        plp_slab_unmap(p, c->with_free[c->per_slab]);
}

void plp_slab_cool(plp_pool *p, plp_class *c, uint64_t keep)
{
    while (c->warm.n > keep) {
        const plp_block b = c->warm.head;
        size_t offset;
        const size_t n = plp_slab_pages_inside(p, c, b % PLP_SLOTS, &offset);

        plp_list_remove(p, &c->warm, b);
        plp_block_of(p, b)->state = PLP_BLOCK_COLD;
        c->n_cold++;
        p->source.release(p->source.context, plp_slab_of(p, b)->base + offset, n);
        p->resident -= n;
    }
}

/* ---- which block next ---- */

/* xorshift64: the order only has to be irregular and repeatable */
static uint64_t next_random(plp_pool *p)
{
    p->random ^= p->random << 13;
    p->random ^= p->random >> 7;
    return p->random ^= p->random << 17;
}

plp_block plp_slab_choose(plp_pool *p, plp_class *c)
{
    uint32_t number, slot;

    if (c->warm.n)
        return c->warm.tail;            /* the newest: its pages are here, perhaps in the CPU's cache */
    if (!c->counts)
        return PLP_NO_BLOCK;
    if (!p->shuffle) {
        number = c->with_free[plp_lowest_bit(c->counts) + 1];
        return number * PLP_SLOTS + plp_lowest_bit(p->slabs[number]->free);
    }
    uint64_t counts = c->counts;
    for (uint32_t skip = (uint32_t)(next_random(p) % (uint32_t)__builtin_popcountll(counts)); skip; skip--)
        counts &= counts - 1;
    number = c->with_free[plp_lowest_bit(counts) + 1];
    uint64_t free = p->slabs[number]->free;
    for (slot = (uint32_t)(next_random(p) % (uint32_t)__builtin_popcountll(free)); slot; slot--)
        free &= free - 1;
    return number * PLP_SLOTS + plp_lowest_bit(free);
}

void plp_slab_claim(plp_pool *p, plp_block b)
{
    plp_slab *s = plp_slab_of(p, b);
    plp_class *c = &p->classes[s->cls];
    size_t offset;

    if (plp_block_of(p, b)->state == PLP_BLOCK_COLD) {
        c->n_cold--;
        p->resident += plp_slab_pages_inside(p, c, b % PLP_SLOTS, &offset);
    } else if (s->base && c->releases)
        plp_list_remove(p, &c->warm, b);
    plp_slab_set_free(p, b / PLP_SLOTS, s->free & ~(UINT64_C(1) << b % PLP_SLOTS));
}

/* ---- counting again ---- */

bool plp_list_ok(const plp_pool *p, const plp_list *l, plp_block_state want)
{
    uint64_t n = 0;
    plp_block before = PLP_NONE;

    for (plp_block b = l->head; b != PLP_NONE; before = b, b = plp_block_of(p, b)->next) {
        const plp_block_info *x = plp_block_of(p, b);
        if (n++ == l->n || x->state != want || x->prev != before)
            return false;
    }
    return n == l->n && before == l->tail;
}

/* Adds what slab k holds to the counters in `n`, its bytes to `resident`; false if a block is not what it may be. */
static bool count_slab(const plp_pool *p, const plp_slab *s, plp_class *n, uint64_t *resident)
{
    uint32_t n_held = 0;
    size_t offset;

    for (uint32_t i = 0; i < s->n_slots; i++) {
        const plp_block_info *x = &s->blocks[i];
        const bool is_free = s->free >> i & 1;

        if (is_free != (x->state == PLP_BLOCK_COLD || x->state == PLP_BLOCK_WARM) ||
            (x->refs > 0) != (x->state == PLP_BLOCK_HELD) || (x->state == PLP_BLOCK_CACHED && !x->findable) ||
            (is_free && x->findable) || is_free != !x->generation)
            return false;
        n_held += x->state == PLP_BLOCK_HELD;
        if (!s->base) {
            n->n_mapped += !is_free;
            continue;
        }
        n->n_held += x->state == PLP_BLOCK_HELD;
        n->n_cached += x->state == PLP_BLOCK_CACHED;
        n->warm.n += x->state == PLP_BLOCK_WARM;
        if (x->state == PLP_BLOCK_COLD) {
            n->n_cold++;
            *resident -= plp_slab_pages_inside(p, &p->classes[s->cls], i, &offset);
        }
    }
    if (s->base) {
        *resident += p->classes[s->cls].slab_bytes;
        n->n_slabs++;
        n->n_blocks += s->n_slots;
        n->n_idle += !n_held;
    }
    return n_held == s->n_held && !(s->free & ~plp_all_slots(s->n_slots));
}

/* Every slab with free slots hangs in the list for their number, and no other does. */
static bool lists_ok(const plp_pool *p, uint32_t cls)
{
    const plp_class *c = &p->classes[cls];
    uint64_t n_listed = 0, n_with_free = 0;

    for (uint32_t k = 1; k <= PLP_SLOTS; k++) {
        if ((c->with_free[k] != PLP_NONE) != (c->counts >> (k - 1) & 1))
            return false;
        for (uint32_t at = c->with_free[k]; at != PLP_NONE; at = p->slabs[at]->next, n_listed++)
            if (p->slabs[at]->cls != cls || !p->slabs[at]->base || plp_slab_n_free(p->slabs[at]) != k)
                return false;
    }
    for (uint32_t at = c->mapped_with_free; at != PLP_NONE; at = p->slabs[at]->next, n_listed++)
        if (p->slabs[at]->cls != cls || p->slabs[at]->base || !p->slabs[at]->free)
            return false;
    for (uint32_t k = 0; k < p->n_numbers; k++)
        n_with_free += p->slabs[k] && p->slabs[k]->cls == cls && p->slabs[k]->free;
    return n_listed == n_with_free;
}

bool plp_slabs_ok(const plp_pool *p)
{
    plp_class seen[PLP_MAX_CLASSES];
    uint64_t resident = 0, n_numbers = 0;
    uint64_t metadata = sizeof *p + p->cap_numbers * (sizeof *p->slabs + sizeof *p->spare_numbers);

    memset(seen, 0, sizeof seen);
    for (uint32_t k = 0; k < p->n_numbers; k++) {
        const plp_slab *s = p->slabs[k];
        if (!s)
            continue;
        n_numbers++;
        metadata += slab_metadata(s);
        if (!count_slab(p, s, &seen[s->cls], &resident))
            return false;
    }
    for (uint32_t i = 0; i < p->n_classes; i++) {
        const plp_class *c = &p->classes[i], *n = &seen[i];
        if (c->n_slabs != n->n_slabs || c->n_blocks != n->n_blocks || c->n_held != n->n_held || c->n_idle != n->n_idle ||
            c->n_cached != n->n_cached || c->n_cold != n->n_cold || c->n_mapped != n->n_mapped ||
            (c->releases ? c->warm.n != n->warm.n : c->n_cold || c->warm.n) ||
            !plp_list_ok(p, &c->warm, PLP_BLOCK_WARM) || !lists_ok(p, i))
            return false;
    }
    return resident == p->resident && metadata == p->metadata && n_numbers + p->n_spare == p->n_numbers;
}
