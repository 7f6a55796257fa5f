"""
The price of paging in time: decoding through a table whose blocks lie in random order, beside the same kernels over
blocks that lie one after the other. Both processes take turns, so that a machine that slows down does so for both.
"""

from __future__ import annotations

import time

from .. import stats
from .lab import SIDES, Lab, Process

__all__ = ["price"]

_USUAL = 16             # what this runtime takes if nobody says otherwise
_STEPS = 8              # tokens of one turn
_PAUSE = 0.03           # the other side's threads fall asleep


def price(lab: Lab) -> None:
    contexts = [1024, 2048] if lab.quick else [1024, 4096, 8192]
    blocks = (8, 16, 128) if lab.quick else (8, 16, 32, 64, 128)
    for block in blocks:
        reached = contexts + [16384, 32768] if block == _USUAL and not lab.quick else contexts     # filling them takes long
        room = max(reached) + 1024
        todo = [c for c in reached if not lab.record.has(_name(block, c))]
        if not todo:
            continue
        lab.said(f"price, blocks of {block}")
        with Process("paged", None) as paged, Process("max", None) as contiguous:
            for p in (paged, contiguous):
                p("hello")
                p("open", model=lab.path, threads=lab.threads, context=room, sessions=1, block=block if p is paged else 16,
                  shuffle=p is paged, **SIDES[p.side])
                p("start", id=0)
            at = 0
            for depth in todo:
                for p in (paged, contiguous):
                    p.must_feed(0, lab.tokens(depth, seed=depth)[:depth - at])
                    p("decode", ids=[0], n=2)
                rates: tuple[list[float], list[float]] = ([], [])
                for _ in range(2 * max(lab.repeats, 5)):
                    for p, into in zip((paged, contiguous), rates):
                        time.sleep(_PAUSE)
                        into += stats.rates(1, p("decode", ids=[0], n=_STEPS)["steps"])
                at = depth + 2 + 2 * max(lab.repeats, 5) * _STEPS
                lab.record.add(_name(block, depth), {
                    "scenario": "price", "side": "paged", "block": block, "depth": depth, **compare(*rates)})


def compare(paged: list[float], contiguous: list[float]) -> dict:
    """
    Of steps taken in turn, as rates: the time of a paged step over that of a contiguous one (above 1: paging costs), by
    medians; the spread is that of the ratios of halves of the samples.
    """
    def of(a, b):
        return 1 / stats.ratio(a, b)["ratio"]

    k = max(1, len(paged) // 5)
    parts = sorted(of(paged[i:i + k], contiguous[i:i + k]) for i in range(0, len(paged) - k + 1, k))
    return {"paged": stats.summary(paged).as_dict(), "contiguous": stats.summary(contiguous).as_dict(),
            "ratio": float(f"{of(paged, contiguous):.4g}"), "low": float(f"{parts[0]:.4g}"), "high": float(f"{parts[-1]:.4g}")}


def _name(block: int, depth: int) -> str:
    return f"price block {block} depth {depth}"
