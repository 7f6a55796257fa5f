"""
Where scenarios run: one fresh process for every scenario, side and repetition, watched from outside.

A side is a runtime and the way it places KV:

    paged    this runtime                      max      the same kernels, the context limit reserved and touched per session
    pow2     reserved: the prompt and the      lazy     the same reservation, left to the system to commit on first touch
             next power of two of the answer   llama    llama.cpp, a cache of its own for every sequence
    oracle   reserved: exactly the length      unified  llama.cpp, one cache that all sequences share
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...errors import PllamaError
from .. import stats
from ..peers import Other
from ..record import Record
from . import identity, process
from .loop import tokens_of

__all__ = ["LLAMA", "OWN", "Lab", "Process", "SIDES"]

OWN = {
    "paged": {"layout": "paged"}, "max": {"layout": "contiguous"}, "lazy": {"layout": "lazy"},
    "pow2": {"layout": "contiguous"}, "oracle": {"layout": "contiguous"},
}
LLAMA = {"llama": {"unified": False}, "unified": {"unified": True}}
SIDES = {**OWN, **LLAMA}
_TOO_MUCH = 0.6         # of the available memory: a benchmark must not push others out
_FRESH = 0.15           # seconds that a new process is left alone before its first mark


class Process(Other):
    """A worker. `mark` notes what it holds now, under a name."""

    def __init__(self, side: str, peer: str | None):
        here = Path(__file__).parent
        super().__init__([peer, str(here / "worker_llama.py")] if side in LLAMA else [sys.executable, "-m", f"{__package__}.worker"])
        self.side, self.marks, self._start = side, {}, time.monotonic()

    def mark(self, name: str) -> dict:
        """Bytes of the process, and the runtime's own ledger if it keeps one."""
        self.marks[name] = {"t": time.monotonic() - self._start, **process.of(self.pid).as_dict()}
        if ledger := self("ledger"):
            self.marks[name]["ledger"] = ledger
        return self.marks[name]

    def feed(self, id: int, tokens: list[int]) -> dict:
        return self("feed", id=id, tokens=tokens)

    def must_feed(self, id: int, tokens: list[int]) -> float:
        answer = self.feed(id, tokens)
        if answer["refused"]:
            raise PllamaError(f"{self.side}: refused {len(tokens)} tokens: {answer.get('message', 'no room')}")
        return answer["seconds"]


@dataclass
class Lab:
    """
    What all scenarios share.

    repeats   fresh processes for every row; figures are medians, with the spread
    context   the limit of a session where a scenario names no other
    """

    path: str
    about: dict             #: of identity.model
    record: Record
    threads: int
    context: int
    repeats: int
    quick: bool
    peer: str | None = None         #: a Python that has llama-cpp-python
    peer_lack: str = ""             #: why there is none
    said: Callable[[str], None] = lambda line: None

    def tokens(self, n: int, seed: int = 0) -> list[int]:
        return tokens_of(n, self.n_vocab, seed)

    @property
    def n_vocab(self) -> int:
        return self.about["n_vocab"]

    def kv(self, n_tokens: int) -> int:
        return n_tokens * self.about["kv_bytes_per_token"]

    def row(self, scenario: str, side: str, work: Callable[[Process], dict | None], *, key: str, reserves: int = 0, sessions: int = 1,
            context: int = 0, variant: str = "", repeats: int = 0, **options) -> None:
        """
        One row: `work` in fresh processes. What it returns is merged over the repetitions: numbers to summaries, lists of
        numbers joined, the rest as first seen. `key`: the mark whose memory stands for the row. `reserves`: tokens that
        the side allocates whether they are used or not.
        """
        name = " ".join(filter(None, (scenario, variant, side)))
        if self.record.has(name):
            return
        head = {"scenario": scenario, "side": side, "variant": variant, "key": key, "sessions": sessions, "context": context or self.context}
        if side in LLAMA and not self.peer:
            self.record.add(name, {**head, "not_run": self.peer_lack})
            return
        need, free = self.kv(reserves), identity.available_bytes()
        if free and need > _TOO_MUCH * free:
            self.record.add(name, {**head, "not_run": f"reserves {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free", "would_reserve": need})
            return
        self.said(name)
        runs, timeline = [], []
        # A cache that is allocated whole at loading does not vary, and a rival that is slower must not make a run long.
        times = repeats or self.repeats
        began = time.monotonic()
        for i in range(min(times, 1 if self.quick else 2) if side in LLAMA else times):
            with Process(side, self.peer) as p, process.Sampler(p.pid) as sampler:
                p("hello")
                time.sleep(_FRESH)
                p.mark("launched")
                what = p("open", model=self.path, threads=self.threads, context=context or self.context, sessions=sessions, **SIDES[side], **options)
                p.mark("loaded")
                runs.append((work(p) or {}, p.marks))
            timeline = timeline or sampler.thin()
        marks = {label: merge([marks[label] for _, marks in runs]) for label in runs[0][1]}
        self.record.add(name, {**head, "what": what["what"], "repeats": len(runs), "seconds": round(time.monotonic() - began, 1), **merge([values for values, _ in runs]), "marks": marks,
                               "held": merge([{"bytes": _held(marks, key)} for _, marks in runs])["bytes"], "timeline": timeline})


def _held(marks: dict, key: str) -> int | None:
    """Anonymous memory (macOS: footprint) at a mark beyond what the process had before it opened the model."""
    measure = "anonymous" if "anonymous" in marks[key] else "footprint"
    return marks[key][measure] - marks["launched"][measure] if measure in marks[key] else None


def merge(runs: list[dict]) -> dict:
    """Of several runs of one kind: summaries of numbers, joined lists, and the first of everything else."""
    out = {}
    for key, first in runs[0].items():
        values = [run[key] for run in runs if key in run]
        if isinstance(first, bool) or first is None or isinstance(first, str):
            out[key] = first if all(value == first for value in values) else values
        elif isinstance(first, (int, float)):
            out[key] = stats.summary([float(value) for value in values]).as_dict()
        elif isinstance(first, dict):
            out[key] = merge(values)
        elif first and all(isinstance(item, (int, float)) for item in first):
            out[key] = [float(f"{item:.5g}") for value in values for item in value]
        else:
            out[key] = first
    return out
