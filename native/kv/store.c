/* kv/store.c - the container for KV blocks on disk: layout, saving, checking */
#include "kv/store.h"

#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/platform.h"

typedef struct file_run { uint64_t block_bytes; uint32_t n_blocks, first, tag, zero; } file_run;

typedef struct header {
    char     magic[8];
    uint32_t byte_order, version, kind, n_tokens, n_runs, path_bytes;
    plp_store_shape shape;
    uint32_t ref_tokens;
    uint64_t ref_id;
    file_run runs[PLP_STORE_MAX_RUNS];  /* n_runs in use, the others zero */
    uint64_t file_bytes;
    uint64_t rest_sum;          /* of the bytes between header and payload */
    uint32_t note_bytes;
    uint32_t unused[33];        /* zero */
    uint64_t sum;               /* of the header before this */
} header;

_Static_assert(sizeof(header) == 640 && offsetof(header, runs) == 96 && offsetof(header, sum) == 632, "the file's layout");

static const char MAGIC[8] = "plpkv\r\n";       /* the line end shows a transfer that took it for text */
enum { BYTE_ORDER_MARK = 0x01020304, PAYLOAD_ALIGN = 16384 };

struct plp_store {
    plp_map        map;         /* zero if the bytes are somebody else's */
    const uint8_t *data;
    uint64_t       n_bytes;
    uint32_t       refs;
    uint64_t       id;
    uint64_t       run_offset[PLP_STORE_MAX_RUNS];
    plp_store_info info;
    char           path[];      /* ref_path, NUL-terminated */
};

/* ---- checksum and fingerprint ---- */

#define FACTOR UINT64_C(0x9fb21c651e98df25)

static inline uint64_t turn(uint64_t lane, uint64_t word)
{
    lane ^= word;
    return (lane << 29 | lane >> 35) * FACTOR;
}

uint64_t plp_checksum(const void *data, size_t n_bytes)
{
    const uint8_t *p = data;
    uint64_t a = 1, b = 2, c = 3, d = 4, h = n_bytes;
    size_t n = n_bytes;

    for (; n >= 32; n -= 32, p += 32) {
        a = turn(a, plp_u64_at(p));
        b = turn(b, plp_u64_at(p + 8));
        c = turn(c, plp_u64_at(p + 16));
        d = turn(d, plp_u64_at(p + 24));
    }
    for (; n >= 8; n -= 8, p += 8)
        a = turn(a, plp_u64_at(p));
    if (n) {
        uint8_t tail[8] = { 0 };
        memcpy(tail, p, n);
        b = turn(b, plp_u64_at(tail));
    }
    h = turn(turn(turn(turn(h, a), b), c), d);
    h ^= h >> 32;
    h *= FACTOR;
    return h ^ h >> 29;
}

void plp_fingerprint_spell(const uint8_t fingerprint[32], char out[65])
{
    static const char hex[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++) {
        out[2 * i] = hex[fingerprint[i] >> 4];
        out[2 * i + 1] = hex[fingerprint[i] & 15];
    }
    out[64] = 0;
}

/* ---- layout ---- */

typedef struct layout { uint64_t path, note, sums, payload, end, n_blocks; } layout;      /* offsets; n_blocks of all runs */

/* Where things lie, from counts that may be hostile; false if that is more than any file can be. */
static bool lay_out(const header *h, layout *l)
{
    uint64_t bytes;

    if (h->n_runs > PLP_STORE_MAX_RUNS || h->path_bytes > PLP_STORE_MAX_PATH || h->note_bytes > PLP_STORE_MAX_NOTE)
        return false;
    l->n_blocks = 0;
    for (uint32_t i = 0; i < h->n_runs; i++)
        l->n_blocks += h->runs[i].n_blocks;
    l->path = sizeof *h + (uint64_t)h->n_tokens * sizeof(int32_t);
    l->note = l->path + h->path_bytes;
    l->sums = (l->note + h->note_bytes + 7) / 8 * 8;
    l->payload = (l->sums + l->n_blocks * 8 + PAYLOAD_ALIGN - 1) / PAYLOAD_ALIGN * PAYLOAD_ALIGN;
    l->end = l->payload;
    for (uint32_t i = 0; i < h->n_runs; i++)
        if (__builtin_mul_overflow(h->runs[i].block_bytes, (uint64_t)h->runs[i].n_blocks, &bytes) ||
            __builtin_add_overflow(l->end, bytes, &l->end))
            return false;
    return l->end <= SIZE_MAX && l->end <= INT64_MAX;
}

