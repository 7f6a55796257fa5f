/* text/merge.c - see merge.h */
#include "text/merge.h"

#include "base/mem.h"

/* Up to here looking through the chain beats the heap; most words have fewer than ten symbols. */
enum { SHORT_WORD = 32 };

bool plp_merger_reserve(plp_merger *m, uint32_t n)
{
    size_t cap;

    if (n < m->cap)
        return true;
    cap = (size_t)n + n / 2 + 64;
    plp_merger_close(m);
    m->symbols = plp_alloc(PLP_MEM_TEXT, cap, sizeof *m->symbols);
    /* A pair enters at the start or when a merge makes it; a merge leaves the heap and makes two. */
    m->heap = plp_alloc(PLP_MEM_TEXT, cap, 2 * sizeof *m->heap);
    if (!m->symbols || !m->heap) {
        plp_merger_close(m);
        return false;
    }
    m->cap = (uint32_t)cap;
    return true;
}

void plp_merger_close(plp_merger *m)
{
    plp_free(m->symbols);
    plp_free(m->heap);
    *m = (plp_merger){ 0 };
}

/* ---- heap: four children per node, because a level costs a cache miss and a comparison does not ---- */

static void sift_down(uint64_t *heap, uint32_t n, uint32_t at)
{
    const uint64_t item = heap[at];

    for (;;) {
        const uint64_t first = 4 * (uint64_t)at + 1, last = first + 4 < n ? first + 4 : n;
        uint64_t least = first;
        if (first >= n)
            break;
        for (uint64_t child = first + 1; child < last; child++)
            if (heap[child] < heap[least])
                least = child;
        if (heap[least] >= item)
            break;
        heap[at] = heap[least];
        at = (uint32_t)least;
    }
    heap[at] = item;
}

static void push(plp_merger *m, uint32_t key, uint32_t symbol)
{
    const uint64_t item = (uint64_t)key << 32 | symbol;
    uint32_t at = m->n_heap++;

    for (; at > 0 && m->heap[(at - 1) / 4] > item; at = (at - 1) / 4)
        m->heap[at] = m->heap[(at - 1) / 4];
    m->heap[at] = item;
}

/* ---- merging --------------------------------------------------------------------------------- */

static void rate(plp_merger *m, uint32_t n, uint32_t at, plp_pair_fn pair, const void *context)
{
    plp_symbol *s = &m->symbols[at];
    s->key = s->next < n ? pair(context, m->symbols, at, s->next, &s->to) : PLP_NO_PAIR;
}

/* Join symbol `at` with the next one; the pairs on both sides are new and are rated again. */
static void join(plp_merger *m, uint32_t n, uint32_t at, plp_pair_fn pair, const void *context)
{
    plp_symbol *s = &m->symbols[at], *gone = &m->symbols[s->next];

    s->id = s->to;
    s->next = gone->next;
    gone->key = PLP_NO_PAIR;
    m->symbols[s->next].prev = at;          /* the sentinel has a prev too */
    rate(m, n, at, pair, context);
    if (s->prev < n)
        rate(m, n, s->prev, pair, context);
}

static void run_short(plp_merger *m, uint32_t n, plp_pair_fn pair, const void *context)
{
    for (;;) {
        uint32_t best = 0;
        for (uint32_t i = m->symbols[0].next; i < n; i = m->symbols[i].next)
            if (m->symbols[i].key < m->symbols[best].key)
                best = i;
        if (m->symbols[best].key == PLP_NO_PAIR)
            return;
        join(m, n, best, pair, context);
    }
}

void plp_merger_run(plp_merger *m, uint32_t n, plp_pair_fn pair, const void *context)
{
    plp_symbol *s = m->symbols;

    for (uint32_t i = 0; i <= n; i++) {
        s[i].prev = i - 1;                  /* of the first: UINT32_MAX, which is no index */
        s[i].next = i + 1;
    }
    for (uint32_t i = 0; i < n; i++)
        rate(m, n, i, pair, context);
    if (n <= SHORT_WORD) {
        if (n > 1)
            run_short(m, n, pair, context);
        return;
    }

    m->n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        if (s[i].key != PLP_NO_PAIR)
            m->heap[m->n_heap++] = (uint64_t)s[i].key << 32 | i;
    for (uint32_t i = m->n_heap / 4 + 1; i-- > 0; )
        if (i < m->n_heap)
            sift_down(m->heap, m->n_heap, i);

    while (m->n_heap > 0) {
        const uint32_t key = (uint32_t)(m->heap[0] >> 32), at = (uint32_t)m->heap[0];
        m->heap[0] = m->heap[--m->n_heap];
        if (m->n_heap)
            sift_down(m->heap, m->n_heap, 0);
        if (s[at].key != key)
            continue;                       /* one side has merged since this pair entered */
        join(m, n, at, pair, context);
        if (s[at].key != PLP_NO_PAIR)
            push(m, s[at].key, at);
        if (s[at].prev < n && s[s[at].prev].key != PLP_NO_PAIR)
            push(m, s[s[at].prev].key, s[at].prev);
    }
}
