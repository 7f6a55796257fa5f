/*
 * text/pretoken.c - the rules behind the names in pretoken.def, and the walk over their stages
 *
 * What is here is data: which scanner of scan.h runs with which sets of characters, in which order.
 */
#include "text/pretoken.h"

#include <string.h>

/* ---- sets of characters -------------------------------------------------------------------- */

#define RANGES(r) r, .n_ranges = sizeof r / sizeof *r

/* The cased letters that DeepSeek-LLM's expression lists, script by script. */
static const uint32_t cased_letters[][2] = {
    {0x41,0x5a}, {0x61,0x7a}, {0xb5,0xb5}, {0xc0,0xd6}, {0xd8,0xf6}, {0xf8,0x1ba}, {0x1bc,0x1bf}, {0x1c4,0x293},
    {0x295,0x2af}, {0x370,0x373}, {0x376,0x377}, {0x37b,0x37d}, {0x37f,0x37f}, {0x386,0x386}, {0x388,0x38a},
    {0x38c,0x38c}, {0x38e,0x3a1}, {0x3a3,0x3f5}, {0x3f7,0x481}, {0x48a,0x52f}, {0x531,0x556}, {0x10a0,0x10c5},
    {0x13a0,0x13f5}, {0x13f8,0x13fd}, {0x1c90,0x1cba}, {0x1cbd,0x1cbf}, {0x1d00,0x1d2b}, {0x1d6b,0x1d77},
    {0x1d79,0x1d9a}, {0x1e00,0x1f15}, {0x1f18,0x1f1d}, {0x1f20,0x1f45}, {0x1f48,0x1f4d}, {0x1f50,0x1f57},
    {0x1f59,0x1f59}, {0x1f5b,0x1f5b}, {0x1f5d,0x1f5d}, {0x1f5f,0x1f7d}, {0x1f80,0x1fb4}, {0x1fb6,0x1fbc},
    {0x1fbe,0x1fbe}, {0x1fc2,0x1fc4}, {0x1fc6,0x1fcc}, {0x1fd0,0x1fd3}, {0x1fd6,0x1fdb}, {0x1fe0,0x1fec},
    {0x1ff2,0x1ff4}, {0x1ff6,0x1ffc}, {0x2102,0x2102}, {0x2107,0x2107}, {0x210a,0x2113}, {0x2115,0x2115},
    {0x2119,0x211d}, {0x2124,0x2124}, {0x2126,0x2126}, {0x2128,0x2128}, {0x212a,0x212d}, {0x212f,0x2134},
    {0x2139,0x2139}, {0x213c,0x213f}, {0x2145,0x2149}, {0x214e,0x214e}, {0x2183,0x2184}, {0x2c00,0x2c7b},
    {0x2c7e,0x2ce4}, {0x2ceb,0x2cee}, {0x2cf2,0x2cf3}, {0xa640,0xa66d}, {0xa680,0xa69b}, {0xa722,0xa76f},
    {0xa771,0xa787}, {0xa78b,0xa78e}, {0xab70,0xabbf}, {0xfb00,0xfb06}, {0xfb13,0xfb17}, {0xff21,0xff3a},
    {0xff41,0xff5a}, {0x10400,0x1044f}, {0x104b0,0x104d3}, {0x104d8,0x104fb}, {0x10c80,0x10cb2},
    {0x10cc0,0x10cf2}, {0x118a0,0x118df}, {0x1e900,0x1e943},
};
static const uint32_t deepseek_signs[][2] = {       /* !-/:-~ and their full-width forms, quotes, CJK stops */
    {0x21,0x2f}, {0x3a,0x7e}, {0x2018,0x201f}, {0x3000,0x3002}, {0xff01,0xff0f}, {0xff1a,0xff5e},
};
static const uint32_t cjk_hangul[][2] = { {0x800,0x9fa5}, {0xac00,0xd7ff} };        /* its lower bound is the expression's */
static const uint32_t cjk_kana[][2] = { {0x3040,0x30ff}, {0x4e00,0x9fa5} };
static const uint32_t line_end[][2] = { {'\n','\n'}, {'\r','\r'} };
static const uint32_t newline[][2] = { {'\n','\n'} };
static const uint32_t ascii_digit[][2] = { {'0','9'} };
static const uint32_t falcon_signs[][2] = { {'$','$'}, {'+','+'}, {'<','>'}, {'^','^'}, {'`','`'}, {'|','|'}, {'~','~'} };
static const uint32_t ascii_signs[][2] = { {'!','/'}, {':','@'}, {'[','`'}, {'{','~'} };
static const uint32_t default_signs[][2] = { {'$','$'}, {'+','+'}, {'<','>'}, {'^','^'}, {'|','|'}, {'~','~'} };
static const uint32_t unspaced[][2] = {             /* AFMoE: scripts without spaces, block by block */
    {0xe40,0xeff}, {0x1000,0x109f}, {0x1100,0x11ff}, {0x1780,0x17ff}, {0x2f00,0x2fdf}, {0x3040,0x30ff}, {0x3400,0x4dbf},
    {0x4e00,0x9fff}, {0xa9e0,0xa9ff}, {0xaa60,0xaa7f}, {0xac00,0xd7af}, {0xf900,0xfaff}, {0xff65,0xff9f},
};
static const uint32_t bloom_stops[][2] = {          /* with white space: what ends a word */
    {0x21,0x21}, {0x28,0x29}, {0x2c,0x2c}, {0x2e,0x2e}, {0x3f,0x3f}, {0x7c,0x7c}, {0x60c,0x60c}, {0x6d4,0x6d4},
    {0x964,0x964}, {0x2026,0x2026}, {0x3001,0x3002}, {0xff0c,0xff0c},
};
static const uint32_t hangul[][2] = { {0x3131,0x318e}, {0xac00,0xd7a3} };
static const uint32_t bopomofo[][2] = { {0x3105,0x312f} };
static const uint32_t youtu_stops[][2] = {
    {0x2014,0x2014}, {0x2018,0x2019}, {0x201c,0x201d}, {0x2026,0x2026}, {0x3001,0x303f}, {0xfe30,0xfe4f},
    {0xff01,0xff01}, {0xff0c,0xff0c}, {0xff1a,0xff1b},
};

