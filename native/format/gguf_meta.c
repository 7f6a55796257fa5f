/*
 * format/gguf_meta.c - questions to an opened GGUF file: metadata values, tensors, bytes
 *
 * Everything here stays inside what gguf.c has checked; the arguments are what can be wrong: an
 * index out of range is PLP_E_ARG, a value of another type than asked for PLP_E_FILE with key and
 * types, because the caller names what the key must hold.
 *
 * Threads  any: nothing is written
 */
#include "format/gguf_index.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- words for messages ------------------------------------------------------------------- */

static const struct { const char *name; uint8_t n_bytes; } meta_types[] = {
    [PLP_META_U8]     = { "uint8", 1 },   [PLP_META_I8]  = { "int8", 1 },   [PLP_META_U16] = { "uint16", 2 },
    [PLP_META_I16]    = { "int16", 2 },   [PLP_META_U32] = { "uint32", 4 }, [PLP_META_I32] = { "int32", 4 },
    [PLP_META_F32]    = { "float32", 4 }, [PLP_META_BOOL] = { "bool", 1 },  [PLP_META_STRING] = { "string", 0 },
    [PLP_META_ARRAY]  = { "array", 0 },   [PLP_META_U64] = { "uint64", 8 }, [PLP_META_I64] = { "int64", 8 },
    [PLP_META_F64]    = { "float64", 8 },
};
#define N_META_TYPES ((int32_t)(sizeof meta_types / sizeof *meta_types))

const char *plp_meta_type_name(int32_t type)
{
    return type >= 0 && type < N_META_TYPES ? meta_types[type].name : "unknown type";
}

size_t plp_meta_type_bytes(int32_t type)
{
    return type >= 0 && type < N_META_TYPES ? meta_types[type].n_bytes : 0;
}

/* Well-formed UTF-8 without NUL: what a NUL-terminated name in a UTF-8 message can hold. */
bool plp_is_name(const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s, *end = p + n;

    while (p < end) {
        const uint32_t c = *p++;
        uint32_t more = c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3, low = more == 2 ? 0x800 : more == 3 ? 0x10000 : 0x80;
        uint32_t code = c & (0x7fu >> (more ? more + 1 : 0));

        if (c == 0 || (c >= 0x80 && c < 0xc2) || c > 0xf4 || more > (size_t)(end - p)) return false;
        for (uint32_t i = 0; i < more; i++, p++) {
            if ((*p & 0xc0) != 0x80) return false;
            code = code << 6 | (*p & 0x3f);
        }
        if (more && (code < low || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))) return false;
    }
    return true;
}

const char *plp_shown(char out[80], const char *s, size_t n)
{
    size_t used = 0;
    const size_t keep = n < 76 ? n : 72;
    const bool is_text = plp_is_name(s, n);

    for (; used < keep; used++) {
        const unsigned char c = (unsigned char)s[used];
        out[used] = c < 32 || c == 127 || (c > 127 && !is_text) ? '?' : (char)c;
    }
    if (keep < n) {
        while (used && ((unsigned char)s[used] & 0xc0) == 0x80) used--;     /* not inside a character */
        memcpy(out + used, "...", 3);
        used += 3;
    }
    out[used] = 0;
    return out;
}

const char *plp_file_called(const plp_file *f)
{
    if (!f->path) return "GGUF data";
    const char *slash = strrchr(f->path, '/');
    return slash && slash[1] ? slash + 1 : f->path;
}

/* ---- values ------------------------------------------------------------------------------- */

/* A number as it lies in the file: a signed or unsigned integer, or a float. */
typedef struct number { enum { SIGNED, UNSIGNED, REAL } kind; int64_t i; uint64_t u; double d; } number;

static number load_number(int32_t type, const uint8_t *p)
{
    number v = { .kind = SIGNED };
#define LOAD(ctype, field) { ctype x; memcpy(&x, p, sizeof x); v.field = x; break; }
    switch (type) {
    case PLP_META_U8:
    case PLP_META_BOOL: LOAD(uint8_t, i)
    case PLP_META_I8:   LOAD(int8_t, i)
    case PLP_META_U16:  LOAD(uint16_t, i)
    case PLP_META_I16:  LOAD(int16_t, i)
    case PLP_META_U32:  LOAD(uint32_t, i)
    case PLP_META_I32:  LOAD(int32_t, i)
    case PLP_META_I64:  LOAD(int64_t, i)
    case PLP_META_U64:  v.kind = UNSIGNED; LOAD(uint64_t, u)
    case PLP_META_F32:  v.kind = REAL; LOAD(float, d)
    case PLP_META_F64:  v.kind = REAL; LOAD(double, d)
    }
#undef LOAD
    return v;
}

static bool to_i64(number v, int64_t *out)
{
    if (v.kind == REAL || (v.kind == UNSIGNED && v.u > INT64_MAX)) return false;
    *out = v.kind == UNSIGNED ? (int64_t)v.u : v.i;
    return true;
}

static double to_f64(number v) { return v.kind == REAL ? v.d : v.kind == UNSIGNED ? (double)v.u : (double)v.i; }

