/* backend/cpu/cpu.c - the CPU backend: open and close, memory, and the operations that are one loop over rows */
#include "backend/cpu/cpu.h"
#include "base/mem.h"
#include "base/platform.h"
#include "kernels/ref/math.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static inline plp_cpu *cpu_of(plp_backend *b) { return (plp_cpu *)b; }

/* ---- memory ---- */

/* A buffer is preceded by one line that links it to the one handed out before. */
static plp_status buffer(plp_backend *b, size_t n_bytes, void **out, plp_error *err)
{
    plp_cpu *c = cpu_of(b);
    char *p = plp_zalloc(PLP_MEM_SCRATCH, 1, n_bytes + 64);
    if (!p)
        return plp_fail(err, PLP_E_NOMEM, "work space: %zu bytes refused", n_bytes);
    *(void **)p = c->buffers;
    c->buffers = p;
    *out = p + 64;
    return PLP_OK;
}

static plp_status weight(plp_backend *b, const plp_tensor *t, plp_weight *out, plp_error *err)
{
    *out = (plp_weight){ .data = t->data, .row_bytes = t->row_bytes, .type = t->type,
                         .rows = t->n_dims > 1 ? (uint32_t)t->dims[1] : 1, .k = (uint32_t)t->dims[0] };
    return PLP_OK;
}

static void upload(plp_backend *b, void *to, const void *host, size_t n_bytes)     { memcpy(to, host, n_bytes); }
static void download(plp_backend *b, void *host, const void *from, size_t n_bytes) { memcpy(host, from, n_bytes); }
static void copy_block(plp_backend *b, void *to, const void *from, size_t n_bytes) { memcpy(to, from, n_bytes); }

static plp_status plan(plp_backend *b, const plp_plan *p, plp_error *err)
{
    plp_cpu *c = cpu_of(b);
    const size_t linear = c->k->linear_work(p->max_tokens, p->max_k), attention = plp_cpu_attention_work(c->k, p);
    const size_t packed = c->k->x_bytes(p->max_tokens, p->max_k);

    c->plan = *p;
    c->work_bytes = ((linear > attention ? linear : attention) + 4095) / 4096 * 4096;
    c->packed = plp_alloc(PLP_MEM_SCRATCH, packed, 1);
    c->work = plp_alloc(PLP_MEM_SCRATCH, plp_team_size(c->team), c->work_bytes);
    if (!c->packed || !c->work)
        return plp_fail(err, PLP_E_NOMEM, "work space: %zu bytes refused",
                        packed + plp_team_size(c->team) * c->work_bytes);
    return PLP_OK;
}

static plp_status prepare(plp_backend *b, const plp_batch *batch, plp_error *err)
{
    plp_cpu *c = cpu_of(b);
    const size_t need = plp_cpu_attention_parts(&c->plan, batch);

    plp_team_prepare(c->team);
    if (need <= c->parts_bytes)
        return PLP_OK;
    /* Half as much again, so that a growing context asks seldom. */
    float *parts = plp_alloc(PLP_MEM_SCRATCH, need + need / 2, 1);
    if (!parts)
        return plp_fail(err, PLP_E_NOMEM, "attention: %zu bytes of work space refused", need);
    plp_free(c->parts);
    c->parts = parts;
    c->parts_bytes = need + need / 2;
    return PLP_OK;
}

static void describe(const plp_backend *b, char *tier, size_t tier_bytes, uint32_t *n_threads)
{
    const plp_cpu *c = (const plp_cpu *)b;
    snprintf(tier, tier_bytes, "%s", c->k->tier);
    *n_threads = plp_team_size(c->team);
}

/* ---- one loop over rows ---- */

typedef struct rows_job {
    plp_cpu *c;
    void   (*row)(const struct rows_job *j, uint32_t i);
    uint32_t n_rows;
    float   *y;
    const float *x, *w, *bias;
    size_t   ld;
    uint32_t n, heads, n_rot;
    int      kind;
    float    a;
    const plp_weight *table;
    const int32_t *ids;
} rows_job;

enum { ROWS_A_PIECE = 4 };

static void rows_piece(void *arg, uint32_t id, uint32_t n_threads)
{
    const rows_job *j = arg;
    for (uint32_t piece; (piece = plp_team_next(j->c->team)) * ROWS_A_PIECE < j->n_rows; )
        for (uint32_t i = piece * ROWS_A_PIECE; i < j->n_rows && i < (piece + 1) * ROWS_A_PIECE; i++)
            j->row(j, i);
}