/* ---- rules --------------------------------------------------------------------------------- */

#define RUNS(...)   { plp_scan_runs, &(const plp_scan_run){ __VA_ARGS__ } }
#define WORDS(...)  { plp_scan_words, &(const plp_scan_style){ __VA_ARGS__ } }
#define GPT2        { plp_scan_gpt2, NULL }
#define DEEPSEEK3(...) { plp_scan_deepseek3, &(const plp_scan_deepseek3_style){ __VA_ARGS__ } }
#define RULE(name)  static const plp_stage name[PLP_MAX_STAGES]

RULE(gpt2) = { GPT2 };

/* Every digit by itself, then GPT-2: Digits(individual) and ByteLevel in one Sequence. */
RULE(gpt2_digits) = { RUNS(.set.classes = PLP_SET_N, .most = 1), GPT2 };

/* Numbers apart, their digits in threes; all else is one word, because tokens go over spaces. */
RULE(superbpe) = { RUNS(.set.classes = PLP_SET_N), { plp_scan_before_threes, NULL } };

RULE(llama3) = { WORDS(PLP_WORD_LETTERS, PLP_SHORT_FIRST, 3, PLP_TAIL_LINES) };

RULE(jais2) = { WORDS(PLP_WORD_LETTERS, PLP_SHORT_FIRST, 3, PLP_TAIL_LINES, PLP_SPACES_HALVING) };

RULE(minicpm5) = { RUNS(.set.classes = PLP_SET_N, .most = 3), WORDS(PLP_WORD_LETTERS, PLP_SHORT_FIRST, 0, PLP_TAIL_LINES) };

