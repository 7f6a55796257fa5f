/*
 * format/gguf_index.h - what an opened GGUF file is inside: the index over its mapping
 *
 *   file bytes   | header | pairs | tensor table | pad | tensor data ...            |
 *                  checked once in gguf.c              data_at
 *   index        pairs[n_meta]        where each value lies, and how many there are
 *                tensors[n_tensors]   all parts' tensors, parts in order
 *                names                NUL-terminated copies of keys and tensor names
 *
 * gguf.c fills it, gguf_split.c opens paths and joins parts, gguf_meta.c answers questions.
 *
 * Owner    a plp_file owns its map (unless parsed from memory), its index and its siblings
 * Always   every `at` lies in the mapping together with the n values behind it;
 *          a tensor's data is NULL or n_bytes that lie in the mapping;
 *          keys are unique, tensor names are unique over all parts
 */
#ifndef PLP_FORMAT_GGUF_INDEX_H
#define PLP_FORMAT_GGUF_INDEX_H

#include "base/platform.h"
#include "format/gguf.h"

/* Strings in arrays have their lengths in front, so finding the i-th means walking. A mark every
 * so many strings keeps the walk short and the index at half a byte per string. */
#define PLP_MARK_EVERY 16u

typedef struct plp_pair {
    size_t         key_at;                  /* in names */
    int32_t        type, elem_type;         /* plp_meta_type; elem_type is -1 for a scalar */
    uint64_t       n;                       /* values: 1 for a scalar */
    const uint8_t *at;                      /* first value; for strings, its length field */
    size_t        *marks;                   /* string arrays: offset from `at` of every 16th string */
} plp_pair;

typedef struct plp_entry {
    plp_tensor     tensor;                  /* what the loader sees */
    size_t         name_at;                 /* in names */
    uint64_t       offset;                  /* as in the table, later from the start of its file */
    uint32_t       part;
} plp_entry;

/* Open addressing, at most half full; a slot holds an index + 1. The seed is random, because the
 * names are the file's and could otherwise be chosen to collide. */
typedef struct plp_names_table {
    uint32_t *slots;
    uint32_t  mask;
} plp_names_table;

struct plp_file {
    plp_map         map;
    bool            owns_map;
    uint32_t        version;
    size_t          data_at;
    plp_pair       *pairs;
    uint32_t        n_meta, cap_meta;
    plp_entry      *entries;
    uint32_t        n_tensors, cap_tensors;
    plp_names_table by_key, by_name;
    uint64_t        seed;
    char           *names;
    size_t          names_bytes, names_cap;
    plp_file      **siblings;               /* parts 2.. of a split model; their tensors are in entries */
    uint32_t        n_siblings;
    char           *path;                   /* NULL if parsed from memory */
    char            problem[sizeof ((plp_error *)0)->msg];   /* "" if complete */
};

/* Check and index f->map; all else in f, but path and owns_map, is zero. gguf.c */
plp_status plp_file_read(plp_file *f, uint32_t flags, plp_error *err);
/* Part nr, from 1: its tensors are added to f's. f owns `part` from here on, also on failure; the
 * caller has made room in f->siblings. gguf.c */
plp_status plp_file_adopt(plp_file *f, plp_file *part, uint32_t nr, plp_error *err);
/* Strict: passes a failure (in `local`) on to err. Lenient: remembers the first one as f's problem
 * and returns PLP_OK, but for memory that ran out, which is no property of the file. gguf.c */
plp_status plp_file_settle(plp_file *f, uint32_t flags, plp_status status, const plp_error *local, plp_error *err);

/* Bytes of one value of a fixed-size type; 0 for strings, arrays and unknown types. */
size_t plp_meta_type_bytes(int32_t type);
/* Well-formed UTF-8 without NUL: what a NUL-terminated key or name can be. */
bool plp_is_name(const char *s, size_t n_bytes);
/* A key or name as it may stand in a message: what is not text replaced, long ones cut. */
const char *plp_shown(char out[80], const char *s, size_t n_bytes);
/* What to call the file in a message: its path without folders. */
const char *plp_file_called(const plp_file *f);

/* What bytes that are no readable GGUF look like and what to do, as the rest of a sentence that
 * begins with the file's name: "is a web page ...". */
void plp_foreign_describe(const uint8_t *data, size_t n_bytes, char *out, size_t out_bytes);

#endif
