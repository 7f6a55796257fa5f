/*
 * fuzz_vocab.c - any bytes as a small vocabulary and a text
 *
 *   byte 0        model and oddities          1    pre-tokenizer
 *   byte 2        what the file says about BOS, EOS, spaces, ids
 *   byte 3        tokens; per token: kind, length, spelling
 *   then          merges: count; per merge: two token numbers
 *   the rest      the text
 *
 * What must hold: a vocabulary opens or says why not; every id lies in it; no control token comes from
 * text unless asked for; the number of tokens does not depend on the room for them; and, where no
 * token stands for unknown text, detokenizing gives the text back byte for byte.
 *
 *   clang-19 -g -O1 -std=gnu11 -D_GNU_SOURCE -DPLP_VERSION='"fuzz"' -fsanitize=fuzzer,address,undefined \
 *       -fno-sanitize-recover=undefined -Inative -Inative/include -Itests/native -IGENERATED \
 *       tests/fuzz/fuzz_vocab.c native/{format,base,text}/[a-z]*.c -lm -lpthread -o fuzz_vocab
 *   ./fuzz_vocab -max_len=1024 NEW_FOLDER tests/fuzz/corpus/vocab
 *   ./fuzz_vocab -merge=1 tests/fuzz/corpus/vocab NEW_FOLDER
 *
 * GENERATED is where the build put unicode_tables.h. The corpus is replayed by check_fuzz_vocab.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vocab_image.h"

#define MUST(cond) do { if (!(cond)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); abort(); } } while (0)

typedef struct reader { const uint8_t *at, *end; } reader;

static uint32_t byte(reader *r) { return r->at < r->end ? *r->at++ : 0; }

static const char *const pre_names[] = {
#define PRETOKEN(name, rule, flags) name,
#include "text/pretoken.def"
#undef PRETOKEN
    "unknown",
};

/* Builds the file; true if some token may stand for unknown text. */
static bool build(image *g, reader *r)
{
    static const char *const models[] = { "gpt2", "gpt2", "llama", "llama", "gemma4", "bert" };
    enum { MOST = 80 + 256 };
    static char texts[MOST][32], merges[64][72];
    static const char *text[MOST], *merge[64];
    static int32_t kinds[MOST];
    static float scores[MOST];
    const uint32_t odd = byte(r), pre = byte(r), rules = byte(r), n_own = byte(r) % 80;
    const bool bytes = !(odd & 0x80), spm = odd % 6 >= 2;       /* mostly all single bytes are there too */
    const uint32_t n = n_own + (bytes ? 256 : 0);
    bool unknown = false;

    for (uint32_t i = 0; i < 256 && bytes; i++) {
        if (spm)
            snprintf(texts[n_own + i], sizeof *texts, "<0x%02X>", i);
        else
            snprintf(texts[n_own + i], sizeof *texts, "%.2s", vocab_byte_piece((int)i));
        text[n_own + i] = texts[n_own + i];
        kinds[n_own + i] = spm ? PLP_TOKEN_BYTE : PLP_TOKEN_NORMAL;
    }
    for (uint32_t i = 0; i < n_own; i++) {
        const uint32_t kind = byte(r), length = byte(r) % 24;
        kinds[i] = (int32_t)(kind % 8 ? kind % 7 : 1);
        scores[i] = (float)(int8_t)kind;
        if (odd & 0x20 && kind == 255)
            scores[i] = __builtin_nanf("");
        for (uint32_t k = 0; k < length; k++)
            if (!(texts[i][k] = (char)byte(r)))
                texts[i][k] = 'a';
        texts[i][length] = 0;
        text[i] = texts[i];
        unknown |= kinds[i] == PLP_TOKEN_UNKNOWN;
    }
    const uint32_t n_merges = byte(r) % 64;
    for (uint32_t i = 0; i < n_merges; i++) {
        const uint32_t a = byte(r), b = byte(r);
        snprintf(merges[i], sizeof merges[i], "%s %s", n ? text[a % n] : "", n ? text[b % n] : "x");
        merge[i] = merges[i];
    }

    vocab_begin(g, models[odd % 6]);
    if (pre)
        vocab_str(g, "pre", pre_names[pre % (sizeof pre_names / sizeof *pre_names)]);
    vocab_strings(g, "tokens", n, text);
    vocab_values(g, "token_type", odd & 0x10 ? PLP_META_U32 : PLP_META_I32, n, kinds, 4);
    vocab_values(g, "scores", PLP_META_F32, n, scores, 4);
    vocab_strings(g, "merges", n_merges, merge);
    if (rules & 1) vocab_u32(g, "bos_token_id", byte(r));
    if (rules & 2) vocab_u32(g, "eos_token_id", byte(r));
    if (rules & 4) vocab_bool(g, "add_bos_token", rules & 8);
    if (rules & 16) vocab_bool(g, "add_space_prefix", rules & 32);
    if (rules & 64) vocab_u32(g, "unknown_token_id", byte(r));
    return unknown || rules & 64;
}

