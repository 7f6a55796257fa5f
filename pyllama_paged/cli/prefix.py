"""
`pyllama-paged prefix`: the beginnings that are kept on disk, so that no process computes them again.

    build    compute one and keep it          list, show   what is there
    rm       throw some away                  gc           throw away what is damaged, left over, or beyond a limit
"""

from __future__ import annotations

import json
import sys
import time

from ..errors import InvalidArgument
from . import looks

__all__ = ["add_parser", "prefix"]


def add_parser(commands, model_options) -> None:
    p = commands.add_parser("prefix", help="keep system prompts computed on disk",
                            description="Prefixes kept on disk: computed once, mapped by every later process.")
    actions = p.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=type(p))

    c = actions.add_parser("build", help="compute one and keep it", description="Compute what conversations begin with, and keep it on disk.")
    model_options(c)
    c.add_argument("-sys", "--system-prompt", dest="system", type=looks.typed, metavar="TEXT", help="what the model is told first")
    c.add_argument("-f", "--file", metavar="FILE", help="take the system prompt from a file (-: standard input)")
    c.add_argument("--tools", metavar="FILE", help="a JSON file with the list of tools")
    c.add_argument("--label", metavar="NAME", help="what it is called in lists (default: its first words)")

    c = actions.add_parser("list", help="what is there")
    c.add_argument("--json", action="store_true", help="print one JSON object")
    c = actions.add_parser("show", help="one of them, and its text")
    c.add_argument("prefix", metavar="NAME", help="its name, or the beginning of its file's name")
    c.add_argument("--json", action="store_true", help="print one JSON object")
    c = actions.add_parser("rm", help="throw some away")
    c.add_argument("prefix", metavar="NAME", nargs="+")
    c = actions.add_parser("gc", help="throw away what is damaged, left over, or beyond the limit")
    c.add_argument("--limit", metavar="SIZE", help="keep at most this much, used last first (default: PLP_PREFIX_LIMIT, else 2GiB)")


def prefix(args) -> int:
    return {"build": _build, "list": _list, "show": _show, "rm": _remove, "gc": _collect}[args.action](args)


def _text(path: str) -> str:
    if path == "-":
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def _build(args) -> int:
    from .main import open_model

    if args.system is not None and args.file is not None:
        raise InvalidArgument("-sys and -f both give the system prompt; use one of them")
    system = _text(args.file) if args.file is not None else args.system
    tools = None
    if args.tools is not None:
        try:
            tools = json.loads(_text(args.tools))
        except ValueError as problem:
            raise InvalidArgument(f"{args.tools} is not JSON: {problem}") from None
        if not isinstance(tools, list):
            raise InvalidArgument(f"{args.tools} must hold a list of tools")
    with open_model(args) as model:
        began = time.perf_counter()
        made = model.prefix(system=system, tools=tools, name=args.label, keep=True)
        seconds = time.perf_counter() - began
        if made.path is None:
            raise InvalidArgument("the prefix was not kept: it is larger than the store may be (PLP_PREFIX_LIMIT)")
        how = "there already" if made.reused == len(made) else f"computed in {seconds:.2f} s"
        print(f"{looks.clean(made.name)}: {len(made):,} tokens, {looks.size(made.path.stat().st_size)}, {how}")
        print(made.path)
    return 0


def _facts(entry) -> dict:
    facts = {"name": entry.name, "file": str(entry.path), "bytes": entry.n_bytes, "used": entry.used, "problem": entry.problem}
    if entry.file:
        note = entry.file.note
        facts |= {"tokens": len(entry.file.tokens), "kv": entry.file.kv, "block_len": entry.file.block_len,
                  "fingerprint": entry.file.fingerprint, "model": note.get("model"), "system": note.get("system")}
    return facts


def _list(args) -> int:
    from ..store import PrefixStore

    store = PrefixStore()
    entries = store.entries()
    if args.json:
        print(json.dumps([_facts(e) for e in entries], ensure_ascii=False))
        return 0
    rows = []
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        what = f"{len(entry.file.tokens):,} tokens {entry.file.kv}, {looks.clean(str(entry.file.note.get('model', 'unknown model')))}" \
            if entry.file else f"not usable: {looks.clean(entry.problem)}"
        rows.append((looks.clean(entry.name), looks.size(entry.n_bytes), used, what))
    if rows:
        looks.grid(looks.console(), rows)
    total = sum(e.n_bytes for e in entries)
    print(f"{len(entries)} {'prefix' if len(entries) == 1 else 'prefixes'}, {looks.size(total)} of at most {looks.size(store.limit)}, in {store.folder}", file=sys.stderr)
    return 0


def _show(args) -> int:
    from ..store import PrefixStore

    entry = PrefixStore().find(args.prefix)
    facts = _facts(entry)
    if args.json:
        print(json.dumps({**facts, "ids": entry.file.tokens if entry.file else None}, ensure_ascii=False))
        return 0
    looks.grid(looks.console(), [(name, looks.clean(str(value))) for name, value in facts.items() if value is not None])
    return 0


def _remove(args) -> int:
    from ..store import PrefixStore

    store = PrefixStore()
    for entry in [store.find(name) for name in args.prefix]:        # all are known before one goes
        store.remove(entry.path)
        print(f"removed {looks.clean(entry.name)}")
    return 0


def _collect(args) -> int:
    from ..memory import parse_bytes
    from ..store import PrefixStore

    store = PrefixStore()
    gone = [e.path for e in store.entries() if e.problem and store.remove(e.path)]
    gone += store.tidy(parse_bytes(args.limit) if args.limit is not None else None)
    for path in gone:
        print(f"removed {path.name}")
    return 0
