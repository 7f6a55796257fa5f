"""Timelines and answers, on small models: what stays, what is reused, how things end."""
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pyllama_paged import Closed, ContextFull, InvalidArgument, KvBudgetExceeded, Model, NumericError, Sampling

LINE = [(7 * i * i + 3 * i) % 300 for i in range(400)]


def bits(a):
    return np.asarray(a, np.float32).view(np.uint32)


# ---- timelines

def test_sync_keeps_the_common_beginning(tiny):
    session = tiny.session()
    first = session.sync(LINE[:100])
    assert (first.kept, first.reused, first.pending, first.dropped) == (0, 0, 100, 0)
    session.compute()
    again = session.sync(LINE[:60] + [5] * 10)
    assert again.dropped == 40 and again.kept + again.reused <= 60 and again.kept + again.reused + again.pending == 70
    assert again.kept >= 59, "the common beginning was computed once"
    assert session.tokens == LINE[:60] + [5] * 10
    assert bits(session.logits).tolist() == bits(tiny.logits(LINE[:60] + [5] * 10)[-1]).tolist()


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_no_path_to_a_timeline_changes_its_logits(tiny_path, data):
    with Model.open(tiny_path) as model:
        session, want = model.session(), []
        for _ in range(data.draw(st.integers(1, 6))):
            action = data.draw(st.sampled_from(["feed", "rewind", "sync", "fork", "compute"]))
            n = data.draw(st.integers(1, 50))
            if action == "feed":
                new = LINE[n:n + data.draw(st.integers(1, 60))]
                session.feed(new)
                want += new
            elif action == "rewind":
                want = want[:max(len(want) - n, 0)]
                session.rewind(len(want))
            elif action == "sync":
                want = want[:n] + LINE[:n]
                session.sync(want)
            elif action == "fork":
                twin = session.fork()
                session.feed([1] * n)           # which must not be seen in the twin
                session.compute()
                session = twin
            else:
                session.compute()
            assert session.tokens == want
        if want:
            got = bits(session.logits)
            with Model.open(tiny_path) as cold:
                assert (got == bits(cold.logits(want)[-1])).all()
        assert model.check()


def test_a_fork_goes_its_own_way_and_costs_nothing_at_first(tiny):
    session = tiny.session()
    session.feed(LINE[:64])
    session.compute()
    before = tiny.memory
    twin = session.fork()
    assert tiny.memory.n_blocks == before.n_blocks and tiny.memory.shared_saved > before.shared_saved
    twin.feed([9])
    twin.compute()
    assert twin.tokens == LINE[:64] + [9] and session.tokens == LINE[:64]
    assert (bits(session.logits) == bits(tiny.logits(LINE[:64])[-1])).all()


def test_score_is_the_log_softmax_and_changes_nothing(tiny):
    session = tiny.session()
    session.feed(LINE[:30])
    session.compute()
    before = session.tokens, bits(session.logits).tolist()
    got = session.score(LINE[30:40])
    logits = tiny.logits(LINE[:40]).astype(np.float64)
    want = [row[t] - np.logaddexp.reduce(row) for row, t in zip(logits[29:39], LINE[30:40])]
    assert np.allclose(got, want, atol=1e-6)
    assert (session.tokens, bits(session.logits).tolist()) == before
    assert len(tiny.session().score(LINE[:10])) == 9 and tiny.session().score([1]) == []


def test_sampled_tokens_follow_the_seed(tiny):
    def draw(seed):
        session = tiny.session()
        return session.complete(LINE[:20], max_tokens=30, temperature=1.0, seed=seed)

    runs = [draw(seed) for seed in (1, 1, 2)]
    for run in runs:
        run.read()
    assert runs[0].tokens == runs[1].tokens != runs[2].tokens
    assert all(p <= 0 for p in runs[0].logprobs) and len(runs[0].logprobs) == len(runs[0].tokens)


def test_another_seed_begins_anew_and_the_same_goes_on(tiny):
    session = tiny.session()
    session.feed(LINE[:20])

    def draws(seed, n=12):
        return [session.sample(temperature=1.0, seed=seed)[0] for _ in range(n)]

    one, two, one_again, on = draws(1), draws(2), draws(1), draws(1)
    assert one == one_again and one != two and one != on


