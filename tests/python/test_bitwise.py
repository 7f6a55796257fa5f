"""A token's logits depend on its timeline alone: bit for bit the same however it was fed, beside whom, in which blocks."""
import numpy as np
import pytest

from pyllama_paged import Model
from pyllama_paged.batch import step_many

N = 1000


def bits(a):
    return a.view(np.uint32)


def same(a, b):
    return a.shape == b.shape and bool((bits(a) == bits(b)).all())


@pytest.fixture(scope="module")
def line(smol):
    text = " ".join(f"{i}: every line differs from the others, {i * i % 97} {chr(97 + i % 26)}." for i in range(200))
    return smol.tokenize(text)[:N]


@pytest.fixture(scope="module")
def want(smol, line):
    assert len(line) == N
    return smol.logits(line)


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 512])
def test_however_it_is_cut(smol, line, want, chunk):
    assert same(smol.logits(line, chunk=chunk), want)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_with_any_number_of_threads(smol_path, line, want, threads):
    with Model.open(smol_path, threads=threads) as model:
        assert model.info.n_threads == threads
        assert same(model.logits(line), want)


def test_with_blocks_in_random_order(smol_path, line, want):
    with Model.open(smol_path, shuffle=True) as model:
        other = model.session()                 # leaves holes behind
        other.feed(line[:200])
        other.compute()
        other.close()
        assert same(model.logits(line), want)


def test_with_other_steps_and_blocks(smol_path, line, want):
    with Model.open(smol_path, block=64, chunk=33) as model:
        got = model.logits(line)
        assert np.allclose(got, want, atol=0.02), "another block length is another order of sums, but the same model"
        assert same(got[:16], model.logits(line[:16]))


def test_beside_three_others(smol, line, want):
    sessions = [smol.session() for _ in range(4)]
    for i, session in enumerate(sessions):
        session.feed(line[:300] if i == 1 else line[i * 37:i * 37 + 250 + i])
    while len(sessions[1].tokens) > sessions[1].n_computed:
        step_many([s for s in sessions if s.n_computed < len(s)])
    assert same(sessions[1].logits, want[299])
    for token in range(300, 330):               # and token by token, the others going on too
        for session in sessions:
            session.feed([line[token]])
        step_many(sessions)
        assert same(sessions[1].logits, want[token])


def test_with_a_beginning_that_others_computed(smol, line, want):
    first = smol.session()
    first.feed(line[:200])
    first.compute()
    second = smol.session()
    report = second.sync(line[:300])
    assert report.reused >= 192
    second.compute()
    assert same(second.logits, want[299])
    second.rewind(150)
    second.feed(line[150:260])
    second.compute()
    assert same(second.logits, want[259])
    fork = first.fork()
    fork.feed(line[200:220])
    fork.compute()
    assert same(fork.logits, want[219])


@pytest.mark.parametrize("n", [1, 15, 16, 17, 31, 32, 33, 48])
def test_a_whole_prompt_that_is_there_already(smol, line, n):
    def answer(session):
        report = session.sync(line[:n])
        assert report.kept + report.reused < n
        stream = session.resume(max_tokens=8)
        stream.read()
        return stream.tokens

    session = smol.session()
    want = answer(session)
    assert want and answer(session) == want and answer(smol.session()) == want
