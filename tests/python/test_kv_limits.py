"""At the limits: the context is full, the budget is used up, memory is wanted back; and what branches cost."""
import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

from pyllama_paged import ContextFull, InvalidArgument, KvBudgetExceeded, Model, PrefixStore

LINE = [(7 * i * i + 3 * i) % 300 for i in range(4000)]


def bits(a):
    return np.asarray(a, np.float32).view(np.uint32)


@pytest.fixture(scope="module")
def wide_path(makers, tmp_path_factory):
    """Blocks of four pages: budgets and memory can be counted in blocks."""
    shape = makers.Shape(n_layers=2, n_embd=128, n_ff=64, n_heads=2, n_kv_heads=2, head_dim=64, n_vocab=300, context=4096)
    return makers.tiny(tmp_path_factory.mktemp("wide") / "wide.gguf", shape=shape)


# ---- a full context

def test_stop_keeps_everything(puppet):
    model = puppet([bytes([c]) for c in b"abcdefgh"], context=64, cycle=True)
    with model.session() as session:
        stream = session.complete("x")
        stream.read()
        assert stream.finish == "length" and stream.context_full and len(session) == 64
        line = session.tokens
        with pytest.raises(ContextFull):
            session.feed([1])
        with pytest.raises(ContextFull) as refused:
            session.sync([1] * 65)
        assert (refused.value.wanted, refused.value.available) == (65, 64) and session.tokens == line
        session.rewind(44)
        more = session.resume()
        more.read()
        assert len(more.tokens) == 20 and session.tokens == line
        session.rewind(63)
        with session.fork() as twin:
            last = twin.resume()
            last.read()
            assert len(last.tokens) == 1 and twin.tokens == line


