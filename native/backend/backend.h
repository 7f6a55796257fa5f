/*
 * backend/backend.h - the operations that a forward pass is made of, carried out at once
 *
 * A backend owns where things live. Pointers that cross this interface (activations, weights, blocks)
 * are the backend's: on the CPU plain memory, on a GPU device addresses; the model and the engine pass
 * them on and never look behind them. What the host reads comes through `download`.
 *
 * Shape    activations are f32, row-major: [n_tok][width], rows ld apart
 * Order    an operation sees the results of those called before it
 * Threads  operations and prepare: one caller at a time, the engine's leader. upload, download, copy_block and the
 *          slab functions: any thread at any time, also during a batch, if no two name the same block and one writes
 * Errors   operations cannot fail once open succeeded and `prepare` accepted the batch
 */
#ifndef PLP_BACKEND_BACKEND_H
#define PLP_BACKEND_BACKEND_H

#include "base/status.h"
#include "format/gguf.h"

/* A tensor as the backend holds it: a matrix [rows][k] in file layout, or a vector (rows 1, F32). */
typedef struct plp_weight {
    const void *data;                   /* NULL: the model has no such tensor */
    size_t      row_bytes;
    int32_t     type;
    uint32_t    rows, k;
} plp_weight;

/* One matrix over shared activations: y[t][r] = (or +=) w[r] . x[t] (+ bias[r]). */
typedef struct plp_product {
    const plp_weight *w;
    const float      *bias;             /* [rows] or NULL */
    float            *y;
    size_t            ldy;
    bool              add;
} plp_product;

/* One session's tokens in a batch, and where its KV lies, per group of layers. */
typedef struct plp_seq {
    uint32_t row0, n_tok;               /* rows of the batch */
    uint32_t pos0;                      /* position of the first */
    /* Per group: block i of the timeline in its sealed format, and, for blocks that this batch's tokens
     * lie in, the f16 block being written. With f16 KV both lists name the same blocks. */
    void *const *const *sealed;         /* [group][block] */
    void *const *const *open;           /* [group][block] */
} plp_seq;

typedef struct plp_batch {
    uint32_t       n_tok, n_seq, n_out;
    const int32_t *ids;                 /* [n_tok] */
    const int32_t *pos;                 /* [n_tok] */
    const plp_seq *seq;                 /* [n_seq] */
    const int32_t *out_rows;            /* [n_out]: rows whose logits are wanted, rising */
    float *const  *out;                 /* [n_out]: where they go, [n_vocab] each, host memory */
} plp_batch;

/* One layer's attention: geometry of its group's blocks and how scores are made. */
typedef struct plp_attention {
    uint32_t     group, layer;          /* layer: index within the group's blocks */
    uint32_t     n_heads, n_kv_heads, head_dim, block_len;
    int32_t      kv_format;             /* plp_kv_format of sealed blocks */
    uint32_t     window;                /* tokens a token sees, itself included; 0: all */
    float        scale, softcap;
    const float *sinks;                 /* [n_heads] or NULL */
} plp_attention;

/* One running state of a layer, in its group's blocks at byte layer * bytes + at: in a full block the state
 * after the block's last token, in the block being written the state after the last token so far. Before
 * the first token it is 0. A batch's sequence goes on from the state after pos0 - 1 and stores one at each
 * block's end and at its own. These blocks have one format: `sealed` lists them all. */
typedef struct plp_state {
    uint32_t group, layer, block_len;
    size_t   bytes, at;                 /* bytes: of all that the layer keeps */
} plp_state;

#define PLP_MAX_CONV 8u                 /* tokens that a short convolution sees */

/* Heads of a gated delta net. Value head h goes with key head h % n_k_heads. */
typedef struct plp_delta {
    uint32_t     n_k_heads, n_v_heads, head_dim;
    const float *a, *dt;                /* [n_v_heads] */
} plp_delta;

/* Sums split a context at these positions, whatever the batch or the thread count. */
#define PLP_SPLIT_LEN 256u

/* The largest of everything. */
typedef struct plp_plan {
    uint32_t max_tokens, max_k;         /* tokens in a batch; width of a product's input */
    uint32_t n_heads, head_dim, block_len;
    uint32_t n_kv_heads, group_size;    /* group_size: query heads that share a KV head */
} plp_plan;

