"""
pyllama-paged: the command's parser, and the one place where an exception becomes a line and an exit code.

Exit codes   0 done, 2 something is wrong (one sentence on stderr), 130 interrupted
Ctrl-C       ends the process at once until what a command needs is imported; `__main__` sees to that
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import warnings
from collections.abc import Callable

from .. import __version__, hub
from ..errors import PllamaError
from . import bench, looks, plan, prefix

__all__ = ["INTERRUPTED", "main"]

INTERRUPTED = 130

_KV = {"f16": "f16", "q8": "q8", "q8_0": "q8", "q4": "q4", "q4_0": "q4", "q4_1": "q4"}


# Options of llama.cpp that people type by habit, and what is done here instead.
_ELSEWHERE = {
    ("-ngl", "--n-gpu-layers", "--gpu-layers"): "--device says where the whole model runs",
    ("--no-mmap",): "weights are always mapped, never copied; --mlock keeps them in memory",
    ("-fa", "--flash-attn", "-b", "--batch-size", "-ub", "--ubatch-size", "--jinja"): "it is not needed here",
    ("--prompt-cache", "--prompt-cache-file"): "/save and chat --load keep a conversation, `prefix build` a system prompt",
    ("-i", "--interactive", "-cnv", "--conversation", "-no-cnv", "--no-conversation", "-st", "--single-turn"):
        "chat is the command for conversations, run for single answers",
}


class _Parser(argparse.ArgumentParser):
    """One sentence for a wrong argument, like for everything else."""

    is_command = talks = False

    def error(self, message: str) -> None:
        print(f"{self.prog}: {message}", file=sys.stderr)
        print(f"{self.prog} --help shows what is possible", file=sys.stderr)
        sys.exit(2)

    def parse_known_args(self, args=None, namespace=None):
        if self.talks:
            for arg in args or ():          # before parsing: some would be taken for a short option with its value
                for names, instead in _ELSEWHERE.items():
                    if (name := arg.partition("=")[0]) in names:
                        self.error(f"there is no option {name}; {instead}")
        known, rest = super().parse_known_args(args, namespace)
        if rest and self.is_command:        # else the whole parser would say it, in its own name
            self.error(f"unknown: {' '.join(rest)}")
        return known, rest


class _OneFormat(argparse.Action):
    """-ctk and -ctv are one setting, because a block holds both in one format."""

    def __call__(self, parser, namespace, value, option=None):
        before = getattr(namespace, "kv_given", value)
        if _KV[before] != _KV[value]:
            raise argparse.ArgumentError(self, f"keys and values have one format here, not {before} and {value}")
        namespace.kv = namespace.kv_given = value


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def _model_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", nargs="?", metavar="MODEL",
                   help=f"a GGUF file, a catalog name, or org/repository:QUANT (default: {hub.DEFAULT})")
    p.add_argument("-m", "--model", "-hf", "--hf-repo", dest="model", metavar="MODEL", help="the same, as other tools take it")
    g = p.add_argument_group("model")
    g.add_argument("-c", "--ctx-size", dest="context", type=whole, default=0, metavar="N",
                   help="the most tokens of a conversation; costs no memory (default: the model's own)")
    g.add_argument("-t", "--threads", type=whole, default=0, metavar="N", help="default: the performance cores")
    g.add_argument("--device", default="auto", help="auto, cpu, cuda, metal, emu")
    g.add_argument("-ctk", "-ctv", "--kv", dest="kv", action=_OneFormat, choices=sorted(_KV), default="f16", metavar="FORMAT",
                   help="format of full KV blocks: f16 (default), q8, q4")
    g.add_argument("--kv-budget", metavar="SIZE", help="the most the KV pool may hold, e.g. 512MiB (default: half of the memory)")
    g.add_argument("--mlock", action="store_true", help="keep the weights from being paged out")


def _talk_options(p: argparse.ArgumentParser, temperature: float, repeat_penalty: float, speculate: str) -> None:
    g = p.add_argument_group("answer")
    g.add_argument("-n", "--max-tokens", "--n-predict", dest="max_tokens", type=whole, default=-1, metavar="N",
                   help="the most tokens of an answer (default: -1, until it is done)")
    g.add_argument("-sys", "--system-prompt", dest="system", type=looks.typed, metavar="TEXT", help="what the model is told first")
    g.add_argument("--think", metavar="HOW", help="on, off, or low, medium, high: reasoning, if the model's template has such a switch")
    g.add_argument("--temp", "--temperature", dest="temperature", type=_real, default=temperature, metavar="X",
                   help=f"0: always the most likely token (default: {temperature})")
    g.add_argument("--top-k", type=whole, default=0, metavar="N", help="default: 0, off")
    g.add_argument("--top-p", type=_real, default=1.0, metavar="X", help="default: 1, off")
    g.add_argument("--min-p", type=_real, default=0.05, metavar="X", help="default: 0.05; 0: off")
    g.add_argument("--typical-p", type=_real, default=1.0, metavar="X", help="default: 1, off")
    g.add_argument("--repeat-penalty", type=_real, default=repeat_penalty, metavar="X", help=f"1: off (default: {repeat_penalty})")
    g.add_argument("-s", "--seed", type=whole, default=0, metavar="N", help="the same seed gives the same text (default: 0)")
    g.add_argument("--speculate", choices=("on", "off"), default=speculate,
                   help=f"compute what followed last time ahead, where text repeats itself and it pays; the answer stays the same (default: {speculate})")


_EPILOG = """
examples:
  pyllama-paged chat                              talk to the default model
  pyllama-paged run qwen3-0.6b -p "Why is the sky blue?"
  git diff | pyllama-paged run -p "Summarise this."