static const char *key_of(const plp_file *f, uint64_t i) { return f->names + f->pairs[i].key_at; }

/* Of each value: an array's elements, or the scalar itself. */
static int32_t value_type(const plp_pair *p) { return p->type == PLP_META_ARRAY ? p->elem_type : p->type; }

static plp_status wrong_type(const plp_file *f, uint64_t i, const char *expected, plp_error *err)
{
    const plp_pair *p = &f->pairs[i];
    char shown[80];

    return plp_fail(err, PLP_E_FILE, "%s: \"%s\" is %s%s and should be %s", plp_file_called(f),
                    plp_shown(shown, key_of(f, i), strlen(key_of(f, i))), p->type == PLP_META_ARRAY ? "array of " : "",
                    plp_meta_type_name(value_type(p)), expected);
}

/* The pair if it has a value `at`; else NULL, and PLP_E_ARG in err. */
static const plp_pair *locate(const plp_file *f, uint64_t i, uint64_t at, plp_error *err)
{
    char shown[80];

    if (i >= f->n_meta) {
        plp_fail(err, PLP_E_ARG, "metadata pair %" PRIu64 " asked for; there are %u", i, f->n_meta);
        return NULL;
    }
    if (at >= f->pairs[i].n) {
        plp_fail(err, PLP_E_ARG, "value %" PRIu64 " of \"%s\" asked for; there are %" PRIu64, at,
                 plp_shown(shown, key_of(f, i), strlen(key_of(f, i))), f->pairs[i].n);
        return NULL;
    }
    return &f->pairs[i];
}

static plp_status number_at(const plp_file *f, uint64_t i, uint64_t at, const char *expected, number *out, plp_error *err)
{
    const plp_pair *p = locate(f, i, at, err);

    if (!p) return PLP_E_ARG;
    const size_t size = plp_meta_type_bytes(value_type(p));
    if (!size) return wrong_type(f, i, expected, err);
    *out = load_number(value_type(p), p->at + at * size);
    return PLP_OK;
}

plp_status plp_file_str(const plp_file *f, uint64_t i, uint64_t at, const char **s, size_t *n, plp_error *err)
{
    const plp_pair *p = locate(f, i, at, err);
    uint64_t len;

    if (!p) return PLP_E_ARG;
    if (value_type(p) != PLP_META_STRING) return wrong_type(f, i, "a string", err);
    const uint8_t *q = p->at + (p->marks ? p->marks[at / PLP_MARK_EVERY] : 0);
    memcpy(&len, q, 8);
    for (uint64_t walk = at % PLP_MARK_EVERY; walk; walk--) {
        q += 8 + len;
        memcpy(&len, q, 8);
    }
    *s = (const char *)q + 8;
    *n = (size_t)len;
    return PLP_OK;
}

plp_status plp_file_f64(const plp_file *f, uint64_t i, uint64_t at, double *v, plp_error *err)
{
    number x = { 0 };
    const plp_status status = number_at(f, i, at, "a number", &x, err);

    if (!status) *v = to_f64(x);
    return status;
}

plp_status plp_file_i64(const plp_file *f, uint64_t i, uint64_t at, int64_t *v, plp_error *err)
{
    number x = { 0 };
    int64_t value = 0;
    const plp_status status = number_at(f, i, at, "an integer", &x, err);

    if (status) return status;
    if (!to_i64(x, &value)) return wrong_type(f, i, "an integer of at most 63 bits", err);
    *v = value;
    return PLP_OK;
}

/* ---- values by key, for the loader -------------------------------------------------------- */

/* A scalar number under `key`; *i is -1 if there is no such key. */
static plp_status scalar(const plp_file *f, const char *key, const char *expected, int64_t *i, number *out, plp_error *err)
{
    if ((*i = plp_file_find(f, key)) < 0) return PLP_OK;
    if (f->pairs[*i].type == PLP_META_ARRAY) return wrong_type(f, (uint64_t)*i, expected, err);
    return number_at(f, (uint64_t)*i, 0, expected, out, err);
}

plp_status plp_meta_u32(const plp_file *f, const char *key, uint32_t fallback, uint32_t *out, plp_error *err)
{
    number x = { 0 };
    int64_t i, value = fallback;
    const plp_status status = scalar(f, key, "a number from 0 to 4294967295", &i, &x, err);

    if (status) return status;
    if (i >= 0 && (f->pairs[i].type == PLP_META_BOOL || !to_i64(x, &value)))
        return wrong_type(f, (uint64_t)i, "an integer of 32 bits", err);
    if (value < 0 || value > UINT32_MAX) {
        char shown[80];
        return plp_fail(err, PLP_E_FILE, "%s: \"%s\" is %" PRId64 " and should be from 0 to 4294967295", plp_file_called(f),
                        plp_shown(shown, key, strlen(key)), value);
    }
    *out = (uint32_t)value;
    return PLP_OK;
}

