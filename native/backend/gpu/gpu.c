/* backend/gpu/gpu.c - the GPU backend: memory, the list of commands, and the operations that are one kernel */
#include "backend/gpu/gpu.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static inline plp_gpu *gpu_of(plp_backend *b) { return (plp_gpu *)b; }

#define GPU_KERNEL(name, args) _Static_assert(sizeof(args) <= PLP_GPU_ARGS_BYTES, #args);
#include "backend/gpu/kernels/kernels.def"
#undef GPU_KERNEL

/* ---- the list ---- */

static void flush(plp_gpu *g)
{
    if (g->n)
        g->dev->driver->run(g->dev, g->list, g->n, g->staged);
    g->n = 0;
}

static void finish(plp_gpu *g)
{
    flush(g);
    if (g->failure.status >= 0)
        g->dev->driver->wait(g->dev, &g->failure);
}

/* Lock held. */
static void launch(plp_gpu *g, u32 kernel, u32 x, u32 y, u32 n_threads, const void *args, size_t args_bytes)
{
    plp_gpu_command *c = &g->list[g->n++];
    memset(c, 0, sizeof *c);
    c->kernel = kernel;
    c->n_threads = n_threads;
    c->groups[0] = x;
    c->groups[1] = y;
    memcpy(c->args, args, args_bytes);
    if (g->n >= g->limit)
        flush(g);
}

void plp_gpu_launch(plp_gpu *g, u32 kernel, u32 x, u32 y, u32 n_threads, const void *args, size_t args_bytes)
{
    if (x == 0 || y == 0)
        return;
    plp_mutex_lock(g->lock);
    launch(g, kernel, x, y, n_threads, args, args_bytes);
    plp_mutex_unlock(g->lock);
}

/* One thread an element. */
static u32 groups_of(uint64_t n) { return (u32)((n + PLP_GPU_THREADS - 1) / PLP_GPU_THREADS); }

/* Lock held. */
static void copy(plp_gpu *g, void *to, const void *from, size_t n_bytes)
{
    const copy_args a = { to, from, n_bytes / 4 };
    launch(g, K_copy_words, groups_of(a.n), 1, PLP_GPU_THREADS, &a, sizeof a);
}

/* ---- memory ---- */

/* Room for one more record first, so that what was allocated is never lost. */
static plp_status take(plp_gpu *g, size_t n_bytes, void **out, plp_error *err)
{
    plp_status s;
    if (g->n_buffers == g->cap_buffers) {
        const u32 cap = g->cap_buffers * 2 + 64;
        plp_gpu_memory *more = plp_resize(PLP_MEM_OTHER, g->buffers, cap, sizeof *more);
        if (!more)
            return plp_fail(err, PLP_E_NOMEM, "%s: no memory for a list of buffers", g->dev->driver->name);
        g->buffers = more;
        g->cap_buffers = cap;
    }
    if ((s = g->dev->driver->memory(g->dev, n_bytes ? n_bytes : 1, out, err)) < 0)
        return s;
    g->buffers[g->n_buffers++] = (plp_gpu_memory){ *out, n_bytes ? n_bytes : 1 };
    return PLP_OK;
}

static plp_status buffer(plp_backend *b, size_t n_bytes, void **out, plp_error *err)
{
    return take(gpu_of(b), n_bytes, out, err);
}

static bool is_native(int32_t type)
{
    switch (type) {
#define GPU_TYPE(T, integer) case PLP_TYPE_##T: return true;
#include "backend/gpu/kernels/types.def"
#undef GPU_TYPE
    }
    return false;
}

/* A type without kernels becomes F32, some rows at a time. */
static plp_status expand(plp_gpu *g, const plp_tensor *t, plp_weight *out, plp_error *err)
{
    enum { ROWS = 64 };
    const uint64_t k = t->dims[0], rows = t->n_bytes / t->row_bytes;
    size_t n_bytes;
    void *at;
    plp_status s;

    if (!plp_mul(rows, k, &n_bytes) || !plp_mul(n_bytes, sizeof(float), &n_bytes))
        return plp_fail(err, PLP_E_NOMEM, "tensor %s does not fit in memory as F32", t->name);
    if ((s = take(g, n_bytes, &at, err)) < 0)
        return s;
    float *part = plp_alloc(PLP_MEM_OTHER, ROWS * k, sizeof *part);
    if (!part)
        return plp_fail(err, PLP_E_NOMEM, "tensor %s: no memory to dequantise it", t->name);
    for (uint64_t r = 0; r < rows; r += ROWS) {
        const uint64_t n = rows - r < ROWS ? rows - r : ROWS;
        for (uint64_t i = 0; i < n; i++)
            plp_type_get(t->type)->dequantize((const char *)t->data + (r + i) * t->row_bytes, part + i * k, k);
        g->dev->driver->write(g->dev, (char *)at + r * k * sizeof *part, part, n * k * sizeof *part);
    }
    plp_free(part);
    out->data = at;
    out->row_bytes = k * sizeof(float);
    out->type = PLP_TYPE_F32;
    return PLP_OK;
}

