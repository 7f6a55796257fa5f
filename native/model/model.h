/*
 * model/model.h - a loaded model: what the file says about its shape, its tensors bound by name, its pass
 *
 * archs.def    one row per architecture: how it differs from the plain decoder
 * open.c       from a file to a model: the row, then all below in turn; close
 * shape.c      hyperparameters and which layer has which window, rope and experts
 * weights.c    tensors by name, every shape and type checked, none left over
 * room.c       work space for the largest batch
 * rope.c       frequencies with linear, YaRN, LongRoPE and Llama-3 scaling, and cos/sin tables of a batch
 * decoder.c    the decoder family in reading order
 * gemma3n.c    Gemma 3n: several residual streams, in reading order
 * recurrent.c  what layers with a running state have in attention's place
 * experts.c    the feed-forward of a mixture of experts
 * logits.c     from hidden states to logits
 *
 * Shape    hidden states [n_tok][n_embd]; q [n_tok][n_heads * head_dim]; k, v [n_tok][n_kv_heads * head_dim]
 * Threads  plp_model_forward: the engine's leader only
 */
#ifndef PLP_MODEL_MODEL_H
#define PLP_MODEL_MODEL_H

#include "backend/backend.h"
#include "kernels/kernels.h"

#define PLP_MAX_GROUPS  2u
#define PLP_MAX_LAYERS  1024u
#define PLP_MAX_EXPERTS 512u
#define PLP_MAX_STREAMS 8u
#define PLP_LOGIT_ROWS  16u                 /* rows of logits computed at once */

typedef struct plp_model plp_model;

/* ---- what an architecture is ---- */

enum plp_norms   { PLP_NORM_PRE, PLP_NORM_POST, PLP_NORM_BOTH };    /* before a step, on its result, both */
enum plp_qk_norm { PLP_QK_NORM_NONE, PLP_QK_NORM_HEAD, PLP_QK_NORM_WHOLE };     /* per head, or over all of them */

typedef struct plp_arch {
    const char *name;
    void      (*forward)(plp_model *m, const plp_batch *batch);
    int         rope_kind, act;             /* plp_rope_kind, plp_act */
    int         norms, qk_norm;
    bool        layer_norm;                 /* mean subtracted, with biases; else RMS */
    bool        plain_mlp;                  /* down(act(up)); else down(act(gate) * up) */
    bool        embed_sqrt;                 /* embeddings times sqrt(n_embd) */
    bool        sinks;                      /* a logit per head that takes attention and gives nothing */
    bool        route_all;                  /* experts weighted by the softmax over all; else over the chosen */
    bool        local_rope;                 /* windowed layers rotate without scaling, by base local_base (0: the same) */
    float       local_base;
    bool        smooth_yarn;                /* YaRN's ramp begins and ends between dimensions */
    uint32_t    window;                     /* where the file names none */
    float       attn_softcap, logit_softcap;        /* likewise */
    uint32_t    full_every;                 /* with a window: every n-th layer sees everything; 0: none does */
    uint32_t    no_rope_every;              /* every n-th layer is without positions; 0: none is */
    bool        no_rope_full;               /* with a window: layers that see everything are without positions */
    uint32_t    wide_query_layers;          /* at this depth scores are scaled by n_embd / n_heads, not head_dim */
    const char *ffn_norm_name;              /* where it is not ffn_norm */
    const char *final_norm_name;            /* where it is not output_norm */
    bool        unscaled_scores;            /* 1 instead of 1 / sqrt(head_dim) */
    bool        streams;                    /* several residual streams, of which a layer reads and corrects all (gemma3n.c) */
    bool        value_norm;                 /* values are normalised per head, without weights; without wv they are the keys before their norm */
    bool        short_conv;                 /* layers without KV heads convolve over a few tokens instead of attending */
    bool        delta_net;                  /* most layers are gated delta nets, every full_attention_interval-th attends */
    bool        gated_attention;            /* wq's rows are, head by head, a query and a gate for what is attended */
} plp_arch;

/* ---- a model ---- */