RULE(qwen2) = { WORDS(PLP_WORD_LETTERS, PLP_SHORT_FIRST, 1, PLP_TAIL_LINES) };

RULE(ufakzeka) = { WORDS(PLP_WORD_LETTERS, PLP_SHORT_NONE, 1, PLP_TAIL_LINES) };

RULE(seed_coder) = { WORDS(PLP_WORD_LETTERS, PLP_SHORT_FIRST, 1, PLP_TAIL_NONE) };

/* [^\n]+|[\n]+ first */
RULE(laguna) = { RUNS(.set = { .ranges = RANGES(newline) }), WORDS(PLP_WORD_LETTERS, PLP_SHORT_FIRST, 1, PLP_TAIL_LINES) };

RULE(qwen35) = { WORDS(PLP_WORD_MARKS, PLP_SHORT_FIRST, 1, PLP_TAIL_LINES) };

RULE(exaone_moe) = { WORDS(PLP_WORD_SPACED, PLP_SHORT_FIRST, 1, PLP_TAIL_ONE_SLASH) };

RULE(k2_horizon) = { WORDS(PLP_WORD_JOINED, PLP_SHORT_FIRST, 3, PLP_TAIL_LINES) };

RULE(gpt4o) = { WORDS(PLP_WORD_CASED, PLP_SHORT_SUFFIX, 3, PLP_TAIL_LINES_SLASH) };

RULE(kimi) = { WORDS(PLP_WORD_CASED_NOT_HAN, PLP_SHORT_SUFFIX, 3, PLP_TAIL_LINES) };

RULE(tiny_aya) = { { plp_scan_digit_groups, NULL }, WORDS(PLP_WORD_CASED, PLP_SHORT_SUFFIX, 3, PLP_TAIL_LINES_SLASH) };

RULE(tekken) = { WORDS(PLP_WORD_CASED, PLP_SHORT_NONE, 1, PLP_TAIL_LINES_SLASH) };

/* [Hangul]+|[stops]+|[Bopomofo]+|[CJK and kana]+, which do not overlap, so one stage each is the same. */
RULE(youtu) = {
    RUNS(.set = { .ranges = RANGES(hangul) }),
    RUNS(.set = { .ranges = RANGES(youtu_stops) }),
    RUNS(.set = { .ranges = RANGES(bopomofo) }),
    RUNS(.set = { .ranges = RANGES(cjk_kana) }),
    WORDS(PLP_WORD_CASED, PLP_SHORT_SUFFIX, 1, PLP_TAIL_LINES_SLASH),
};

/* [\r\n]  \s?[cased letters]+  \s?[signs]+  \s+$  [CJK and Hangul]+  \p{N} */
RULE(deepseek_llm) = {
    RUNS(.set = { .ranges = RANGES(line_end) }, .most = 1),
    RUNS(.set = { .ranges = RANGES(cased_letters) }, .lead = PLP_LEAD_ANY_SPACE),
    RUNS(.set = { .ranges = RANGES(deepseek_signs) }, .lead = PLP_LEAD_ANY_SPACE),
    { plp_scan_tail_space, NULL },
    RUNS(.set = { .ranges = RANGES(cjk_hangul) }),
    RUNS(.set.classes = PLP_SET_N, .most = 1),
};

/* [\r\n]  \s?\p{L}+  \s?\p{P}+  [CJK and Hangul]+  \p{N} */
RULE(deepseek_coder) = {
    RUNS(.set = { .ranges = RANGES(line_end) }, .most = 1),
    RUNS(.set.classes = PLP_SET_L, .lead = PLP_LEAD_ANY_SPACE),
    RUNS(.set.classes = PLP_SET_P, .lead = PLP_LEAD_ANY_SPACE),
    RUNS(.set = { .ranges = RANGES(cjk_hangul) }),
    RUNS(.set.classes = PLP_SET_N, .most = 1),
};

