/*
 * text/vocab.c - opening a vocabulary: tables from a file's metadata, hostile until checked
 *
 * An array of the wrong type or length is refused with its key. An id outside the vocabulary is left
 * out with a warning, as is anything else that the file asks for and cannot have; nothing is invented
 * in its place. A file without a tokenizer, or with one of a kind not implemented here, opens as
 * a vocabulary of ids: how many there are is all that a model needs.
 */
#include "text/vocab.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/platform.h"
#include "format/gguf.h"

#define KEY "tokenizer.ggml."

/* ---- small things ---------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3)))
static void warn(plp_vocab *v, const char *format, ...)
{
    char *to = v->info.warning;
    const size_t used = strlen(to), left = sizeof v->info.warning - used;
    va_list args;

    if (left < 8)
        return;
    va_start(args, format);
    if (used)
        memcpy(to + used, "; ", 3);
    vsnprintf(to + used + (used ? 2 : 0), left - (used ? 2 : 0), format, args);
    va_end(args);
}

static plp_status no_memory(plp_error *err) { return plp_fail(err, PLP_E_NOMEM, "vocabulary: no memory"); }

static bool is_integer(int32_t type)
{
    return (type >= PLP_META_U8 && type <= PLP_META_I32) || type == PLP_META_U64 || type == PLP_META_I64;
}

static bool is_float(int32_t type) { return type == PLP_META_F32 || type == PLP_META_F64; }
static bool is_string(int32_t type) { return type == PLP_META_STRING; }

/* An array whose elements satisfy `fits`; *index -1 if the key is missing. n 0: any length. */
static plp_status find_array(const plp_file *f, const char *key, bool (*fits)(int32_t), const char *expected,
                             uint64_t n, int64_t *index, uint64_t *n_found, plp_error *err)
{
    plp_meta meta;
    plp_status status;

    *n_found = 0;
    if ((*index = plp_file_find(f, key)) < 0)
        return PLP_OK;
    if ((status = plp_file_meta(f, (uint64_t)*index, &meta, err)))
        return status;
    if (meta.type != PLP_META_ARRAY)
        return plp_fail(err, PLP_E_FILE, "%s is a single %s; expected an array of %s", key, plp_meta_type_name(meta.type), expected);
    if (!fits(meta.elem_type))
        return plp_fail(err, PLP_E_FILE, "%s is an array of %s; expected %s", key, plp_meta_type_name(meta.elem_type), expected);
    if (n && meta.n != n)
        return plp_fail(err, PLP_E_FILE, "%s has %llu entries, and the vocabulary has %llu tokens", key,
                        (unsigned long long)meta.n, (unsigned long long)n);
    *n_found = meta.n;
    return PLP_OK;
}

/* ---- spellings, kinds, scores ------------------------------------------------------------------ */

static plp_status read_kinds(plp_vocab *v, const plp_file *f, plp_error *err)
{
    int64_t index;
    uint64_t n;
    plp_status status = find_array(f, KEY "token_type", is_integer, "int32", v->n_tokens, &index, &n, err);

    if (status)
        return status;
    memset(v->kind, PLP_TOKEN_NORMAL, v->n_tokens);
    for (uint32_t id = 0; id < n; id++) {
        int64_t kind;
        if ((status = plp_file_i64(f, (uint64_t)index, id, &kind, err)))
            return status;
        if (kind < 0 || kind > PLP_TOKEN_BYTE)
            return plp_fail(err, PLP_E_FILE, KEY "token_type[%u] is %lld; kinds go from 1 to 6", id, (long long)kind);
        if (kind)                           /* 0, "undefined", is what some converters write for ordinary ones */
            v->kind[id] = (uint8_t)kind;
    }
    return PLP_OK;
}

