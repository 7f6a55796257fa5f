/*
 * kv/store.h - KV blocks in a file, to be mapped and used in place
 *
 * A prefix file holds a chain of sealed blocks for its tokens. A session file holds a whole timeline,
 * the session's own blocks, and the name of the prefix file that has the others. Both are this
 * container; what the bytes of a block mean is the caller's business.
 *
 *   0      header, 640 bytes: magic, version, kind, fingerprint, shape, runs, checksums (store.c)
 *   640    tokens  int32 [n_tokens]
 *          path    bytes of the referred file's path
 *          note    bytes of the caller's own, zeros up to a multiple of 8
 *          sums    uint64 [blocks of all runs], plp_checksum of each block
 *          zeros up to a multiple of 16 KiB (the largest page of a usual machine)
 *          payload: the blocks, run after run, nothing in between
 *
 * A run is a number of equal blocks: a group of layers, or one format within it. Numbers have the
 * machine's byte order; a file from a machine of the other order is refused.
 *
 * A file is written aside and renamed, so a reader sees the old one or the whole new one; it is never
 * changed afterwards. Opening maps it read-only and checks everything, each block's checksum
 * included, before anything is handed out: a flipped or missing byte is PLP_E_FILE. Checksums find
 * damage, they do not stop a forger. All sizes are checked against the file, but tokens are whatever
 * was stored: whoever looks them up checks their range.
 *
 * Owner    the store owns its mapping; it lives until its last reference is dropped
 * Threads  the engine's lock
 * Errors   PLP_E_FILE (one sentence naming the cause), PLP_E_IO, PLP_E_NOMEM, PLP_E_ARG
 */
#ifndef PLP_KV_STORE_H
#define PLP_KV_STORE_H

#include "base/status.h"

enum { PLP_STORE_PREFIX = 1, PLP_STORE_SESSION = 2 };
enum { PLP_STORE_VERSION = 1, PLP_STORE_MAX_RUNS = 16, PLP_STORE_MAX_PATH = 4095, PLP_STORE_MAX_NOTE = 1 << 26 };

/* What must be equal for blocks to be usable. The fingerprint alone decides; the numbers are there so
 * that a refusal can say what differs. */
typedef struct plp_store_shape {
    uint8_t  fingerprint[32];
    uint32_t block_len, n_layers, n_kv_heads, head_dim, kv_format;
} plp_store_shape;

/* A fingerprint as 64 hex digits and a NUL. */
void plp_fingerprint_spell(const uint8_t fingerprint[32], char out[65]);

typedef struct plp_store_run {
    uint64_t block_bytes;       /* a multiple of 64 */
    uint32_t n_blocks;
    uint32_t first;             /* place of the run's first block in the timeline, in blocks */
    uint32_t tag;               /* the caller's: which group, which format */
} plp_store_run;

typedef struct plp_store_info {
    uint32_t        kind;       /* PLP_STORE_PREFIX, PLP_STORE_SESSION */
    plp_store_shape shape;
    uint32_t        n_tokens;
    const int32_t  *tokens;     /* [n_tokens] */
    uint32_t        n_runs;
    plp_store_run   runs[PLP_STORE_MAX_RUNS];
    const char     *ref_path;   /* session: the prefix file of the beginning, or NULL */
    uint64_t        ref_id;     /* plp_store_id of that file */
    uint32_t        ref_tokens; /* tokens that it covers */
    const void     *note;       /* [note_bytes]: whatever the caller wants to find with the blocks; not part of the id */
    uint32_t        note_bytes;
} plp_store_info;

/* Bytes of block i of a run; called for each block twice, in order. NULL: cannot be had (PLP_E_IO). The
 * pointer is used until the next call. */
typedef const void *(*plp_store_source)(void *context, uint32_t run, uint32_t i);

plp_status plp_store_save(const char *path, const plp_store_info *info, plp_store_source block, void *context, plp_error *err);

typedef struct plp_store plp_store;

/* Maps and checks a whole file of this kind and shape; one reference. Kind 0 and shape NULL: any, to look at it. */
plp_status plp_store_open(plp_store **out, const char *path, uint32_t kind, const plp_store_shape *shape, plp_error *err);
/* The same for bytes in memory, which stay the caller's and must outlive the store. They may lie anywhere
 * (the alignments below then do not hold); `name` is for messages. */
plp_status plp_store_parse(plp_store **out, const char *name, const uint8_t *data, size_t n_bytes, uint32_t kind,
                           const plp_store_shape *shape, plp_error *err);
void       plp_store_keep(plp_store *s);
void       plp_store_drop(void *store);                 /* as plp_pool_adopt's `gone`; NULL is fine */
const plp_store_info *plp_store_get(const plp_store *s);        /* pointers in it live as long as s */
void      *plp_store_block(const plp_store *s, uint32_t run, uint32_t i);   /* 64-byte aligned; read-only memory */
uint64_t   plp_store_bytes(const plp_store *s);         /* of the file */
uint64_t   plp_store_id(const plp_store *s);            /* differs between files of different tokens, shape or blocks */

/* The file's checksum, for tests and for those who make such files. Four lanes of 64-bit words: each step
 * (xor a word, rotate left 29, multiply by 0x9fb21c651e98df25) is a bijection, so a change within one word
 * always shows. Words go to lanes 0 1 2 3 in turn while 32 bytes are left, then to lane 0; a rest below 8
 * bytes, padded with zeros, to lane 1. Lanes start as 1 2 3 4 and are folded by the same step into the
 * length; last h ^= h >> 32, h *= the factor, h ^= h >> 29. */
uint64_t   plp_checksum(const void *data, size_t n_bytes);

#endif
