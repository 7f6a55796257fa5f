/*
 * bench/kernels/attention.c - one token's attention over a long context, all layers: what paging costs
 *
 * The same kernel and the same order of work, with the tiles at three kinds of places:
 *   contiguous   [layer][16 tokens..][kv head] in one piece, each address computed: what a cache without
 *                pages could be, and it may run on past block ends
 *   in order     blocks [16 layers][kv head] through a table, in the order of their addresses
 *   shuffled     the same blocks, the table in random order
 *
 * A context is cut into splits of 256 tokens that the threads take in turn; partial sums are folded at the
 * end of a layer, as the CPU backend does it. Inside a split: blocks outside, heads inside, a later
 * block's tile named for prefetching.
 */
#include "bench.h"
#include "kernels/sealed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPLIT = 256, SAMPLES = 64 };

typedef enum place { CONTIGUOUS, IN_ORDER, SHUFFLED, N_PLACES } place;
static const char *const place_names[N_PLACES] = { "contiguous", "in order", "shuffled" };

typedef struct attention {
    const bench       *b;
    const plp_kernels *k;
    void             (*attend)(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next);
    uint32_t           block_len, n_blocks, n_splits, group, layer;
    size_t             tile_bytes, pool_bytes;
    char              *pool;
    const char       **table;           /* NULL: contiguous */
    float             *q, *parts, *out;
    size_t             part_floats;     /* m, s, acc of one kv head's queries */
} attention;

/* A walk's address of block b's first tile. Both are a load or a multiplication away. */
static inline const char *block_at(const attention *a, uint32_t b)
{
    const size_t layer_bytes = a->b->n_kv_heads * a->tile_bytes;
    return a->table ? a->table[b] + a->layer * layer_bytes : a->pool + ((size_t)a->layer * a->n_blocks + b) * layer_bytes;
}

static plp_attn part_of(const attention *a, uint32_t split, uint32_t head)
{
    float *at = a->parts + ((size_t)split * a->b->n_kv_heads + head) * a->part_floats;
    return (plp_attn){ .n_q = a->group, .head_dim = a->b->head_dim, .q = a->q + (size_t)head * a->group * a->b->head_dim,
                       .m = at, .s = at + a->group, .acc = at + 2 * a->group };
}

static void attend_splits(void *arg, uint32_t id, uint32_t n_threads)
{
    const attention *a = arg;
    const uint32_t blocks = SPLIT / a->block_len, heads = a->b->n_kv_heads;
    plp_attn state[256];

    for (uint32_t split; (split = plp_team_next(a->b->team)) < a->n_splits; ) {
        for (uint32_t h = 0; h < heads; h++) {
            state[h] = part_of(a, split, h);
            for (uint32_t i = 0; i < a->group; i++) {
                state[h].m[i] = -INFINITY;
                state[h].s[i] = 0;
            }
            memset(state[h].acc, 0, (size_t)a->group * a->b->head_dim * sizeof(float));
        }
        const uint32_t end = (split + 1) * blocks < a->n_blocks ? (split + 1) * blocks : a->n_blocks;
        for (uint32_t b = split * blocks; b < end; b++) {
            const char *now = block_at(a, b);
            for (uint32_t h = 0; h < heads; h++) {
                const uint32_t later = h + plp_attn_ahead(a->tile_bytes), then = b + later / heads;
                const char *next = then < end ? (const char *)block_at(a, then) + later % heads * a->tile_bytes : NULL;
                if (b + 1 < end) __builtin_prefetch((const char *)block_at(a, b + 1) + h * a->tile_bytes);
                a->attend(&state[h], now + h * a->tile_bytes, a->block_len, (plp_seen){ 0 }, next);
            }
        }
    }
}

static void fold(void *arg, uint32_t id, uint32_t n_threads)
{
    const attention *a = arg;
    for (uint32_t h; (h = plp_team_next(a->b->team)) < a->b->n_kv_heads; ) {
        plp_attn total = part_of(a, 0, h);
        for (uint32_t s = 1; s < a->n_splits; s++) {
            const plp_attn part = part_of(a, s, h);
            a->k->attn_merge(&total, &part);
        }
        a->k->attn_finish(&total, NULL, a->out + (size_t)h * a->group * a->b->head_dim, a->b->head_dim);
    }
}

static void all_layers(void *arg)
{
    attention *a = arg;
    for (a->layer = 0; a->layer < a->b->n_layers; a->layer++) {
        plp_team_run(a->b->team, attend_splits, a);
        plp_team_run(a->b->team, fold, a);
    }
}

/* SAMPLES different tiles, over and over: what is read is memory all the same. */
static void fill(const attention *a, int format)
{
    const uint32_t dim = a->b->head_dim, len = a->block_len;
    const size_t f16_bytes = plp_tile_bytes(PLP_KV_F16, dim, len);
    char *samples = bench_pages(a->tile_bytes * SAMPLES), *open = bench_pages(f16_bytes);
    float kv[2 * 256];

    for (uint32_t i = 0; i < SAMPLES; i++) {
        char *tile = samples + i * a->tile_bytes;
        for (uint32_t slot = 0; slot < len; slot++) {
            bench_fill_floats(kv, 2 * dim);
            a->k->kv_put(open, len, slot, kv, kv + dim, dim);
        }
        if (format == PLP_KV_F16) memcpy(tile, open, f16_bytes);
        if (format == PLP_KV_Q8)  a->k->kv_seal_q8(open, tile, dim);
        if (format == PLP_KV_Q4)  a->k->kv_seal_q4(open, tile, dim);
    }
    for (size_t at = 0, i = 0; at < a->pool_bytes; at += a->tile_bytes, i++)
        memcpy(a->pool + at, samples + bench_random() % SAMPLES * a->tile_bytes, a->tile_bytes);
    plp_pages_unmap(samples, a->tile_bytes * SAMPLES);
    plp_pages_unmap(open, f16_bytes);
}

