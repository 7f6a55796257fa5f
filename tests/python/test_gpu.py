"""
Whole models through the GPU kernels, executed by the emulator (device="emu"): the CPU's logits, to the bit.

The GPU backend keeps the kernels' contract, so nothing less than equality is asked: prompts of many tokens
and single ones, forks, reuse, rewinding, batches of several sessions, quantised blocks, restored files.
"""
import numpy as np
import pytest

from pyllama_paged import Model
from pyllama_paged.batch import step_many
from pyllama_paged.errors import PllamaError

TEXT = "the thing that is in the hand of the king " * 9


@pytest.fixture(scope="module", autouse=True)
def emulator(tiny_path):
    try:
        Model.open(tiny_path, device="emu").close()
    except PllamaError as error:
        pytest.skip(str(error))


def same(a, b):
    return a.shape == b.shape and bool((a.view(np.uint32) == b.view(np.uint32)).all())


def both(path, **options):
    return Model.open(path, device="cpu", **options), Model.open(path, device="emu", **options)


@pytest.mark.parametrize("kv", ["f16", "q8", "q4"])
@pytest.mark.parametrize("type", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q5_0"])
def test_every_tensor_type(makers, tmp_path, type, kv):
    path = makers.tiny(tmp_path / "tiny.gguf", type)
    cpu, emu = both(path, kv=kv)
    with cpu, emu:
        tokens = cpu.tokenize(TEXT)[:70]
        assert same(cpu.logits(tokens), emu.logits(tokens))
        assert same(cpu.logits(tokens, chunk=3), emu.logits(tokens, chunk=3))
        assert emu.info.device == "emu"


@pytest.mark.parametrize("kv", ["f16", "q8", "q4"])
def test_long_context(tiny_path, kv):
    cpu, emu = both(tiny_path, kv=kv, shuffle=True)
    with cpu, emu:
        tokens = (cpu.tokenize(TEXT) * 4)[:400]
        with cpu.session() as a, emu.session() as b:
            for part in (tokens[:333], tokens[333:334], tokens[334:]):
                for session in (a, b):
                    session.feed(part)
                    session.compute()
                assert same(a.logits, b.logits)


@pytest.mark.parametrize("kv", ["f16", "q8", "q4"])
def test_forks_rewinds_and_batches(tiny_path, kv):
    cpu, emu = both(tiny_path, kv=kv)
    results = []
    for model in (cpu, emu):
        with model:
            tokens = model.tokenize(TEXT)
            out = []
            with model.session() as first:
                first.sync(tokens[:45])
                first.compute()
                with first.fork() as second, model.session() as third:
                    third.sync(tokens[:40] + tokens[:9])        # shares the first blocks
                    first.feed(tokens[45:46])
                    second.feed(tokens[50:53])
                    step_many([first, second, third])
                    second.rewind(30)
                    second.feed(tokens[2:10])
                    second.compute()
                    out += [s.logits.copy() for s in (first, second, third)]
                assert model.check()
            results.append(out)
    for a, b in zip(*results):
        assert same(a, b)


def test_the_default_model_begins_alike(smol_path):
    cpu, emu = both(smol_path)
    with cpu, emu:
        tokens = cpu.tokenize("The capital of France is")[:4]
        want, got = cpu.logits(tokens), emu.logits(tokens)
    assert (want.argmax(1) == got.argmax(1)).all()
    assert same(want, got)


@pytest.mark.parametrize("device, word", [("cuda", "cuda"), ("metal", "metal"), ("abacus", "abacus")])
def test_a_device_that_is_not_there(tiny_path, device, word):
    try:
        Model.open(tiny_path, device=device).close()
    except PllamaError as error:
        text = str(error)
        assert word in text.lower() and len(text) < 300 and "\n" not in text
    else:
        pytest.skip(f"this machine has {device}")
