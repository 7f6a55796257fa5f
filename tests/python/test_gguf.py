"""Files as they come from the network: damaged, split, or not models at all. The C checks try every byte; this is what a user sees."""
import os
import struct
import sys
from pathlib import Path

import gguf
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))            # models/ is no installed package; last, so that an installed library wins

from models import tiny                                                    # noqa: E402
from models.split import split                                             # noqa: E402
from pyllama_paged import _native as native, errors                        # noqa: E402
from pyllama_paged.gguf import File                                        # noqa: E402

SMOL = Path(os.environ.get("PLP_MODEL", ROOT / "models" / "cache" / "SmolLM2-135M-Instruct.Q4_1.gguf"))
smol = pytest.mark.skipif(not SMOL.exists(), reason=f"{SMOL} is not there")


def tensor_bytes(file):
    out = {}
    for i, t in enumerate(file.tensors()):
        data = native.ffi.new("const void **")
        native.call(native.lib.plp_file_tensor_data, file.pointer, i, data)
        out[t.name] = bytes(native.ffi.buffer(data[0], t.n_bytes))
    return out


def test_everything_equals_gguf_py(tmp_path):
    path = tiny.tiny(tmp_path / "t.gguf", "Q4_1")
    reader = gguf.GGUFReader(path)
    with File.open(path) as f:
        assert f.problem is None and f.version == 3 and f.n_bytes == path.stat().st_size
        assert f.keys() == [k for k in reader.fields if not k.startswith("GGUF.")]
        for key in f.keys():
            assert f.value(key) == reader.fields[key].contents(), key
        got, listed = tensor_bytes(f), {t.name: t for t in f.tensors()}
        for t in reader.tensors:
            assert got[t.name] == t.data.tobytes()
            assert listed[t.name].shape == tuple(t.shape) and listed[t.name].offset == t.data_offset
            assert listed[t.name].type == t.tensor_type.name


@smol
@pytest.mark.parametrize("n_bytes", [59017459, 1785665, 98362431])
def test_interrupted_download(tmp_path, n_bytes):
    if SMOL.stat().st_size != 98362432:
        pytest.skip("PLP_MODEL is another model")
    path = tmp_path / "cut.gguf"
    with SMOL.open("rb") as source, path.open("wb") as out:
        out.write(source.read(1785664))
        out.truncate(n_bytes)
    with pytest.raises(errors.ModelFileError, match=f"{n_bytes} bytes.*98362432"):
        File.open(path)
    with File.open(path, lenient=True) as f:
        assert "98362432" in f.problem
        assert f.value("llama.context_length") == 8192
        assert len(list(f.tensors())) == 272


def test_any_part_opens_the_whole(tmp_path):
    whole = tiny.tiny(tmp_path / "t.gguf", "Q8_0")
    parts = split(whole, tmp_path / "m", 5)
    with File.open(whole) as f:
        want = tensor_bytes(f)
    for part in parts:
        with File.open(part) as f:
            assert tensor_bytes(f) == want
            assert f.value("general.name") == "tiny"
    parts[3].rename(tmp_path / "away.gguf")
    with pytest.raises(errors.ModelFileError, match="part 4 of 5.*m-00004-of-00005.gguf"):
        File.open(parts[0])
    (tmp_path / "away.gguf").rename(parts[3])
    joined = tmp_path / "joined.gguf"
    joined.write_bytes(b"".join(p.read_bytes() for p in parts))
    with pytest.raises(errors.ModelFileError, match="joined.*open the first"):
        File.open(joined)
    parts[0].rename(tmp_path / "w.gguf")
    with pytest.raises(errors.ModelFileError, match="part 1 of 5.*-00001-of-00005.gguf"):
        File.open(tmp_path / "w.gguf")


@pytest.mark.parametrize("content, words", [
    (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n", "git lfs pull"),
    (b"PK\x03\x04" + bytes(60), "zip"),
    (b"", "empty"),
    (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    (b"GGUF" + struct.pack("<IQQQI", 3, 0, 1, 0, 0) + b"x", "pair 0 is empty"),
])
def test_what_it_looks_like(tmp_path, content, words):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises((errors.ModelFileError, errors.UnsupportedModel), match=words) as caught:
        File.open(path)
    assert "m.gguf" in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder(tmp_path):
    with pytest.raises(errors.ModelFileError, match="folder"):
        File.open(tmp_path)


@pytest.mark.parametrize("number, words", [(31, "removed"), (36, "BitNet"), (999, "unknown")])
def test_foreign_tensor_type(tmp_path, number, words):
    path = tiny.tiny(tmp_path / "t.gguf")
    raw = bytearray(path.read_bytes())
    name = b"blk.1.ffn_up.weight"
    at = raw.index(name) + len(name) + 4 + 16                               # behind n_dims and two dims
    assert raw[at:at + 4] == struct.pack("<I", 0)
    raw[at:at + 4] = struct.pack("<I", number)
    path.write_bytes(raw)
    with pytest.raises(errors.UnsupportedModel, match=f"blk.1.ffn_up.weight.*type {number}.*{words}"):
        File.open(path)
    with File.open(path, lenient=True) as f:
        assert words in f.problem and len(list(f.tensors())) == 20


def test_closed_file(tmp_path):
    f = File.open(tiny.tiny(tmp_path / "t.gguf"))
    f.close()
    with pytest.raises(errors.PllamaError):
        f.keys()


def test_a_thousand_bad_files_leave_nothing(tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQQI", 3, 0, 1, 0, 0) + b"x")
    descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for _ in range(1000):
        with pytest.raises(errors.ModelFileError):
            File.open(path)
    if descriptors is not None:
        assert len(os.listdir("/proc/self/fd")) == descriptors


def test_float_arrays_and_large_integers(tmp_path):
    w = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    w.add_array("f", [0.5, -1.25])
    w.add_uint64("big", 2**64 - 2)
    w.add_int8("small", -5)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    with File.open(tmp_path / "m.gguf") as f:
        assert f.value("f") == [0.5, -1.25] and f.value("small") == -5
        assert f.value("big") == 2**64                  # rounded
