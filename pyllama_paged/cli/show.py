"""
`pyllama-paged inspect` and `devices`: looking, without loading.

A file that is looked at is hostile like any other: what it says is cleaned before it is printed, and sizes
are computed only from numbers of the right kind.
"""

from __future__ import annotations

import json
import os
from collections import Counter

from .. import hub, plan
from .._native import call, ffi, lib, text_of
from ..errors import PllamaError
from ..gguf import File
from ..vocab import Vocab
from . import looks

__all__ = ["devices", "inspect"]

_LONG = 72          # characters of a metadata value that are shown
_FEW = 6            # elements of an array that are shown


def _number(file: File, key: str) -> int | None:
    try:
        value = file.get(key)
    except PllamaError:
        return None
    if isinstance(value, list):                     # one number per layer: what matters is the largest
        value = max((v for v in value if isinstance(v, int)), default=None)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else None


def _kv(file: File) -> dict:
    """What KV takes in f16: a token's, and the whole context's. None for a model of a kind that is not run."""
    try:
        shape = plan.of_header(file)
    except PllamaError:
        return {"kv_bytes_per_token": None, "kv_bytes_of_context": None}
    return {"kv_bytes_per_token": int(plan.kv_bytes(shape, "f16")), "kv_bytes_of_context": plan.held_bytes(shape, "f16", shape.context)}


def _shown(file: File, key: str) -> str:
    kind, n = file.describe(key)
    try:
        value = file.value(key, limit=_FEW)
    except PllamaError as problem:
        return str(problem)
    if isinstance(value, list):
        text = ", ".join(_short(v, 16) for v in value) + (", ..." if n > len(value) else "")
        return f"[{text}] ({n:,})"
    return _short(value, _LONG)


def _short(value, length: int) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    text = looks.clean(str(value).replace("\n", "\\n").replace("\t", "\\t"))
    return text if len(text) <= length else f"{text[:length - 4]} ..."


def _facts(file: File, path: str) -> dict:
    arch = _text(file, "general.architecture")
    tensors = list(file.tensors())
    kinds = Counter(t.type for t in tensors)
    facts = {
        "file": path,
        "bytes": file.n_bytes,
        "version": file.version,
        "problem": file.problem,
        "name": _text(file, "general.name"),
        "architecture": arch,
        "n_params": sum(_product(t.shape) for t in tensors),
        "n_layers": _number(file, f"{arch}.block_count"),
        "context_length": _number(file, f"{arch}.context_length"),
        **_kv(file),
        "n_metadata": len(file.keys()),
        "n_tensors": len(tensors),
        "tensor_types": {kind: {"n": n, "bytes": sum(t.n_bytes for t in tensors if t.type == kind)} for kind, n in kinds.most_common()},
    }
    return facts


def _product(shape) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


def _text(file: File, key: str) -> str | None:
    value = file.get(key)
    return looks.clean(value) if isinstance(value, str) else None


def _vocab(path) -> dict | None:
    try:
        vocab = Vocab.open(path)
    except PllamaError as problem:
        return {"problem": str(problem)}
    info = vocab.info
    if not info.model or not info.n_tokens:
        return None
    out = {"n_tokens": info.n_tokens, "model": looks.clean(info.model), "pre": looks.clean(info.pre), "warning": looks.clean(info.warning) or None}
    for name in ("bos", "eos", "eot", "pad", "unk"):
        token = getattr(info, name)
        out[name] = None if token is None else {"id": token, "text": looks.clean(vocab.spelling(token))}
    return out


def inspect(args) -> int:
    path = str(hub.find(args.file, download=False))
    with File.open(path, lenient=True) as file:
        facts = _facts(file, path)
        facts["vocab"] = _vocab(path)
        tensors = list(file.tensors())
        if args.json:
            facts["metadata"] = {looks.clean(k): _plain(file, k) for k in file.keys()}
            if args.tensors:
                facts["tensors"] = [{**vars(t), "name": looks.clean(t.name)} for t in tensors]
            print(json.dumps(facts, ensure_ascii=False))
            return 0
        _print_facts(facts)
        _print_table("Metadata", [(looks.clean(key), file.describe(key)[0], _shown(file, key)) for key in file.keys()])
        if args.tensors:
            _print_table("Tensors", [(looks.clean(t.name), t.type, f"{' x '.join(map(str, t.shape))}  {looks.size(t.n_bytes)}") for t in tensors])
    return 0


