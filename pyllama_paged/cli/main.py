"""
pyllama-paged: the command's parser, and the one place where an exception becomes a line and an exit code.

Exit codes   0 done, 2 something is wrong (one sentence on stderr), 130 interrupted
"""

from __future__ import annotations

import argparse
import os
import sys

from .. import __version__, hub
from ..errors import PllamaError
from . import bench, looks, plan, prefix

__all__ = ["main"]

_KV = {"f16": "f16", "q8": "q8", "q8_0": "q8", "q4": "q4", "q4_0": "q4", "q4_1": "q4"}


class _Parser(argparse.ArgumentParser):
    """One sentence for a wrong argument, like for everything else."""

    def error(self, message: str) -> None:
        print(f"{self.prog}: {message}", file=sys.stderr)
        print(f"{self.prog} --help shows what is possible", file=sys.stderr)
        sys.exit(2)


def _model_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", nargs="?", metavar="MODEL",
                   help=f"a GGUF file, a catalog name, or org/repository:QUANT (default: {hub.DEFAULT})")
    p.add_argument("-m", "--model", metavar="MODEL", help="the same, as other tools take it")
    g = p.add_argument_group("model")
    g.add_argument("-c", "--ctx-size", dest="context", type=int, default=0, metavar="N",
                   help="the most tokens of a conversation; costs no memory (default: the model's own)")
    g.add_argument("-t", "--threads", type=int, default=0, metavar="N", help="default: the performance cores")
    g.add_argument("--device", default="auto", help="auto, cpu, cuda, metal, emu")
    g.add_argument("-ctk", "-ctv", "--kv", dest="kv", choices=sorted(_KV), default="f16", metavar="FORMAT",
                   help="format of full KV blocks: f16 (default), q8, q4")
    g.add_argument("--kv-budget", metavar="SIZE", help="the most the KV pool may hold, e.g. 512MiB (default: half of the memory)")
    g.add_argument("--mlock", action="store_true", help="keep the weights from being paged out")


def _talk_options(p: argparse.ArgumentParser, temperature: float, repeat_penalty: float, speculate: str) -> None:
    g = p.add_argument_group("answer")
    g.add_argument("-n", "--max-tokens", "--n-predict", dest="max_tokens", type=int, default=-1, metavar="N",
                   help="the most tokens of an answer (default: -1, until it is done)")
    g.add_argument("-sys", "--system-prompt", dest="system", metavar="TEXT", help="what the model is told first")
    g.add_argument("--think", metavar="HOW", help="on, off, or low, medium, high: reasoning, if the model's template has such a switch")
    g.add_argument("--temp", "--temperature", dest="temperature", type=float, default=temperature, metavar="X",
                   help=f"0: always the most likely token (default: {temperature})")
    g.add_argument("--top-k", type=int, default=0, metavar="N", help="default: 0, off")
    g.add_argument("--top-p", type=float, default=1.0, metavar="X", help="default: 1, off")
    g.add_argument("--min-p", type=float, default=0.05, metavar="X", help="default: 0.05; 0: off")
    g.add_argument("--typical-p", type=float, default=1.0, metavar="X", help="default: 1, off")
    g.add_argument("--repeat-penalty", type=float, default=repeat_penalty, metavar="X", help=f"1: off (default: {repeat_penalty})")
    g.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same text (default: 0)")
    g.add_argument("--speculate", choices=("on", "off"), default=speculate,
                   help=f"compute what followed last time ahead, where text repeats itself and it pays; the answer stays the same (default: {speculate})")


def parser() -> argparse.ArgumentParser:
    p = _Parser(prog="pyllama-paged", description="Run quantised GGUF models on a paged KV cache.")
    p.add_argument("--version", action="version", version=f"pyllama-paged {__version__}")
    commands = p.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    c = commands.add_parser("chat", help="talk to a model", description="Talk to a model. Piped input is answered line by line.")
    _model_options(c)
    _talk_options(c, 0.3, 1.1, "on")        # small models repeat themselves otherwise

    c = commands.add_parser("run", help="answer one prompt", description="Answer one prompt and leave. Piped text comes before the prompt.")
    _model_options(c)
    c.add_argument("-p", "--prompt", metavar="TEXT")
    c.add_argument("-f", "--file", metavar="FILE", help="take the prompt from a file (-: standard input)")
    c.add_argument("--raw", action="store_true", help="continue the prompt as it is, without the chat template")
    c.add_argument("--json", action="store_true", help="print one JSON object with the answer and the figures")
    _talk_options(c, 0.0, 1.0, "off")

    c = commands.add_parser("inspect", help="look into a GGUF file", description="Show what a GGUF file holds; damaged files as far as they can be read.")
    c.add_argument("file", metavar="FILE", help="a GGUF file, or the name of a model that is here")
    c.add_argument("--tensors", action="store_true", help="list every tensor")
    c.add_argument("--json", action="store_true")

    c = commands.add_parser("pull", help="fetch a model", description="Fetch a model; continues where an earlier try stopped, and checks what came.")
    c.add_argument("name", metavar="NAME", nargs="?", help="a catalog name or org/repository:QUANT")
    c.add_argument("--list", action="store_true", help="show the catalog: sources, licences, sizes, what is here")

    c = commands.add_parser("devices", help="show what this machine offers")
    c.add_argument("--json", action="store_true")

    prefix.add_parser(commands, _model_options)
    plan.add_parser(commands)
    bench.add_parser(commands)
    return p


def open_model(args):
    """The model that `_model_options` ask for."""
    from ..model import Model

    path = hub.find(args.model or args.name or hub.DEFAULT, progress=looks.progress())
    return Model.open(path, kv=_KV[args.kv], kv_budget=args.kv_budget, device=args.device, threads=args.threads,
                      context=args.context, mlock=args.mlock)


def sampling(args):
    """The settings that `_talk_options` ask for."""
    from ..sampling import Sampling

    return Sampling(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p,
                    typical_p=args.typical_p, repeat_penalty=args.repeat_penalty, seed=args.seed)


def thought(text: str | None) -> bool | str | None:
    """A word for `Session.think`."""
    return {"on": True, "off": False, "auto": None}.get(text, text)


def _dispatch(args) -> int:
    if args.command == "chat":
        from .chat import chat

        return chat(args)
    if args.command == "run":
        from .run import run

        return run(args)
    if args.command == "pull" and args.list:
        looks.grid(looks.console(), [
            (name, "; ".join([e["title"], *([looks.size(e["n_bytes"])] if e["n_bytes"] else []), e["license"], e["hub"]["repo"],
                              *(["it is here"] if hub.is_here(name) else [])])) for name, e in hub.catalog().items()])
        return 0
    if args.command == "pull":
        path = hub.fetch(args.name or hub.DEFAULT, looks.progress())
        print(path)
        return 0
    if args.command == "bench":
        return bench.bench(args)
    if args.command == "plan":
        return plan.plan(args)
    if args.command == "prefix":
        return prefix.prefix(args)
    from . import show

    return {"inspect": show.inspect, "devices": show.devices}[args.command](args)


def _ready_streams() -> None:
    """A program can be started without one of them (`<&-`), and with an encoding that lacks characters of an answer or a path."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    if sys.stdout.errors == "strict" and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")


def main(argv: list[str] | None = None) -> int:
    _ready_streams()
    args = parser().parse_args(argv)
    try:
        return _dispatch(args)
    except PllamaError as problem:
        print(f"pyllama-paged: {looks.clean(' '.join(str(problem).split()))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        looks.no_pipe_error()
        return 0
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        print(f"pyllama-paged: {where}{problem.strerror or problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
