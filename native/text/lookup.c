/* text/lookup.c - finding tokens by their text, what spellings stand for, and the public look-ups */
#include "text/vocab.h"

#include <string.h>

#include "base/mem.h"

uint64_t plp_text_hash(uint64_t seed, const void *data, size_t n)
{
    const char *p = data;
    uint64_t h = seed ^ n * 0x9e3779b97f4a7c15u, w = 0;

    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&w, p, 8);
        h = plp_fold(h ^ w, seed | 1) + 0xd1342543de82ef95u;
    }
    w = 0;
    for (size_t i = 0; i < n; i++)
        w |= (uint64_t)(uint8_t)p[i] << 8 * i;
    return plp_fold(h ^ w, 0xa0761d6478bd642fu ^ seed);
}

bool plp_index_open(plp_text_index *x, uint32_t n)
{
    uint64_t size = 16;

    while (size < 2 * (uint64_t)n)
        size *= 2;
    x->mask = (uint32_t)(size - 1);
    x->slots = plp_zalloc(PLP_MEM_TEXT, size, sizeof *x->slots);
    return x->slots != NULL;
}

int32_t plp_index_find(const plp_vocab *v, const plp_text_index *x, const char *text, size_t n)
{
    if (!x->slots)
        return -1;
    for (uint32_t at = (uint32_t)plp_text_hash(v->seed, text, n) & x->mask; x->slots[at]; at = (at + 1) & x->mask) {
        size_t n_bytes;
        const char *s = plp_text_of(v, x->slots[at] - 1, &n_bytes);
        if (n_bytes == n && !memcmp(s, text, n))
            return (int32_t)(x->slots[at] - 1);
    }
    return -1;
}

void plp_index_add(const plp_vocab *v, plp_text_index *x, uint32_t id)
{
    size_t n;
    const char *text = plp_text_of(v, id, &n);
    uint32_t at;

    if (plp_index_find(v, x, text, n) >= 0)
        return;
    at = (uint32_t)plp_text_hash(v->seed, text, n) & x->mask;
    while (x->slots[at])
        at = (at + 1) & x->mask;
    x->slots[at] = id + 1;
}

/* Printable bytes stand for themselves; the other 68 are numbered from U+0100 in byte order. */
static int byte_of(uint32_t c)
{
    if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff))
        return (int)c;
    if (c >= 0x100 && c < 0x100 + 33)
        return (int)(c - 0x100);            /* 0x00..0x20 */
    if (c >= 0x100 + 33 && c < 0x100 + 67)
        return (int)(c - 0x100 - 33 + 0x7f);/* 0x7f..0xa0 */
    return c == 0x100 + 67 ? 0xad : -1;
}

bool plp_byte_level_decode(const char *s, size_t n, char *out, size_t *n_out)
{
    size_t m = 0;

    for (size_t i = 0; i < n; m++) {
        uint32_t c;
        int byte;
        i += plp_utf8_read((const uint8_t *)s + i, n - i, &c);
        if ((byte = byte_of(c)) < 0)
            return false;
        out[m] = (char)byte;
    }
    *n_out = m;
    return true;
}

void plp_spaces_decode(const char *s, size_t n, char *out, size_t *n_out)
{
    size_t m = 0;

    for (size_t i = 0; i < n; m++)
        if (n - i >= 3 && !memcmp(s + i, "\xe2\x96\x81", 3)) {
            out[m] = ' ';
            i += 3;
        } else {
            out[m] = s[i++];
        }
    *n_out = m;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int plp_byte_piece(const char *s, size_t n)
{
    return n == 6 && !memcmp(s, "<0x", 3) && s[5] == '>' && hex(s[3]) >= 0 && hex(s[4]) >= 0 ? hex(s[3]) << 4 | hex(s[4]) : -1;
}

/* ---- public look-ups ------------------------------------------------------------------------ */

void plp_vocab_get_info(const plp_vocab *v, plp_vocab_info *out) { *out = v->info; }

static bool is_id(const plp_vocab *v, int32_t id) { return id >= 0 && (uint32_t)id < v->n_tokens; }

int32_t plp_token_kind_of(const plp_vocab *v, int32_t id)
{
    if (!is_id(v, id))
        return 0;
    return v->kind ? v->kind[id] : PLP_TOKEN_NORMAL;
}

bool plp_token_ends(const plp_vocab *v, int32_t id)
{
    return is_id(v, id) && v->flags && v->flags[id] & PLP_ID_ENDS;
}

bool plp_token_strips(const plp_vocab *v, int32_t id)
{
    return is_id(v, id) && v->flags && v->flags[id] & PLP_ID_STRIPS;
}

bool plp_token_strips_before(const plp_vocab *v, int32_t id)
{
    return is_id(v, id) && v->flags && v->flags[id] & PLP_ID_STRIPS_BEFORE;
}

int32_t plp_token_find(const plp_vocab *v, const char *spelling, size_t n)
{
    const int byte = v->model == PLP_VOCAB_BPE ? -1 : plp_byte_piece(spelling, n);
    char small[128], *text = small;
    size_t m;
    int32_t id;

    if (v->model == PLP_VOCAB_NONE)
        return -1;
    if ((id = plp_index_find(v, &v->literals, spelling, n)) >= 0)
        return id;
    if (byte >= 0)
        return v->bytes[byte];

    if (n > sizeof small && !(text = plp_alloc(PLP_MEM_TEXT, n, 1)))
        return -1;
    if (v->model != PLP_VOCAB_BPE)
        plp_spaces_decode(spelling, n, text, &m);
    if (v->model != PLP_VOCAB_BPE || plp_byte_level_decode(spelling, n, text, &m)) {
        id = plp_index_find(v, &v->words, text, m);
        if (id < 0 && v->model != PLP_VOCAB_BPE)
            id = plp_index_find(v, &v->literals, text, m);      /* a user token of spaces */
    }
    if (text != small)
        plp_free(text);
    return id;
}
