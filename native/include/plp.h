/*
 * plp.h - the public C API of libplp: run quantised GGUF models on a paged KV cache
 *
 * Nouns      file     a GGUF file's metadata and tensor list (for looking at)
 *            vocab    a tokenizer, from a model file or a vocabulary-only file
 *            engine   a loaded model, a backend, a pool of KV blocks
 *            session  one token timeline and the KV blocks behind it
 *            kv file  a stored prefix or session (for looking at, without a model)
 *
 * Results    every fallible call returns a plp_status (PLP_OK or negative) and, where `err` is
 *            not NULL, one sentence in err->msg. On failure outputs and objects are as before.
 * Units      n_* counts, *_bytes bytes, positions and lengths in tokens, logits f32.
 * Threads    different sessions of one engine may be used from different threads at once: their
 *            steps are combined into one batch. One session serves one thread at a time; a second
 *            caller gets PLP_E_BUSY. plp_session_cancel may be called from any thread.
 * Library    never exits, aborts, prints, or installs handlers.
 */
#ifndef PLP_H
#define PLP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined _WIN32
#define PLP_API __declspec(dllexport)
#else
#define PLP_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ------------------------------------------------------------------------------ */

typedef enum plp_status {
    PLP_OK            =   0,
    PLP_E_ARG         =  -1,  /* the caller passed something that cannot be */
    PLP_E_NOMEM       =  -2,  /* the operating system refused memory */
    PLP_E_IO          =  -3,  /* a file could not be opened, read or written */
    PLP_E_FILE        =  -4,  /* a file's content is damaged or is not what it should be */
    PLP_E_UNSUPPORTED =  -5,  /* a sound file, but of a kind this build does not run */
    PLP_E_BUDGET      =  -6,  /* the KV byte budget is used up, this session's timeline is as before; or (open) it is too small for one token */
    PLP_E_CONTEXT     =  -7,  /* the session's context limit is reached; nothing was dropped */
    PLP_E_BUSY        =  -8,  /* another thread is inside this session */
    PLP_E_CANCELLED   =  -9,  /* plp_session_cancel; what was fed so far stays */
    PLP_E_NUMERIC     = -10,  /* a NaN or infinity where a logit should be */
    PLP_E_CLOSED      = -11,  /* the engine behind this session was closed */
} plp_status;

typedef struct plp_error {
    int32_t  status;
    uint64_t wanted;            /* BUDGET, NOMEM: bytes; CONTEXT: tokens; else 0 */
    uint64_t available;         /* same unit */
    char     msg[496];          /* one UTF-8 sentence, NUL-terminated, possibly cut */
} plp_error;

PLP_API const char *plp_version(void);              /* "0.1.0" */
PLP_API const char *plp_status_name(int32_t status);

/* ---- the machine ------------------------------------------------------------------------- */

typedef struct plp_machine {
    char     tier[16];          /* kernel tier in use: "ref", "avx2", "avx512", "neon", ... */
    char     features[240];     /* CPU features found, space-separated */
    char     threads_reason[160];/* why n_threads is what it is */
    uint32_t n_threads;         /* the default thread count */
    uint64_t memory_bytes;      /* physical memory, or the container's limit if that is less */
} plp_machine;

/* PLP_CPU=<tier> in the environment forces a tier; one the CPU lacks is PLP_E_UNSUPPORTED. */
PLP_API plp_status plp_machine_info(plp_machine *out, plp_error *err);

/* Devices that this build knows, by number from 0; PLP_E_ARG past the last. */
typedef struct plp_device {
    char     name[16];          /* what plp_engine_options.device calls it */
    char     what[304];         /* the device in words, or why it is not there */
    bool     is_there;
} plp_device;
PLP_API plp_status plp_device_info(uint32_t i, plp_device *out, plp_error *err);

/* ---- file: look at a GGUF without loading it ---------------------------------------------- */

typedef struct plp_file plp_file;

enum { PLP_FILE_LENIENT = 1 };  /* open even if tensor data is missing; see plp_file_problem */

