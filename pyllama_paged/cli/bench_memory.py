"""
`pyllama-paged bench memory`, `bench report` and `bench compare`: options, and where the report goes.

A folder gets memory.json while the run goes on, and memory.html in the end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from .. import hub
from . import looks

__all__ = ["add_parsers", "compare", "memory", "report"]

_OUT = "bench-memory"


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def add_parsers(kinds) -> None:
    c = kinds.add_parser("memory", help="which gains of paging travel to this device",
                         description="The memory protocol: paged beside contiguous caches and llama.cpp, as real processes. An interrupted run is taken up "
                                     "again by the same command.")
    c.add_argument("name", nargs="?", metavar="MODEL", default=hub.DEFAULT, help=f"a GGUF file, a catalog name, or org/repository:QUANT (default: {hub.DEFAULT})")
    mode = c.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_true", help="a few minutes (the default)")
    mode.add_argument("--full", action="store_true", help="longer contexts, more sessions, five processes for every row; up to 40 minutes")
    c.add_argument("--peers", action="store_true", help="also llama.cpp, if this Python has llama-cpp-python")
    c.add_argument("--peer-python", metavar="PATH", help="also llama.cpp, through the Python of another environment")
    c.add_argument("-o", "--out", type=Path, default=Path(_OUT), metavar="DIR", help=f"where the report goes (default: {_OUT})")
    c.add_argument("-t", "--threads", type=_count, default=0, metavar="N", help="default: the performance cores")
    c.add_argument("-c", "--context", type=_count, default=0, metavar="N", help="limit of a session (default: the model's, up to 4,096 or with --full 8,192)")
    c.add_argument("-r", "--repeats", type=_count, default=0, metavar="N", help="processes for every row (default: 2, with --full 5)")
    c.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="SCENARIO,..", help="one word, growth, sessions, churn, forks, give back, "
                   "restart, budget, price, formats, life, latency")
    c.add_argument("--json", action="store_true", help="print the result as one JSON object instead of tables")

    c = kinds.add_parser("report", help="show a memory result again", description="Tables and page of a result that is there.")
    c.add_argument("out", type=Path, metavar="DIR", help="a folder with memory.json")

    c = kinds.add_parser("compare", help="two memory results", description="Two results of bench memory, and which figures differ by more than their spread.")
    c.add_argument("a", metavar="A.json")
    c.add_argument("b", metavar="B.json")
    c.add_argument("--all", action="store_true", help="also what agrees")
    c.add_argument("--json", action="store_true")


def _page(result: dict, folder: Path) -> None:
    from ..bench.memory import page

    target = folder / "memory.html"
    aside = target.with_name(target.name + ".tmp")
    aside.write_text(page.page(result), encoding="utf-8")
    os.replace(aside, target)
    print(f"{folder / 'memory.json'}\n{target}" + ("" if page.have_plots() else "  (no plots: matplotlib is not installed)"), file=sys.stderr)


def memory(args) -> int:
    from ..bench.memory import run, summary

    def said(line: str) -> None:
        print(looks.clean(line), file=sys.stderr, flush=True)

    path = hub.find(args.name, progress=looks.progress())
    args.out.mkdir(parents=True, exist_ok=True)
    result = run.measure(Path(path), args.out, quick=not args.full, threads=args.threads, peer=args.peer_python, peers_wanted=args.peers, only=args.only,
                         repeats=args.repeats, context=args.context, said=said)
    if args.json:
        print(json.dumps(result))
    else:
        summary.show(result)
    _page(result, args.out)
    return 0


def report(args) -> int:
    from ..bench.memory import compare, summary, verdicts

    result = compare.load(args.out / "memory.json")
    result["verdicts"] = verdicts.of(result)            # the numbers are the truth; the words follow them
    summary.show(result)
    _page(result, args.out)
    return 0


def compare(args) -> int:
    from ..bench.memory import compare as two, summary

    a, b = two.load(args.a), two.load(args.b)
    result = two.compare(a, b)
    if args.json:
        print(json.dumps(result))
        return 0
    out = looks.console()
    if not out.is_terminal:
        out.width = 160
    for same, words in ((result["same_model"], "The models are not the same: figures of bytes are not comparable."),
                        (result["same_device"], "The devices are not the same: times are not comparable.")):
        if not same:
            out.print(f"[yellow]{words}[/]")
    summary.draw(out, two.table(result, args.all))
    return 0
