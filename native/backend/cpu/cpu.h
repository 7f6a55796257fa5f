/*
 * backend/cpu/cpu.h - the CPU backend's state: a kernel tier, a worker team, work space
 *
 * cpu.c          open and close, work space, small operations
 * linear.c       products: pack activations once, hand out rows
 * state.c        layers with a running state, kept in blocks
 * attention.c    KV store and paged attention: hand out (sequence, split, head) or (sequence, tile, head)
 *
 * No operation's result depends on how the work was handed out: pieces end at fixed sizes, and sums over
 * pieces are folded in order.
 */
#ifndef PLP_BACKEND_CPU_CPU_H
#define PLP_BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "base/threads.h"
#include "kernels/kernels.h"

typedef struct plp_cpu {
    plp_backend        base;
    const plp_kernels *k;
    plp_team          *team;
    plp_plan           plan;
    void              *buffers;         /* chain of what `buffer` handed out */
    void              *packed;          /* activations in the tier's layout, for the largest batch */
    char              *work;            /* [threads][work_bytes] */
    size_t             work_bytes;
    float             *parts;           /* attention's partial sums, grown by prepare */
    size_t             parts_bytes;
} plp_cpu;

/* Elements below which waking the team costs more than it saves. */
#define PLP_ALONE_ELEMENTS 16384u

static inline void *plp_cpu_work(const plp_cpu *c, uint32_t id) { return c->work + (size_t)id * c->work_bytes; }

void plp_cpu_linear(plp_backend *b, const plp_product *p, uint32_t n, const float *x, size_t ldx, uint32_t n_tok);
void plp_cpu_kv_store(plp_backend *b, const plp_attention *a, const plp_batch *batch, const float *k, const float *v, size_t ld);
void plp_cpu_attention(plp_backend *b, const plp_attention *a, const plp_batch *batch, const float *q, size_t ldq, float *out, size_t ldo);
void plp_cpu_short_conv(plp_backend *b, const plp_state *s, const plp_batch *batch, const float *x, bool gated, const plp_weight *w, float *y);
void plp_cpu_delta_rule(plp_backend *b, const plp_state *s, const plp_batch *batch, const plp_delta *d, const float *qkv,
                        const float *alpha, const float *beta, float *y);
/* Bytes of attention's work space: of one thread, and of the partial sums of a batch. */
size_t plp_cpu_attention_work(const plp_kernels *k, const plp_plan *plan);
size_t plp_cpu_attention_parts(const plp_plan *plan, const plp_batch *batch);

#endif
