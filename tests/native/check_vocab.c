/*
 * tests/native/check_vocab.c - vocabularies made here: rules, merging against a naive twin, hostile files
 */
#include <pthread.h>

#include "vocab_image.h"

#define SPACE "\xe2\x96\x81"                /* U+2581 */

static size_t ids_of(const plp_vocab *v, const char *text, size_t n_bytes, uint32_t flags, int32_t *out, size_t cap)
{
    plp_error err = { 0 };
    size_t n = 0;
    CHECK(!plp_tokenize(v, text, n_bytes, flags, out, cap, &n, &err), "'%.*s': %s", (int)n_bytes, text, err.msg);
    return n;
}

static void expect(const plp_vocab *v, const char *text, uint32_t flags, size_t n_want, const int32_t *want, int line)
{
    int32_t ids[256];
    const size_t n = ids_of(v, text, strlen(text), flags, ids, 256);
    CHECK(n == n_want && !memcmp(ids, want, n * sizeof *ids), "line %d: '%s': %zu tokens (%d %d %d ...), want %zu (%d %d %d ...)", line, text,
          n, n > 0 ? ids[0] : -1, n > 1 ? ids[1] : -1, n > 2 ? ids[2] : -1, n_want, n_want > 0 ? want[0] : -1,
          n_want > 1 ? want[1] : -1, n_want > 2 ? want[2] : -1);
}
#define EXPECT(v, text, flags, ...) expect(v, text, flags, sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t), \
                                           (const int32_t[]){ __VA_ARGS__ }, __LINE__)

static void expect_text(const plp_vocab *v, size_t n_ids, const int32_t *ids, uint32_t flags, const char *want, int line)
{
    char out[256];
    size_t n = 0;
    plp_error err = { 0 };
    CHECK(!plp_detokenize(v, ids, n_ids, flags, out, sizeof out, &n, &err), "line %d: %s", line, err.msg);
    CHECK(n == strlen(want) && !memcmp(out, want, n), "line %d: '%.*s', want '%s'", line, (int)n, out, want);
}
#define EXPECT_TEXT(v, want, flags, ...) expect_text(v, sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t), \
                                                     (const int32_t[]){ __VA_ARGS__ }, flags, want, __LINE__)

static void expect_back(const plp_vocab *v, const char *text, size_t n_bytes, uint32_t flags)
{
    static int32_t ids[4096];
    static char back[8192];
    plp_error err = { 0 };
    size_t m = 0;
    const size_t n = ids_of(v, text, n_bytes, flags, ids, 4096);
    CHECK(!plp_detokenize(v, ids, n, PLP_TEXT_CONTROL, back, sizeof back, &m, &err), "%s", err.msg);
    CHECK(m == n_bytes && !memcmp(back, text, m), "%zu bytes came back as %zu", n_bytes, m);
}

/* ---- byte-level BPE --------------------------------------------------------------------------- */

enum { HE = 256, LL, HELL, HELLO, SP_H, ZZ, BOS, END, THINK, THINKING, UNUSED, N_BPE };

static void put_bpe(image *g, const char *pre)
{
    static const char *const merges[] = { "h e", "l l", "he ll", "hell o", "\xc4\xa0 h", "z z", "zz z", "q q", "nothing" };
    const char *texts[N_BPE];
    int32_t kinds[N_BPE];

    for (int i = 0; i < N_BPE; i++) {
        kinds[i] = i == BOS || i == END ? PLP_TOKEN_CONTROL : i == THINK || i == THINKING ? PLP_TOKEN_USER
                 : i == UNUSED ? PLP_TOKEN_UNUSED : PLP_TOKEN_NORMAL;
        texts[i] = i < 256 ? vocab_byte_piece(i) : (const char *[]){ "he", "ll", "hell", "hello", "\xc4\xa0h", "zz", "zzz",
                             "<|im_end|>", "<think", "<thinking>", "<unused0>" }[i - 256];
    }
    vocab_begin(g, "gpt2");
    if (pre)
        vocab_str(g, "pre", pre);
    vocab_strings(g, "tokens", N_BPE, texts);
    vocab_values(g, "token_type", PLP_META_I32, N_BPE, kinds, 4);
    vocab_strings(g, "merges", sizeof merges / sizeof *merges, merges);
}

