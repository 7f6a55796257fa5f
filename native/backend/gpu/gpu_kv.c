/*
 * backend/gpu/gpu_kv.c - a batch's block tables on the device, and the operations that need them
 *
 * Tables are made once a batch and group of layers, at the first operation that asks. A sequence's part of
 * them is rounded up to whole splits, so that what lies behind it in the staging area moves seldom.
 *
 *   few tokens    a piece is (sequence, split); with more than one split the sums go to parts and are folded
 *   many tokens   a piece is (sequence, tile of tokens), all splits one after the other
 *
 * Either way a token's sums are the same operations in the same order.
 */
#include "backend/gpu/gpu.h"
#include "kernels/kernels.h"

enum { FEW_TOKENS = 4, TILE_QUERIES = 16, SIMDS = PLP_GPU_THREADS / 32 };

static u32 first_visible(u32 window, u32 pos)       { return window && pos + 1 > window ? pos + 1 - window : 0; }
static u32 last_split(const plp_seq *s)             { return (s->pos0 + s->n_tok - 1) / PLP_SPLIT_LEN; }
static u32 table_len(const plp_seq *s, u32 block)   { return (last_split(s) + 1) * (PLP_SPLIT_LEN / block); }

size_t plp_gpu_table_bytes(const plp_batch *batch)
{
    size_t n = (size_t)batch->n_tok * (sizeof(gpu_row) + sizeof(gpu_fold) + sizeof(gpu_piece) + sizeof(gpu_seal)) * PLP_GPU_MAX_GROUPS;
    for (u32 i = 0; i < batch->n_seq; i++) {
        const plp_seq *s = &batch->seq[i];
        n += sizeof(gpu_seq) + (2 * table_len(s, PLP_GPU_LEAST_BLOCK) * sizeof(gpu_block) + (last_split(s) + 1) * sizeof(gpu_piece)) * PLP_GPU_MAX_GROUPS;
    }
    return n + 1024;
}

size_t plp_gpu_part_bytes(const plp_plan *p, const plp_batch *batch)
{
    size_t n = 0;
    for (u32 i = 0; i < batch->n_seq; i++)
        if (batch->seq[i].n_tok <= FEW_TOKENS && last_split(&batch->seq[i]) > 0)
            n += (size_t)(last_split(&batch->seq[i]) + 1) * batch->seq[i].n_tok;
    return n * p->n_heads * (p->head_dim + 2) * sizeof(float);
}

static void make_rows(plp_gpu *g, const plp_batch *batch, u32 block_len)
{
    gpu_row *rows = plp_gpu_stage(g, batch->n_tok * sizeof *rows, &g->rows);
    gpu_seq *seqs = plp_gpu_stage(g, batch->n_seq * sizeof *seqs, &g->seqs);
    for (u32 i = 0, first = 0; i < batch->n_seq; i++) {
        const plp_seq *s = &batch->seq[i];
        seqs[i] = (gpu_seq){ .row0 = s->row0, .n_tok = s->n_tok, .pos0 = s->pos0, .first_block = first };
        first += table_len(s, block_len);
        for (u32 t = 0; t < s->n_tok; t++)
            rows[s->row0 + t] = (gpu_row){ .seq = i, .pos = s->pos0 + t };
    }
    g->have_rows = true;
}

static void make_blocks(plp_gpu *g, plp_gpu_tables *t, const plp_attention *a, const plp_batch *batch)
{
    u32 n = 0;
    for (u32 i = 0; i < batch->n_seq; i++)
        n += table_len(&batch->seq[i], a->block_len);
    gpu_block *sealed = plp_gpu_stage(g, n * sizeof *sealed, &t->sealed), *open = plp_gpu_stage(g, n * sizeof *open, &t->open);
    for (u32 i = 0; i < batch->n_seq; i++) {
        const plp_seq *s = &batch->seq[i];
        const u32 len = table_len(s, a->block_len), stored = (s->pos0 + s->n_tok + a->block_len - 1) / a->block_len;
        for (u32 b = 0; b < len; b++) {
            *sealed++ = (gpu_block){ b < stored ? s->sealed[a->group][b] : NULL };
            *open++ = (gpu_block){ b < stored ? s->open[a->group][b] : NULL };
        }
    }
}

static void make_seals(plp_gpu *g, plp_gpu_tables *t, const plp_attention *a, const plp_batch *batch)
{
    for (u32 i = 0; i < batch->n_seq; i++)
        t->n_seals += (batch->seq[i].pos0 + batch->seq[i].n_tok) / a->block_len - batch->seq[i].pos0 / a->block_len;
    gpu_seal *seals = plp_gpu_stage(g, t->n_seals * sizeof *seals, &t->seals);
    for (u32 i = 0; i < batch->n_seq; i++)
        for (u32 b = batch->seq[i].pos0 / a->block_len; b < (batch->seq[i].pos0 + batch->seq[i].n_tok) / a->block_len; b++)
            *seals++ = (gpu_seal){ .seq = i, .block = b };
}

