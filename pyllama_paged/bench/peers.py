"""
`bench peers`: this runtime and llama.cpp side by side, each in a process of its own, taking turns.

A B A B: one repetition of ours, one of theirs, with a pause in which the other's threads fall asleep, so that
a machine that slows down does so for both. The rows and the bars are in bars.json, with where they come from.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import InvalidArgument, PllamaError
from . import machine, stats
from .native import Limits
from .record import Record
from .work import Weights

__all__ = ["Other", "bars", "compare", "compare_memory", "model_key", "rows_for", "run"]

_HERE = Path(__file__).parent
_PAUSE = 0.05           # seconds; longer than either side's threads spin
_HELD = 16              # tokens of a conversation of one word, for memory


def bars() -> dict:
    return json.loads((_HERE / "bars.json").read_text())


def model_key(weights: Weights, known: dict) -> str | None:
    """Which of the models of bars.json a file is: by shape and type of weights, not by name."""
    here = (weights.layers, weights.width, weights.type)
    return next((key for key, m in known.items() if (m["layers"], m["width"], m["type"]) == here), None)


def rows_for(path) -> tuple[str, list[dict]]:
    """
    A model's name and its rows. One that bars.json does not know gets the general ones, without bars, as far
    as its context goes.
    """
    table, weights = bars(), Weights(path)
    key = model_key(weights, table["models"])
    if key is None:
        return Path(path).stem, [row for row in table["any_model"] if row.get("context", row.get("depth", 0) + row.get("tokens", 0)) <= weights.context]
    return table["models"][key]["name"], [row for row in table["rows"] if row["model"] == key]


class Other:
    """A process that does the work of serve.py, for as long as this is entered."""

    def __init__(self, command: list[str]):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_HERE.parents[1]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> "Other":
        return self

    def __exit__(self, *exc) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __call__(self, do: str, **order) -> dict:
        try:
            self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PllamaError(f"{' '.join(self._process.args)} is gone (exit code {self._process.wait()})")
        answer = json.loads(line)
        if "error" in answer:
            raise PllamaError(answer["error"])
        return answer


def ours() -> Other:
    return Other([sys.executable, "-m", "pyllama_paged.bench.peer_own"])


def llama(python: str) -> Other:
    return Other([python, str(_HERE / "peer_llama.py")])


def find_peer(python: str | None) -> str:
    """A Python that has llama-cpp-python: the one named, else this one."""
    python = python or sys.executable
    try:
        found = subprocess.run([python, "-c", "import llama_cpp"], capture_output=True, text=True)
    except OSError as problem:
        raise InvalidArgument(f"{python}: {problem.strerror}") from problem
    if found.returncode:
        raise InvalidArgument(f"{python} has no llama-cpp-python; install it into a virtual environment (pip install llama-cpp-python) "
                              "and name that one's python with --peer-python")
    return python


def run(path, record: Record, *, python: str, threads: int, repeats: int, patience: float = 0.0, only: str | None = None,
        n_busy: int = 0, said: Callable[[str], None] = lambda line: None) -> dict:
    """
    Measure what the record lacks. `only`: one kind of work. `n_busy`: that many busy processes beside both
    sides, and no bar but the peer itself.
    """
    name, rows = rows_for(path)
    rows = [row for row in rows if only in (None, row["work"])]
    if n_busy:
        rows = [{key: value for key, value in row.items() if key not in ("bar", "limit_bar")} | {"busy": n_busy}
                for row in rows if row["work"] != "memory"]
    timed = [row for row in rows if row["work"] != "memory"]
    threads = threads or machine.describe()["threads"]
    for kv in dict.fromkeys(row["kv"] for row in timed):
        some = sorted((row for row in timed if row["kv"] == kv and not record.has(_id(name, row))), key=lambda row: row["depth"])
        if some:
            _timed(path, name, some, record, python, threads, repeats, patience, said)
    for row in rows:
        if row["work"] == "memory" and not record.has(_id(name, row)):
            said(f"{name}: memory at a limit of {row['context']} tokens")
            record.add(_id(name, row), {**row, "model": name, **_memory(path, row, python, threads)})
    return record.as_dict()


def _id(name: str, row: dict) -> str:
    if row["work"] == "memory":
        return f"{name}: memory, context {row['context']}"
    beside = f", {row['busy']} busy beside" if "busy" in row else ""
    return f"{name}: {row['work']} {row['tokens']} after {row['depth']}, {row['kv']}{beside}"


def _timed(path, name, rows, record, python, threads, repeats, patience, said) -> None:
    weights, limits = Weights(path), Limits()
    context = max(row["depth"] + row["tokens"] for row in rows)
    context = (context + 255) // 256 * 256
    with ours() as a, llama(python) as b:
        order = {"model": str(path), "threads": threads, "context": context, "kv": rows[0]["kv"]}
        what = [a("open", **order)["what"]]
        try:
            what.append(b("open", **order)["what"])
        except PllamaError as problem:              # what a peer cannot do is a result too
            for row in rows:
                record.add(_id(name, row), {**row, "model": name, "verdict": "not measured", "why": str(problem)})
            return
        for row in rows:
            said(f"{_id(name, row)}")
            for side in (a, b):
                side("depth", n=row["depth"])
                side(row["work"], n=row["tokens"])                  # pages in, threads awake
            before = machine.wait_quiet(patience)
            seconds: tuple[list[float], list[float]] = ([], [])
            reads = []
            with machine.busy(row.get("busy", 0)):
                for _ in range(repeats):
                    for side, into in zip((a, b), seconds):
                        time.sleep(_PAUSE)
                        into.append(side(row["work"], n=row["tokens"])["seconds"])
                    if "limit_bar" in row:
                        reads.append(limits.read(threads))
            record.add(_id(name, row), {
                **row, "model": name, "threads": threads, "runtimes": what,
                **compare(row, seconds[0], seconds[1], weights.bytes, [r for r in reads if r]),
                "beside": [before, machine.quiet(0.2)],
            })
        for side in (a, b):
            side("close")


def compare(row: dict, our_seconds, their_seconds, weights_bytes: int = 0, reads=()) -> dict:
    """A timed row's figures: both sides' rates, the ratio, and what it says of the bar."""
    mine, theirs = (stats.rates(row["tokens"], s) for s in (our_seconds, their_seconds))
    out = {"ours": stats.summary(mine).as_dict(), "peer": stats.summary(theirs).as_dict(), **stats.ratio(mine, theirs)}
    if "limit_bar" in row:
        limit = stats.summary(reads).median if reads else None
        out["read_limit"] = limit
        out["of_limit"] = stats.of_limit(out["ours"]["median"] * weights_bytes, limit)
        out["peer_of_limit"] = stats.of_limit(out["peer"]["median"] * weights_bytes, limit)
        out["verdict"] = stats.verdict(out["of_limit"], row["limit_bar"])
        if out["ratio"] < 1:
            out["verdict"] = "behind"
    else:
        out["verdict"] = stats.verdict(out["ratio"], row.get("bar"))
    return out


def _memory(path, row, python, threads) -> dict:
    sides = []
    for start in (ours, lambda: llama(python)):
        with start() as side:
            side("open", model=str(path), threads=threads, context=row["context"], kv="f16")
            side("depth", n=_HELD)
            sides.append(side("memory"))
            side("close")
    return compare_memory(row, *sides)


def compare_memory(row: dict, mine: dict, theirs: dict) -> dict:
    """Anonymous memory beyond what the interpreter had with the package imported; and of the whole process."""
    if mine["anonymous"] is None:
        return {"verdict": "not measured"}
    own, peer = (side["anonymous"] - side["at_start"] for side in (mine, theirs))
    out = {"ours": own, "peer": peer, "ours_process": mine["anonymous"], "peer_process": theirs["anonymous"]}
    if own > peer:
        return {**out, "verdict": "behind"}
    most = row.get("most_mb")
    return {**out, "verdict": "ahead" if most is None else "reached" if own <= most * 1e6 else "short"}
