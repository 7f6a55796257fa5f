"""
The README's account of which models run, from the lists in the code.

    python -m models.supported            print it
    python -m models.supported --write    put it into the README, between its two marks

A test compares the README with what this prints.
"""
import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- supported models: written by `python -m models.supported --write` -->", "<!-- end of supported models -->"


def _rows(path, macro):
    """The arguments' text of each line that begins with the macro."""
    text = re.sub(r"/\*.*?\*/", "", (ROOT / "native" / path).read_text(), flags=re.S)
    return re.findall(rf"^{macro}\((.*?)\)$", text, re.M | re.S)


def architectures():
    """(name, models, since) of each row of archs.def."""
    return [re.match(r'"([^"]+)",\s*"([^"]+)",\s*"([^"]+)"', row).groups() for row in _rows("model/archs.def", "ARCH")]


def tensor_types():
    return [row.split(",")[1].strip() for row in _rows("format/quants.def", "QUANT")]


def section():
    table = [("Architecture", "Models", "Since"), ("---", "---", "---")]
    table += [(f"`{name}`", models, since) for name, models, since in architectures()]
    return "\n".join([
        BEGIN, "",
        "A GGUF file runs if its architecture and its tensors' types are among these; any other is refused with the name of",
        "what is missing. Each architecture is compared with transformers in fp32 by small models of random weights (mean KL at most 1e-5 with F32",
        "weights; 0.01 with Q8_0, but for `gemma3n` and the experts of `gemma4`, where rounding such weights to Q8_0 alone costs more; with MXFP4",
        "experts, as gpt-oss comes, below 1e-3: types with an integer form round activations to 8 bits), each type with gguf-py.", "",
        *("| " + " | ".join(row) + " |" for row in table), "",
        f"Tensor types: {', '.join(tensor_types())}.", "",
        "Tokenizers: SentencePiece's (`llama`), and byte-level BPE (`gpt2`) with the pre-tokenizers listed in",
        "`native/text/pretoken.def`; an unknown one is tokenized by GPT-2's rule, with a warning.", "",
        END])


def with_section(readme):
    """The text with the section in its place: between the marks, or at the end."""
    if BEGIN not in readme:
        return f"{readme.rstrip()}\n\n## Which models run\n\n{section()}\n"
    before, rest = readme.split(BEGIN, 1)
    return before + section() + rest.split(END, 1)[1]


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m models.supported", description=__doc__.splitlines()[1])
    parser.add_argument("--write", action="store_true", help="into the README")
    if parser.parse_args(argv).write:
        README.write_text(with_section(README.read_text()))
    else:
        print(section())


if __name__ == "__main__":
    main()