def test_shift_drops_the_oldest_whole_turns(tiny_path):
    with Model.open(tiny_path, context=160) as model, model.session(system="Short.", when_full="shift") as session:
        dropped, n_said = [], 0
        for i in range(12):
            answer = session.send(f"Turn number {i}", max_tokens=12, temperature=1, seed=i)
            n_said += 1
            dropped += answer.dropped_messages
            assert not answer.context_full and len(session) <= 160
            assert session.messages[0] == {"role": "system", "content": "Short."}, "the system prompt stays"
            roles = [m["role"] for m in session.messages[1:]]
            assert roles == ["user", "assistant"] * (len(roles) // 2), "only whole turns go"
        assert dropped and dropped[0]["content"] == "Turn number 0"
        assert [m for m in dropped + session.messages[1:] if m["role"] == "user"] == \
            [{"role": "user", "content": f"Turn number {i}"} for i in range(12)], "each is either there or was named"
        line = session.tokens
        session.compute()
        want = bits(model.logits(line)[-1])
        assert (bits(session.logits) == want).all(), "what is kept is computed for its new place"


def test_shift_in_the_middle_of_an_answer(puppet):
    model = puppet([bytes([c]) for c in b"abcdefghijklmnopqrstuvwxyz"], context=160, cycle=True)
    with model.session(system="S", when_full="shift") as session:
        for i in range(2):
            session.send("Hello", max_tokens=20)
        answer = session.send("Go on", max_tokens=60)
        assert answer.dropped_messages and len(answer.tokens) == 60 and answer.finish == "length"
        assert answer.text == ("abcdefghijklmnopqrstuvwxyz" * 3)[:60], "the answer goes on where it was"
        endless = session.send("For ever")
        assert endless.context_full and len(session) == 160, "one turn alone cannot shift for ever"
        assert session.messages[0]["content"] == "S"


def test_taking_turns_back(puppet):
    model = puppet(["The", " answer", " is", " this"])
    with model.session(system="S") as session:
        session.send("One")
        before = session.tokens, list(session.messages)
        session.send("Two")
        gone = session.rewind_turns()
        assert [m["content"] for m in gone][0] == "Two" and session.messages == before[1]
        line = session.tokens
        assert line[:len(before[0])] == before[0] and len(line) <= len(before[0]) + 1, "the template ends a turn with a newline"
        with pytest.raises(InvalidArgument):
            session.rewind_turns(2)


# ---- a used-up budget

def test_one_of_four_is_refused_and_the_others_do_not_notice(wide_path):
    def answers(budget):
        with Model.open(wide_path, kv_budget=budget, reuse=False) as model:
            sessions = [model.session() for _ in range(4)]
            for i, session in enumerate(sessions):
                session.sync([i, *LINE[i * 50:i * 50 + 150]])
                session.compute()
            if budget:
                greedy = sessions[3]
                before = greedy.n_computed
                greedy.feed(LINE[:1500])
                with pytest.raises(KvBudgetExceeded) as refused:
                    greedy.compute()
                assert refused.value.wanted > refused.value.available >= 0
                assert before <= greedy.n_computed < len(greedy) == 151 + 1500 and greedy.tokens[151:] == LINE[:1500]
                assert model.counters.budget_refusals > 0
            out = []
            for session in sessions[:3]:
                stream = session.resume(max_tokens=8)
                stream.read()
                out.append((stream.tokens, stream.logprobs))
            if budget:
                for session in sessions[:3]:
                    session.close()
                greedy.rewind(400)
                greedy.compute()
                with Model.open(wide_path) as cold:
                    assert (bits(greedy.logits) == bits(cold.logits(greedy.tokens)[-1])).all()
            assert model.check()
        return out

    assert answers("768KiB") == answers(None)


def test_an_idle_session_spills_and_comes_back(wide_path, tmp_path):
    with Model.open(wide_path, reuse=False) as cold:
        want = bits(cold.logits(LINE[:300] + [5])[-1])
    with Model.open(wide_path, kv_budget="640KiB", reuse=False, spill_dir=tmp_path) as model:
        idle, busy = model.session(), model.session()
        idle.sync(LINE[:300])
        idle.compute()
        busy.sync(LINE[1:400])
        busy.compute()
        assert model.memory.spilled > 0 and idle.memory.spilled == model.memory.spilled
        assert os.listdir(tmp_path) == [], "the spill file has no name"
        idle.feed([5])
        assert (bits(idle.logits) == want).all() and idle.memory.spilled == 0
        assert model.check()


def test_trim_takes_what_nobody_holds(wide_path):
    with Model.open(wide_path, kv_cache="16MiB") as model:
        with model.session() as session:
            session.sync(LINE[:320])
            session.compute()
        assert model.memory.cached >= 300 * model.info.kv_bytes_per_token
        freed = model.trim(bytes="64KiB")
        assert 64 << 10 <= freed < 256 << 10
        model.trim(1 << 40)
        assert model.memory.resident == 0


def test_the_ledger_adds_up(wide_path):
    with Model.open(wide_path, kv_cache="1MiB") as model, model.prefix(text=LINE[:100]) as prefix:
        sessions = [prefix.session() for _ in range(3)]
        for i, session in enumerate(sessions):
            session.feed(LINE[i:i + 30])
            session.compute()
        m = model.memory
        assert m.resident == m.token_state + m.reserved + m.internal + m.external + m.cached
        assert m.internal == 0 and 0 < m.pinned <= m.token_state and m.shared_saved > 0
        one = sessions[0].memory
        assert one.n_tokens == 130 and one.own + one.shared == 130 * model.info.kv_bytes_per_token


def test_half_closed_gives_half_back(script, wide_path):
    out = script("""
import sys
from pyllama_paged import Model
def rss():
    with open("/proc/self/status") as f:
        return next(int(l.split()[1]) for l in f if l.startswith("RssAnon")) * 1024
line = [(7 * i * i + 3 * i) % 300 for i in range(2000)]
with Model.open(sys.argv[1], reuse=False) as model:
    with model.session() as warm:
        warm.sync(line[:64]); warm.compute()
    base, sessions = rss(), [model.session() for _ in range(16)]
    for at in range(0, 2000, 100):              # in turn, so that everybody's blocks lie among the others'
        for s in sessions:
            s.feed(line[at:at + 100]); s.compute()
    full, kv = rss() - base, model.memory.resident
    for s in sessions[::2]: s.close()
    half = rss() - base
    for s in sessions[1::2]: s.close()
    print(kv, full, half, rss() - base)
""", wide_path)
    kv, full, half, end = map(int, out.split())
    assert full >= 0.95 * kv and full - half >= 0.45 * kv and full - end >= 0.95 * kv, out


def test_memory_pressure_is_watched(tiny_path, tmp_path):
    told = tmp_path / "memory"
    told.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    with Model.open(tiny_path, kv_cache="16MiB") as model:
        with model.session() as session:
            session.sync(LINE[:400])
            session.compute()
        assert model.memory.cached
        with model.watch_pressure("16MiB", period=0.02, path=str(told)) as watcher:
            time.sleep(0.2)
            assert watcher.trimmed == 0 and model.memory.cached
            told.write_text("some avg10=50.00 avg60=0.00 avg300=0.00 total=900000\n")
            end = time.monotonic() + 20
            while not watcher.trimmed and time.monotonic() < end:
                time.sleep(0.02)
        assert watcher.trimmed and not model.memory.cached
        with pytest.raises(InvalidArgument):
            model.watch_pressure(path=str(tmp_path / "none"))


# ---- several continuations

def test_samples_are_those_of_single_sessions(tiny):
    got = tiny.generate("The thing", n=4, max_tokens=20, temperature=1.0, seed=7)
    assert len(got) == 4 and len({tuple(c.tokens) for c in got}) > 1
    from pyllama_paged.parallel import seed_of

    for i, one in enumerate(got):
        with tiny.session() as session:
            stream = session.complete("The thing", max_tokens=20, temperature=1.0, seed=seed_of(7, i))
            stream.read()
            assert stream.tokens == one.tokens and stream.text == one.text and stream.finish == one.finish
            assert abs(sum(stream.logprobs) - one.score) < 1e-4
    assert tiny.memory.n_blocks == 0 and tiny.check()
    assert [c.tokens for c in tiny.generate("The thing", n=4, max_tokens=20, temperature=1.0, seed=7)] == [c.tokens for c in got]


def test_beams_are_the_best_there_are(tiny):
    """Against a search written down plainly, each beam computed alone."""
    width, steps, prompt = 3, 5, tiny.tokenize("An end")
    running, done = [([], 0.0)], []
    for _ in range(steps):
        options = []
        for tokens, score in running:
            row = tiny.logits(prompt + tokens)[-1].astype(np.float64)
            row -= row.max()
            row -= np.log(np.exp(row).sum())
            options += [(tokens + [t], score + row[t]) for t in range(len(row))]
        options.sort(key=lambda o: -o[1])
        done += [o for o in options[:width] if tiny.vocab.ends(o[0][-1])]
        running = [o for o in options if not tiny.vocab.ends(o[0][-1])][:width]
    want = sorted(done + running, key=lambda o: -o[1] / len(o[0]))[:width]
    got = tiny.generate(prompt, beams=width, max_tokens=steps)
    assert [c.tokens for c in got] == [tokens for tokens, _ in want]
    assert np.allclose([c.score for c in got], [score for _, score in want], atol=1e-6)
    assert tiny.memory.n_blocks == 0 and tiny.check()


def test_sharing_is_counted_in_blocks(tiny):
    prompt = LINE[:160]                         # ten whole blocks
    got = tiny.generate(prompt, n=4, max_tokens=17, temperature=1.0, seed=3)
    steps = max(len(c.tokens) for c in got)
    assert got.sharing.saved == sum(10 * (k - 1) for k in [sum(len(c.tokens) > s for c in got) for s in range(steps)] if k > 0) \
        or got.sharing.fraction > 0.5
    assert 0.5 < got.sharing.fraction < 0.75, "three of four copies of the prompt, less what each holds alone"
    wide = tiny.generate(prompt, beams=4, max_tokens=17)
    assert wide.sharing.fraction >= got.sharing.fraction


@pytest.mark.parametrize("wrong", [dict(n=0), dict(n=65), dict(beams=0), dict(n=2, beams=2), dict(beams=2, stop="x"), dict(n=2, max_tokens=-1)])
def test_what_cannot_be_generated(tiny, wrong):
    with pytest.raises(InvalidArgument):
        tiny.generate("x", **wrong)


# ---- windows

@pytest.mark.parametrize("name", ["mistral-window", "gemma2"])       # all layers windowed; every second one
def test_a_window_holds_a_window(makers, tmp_path, name):
    from models.architectures import CASES

    path = CASES[name].write(tmp_path / "window.gguf", "F32")
    # Without a cache, blocks behind the window go back; where all layers have one, the chain begins with those.
    with Model.open(path, context=4096, kv_cache="4MiB" if name == "mistral-window" else None) as model, model.session() as session:
        line, held = [t % model.info.n_vocab for t in LINE], []
        for at in range(0, 1600, 100):          # a hundred windows of 16
            session.feed(line[at:at + 100])
            session.compute()
            held.append(session.memory.n_blocks - (0 if name == "mistral-window" else (at + 100 + 15) // 16))
        assert max(held[4:]) - min(held[4:]) <= 1 and held[-1] * 16 < 500, held
        want = bits(session.logits)
        with model.session() as other:
            report = other.sync(line[:1600])
            assert report.reused >= 1584 - 16, "a window of blocks is enough to go on"
            assert (bits(other.logits) == want).all()
        assert model.check()


# ---- killed while building

KILLED = """
import sys
from pyllama_paged import Model, PrefixStore
model, store, i = Model.open(sys.argv[1]), PrefixStore(sys.argv[2]), 0
line = [(7 * i * i + 3 * i) % 300 for i in range(400)]
print("ready", flush=True)
while True:
    for path in store.folder.glob("*.plpkv"):
        path.unlink()
    model.prefix(text=line[:300], keep=True, store=store).unpin()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_killed_while_building(tiny_path, tmp_path):
    """PLP_KILLS times at a random moment: what is there then is whole or ignored, and the next process has its prefix."""
    store, random = PrefixStore(tmp_path / "store"), np.random.default_rng(11)
    with Model.open(tiny_path) as model:
        want = bits(model.logits(LINE[:320])[-1])
    whole = 0
    for _ in range(int(os.environ.get("PLP_KILLS", "6"))):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(tiny_path), str(store.folder)], stdout=subprocess.PIPE, cwd=tmp_path)
        child.stdout.readline()
        time.sleep(random.uniform(0, 0.15))
        child.kill()
        child.wait()
        child.stdout.close()
        with warnings.catch_warnings(), Model.open(tiny_path) as model:
            warnings.simplefilter("error")      # a file under its name is never a bad one
            prefix = model.prefix(text=LINE[:300], keep=True, store=store)
            whole += prefix.reused == 300
            with prefix.session() as session:
                session.sync(LINE[:320])
                assert (bits(session.logits) == want).all()
        assert prefix.path.exists()
    for path in store.folder.glob("*.tmp-*"):
        os.utime(path, (1e9, 1e9))
    store.tidy()
    assert [p.name for p in store.folder.iterdir()] == [prefix.path.name]
    print(f"{whole} times the killed process's file was used")