/* The bytes a token stands for, into out (n bytes); sets PLP_ID_LITERAL where the spelling itself is the text. */
static size_t decode(plp_vocab *v, uint32_t id, const char *s, size_t n, char *out)
{
    const uint8_t kind = v->kind[id];
    const bool spelled = kind == PLP_TOKEN_CONTROL || kind == PLP_TOKEN_UNKNOWN;
    size_t m;
    int byte;

    if (v->model == PLP_VOCAB_BPE) {
        if (!spelled && plp_byte_level_decode(s, n, out, &m)) {
            /* A user token is what it spells; it is a word as well if that is the same bytes. */
            if (kind != PLP_TOKEN_USER || (m == n && !memcmp(s, out, n)))
                return m;
        }
    } else if (!spelled) {
        if ((byte = plp_byte_piece(s, n)) >= 0 && (kind == PLP_TOKEN_BYTE || v->model == PLP_VOCAB_RAW_BPE)) {
            v->kind[id] = PLP_TOKEN_BYTE;
            out[0] = (char)byte;
            return 1;
        }
        if (kind == PLP_TOKEN_BYTE)
            v->kind[id] = PLP_TOKEN_NORMAL; /* it spells no byte */
        plp_spaces_decode(s, n, out, &m);
        if (kind == PLP_TOKEN_USER)
            v->flags[id] |= PLP_ID_LITERAL;
        return m;
    }
    memcpy(out, s, n);
    v->flags[id] |= PLP_ID_LITERAL;
    return n;
}

static plp_status read_tokens(plp_vocab *v, const plp_file *f, int64_t index, plp_error *err)
{
    size_t total = 0, used = 0;
    plp_status status;

    for (uint32_t id = 0; id < v->n_tokens; id++) {
        const char *s;
        size_t n;
        if ((status = plp_file_str(f, (uint64_t)index, id, &s, &n, err)))
            return status;
        if (!plp_add(total, n, &total) || total > INT32_MAX)
            return plp_fail(err, PLP_E_FILE, KEY "tokens: more than 2 GiB of text");
    }
    v->text = plp_alloc(PLP_MEM_TEXT, total + 1, 1);
    v->text_at = plp_alloc(PLP_MEM_TEXT, (size_t)v->n_tokens + 1, sizeof *v->text_at);
    if (!v->text || !v->text_at)
        return no_memory(err);
    for (uint32_t id = 0; id < v->n_tokens; id++) {
        const char *s;
        size_t n;
        if ((status = plp_file_str(f, (uint64_t)index, id, &s, &n, err)))
            return status;
        v->text_at[id] = (uint32_t)used;
        used += decode(v, id, s, n, v->text + used);
    }
    v->text_at[v->n_tokens] = (uint32_t)used;
    return PLP_OK;
}

/* Which tokens merging may produce, which bytes have one, and what the rest become. */
static plp_status index_tokens(plp_vocab *v, plp_error *err)
{
    uint32_t n_words = 0;

    for (uint32_t id = 0; id < v->n_tokens; id++)
        n_words += !(v->flags[id] & PLP_ID_LITERAL);
    if (!plp_index_open(&v->words, n_words) || !plp_index_open(&v->literals, v->n_tokens - n_words))
        return no_memory(err);

    memset(v->bytes, 0xff, sizeof v->bytes);
    v->cut_at_space = true;
    for (uint32_t id = 0; id < v->n_tokens; id++) {
        size_t n;
        const char *text = plp_text_of(v, id, &n);
        if (v->flags[id] & PLP_ID_LITERAL) {
            plp_index_add(v, &v->literals, id);
            continue;
        }
        if (v->kind[id] == PLP_TOKEN_BYTE && v->model != PLP_VOCAB_BPE) {
            if (v->bytes[(uint8_t)*text] < 0)
                v->bytes[(uint8_t)*text] = (int32_t)id;
            continue;
        }
        if (n == 0 || (v->kind[id] == PLP_TOKEN_UNUSED && v->model != PLP_VOCAB_BPE))
            continue;
        plp_index_add(v, &v->words, id);
        if (n > v->longest_word)
            v->longest_word = (uint32_t)n;
        if (n == 1 && v->model == PLP_VOCAB_BPE && v->bytes[(uint8_t)*text] < 0)
            v->bytes[(uint8_t)*text] = (int32_t)id;
        for (size_t i = 1; i < n && v->cut_at_space; i++)
            v->cut_at_space = text[i] != ' ' || text[i - 1] == ' ';
    }
    return PLP_OK;
}

