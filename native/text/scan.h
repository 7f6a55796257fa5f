/*
 * text/scan.h - the regular expressions of pre-tokenizers, as scanners written by hand
 *
 * A scanner says where the piece that starts at s[i] ends, inside s[0..n), 0 <= i < n. A piece is a
 * match, or a run of what the expression does not match, up to the next match. `n` is a real end:
 * an expression's look-ahead does not see past it.
 *
 * Time      every scanner is linear over a text: a character is looked at a bounded number of times
 * Stack     no recursion, no back-tracking stack
 * Source    the expressions are those of the models' own tokenizer.json files; comments quote them.
 *           Their meaning (alternatives in order, greedy, \s as White_Space) is Oniguruma's.
 */
#ifndef PLP_TEXT_SCAN_H
#define PLP_TEXT_SCAN_H

#include <stdbool.h>

#include "text/unicode.h"

typedef size_t (*plp_scan_fn)(const uint8_t *s, size_t i, size_t n, const void *how);

/* Characters by class or by code point; `ranges` is ascending and may be NULL. */
typedef struct plp_chars {
    uint32_t classes;                       /* PLP_SET mask */
    const uint32_t (*ranges)[2];            /* first, last */
    uint32_t n_ranges;
    bool     negated;
} plp_chars;

/* Characters that become pieces of their own, one by one or in runs. */
typedef struct plp_scan_run {
    plp_chars set;
    uint32_t  least, most;                  /* characters per piece; most 0: any number */
    enum { PLP_LEAD_NONE, PLP_LEAD_SPACE /* " ?" */, PLP_LEAD_ANY_SPACE /* "\s?" */ } lead;
} plp_scan_run;

/* [set]+ with a bound and an optional leading space; gaps between the runs are pieces too. */
size_t plp_scan_runs(const uint8_t *s, size_t i, size_t n, const void *run);
/* \s+$ : white space that ends the text. */
size_t plp_scan_tail_space(const uint8_t *s, size_t i, size_t n, const void *unused);
/* (?=(\d{3})+(?!\d)) : cuts where what is left of a run of digits is a multiple of three. After a stage that sets numbers apart. */
size_t plp_scan_before_threes(const uint8_t *s, size_t i, size_t n, const void *unused);
/* \d{1,3}(?=(?:\d{3})*\b) : digits in threes, counted from the end of their run. A first stage only. */
size_t plp_scan_digit_groups(const uint8_t *s, size_t i, size_t n, const void *unused);
/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
size_t plp_scan_gpt2(const uint8_t *s, size_t i, size_t n, const void *unused);

/*
 * The family that begins with cl100k:
 *   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?WORD|\p{N}{1,max}| ?[^\s\p{L}\p{N}]+TAIL|\s*[\r\n]+|SPACES
 */
typedef struct plp_scan_style {
    enum {
        PLP_WORD_LETTERS,                   /* \p{L}+ */
        PLP_WORD_MARKS,                     /* [\p{L}\p{M}]+, and marks are no "other" characters */
        PLP_WORD_CASED,                     /* [Lu Lt Lm Lo M]*[Ll Lm Lo M]+ or [Lu Lt Lm Lo M]+[Ll Lm Lo M]* */
        PLP_WORD_CASED_NOT_HAN,             /* the same without the letters of that script; [\p{Han}]+ before all else */
        PLP_WORD_SPACED,                    /* (?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+ */
        PLP_WORD_JOINED,                    /* [\p{L}\p{M} ZWNJ ZWJ]+, which are "other" characters where no word is */
    } word;
    enum { PLP_SHORT_NONE, PLP_SHORT_FIRST, PLP_SHORT_SUFFIX } contractions;    /* 's and so on: of their own, or ending a word */
    uint32_t max_digits;                    /* 0: any number */
    enum { PLP_TAIL_NONE, PLP_TAIL_LINES /* [\r\n]* */, PLP_TAIL_LINES_SLASH /* [\r\n/]* */,
           PLP_TAIL_ONE_SLASH /* [\r\n/]? */ } tail;
    enum { PLP_SPACES_ALL,                  /* \s+(?!\S)|\s+ */
           PLP_SPACES_HALVING,              /* \s{512}(?!\S)|\s{256}(?!\S)| ... |\s{4}(?!\S)|\s{1,2}(?!\S)|\s */
    } spaces;
} plp_scan_style;

size_t plp_scan_words(const uint8_t *s, size_t i, size_t n, const void *style);

/*
 * DeepSeek-V3, after numbers and CJK were set apart:
 *   [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * Digits, control and format characters may match nothing. With single_lines, every line end is a piece of its own:
 *   ...| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+
 */
typedef struct plp_scan_deepseek3_style { bool single_lines; } plp_scan_deepseek3_style;

size_t plp_scan_deepseek3(const uint8_t *s, size_t i, size_t n, const void *style);

/* Chameleon's tokens for pictures, <sentinel:[0-9]+> and IMGIMG[A-I]{1,4}Z, and its white space, [\t\n]|    |  : each match alone. */
size_t plp_scan_chameleon_marks(const uint8_t *s, size_t i, size_t n, const void *unused);
size_t plp_scan_chameleon_space(const uint8_t *s, size_t i, size_t n, const void *unused);

#endif