typedef struct plp_meta {
    const char *key;            /* NUL-terminated; may hold arbitrary UTF-8 */
    int32_t     type;           /* GGUF value type 0..12 */
    int32_t     elem_type;      /* of an array; else -1 */
    uint64_t    n;              /* elements of an array; else 1 */
} plp_meta;

typedef struct plp_tensor_info {
    const char *name;
    int32_t     type;           /* ggml type id */
    const char *type_name;      /* "Q4_1"; never NULL */
    uint32_t    n_dims;
    uint64_t    dims[4];        /* fastest-running first, as in the file; unused ones are 1 */
    uint64_t    n_bytes;
    uint64_t    offset;         /* from the start of its file */
    uint32_t    part;           /* which file of a split model */
} plp_tensor_info;

PLP_API plp_status  plp_file_open(plp_file **out, const char *path, uint32_t flags, plp_error *err);
PLP_API void        plp_file_close(plp_file *f);                       /* NULL is fine */
PLP_API const char *plp_file_problem(const plp_file *f);               /* NULL if complete */
PLP_API uint64_t    plp_file_bytes(const plp_file *f);                 /* all parts */
PLP_API uint32_t    plp_file_version(const plp_file *f);
PLP_API uint64_t    plp_file_n_meta(const plp_file *f);
PLP_API plp_status  plp_file_meta(const plp_file *f, uint64_t i, plp_meta *out, plp_error *err);
PLP_API int64_t     plp_file_find(const plp_file *f, const char *key); /* index or -1 */
/* Element `at` of pair `i` (0 for a scalar), converted; strings are not NUL-terminated. */
PLP_API plp_status  plp_file_str(const plp_file *f, uint64_t i, uint64_t at, const char **s, size_t *n, plp_error *err);
PLP_API plp_status  plp_file_f64(const plp_file *f, uint64_t i, uint64_t at, double *v, plp_error *err);
PLP_API plp_status  plp_file_i64(const plp_file *f, uint64_t i, uint64_t at, int64_t *v, plp_error *err);
PLP_API uint64_t    plp_file_n_tensors(const plp_file *f);
PLP_API plp_status  plp_file_tensor(const plp_file *f, uint64_t i, plp_tensor_info *out, plp_error *err);
/* The tensor's raw bytes, mapped read-only, valid until close. PLP_E_FILE if they are not all there. */
PLP_API plp_status  plp_file_tensor_data(const plp_file *f, uint64_t i, const void **data, plp_error *err);
/* One row of `k` values of a ggml type to f32. PLP_E_UNSUPPORTED for types that cannot be dequantised. */
PLP_API plp_status  plp_dequantize(int32_t type, const void *src, float *dst, uint64_t k, plp_error *err);

/* ---- vocab -------------------------------------------------------------------------------- */

typedef struct plp_vocab plp_vocab;

enum {
    PLP_TOKENIZE_BOS     = 1,   /* add BOS (and EOS) as the vocabulary's own rules say */
    PLP_TOKENIZE_CONTROL = 2,   /* control tokens spelled in the text become control tokens */
    PLP_TOKENIZE_CONTINUE= 4,   /* the text continues earlier text: no leading-space rule */
    PLP_TOKENIZE_STRIP   = 8,   /* leave out white space at the start: the text follows a token that takes it */
    PLP_TOKENIZE_STRIP_END=16,  /* leave out white space at the end: such a token follows the text */
    PLP_TEXT_CONTROL     = 1,   /* detokenize: spell control tokens out; else they are left out */
    PLP_TEXT_CONTINUE    = 4,   /* detokenize: the ids continue earlier ones: a leading space stays */
};

enum plp_token_kind { PLP_TOKEN_NORMAL = 1, PLP_TOKEN_UNKNOWN, PLP_TOKEN_CONTROL, PLP_TOKEN_USER, PLP_TOKEN_UNUSED, PLP_TOKEN_BYTE };

typedef struct plp_vocab_info {
    uint32_t n_tokens;
    char     model[32];         /* "gpt2", "llama", ... as in tokenizer.ggml.model */
    char     pre[48];           /* tokenizer.ggml.pre, or "" */
    char     warning[240];      /* e.g. an unknown pre-tokenizer and what is used instead; or "" */
    int32_t  bos, eos, eot, pad, unk;   /* -1: the file names none; never invented */
    bool     add_bos, add_eos, add_space_prefix;
} plp_vocab_info;

