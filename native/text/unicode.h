/*
 * text/unicode.h - code points in bytes, and the classes that pre-tokenizers ask about
 *
 * Classes   one of eleven per code point, from the general category; a set of classes is a bit mask,
 *           so that a question like "letter or mark" is one shift
 * Bytes     text is any bytes: what is no well-formed UTF-8 is read byte by byte as U+FFFD (a
 *           symbol), so that scanning never fails and never loses its place
 * Source    The Unicode Standard, 3.9 (UTF-8) and the character database as Python knows it
 */
#ifndef PLP_TEXT_UNICODE_H
#define PLP_TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum plp_class {                /* the numbers are gen_unicode.py's */
    PLP_C_OTHER, PLP_C_UPPER /* Lu Lt */, PLP_C_LOWER /* Ll */, PLP_C_LETTER /* Lm Lo, and not: */,
    PLP_C_HAN /* the Lm and Lo of that script */, PLP_C_MARK, PLP_C_DIGIT /* Nd */, PLP_C_NUMBER /* Nl No */, PLP_C_PUNCTUATION, PLP_C_SYMBOL, PLP_C_SPACE /* White_Space */,
    PLP_C_END                   /* not a character: the end of the text, in no set below */
};

#define PLP_SET(c)      (1u << (c))
#define PLP_SET_L       (PLP_SET(PLP_C_UPPER) | PLP_SET(PLP_C_LOWER) | PLP_SET(PLP_C_LETTER) | PLP_SET(PLP_C_HAN))
#define PLP_SET_M       PLP_SET(PLP_C_MARK)
#define PLP_SET_N       (PLP_SET(PLP_C_DIGIT) | PLP_SET(PLP_C_NUMBER))
#define PLP_SET_P       PLP_SET(PLP_C_PUNCTUATION)
#define PLP_SET_S       PLP_SET(PLP_C_SYMBOL)
#define PLP_SET_SPACE   PLP_SET(PLP_C_SPACE)
#define PLP_SET_ANY     (PLP_SET(PLP_C_END) - 1u)
/* Everything but: the complement in any regular expression excludes the end of the text. */
#define PLP_SET_NOT(s)  (PLP_SET_ANY & ~(uint32_t)(s))

extern const uint8_t plp_unicode_index[0x1100], plp_unicode_blocks[][256];  /* ASCII is in block 0 */

static inline uint32_t plp_unicode_class(uint32_t code_point)   /* below 0x110000, as plp_utf8_read says */
{
    return plp_unicode_blocks[plp_unicode_index[code_point >> 8]][code_point & 255];
}

/* The code point that starts at s[0], n >= 1 bytes available; returns its length, 1 to 4. */
static inline uint32_t plp_utf8_read(const uint8_t *s, size_t n, uint32_t *code_point)
{
    const uint32_t a = s[0];

    if (a < 0x80) {
        *code_point = a;
        return 1;
    }
    if (a >= 0xc2 && a < 0xe0 && n >= 2 && (s[1] & 0xc0) == 0x80) {
        *code_point = (a & 0x1f) << 6 | (s[1] & 0x3f);
        return 2;
    }
    if ((a & 0xf0) == 0xe0 && n >= 3 && (s[1] & 0xc0) == 0x80 && (s[2] & 0xc0) == 0x80) {
        const uint32_t c = (a & 0x0f) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3f);
        if (c >= 0x800 && (c & 0xf800) != 0xd800) {
            *code_point = c;
            return 3;
        }
    }
    if ((a & 0xf8) == 0xf0 && n >= 4 && (s[1] & 0xc0) == 0x80 && (s[2] & 0xc0) == 0x80 && (s[3] & 0xc0) == 0x80) {
        const uint32_t c = (a & 0x07) << 18 | (uint32_t)(s[1] & 0x3f) << 12 | (uint32_t)(s[2] & 0x3f) << 6 | (s[3] & 0x3f);
        if (c >= 0x10000 && c < 0x110000) {
            *code_point = c;
            return 4;
        }
    }
    *code_point = 0xfffd;
    return 1;
}

#endif
