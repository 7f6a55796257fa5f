/*
 * check_gguf.c - the GGUF reader on sound files, on every kind of damage, and on the real model
 *
 * Images lie at the end of a guarded page, so that one byte read too far dies. Files that need a
 * path (splits, folders, downloads gone wrong) go to a temporary folder. The last cases want the
 * model of PLP_MODEL or models/cache/ and say so when it is not there.
 */
#include "check.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "gguf_image.h"
#include "gguf_walk.h"

#define BIG (1ull << 60)

static char folder[200];

/* Parse an image that ends at an unreadable page. The result must be closed before unguard. */
static plp_status parse(const image *g, uint32_t flags, plp_file **f, uint8_t **at, plp_error *err)
{
    *f = NULL;
    *at = guarded(g->n + 1);                /* guarded(0) would have no page */
    memmove(*at + 1, g->bytes, g->n);
    memset(err, 0, sizeof *err);
    return plp_file_parse(f, *at + 1, g->n, flags, err);
}

/* A strict open must fail with this status and these words (NULL ends the list); a lenient one must
 * hold together. */
static void refuses(const char *what, const image *g, plp_status want, ...)
{
    plp_file *f;
    uint8_t *at;
    plp_error err;
    const uint64_t before = plp_mem_bytes(PLP_MEM_FILE);
    const plp_status status = parse(g, 0, &f, &at, &err);
    va_list words;

    CHECK(status == want && !f, "%s: %s (%s)", what, plp_status_name(status), err.msg);
    va_start(words, want);
    for (const char *w; (w = va_arg(words, const char *));) CHECK(strstr(err.msg, w), "%s: \"%s\" is not in: %s", what, w, err.msg);
    va_end(words);
    plp_file_close(f);
    walk_both(at + 1, g->n);
    CHECK(plp_mem_bytes(PLP_MEM_FILE) == before, "%s: memory is left", what);
    unguard(at, g->n + 1);
}

