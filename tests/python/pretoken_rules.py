"""The pre-tokenizers of the byte-level BPE families, as their tokenizer.json files write them.

Each rule is a list of regular expressions; every stage isolates its matches inside the pieces of the
stage before. `NAMES` maps a tokenizer.ggml.pre to its rule. This is the independent statement that
text/scan.c and text/pretoken.c are compared with, run by the regular expression engine of the
`tokenizers` package.
"""

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
KANA = "[一-龥\u3040-ゟ゠-ヿ]+"
DEEPSEEK_CJK = "[一-龥ࠀ-一가-\ud7ff]+".encode("utf-16", "surrogatepass").decode("utf-16")
DEEPSEEK_LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-"
    "\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ"
    "ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+")


UNSPACED = ("[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff"
            "\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+")
DEEPSEEK_WORDS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""


def cased(short: str, numbers: str) -> str:
    return (f"{BEFORE}{UPPER}*{LOWER}+{short}|{BEFORE}{UPPER}+{LOWER}*{short}|{numbers}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACE}")


def words(numbers: str, short: str = SHORT + "|", tail: str = r"[\r\n]*") -> str:
    return rf"{short}{BEFORE}\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+{tail}|{SPACE}"


RULES = {
    "gpt2": [GPT2],
    "gpt2_digits": [r"\p{N}", GPT2],
    "llama3": [words(r"\p{N}{1,3}")],
    "minicpm5": [r"\p{N}{1,3}", words(r"\p{N}+")],
    "qwen2": [words(r"\p{N}")],
    "bailingmoe": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "ufakzeka": [words(r"\p{N}", short="")],
    "seed_coder": [rf"{SHORT}|{BEFORE}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACE}"],
    "laguna": [r"[^\n]+|[\n]+", words(r"\p{N}")],
    "qwen35": [rf"{SHORT}|{BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACE}"],
    "exaone_moe": [rf"{SHORT}|{BEFORE}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?"
                   r"|\s*[\r\n]|\s+(?!\S)|\s+"],
    "gpt4o": [cased(SHORT + "?", r"\p{N}{1,3}")],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", cased(SHORT + "?", r"\p{N}{1,3}")],
    "tekken": [cased("", r"\p{N}")],
    "youtu": ["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + KANA, cased(SHORT + "?", r"\p{N}")],
    "deepseek_llm": ["[\r\n]", DEEPSEEK_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", DEEPSEEK_CJK, r"\p{N}"],
    "deepseek_coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"],
    "deepseek3": [r"\p{N}{1,3}", KANA, DEEPSEEK_WORDS + r"[\r\n]*|" + SPACE],
    "spark": [r"\p{N}{1,3}", KANA, DEEPSEEK_WORDS + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"],
    "afmoe": [r"\p{Nd}+", r"(?=(\d{3})+(?!\d))", UNSPACED, DEEPSEEK_WORDS + r"[\r\n]*|" + SPACE],
    "k2_horizon": [words(r"\p{N}{1,3}").replace(r"\p{L}+|", "(?:\\p{L}|\\p{M}|\u200c|\u200d)+|", 1)],
    "chameleon": ["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", GPT2],
    "fallback": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "jais2": [words(r"\p{N}{1,3}").removesuffix(r"|\s+(?!\S)|\s+")
              + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")) + r"|\s{1}"],
    "kimi": [r"[\p{Han}]+|" + cased(SHORT + "?", r"\p{N}{1,3}").replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"[\r\n/]*", r"[\r\n]*")],
    "viking": [r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"],
}

# At least one name per rule that pretoken.def has; names that share a rule share the test.
NAMES = {
    "gpt-2": "gpt2", "smollm": "gpt2_digits", "starcoder": "gpt2_digits", "llama-bpe": "llama3", "minicpm5": "minicpm5", "qwen2": "qwen2",
    "bailingmoe": "bailingmoe", "ufakzeka": "ufakzeka", "seed-coder": "seed_coder", "laguna": "laguna",
    "qwen35": "qwen35", "exaone-moe": "exaone_moe", "gpt-4o": "gpt4o", "tiny_aya": "tiny_aya", "tekken": "tekken", "youtu": "youtu",
    "deepseek-llm": "deepseek_llm", "deepseek-coder": "deepseek_coder", "deepseek-v3": "deepseek3",
    "falcon": "falcon", "bloom": "bloom", "viking": "viking",
    "superbpe": "superbpe", "jais-2": "jais2", "kimi-k2": "kimi",
    "spark2_5": "spark", "afmoe": "afmoe", "k2-horizon": "k2_horizon", "chameleon": "chameleon", "default": "fallback",
}


def pre_tokenizer(rule: str):
    from tokenizers import Regex, pre_tokenizers
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(e), "isolated") for e in RULES[rule]])


