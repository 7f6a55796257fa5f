/*
 * format/gguf.h - read a GGUF file (v2, v3, little-endian, possibly split) that may be hostile
 *
 * The file is mapped read-only and used in place; nothing is copied but the index. Every count,
 * length, type and offset is checked against the bytes that are there before it is used, and names
 * and keys for uniqueness, so that after plp_file_open no accessor can leave the mapping.
 *
 * The public accessors (plp_file_*) are in plp.h; this header adds what the loader needs.
 * Source   GGUF specification (ggml docs/gguf.md)
 * Threads  read-only after open: any
 */
#ifndef PLP_FORMAT_GGUF_H
#define PLP_FORMAT_GGUF_H

#include "base/status.h"
#include "format/quants.h"

enum plp_meta_type { PLP_META_U8, PLP_META_I8, PLP_META_U16, PLP_META_I16, PLP_META_U32, PLP_META_I32,
                     PLP_META_F32, PLP_META_BOOL, PLP_META_STRING, PLP_META_ARRAY, PLP_META_U64,
                     PLP_META_I64, PLP_META_F64 };

/* For messages: "uint32", "string"; "unknown type" for any other number. */
const char *plp_meta_type_name(int32_t type);

typedef struct plp_tensor {
    const char *name;
    int32_t     type;
    uint32_t    n_dims;
    uint64_t    dims[4];
    uint64_t    n_bytes, row_bytes;
    const void *data;                       /* in the mapping; NULL in a lenient open of a short file */
} plp_tensor;

/* NULL if there is none. */
const plp_tensor *plp_file_tensor_named(const plp_file *f, const char *name);

/* Typed metadata with a default for a missing key; a key of the wrong type or range is PLP_E_FILE
 * naming key, type found and type expected. Integers of any width convert if they fit. */
plp_status plp_meta_u32(const plp_file *f, const char *key, uint32_t fallback, uint32_t *out, plp_error *err);
plp_status plp_meta_f32(const plp_file *f, const char *key, float fallback, float *out, plp_error *err);
plp_status plp_meta_bool(const plp_file *f, const char *key, bool fallback, bool *out, plp_error *err);
/* Not NUL-terminated in the file: copied, cut to cap - 1. Missing: `fallback`. */
plp_status plp_meta_str(const plp_file *f, const char *key, const char *fallback, char *out, size_t cap, plp_error *err);

/* Parse from memory (fuzzing, tests): `data` must outlive the file. */
plp_status plp_file_parse(plp_file **out, const void *data, size_t n_bytes, uint32_t flags, plp_error *err);

/* Advise the OS to read the weights ahead, or lock them. */
void       plp_file_willneed(const plp_file *f);
plp_status plp_file_lock(const plp_file *f, plp_error *err);

#endif
