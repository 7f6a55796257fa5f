/*
 * text/scan.c - see scan.h
 *
 * Each function walks forward with peek(); where an expression would back-track, the comment says
 * why one remembered position is enough.
 */
#include "text/scan.h"

#include <string.h>

static inline bool is(uint32_t set, uint32_t class) { return set >> class & 1; }

/* Class of the character at s[i], and where the next one begins; PLP_C_END at the end. */
static inline uint32_t peek(const uint8_t *s, size_t i, size_t n, size_t *next)
{
    uint32_t c;

    if (i >= n) {
        *next = i;
        return PLP_C_END;
    }
    if (s[i] < 0x80) {
        *next = i + 1;
        return plp_unicode_blocks[0][s[i]];
    }
    *next = i + plp_utf8_read(s + i, n - i, &c);
    return plp_unicode_class(c);
}

static size_t run(const uint8_t *s, size_t i, size_t n, uint32_t set)
{
    size_t next;
    while (is(set, peek(s, i, n, &next)))
        i = next;
    return i;
}

static inline bool is_line_end(uint8_t c) { return c == '\r' || c == '\n'; }

static size_t line_ends(const uint8_t *s, size_t i, size_t n, bool slash)
{
    while (i < n && (is_line_end(s[i]) || (slash && s[i] == '/')))
        i++;
    return i;
}

