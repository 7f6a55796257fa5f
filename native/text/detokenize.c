/*
 * text/detokenize.c - tokens to the bytes they stand for
 *
 * A text's tokens are its bytes, except that a vocabulary with add_space_prefix was given a space
 * before each section between special tokens: detokenize leaves it out at the same places, so that
 * what was tokenized comes back byte for byte.
 */
#include "text/vocab.h"

#include <string.h>

static plp_status check(const plp_vocab *v, int32_t id, plp_error *err)
{
    if (v->model == PLP_VOCAB_NONE)
        return plp_fail(err, PLP_E_UNSUPPORTED, "detokenize: this vocabulary has no text");
    if (id < 0 || (uint32_t)id >= v->n_tokens)
        return plp_fail(err, PLP_E_ARG, "detokenize: token %d; the vocabulary has %u", id, v->n_tokens);
    return PLP_OK;
}

static bool is_control(const plp_vocab *v, int32_t id)
{
    return v->kind[id] == PLP_TOKEN_CONTROL || v->kind[id] == PLP_TOKEN_UNKNOWN;
}

static void append(char *out, size_t cap, size_t *n, const char *text, size_t n_bytes)
{
    if (*n < cap)
        memcpy(out + *n, text, n_bytes < cap - *n ? n_bytes : cap - *n);
    *n += n_bytes;
}

static plp_status finish(size_t total, size_t cap, size_t *n, plp_error *err)
{
    *n = total;
    if (total > cap)
        return plp_fail_amount(err, PLP_E_ARG, total, cap, "detokenize: %zu bytes, and room for %zu", total, cap);
    return PLP_OK;
}

plp_status plp_detokenize(const plp_vocab *v, const int32_t *ids, size_t n_ids, uint32_t flags,
                          char *out, size_t cap, size_t *n, plp_error *err)
{
    bool start = v->info.add_space_prefix && !(flags & PLP_TEXT_CONTINUE);
    size_t total = 0;

    for (size_t i = 0; i < n_ids; i++) {
        const plp_status status = check(v, ids[i], err);
        if (status)
            return status;
    }
    for (size_t i = 0; i < n_ids; i++) {
        const int32_t id = ids[i];
        const bool special = is_control(v, id) || v->kind[id] == PLP_TOKEN_USER;
        size_t n_bytes;
        const char *text = plp_text_of(v, (uint32_t)id, &n_bytes);

        if (start && !special && n_bytes && *text == ' ') {
            text++;
            n_bytes--;
        }
        start = special && v->info.add_space_prefix;
        if (!is_control(v, id) || flags & PLP_TEXT_CONTROL)
            append(out, cap, &total, text, n_bytes);
    }
    return finish(total, cap, n, err);
}

plp_status plp_token_text(const plp_vocab *v, int32_t id, uint32_t flags, char *out, size_t cap, size_t *n, plp_error *err)
{
    const plp_status status = check(v, id, err);
    size_t total = 0, n_bytes;
    const char *text;

    if (status)
        return status;
    text = plp_text_of(v, (uint32_t)id, &n_bytes);
    if (!is_control(v, id) || flags & PLP_TEXT_CONTROL)
        append(out, cap, &total, text, n_bytes);
    return finish(total, cap, n, err);
}
