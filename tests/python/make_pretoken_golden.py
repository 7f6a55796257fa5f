"""Write tests/golden/pretoken.txt: where the models' own expressions cut, by the `tokenizers` engine.

    python tests/python/make_pretoken_golden.py > tests/golden/pretoken.txt
"""

import random
import sys

import tokenizers

from pretoken_rules import NAMES, PARTS, cuts, pre_tokenizer, random_text


def main() -> None:
    rng = random.Random(20240501)
    out = sys.stdout
    out.write(f"# tests/python/make_pretoken_golden.py, tokenizers {tokenizers.__version__}\n")
    out.write("# pre-tokenizer  text (UTF-8, hexadecimal)  piece lengths in bytes\n")
    for name, rule in NAMES.items():
        engine = pre_tokenizer(rule)
        texts = [random_text(rng, rule=rule) for _ in range(60)] + [a + b for a, b in zip(PARTS[:25], PARTS[-25:])]
        for text in texts:
            out.write(f"{name} {text.encode().hex()} {' '.join(map(str, cuts(rule, text, engine)))}\n")


if __name__ == "__main__":
    main()
