/*
 * format/gguf.c - open a GGUF file: check every byte of its structure once, and index it
 *
 * Three passes: the metadata pairs, the tensor table, and then the tensors' sizes and places, which
 * need the alignment from the pairs. A cursor hands bytes out only if they are there, so no count
 * or length from the file is trusted before that many bytes have been seen, and the index grows
 * with what was read, never with what was promised.
 *
 * A lenient open keeps what was sound before the first problem and remembers that problem in words.
 *
 * Source   GGUF specification (ggml docs/gguf.md)
 * Errors   PLP_E_FILE damaged or something else; PLP_E_UNSUPPORTED a version or tensor type not
 *          known here; PLP_E_NOMEM; PLP_E_IO from opening
 */
#include "format/gguf_index.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#if defined __BYTE_ORDER__ && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF data is used in place: this library needs a little-endian machine"
#endif

/* No model comes near these; they keep the index within 32-bit counts and some hundred megabytes. */
#define MAX_PAIRS   (1u << 20)
#define MAX_TENSORS (1u << 20)
#define MAX_NAME    65535u                  /* the specification's limit for keys */
#define MAX_NESTING 4u                      /* arrays of arrays: checked and skipped, so bounded */
#define ALIGNMENT   32u                     /* unless general.alignment says otherwise */

/* ---- bytes -------------------------------------------------------------------------------- */

typedef struct cursor { const uint8_t *at, *end; } cursor;

static bool take(cursor *c, uint64_t n, const uint8_t **out)
{
    if (n > (uint64_t)(c->end - c->at)) return false;
    *out = c->at;
    c->at += n;
    return true;
}

static bool take_u32(cursor *c, uint32_t *out)
{
    const uint8_t *p;
    if (!take(c, sizeof *out, &p)) return false;
    memcpy(out, p, sizeof *out);
    return true;
}

static bool take_u64(cursor *c, uint64_t *out)
{
    const uint8_t *p;
    if (!take(c, sizeof *out, &p)) return false;
    memcpy(out, p, sizeof *out);
    return true;
}

static bool take_string(cursor *c, const char **s, uint64_t *n)
{
    const uint8_t *p;
    if (!take_u64(c, n) || !take(c, *n, &p)) return false;
    *s = (const char *)p;
    return true;
}

/* ---- the index ---------------------------------------------------------------------------- */

static plp_status no_memory(plp_error *err, const plp_file *f)
{
    return plp_fail(err, PLP_E_NOMEM, "%s: no memory for the index of this file", plp_file_called(f));
}

/* Room for one more of `size` bytes each, doubling. */
static bool room(void **items, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap) return true;
    const uint32_t want = *cap ? *cap * 2 : 64;
    void *p = plp_resize(PLP_MEM_FILE, *items, want, size);
    if (!p) return false;
    *items = p;
    *cap = want;
    return true;
}

static bool keep_name(plp_file *f, const char *s, size_t n, size_t *at)
{
    if (f->names_cap - f->names_bytes <= n) {
        size_t want = f->names_cap ? f->names_cap * 2 : 4096;
        if (want < f->names_bytes + n + 1) want = f->names_bytes + n + 1;
        char *p = plp_resize(PLP_MEM_FILE, f->names, want, 1);
        if (!p) return false;
        f->names = p;
        f->names_cap = want;
    }
    *at = f->names_bytes;
    memcpy(f->names + *at, s, n);
    f->names[*at + n] = 0;
    f->names_bytes += n + 1;
    return true;
}

static uint64_t hash_name(uint64_t seed, const char *s, size_t n)
{
    uint64_t h = seed ^ n;
    while (n) {
        uint64_t word = 0;
        const size_t step = n < 8 ? n : 8;
        memcpy(&word, s, step);
        s += step;
        n -= step;
        h = (h ^ word) * 0x9fb21c651e98df25u;
        h = (h ^ (h >> 32) ^ seed) * 0xd6e8feb86659fd93u;
        h ^= h >> 29;
    }
    return h;
}

/* Names are compared with what the owner of the table stores for an index. */
static const char *key_name(const plp_file *f, uint32_t i)   { return f->names + f->pairs[i].key_at; }
static const char *entry_name(const plp_file *f, uint32_t i) { return f->entries[i].tensor.name; }