/* Scores to ranks: 0 for the best. Floats in their total order as unsigned numbers, reversed. */
static plp_status read_scores(plp_vocab *v, const plp_file *f, plp_error *err)
{
    int64_t index;
    uint64_t n;
    plp_status status = find_array(f, KEY "scores", is_float, "float32", v->n_tokens, &index, &n, err);

    if (status)
        return status;
    if (!(v->score_rank = plp_zalloc(PLP_MEM_TEXT, v->n_tokens, sizeof *v->score_rank)))
        return no_memory(err);
    if (index < 0)
        warn(v, "no " KEY "scores: all tokens merge alike");
    for (uint32_t id = 0; id < n; id++) {
        double score;
        float single;
        uint32_t bits;
        if ((status = plp_file_f64(f, (uint64_t)index, id, &score, err)))
            return status;
        if (score != score)
            return plp_fail(err, PLP_E_FILE, KEY "scores[%u] is not a number", id);
        single = (float)score + 0.0f;       /* -0 and 0 are one score */
        memcpy(&bits, &single, sizeof bits);
        bits = bits >> 31 ? ~bits : bits | 0x80000000u;
        v->score_rank[id] = UINT32_MAX - 1 - (bits == UINT32_MAX ? bits - 1 : bits);
    }
    return PLP_OK;
}

/* ---- merges ------------------------------------------------------------------------------------ */

/* "left right" to ids; false if a part or the whole is no token. `text` has room for n bytes. */
static bool read_merge(const plp_vocab *v, const char *s, size_t n, char *text, plp_merge *out)
{
    const char *space = n > 1 ? memchr(s + 1, ' ', n - 1) : NULL;
    size_t n_left, n_right;
    int32_t left, right, result;

    if (!space)
        return false;
    if (v->model == PLP_VOCAB_BPE) {
        if (!plp_byte_level_decode(s, (size_t)(space - s), text, &n_left)
            || !plp_byte_level_decode(space + 1, (size_t)(s + n - space - 1), text + n_left, &n_right))
            return false;
    } else {
        plp_spaces_decode(s, (size_t)(space - s), text, &n_left);
        plp_spaces_decode(space + 1, (size_t)(s + n - space - 1), text + n_left, &n_right);
    }
    left = plp_index_find(v, &v->words, text, n_left);
    right = plp_index_find(v, &v->words, text + n_left, n_right);
    result = plp_index_find(v, &v->words, text, n_left + n_right);
    *out = (plp_merge){ (uint32_t)left, (uint32_t)right, (uint32_t)result };
    return left >= 0 && right >= 0 && result >= 0;
}

static plp_status read_merges(plp_vocab *v, const plp_file *f, plp_error *err)
{
    int64_t index;
    uint64_t n, n_lost = 0;
    size_t longest = 0;
    char *text;
    plp_status status = find_array(f, KEY "merges", is_string, "string", 0, &index, &n, err);

    if (status)
        return status;
    if (n >= INT32_MAX)
        return plp_fail(err, PLP_E_FILE, KEY "merges has %llu entries", (unsigned long long)n);
    if (n == 0)
        warn(v, "no " KEY "merges: words stay in single characters");
    for (uint64_t i = 0; i < n; i++) {
        const char *s;
        size_t n_bytes;
        if ((status = plp_file_str(f, (uint64_t)index, i, &s, &n_bytes, err)))
            return status;
        if (n_bytes > longest)
            longest = n_bytes;
    }
    text = plp_alloc(PLP_MEM_TEXT, longest + 1, 1);
    v->merges = plp_alloc(PLP_MEM_TEXT, (size_t)n, sizeof *v->merges);
    if (!text || !v->merges)
        status = no_memory(err);
    for (uint64_t i = 0; !status && i < n; i++) {
        const char *s;
        size_t n_bytes;
        if ((status = plp_file_str(f, (uint64_t)index, i, &s, &n_bytes, err)))
            break;
        if (read_merge(v, s, n_bytes, text, &v->merges[v->n_merges]))
            v->n_merges++;                  /* ranks close up; their order is what counts */
        else
            n_lost++;
    }
    plp_free(text);
    if (status)
        return status;
    if (n_lost)
        warn(v, "%llu of " KEY "merges are not about tokens and are left out", (unsigned long long)n_lost);
    return plp_pairs_open(v) ? PLP_OK : no_memory(err);
}