/* One of everything: all scalar types, arrays, an array of arrays, two tensors. */
static void sound_image(image *g)
{
    static const uint8_t wide[8] = { 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
    const uint32_t sizes[13] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    char key[16];
    uint32_t n = 0;

    image_head(g, 3, 2, 17);
    for (uint32_t type = 0; type < 13; type++) {
        if (!sizes[type]) continue;
        snprintf(key, sizeof key, "t%u", type);
        image_key(g, key, type);
        if (type == 7) image_put(g, "\1", 1);
        else if (type == 6) image_put(g, &(float){ -2.5f }, 4);
        else if (type == 12) image_put(g, &(double){ 1e300 }, 8);
        else image_put(g, wide, sizes[type]);
        n++;
    }
    CHECK(n == 11, "%u scalars", n);
    image_str(g, "general.architecture", "llama");
    image_u32(g, "general.alignment", 64);
    image_array(g, "words", 8, 40);
    for (int i = 0; i < 40; i++) { snprintf(key, sizeof key, "%.*s", i % 13, "abcdefghijklm"); image_text(g, key); }
    image_array(g, "numbers", 3, 3);
    image_put(g, (int16_t[]){ -1, 0, 32767 }, 6);
    image_array(g, "nested", 9, 2);
    image_32(g, 0); image_64(g, 3); image_put(g, "abc", 3);
    image_32(g, 8); image_64(g, 1); image_text(g, "deep");
    image_array(g, "none", 8, 0);
    image_tensor(g, "a.weight", 2, (uint64_t[]){ 64, 3 }, PLP_TYPE_Q4_1, 0);        /* 2 x 20 bytes a row, 120 */
    image_tensor(g, "b.weight", 1, (uint64_t[]){ 5 }, PLP_TYPE_F32, 128);
    image_pad(g, 64);
    image_fill(g, 128 + 20);
}

static void sound_file(void)
{
    image g = { 0 };
    plp_file *f;
    uint8_t *at;
    plp_error err;
    plp_meta m;
    plp_tensor_info t;
    double d;
    int64_t v;
    const char *s;
    size_t n;
    uint32_t u;
    float x;
    bool b;
    char text[8];

    sound_image(&g);
    CHECK(parse(&g, 0, &f, &at, &err) == PLP_OK, "%s", err.msg);
    if (!f) return;
    CHECK(plp_file_version(f) == 3 && plp_file_n_meta(f) == 17 && plp_file_n_tensors(f) == 2 && !plp_file_problem(f), "counts");
    CHECK(plp_file_bytes(f) == g.n, "bytes");
    static const struct { const char *key; int64_t i; double d; } numbers[] = {
        { "t0", 254, 254 }, { "t1", -2, -2 }, { "t2", 65534, 65534 }, { "t3", -2, -2 }, { "t4", 4294967294, 4294967294.0 },
        { "t5", -2, -2 }, { "t7", 1, 1 }, { "t11", -2, -2 },
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const int64_t at_key = plp_file_find(f, numbers[i].key);
        CHECK(plp_file_i64(f, (uint64_t)at_key, 0, &v, &err) == PLP_OK && v == numbers[i].i, "%s", numbers[i].key);
        CHECK(plp_file_f64(f, (uint64_t)at_key, 0, &d, &err) == PLP_OK && d == numbers[i].d, "%s", numbers[i].key);
    }
    CHECK(plp_file_i64(f, (uint64_t)plp_file_find(f, "t10"), 0, &v, &err) == PLP_E_FILE && strstr(err.msg, "uint64"), "%s", err.msg);
    CHECK(plp_file_f64(f, (uint64_t)plp_file_find(f, "t10"), 0, &d, &err) == PLP_OK && d == 18446744073709551614.0, "uint64 as a float");
    CHECK(plp_file_i64(f, (uint64_t)plp_file_find(f, "t6"), 0, &v, &err) == PLP_E_FILE && strstr(err.msg, "float32"), "%s", err.msg);
    CHECK(plp_file_f64(f, (uint64_t)plp_file_find(f, "t6"), 0, &d, &err) == PLP_OK && d == -2.5, "float32");

    const uint64_t words = (uint64_t)plp_file_find(f, "words");
    CHECK(plp_file_meta(f, words, &m, &err) == PLP_OK && m.type == PLP_META_ARRAY && m.elem_type == PLP_META_STRING && m.n == 40, "words");
    for (int i = 39; i >= 0; i--)
        CHECK(plp_file_str(f, words, (uint64_t)i, &s, &n, &err) == PLP_OK && n == (size_t)i % 13 && !memcmp(s, "abcdefghijklm", n), "word %d", i);
    CHECK(plp_file_str(f, words, 40, &s, &n, &err) == PLP_E_ARG && strstr(err.msg, "40"), "%s", err.msg);
    CHECK(plp_file_f64(f, words, 0, &d, &err) == PLP_E_FILE && strstr(err.msg, "words") && strstr(err.msg, "string"), "%s", err.msg);
    CHECK(plp_file_i64(f, (uint64_t)plp_file_find(f, "numbers"), 2, &v, &err) == PLP_OK && v == 32767, "numbers[2]");
    CHECK(plp_file_str(f, (uint64_t)plp_file_find(f, "nested"), 0, &s, &n, &err) == PLP_E_FILE && strstr(err.msg, "array"), "%s", err.msg);

    CHECK(plp_meta_u32(f, "t4", 0, &u, &err) == PLP_OK && u == 4294967294u, "uint32");
    CHECK(plp_meta_u32(f, "missing", 7, &u, &err) == PLP_OK && u == 7, "fallback");
    CHECK(plp_meta_u32(f, "t1", 0, &u, &err) == PLP_E_FILE && strstr(err.msg, "-2") && u == 7, "%s", err.msg);
    CHECK(plp_meta_u32(f, "t7", 0, &u, &err) == PLP_E_FILE && strstr(err.msg, "bool"), "%s", err.msg);
    CHECK(plp_meta_u32(f, "numbers", 0, &u, &err) == PLP_E_FILE && strstr(err.msg, "array of int16"), "%s", err.msg);
    CHECK(plp_meta_f32(f, "t6", 0, &x, &err) == PLP_OK && x == -2.5f, "float32");
    CHECK(plp_meta_f32(f, "t0", 0, &x, &err) == PLP_OK && x == 254.0f, "uint8 as a float");
    CHECK(plp_meta_f32(f, "t12", 0, &x, &err) == PLP_E_FILE && x == 254.0f, "1e300 is no float32");
    CHECK(plp_meta_bool(f, "t7", false, &b, &err) == PLP_OK && b, "bool");
    CHECK(plp_meta_bool(f, "t0", false, &b, &err) == PLP_E_FILE && strstr(err.msg, "uint8"), "%s", err.msg);
    CHECK(plp_meta_str(f, "general.architecture", "", text, 4, &err) == PLP_OK && !strcmp(text, "lla"), "cut to what fits");
    CHECK(plp_meta_str(f, "missing", "gpt", text, sizeof text, &err) == PLP_OK && !strcmp(text, "gpt"), "fallback");
    CHECK(plp_meta_str(f, "t0", "", text, sizeof text, &err) == PLP_E_FILE && strstr(err.msg, "t0"), "%s", err.msg);

    CHECK(plp_file_tensor(f, 0, &t, &err) == PLP_OK && !strcmp(t.name, "a.weight") && t.n_bytes == 120 && t.n_dims == 2 &&
          t.dims[0] == 64 && t.dims[1] == 3 && t.dims[2] == 1 && t.dims[3] == 1 && !strcmp(t.type_name, "Q4_1") && t.part == 0, "tensor 0");
    CHECK(t.offset % 64 == 0 && t.offset + 128 + 20 == g.n, "offset %llu", (unsigned long long)t.offset);
    CHECK(plp_file_tensor_named(f, "a.weight")->row_bytes == 40, "row bytes");
    const void *data;
    CHECK(plp_file_tensor_data(f, 1, &data, &err) == PLP_OK && !memcmp(data, g.bytes + g.n - 20, 20), "data");
    plp_file_close(f);
    walk_both(at + 1, g.n);
    unguard(at, g.n + 1);
    free(g.bytes);
}

/* Cut anywhere: never past the end, always an error, and lenient keeps what came before. */
static void every_length(void)
{
    image g = { 0 };
    plp_file *f;
    uint8_t *at;
    plp_error err;
    uint64_t kept = 17;

    sound_image(&g);
    for (image cut = g; cut.n-- > 0;) {
        CHECK(parse(&cut, 0, &f, &at, &err) == PLP_E_FILE && !f && err.msg[0], "%zu bytes: %s", cut.n, err.msg);
        walk_both(at + 1, cut.n);
        if (plp_file_parse(&f, at + 1, cut.n, PLP_FILE_LENIENT, &err) == PLP_OK) {
            const uint64_t n = plp_file_n_meta(f);
            CHECK(plp_file_problem(f) && n <= kept && n + 1 >= kept, "%zu bytes: %llu pairs", cut.n, (unsigned long long)n);
            kept = n;
            plp_file_close(f);
        } else CHECK(cut.n < 24 && kept == 0, "%zu bytes are a whole header", cut.n);
        unguard(at, cut.n + 1);
    }
    free(g.bytes);
}

/* Change each byte of the structure: whatever the reader says, it must stay inside. */
static void every_byte(void)
{
    static const uint8_t flips[] = { 0x01, 0x04, 0x10, 0x40, 0x80, 0xff };
    image g = { 0 };

    sound_image(&g);
    uint8_t *at = guarded(g.n);
    for (size_t i = 0; i < g.n - 140; i++)
        for (size_t k = 0; k < sizeof flips; k++) {
            memcpy(at, g.bytes, g.n);
            at[i] ^= flips[k];
            walk_both(at, g.n);
        }
    CHECK(plp_mem_bytes(PLP_MEM_FILE) == 0, "memory is left");
    unguard(at, g.n);
    free(g.bytes);
}

static void claims(void)
{
    image g = { 0 };

    image_head(&g, 3, 0, 1);                /* the 37 bytes of an empty key */
    image_64(&g, 0); image_32(&g, 0); image_put(&g, "x", 1);
    CHECK(g.n == 37, "%zu bytes", g.n);
    refuses("empty key", &g, PLP_E_FILE, "key", "pair 0", "empty", NULL);
    image_head(&g, 3, 0, BIG);
    refuses("2^60 pairs", &g, PLP_E_FILE, "1152921504606846976", "metadata pairs", NULL);
    image_head(&g, 3, BIG, 0);
    refuses("2^60 tensors", &g, PLP_E_FILE, "1152921504606846976", "tensors", NULL);
    image_head(&g, 3, 0, 1 << 20);
    refuses("pairs that are not there", &g, PLP_E_FILE, "cut short", "pair 0", NULL);
    image_head(&g, 3, 0, 1); image_64(&g, BIG); image_fill(&g, 100);
    refuses("a key of 2^60 bytes", &g, PLP_E_FILE, "1152921504606846976", NULL);
    image_head(&g, 3, 0, 1); image_key(&g, "k", 8); image_64(&g, BIG); image_fill(&g, 100);
    refuses("a string of 2^60 bytes", &g, PLP_E_FILE, "\"k\"", "cut short", NULL);
    image_head(&g, 3, 0, 1); image_key(&g, "k", 8); image_64(&g, UINT64_MAX - 3); image_fill(&g, 100);
    refuses("a string whose end wraps", &g, PLP_E_FILE, "\"k\"", NULL);
    for (uint32_t type = 0; type < 13; type++) {
        image_head(&g, 3, 0, 1); image_array(&g, "k", type, BIG); image_fill(&g, 100);
        refuses("an array of 2^60", &g, PLP_E_FILE, "\"k\"", "cut short", NULL);
        image_head(&g, 3, 0, 1); image_array(&g, "k", type, UINT64_MAX / 4 + 2); image_fill(&g, 100);
        refuses("an array whose size wraps", &g, PLP_E_FILE, "\"k\"", NULL);
    }
    image_head(&g, 3, 0, 1); image_array(&g, "k", 13, 1); image_fill(&g, 100);
    refuses("an array of type 13", &g, PLP_E_FILE, "\"k\"", "13", NULL);
    image_head(&g, 3, 0, 1); image_key(&g, "k", 13); image_fill(&g, 100);
    refuses("type 13", &g, PLP_E_FILE, "\"k\"", "13", NULL);
    image_head(&g, 3, 0, 1); image_key(&g, "k", 7); image_put(&g, "\2", 1);
    refuses("a bool of 2", &g, PLP_E_FILE, "\"k\"", "bool", NULL);
    image_head(&g, 3, 0, 1); image_array(&g, "k", 7, 3); image_put(&g, "\0\1\5", 3);
    refuses("a bool of 5", &g, PLP_E_FILE, "\"k\"", "value 2", NULL);
    image_head(&g, 3, 0, 2); image_u32(&g, "twice", 1); image_u32(&g, "twice", 2);
    refuses("a key twice", &g, PLP_E_FILE, "\"twice\"", "twice", NULL);
    image_head(&g, 3, 0, 1); image_u32(&g, "bad\xff\x01key", 1);
    refuses("a key that is no text", &g, PLP_E_FILE, "bad??key", "UTF-8", NULL);
    image_head(&g, 3, 0, 1); image_64(&g, 3); image_put(&g, "a\0b", 3); image_32(&g, 0); image_put(&g, "", 1);
    refuses("a key with a NUL", &g, PLP_E_FILE, "a?b", NULL);
    image_head(&g, 3, 0, 1);
    image_array(&g, "k", 9, 1);
    for (int i = 0; i < 1000; i++) { image_32(&g, 9); image_64(&g, 1); }
    refuses("1,000 arrays in each other", &g, PLP_E_UNSUPPORTED, "\"k\"", "nest", NULL);
    free(g.bytes);
}

static void tensor_tables(void)
{
    image g = { 0 };
    const uint64_t d4[4] = { 32, 2, 1, 1 }, wrap[4] = { 1ull << 32, 1ull << 32, 1, 1 };
    static const uint32_t alignments[] = { 0, 1, 4, 24, 48, 0x80000000u };
    char words[16];

    image_head(&g, 3, 1, 0); image_tensor(&g, "t", 4, (uint64_t[]){ 32, 0, 1, 1 }, 0, 0); image_pad(&g, 32); image_fill(&g, 512);
    refuses("a dimension of 0", &g, PLP_E_FILE, "\"t\"", "32 x 0", NULL);
    image_head(&g, 3, 1, 0); image_text(&g, "t"); image_32(&g, 5); image_fill(&g, 512);
    refuses("5 dimensions", &g, PLP_E_FILE, "\"t\"", "5", NULL);
    image_head(&g, 3, 1, 0); image_tensor(&g, "t", 2, wrap, 0, 0); image_pad(&g, 32); image_fill(&g, 512);
    refuses("2^64 values", &g, PLP_E_FILE, "\"t\"", "4294967296 x 4294967296", NULL);
    image_head(&g, 3, 1, 0); image_tensor(&g, "t", 2, (uint64_t[]){ BIG, 4 }, 0, 0); image_pad(&g, 32); image_fill(&g, 512);
    refuses("2^64 bytes", &g, PLP_E_FILE, "\"t\"", NULL);
    image_head(&g, 3, 1, 0); image_tensor(&g, "t", 1, (uint64_t[]){ 4 * BIG + 32 }, 0, 0); image_pad(&g, 32); image_fill(&g, 512);
    refuses("a row that wraps to 128 bytes", &g, PLP_E_FILE, "\"t\"", NULL);
    image_head(&g, 3, 1, 0); image_tensor(&g, "t", 2, (uint64_t[]){ 33, 2 }, PLP_TYPE_Q4_1, 0); image_pad(&g, 32); image_fill(&g, 512);
    refuses("half a block", &g, PLP_E_FILE, "\"t\"", "33", "Q4_1", "32", NULL);
    image_head(&g, 3, 1, 0); image_tensor(&g, "t", 4, d4, 0, 32 * (BIG / 32)); image_pad(&g, 32); image_fill(&g, 512);
    refuses("an offset past the end", &g, PLP_E_FILE, "\"t\"", "incomplete", NULL);
    image_head(&g, 3, 1, 0); image_tensor(&g, "t", 4, d4, 0, UINT64_MAX - 31); image_pad(&g, 32); image_fill(&g, 512);
    refuses("an offset that wraps", &g, PLP_E_FILE, "\"t\"", "18446744073709551584", NULL);
    image_head(&g, 3, 1, 0); image_tensor(&g, "t", 4, d4, 0, 16); image_pad(&g, 32); image_fill(&g, 512);
    refuses("an offset between", &g, PLP_E_FILE, "\"t\"", "16", "multiple of 32", NULL);
    image_head(&g, 3, 2, 0); image_tensor(&g, "t", 4, d4, 0, 0); image_tensor(&g, "u", 4, d4, 0, 224);
    image_pad(&g, 32); image_fill(&g, 512);
    refuses("an overlap", &g, PLP_E_FILE, "\"u\"", "before the end", NULL);
    image_head(&g, 3, 2, 0); image_tensor(&g, "t", 4, d4, 0, 0); image_tensor(&g, "t", 4, d4, 0, 256);
    image_pad(&g, 32); image_fill(&g, 512);
    refuses("a name twice", &g, PLP_E_FILE, "\"t\"", "twice", NULL);
    image_head(&g, 3, 1, 0); image_tensor(&g, "", 4, d4, 0, 0); image_pad(&g, 32); image_fill(&g, 512);
    refuses("no name", &g, PLP_E_FILE, "name", "tensor 0", NULL);
    static const struct { uint32_t type; const char *words; } types[] = {
        { 31, "removed" }, { 36, "BitNet" }, { 999, "unknown" }, { 0x80000000u, "unknown" }, { 4, "Q4_2" },
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        image_head(&g, 3, 2, 0); image_tensor(&g, "good", 4, d4, 0, 0); image_tensor(&g, "blk.0.odd", 4, d4, types[i].type, 256);
        image_pad(&g, 32); image_fill(&g, 512);
        snprintf(words, sizeof words, "type %d", (int32_t)types[i].type);
        refuses("a type", &g, PLP_E_UNSUPPORTED, "\"blk.0.odd\"", words, types[i].words, NULL);
    }
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        image_head(&g, 3, 1, 1); image_u32(&g, "general.alignment", alignments[i]); image_tensor(&g, "t", 4, d4, 0, 0);
        image_pad(&g, 64); image_fill(&g, 512);
        refuses("an alignment", &g, PLP_E_FILE, "general.alignment", NULL);
    }
    image_head(&g, 3, 1, 1); image_str(&g, "general.alignment", "32"); image_tensor(&g, "t", 4, d4, 0, 0); image_fill(&g, 512);
    refuses("an alignment in words", &g, PLP_E_FILE, "general.alignment", "string", NULL);
    free(g.bytes);
}