environment:
  PLP_CACHE_DIR    where models are kept (now {cache})
  PLP_PREFIX_DIR   where prefixes are kept; PLP_PREFIX_LIMIT: how much of them
  PLP_CPU          the best kernels to use; `devices` shows what there is
  HF_HUB_OFFLINE   1: nothing is fetched

pyllama-paged COMMAND --help shows the options of a command."""


def parser() -> argparse.ArgumentParser:
    p = _Parser(prog="pyllama-paged", description="Run quantised GGUF models on a paged KV cache.", epilog=_EPILOG.format(cache=hub.cache_dir()),
                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--version", action="version", version=f"pyllama-paged {__version__}")
    commands = p.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    c = commands.add_parser("chat", help="talk to a model", description="Talk to a model. Piped input is answered line by line.")
    _model_options(c)
    c.talks = True
    c.add_argument("--load", metavar="FILE", help="go on with a conversation that /save wrote")
    _talk_options(c, 0.3, 1.1, "on")        # small models repeat themselves otherwise

    c = commands.add_parser("run", help="answer one prompt", description="Answer one prompt and leave. Piped text comes before the prompt.")
    _model_options(c)
    c.talks = True
    c.add_argument("-p", "--prompt", type=looks.typed, metavar="TEXT", help="what is asked")
    c.add_argument("-f", "--file", metavar="FILE", help="take the prompt from a file (-: standard input)")
    c.add_argument("--raw", action="store_true", help="continue the prompt as it is, without the chat template")
    c.add_argument("--json", action="store_true", help="print one JSON object with the answer and the figures")
    _talk_options(c, 0.0, 1.0, "off")

    c = commands.add_parser("inspect", help="look into a GGUF file", description="Show what a GGUF file holds; damaged files as far as they can be read.")
    c.add_argument("file", metavar="FILE", help="a GGUF file, or the name of a model that is here")
    c.add_argument("--tensors", action="store_true", help="list every tensor")
    c.add_argument("--json", action="store_true", help="print one JSON object")

    c = commands.add_parser("pull", help="fetch a model", description="Fetch a model; continues where an earlier try stopped, and checks what came.")
    c.add_argument("name", metavar="NAME", nargs="?", help="a catalog name or org/repository:QUANT")
    c.add_argument("--list", action="store_true", help="show the catalog: sources, licences, sizes, what is here")

    c = commands.add_parser("devices", help="show what this machine offers", description="Show this machine's kernels, threads, memory and devices.")
    c.add_argument("--json", action="store_true", help="print one JSON object")

    prefix.add_parser(commands, _model_options)
    plan.add_parser(commands)
    bench.add_parser(commands)
    for c in commands.choices.values():
        c.is_command = True
    return p


def open_model(args):
    """The model that `_model_options` ask for."""
    from ..model import Model

    path = hub.find(args.model or args.name or hub.DEFAULT, progress=looks.progress())
    return Model.open(path, kv=_KV[args.kv], kv_budget=args.kv_budget, device=args.device, threads=args.threads,
                      context=args.context, mlock=args.mlock)


def with_stored_beginning(model, session):
    """The session; what it begins with is mapped, if `prefix build` or /pin has kept it, and need not be computed."""
    from .. import prefix

    if (found := prefix.stored(model, session.messages, session.template)) is not None:
        found.adopt(session)
    return session


def sampling(args):
    """The settings that `_talk_options` ask for."""
    from ..sampling import Sampling

    return Sampling(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p,
                    typical_p=args.typical_p, repeat_penalty=args.repeat_penalty, seed=args.seed)


def thought(text: str | None) -> bool | str | None:
    """A word for `Session.think`."""
    return {"on": True, "off": False, "auto": None}.get(text, text)


def _pull(args) -> int:
    if args.list:
        looks.grid(looks.console(), [
            (name, "; ".join([e["title"], *([looks.size(e["n_bytes"])] if e["n_bytes"] else []), e["license"], e["hub"]["repo"],
                              *(["it is here"] if hub.is_here(name) else [])])) for name, e in hub.catalog().items()])
        return 0
    print(hub.fetch(args.name or hub.DEFAULT, looks.progress()))
    return 0


def _command(name: str) -> Callable[..., int]:
    """What carries a command out, with all it always needs imported."""
    if name in ("chat", "run"):
        from .. import model  # noqa: F401
    if name == "chat":
        from .chat import chat

        return chat
    if name == "run":
        from .run import run

        return run
    if name in ("inspect", "devices"):
        from . import show

        return getattr(show, name)
    return {"pull": _pull, "bench": bench.bench, "plan": plan.plan, "prefix": prefix.prefix}[name]


def _ready_streams() -> None:
    """A program can be started without one of them (`<&-`), and with an encoding that lacks characters of an answer or a path."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    if sys.stdout.errors in ("strict", "surrogateescape") and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")


def _say_warning(message, *_rest) -> None:
    """As everything else that is said about the work, without the place in the source."""
    print(f"pyllama-paged: {looks.clean(str(message))}", file=sys.stderr)


def main(argv: list[str] | None = None, *, takes_interrupts: bool = False) -> int:
    """takes_interrupts: from when the command begins its work, Ctrl-C is to be a KeyboardInterrupt"""
    _ready_streams()
    options = parser()
    args = options.parse_args(argv)
    if args.command is None:
        options.print_help(sys.stderr)
        return 2
    command = _command(args.command)
    try:
        if takes_interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with warnings.catch_warnings():
            warnings.showwarning = _say_warning
            return command(args)
    except PllamaError as problem:
        print(f"pyllama-paged: {looks.clean(' '.join(str(problem).split()))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        looks.no_pipe_error()
        return 0
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else "writing failed: " if problem.errno in (errno.ENOSPC, errno.EIO, errno.EFBIG) else ""
        print(f"pyllama-paged: {where}{problem.strerror or problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
