/*
 * base/platform.h - the operating system, and the only place that tests which one it is
 *
 * Pages, read-only file maps, threads, clocks, randomness, physical memory, which CPUs this
 * process may use. POSIX (Linux, Android, macOS); no glibc-only calls.
 */
#ifndef PLP_BASE_PLATFORM_H
#define PLP_BASE_PLATFORM_H

#include "base/status.h"

size_t plp_page_bytes(void);
/* Anonymous zero pages, committed on first touch; aligned to 2 MiB where n_bytes is at least that. */
void  *plp_pages_map(size_t n_bytes);
void   plp_pages_unmap(void *p, size_t n_bytes);
void   plp_pages_release(void *p, size_t n_bytes);      /* contents are lost, address stays */
void   plp_pages_huge(void *p, size_t n_bytes);         /* a wish for huge pages; may do nothing */
void   plp_pages_small(void *p, size_t n_bytes);        /* a wish for none: they would commit neighbours too */

typedef struct plp_map { const uint8_t *data; size_t n_bytes; } plp_map;

/* A whole regular file, read-only and shared. Errors say what the path is (a folder, missing, empty,
 * not permitted). An empty file is PLP_E_FILE. */
plp_status plp_map_open(plp_map *out, const char *path, plp_error *err);
void       plp_map_close(plp_map *m);
void       plp_map_willneed(const plp_map *m, size_t offset, size_t n_bytes);
plp_status plp_map_lock(const plp_map *m, plp_error *err);

/* Write a file so that a reader sees the old one or the whole new one: `path`.tmp-<pid>, fsync, rename. What
 * is there and no regular file (a device, a folder) is refused. */
typedef struct plp_writer plp_writer;
plp_status plp_writer_open(plp_writer **out, const char *path, plp_error *err);
plp_status plp_writer_put(plp_writer *w, const void *data, size_t n_bytes, plp_error *err);
plp_status plp_writer_commit(plp_writer *w, plp_error *err);     /* closes w, also on failure */
void       plp_writer_abort(plp_writer *w);                      /* NULL is fine */

/* An unlinked scratch file in a folder, for spilled blocks. */
typedef struct plp_scratch_file plp_scratch_file;
plp_status plp_scratch_open(plp_scratch_file **out, const char *dir, plp_error *err);
plp_status plp_scratch_write(plp_scratch_file *f, uint64_t offset, const void *data, size_t n_bytes, plp_error *err);
plp_status plp_scratch_read(plp_scratch_file *f, uint64_t offset, void *data, size_t n_bytes, plp_error *err);
void       plp_scratch_close(plp_scratch_file *f);

uint64_t plp_now_ns(void);                              /* monotonic */
uint64_t plp_random_u64(void);                          /* from the system, for seeds */
uint64_t plp_memory_bytes(void);                        /* physical, or the cgroup's limit if less */
int64_t  plp_process_id(void);                          /* changes in a forked child */
/* Default thread count: performance cores, within affinity and cgroup quota; the reason in words. */
uint32_t plp_cpu_count(char *reason, size_t reason_bytes);

typedef struct plp_thread plp_thread;
plp_thread *plp_thread_start(void (*fn)(void *), void *arg);     /* 512 KiB stack; NULL on failure */
void        plp_thread_join(plp_thread *t);

typedef struct plp_mutex plp_mutex;
plp_mutex *plp_mutex_open(void);
void       plp_mutex_close(plp_mutex *m);
void       plp_mutex_lock(plp_mutex *m);
void       plp_mutex_unlock(plp_mutex *m);
void       plp_mutex_wait(plp_mutex *m);                /* releases, sleeps until woken, locks again */
void       plp_mutex_wake_all(plp_mutex *m);            /* call with the mutex held */

#endif