@pytest.mark.parametrize("bad", [[300], [-1], [2**31], ["a"], [1.5]])
def test_tokens_that_cannot_be(tiny, bad):
    session = tiny.session()
    session.feed(LINE[:5])
    for method in (session.feed, session.sync):
        with pytest.raises(InvalidArgument):
            method(bad)
    assert session.tokens == LINE[:5]


def test_an_empty_session_says_so(tiny):
    session = tiny.session()
    for call in (lambda: session.logits, session.sample, session.stream, lambda: session.complete(""), session.resume,
                 lambda: tiny.logits([])):
        with pytest.raises(InvalidArgument):
            call()
    assert len(session) == 0 and session.tokens == []


# ---- limits

def test_the_end_of_the_context(puppet):
    model = puppet(["a", "b", "c", "d"], cycle=True, context=64)
    session = model.session()
    answer = session.complete("xy")
    answer.read()
    assert (answer.finish, answer.context_full, len(session)) == ("length", True, 64)
    assert answer.text == ("abcd" * 16)[:62]
    session.rewind(44)
    more = session.resume(max_tokens=100)
    more.read()
    assert len(more.tokens) == 20 and len(session) == 64
    session.rewind(63)
    twin = session.fork()
    assert len(twin.resume().read()) == 1 and len(twin) == 64
    before = session.tokens
    with pytest.raises(ContextFull) as full:
        session.sync([1] * 65)
    assert (full.value.wanted, full.value.available) == (65, 64)
    assert "65" in str(full.value) and "64" in str(full.value)
    assert session.tokens == before


def test_the_budget_refuses_one_session_and_harms_no_other(smol_path):
    with Model.open(smol_path, kv_budget="4MiB") as model:          # 11 blocks, 176 tokens
        text = model.tokenize("All happy families are alike; every unhappy family is unhappy in its own way. " * 60)
        first, second = model.session(), model.session()
        first.feed(text[:80])
        first.compute()
        want = bits(first.logits)
        second.feed(text[17:167])
        with pytest.raises(KvBudgetExceeded) as refused:
            second.compute()
        assert refused.value.wanted > refused.value.available >= 0
        assert (bits(first.logits) == want).all() and second.tokens == text[17:167]
        done = second.n_computed
        first.close()
        second.compute()
        assert second.n_computed == 150 > done
        second.rewind(40)
        assert (bits(second.logits) == bits(model.logits(text[17:57])[-1])).all()
        assert model.check()


def test_a_budget_for_no_token_is_refused_at_once(smol_path, tiny_path):
    for path, least in ((smol_path, 360), (tiny_path, 256)):        # KiB: a block of pages; a slab of small blocks
        with pytest.raises(KvBudgetExceeded, match=f"at least {least} KiB") as refused:
            Model.open(path, kv_budget=(least << 10) - 1)
        assert (refused.value.wanted, refused.value.available) == (least << 10, (least << 10) - 1)
        with Model.open(path, kv_budget=least << 10) as model:
            assert len(model.logits([1])) == 1
    with Model.open(smol_path, kv_budget="360KiB") as model, model.session() as session:
        session.feed(range(17))
        with pytest.raises(KvBudgetExceeded, match="2 blocks need a budget of at least 720 KiB, and it is 360 KiB"):
            session.compute()


# ---- answers

