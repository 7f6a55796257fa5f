/*
 * text/vocab.h - what an opened vocabulary is inside; the public calls (plp_vocab_*, plp_tokenize, ...) are in plp.h
 *
 * vocab.c      opening: tables from GGUF metadata, checked
 * lookup.c     finding tokens by their text, and what spellings stand for
 * tokenize.c   text to ids: special tokens (special.c), then words (encode.h is one such call)
 * detokenize.c ids to text
 * pretoken.c   the words of the byte-level families; pretoken.def lists the names, scan.c has the scanners
 * bpe.c        byte-level BPE
 * spm.c        SentencePiece-style merging
 * merge.c      the heap behind both
 * unicode.c    classes of code points, generated at build time from Python's unicodedata
 * sampler.c    logits to the next token
 *
 *   id  ->  text       text[text_at[id] .. text_at[id + 1])   the bytes that the token stands for
 *           kind       plp_token_kind
 *           flags      below
 *   text -> id         words: what merging may produce        literals: everything spelled out
 *
 * A byte-level spelling ("Ġthe") is stored decoded (" the"), a SentencePiece one with U+2581 as a
 * space, a byte piece ("<0x0A>") as its byte; so text in and text out are plain bytes and no text is
 * ever re-coded. Control and unknown tokens are no words: no merge of a user's text can make one.
 * Of several tokens with the same text the lowest id is found.
 *
 * Owner    a vocabulary owns every table; nothing points into the file after open
 * Threads  read-only after open: any
 * Always   text_at ascends; every id in words, literals, bytes, special and merges is below n_tokens
 */
#ifndef PLP_TEXT_VOCAB_H
#define PLP_TEXT_VOCAB_H

#include "base/status.h"
#include "text/pretoken.h"

typedef enum plp_vocab_model {
    PLP_VOCAB_NONE,             /* no tokenizer, or one that is not implemented: ids only */
    PLP_VOCAB_BPE,              /* byte-level BPE ("gpt2") */
    PLP_VOCAB_SPM,              /* pieces with scores ("llama") */
    PLP_VOCAB_RAW_BPE,          /* BPE over characters, spaces as U+2581, byte pieces ("gemma4") */
} plp_vocab_model;

enum {
    PLP_ID_ENDS    = 1,         /* ends a generation */
    PLP_ID_LITERAL = 2,         /* found by its spelling, not by merging */
    PLP_ID_STRIPS  = 4,         /* takes the white space after it */
    PLP_ID_STRIPS_BEFORE = 8,   /* takes the white space before it */
};

/* Open addressing, at most half full; a slot holds an id + 1, or 0. */
typedef struct plp_text_index {
    uint32_t *slots;
    uint32_t  mask;
} plp_text_index;

typedef struct plp_merge { uint32_t left, right, result; } plp_merge;      /* rank: the place in the list */

struct plp_vocab {
    plp_vocab_info  info;
    plp_vocab_model model;
    const plp_pretoken *pre;
    uint32_t        n_tokens;
    uint64_t        seed;               /* of the hashes: spellings are the file's and could be chosen to collide */

    char           *text;
    uint32_t       *text_at;            /* [n_tokens + 1] */
    uint8_t        *kind, *flags;       /* [n_tokens] */
    plp_text_index  words, literals;
    int32_t         bytes[256];         /* the token of a single byte, or -1 */
    int32_t         fallback;           /* what a byte without a token becomes, or -1: an error */

    uint32_t       *score_rank;         /* SPM: [n_tokens], smaller merges first */
    bool            cut_at_space;       /* SPM, raw BPE: no word has a space after another character */
    uint32_t        longest_word;       /* bytes */

    plp_merge      *merges;             /* BPE: [n_merges] */
    uint32_t        n_merges;
    plp_text_index  pairs;              /* slots hold a rank + 1 */

    uint32_t       *special;            /* [n_special], sorted by text: control, unknown and user tokens */
    uint32_t        n_special;
    uint32_t        special_from[257];  /* special[special_from[b] .. special_from[b + 1]) begin with byte b */
};

static inline const char *plp_text_of(const plp_vocab *v, uint32_t id, size_t *n)
{
    *n = v->text_at[id + 1] - v->text_at[id];
    return v->text + v->text_at[id];
}

/* Both halves of a 64 x 64 product, folded: a difference in one input is spread beyond repair by the
 * seed in the other, so that colliding texts cannot be prepared without knowing it. */
static inline uint64_t plp_fold(uint64_t a, uint64_t b)
{
#ifdef __SIZEOF_INT128__
    const unsigned __int128 p = (unsigned __int128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
#else
    const uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    const uint64_t low = al * bl, mid = ah * bl + (low >> 32), mid2 = al * bh + (uint32_t)mid;
    return (mid2 << 32 | (uint32_t)low) ^ (ah * bh + (mid >> 32) + (mid2 >> 32));
#endif
}

uint64_t plp_text_hash(uint64_t seed, const void *data, size_t n);
bool     plp_index_open(plp_text_index *x, uint32_t n);     /* room for n entries; false: no memory */
/* The token of `x` with this text, or -1. */
int32_t  plp_index_find(const plp_vocab *v, const plp_text_index *x, const char *text, size_t n);
/* Adds id unless its text is there already. */
void     plp_index_add(const plp_vocab *v, plp_text_index *x, uint32_t id);

/* GPT-2's byte alphabet: the bytes behind `s`; false if a character is not in it. out has n bytes. */
bool     plp_byte_level_decode(const char *s, size_t n, char *out, size_t *n_out);
/* SentencePiece's U+2581 back to spaces; out has n bytes. */
void     plp_spaces_decode(const char *s, size_t n, char *out, size_t *n_out);
/* The byte that "<0xNN>" stands for, or -1. */
int      plp_byte_piece(const char *s, size_t n);

/* bpe.c: lay out the merges' table after `merges` and `n_merges` are set; rank of a pair, or UINT32_MAX. */
bool     plp_pairs_open(plp_vocab *v);
uint32_t plp_pair_rank(const plp_vocab *v, uint32_t left, uint32_t right);

/* special.c: `special` from kinds and texts; false: no memory. */
bool     plp_special_open(plp_vocab *v);
/* The longest special token at s[i] (control and unknown ones only if asked for), or -1; *n_bytes: its length. */
int32_t  plp_special_at(const plp_vocab *v, const uint8_t *s, size_t i, size_t n, bool control, size_t *n_bytes);

#endif