RULE(deepseek3) = { RUNS(.set.classes = PLP_SET_N, .most = 3), RUNS(.set = { .ranges = RANGES(cjk_kana) }), DEEPSEEK3(.single_lines = false) };

/* Line ends one by one, and digits: in threes first, so that the words between them are the same. */
RULE(spark) = {
    RUNS(.set.classes = PLP_SET_N, .most = 3),
    RUNS(.set = { .ranges = RANGES(cjk_kana) }),
    DEEPSEEK3(.single_lines = true),
    RUNS(.set.classes = PLP_SET_N, .most = 1),
};

/* Digits in threes from the right, scripts without spaces, DeepSeek-V3. */
RULE(afmoe) = {
    RUNS(.set.classes = PLP_SET(PLP_C_DIGIT)),
    { plp_scan_before_threes, NULL },
    RUNS(.set = { .ranges = RANGES(unspaced) }),
    DEEPSEEK3(.single_lines = false),
};

/* Punctuation in runs, GPT-2, then [0-9][0-9][0-9] from the left. */
RULE(falcon) = {
    RUNS(.set = { .classes = PLP_SET_P, .ranges = RANGES(falcon_signs) }),
    GPT2,
    RUNS(.set = { .ranges = RANGES(ascii_digit) }, .least = 3, .most = 3),
};

/*  ?[^(\s|.,!?...)]+ */
RULE(bloom) = { RUNS(.set = { .classes = PLP_SET_SPACE, .ranges = RANGES(bloom_stops), .negated = true }, .lead = PLP_LEAD_SPACE) };

RULE(viking) = { RUNS(.set = { .classes = PLP_SET_SPACE, .ranges = RANGES(bloom_stops), .negated = true }, .lead = PLP_LEAD_SPACE),
                 RUNS(.set.classes = PLP_SET_N, .most = 1) };

/* <sentinel:[0-9]+>|IMGIMG[A-I]{1,4}Z  [\t\n]|    |    \p{N}  [\p{P} and ASCII signs]  GPT-2 */
RULE(chameleon) = {
    { plp_scan_chameleon_marks, NULL },
    { plp_scan_chameleon_space, NULL },
    RUNS(.set.classes = PLP_SET_N, .most = 1),
    RUNS(.set = { .classes = PLP_SET_P, .ranges = RANGES(ascii_signs) }, .most = 1),
    GPT2,
};

/* Files that say "default" rely on what llama.cpp takes that for. */
RULE(fallback) = {
    RUNS(.set = { .classes = PLP_SET_P, .ranges = RANGES(default_signs) }),
    GPT2,
    RUNS(.set.classes = PLP_SET_N),
    RUNS(.set = { .ranges = RANGES(ascii_digit) }, .least = 3, .most = 3),
};

static const plp_pretoken rules[] = {
#define PRETOKEN(name, rule, flags) { name, rule, flags },
#include "text/pretoken.def"
#undef PRETOKEN
};

const plp_pretoken *plp_pretoken_find(const char *name)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!strcmp(rules[i].name, name))
            return &rules[i];
    return NULL;
}

/* ---- the walk ------------------------------------------------------------------------------ */

plp_splitter plp_split(const plp_pretoken *rule, const uint8_t *text, size_t n)
{
    plp_splitter s = { .stages = rule->stages, .text = text, .ends = { n } };

    while (s.n_stages < PLP_MAX_STAGES && rule->stages[s.n_stages].next)
        s.n_stages++;
    return s;
}

bool plp_split_next(plp_splitter *s, size_t *from, size_t *to)
{
    if (s->at == s->ends[0])
        return false;
    for (uint32_t k = 0; k < s->n_stages; k++)
        if (s->ends[k + 1] == s->at)        /* used up: its next piece, inside the stage before's */
            s->ends[k + 1] = s->stages[k].next(s->text, s->at, s->ends[k], s->stages[k].how);
    *from = s->at;
    s->at = *to = s->ends[s->n_stages];
    return true;
}
