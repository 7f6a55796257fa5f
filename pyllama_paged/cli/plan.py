"""
`pyllama-paged plan`: what a model needs and what this machine has, without loading anything.
"""

from __future__ import annotations

import json

from .. import hub, plan as arithmetic
from .._native import call, ffi, lib
from ..errors import InvalidArgument, ModelNotFound
from . import looks

__all__ = ["add_parser", "plan"]

_EXAMPLE = 2_000            # tokens of the example that the paper gives
_SCRATCH = 48 << 20         # activations, tables, the library itself


def add_parser(commands) -> None:
    p = commands.add_parser("plan", help="what a model needs", description="Weights, KV bytes per token, and the context that fits this machine.")
    p.add_argument("name", nargs="?", metavar="MODEL", help="a GGUF file, or the name of a model that is here")
    p.add_argument("--shape", metavar="NAME", help=f"a known shape: {', '.join(arithmetic.shapes())}")
    p.add_argument("--memory", metavar="SIZE", help="plan for a machine with this much free memory instead of this one, e.g. 6GiB")
    p.add_argument("--sessions", type=int, default=1, metavar="N", help="conversations at a time (default: 1)")
    p.add_argument("--prefix", type=int, default=0, metavar="N", help="tokens that they all begin with (default: 0)")
    p.add_argument("--json", action="store_true", help="print one JSON object")


def free_memory() -> int:
    """Bytes that can be had without pushing others out: the system's estimate, or the whole memory where it gives none."""
    machine = ffi.new("plp_machine *")
    call(lib.plp_machine_info, machine)
    free = machine.memory_bytes
    try:
        with open("/proc/meminfo") as f:
            for line in f:
                if line.startswith("MemAvailable:"):
                    free = min(free, int(line.split()[1]) * 1024)
    except OSError:
        pass
    return free


def _shape(args) -> arithmetic.Shape:
    if args.shape and args.name:
        raise InvalidArgument("plan takes a model or a --shape, not both")
    if args.shape:
        if args.shape not in arithmetic.shapes():
            raise InvalidArgument(f"--shape {args.shape} is not known; it is one of {', '.join(arithmetic.shapes())}")
        return arithmetic.shapes()[args.shape]
    name = args.name or hub.DEFAULT
    try:
        path = hub.find(name, download=False)
    except ModelNotFound:
        if name in arithmetic.shapes():         # a model that is not here yet can be planned for
            return arithmetic.shapes()[name]
        raise
    return arithmetic.of_file(path)


def facts(shape: arithmetic.Shape, memory: int, sessions: int, prefix: int) -> dict:
    weights = min(shape.weights.values())
    room = max(0, memory - weights - _SCRATCH)
    out = {"title": shape.title, "params": shape.params, "layers": shape.layers, "context": shape.context, "window": shape.window,
           "weights_bytes": shape.weights, "free_bytes": memory, "kv_room_bytes": room, "sessions": sessions, "prefix": prefix, "kv": {}}
    for kv in arithmetic.FORMATS:
        out["kv"][kv] = {"bytes_per_token": arithmetic.kv_bytes(shape, kv), "bytes_of_2000_tokens": arithmetic.held_bytes(shape, kv, _EXAMPLE),
                         "bytes_of_full_context": arithmetic.held_bytes(shape, kv, shape.context),
                         "tokens_that_fit": arithmetic.longest_context(shape, kv, room),
                         "context_that_fits": arithmetic.longest_context(shape, kv, room, sessions=sessions, prefix=prefix)}
    return out


def _si(n: float) -> str:
    """Bytes in powers of 1000, as memory is sold and the paper counts: 1.6 GB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if n >= factor:
            return f"{n / factor:.1f} {unit}" if n < 100 * factor else f"{n / factor:,.0f} {unit}"
    return f"{n / 1e3:.1f} kB"


def _states(shape: arithmetic.Shape) -> str:
    group = next(g for g in shape.groups if g.is_state)
    return f"{group.layers} layers have a running state instead, {_si(group.block_bytes[0])} for every {group.block_len} tokens, of which the last few are kept."


def plan(args) -> int:
    from ..model import parse_bytes

    if args.sessions < 1 or args.prefix < 0:
        raise InvalidArgument("--sessions must be 1 or more, --prefix 0 or more")
    shape = _shape(args)
    memory = parse_bytes(args.memory) if args.memory else free_memory()
    f = facts(shape, memory, args.sessions, args.prefix)
    if args.json:
        print(json.dumps(f))
        return 0
    from rich import box
    from rich.table import Table

    out = looks.console()
    out.print(f"[bold]{looks.clean(f['title'])}[/]  {looks.count(f['params'])} parameters, {f['layers']} layers, "
              f"context {f['context']:,} tokens" + (f", some layers look back {f['window']:,}" if f["window"] else ""), soft_wrap=True)
    out.print("weights  " + "; ".join(f"{name}: {_si(n)}" for name, n in f["weights_bytes"].items()), soft_wrap=True)
    each = "context that fits" + (f" each of {args.sessions}" if args.sessions > 1 else "")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("KV format", "a token", f"{_EXAMPLE:,} tokens", "a full context", each):
        table.add_column(name, justify="left" if name == "KV format" else "right", no_wrap=True)
    for kv, k in f["kv"].items():
        fits = k["context_that_fits"]
        table.add_row(kv, f"{k['bytes_per_token'] / 1024:,.4g} KB ({k['bytes_per_token']:,.0f} bytes)", _si(k["bytes_of_2000_tokens"]),
                      _si(k["bytes_of_full_context"]), f"{fits:,}" + (" (more than the model's own)" if f["context"] and fits > f["context"] else ""))
    out.width = max(out.width, 110)
    out.print(table)
    out.print(f"[dim]KB = 1,024 bytes, GB = 10^9. Free here: {_si(memory)}; after weights and work space {_si(f['kv_room_bytes'])} are left for KV."
              + (f" The first {args.prefix:,} tokens are held once for all." if args.prefix else "")
              + (" Layers with a window are counted with what they hold at that length." if f["window"] else "")
              + (f" {looks.clean(_states(shape))}" if any(g.is_state for g in shape.groups) else "") + "[/]", soft_wrap=True)
    return 0