typedef struct plp_rope {
    uint32_t n_rot;
    int      kind;                          /* plp_rope_kind */
    float    magnitude;                     /* YaRN's attention factor, on cos and sin */
    double  *inv_freq;                      /* [n_rot / 2] */
} plp_rope;

/* Which frequencies a file's rope.* keys are read for. */
typedef struct plp_rope_spec {
    const char *arch;
    uint32_t    head_dim, context_limit;    /* LongRoPE has other divisors beyond the original context */
    int         kind;
    bool        smooth_yarn;
    bool        unscaled;                   /* plain frequencies by `base` (0: the file's) */
    float       base;
} plp_rope_spec;

/* The layers that share one attention window, and so one kind of block. Group 0 has the layers with full
 * attention; where all layers are windowed, those. Layers with a running state are a group with a window
 * of one token: what a session goes on from is in the block of its last token. */
typedef struct plp_group {
    uint32_t window;                        /* 0: everything */
    uint32_t n_layers, block_len;           /* block_len: the model's; of large states a multiple of it */
    uint32_t n_kv_heads, head_dim;
    size_t   state_bytes;                   /* of a layer. Not 0: blocks hold a running state, not keys and values (backend.h) */
} plp_group;

enum { PLP_NO_ROPE = -1 };

typedef struct plp_expert { plp_weight gate, up, down, b_gate, b_up, b_down; } plp_expert;

typedef struct plp_layer {
    plp_weight attn_norm, attn_norm_b, attn_post_norm, wq, wk, wv, wo, bq, bk, bv, bo, q_norm, k_norm, sinks;
    plp_weight ffn_norm, ffn_norm_b, ffn_post_norm, w_gate, w_up, w_down, b_gate, b_up, b_down;
    plp_weight conv, conv_in, conv_out;     /* a short convolution: these instead of wq, wk, wv, wo */
    plp_weight z, alpha, beta, a, dt, delta_norm;       /* a gated delta net: these, too; conv_in makes q, k and v */
    plp_weight router, router_b;            /* a mixture of experts: these instead of w_gate, w_up, w_down */
    const float *choice_bias;               /* [n_experts], in the file: added to scores for choosing only; or NULL */
    const float *expert_scale;              /* [n_experts], in the file: on the experts' weights; or NULL */
    plp_weight router_norm, mlp_post_norm, experts_norm, experts_post_norm;     /* experts beside a dense feed-forward: norms of their own */
    plp_expert *experts;                    /* [n_experts] */
    plp_expert shared;                      /* runs for every token */
    plp_weight shared_gate;                 /* its weight is the sigmoid of this row's product */
    plp_weight input_gate, input_proj, input_post_norm;         /* a further step, with the token's own input for this layer */
    plp_weight laurel_l, laurel_r, laurel_norm;                 /* with several streams: a second step beside attention, of low rank */
    plp_weight stream_router, stream_router_norm, predict, correct, correct_scale;
    float      spread;                      /* sparse: the gate keeps what is beyond so many standard deviations */
    bool       sparse;
    const float *out_scale;                 /* in the file: on the layer's result; or NULL */
    uint32_t   n_kv_heads, n_ff;
    uint32_t   group, index;                /* index: within the group */
    bool       borrows;                     /* attends to the keys and values of the layer before with its index, and has none */
    bool       attends;                     /* else it has a running state */
    int        rope;                        /* which of the model's, or PLP_NO_ROPE */
} plp_layer;

struct plp_model {
    plp_backend    *backend;
    const plp_file *file;
    const plp_arch *arch;
    char            architecture[40];

