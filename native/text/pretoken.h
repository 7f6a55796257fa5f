/*
 * text/pretoken.h - cutting text into the words inside which byte-level BPE merges
 *
 * A rule is a list of stages, as in the models' tokenizer.json: each stage cuts the pieces of the
 * stage before it further, and what it does not match stays as pieces of its own. plp_split walks
 * all stages at once, so that no list of pieces is ever stored.
 *
 *   plp_splitter s = plp_split(rule, text, n);
 *   while (plp_split_next(&s, &from, &to)) ...             from[0] = 0, to = next from, last to = n
 *
 * Threads  rules are constants; a splitter belongs to its caller
 */
#ifndef PLP_TEXT_PRETOKEN_H
#define PLP_TEXT_PRETOKEN_H

#include "text/scan.h"

enum { PLP_MAX_STAGES = 6 };

enum {
    PLP_PRE_WHOLE = 1,          /* a word that is a token is that token, whatever the merges say */
    PLP_PRE_BOS   = 2,          /* add BOS where the file does not say whether to */
};

typedef struct plp_stage { plp_scan_fn next; const void *how; } plp_stage;

typedef struct plp_pretoken {
    const char      *name;      /* tokenizer.ggml.pre */
    const plp_stage *stages;    /* up to PLP_MAX_STAGES; a NULL function ends the list */
    uint32_t         flags;
} plp_pretoken;

/* NULL if the name is not in pretoken.def. */
const plp_pretoken *plp_pretoken_find(const char *name);

typedef struct plp_splitter {
    const plp_stage *stages;
    const uint8_t   *text;
    uint32_t         n_stages;
    size_t           at;
    size_t           ends[PLP_MAX_STAGES + 1];  /* ends[k]: of the current piece of stage k; ends[0]: of the text */
} plp_splitter;

plp_splitter plp_split(const plp_pretoken *rule, const uint8_t *text, size_t n);
bool         plp_split_next(plp_splitter *s, size_t *from, size_t *to);

#endif
