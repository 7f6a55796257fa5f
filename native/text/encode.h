/*
 * text/encode.h - one call of plp_tokenize while it runs
 *
 *   text -> special tokens and the sections between them -> words -> tokens
 *           special.c                                       bpe.c, spm.c
 *
 * Owner    an encoder lives on the stack of plp_tokenize, which frees what it holds
 * Always   n counts every token, also those that did not fit into out
 */
#ifndef PLP_TEXT_ENCODE_H
#define PLP_TEXT_ENCODE_H

#include "text/merge.h"
#include "text/vocab.h"

/* Where an equal word was met before in this text and which tokens it became. Words repeat, so this
 * saves most merging; an entry is overwritten by the next word with its hash. */
typedef struct plp_seen_word { uint32_t from, at; uint16_t n_bytes, n_tokens; } plp_seen_word;

typedef struct plp_encoder {
    const plp_vocab *vocab;
    const uint8_t   *text;
    size_t           n_bytes;
    int32_t         *out;
    size_t           cap, n;
    plp_merger       merger;
    const uint8_t   *word;      /* what the merger's starts count from */
    plp_seen_word   *seen;      /* NULL for short texts */
    plp_error       *err;
} plp_encoder;

static inline void plp_emit(plp_encoder *e, int32_t id)
{
    if (e->n < e->cap)
        e->out[e->n] = id;
    e->n++;
}

plp_status plp_fail_memory(const plp_encoder *e);
/* The merger's chain of up to n symbols over s: tokens, and byte tokens for what is none. */
plp_status plp_emit_chain(plp_encoder *e, const uint8_t *s, uint32_t n);

/* A plp_pair_fn over the vocabulary's merges; its context is the plp_vocab. */
uint32_t plp_pair_by_rank(const void *vocab, const plp_symbol *symbols, uint32_t left, uint32_t right, uint32_t *to);

/* Tokens of one word, s[0..n), n >= 1. */
plp_status plp_bpe_word(plp_encoder *e, const uint8_t *s, size_t n);
plp_status plp_spm_word(plp_encoder *e, const uint8_t *s, size_t n);

#endif
