"""
Serving simulated: how much of the KV memory holds tokens, by the way a request's memory is reserved.

Systems, as the paper describes them (Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", SOSP 2023, section 6.1; Yu et al., "Orca", OSDI 2022; FasterTransformer with a batch scheduler):

    orca-max      the context limit for every request
    orca-pow2     the prompt and the next power of two of the answer's length
    orca-oracle   exactly the final length, known beforehand
    faster-transformer   the context limit, and a batch runs until its last request is done (request-level scheduling)
    paged         blocks of 16 tokens as they fill; who came last is preempted when they run out, and computed again

Orca and paged schedule by iteration: after each, who is done leaves and who fits comes in, first come first served.
Contiguous reservations come from a buddy allocator; what its rounding wastes counts as external, as in the paper.

What the paper leaves open and is assumed here: the time of an iteration (that of an A100 with a 13B model in f16:
reading the weights, the KV, and computing prompts), and that the average runs over the time in which requests wait:
an idle system wastes nothing that anybody misses.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .buddy import Buddy
from .lengths import SHAREGPT, Lengths, poisson

__all__ = ["PAPER", "SYSTEMS", "Serving", "Shares", "simulate"]

#: Figure 2 of the paper, percent of KV memory.
PAPER = {
    "orca-max": {"tokens": 20.4, "reserved": 13.3, "internal": 57.3, "external": 8.9},
    "orca-pow2": {"tokens": 26.8, "reserved": 17.9, "internal": 13.6, "external": 41.6},
    "orca-oracle": {"tokens": 38.2, "reserved": 25.2, "internal": 0.0, "external": 36.6},
    "paged": {"tokens": 96.3},
}
SYSTEMS = ("faster-transformer", "orca-max", "orca-pow2", "orca-oracle", "paged")


@dataclass(frozen=True)
class Serving:
    """The workload and the machine; the defaults are the paper's: OPT-13B on one accelerator of 40 GB."""

    slots: int = 15_700             #: tokens that fit
    limit: int = 2_048
    block: int = 16
    rate: float = 2.0               #: requests a second, Poisson
    lengths: Lengths = SHAREGPT
    n_requests: int = 2_000
    seed: int = 1
    weights_seconds: float = 0.017          #: of an iteration: 26 GB read at 1.5 TB/s
    prompt_token_seconds: float = 0.00013   #: 26 Gop at 200 Top/s
    kv_token_seconds: float = 5.5e-7        #: 800 KB at 1.5 TB/s


@dataclass(frozen=True)
class Shares:
    """Averages over the time in which requests waited. The four shares are percent of the memory and add up to 100."""

    system: str
    tokens: float
    reserved: float         #: will be used by tokens to come
    internal: float         #: held and never used
    external: float         #: free, or lost to rounding
    running: float          #: requests at a time
    seconds: float          #: of waiting, simulated
    preempted: int


@dataclass
class _Request:
    n_in: int
    n_out: int
    done: int = 0           # answer tokens
    place: int = -1
    reserved: int = 0       # slots asked for
    computed: bool = False  # the prompt is in
    finished: bool = False  # waits for its batch (request-level scheduling)
    blocks: int = 0

    @property
    def tokens(self) -> int:
        return self.n_in + self.done if self.computed else 0

    @property
    def final(self) -> int:
        return self.n_in + self.n_out


class _Contiguous:
    preempted = 0

    def __init__(self, s: Serving, reserve: Callable[[_Request], int], batch_level: bool = False):
        self.buddy = Buddy(s.slots)
        self._reserve, self._batch_level = reserve, batch_level
        self.n_slots = s.slots

    def admit(self, waiting: deque[_Request], running: list[_Request]) -> None:
        if self._batch_level and running:
            return
        while waiting:
            r = waiting[0]
            r.reserved = self._reserve(r)
            place = self.buddy.take(r.reserved)
            if place is None:
                return
            r.place = place
            running.append(waiting.popleft())

    def grow(self, running, waiting) -> None:
        """Nothing to do: it is all reserved."""

    def leave(self, running: list[_Request]) -> list[_Request]:
        if self._batch_level and any(not r.finished for r in running):
            return running
        for r in running:
            if r.finished:
                self.buddy.give(r.place)
        return [r for r in running if not r.finished]

    def shares(self, running: list[_Request]) -> tuple[int, int, int, int]:
        tokens = sum(r.tokens for r in running)
        reserved = sum(r.final - r.tokens for r in running)
        internal = sum(r.reserved - r.final for r in running)
        return tokens, reserved, internal, self.n_slots - tokens - reserved - internal


