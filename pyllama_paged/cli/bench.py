"""
`pyllama-paged bench speed | kernels | peers`: the options, and where results go. The memory protocol is in bench_memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from .. import hub
from ..errors import InvalidArgument
from . import bench_memory, looks

__all__ = ["add_parser", "bench"]


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        numbers = (-1,)
    if min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers like 0,1024")
    return numbers


def _words(text: str) -> list[str]:
    return text.split(",")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _common(p: argparse.ArgumentParser) -> None:
    p.add_argument("--json", action="store_true", help="print the results as one JSON object")
    p.add_argument("--save", metavar="PATH", help="also write them to this file, row by row: an interrupted run is taken up again "
                   "by the same command; or into this folder, under a new name")
    p.add_argument("--wait", type=float, default=0, metavar="SECONDS", help="wait this long for a quiet machine before each row (default: 0)")


def _model(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", nargs="?", metavar="MODEL", default=hub.DEFAULT,
                   help=f"a GGUF file, a catalog name, or org/repository:QUANT (default: {hub.DEFAULT})")
    p.add_argument("-r", "--repeats", type=_positive, default=5, metavar="N", help="repetitions; medians are quoted (default: 5)")


def _small(p: argparse.ArgumentParser) -> None:
    p.add_argument("--small", action="store_true", help="measure limits roughly, on small sizes: to see that it works")


def add_parser(commands) -> None:
    bench = commands.add_parser("bench", help="measure", description="Measure speed beside what the machine could do at best, and memory beside other ways to place KV.")
    kinds = bench.add_subparsers(dest="kind", required=True, metavar="WHAT", parser_class=type(bench))

    c = kinds.add_parser("speed", help="prefill and decode", description="Prefill, decode, and several sessions decoding together.")
    _model(c)
    c.add_argument("-p", "--prefill", type=_numbers, default=(64, 512), metavar="N,..", help="prompt lengths (default: 64,512)")
    c.add_argument("-n", "--decode", type=_positive, default=32, metavar="N", help="tokens that a repetition decodes (default: 32)")
    c.add_argument("-d", "--depths", type=_numbers, default=(0, 1024, 7168), metavar="N,..",
                   help="tokens of context before (default: 0,1024,7168; what the model cannot hold is left out)")
    c.add_argument("-b", "--batches", type=_numbers, default=(2, 4, 8), metavar="N,..", help="sessions decoding together (default: 2,4,8; 1: none)")
    c.add_argument("-t", "--threads", type=_numbers, default=(0,), metavar="N,..", help="default: 0, the performance cores")
    c.add_argument("--kv", type=_words, default=["f16"], metavar="FORMAT,..", help="f16, q8, q4 (default: f16)")
    c.add_argument("--idle", action="store_true", help="also the CPU time of a session that waits")
    _small(c)
    _common(c)

    c = kinds.add_parser("kernels", help="single kernels", description="Every kernel of every tier, and what paging costs attention.")
    c.add_argument("-t", "--threads", type=_positive, default=None, metavar="N", help="default: the performance cores")
    c.add_argument("--tiers", type=_words, metavar="TIER,..", help="default: all that this CPU runs")
    c.add_argument("--only", type=_words, metavar="KERNEL,..", help="names as in kernels.def, or attention")
    c.add_argument("--types", type=_words, metavar="TYPE,..", help="tensor types of the products, as Q4_K")
    c.add_argument("--kv", type=_words, metavar="FORMAT,..", help="formats of the attention: f16, q8, q4")
    _small(c)
    _common(c)

    c = kinds.add_parser("peers", help="beside llama.cpp", description="This runtime and llama.cpp, taking turns, and the ratio.")
    _model(c)
    c.add_argument("-t", "--threads", type=int, default=0, metavar="N", help="of both (default: the performance cores)")
    c.add_argument("--peer-python", metavar="PATH", help="a Python that has llama-cpp-python (default: this one)")
    c.add_argument("--only", choices=("prefill", "decode", "memory"), help="only this kind of work")
    c.add_argument("--busy", type=int, default=0, metavar="N", help="run N busy processes beside both")
    _common(c)

    bench_memory.add_parsers(kinds)


def bench(args) -> int:
    if args.kind in ("memory", "report", "compare"):
        return {"memory": bench_memory.memory, "report": bench_memory.report, "compare": bench_memory.compare}[args.kind](args)
    from ..bench import record, tables

    def said(line: str) -> None:
        print(looks.clean(line), file=sys.stderr, flush=True)

    settings = {key: list(value) if isinstance(value, tuple) else value for key, value in vars(args).items()
                if key not in ("command", "kind", "json", "save", "wait", "peer_python")}
    # A record may be published: it names the model's file, not the folders of whoever ran it.
    if os.path.exists(settings.get("name", "")):
        settings["name"] = os.path.basename(settings["name"])
    if args.kind == "kernels":
        from ..bench import kernels, machine

        threads = args.threads or machine.describe()["threads"]
        result = kernels.run(record.Record("kernels", settings, args.save), threads=threads, tiers=args.tiers, only=args.only, types=args.types,
                             formats=args.kv, small=args.small, patience=args.wait, said=said)
    elif args.kind == "speed":
        from ..bench import speed

        if unknown := set(args.kv) - {"f16", "q8", "q4"}:
            raise InvalidArgument(f"--kv: {', '.join(sorted(unknown))} is not one of f16, q8, q4")
        plan = speed.Plan(args.prefill, args.decode, args.depths, args.batches, args.threads, tuple(args.kv), args.repeats, args.idle, args.wait, args.small)
        path = hub.find(args.name, progress=looks.progress())
        result = speed.run(path, plan, record.Record("speed", settings, args.save), said)
    else:
        from ..bench import peers

        python = peers.find_peer(args.peer_python)
        path = hub.find(args.name, progress=looks.progress())
        result = peers.run(path, record.Record("peers", settings, args.save), python=python, threads=args.threads, repeats=args.repeats,
                           patience=args.wait, only=args.only, n_busy=args.busy, said=said)
    if args.json:
        print(json.dumps(result))
    else:
        tables.show(result)
    return 0
