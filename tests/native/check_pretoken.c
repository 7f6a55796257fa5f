/*
 * tests/native/check_pretoken.c - where each pre-tokenizer rule cuts
 *
 * tests/golden/pretoken.txt holds texts and the cuts that the models' own expressions make, computed
 * with a regular expression engine (tests/python/make_pretoken_golden.py). Called as
 *
 *   check_pretoken --cut RULE < TEXTS      one text per line, as hexadecimal bytes
 *
 * it prints the piece lengths per line instead, which is how a test compares it with that engine on
 * texts of its own.
 */
#include "check.h"
#include "shared.h"
#include "text/pretoken.h"

static const char *const rule_names[] = {
#define PRETOKEN(name, rule, flags) name,
#include "text/pretoken.def"
#undef PRETOKEN
};

static int nibble(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/* Hexadecimal digits to bytes, up to what is none. */
static size_t from_hex(const char **p, uint8_t *out, size_t cap)
{
    size_t n = 0;
    for (; n < cap && nibble((*p)[0]) >= 0 && nibble((*p)[1]) >= 0; *p += 2)
        out[n++] = (uint8_t)(nibble((*p)[0]) << 4 | nibble((*p)[1]));
    return n;
}

/* A line of the golden file: RULE TEXT-IN-HEX LENGTH LENGTH ... */
static void golden(void)
{
    size_t size = 0;
    char *all = read_whole(PLP_SOURCE_DIR "/tests/golden/pretoken.txt", &size);
    long n_lines = 0;

    CHECK(all, "tests/golden/pretoken.txt is missing");
    for (char *line = all ? strtok(all, "\n") : NULL; line; line = strtok(NULL, "\n")) {
        char name[64];
        uint8_t bytes[1 << 14];
        int used = 0;
        const char *p = line;
        if (*line == '#' || sscanf(line, "%63s %n", name, &used) != 1)
            continue;
        p += used;
        const plp_pretoken *rule = plp_pretoken_find(name);
        const size_t n = from_hex(&p, bytes, sizeof bytes);
        uint8_t *text = guarded(n);
        memcpy(text, bytes, n);
        CHECK(rule, "no rule for %s", name);
        if (!rule)
            continue;
        plp_splitter s = plp_split(rule, text, n);
        size_t from, to, at = 0;
        while (plp_split_next(&s, &from, &to)) {
            char *q;
            const unsigned long want = strtoul(p, &q, 10);
            CHECK(from == at && to > from && to - from == want, "%s: %s: piece at %zu is %zu bytes, want %lu", name, line, from, to - from, want);
            at = to;
            p = q;
        }
        CHECK(at == n && strspn(p, " \r") == strlen(p), "%s: %s: ended at %zu of %zu", name, line, at, n);
        unguard(text, n);
        n_lines++;
    }
    free(all);
    CHECK(n_lines > 1000, "%ld golden lines", n_lines);
}

/* Any bytes, every rule: pieces are not empty, follow one another, and no byte past the end is read. */
static void random_bytes(void)
{
    for (size_t k = 0; k < sizeof rule_names / sizeof *rule_names; k++)
        for (int round = 0; round < 300; round++) {
            const size_t n = 1 + check_random() % 60;
            uint8_t *text = guarded(n);
            for (size_t i = 0; i < n; i++)
                text[i] = round % 3 == 0 ? (uint8_t)check_random() : (uint8_t)("\xe4\xb8 \n'sA1.\xcc\x80\xc3"[check_random() % 12]);
            plp_splitter s = plp_split(plp_pretoken_find(rule_names[k]), text, n);
            size_t from, to, at = 0;
            while (plp_split_next(&s, &from, &to)) {
                CHECK(from == at && to > from && to <= n, "%s: piece %zu..%zu after %zu", rule_names[k], from, to, at);
                if (to <= from)
                    break;
                at = to;
            }
            CHECK(at == n, "%s: ended at %zu of %zu", rule_names[k], at, n);
            unguard(text, n);
        }
}

static int cut_lines(const char *name)
{
    static char line[1 << 16];
    static uint8_t text[1 << 15];
    const plp_pretoken *rule = plp_pretoken_find(name);

    if (!rule)
        return 2;
    while (fgets(line, sizeof line, stdin)) {
        const char *p = line;
        plp_splitter s = plp_split(rule, text, from_hex(&p, text, sizeof text));
        size_t from, to;
        while (plp_split_next(&s, &from, &to))
            printf("%zu ", to - from);
        printf("\n");
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--cut"))
        return cut_lines(argv[2]);
    RUN(golden);
    RUN(random_bytes);
    return check_done();
}
