"""Random texts through this library and through the `tokenizers` package, built from the same GGUF data.

The vocabularies are those of the shared folder ($PLP_SHARED, or ../shared beside the project) and the
default model's ($PLP_MODEL, or models/cache); what is not there is skipped.
"""

import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import gguf
import pytest
import tokenizers

from pretoken_rules import NAMES, RULES, cuts, pre_tokenizer, random_text
from pyllama_paged.vocab import Vocab


ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("PLP_SHARED") or ROOT.parent / "shared")
MODEL = Path(os.environ.get("PLP_MODEL") or ROOT / "models" / "cache" / "SmolLM2-135M-Instruct.Q4_1.gguf")
NORMAL, UNKNOWN, CONTROL, USER = 1, 2, 3, 4
SPACE = "\u2581"

PATHS = {name: SHARED / "vocabs" / f"ggml-vocab-{name}.gguf"
         for name in ("gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "deepseek-coder", "starcoder", "llama-spm", "phi-3")}
PATHS["smol"] = MODEL

# The control tokens that take the white space after them in Phi-3's tokenizer.json.
RSTRIP = {"<|assistant|>", "<|system|>", "<|end|>", "<|user|>", *(f"<|placeholder{i}|>" for i in range(1, 7))}


def missing(path):
    return f"reference data is missing: {path} (PLP_SHARED, PLP_MODEL)"


def raw_data(path):
    """tokenizer.ggml.*: arrays of any kind as lists."""
    fields = gguf.GGUFReader(path).fields
    return {key.removeprefix("tokenizer.ggml."): field.contents() for key, field in fields.items() if key.startswith("tokenizer.ggml.")}


def byte_level(data):
    rule = NAMES[data["pre"]]
    vocab = {}
    for i, token in enumerate(data["tokens"]):
        vocab.setdefault(token, i)
    merges = [tuple(m.split(" ", 1)) for m in data["merges"]]
    model = tokenizers.models.BPE(vocab, [m for m in merges if m[0] in vocab and m[1] in vocab and "".join(m) in vocab],
                                  ignore_merges=data["pre"] == "llama-bpe")
    twin = tokenizers.Tokenizer(model)
    split = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(e), "isolated") for e in RULES[rule]]
    twin.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        split + [tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return twin


def merges_of(data):
    """Merging by score as a list of merges: every way to make a piece, best piece first."""
    vocab = {t: i for i, t in reversed(list(enumerate(data["tokens"])))}
    words = {t: data["scores"][i] for t, i in vocab.items() if data["token_type"][i] == NORMAL}
    merges = [(-score, t[:k], t[k:]) for t, score in words.items() for k in range(1, len(t)) if t[:k] in words and t[k:] in words]
    return vocab, [(a, b) for _, a, b in sorted(merges, key=lambda m: m[0])]


def sentence_piece(data, prefix=True):
    twin = tokenizers.Tokenizer(tokenizers.models.BPE(*merges_of(data), byte_fallback=True, fuse_unk=True))
    spaces = tokenizers.normalizers.Replace(" ", SPACE)
    twin.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    if not prefix:
        twin.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\n+"), "isolated")
    return twin


def rewritten(path, source, architecture, changes):
    """The vocabulary of another file, with some of its fields changed, added or (None) left out."""
    from models.vocabs import read_fields

    writer = gguf.GGUFWriter(path, architecture)
    for key, value, kind, element in read_fields(source):
        if key.startswith("tokenizer.") and (value := changes.pop(key.removeprefix("tokenizer.ggml."), value)) is not None:
            writer.add_key_value(key, value, kind, element)
    for key, value in changes.items():
        (writer.add_array if isinstance(value, list) else writer.add_string)(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def phi4(path, source):
    """A file whose control tokens take the white space on both sides: another vocabulary, with the token that tells Phi-4 from others."""
    data = raw_data(source)
    return rewritten(path, source, "phi3", {"tokens": [*data["tokens"][:-1], "<|im_sep|>"], "token_type": [*data["token_type"][:-1], CONTROL]})


def sarvam(path, source):
    """Pieces with U+2581 for spaces, merged by a list, in a file that says "gpt2"."""
    _, merges = merges_of(raw_data(source))
    return rewritten(path, source, "llama", {"model": "gpt2", "pre": "sarvam-moe", "scores": None, "merges": [" ".join(m) for m in merges]})


MADE = {"phi-4": ("qwen2", phi4), "sarvam-moe": ("llama-spm", sarvam)}


def broken_texts():
    """Bytes of which some are no UTF-8."""
    rng = random.Random(11)
    for _ in range(200):
        cut = "é中🦙".encode()[rng.randint(0, 8):][:rng.randint(1, 4)]
        parts = [rng.choice([random_text(rng, 4).encode(), bytes(rng.choices(range(128, 241), k=rng.randint(1, 3))), cut])
                 for _ in range(rng.randint(1, 8))]
        yield b"".join(parts)


def spelled(raw, byte):
    """The text, bytes that are none of a character's through `byte`."""
    return raw.decode("utf-8", "surrogateescape").translate({0xdc00 + b: byte(b) for b in range(128, 256)})


ALPHABET = {}
for _b in range(256):               # how byte-level vocabularies spell a byte
    ALPHABET[_b] = chr(_b) if 33 <= _b <= 126 or 161 <= _b <= 172 or 174 <= _b else chr(256 + len([c for c in ALPHABET.values() if ord(c) > 255]))


def broken_ids(data, twin, raw):
    """
    Ids of any bytes: a byte that is none of a character's is a piece of text like U+FFFD (unicode.h), and no other.

    `tokenizers` takes text alone; so it is asked for the pieces of the text with U+FFFD, and for each piece's ids by its bytes; of SentencePiece's
    vocabularies, for the ids with a character that they lack, whose three bytes are then the one.
    """
    if data["model"] == "gpt2":
        text = spelled(raw, lambda b: "\ufffd")
        lengths = [len(c.encode()) for c in raw.decode("utf-8", "surrogateescape").translate({0xdc00 + b: "x" for b in range(128, 256)})]
        at, out = 0, []
        split = tokenizers.pre_tokenizers.Sequence([tokenizers.pre_tokenizers.Split(tokenizers.Regex(e), "isolated") for e in RULES[NAMES[data["pre"]]]])
        for _, (a, b) in split.pre_tokenize_str(text):
            n = sum(lengths[a:b])
            out += [token.id for token in twin.model.tokenize("".join(ALPHABET[byte] for byte in raw[at:at + n]))]
            at += n
        assert at == len(raw)
        return out
    unknown = "\U000f1234"
    three = [data["tokens"].index(f"<0x{byte:02X}>") for byte in unknown.encode()]
    rest = [data["tokens"].index(f"<0x{ord(c) - 0xdc00:02X}>") for c in raw.decode("utf-8", "surrogateescape") if 0xdc80 <= ord(c) <= 0xdcff]
    ids, out = twin.encode(spelled(raw, lambda b: unknown), add_special_tokens=False).ids, []
    while ids:
        if ids[:len(three)] == three:
            out.append(rest.pop(0))
            ids = ids[len(three):]
        else:
            out.append(ids.pop(0))
    return out


@pytest.fixture(scope="module", params=[*PATHS, *MADE])
def case(request, tmp_path_factory):
    """Our vocabulary, and per text the ids that the twin gives, without and with control tokens."""
    source, make = MADE.get(request.param, (request.param, None))
    path = PATHS[source]
    if not path.exists():
        pytest.skip(missing(path))
    data = raw_data(path)
    twin = (byte_level if data["model"] == "gpt2" else sentence_piece)(data, *([False] if request.param == "sarvam-moe" else ()))
    if make:
        path = make(tmp_path_factory.mktemp("vocab") / "made.gguf", path)
        data = raw_data(path)
    kinds = data["token_type"]
    user = [t for t, kind in zip(data["tokens"], kinds) if kind == USER]
    control = [t for t, kind in zip(data["tokens"], kinds) if kind in (CONTROL, UNKNOWN)]
    chosen = list(texts(user + control))
    known = {t for t, kind in zip(data["tokens"], kinds) if kind == NORMAL}
    missing_bytes = {b for b in range(256) if data["model"] == "gpt2" and ALPHABET[b] not in known}
    broken = [raw for raw in broken_texts() if not missing_bytes & set(raw) and not any(t.encode() in raw for t in user)]
    ids = [{raw: broken_ids(data, twin, raw) for raw in broken} if request.param not in MADE else {}]
    for added in (user, control):
        both = request.param == "phi-4" and added is control
        twin.add_tokens([tokenizers.AddedToken(t, normalized=False, lstrip=both, rstrip=both or request.param == "phi-3" and t in RSTRIP) for t in added])
        ids.append([encoding.ids for encoding in twin.encode_batch(chosen, add_special_tokens=False)])
    return Vocab.open(path), chosen, *ids


def texts(specials):
    rng = random.Random(7)
    for _ in range(200):
        yield random_text(rng, 30)
    for _ in range(40):
        yield "".join(rng.choice([random_text(rng, 6), rng.choice(specials or ["<s>"]), "<", "|"]) for _ in range(6))


def test_ids_equal(case):
    ours, chosen, _, plain, with_control = case
    for text, want, want_control in zip(chosen, plain, with_control, strict=True):
        assert ours.tokenize(text) == want, repr(text)
        assert ours.tokenize(text, control=True) == want_control, repr(text)


def test_text_comes_back(case):
    ours, chosen, *_ = case
    for text in chosen:
        assert ours.detokenize(ours.tokenize(text)) == text
        ids = ours.tokenize(text, control=True)
        if not any(map(ours.strips, ids)):
            assert ours.detokenize(ids, control=True) == text


def test_bytes_that_are_no_text(case):
    ours, _, broken, *_ = case
    for raw, want in broken.items():
        assert ours.tokenize(raw) == want, raw
        assert ours.detokenize_bytes(want) == raw
    assert not broken or sum(raw.decode("utf-8", "ignore").encode() != raw for raw in broken) > 100


def test_rendered_prompts():
    reference = SHARED / "reference" / "smollm2-135m-q4_1.greedy.json"
    if not reference.exists() or not MODEL.exists():
        pytest.skip(missing(MODEL if reference.exists() else reference))
    ours = Vocab.open(MODEL)
    for case in json.loads(reference.read_text()):
        assert ours.tokenize(case["rendered"], control=True) == case["prompt_tokens"]
        assert ours.detokenize(case["greedy_tokens"], control=True) == case["greedy_text"]


@pytest.mark.parametrize("name", NAMES)
def test_cuts(name):
    """Fresh texts for every pre-tokenizer rule, where the native checks were built."""
    folders = [os.environ.get("PLP_BUILD", ""), *map(str, ROOT.glob("build*/")), *map(str, ROOT.glob("build*/*/"))]
    program = next((p for f in folders if f and (p := shutil.which("check_pretoken", path=f))), None)
    if not program:
        pytest.skip("check_pretoken is not built")
    rng, engine = random.Random(), pre_tokenizer(NAMES[name])
    many = [random_text(rng, 40, NAMES[name]) for _ in range(300)]
    result = subprocess.run([program, "--cut", name], input="".join(t.encode().hex() + "\n" for t in many),
                            capture_output=True, text=True, check=True)
    for text, line in zip(many, result.stdout.splitlines(), strict=True):
        assert [int(n) for n in line.split()] == cuts(NAMES[name], text, engine), repr(text)


@pytest.mark.parametrize("name", PATHS)
def test_speed(name):
    """At least 5 MB/s of English, and a megabyte of one letter in under a second; of CPU time, the machine may be busy."""
    if not PATHS[name].exists():
        pytest.skip(missing(PATHS[name]))
    ours = Vocab.open(PATHS[name])
    prose = (ROOT / "docs" / "architecture.md").read_bytes()
    for text, most in ((prose, len(prose) / 5e6), (b"A" * 1_000_000, 1.0)):
        seconds = []
        while not seconds or (min(seconds) >= most and len(seconds) < 30):      # a shared machine has moments at half its speed
            time.sleep(0.1 * (len(seconds) > 3))
            began = time.thread_time()
            ours.tokenize(text)
            seconds.append(time.thread_time() - began)
        assert min(seconds) < most, f"{len(text) / min(seconds) / 1e6:.1f} MB/s"