/* ---- special ids --------------------------------------------------------------------------------- */

static plp_status read_id(plp_vocab *v, const plp_file *f, const char *key, int32_t *out, plp_error *err)
{
    const int64_t index = plp_file_find(f, key);
    plp_meta meta;
    plp_status status;
    int64_t id;

    *out = -1;
    if (index < 0)
        return PLP_OK;
    if ((status = plp_file_meta(f, (uint64_t)index, &meta, err)))
        return status;
    if (!is_integer(meta.type))
        return plp_fail(err, PLP_E_FILE, "%s is a %s; expected uint32", key, plp_meta_type_name(meta.type));
    if ((status = plp_file_i64(f, (uint64_t)index, 0, &id, err)))
        return status;
    if (id >= 0 && id < v->n_tokens)
        *out = (int32_t)id;
    else if (id != -1 && id != UINT32_MAX)  /* both are written for "none" */
        warn(v, "%s is %lld, but the vocabulary has %u tokens; ignored", key, (long long)id, v->n_tokens);
    return PLP_OK;
}

static plp_status read_specials(plp_vocab *v, const plp_file *f, plp_error *err)
{
    /* Spellings of tokens that end a turn. Files name one such id at most, models use several. */
    static const char *const ends[] = {
        "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|endoftext|>", "<|end_of_text|>",
        "<EOT>", "<|EOT|>", "_<EOT>", "[EOT]", "<|return|>", "<|call|>", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
        "<|observation|>", "<|tool_response>",          /* after a call: GLM-4, Gemma 4 */
    };
    int32_t eom, end;
    plp_status status;

    if ((status = read_id(v, f, KEY "bos_token_id", &v->info.bos, err))
        || (status = read_id(v, f, KEY "eos_token_id", &v->info.eos, err))
        || (status = read_id(v, f, KEY "eot_token_id", &v->info.eot, err))
        || (status = read_id(v, f, KEY "eom_token_id", &eom, err))
        || (status = read_id(v, f, KEY "padding_token_id", &v->info.pad, err))
        || (status = read_id(v, f, KEY "unknown_token_id", &v->info.unk, err)))
        return status;

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const int32_t id = plp_token_find(v, ends[i], strlen(ends[i]));
        if (id >= 0 && (v->kind[id] == PLP_TOKEN_CONTROL || v->kind[id] == PLP_TOKEN_USER))
            v->flags[id] |= PLP_ID_ENDS;
    }
    for (int i = 0; i < 3; i++) {
        const int32_t id = i == 0 ? v->info.eos : i == 1 ? v->info.eot : eom;
        if (id >= 0)
            v->flags[id] |= PLP_ID_ENDS;
    }
    /* gpt-oss: <|end|> ends a message of its turn, the reasoning; <|return|> and <|call|> end the turn. */
    if ((end = plp_token_find(v, "<|end|>", 7)) >= 0 && plp_token_find(v, "<|return|>", 10) >= 0 && plp_token_find(v, "<|call|>", 8) >= 0)
        v->flags[end] &= (uint8_t)~PLP_ID_ENDS;

    /* No text may turn into a control token, so one cannot stand for unknown text. */
    v->fallback = v->info.unk;
    for (uint32_t id = 0; v->fallback < 0 && id < v->n_tokens; id++)
        if (v->kind[id] == PLP_TOKEN_UNKNOWN)
            v->fallback = (int32_t)id;
    if (v->fallback >= 0 && v->kind[v->fallback] == PLP_TOKEN_CONTROL)
        v->fallback = -1;
    return PLP_OK;
}

/*
 * White space beside a control token may belong to it: the tokenizer.json of the Phi models says so (rstrip, lstrip), GGUF
 * has no key for it. Where a user can spell a token (</s> is one of the user's kind in Phi-3) nothing is taken: their text
 * comes back whole.
 *
 *   Phi-3, Phi-3.5   what follows, of all but Llama's own tokens and the end of the text
 *   Phi-4-mini       what follows, of the tokens that begin and end messages, tools and their calls
 *   Phi-4            both sides, of all; <|im_sep|> tells it from the others
 */
