/*
 * base/platform.c - pages, files, clocks, threads: POSIX with the few places where Linux and macOS differ
 *
 * cores.c has the thread count; everything else that asks which OS this is stands here.
 */
#include "base/platform.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if defined __APPLE__
#include <sys/sysctl.h>
#endif

/* ---- pages ---- */

size_t plp_page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

void *plp_pages_map(size_t n_bytes)
{
    const size_t align = 2u << 20;
    size_t room;

    if (n_bytes < align) {
        void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return p == MAP_FAILED ? NULL : p;
    }
    if (!plp_add(n_bytes, align, &room))
        return NULL;
    char *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    char *start = (char *)(((uintptr_t)p + align - 1) & ~(uintptr_t)(align - 1));
    const size_t page = plp_page_bytes(), body = (n_bytes + page - 1) / page * page;
    if (start > p)
        munmap(p, (size_t)(start - p));
    if (start + body < p + room)
        munmap(start + body, (size_t)(p + room - (start + body)));
    return start;
}

void plp_pages_unmap(void *p, size_t n_bytes)
{
    if (p)
        munmap(p, n_bytes);
}

void plp_pages_release(void *p, size_t n_bytes)
{
#if defined __APPLE__
    madvise(p, n_bytes, MADV_FREE_REUSABLE);
#else
    madvise(p, n_bytes, MADV_DONTNEED);
#endif
}

void plp_pages_huge(void *p, size_t n_bytes)
{
#if defined MADV_HUGEPAGE
    madvise(p, n_bytes, MADV_HUGEPAGE);
#else
    (void)p; (void)n_bytes;
#endif
}

void plp_pages_small(void *p, size_t n_bytes)
{
#if defined MADV_NOHUGEPAGE
    madvise(p, n_bytes, MADV_NOHUGEPAGE);
#else
    (void)p; (void)n_bytes;
#endif
}

static const char *instead_of_a_file(mode_t mode)
{
    return S_ISDIR(mode) ? "a folder" : "a device or pipe";
}

/* ---- read-only maps ---- */

plp_status plp_map_open(plp_map *out, const char *path, plp_error *err)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);      /* a pipe must not hold us up */

    if (fd < 0)
        return plp_fail(err, PLP_E_IO, "%s: cannot be opened (%s)", path, strerror(errno));
    if (fstat(fd, &st)) {
        const int e = errno;
        close(fd);
        return plp_fail(err, PLP_E_IO, "%s: cannot be examined (%s)", path, strerror(e));
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return plp_fail(err, PLP_E_FILE, "%s: is %s, not a file", path, instead_of_a_file(st.st_mode));
    }
    if (st.st_size == 0) {
        close(fd);
        return plp_fail(err, PLP_E_FILE, "%s: is empty (0 bytes); fetch it again", path);
    }
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    const int e = errno;
    close(fd);
    if (p == MAP_FAILED)
        return plp_fail(err, PLP_E_NOMEM, "%s: cannot be mapped, %llu bytes (%s)", path,
                        (unsigned long long)st.st_size, strerror(e));
    *out = (plp_map){ .data = p, .n_bytes = (size_t)st.st_size };
    return PLP_OK;
}

void plp_map_close(plp_map *m)
{
    if (m->data)
        munmap((void *)m->data, m->n_bytes);
    *m = (plp_map){ 0 };
}

/* madvise and mlock want whole pages. */
static void page_range(const plp_map *m, size_t offset, size_t n_bytes, void **p, size_t *n)
{
    const size_t page = plp_page_bytes(), first = offset / page * page;
    *p = (void *)(m->data + first);
    *n = offset + n_bytes - first;
}

void plp_map_willneed(const plp_map *m, size_t offset, size_t n_bytes)
{
    void *p;
    size_t n;
    page_range(m, offset, n_bytes, &p, &n);
    madvise(p, n, MADV_WILLNEED);
}

plp_status plp_map_lock(const plp_map *m, plp_error *err)
{
    if (mlock(m->data, m->n_bytes))
        return plp_fail(err, PLP_E_NOMEM, "mlock: %zu bytes refused (%s); raise the limit "
                        "(ulimit -l) or leave mlock off", m->n_bytes, strerror(errno));
    return PLP_OK;
}

/* ---- atomic writing ---- */

struct plp_writer {
    int   fd;
    char *path, *temporary;
};