/* What makes no sense in a header, or NULL. */
static const char *nonsense(const header *h)
{
    const uint64_t n_places = h->shape.block_len ? ((uint64_t)h->n_tokens + h->shape.block_len - 1) / h->shape.block_len : 0;

    if (h->kind != PLP_STORE_PREFIX && h->kind != PLP_STORE_SESSION)
        return "its kind is unknown";
    if (h->shape.block_len == 0)
        return "its blocks have no tokens";
    if (h->n_runs > PLP_STORE_MAX_RUNS)
        return "it has too many runs of blocks";
    if (h->ref_tokens > h->n_tokens || (h->kind == PLP_STORE_PREFIX && (h->path_bytes || h->ref_tokens)))
        return "its reference to another file is impossible";
    for (uint32_t i = 0; i < h->n_runs; i++)
        if (h->runs[i].block_bytes == 0 || h->runs[i].block_bytes % 64 ||
            (uint64_t)h->runs[i].first + h->runs[i].n_blocks > n_places)
            return "a run of blocks does not fit its tokens";
    return NULL;
}

/* ---- saving ---- */

/* Bytes that go between header and payload, in memory: they are needed for a checksum first. */
static uint8_t *middle_of(const plp_store_info *info, const header *h, const layout *l)
{
    uint8_t *m = plp_zalloc(PLP_MEM_OTHER, (size_t)(l->payload - sizeof *h), 1);

    if (m && info->n_tokens)
        memcpy(m, info->tokens, info->n_tokens * sizeof *info->tokens);
    if (m && h->path_bytes)
        memcpy(m + (l->path - sizeof *h), info->ref_path, h->path_bytes);
    if (m && h->note_bytes)
        memcpy(m + (l->note - sizeof *h), info->note, h->note_bytes);
    return m;
}

static plp_status write_file(const char *path, const plp_store_info *info, header *h, const layout *l, uint8_t *middle,
                             plp_store_source block, void *context, plp_error *err)
{
    uint64_t *sums = (uint64_t *)(middle + (l->sums - sizeof *h)), k = 0;
    plp_writer *w;
    plp_status status;

    for (uint32_t r = 0; r < info->n_runs; r++)
        for (uint32_t i = 0; i < info->runs[r].n_blocks; i++) {
            const void *data = block(context, r, i);
            if (!data)
                return plp_fail(err, PLP_E_IO, "%s: block %u cannot be read to be saved", path, i);
            sums[k++] = plp_checksum(data, (size_t)info->runs[r].block_bytes);
        }
    h->rest_sum = plp_checksum(middle, (size_t)(l->payload - sizeof *h));
    h->sum = plp_checksum(h, offsetof(header, sum));

    if ((status = plp_writer_open(&w, path, err)))
        return status;
    if (!(status = plp_writer_put(w, h, sizeof *h, err)))
        status = plp_writer_put(w, middle, (size_t)(l->payload - sizeof *h), err);
    for (uint32_t r = 0; !status && r < info->n_runs; r++)
        for (uint32_t i = 0; !status && i < info->runs[r].n_blocks; i++) {
            const void *data = block(context, r, i);
            status = data ? plp_writer_put(w, data, (size_t)info->runs[r].block_bytes, err)
                          : plp_fail(err, PLP_E_IO, "%s: block %u cannot be read to be saved", path, i);
        }
    if (status) {
        plp_writer_abort(w);
        return status;
    }
    return plp_writer_commit(w, err);
}

