"""
`bench speed`: prefill, decode, and several sessions at once, at depths, thread counts and KV formats,
each beside what the machine could do at best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from . import machine, stats
from .native import Limits
from .record import Record
from .work import Weights, Work

__all__ = ["Plan", "run"]

_IDLE_SECONDS = 2.0
_FLOATS = ("F32", "F16", "BF16")    # no integer products


@dataclass(frozen=True)
class Plan:
    prefill: tuple[int, ...] = (64, 512)
    decode: int = 32                        #: tokens of a repetition
    depths: tuple[int, ...] = (0, 1024, 7168)
    batches: tuple[int, ...] = (2, 4, 8)    #: sessions that decode together
    threads: tuple[int, ...] = (0,)         #: 0: the default
    kv: tuple[str, ...] = ("f16",)
    repeats: int = 5
    idle: bool = False                      #: also: the CPU time of a session that waits
    patience: float = 0.0                   #: seconds to wait for a quiet machine before each row
    small: bool = False                     #: limits and quiet measured roughly: to see that it works

    def rows(self, limit: int) -> Iterator[tuple[str, int, str, int, int, int]]:
        """(kv, threads, work, depth, tokens, sessions), depths rising, so that no context is made twice; what fits `limit` tokens."""
        for kv in self.kv:
            for threads in self.threads:
                for depth in sorted(set(self.depths)):
                    for work, tokens, sessions in [*(("prefill", n, 1) for n in self.prefill), ("decode", self.decode, 1),
                                                   *(("decode", self.decode, n) for n in self.batches if n > 1)]:
                        if depth + tokens <= limit:
                            yield kv, threads, work, depth, tokens, sessions
                if self.idle:
                    yield kv, threads, "idle", 0, 1, 1


def run(path, plan: Plan, record: Record, said: Callable[[str], None] = lambda line: None) -> dict:
    """Measure what the record lacks. `said` is told what is going on."""
    weights, limits = Weights(path), Limits(cold_mib=16, seconds=0.001) if plan.small else Limits()
    look = 0.02 if plan.small else 0.5
    rows = [((kv, threads, what, depth, tokens, sessions), f"{kv} t{threads} {what} d{depth} n{tokens} x{sessions}")
            for kv, threads, what, depth, tokens, sessions in plan.rows(weights.context)]
    work, opened = None, None
    try:
        for (kv, threads, what, depth, tokens, sessions), name in rows:
            if record.has(name):
                continue
            if opened != (kv, threads):
                if work:
                    work.close()
                work, opened = Work(path, kv=kv, threads=threads), (kv, threads)
            said(f"{what} of {tokens} tokens after {depth}, {kv}, {work.model.info.n_threads} threads"
                 + (f", {sessions} sessions" if sessions > 1 else ""))
            work.to_depth(depth)
            before = machine.wait_quiet(plan.patience, look)
            values = _measure(work, weights, limits, what, tokens, sessions, plan.repeats, depth)
            record.add(name, {"kv": kv, "work": what, "depth": depth, "tokens": tokens, "sessions": sessions,
                              "threads": work.model.info.n_threads, **values, "beside": [before, machine.quiet(look)]})
    finally:
        if work:
            work.close()
    return record.as_dict()


def _measure(work: Work, weights: Weights, limits: Limits, what: str, tokens: int, sessions: int, repeats: int, depth: int) -> dict:
    info = work.model.info
    if what == "idle":
        return {"cpu_share": round(work.idle(_IDLE_SECONDS), 5)}
    once: Callable[[], float]
    if what == "prefill":
        def once():
            return work.prefill(tokens)
    elif sessions == 1:
        def once():
            return work.decode(tokens)
    else:
        def once():
            return work.decode_together(sessions, tokens)
    once()                                          # weights into the page cache, threads awake
    read_before = limits.read(info.n_threads) if what == "decode" else None
    seconds = [once() for _ in range(repeats)]
    out: dict = {"seconds": [float(f"{s:.6g}") for s in seconds]}
    out["tokens_per_second"] = stats.summary(stats.rates(tokens * sessions, seconds)).as_dict()
    if what == "decode":
        # Every step reads all matrices once, and every session the whole context.
        read_after = limits.read(info.n_threads)
        kv = work.kv_bytes if depth else 0
        step_bytes = weights.bytes + sessions * kv
        rate = stats.summary(stats.rates(step_bytes * tokens, seconds)).median
        best = max(filter(None, (read_before, read_after)), default=None)
        out |= {"bytes_per_step": step_bytes, "bytes_per_second": float(f"{rate:.4g}"),
                "read_limit": best and float(f"{best:.4g}"), "of_read_limit": stats.of_limit(rate, best)}
    if what == "prefill" or sessions > 1:
        n_logits = 1 if what == "prefill" else sessions * tokens
        n = tokens * sessions
        rate = stats.summary(stats.rates(weights.operations(n, n_logits), seconds)).median
        peak = limits.peak("f32" if weights.type in _FLOATS else "int8", info.tier, info.n_threads)
        out |= {"operations_per_second": float(f"{rate:.4g}"), "peak": peak and float(f"{peak:.4g}"),
                "of_peak": stats.of_limit(rate, peak)}
    return out