    uint32_t n_layers, n_embd, n_ff, n_heads, n_vocab, context_train;    /* n_ff: the widest layer's */
    uint32_t n_kv_heads, head_dim, head_dim_window;             /* of full layers; of windowed ones */
    uint32_t n_streams, active_stream;      /* 0: the plain residual stream */
    uint32_t n_embd_layer;                  /* width of a token's input for each layer; 0: there is none */
    uint32_t n_experts, n_chosen, n_ff_expert, n_ff_shared;     /* n_experts 0: dense */
    uint32_t n_drafting;                    /* layers of the file after the last one: they predict further tokens and are not run */
    bool     route_all, route_sigmoid;
    bool     experts_beside;                /* a dense feed-forward, in the same layer */
    uint32_t conv_len, conv_width;          /* tokens that a short convolution sees, itself included (0: there is none); channels */
    plp_delta delta;                        /* its heads; n_v_heads 0: there are no gated delta nets */
    uint32_t block_len;                     /* of the KV blocks it will see */
    int32_t  kv_format;
    float    eps, attn_scale, attn_softcap;                     /* a cap of 0: none */
    float    embed_scale, residual_scale, expert_scale, logit_scale, logit_softcap;
    uint32_t n_ropes;
    plp_rope rope[2];                       /* of full layers, of windowed ones */
    uint32_t n_groups;
    plp_group group[PLP_MAX_GROUPS];

    plp_weight embed, output, output_norm, output_norm_b, output_b;
    plp_weight stream_in[PLP_MAX_STREAMS], stream_out[PLP_MAX_STREAMS];         /* [n_streams - 1]: of streams 1 .. from and to the first */
    plp_weight layer_embed, layer_proj, layer_proj_norm;        /* the inputs for each layer: of the token, and of its embedding */
    plp_layer *layers;                      /* [n_layers] */
    uint64_t   weights_bytes, n_params;

    /* Work space for max_tokens, in backend memory; what the host reads or writes in plain memory. */
    uint32_t max_tokens;
    float   *x, *xn, *q, *k, *v, *attn, *gate, *up, *y, *logits;
    float   *mixed, *convolved;             /* [max_tokens]: a short convolution's input; its result, where that is not of n_embd */
    float   *z, *alpha, *beta;              /* [max_tokens]: a gated delta net's output gate, and two numbers a head */
    float   *inputs, *inputs_x, *input;     /* [max_tokens][n_layers * n_embd_layer] twice, [max_tokens][n_embd_layer] */
    int32_t *input_rows;                    /* [max_tokens] */
    float   *streams, *predicted, *laurel;  /* [n_streams][max_tokens][n_embd] twice, [max_tokens][n_embd] */
    float   *modes, *coefs;                 /* [max_tokens][n_streams], [max_tokens][n_streams * n_streams] */
    struct plp_mixing *mixing;
    float   *mixture;                       /* [max_tokens][n_embd]: experts beside a dense feed-forward */
    float   *qg, *qgate;                    /* [max_tokens][2 * n_heads * head_dim], half of it: gated attention */
    int32_t *every_other;                   /* [2][max_tokens * n_heads]: even rows, odd rows */
    float   *cs[2];                         /* by rope */
    float   *cs_host;
    float   *route, *expert_x, *expert_y;   /* [max_tokens][n_experts], [max_tokens][n_embd] twice */
    struct plp_routing *routing;
};

typedef struct plp_model_options {
    uint32_t max_tokens;                    /* the largest batch */
    uint32_t block_len;
    int32_t  kv_format;
    uint32_t context_limit;                 /* 0: the model's own */
} plp_model_options;

/* The file and the backend must outlive the model. */
plp_status plp_model_open(plp_model **out, const plp_file *f, plp_backend *b, const plp_model_options *o, plp_error *err);
/* Its shape and groups alone: no tensor is looked at, no backend is needed. Nothing but block_bytes and close may follow. */
plp_status plp_model_look(plp_model **out, const plp_file *f, uint32_t block_len, plp_error *err);
void       plp_model_close(plp_model *m);           /* NULL is fine */
/* Store the batch's KV and write the logits it asks for. */
void       plp_model_forward(plp_model *m, const plp_batch *batch);
/* Bytes of one block of a group: format PLP_KV_F16 for open blocks, or the sealed one. */
size_t     plp_model_block_bytes(const plp_model *m, uint32_t group, int32_t kv_format);

/* ---- for this folder ---- */

#define PLP_OPS(call, ...) m->backend->ops->call(m->backend, __VA_ARGS__)

