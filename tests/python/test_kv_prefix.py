"""Shared beginnings: pinned, started from, kept on disk, damaged, removed, and what sharing saves."""
import os
import stat
import time
import warnings

import numpy as np
import pytest

from pyllama_paged import Closed, FileAccessError, InvalidArgument, Model, ModelFileError, PrefixStore
from pyllama_paged import kvfile

LINE = [(7 * i * i + 3 * i) % 300 for i in range(400)]
SYSTEM = "You are a lighthouse keeper who answers in one line and never leaves the island."


def bits(a):
    return np.asarray(a, np.float32).view(np.uint32)


@pytest.fixture
def store(tmp_path):
    return PrefixStore(tmp_path / "prefixes")


@pytest.fixture
def quiet():
    """Any warning is a failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_computed_once_and_shared_by_all(tiny):
    prefix = tiny.prefix(system=SYSTEM)
    assert prefix.reused == 0 and tiny.counters.tokens_computed == len(prefix)
    before = tiny.memory
    assert before.pinned > 0
    sessions = [prefix.session() for _ in range(10)]
    for i, session in enumerate(sessions):
        session.send(f"Number {i}", max_tokens=1)
        assert session.last_sync.kept + session.last_sync.reused >= len(prefix) - 1
    n_own = sum(len(s) for s in sessions) - 10 * (len(prefix) - 1)
    assert tiny.counters.tokens_computed <= len(prefix) + n_own
    whole = len(prefix) // 16 * 16 * tiny.info.kv_bytes_per_token
    assert prefix.n_sessions == 10 and prefix.saved >= 9 * whole
    assert tiny.prefixes == [prefix] and prefix.name.startswith("You are a lighthouse")
    prefix.unpin()
    prefix.unpin()
    assert tiny.prefixes == [] and not prefix.pinned
    with pytest.raises(Closed):
        prefix.session()
    for session in sessions:
        session.close()
    assert tiny.memory.n_blocks == 0 and tiny.check()


def test_an_answer_is_the_same_with_a_prefix(tiny, store, quiet):
    want = tiny.session(system=SYSTEM).send("Who?", max_tokens=6)
    for keep in (False, True, True):
        with tiny.prefix(system=SYSTEM, keep=keep, store=store) as prefix, prefix.session() as session:
            got = session.send("Who?", max_tokens=6)
            assert got.tokens == want.tokens and got.logprobs == want.logprobs
            assert got.stats.reused_tokens >= len(prefix) - 1


def test_tools_are_part_of_it(tiny_path, makers, tmp_path):
    from models.vocabs import CHATML

    template = "{% if tools %}<|im_start|>system\ntools: {{ tools | tojson }}<|im_end|>\n{% endif %}" + CHATML
    with Model.open(makers.tiny(tmp_path / "tools.gguf", template=template)) as model:
        tools = [{"name": "clock", "parameters": {}}]
        with model.prefix(tools=tools) as prefix, prefix.session() as session:
            assert "clock" in model.detokenize(prefix.tokens)
            session.send("Now?", max_tokens=1)
            assert session.last_sync.kept + session.last_sync.reused >= len(prefix) - 1


@pytest.mark.parametrize("n", [1, 15, 16, 17, 31, 32, 33, 48])
def test_a_prefix_and_nothing_more(tiny, n):
    def eight(session):
        stream = session.resume(max_tokens=8)
        stream.read()
        return stream.tokens

    cold = tiny.session()
    cold.sync(LINE[:n])
    want = eight(cold)
    cold.close()
    with tiny.prefix(text=LINE[:n]) as prefix:
        for _ in range(2):
            with prefix.session() as session:
                assert session.last_sync.kept + session.last_sync.reused == n - 1
                assert eight(session) == want != []


def test_what_cannot_be_a_prefix(tiny):
    for wrong in (dict(), dict(text=[]), dict(text="x", system="y")):
        with pytest.raises(InvalidArgument):
            tiny.prefix(**wrong)


# ---- on disk

@pytest.mark.parametrize("kv", ["f16", "q8", "q4"])
def test_kept_over_a_restart(tiny_path, store, kv, quiet):
    with Model.open(tiny_path, kv=kv) as model:
        with model.session() as session:
            session.sync(LINE[:150])
            want = bits(session.logits)
        prefix = model.prefix(text=LINE[:100], keep=True, store=store)
        assert prefix.reused == 0 and prefix.path.exists()
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700 and stat.S_IMODE(prefix.path.stat().st_mode) == 0o600
    with Model.open(tiny_path, kv=kv) as model:
        again = model.prefix(text=LINE[:100], keep=True, store=store)
        assert again.reused == 100 and model.counters.tokens_computed == 0, "nothing is computed after a restart"
        assert model.memory.mapped > 0 and model.memory.token_state == 0
        with model.session() as session:
            report = session.sync(LINE[:150])
            assert report.reused >= (100 if kv == "f16" else 96)
            assert (bits(session.logits) == want).all()
            assert model.check()


def test_files_of_other_models_and_formats_stay_apart(tiny_path, makers, tmp_path, store, quiet):
    other = makers.tiny(tmp_path / "other.gguf", seed=2)
    for path, kv in ((tiny_path, "f16"), (tiny_path, "q8"), (other, "f16")):
        with Model.open(path, kv=kv) as model:
            assert model.prefix(text=LINE[:64], keep=True, store=store).reused == 0
    assert len(store.entries()) == 3


def test_a_flipped_byte_costs_one_warning(tiny_path, store):
    with Model.open(tiny_path) as model:
        path = model.prefix(text=LINE[:40], keep=True, store=store).path
        with model.session() as session:
            session.sync(LINE[:60])
            want = bits(session.logits)
    good = path.read_bytes()
    random = np.random.default_rng(5)
    places = [0, 9, 20, 500, 639, 640, 800, len(good) - 1] + [int(i) for i in random.integers(0, len(good), 24)]
    with Model.open(tiny_path) as model:
        live = model.session()
        live.sync(LINE[:20])
        live_logits = bits(live.logits)
        for at in places:
            bad = bytearray(good)
            bad[at] ^= 1 << int(random.integers(8))
            path.write_bytes(bad)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                prefix = model.prefix(text=LINE[:40], keep=True, store=store)
            assert len(said) == 1 and str(path) in str(said[0].message), at
            assert path.read_bytes() == good, "built again in its place"
            with prefix, prefix.session() as session:
                session.sync(LINE[:60])
                assert (bits(session.logits) == want).all()
            assert model.check()
        assert (bits(live.logits) == live_logits).all()


def test_a_file_holds_nothing_of_others(tiny_path, tmp_path, quiet):
    """The unused places of an unfinished block were somebody else's before."""
    files = []
    for i in range(2):
        with Model.open(tiny_path) as model:
            with model.session() as other:
                other.sync([100 + i, *LINE[i:i + 200]])
                other.compute()
            files.append(model.prefix(text=LINE[:21], keep=True, store=PrefixStore(tmp_path / str(i))).path.read_bytes())
    assert files[0] == files[1]


