/*
 * text/tokenize.c - plp_tokenize: special tokens, sections, words
 */
#include "text/encode.h"

#include <string.h>

#include "base/mem.h"

enum { N_SEEN = 4096, SEEN_FROM_BYTES = 1024, SEEN_WORD_BYTES = 64 };

plp_status plp_fail_memory(const plp_encoder *e)
{
    return plp_fail(e->err, PLP_E_NOMEM, "tokenize: no memory for a text of %zu bytes", e->n_bytes);
}

plp_status plp_emit_chain(plp_encoder *e, const uint8_t *s, uint32_t n)
{
    const plp_vocab *v = e->vocab;
    const plp_symbol *symbols = e->merger.symbols;

    for (uint32_t i = 0; i < n; i = symbols[i].next) {
        const uint32_t from = symbols[i].start, to = symbols[symbols[i].next].start;
        uint32_t at = from;
        if (symbols[i].id != PLP_NO_PAIR) {
            plp_emit(e, (int32_t)symbols[i].id);
            continue;
        }
        while (at < to && v->bytes[s[at]] >= 0)
            at++;
        if (at < to && v->fallback < 0)
            return plp_fail(e->err, PLP_E_ARG, "tokenize: this vocabulary has no token for the byte 0x%02x and no token "
                            "for unknown text", s[at]);
        if (at < to)
            plp_emit(e, v->fallback);
        else
            for (at = from; at < to; at++)
                plp_emit(e, v->bytes[s[at]]);
    }
    return PLP_OK;
}

static plp_status raw_word(plp_encoder *e, const uint8_t *s, size_t n)
{
    const plp_vocab *v = e->vocab;

    if (v->model == PLP_VOCAB_BPE)
        return plp_bpe_word(e, s, n);
    return plp_spm_word(e, s, n);
}

/* A word of the text, or what an equal one became before. */
static plp_status word(plp_encoder *e, size_t from, size_t n)
{
    const uint8_t *s = e->text + from;
    const size_t before = e->n;
    plp_seen_word *seen;
    plp_status status;

    if (!e->seen || n > SEEN_WORD_BYTES)
        return raw_word(e, s, n);
    seen = &e->seen[plp_text_hash(e->vocab->seed, s, n) % N_SEEN];
    if (seen->n_bytes == n && !memcmp(e->text + seen->from, s, n)) {
        for (uint32_t i = 0; i < seen->n_tokens; i++)
            plp_emit(e, e->out[seen->at + i]);
        return PLP_OK;
    }
    status = raw_word(e, s, n);
    if (!status && e->n <= e->cap)
        *seen = (plp_seen_word){ (uint32_t)from, (uint32_t)before, (uint16_t)n, (uint16_t)(e->n - before) };
    return status;
}

static plp_status bpe_section(plp_encoder *e, size_t from, size_t to)
{
    plp_splitter split = plp_split(e->vocab->pre, e->text + from, to - from);
    plp_status status = PLP_OK;
    size_t a, b;

    while (!status && plp_split_next(&split, &a, &b))
        status = word(e, from + a, b - a);
    return status;
}

/* Where the word of a SentencePiece section that starts at `from` ends: before a space that follows
 * another character, if no token has such a space inside; a newline run is a word of "gemma4". */
static size_t spm_word_end(const plp_vocab *v, const uint8_t *s, size_t from, size_t to)
{
    for (size_t i = from + 1; i < to; i++) {
        if (v->cut_at_space && s[i] == ' ' && s[i - 1] != ' ')
            return i;
        if (v->model == PLP_VOCAB_RAW_BPE && (s[i] == '\n') != (s[i - 1] == '\n'))
            return i;
    }
    return to;
}

static plp_status spm_section(plp_encoder *e, size_t from, size_t to, bool prefix)
{
    const plp_vocab *v = e->vocab;
    size_t end = spm_word_end(v, e->text, from, to);
    plp_status status;

    if (prefix && from < to) {              /* the first word with the space that the text does not have */
        const size_t n = end - from;
        uint8_t *first = plp_alloc(PLP_MEM_TEXT, n + 1, 1);
        if (!first)
            return plp_fail_memory(e);
        first[0] = ' ';
        memcpy(first + 1, e->text + from, n);
        status = plp_spm_word(e, first, n + 1);
        plp_free(first);
        if (status)
            return status;
        from = end;
    }
    for (status = PLP_OK; !status && from < to; from = end) {
        end = spm_word_end(v, e->text, from, to);
        status = word(e, from, end - from);
    }
    return status;
}