static void order(const attention *a, const char **table, bool shuffled)
{
    const size_t block_bytes = a->pool_bytes / a->n_blocks;
    for (uint32_t i = 0; i < a->n_blocks; i++)
        table[i] = a->pool + i * block_bytes;
    for (uint32_t i = shuffled ? a->n_blocks : 1; i-- > 1; ) {
        const uint32_t other = bench_random() % (i + 1);
        const char *moved = table[i];
        table[i] = table[other];
        table[other] = moved;
    }
}

static void put_length(attention *a, int format, const char *format_name, bool huge)
{
    const bench *b = a->b;
    double times[N_PLACES][BENCH_MAX_REPS];
    bool fits = true;

    a->n_blocks = b->n_tokens / a->block_len;
    a->n_splits = (b->n_tokens + SPLIT - 1) / SPLIT;
    a->pool_bytes = (size_t)a->n_blocks * b->n_layers * b->n_kv_heads * a->tile_bytes;
    a->pool = bench_pages(a->pool_bytes);
    (huge ? plp_pages_huge : plp_pages_small)(a->pool, a->pool_bytes);
    const size_t q_bytes = (size_t)b->n_heads * b->head_dim * sizeof(float);
    const size_t parts_bytes = (size_t)a->n_splits * b->n_kv_heads * a->part_floats * sizeof(float);
    const size_t table_bytes = 2 * a->n_blocks * sizeof(char *);
    a->q = bench_pages(q_bytes);
    a->out = bench_pages(q_bytes);
    a->parts = bench_pages(parts_bytes);
    const char **tables = bench_pages(table_bytes);
    fill(a, format);
    bench_fill_floats(a->q, q_bytes / sizeof(float));
    order(a, tables, false);
    order(a, tables + a->n_blocks, true);

    /* One repetition of each in turn, so that a machine that slows down does so for all. */
    bench one = *b;
    one.n_reps = 1;
    for (uint32_t r = 0; r < b->n_reps && fits; r++)
        for (int p = 0; p < N_PLACES && fits; p++) {
            a->table = p == CONTIGUOUS ? NULL : p == IN_ORDER ? tables : tables + a->n_blocks;
            fits = bench_time(&one, all_layers, a, &times[p][r]);
        }
    for (int p = 0; p < N_PLACES; p++) {
        printf("{\"kernel\": \"attn_%s\", \"tier\": \"%s\", \"place\": \"%s\", \"block_len\": %u, \"pages\": \"%s\", \"tokens\": %u, "
               "\"layers\": %u, \"heads\": %u, \"kv_heads\": %u, \"head_dim\": %u, \"threads\": %u, \"cold\": true, \"bytes\": %zu, \"ops\": %.0f, ",
               format_name, a->k->tier, place_names[p], a->block_len, huge ? "huge" : "small", b->n_tokens, b->n_layers, b->n_heads,
               b->n_kv_heads, b->head_dim, b->n_threads, a->pool_bytes,
               4.0 * b->n_tokens * b->n_layers * b->n_heads * b->head_dim);
        if (fits) bench_put_times(b, times[p]);
        else      bench_put_skipped();
    }
    plp_pages_unmap(a->pool, a->pool_bytes);
    plp_pages_unmap(a->q, q_bytes);
    plp_pages_unmap(a->out, q_bytes);
    plp_pages_unmap(a->parts, parts_bytes);
    plp_pages_unmap(tables, table_bytes);
}

void bench_attention(const bench *b, const plp_kernels *k)
{
    const struct { const char *name; int format; void (*attend)(plp_attn *, const void *, uint32_t, plp_seen, const void *); } formats[] = {
        { "f16", PLP_KV_F16, k->attn_f16 }, { "q8", PLP_KV_Q8, k->attn_q8 }, { "q4", PLP_KV_Q4, k->attn_q4 },
    };
    attention a = { .b = b, .k = k, .group = b->n_heads / b->n_kv_heads };

    a.part_floats = (size_t)a.group * (b->head_dim + 2);
    for (int f = 0; f < 3; f++) {
        if (!bench_wants(b->formats, formats[f].name))
            continue;
        a.attend = formats[f].attend;
        for (uint32_t len = 8; len <= 128; len *= 2) {
            char text[8];
            snprintf(text, sizeof text, "%u", len);
            a.block_len = len;
            a.tile_bytes = plp_tile_bytes(formats[f].format, b->head_dim, len);
            if (!bench_wants(b->block_lens, text) || !a.tile_bytes || b->n_tokens % len)
                continue;
            put_length(&a, formats[f].format, formats[f].name, false);
            put_length(&a, formats[f].format, formats[f].name, true);
        }
    }
}
