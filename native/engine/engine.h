/*
 * engine/engine.h - where kv indices, tokens and backend buffers meet
 *
 * engine.c     open and close, options, information, the list of sessions
 * session.c    one timeline: feed, rewind, fork, tokens, sampling
 * reuse.c      sync: what of a timeline is already there; publishing sealed blocks
 * step.c       batches: several callers' steps combined, KV reserved, the forward pass, KV committed
 * guess.c      tokens that may follow, computed beside the one that is there
 * spill.c      idle sessions' blocks to a file and back
 * pin.c        pinned prefixes
 * files.c      prefix and session files
 * fingerprint.c  what the blocks in such a file depend on
 * look.c       what such a file holds, without an engine
 * ledger.c     what the pool holds, re-counted
 * need.c       what it would hold, of a model that is not loaded
 *
 * Locking  `lock` guards the pool, the index, tables and lists. A forward pass runs without it: it reads
 *          only what the batch names, and a session in a batch is busy, so nobody changes its table.
 *          Lock order: a session's busy flag, then `lock`.
 */
#ifndef PLP_ENGINE_ENGINE_H
#define PLP_ENGINE_ENGINE_H

#include "base/platform.h"
#include "kv/prefix.h"
#include "kv/table.h"
#include "model/model.h"
#include "text/sampler.h"

#include <stdatomic.h>

#define PLP_DEFAULT_BLOCK 16u           /* tokens; quantised KV has blocks of this length only */
#define PLP_LEAST_BLOCK 8u
#define PLP_MOST_BLOCK 128u
#define PLP_MAX_CHUNK 512u              /* most tokens in one step */
#define PLP_PACED_CHUNK 256u            /* the same where the caller leaves it to us: */
#define PLP_FIRST_CHUNK 128u            /*   the first one, */
#define PLP_CHUNK_STEP 32u              /*   then multiples of this */
#define PLP_CHUNK_NS 1000000000ull      /*   that take about so long: Ctrl-C waits for one */
#define PLP_N_CLASSES (PLP_MAX_GROUPS * 2)  /* pool classes: two a group */
#define PLP_MAX_GUESSES 5u              /* with the token before them a step of six, which costs little more than one */
#define PLP_MAX_MATCH 8u                /* tokens; a longer match promises nothing more */

/* What one session wants of a step, and what came of it. */
typedef struct plp_request {
    struct plp_request *next;
    plp_session        *session;
    uint32_t            n_tok;          /* how many of its pending tokens the batch takes */
    float              *logits;         /* [n_tok][n_vocab] for all of them, or NULL: the last one's, to the session */
    uint32_t            cap;            /* most tokens in this step */
    plp_block           sealed[PLP_MAX_GROUPS][PLP_MAX_CHUNK / PLP_LEAST_BLOCK];    /* taken for blocks that this step completes */
    bool                done;
    plp_status          status;
    plp_error           error;
} plp_request;

/* A block that lies in the spill file: whose, and where. */
typedef struct plp_spilled {
    uint32_t group, index, cls;
    uint64_t place;
} plp_spilled;

/* What is guessed to follow the timeline (guess.c). */
typedef struct plp_guess {
    int32_t   mode;                     /* PLP_SPECULATE_* */
    uint32_t  match;                    /* tokens at the timeline's end that occurred before */
    uint32_t  n, n_ahead, n_fed;        /* guesses; the first n_ahead are computed; the first n_fed have come true */
    int32_t   ids[PLP_MAX_GUESSES];
    float    *logits;                   /* [PLP_MAX_GUESSES][n_vocab], allocated at the first guess */
    float     rate[PLP_MAX_MATCH + 1];  /* how often the guess after a match of this length comes true */
    uint64_t  n_drafted, n_accepted;
} plp_guess;

struct plp_session {
    plp_engine  *engine;                /* outlives the session, perhaps as a closed shell */
    plp_session *before, *after;        /* in the engine's list */
    atomic_bool  busy;
    atomic_bool  cancelled;
    bool         pinned;                /* a prefix: in the list, never handed to a caller */
    uint64_t     pin_id;
    uint64_t     last_used;             /* engine's step counter; idle sessions spill first */

    int32_t     *tokens;                /* [n_tokens] of cap_tokens */
    uint32_t     n_tokens, cap_tokens;
    uint32_t     n_computed;            /* == table[g].n_tokens */
    uint32_t     n_reserved;            /* contiguous layouts: tokens to reserve; 0: the context limit */
    uint32_t     n_published;           /* whole blocks whose findability was settled */
    plp_table    table[PLP_MAX_GROUPS];
    void       **sealed[PLP_MAX_GROUPS], **open[PLP_MAX_GROUPS];    /* block addresses for the batch */
    uint32_t     cap_addresses;
    plp_spilled *spilled;               /* [n_spilled]; NULL: nothing is, the tables are whole */
    uint32_t     n_spilled;

    float       *logits;                /* [n_vocab], allocated at the first step */
    bool         has_logits;
    plp_guess    guess;
    plp_rng      rng;
    uint64_t     seed;                  /* that rng began with */
    bool         rng_seeded;
    void        *sample_work;
    void        *note;                  /* [note_bytes] of the caller's own, for files */
    uint32_t     note_bytes;
};

/* The block of another group that holds the same tokens as a findable block of group 0. It holds no
 * reference: it counts only while both generations are what they were. */
typedef struct plp_companion {
    uint32_t  of_generation;
    plp_block block;
    uint32_t  generation;
} plp_companion;

typedef struct plp_spill_class {        /* free places in the spill file, for one pool class */
    uint64_t *free;
    uint32_t  n_free, cap;
} plp_spill_class;