/* ---- what it looks like ------------------------------------------------------------------- */

static void foreign_files(void)
{
    static const struct { const char *bytes; size_t n; plp_status status; const char *words; } looks[] = {
#define LOOK(text, status, words) { text, sizeof text - 1, status, words }
        LOOK("<!DOCTYPE html>\n<html><head><title>Not found</title>", PLP_E_FILE, "web page"),
        LOOK("\xef\xbb\xbf \r\n<HTML lang=en>", PLP_E_FILE, "web page"),
        LOOK("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 98362432\n", PLP_E_FILE, "git lfs pull"),
        LOOK("PK\3\4\24\0\0\0\10\0", PLP_E_FILE, "zip"),
        LOOK("\x1f\x8b\x08\0\0\0\0\0", PLP_E_FILE, "gzip"),
        LOOK("\x40\0\0\0\0\0\0\0{\"__metadata__\":{}}", PLP_E_FILE, "safetensors"),
        LOOK("{\"error\":\"Invalid credentials\"}", PLP_E_FILE, "JSON"),
        LOOK("tjgg\3\0\0\0", PLP_E_FILE, "before GGUF"),
        LOOK("GGUF\0\0\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", PLP_E_UNSUPPORTED, "big-endian"),
        LOOK("GGUF\1\0\0\0\0\0\0\0\0\0\0\0", PLP_E_UNSUPPORTED, "version 1"),
        LOOK("GGUF\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", PLP_E_UNSUPPORTED, "version 4"),
        LOOK("GGUF\3\0\0\0\0\0\0\0", PLP_E_FILE, "cut short"),
        LOOK("GG", PLP_E_FILE, "too short"),
        LOOK("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", PLP_E_FILE, "zeros"),
        LOOK("just a few words", PLP_E_FILE, "text"),
        LOOK("\x7f" "ELF\2\1\1\0", PLP_E_FILE, "7f 45 4c 46"),
#undef LOOK
    };
    char path[256];
    plp_file *f = NULL;
    plp_error err;

    snprintf(path, sizeof path, "%s/m.gguf", folder);
    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
        image g = { (uint8_t *)looks[i].bytes, looks[i].n, 0 };
        refuses(looks[i].words, &g, looks[i].status, looks[i].words, NULL);
        FILE *out = fopen(path, "wb");
        fwrite(looks[i].bytes, 1, looks[i].n, out);
        fclose(out);
        CHECK(plp_file_open(&f, path, PLP_FILE_LENIENT, &err) == looks[i].status && !f, "lenient: %s", looks[i].words);
        CHECK(strstr(err.msg, "m.gguf") && strstr(err.msg, looks[i].words) && !strchr(err.msg, '\n'), "%s", err.msg);
    }
    fclose(fopen(path, "wb"));
    CHECK(plp_file_open(&f, path, 0, &err) == PLP_E_FILE && strstr(err.msg, "empty"), "%s", err.msg);
    CHECK(plp_file_open(&f, folder, 0, &err) == PLP_E_FILE && strstr(err.msg, "folder"), "%s", err.msg);
    unlink(path);
    CHECK(plp_file_open(&f, path, 0, &err) == PLP_E_IO && strstr(err.msg, "m.gguf"), "%s", err.msg);
}