static plp_status weight(plp_backend *b, const plp_tensor *t, plp_weight *out, plp_error *err)
{
    plp_gpu *g = gpu_of(b);
    plp_weight w = { .row_bytes = t->row_bytes, .type = t->type, .rows = t->n_dims > 1 ? (u32)t->dims[1] : 1, .k = (u32)t->dims[0] };
    plp_status s = PLP_OK;
    void *at;

    if (!is_native(t->type)) {
        s = expand(g, t, &w, err);
    } else if (!(w.data = g->dev->driver->weights(g->dev, t->data, t->n_bytes))) {
        if ((s = take(g, t->n_bytes, &at, err)) == PLP_OK) {
            g->dev->driver->write(g->dev, at, t->data, t->n_bytes);
            w.data = at;
        }
    }
    if (s == PLP_OK)
        *out = w;
    return s;
}

static void *slab_map(void *backend, size_t n_bytes)
{
    plp_gpu *g = backend;
    void *at = NULL;
    plp_mutex_lock(g->lock);
    const plp_status s = g->dev->driver->memory(g->dev, n_bytes, &at, NULL);
    plp_mutex_unlock(g->lock);
    return s == PLP_OK ? at : NULL;
}

/* Commands that read these blocks may still wait in the list. */
static void slab_unmap(void *backend, void *p, size_t n_bytes)
{
    plp_gpu *g = backend;
    plp_mutex_lock(g->lock);
    finish(g);
    g->dev->driver->release(g->dev, p, n_bytes);
    plp_mutex_unlock(g->lock);
}

/* ---- staging ---- */

static size_t rounded(size_t n_bytes) { return (n_bytes + 15) / 16 * 16; }

/* Lock held. NULL: no room beside what the batch's tables will take. */
static void *stage(plp_gpu *g, size_t n_bytes, void **address)
{
    const size_t at = g->staged, end = at + rounded(n_bytes);
    if (end + g->owed > g->stage_bytes)
        return NULL;
    g->staged = end;
    *address = g->stage_at + at;
    return g->stage + at;
}

void *plp_gpu_stage(plp_gpu *g, size_t n_bytes, void **address)
{
    plp_mutex_lock(g->lock);
    g->owed -= rounded(n_bytes) < g->owed ? rounded(n_bytes) : g->owed;
    void *to = stage(g, n_bytes, address);
    plp_mutex_unlock(g->lock);
    return to;
}

/* Without room, the place is one that all before has been done with. */
void *plp_gpu_staged(plp_gpu *g, const void *host, size_t n_bytes, u32 which)
{
    void *at = (char *)g->spare + which * g->spare_bytes, *to;
    plp_mutex_lock(g->lock);
    if ((to = stage(g, n_bytes, &at))) {
        memcpy(to, host, n_bytes);
    } else {
        finish(g);
        g->dev->driver->write(g->dev, at, host, n_bytes < g->spare_bytes ? n_bytes : g->spare_bytes);
    }
    plp_mutex_unlock(g->lock);
    return at;
}

/* Other threads restore and copy blocks while the leader's batch is on its way. Their commands follow in the list what
 * was there before, and name no block that the batch writes. A list that they make run early reads nothing of what
 * the leader is still staging. */
static void upload(plp_backend *b, void *to, const void *host, size_t n_bytes)
{
    plp_gpu *g = gpu_of(b);
    void *at, *room;

    plp_mutex_lock(g->lock);
    if (n_bytes && n_bytes % 4 == 0 && (room = stage(g, n_bytes, &at))) {
        memcpy(room, host, n_bytes);
        copy(g, to, at, n_bytes);
    } else {
        finish(g);
        g->dev->driver->write(g->dev, to, host, n_bytes);
    }
    plp_mutex_unlock(g->lock);
}