/* Rows are independent: who does which changes nothing. */
static void each_row(const rows_job *j)
{
    if ((uint64_t)j->n_rows * j->n < PLP_ALONE_ELEMENTS)
        for (uint32_t i = 0; i < j->n_rows; i++)
            j->row(j, i);
    else
        plp_team_run(j->c->team, rows_piece, (void *)j);
}

static void embed_row(const rows_job *j, uint32_t i)
{
    const plp_weight *t = j->table;
    float *y = j->y + (size_t)i * t->k;
    plp_type_get(t->type)->dequantize((const char *)t->data + (size_t)j->ids[i] * t->row_bytes, y, t->k);
    if (j->a != 1.0f)
        j->c->k->scale(y, j->a, t->k);
}

static void embed(plp_backend *b, const plp_weight *table, const int32_t *ids, uint32_t n, float scale, float *y)
{
    each_row(&(rows_job){ .c = cpu_of(b), .row = embed_row, .n_rows = n, .n = table->k, .table = table,
                          .ids = ids, .a = scale, .y = y });
}

static void rmsnorm_row(const rows_job *j, uint32_t i)
{
    j->c->k->rmsnorm(j->y + i * j->ld, j->x + i * j->ld, j->w, j->n, j->a);
}

static void rmsnorm(plp_backend *b, float *y, const float *x, size_t ld, const float *w, uint32_t n_rows, uint32_t n, float eps)
{
    each_row(&(rows_job){ .c = cpu_of(b), .row = rmsnorm_row, .n_rows = n_rows, .n = n, .y = y, .x = x,
                          .ld = ld, .w = w, .a = eps });
}

static void layernorm_row(const rows_job *j, uint32_t i)
{
    j->c->k->layernorm(j->y + i * j->ld, j->x + i * j->ld, j->w, j->bias, j->n, j->a);
}

static void layernorm(plp_backend *b, float *y, const float *x, size_t ld, const float *w, const float *bias,
                      uint32_t n_rows, uint32_t n, float eps)
{
    each_row(&(rows_job){ .c = cpu_of(b), .row = layernorm_row, .n_rows = n_rows, .n = n, .y = y, .x = x,
                          .ld = ld, .w = w, .bias = bias, .a = eps });
}

static void rope_row(const rows_job *j, uint32_t i)
{
    j->c->k->rope(j->y + i * j->ld, j->heads, j->n / j->heads, j->n_rot, j->x + (size_t)i * j->n_rot, j->kind);
}

static void rope(plp_backend *b, float *x, size_t ld, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot,
                 const float *cs, int kind, uint32_t n_tok)
{
    each_row(&(rows_job){ .c = cpu_of(b), .row = rope_row, .n_rows = n_tok, .n = n_heads * head_dim, .heads = n_heads,
                          .n_rot = n_rot, .y = x, .x = cs, .ld = ld, .kind = kind });
}

static void glu_row(const rows_job *j, uint32_t i)
{
    if (j->kind == PLP_ACT_SILU_LIMITED)
        j->c->k->glu_limited(j->y + i * j->ld, j->x + i * j->ld, j->w + i * j->ld, j->n);
    else
        j->c->k->glu(j->y + i * j->ld, j->x + i * j->ld, j->w ? j->w + i * j->ld : NULL, j->n, j->kind);
}

static void glu(plp_backend *b, float *y, const float *gate, const float *up, size_t ld, uint32_t n_tok, uint32_t n, int act)
{
    each_row(&(rows_job){ .c = cpu_of(b), .row = glu_row, .n_rows = n_tok, .n = n, .y = y, .x = gate, .w = up,
                          .ld = ld, .kind = act });
}

static void add(plp_backend *b, float *y, const float *x, size_t n)  { cpu_of(b)->k->add(y, x, (uint32_t)n); }
static void scale(plp_backend *b, float *y, float a, size_t n)       { cpu_of(b)->k->scale(y, a, (uint32_t)n); }
static void softcap(plp_backend *b, float *y, float cap, size_t n)  { cpu_of(b)->k->softcap(y, cap, (uint32_t)n); }

static void gather(plp_backend *b, float *y, const float *x, size_t width, const int32_t *rows, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        memcpy(y + i * width, x + (size_t)rows[i] * width, width * sizeof *y);
}

