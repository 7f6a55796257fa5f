/*
 * text/special.c - tokens that are found in a text by their spelling, before any merging
 *
 * Control and unknown tokens only if the caller asks for them; user-defined ones always. Of those that
 * begin at one place the longest counts. They are kept sorted, so that reading a text byte by byte
 * narrows a range of candidates; no automaton is built.
 */
#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Longer spellings are not looked for in texts: it bounds the time per byte whatever the file says. */
enum { LONGEST_SPECIAL = 512 };

static bool is_special(const plp_vocab *v, uint32_t id)
{
    const uint32_t n = v->text_at[id + 1] - v->text_at[id];
    return n > 0 && n <= LONGEST_SPECIAL
        && (v->kind[id] == PLP_TOKEN_CONTROL || v->kind[id] == PLP_TOKEN_USER || v->kind[id] == PLP_TOKEN_UNKNOWN);
}

static int compare(const plp_vocab *v, uint32_t a, uint32_t b)
{
    size_t na, nb;
    const char *ta = plp_text_of(v, a, &na), *tb = plp_text_of(v, b, &nb);
    const int c = memcmp(ta, tb, na < nb ? na : nb);
    return c ? c : na != nb ? (na < nb ? -1 : 1) : (a > b) - (a < b);
}

/* Heap sort: in place, n log n for any file, no recursion, and it can be given the vocabulary. */
static void sort(const plp_vocab *v, uint32_t *ids, uint32_t n)
{
    for (uint32_t start = n / 2, end = n; end > 1; ) {
        uint32_t item, at;
        if (start > 0) {
            item = ids[at = --start];
        } else {
            item = ids[--end];
            ids[end] = ids[at = 0];
        }
        for (uint64_t child; (child = 2 * (uint64_t)at + 1) < end; at = (uint32_t)child) {
            if (child + 1 < end && compare(v, ids[child], ids[child + 1]) < 0)
                child++;
            if (compare(v, item, ids[child]) >= 0)
                break;
            ids[at] = ids[child];
        }
        ids[at] = item;
    }
}

bool plp_special_open(plp_vocab *v)
{
    uint32_t n = 0, kept = 0;

    for (uint32_t id = 0; id < v->n_tokens; id++)
        n += is_special(v, id);
    if (!(v->special = plp_alloc(PLP_MEM_TEXT, n, sizeof *v->special)))
        return false;
    n = 0;
    for (uint32_t id = 0; id < v->n_tokens; id++)
        if (is_special(v, id))
            v->special[n++] = id;
    sort(v, v->special, n);

    for (uint32_t i = 0; i < n; i++) {      /* of equal spellings the lowest id, which sorts first */
        size_t a = 0, b = 1;
        const char *text = plp_text_of(v, v->special[i], &a), *last = text;
        if (kept)
            last = plp_text_of(v, v->special[kept - 1], &b);
        if (a != b || memcmp(text, last, a))
            v->special[kept++] = v->special[i];
    }
    v->n_special = kept;
    for (uint32_t i = 0, byte = 0; byte < 257; byte++) {
        while (i < kept && (uint8_t)v->text[v->text_at[v->special[i]]] < byte)
            i++;
        v->special_from[byte] = i;
    }
    return true;
}

/* The first of special[low..high), which share `depth` bytes, whose next byte is at least `byte`;
 * one that ends there has none, and sorts before all. */
static uint32_t lower(const plp_vocab *v, uint32_t low, uint32_t high, uint32_t depth, uint32_t byte)
{
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2, id = v->special[middle], at = v->text_at[id] + depth;
        if (at == v->text_at[id + 1] || (uint8_t)v->text[at] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int32_t plp_special_at(const plp_vocab *v, const uint8_t *s, size_t i, size_t n, bool control, size_t *n_bytes)
{
    uint32_t low = v->special_from[s[i]], high = v->special_from[s[i] + 1];
    int32_t best = -1;

    for (uint32_t depth = 1; low < high; depth++) {
        const uint32_t id = v->special[low];
        if (v->text_at[id + 1] - v->text_at[id] == depth && (control || v->kind[id] == PLP_TOKEN_USER)) {
            best = (int32_t)id;
            *n_bytes = depth;
        }
        if (i + depth >= n)
            break;
        low = lower(v, low, high, depth, s[i + depth]);
        high = lower(v, low, high, depth, s[i + depth] + 1u);
    }
    return best;
}
