"""
Vocabularies for made models, as the list of GGUF fields that describe them.

A field is ``(key, value, type, element type)``; a vocabulary is a list of fields and knows its size.
"""
import mmap
import struct
from dataclasses import dataclass, field

from gguf import GGUFValueType as V

NORMAL, CONTROL, UNUSED = 1, 3, 5

CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


@dataclass
class Vocab:
    n_tokens: int
    fields: list = field(default_factory=list)


def _byte_letters():
    """GPT-2's letter for each byte: printable ones are themselves, the others follow from U+0100."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, n = {}, 0
    for b in range(256):
        if b in plain:
            letters[b] = chr(b)
        else:
            letters[b] = chr(256 + n)
            n += 1
    return letters


LETTERS = _byte_letters()


def spell(piece):
    """Bytes, or text, as a piece of a byte-level vocabulary."""
    return "".join(LETTERS[b] for b in (piece.encode() if isinstance(piece, str) else piece))


def byte_vocab(n_tokens, pieces=(), merges=(), control=("<|im_start|>", "<|im_end|>"), template=CHATML, pre="gpt-2"):
    """
    256 single bytes (id = byte), then the control tokens, then ``pieces`` (text or bytes), then as
    many unused tokens as are wanting. ``merges`` are pairs of pieces. The first control token is
    BOS (never added by itself), the last is EOS.
    """
    tokens = [LETTERS[b] for b in range(256)] + list(control) + [spell(p) for p in pieces]
    kinds = [NORMAL] * 256 + [CONTROL] * len(control) + [NORMAL] * len(pieces)
    if len(tokens) > n_tokens:
        raise ValueError(f"{len(tokens)} tokens do not fit into a vocabulary of {n_tokens}")
    if len(set(tokens)) != len(tokens):
        raise ValueError("a piece is there twice, or is a single byte, which has its token already")
    kinds += [UNUSED] * (n_tokens - len(tokens))
    tokens += [f"<unused{i}>" for i in range(n_tokens - len(tokens))]
    return Vocab(n_tokens, [
        ("tokenizer.ggml.model", "gpt2", V.STRING, None),
        ("tokenizer.ggml.pre", pre, V.STRING, None),
        ("tokenizer.ggml.tokens", tokens, V.ARRAY, V.STRING),
        ("tokenizer.ggml.token_type", kinds, V.ARRAY, V.INT32),
        ("tokenizer.ggml.merges", [f"{spell(a)} {spell(b)}" for a, b in merges], V.ARRAY, V.STRING),
        ("tokenizer.ggml.bos_token_id", 256, V.UINT32, None),
        ("tokenizer.ggml.eos_token_id", 255 + len(control), V.UINT32, None),
        ("tokenizer.ggml.add_bos_token", False, V.BOOL, None),
    ] + ([("tokenizer.chat_template", template, V.STRING, None)] if template else []))


_SCALARS = {V.UINT8: "B", V.INT8: "b", V.UINT16: "H", V.INT16: "h", V.UINT32: "I", V.INT32: "i", V.FLOAT32: "f",
            V.BOOL: "?", V.UINT64: "Q", V.INT64: "q", V.FLOAT64: "d"}


def read_fields(path):
    """
    Every metadata field of a sound GGUF file. gguf's own reader makes several objects per array
    element, which for a vocabulary of 128,256 tokens takes half a gigabyte.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = 24

        def take(code, n=1):
            nonlocal at
            values = struct.unpack_from(f"<{n}{code}", data, at)
            at += struct.calcsize(f"<{n}{code}")
            return values

        def text():
            nonlocal at
            n, = take("Q")
            at += n
            return data[at - n:at].decode()

        def value(kind):
            return text() if kind == V.STRING else take(_SCALARS[kind])[0]

        magic, n_fields = data[:4], struct.unpack_from("<Q", data, 16)[0]
        if magic != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file")
        fields = []
        for _ in range(n_fields):
            key, kind, element = text(), V(take("I")[0]), None
            if kind != V.ARRAY:
                fields.append((key, value(kind), kind, None))
                continue
            element, (n,) = V(take("I")[0]), take("Q")
            if element == V.STRING:
                fields.append((key, [text() for _ in range(n)], kind, element))
            else:
                fields.append((key, list(take(_SCALARS[element], n)) if n else [], kind, element))
        return fields


def copied_vocab(path, n_tokens):
    """The vocabulary of another file, padded with unused tokens where it is smaller than ``n_tokens``."""
    fields = [f for f in read_fields(path) if f[0].startswith("tokenizer.")]
    lists = {f[0]: f[1] for f in fields}
    if "tokenizer.ggml.tokens" not in lists:
        raise ValueError(f"{path} has no vocabulary")
    n = len(lists["tokenizer.ggml.tokens"])
    more = max(n_tokens - n, 0)
    lists["tokenizer.ggml.tokens"] += [f"<unused{i}>" for i in range(more)]
    lists.get("tokenizer.ggml.token_type", []).extend([UNUSED] * more)
    lists.get("tokenizer.ggml.scores", []).extend([0.0] * more)
    return Vocab(n + more, fields)


def synthetic_vocab(n_tokens):
    """Every id a speakable piece: bytes first, then numbered words. For speed tests, where text does not matter."""
    return byte_vocab(n_tokens, pieces=[f" w{i}" for i in range(n_tokens - 258)], merges=[(" ", "w")])