typedef struct plp_backend plp_backend;
typedef struct plp_ops {
    const char *name;
    void       (*close)(plp_backend *b);
    /* Room for everything a model of this shape will ask for; once, after the weights are bound. PLP_E_UNSUPPORTED
     * for a shape that the backend has no kernels for. */
    plp_status (*plan)(plp_backend *b, const plp_plan *plan, plp_error *err);
    /* Room for a batch of this depth; before its first operation. */
    plp_status (*prepare)(plp_backend *b, const plp_batch *batch, plp_error *err);
    /* What runs the kernels, in a word, and on how many threads of this machine. */
    void       (*describe)(const plp_backend *b, char *tier, size_t tier_bytes, uint32_t *n_threads);

    plp_status (*buffer)(plp_backend *b, size_t n_bytes, void **out, plp_error *err);   /* until close */
    plp_status (*weight)(plp_backend *b, const plp_tensor *t, plp_weight *out, plp_error *err);
    void       (*upload)(plp_backend *b, void *to, const void *host, size_t n_bytes);
    void       (*download)(plp_backend *b, void *host, const void *from, size_t n_bytes);   /* waits */
    /* Pool memory; both NULL: the pool's own way (pages of the OS). slab_map: NULL if refused. */
    void      *(*slab_map)(void *backend, size_t n_bytes);
    void       (*slab_unmap)(void *backend, void *p, size_t n_bytes);

    /* y[i] = row ids[i] of table, times scale; ids are host memory */
    void (*embed)(plp_backend *b, const plp_weight *table, const int32_t *ids, uint32_t n, float scale, float *y);
    /* y, x: n_rows rows of n, ld apart; w or bias NULL: none */
    void (*rmsnorm)(plp_backend *b, float *y, const float *x, size_t ld, const float *w, uint32_t n_rows, uint32_t n, float eps);
    void (*layernorm)(plp_backend *b, float *y, const float *x, size_t ld, const float *w, const float *bias, uint32_t n_rows, uint32_t n, float eps);
    /* n products over the same x [n_tok][k] */
    void (*linear)(plp_backend *b, const plp_product *p, uint32_t n, const float *x, size_t ldx, uint32_t n_tok);
    /* Rotate n_heads heads of each row in place; cs [n_tok][n_rot/2][2]: cos and sin; kind: plp_rope_kind */
    void (*rope)(plp_backend *b, float *x, size_t ld, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot,
                 const float *cs, int kind, uint32_t n_tok);
    /* Store k, v [n_tok][n_kv_heads * head_dim] at the tokens' positions; seal blocks that become full. */
    void (*kv_store)(plp_backend *b, const plp_attention *a, const plp_batch *batch, const float *k, const float *v, size_t ld);
    /* out, q [n_tok][n_heads * head_dim] */
    void (*attention)(plp_backend *b, const plp_attention *a, const plp_batch *batch, const float *q, size_t ldq, float *out, size_t ldo);
    /* y = act(gate) * up, rows of n, ld apart; up NULL: act(gate). act: plp_act. */
    void (*glu)(plp_backend *b, float *y, const float *gate, const float *up, size_t ld, uint32_t n_tok, uint32_t n, int act);
    void (*add)(plp_backend *b, float *y, const float *x, size_t n);    /* y += x */
    void (*scale)(plp_backend *b, float *y, float a, size_t n);         /* y *= a */
    void (*softcap)(plp_backend *b, float *y, float cap, size_t n);     /* cap * tanh(y / cap) */
    /* y[i] = x[rows[i]], rows of `width`; rows are host memory */
    void (*gather)(plp_backend *b, float *y, const float *x, size_t width, const int32_t *rows, uint32_t n);
    /* y[rows[i]] += scale[i] * x[i], multiplied and added apart; rows differ from each other; rows and scale
     * are host memory. For models with experts; NULL: they cannot run. */
    void (*scatter_add)(plp_backend *b, float *y, const float *x, size_t width, const int32_t *rows, const float *scale, uint32_t n);
    /* Of each channel, over the last len tokens: y[t] = sum over j of w[channel][j] * x[t - len + 1 + j], j rising,
     * multiplied and added apart. w [width][len] F32, len <= PLP_MAX_CONV; x, y [n_tok][width]. Gated: x [n_tok][3 * width] is
     * b | c | u, the products b u are convolved, and the sum is multiplied by c. The state is f32
     * [len - 1][width], what is convolved, oldest first. For models with short convolutions; NULL: they cannot run. */
    void (*short_conv)(plp_backend *b, const plp_state *s, const plp_batch *batch, const float *x, bool gated, const plp_weight *w, float *y);
    /* Of each value head, token by token: the kernel delta_rule on q and k of length 1 (q then over sqrt(head_dim)),
     * decay = exp(a * softplus(alpha + dt)), beta = sigmoid(beta). qkv [n_tok]: q and k of the key heads, v of the value
     * heads; alpha, beta [n_tok][n_v_heads]; y [n_tok][n_v_heads * head_dim]. The state is f32
     * [n_v_heads][head_dim][head_dim]. For models with gated delta nets; NULL: they cannot run. */
    void (*delta_rule)(plp_backend *b, const plp_state *s, const plp_batch *batch, const plp_delta *d, const float *qkv,
                       const float *alpha, const float *beta, float *y);
    /* Rows of n, for Gemma 3n; NULL: it cannot run. y = x * w;
     * y = y * (rms(like) / sqrtf(max(mean(y y), 1e-5))), rms(v) = sqrtf(mean(v v));
     * y = max(c - spread * rms(c), 0), c = y - mean(y). Means are sum16 / n. */
    void (*weigh)(plp_backend *b, float *y, const float *x, const float *w, uint32_t n_rows, uint32_t n);
    void (*match_size)(plp_backend *b, float *y, const float *like, uint32_t n_rows, uint32_t n);
    void (*keep_largest)(plp_backend *b, float *y, uint32_t n_rows, uint32_t n, float spread);
    void (*copy_block)(plp_backend *b, void *to, const void *from, size_t n_bytes);     /* a multiple of 4 bytes, of any backend memory */
} plp_ops;

/* A backend begins with its operations: b->ops->linear(b, ...). */
struct plp_backend { const plp_ops *ops; };

plp_status plp_cpu_backend_open(plp_backend **out, uint32_t n_threads, plp_error *err);

#endif
