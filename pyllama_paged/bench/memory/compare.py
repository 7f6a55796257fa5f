"""`bench compare A.json B.json`: two results side by side, and which differences are beyond the spread."""

from __future__ import annotations

import json
from pathlib import Path

from ...errors import InvalidArgument
from .tables import Table, mb, ms, percentile

__all__ = ["compare", "load"]

_NOISE = 0.02               # of memory that does not repeat exactly: page tables, allocator
_TIMED_NOISE = 0.10         # a machine is not the same from one hour to the next
_SAMPLES = ("steps", "cold_seconds", "warm_seconds", "fork_seconds", "restart_seconds")


def load(path) -> dict:
    """A result of `bench memory`, checked for its schema."""
    from .run import SCHEMA

    try:
        result = json.loads(Path(path).read_text())
    except (ValueError, UnicodeDecodeError) as problem:
        raise InvalidArgument(f"{path} is no JSON") from problem
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        raise InvalidArgument(f"{path} is no result of bench memory ({SCHEMA!r})")
    return result


def _spread(samples) -> float:
    ordered = sorted(samples)
    return (ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4]) / ordered[len(ordered) // 2]


def compare(a: dict, b: dict) -> dict:
    """
    Rows that both have: figures, their ratio, and "same" or "differs" by the stated spreads.

    {"same_model", "same_device", "rows": [{"row", "what", "a", "b", "ratio", "allowed", "word"}]}
    """
    rows = []
    for name, left in a["rows"].items():
        right = b["rows"].get(name)
        if right is None:
            continue
        figures = []
        if left.get("held") and right.get("held"):
            figures.append(("bytes", left["held"]["median"], right["held"]["median"], max(_NOISE, abs(left["held"]["spread"]), abs(right["held"]["spread"]))))
        if "ratio" in left and "ratio" in right:
            reach = max(left["high"] - left["low"], right["high"] - right["low"])
            figures.append(("ratio", left["ratio"], right["ratio"], max(_NOISE, reach)))
        for key in _SAMPLES:
            if left.get(key) and right.get(key) and isinstance(left[key], list):
                figures.append((key, percentile(left[key], 0.5), percentile(right[key], 0.5), max(_TIMED_NOISE, _spread(left[key]), _spread(right[key]))))
        for what, x, y, allowed in figures:
            # 1 MB: an allocator's chunk, which says nothing about KV.
            near = abs(y - x) <= allowed * max(abs(x), abs(y)) or (what == "bytes" and abs(y - x) < 1e6)
            rows.append({"row": name, "what": what, "a": x, "b": y, "ratio": y / x if x else None, "allowed": allowed, "word": "same" if near else "differs"})
    return {"same_model": a["model"]["sha256"] == b["model"]["sha256"], "rows": rows,
            "same_device": all(a["machine"].get(k) == b["machine"].get(k) for k in ("cpu", "family", "cpus", "memory_bytes"))}


def table(result: dict, all_rows: bool = False) -> Table:
    def shown(what, value) -> str:
        return mb(value) + " MB" if what == "bytes" else f"{value:.3f}" if what == "ratio" else ms(value) + " ms"

    lines = [[f"{r['row']}: {r['what'].replace('_', ' ')}", shown(r["what"], r["a"]), shown(r["what"], r["b"]), f"{r['ratio']:.3f}" if r["ratio"] else "",
              f"{r['allowed']:.0%}", r["word"]] for r in result["rows"] if all_rows or r["word"] == "differs"]
    n = sum(r["word"] == "differs" for r in result["rows"])
    return Table(f"{n} of {len(result['rows'])} figures differ by more than their spread", ["", "A", "B", "B / A", "allowed", ""], lines)