/* 's 't 'm 'd 're 've 'll at s[i]: bytes, or 0. Without case, U+017F is an s as well: it folds to one. */
static size_t contraction(const uint8_t *s, size_t i, size_t n, bool any_case)
{
    const uint8_t fold = any_case ? 0x20 : 0;
    uint8_t a, b;

    if (n - i < 2 || s[i] != '\'')
        return 0;
    a = s[i + 1] | fold;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (n - i < 3)
        return 0;
    if (any_case && s[i + 1] == 0xc5 && s[i + 2] == 0xbf)
        return 3;
    b = s[i + 2] | fold;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* The class of the character that ends at s[i]. */
static uint32_t class_before(const uint8_t *s, size_t i)
{
    size_t start = i, next;
    uint32_t class;

    while (start > 0 && i - start < 4 && (s[--start] & 0xc0) == 0x80)
        ;
    class = peek(s, start, i, &next);
    return next == i ? class : PLP_C_OTHER;
}

/*
 * \s*[\r\n]+ (if `lines`), then \s+(?!\S), then \s+, at white space. The first ends after the run's
 * last line end; the second gives one character back if something visible follows, and the third
 * takes that character when it is all there is.
 */
static size_t white_space(const uint8_t *s, size_t i, size_t n, bool lines)
{
    size_t end = i, next, last = i, after_line = 0;

    while (is(PLP_SET_SPACE, peek(s, end, n, &next))) {
        last = end;
        end = next;
        if (lines && is_line_end(s[last]))
            after_line = end;
    }
    if (after_line)
        return after_line;
    return end < n && last > i ? last : end;
}

/*
 * \s*[\r\n]+, then the largest power of two up to 512 of the characters before the last one, or before the
 * end. A piece that ends after a white space which is no line end has shown that none follows in its run.
 */
static size_t halved_space(const uint8_t *s, size_t i, size_t n)
{
    size_t end = i, next, count = 0, take = 512;

    if (i == 0 || is_line_end(s[i - 1]) || class_before(s, i) != PLP_C_SPACE) {
        size_t after_line = 0;
        for (; is(PLP_SET_SPACE, peek(s, end, n, &next)); end = next)
            if (is_line_end(s[end]))
                after_line = next;
        if (after_line)
            return after_line;
    }
    for (end = i; count <= 512 && is(PLP_SET_SPACE, peek(s, end, n, &next)); end = next)
        count++;
    count -= end < n && count > 1;
    while (take > count)
        take /= 2;
    for (end = i; take > 0; take--)
        peek(s, end, n, &end);
    return end;
}

/* ---- runs --------------------------------------------------------------------------------- */

static bool in_chars(const plp_chars *set, uint32_t code_point)
{
    bool found = is(set->classes, plp_unicode_class(code_point));
    uint32_t low = 0, high = set->n_ranges;

    if (code_point < 0x80) {            /* most text: the few ranges that can hold it come first */
        for (; !found && low < high && set->ranges[low][0] <= code_point; low++)
            found = code_point <= set->ranges[low][1];
        high = low;
    }
    while (!found && low < high) {
        const uint32_t middle = (low + high) / 2;
        if (code_point > set->ranges[middle][1])
            low = middle + 1;
        else if (code_point < set->ranges[middle][0])
            high = middle;
        else
            found = true;
    }
    return found != set->negated;
}

static bool peek_in(const plp_chars *set, const uint8_t *s, size_t i, size_t n, size_t *next)
{
    uint32_t c;

    if (i >= n)
        return false;
    *next = i + plp_utf8_read(s + i, n - i, &c);
    return in_chars(set, c);
}

static bool is_lead(const plp_scan_run *r, const uint8_t *s, size_t i, size_t n, size_t *next)
{
    return r->lead != PLP_LEAD_NONE && (r->lead == PLP_LEAD_SPACE ? s[i] == ' ' && (*next = i + 1, true)
                                                                  : is(PLP_SET_SPACE, peek(s, i, n, next)));
}

/* The end of the characters of the set at s[i], or i if there are too few. */
static size_t set_run(const plp_scan_run *r, const uint8_t *s, size_t i, size_t n)
{
    size_t end = i, next;
    uint32_t count = 0;

    while ((!r->most || count < r->most) && peek_in(&r->set, s, end, n, &next)) {
        end = next;
        count++;
    }
    return count < r->least ? i : end;
}

size_t plp_scan_runs(const uint8_t *s, size_t i, size_t n, const void *how)
{
    const plp_scan_run *r = how;
    size_t at, next, body, end;

    for (at = i; at < n; at = next) {       /* to the first place where the expression matches */
        if (is_lead(r, s, at, n, &body) && (end = set_run(r, s, body, n)) > body)
            return at > i ? at : end;       /* the gap before the match, or the match */
        if ((end = set_run(r, s, at, n)) > at)
            return at > i ? at : end;
        peek(s, at, n, &next);
    }
    return n;
}

size_t plp_scan_tail_space(const uint8_t *s, size_t i, size_t n, const void *unused)
{
    size_t at = i, next, tail = n;          /* where the white space that reaches n begins */

    (void)unused;
    for (; at < n; at = next)
        if (!is(PLP_SET_SPACE, peek(s, at, n, &next)))
            tail = n;
        else if (tail == n)
            tail = at;
    return tail > i ? tail : n;
}

/* ---- digits in threes from the right ----------------------------------------------------------- */

/* Oniguruma's \w besides letters, marks and decimal digits: connectors, letter-like numbers and symbols,
 * and in Latin-1 the superscripts and fractions. */
static const uint32_t word_ranges[][2] = {
    {'_','_'}, {0xb2,0xb3}, {0xb9,0xb9}, {0xbc,0xbe}, {0x16ee,0x16f0}, {0x203f,0x2040}, {0x2054,0x2054}, {0x2160,0x2188},
    {0x24b6,0x24e9}, {0x3007,0x3007}, {0x3021,0x3029}, {0x3038,0x303a}, {0xa6e6,0xa6ef}, {0xfe33,0xfe34}, {0xfe4d,0xfe4f},
    {0xff3f,0xff3f}, {0x10140,0x10174}, {0x10341,0x10341}, {0x1034a,0x1034a}, {0x103d1,0x103d5}, {0x12400,0x1246e},
    {0x1f130,0x1f149}, {0x1f150,0x1f169}, {0x1f170,0x1f189},
};
static const plp_chars word_chars = { .classes = PLP_SET_L | PLP_SET_M | PLP_SET(PLP_C_DIGIT), .ranges = word_ranges,
                                      .n_ranges = sizeof word_ranges / sizeof *word_ranges };

/* Three digits at s[i], which are known to be there. */
static size_t three(const uint8_t *s, size_t i, size_t n)
{
    for (int k = 0; k < 3; k++)
        peek(s, i, n, &i);
    return i;
}

size_t plp_scan_digit_groups(const uint8_t *s, size_t i, size_t n, const void *unused)
{
    size_t at = i, next, end;

    (void)unused;
    if (class_before(s, i) == PLP_C_DIGIT && peek(s, i, n, &next) == PLP_C_DIGIT)
        return three(s, i, n);              /* inside a run that was measured when its first group was cut */
    for (; at < n; at = end) {
        uint32_t count = 0;
        if (peek(s, at, n, &end) != PLP_C_DIGIT)
            continue;
        for (end = at; peek(s, end, n, &next) == PLP_C_DIGIT; end = next)
            count++;
        if (peek_in(&word_chars, s, end, n, &next))
            continue;                       /* no \b: none of these digits matches */
        if (at > i)
            return at;
        if (count % 3 == 0)
            return three(s, at, n);
        for (count %= 3; count > 0; count--)
            peek(s, at, n, &at);
        return at;
    }
    return n;
}

size_t plp_scan_before_threes(const uint8_t *s, size_t i, size_t n, const void *unused)
{
    size_t at = i, next, end;

    (void)unused;
    if (class_before(s, i) == PLP_C_DIGIT && peek(s, i, n, &next) == PLP_C_DIGIT) {
        at = three(s, i, n);                /* the piece before ended here, so a multiple of three is left */
        if (peek(s, at, n, &next) == PLP_C_DIGIT)
            return at;
    }
    for (; at < n; at = end) {
        uint32_t count = 0, skip;
        if (peek(s, at, n, &end) != PLP_C_DIGIT)
            continue;
        for (end = at; peek(s, end, n, &next) == PLP_C_DIGIT; end = next)
            count++;
        skip = at == i && count % 3 == 0 ? 3 : count % 3;
        if (skip >= count)
            continue;
        for (; skip > 0; skip--)
            peek(s, at, n, &at);
        return at;
    }
    return n;
}

/* ---- GPT-2 -------------------------------------------------------------------------------- */

size_t plp_scan_gpt2(const uint8_t *s, size_t i, size_t n, const void *unused)
{
    const uint32_t other = PLP_SET_NOT(PLP_SET_SPACE | PLP_SET_L | PLP_SET_N);
    const size_t short_form = contraction(s, i, n, false);
    size_t next, body = i + (s[i] == ' ');
    uint32_t class;

    (void)unused;
    if (short_form)
        return i + short_form;
    class = peek(s, body, n, &next);
    if (is(PLP_SET_L, class))
        return run(s, next, n, PLP_SET_L);
    if (is(PLP_SET_N, class))
        return run(s, next, n, PLP_SET_N);
    if (is(other, class))
        return run(s, next, n, other);
    return white_space(s, i, n, false);
}

/* \p{Han}: its letters, and its numbers, radicals and marks. */
static const uint32_t han_signs[][2] = { {0x2e80,0x2e99}, {0x2e9b,0x2ef3}, {0x2f00,0x2fd5}, {0x3007,0x3007}, {0x3021,0x3029},
                                         {0x3038,0x303a}, {0x16fe2,0x16fe2}, {0x16ff0,0x16ff1} };
static const plp_scan_run han_run = { .set = { .classes = PLP_SET(PLP_C_HAN), .ranges = han_signs,
                                               .n_ranges = sizeof han_signs / sizeof *han_signs } };

/* ---- cl100k and its children -------------------------------------------------------------- */

/*
 * [Lu Lt BOTH]*[Ll BOTH]+ at s[i]: its end, or i. The upper run is greedy; if no lower letter follows, it
 * gives back to its last character that is in both sets. Only letters of one case follow that one,
 * so the lower run then takes exactly it. *upper_end: where the upper run ends.
 */
static size_t cased_word(const uint8_t *s, size_t i, size_t n, uint32_t both, size_t *upper_end)
{
    size_t at = i, next, last = i;
    uint32_t class;

    while (is(both | PLP_SET(PLP_C_UPPER), class = peek(s, at, n, &next))) {
        at = next;
        if (is(both, class))
            last = at;
    }
    *upper_end = at;
    return class == PLP_C_LOWER ? run(s, at, n, both | PLP_SET(PLP_C_LOWER)) : last;
}

/* The two cased alternatives, each with and without the optional character that goes before. */
static size_t cased(const uint8_t *s, size_t i, size_t n, size_t body, uint32_t both)
{
    size_t end, upper[2];

    if ((end = cased_word(s, body, n, both, &upper[0])) > body)
        return end;
    upper[1] = i;
    if (body > i && (end = cased_word(s, i, n, both, &upper[1])) > i)
        return end;
    if (upper[0] > body)
        return upper[0];
    return upper[1];
}

/* \p{L}\p{M}*(?: \p{L}\p{M}*)* repeated: letters with their marks, single spaces between them. */
static size_t spaced(const uint8_t *s, size_t i, size_t n)
{
    size_t next, after;

    while (is(PLP_SET_L, peek(s, i, n, &next))) {
        i = run(s, next, n, PLP_SET_M);
        if (i < n && s[i] == ' ' && is(PLP_SET_L, peek(s, i + 1, n, &after)))
            i++;
    }
    return i;
}

/* U+200C and U+200D stand inside words of Arabic and Indic scripts. */
static const uint32_t joiners[][2] = { {0x200c,0x200d} };
static const plp_scan_run joined_run = { .set = { .classes = PLP_SET_L | PLP_SET_M, .ranges = joiners, .n_ranges = 1 } };

static size_t word(const uint8_t *s, size_t i, size_t n, size_t body, const plp_scan_style *style)
{
    const uint32_t both = PLP_SET(PLP_C_LETTER) | PLP_SET_M;        /* of either case */

    switch (style->word) {
    case PLP_WORD_CASED:    return cased(s, i, n, body, both | PLP_SET(PLP_C_HAN));
    case PLP_WORD_CASED_NOT_HAN: return cased(s, i, n, body, both);
    case PLP_WORD_SPACED:   { const size_t end = spaced(s, body, n); return end > body ? end : i; }
    case PLP_WORD_LETTERS:  { const size_t end = run(s, body, n, PLP_SET_L); return end > body ? end : i; }
    case PLP_WORD_JOINED:   { const size_t end = set_run(&joined_run, s, body, n); return end > body ? end : set_run(&joined_run, s, i, n); }
    case PLP_WORD_MARKS:    break;
    }
    /* A mark may be the optional character before the word or the word itself: the end is the same. */
    const size_t end = run(s, body, n, PLP_SET_L | PLP_SET_M);
    return end > body ? end : run(s, i, n, PLP_SET_L | PLP_SET_M);
}

size_t plp_scan_words(const uint8_t *s, size_t i, size_t n, const void *how)
{
    const plp_scan_style *style = how;
    const uint32_t other = PLP_SET_NOT(PLP_SET_SPACE | PLP_SET_L | PLP_SET_N
                                       | (style->word == PLP_WORD_MARKS ? PLP_SET_M : 0));
    size_t next, end, body;
    uint32_t class, count;

    if (style->word == PLP_WORD_CASED_NOT_HAN && (end = set_run(&han_run, s, i, n)) > i)
        return end;
    if (style->contractions == PLP_SHORT_FIRST && (end = contraction(s, i, n, true)))
        return i + end;

    class = peek(s, i, n, &next);
    body = is(PLP_SET_L | PLP_SET_N, class) || is_line_end(s[i]) ? i : next;
    if (!is(PLP_SET_N, class) && (end = word(s, i, n, body, style)) > i)
        return style->contractions == PLP_SHORT_SUFFIX ? end + contraction(s, end, n, true) : end;

    if (is(PLP_SET_N, class)) {
        for (count = 1, end = next; count != style->max_digits && is(PLP_SET_N, peek(s, end, n, &next)); count++)
            end = next;
        return end;
    }

    body = i + (s[i] == ' ');
    if (is(other, peek(s, body, n, &next))) {
        end = run(s, next, n, other);
        switch (style->tail) {
        case PLP_TAIL_NONE:         return end;
        case PLP_TAIL_LINES:        return line_ends(s, end, n, false);
        case PLP_TAIL_LINES_SLASH:  return line_ends(s, end, n, true);
        case PLP_TAIL_ONE_SLASH:    return end + (end < n && (is_line_end(s[end]) || s[end] == '/'));
        }
    }
    /* White space is all that is left. */
    return style->spaces == PLP_SPACES_HALVING ? halved_space(s, i, n) : white_space(s, i, n, true);
}

/* ---- DeepSeek-V3 -------------------------------------------------------------------------- */

static bool is_ascii_letter(uint8_t c) { return (uint8_t)((c | 0x20) - 'a') < 26; }

/* The end of the match at s[i], or i. */
static size_t deepseek3_match(const uint8_t *s, size_t i, size_t n, const plp_scan_deepseek3_style *style)
{
    const uint32_t marks = PLP_SET_L | PLP_SET_M, signs = PLP_SET_P | PLP_SET_S;
    size_t next, end, body;
    const uint32_t class = peek(s, i, n, &next);

    if (s[i] < 0x80 && is(signs, class) && i + 1 < n && is_ascii_letter(s[i + 1])) {
        for (end = i + 2; end < n && is_ascii_letter(s[end]); end++)
            ;
        return end;
    }
    body = is(PLP_SET_L | signs, class) || is_line_end(s[i]) ? i : next;
    if ((end = run(s, body, n, marks)) > body || (end = run(s, i, n, marks)) > i)
        return end;
    body = i + (s[i] == ' ');
    if (is(signs, peek(s, body, n, &next)))
        return style->single_lines ? run(s, next, n, signs) : line_ends(s, run(s, next, n, signs), n, false);
    if (style->single_lines && is_line_end(s[i]))
        return next;
    return is(PLP_SET_SPACE, class) ? white_space(s, i, n, !style->single_lines) : i;
}

size_t plp_scan_deepseek3(const uint8_t *s, size_t i, size_t n, const void *style)
{
    size_t end = deepseek3_match(s, i, n, style), next;

    if (end > i)
        return end;
    /* A gap: a failing attempt looks at two characters, so looking for the next match is linear. */
    do {
        peek(s, i, n, &next);
        i = next;
    } while (i < n && deepseek3_match(s, i, n, style) == i);
    return i;
}

/* ---- Chameleon ------------------------------------------------------------------------------ */

static bool begins(const uint8_t *s, size_t i, size_t n, const char *what, size_t length)
{
    return n - i >= length && !memcmp(s + i, what, length);
}

/* The end of the match at s[i], or i. */
static size_t chameleon_mark(const uint8_t *s, size_t i, size_t n)
{
    size_t at;

    if (begins(s, i, n, "<sentinel:", 10)) {
        for (at = i + 10; at < n && s[at] >= '0' && s[at] <= '9'; at++)
            ;
        return at > i + 10 && at < n && s[at] == '>' ? at + 1 : i;
    }
    if (begins(s, i, n, "IMGIMG", 6)) {
        for (at = i + 6; at < n && at < i + 10 && s[at] >= 'A' && s[at] <= 'I'; at++)
            ;
        return at > i + 6 && at < n && s[at] == 'Z' ? at + 1 : i;
    }
    return i;
}

static size_t chameleon_space(const uint8_t *s, size_t i, size_t n)
{
    return s[i] == '\t' || s[i] == '\n' ? i + 1 : begins(s, i, n, "    ", 4) ? i + 4 : begins(s, i, n, "  ", 2) ? i + 2 : i;
}

/* The end of the match at s[i], or of what lies before the next one. */
static size_t match_or_gap(size_t (*match)(const uint8_t *, size_t, size_t), const uint8_t *s, size_t i, size_t n)
{
    const size_t end = match(s, i, n);

    if (end > i)
        return end;
    while (++i < n && match(s, i, n) == i)
        ;
    return i;
}

size_t plp_scan_chameleon_marks(const uint8_t *s, size_t i, size_t n, const void *unused)
{
    (void)unused;
    return match_or_gap(chameleon_mark, s, i, n);
}

size_t plp_scan_chameleon_space(const uint8_t *s, size_t i, size_t n, const void *unused)
{
    (void)unused;
    return match_or_gap(chameleon_space, s, i, n);
}