static plp_status write_all(int fd, const void *data, size_t n_bytes, const char *path, plp_error *err)
{
    const char *p = data;
    while (n_bytes) {
        const ssize_t n = write(fd, p, n_bytes < (1u << 30) ? n_bytes : (1u << 30));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return plp_fail(err, PLP_E_IO, "%s: writing failed (%s)", path, strerror(n ? errno : ENOSPC));
        p += n;
        n_bytes -= (size_t)n;
    }
    return PLP_OK;
}

static void writer_free(plp_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    plp_free(w->path);
    plp_free(w->temporary);
    plp_free(w);
}

plp_status plp_writer_open(plp_writer **out, const char *path, plp_error *err)
{
    const size_t n = strlen(path);
    struct stat st;
    if (!stat(path, &st) && !S_ISREG(st.st_mode))           /* the rename would put a file in its place */
        return plp_fail(err, PLP_E_IO, "%s: cannot be written (it is %s)", path, instead_of_a_file(st.st_mode));
    plp_writer *w = plp_zalloc(PLP_MEM_OTHER, 1, sizeof *w);
    if (!w)
        return plp_fail(err, PLP_E_NOMEM, "%s: no memory to write it", path);
    w->fd = -1;
    w->path = plp_alloc(PLP_MEM_OTHER, n + 1, 1);
    w->temporary = plp_alloc(PLP_MEM_OTHER, n + 48, 1);
    if (!w->path || !w->temporary) {
        writer_free(w);
        return plp_fail(err, PLP_E_NOMEM, "%s: no memory to write it", path);
    }
    memcpy(w->path, path, n + 1);
    /* The process and a random part: two writers of one path never meet in one temporary file. */
    snprintf(w->temporary, n + 48, "%s.tmp-%lld-%08x", path, (long long)getpid(), (unsigned)plp_random_u64());
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (w->fd < 0) {
        const int e = errno;
        writer_free(w);
        return plp_fail(err, PLP_E_IO, "%s: cannot be written (%s)", path, strerror(e));
    }
    *out = w;
    return PLP_OK;
}

plp_status plp_writer_put(plp_writer *w, const void *data, size_t n_bytes, plp_error *err)
{
    return write_all(w->fd, data, n_bytes, w->path, err);
}

