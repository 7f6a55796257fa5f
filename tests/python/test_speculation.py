"""Guessing ahead changes no token, no log-probability, no ending, no block; and it happens where text repeats itself."""
import threading

import numpy as np
import pytest

from pyllama_paged import Cancelled, InvalidArgument, KvBudgetExceeded, Model

TEXT = "The mill stands by the river. The mill burned down. The mill stands by the river and the mill burned down. "


def told(model, prompt, speculate, n=1, **options):
    """What an answer is, as far as a caller can tell, and its figures."""
    with model.session(speculate=speculate) as session:
        for _ in range(n):
            with session.complete(prompt, **options) as stream:
                pieces = list(stream)
        answer = stream.answer
        line = session.tokens
        logits = session.logits.view(np.uint32).tobytes() if len(line) < model.info.context_limit else b""
        assert model.check()
        return (pieces, answer.text, answer.tokens, np.float32(answer.logprobs).tobytes(), answer.finish, answer.stop_string,
                answer.context_full, line, logits), answer.stats


def endless(model):
    """No end token is ever drawn."""
    return {i: -1e9 for i in range(model.info.n_vocab) if model.vocab.ends(i)}


def same(model, prompt, **options):
    """The figures of an answer that is the same with guesses and without."""
    plain, none = told(model, prompt, False, **options)
    guessed, stats = told(model, prompt, "always", **options)
    assert guessed == plain
    assert none.drafted_tokens == none.accepted_tokens == 0 and stats.accepted_tokens <= stats.drafted_tokens
    assert told(model, prompt, True, **options)[0] == plain
    return stats


@pytest.mark.parametrize("kv", ["f16", "q8", "q4"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"temperature": 1.5, "top_k": 40, "top_p": 0.9},
                                      {"temperature": 0.5, "repeat_penalty": 1.2, "frequency_penalty": 0.2, "presence_penalty": 0.1}],
                         ids=["greedy", "warm", "hot", "penalties"])
def test_the_same_answer(smol_path, settings, kv):
    with Model.open(smol_path, kv=kv) as model:
        stats = [same(model, TEXT, max_tokens=60, seed=seed, **settings) for seed in range(1 if not settings else 3)]
    assert sum(s.drafted_tokens for s in stats), "nothing was guessed, so nothing was shown"
    if "repeat_penalty" not in settings and settings.get("temperature", 0) < 1:
        assert sum(s.accepted_tokens for s in stats)


@pytest.mark.parametrize("options", [{}, {"kv": "q8"}, {"kv": "q4"}, {"block": 8}, {"block": 64}, {"chunk": 1},
                                     {"reuse": False}, {"layout": "contiguous"}, {"layout": "lazy"}, {"shuffle": True}, {"device": "emu"}],
                         ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items()) or "plain")
def test_the_same_answer_of_a_small_model(tiny_path, options):
    few = options.get("device") == "emu"
    with Model.open(tiny_path, **options) as model:
        prompt = [5, 6, 7, 8, 9, 10, 11, 12] * 3
        stats = [same(model, prompt, max_tokens=12 if few else 70, seed=seed, temperature=temperature, top_k=top_k)
                 for seed in range(1 if few else 5) for temperature, top_k in ((0.0, 0), (0.3, 3), (1.0, 2))]
    assert sum(s.accepted_tokens for s in stats) > 0


@pytest.mark.parametrize("name", ["mistral-window", "gemma2", "gpt-oss", "qwen3moe", "lfm2", "qwen35"])
def test_every_kind_of_layers(makers, tmp_path, name):
    """Windows keep blocks of their own; running states cannot go back, so nothing is guessed."""
    from models.architectures import CASES

    path = CASES[name].write(tmp_path / "model.gguf", "F32")
    with Model.open(path, context=512) as model:
        stats = same(model, [5, 6, 7, 8, 9, 10, 11] * 8, max_tokens=300, logit_bias=endless(model))
    assert bool(stats.drafted_tokens) == (name not in ("lfm2", "qwen35"))


def test_repetition_needs_fewer_steps(puppet):
    model = puppet(list("abcd"), {"context": 400}, cycle=True)
    before = model.counters.steps
    stats = told(model, "x", "always", max_tokens=300)[1]
    assert model.counters.steps - before < 80 and stats.accepted_tokens > 220


@pytest.mark.parametrize("n", [0, 1, 2, 9, 10, 11, 12, 13])
def test_max_tokens(puppet, n):
    assert same(puppet(list("abcd"), cycle=True), "x", max_tokens=n).answer_tokens == n


def test_the_model_ends_inside_what_was_guessed(puppet):
    stats = same(puppet(list("abcdef")), "abcdefgh abcdefgh x")
    assert stats.answer_tokens == 7 and stats.accepted_tokens >= 4


@pytest.mark.parametrize("stop", ["bca", "dab", "c", "abcdabcdabc"])
def test_stop_strings(puppet, stop):
    model = puppet(list("abcd"), cycle=True)
    same(model, "x", stop=stop)
    after = []                          # and what follows a stop
    for speculate in (False, "always"):
        with model.session(speculate=speculate) as session:
            session.complete("x", stop=stop).read()
            after.append((session.resume(max_tokens=6).read(), session.tokens))
    assert after[0] == after[1]


def test_half_characters(puppet):
    model = puppet([b"\xc3", b"\xa4", "b"], cycle=True)
    assert same(model, "x", max_tokens=40).accepted_tokens
    after = []
    for speculate in (False, "always"):     # stopped inside a character, and gone on
        with model.session(speculate=speculate) as session:
            after.append([session.complete("x", max_tokens=7).read()] + [session.resume(max_tokens=n).read() for n in (1, 1, 3, 1, 7)])
    assert after[0] == after[1] and "\u00e4" in "".join(after[0])


