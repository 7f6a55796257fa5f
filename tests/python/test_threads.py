"""Several threads, signals, forks, and objects that nobody closed."""
import asyncio
import gc
import os
import threading
import time

import pytest

from pyllama_paged import Busy, Cancelled, Model

LINE = [(7 * i * i + 3 * i) % 300 for i in range(480)]


def in_thread(function):
    """Run in a thread; returns a function that waits for the result, or raises what was raised."""
    box = {}

    def body():
        try:
            box["value"] = function()
        except BaseException as problem:
            box["problem"] = problem

    thread = threading.Thread(target=body, daemon=True)
    thread.start()

    def result():
        thread.join(120)
        assert not thread.is_alive(), "it hangs"
        if "problem" in box:
            raise box["problem"]
        return box["value"]

    return result


def test_two_sessions_from_two_threads_answer_as_alone(smol):
    prompts = ["What is the capital of France?", "List three primary colors."]
    alone = [smol.session().send(p, max_tokens=10).text for p in prompts]
    together = [in_thread(lambda p=p: smol.session().send(p, max_tokens=10).text) for p in prompts * 2]
    assert [t() for t in together] == alone * 2
    assert smol.check()


def test_one_session_serves_one_thread(tiny):
    session = tiny.session()
    stream = session.complete(LINE[:10], max_tokens=20)
    next(stream)
    for act in (lambda: session.send("x"), lambda: session.feed([1]), lambda: session.rewind(0), session.compute):
        with pytest.raises(Busy):
            in_thread(act)()
    stream.read()
    in_thread(lambda: session.feed([1]))()          # nobody is reading any more


def test_threads_that_fight_over_a_session_get_busy_and_nothing_worse(tiny):
    session, outcomes = tiny.session(), []

    def act(i):
        for _ in range(40):
            try:
                session.sync(LINE[:50 + i])
                session.compute()
                outcomes.append("done")
            except Busy:
                outcomes.append("busy")

    for wait in [in_thread(lambda i=i: act(i)) for i in range(4)]:
        wait()
    assert outcomes.count("done") > 0
    session.sync(LINE[:60])
    assert (session.logits == tiny.logits(LINE[:60])[-1]).all() and tiny.check()


# ---- stopping

