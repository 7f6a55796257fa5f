"""
What is done, and what is counted: one function a scenario, a row for every side.

Which token follows which changes no memory, so answers are fed like prompts wherever only the place of KV matters;
where time matters, tokens come one at a time.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from .churn import churn
from .lab import LLAMA, Lab, Process
from .price import price

__all__ = ["SCENARIOS"]

_MAIN = ("paged", "max", "lazy", "llama")
_OWN = 64               # tokens of a session that no other shares
_PAUSE = 0.3            # seconds


def _all(context: int, sessions: int = 1) -> dict[str, int]:
    """Tokens that each side allocates for so many sessions."""
    whole = context * sessions
    return {"paged": 0, "lazy": 0, "max": whole, "llama": whole, "unified": context, "pow2": 0, "oracle": 0}


def one_word(lab: Lab) -> None:
    """A one-word prompt and a short answer, at context limits that are never used."""
    def work(p: Process):
        p("start", id=0)
        p.must_feed(0, lab.tokens(1))
        p("decode", ids=[0], n=8)
        p.mark("answered")

    for context in (4096, 131072) if lab.quick else (4096, 32768, 131072):
        for side in _MAIN:
            lab.row("one word", side, work, key="answered", context=context, variant=f"limit {context}", reserves=_all(context)[side])


def growth(lab: Lab) -> None:
    """One conversation that grows to the limit."""
    stops = [n for n in (256, 1024, 2048, 4096, 8192) if n <= (lab.context // 2 if lab.quick else lab.context)]

    def work(p: Process):
        p("start", id=0)
        tokens, at = lab.tokens(max(stops)), 0
        for stop in stops:
            p.must_feed(0, tokens[at:stop])
            p.mark(f"{stop} tokens")
            at = stop

    for side in _MAIN:
        lab.row("growth", side, work, key=f"{stops[-1]} tokens", reserves=_all(lab.context)[side])


def sessions(lab: Lab) -> None:
    """Sessions that begin with the same system prompt."""
    counts = (1, 4, 8) if lab.quick else (1, 2, 4, 8, 16, 32)
    for system in (341,) if lab.quick else (80, 341, 1000):
        def work(p: Process, system=system, counts=counts):
            opened = 0
            for n in counts:
                while opened < n:
                    reserve = {"pow2": system + _OWN // 2 + _pow2(_OWN // 2), "oracle": system + _OWN}.get(p.side, 0)
                    p("start", id=opened, reserve=reserve)
                    p.must_feed(opened, lab.tokens(system) + lab.tokens(_OWN, seed=1 + opened))
                    opened += 1
                p.mark(f"{n} sessions")

        for side in ("paged", "max", "pow2", "oracle", "lazy"):
            lab.row("sessions", side, work, key=f"{counts[-1]} sessions", variant=f"system {system}", sessions=counts[-1],
                    reserves=_all(lab.context, counts[-1])[side])
        for side in LLAMA:      # its cache is made for a number of sequences: the largest stands for the row
            def shared(p: Process, system=system, n=counts[-1]):
                """As its server does with one unified cache: the system prompt computed once, its cells shared."""
                p("start", id=0)
                p.must_feed(0, lab.tokens(system))
                for i in range(1, n):
                    p("fork", id=0, to=i)
                for i in range(n):
                    p.must_feed(i, lab.tokens(_OWN, seed=1 + i))
                p.mark(f"{n} sessions")

            def apart(p: Process, system=system, n=counts[-1]):
                for i in range(n):
                    p("start", id=i)
                    p.must_feed(i, lab.tokens(system) + lab.tokens(_OWN, seed=1 + i))
                p.mark(f"{n} sessions")

            lab.row("sessions", side, shared if side == "unified" else apart, key=f"{counts[-1]} sessions", variant=f"system {system}",
                    sessions=counts[-1], reserves=_all(lab.context, counts[-1])[side])


def _pow2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def forks(lab: Lab) -> None:
    """Parallel samples and beam search: what sharing saves, by the paper's measure; other sides hold every branch whole."""
    for name, n_in, n_out in (("Alpaca-like", 19, 58),) if lab.quick else (("Alpaca-like", 19, 58), ("ShareGPT-like", 161, 338)):
        for kind in ("samples", "beams"):
            for width in (2, 4, 6):
                def search(p: Process, kind=kind, width=width, n_in=n_in, n_out=n_out):
                    p("start", id=0)
                    p.must_feed(0, lab.tokens(n_in))
                    before = p.mark("prompt")["ledger"]["resident"]
                    found = p(kind, id=0, width=width, n=n_out)
                    p.mark("searched")
                    return {"saving": found["saving"], "saving_at_end": found["saving_at_end"], "searched_bytes": found["most_resident"] - before,
                            "steps": found["steps"]}

                def whole(p: Process, width=width, n_in=n_in, n_out=n_out):
                    for i in range(width):
                        p("start", id=i)
                        p.must_feed(i, lab.tokens(n_in) + lab.tokens(n_out, seed=i))
                    p.mark("searched")

                def copied(p: Process, width=width, n_in=n_in, n_out=n_out):
                    p("start", id=0)
                    p.must_feed(0, lab.tokens(n_in))
                    for i in range(1, width):
                        p("fork", id=0, to=i)
                    p("decode", ids=list(range(width)), n=n_out)
                    p.mark("searched")

                variant = f"{name} {kind} {width}"
                lab.row("forks", "paged", search, key="searched", variant=variant, sessions=width)
                if width == 6 or not lab.quick:
                    for side, work in (("max", whole), ("lazy", whole), ("llama", copied if kind == "samples" else whole), ("unified", copied)):
                        if kind == "samples" or side != "unified":
                            lab.row("forks", side, work, key="searched", variant=variant, sessions=width,
                                    reserves=_all(lab.context, width)[side])


