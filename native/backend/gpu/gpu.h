/*
 * backend/gpu/gpu.h - the GPU backend's state: a list of commands in the making, and where things lie
 *
 * gpu.c         open and close, memory, the list, operations that are one kernel
 * gpu_kv.c      block tables of a batch, KV store, sealing, attention
 *
 * Operations append commands; the list runs when it is full, when the host wants to read, or before a new
 * batch. What a batch needs from the host (ids, positions, block addresses) goes through a staging area
 * that is filled from its start again for each batch, in the same places: so the commands of one decode
 * step are the bytes of the one before, until the context enters another split.
 */
#ifndef PLP_BACKEND_GPU_GPU_H
#define PLP_BACKEND_GPU_GPU_H

#include "backend/gpu/device.h"
#include "backend/gpu/host.h"
#include "base/platform.h"

#define PLP_GPU_MAX_COMMANDS 1024u      /* of a list; a decode step of 64 layers fits */
#define PLP_GPU_MAX_GROUPS   4u         /* of layers that share blocks */
#define PLP_GPU_LEAST_BLOCK  16u        /* tokens; attention goes by units of these */
#define PLP_GPU_MAX_HEAD     256u       /* dimensions of a head that attention has kernels for */

/* A batch's tables on the device, for one group of layers. */
typedef struct plp_gpu_tables {
    bool  ready;
    void *sealed, *open;                /* gpu_block [] */
    void *pieces, *folds, *seals;
    u32   n_few, n_many, n_folds, n_seals, few_queries;
} plp_gpu_tables;

typedef struct plp_gpu_memory { void *address; size_t n_bytes; } plp_gpu_memory;

typedef struct plp_gpu {
    plp_backend      base;
    plp_gpu_device  *dev;
    plp_mutex       *lock;              /* guards all of this; the leader's operations and other threads' copies meet here */
    plp_gpu_command *list;
    u32              n, limit;
    plp_error        failure;           /* status < 0: the device is lost */

    plp_gpu_memory  *buffers;           /* [n_buffers], until close */
    u32              n_buffers, cap_buffers;
    plp_plan         plan;
    void            *packed, *scales, *sums;    /* activations as integers */
    void            *parts;
    size_t           parts_bytes;

    uint8_t         *stage;             /* host's view */
    uint8_t         *stage_at;          /* device's */
    size_t           stage_bytes, staged;
    size_t           owed;              /* of what is left there: the room of this batch's tables, which nobody else gets */
    void            *spare;             /* two of spare_bytes: device memory for what finds no room in the staging area */
    size_t           spare_bytes;

    bool             have_rows;
    void            *rows, *seqs;
    plp_gpu_tables   tables[PLP_GPU_MAX_GROUPS];
} plp_gpu;

/* Append a kernel: groups x by y of n_threads. */
void  plp_gpu_launch(plp_gpu *g, u32 kernel, u32 x, u32 y, u32 n_threads, const void *args, size_t args_bytes);
#define PLP_GPU_LAUNCH(g, kernel, x, y, n_threads, ...) \
    plp_gpu_launch(g, kernel, x, y, n_threads, &(__VA_ARGS__), sizeof(__VA_ARGS__))
/* n bytes of this batch's tables (plp_gpu_table_bytes): where the host writes them, and their device address. */
void *plp_gpu_stage(plp_gpu *g, size_t n_bytes, void **address);
/* The same with contents, one word a token at most; always finds a place. which: 0, or 1 for a second array
 * of the same operation. */
void *plp_gpu_staged(plp_gpu *g, const void *host, size_t n_bytes, u32 which);

/* Bytes that a batch's tables may take in the staging area, and its partial sums. */
size_t plp_gpu_table_bytes(const plp_batch *batch);
size_t plp_gpu_part_bytes(const plp_plan *plan, const plp_batch *batch);
void   plp_gpu_kv_store(plp_backend *b, const plp_attention *a, const plp_batch *batch, const float *k, const float *v, size_t ld);
void   plp_gpu_attention(plp_backend *b, const plp_attention *a, const plp_batch *batch, const float *q, size_t ldq, float *out, size_t ldo);

#endif