@pytest.mark.parametrize("context", range(40, 60))
def test_the_end_of_the_context(puppet, context):
    stats = same(puppet(list("abc"), {"context": context}, cycle=True), "x")
    assert stats.accepted_tokens and stats.prompt_tokens + stats.answer_tokens == context


def test_a_conversation_that_shifts(puppet):
    model = puppet(list("abcd"), {"context": 150}, cycle=True)
    said = []
    for speculate in (False, "always"):
        with model.session(speculate=speculate, when_full="shift") as session:
            answers = [session.send(f"say {i}", max_tokens=30) for i in range(6)]
            said.append(([a.text for a in answers], [a.finish for a in answers], session.messages, session.tokens))
    assert said[0] == said[1]
    assert sum(a.stats.accepted_tokens for a in answers)


def test_the_budget_is_reached_at_the_same_token(smol_path):
    """A guess takes no block."""
    reached = []
    for speculate in (False, "always"):
        with Model.open(smol_path, kv_budget="2MiB", reuse=False) as model, model.session(speculate=speculate) as session:
            with pytest.raises(KvBudgetExceeded):
                session.complete(TEXT, max_tokens=400, logit_bias=endless(model)).read()
            reached.append(session.tokens)
            assert model.check()
    assert reached[0] == reached[1]


@pytest.mark.parametrize("kv", ["f16", "q8"])
def test_whatever_happens_between_a_guess_and_the_next_token(tiny_path, kv):
    """Rewinding, forking, syncing, several tokens at once, other sessions' steps: each timeline has its own logits."""
    from pyllama_paged.batch import step_many

    rng, accepted = np.random.default_rng(3), 0
    with Model.open(tiny_path, kv=kv) as model, Model.open(tiny_path, kv=kv, reuse=False) as cold:
        sessions = [model.session(speculate="always") for _ in range(3)]
        for s in sessions:
            s.feed([3, 4, 5, 6] * 5)
            s.compute()
        for turn in range(400):
            s = sessions[rng.integers(3)]
            action = rng.integers(8)
            line, before = s.tokens, s._drafts()[1]
            if action == 0:
                s.rewind(max(1, len(line) - int(rng.integers(0, 20))))
            elif action == 1:
                twin = s.fork()
                assert twin.speculate == "always"
                twin.feed([int(rng.integers(3, 7))])
                twin.compute()
                sessions[rng.integers(3)] = twin
            elif action == 2:
                s.sync(line[:-1] + [3, 4, 5])
            elif action == 3:
                s.feed([3 + (len(line) + i) % 4 for i in range(int(rng.integers(1, 5)))])
            elif action == 4 and all(p.n_computed == len(p) for p in sessions) and len(set(map(id, sessions))) == 3:
                for p in sessions:
                    p.feed([3 + len(p) % 4])
                step_many(sessions)
            else:                       # what was guessed, most of the time
                s.feed([line[-4] if rng.random() < 0.8 and len(line) > 4 else 9])
            accepted += s._drafts()[1] - before
            s.compute()
            if len(s) > 200:
                s.rewind(20)
            if turn % 4 == 0:
                assert model.check()
                assert (s.logits.view(np.uint32) == cold.logits(s.tokens)[-1].view(np.uint32)).all(), turn
        assert accepted > 20


def test_a_saved_session_does_not_hold_guesses(puppet, tmp_path):
    model = puppet(list("abcd"), cycle=True)
    with model.session(speculate="always") as session:
        session.complete("x", max_tokens=20).read()
        session.save(tmp_path / "kv")
        line = session.tokens
        want = session.resume(max_tokens=20).read()
    with model.resume(tmp_path / "kv") as session:
        assert session.tokens == line and not session.speculate
        assert session.resume(max_tokens=20).read() == want


def test_cancelling(puppet):
    model = puppet(list("abcd"), cycle=True)
    want = told(model, "x", False, max_tokens=200)[0]
    with model.session(speculate="always") as session:
        stream = session.complete("x", max_tokens=200)
        for _ in range(10):
            next(stream)
        session.cancel()
        with pytest.raises(Cancelled):
            for _ in stream:
                pass
        assert stream.tokens == want[2][:len(stream.tokens)]
        rest = session.resume(max_tokens=200 - len(stream.tokens))
        rest.read()
        assert stream.tokens + rest.tokens == want[2]


def test_beside_other_threads(tiny_path):
    """Steps of several sessions are combined: then nothing is guessed, and nothing differs."""
    with Model.open(tiny_path) as model:
        want = [told(model, [5, 6, 7, 8] * 4 + [i], False, max_tokens=60)[0][2] for i in range(4)]
        got = [None] * 4

        def work(i):
            with model.session(speculate="always") as session:
                stream = session.complete([5, 6, 7, 8] * 4 + [i], max_tokens=60)
                stream.read()
                got[i] = stream.tokens

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert got == want and model.check()


def test_where_nothing_comes_true_it_stops(tiny):
    """Tokens without any order: what followed last time is no hint, and is soon not computed any more."""
    stats = told(tiny, [5], True, max_tokens=tiny.info.context_limit - 10, temperature=1000.0, logit_bias=endless(tiny))[1]
    assert stats.answer_tokens > 200 and stats.drafted_tokens <= 20


def test_settings(tiny):
    session = tiny.session()
    assert session.speculate is False
    with pytest.raises(InvalidArgument, match="speculate='often'"):
        session.speculate = "often"
    session.speculate = True
    assert session.speculate is True and session.fork().speculate is True