static plp_status section(plp_encoder *e, size_t from, size_t to, bool prefix)
{
    if (from == to)
        return PLP_OK;
    return e->vocab->model == PLP_VOCAB_BPE ? bpe_section(e, from, to) : spm_section(e, from, to, prefix);
}

static size_t after_space(const plp_encoder *e, size_t i)
{
    while (i < e->n_bytes) {
        uint32_t c;
        const uint32_t length = plp_utf8_read(e->text + i, e->n_bytes - i, &c);
        if (plp_unicode_class(c) != PLP_C_SPACE)
            break;
        i += length;
    }
    return i;
}

/* Where the white space begins that ends s[from..to). */
static size_t before_space(const plp_encoder *e, size_t from, size_t to)
{
    while (to > from) {
        size_t at = to - 1;
        uint32_t c;
        while (at > from && to - at < 4 && (e->text[at] & 0xc0) == 0x80)
            at--;
        if (plp_utf8_read(e->text + at, to - at, &c) != to - at || plp_unicode_class(c) != PLP_C_SPACE)
            break;
        to = at;
    }
    return to;
}

static plp_status encode(plp_encoder *e, uint32_t flags)
{
    const plp_vocab *v = e->vocab;
    const bool control = flags & PLP_TOKENIZE_CONTROL;
    bool prefix = v->info.add_space_prefix && !(flags & PLP_TOKENIZE_CONTINUE);
    size_t from = flags & PLP_TOKENIZE_STRIP ? after_space(e, 0) : 0;
    plp_status status;

    if (flags & PLP_TOKENIZE_BOS && v->info.add_bos)
        plp_emit(e, v->info.bos);
    for (size_t i = from; i < e->n_bytes; ) {
        size_t length = 0;
        const int32_t id = plp_special_at(v, e->text, i, e->n_bytes, control, &length);
        if (id < 0) {
            i++;
            continue;
        }
        if ((status = section(e, from, v->flags[id] & PLP_ID_STRIPS_BEFORE ? before_space(e, from, i) : i, prefix)))
            return status;
        plp_emit(e, id);
        i += length;
        from = i = v->flags[id] & PLP_ID_STRIPS ? after_space(e, i) : i;
        prefix = v->info.add_space_prefix;
    }
    if ((status = section(e, from, flags & PLP_TOKENIZE_STRIP_END ? before_space(e, from, e->n_bytes) : e->n_bytes, prefix)))
        return status;
    if (flags & PLP_TOKENIZE_BOS && v->info.add_eos)
        plp_emit(e, v->info.eos);
    return PLP_OK;
}

plp_status plp_tokenize(const plp_vocab *v, const char *text, size_t n_bytes, uint32_t flags,
                        int32_t *out, size_t cap, size_t *n, plp_error *err)
{
    plp_encoder e = { .vocab = v, .text = (const uint8_t *)text, .n_bytes = n_bytes, .out = out, .cap = cap, .err = err };
    plp_status status;

    if (v->model == PLP_VOCAB_NONE)
        return plp_fail(err, PLP_E_UNSUPPORTED, v->info.model[0] ? "tokenize: tokenizer \"%s\" is not supported"
                        : "tokenize: this file has no tokenizer%s", v->info.model);
    if (n_bytes > INT32_MAX)
        return plp_fail(err, PLP_E_ARG, "tokenize: a text of %zu bytes; the most is %d", n_bytes, INT32_MAX);
    if (n_bytes >= SEEN_FROM_BYTES)         /* without memory for it tokenizing is only slower */
        e.seen = plp_zalloc(PLP_MEM_TEXT, N_SEEN, sizeof *e.seen);

    status = encode(&e, flags);
    plp_merger_close(&e.merger);
    plp_free(e.seen);
    if (status)
        return status;
    *n = e.n;
    if (e.n > cap)
        return plp_fail_amount(err, PLP_E_ARG, e.n, cap, "tokenize: %zu tokens, and room for %zu", e.n, cap);
    return PLP_OK;
}