plp_status plp_store_save(const char *path, const plp_store_info *info, plp_store_source block, void *context, plp_error *err)
{
    header h;
    layout l;
    uint8_t *middle;
    plp_status status;
    const size_t path_bytes = info->ref_path ? strlen(info->ref_path) : 0;

    memset(&h, 0, sizeof h);                    /* padding too: every byte of the file is defined */
    if (info->n_runs > PLP_STORE_MAX_RUNS || path_bytes > PLP_STORE_MAX_PATH || info->note_bytes > PLP_STORE_MAX_NOTE)
        return plp_fail(err, PLP_E_ARG, "%s: %u runs of blocks, a reference of %zu bytes, a note of %u: more than a KV file holds",
                        path, info->n_runs, path_bytes, info->note_bytes);
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    h.byte_order = BYTE_ORDER_MARK;
    h.version = PLP_STORE_VERSION;
    h.kind = info->kind;
    h.n_tokens = info->n_tokens;
    h.n_runs = info->n_runs;
    h.path_bytes = (uint32_t)path_bytes;
    h.note_bytes = info->note_bytes;
    h.shape = info->shape;
    h.ref_tokens = info->ref_tokens;
    h.ref_id = info->ref_id;
    for (uint32_t i = 0; i < info->n_runs; i++) {
        h.runs[i].block_bytes = info->runs[i].block_bytes;
        h.runs[i].n_blocks = info->runs[i].n_blocks;
        h.runs[i].first = info->runs[i].first;
        h.runs[i].tag = info->runs[i].tag;
    }
    const char *why = nonsense(&h);
    if (why || !lay_out(&h, &l))
        return plp_fail(err, PLP_E_ARG, "%s: cannot be saved: %s", path, why ? why : "it would be too large");
    h.file_bytes = l.end;
    if (!(middle = middle_of(info, &h, &l)))
        return plp_fail_amount(err, PLP_E_NOMEM, l.payload, 0, "%s: no memory to save it", path);
    status = write_file(path, info, &h, &l, middle, block, context, err);
    plp_free(middle);
    return status;
}

/* ---- opening ---- */

static const char *kind_name(uint32_t kind) { return kind == PLP_STORE_PREFIX ? "prefix" : "session"; }

/* Does the header describe this file, and one that the caller can use? */
static plp_status check_header(const char *path, const header *h, size_t n_bytes, uint32_t kind, const plp_store_shape *shape,
                               layout *l, plp_error *err)
{
    const char *why;

    if (memcmp(h->magic, MAGIC, sizeof MAGIC))
        return plp_fail(err, PLP_E_FILE, "%s: is not a KV file", path);
    if (h->byte_order != BYTE_ORDER_MARK)
        return plp_fail(err, PLP_E_FILE, "%s: was written by a machine of the other byte order", path);
    if (h->version != PLP_STORE_VERSION)
        return plp_fail(err, PLP_E_FILE, "%s: has format version %u; this build reads %d", path, h->version, PLP_STORE_VERSION);
    if (h->sum != plp_checksum(h, offsetof(header, sum)))
        return plp_fail(err, PLP_E_FILE, "%s: its header is damaged", path);
    if ((why = nonsense(h)))
        return plp_fail(err, PLP_E_FILE, "%s: is not usable: %s", path, why);
    if (!lay_out(h, l) || h->file_bytes != l->end)
        return plp_fail(err, PLP_E_FILE, "%s: is not usable: its sizes contradict each other", path);
    if (n_bytes != l->end)
        return plp_fail(err, PLP_E_FILE, "%s: has %zu bytes instead of %llu: it was %s", path, n_bytes,
                        (unsigned long long)l->end, n_bytes < l->end ? "cut short" : "extended");
    if (kind && h->kind != kind)
        return plp_fail(err, PLP_E_FILE, "%s: is a %s file where a %s file is needed", path, kind_name(h->kind), kind_name(kind));
    if (!shape)
        return PLP_OK;
    if (h->shape.block_len != shape->block_len)
        return plp_fail(err, PLP_E_FILE, "%s: has blocks of %u tokens, this engine uses %u", path, h->shape.block_len, shape->block_len);
    if (h->shape.kv_format != shape->kv_format)
        return plp_fail(err, PLP_E_FILE, "%s: has another KV format (%u) than this engine (%u)", path, h->shape.kv_format, shape->kv_format);
    if (h->shape.n_layers != shape->n_layers || h->shape.n_kv_heads != shape->n_kv_heads || h->shape.head_dim != shape->head_dim)
        return plp_fail(err, PLP_E_FILE, "%s: was computed by a model of another shape (%u layers, %u kv heads of %u)", path,
                        h->shape.n_layers, h->shape.n_kv_heads, h->shape.head_dim);
    if (memcmp(h->shape.fingerprint, shape->fingerprint, sizeof shape->fingerprint))
        return plp_fail(err, PLP_E_FILE, "%s: was computed by another model or another version of the numerics", path);
    return PLP_OK;
}

