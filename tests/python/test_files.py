"""Damaged and foreign model files: one typed exception, one sentence and exit code 2 from the command, never a crash."""
import os
import shutil
import struct

import numpy as np
import pytest

from pyllama_paged import FileAccessError, InvalidArgument, Model, ModelFileError, PllamaError, UnsupportedModel, Vocab
from pyllama_paged.cli.main import main
from pyllama_paged.gguf import File

BAD = (ModelFileError, UnsupportedModel, FileAccessError)


def refused(path, capsys, *words, kinds=BAD):
    """What both the package and the command say about a file; checks that they say it well."""
    with pytest.raises(kinds) as problem:
        Model.open(path)
    said = str(problem.value)
    assert said and "\n" not in said and os.path.basename(path) in said, said
    for word in words:
        assert word in said, (word, said)
    capsys.readouterr()
    assert main(["run", str(path), "-p", "x"]) == 2
    out = capsys.readouterr()
    assert out.out == "" and out.err.count("\n") == 1 and said[:60] in out.err
    return said


# ---- cut short

def test_cut_at_every_hundredth(smol_path, tmp_path, capsys):
    short = tmp_path / "short.gguf"
    shutil.copyfile(smol_path, short)
    size = smol_path.stat().st_size
    for percent in range(99, -1, -1):
        os.truncate(short, size * percent // 100)
        said = refused(short, capsys, kinds=ModelFileError)
        if size * percent // 100 > 1_785_664:
            assert f"{size}" in said.replace(",", ""), said


def test_a_tiny_model_cut_anywhere(tiny_path, tmp_path):
    """Every byte of the header, and the data in steps."""
    data = tiny_path.read_bytes()
    start = min(t.offset for t in File.open(tiny_path).tensors())
    short = tmp_path / "short.gguf"
    for n in [*range(0, start, 37), *range(start, len(data), 1009), len(data) - 1]:
        short.write_bytes(data[:n])
        with pytest.raises(ModelFileError):
            Model.open(short)


def test_damaged_anywhere(tiny_path, tmp_path):
    """One wrong byte: either it says what is wrong, or it runs; it never ends the process."""
    data = tiny_path.read_bytes()
    start = min(t.offset for t in File.open(tiny_path).tensors())
    rng, bad, opened = np.random.default_rng(5), tmp_path / "bad.gguf", 0
    for _ in range(300):
        spoilt = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            spoilt[rng.integers(4, start)] = rng.integers(256)
        bad.write_bytes(spoilt)
        try:
            with Model.open(bad) as model:
                opened += 1
                try:
                    with model.session() as session:
                        session.complete([1, 2, 3], max_tokens=2).read()
                        session.send("x", max_tokens=2)
                except PllamaError:
                    pass
        except PllamaError as problem:
            assert str(problem)
    assert 0 < opened < 300


# ---- wrong inside

def rewrite(path, out, *, keys=None, tensors=None, drop=(), versions=None):
    """A copy of a small GGUF file with header bytes changed in place: {key: new scalar bytes}, tensor fields by name."""
    data = bytearray(path.read_bytes())
    for key, value in (keys or {}).items():
        at = data.find(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key) + 4
        data[at:at + len(value)] = value
    for name, change in (tensors or {}).items():
        at = data.find(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name)
        n_dims = struct.unpack_from("<I", data, at)[0]
        fields = {"dims": at + 4, "type": at + 4 + 8 * n_dims, "offset": at + 8 + 8 * n_dims}
        for field, (layout, value) in change.items():
            struct.pack_into(layout, data, fields[field], *value)
    for name in drop:                                   # by renaming it
        at = data.find(struct.pack("<Q", len(name)) + name.encode()) + 8
        data[at:at + 3] = b"zzz"
    if versions is not None:
        struct.pack_into("<I", data, 4, versions)
    out.write_bytes(data)
    return out


Q = "blk.0.attn_q.weight"


@pytest.mark.parametrize("name, change, words", [
    ("version", {"versions": 99}, ["99"]),
    ("past-the-end", {"tensors": {Q: {"offset": ("<Q", [1 << 40])}}}, ["blk.0.attn_"]),
    ("overflow", {"tensors": {Q: {"offset": ("<Q", [2**64 - 32])}}}, ["blk.0.attn_"]),
    ("misaligned", {"tensors": {Q: {"offset": ("<Q", [33])}}}, [Q]),
    ("overlap", {"tensors": {Q: {"offset": ("<Q", [0])}}}, [Q]),
    ("shape", {"tensors": {Q: {"dims": ("<QQ", [32, 128])}}}, [Q]),
    ("huge", {"tensors": {Q: {"dims": ("<QQ", [1 << 60, 1 << 60])}}}, [Q]),
    ("type", {"tensors": {Q: {"type": ("<I", [999])}}}, [Q, "999"]),
    ("removed", {"tensors": {Q: {"type": ("<I", [31])}}}, [Q, "31"]),
    ("foreign", {"tensors": {Q: {"type": ("<I", [36])}}}, [Q, "36"]),
    ("missing", {"drop": [Q]}, [Q]),
    ("no-embedding", {"drop": ["token_embd.weight"]}, ["token_embd.weight"]),
    ("architecture", {"keys": {"general.architecture": struct.pack("<Q", 5) + b"xyzzy"}}, ["xyzzy"]),
    ("no-heads", {"keys": {"llama.attention.head_count": struct.pack("<I", 0)}}, ["head"]),
    ("odd-heads", {"keys": {"llama.attention.head_count": struct.pack("<I", 7)}}, []),
    ("many-layers", {"keys": {"llama.block_count": struct.pack("<I", 2**31)}}, []),
    ("no-layers", {"keys": {"llama.block_count": struct.pack("<I", 0)}}, []),
])
def test_what_does_not_fit(tiny_path, tmp_path, capsys, name, change, words):
    refused(rewrite(tiny_path, tmp_path / f"{name}.gguf", **change), capsys, *words)


def test_no_room_for_it(script, tiny_path):
    """Where the system refuses memory there is an exception, not a crash."""
    out = script("""
import resource, sys
from pyllama_paged import Model, PllamaError
def once():
    with Model.open(sys.argv[1], threads=1) as model, model.session() as session:
        session.complete([1, 2, 3] * 30, max_tokens=4).read()
once()                                      # whatever Python has to import is imported
with open("/proc/self/statm") as f:
    now = int(f.read().split()[0]) * resource.getpagesize()
outcomes = set()
for extra in range(0, 40):
    resource.setrlimit(resource.RLIMIT_AS, (now + extra * 200_000, resource.RLIM_INFINITY))
    try:
        once()
        outcomes.add("ok")
    except (PllamaError, MemoryError) as problem:
        outcomes.add("refused")
        assert str(problem) or isinstance(problem, MemoryError)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(*sorted(outcomes))
""", tiny_path)
    assert out.split() == ["ok", "refused"]


# ---- vocabularies

def test_special_ids_are_not_invented(makers, tmp_path, shared):
    source = shared / "vocabs" / "ggml-vocab-qwen2.gguf"
    data = bytearray(source.read_bytes())
    key = b"tokenizer.ggml.bos_token_id"
    at = data.find(key)
    assert at > 0
    data[at:at + len(key)] = b"tokenizer.ggml.xxx_token_id"
    copy = tmp_path / "no-bos.gguf"
    copy.write_bytes(data)
    vocab = Vocab.open(copy)
    assert vocab.info.bos is None
    assert vocab.tokenize("Hello") == vocab.tokenize("Hello", bos=True) and 11 not in vocab.tokenize("Hello", bos=True)


def test_inspect_says_that_there_is_none(tmp_path, shared, capsys):
    data = (shared / "vocabs" / "ggml-vocab-qwen2.gguf").read_bytes().replace(b"tokenizer.ggml.bos_token_id", b"tokenizer.ggml.xxx_token_id")
    (tmp_path / "no-bos.gguf").write_bytes(data)
    assert main(["inspect", str(tmp_path / "no-bos.gguf")]) == 0
    assert "no bos" in capsys.readouterr().out


def test_text_comes_back_byte_for_byte(smol):
    for text in ["Hello", " two  spaces", "🦙é\n\n\tx", "a" * 1000, "<|im_end|>", b"\x80\xc3(\x00abc", "中文字", " " * 64 + "X"]:
        data = text.encode() if isinstance(text, str) else text
        assert smol.vocab.detokenize_bytes(smol.tokenize(text)) == data
    assert smol.tokenize("<|im_end|>", control=True) == [2] and 2 not in smol.tokenize("<|im_end|>")
    assert smol.vocab.spelling(2) == "<|im_end|>" and smol.detokenize([2]) == "" and smol.vocab.ends(2)
    with pytest.raises(InvalidArgument, match="0xff"):      # never part of a character, so this vocabulary does without
        smol.tokenize(b"\xff")
    assert smol.tokenize(" " * 64 + "X") == [12427, 1703, 22754, 2273]


# ---- reading

def test_file_reader_agrees_with_gguf_py(tiny_path):
    import gguf
    ours, theirs = File.open(tiny_path), gguf.GGUFReader(tiny_path)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            want = field.contents()
            assert ours.value(key) == (pytest.approx(want) if isinstance(want, float) else want), key
    assert [(t.name, list(t.shape), t.type, t.n_bytes) for t in ours.tensors()] == \
        [(t.name, [int(d) for d in t.shape], t.tensor_type.name, int(t.n_bytes)) for t in theirs.tensors]
    assert ours.problem is None and ours.version == 3 and ours.get("no.such.key") is None
