"""
Whole models through the GPU kernels, executed by the emulator (device="emu"): the CPU's logits, to the bit.

The GPU backend keeps the kernels' contract, so nothing less than equality is asked, where top-1 and a small KL would
be the bar: every architecture, prompts of many tokens and single ones, windows, experts, forks, reuse, rewinding,
batches of several sessions, quantised blocks, files and spilling, threads. What it does not run is refused at open.
"""
import threading

import numpy as np
import pytest

from pyllama_paged import InvalidArgument, Model, PrefixStore, UnsupportedModel
from pyllama_paged.batch import step_many
from pyllama_paged.errors import PllamaError


from models.architectures import CASES, N_VOCAB, golden_tokens            # noqa: E402

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


# ---- architectures

REFUSED = [name for name, case in CASES.items() if case.conv_layers or case.delta or case.n_streams]      # by what they do
WIDE = [name for name, case in CASES.items() if case.head_dim > 256]


@pytest.fixture(scope="module")
def file_of(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("gpu"), {}

    def make(name):
        if name not in made:
            made[name] = CASES[name].write(folder / f"{name}.gguf", "Q8_0")
        return made[name]
    return make


def walk(model, tokens, n_more=6):
    """Logits on the way of a prompt, a fork, a prefix hit, a rewind into a block, and a batch of all three."""
    out = []
    with model.session() as first:
        first.sync(tokens)
        out.append(first.logits)
        with first.fork() as second, model.session() as third:
            third.sync(tokens[:-5] + tokens[:3])
            second.rewind(len(tokens) - 7)
            for i in range(n_more):
                for k, session in enumerate((first, second, third)):
                    session.feed(tokens[i + k:i + k + 1])
                step_many([first, second, third])
                out += [s.logits for s in (first, second, third)]
    assert model.check() and model.memory.n_blocks == 0
    return out


@pytest.mark.parametrize("kv", ["f16", "q8", "q4"])
@pytest.mark.parametrize("name", [n for n in CASES if n not in REFUSED + WIDE])
def test_every_architecture(file_of, name, kv):
    cpu, emu = both(file_of(name), kv=kv, context=CASES[name].context_limit)
    with cpu, emu:
        tokens = golden_tokens()
        if kv == "f16":
            want, got = cpu.logits(tokens), emu.logits(tokens)
            assert want.shape == (len(tokens), N_VOCAB) and same(want, got)
        assert all(same(a, b) for a, b in zip(walk(cpu, tokens[:41]), walk(emu, tokens[:41]), strict=True))


@pytest.mark.parametrize("kv", ["f16", "q4"])
@pytest.mark.parametrize("name", ["gemma3", "gpt-oss", "mistral-window"])
def test_blocks_left_behind_a_window(file_of, name, kv):
    """Longer than the window and what is kept beyond it, so that tables have gaps."""
    cpu, emu = both(file_of(name), kv=kv)
    with cpu, emu:
        tokens = (golden_tokens() * 9)[:350]
        assert all(same(a, b) for a, b in zip(walk(cpu, tokens, 2), walk(emu, tokens, 2), strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_running_states_and_several_streams_are_refused_at_open(file_of, name):
    with pytest.raises(UnsupportedModel) as refused:
        Model.open(file_of(name), device="emu")
    said = str(refused.value)
    assert "emu" in said and CASES[name].arch in said and "cpu" in said and "\n" not in said


@pytest.mark.parametrize("name", WIDE)
def test_wide_heads_are_refused_at_open(file_of, name):
    with pytest.raises(UnsupportedModel, match=f"heads of {CASES[name].head_dim} dimensions.*emu.*256"):
        Model.open(file_of(name), device="emu")


def test_what_has_no_kernels_is_refused_at_open(tiny_path):
    with pytest.raises(PllamaError, match="emu.*blocks of 8 tokens.*16"):
        Model.open(tiny_path, device="emu", block=8)
    with pytest.raises(InvalidArgument, match="contiguous"):
        Model.open(tiny_path, device="emu", layout="contiguous")


# ---- files, spilling, threads

@pytest.mark.parametrize("kv", ["f16", "q8", "q4"])
def test_files_go_from_one_device_to_the_other(tiny_path, tmp_path, kv):
    store = PrefixStore(tmp_path)
    for here, there in (both(tiny_path, kv=kv), reversed(both(tiny_path, kv=kv))):
        with here, there:
            tokens, talk = here.tokenize(TEXT)[:75], tmp_path / "talk.plpkv"
            with here.prefix(text=tokens[:48], keep=True, store=store) as prefix, prefix.session() as session:
                session.sync(tokens)
                want = session.logits
                session.save(talk)
                session.feed(tokens[:1])
                more = session.logits
                path = prefix.path
            with there.prefix(text=tokens[:48], keep=True, store=store) as prefix, prefix.session() as session:
                assert prefix.path == path and prefix.reused == 48 and there.counters.tokens_computed == 0
                session.sync(tokens)
                assert same(session.logits, want)
            computed = there.counters.tokens_computed
            with there.resume(talk) as session:
                assert same(session.logits, want) and there.counters.tokens_computed == computed
                session.feed(tokens[:1])
                assert same(session.logits, more)
            assert there.check() and there.memory.n_blocks == 0
            path.unlink()


@pytest.mark.parametrize("kv", ["f16", "q8"])
def test_a_spilled_session_comes_back(makers, tmp_path, kv):
    """A device gives memory back by slabs of 2 MiB: blocks of a quarter of a megabyte, so that few tokens fill the budget."""
    shape = makers.Shape(n_layers=2, n_embd=64, n_ff=32, n_heads=8, n_kv_heads=8, head_dim=256, n_vocab=300, context=512)
    path = makers.tiny(tmp_path / "m.gguf", "Q8_0", shape=shape)
    tokens = [(7 * i * i + 3 * i) % 300 for i in range(200)]
    with Model.open(path, kv=kv) as cold:
        want = cold.logits(tokens[:41])[-1]
    with Model.open(path, kv=kv, device="emu", kv_budget="8MiB", reuse=False, spill_dir=tmp_path) as model:
        sessions = []
        while not model.memory.spilled:
            sessions.append(model.session())
            sessions[-1].sync(tokens[len(sessions) - 1:len(sessions) + 39])
            sessions[-1].compute()
            assert len(sessions) < 24 and model.memory.resident <= 8 << 20
        assert sessions[0].memory.spilled
        sessions[0].feed(tokens[40:41])
        assert same(sessions[0].logits, want) and model.counters.blocks_restored and model.check()


def test_blocks_come_and_go_while_another_session_computes(tiny_path, tmp_path):
    """Restoring, copying and saving blocks is done by whoever asks, during somebody else's batch."""
    with Model.open(tiny_path, device="emu") as model, Model.open(tiny_path) as cold:
        tokens, done, problems = (model.tokenize(TEXT) * 4)[:400], threading.Event(), []
        with model.session() as session:
            session.sync(tokens[1:90])
            session.compute()
            session.save(tmp_path / "talk.plpkv")
        want = cold.logits(tokens[1:90] + tokens[:1])[-1]

        def others():
            try:
                while not done.is_set():
                    with model.resume(tmp_path / "talk.plpkv") as one, model.session() as two:
                        two.sync(tokens[1:80] + tokens[:2])         # whole blocks, and the head of one more
                        one.save(tmp_path / "again.plpkv")
                        one.feed(tokens[:1])
                        if not same(one.logits, want):
                            problems.append("other logits")
            except Exception as problem:
                problems.append(problem)

        thread = threading.Thread(target=others)
        thread.start()
        try:
            with model.session() as session:
                for i in range(0, 400, 40):
                    session.feed(tokens[i:i + 40])
                    session.compute()
                got = session.logits
        finally:
            done.set()
            thread.join()
        assert not problems and same(got, cold.logits(tokens)[-1]) and model.check()


def test_samples_and_beams(tiny_path):
    cpu, emu = both(tiny_path)
    with cpu, emu:
        for options in (dict(n=3, temperature=1.0, seed=5), dict(beams=3)):
            want, got = (m.generate(TEXT[:60], max_tokens=8, **options) for m in (cpu, emu))
            assert [c.tokens for c in want] == [c.tokens for c in got] and [c.score for c in want] == [c.score for c in got]


@pytest.mark.parametrize("device, word", [("cuda", "cuda"), ("metal", "metal"), ("abacus", "abacus")])
def test_a_device_that_is_not_there(tiny_path, device, word):
    try:
        Model.open(tiny_path, device=device).close()
    except PllamaError as error:
        text = str(error)
        assert word in text.lower() and len(text) < 300 and "\n" not in text
    else:
        pytest.skip(f"this machine has {device}")
