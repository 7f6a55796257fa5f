"""Write unicode_tables.h: the class of every code point, from Python's unicodedata.

    python gen_unicode.py OUTPUT

The classes are those that pre-tokenizers ask about (see text/unicode.h, which names them in this
order). A two-level table keeps them small: 256 code points per block, equal blocks stored once.
The output is the same under every Python from 3.10 on, until one knows more than Unicode 16.
"""

import sys
import unicodedata

# White_Space of the Unicode character database. str.isspace() is not it: that adds U+001C..U+001F.
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
               0x2028, 0x2029, 0x202F, 0x205F, 0x3000}

OTHER, UPPER, LOWER, LETTER, HAN, MARK, DIGIT, NUMBER, PUNCTUATION, SYMBOL, SPACE = range(11)
BLOCK = 256

# The letters (Lo, Lm) whose Script property is Han, which unicodedata does not tell.
HAN_LETTERS = [(0x3005, 0x3005), (0x303B, 0x303B), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFA6D), (0xFA70, 0xFAD9),
               (0x16FE3, 0x16FE3), (0x20000, 0x2A6DF), (0x2A700, 0x2B739), (0x2B740, 0x2B81D), (0x2B820, 0x2CEA1),
               (0x2CEB0, 0x2EBE0), (0x2EBF0, 0x2EE5D), (0x2F800, 0x2FA1D), (0x30000, 0x3134A), (0x31350, 0x323AF)]

# Assigned between Unicode 13 and 16, hexadecimal: so that a Python whose unicodedata is older (3.10 has
# 13) writes the same tables, and a text is cut alike whichever Python built the library.
NEWER = {
    UPPER: (
        "1C89 2C2F A7C0 A7CB-A7CC A7D0 A7D6 A7D8 A7DA A7DC 10570-1057A 1057C-1058A 1058C-10592 10594-10595 "
        "10D50-10D65"
    ),
    LOWER: (
        "1C8A 2C5F A7C1 A7CD A7D1 A7D3 A7D5 A7D7 A7D9 A7DB 10597-105A1 105A3-105B1 105B3-105B9 105BB-105BC "
        "10D70-10D85 1DF00-1DF09 1DF0B-1DF1E 1DF25-1DF2A"
    ),
    LETTER: (
        "870-887 889-88E 8B5 8C8-8C9 C5D CDD 170D 171F 1B4C 9FFD-9FFF A7F2-A7F4 105C0-105F3 10780-10785 "
        "10787-107B0 107B2-107BA 10D4A-10D4F 10D6F 10EC2-10EC4 10F70-10F81 11071-11072 11075 1123F-11240 "
        "11380-11389 1138B 1138E 11390-113B5 113B7 113D1 113D3 11740-11746 11AB0-11ABF 11BC0-11BE0 11F02 "
        "11F04-11F10 11F12-11F33 12F90-12FF0 1342F 13441-13446 13460-143FA 16100-1611D 16A70-16ABE "
        "16D40-16D6C 18CFF 1AFF0-1AFF3 1AFF5-1AFFB 1AFFD-1AFFE 1B11F-1B122 1B132 1B155 1DF0A 1E030-1E06D "
        "1E290-1E2AD 1E4D0-1E4EB 1E5D0-1E5ED 1E5F0 1E7E0-1E7E6 1E7E8-1E7EB 1E7ED-1E7EE 1E7F0-1E7FE "
        "2A6DE-2A6DF 2B735-2B739 2EBF0-2EE5D 31350-323AF"
    ),
    MARK: (
        "897-89F 8CA-8D2 C3C CF3 ECE 1715 180F 1AC1-1ACE 1DFA 10D69-10D6D 10EFC-10EFF 10F82-10F85 11070 "
        "11073-11074 110C2 11241 113B8-113C0 113C2 113C5 113C7-113CA 113CC-113D0 113D2 113E1-113E2 "
        "11F00-11F01 11F03 11F34-11F3A 11F3E-11F42 11F5A 13440 13447-13455 1611E-1612F 1CF00-1CF2D "
        "1CF30-1CF46 1E08F 1E2AE 1E4EC-1E4EF 1E5EE-1E5EF"
    ),
    DIGIT: (
        "10D40-10D49 116D0-116E3 11BF0-11BF9 11F50-11F59 16130-16139 16AC0-16AC9 16D70-16D79 1CCF0-1CCF9 "
        "1E4F0-1E4F9 1E5F1-1E5FA"
    ),
    NUMBER: (
        "1D2C0-1D2D3"
    ),
    PUNCTUATION: (
        "61D 1B4E-1B4F 1B7D-1B7F 2E53-2E5D 10D6E 10F86-10F89 113D4-113D5 113D7-113D8 116B9 11B00-11B09 11BE1 "
        "11F43-11F4F 12FF1-12FF2 16D6D-16D6F 1E5FF"
    ),
    SYMBOL: (
        "888 20C0 2427-2429 2FFC-2FFF 31E4-31E5 31EF FBC2 FD40-FD4F FDCF FDFE-FDFF 10D8E-10D8F 1CC00-1CCEF "
        "1CD00-1CEB3 1CF50-1CFC3 1D1E9-1D1EA 1F6DC-1F6DF 1F774-1F776 1F77B-1F77F 1F7D9 1F7F0 1F8B2-1F8BB "
        "1F8C0-1F8C1 1F979 1F9CC 1FA75-1FA77 1FA7B-1FA7C 1FA87-1FA89 1FA8F 1FAA9-1FAAF 1FAB7-1FABF "
        "1FAC3-1FAC6 1FACE-1FACF 1FAD7-1FADC 1FADF-1FAE9 1FAF0-1FAF8 1FBCB-1FBEF"
    ),
}


def newer() -> dict[int, int]:
    classes = {}
    for kind, ranges in NEWER.items():
        for part in ranges.split():
            first, _, last = part.partition("-")
            classes.update(dict.fromkeys(range(int(first, 16), int(last or first, 16) + 1), kind))
    return classes


def class_of(code_point: int, later: dict[int, int]) -> int:
    if code_point in WHITE_SPACE:
        return SPACE
    if any(first <= code_point <= last for first, last in HAN_LETTERS):
        return HAN
    category = unicodedata.category(chr(code_point))
    if category == "Cn":
        return later.get(code_point, OTHER)
    if category in ("Lu", "Lt"):
        return UPPER
    if category == "Ll":
        return LOWER
    if category == "Nd":
        return DIGIT
    return {"L": LETTER, "M": MARK, "N": NUMBER, "P": PUNCTUATION, "S": SYMBOL}.get(category[0], OTHER)


def main(path: str) -> None:
    index, blocks, seen, later = [], [], {}, newer()
    for start in range(0, 0x110000, BLOCK):
        block = tuple(class_of(c, later) for c in range(start, start + BLOCK))
        if block not in seen:
            seen[block] = len(blocks)
            blocks.append(block)
        index.append(seen[block])
    assert len(blocks) <= 256, "the index would need more than a byte"

    lines = ["/* Written by gen_unicode.py from Unicode 16; do not edit. */",
             f"const uint8_t plp_unicode_index[{len(index)}] = {{"]
    lines += ["    " + "".join(f"{i}," for i in index[at:at + 32]) for at in range(0, len(index), 32)]
    lines += ["};", f"const uint8_t plp_unicode_blocks[{len(blocks)}][{BLOCK}] = {{"]
    for block in blocks:
        lines.append("    {" + ",".join(map(str, block)) + "},")
    lines.append("};\n")
    with open(path, "w", encoding="ascii", newline="\n") as out:
        out.write("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1])