def cuts(rule: str, text: str, engine=None) -> list[int]:
    """Piece lengths in UTF-8 bytes."""
    engine = engine or pre_tokenizer(rule)
    return [len(text[a:b].encode()) for _, (a, b) in engine.pre_tokenize_str(text)]


# Characters of every class that the expressions tell apart, several of some.
PARTS = (
    list("abzABZéßñДжѢΣσλ") + ["ǅ", "ʰ", "ª", "ſ", "K", "中", "文", "ひ", "カ", "ー", "한", "ㄱ", "ㄅ", "ا", "ש", "ก", "क", "ä"]
    + ["\u0301", "\u0308", "ि", "์", "\u20dd", "\ufe0f"] + list("0123456789") + ["½", "Ⅷ", "٣", "५", "①", "²"]
    + list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["…", "。", "，", "“", "’", "—", "¿", "।", "۔", "€", "＄", "￥", "©", "🦙", "😶", "‍"]
    + [" ", " ", " ", "  ", "   ", "\n", "\n", "\r", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\v", "\u200b", "\x00", "\x1c", "\u00ad"]
    + ["'s", "'S", "'T", "'re", "'Re", "'ve", "'LL", "'ll", "'m", "'d", "'ſ", "'x", "I'm", "Don't", "HELLO", "Hello", "helloWorld",
       " the", " The", " THE", "1234", " 12", " 123", "2024-01-02", "...\n", "//", "\n\n\n", " \n ", "    return", "x²", "नमस्ते"]
)


# What only these rules look at.
MORE_PARTS = {
    "superbpe": ["1234567", "123456", "12½345678", "٣٤٥٦", " a b c "],
    "jais2": [" " * n for n in (4, 5, 8, 9, 31, 513, 1025)] + [" \t" * 8, "\u3000" * 5, " \n  ", "!\n   "],
    "afmoe": ["1234567", "12½345678", "٣٤٥٦", "ไทย", "ລາວ", "ខ្មែរ", "မြန်", "ᄀ", "豈", "ﾊ", "a中b", "⼀"],
    "spark": ["\n\n", "!\n", " \n\n x", "12345", "\r\n\r\n"],
    "k2_horizon": ["\u200c", "\u200d", "می\u200cخواهم", "क्\u200dष", "\u0301", " \u0301a", "!\u200d"],
    "chameleon": ["<sentinel:12>", "<sentinel:>", "IMGIMGABCZ", "IMGIMGABCDEZ", "IMGIMGZ", "     ", "   ", "\t\t", "      x"],
    "fallback": ["$$", "`", "12345", "½½", "+=", "Ⅷ12"],
    "kimi": ["々", "〇", "⺀", "⼀", "〡", "〻", "豈", "𠀀", "中a", "a中b", "A中文B", " 中", "1〇2"],
}


def random_text(rng, most: int = 14, rule: str = "") -> str:
    parts = PARTS + 8 * MORE_PARTS.get(rule, [])
    return "".join(rng.choice(parts) for _ in range(rng.randint(1, most)))
