"""
Results as tables for people. Numbers are right-aligned, a share of a limit stands beside what it is a share of.
"""

from __future__ import annotations

from ..cli import looks
from . import kernels

__all__ = ["show"]

_WIDTH = 160
_WORDS = {"reached": "[green]reached[/]", "ahead": "ahead", "short": "[yellow]short of the bar[/]",
          "behind": "[red]the peer is better[/]", "not measured": "[dim]not measured[/]"}


def show(result: dict) -> None:
    out = looks.console()
    if not out.is_terminal:
        out.width = _WIDTH                      # a file or a pipe has room
    _machine(out, result["machine"])
    {"speed": _speed, "peers": _peers, "kernels": _kernels}[result["bench"]](out, result)
    states = [state for row in result["rows"].values() for state in row.get("beside", ())]
    if any(state["quiet"] is False for state in states):
        busy = max(state["busy"] for state in states if state["busy"] is not None)
        out.print(f"[yellow]The machine was not quiet[/] (up to {busy:.0%} busy with something else): these figures are not to be quoted.")


def _machine(out, about: dict) -> None:
    words = [about["cpu"], about["family"], f"{about['cpus']} CPUs", f"kernels {about['tier']}", about["system"],
             f"version {about['version']}" + (f" ({about['commit']})" if about["commit"] else "")]
    out.print("[dim]" + ", ".join(looks.clean(str(word)) for word in words if word) + "[/]")


def _table(title: str, *columns: str):
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        left = column.startswith("<")
        table.add_column(column.lstrip("<"), justify="left" if left else "right", no_wrap=True)
    return table


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _giga(value: float | None) -> str:
    return "" if value is None else f"{value / 1e9:,.1f}"


def _speed(out, result: dict) -> None:
    table = _table("Speed", "<work", "after", "sessions", "<KV", "threads", "tokens/s", "spread", "GB/s", "of limit", "Gops/s", "of peak")
    for row in result["rows"].values():
        if row["work"] == "idle":
            continue
        speed = row["tokens_per_second"]
        table.add_row(f"{row['work']} {row['tokens']}", f"{row['depth']:,}", str(row["sessions"]), row["kv"], str(row["threads"]),
                      looks.rate(speed["median"]), f"{speed['spread']:.1%}", _giga(row.get("bytes_per_second")), _share(row.get("of_read_limit")),
                      _giga(row.get("operations_per_second")), _share(row.get("of_peak")))
    out.print(table)
    for row in result["rows"].values():
        if row["work"] == "idle":
            out.print(f"A session that waits uses {row['cpu_share']:.2%} of a CPU ({row['kv']}, {row['threads']} threads).")


def _peers(out, result: dict) -> None:
    timed = _table("Side by side, tokens/s", "<model", "<work", "after", "<KV", "ours", "llama.cpp", "ratio", "pairs", "of limit", "bar", "<")
    memory = _table("Anonymous memory beyond the interpreter with the package imported", "<model", "context", "ours", "llama.cpp", "bar", "<")
    for row in result["rows"].values():
        verdict = _WORDS[row["verdict"]] + (f": {looks.clean(row['why'])}" if "why" in row else "")
        if row["work"] == "memory":
            sizes = [looks.size(row[side]) if side in row else "" for side in ("ours", "peer")]
            memory.add_row(looks.clean(row["model"]), f"{row['context']:,}", *sizes,
                           f"{row['most_mb']} MB" if "most_mb" in row else "", verdict)
            continue
        if "why" in row:
            timed.add_row(looks.clean(row["model"]), f"{row['work']} {row['tokens']}", f"{row['depth']:,}", row["kv"], "", "", "", "", "", "", verdict)
            continue
        bar = f"{row['bar']} x" if "bar" in row else f"{row['limit_bar']:.0%} of limit" if "limit_bar" in row else ""
        busy = f", {row['busy']} busy beside" if "busy" in row else ""
        timed.add_row(looks.clean(row["model"]), f"{row['work']} {row['tokens']}{busy}", f"{row['depth']:,}", row["kv"],
                      looks.rate(row["ours"]["median"]), looks.rate(row["peer"]["median"]), f"{row['ratio']:.2f}",
                      f"{row['low']:.2f}-{row['high']:.2f}", _share(row.get("of_limit")), bar, verdict)
    for table in (timed, memory):
        if table.row_count:
            out.print(table)


def _kernels(out, result: dict) -> None:
    rows = result["rows"]
    lines = [line for part in rows.values() for line in part["lines"]]
    products = _table("Products: weights from memory", "<tier", "<type", "tokens", "GB/s", "of limit", "Gops/s", "of peak", "spread")
    vectors = _table("Rows, one thread, warm", "<tier", "<kernel", "us", "GB/s", "of L1", "spread")
    for line in lines:
        if "place" in line:
            continue
        if "seconds" not in line:
            if "type" in line:
                products.add_row(line["tier"], line["type"], str(line["n"]), "", "", "[dim]left out[/]", "", "")
            else:
                vectors.add_row(line["tier"], line["kernel"], "[dim]left out[/]", "", "", "")
        elif line.get("cold"):
            products.add_row(line["tier"], line["type"], str(line["n"]), _giga(line["bytes_per_second"]), _share(line["of_read_limit"]),
                             _giga(line["ops_per_second"]), _share(line["of_peak"]), f"{line['spread']:.1%}")
        else:
            name = f"{line['kernel']} {line['n']}" if line["kernel"] == "x_pack" else line["kernel"]
            vectors.add_row(line["tier"], name, f"{line['median'] * 1e6:.2f}", _giga(line["bytes_per_second"]),
                            _share(line["of_l1_limit"]), f"{line['spread']:.1%}")
    price = _table("Attention of one token: time through the table over time of a contiguous walk", "<tier", "<kernel", "<pages", "block",
                   "contiguous ms", "in order", "shuffled", "GB/s", "of limit")
    for row in kernels.paging(lines):
        price.add_row(row["tier"], row["kernel"], row["pages"], str(row["block_len"]), f"{row['contiguous_ms']:.2f}", f"{row['in order']:.3f}",
                      f"{row['shuffled']:.3f}", _giga(row["shuffled_bytes_per_second"]), _share(row["of_read_limit"]))
    for table in (products, vectors, price):
        if table.row_count:
            out.print(table)
