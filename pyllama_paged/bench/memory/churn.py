"""
Churn: requests come and go under a budget, first come first served, and it is counted what the memory held.

Every side gets the same bytes for KV. A request is admitted when its reservation, or where there is none its prompt and
one more turn of everybody, find room; paged sides give up the
youngest when an older one is refused (its tokens are fed again later, when somebody has left). All active requests advance by `_TURN` tokens in
turn. Shares are averages over the turns in which somebody waited, by the paper's categories, in percent of the budget:

    tokens     KV of live tokens           internal   reserved, and never used
    reserved   for tokens yet to come      external   the rest: free, or not usable

From the runtime's own ledger: `of_held`, the part of held blocks that is tokens (the paper's measure for paged memory;
for contiguous sides what they reserve counts as held), and `of_resident`, the part of all that the pool has of the system.
"""

from __future__ import annotations

from collections import deque

from .lab import LLAMA, Lab, Process
from .lengths import ALPACA, SHAREGPT
from .simulate import Serving, simulate

__all__ = ["churn"]

_TURN = 48
_LIMIT = 1024           # tokens of a request at most, and what a full reservation holds


class _Request:
    def __init__(self, number: int, n_in: int, n_out: int):
        self.number, self.n_in, self.n_out, self.fed = number, n_in, n_out, 0

    @property
    def final(self) -> int:
        return self.n_in + self.n_out


def _reserves(side: str, r: _Request) -> int:
    """Tokens that a request's place takes whether they are used or not; 0: as they come."""
    return {"max": _LIMIT, "lazy": _LIMIT, "pow2": min(_LIMIT, r.n_in + (1 << (r.n_out - 1).bit_length())), "oracle": r.final}.get(side, 0)


def serve(p: Process, lab: Lab, requests: list[tuple[int, int]], budget_tokens: int) -> dict:
    """All requests to their end; the averages."""
    waiting = deque(_Request(i, *lengths) for i, lengths in enumerate(requests))
    running: list[_Request] = []
    sums, turns, preempted, peak, useful, of_resident = [0.0] * 5, 0, 0, 0, [], []

    fed = [0]

    def advance(r: _Request) -> bool:
        """One turn of a request; its prompt goes in whole. False: refused."""
        to = min(r.final, max(r.n_in, r.fed + _TURN))
        answer = p.feed(r.number, lab.tokens(r.final, seed=r.number + 1)[r.fed:to])
        done = answer["computed"] if answer["refused"] else to - r.fed
        r.fed += done
        fed[0] += done
        return not answer["refused"]

    def has_room(r: _Request) -> bool:
        """Where nothing is reserved: the prompt and one more turn of everybody fit, else the next turn pushes somebody out."""
        return bool(_reserves(p.side, r)) or not running or \
            r.n_in + _TURN * (len(running) + 1) <= budget_tokens - sum(other.fed for other in running)

    def leave(r: _Request) -> None:
        p("end", id=r.number)
        running.remove(r)

    def give_up(r: _Request) -> None:
        leave(r)
        r.fed = 0
        waiting.appendleft(r)

    full = False                # somebody was given up: nobody comes in before somebody leaves, or they would push each other out
    while waiting or running:
        while waiting and not full and has_room(waiting[0]):
            r = waiting[0]
            p("start", id=r.number, reserve=_reserves(p.side, r))
            running.append(waiting.popleft())
            if not advance(r):
                give_up(r)
                if not running:
                    raise ValueError(f"request {r.number} of {r.final} tokens does not fit alone")
                break
        for r in list(running):
            while r in running and r.fed < r.final and not advance(r):
                give_up(running[-1])
                preempted += 1
                full = True
        if waiting:
            tokens = sum(r.fed for r in running)
            reserved = sum((r.final - r.fed) for r in running if _reserves(p.side, r))
            internal = sum(max(0, _reserves(p.side, r) - r.final) for r in running)
            for i, value in enumerate((tokens, reserved, internal, budget_tokens - tokens - reserved - internal)):
                sums[i] += 100 * value / budget_tokens
            sums[4] += len(running)
            turns += 1
            if ledger := p("ledger"):
                useful.append(100 * ledger["token_state"] / (ledger["token_state"] + ledger["reserved"] + ledger["internal"]))
                of_resident.append(100 * ledger["token_state"] / ledger["resident"])
                if ledger["resident"] > peak:
                    peak = ledger["resident"]
                    p.mark("fullest")
            elif "fullest" not in p.marks:
                p.mark("fullest")
        for r in list(running):
            if r.fed == r.final:
                leave(r)
                full = False
        full = full and bool(running)
    p.mark("done")
    if "fullest" not in p.marks:
        p.marks["fullest"] = p.marks["done"]
    n = max(turns, 1)
    out = {"tokens": sums[0] / n, "reserved": sums[1] / n, "internal": sums[2] / n, "external": sums[3] / n, "at_a_time": sums[4] / n,
           "preempted": preempted, "turns_waited": turns, "computed_again": 100 * (fed[0] / sum(i + o for i, o in requests) - 1)}
    if useful:
        out |= {"of_held": sum(useful) / len(useful), "of_resident": sum(of_resident) / len(of_resident)}
    return out


def churn(lab: Lab) -> None:
    """Requests of random lengths under a budget that holds a few full reservations."""
    cases = ((SHAREGPT, 14, 2),) if lab.quick else ((SHAREGPT, 80, 4), (ALPACA, 160, 2))
    for lengths, n, whole in cases:
        requests = lengths.several(n, seed=1, limit=min(_LIMIT, lab.about["context"] or _LIMIT))
        budget_tokens = whole * _LIMIT
        for side in ("paged", "max", "pow2", "oracle", "lazy", "unified"):
            def work(p: Process, requests=requests, budget_tokens=budget_tokens):
                return serve(p, lab, requests, budget_tokens)

            options = {"budget": lab.kv(budget_tokens)} if side not in LLAMA else {}
            lab.row("churn", side, work, key="fullest", variant=lengths.name, sessions=n if side in LLAMA else 1,
                    context=budget_tokens if side in LLAMA else _LIMIT, reserves=budget_tokens if side in LLAMA else 0, repeats=1, **options)
        name = f"churn {lengths.name} faster-transformer"
        if not lab.record.has(name):
            # Its static batches are not in this runtime: simulated with the same memory and more requests than it can take.
            s = simulate("faster-transformer", Serving(slots=budget_tokens, limit=_LIMIT, lengths=lengths, rate=50, n_requests=400))
            lab.record.add(name, {"scenario": "churn", "side": "faster-transformer", "variant": lengths.name, "simulated": True, "tokens": s.tokens,
                                  "reserved": s.reserved, "internal": s.internal, "external": s.external, "at_a_time": s.running})