PLP_API plp_status plp_vocab_open(plp_vocab **out, const plp_file *f, plp_error *err);  /* copies what it needs */
PLP_API void       plp_vocab_close(plp_vocab *v);
PLP_API void       plp_vocab_get_info(const plp_vocab *v, plp_vocab_info *out);
/* Bytes in (any bytes: invalid UTF-8 becomes byte tokens), ids out. *n is the number needed even
 * where `cap` is too small (then PLP_E_ARG and out untouched past cap). Linear in n_bytes. */
PLP_API plp_status plp_tokenize(const plp_vocab *v, const char *text, size_t n_bytes, uint32_t flags,
                                int32_t *out, size_t cap, size_t *n, plp_error *err);
/* Ids in, bytes out; same rule for cap and *n. */
PLP_API plp_status plp_detokenize(const plp_vocab *v, const int32_t *ids, size_t n_ids, uint32_t flags,
                                  char *out, size_t cap, size_t *n, plp_error *err);
/* The text bytes of one token ("" for control tokens unless PLP_TEXT_CONTROL). */
PLP_API plp_status plp_token_text(const plp_vocab *v, int32_t id, uint32_t flags, char *out, size_t cap, size_t *n, plp_error *err);
PLP_API int32_t    plp_token_kind_of(const plp_vocab *v, int32_t id);          /* plp_token_kind, 0 if out of range */
PLP_API int32_t    plp_token_find(const plp_vocab *v, const char *spelling, size_t n_bytes);  /* exact spelling; -1 */
PLP_API bool       plp_token_ends(const plp_vocab *v, int32_t id);             /* eos, eot or another end token */
PLP_API bool       plp_token_strips(const plp_vocab *v, int32_t id);           /* takes the white space after it (control tokens of Phi) */
PLP_API bool       plp_token_strips_before(const plp_vocab *v, int32_t id);    /* and that before it (Phi-4) */

/* ---- engine ------------------------------------------------------------------------------- */

typedef struct plp_engine plp_engine;

enum plp_kv_format { PLP_KV_F16 = 0, PLP_KV_Q8 = 1, PLP_KV_Q4 = 2 };
enum plp_kv_layout { PLP_LAYOUT_PAGED = 0, PLP_LAYOUT_CONTIGUOUS = 1 /* reserved and touched at session open */,
                     PLP_LAYOUT_LAZY = 2 /* contiguous, committed by the OS on first touch */ };
enum { PLP_ENGINE_SHUFFLE = 1 /* hand blocks out in random order (tests, benchmarks) */,
       PLP_ENGINE_MLOCK = 2, PLP_ENGINE_PREFETCH = 4, PLP_ENGINE_NO_REUSE = 8 /* no prefix index */,
       PLP_ENGINE_ONE_HASH = 16 /* all blocks hash alike, so that only their tokens tell them apart (tests) */ };

/* What a model's KV takes, told by its file without opening the model. The layers of a group share one kind of block. */
typedef struct plp_kv_group {
    uint32_t n_layers, block_len;
    uint32_t window;            /* tokens that its layers look back; 0: all */
    bool     is_state;          /* blocks hold a running state: as large however many tokens they stand for */
    uint64_t block_bytes[3];    /* by plp_kv_format */
} plp_kv_group;

typedef struct plp_kv_shape { uint32_t n_layers, context_train, n_groups; plp_kv_group group[2]; } plp_kv_shape;

PLP_API plp_status plp_kv_shape_of(const plp_file *f, uint32_t block_len /* 0: 16 */, plp_kv_shape *out, plp_error *err);
/* What one session of so many tokens holds, nothing shared; while a chunk is computed, that chunk's blocks besides. */
PLP_API uint64_t   plp_kv_shape_bytes(const plp_kv_shape *s, int32_t kv_format, uint32_t n_tokens);

