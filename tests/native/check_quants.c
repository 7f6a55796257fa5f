/*
 * check_quants.c - every type of quants.def against gguf-py, bit for bit, and half precision against
 * an exact second way
 *
 * tests/golden/quants.bin (or the file PLP_QUANT_GOLDEN names) has random blocks and the hash of what
 * gguf-py makes of each; see make_quant_goldens.py. Blocks lie at the end of a guarded page, so that
 * a dequantiser that reads or writes past its row dies.
 */
#include "check.h"

#include <math.h>

#include "format/quants.h"

static uint64_t fnv1a(const void *data, size_t n)
{
    const uint8_t *p = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

typedef struct golden { const uint8_t *at, *end; } golden;

static const void *next(golden *g, size_t n)
{
    if (n > (size_t)(g->end - g->at)) { printf("the golden file is cut short\n"); exit(1); }
    g->at += n;
    return g->at - n;
}

static void replay(void)
{
    const char *path = getenv("PLP_QUANT_GOLDEN");
    FILE *in = fopen(path ? path : PLP_SOURCE_DIR "/tests/golden/quants.bin", "rb");
    uint32_t n_types;
    int seen = 0;

    if (!in) { CHECK(0, "quants.bin cannot be opened"); return; }
    fseek(in, 0, SEEK_END);
    const size_t n_bytes = (size_t)ftell(in);
    uint8_t *data = malloc(n_bytes);
    rewind(in);
    CHECK(fread(data, 1, n_bytes, in) == n_bytes, "quants.bin cannot be read");
    fclose(in);

    golden g = { data, data + n_bytes };
    CHECK(!memcmp(next(&g, 4), "PLPQ", 4), "not a golden file");
    memcpy(&n_types, next(&g, 4), 4);
    for (uint32_t i = 0; i < n_types; i++) {
        struct { int32_t id; uint32_t n, len, bytes; } head;
        memcpy(&head, next(&g, sizeof head), sizeof head);
        const uint8_t *blocks = next(&g, (size_t)head.n * head.bytes), *hashes = next(&g, (size_t)head.n * 8);
        const uint8_t *first = next(&g, (size_t)head.len * 4);
        const plp_type_info *t = plp_type_get(head.id);
        if (!t) { CHECK(0, "type %d of the golden file is not in the list", head.id); continue; }
        seen++;
        CHECK(t->block_len == head.len && t->block_bytes == head.bytes, "%s: blocks of %u in %u bytes", t->name, t->block_len, t->block_bytes);

        float *out = guarded(head.len * sizeof *out);
        uint8_t *in_block = guarded(head.bytes);
        for (uint32_t b = 0; b < head.n; b++) {
            uint64_t want;
            memcpy(&want, hashes + 8 * b, 8);
            memcpy(in_block, blocks + (size_t)b * head.bytes, head.bytes);
            t->dequantize(in_block, out, head.len);
            CHECK(fnv1a(out, head.len * 4) == want, "%s block %u differs", t->name, b);
            if (b == 0)
                for (uint32_t v = 0; v < head.len; v++) {
                    float f;
                    memcpy(&f, first + 4 * v, 4);
                    CHECK(!memcmp(&out[v], &f, 4), "%s block 0 value %u: %.9g, not %.9g", t->name, v, out[v], f);
                }
        }
        unguard(out, head.len * sizeof *out);
        unguard(in_block, head.bytes);

        /* A row of all blocks at once, at an odd address, through the public call. */
        const size_t k = (size_t)head.n * head.len, row = (size_t)head.n * head.bytes;
        uint8_t *odd = (uint8_t *)guarded(row + 1);
        float *all = guarded(k * sizeof *all);
        memcpy(odd + 1, blocks, row);
        CHECK(plp_dequantize(head.id, odd + 1, all, k, NULL) == PLP_OK, "%s", t->name);
        for (uint32_t b = 0; b < head.n; b++) {
            uint64_t want;
            memcpy(&want, hashes + 8 * b, 8);
            CHECK(fnv1a(all + (size_t)b * head.len, head.len * 4) == want, "%s block %u of a row differs", t->name, b);
        }
        unguard(odd, row + 1);
        unguard(all, k * sizeof *all);
    }
    CHECK(g.at == g.end, "%zu bytes are left", (size_t)(g.end - g.at));
#define QUANT(id, NAME, len, bytes, form) seen--;
#include "format/quants.def"
#undef QUANT
    CHECK(seen == 0, "the golden file and quants.def differ in the number of types: run make_quant_goldens.py");
    free(data);
}

static void names_and_sizes(void)
{
    uint32_t len = 7, bytes = 7;
    plp_error err;

    CHECK(plp_type_get(-1) == NULL && plp_type_get(9) == NULL && plp_type_get(999) == NULL, "types that are not run");
    CHECK(!strcmp(plp_type_name(3), "Q4_1") && !strcmp(plp_type_name(26), "I32") && !strcmp(plp_type_name(999), "unknown"), "names");
    CHECK(strstr(plp_type_name(31), "Q4_0_4_4") && strstr(plp_type_name(31), "removed"), "%s", plp_type_name(31));
    CHECK(strstr(plp_type_name(36), "BitNet") && strstr(plp_type_name(137), "ik_llama.cpp"), "other projects' types");
    CHECK(plp_type_geometry(15, &len, &bytes) && len == 256 && bytes == 292, "Q8_K");
    len = bytes = 7;
    CHECK(!plp_type_geometry(31, &len, &bytes) && !plp_type_geometry(-1, &len, &bytes) && len == 7 && bytes == 7, "unknown stays unknown");
    CHECK(plp_dequantize(26, "", NULL, 0, &err) == PLP_E_UNSUPPORTED && strstr(err.msg, "I32"), "%s", err.msg);
    CHECK(plp_dequantize(2, "", NULL, 31, &err) == PLP_E_ARG && strstr(err.msg, "32"), "%s", err.msg);
    CHECK(plp_dequantize(2, "", NULL, 0, &err) == PLP_OK, "an empty row");
}

/* What a half's bits say, by arithmetic: exact in double. */
static double half_value(uint32_t h)
{
    const int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
    const double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static void every_half(void)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float f = plp_f16_to_f32((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00) {
            CHECK(h & 0x3ff ? isnan(f) : isinf(f), "%04x", h);
            CHECK(!signbit(f) == !(h & 0x8000), "sign of %04x", h);
            if (h & 0x3ff) CHECK((plp_f32_to_f16(f) & 0x7c00) == 0x7c00 && (plp_f32_to_f16(f) & 0x3ff), "NaN %04x is lost", h);
        } else CHECK(f == half_value(h) && !signbit(f) == !(h & 0x8000), "%04x is %.9g", h, f);
        if ((h & 0x7c00) != 0x7c00 || !(h & 0x3ff)) CHECK(plp_f32_to_f16(f) == h, "%04x and back is %04x", h, plp_f32_to_f16(f));
    }
}

/* To the nearest, ties to even: at the middle between two neighbours, and one step to either side. */
static void rounding(void)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const double next_up = h == 0x7bff ? 65536.0 : half_value(h + 1);
        const float mid = (float)((half_value(h) + next_up) / 2);
        const uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        CHECK(plp_f32_to_f16(mid) == even, "%.9g gives %04x", mid, plp_f32_to_f16(mid));
        CHECK(plp_f32_to_f16(nextafterf(mid, 0)) == h, "below %.9g", mid);
        CHECK(plp_f32_to_f16(nextafterf(mid, INFINITY)) == h + 1, "above %.9g", mid);
        CHECK(plp_f32_to_f16(-mid) == (even | 0x8000), "-%.9g", mid);
    }
    CHECK(plp_f32_to_f16(1e30f) == 0x7c00 && plp_f32_to_f16(-INFINITY) == 0xfc00 && plp_f32_to_f16(1e-30f) == 0, "extremes");
}

int main(void)
{
    RUN(replay);
    RUN(names_and_sizes);
    RUN(every_half);
    RUN(rounding);
    return check_done();
}