def test_cut_foreign_and_empty_files(tiny_path, store):
    with Model.open(tiny_path) as model:
        path = model.prefix(text=LINE[:40], keep=True, store=store).path
    good = path.read_bytes()
    for bad in (b"", good[:300], good[:len(good) // 2], good + b"\0", b"GGUF" + bytes(1000)):
        path.write_bytes(bad)
        with Model.open(tiny_path) as model, pytest.warns(RuntimeWarning, match="built again"):
            model.prefix(text=LINE[:40], keep=True, store=store)
        assert path.read_bytes() == good


def test_the_least_recently_used_go_first(tiny_path, tmp_path):
    with Model.open(tiny_path) as model:
        one = model.prefix(text=LINE[:32], keep=True, store=PrefixStore(tmp_path / "p"))
        small = PrefixStore(tmp_path / "p", limit=3 * one.path.stat().st_size + 100)
        made = [one.path]
        for i in range(1, 5):
            made.append(model.prefix(text=LINE[i:i + 32], keep=True, store=small).path)
            for age, path in enumerate(reversed(made)):        # times that no clock's step blurs
                if path.exists():
                    os.utime(path, (1e9 - age, 1e9 - age))
            if i == 2:
                small.touch(made[0])
                os.utime(made[0], (1e9 + 5, 1e9 + 5))
        assert sum(p.exists() for p in made) == 3 and made[4].exists()
        huge = PrefixStore(tmp_path / "q", limit=1000)
        with pytest.warns(RuntimeWarning, match="not kept"):
            prefix = model.prefix(text=LINE[:200], keep=True, store=huge)
        assert prefix.path is None and prefix.pinned


def test_left_over_files_are_cleared_and_others_are_not(tiny, store):
    path = tiny.prefix(text=LINE[:32], keep=True, store=store).path
    dead, young, alive = (path.with_name(f"{path.name}.tmp-{pid}-0a0b0c0d") for pid in (999999, 999998, os.getpid()))
    mine = path.with_name("my notes.txt")
    for p in (dead, young, alive, mine):
        p.write_bytes(b"x")
    old = time.time() - 3600
    for p in (dead, alive, mine):
        os.utime(p, (old, old))
    assert store.tidy() == [dead]
    assert young.exists() and alive.exists() and mine.exists() and path.exists()
    assert [e.path for e in store.entries()] == [path]


def test_its_place_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.setenv("PLP_PREFIX_DIR", str(tmp_path / "here"))
    assert PrefixStore().folder == tmp_path / "here"
    monkeypatch.delenv("PLP_PREFIX_DIR")
    monkeypatch.delenv("PLP_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if os.uname().sysname == "Linux":
        assert PrefixStore().folder == tmp_path / "xdg" / "pyllama_paged" / "prefixes"
    monkeypatch.setenv("PLP_PREFIX_LIMIT", "3MiB")
    assert PrefixStore().limit == 3 << 20


# ---- a conversation in a file

def test_saved_and_resumed(tiny_path, tmp_path, quiet):
    path = tmp_path / "talk.plpkv"
    with Model.open(tiny_path) as model, model.session(system="Be brief.", when_full="shift") as session:
        session.send("One", max_tokens=5)
        session.compute()
        session.save(path)
        line, logits, messages = session.tokens, bits(session.logits), session.messages
        want = session.send("Two", max_tokens=5).tokens
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with Model.open(tiny_path) as model, model.resume(path) as session:
        assert session.tokens == line and session.messages == messages and session.when_full == "shift"
        assert (bits(session.logits) == logits).all() and model.counters.tokens_computed == 0
        assert session.send("Two", max_tokens=5).tokens == want, "an answer keeps its tokens over the file too"
        assert model.check()


def test_an_empty_conversation(tiny, tmp_path, quiet):
    path = tmp_path / "empty.plpkv"
    with tiny.session(system="Be brief.") as session:
        session.save(path)
    with tiny.resume(path) as session:
        assert len(session) == 0 and session.messages == [{"role": "system", "content": "Be brief."}]
        session.send("Hi", max_tokens=2)


def test_only_files_are_written_over(tiny, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    with tiny.session() as session:
        session.sync(LINE[:20])
        for path, what in ((tmp_path / "pipe", "device or pipe"), (tmp_path, "folder"), (f"{tmp_path}/no/where", "No such file")):
            with pytest.raises(FileAccessError, match=what):
                session.save(path)
    assert (tmp_path / "pipe").is_fifo() and sorted(tmp_path.iterdir()) == before


def test_a_stored_prefix_is_referred_to(tiny_path, store, tmp_path):
    path, whole = tmp_path / "talk.plpkv", tmp_path / "whole.plpkv"
    with Model.open(tiny_path) as model:
        prefix = model.prefix(text=LINE[:128], keep=True, store=store)
        with prefix.session() as session:
            session.feed([1, 2, 3])
            want = bits(session.logits)
            session.save(path)
            session.prefix = None
            session.save(whole)
    assert path.stat().st_size < whole.stat().st_size - 100 * 128 and kvfile.look(path).reference == str(prefix.path)
    with Model.open(tiny_path) as model, model.resume(path) as session:
        assert (bits(session.logits) == want).all() and model.counters.tokens_computed == 0
    prefix.path.unlink()
    with Model.open(tiny_path) as model, pytest.warns(RuntimeWarning, match="computed anew"), model.resume(path) as session:
        assert (bits(session.logits) == want).all()


def test_bad_session_files_harm_nobody(tiny, makers, tmp_path):
    path = tmp_path / "talk.plpkv"
    with tiny.session(system="Be brief.") as session:
        session.send("Hello there", max_tokens=8)
        session.save(path)
    live = tiny.session()
    live.sync(LINE[:50])
    want, good = bits(live.logits), path.read_bytes()
    flipped, header = bytearray(good), bytearray(good)
    flipped[-3000] ^= 4
    header[60] ^= 4
    cases = {"damaged": bytes(flipped), "header": bytes(header), "cut": good[:len(good) // 2], "empty": b"", "not a KV file": bytes(5000)}
    for word, data in cases.items():
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match=word):
            tiny.resume(path)
        assert (bits(live.logits) == want).all() and tiny.check()
    path.write_bytes(good)
    with Model.open(makers.tiny(tmp_path / "other.gguf", seed=9)) as other, pytest.raises(ModelFileError, match="another model"):
        other.resume(path)
    with pytest.raises(ModelFileError, match="session file is needed|where a session"):
        tiny.resume(tiny.prefix(text=LINE[:32], keep=True, store=PrefixStore(tmp_path)).path)
    tiny.resume(path).close()


@pytest.mark.parametrize("note", [
    b"[]", b"{", b'{"messages": 3}', b'{"known": {"a": [-1]}}', b'{"known": {"a": [999999]}}', b'{"unfinished": [1, 2]}',
    b'{"when_full": "never"}', b"[" * 100000])
def test_notes_of_strangers(tiny, tmp_path, note):
    from pyllama_paged._native import call, ffi, lib

    path = tmp_path / "s.plpkv"
    with tiny.session() as session:
        session.sync(LINE[:20])
        session.compute()
        call(lib.plp_session_set_note, session.pointer, note, len(note))
        call(lib.plp_session_save, session.pointer, os.fsencode(path), ffi.NULL)
    with pytest.raises(ModelFileError, match="note"):
        tiny.resume(path)