/* After a failure the host gets NaN, which the engine refuses to sample from. */
static void download(plp_backend *b, void *host, const void *from, size_t n_bytes)
{
    plp_gpu *g = gpu_of(b);
    plp_mutex_lock(g->lock);
    finish(g);
    if (g->failure.status < 0)
        memset(host, 0xff, n_bytes);
    else
        g->dev->driver->read(g->dev, host, from, n_bytes);
    plp_mutex_unlock(g->lock);
}

static void copy_block(plp_backend *b, void *to, const void *from, size_t n_bytes)
{
    plp_mutex_lock(gpu_of(b)->lock);
    copy(gpu_of(b), to, from, n_bytes);
    plp_mutex_unlock(gpu_of(b)->lock);
}

/* ---- plan and prepare ---- */

static plp_status plan(plp_backend *b, const plp_plan *p, plp_error *err)
{
    plp_gpu *g = gpu_of(b);
    const size_t n = (size_t)p->max_tokens * ((p->max_k + 31) / 32 * 32);
    plp_status s;

    if (p->block_len < PLP_GPU_LEAST_BLOCK)
        return plp_fail(err, PLP_E_UNSUPPORTED, "device \"%s\": KV blocks of %u tokens; it needs %u or more", g->dev->driver->name,
                        p->block_len, PLP_GPU_LEAST_BLOCK);
    if (p->head_dim > PLP_GPU_MAX_HEAD)
        return plp_fail(err, PLP_E_UNSUPPORTED, "heads of %u dimensions; the %s backend runs up to %u, \"cpu\" more", p->head_dim,
                        g->base.ops->name, PLP_GPU_MAX_HEAD);
    g->plan = *p;
    g->spare_bytes = p->max_tokens * sizeof(i32);
    if ((s = buffer(b, n, &g->packed, err)) < 0 || (s = buffer(b, n / 32 * sizeof(float), &g->scales, err)) < 0 ||
        (s = buffer(b, n / 32 * sizeof(float), &g->sums, err)) < 0)
        return s;
    return buffer(b, 2 * g->spare_bytes, &g->spare, err);
}

static plp_status grow(plp_gpu *g, const plp_batch *batch, plp_error *err)
{
    const size_t parts = plp_gpu_part_bytes(&g->plan, batch);
    /* Tables, and besides them what operations stage: ids, rows of logits, cos and sin. */
    const size_t stage = plp_gpu_table_bytes(batch) + 16384 + (size_t)batch->n_tok * (2 * g->plan.head_dim + 4) * sizeof(float);
    plp_status s;

    /* Half as much again, so that a growing context asks seldom. */
    if (parts > g->parts_bytes) {
        void *more;
        if ((s = g->dev->driver->memory(g->dev, parts + parts / 2, &more, err)) < 0)
            return s;
        if (g->parts)
            g->dev->driver->release(g->dev, g->parts, g->parts_bytes);
        g->parts = more;
        g->parts_bytes = parts + parts / 2;
    }
    if (stage > g->stage_bytes) {
        void *host, *at;
        g->stage_bytes = 0;
        if ((s = g->dev->driver->staging(g->dev, stage + stage / 2, &host, &at, err)) < 0)
            return s;
        g->stage = host;
        g->stage_at = at;
        g->stage_bytes = stage + stage / 2;
    }
    return PLP_OK;
}

static plp_status prepare(plp_backend *b, const plp_batch *batch, plp_error *err)
{
    plp_gpu *g = gpu_of(b);
    plp_status s;

    plp_mutex_lock(g->lock);
    finish(g);
    if (g->failure.status < 0) {
        if (err)
            *err = g->failure;
        s = g->failure.status;
    } else {
        s = grow(g, batch, err);
    }
    g->staged = 0;
    g->owed = s == PLP_OK ? plp_gpu_table_bytes(batch) : 0;
    g->have_rows = false;
    memset(g->tables, 0, sizeof g->tables);
    /* Nobody waits for a batch without results: let it start early. */
    g->limit = batch->n_out ? PLP_GPU_MAX_COMMANDS : 64;
    plp_mutex_unlock(g->lock);
    return s;
}

static void describe(const plp_backend *b, char *tier, size_t tier_bytes, uint32_t *n_threads)
{
    snprintf(tier, tier_bytes, "%s", b->ops->name);
    *n_threads = 1;
}

/* ---- operations ---- */