static int64_t find(const plp_file *f, const plp_names_table *t, const char *(*name_of)(const plp_file *, uint32_t),
                    const char *s, size_t n)
{
    if (!t->slots) return -1;
    for (uint32_t at = (uint32_t)hash_name(f->seed, s, n) & t->mask;; at = (at + 1) & t->mask) {
        if (!t->slots[at]) return -1;
        const char *name = name_of(f, t->slots[at] - 1);
        if (!strncmp(name, s, n) && !name[n]) return t->slots[at] - 1;
    }
}

static void put(const plp_file *f, plp_names_table *t, const char *name, uint32_t i)
{
    uint32_t at = (uint32_t)hash_name(f->seed, name, strlen(name)) & t->mask;
    while (t->slots[at]) at = (at + 1) & t->mask;
    t->slots[at] = i + 1;
}

/* Add index n (0 .. n - 1 are in), whose name is not in yet. */
static bool add(const plp_file *f, plp_names_table *t, const char *(*name_of)(const plp_file *, uint32_t), uint32_t n)
{
    if (!t->slots || n >= (t->mask + 1) / 2) {
        const uint32_t size = t->slots ? (t->mask + 1) * 2 : 128;
        uint32_t *slots = plp_zalloc(PLP_MEM_FILE, size, sizeof *slots);
        if (!slots) return false;
        plp_free(t->slots);
        *t = (plp_names_table){ slots, size - 1 };
        for (uint32_t i = 0; i < n; i++) put(f, t, name_of(f, i), i);
    }
    put(f, t, name_of(f, n), n);
    return true;
}

int64_t plp_file_find(const plp_file *f, const char *key)
{
    return find(f, &f->by_key, key_name, key, strlen(key));
}

const plp_tensor *plp_file_tensor_named(const plp_file *f, const char *name)
{
    const int64_t i = find(f, &f->by_name, entry_name, name, strlen(name));
    return i < 0 ? NULL : &f->entries[i].tensor;
}

/* ---- metadata ----------------------------------------------------------------------------- */

static plp_status ends_early(plp_error *err, const plp_file *f, const char *where)
{
    return plp_fail(err, PLP_E_FILE, "%s: the file is cut short: its %zu bytes end inside %s; download it again",
                    plp_file_called(f), f->map.n_bytes, where);
}

/* Move past the values of an array, checking them. Where its strings are is marked, but not within
 * arrays of arrays, whose values no accessor gives out. */
static plp_status skip_array(plp_file *f, cursor *c, plp_pair *p, uint32_t depth, const char *where, plp_error *err)
{
    const size_t size = plp_meta_type_bytes(p->elem_type);
    const uint8_t *bytes;
    uint64_t n_bytes;

    p->at = c->at;
    if (size) {
        if (__builtin_mul_overflow(p->n, size, &n_bytes) || !take(c, n_bytes, &bytes)) return ends_early(err, f, where);
        if (p->elem_type == PLP_META_BOOL)
            for (uint64_t i = 0; i < p->n; i++)
                if (bytes[i] > 1) return plp_fail(err, PLP_E_FILE, "%s: %s: value %" PRIu64 " is %u and not a bool",
                                                  plp_file_called(f), where, i, bytes[i]);
        return PLP_OK;
    }
    if (p->n > (uint64_t)(c->end - c->at) / 8) return ends_early(err, f, where);   /* each has 8 bytes at least */
    if (p->elem_type == PLP_META_STRING) {
        const size_t n_marks = (size_t)(p->n / PLP_MARK_EVERY) + 1;
        if (depth == 1 && !(p->marks = plp_alloc(PLP_MEM_FILE, n_marks, sizeof *p->marks))) return no_memory(err, f);
        for (uint64_t i = 0; i < p->n; i++) {
            const char *s;
            uint64_t n;
            if (p->marks && i % PLP_MARK_EVERY == 0) p->marks[i / PLP_MARK_EVERY] = (size_t)(c->at - p->at);
            if (!take_string(c, &s, &n)) return ends_early(err, f, where);
        }
        return PLP_OK;
    }
    if (p->elem_type != PLP_META_ARRAY)
        return plp_fail(err, PLP_E_FILE, "%s: %s is an array of type %d, which GGUF does not have", plp_file_called(f),
                        where, p->elem_type);
    if (depth == MAX_NESTING)
        return plp_fail(err, PLP_E_UNSUPPORTED, "%s: %s nests arrays deeper than %u", plp_file_called(f), where, MAX_NESTING);
    for (uint64_t i = 0; i < p->n; i++) {
        plp_pair inner = { .type = PLP_META_ARRAY };
        if (!take_u32(c, (uint32_t *)&inner.elem_type) || !take_u64(c, &inner.n)) return ends_early(err, f, where);
        const plp_status status = skip_array(f, c, &inner, depth + 1, where, err);
        if (status) return status;
    }
    return PLP_OK;
}

