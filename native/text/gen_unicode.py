"""Write unicode_tables.h: the class of every code point, from Python's unicodedata.

    python gen_unicode.py OUTPUT

The classes are those that pre-tokenizers ask about (see text/unicode.h, which names them in this
order). A two-level table keeps them small: 256 code points per block, equal blocks stored once.
The output depends on the Unicode version of the Python that runs this and on nothing else.
"""

import sys
import unicodedata

# White_Space of the Unicode character database. str.isspace() is not it: that adds U+001C..U+001F.
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
               0x2028, 0x2029, 0x202F, 0x205F, 0x3000}

OTHER, UPPER, LOWER, LETTER, MARK, DIGIT, NUMBER, PUNCTUATION, SYMBOL, SPACE = range(10)
BLOCK = 256


def class_of(code_point: int) -> int:
    if code_point in WHITE_SPACE:
        return SPACE
    category = unicodedata.category(chr(code_point))
    if category in ("Lu", "Lt"):
        return UPPER
    if category == "Ll":
        return LOWER
    if category == "Nd":
        return DIGIT
    return {"L": LETTER, "M": MARK, "N": NUMBER, "P": PUNCTUATION, "S": SYMBOL}.get(category[0], OTHER)


def main(path: str) -> None:
    index, blocks, seen = [], [], {}
    for start in range(0, 0x110000, BLOCK):
        block = tuple(class_of(c) for c in range(start, start + BLOCK))
        if block not in seen:
            seen[block] = len(blocks)
            blocks.append(block)
        index.append(seen[block])
    assert len(blocks) <= 256, "the index would need more than a byte"

    lines = [f"/* Written by gen_unicode.py from Unicode {unicodedata.unidata_version}; do not edit. */",
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
