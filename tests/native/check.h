/*
 * tests/native/check.h - what every check_*.c uses
 *
 *   int main(void) { RUN(some_case); RUN(another); return check_done(); }
 *
 * CHECK counts and prints a failure but goes on; guarded(n) ends at an unreadable page, so that a
 * read or write past the end dies at once. (Under qemu-x86_64 7.2 sound code dies there as well: its vfmadd231ss
 * and other scalar FMAs read 16 bytes of memory where the CPU reads 4.)
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static long check_passed, check_failed;
static inline int check_said(void) { return check_failed < 50; }

#define CHECK(cond, ...)                                                                       \
    do {                                                                                       \
        if (cond) check_passed++;                                                              \
        else { check_failed++;                                                                 \
               if (check_said()) { printf("%s:%d: %s: ", __FILE__, __LINE__, #cond);            \
                                   printf(__VA_ARGS__); printf("\n"); } }                       \
    } while (0)
#define RUN(fn) do { long f = check_failed; fn(); printf("%-40s %s\n", #fn, check_failed == f ? "ok" : "FAILED"); } while (0)

static inline int check_done(void)
{
    printf("%ld passed, %ld failed\n", check_passed, check_failed);
    return check_failed != 0;
}
#define CHECK_SKIP(why) do { printf("skipped: %s\n", why); return 77; } while (0)

/* n bytes whose end touches an unreadable page; aligned to 64 if n % 64 == 0. Free with unguard. */
static inline void *guarded(size_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (n + page - 1) / page * page;
    char *p = mmap(NULL, body + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + body, page, PROT_NONE)) { perror("guarded"); exit(2); }
    return p + body - n;
}
static inline void unguard(void *p, size_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (n + page - 1) / page * page;
    munmap((char *)p + n - body, body + page);
}

static uint64_t check_state = 0x9e3779b97f4a7c15u;
static inline uint32_t check_random(void)
{
    check_state ^= check_state << 13; check_state ^= check_state >> 7; check_state ^= check_state << 17;
    return (uint32_t)(check_state >> 21);
}
static inline float check_uniform(void) { return (float)(check_random() & 0xffffff) / 8388608.0f - 1.0f; }   /* [-1, 1) */
#endif
