/*
 * base/mem.h - heap memory, counted by tag, and the guard that keeps it out of the token loop
 *
 * Every heap byte of the library comes from here. A tag says what it is for; plp_mem_bytes(tag)
 * is what /mem and the ledger show. Between plp_mem_guard(true) and (false) on a thread an
 * allocation is counted as a violation (plp_mem_violations), which tests require to be zero.
 * Tests can also make the n-th allocation from now fail (plp_mem_fail_after).
 *
 * Owner    the caller frees with plp_free (NULL is fine)
 * Threads  any
 * Errors   NULL when the system refuses, when n * size overflows, or by injection
 */
#ifndef PLP_BASE_MEM_H
#define PLP_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum plp_tag { PLP_MEM_FILE, PLP_MEM_TEXT, PLP_MEM_KV, PLP_MEM_MODEL, PLP_MEM_SCRATCH,
                       PLP_MEM_SESSION, PLP_MEM_OTHER, PLP_N_TAGS } plp_tag;

void *plp_alloc(plp_tag tag, size_t n, size_t size);              /* uninitialised, 64-byte aligned */
void *plp_zalloc(plp_tag tag, size_t n, size_t size);             /* zeroed, 64-byte aligned */
void *plp_resize(plp_tag tag, void *p, size_t n, size_t size);    /* keeps the old block on failure */
void  plp_free(void *p);

uint64_t plp_mem_bytes(plp_tag tag);
void     plp_mem_guard(bool on);
uint64_t plp_mem_violations(void);
void     plp_mem_fail_after(int64_t n);                           /* -1: never; counts down per allocation */

/* Checked arithmetic for sizes that come from outside: false on overflow. */
static inline bool plp_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool plp_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

#endif
