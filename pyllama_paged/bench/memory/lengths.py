"""
Lengths of requests like those of two public data sets, drawn from a seed.

The PagedAttention paper gives the mean lengths of ShareGPT (161 tokens in, 338 out) and Alpaca (19 in, 58 out) and
shows the shapes as histograms. Here both are log-normal with these means and a standard deviation of the logarithm of
1.0 (in) and 0.8 (out); what is longer than the context is cut. A prompt and its answer are drawn independently.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["ALPACA", "SHAREGPT", "Lengths", "poisson"]


@dataclass(frozen=True)
class Lengths:
    name: str
    mean_in: float
    mean_out: float
    sigma_in: float = 1.0
    sigma_out: float = 0.8

    def draw(self, rng: random.Random, limit: int) -> tuple[int, int]:
        """Tokens of one prompt and of its answer, at least 1 each, at most `limit` together."""
        n_in = min(_log_normal(rng, self.mean_in, self.sigma_in), limit - 1)
        return n_in, min(_log_normal(rng, self.mean_out, self.sigma_out), limit - n_in)

    def several(self, n: int, *, seed: int, limit: int) -> list[tuple[int, int]]:
        rng = random.Random(seed)
        return [self.draw(rng, limit) for _ in range(n)]


SHAREGPT = Lengths("ShareGPT-like", 161, 338)
ALPACA = Lengths("Alpaca-like", 19, 58)


def _log_normal(rng: random.Random, mean: float, sigma: float) -> int:
    return max(1, round(rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)))


def poisson(rng: random.Random, rate: float) -> Iterator[float]:
    """Times of arrivals, `rate` a second on average."""
    now = 0.0
    while True:
        now += rng.expovariate(rate)
        yield now
