"""
`bench kernels`: every kernel of every tier, beside what the machine could do at best, and what paging costs
attention.
"""

from __future__ import annotations

from collections.abc import Callable

from . import machine, stats
from .native import Limits, run as run_native
from .record import Record

__all__ = ["figures", "paging", "run"]

_FLOATS = ("linear_f",)


def run(record: Record, *, threads: int, tiers=None, only=None, types=None, formats=None, small: bool = False,
        patience: float = 0.0, said: Callable[[str], None] = lambda line: None) -> dict:
    """`small`: tiny sizes and few repetitions, to see that it works."""
    limits = Limits(cold_mib=32, seconds=0.001) if small else Limits()
    sizes = {"cold_mib": 32, "reps": 2, "seconds": 0.0005, "patience": 0.05} if small else {}
    shape = {"tokens": 256, "layers": 2, "heads": 4, "kv_heads": 2} if small else {}
    for part, options in (("kernels", {"tier": tiers, "only": only, "types": types}),
                          ("attention", {"tier": tiers, "formats": formats, **shape})):
        if record.has(part) or (part == "attention" and only and "attention" not in only):
            continue
        said(f"{part} ...")
        before = machine.wait_quiet(patience)
        reads = {n: [limits.read(n)] for n in {1, threads}}
        lines = run_native(part, threads=threads, **options, **sizes)
        for n in reads:
            reads[n].append(limits.read(n))
        for line in lines:
            line.update(figures(line, limits, max(reads[line["threads"]])))
        record.add(part, {"read_limit": {str(n): max(r) for n, r in reads.items()}, "lines": lines,
                          "beside": [before, machine.quiet(0.2)]})
    return record.as_dict()


def figures(line: dict, limits: Limits, read: float | None) -> dict:
    """What a line of plp-bench means: rates, and shares of the limits that apply."""
    if "seconds" not in line:
        return {}
    call = stats.summary(line["seconds"])
    out: dict = {"median": call.median, "spread": float(f"{call.spread:.3g}"),
                 "bytes_per_second": float(f"{line['bytes'] / call.median:.4g}")}
    if line.get("cold"):
        out["of_read_limit"] = stats.of_limit(out["bytes_per_second"], read)
    else:
        out["of_l1_limit"] = stats.of_limit(out["bytes_per_second"], limits.peak("read_l1", "", line["threads"]))
    if "ops" in line:
        kind = "int8" if line["kernel"] in ("linear", "attn_q8", "attn_q4") else "f32"
        out["ops_per_second"] = float(f"{line['ops'] / call.median:.4g}")
        out["of_peak"] = stats.of_limit(out["ops_per_second"], limits.peak(kind, line["tier"], line["threads"]))
    return out


def paging(lines: list[dict]) -> list[dict]:
    """
    The price of paging: for every tier, KV format, kind of pages and block length, the time through a table
    (in order, shuffled) over the time of the contiguous walk.
    """
    groups: dict[tuple, dict[str, dict]] = {}
    for line in lines:
        if "place" in line and "seconds" in line:
            key = (line["tier"], line["kernel"], line["pages"], line["block_len"])
            groups.setdefault(key, {})[line["place"]] = line
    out = []
    for (tier, kernel, pages, block_len), places in groups.items():
        base = places["contiguous"]
        row = {"tier": tier, "kernel": kernel, "pages": pages, "block_len": block_len, "contiguous_ms": base["median"] * 1e3}
        for place in ("in order", "shuffled"):
            # a ratio of times: the contiguous walk's rate over this one's
            row[place] = stats.ratio(stats.rates(1, base["seconds"]), stats.rates(1, places[place]["seconds"]))["ratio"]
        row["shuffled_bytes_per_second"] = places["shuffled"]["bytes_per_second"]
        row["of_read_limit"] = places["shuffled"]["of_read_limit"]
        out.append(row)
    return out