plp_status plp_meta_f32(const plp_file *f, const char *key, float fallback, float *out, plp_error *err)
{
    number x = { 0 };
    int64_t i;
    const plp_status status = scalar(f, key, "a number", &i, &x, err);

    if (status) return status;
    if (i >= 0 && f->pairs[i].type == PLP_META_BOOL) return wrong_type(f, (uint64_t)i, "a number", err);
    if (i >= 0 && !(fabs(to_f64(x)) <= FLT_MAX)) return wrong_type(f, (uint64_t)i, "a finite number", err);
    *out = i < 0 ? fallback : (float)to_f64(x);
    return PLP_OK;
}

plp_status plp_meta_bool(const plp_file *f, const char *key, bool fallback, bool *out, plp_error *err)
{
    number x = { 0 };
    int64_t i;
    const plp_status status = scalar(f, key, "a bool", &i, &x, err);

    if (status) return status;
    if (i >= 0 && f->pairs[i].type != PLP_META_BOOL) return wrong_type(f, (uint64_t)i, "a bool", err);
    *out = i < 0 ? fallback : x.i != 0;
    return PLP_OK;
}

plp_status plp_meta_str(const plp_file *f, const char *key, const char *fallback, char *out, size_t cap, plp_error *err)
{
    const int64_t i = plp_file_find(f, key);
    const char *s = fallback;
    size_t n = strlen(fallback);

    if (cap == 0) return plp_fail(err, PLP_E_ARG, "no room for the value of \"%s\"", key);
    if (i >= 0) {
        if (f->pairs[i].type != PLP_META_STRING) return wrong_type(f, (uint64_t)i, "a string", err);
        const plp_status status = plp_file_str(f, (uint64_t)i, 0, &s, &n, err);
        if (status) return status;
    }
    if (n >= cap)                           /* cut, but not inside a character */
        for (n = cap - 1; n && ((unsigned char)s[n] & 0xc0) == 0x80;) n--;
    memcpy(out, s, n);
    out[n] = 0;
    return PLP_OK;
}

/* ---- pairs, tensors, the file ------------------------------------------------------------- */

const char *plp_file_problem(const plp_file *f)  { return f->problem[0] ? f->problem : NULL; }
uint32_t    plp_file_version(const plp_file *f)  { return f->version; }
uint64_t    plp_file_n_meta(const plp_file *f)   { return f->n_meta; }
uint64_t    plp_file_n_tensors(const plp_file *f) { return f->n_tensors; }

uint64_t plp_file_bytes(const plp_file *f)
{
    uint64_t n = f->map.n_bytes;
    for (uint32_t i = 0; i < f->n_siblings; i++) n += f->siblings[i]->map.n_bytes;
    return n;
}

plp_status plp_file_meta(const plp_file *f, uint64_t i, plp_meta *out, plp_error *err)
{
    if (i >= f->n_meta)
        return plp_fail(err, PLP_E_ARG, "metadata pair %" PRIu64 " asked for; there are %u", i, f->n_meta);
    const plp_pair *p = &f->pairs[i];
    *out = (plp_meta){ .key = key_of(f, i), .type = p->type, .elem_type = p->elem_type, .n = p->n };
    return PLP_OK;
}

static const plp_entry *entry_at(const plp_file *f, uint64_t i, plp_error *err)
{
    if (i < f->n_tensors) return &f->entries[i];
    plp_fail(err, PLP_E_ARG, "tensor %" PRIu64 " asked for; there are %u", i, f->n_tensors);
    return NULL;
}

plp_status plp_file_tensor(const plp_file *f, uint64_t i, plp_tensor_info *out, plp_error *err)
{
    const plp_entry *e = entry_at(f, i, err);

    if (!e) return PLP_E_ARG;
    const plp_tensor *t = &e->tensor;
    *out = (plp_tensor_info){ .name = t->name, .type = t->type, .type_name = plp_type_name(t->type), .n_dims = t->n_dims,
                              .n_bytes = t->n_bytes, .offset = e->offset, .part = e->part };
    memcpy(out->dims, t->dims, sizeof out->dims);
    return PLP_OK;
}

plp_status plp_file_tensor_data(const plp_file *f, uint64_t i, const void **data, plp_error *err)
{
    const plp_entry *e = entry_at(f, i, err);
    char shown[80];

    if (!e) return PLP_E_ARG;
    if (!e->tensor.data)
        return plp_fail(err, PLP_E_FILE, "%s: the data of tensor \"%s\" is not all there", plp_file_called(f),
                        plp_shown(shown, e->tensor.name, strlen(e->tensor.name)));
    *data = e->tensor.data;
    return PLP_OK;
}

static void part_willneed(const plp_file *f)
{
    if (f->owns_map && f->data_at < f->map.n_bytes) plp_map_willneed(&f->map, f->data_at, f->map.n_bytes - f->data_at);
}

void plp_file_willneed(const plp_file *f)
{
    part_willneed(f);
    for (uint32_t i = 0; i < f->n_siblings; i++) part_willneed(f->siblings[i]);
}

plp_status plp_file_lock(const plp_file *f, plp_error *err)
{
    plp_status status = f->owns_map ? plp_map_lock(&f->map, err) : PLP_OK;

    for (uint32_t i = 0; i < f->n_siblings && !status; i++) status = plp_map_lock(&f->siblings[i]->map, err);
    return status;
}
