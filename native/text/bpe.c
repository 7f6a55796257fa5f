/*
 * text/bpe.c - byte-level BPE: which pairs of tokens merge, and words to tokens
 *
 * Pairs are looked up by the ids of their parts, not by text: every symbol of a word is a token, from
 * its single bytes on, because a merge whose parts or result are no tokens is dropped at open.
 */
#include "text/encode.h"

#include "base/mem.h"

static uint32_t pair_slot(const plp_vocab *v, uint32_t left, uint32_t right)
{
    return (uint32_t)plp_fold(v->seed ^ ((uint64_t)left << 32 | right), v->seed | 1) & v->pairs.mask;
}

uint32_t plp_pair_rank(const plp_vocab *v, uint32_t left, uint32_t right)
{
    for (uint32_t at = pair_slot(v, left, right); v->pairs.slots[at]; at = (at + 1) & v->pairs.mask) {
        const uint32_t rank = v->pairs.slots[at] - 1;
        if (v->merges[rank].left == left && v->merges[rank].right == right)
            return rank;
    }
    return UINT32_MAX;
}

bool plp_pairs_open(plp_vocab *v)
{
    if (!plp_index_open(&v->pairs, v->n_merges))
        return false;
    for (uint32_t rank = 0; rank < v->n_merges; rank++) {
        const plp_merge *m = &v->merges[rank];
        uint32_t at = pair_slot(v, m->left, m->right);
        if (plp_pair_rank(v, m->left, m->right) != UINT32_MAX)
            continue;                       /* said twice: the first counts */
        while (v->pairs.slots[at])
            at = (at + 1) & v->pairs.mask;
        v->pairs.slots[at] = rank + 1;
    }
    return true;
}

uint32_t plp_pair_by_rank(const void *context, const plp_symbol *symbols, uint32_t left, uint32_t right, uint32_t *to)
{
    const plp_vocab *v = context;
    uint32_t rank;

    if (symbols[left].id == PLP_NO_PAIR || symbols[right].id == PLP_NO_PAIR)
        return PLP_NO_PAIR;
    rank = plp_pair_rank(v, symbols[left].id, symbols[right].id);
    if (rank != UINT32_MAX)
        *to = v->merges[rank].result;
    return rank;
}

plp_status plp_bpe_word(plp_encoder *e, const uint8_t *s, size_t n)
{
    const plp_vocab *v = e->vocab;
    plp_symbol *symbols;

    if (v->pre->flags & PLP_PRE_WHOLE && n <= v->longest_word) {
        const int32_t id = plp_index_find(v, &v->words, (const char *)s, n);
        if (id >= 0) {
            plp_emit(e, id);
            return PLP_OK;
        }
    }
    if (!plp_merger_reserve(&e->merger, (uint32_t)n))
        return plp_fail_memory(e);
    symbols = e->merger.symbols;
    for (size_t i = 0; i < n; i++) {
        const int32_t id = v->bytes[s[i]];
        symbols[i].start = (uint32_t)i;
        symbols[i].id = id < 0 ? PLP_NO_PAIR : (uint32_t)id;
    }
    symbols[n].start = (uint32_t)n;
    plp_merger_run(&e->merger, (uint32_t)n, plp_pair_by_rank, v);
    return plp_emit_chain(e, s, (uint32_t)n);
}