def give_back(lab: Lab) -> None:
    """Eight sessions that grew in turns; every second one closes, then the rest."""
    n, length, turn = 8, 256 if lab.quick else 512, 64

    def work(p: Process):
        for i in range(n):
            p("start", id=i)
        for at in range(0, length, turn):
            for i in range(n):
                p.must_feed(i, lab.tokens(length, seed=i)[at:at + turn])
        p.mark("all open")
        for first, mark in ((0, "half closed"), (1, "all closed")):
            time.sleep(_PAUSE)          # so that the plot over time has a step for each
            for i in range(first, n, 2):
                p("end", id=i)
            p.mark(mark)
        time.sleep(_PAUSE)

    for side in _MAIN:
        lab.row("give back", side, work, key="all open", sessions=n, reserves=_all(lab.context, n)[side])


def restart(lab: Lab) -> None:
    """A system prompt kept on disk: the first answer after a restart, and several processes that hold it at once."""
    n, question, together = min(1000, lab.context // 2), 16, 3
    folder = tempfile.TemporaryDirectory(prefix="pyllama-bench-")
    prefix = lab.tokens(n)
    ask = lab.tokens(question, seed=9)

    def file(side: str) -> str:
        return str(Path(folder.name) / f"{side}.prefix")

    def work(p: Process):
        store = p.side in ("paged", "llama")
        p("start", id=0)
        cold = p.must_feed(0, prefix) + p.must_feed(0, ask)
        p.mark("cold")
        out = {"cold_seconds": cold}
        if not store:
            return out
        p("start", id=1)
        p.must_feed(1, prefix)
        out["save_seconds"] = p("save", id=1, n=n, path=file(p.side))["seconds"]
        out["file_bytes"] = Path(file(p.side)).stat().st_size
        with ExitStack() as stack:
            others = [stack.enter_context(Process(p.side, lab.peer)) for _ in range(together)]
            for other in others:
                other("hello")
                time.sleep(0.05)
                other.mark("launched")
                other("open", model=lab.path, threads=lab.threads, context=lab.context, sessions=2)
                start = time.perf_counter()
                other("start", id=0)
                other("load", path=file(p.side), id=0)
                if p.side == "paged":
                    fed = other.feed(0, prefix + ask)
                    out["reused"] = fed["reused"]
                else:
                    other.must_feed(0, ask)
                out.setdefault("restart_seconds", []).append(time.perf_counter() - start)
            for other in others:
                other.mark("holding")
            for measure in ("pss", "uss", "anonymous"):
                if measure in others[0].marks["holding"]:
                    out[f"together_{measure}"] = sum(o.marks["holding"][measure] - o.marks["launched"][measure] for o in others)
        return out

    with folder:
        for side in _MAIN:
            lab.row("restart", side, work, key="cold", sessions=2, reserves=_all(lab.context, 2)[side] * (together + 1 if side == "llama" else 1))


def budget(lab: Lab) -> None:
    """The limit, hit on purpose: how many sessions fit, who is refused, and whether the others live on."""
    length = 256
    room = 8 * length

    def work(p: Process):
        held = 0
        answer = {"refused": False}
        while held < 12 and not answer["refused"]:
            p("start", id=held)
            answer = p.feed(held, lab.tokens(length, seed=held))
            held += not answer["refused"]
        out = {"fit": held, "refused": answer["refused"], "error_type": answer.get("error_type", "")}
        p.mark("full")
        if answer["refused"] and held:
            p("end", id=0)
            if held > 1:
                p("decode", ids=[1], n=1)           # an error here ends the run: nobody may be harmed
                out["others_go_on"] = True
            rest = lab.tokens(length, seed=held)[answer["computed"]:][:length // 2]
            out["refused_goes_on"] = not p.feed(held, rest)["refused"]
        return out

    context = room // 2         # two reservations fit
    for side in ("paged", "max", "lazy", "unified"):
        options = {"budget": lab.kv(room)} if side not in LLAMA else {}
        lab.row("budget", side, work, key="full", sessions=13, context=room if side in LLAMA else context, **options)


def formats(lab: Lab) -> None:
    """KV formats: bytes, and what they cost or gain at depth."""
    depth = min(1024 if lab.quick else 4096, lab.context // 2)

    def work(p: Process):
        p("start", id=0)
        seconds = p.must_feed(0, lab.tokens(depth))
        steps = p("decode", ids=[0], n=32)["steps"]
        p.mark("deep")
        return {"prefill_seconds": seconds, "steps": steps}

    for kv in ("f16", "q8", "q4"):
        for side in ("paged", "llama"):
            lab.row("formats", side, work, key="deep", variant=kv, reserves=_all(lab.context)[side], kv=kv)


def life(lab: Lab) -> None:
    """A day of an app: launched, loaded, first answer, ten turns, idle, trimmed, unloaded."""
    def work(p: Process):
        p("start", id=0)
        p.must_feed(0, lab.tokens(16))
        p("decode", ids=[0], n=16)
        p.mark("first answer")
        for turn in range(10):
            p.must_feed(0, lab.tokens(24, seed=turn))
            p("decode", ids=[0], n=16)
        p.mark("ten turns")
        time.sleep(0.5 if lab.quick else 2)
        p.mark("idle")
        p("end", id=0)
        p("trim")
        p.mark("chat closed, trimmed")
        p("unload")
        p.mark("unloaded")

    for side in _MAIN:
        lab.row("life", side, work, key="ten turns", reserves=_all(lab.context)[side])


def latency(lab: Lab) -> None:
    """The first token: cold, after a known prefix, of a fork; then the pace of the following ones, and what they cost in joules."""
    from .energy import Meter

    system, question, n = min(341, lab.context // 4), 24, 64

    def work(p: Process):
        out: dict = {"cold_seconds": [], "warm_seconds": [], "fork_seconds": []}
        meter = Meter()
        for i in range(5):
            base, other, twin = 3 * i, 3 * i + 1, 3 * i + 2
            p("start", id=base)
            out["cold_seconds"].append(p.must_feed(base, lab.tokens(system + question, seed=100 + i)))
            if p.side == "unified":         # what llama.cpp has for a known prefix: its cells, shared
                p("fork", id=base, to=twin)
                out["fork_seconds"].append(p.must_feed(twin, lab.tokens(question, seed=300 + i)))
                p("end", id=twin)
            else:
                p("start", id=other)
                out["warm_seconds"].append(p.must_feed(other, lab.tokens(system + question, seed=100 + i)[:system] + lab.tokens(question, seed=200 + i)))
                p("end", id=other)
            if p.side == "paged":
                p("fork", id=base, to=twin)
                out["fork_seconds"].append(p.must_feed(twin, lab.tokens(question, seed=300 + i)))
                p("end", id=twin)
            if i < 4:
                p("end", id=base)
        meter.start()
        out["steps"] = p("decode", ids=[12], n=n)["steps"]
        if (joules := meter.joules()) is not None:
            out["joules_per_token"], out["joules_from"] = joules / n, meter.source
        p.mark("answered")
        return {key: value for key, value in out.items() if value != []}

    for side in (*_MAIN, "unified"):
        lab.row("latency", side, work, key="answered", sessions=2, reserves=_all(lab.context, 2)[side], repeats=1)


SCENARIOS = {"one word": one_word, "growth": growth, "sessions": sessions, "churn": churn, "forks": forks, "give back": give_back,
             "restart": restart, "budget": budget, "price": price, "formats": formats, "life": life, "latency": latency}