/* ---- splits ------------------------------------------------------------------------------- */

enum { PARTS = 5 };

static void write_file(const char *name, const image *g)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "wb");
    CHECK(out && fwrite(g->bytes, 1, g->n, out) == g->n, "%s cannot be written", path);
    if (out) fclose(out);
}

/* Part nr, from 0: one tensor of 8 floats; the last has two. */
static void part_image(image *g, uint32_t nr, uint32_t n_parts, uint32_t n_tensors)
{
    char name[16];
    const uint16_t no = (uint16_t)nr, count = (uint16_t)n_parts;
    const uint32_t own = nr + 1 == n_parts ? 2 : 1;

    image_head(g, 3, own, nr ? 3 : 4);
    if (!nr) image_str(g, "general.architecture", "llama");
    image_key(g, "split.no", 2); image_put(g, &no, 2);
    image_key(g, "split.count", 2); image_put(g, &count, 2);
    image_key(g, "split.tensors.count", 5); image_32(g, n_tensors);
    for (uint32_t i = 0; i < own; i++) {
        snprintf(name, sizeof name, "t%u", nr + i);
        image_tensor(g, name, 1, (uint64_t[]){ 8 }, 0, 32 * i);
    }
    image_pad(g, 32);
    for (uint32_t i = 0; i < own * 8; i++) image_put(g, &(float){ (float)(nr * 100 + i) }, 4);
}