typedef struct plp_engine_options {
    const char *device;         /* "auto", "cpu", "cuda", "metal", "emu"; NULL: auto */
    uint32_t    n_threads;      /* 0: performance cores, within affinity and quota */
    uint32_t    context_limit;  /* tokens a session may hold; 0: the model's own */
    uint32_t    block_len;      /* tokens per KV block, a power of two 8..128; 0: 16 */
    uint32_t    chunk_len;      /* most prompt tokens in one step; 0: as many as a second computes, 32 to 256 */
    int32_t     kv_format;      /* plp_kv_format of sealed blocks */
    int32_t     kv_layout;      /* plp_kv_layout; anything but paged is a benchmark's baseline */
    uint32_t    flags;
    uint64_t    kv_budget_bytes;/* hard limit on the pool; 0: half of physical memory */
    uint64_t    kv_cache_bytes; /* most that blocks nobody holds may keep for later reuse; 0: none, they
                                   go back to the OS with their last holder */
    const char *spill_dir;      /* NULL: never spill */
} plp_engine_options;

typedef struct plp_engine_info {
    char     architecture[40];
    char     device[40];
    char     tier[16];
    uint32_t n_threads, n_layers, n_embd, n_vocab, n_heads, n_kv_heads, head_dim;
    uint32_t context_train, context_limit, block_len;
    uint64_t weights_bytes;     /* file-backed, mapped */
    uint64_t n_params;
    uint64_t kv_bytes_per_token;/* in the open (f16) format, all layers */
    uint64_t kv_budget_bytes;
    int32_t  kv_format;
} plp_engine_info;

/* What the pool holds, in bytes unless said otherwise. Always, re-counted by plp_engine_check:
 *   resident = token_state + reserved + internal + external + cached + metadata_in_pool
 * shared_saved is what the sessions would need besides, had they not shared blocks. */
typedef struct plp_memory {
    uint64_t resident;          /* pool memory obtained from the OS (or device) and not given back */
    uint64_t token_state;       /* KV of tokens that some session or pinned prefix holds, once each */
    uint64_t reserved;          /* slots of open blocks that the next tokens will fill */
    uint64_t internal;          /* slots that are held and will never be used (contiguous layouts) */
    uint64_t external;          /* free blocks inside slabs, slab tails */
    uint64_t cached;            /* dropped but findable blocks; evicted when memory is needed */
    uint64_t pinned;            /* part of token_state that pinned prefixes hold */
    uint64_t mapped;            /* file-backed prefix blocks in use; not part of resident */
    uint64_t shared_saved;
    uint64_t spilled;           /* bytes of idle sessions' blocks in the spill file */
    uint64_t scratch;           /* activations and work space; a GPU's own is not counted */
    uint64_t metadata;          /* tables, index, bookkeeping */
    uint64_t weights;           /* file-backed weights */
    uint64_t n_tokens;          /* live tokens over all sessions, shared ones once */
    uint64_t n_blocks, n_slabs; /* held blocks; slabs */
    uint64_t budget;
} plp_memory;

/* Counters since the engine opened. */
typedef struct plp_counters {
    uint64_t tokens_computed, tokens_reused, steps, blocks_forked, blocks_evicted, blocks_sealed,
             blocks_spilled, blocks_restored, budget_refusals;
} plp_counters;

PLP_API void       plp_engine_defaults(plp_engine_options *o);
PLP_API plp_status plp_engine_open(plp_engine **out, const char *path, const plp_engine_options *o, plp_error *err);
/* Sessions still open become closed objects: every later call on them says PLP_E_CLOSED. */
PLP_API void       plp_engine_close(plp_engine *e);
PLP_API void       plp_engine_get_info(const plp_engine *e, plp_engine_info *out);
PLP_API const plp_vocab *plp_engine_vocab(const plp_engine *e);
PLP_API const plp_file  *plp_engine_file(const plp_engine *e);
PLP_API void       plp_engine_memory(plp_engine *e, plp_memory *out);
PLP_API void       plp_engine_counters(plp_engine *e, plp_counters *out);
/* Give at least `bytes` back to the OS if the ladder can: cached blocks, then idle sessions (spill). */
PLP_API plp_status plp_engine_trim(plp_engine *e, uint64_t bytes, uint64_t *freed, plp_error *err);
PLP_API bool       plp_engine_check(plp_engine *e);     /* re-counts every invariant; slow */

/* ---- session ------------------------------------------------------------------------------ */

