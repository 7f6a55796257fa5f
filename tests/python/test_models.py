"""The generated models are what their descriptions say, read back with gguf-py."""
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type, GGUFReader
from gguf.quants import dequantize

sys.path.append(str(Path(__file__).resolve().parents[2]))                # models/ is no installed package

from models import blocks, generate, llama, tiny, vocabs                   # noqa: E402


def tensors(path):
    return {t.name: t for t in GGUFReader(path).tensors}


def values(tensor):
    return dequantize(tensor.data, tensor.tensor_type).astype(np.float32)


@pytest.mark.parametrize("name", blocks.NAMES)
def test_random_blocks_have_the_spread_asked_for(name):
    got = blocks.random_blocks(name, 40000 // blocks.block_len(name), np.random.default_rng(7), std=0.02)
    if blocks.block_len(name) == 1:
        got = got.reshape(-1)
    got = dequantize(got, Type[name]).astype(np.float32)
    assert np.isfinite(got).all()
    assert abs(got.mean()) < 0.003
    assert 0.012 < got.std() < 0.03         # FP4's scales are coarse


@pytest.mark.parametrize("name", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"])
def test_tiny(tmp_path, name):
    path = tiny.tiny(tmp_path / "tiny.gguf", name)
    again = tiny.tiny(tmp_path / "again.gguf", name)
    assert path.read_bytes() == again.read_bytes()
    found = tensors(path)
    assert set(found) == {t[0] for t in llama.tensor_shapes(tiny.TINY)}
    assert found["blk.1.ffn_down.weight"].tensor_type == Type[name]
    assert found["blk.1.attn_norm.weight"].tensor_type == Type.F32
    assert values(found["token_embd.weight"]).shape == (300, 64)
    assert len(GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()) == 300


def test_tiny_refuses_rows_that_are_no_blocks(tmp_path):
    with pytest.raises(ValueError, match="whole blocks"):
        tiny.tiny(tmp_path / "t.gguf", "TQ2_0")


def walk(path, first, n):
    """Greedy tokens of the puppet by its own arithmetic: its layer adds nothing to the embedding."""
    t = {name: values(x) for name, x in tensors(path).items()}
    out, token = [], first
    for _ in range(n):
        x = t["token_embd.weight"][token]
        x = x / np.sqrt((x * x).mean() + 1e-5) * t["output_norm.weight"]
        logits = t["output.weight"] @ x
        token = int(logits.argmax())
        out.append((token, float(logits.max()), float(np.sort(logits)[-2])))
    return out


def test_puppet_says_it(tmp_path):
    path = tiny.puppet(tmp_path / "p.gguf", [b"\xf0\x9f", b"\xa6", b"\x99", "é", " fox"])
    said = walk(path, ord("\n"), 6)
    assert [s[0] for s in said] == [258, 0xa6, 0x99, 259, 260, tiny.END]
    assert all(abs(s[1] - 71.44) < 0.01 and s[2] == 0 for s in said)
    assert GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()[260] == "Ġfox"
    for name in ("blk.0.attn_output.weight", "blk.0.ffn_down.weight"):
        assert not values(tensors(path)[name]).any()


def test_puppet_cycles_and_can_be_spoiled(tmp_path):
    path = tiny.puppet(tmp_path / "p.gguf", ["ab", "cd", "ef"], cycle=True, context=64)
    assert [s[0] for s in walk(path, 0, 7)] == [258, 259, 260, 258, 259, 260, 258]

    def spoil(weights):
        weights["output.weight"][7, 258] = np.nan
    path = tiny.puppet(tmp_path / "q.gguf", ["ab"], edit=spoil)
    assert np.isnan(values(tensors(path)["output.weight"])).sum() == 1


@pytest.mark.parametrize("say", [[], ["ab", "cd", "ab"], [tiny.END, "ab"]])
def test_puppet_refuses_what_it_cannot_say(tmp_path, say):
    with pytest.raises(ValueError):
        tiny.puppet(tmp_path / "p.gguf", say)


def test_generate_follows_the_mix(tmp_path):
    shape = llama.Shape(16, 256, 512, 4, 2, 64, 600, 4096)
    path = generate.generate(tmp_path / "g.gguf", shape, "Q4_K_M")
    found = tensors(path)
    assert found["token_embd.weight"].tensor_type == Type.Q6_K             # stands for the output matrix
    assert "output.weight" not in found
    kinds = [found[f"blk.{i}.ffn_down.weight"].tensor_type for i in range(16)]
    assert kinds.count(Type.Q6_K) == 8 and kinds.count(Type.Q4_K) == 8 and kinds[0] == kinds[15] == Type.Q6_K
    assert found["blk.3.attn_q.weight"].tensor_type == Type.Q4_K
    assert all(np.isfinite(values(t)).all() for t in found.values())
    assert 0.015 < values(found["blk.3.ffn_up.weight"]).std() < 0.025


def test_generate_falls_back_for_narrow_rows(tmp_path):
    shape = llama.Shape(1, 64, 256, 1, 1, 64, 600, 512, tied=False)
    found = tensors(generate.generate(tmp_path / "g.gguf", shape, "Q4_K_M"))
    assert found["blk.0.attn_q.weight"].tensor_type == Type.Q5_0
    assert found["blk.0.ffn_down.weight"].tensor_type == Type.Q6_K
    assert found["output.weight"].tensor_type == Type.Q8_0


def test_copied_vocabulary(tmp_path):
    source = tiny.tiny(tmp_path / "tiny.gguf")
    vocab = vocabs.copied_vocab(source, 310)
    fields = {f[0]: f[1] for f in vocab.fields}
    original = GGUFReader(source).fields
    assert vocab.n_tokens == 310 == len(fields["tokenizer.ggml.tokens"]) == len(fields["tokenizer.ggml.token_type"])
    assert fields["tokenizer.ggml.tokens"][:300] == original["tokenizer.ggml.tokens"].contents()
    assert fields["tokenizer.ggml.merges"] == original["tokenizer.ggml.merges"].contents()
    assert fields["tokenizer.chat_template"] == vocabs.CHATML
    found = {key: value for key, value, _, _ in vocabs.read_fields(source)}
    assert found == {key: f.contents() for key, f in original.items() if not key.startswith("GGUF.")}