/* Pieces of few tokens first, then of many: they are two launches. */
static void make_pieces(plp_gpu *g, plp_gpu_tables *t, const plp_attention *a, const plp_batch *batch)
{
    const u32 G = a->n_heads / a->n_kv_heads, tile = G < TILE_QUERIES ? TILE_QUERIES / G : 1;
    u32 part = 0;

    for (u32 i = 0; i < batch->n_seq; i++) {
        const plp_seq *s = &batch->seq[i];
        const u32 n_splits = last_split(s) + 1 - first_visible(a->window, s->pos0) / PLP_SPLIT_LEN;
        if (s->n_tok > FEW_TOKENS) {
            t->n_many += (s->n_tok + tile - 1) / tile;
        } else {
            t->n_few += n_splits;
            t->n_folds += n_splits > 1 ? s->n_tok : 0;
            t->few_queries = s->n_tok * G > t->few_queries ? s->n_tok * G : t->few_queries;
        }
    }
    gpu_piece *few = plp_gpu_stage(g, (t->n_few + t->n_many) * sizeof *few, &t->pieces), *many = few + t->n_few;
    gpu_fold *fold = plp_gpu_stage(g, t->n_folds * sizeof *fold, &t->folds);
    for (u32 i = 0; i < batch->n_seq; i++) {
        const plp_seq *s = &batch->seq[i];
        const u32 end = last_split(s) + 1, n_splits = end - first_visible(a->window, s->pos0) / PLP_SPLIT_LEN;
        if (s->n_tok > FEW_TOKENS) {
            for (u32 tok = 0; tok < s->n_tok; tok += tile) {
                const u32 n = s->n_tok - tok < tile ? s->n_tok - tok : tile;
                *many++ = (gpu_piece){ .seq = i, .tok0 = tok, .n_tok = n, .split0 = first_visible(a->window, s->pos0 + tok) / PLP_SPLIT_LEN,
                                       .split1 = (s->pos0 + tok + n - 1) / PLP_SPLIT_LEN + 1 };
            }
            continue;
        }
        const u32 stride = s->n_tok * a->n_heads;
        for (u32 j = 0; j < n_splits; j++)
            *few++ = (gpu_piece){ .seq = i, .n_tok = s->n_tok, .split0 = end - n_splits + j, .split1 = end - n_splits + j + 1,
                                  .to_parts = n_splits > 1, .part = part + j * stride };
        for (u32 tok = 0; n_splits > 1 && tok < s->n_tok; tok++)
            *fold++ = (gpu_fold){ .row = s->row0 + tok, .part = part + tok * a->n_heads, .n_splits = n_splits, .stride = stride };
        part += n_splits > 1 ? n_splits * stride : 0;
    }
}

static const plp_gpu_tables *tables_of(plp_gpu *g, const plp_attention *a, const plp_batch *batch)
{
    plp_gpu_tables *t = &g->tables[a->group % PLP_GPU_MAX_GROUPS];
    if (!g->have_rows)
        make_rows(g, batch, a->block_len);
    if (!t->ready) {
        make_blocks(g, t, a, batch);
        if (a->kv_format != PLP_KV_F16)
            make_seals(g, t, a, batch);
        make_pieces(g, t, a, batch);
        t->ready = true;
    }
    return t;
}

void plp_gpu_kv_store(plp_backend *b, const plp_attention *a, const plp_batch *batch, const float *k, const float *v, size_t ld)
{
    plp_gpu *g = (plp_gpu *)b;
    const plp_gpu_tables *t = tables_of(g, a, batch);
    const kv_args args = { .k = k, .v = v, .rows = g->rows, .seqs = g->seqs, .seals = t->seals, .sealed = t->sealed, .open = t->open, .ld = ld,
                           .n_kv_heads = a->n_kv_heads, .head_dim = a->head_dim, .block_len = a->block_len, .layer = a->layer,
                           .tile_bytes = (u32)plp_tile_bytes(a->kv_format, a->head_dim, a->block_len),
                           .open_tile_bytes = (u32)plp_tile_bytes(PLP_KV_F16, a->head_dim, a->block_len) };
    PLP_GPU_LAUNCH(g, K_kv_put, batch->n_tok, a->n_kv_heads, a->head_dim <= 64 ? 64 : PLP_GPU_THREADS, args);
    if (a->kv_format != PLP_KV_F16)
        PLP_GPU_LAUNCH(g, a->kv_format == PLP_KV_Q8 ? K_kv_seal_q8 : K_kv_seal_q4, t->n_seals, a->n_kv_heads, PLP_GPU_THREADS, args);
}

void plp_gpu_attention(plp_backend *b, const plp_attention *a, const plp_batch *batch, const float *q, size_t ldq, float *out, size_t ldo)
{
    plp_gpu *g = (plp_gpu *)b;
    const plp_gpu_tables *t = tables_of(g, a, batch);
    const u32 size = a->head_dim <= 64 ? 0 : a->head_dim <= 128 ? 1 : 2;
    const u32 first = a->kv_format == PLP_KV_Q8 ? K_attention_q8_64_1 : a->kv_format == PLP_KV_Q4 ? K_attention_q4_64_1 : K_attention_f16_64_1;
    const u32 one = first + size, four = first + (K_attention_f16_64_4 - K_attention_f16_64_1) + size;
    attention_args args = { .q = q, .sinks = a->sinks, .out = out, .parts = g->parts, .seqs = g->seqs, .pieces = t->pieces, .folds = t->folds,
                            .sealed = t->sealed, .open = t->open, .ldq = ldq, .ldo = ldo, .n_heads = a->n_heads, .n_kv_heads = a->n_kv_heads,
                            .head_dim = a->head_dim, .block_len = a->block_len, .layer = a->layer, .window = a->window,
                            .tile_bytes = (u32)plp_tile_bytes(a->kv_format, a->head_dim, a->block_len),
                            .open_tile_bytes = (u32)plp_tile_bytes(PLP_KV_F16, a->head_dim, a->block_len), .scale = a->scale, .softcap = a->softcap };
    PLP_GPU_LAUNCH(g, one, t->n_few, a->n_kv_heads, 32 * (t->few_queries < SIMDS ? t->few_queries : SIMDS), args);
    PLP_GPU_LAUNCH(g, K_attention_fold, t->n_folds, a->n_heads, 32, args);
    args.pieces = args.pieces + t->n_few;
    PLP_GPU_LAUNCH(g, four, t->n_many, a->n_kv_heads, PLP_GPU_THREADS, args);
}