static plp_status read_strips(plp_vocab *v, const plp_file *f, plp_error *err)
{
    static const char *const of_phi4_mini[] = { "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tool|>", "<|/tool|>",
                                                "<|tool_call|>", "<|/tool_call|>", "<|tool_response|>" };
    char architecture[64];
    plp_status status = plp_meta_str(f, "general.architecture", "", architecture, sizeof architecture, err);

    if (status || strcmp(architecture, "phi3"))
        return status;
    if (v->model == PLP_VOCAB_SPM || plp_token_find(v, "<|im_sep|>", 10) >= 0) {
        const bool both = v->model == PLP_VOCAB_BPE;
        for (uint32_t id = 0; id < v->n_tokens; id++)
            if (v->kind[id] == PLP_TOKEN_CONTROL && (both || ((int32_t)id != v->info.bos && (int32_t)id != v->info.unk
                                                              && (int32_t)id != plp_token_find(v, "<|endoftext|>", 13))))
                v->flags[id] |= both ? PLP_ID_STRIPS | PLP_ID_STRIPS_BEFORE : PLP_ID_STRIPS;
        return PLP_OK;
    }
    for (size_t i = 0; i < sizeof of_phi4_mini / sizeof *of_phi4_mini; i++) {
        const int32_t id = plp_token_find(v, of_phi4_mini[i], strlen(of_phi4_mini[i]));
        if (id >= 0 && v->kind[id] == PLP_TOKEN_CONTROL)
            v->flags[id] |= PLP_ID_STRIPS;
    }
    return PLP_OK;
}

/* Whether to add BOS and EOS, and the leading space: the file's word, or the model's habit. */
static plp_status read_rules(plp_vocab *v, const plp_file *f, plp_error *err)
{
    const bool spm = v->model == PLP_VOCAB_SPM;
    plp_status status;

    if ((status = plp_meta_bool(f, KEY "add_bos_token", spm || (v->pre && v->pre->flags & PLP_PRE_BOS), &v->info.add_bos, err))
        || (status = plp_meta_bool(f, KEY "add_eos_token", false, &v->info.add_eos, err))
        || (status = plp_meta_bool(f, KEY "add_space_prefix", spm, &v->info.add_space_prefix, err)))
        return status;
    if (v->model == PLP_VOCAB_BPE)
        v->info.add_space_prefix = false;   /* a SentencePiece rule; some converters write it all the same */
    if (v->info.add_bos && v->info.bos < 0) {
        v->info.add_bos = false;
        if (plp_file_find(f, KEY "add_bos_token") >= 0)
            warn(v, KEY "add_bos_token is true, but no bos_token_id says which token; none is added");
    }
    if (v->info.add_eos && v->info.eos < 0) {
        v->info.add_eos = false;
        warn(v, KEY "add_eos_token is true, but no eos_token_id says which token; none is added");
    }
    return PLP_OK;
}

/* ---- opening ------------------------------------------------------------------------------------- */

/* How many ids a model without a tokenizer has: its own key, or the rows of its embedding. */
static plp_status count_ids(plp_vocab *v, const plp_file *f, plp_error *err)
{
    const plp_tensor *rows = plp_file_tensor_named(f, "token_embd.weight");
    char architecture[64], key[96];
    const uint32_t fallback = rows && rows->n_dims == 2 && rows->dims[1] < INT32_MAX ? (uint32_t)rows->dims[1] : 0;
    plp_status status = plp_meta_str(f, "general.architecture", "", architecture, sizeof architecture, err);

    if (status)
        return status;
    snprintf(key, sizeof key, "%s.vocab_size", architecture);
    return plp_meta_u32(f, key, fallback, &v->n_tokens, err);
}

/* A name that will stand in messages: ASCII, as all known ones are. */
static void plain(char *name)
{
    for (; *name; name++)
        if (*name < 0x20 || *name > 0x7e)
            *name = '?';
}