static plp_status check_content(const char *path, const header *h, const uint8_t *data, const layout *l, plp_error *err)
{
    const uint8_t *sum = data + l->sums, *block = data + l->payload;

    if (h->rest_sum != plp_checksum(data + sizeof *h, (size_t)(l->payload - sizeof *h)))
        return plp_fail(err, PLP_E_FILE, "%s: its tokens or checksums are damaged", path);
    if (memchr(data + l->path, 0, h->path_bytes))
        return plp_fail(err, PLP_E_FILE, "%s: is not usable: a zero byte in the path of its prefix file", path);
    for (uint32_t r = 0; r < h->n_runs; r++)
        for (uint32_t i = 0; i < h->runs[r].n_blocks; i++, block += h->runs[r].block_bytes, sum += 8)
            if (plp_u64_at(sum) != plp_checksum(block, (size_t)h->runs[r].block_bytes))
                return plp_fail(err, PLP_E_FILE, "%s: block %u of run %u is damaged", path, i, r);
    return PLP_OK;
}

/* Of everything that blocks mean, by their checksums; two files that differ in their notes alone have one id. */
static uint64_t id_of(const header *h, const uint8_t *data, const layout *l)
{
    const uint64_t parts[3] = { plp_checksum(&h->shape, sizeof h->shape), plp_checksum(data + sizeof *h, (size_t)(l->path - sizeof *h)),
                                plp_checksum(data + l->sums, (size_t)(l->n_blocks * 8)) };
    return plp_checksum(parts, sizeof parts);
}

static void describe(plp_store *s, const header *h, const uint8_t *data, const layout *l)
{
    uint64_t offset = l->payload;

    s->refs = 1;
    s->id = id_of(h, data, l);
    s->data = data;
    s->n_bytes = l->end;
    s->info = (plp_store_info){ .kind = h->kind, .shape = h->shape, .n_tokens = h->n_tokens,
                                .tokens = (const int32_t *)(data + sizeof *h), .n_runs = h->n_runs,
                                .ref_id = h->ref_id, .ref_tokens = h->ref_tokens,
                                .note = h->note_bytes ? data + l->note : NULL, .note_bytes = h->note_bytes };
    for (uint32_t i = 0; i < h->n_runs; i++) {
        s->info.runs[i] = (plp_store_run){ h->runs[i].block_bytes, h->runs[i].n_blocks, h->runs[i].first, h->runs[i].tag };
        s->run_offset[i] = offset;
        offset += h->runs[i].block_bytes * h->runs[i].n_blocks;
    }
    if (h->path_bytes) {
        memcpy(s->path, data + l->path, h->path_bytes);
        s->info.ref_path = s->path;
    }
}

plp_status plp_store_parse(plp_store **out, const char *name, const uint8_t *data, size_t n_bytes, uint32_t kind,
                           const plp_store_shape *shape, plp_error *err)
{
    header h;
    layout l;
    plp_store *s;
    plp_status status;

    if (n_bytes < sizeof h)
        return plp_fail(err, PLP_E_FILE, "%s: %zu bytes are too few for a KV file", name, n_bytes);
    memcpy(&h, data, sizeof h);
    if ((status = check_header(name, &h, n_bytes, kind, shape, &l, err)) || (status = check_content(name, &h, data, &l, err)))
        return status;
    if (!(s = plp_zalloc(PLP_MEM_KV, 1, sizeof *s + h.path_bytes + 1)))
        return plp_fail_amount(err, PLP_E_NOMEM, sizeof *s, 0, "%s: no memory to describe it", name);
    describe(s, &h, data, &l);
    *out = s;
    return PLP_OK;
}

plp_status plp_store_open(plp_store **out, const char *path, uint32_t kind, const plp_store_shape *shape, plp_error *err)
{
    plp_map map;
    plp_store *s;
    plp_status status;

    if ((status = plp_map_open(&map, path, err)))
        return status;
    plp_map_willneed(&map, 0, map.n_bytes);             /* all of it is read now */
    if ((status = plp_store_parse(&s, path, map.data, map.n_bytes, kind, shape, err))) {
        plp_map_close(&map);
        return status;
    }
    s->map = map;
    *out = s;
    return PLP_OK;
}

void plp_store_keep(plp_store *s)
{
    s->refs++;
}

void plp_store_drop(void *store)
{
    plp_store *s = store;
    if (!s || --s->refs)
        return;
    if (s->map.data)
        plp_map_close(&s->map);
    plp_free(s);
}

const plp_store_info *plp_store_get(const plp_store *s)     { return &s->info; }
uint64_t              plp_store_bytes(const plp_store *s)   { return s->n_bytes; }
uint64_t              plp_store_id(const plp_store *s)      { return s->id; }

void *plp_store_block(const plp_store *s, uint32_t run, uint32_t i)
{
    return (void *)(uintptr_t)(s->data + s->run_offset[run] + s->info.runs[run].block_bytes * i);
}