static plp_status open_named(const char *name, uint32_t flags, plp_file **f, plp_error *err)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    *f = NULL;
    return plp_file_open(f, path, flags, err);
}

static void refuses_path(const char *name, ...)
{
    plp_file *f;
    plp_error err;
    va_list words;

    CHECK(open_named(name, 0, &f, &err) == PLP_E_FILE && !f, "%s opens", name);
    va_start(words, name);
    for (const char *w; (w = va_arg(words, const char *));) CHECK(strstr(err.msg, w), "%s: \"%s\" is not in: %s", name, w, err.msg);
    va_end(words);
    CHECK(open_named(name, PLP_FILE_LENIENT, &f, &err) == PLP_OK && plp_file_problem(f), "%s: lenient: %s", name, err.msg);
    if (f) walk_file(f);
    plp_file_close(f);
}

static void rename_in(const char *from, const char *to)
{
    char a[300], b[300];
    snprintf(a, sizeof a, "%s/%s", folder, from);
    snprintf(b, sizeof b, "%s/%s", folder, to);
    CHECK(!rename(a, b), "rename %s", from);
}

static void splits(void)
{
    image g = { 0 }, all = { 0 };
    plp_file *f;
    plp_error err;
    plp_tensor_info t;
    const void *data;
    char name[40];
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < PARTS; i++) {
        part_image(&g, i, PARTS, 6);
        bytes += g.n;
        snprintf(name, sizeof name, "m-%05u-of-%05u.gguf", i + 1, PARTS);
        write_file(name, &g);
        image_put(&all, g.bytes, g.n);
    }
    for (uint32_t from = 1; from <= PARTS; from += 2) {     /* any part leads to all of them */
        snprintf(name, sizeof name, "m-%05u-of-%05u.gguf", from, PARTS);
        CHECK(open_named(name, 0, &f, &err) == PLP_OK, "%s", err.msg);
        if (!f) continue;
        CHECK(plp_file_n_tensors(f) == 6 && plp_file_find(f, "general.architecture") >= 0 && plp_file_bytes(f) == bytes, "%s", name);
        for (uint32_t i = 0; i < 6; i++) {
            const uint32_t part = i < PARTS ? i : PARTS - 1;
            CHECK(plp_file_tensor(f, i, &t, &err) == PLP_OK && t.part == part && t.name[1] == (char)('0' + i), "tensor %u", i);
            CHECK(plp_file_tensor_data(f, i, &data, &err) == PLP_OK && *(const float *)data == (float)(part * 100 + (i == 5) * 8), "data %u", i);
        }
        plp_file_willneed(f);
        walk_file(f);
        plp_file_close(f);
    }
    write_file("w.gguf", &all);
    refuses_path("w.gguf", "joined", "open the first", NULL);
    part_image(&g, 0, PARTS, 6);
    write_file("w.gguf", &g);
    refuses_path("w.gguf", "part 1 of 5", "-00001-of-00005.gguf", NULL);
    write_file("w-00002-of-00005.gguf", &g);
    refuses_path("w-00002-of-00005.gguf", "part 1 of 5", NULL);
    part_image(&g, 2, PARTS, 6);
    refuses("a part in memory", &g, PLP_E_FILE, "5 parts", NULL);

    rename_in("m-00004-of-00005.gguf", "away");
    refuses_path("m-00001-of-00005.gguf", "part 4 of 5", "m-00004-of-00005.gguf", NULL);
    rename_in("away", "m-00004-of-00005.gguf");
    rename_in("m-00001-of-00005.gguf", "away");
    refuses_path("m-00003-of-00005.gguf", "part 1 of 5", "m-00001-of-00005.gguf", NULL);
    rename_in("away", "m-00001-of-00005.gguf");
    part_image(&g, 2, PARTS, 6);
    write_file("m-00004-of-00005.gguf", &g);
    refuses_path("m-00001-of-00005.gguf", "part 3 of 5", "not part 4 of 5", NULL);
    part_image(&g, 3, PARTS, 6);
    g.n -= 1;
    write_file("m-00004-of-00005.gguf", &g);
    refuses_path("m-00001-of-00005.gguf", "m-00004-of-00005.gguf", "incomplete", NULL);
    part_image(&g, 3, PARTS, 6);
    write_file("m-00004-of-00005.gguf", &g);
    part_image(&g, 0, PARTS, 7);
    write_file("m-00001-of-00005.gguf", &g);
    refuses_path("m-00001-of-00005.gguf", "6 tensors", "7", NULL);
    free(g.bytes);
    free(all.bytes);
}

