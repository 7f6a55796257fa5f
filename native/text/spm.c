/*
 * text/spm.c - SentencePiece-style merging over characters
 *
 * Two neighbours merge if their joined text is a token; the best score goes first ("llama"). "gemma4"
 * has the same alphabet but a list of merges instead of scores. A character that is no token becomes
 * its byte tokens.
 *
 * Source   Kudo and Richardson 2018 (SentencePiece), the BPE model with byte fallback
 */
#include "text/encode.h"

static uint32_t pair_by_score(const void *context, const plp_symbol *symbols, uint32_t left, uint32_t right, uint32_t *to)
{
    const plp_encoder *e = context;
    const uint32_t from = symbols[left].start, n = symbols[symbols[right].next].start - from;
    int32_t id;

    if (n > e->vocab->longest_word)
        return PLP_NO_PAIR;
    id = plp_index_find(e->vocab, &e->vocab->words, (const char *)e->word + from, n);
    if (id < 0)
        return PLP_NO_PAIR;
    *to = (uint32_t)id;
    return e->vocab->score_rank[id];
}

plp_status plp_spm_word(plp_encoder *e, const uint8_t *s, size_t n)
{
    const plp_vocab *v = e->vocab;
    plp_symbol *symbols;
    uint32_t n_symbols = 0;

    if (v->model == PLP_VOCAB_RAW_BPE && *s == '\n') {
        /* A run of line ends that is a token: lists of merges cannot always spell how it is made. */
        const int32_t id = plp_index_find(v, &v->words, (const char *)s, n);
        if (id >= 0) {
            plp_emit(e, id);
            return PLP_OK;
        }
    }
    if (!plp_merger_reserve(&e->merger, (uint32_t)n))
        return plp_fail_memory(e);
    symbols = e->merger.symbols;
    for (size_t i = 0; i < n; n_symbols++) {
        uint32_t c;
        const uint32_t length = plp_utf8_read(s + i, n - i, &c);
        const int32_t id = plp_index_find(v, &v->words, (const char *)s + i, length);
        symbols[n_symbols].start = (uint32_t)i;
        symbols[n_symbols].id = id < 0 ? PLP_NO_PAIR : (uint32_t)id;
        i += length;
    }
    symbols[n_symbols].start = (uint32_t)n;
    e->word = s;
    if (v->model == PLP_VOCAB_SPM)
        plp_merger_run(&e->merger, n_symbols, pair_by_score, e);
    else
        plp_merger_run(&e->merger, n_symbols, plp_pair_by_rank, v);
    return plp_emit_chain(e, s, n_symbols);
}
