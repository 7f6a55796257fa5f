/* tests/native/kv_source.h - a slab source that forgets what was released, fills what is new, and can refuse */
#ifndef KV_SOURCE_H
#define KV_SOURCE_H

#include "check.h"

#include "base/platform.h"
#include "kv/pool.h"

typedef struct source {
    size_t  mapped_bytes, page;
    long    n_maps;
    int64_t refuse_after;           /* as plp_mem_fail_after */
} source;

static inline void *source_map(void *context, size_t n)
{
    source *s = context;
    void *p;
    if (s->refuse_after == 0 || posix_memalign(&p, s->page, n))
        return NULL;
    s->refuse_after -= s->refuse_after > 0;
    memset(p, 0xa5, n);                         /* slabs are not promised to be zero */
    s->mapped_bytes += n;
    s->n_maps++;
    return p;
}
static inline void source_unmap(void *context, void *p, size_t n)
{
    ((source *)context)->mapped_bytes -= n;
    free(p);
}
static inline void source_release(void *context, void *p, size_t n)
{
    const source *s = context;
    CHECK((uintptr_t)p % s->page == 0 && n % s->page == 0 && n > 0, "release of %zu bytes at %p", n, p);
    memset(p, 0xdd, n);
}

#endif
