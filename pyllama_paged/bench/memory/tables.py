"""
Figures of a result as rows of words, for the terminal and the page alike: what is compared is decided here, once.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Table", "about", "held_table", "detail_tables", "percentile"]

SIDES = ("paged", "max", "pow2", "oracle", "lazy", "llama", "unified")
NAMES = {"paged": "paged", "max": "whole limit", "pow2": "powers of two", "oracle": "exact length", "lazy": "lazy", "llama": "llama.cpp",
         "unified": "llama.cpp unified", "faster-transformer": "static batches (sim.)", "orca-max": "Orca (Max)", "orca-pow2": "Orca (Pow2)",
         "orca-oracle": "Orca (Oracle)"}


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]          #: the first is left-aligned, the others are numbers
    rows: list[list[str]]
    note: str = ""


def mb(n) -> str:
    n = n["median"] if isinstance(n, dict) else n
    if n is None:
        return ""
    return f"{n / 1e6:,.1f}" if abs(n) < 1e8 else f"{n / 1e6:,.0f}"


def _with_spread(figure) -> str:
    """The median, and the spread where it is one that anybody would see."""
    if figure is None:
        return ""
    shown = mb(figure)
    spread = figure.get("spread", 0.0) if isinstance(figure, dict) else 0.0
    return f"{shown} ±{abs(spread) * 50:.0f}%" if abs(spread) > 0.02 else shown


def ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:,.1f}" if seconds < 1 else f"{seconds * 1e3:,.0f}"


def percentile(samples, share: float) -> float | None:
    """By nearest rank."""
    ordered = sorted(samples or ())
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def about(result: dict) -> list[tuple[str, str]]:
    d, m, model, s = result["device"], result["machine"], result["model"], result["settings"]
    lines = [
        ("model", f"{model['name']}, {model['file']}, {model['kv_bytes_per_token']:,} bytes of KV a token, SHA-256 {model['sha256'][:16]}..."),
        ("device", ", ".join(str(x) for x in (d["device"], m["cpu"], d["os"], m["system"]) if x)),
        ("memory", f"{m['memory_bytes'] / 1e9:.1f} GB, {(d['available_bytes'] or 0) / 1e9:.1f} GB free at the start"
                   + (f", swap {d['swap_bytes'] / 1e9:.1f} GB" if d["swap_bytes"] else ", no swap")),
        ("cores", f"{m['cpus']}, threads used {d['threads_used']} ({d['threads_why']}); kernels {m['tier']}"),
        ("build", f"version {m['version']}" + (f", commit {m['commit']}" if m["commit"] else "") + f"; Python {m['python']}"),
        ("run", f"{result['date']}, {s['mode']}, context limit {s['context']:,}, {s['repeats']} processes a row"
                + (f"; power: {d['power']}" if d["power"] else "; power source not told")),
    ]
    if d["flags"]:
        lines.append(("flags", " ".join(f"{k}={v}" for k, v in d["flags"].items())))
    for measure, why in d["measures_lacking"].items():
        lines.append((f"no {measure}", why))
    busy = [b["busy"] for b in result.get("beside", ()) if b and b.get("quiet") is False]
    if busy:
        lines.append(("not quiet", f"up to {max(busy):.0%} of the CPUs were busy with something else: times are not to be quoted, bytes are"))
    return lines


def held_table(result: dict) -> Table:
    """Every scenario and side: what the process held beyond the interpreter."""
    rows: dict[tuple[str, str], dict] = {}
    for row in result["rows"].values():
        if "held" in row or "not_run" in row:
            rows.setdefault((row["scenario"], row["variant"]), {})[row["side"]] = row
    sides = [s for s in SIDES if any(s in r for r in rows.values())]

    def cell(row) -> str:
        if row is None:
            return "-"
        return _with_spread(row["held"]) if "held" in row else f"[{mb(row['would_reserve'])}]" if "would_reserve" in row else "not run"

    lines = [[" ".join(filter(None, key)), *(cell(row.get(side)) for side in sides)] for key, row in rows.items()]
    return Table("Memory of the process beyond the interpreter, MB of 10^6 bytes (anonymous; on macOS the footprint)",
                 ["scenario", *(NAMES[s] for s in sides)], lines,
                 "[n]: would have to allocate n MB, more than is free here, and was not run.  -: does not apply.  Medians, ± half the spread where above 2 %.")


def detail_tables(result: dict) -> list[Table]:
    rows = result["rows"]
    return [t for t in (_figure2(rows), _process(rows), _churn(rows), _forks(rows), _latency(rows), _restart(rows), _budget(rows), _price(rows), _formats(rows),
                        _life(rows)) if t and t.rows]


def _figure2(rows) -> Table | None:
    if "simulated" not in rows:
        return None
    paper, lines = rows["simulated"]["paper"], []
    for system, s in rows["simulated"]["systems"].items():
        p = paper.get(system, {})
        lines.append([NAMES[system], *(f"{s[k]:.1f}" + (f" ({p[k]:.1f})" if k in p else "") for k in ("tokens", "reserved", "internal", "external")),
                      f"{s['running']:.1f}"])
    return Table("The paper's Figure 2, simulated: percent of KV memory (the paper's in brackets)",
                 ["system", "tokens", "reserved", "internal", "external", "requests at a time"], lines,
                 "OPT-13B on one accelerator of 40 GB, ShareGPT-like lengths, 2 requests a second; averaged while requests wait.")


def _process(rows) -> Table:
    lines = []
    for row in rows.values():
        if "marks" not in row or row["side"] not in ("paged", "max", "lazy", "llama") or row["scenario"] not in ("one word", "growth", "give back"):
            continue
        for label, mark in row["marks"].items():
            if label in ("launched", "loaded") and row["scenario"] != "one word":
                continue
            lines.append([" ".join(filter(None, (row["scenario"], row["variant"], NAMES[row["side"]], label))),
                          *(mb(mark.get(k)) for k in ("rss", "pss", "uss", "anonymous", "file"))])
    return Table("The whole process at each mark, MB", ["mark", "RSS", "PSS", "USS", "anonymous", "file"], lines)


def _figure(value, form: str) -> str:
    value = value["median"] if isinstance(value, dict) else value
    return "" if value is None else format(value, form)


def _churn(rows) -> Table:
    lines = [[f"{r['variant']} {NAMES[r['side']]}", *(_figure(r.get(k), ".1f") for k in ("tokens", "reserved", "internal", "external", "of_held", "of_resident", "at_a_time")),
              _figure(r.get("preempted"), ".0f"), _figure(r.get("computed_again"), ".0f")] for r in rows.values() if r.get("scenario") == "churn" and "tokens" in r]
    return Table("Churn under one budget, percent of it while requests wait", ["", "tokens", "reserved", "internal", "external", "tokens of held",
                                                                               "tokens of resident", "requests at a time", "preempted", "computed again"], lines,
                 "Computed again: tokens fed a second time after a preemption, in percent of all; the price of admitting without a reservation.")


def _forks(rows) -> Table:
    lines = [[r["variant"], f"{_figure(r['saving'], '.1%')}", f"{_figure(r['saving_at_end'], '.1%')}", mb(r["searched_bytes"]), ms(percentile(r["steps"], 0.5))]
             for r in rows.values() if r.get("scenario") == "forks" and "saving" in r]
    return Table("Forks: blocks saved by sharing", ["", "mean over steps", "at the end", "MB for the search", "ms a step"], lines)


def _latency(rows) -> Table:
    lines = []
    for r in rows.values():
        if r.get("scenario") != "latency" or "steps" not in r:
            continue
        p50 = percentile(r["steps"], 0.5)
        joules = r.get("joules_per_token")
        lines.append([NAMES[r["side"]], *(ms(percentile(r.get(k), 0.5)) for k in ("cold_seconds", "warm_seconds", "fork_seconds")), ms(p50),
                      ms(percentile(r["steps"], 0.95)), ms(percentile(r["steps"], 0.99)), f"{1 / p50:,.1f}", _figure(joules, ".3f")])
    return Table("Time, ms: to the first token (cold, after a known system prompt, of a fork), then a token",
                 ["", "cold", "known prefix", "fork", "p50", "p95", "p99", "tokens/s", "J/token"], lines)


def _restart(rows) -> Table:
    lines = [[NAMES[r["side"]], ms(_float(r["cold_seconds"])), ms(percentile(r.get("restart_seconds"), 0.5)), mb(r.get("file_bytes")), mb(r.get("together_pss")),
              mb(r.get("together_uss")), mb(r.get("together_anonymous"))] for r in rows.values() if r.get("scenario") == "restart" and "cold_seconds" in r]
    return Table("Restart with a stored prefix", ["", "cold ms", "restart ms", "file MB", "3 processes: PSS", "USS", "anonymous"], lines,
                 "Three processes that hold the same prefix at once, together, beyond their interpreters; weights are in PSS, divided.")


def _float(value):
    return value["median"] if isinstance(value, dict) else value


def _budget(rows) -> Table:
    def word(value) -> str:
        return "" if value is None else "yes" if value else "NO"

    lines = [[NAMES[r["side"]], _figure(r["fit"], ".0f"), r.get("error_type") or "", word(r.get("others_go_on")), word(r.get("refused_goes_on"))]
             for r in rows.values() if r.get("scenario") == "budget" and "fit" in r]
    return Table("A budget hit on purpose", ["", "sessions that fit", "then", "others go on", "refused one goes on later"], lines)


def _price(rows) -> Table:
    lines = [[f"blocks of {r['block']}, after {r['depth']:,}", f"{1e3 / r['paged']['median']:.2f}", f"{1e3 / r['contiguous']['median']:.2f}", f"{r['ratio']:.3f}",
              f"{r['low']:.3f} to {r['high']:.3f}"] for r in rows.values() if r.get("scenario") == "price"]
    return Table("The price: decoding through shuffled blocks over contiguous ones", ["", "paged ms", "contiguous ms", "ratio", "range"], lines)


def _formats(rows) -> Table:
    lines = [[f"{NAMES[r['side']]} {r['variant']}", mb(r["held"]), mb(r["marks"]["deep"].get("ledger", {}).get("resident")), ms(percentile(r["steps"], 0.5)),
              ms(_float(r["prefill_seconds"]))] for r in rows.values() if r.get("scenario") == "formats" and "steps" in r]
    return Table("KV formats", ["", "process MB", "KV pool MB", "ms a token", "ms prefill"], lines)


def _life(rows) -> Table:
    some = [r for r in rows.values() if r.get("scenario") == "life" and "marks" in r]
    labels = list(some[0]["marks"]) if some else []
    lines = [[label, *(mb(r["marks"][label].get(key)) for r in some for key in ("rss", "anonymous"))] for label in labels]
    return Table("An app's day, MB of the whole process", ["", *(f"{NAMES[r['side']]} {k}" for r in some for k in ("RSS", "anonymous"))], lines)