static void embed(plp_backend *b, const plp_weight *table, const int32_t *ids, uint32_t n, float factor, float *y)
{
    u32 kernel = 0;
    switch (table->type) {
#define GPU_TYPE(T, integer) case PLP_TYPE_##T: kernel = K_embed_##T; break;
#include "backend/gpu/kernels/types.def"
#undef GPU_TYPE
    }
    PLP_GPU_LAUNCH(gpu_of(b), kernel, n, 1, PLP_GPU_THREADS, (embed_args){ .table = (u8 *)table->data,
                   .ids = plp_gpu_staged(gpu_of(b), ids, n * sizeof *ids, 0), .y = y, .row_bytes = table->row_bytes, .k = table->k, .scale = factor });
}

static void rmsnorm(plp_backend *b, float *y, const float *x, size_t ld, const float *w, uint32_t n_rows, uint32_t n, float eps)
{
    PLP_GPU_LAUNCH(gpu_of(b), K_rmsnorm, n_rows, 1, PLP_GPU_THREADS, (norm_args){ .y = y, .x = x, .w = w, .ld = ld, .n = n, .eps = eps });
}

static void layernorm(plp_backend *b, float *y, const float *x, size_t ld, const float *w, const float *bias,
                      uint32_t n_rows, uint32_t n, float eps)
{
    PLP_GPU_LAUNCH(gpu_of(b), K_layernorm, n_rows, 1, PLP_GPU_THREADS,
                   (norm_args){ .y = y, .x = x, .w = w, .bias = bias, .ld = ld, .n = n, .eps = eps });
}

enum { MATVEC_TOKENS = 8, MATVEC_ROWS = 16, MATMUL_ROWS = 64, MATMUL_TOKENS = 32, FLOAT_ROWS = 8, FLOAT_TOKENS = 8 };

static u32 parts_of(u32 n, u32 part) { return (n + part - 1) / part; }