def test_cancel_while_the_prompt_is_read(smol):
    session = smol.session()
    line = smol.tokenize("All happy families are alike; each one is different. " * 200)[:2000]
    session.sync(line)
    timer = threading.Timer(0.05, session.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        session.compute()
    done = session.n_computed
    assert done < 2000 and session.tokens == line
    session.rewind(done)
    assert (session.logits == smol.logits(line[:done])[-1]).all()


def test_cancel_stops_an_answer_within_a_token(smol):
    session = smol.session()
    stream = session.stream("Tell me a long story.", max_tokens=400)
    seen = [next(stream), next(stream)]
    in_thread(session.cancel)()
    with pytest.raises(Cancelled):
        next(stream)
    assert stream.finish == "cancelled" and stream.text == "".join(seen)
    assert session.messages[-1]["content"] == stream.text
    assert session.send("Thank you.", max_tokens=5).text


def test_a_cancel_with_nothing_running_hits_nothing(tiny):
    session = tiny.session()
    session.cancel()
    session.feed(LINE[:40])
    session.cancel()
    session.compute()
    stream = session.resume(max_tokens=3)
    stream.read()
    session.cancel()
    assert session.resume(max_tokens=3).read() is not None


SIGINT = """
import os, signal, sys, threading, time
from pyllama_paged import Model
signal.signal(signal.SIGINT, signal.default_int_handler)     # whoever started the tests may have had it ignored
model = Model.open(sys.argv[1])
session = model.session()
line = model.tokenize("All happy families are alike. " * 900)[:4000]
session.sync(line)
threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    session.compute()
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted", session.n_computed < 4000)
print(session.send("What is the capital of France?", max_tokens=6).text == model.session().send("What is the capital of France?", max_tokens=6).text)
"""


def test_ctrl_c_leaves_a_usable_session(smol_path, script):
    assert script(SIGINT, smol_path).splitlines() == ["interrupted True", "True"]


# ---- async

def test_async_answers_side_by_side(puppet):
    model = puppet(["One", " two", " three"])

    async def main():
        sessions = [model.session() for _ in range(3)]
        answers = await asyncio.gather(*(s.asend("x") for s in sessions))
        assert [a.text for a in answers] == ["One two three"] * 3
        pieces = [p async for p in sessions[0].astream("y")]
        assert pieces == ["One", " two", " three"]
        stream = sessions[0].astream("z")
        await stream.__anext__()
        with pytest.raises(Busy):
            sessions[0].stream("w")
        await stream.aclose()
        assert sessions[0].messages[-1]["content"] == "One"

    asyncio.run(main())


def test_cancelling_the_task_stops_the_computation(smol):
    async def main():
        session = smol.session()
        task = asyncio.create_task(session.asend("Tell me a long story.", max_tokens=2000))
        await asyncio.sleep(0.2)
        task.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - began < 20
        # How far the story came is a matter of speed; a twin that takes over from there must say the same.
        twin = session.fork()
        return await session.asend("What is the capital of France?", max_tokens=6), twin.send("What is the capital of France?", max_tokens=6)

    answer, same = asyncio.run(main())
    assert answer.text == same.text and answer.text


def test_cancelling_when_a_piece_has_just_come(puppet, monkeypatch):
    """Nothing runs at that moment that could notice it; the session is free all the same."""
    model = puppet(["One", " two", " three"])

    async def main():
        session, to_thread = model.session(), asyncio.to_thread
        task = asyncio.create_task(session.asend("x"))

        async def one_piece(*args):
            piece = await to_thread(*args)
            task.cancel()
            return piece

        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "to_thread", one_piece)
            with pytest.raises(asyncio.CancelledError):
                await task
        assert session.messages[-1]["content"] == "One"
        return await session.asend("y")

    assert asyncio.run(main()).text == "One two three"


# ---- fork

@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_gets_an_error_at_once(tiny_path, script):
    out = script("""
import os, signal, sys
from pyllama_paged import Model, Forked
model = Model.open(sys.argv[1])
session = model.session()
session.feed([1, 2, 3]); session.compute()
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    problems = 0
    for act in (session.compute, lambda: session.feed([1]), lambda: model.session(), lambda: model.logits([1])):
        try:
            act()
        except Forked:
            problems += 1
    del session, model
    own = Model.open(sys.argv[1])           # a new one works
    assert own.logits([1, 2, 3]).shape[0] == 3
    os._exit(0 if problems == 4 else 1)
_, status = os.waitpid(pid, 0)
session.feed([4]); session.compute()
print("child", status, "parent", len(session))
""", tiny_path)
    assert out.split() == ["child", "0", "parent", "4"]


# ---- nobody closed them

def test_forgotten_objects_are_closed(tiny_path):
    def maps():
        with open("/proc/self/maps") as f:
            return str(tiny_path) in f.read()

    if not os.path.exists("/proc/self/maps"):
        pytest.skip("no /proc here")
    model = Model.open(tiny_path)
    session = model.session()
    session.feed(LINE[:50])
    session.compute()
    held = model.memory.n_blocks
    twin = session.fork()
    del session
    gc.collect()
    assert model.memory.n_blocks <= held
    del twin
    gc.collect()
    assert model.memory.n_blocks == 0
    assert maps()
    session = model.session()
    del model, session
    gc.collect()
    assert not maps()


def test_closing_the_model_ends_what_runs(smol_path):
    model = Model.open(smol_path)
    session = model.session()
    session.sync(model.tokenize("All happy families are alike. " * 900)[:4000])
    running = in_thread(session.compute)
    time.sleep(0.1)
    model.close()
    with pytest.raises(Exception) as ended:
        running()
    assert type(ended.value).__name__ in ("Cancelled", "Closed")