static void bpe_rules(void)
{
    image g = { 0 };
    plp_error err;
    plp_vocab_info info;
    plp_vocab *v;
    char out[16];
    size_t n;

    put_bpe(&g, "smollm");
    vocab_u32(&g, "bos_token_id", BOS);
    vocab_u32(&g, "eos_token_id", END);
    vocab_bool(&g, "add_bos_token", true);
    vocab_bool(&g, "add_eos_token", true);
    v = vocab_end(&g, &err);
    CHECK(v, "%s", err.msg);
    plp_vocab_get_info(v, &info);
    CHECK(info.n_tokens == N_BPE && info.bos == BOS && info.eos == END && info.eot == -1 && info.pad == -1 && info.unk == -1, "ids");
    CHECK(!strcmp(info.model, "gpt2") && !strcmp(info.pre, "smollm") && info.add_bos && info.add_eos, "info");
    CHECK(strstr(info.warning, "3 of tokenizer.ggml.merges"), "'%s': the control token's, the unknown one's, the one without a space", info.warning);

    EXPECT(v, "hello", 0, HELLO);
    EXPECT(v, "hell", 0, HELL);
    EXPECT(v, " hello", 0, ' ', HELLO);                     /* "h e" ranks before the space and the h */
    EXPECT(v, " hi", 0, SP_H, 'i');
    EXPECT(v, "h1e", 0, 'h', '1', 'e');
    EXPECT(v, "hello", PLP_TOKENIZE_BOS, BOS, HELLO, END);
    CHECK(ids_of(v, "", 0, 0, (int32_t *)out, 4) == 0, "empty");

    /* Control tokens only on request, and never by merging; user tokens always; the longest counts. */
    EXPECT(v, "zzz", 0, ZZ, 'z');
    EXPECT(v, "azzzb", PLP_TOKENIZE_CONTROL, 'a', BOS, 'b');
    EXPECT(v, "<|im_end|>", PLP_TOKENIZE_CONTROL, END);
    EXPECT(v, "<think>", 0, THINK, '>');
    EXPECT(v, "<thinking>", 0, THINKING);
    EXPECT(v, "<thinkinh", 0, THINK, 'i', 'n', 'h');
    EXPECT(v, "<<think", 0, '<', THINK);
    EXPECT(v, "<unused0>", PLP_TOKENIZE_CONTROL, '<', 'u', 'n', 'u', 's', 'e', 'd', '0', '>');

    EXPECT_TEXT(v, "hello<think", 0, BOS, HELLO, THINK, END);
    EXPECT_TEXT(v, "zzzhello<|im_end|>", PLP_TEXT_CONTROL, BOS, HELLO, END);
    CHECK(plp_token_find(v, "\xc4\xa0h", 3) == SP_H && plp_token_find(v, "<|im_end|>", 10) == END && plp_token_find(v, "<think", 6) == THINK
          && plp_token_find(v, "xyz", 3) == -1 && plp_token_find(v, " h", 2) == -1, "find");
    CHECK(plp_token_kind_of(v, END) == PLP_TOKEN_CONTROL && plp_token_kind_of(v, HE) == PLP_TOKEN_NORMAL
          && plp_token_kind_of(v, -1) == 0 && plp_token_kind_of(v, N_BPE) == 0, "kinds");
    CHECK(plp_token_ends(v, END) && !plp_token_ends(v, BOS) && !plp_token_ends(v, -1) && !plp_token_ends(v, N_BPE), "ends");

    CHECK(!plp_token_text(v, SP_H, 0, out, sizeof out, &n, &err) && n == 2 && !memcmp(out, " h", 2), "text");
    CHECK(!plp_token_text(v, END, 0, out, sizeof out, &n, &err) && n == 0, "control text");
    CHECK(!plp_token_text(v, END, PLP_TEXT_CONTROL, out, sizeof out, &n, &err) && n == 10, "control text");
    CHECK(plp_token_text(v, N_BPE, 0, out, sizeof out, &n, &err) == PLP_E_ARG && strstr(err.msg, "267"), "%s", err.msg);
    CHECK(plp_detokenize(v, (const int32_t[]){ HE, -1 }, 2, 0, out, sizeof out, &n, &err) == PLP_E_ARG, "bad id");

    /* Too little room: the number needed, and nothing past cap. */
    int32_t few[4] = { -7, -7, -7, -7 };
    CHECK(plp_tokenize(v, "x y z", 5, 0, few, 2, &n, &err) == PLP_E_ARG && n == 5 && err.wanted == 5 && few[2] == -7, "cap");
    memset(out, 'q', sizeof out);
    CHECK(plp_detokenize(v, (const int32_t[]){ HELLO }, 1, 0, out, 2, &n, &err) == PLP_E_ARG && n == 5 && out[2] == 'q', "cap");
    plp_vocab_close(v);
    free(g.bytes);
}