def test_how_far_the_prompt_is_read_can_be_seen(tiny_path):
    with Model.open(tiny_path, chunk=16) as model:
        seen = []
        session = model.session()
        stream = session.complete(LINE[:40], max_tokens=3, progress=lambda *counts: seen.append(counts))
        stream.read()
        assert seen == [(16, 40), (32, 40), (40, 40)]
        session.feed(LINE[:20])
        seen.clear()
        session.compute(progress=lambda *counts: seen.append(counts))
        assert seen[-1] == (len(session), len(session)) and len(seen) == 2
        with pytest.raises(ZeroDivisionError):
            session.complete(LINE[:40], progress=lambda done, total: 1 // 0).read()
        assert session.n_computed > 60


def test_an_answer_that_can_be_gone_on_with(puppet):
    model = puppet(["One", " two", " three"])
    session = model.session()
    assert not session.unfinished
    session.send("count", max_tokens=1)
    assert session.unfinished and session.fork().unfinished
    session.resume(max_tokens=1).read()
    assert session.unfinished
    session.resume().read()
    assert not session.unfinished and session.messages[-1]["content"] == "One two three"
    for change in (lambda s: s.rewind(3), lambda s: s.feed([5]), lambda s: s.sync([5, 6]), lambda s: s.rewind_turns(), lambda s: s.complete("x", max_tokens=1).read(),
                   lambda s: s.complete("", max_tokens=1).read(), lambda s: s.messages.append({"role": "user", "content": "x"}), lambda s: s.messages.clear(),
                   lambda s: s.messages[-1].update(content=None)):
        other = model.session()
        other.send("count", max_tokens=1)
        change(other)
        said = [dict(m) for m in other.messages]
        assert not other.unfinished, "the timeline is no longer what that answer left"
        if len(other):
            other.resume(max_tokens=1).read()
        assert other.messages == said


def test_a_stream_that_outlives_its_model_says_nothing(makers, tmp_path, script):
    path = makers.puppet(tmp_path / "p.gguf", ["One", " two", " three"])
    assert script("import sys\nfrom pyllama_paged import Model\nwith Model.open(sys.argv[1]) as model:\n    stream = model.session().stream('x')\n    next(stream)\n"
                  "sys.stderr = sys.stdout\ndel stream\nprint('ok')", path) == "ok\n"
    assert script("import sys\nfrom pyllama_paged import Model\nwith Model.open(sys.argv[1]) as model:\n    stream = model.session().stream('x')\n    next(stream)\n"
                  "stream.close()\nprint(stream.finish, stream.session.messages[-1]['content'])", path) == "interrupted One\n"


CHAIN = [b"\xf0\x9f", b"\xa6", b"\x99", b"\xc3", b"\xa9", b"\xf0"]


def test_characters_that_arrive_in_parts(puppet):
    session = puppet(CHAIN).session()
    stream = session.complete("x")
    assert list(stream) == ["🦙", "é", "\ufffd"]
    assert stream.stats.answer_tokens == 7 and stream.finish == "stop"
    assert stream.text == session.model.detokenize(stream.tokens)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_stopping_inside_a_character_loses_nothing(puppet, n):
    session = puppet(CHAIN).session()
    first = session.complete("x", max_tokens=n)
    text = first.read()
    assert "\ufffd" not in text and len(first.tokens) == n
    assert text + session.resume().read() == "🦙é\ufffd"


@pytest.mark.parametrize("end, stops, text, finish", [
    (" jumps", ["own fox"], "The quick br", "stop"),
    (" jumps", ["own foy"], "The quick brown fox jumps", "stop"),
    (" jumps", ["fox jumps high"], "The quick brown fox jumps", "stop"),
    (" jumps", ["br"], "The quick ", "stop"),
    (None, ["own fox"], "The quick brown", "stop"),
])
def test_stop_strings(puppet, end, stops, text, finish):
    say = ["The quick br", "own"] + ([" fox", end] if end else [])
    session = puppet(say).session()
    stream = session.complete("x", stop=stops)
    assert "".join(stream) == stream.text == text and stream.finish == finish
    assert (stream.stop_string is None) == (text.endswith("jumps") or end is None)


def test_wrong_settings_are_refused_before_anything_happens(puppet):
    session = puppet(["a"]).session()
    for options in ({"stop": [""]}, {"stop": list("abcde")}, {"temperature": -1}, {"top_p": 2}, {"colour": 1}, {"max_tokens": -2},
                    {"temperature": float("nan")}):
        with pytest.raises(InvalidArgument):
            session.stream("hello", **options)
        assert session.messages == [], options
    assert session.send("hello", sampling=Sampling(temperature=0.01, seed=3)).text == "a"


def test_a_conversation_computes_only_what_is_new(smol):
    session = smol.session(system="Be brief.")
    session.send("Count from one to five.", max_tokens=20)
    computed = session.n_computed
    second = session.send("And back.", max_tokens=5)
    assert second.stats.reused_tokens >= computed - 1 and second.stats.dropped_tokens <= 1
    assert [m["role"] for m in session.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert (bits(session.logits) == bits(smol.logits(session.tokens)[-1])).all()


def test_leaving_an_answer_early_keeps_what_was_said(puppet):
    session = puppet(["One", " two", " three", " four"]).session()
    for piece in session.stream("count"):
        if piece == " two":
            break
    assert session.messages[-1] == {"role": "assistant", "content": "One two"}
    assert session.resume().read() == " three four"
    assert session.messages[-1]["content"] == "One two three four"
    assert session.send("again").text == "One two three four"


def test_regenerate_replaces_the_answer(tiny):
    session = tiny.session()
    first = session.send("Hi", max_tokens=12, temperature=1.0, seed=1)
    other = session.regenerate(max_tokens=12, temperature=1.0, seed=2)
    other.read()
    assert len(session.messages) == 2 and session.messages[-1]["content"] == other.text
    assert other.tokens != first.tokens
    assert other.stats.dropped_tokens > 0 and other.stats.reused_tokens > 0


def test_a_stream_that_was_never_read_does_no_harm(puppet):
    session = puppet(["a", "b"]).session()
    stream = session.stream("x")
    del stream
    assert session.messages == []
    assert session.send("y").text == "ab" and len(session.messages) == 2


# ---- numbers that are none

@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_logit_is_an_error_not_token_0(puppet, bad):
    def spoil(values):
        values["output.weight"][7, ord("x")] = bad

    model = puppet(["a", "b"], edit=spoil)
    for act in (lambda s: s.complete("x").read(), lambda s: s.complete("x", temperature=0.8, top_k=20, min_p=0.1).read(),
                lambda s: s.score("xa"), lambda s: model.logits(list(b"xa"))):
        session = model.session()
        with pytest.raises(NumericError, match=r"\b7\b"):
            act(session)
    session = model.session()
    with pytest.raises(NumericError):
        session.complete("x").read()
    session.rewind(0)
    session.feed([ord("y")])
    session.compute()
    assert session.n_computed == 1


def test_large_logits_have_finite_log_probabilities(puppet):
    model = puppet(["a", "b"], gain=100.0)
    session = model.session()
    session.feed([ord("x")])
    assert session.score([ord("a")]) == [0.0]
    assert session.score([ord("q")])[0] == pytest.approx(-1786.0, rel=1e-3)
    for temperature in (0.01, 1):
        answer = model.session().complete("x", temperature=temperature).read()
        assert answer == "ab"
    stream = model.session().complete("x", temperature=100, max_tokens=5, seed=1)
    stream.read()
    assert np.isfinite(stream.logprobs).all()


# ---- closing

def test_closed_objects_say_so(tiny_path):
    model = Model.open(tiny_path)
    session, other = model.session(), model.session()
    other.close()
    other.close()
    with pytest.raises(Closed):
        other.feed([1])
    model.close()
    model.close()
    for call in (lambda: session.feed([1]), lambda: session.stream("x"), lambda: len(session), lambda: model.session(),
                 lambda: model.memory, lambda: model.tokenize("x"), lambda: model.logits([1]), lambda: session.memory,
                 lambda: model.detokenize([1])):
        with pytest.raises(Closed):
            call()
    assert session.closed and model.closed
    session.close()


def test_options_that_cannot_be(tiny_path):
    for options in ({"kv": "f32"}, {"layout": "round"}, {"kv_budget": "much"}, {"threads": -1}, {"context": -5}, {"block": 3},
                    {"kv_budget": -1}):
        with pytest.raises(InvalidArgument):
            Model.open(tiny_path, **options)


def test_numbers_and_paths_that_c_cannot_have(tiny, tiny_path, tmp_path):
    with tiny.session() as session:
        session.feed([1, 2, 3])
        for call in (lambda: session.rewind(-1), lambda: session.rewind(2**40), lambda: session.sample(top_k=2**40), lambda: session.sample(penalty_last_n=2**31),
                     lambda: session.sample(logit_bias={2**40: 1.0}), lambda: session.sample(logit_bias={"a": 1.0}), lambda: tiny.trim(2**70),
                     lambda: Model.open(tiny_path, kv_budget="99999999999TiB"), lambda: Model.open(f"{tiny_path}\0x"),
                     lambda: session.save(f"{tmp_path}/a\0b"), lambda: tiny.resume(f"{tmp_path}/a\0b")):
            with pytest.raises(InvalidArgument):
                call()
        assert session.tokens == [1, 2, 3] and not list(tmp_path.iterdir())


def test_an_empty_timeline_finds_nothing_to_reuse(tiny):
    first = tiny.session()
    first.sync(LINE[:40])
    first.compute()
    second = tiny.session()
    report = second.sync([])
    assert (report.kept, report.reused, report.pending) == (0, 0, 0) and second.tokens == [] and second.n_computed == 0
    second.compute()
    assert tiny.check()