/* ---- memory, descriptors, size ------------------------------------------------------------- */

static void allocation_failures(void)
{
    image g = { 0 };
    plp_file *f;
    plp_error err;
    int64_t n;

    sound_image(&g);
    for (n = 0; n < 1000; n++) {
        f = NULL;
        plp_mem_fail_after(n);
        const plp_status status = plp_file_parse(&f, g.bytes, g.n, n % 2 ? PLP_FILE_LENIENT : 0, &err);
        plp_mem_fail_after(-1);
        if (!status) break;
        CHECK(status == PLP_E_NOMEM && !f && plp_mem_bytes(PLP_MEM_FILE) == 0, "allocation %lld: %s", (long long)n, err.msg);
    }
    CHECK(n > 4 && n < 1000, "%lld allocations", (long long)n);
    plp_file_close(f);
    for (n = 0; n < 1000; n++) {
        plp_mem_fail_after(n);
        const plp_status status = open_named("m-00003-of-00005.gguf", PLP_FILE_LENIENT, &f, &err);
        plp_mem_fail_after(-1);
        if (!status) break;
        CHECK(status == PLP_E_NOMEM && !f && plp_mem_bytes(PLP_MEM_FILE) == 0, "allocation %lld of a split: %s", (long long)n, err.msg);
    }
    CHECK(n > 20 && n < 1000, "%lld allocations for a split", (long long)n);
    plp_file_close(f);
    free(g.bytes);
}

