"""
The program plp-bench: what the machine can do at best, and what single kernels do.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from .. import _plp
from ..errors import InvalidArgument, PllamaError
from . import stats

__all__ = ["Limits", "program", "run"]


def program() -> str | None:
    """Beside the extension module, where the build installs it; PLP_BENCH_PROGRAM names another."""
    named = os.environ.get("PLP_BENCH_PROGRAM")
    path = Path(named) if named else Path(_plp.__file__).with_name("plp-bench")
    return str(path) if path.is_file() and os.access(path, os.X_OK) else None


def run(what: str, each=None, **options) -> list[dict]:
    """
    plp-bench's lines. `options` as its own, with _ for -; None leaves one out. `each` is called with every
    line as it comes.
    """
    path = program()
    if not path:
        raise InvalidArgument("plp-bench is not built; configure with -DPLP_BENCH=ON, or name it in PLP_BENCH_PROGRAM")
    words = [path, what]
    for name, value in options.items():
        if value is not None:
            words += ["--" + name.replace("_", "-"), ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)]
    lines = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            lines.append(json.loads(line))
            if each:
                each(lines[-1])
        said = process.stderr.read().strip()
    if process.returncode:
        raise PllamaError(f"plp-bench {what} ended with {process.returncode}: {said.splitlines()[0] if said else 'no word'}")
    return lines


class Limits:
    """
    Measured limits: bytes and operations a second, by thread count.

    Memory bandwidth of a shared machine drifts within minutes, so `read` is measured whenever it is asked
    for; peaks of the CPU are measured once. Everything is None where plp-bench is not there.
    """

    def __init__(self, cold_mib: int | None = None, seconds: float | None = None):
        self.there = program() is not None
        self._peaks: dict[int, list[dict]] = {}
        self._options = {"cold_mib": cold_mib, "seconds": seconds}

    def read(self, threads: int) -> float | None:
        """Bytes a second from memory, now."""
        if not self.there:
            return None
        line = run("limits", threads=threads, only="read", **self._options)[0]
        return stats.summary(stats.rates(line["bytes"], line["seconds"])).median

    def peak(self, what: str, tier: str, threads: int) -> float | None:
        """Operations a second of "int8" or "f32", by the instructions of a tier; or bytes of "read_l1", "read_l2"."""
        if not self.there:
            return None
        if threads not in self._peaks:
            self._peaks[threads] = run("limits", threads=threads, only=["read_l1", "read_l2", "int8", "f32"], **self._options)
        for line in self._peaks[threads]:
            if line["limit"] == what and line.get("tier", tier) == tier:
                return stats.summary(stats.rates(line.get("ops") or line["bytes"], line["seconds"])).median
        return None