class _Paged:
    """The share is that of the blocks in use, as in the paper; a free block serves anybody, so it is no waste."""

    def __init__(self, s: Serving):
        self.block, self.n_blocks = s.block, s.slots // s.block
        self.free = self.n_blocks
        self.preempted = 0

    def _need(self, n_tokens: int) -> int:
        return -(-n_tokens // self.block)

    def admit(self, waiting, running) -> None:
        while waiting and (need := self._need(waiting[0].n_in + waiting[0].done + 1)) <= self.free:
            r = waiting.popleft()
            r.blocks = need
            self.free -= need
            running.append(r)

    def grow(self, running, waiting) -> None:
        """Blocks for the next token of everybody; who came last gives up its own."""
        i = 0
        while i < len(running):
            r = running[i]
            need = self._need(r.n_in + r.done + 1) - r.blocks
            while need > self.free and running[-1] is not r:
                self._preempt(running, waiting)
            if need > self.free:
                self._preempt(running, waiting)
                return
            self.free -= need
            r.blocks += need
            i += 1

    def _preempt(self, running, waiting) -> None:
        r = running.pop()
        self.free += r.blocks
        r.blocks, r.computed = 0, False
        waiting.appendleft(r)
        self.preempted += 1

    def leave(self, running):
        self.free += sum(r.blocks for r in running if r.finished)
        return [r for r in running if not r.finished]

    def shares(self, running) -> tuple[int, int, int, int]:
        tokens = sum(r.tokens for r in running)
        slots = sum(r.blocks for r in running) * self.block
        reserved = sum(min(r.final, r.blocks * self.block) - r.tokens for r in running)
        return tokens, reserved, slots - tokens - reserved, 0


def _pow2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _manager(system: str, s: Serving):
    return {
        "orca-max": lambda: _Contiguous(s, lambda r: s.limit),
        "orca-pow2": lambda: _Contiguous(s, lambda r: r.n_in + _pow2(r.n_out)),
        "orca-oracle": lambda: _Contiguous(s, lambda r: r.final),
        "faster-transformer": lambda: _Contiguous(s, lambda r: s.limit, batch_level=True),
        "paged": lambda: _Paged(s),
    }[system]()


@dataclass
class _Average:
    seconds: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0] * 5)

    def add(self, seconds: float, values) -> None:
        self.seconds += seconds
        for i, value in enumerate(values):
            self.sums[i] += seconds * value

    def of(self, i: int) -> float:
        return self.sums[i] / self.seconds


def simulate(system: str, serving: Serving = Serving()) -> Shares:
    """One system under one workload. If requests never wait, the average runs over all the time."""
    s, manager = serving, _manager(system, serving)
    rng = random.Random(s.seed)
    clock = poisson(rng, s.rate)
    arrivals = deque((next(clock), *s.lengths.draw(rng, s.limit)) for _ in range(s.n_requests))
    waiting: deque[_Request] = deque()
    running: list[_Request] = []
    now, while_waiting, always = 0.0, _Average(), _Average()
    while arrivals:                 # the last ones leave an emptying system behind, which is no workload
        if not running and not waiting:
            now = max(now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now:
            _, n_in, n_out = arrivals.popleft()
            waiting.append(_Request(n_in, n_out))
        manager.admit(waiting, running)
        manager.grow(running, waiting)
        seconds = s.weights_seconds
        for r in running:
            if r.finished:
                continue
            if not r.computed:
                seconds += s.prompt_token_seconds * (r.n_in + r.done)
                r.computed = True
            seconds += s.kv_token_seconds * r.tokens
            r.done += 1
            r.finished = r.done >= r.n_out
        held = manager.shares(running)
        whole = max(sum(held), 1)
        values = [*(100 * h / whole for h in held), len(running)]
        always.add(seconds, values)
        if waiting:
            while_waiting.add(seconds, values)
        running = manager.leave(running)
        now += seconds
    average = while_waiting if while_waiting.seconds else always
    return Shares(system, *(average.of(i) for i in range(5)), while_waiting.seconds, manager.preempted)
