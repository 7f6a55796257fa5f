/*
 * bench/kernels/products.c - weight matrices times activations: every tensor type, from one token to many
 *
 * One call is one matrix, activations packed anew, rows handed to the threads in pieces, as the CPU backend
 * does it. Matrices follow one another through the cold buffer, so weights always come from memory, as they
 * do in a model.
 */
#include "bench.h"

#include <stdio.h>

enum { MAX_TOKENS = 512, PACK_PIECE = 16, PIECE_FEW = 64, PIECE_MANY = 96 };

typedef struct product {
    const bench       *b;
    const plp_kernels *k;
    plp_rows           rows;
    const char        *weights;
    size_t             n_matrices, next;
    uint32_t           n, piece, n_rows, k_len;
    bool               integer;
    const float       *x;
    float             *y;
    char              *packed, *work;
    size_t             work_bytes;
} product;

static void pack_pieces(void *arg, uint32_t id, uint32_t n_threads)
{
    const product *p = arg;
    for (uint32_t t; (t = plp_team_next(p->b->team) * PACK_PIECE) < p->n; )
        p->k->x_pack(p->x, p->k_len, p->n, p->k_len, t, t + PACK_PIECE < p->n ? t + PACK_PIECE : p->n, p->packed);
}

static void multiply_pieces(void *arg, uint32_t id, uint32_t n_threads)
{
    const product *p = arg;
    char *work = p->work + id * p->work_bytes;
    const uint32_t n_pieces = (p->n_rows + p->piece - 1) / p->piece;
    for (uint32_t i; (i = plp_team_take(p->b->team, id, n_pieces)) != UINT32_MAX; ) {
        const uint32_t r0 = i * p->piece, r1 = r0 + p->piece < p->n_rows ? r0 + p->piece : p->n_rows;
        if (p->integer)
            p->k->linear(&p->rows, r0, r1, p->packed, p->n, p->y, p->n_rows, false, work);
        else
            p->k->linear_f(&p->rows, r0, r1, p->x, p->k_len, p->n, p->y, p->n_rows, false, work);
    }
}

static void multiply(void *arg)
{
    product *p = arg;
    p->rows.data = p->weights + p->next * p->rows.row_bytes * p->n_rows;
    p->next = (p->next + 1) % p->n_matrices;
    if (p->integer && p->n <= PACK_PIECE)
        p->k->x_pack(p->x, p->k_len, p->n, p->k_len, 0, p->n, p->packed);
    else if (p->integer)
        plp_team_run(p->b->team, pack_pieces, p);
    plp_team_run(p->b->team, multiply_pieces, p);
}

static void pack_alone(void *arg)
{
    const product *p = arg;
    p->k->x_pack(p->x, p->k_len, p->n, p->k_len, 0, p->n, p->packed);
}

static void put_type(product *p, const plp_type_info *type)
{
    static const uint32_t counts[] = { 1, 2, 4, 8, 16, 64, MAX_TOKENS };
    const bench *b = p->b;
    double times[BENCH_MAX_REPS];
    bool fits = true;

    p->integer = type->form != PLP_FORM_FLT;
    const char *kernel = p->integer ? "linear" : "linear_f";
    if (!bench_wants(b->only, kernel) || !bench_wants(b->types, type->name) || p->k_len % type->block_len)
        return;
    p->rows = (plp_rows){ .row_bytes = (size_t)p->k_len / type->block_len * type->block_bytes, .type = type->id, .k = p->k_len };
    p->n_matrices = b->cold_bytes / (p->rows.row_bytes * p->n_rows);
    p->next = 0;
    if (!p->n_matrices)
        return;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        p->n = counts[i];
        p->piece = p->n < 12 ? PIECE_FEW : PIECE_MANY;
        fits = fits && bench_time(b, multiply, p, times);
        printf("{\"kernel\": \"%s\", \"tier\": \"%s\", \"type\": \"%s\", \"n\": %u, \"threads\": %u, \"rows\": %u, \"k\": %u, "
               "\"cold\": true, \"bytes\": %zu, \"ops\": %.0f, ", kernel, p->k->tier, type->name, p->n, b->n_threads, p->n_rows, p->k_len,
               p->rows.row_bytes * p->n_rows, 2.0 * p->n_rows * p->k_len * p->n);
        if (!fits) {
            bench_put_skipped();
            continue;
        }
        bench_put_times(b, times);
        fits = times[0] / p->n * counts[i + 1 < sizeof counts / sizeof counts[0] ? i + 1 : i] < b->patience;
    }
}

static void put_pack(product *p)
{
    static const uint32_t counts[] = { 1, 4, MAX_TOKENS };
    double times[BENCH_MAX_REPS];
    if (!bench_wants(p->b->only, "x_pack"))
        return;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        p->n = counts[i];
        const bool fits = bench_time(p->b, pack_alone, p, times);
        printf("{\"kernel\": \"x_pack\", \"tier\": \"%s\", \"n\": %u, \"threads\": 1, \"k\": %u, \"bytes\": %zu, ", p->k->tier,
               p->n, p->k_len, sizeof(float) * p->k_len * p->n);
        if (fits) bench_put_times(p->b, times);
        else      bench_put_skipped();
    }
}

void bench_products(const bench *b, const plp_kernels *k)
{
    static const int32_t types[] = {
#define QUANT(id, NAME, len, bytes, form) id,
#include "format/quants.def"
#undef QUANT
    };
    product p = { .b = b, .k = k, .n_rows = b->n_rows, .k_len = b->k_len };

    if (!bench_wants(b->only, "linear") && !bench_wants(b->only, "linear_f") && !bench_wants(b->only, "x_pack"))
        return;
    p.work_bytes = (k->linear_work(MAX_TOKENS, p.k_len) + 4095) / 4096 * 4096;
    const size_t n_x = (size_t)MAX_TOKENS * p.k_len, n_y = (size_t)MAX_TOKENS * p.n_rows;
    const size_t packed_bytes = k->x_bytes(MAX_TOKENS, p.k_len), work_bytes = p.work_bytes * b->n_threads;
    char *weights = bench_pages(b->cold_bytes);
    float *x = bench_pages(n_x * sizeof *x);
    bench_fill_weights(weights, b->cold_bytes);
    bench_fill_floats(x, n_x);
    p.weights = weights;
    p.x = x;
    p.y = bench_pages(n_y * sizeof *p.y);
    p.packed = bench_pages(packed_bytes);
    p.work = bench_pages(work_bytes);

    put_pack(&p);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        put_type(&p, plp_type_get(types[i]));

    plp_pages_unmap(weights, b->cold_bytes);
    plp_pages_unmap(x, n_x * sizeof *x);
    plp_pages_unmap(p.y, n_y * sizeof *p.y);
    plp_pages_unmap(p.packed, packed_bytes);
    plp_pages_unmap(p.work, work_bytes);
}