static plp_status read_model(plp_vocab *v, const plp_file *f, plp_error *err)
{
    plp_status status = plp_meta_str(f, KEY "model", "", v->info.model, sizeof v->info.model, err);

    if (!status)
        status = plp_meta_str(f, KEY "pre", "", v->info.pre, sizeof v->info.pre, err);
    if (status)
        return status;
    plain(v->info.model);
    plain(v->info.pre);
    if (!strcmp(v->info.model, "gpt2"))
        v->model = PLP_VOCAB_BPE;
    else if (!strcmp(v->info.model, "llama"))
        v->model = PLP_VOCAB_SPM;
    else if (!strcmp(v->info.model, "gemma4"))
        v->model = PLP_VOCAB_RAW_BPE;
    else if (!v->info.model[0] || !strcmp(v->info.model, "no_vocab"))
        warn(v, "the file has no tokenizer: ids only");
    else
        warn(v, "tokenizer \"%s\" is not supported: ids only", v->info.model);

    /* Some files say "gpt2" and, by the pre-tokenizer's name, that their pieces are characters with U+2581 for spaces. */
    if (v->model == PLP_VOCAB_BPE && (!strcmp(v->info.pre, "gemma4") || !strcmp(v->info.pre, "sarvam-moe")
                                      || !strcmp(v->info.pre, "granite-embed-multi-311m")))
        v->model = PLP_VOCAB_RAW_BPE;
    if (v->model == PLP_VOCAB_BPE && !(v->pre = plp_pretoken_find(v->info.pre))) {
        v->pre = plp_pretoken_find("gpt-2");
        if (v->info.pre[0])
            warn(v, "pre-tokenizer \"%s\" is unknown; GPT-2's is used instead", v->info.pre);
        else
            warn(v, "the file names no pre-tokenizer; GPT-2's is used");
    }
    return PLP_OK;
}

static plp_status fill(plp_vocab *v, const plp_file *f, plp_error *err)
{
    int64_t index;
    uint64_t n;
    plp_status status;

    v->seed = plp_random_u64();
    v->fallback = v->info.bos = v->info.eos = v->info.eot = v->info.pad = v->info.unk = -1;
    if ((status = read_model(v, f, err))
        || (status = find_array(f, KEY "tokens", is_string, "string", 0, &index, &n, err)))
        return status;
    if (n > INT32_MAX / 4)
        return plp_fail(err, PLP_E_FILE, KEY "tokens has %llu entries", (unsigned long long)n);
    v->n_tokens = (uint32_t)n;

    if (v->model == PLP_VOCAB_NONE) {
        if (index < 0 && (status = count_ids(v, f, err)))
            return status;
        v->info.n_tokens = v->n_tokens;
        return PLP_OK;
    }
    if (n == 0)
        return plp_fail(err, PLP_E_FILE, KEY "model is \"%s\", but " KEY "tokens is %s", v->info.model,
                        index < 0 ? "missing" : "empty");
    v->info.n_tokens = v->n_tokens;
    v->kind = plp_alloc(PLP_MEM_TEXT, v->n_tokens, 1);
    v->flags = plp_zalloc(PLP_MEM_TEXT, v->n_tokens, 1);
    if (!v->kind || !v->flags)
        return no_memory(err);

    if ((status = read_kinds(v, f, err)) || (status = read_tokens(v, f, index, err)) || (status = index_tokens(v, err)))
        return status;
    status = v->model == PLP_VOCAB_SPM ? read_scores(v, f, err) : read_merges(v, f, err);
    if (status || (status = read_specials(v, f, err)) || (status = read_strips(v, f, err)) || (status = read_rules(v, f, err)))
        return status;
    return plp_special_open(v) ? PLP_OK : no_memory(err);
}

plp_status plp_vocab_open(plp_vocab **out, const plp_file *f, plp_error *err)
{
    plp_vocab *v = plp_zalloc(PLP_MEM_TEXT, 1, sizeof *v);
    plp_status status;

    if (!v)
        return no_memory(err);
    if ((status = fill(v, f, err))) {
        plp_vocab_close(v);
        return status;
    }
    *out = v;
    return PLP_OK;
}

void plp_vocab_close(plp_vocab *v)
{
    if (!v)
        return;
    plp_free(v->text);
    plp_free(v->text_at);
    plp_free(v->kind);
    plp_free(v->flags);
    plp_free(v->words.slots);
    plp_free(v->literals.slots);
    plp_free(v->score_rank);
    plp_free(v->merges);
    plp_free(v->pairs.slots);
    plp_free(v->special);
    plp_free(v);
}
