/*
 * base/mem.c - tagged heap memory
 *
 *   [ header, 64 bytes: size, tag ][ the caller's bytes, 64-byte aligned ... ]
 */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct header {
    size_t  n_bytes;
    plp_tag tag;
} header;

enum { HEADER_BYTES = 64 };

static _Atomic uint64_t bytes_by_tag[PLP_N_TAGS];
static _Atomic uint64_t violations;
static _Atomic int64_t  fail_after = -1;
static _Thread_local bool guarded;

static bool injected_failure(void)
{
    int64_t left = atomic_load_explicit(&fail_after, memory_order_relaxed);
    while (left >= 0) {
        if (left == 0)
            return true;                    /* stays at 0: every later one fails too */
        if (atomic_compare_exchange_weak(&fail_after, &left, left - 1))
            break;
    }
    return false;
}

static header *header_of(void *p) { return (header *)((char *)p - HEADER_BYTES); }

void *plp_alloc(plp_tag tag, size_t n, size_t size)
{
    size_t want, total;
    void *base;

    if (guarded)
        atomic_fetch_add(&violations, 1);
    if (!plp_mul(n, size, &want) || !plp_add(want, HEADER_BYTES, &total) || injected_failure())
        return NULL;
    if (posix_memalign(&base, HEADER_BYTES, total))
        return NULL;
    *(header *)base = (header){ .n_bytes = want, .tag = tag };
    atomic_fetch_add(&bytes_by_tag[tag], want);
    return (char *)base + HEADER_BYTES;
}

void *plp_zalloc(plp_tag tag, size_t n, size_t size)
{
    void *p = plp_alloc(tag, n, size);
    if (p)
        memset(p, 0, n * size);
    return p;
}

void *plp_resize(plp_tag tag, void *p, size_t n, size_t size)
{
    void *q = plp_alloc(tag, n, size);
    if (q && p) {
        const size_t old = header_of(p)->n_bytes, now = n * size;
        memcpy(q, p, old < now ? old : now);
        plp_free(p);
    }
    return q;
}

void plp_free(void *p)
{
    if (!p)
        return;
    header *h = header_of(p);
    atomic_fetch_sub(&bytes_by_tag[h->tag], h->n_bytes);
    free(h);
}

uint64_t plp_mem_bytes(plp_tag tag)     { return atomic_load(&bytes_by_tag[tag]); }
void     plp_mem_guard(bool on)         { guarded = on; }
uint64_t plp_mem_violations(void)       { return atomic_load(&violations); }
void     plp_mem_fail_after(int64_t n)  { atomic_store(&fail_after, n); }