/* The words that merging sees end where the pre-tokenizer's do; which one is said where it is not known. */
static void pre_tokenizers(void)
{
    static const struct { const char *pre, *warning; bool digits, bos; } cases[] = {
        { "smollm", NULL, true, false }, { "gpt-2", NULL, false, false }, { "llama-bpe", NULL, false, true },
        { "made-up", "\"made-up\"", false, false }, { NULL, "names no pre-tokenizer", false, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        image g = { 0 };
        plp_error err;
        plp_vocab_info info;
        int32_t ids[8];
        const char *texts[258];
        for (int b = 0; b < 256; b++)
            texts[b] = vocab_byte_piece(b);
        texts[256] = "12";
        texts[257] = "x12";
        vocab_begin(&g, "gpt2");
        if (cases[i].pre)
            vocab_str(&g, "pre", cases[i].pre);
        vocab_strings(&g, "tokens", 258, texts);
        vocab_strings(&g, "merges", 2, (const char *const[]){ "1 2", "x 12" });
        vocab_u32(&g, "bos_token_id", 7);
        plp_vocab *v = vocab_end(&g, &err);
        CHECK(v, "%s", err.msg);
        plp_vocab_get_info(v, &info);
        CHECK(cases[i].warning ? strstr(info.warning, cases[i].warning) != NULL : !info.warning[0], "%s: '%s'", cases[i].pre, info.warning);
        CHECK(info.add_bos == cases[i].bos, "%s: add_bos %d", cases[i].pre, info.add_bos);
        CHECK(ids_of(v, "x12", 3, 0, ids, 8) == (cases[i].digits ? 3 : 2), "%s", cases[i].pre);
        plp_vocab_close(v);
        free(g.bytes);
    }
}

/* ---- SentencePiece ---------------------------------------------------------------------------- */

enum { UNK, S_BOS, S_EOS, BYTE_0, A = BYTE_0 + 256, B, SP, SP_A, AB, SP_AB, BA, SP_SP, S_USER, N_SPM };

static void put_spm(image *g)
{
    static char bytes[256][8];
    const char *texts[N_SPM] = { "<unk>", "<s>", "</s>" };
    int32_t kinds[N_SPM] = { PLP_TOKEN_UNKNOWN, PLP_TOKEN_CONTROL, PLP_TOKEN_CONTROL };
    float scores[N_SPM] = { 0 };
    static const struct { const char *text; float score; } pieces[] = {
        { "a", -10 }, { "b", -10 }, { SPACE, -10 }, { SPACE "a", -3 }, { "ab", -2 }, { SPACE "ab", -4 }, { "ba", -2 }, { SPACE SPACE, -1 }, { "<user>", 0 },
    };
    for (int i = 0; i < 256; i++) {
        snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", i);
        texts[BYTE_0 + i] = bytes[i];
        kinds[BYTE_0 + i] = PLP_TOKEN_BYTE;
    }
    for (int i = A; i < N_SPM; i++) {
        texts[i] = pieces[i - A].text;
        scores[i] = pieces[i - A].score;
        kinds[i] = i == S_USER ? PLP_TOKEN_USER : PLP_TOKEN_NORMAL;
    }
    vocab_begin(g, "llama");
    vocab_strings(g, "tokens", N_SPM, texts);
    vocab_values(g, "scores", PLP_META_F32, N_SPM, scores, 4);
    vocab_values(g, "token_type", PLP_META_I32, N_SPM, kinds, 4);
    vocab_u32(g, "bos_token_id", S_BOS);
    vocab_u32(g, "eos_token_id", S_EOS);
}

static void spm_rules(void)
{
    image g = { 0 };
    plp_error err;
    plp_vocab_info info;
    plp_vocab *v;

    put_spm(&g);
    v = vocab_end(&g, &err);
    CHECK(v, "%s", err.msg);
    plp_vocab_get_info(v, &info);
    CHECK(info.add_bos && !info.add_eos && info.add_space_prefix && info.unk == -1 && !info.warning[0], "info: %s", info.warning);

    EXPECT(v, "ab", PLP_TOKENIZE_BOS, S_BOS, SP_AB);
    EXPECT(v, "ab", PLP_TOKENIZE_CONTINUE, AB);
    EXPECT(v, "aba", PLP_TOKENIZE_CONTINUE, AB, A);         /* equal scores: the leftmost first */
    EXPECT(v, "bab", PLP_TOKENIZE_CONTINUE, BA, B);
    EXPECT(v, "bab", 0, SP, BA, B);
    EXPECT(v, " ab", 0, SP_SP, AB);                         /* two spaces have the best score */
    EXPECT(v, "a b", 0, SP_A, SP, B);
    EXPECT(v, "\xc3\xa9", 0, SP, BYTE_0 + 0xc3, BYTE_0 + 0xa9);
    EXPECT(v, "\n", PLP_TOKENIZE_CONTINUE, BYTE_0 + 10);
    EXPECT(v, "<s>", PLP_TOKENIZE_CONTINUE, BYTE_0 + '<', BYTE_0 + 's', BYTE_0 + '>');
    EXPECT(v, "<s>a", PLP_TOKENIZE_CONTROL, S_BOS, SP_A);
    EXPECT(v, "a<user>a", 0, SP_A, S_USER, SP_A);
    EXPECT(v, "<0x0A>", PLP_TOKENIZE_CONTROL | PLP_TOKENIZE_CONTINUE, BYTE_0 + '<', BYTE_0 + '0', BYTE_0 + 'x', BYTE_0 + '0', BYTE_0 + 'A', BYTE_0 + '>');

    EXPECT_TEXT(v, "ab", 0, SP_AB);
    EXPECT_TEXT(v, " ab", PLP_TEXT_CONTINUE, SP_AB);
    EXPECT_TEXT(v, "ab", 0, S_BOS, SP_AB);
    EXPECT_TEXT(v, " ab", 0, SP_SP, AB);
    EXPECT_TEXT(v, "a<user>a", 0, SP_A, S_USER, SP_A);
    CHECK(plp_token_find(v, SPACE "ab", 5) == SP_AB && plp_token_find(v, "<0x0a>", 6) == BYTE_0 + 10 && plp_token_find(v, "</s>", 4) == S_EOS, "find");

    for (int round = 0; round < 3000; round++) {
        char text[80];
        const size_t n = check_random() % sizeof text;
        for (size_t i = 0; i < n; i++)
            text[i] = round % 2 ? (char)check_random() : "ab  \xc3\xa9<"[check_random() % 8];
        expect_back(v, text, n, round % 4 == 0 ? PLP_TOKENIZE_CONTROL : 0);
    }
    plp_vocab_close(v);
    free(g.bytes);
}

/* Phi-3's control tokens take the white space after them, whether they are in the text or were before it. */
static void phi3_strips(void)
{
    image g = { 0 };
    plp_error err;
    plp_vocab *v;

    put_spm(&g);
    vocab_n_meta++;
    image_str(&g, "general.architecture", "phi3");
    v = vocab_end(&g, &err);
    CHECK(v, "%s", err.msg);
    CHECK(plp_token_strips(v, S_EOS) && !plp_token_strips(v, S_BOS) && !plp_token_strips(v, S_USER) && !plp_token_strips(v, AB)
          && !plp_token_strips(v, -1), "strips");
    EXPECT(v, "</s> \n\xe3\x80\x80 ab", PLP_TOKENIZE_CONTROL, S_EOS, SP_AB);
    EXPECT(v, "</s> \n", PLP_TOKENIZE_CONTROL, S_EOS);
    EXPECT(v, "<s> ab", PLP_TOKENIZE_CONTROL, S_BOS, SP_SP, AB);
    EXPECT(v, "a<user> ab", 0, SP_A, S_USER, SP_SP, AB);
    EXPECT(v, "\n ab", PLP_TOKENIZE_STRIP, SP_AB);
    CHECK(plp_tokenize(v, " \n ", 3, PLP_TOKENIZE_STRIP, NULL, 0, &(size_t){ 9 }, &err) == PLP_OK, "%s", err.msg);
    plp_vocab_close(v);
    free(g.bytes);
}

/* Phi-4's take the white space on both sides, Phi-4-mini's what follows, of some tokens. */
static void phi4_strips(bool mini)
{
    const char *const texts[] = { "a", "b", "\xc4\xa0", mini ? "<|end|>" : "<|im_sep|>", mini ? "<|endofprompt|>" : "<|im_end|>", "<u>" };
    static const int32_t kinds[] = { 1, 1, 1, 3, 3, 4 };
    enum { A, B, SP, FIRST, SECOND, USER };
    image g = { 0 };
    plp_error err;
    plp_vocab *v;

    vocab_begin(&g, "gpt2");
    vocab_strings(&g, "tokens", 6, texts);
    vocab_values(&g, "token_type", PLP_META_I32, 6, kinds, 4);
    vocab_n_meta++;
    image_str(&g, "general.architecture", "phi3");
    v = vocab_end(&g, &err);
    CHECK(v, "%s", err.msg);
    CHECK(plp_token_strips(v, FIRST) && plp_token_strips(v, SECOND) == !mini && !plp_token_strips(v, USER) && !plp_token_strips(v, A), "strips");
    CHECK(plp_token_strips_before(v, FIRST) == !mini && !plp_token_strips_before(v, USER) && !plp_token_strips_before(v, -1), "strips before");
    if (mini) {
        EXPECT(v, "a <|end|> b", PLP_TOKENIZE_CONTROL, A, SP, FIRST, B);
        EXPECT(v, "<|endofprompt|> b", PLP_TOKENIZE_CONTROL, SECOND, SP, B);
    } else {
        EXPECT(v, "a \n<|im_sep|> \xe3\x80\x80<|im_end|>\xe3\x80\x80 b", PLP_TOKENIZE_CONTROL, A, FIRST, SECOND, B);
        EXPECT(v, " <|im_sep|> <u> b", PLP_TOKENIZE_CONTROL, FIRST, USER, SP, B);
        EXPECT(v, "a <u>", 0, A, SP, USER);
    }
    EXPECT(v, "a \xe3\x80\x80\n", PLP_TOKENIZE_STRIP_END, A);
    CHECK(plp_tokenize(v, " \n ", 3, PLP_TOKENIZE_STRIP_END, NULL, 0, &(size_t){ 9 }, &err) == PLP_OK, "%s", err.msg);
    plp_vocab_close(v);
    free(g.bytes);
}

static void phi4_both(void) { phi4_strips(false); }
static void phi4_mini(void) { phi4_strips(true); }

/* BPE over characters ("gemma4"): merges by rank, spaces spelled U+2581, bytes for the rest. */
static void raw_bpe_of(const char *model, const char *pre)
{
    static const char *const texts[] = { "<bos>", "a", "b", SPACE, "ab", SPACE "ab", "\n", "\n\n", "<0xC3>", "<0xA9>", "\xc3\xa4" };
    static const int32_t kinds[] = { 3, 1, 1, 1, 1, 1, 1, 1, 6, 6, 1 };
    image g = { 0 };
    plp_error err;
    plp_vocab *v;

    vocab_begin(&g, model);
    if (pre)
        vocab_str(&g, "pre", pre);
    vocab_strings(&g, "tokens", 11, texts);
    vocab_values(&g, "token_type", PLP_META_I32, 11, kinds, 4);
    vocab_strings(&g, "merges", 2, (const char *const[]){ "a b", SPACE " ab" });
    v = vocab_end(&g, &err);
    CHECK(v, "%s", err.msg);
    EXPECT(v, "ab ab", 0, 4, 5);
    EXPECT(v, "a\n\nb", 0, 1, 7, 2);
    EXPECT(v, "\n", 0, 6);
    EXPECT(v, "\xc3\xa9\xc3\xa4", 0, 8, 9, 10);
    expect_back(v, "ab  ab\n\n\nb", 10, 0);
    plp_vocab_close(v);
    free(g.bytes);
}

static void raw_bpe(void)
{
    raw_bpe_of("gemma4", NULL);
    raw_bpe_of("gpt2", "gemma4");           /* the alphabet is named by the pre-tokenizer */
    raw_bpe_of("gpt2", "sarvam-moe");
    raw_bpe_of("gpt2", "granite-embed-multi-311m");
}

/* ---- merging against a naive twin ---------------------------------------------------------------- */

/* Random merges over four letters; words longer and shorter than where the heap takes over. The
 * twin looks through all pairs for the lowest rank each time, on texts instead of ids. */
enum { MOST = 160 };
static char twin_token[MOST][64];
static int twin_left[MOST], twin_right[MOST], twin_result[MOST];
static uint32_t n_twin_tokens, n_twin_merges;

static size_t twin_merge(const char *text, size_t n, int32_t *ids)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = text[i] - 'a';
    for (;;) {
        uint32_t best = n_twin_merges;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (uint32_t m = 0; m < best; m++)
                if (twin_left[m] == ids[i] && twin_right[m] == ids[i + 1]) {
                    best = m;
                    at = i;
                }
        if (best == n_twin_merges)
            return n;
        ids[at] = twin_result[best];
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

static void merging_against_twin(void)
{
    for (int round = 0; round < 60; round++) {
        image g = { 0 };
        plp_error err;
        const char *texts[MOST], *merges[MOST];
        static char merge[MOST][130];
        const uint32_t want = 5 + check_random() % 60;

        for (n_twin_tokens = 0; n_twin_tokens < 4; n_twin_tokens++)
            snprintf(twin_token[n_twin_tokens], 64, "%c", 'a' + (int)n_twin_tokens);
        n_twin_merges = 0;
        for (int tries = 0; n_twin_merges < want && tries < 5000; tries++) {
            const uint32_t l = check_random() % n_twin_tokens, r = check_random() % n_twin_tokens;
            char whole[128];
            uint32_t result = 0;
            bool seen = false;
            for (uint32_t m = 0; m < n_twin_merges; m++)
                seen |= twin_left[m] == (int)l && twin_right[m] == (int)r;
            if (seen || strlen(twin_token[l]) + strlen(twin_token[r]) > 24)
                continue;
            snprintf(whole, sizeof whole, "%s%s", twin_token[l], twin_token[r]);
            while (result < n_twin_tokens && strcmp(twin_token[result], whole))
                result++;                   /* several ways to one token, as in Llama 3's list */
            if (result == n_twin_tokens)
                memcpy(twin_token[n_twin_tokens++], whole, strlen(whole) + 1);
            twin_left[n_twin_merges] = (int)l;
            twin_right[n_twin_merges] = (int)r;
            twin_result[n_twin_merges] = (int)result;
            snprintf(merge[n_twin_merges], 130, "%s %s", twin_token[l], twin_token[r]);
            merges[n_twin_merges] = merge[n_twin_merges];
            n_twin_merges++;
        }
        for (uint32_t m = n_twin_merges; m-- > 1; ) {       /* ranks in any order */
            const uint32_t o = check_random() % (m + 1);
            const int l = twin_left[m], r = twin_right[m], to = twin_result[m];
            const char *s = merges[m];
            merges[m] = merges[o]; twin_left[m] = twin_left[o]; twin_right[m] = twin_right[o]; twin_result[m] = twin_result[o];
            merges[o] = s; twin_left[o] = l; twin_right[o] = r; twin_result[o] = to;
        }
        for (uint32_t i = 0; i < n_twin_tokens; i++)
            texts[i] = twin_token[i];
        vocab_begin(&g, "gpt2");
        vocab_str(&g, "pre", "gpt-2");
        vocab_strings(&g, "tokens", n_twin_tokens, texts);
        vocab_strings(&g, "merges", n_twin_merges, merges);
        plp_vocab *v = vocab_end(&g, &err);
        CHECK(v, "%s", err.msg);

        for (int k = 0; v && k < 60; k++) {
            char text[400];
            int32_t twin[400], ids[400];
            const size_t n = 1 + check_random() % (k % 3 ? 40 : sizeof text);
            for (size_t i = 0; i < n; i++)
                text[i] = (char)('a' + check_random() % (k % 5 ? 4 : 1));
            const size_t m = ids_of(v, text, n, 0, ids, 400), m_twin = twin_merge(text, n, twin);
            CHECK(m == m_twin && !memcmp(ids, twin, m * sizeof *ids), "round %d, '%.*s': %zu tokens, the twin has %zu", round, (int)n, text, m, m_twin);
        }
        plp_vocab_close(v);
        free(g.bytes);
    }
}

/* A word met again gives what it gave before, at any cap. */
static void repeated_words(void)
{
    image g = { 0 };
    plp_error err;
    static char text[6000];
    static int32_t ids[6000], some[6000];
    size_t n = 0, m = 0;

    put_bpe(&g, "gpt-2");
    plp_vocab *v = vocab_end(&g, &err);
    CHECK(v, "%s", err.msg);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "hello hell he "[check_random() % 14];
    n = ids_of(v, text, sizeof text, 0, ids, 6000);
    for (size_t from = 0, to; from < sizeof text; from = to) {      /* piecewise: too short to remember words */
        for (to = from + 500 < sizeof text ? from + 500 : sizeof text; to < sizeof text && (text[to] != ' ' || text[to - 1] == ' '); )
            to++;
        m += ids_of(v, text + from, to - from, 0, some + m, 6000 - m);
    }
    CHECK(m == n && !memcmp(ids, some, n * sizeof *ids), "%zu tokens at once, %zu piecewise", n, m);
    CHECK(plp_tokenize(v, text, sizeof text, 0, some, 100, &m, &err) == PLP_E_ARG && m == n && !memcmp(some, ids, 400), "cap 100: %zu of %zu", m, n);
    expect_back(v, text, 4000, 0);
    plp_vocab_close(v);
    free(g.bytes);
}

/* ---- hostile and odd files --------------------------------------------------------------------------- */

static void refused(image *g, const char *word, const char *word2, int line)
{
    plp_error err;
    plp_vocab *v = vocab_end(g, &err);
    CHECK(!v && err.status == PLP_E_FILE && strstr(err.msg, word) && strstr(err.msg, word2), "line %d: opened %d, '%s' lacks '%s' or '%s'",
          line, v != NULL, err.msg, word, word2);
    plp_vocab_close(v);
}
#define REFUSED(g, word, word2) refused(g, word, word2, __LINE__)

static void wrong_arrays(void)
{
    static const char *const texts[] = { "<unk>", "a", "b", "ab" };
    static const float scores[5];
    static const int32_t kinds[5] = { 1, 1, 1, 1, 1 };
    static const uint8_t small[5] = { 1, 1, 1, 1, 1 };
    image g = { 0 };
    plp_error err;

#define BEGIN() (vocab_begin(&g, "llama"), vocab_strings(&g, "tokens", 4, texts))
    BEGIN(); vocab_values(&g, "scores", PLP_META_U8, 4, small, 1);
    REFUSED(&g, "tokenizer.ggml.scores is an array of uint8", "float32");
    BEGIN(); vocab_values(&g, "scores", PLP_META_F32, 3, scores, 4);
    REFUSED(&g, "tokenizer.ggml.scores has 3", "4 tokens");
    BEGIN(); vocab_values(&g, "token_type", PLP_META_I32, 5, kinds, 4);
    REFUSED(&g, "tokenizer.ggml.token_type has 5", "4 tokens");
    BEGIN(); vocab_values(&g, "token_type", PLP_META_F32, 4, scores, 4);
    REFUSED(&g, "tokenizer.ggml.token_type is an array of float32", "int32");
    BEGIN(); vocab_u32(&g, "token_type", 1);
    REFUSED(&g, "tokenizer.ggml.token_type", "array");
    BEGIN(); vocab_values(&g, "token_type", PLP_META_I32, 4, (const int32_t[]){ 1, 1, 7, 1 }, 4);
    REFUSED(&g, "token_type[2]", "7");
    BEGIN(); vocab_values(&g, "scores", PLP_META_F32, 4, (const uint32_t[]){ 0, 0x7fc00000, 0, 0 }, 4);
    REFUSED(&g, "scores[1]", "not a number");
    vocab_begin(&g, "llama"); vocab_values(&g, "tokens", PLP_META_I32, 4, kinds, 4);
    REFUSED(&g, "tokenizer.ggml.tokens is an array of int32", "string");
    vocab_begin(&g, "llama");
    REFUSED(&g, "tokenizer.ggml.tokens", "missing");
    vocab_begin(&g, "gpt2"); vocab_strings(&g, "tokens", 0, texts);
    REFUSED(&g, "tokenizer.ggml.tokens", "empty");
    vocab_begin(&g, "gpt2"); vocab_strings(&g, "tokens", 4, texts); vocab_values(&g, "merges", PLP_META_F32, 4, scores, 4);
    REFUSED(&g, "tokenizer.ggml.merges is an array of float32", "string");
    vocab_begin(&g, NULL); vocab_u32(&g, "model", 3);
    REFUSED(&g, "tokenizer.ggml.model", "string");
    BEGIN(); vocab_str(&g, "bos_token_id", "1");
    REFUSED(&g, "tokenizer.ggml.bos_token_id", "string");

    /* Lossless conversions are fine. */
    BEGIN(); vocab_values(&g, "token_type", PLP_META_U8, 4, small, 1); vocab_values(&g, "scores", PLP_META_F64, 4, (const double[]){ 0, 0, 0, 0 }, 8);
    plp_vocab *v = vocab_end(&g, &err);
    CHECK(v, "%s", err.msg);
    plp_vocab_close(v);
    free(g.bytes);
#undef BEGIN
}

static void special_ids(void)
{
    image g = { 0 };
    plp_error err;
    plp_vocab_info info;
    int32_t ids[8];
    plp_vocab *v;

    /* Two tokens and no ids: none is made up. */
    vocab_begin(&g, "llama");
    vocab_strings(&g, "tokens", 2, (const char *const[]){ "a", SPACE "a" });
    v = vocab_end(&g, &err);
    CHECK(v, "%s", err.msg);
    plp_vocab_get_info(v, &info);
    CHECK(info.bos == -1 && info.eos == -1 && info.unk == -1 && info.eot == -1 && info.pad == -1 && !info.add_bos, "ids");
    CHECK(ids_of(v, "a", 1, PLP_TOKENIZE_BOS | PLP_TOKENIZE_CONTROL, ids, 8) == 1 && ids[0] == 1, "a");
    plp_vocab_close(v);

    /* Outside the vocabulary: left out, with the key and the size. */
    put_bpe(&g, "gpt-2");
    vocab_u32(&g, "eos_token_id", 999999);
    vocab_u32(&g, "bos_token_id", UINT32_MAX);
    v = vocab_end(&g, &err);
    CHECK(v, "%s", err.msg);
    plp_vocab_get_info(v, &info);
    CHECK(info.eos == -1 && info.bos == -1, "ids");
    CHECK(strstr(info.warning, "eos_token_id is 999999") && strstr(info.warning, "267 tokens") && !strstr(info.warning, "bos_token"), "'%s'", info.warning);
    plp_vocab_close(v);

    /* BOS wanted, but which? */
    put_bpe(&g, "gpt-2");
    vocab_bool(&g, "add_bos_token", true);
    v = vocab_end(&g, &err);
    CHECK(v, "%s", err.msg);
    plp_vocab_get_info(v, &info);
    CHECK(!info.add_bos && strstr(info.warning, "add_bos_token is true"), "'%s'", info.warning);
    EXPECT(v, "hello", PLP_TOKENIZE_BOS, HELLO);
    plp_vocab_close(v);

    /* <|end|> ends a turn, but only a part of it where there are gpt-oss's ends. */
    for (int parts = 0; parts < 2; parts++) {
        vocab_begin(&g, "llama");
        vocab_strings(&g, "tokens", 4, (const char *const[]){ "a", "<|end|>", "<|return|>", parts ? "<|call|>" : "b" });
        vocab_values(&g, "token_type", PLP_META_I32, 4, (const int32_t[]){ 1, 3, 3, parts ? 3 : 1 }, 4);
        v = vocab_end(&g, &err);
        CHECK(v, "%s", err.msg);
        CHECK(plp_token_ends(v, 1) == !parts && plp_token_ends(v, 2) && plp_token_ends(v, 3) == parts, "ends");
        plp_vocab_close(v);
    }

    /* The same spelling twice: the first, every time. */
    for (int round = 0; round < 20; round++) {
        vocab_begin(&g, "gpt2");
        vocab_str(&g, "pre", "gpt-2");
        vocab_strings(&g, "tokens", 7, (const char *const[]){ "a", "b", "ab", "ab", "a", "<x>", "<x>" });
        vocab_values(&g, "token_type", PLP_META_I32, 7, (const int32_t[]){ 1, 1, 1, 1, 1, 3, 4 }, 4);
        vocab_strings(&g, "merges", 2, (const char *const[]){ "a b", "a b" });
        v = vocab_end(&g, &err);
        CHECK(v, "%s", err.msg);
        EXPECT(v, "aba", 0, 2, 0);
        EXPECT(v, "<x>", PLP_TOKENIZE_CONTROL, 5);
        CHECK(plp_tokenize(v, "<x>", 3, 0, ids, 8, &(size_t){ 0 }, &err) == PLP_E_ARG && strstr(err.msg, "0x3c"), "'<x>' is a control token, "
              "and there is no '<': %s", err.msg);
        plp_vocab_close(v);
    }
    free(g.bytes);
}

static void no_tokenizer(void)
{
    image g = { 0 };
    plp_error err;
    plp_vocab_info info;
    size_t n;
    char out[8];

    for (int kind = 0; kind < 4; kind++) {
        vocab_begin(&g, kind == 0 ? NULL : kind == 1 ? "no_vocab" : "bert");
        if (kind < 2) {
            image_str(&g, "general.architecture", "llama");
            image_u32(&g, "llama.vocab_size", 320);
            vocab_n_meta += 2;
        } else if (kind == 2) {
            vocab_strings(&g, "tokens", 2, (const char *const[]){ "a", "b" });
        }
        plp_vocab *v = vocab_end(&g, &err);
        CHECK(v, "%s", err.msg);
        plp_vocab_get_info(v, &info);
        CHECK(info.n_tokens == (kind < 2 ? 320 : kind == 2 ? 2 : 0), "%d: %u tokens", kind, info.n_tokens);
        CHECK(strstr(info.warning, kind < 2 ? "no tokenizer" : "\"bert\""), "%d: '%s'", kind, info.warning);
        CHECK(plp_tokenize(v, "a", 1, 0, NULL, 0, &n, &err) == PLP_E_UNSUPPORTED && strstr(err.msg, kind < 2 ? "" : "bert"), "%s", err.msg);
        CHECK(plp_token_text(v, 0, 0, out, 8, &n, &err) == PLP_E_UNSUPPORTED && plp_token_find(v, "a", 1) == -1 && !plp_token_ends(v, 0), "%s", err.msg);
        plp_vocab_close(v);
    }
    free(g.bytes);
}

/* Every allocation fails once: an error that says so, nothing leaked, nothing half open. */
static void no_memory(void)
{
    static char text[3000];
    static int32_t ids[3001];
    const uint64_t before = plp_mem_bytes(PLP_MEM_TEXT);

    memset(text, 'l', sizeof text);
    for (int model = 0; model < 2; model++) {
        int64_t k = 0;
        plp_vocab *v = NULL;
        for (; !v && k < 100; k++) {
            image g = { 0 };
            plp_file *f;
            plp_error err = { 0 };
            if (model) put_spm(&g); else put_bpe(&g, "smollm");
            memcpy(g.bytes + 16, &vocab_n_meta, 8);
            CHECK(!plp_file_parse(&f, g.bytes, g.n, 0, &err), "%s", err.msg);
            plp_mem_fail_after(k);
            const plp_status status = plp_vocab_open(&v, f, &err);
            plp_mem_fail_after(-1);
            CHECK(status == (v ? PLP_OK : PLP_E_NOMEM), "allocation %d: %d %s", (int)k, status, err.msg);
            CHECK(v || plp_mem_bytes(PLP_MEM_TEXT) == before, "allocation %d leaks", (int)k);
            plp_file_close(f);
            free(g.bytes);
        }
        CHECK(k > 5 && v, "opened after %d allocations", (int)k);
        const uint64_t open = plp_mem_bytes(PLP_MEM_TEXT);
        int n_failed = 0;
        for (k = 0; k < 20; k++) {
            plp_error err = { 0 };
            size_t n = 0;
            plp_mem_fail_after(k);
            const plp_status status = plp_tokenize(v, text, sizeof text, 0, ids, 3001, &n, &err);
            plp_mem_fail_after(-1);
            CHECK(status == PLP_OK || status == PLP_E_NOMEM, "%d: %s", status, err.msg);
            CHECK(plp_mem_bytes(PLP_MEM_TEXT) == open, "tokenize leaks");
            n_failed += status != PLP_OK;
        }
        CHECK(n_failed >= 2 && n_failed < 20, "%d failed", n_failed);
        plp_vocab_close(v);
    }
}

/* ---- long runs on a small stack ------------------------------------------------------------------------- */

static void *long_runs(void *arg)
{
    const plp_vocab *v = arg;
    static char text[2000000];
    static int32_t ids[2000000];
    static const char what[] = "l.\n x<";

    for (const char *c = what; *c; c++) {
        memset(text, *c, sizeof text);
        const size_t n = ids_of(v, text, sizeof text, 0, ids, 2000000);
        CHECK(n == (*c == 'l' ? 1000000u : 2000000u), "'%c': %zu", *c, n);
    }
    return NULL;
}

static void small_stack(void)
{
    image g = { 0 };
    plp_error err;
    pthread_attr_t attr;
    pthread_t thread;

    put_bpe(&g, "llama-bpe");
    plp_vocab *v = vocab_end(&g, &err);
    CHECK(v, "%s", err.msg);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 * 1024);
    CHECK(!pthread_create(&thread, &attr, long_runs, v), "no thread");
    pthread_join(thread, NULL);
    plp_vocab_close(v);
    free(g.bytes);
}

int main(void)
{
    RUN(bpe_rules);
    RUN(pre_tokenizers);
    RUN(spm_rules);
    RUN(phi3_strips);
    RUN(phi4_both);
    RUN(phi4_mini);
    RUN(raw_bpe);
    RUN(merging_against_twin);
    RUN(repeated_words);
    RUN(wrong_arrays);
    RUN(special_ids);
    RUN(no_tokenizer);
    RUN(no_memory);
    RUN(small_stack);
    return check_done();
}