static plp_status read_pair(plp_file *f, cursor *c, uint64_t nr, plp_error *err)
{
    plp_pair p = { .elem_type = -1, .n = 1 };
    const char *key, *text;
    const uint8_t *bytes;
    uint64_t n_key, n_text;
    uint32_t type;
    char shown[80], where[128];
    plp_status status;

    snprintf(where, sizeof where, "metadata pair %" PRIu64, nr);
    if (!take_u64(c, &n_key)) return ends_early(err, f, where);
    if (n_key == 0)
        return plp_fail(err, PLP_E_FILE, "%s: the key of %s is empty", plp_file_called(f), where);
    if (n_key > MAX_NAME)
        return plp_fail(err, PLP_E_FILE, "%s: the key of %s claims %" PRIu64 " bytes; the most is %u",
                        plp_file_called(f), where, n_key, MAX_NAME);
    if (!take(c, n_key, &bytes)) return ends_early(err, f, where);
    key = (const char *)bytes;
    snprintf(where, sizeof where, "\"%s\"", plp_shown(shown, key, (size_t)n_key));
    if (!plp_is_name(key, (size_t)n_key))
        return plp_fail(err, PLP_E_FILE, "%s: key %s (pair %" PRIu64 ") is not UTF-8 text", plp_file_called(f), where, nr);
    if (find(f, &f->by_key, key_name, key, (size_t)n_key) >= 0)
        return plp_fail(err, PLP_E_FILE, "%s: key %s is there twice", plp_file_called(f), where);
    if (!take_u32(c, &type)) return ends_early(err, f, where);
    p.type = (int32_t)type;
    p.at = c->at;
    if (p.type == PLP_META_ARRAY) {
        if (!take_u32(c, (uint32_t *)&p.elem_type) || !take_u64(c, &p.n)) return ends_early(err, f, where);
        if ((status = skip_array(f, c, &p, 1, where, err))) goto failed;
    } else if (p.type == PLP_META_STRING) {
        if (!take_string(c, &text, &n_text)) return ends_early(err, f, where);
    } else {
        const size_t size = plp_meta_type_bytes(p.type);
        if (!size)
            return plp_fail(err, PLP_E_FILE, "%s: %s has value type %u, which GGUF does not have", plp_file_called(f), where, type);
        if (!take(c, size, &bytes)) return ends_early(err, f, where);
        if (p.type == PLP_META_BOOL && *bytes > 1)
            return plp_fail(err, PLP_E_FILE, "%s: %s is %u and not a bool", plp_file_called(f), where, *bytes);
    }
    if (!room((void **)&f->pairs, f->n_meta, &f->cap_meta, sizeof *f->pairs) ||
        !keep_name(f, key, (size_t)n_key, &p.key_at)) {
        status = no_memory(err, f);
        goto failed;
    }
    f->pairs[f->n_meta] = p;
    if (!add(f, &f->by_key, key_name, f->n_meta)) {
        status = no_memory(err, f);
        goto failed;
    }
    f->n_meta++;
    return PLP_OK;

failed:
    plp_free(p.marks);
    return status;
}

/* ---- tensors ------------------------------------------------------------------------------ */

