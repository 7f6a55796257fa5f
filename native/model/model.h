/*
 * model/model.h - a loaded model: what the file says about its shape, its tensors bound by name, its pass
 *
 * weights.c    hyperparameters and tensors from the file, every name, shape and type checked
 * rope.c       frequencies with linear, YaRN and Llama-3 scaling, and cos/sin tables of a batch
 * decoder.c    the pre-norm decoder family in reading order
 * archs.def    which name runs which family
 *
 * Shape    hidden states [n_tok][n_embd]; q [n_tok][n_heads * head_dim]; k, v [n_tok][n_kv_heads * head_dim]
 * Threads  plp_model_forward: the engine's leader only
 */
#ifndef PLP_MODEL_MODEL_H
#define PLP_MODEL_MODEL_H

#include "backend/backend.h"
#include "kernels/kernels.h"

#define PLP_MAX_GROUPS 2u
#define PLP_LOGIT_ROWS 16u                  /* rows of logits computed at once */

typedef struct plp_rope {
    uint32_t n_rot;
    int      kind;                          /* plp_rope_kind */
    float    magnitude;                     /* YaRN's attention factor, on cos and sin */
    double  *inv_freq;                      /* [n_rot / 2] */
} plp_rope;

/* The layers that share one attention window, and so one kind of block. */
typedef struct plp_group {
    uint32_t window;                        /* 0: everything */
    uint32_t n_layers;
} plp_group;

typedef struct plp_layer {
    plp_weight attn_norm, wq, wk, wv, wo, bq, bk, bv;
    plp_weight ffn_norm, w_gate, w_up, w_down;
    uint32_t   group, index;                /* index: within the group */
} plp_layer;

typedef struct plp_model plp_model;

struct plp_model {
    plp_backend    *backend;
    const plp_file *file;
    char            architecture[40];
    void          (*forward)(plp_model *m, const plp_batch *batch);

    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab, context_train;
    uint32_t block_len;                     /* of the KV blocks it will see */
    int32_t  kv_format;
    float    eps, attn_scale;
    plp_rope rope;
    uint32_t n_groups;
    plp_group group[PLP_MAX_GROUPS];

    plp_weight embed, output, output_norm;
    plp_layer *layers;                      /* [n_layers] */
    uint64_t   weights_bytes, n_params;

    /* Work space for max_tokens, in backend memory; cs_host in plain memory. */
    uint32_t max_tokens;
    float   *x, *xn, *q, *k, *v, *attn, *gate, *up, *cs, *logits;
    float   *cs_host;
};

typedef struct plp_model_options {
    uint32_t max_tokens;                    /* the largest batch */
    uint32_t block_len;
    int32_t  kv_format;
} plp_model_options;

/* The file and the backend must outlive the model. */
plp_status plp_model_open(plp_model **out, const plp_file *f, plp_backend *b, const plp_model_options *o, plp_error *err);
void       plp_model_close(plp_model *m);           /* NULL is fine */
/* Store the batch's KV and write the logits it asks for. */
void       plp_model_forward(plp_model *m, const plp_batch *batch);
/* Bytes of one block of a group: format PLP_KV_F16 for open blocks, or the sealed one. */
size_t     plp_model_block_bytes(const plp_model *m, uint32_t group, int32_t kv_format);

/* For the families' files. Final norm and output matrix for the rows whose logits are wanted. */
void       plp_model_logits(plp_model *m, const plp_batch *batch);
plp_status plp_rope_open(plp_rope *r, const plp_file *f, const char *arch, uint32_t head_dim, int kind, plp_error *err);
void       plp_rope_close(plp_rope *r);
/* cos and sin of each token: cs [n][n_rot/2][2] */
void       plp_rope_table(const plp_rope *r, const int32_t *pos, uint32_t n, float *cs);

#define ARCH(name, family, rope) void plp_forward_##family(plp_model *m, const plp_batch *batch);
#include "model/archs.def"
#undef ARCH

#endif