/* shape.c */
plp_status plp_model_read_shape(plp_model *m, plp_error *err);                     /* counts and scales; makes the layers */
plp_status plp_model_assign_layers(plp_model *m, plp_error *err);                  /* then: groups, windows and ropes */

/* weights.c. Tensors; *max_k: the widest input of a product. */
plp_status plp_model_bind(plp_model *m, uint32_t *max_k, plp_error *err);

/* room.c. Work space of all that the model will do, once it is bound; close takes any stage. */
plp_status plp_room_open(plp_model *m, uint32_t max_k, plp_error *err);
void       plp_room_close(plp_model *m);
/* n rooms in backend memory, each of `floats` (0: none is needed). */
typedef struct plp_room { float **p; size_t floats; } plp_room;
plp_status plp_rooms_make(plp_model *m, const plp_room *rooms, size_t n, plp_error *err);

/* rope.c. cs: cos and sin of each token, [n][n_rot / 2][2] */
plp_status plp_rope_open(plp_rope *r, const plp_file *f, const plp_rope_spec *spec, plp_error *err);
void       plp_rope_close(plp_rope *r);
void       plp_rope_table(const plp_rope *r, const int32_t *pos, uint32_t n, float *cs);

/* decoder.c: steps of the plain decoder, in the order of a pass, that other architectures take, too. n rows each. */
/* cos and sin of the batch's positions, to m->cs. */
void       plp_model_rotate(plp_model *m, const plp_batch *batch);
/* m->inputs, each layer's input of its own, from the tokens and from x, their embeddings. */
void       plp_model_layer_inputs(plp_model *m, const plp_batch *batch);
/* y = norm(x), rows of n; RMS or layer norm as the architecture has it. x may be y. */
void       plp_model_norm(plp_model *m, float *y, const float *x, const plp_weight *w, const plp_weight *b, uint32_t n_rows, uint32_t n);
/* A step's input: x, or, if the layer has w, its norm in xn. */
const float *plp_model_pre_norm(plp_model *m, const plp_weight *w, const plp_weight *b, uint32_t n);
/* attn = what the heads see, for queries, keys and values of `in`; keys and values are stored. */
void       plp_model_attend(plp_model *m, const plp_layer *y, const plp_batch *batch, const float *in);
/* x += residual_scale * post(y); y is used up. */
void       plp_model_add_to_residual(plp_model *m, float *y, const plp_weight *post, uint32_t n);
/* x += residual_scale * post(w in + bias) */
void       plp_model_project_to_residual(plp_model *m, const plp_weight *w, const plp_weight *bias, const plp_weight *post,
                                         const float *in, uint32_t n);
/* x += the layer's feed-forward of x, with its norms. */
void       plp_model_feed_forward(plp_model *m, const plp_layer *y, uint32_t n);
/* y = norm(Wproj (act(Wgate from) * input)), `input` of this layer */
void       plp_model_gate_input(plp_model *m, const plp_layer *y, uint32_t layer, const float *from, uint32_t n);

/* recurrent.c. x += the layer's step in attention's place, for a layer that does not attend. */
void       plp_recurrent_run(plp_model *m, const plp_layer *y, const plp_batch *batch);

/* experts.c: n_experts > 0. out = the layer's mixture for x, chosen by what the router says of `by`: all [n][n_embd]. */
plp_status plp_experts_open(plp_model *m, plp_error *err);
void       plp_experts_close(plp_model *m);
void       plp_experts_run(plp_model *m, const plp_layer *y, const float *x, const float *by, float *out, uint32_t n);

/* gemma3n.c: n_streams > 0. */
plp_status plp_streams_open(plp_model *m, plp_error *err);
void       plp_streams_close(plp_model *m);

/* logits.c. Final norm and output matrix for the rows whose logits are wanted. */
void       plp_model_logits(plp_model *m, const plp_batch *batch);

/* One function a family: the whole pass. */
#define ARCH(name, models, since, family, ...) void plp_forward_##family(plp_model *m, const plp_batch *batch);
#include "model/archs.def"
#undef ARCH

#endif