static void product(plp_gpu *g, const plp_product *p, const float *x, size_t ldx, u32 n_tok)
{
    const plp_weight *w = p->w;
    const linear_args a = { .w = (u8 *)w->data, .q = g->packed, .scale = g->scales, .sum = g->sums, .x = x, .bias = p->bias, .y = p->y,
                            .row_bytes = w->row_bytes, .ldx = ldx, .ldy = p->ldy, .rows = w->rows, .k = w->k, .n = n_tok, .add = p->add };
#define GPU_INTEGER_0(T)                                                                                              \
    PLP_GPU_LAUNCH(g, K_matvec_##T, parts_of(w->rows, FLOAT_ROWS), parts_of(n_tok, FLOAT_TOKENS), PLP_GPU_THREADS, a);
#define GPU_INTEGER_1(T)                                                                                              \
    if (n_tok <= MATVEC_TOKENS)                                                                                       \
        PLP_GPU_LAUNCH(g, K_matvec_##T, parts_of(w->rows, MATVEC_ROWS), 1, PLP_GPU_THREADS, a);                       \
    else                                                                                                              \
        PLP_GPU_LAUNCH(g, K_matmul_##T, parts_of(w->rows, MATMUL_ROWS), parts_of(n_tok, MATMUL_TOKENS), PLP_GPU_THREADS, a);
    switch (w->type) {
#define GPU_TYPE(T, integer) case PLP_TYPE_##T: GPU_INTEGER_##integer(T) break;
#include "backend/gpu/kernels/types.def"
#undef GPU_TYPE
    }
#undef GPU_INTEGER_0
#undef GPU_INTEGER_1
}

static void linear(plp_backend *b, const plp_product *p, uint32_t n, const float *x, size_t ldx, uint32_t n_tok)
{
    plp_gpu *g = gpu_of(b);
    bool packed = false;

    for (u32 i = 0; i < n; i++) {
        if (!packed && plp_type_get(p[i].w->type)->form != PLP_FORM_FLT) {
            PLP_GPU_LAUNCH(g, K_pack, n_tok, 1, PLP_GPU_THREADS, (pack_args){ .x = x, .q = g->packed, .scale = g->scales, .sum = g->sums,
                           .ld = ldx, .k = p[i].w->k });
            packed = true;
        }
        product(g, &p[i], x, ldx, n_tok);
    }
}

static void rope(plp_backend *b, float *x, size_t ld, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot,
                 const float *cs, int kind, uint32_t n_tok)
{
    PLP_GPU_LAUNCH(gpu_of(b), K_rope, groups_of((uint64_t)n_heads * (n_rot / 2)), n_tok, PLP_GPU_THREADS,
                   (rope_args){ .x = x, .cs = cs, .ld = ld, .n_heads = n_heads, .head_dim = head_dim, .n_rot = n_rot, .neox = kind });
}

static void glu(plp_backend *b, float *y, const float *gate, const float *up, size_t ld, uint32_t n_tok, uint32_t n, int act)
{
    PLP_GPU_LAUNCH(gpu_of(b), K_glu, groups_of(n), n_tok, PLP_GPU_THREADS,
                   (glu_args){ .y = y, .gate = gate, .up = up, .ld = ld, .n = n, .act = (u32)act });
}

static void vector(plp_backend *b, u32 kernel, float *y, const float *x, float a, size_t n)
{
    PLP_GPU_LAUNCH(gpu_of(b), kernel, groups_of(n), 1, PLP_GPU_THREADS, (vector_args){ .y = y, .x = x, .n = n, .a = a });
}

static void add(plp_backend *b, float *y, const float *x, size_t n)      { vector(b, K_add, y, x, 0, n); }
static void scale(plp_backend *b, float *y, float a, size_t n)           { vector(b, K_scale, y, NULL, a, n); }
static void softcap(plp_backend *b, float *y, float cap, size_t n)       { vector(b, K_softcap, y, NULL, cap, n); }

static void gather(plp_backend *b, float *y, const float *x, size_t width, const int32_t *rows, uint32_t n)
{
    PLP_GPU_LAUNCH(gpu_of(b), K_gather, groups_of(width), n, PLP_GPU_THREADS,
                   (gather_args){ .y = y, .x = x, .rows = plp_gpu_staged(gpu_of(b), rows, n * sizeof *rows, 0), .width = width });
}

static void scatter_add(plp_backend *b, float *y, const float *x, size_t width, const int32_t *rows, const float *factors, uint32_t n)
{
    PLP_GPU_LAUNCH(gpu_of(b), K_scatter_add, groups_of(width), n, PLP_GPU_THREADS,
                   (gather_args){ .y = y, .x = x, .rows = plp_gpu_staged(gpu_of(b), rows, n * sizeof *rows, 0),
                                  .scale = plp_gpu_staged(gpu_of(b), factors, n * sizeof *factors, 1), .width = width });
}

/* ---- open and close ---- */

static void gpu_close(plp_backend *b)
{
    plp_gpu *g = gpu_of(b);
    if (g->lock && g->list)
        finish(g);
    for (u32 i = 0; i < g->n_buffers; i++)
        g->dev->driver->release(g->dev, g->buffers[i].address, g->buffers[i].n_bytes);
    if (g->parts)
        g->dev->driver->release(g->dev, g->parts, g->parts_bytes);
    g->dev->driver->close(g->dev);
    plp_mutex_close(g->lock);
    plp_free(g->list);
    plp_free(g->buffers);
    plp_free((void *)g->base.ops);
    plp_free(g);
}

static const plp_ops gpu_ops = {
    .close = gpu_close, .plan = plan, .prepare = prepare, .describe = describe,
    .buffer = buffer, .weight = weight, .upload = upload, .download = download, .slab_map = slab_map, .slab_unmap = slab_unmap,
    .embed = embed, .rmsnorm = rmsnorm, .layernorm = layernorm, .linear = linear, .rope = rope,
    .kv_store = plp_gpu_kv_store, .attention = plp_gpu_attention, .glu = glu, .add = add, .scale = scale,
    .softcap = softcap, .gather = gather, .scatter_add = scatter_add, .copy_block = copy_block,
};

plp_status plp_gpu_backend_open(plp_backend **out, plp_gpu_device *d, plp_error *err)
{
    plp_gpu *g = plp_zalloc(PLP_MEM_OTHER, 1, sizeof *g);
    plp_ops *own = plp_alloc(PLP_MEM_OTHER, 1, sizeof *own);

    if (!g || !own) {
        plp_free(g);
        plp_free(own);
        d->driver->close(d);
        return plp_fail(err, PLP_E_NOMEM, "GPU backend: no memory");
    }
    *own = gpu_ops;
    own->name = d->driver->name;
    g->base.ops = own;
    g->dev = d;
    g->limit = PLP_GPU_MAX_COMMANDS;
    g->lock = plp_mutex_open();
    g->list = plp_zalloc(PLP_MEM_OTHER, PLP_GPU_MAX_COMMANDS, sizeof *g->list);
    if (!g->lock || !g->list) {
        gpu_close(&g->base);
        return plp_fail(err, PLP_E_NOMEM, "GPU backend: no memory");
    }
    *out = &g->base;
    return PLP_OK;
}