/* Tokens that a window group keeps beyond its window, so that a short rewind costs nothing. */
#define PLP_WINDOW_SLACK 256u

/* Positions of a group before this one are no more needed with n tokens stored: a window is kept, and what a short
 * rewind goes on from, which for a running state is the end of the block before. */
static inline uint32_t plp_kept_from(uint32_t window, uint32_t block_len, bool is_state, uint32_t n)
{
    uint32_t from = n > PLP_WINDOW_SLACK ? n - PLP_WINDOW_SLACK : 0;
    if (is_state)
        from -= from % block_len;
    return window && from > window ? from - window : 0;
}

struct plp_engine {
    plp_engine_options options;
    plp_mutex   *lock;
    uint32_t     n_references;          /* the owner, and every session */
    bool         closed;

    plp_file    *file;
    plp_vocab   *vocab;
    plp_backend *backend;
    plp_model   *model;
    plp_pool    *pool;
    plp_prefix  *prefix;                /* NULL: PLP_ENGINE_NO_REUSE */
    plp_scratch_file *spill_file;       /* NULL: never spill */
    uint64_t     spill_end;
    plp_spill_class spill_class[PLP_N_CLASSES];
    size_t       largest_block;         /* bytes */
    uint64_t     fingerprint[4];        /* of model, geometry, KV format and numerics: what files must agree with */
    plp_companion *companions;          /* [n_companions][n_groups - 1], by block of group 0 */
    uint32_t     n_companions;

    plp_session *sessions;
    uint64_t     next_pin;
    plp_counters counters;
    float        one_token_ns, guess_price;     /* a step of one token; what a guess adds to it, as a share (guess.c) */

    /* Steps: callers queue up, the first becomes leader and serves whoever is there. */
    plp_request *queue, **queue_end;
    bool         leading;
    int32_t     *ids, *pos, *out_rows;  /* [max_tokens] */
    float      **out;                   /* [max_tokens] */
    plp_seq     *seqs;                  /* [max_tokens] */
    plp_request **batch;                /* [max_tokens] */
    uint32_t     max_tokens;
    bool         paced;                 /* chunks follow the clock */
    uint32_t     pace;                  /* most prompt tokens of a session in the next step */
};

/* A group has two pool classes: of its open (f16) blocks, and of its sealed ones. They are one where sealing changes nothing. */
static inline uint32_t plp_open_class(const plp_engine *e, uint32_t group) { return group * 2; }
static inline uint32_t plp_sealed_class(const plp_engine *e, uint32_t group)
{
    return e->options.kv_format == PLP_KV_F16 || e->model->group[group].state_bytes ? group * 2 : group * 2 + 1;
}
static inline uint32_t plp_group_of_class(uint32_t cls) { return cls / 2; }
/* Tokens of a group's block: the engine's block length, or for running states a multiple of it. */
static inline uint32_t plp_group_len(const plp_engine *e, uint32_t group) { return e->model->group[group].block_len; }

/* ---- for this folder: with the lock held from call to return, unless it says otherwise ---- */

/* engine.c. One reference less; the last one frees the engine's shell. Called without the lock. */
void       plp_engine_release(plp_engine *e);

/* session.c */
/* The session for one call: enter marks it busy and takes the lock (neither on failure: PLP_E_BUSY, PLP_E_CLOSED), leave
 * gives both back. Called without the lock. */
plp_status plp_session_enter(plp_session *s, plp_error *err);
void       plp_session_leave(plp_session *s);           /* called with the lock, returns without */
/* An empty session in the engine's list. */
plp_status plp_session_make(plp_session **out, plp_engine *e, plp_error *err);
/* Drop its blocks, unlink and free it. Its reference to the engine goes too: the caller has another. */
void       plp_session_unmake(plp_session *s);
plp_status plp_session_fork_locked(plp_session **out, plp_session *s, plp_error *err);     /* s is not spilled */
/* n tokens remain in the timeline; of a block that cannot be continued, fewer stay computed. With want_logits the last
 * token is left to be computed again. */
void       plp_session_cut(plp_session *s, uint32_t n, bool want_logits);
plp_status plp_session_append(plp_session *s, const int32_t *tokens, uint32_t n, plp_error *err);

/* step.c. n more tokens have their KV stored: tables follow, whole blocks are published, those behind a window dropped. */
void       plp_session_advance(plp_session *s, uint32_t n);

/* reuse.c. Blocks that became whole: findable from now on, or replaced by an equal one. */
void       plp_session_publish(plp_session *s);

/* guess.c */
void       plp_guess_start(plp_engine *e);              /* what is assumed of steps, before any was timed */
void       plp_guess_init(plp_guess *g);                /* and of a session's guesses, before any was seen to come true */
/* Look up what may follow, for a step of one token. Returns how many guesses to compute with it. */
uint32_t   plp_guess_next(plp_session *s);
void       plp_guess_forget(plp_session *s);
/* The timeline's last n tokens are new: those that were guessed and computed need no step. */
void       plp_guess_fed(plp_session *s, uint32_t n);
/* A step of one token and so many guesses took this long. */
void       plp_guess_timed(plp_engine *e, uint32_t n_guesses, uint64_t ns);

/* spill.c. spill_idle: the session idle longest, never `not_this`; *freed is 0 if there is none. */
plp_status plp_spill_idle(plp_engine *e, const plp_session *not_this, uint64_t *freed, plp_error *err);
plp_status plp_spill_restore(plp_session *s, plp_error *err);   /* nothing to do if it is whole */
void       plp_spill_forget(plp_session *s);                    /* its places in the file are free again */

/* fingerprint.c. Once, when the model is open. */
void       plp_engine_set_fingerprint(plp_engine *e);

#endif