typedef struct plp_session plp_session;

typedef struct plp_sync {       /* what plp_session_sync did with the timeline it was given */
    uint32_t n_kept;            /* tokens this session already had */
    uint32_t n_reused;          /* further tokens whose KV other sessions or prefixes had */
    uint32_t n_pending;         /* tokens that steps will now compute */
    uint32_t n_dropped;         /* old tokens rewound because the new timeline differs */
} plp_sync;

typedef struct plp_session_memory {
    uint64_t own, shared, saved, reserved, spilled;   /* bytes; saved = shared blocks' bytes it did not need */
    uint32_t n_tokens, n_blocks, n_shared_blocks;
    uint32_t n_saved_blocks;    /* of the shared ones: those that another session or a file pays for already */
} plp_session_memory;

typedef struct plp_sampling {
    float    temperature;       /* 0: greedy */
    int32_t  top_k;             /* 0: off */
    float    top_p, min_p, typical_p;   /* 1, 0, 1: off */
    float    repeat_penalty, presence_penalty, frequency_penalty;   /* 1, 0, 0: off */
    int32_t  penalty_last_n;    /* tokens the penalties look back; -1: all */
    uint64_t seed;              /* of this session's generator: used at the first draw, and where it differs
                                   from the last one; the same seed goes on in its sequence */
    const int32_t *bias_ids;    /* logit bias: ids, values, count */
    const float   *bias_values;
    uint32_t n_bias;
} plp_sampling;

PLP_API void       plp_sampling_defaults(plp_sampling *s);          /* greedy */
PLP_API plp_status plp_session_open(plp_session **out, plp_engine *e, plp_error *err);
PLP_API void       plp_session_close(plp_session *s);               /* NULL is fine; blocks go back or stay cached */

/* Adopt a whole timeline: keep the common prefix, rewind the rest, reuse what the index has.
 * Nothing is computed yet. PLP_E_CONTEXT if n exceeds the limit (timeline unchanged). */
PLP_API plp_status plp_session_sync(plp_session *s, const int32_t *tokens, uint32_t n, plp_sync *report, plp_error *err);
/* Append tokens to the timeline, to be computed by steps. */
PLP_API plp_status plp_session_feed(plp_session *s, const int32_t *tokens, uint32_t n, plp_error *err);
/* Compute at most one chunk of pending tokens; *n_pending is what is left. When it reaches 0 the
 * logits of the last token are there. A session with nothing pending returns at once. */
PLP_API plp_status plp_session_step(plp_session *s, uint32_t *n_pending, plp_error *err);
/* As step, writing the logits of every token computed to `logits` [n_done][n_vocab] (cap in rows). */
PLP_API plp_status plp_session_step_logits(plp_session *s, float *logits, uint32_t cap, uint32_t *n_done,
                                           uint32_t *n_pending, plp_error *err);
/* Speculation: where the end of the timeline occurred before, a step of one token also computes a few of the tokens that
 * followed there, and feeding those then needs no step. Changes no logit, no draw, no block; models with running
 * states and steps of several sessions do without. */
enum plp_speculate { PLP_SPECULATE_OFF = 0, PLP_SPECULATE_ON = 1 /* where it pays */, PLP_SPECULATE_ALWAYS = 2 /* tests */ };
PLP_API plp_status plp_session_speculate(plp_session *s, int32_t mode, plp_error *err);
/* Tokens so computed, and how many of them were then fed. */
PLP_API void       plp_session_drafts(plp_session *s, uint64_t *n_drafted, uint64_t *n_accepted);
/* Logits after the last computed token, [n_vocab]; NULL while tokens are pending or there are none.
 * Valid until the next call on this session. */
PLP_API const float *plp_session_logits(plp_session *s);
/* Draw the next token from those logits; does not append it. */
PLP_API plp_status plp_session_sample(plp_session *s, const plp_sampling *p, int32_t *token, float *logprob, plp_error *err);
/* Drop the last tokens so that n remain. The last one kept is computed again if its logits are asked for. */
PLP_API plp_status plp_session_rewind(plp_session *s, uint32_t n, plp_error *err);
/* A new session with the same timeline, sharing every block; copied at the first write. */
PLP_API plp_status plp_session_fork(plp_session **out, plp_session *s, plp_error *err);
/* Contiguous and lazy layouts: the tokens that this session's reservation holds, instead of the context limit. It
 * grows to what a step needs beyond that. Before the first step, else PLP_E_ARG; a paged engine takes no notice. */