static plp_status read_entry(plp_file *f, cursor *c, uint64_t nr, plp_error *err)
{
    plp_entry e = { .tensor = { .dims = { 1, 1, 1, 1 } } };
    const uint8_t *bytes;
    uint64_t n_name;
    char shown[80], where[128];

    snprintf(where, sizeof where, "tensor %" PRIu64 " of the table", nr);
    if (!take_u64(c, &n_name)) return ends_early(err, f, where);
    if (n_name == 0 || n_name > MAX_NAME)
        return plp_fail(err, PLP_E_FILE, "%s: the name of %s claims %" PRIu64 " bytes; 1 to %u can be",
                        plp_file_called(f), where, n_name, MAX_NAME);
    if (!take(c, n_name, &bytes)) return ends_early(err, f, where);
    snprintf(where, sizeof where, "tensor \"%s\"", plp_shown(shown, (const char *)bytes, (size_t)n_name));
    if (!plp_is_name((const char *)bytes, (size_t)n_name))
        return plp_fail(err, PLP_E_FILE, "%s: the name of %s is not UTF-8 text", plp_file_called(f), where);
    if (!take_u32(c, &e.tensor.n_dims)) return ends_early(err, f, where);
    if (e.tensor.n_dims > 4)
        return plp_fail(err, PLP_E_FILE, "%s: %s claims %u dimensions; the most is 4", plp_file_called(f), where, e.tensor.n_dims);
    for (uint32_t d = 0; d < e.tensor.n_dims; d++)
        if (!take_u64(c, &e.tensor.dims[d])) return ends_early(err, f, where);
    if (!take_u32(c, (uint32_t *)&e.tensor.type) || !take_u64(c, &e.offset)) return ends_early(err, f, where);
    if (!room((void **)&f->entries, f->n_tensors, &f->cap_tensors, sizeof *f->entries) ||
        !keep_name(f, (const char *)bytes, (size_t)n_name, &e.name_at))
        return no_memory(err, f);
    f->entries[f->n_tensors++] = e;
    return PLP_OK;
}

