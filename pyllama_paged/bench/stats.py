"""
Arithmetic on samples. A sample is the time of one repetition, in seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

__all__ = ["Summary", "of_limit", "ratio", "rates", "summary", "verdict"]


@dataclass(frozen=True)
class Summary:
    n: int
    median: float
    spread: float           #: the middle half of the samples, from end to end, as a part of the median
    low: float
    high: float

    def as_dict(self) -> dict:
        return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in asdict(self).items()}


def summary(samples: Sequence[float]) -> Summary:
    """Median and spread. One sample has no spread."""
    if not samples:
        raise ValueError("no samples, so no median")
    middle = statistics.median(samples)
    quarters = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else [middle] * 3
    spread = (quarters[2] - quarters[0]) / middle if middle else 0.0
    return Summary(len(samples), middle, spread, min(samples), max(samples))


def rates(amount: float, seconds: Sequence[float]) -> list[float]:
    """How much a second, for every sample."""
    return [amount / s for s in seconds]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict:
    """
    Of two series of rates taken in turn (A B A B): the ratio of the medians, and the lowest and highest of
    the pairs, which show how far it can be trusted. Above 1 we are faster.
    """
    pairs = [a / b for a, b in zip(ours, theirs)]
    value = statistics.median(ours) / statistics.median(theirs)
    return {"ratio": float(f"{value:.4g}"), "low": float(f"{min(pairs):.4g}"), "high": float(f"{max(pairs):.4g}")}


def of_limit(value: float, limit: float | None) -> float | None:
    """A share of a measured limit; None where there is no limit."""
    return float(f"{value / limit:.4g}") if limit else None


def verdict(value: float | None, bar: float | None) -> str:
    """
    What a ratio to a peer means: "reached", "short" (ahead of the peer, behind the bar), "behind" (the peer
    wins), "ahead" (no bar), or "not measured".
    """
    if value is None:
        return "not measured"
    if bar is not None and value >= bar:
        return "reached"
    if value < 1 and (bar is None or bar >= 1):
        return "behind"
    return "ahead" if bar is None else "short"