static void scatter_add_row(const rows_job *j, uint32_t i)
{
    float *y = j->y + (size_t)j->ids[i] * j->n;
    const float *x = j->x + (size_t)i * j->n, a = j->w[i];
    for (uint32_t d = 0; d < j->n; d++)
        y[d] += a * x[d];
}

static void scatter_add(plp_backend *b, float *y, const float *x, size_t width, const int32_t *rows, const float *scale, uint32_t n)
{
    each_row(&(rows_job){ .c = cpu_of(b), .row = scatter_add_row, .n_rows = n, .n = (uint32_t)width, .y = y, .x = x,
                          .ids = rows, .w = scale });
}

static void weigh_row(const rows_job *j, uint32_t i)
{
    for (uint32_t d = 0; d < j->n; d++)
        j->y[(size_t)i * j->n + d] = j->x[(size_t)i * j->n + d] * j->w[d];
}

static void weigh(plp_backend *b, float *y, const float *x, const float *w, uint32_t n_rows, uint32_t n)
{
    each_row(&(rows_job){ .c = cpu_of(b), .row = weigh_row, .n_rows = n_rows, .n = n, .y = y, .x = x, .w = w });
}

static void match_size_row(const rows_job *j, uint32_t i)
{
    float *y = j->y + (size_t)i * j->n;
    const float *like = j->x + (size_t)i * j->n, is = plp_dot16(y, y, j->n) / (float)j->n;
    j->c->k->scale(y, sqrtf(plp_dot16(like, like, j->n) / (float)j->n) / sqrtf(is > 1e-5f ? is : 1e-5f), j->n);
}

static void match_size(plp_backend *b, float *y, const float *like, uint32_t n_rows, uint32_t n)
{
    each_row(&(rows_job){ .c = cpu_of(b), .row = match_size_row, .n_rows = n_rows, .n = n, .y = y, .x = like });
}

static void keep_largest_row(const rows_job *j, uint32_t i)
{
    float *y = j->y + (size_t)i * j->n;
    const float mean = plp_sum16(y, j->n) / (float)j->n;
    for (uint32_t d = 0; d < j->n; d++)
        y[d] -= mean;
    const float cut = j->a * sqrtf(plp_dot16(y, y, j->n) / (float)j->n);
    for (uint32_t d = 0; d < j->n; d++)
        y[d] = y[d] > cut ? y[d] - cut : 0;
}

static void keep_largest(plp_backend *b, float *y, uint32_t n_rows, uint32_t n, float spread)
{
    each_row(&(rows_job){ .c = cpu_of(b), .row = keep_largest_row, .n_rows = n_rows, .n = n, .y = y, .a = spread });
}

/* ---- open and close ---- */

static void cpu_close(plp_backend *b)
{
    plp_cpu *c = cpu_of(b);
    plp_team_close(c->team);
    for (void *p = c->buffers, *before; p; p = before) {
        before = *(void **)p;
        plp_free(p);
    }
    plp_free(c->packed);
    plp_free(c->work);
    plp_free(c->parts);
    plp_free(c);
}

static const plp_ops ops = {
    .name = "cpu", .close = cpu_close, .plan = plan, .prepare = prepare, .describe = describe,
    .buffer = buffer, .weight = weight, .upload = upload, .download = download,
    .embed = embed, .rmsnorm = rmsnorm, .layernorm = layernorm, .linear = plp_cpu_linear, .rope = rope,
    .kv_store = plp_cpu_kv_store, .attention = plp_cpu_attention, .glu = glu, .add = add, .scale = scale,
    .softcap = softcap, .gather = gather, .scatter_add = scatter_add, .short_conv = plp_cpu_short_conv, .delta_rule = plp_cpu_delta_rule,
    .weigh = weigh, .match_size = match_size, .keep_largest = keep_largest, .copy_block = copy_block,
};

plp_status plp_cpu_backend_open(plp_backend **out, uint32_t n_threads, plp_error *err)
{
    char reason[160];
    const plp_kernels *k;
    plp_status status = plp_kernels_get(&k, err);
    if (status < 0)
        return status;
    plp_cpu *c = plp_zalloc(PLP_MEM_OTHER, 1, sizeof *c);
    if (!c)
        return plp_fail(err, PLP_E_NOMEM, "CPU backend: no memory");
    c->base.ops = &ops;
    c->k = k;
    status = plp_team_open(&c->team, n_threads ? n_threads : plp_cpu_count(reason, sizeof reason), err);
    if (status < 0) {
        cpu_close(&c->base);
        return status;
    }
    *out = &c->base;
    return PLP_OK;
}
