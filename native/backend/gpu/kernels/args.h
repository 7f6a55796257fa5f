/*
 * backend/gpu/kernels/args.h - what each kernel is told: one structure, the same bytes on host and device
 *
 * Pointers are device addresses (64 bits on every GPU target). Both sides compile this file; on the host
 * DEVICE is empty and the integer names are stdint's.
 *
 * Batch    rows   the batch's tokens, [n_tok]: which sequence, which position
 *          seqs   where a sequence's blocks begin in the two tables of block addresses
 *          pieces attention's work: tokens of one sequence times splits of its context
 */

/* Threads of a group are at most this many, always a multiple of 32; groups have two dimensions. */
#define PLP_GPU_THREADS 128

typedef struct gpu_block { DEVICE u8 *at; } gpu_block;
typedef struct gpu_row   { u32 seq, pos; } gpu_row;
typedef struct gpu_seq   { u32 row0, n_tok, pos0, first_block; } gpu_seq;

/* Tokens [tok0, tok0 + n_tok) of a sequence times splits [split0, split1). to_parts: sums go to parts,
 * from slot `part` on, [token][head], for attention_fold; else they are folded and finished here. */
typedef struct gpu_piece { u32 seq, tok0, n_tok, split0, split1, to_parts, part; } gpu_piece;
/* One token's parts: those of split i and head h are slot part + i * stride + h. A slot is [m, s, acc[head_dim]]. */
typedef struct gpu_fold  { u32 row, part, n_splits, stride; } gpu_fold;
typedef struct gpu_seal  { u32 seq, block; } gpu_seal;

typedef struct copy_args      { DEVICE u32 *to; DEVICE const u32 *from; u64 n; } copy_args;         /* words */
typedef struct embed_args     { DEVICE const u8 *table; DEVICE const i32 *ids; DEVICE float *y; u64 row_bytes; u32 k; float scale; } embed_args;
typedef struct norm_args      { DEVICE float *y; DEVICE const float *x, *w, *bias; u64 ld; u32 n; float eps; } norm_args;
typedef struct rope_args      { DEVICE float *x; DEVICE const float *cs; u64 ld; u32 n_heads, head_dim, n_rot, neox; } rope_args;
typedef struct glu_args       { DEVICE float *y; DEVICE const float *gate, *up; u64 ld; u32 n, act; } glu_args;
typedef struct vector_args    { DEVICE float *y; DEVICE const float *x; u64 n; float a; u32 unused; } vector_args;
typedef struct gather_args    { DEVICE float *y; DEVICE const float *x; DEVICE const i32 *rows; DEVICE const float *scale; u64 width; } gather_args;

/* Activations in blocks of 32: q [n][k], scale and scale * sum [n][k / 32]. */
typedef struct pack_args      { DEVICE const float *x; DEVICE i8 *q; DEVICE float *scale, *sum; u64 ld; u32 k, unused; } pack_args;
typedef struct linear_args {
    DEVICE const u8    *w;
    DEVICE const i8    *q;              /* packed activations (integer types) */
    DEVICE const float *scale, *sum;
    DEVICE const float *x;              /* plain ones (float types) */
    DEVICE const float *bias;           /* [rows] or NULL */
    DEVICE float       *y;
    u64                 row_bytes, ldx, ldy;
    u32                 rows, k, n, add;
} linear_args;

typedef struct kv_args {
    DEVICE const float     *k, *v;
    DEVICE const gpu_row   *rows;
    DEVICE const gpu_seq   *seqs;
    DEVICE const gpu_seal  *seals;
    DEVICE const gpu_block *sealed, *open;
    u64                     ld;
    u32                     n_kv_heads, head_dim, block_len, layer, tile_bytes, open_tile_bytes;
} kv_args;

typedef struct attention_args {
    DEVICE const float     *q, *sinks;
    DEVICE float           *out, *parts;
    DEVICE const gpu_seq   *seqs;
    DEVICE const gpu_piece *pieces;
    DEVICE const gpu_fold  *folds;
    DEVICE const gpu_block *sealed, *open;
    u64                     ldq, ldo;
    u32                     n_heads, n_kv_heads, head_dim, block_len, layer, window, tile_bytes, open_tile_bytes;
    float                   scale, softcap;
} attention_args;