static int n_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    if (!d) return 0;                       /* not on this system: compares equal */
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static void a_thousand_bad_files(void)
{
    image g = { 0 };
    plp_file *f;
    plp_error err;
    const int before = n_descriptors();

    image_head(&g, 3, 0, 1);
    image_64(&g, 0); image_32(&g, 0); image_put(&g, "x", 1);
    write_file("bad.gguf", &g);
    for (int i = 0; i < 1000; i++)
        CHECK(open_named("bad.gguf", 0, &f, &err) == PLP_E_FILE && strstr(err.msg, "empty") && strstr(err.msg, "pair 0"), "%s", err.msg);
    CHECK(n_descriptors() == before && plp_mem_bytes(PLP_MEM_FILE) == 0, "descriptors or memory are left");
    free(g.bytes);
}

/* A vocabulary's worth: names found, strings in any order, an index much smaller than the data. */
static void many(void)
{
    enum { TENSORS = 3000, WORDS = 300000 };
    image g = { 0 };
    plp_file *f = NULL;
    plp_error err;
    char name[40];
    const char *s;
    size_t n;

    image_head(&g, 2, TENSORS, 1);
    image_array(&g, "tokenizer.ggml.tokens", 8, WORDS);
    for (int i = 0; i < WORDS; i++) { snprintf(name, sizeof name, "w%d", i); image_text(&g, name); }
    for (uint64_t i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "blk.%d.weight", (int)i);
        image_tensor(&g, name, 1, (uint64_t[]){ 8 }, 0, 32 * i);
    }
    image_pad(&g, 32);
    image_fill(&g, 32 * TENSORS);
    CHECK(plp_file_parse(&f, g.bytes, g.n, 0, &err) == PLP_OK, "%s", err.msg);
    if (!f) return;
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "blk.%d.weight", i);
        const plp_tensor *t = plp_file_tensor_named(f, name);
        CHECK(t && !strcmp(t->name, name) && (const uint8_t *)t->data == g.bytes + g.n - 32 * (TENSORS - i), "%s", name);
    }
    for (int k = 0; k < 20000; k++) {
        const uint32_t i = check_random() % WORDS;
        snprintf(name, sizeof name, "w%u", i);
        CHECK(plp_file_str(f, 0, i, &s, &n, &err) == PLP_OK && n == strlen(name) && !memcmp(s, name, n), "word %u", i);
    }
    CHECK(plp_mem_bytes(PLP_MEM_FILE) < 1 << 20, "the index of %zu bytes takes %llu", g.n, (unsigned long long)plp_mem_bytes(PLP_MEM_FILE));
    plp_file_close(f);
    free(g.bytes);
}