static void walk(const plp_vocab *v, bool unknown, const char *text, size_t n_bytes)
{
    plp_vocab_info info;
    const size_t cap = n_bytes * 2 + 16;
    int32_t *ids = malloc(cap * sizeof *ids), *few = malloc(cap * sizeof *ids);
    char *back = malloc(n_bytes * 2 + 64);

    plp_vocab_get_info(v, &info);
    MUST(memchr(info.warning, 0, sizeof info.warning));
    for (uint32_t flags = 0; flags < 32; flags++) {
        plp_error err = { 0 };
        size_t n = 0, m = 0, n_back = 0;
        const plp_status status = plp_tokenize(v, text, n_bytes, flags, ids, cap, &n, &err);
        if (status) {
            MUST((status == PLP_E_ARG || status == PLP_E_UNSUPPORTED) && err.msg[0]);
            continue;
        }
        bool stripped = flags & (PLP_TOKENIZE_STRIP | PLP_TOKENIZE_STRIP_END);     /* then the text is not whole */
        MUST(n <= cap);
        for (size_t i = 0; i < n; i++) {
            MUST(ids[i] >= 0 && (uint32_t)ids[i] < info.n_tokens);
            stripped = stripped || plp_token_strips(v, ids[i]);
            MUST(flags & (PLP_TOKENIZE_BOS | PLP_TOKENIZE_CONTROL) || plp_token_kind_of(v, ids[i]) != PLP_TOKEN_CONTROL);
        }
        const plp_status again = plp_tokenize(v, text, n_bytes, flags, few, n / 2, &m, &err);
        MUST(m == n && again == (n ? PLP_E_ARG : PLP_OK) && !memcmp(few, ids, n / 2 * sizeof *ids));
        if (flags & PLP_TOKENIZE_BOS || unknown || stripped)
            continue;
        const uint32_t out_flags = PLP_TEXT_CONTROL | (flags & PLP_TOKENIZE_CONTINUE ? PLP_TEXT_CONTINUE : 0);
        MUST(!plp_detokenize(v, ids, n, out_flags, back, n_bytes * 2 + 64, &n_back, &err));
        MUST(n_back == n_bytes && !memcmp(back, text, n_bytes));
    }
    for (int32_t id = -1; id <= (int32_t)info.n_tokens; id++) {
        plp_error err = { 0 };
        char spelled[40];
        size_t n = 0;
        const bool is = id >= 0 && id < (int32_t)info.n_tokens;
        const plp_status status = plp_token_text(v, id, PLP_TEXT_CONTROL, spelled, sizeof spelled, &n, &err);
        MUST(is || status);
        MUST((plp_token_kind_of(v, id) != 0) == is);
        MUST(is || !plp_token_ends(v, id));
        if (!status)
            MUST(plp_token_find(v, spelled, n) < (int32_t)info.n_tokens);
    }
    free(ids);
    free(few);
    free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    reader r = { data, data + n_bytes };
    image g = { 0 };
    plp_error err = { 0 };
    plp_file *f = NULL;
    plp_vocab *v = NULL;
    const bool unknown = build(&g, &r);

    memcpy(g.bytes + 16, &vocab_n_meta, 8);
    g.bytes = realloc(g.bytes, g.n);        /* exact, so that a read past the file is one past the block */
    MUST(!plp_file_parse(&f, g.bytes, g.n, PLP_FILE_LENIENT, &err));
    if (plp_vocab_open(&v, f, &err))
        MUST(err.status == PLP_E_FILE && err.msg[0]);
    plp_file_close(f);
    free(g.bytes);
    if (v)
        walk(v, unknown, (const char *)r.at, (size_t)(r.end - r.at));
    plp_vocab_close(v);
    return 0;
}