/* Row and tensor size from type and dimensions; fails where that number cannot be. */
static plp_status measure(const plp_file *f, plp_tensor *t, plp_error *err)
{
    uint32_t block_len, block_bytes;
    uint64_t n;
    char shown[80];

    plp_shown(shown, t->name, strlen(t->name));
    if (!plp_type_geometry(t->type, &block_len, &block_bytes))
        return plp_fail(err, PLP_E_UNSUPPORTED, "%s: tensor \"%s\" has type %d (%s), which this version cannot read",
                        plp_file_called(f), shown, t->type, plp_type_name(t->type));
    if (t->dims[0] % block_len)
        return plp_fail(err, PLP_E_FILE, "%s: tensor \"%s\" has rows of %" PRIu64 " values; %s needs a multiple of %u",
                        plp_file_called(f), shown, t->dims[0], plp_type_name(t->type), block_len);
    bool fits = !__builtin_mul_overflow(t->dims[0] / block_len, block_bytes, &t->row_bytes);
    n = t->row_bytes;
    for (int d = 1; fits && d < 4; d++) fits = !__builtin_mul_overflow(n, t->dims[d], &n);
    if (!fits || n == 0 || n > INT64_MAX || n > SIZE_MAX) {
        t->row_bytes = 0;
        return plp_fail(err, PLP_E_FILE, "%s: tensor \"%s\" of %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                        " values cannot be", plp_file_called(f), shown, t->dims[0], t->dims[1], t->dims[2], t->dims[3]);
    }
    t->n_bytes = n;
    return PLP_OK;
}

/* ---- problems of a lenient open ----------------------------------------------------------- */

plp_status plp_file_settle(plp_file *f, uint32_t flags, plp_status status, const plp_error *local, plp_error *err)
{
    if (!status) return PLP_OK;
    if ((flags & PLP_FILE_LENIENT) && status != PLP_E_NOMEM) {
        if (!f->problem[0]) memcpy(f->problem, local->msg, sizeof f->problem);
        return PLP_OK;
    }
    if (err) *err = *local;
    return status;
}

static uint64_t round_up(uint64_t n, uint64_t step) { return (n + step - 1) & ~(step - 1); }

/* What follows the last tensor is padding; another header there means files joined end to end. */
static bool is_header_at(const plp_file *f, uint64_t at)
{
    return at <= f->map.n_bytes && f->map.n_bytes - at >= 4 && !memcmp(f->map.data + at, "GGUF", 4);
}

/* Sizes, order and places of this file's own tensors. Writers lay tensors out in table order, which
 * ggml requires, so an offset that steps back means an overlap or a damaged table. */
static plp_status place_tensors(plp_file *f, uint32_t flags, uint32_t alignment, plp_error *err)
{
    plp_error local = { 0 };
    uint64_t end = f->data_at, outside = UINT64_MAX;
    plp_status status;
    char shown[80];

    for (uint32_t i = 0; i < f->n_tensors; i++) {
        plp_entry *e = &f->entries[i];
        plp_tensor *t = &e->tensor;
        const uint64_t offset = e->offset;
        uint64_t stop = 0;

        plp_shown(shown, t->name, strlen(t->name));
        status = measure(f, t, &local);
        if (offset % alignment && !status)
            status = plp_fail(&local, PLP_E_FILE, "%s: tensor \"%s\" begins at offset %" PRIu64 ", which is not a multiple of %u",
                              plp_file_called(f), shown, offset, alignment);
        if (!status && (__builtin_add_overflow(f->data_at, offset, &e->offset) ||
                        __builtin_add_overflow(e->offset, t->n_bytes, &stop) || stop > INT64_MAX))
            status = plp_fail(&local, PLP_E_FILE, "%s: tensor \"%s\" begins at offset %" PRIu64 ", beyond any file",
                              plp_file_called(f), shown, offset);
        if (!status && e->offset < end)
            status = plp_fail(&local, PLP_E_FILE, "%s: tensor \"%s\" begins before the end of the one in front of it",
                              plp_file_called(f), shown);
        if (status) {
            if ((status = plp_file_settle(f, flags, status, &local, err))) return status;
            continue;
        }
        end = stop;
        if (stop <= f->map.n_bytes) t->data = f->map.data + e->offset;
        else if (outside == UINT64_MAX) outside = i;
    }
    if (outside != UINT64_MAX) {
        const plp_entry *e = &f->entries[outside];
        status = plp_fail(&local, PLP_E_FILE, "%s: the file is incomplete: it has %zu bytes and its tensors need %" PRIu64
                          "; the first outside is \"%s\", up to byte %" PRIu64 "; download the file again", plp_file_called(f),
                          f->map.n_bytes, end, plp_shown(shown, e->tensor.name, strlen(e->tensor.name)),
                          e->offset + e->tensor.n_bytes);
        return plp_file_settle(f, flags, status, &local, err);
    }
    if (is_header_at(f, end) || is_header_at(f, round_up(end, alignment))) {
        status = plp_fail(&local, PLP_E_FILE, "%s: a second GGUF file follows after byte %" PRIu64 ": parts of a split model were "
                          "joined; keep the parts as they were and open the first", plp_file_called(f), end);
        return plp_file_settle(f, flags, status, &local, err);
    }
    return PLP_OK;
}

/* Tensor names into the table, with pointers that no longer move. */
static plp_status name_tensors(plp_file *f, uint32_t flags, plp_error *err)
{
    plp_error local = { 0 };
    plp_status status;
    char shown[80];

    for (uint32_t i = 0; i < f->n_tensors; i++) f->entries[i].tensor.name = f->names + f->entries[i].name_at;
    for (uint32_t i = 0; i < f->n_tensors; i++) {
        const char *name = f->entries[i].tensor.name;
        if (find(f, &f->by_name, entry_name, name, strlen(name)) >= 0) {
            status = plp_fail(&local, PLP_E_FILE, "%s: tensor \"%s\" is there twice", plp_file_called(f),
                              plp_shown(shown, name, strlen(name)));
            f->n_tensors = i;               /* lenient: the ones before it */
            return plp_file_settle(f, flags, status, &local, err);
        }
        if (!add(f, &f->by_name, entry_name, i)) return no_memory(err, f);
    }
    return PLP_OK;
}

/* ---- one file ----------------------------------------------------------------------------- */

static plp_status read_header(plp_file *f, cursor *c, uint64_t *n_tensors, uint64_t *n_meta, plp_error *err)
{
    const uint8_t *magic;
    char words[200];

    if (f->map.n_bytes < 4 || memcmp(f->map.data, "GGUF", 4)) {
        plp_foreign_describe(f->map.data, f->map.n_bytes, words, sizeof words);
        return plp_fail(err, PLP_E_FILE, "%s %s", plp_file_called(f), words);
    }
    if (!take(c, 4, &magic) || !take_u32(c, &f->version)) return ends_early(err, f, "the header");
    if (f->version && !(f->version & 0xffff))
        return plp_fail(err, PLP_E_UNSUPPORTED, "%s is a big-endian GGUF file; get or convert a little-endian one", plp_file_called(f));
    if (f->version < 2 || f->version > 3)
        return plp_fail(err, PLP_E_UNSUPPORTED, "%s has GGUF version %u; this library reads 2 and 3%s", plp_file_called(f),
                        f->version, f->version == 1 ? "; convert the original model again" : "");
    if (!take_u64(c, n_tensors) || !take_u64(c, n_meta)) return ends_early(err, f, "the header");
    if (*n_meta > MAX_PAIRS || *n_tensors > MAX_TENSORS)
        return plp_fail(err, PLP_E_FILE, "%s: the header claims %" PRIu64 " metadata pairs and %" PRIu64 " tensors; "
                        "the most are %u and %u", plp_file_called(f), *n_meta, *n_tensors, MAX_PAIRS, MAX_TENSORS);
    return PLP_OK;
}

static plp_status read_alignment(const plp_file *f, uint32_t *out, plp_error *err)
{
    plp_status status = plp_meta_u32(f, "general.alignment", ALIGNMENT, out, err);
    if (!status && (*out < 8 || (*out & (*out - 1)) || *out > 1u << 30))
        status = plp_fail(err, PLP_E_FILE, "%s: general.alignment is %u; it must be a power of two from 8", plp_file_called(f), *out);
    return status;
}

plp_status plp_file_read(plp_file *f, uint32_t flags, plp_error *err)
{
    cursor c = { f->map.data, f->map.data + f->map.n_bytes };
    uint64_t n_tensors = 0, n_meta = 0;
    uint32_t alignment = ALIGNMENT;
    plp_error local = { 0 };
    plp_status status;

    f->seed = plp_random_u64();
    if ((status = read_header(f, &c, &n_tensors, &n_meta, err))) return status;
    for (uint64_t i = 0; i < n_meta && !status; i++) status = read_pair(f, &c, i, &local);
    if (!status) status = read_alignment(f, &alignment, &local);
    for (uint64_t i = 0; i < n_tensors && !status; i++) status = read_entry(f, &c, i, &local);
    if (status) {
        if ((status = plp_file_settle(f, flags, status, &local, err))) return status;
        return name_tensors(f, flags, err); /* sizes stay 0: without the whole table places mean nothing */
    }
    f->data_at = (size_t)round_up((uint64_t)(c.at - f->map.data), alignment);
    if ((status = name_tensors(f, flags, err))) return status;
    return place_tensors(f, flags, alignment, err);
}

plp_status plp_file_adopt(plp_file *f, plp_file *part, uint32_t nr, plp_error *err)
{
    char shown[80];

    f->siblings[f->n_siblings++] = part;
    for (uint32_t i = 0; i < part->n_tensors; i++) {
        const char *name = part->entries[i].tensor.name;
        if (find(f, &f->by_name, entry_name, name, strlen(name)) >= 0)
            return plp_fail(err, PLP_E_FILE, "%s: tensor \"%s\" is in another part too", plp_file_called(part),
                            plp_shown(shown, name, strlen(name)));
        if (!room((void **)&f->entries, f->n_tensors, &f->cap_tensors, sizeof *f->entries)) return no_memory(err, f);
        f->entries[f->n_tensors] = part->entries[i];
        f->entries[f->n_tensors].part = nr;
        if (!add(f, &f->by_name, entry_name, f->n_tensors)) return no_memory(err, f);
        f->n_tensors++;
    }
    return PLP_OK;
}

plp_status plp_file_parse(plp_file **out, const void *data, size_t n_bytes, uint32_t flags, plp_error *err)
{
    plp_file *f = plp_zalloc(PLP_MEM_FILE, 1, sizeof *f);
    plp_error local = { 0 };
    plp_status status;
    uint32_t n_parts = 0;

    if (!f) return plp_fail(err, PLP_E_NOMEM, "no memory to open a GGUF file");
    f->map = (plp_map){ data, n_bytes };
    if ((status = plp_file_read(f, flags, err))) goto failed;
    status = plp_meta_u32(f, "split.count", 0, &n_parts, &local);
    if (!status && n_parts > 1)
        status = plp_fail(&local, PLP_E_FILE, "%s is one of %u parts of a split model; open it by its path", plp_file_called(f), n_parts);
    if ((status = plp_file_settle(f, flags, status, &local, err))) goto failed;
    *out = f;
    return PLP_OK;

failed:
    plp_file_close(f);
    return status;
}

void plp_file_close(plp_file *f)
{
    if (!f) return;
    for (uint32_t i = 0; i < f->n_siblings; i++) plp_file_close(f->siblings[i]);
    for (uint32_t i = 0; i < f->n_meta; i++) plp_free(f->pairs[i].marks);
    if (f->owns_map) plp_map_close(&f->map);
    plp_free(f->siblings);
    plp_free(f->pairs);
    plp_free(f->entries);
    plp_free(f->by_key.slots);
    plp_free(f->by_name.slots);
    plp_free(f->names);
    plp_free(f->path);
    plp_free(f);
}