/* The rename is durable only once its folder is. */
static void sync_folder(const char *path)
{
    char folder[4096];
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    if (n >= sizeof folder)
        return;
    memcpy(folder, path, n);
    folder[n] = 0;
    const int fd = open(n ? folder : ".", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

plp_status plp_writer_commit(plp_writer *w, plp_error *err)
{
    if (fsync(w->fd) || rename(w->temporary, w->path)) {
        const plp_status status = plp_fail(err, PLP_E_IO, "%s: writing failed (%s)", w->path, strerror(errno));
        plp_writer_abort(w);
        return status;
    }
    sync_folder(w->path);
    writer_free(w);
    return PLP_OK;
}

void plp_writer_abort(plp_writer *w)
{
    if (!w)
        return;
    unlink(w->temporary);
    writer_free(w);
}

/* ---- scratch file ---- */

struct plp_scratch_file { int fd; };

plp_status plp_scratch_open(plp_scratch_file **out, const char *dir, plp_error *err)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/plp-spill-XXXXXX", dir) >= (int)sizeof path)
        return plp_fail(err, PLP_E_ARG, "%s: the path is too long", dir);
    plp_scratch_file *f = plp_zalloc(PLP_MEM_OTHER, 1, sizeof *f);
    if (!f)
        return plp_fail(err, PLP_E_NOMEM, "spill file: no memory");
    f->fd = mkstemp(path);                              /* created with mode 0600 */
    if (f->fd < 0) {
        plp_free(f);
        return plp_fail(err, PLP_E_IO, "%s: no file can be made there (%s)", dir, strerror(errno));
    }
    fcntl(f->fd, F_SETFD, FD_CLOEXEC);
    unlink(path);
    *out = f;
    return PLP_OK;
}

plp_status plp_scratch_write(plp_scratch_file *f, uint64_t offset, const void *data, size_t n_bytes, plp_error *err)
{
    for (const char *p = data; n_bytes; ) {
        const ssize_t n = pwrite(f->fd, p, n_bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return plp_fail(err, PLP_E_IO, "spill file: writing failed (%s)", strerror(n ? errno : ENOSPC));
        p += n, offset += (uint64_t)n, n_bytes -= (size_t)n;
    }
    return PLP_OK;
}

plp_status plp_scratch_read(plp_scratch_file *f, uint64_t offset, void *data, size_t n_bytes, plp_error *err)
{
    for (char *p = data; n_bytes; ) {
        const ssize_t n = pread(f->fd, p, n_bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return plp_fail(err, PLP_E_IO, "spill file: reading failed (%s)", n ? strerror(errno) : "it ends early");
        p += n, offset += (uint64_t)n, n_bytes -= (size_t)n;
    }
    return PLP_OK;
}

void plp_scratch_close(plp_scratch_file *f)
{
    if (!f)
        return;
    close(f->fd);
    plp_free(f);
}

/* ---- clock, randomness, memory ---- */

uint64_t plp_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t plp_random_u64(void)
{
    uint64_t v = 0;
    const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    const bool ok = fd >= 0 && read(fd, &v, sizeof v) == (ssize_t)sizeof v;
    if (fd >= 0)
        close(fd);
    return ok ? v : plp_now_ns() * 0x9e3779b97f4a7c15u ^ (uint64_t)getpid();
}

#if !defined __APPLE__
static uint64_t number_in(const char *path)             /* UINT64_MAX: no such file, or "max" */
{
    char text[64];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return UINT64_MAX;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return UINT64_MAX;
    text[n] = 0;
    char *end;
    const unsigned long long v = strtoull(text, &end, 10);
    return end == text ? UINT64_MAX : v;
}
#endif

uint64_t plp_memory_bytes(void)
{
#if defined __APPLE__
    uint64_t v = 0;
    size_t n = sizeof v;
    return sysctlbyname("hw.memsize", &v, &n, NULL, 0) ? 0 : v;
#else
    const uint64_t physical = (uint64_t)sysconf(_SC_PHYS_PAGES) * plp_page_bytes();
    const uint64_t v2 = number_in("/sys/fs/cgroup/memory.max");
    const uint64_t v1 = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    const uint64_t limit = v2 < v1 ? v2 : v1;
    return limit < physical ? limit : physical;
#endif
}

int64_t plp_process_id(void) { return getpid(); }

/* ---- threads ---- */

struct plp_thread { pthread_t id; void (*fn)(void *); void *arg; };

static void *thread_main(void *p)
{
    plp_thread *t = p;
    t->fn(t->arg);
    return NULL;
}

plp_thread *plp_thread_start(void (*fn)(void *), void *arg)
{
    pthread_attr_t attr;
    plp_thread *t = plp_zalloc(PLP_MEM_OTHER, 1, sizeof *t);
    if (!t)
        return NULL;
    t->fn = fn;
    t->arg = arg;
    if (pthread_attr_init(&attr)) {
        plp_free(t);
        return NULL;
    }
    pthread_attr_setstacksize(&attr, 512u << 10);       /* musl's default of 128 KiB is little for kernels */
    const int failed = pthread_create(&t->id, &attr, thread_main, t);
    pthread_attr_destroy(&attr);
    if (failed) {
        plp_free(t);
        return NULL;
    }
    return t;
}

void plp_thread_join(plp_thread *t)
{
    if (!t)
        return;
    pthread_join(t->id, NULL);
    plp_free(t);
}

struct plp_mutex { pthread_mutex_t mutex; pthread_cond_t cond; };

plp_mutex *plp_mutex_open(void)
{
    plp_mutex *m = plp_zalloc(PLP_MEM_OTHER, 1, sizeof *m);
    if (!m)
        return NULL;
    if (pthread_mutex_init(&m->mutex, NULL)) {
        plp_free(m);
        return NULL;
    }
    if (pthread_cond_init(&m->cond, NULL)) {
        pthread_mutex_destroy(&m->mutex);
        plp_free(m);
        return NULL;
    }
    return m;
}

void plp_mutex_close(plp_mutex *m)
{
    if (!m)
        return;
    pthread_cond_destroy(&m->cond);
    pthread_mutex_destroy(&m->mutex);
    plp_free(m);
}

void plp_mutex_lock(plp_mutex *m)     { pthread_mutex_lock(&m->mutex); }
void plp_mutex_unlock(plp_mutex *m)   { pthread_mutex_unlock(&m->mutex); }
void plp_mutex_wait(plp_mutex *m)     { pthread_cond_wait(&m->cond, &m->mutex); }
void plp_mutex_wake_all(plp_mutex *m) { pthread_cond_broadcast(&m->cond); }