PLP_API plp_status plp_session_reserve(plp_session *s, uint32_t n_tokens, plp_error *err);
PLP_API void       plp_session_cancel(plp_session *s);
PLP_API uint32_t   plp_session_n_tokens(plp_session *s);            /* timeline, pending ones included */
PLP_API uint32_t   plp_session_n_computed(plp_session *s);
PLP_API plp_status plp_session_tokens(plp_session *s, int32_t *out, uint32_t cap, uint32_t *n, plp_error *err);
PLP_API void       plp_session_get_memory(plp_session *s, plp_session_memory *out);

/* One step for several sessions in one batch (parallel samples, beams). Each needs pending tokens, unless it speculates:
 * then they may be computed already. */
PLP_API plp_status plp_step_many(plp_session *const *s, uint32_t n, plp_error *err);

/* ---- prefixes and files ------------------------------------------------------------------- */

/* Pin the first n computed tokens of a session: their blocks stay until unpinned. */
PLP_API plp_status plp_session_pin(plp_session *s, uint32_t n, uint64_t *pin, plp_error *err);
PLP_API plp_status plp_engine_unpin(plp_engine *e, uint64_t pin, plp_error *err);
/* Write a computed session's first n tokens as an immutable prefix file (atomic), and map one.
 * plp_prefix_load pins what it maps; a file that does not fit this engine or does not check is
 * PLP_E_FILE and leaves the engine as it was. */
PLP_API plp_status plp_prefix_save(plp_session *s, uint32_t n, const char *path, plp_error *err);
PLP_API plp_status plp_prefix_load(plp_engine *e, const char *path, uint64_t *pin, uint32_t *n_tokens, plp_error *err);
/* 64 hex digits + NUL: model content, geometry, KV format and numerics version. */
PLP_API void       plp_engine_fingerprint(const plp_engine *e, char out[65]);
/* A session's timeline and own blocks to a file (atomic), and back. `prefix_path` (or NULL) is stored
 * as the place of the shared beginning; blocks that it holds are not written again. */
PLP_API plp_status plp_session_save(plp_session *s, const char *path, const char *prefix_path, plp_error *err);
PLP_API plp_status plp_session_resume(plp_session **out, plp_engine *e, const char *path, plp_error *err);
/* Bytes of the caller's own (messages, a name): copied, written into the files that this session is saved
 * to, and there again after resume. n == 0 removes it. The pointer is good until the next set_note. */
PLP_API plp_status  plp_session_set_note(plp_session *s, const void *note, size_t n, plp_error *err);
PLP_API const void *plp_session_note(plp_session *s, size_t *n);            /* NULL if there is none */

/* ---- kv file: look at a prefix or session file without a model --------------------------- */

typedef struct plp_kv_file plp_kv_file;

enum { PLP_KV_FILE_PREFIX = 1, PLP_KV_FILE_SESSION = 2 };

typedef struct plp_kv_file_info {   /* pointers are good until close */
    int32_t        kind;
    char           fingerprint[65];
    uint32_t       block_len, n_tokens;
    int32_t        kv_format;
    uint64_t       n_bytes;
    const int32_t *tokens;          /* [n_tokens] as stored: may lie outside any vocabulary */
    const char    *reference;       /* of a session: the prefix file that has its beginning, or NULL */
    const void    *note;            /* [n_note] or NULL */
    size_t         n_note;
} plp_kv_file_info;

/* Checks the whole file, every checksum; PLP_E_FILE if it is damaged or something else. */
PLP_API plp_status plp_kv_file_open(plp_kv_file **out, const char *path, plp_error *err);
PLP_API void       plp_kv_file_close(plp_kv_file *f);               /* NULL is fine */
PLP_API void       plp_kv_file_get_info(const plp_kv_file *f, plp_kv_file_info *out);

#ifdef __cplusplus
}
#endif
#endif