def _plain(file: File, key: str):
    kind, n = file.describe(key)
    value = file.value(key, limit=_FEW)
    if isinstance(value, list) and n > len(value):
        return {"type": kind, "n": n, "first": value}
    return value


def _print_facts(facts: dict) -> None:
    out = looks.console()
    rows = [("file", facts["file"]), ("size", f"{looks.size(facts['bytes'])} ({facts['bytes']:,} bytes), GGUF version {facts['version']}")]
    if facts["problem"]:
        rows.append(("incomplete", facts["problem"]))
    rows.append(("model", ", ".join(str(v) for v in (
        facts["name"], facts["architecture"] and f"architecture {facts['architecture']}",
        facts["n_layers"] and f"{facts['n_layers']} layers", facts["n_params"] and f"{looks.count(facts['n_params'])} parameters") if v)
        or "none: this file names no architecture"))
    if facts["context_length"]:
        rows.append(("context", f"{facts['context_length']:,} tokens"))
    if per_token := facts["kv_bytes_per_token"]:
        rows.append(("KV cache", f"{per_token:,} bytes a token in f16; the whole context {looks.size(facts['kv_bytes_of_context'])}, if it is ever filled"))
    if vocab := facts["vocab"]:
        if "problem" in vocab:
            rows.append(("tokenizer", vocab["problem"]))
        else:
            special = ", ".join(f"{n} {vocab[n]['id']} {vocab[n]['text']}" if vocab[n] else f"no {n}" for n in ("bos", "eos", "eot"))
            rows.append(("tokenizer", f"{vocab['model']}{'/' + vocab['pre'] if vocab['pre'] else ''}, {vocab['n_tokens']:,} tokens; {special}"))
            if vocab["warning"]:
                rows.append(("warning", vocab["warning"]))
    for kind, of in facts["tensor_types"].items():
        rows.append(("tensors", f"{of['n']} x {kind}, {looks.size(of['bytes'])}"))
    looks.grid(out, rows)


def _print_table(title: str, rows) -> None:
    out = looks.console()
    out.print(f"\n[bold]{title}[/] ({len(rows)})")
    if not rows:
        return
    looks.grid(out, rows, (None, "dim"))


def _known_devices() -> list[dict]:
    """What --device takes besides auto, and why some of it is not there."""
    device, found = ffi.new("plp_device *"), []
    while lib.plp_device_info(len(found), device, ffi.NULL) == lib.PLP_OK:
        found.append({"name": text_of(device.name), "there": device.is_there, "what": text_of(device.what)})
    return found


def devices(args) -> int:
    machine = ffi.new("plp_machine *")
    call(lib.plp_machine_info, machine)
    known = _known_devices()
    facts = {"device": "cpu", "devices": known, "tier": text_of(machine.tier), "features": text_of(machine.features).split(),
             "threads": machine.n_threads, "threads_reason": text_of(machine.threads_reason),
             "memory": machine.memory_bytes, "cpus": os.cpu_count(),
             "forced": os.environ.get("PLP_CPU")}
    if args.json:
        print(json.dumps(facts))
        return 0
    rows = [("device", "cpu"), ("kernels", facts["tier"] + (f" (forced by PLP_CPU={facts['forced']})" if facts["forced"] else "")),
            ("features", " ".join(facts["features"])), ("threads", f"{facts['threads']}: {facts['threads_reason']}"),
            ("memory", looks.size(facts["memory"]))]
    rows += [(d["name"], d["what"] if d["there"] else f"not there: {d['what']}") for d in known if d["name"] != "cpu"]
    looks.grid(looks.console(), rows)
    return 0