/* ---- the real model ------------------------------------------------------------------------ */

static void real_model(const char *path)
{
    plp_file *f = NULL, *cut = NULL;
    plp_error err;
    plp_tensor_info t;
    double d;
    static const size_t lengths[] = { 59017459, 1785665, 98362431 };

    CHECK(plp_file_open(&f, path, 0, &err) == PLP_OK, "%s", err.msg);
    if (!f) return;
    walk_file(f);
    CHECK(plp_file_tensor(f, 0, &t, &err) == PLP_OK, "%s", err.msg);
    if (plp_file_bytes(f) != 98362432) {
        printf("  (not SmolLM2-135M Q4_1: its numbers are not compared)\n");
        plp_file_close(f);
        return;
    }
    CHECK(plp_file_n_tensors(f) == 272 && t.offset == 1785664, "%llu tensors, data at %llu",
          (unsigned long long)plp_file_n_tensors(f), (unsigned long long)t.offset);
    CHECK(!plp_file_tensor_named(f, "output.weight"), "tied output");
    CHECK(plp_file_f64(f, (uint64_t)plp_file_find(f, "llama.context_length"), 0, &d, &err) == PLP_OK && d == 8192, "%s", err.msg);
    const uint8_t *base = (const uint8_t *)plp_file_tensor_named(f, t.name)->data - t.offset;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        CHECK(plp_file_parse(&cut, base, lengths[i], 0, &err) == PLP_E_FILE && strstr(err.msg, "98362432") &&
              strstr(err.msg, "incomplete"), "%s", err.msg);
        CHECK(plp_file_parse(&cut, base, lengths[i], PLP_FILE_LENIENT, &err) == PLP_OK, "%s", err.msg);
        CHECK(plp_file_n_meta(cut) == plp_file_n_meta(f) && plp_file_n_tensors(cut) == 272 && strstr(plp_file_problem(cut), "98362432"), "lenient");
        walk_file(cut);
        plp_file_close(cut);
    }
    plp_file_close(f);
}

static void empty_folder(void)
{
    DIR *d = opendir(folder);
    char path[600];
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
    rmdir(folder);
}

int main(void)
{
    const char *tmp = getenv("TMPDIR"), *model = getenv("PLP_MODEL");

    snprintf(folder, sizeof folder, "%s/plp-gguf-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) { perror(folder); return 2; }
    RUN(sound_file);
    RUN(every_length);
    RUN(every_byte);
    RUN(claims);
    RUN(tensor_tables);
    RUN(foreign_files);
    RUN(splits);
    RUN(allocation_failures);
    RUN(a_thousand_bad_files);
    RUN(many);
    if (!model) model = PLP_SOURCE_DIR "/models/cache/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (access(model, R_OK)) printf("%-40s skipped: %s is not there\n", "real_model", model);
    else { long failed = check_failed; real_model(model); printf("%-40s %s\n", "real_model", check_failed == failed ? "ok" : "FAILED"); }
    empty_folder();
    return check_done();
}
