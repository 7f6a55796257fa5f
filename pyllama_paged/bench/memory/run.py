"""All scenarios in a row, into one record; the simulated Figure 2 and the verdicts with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from ...errors import InvalidArgument, PllamaError
from ...vocab import Vocab
from .. import machine, peers
from ..record import Record
from . import identity, simulate, verdicts
from .lab import Lab
from .scenarios import SCENARIOS

__all__ = ["SCHEMA", "measure"]

SCHEMA = "pyllama-paged memory 1"


def measure(path: Path, out: Path, *, quick: bool, threads: int = 0, peer: str | None = None, peers_wanted: bool = False,
            only: Sequence[str] = (), repeats: int = 0, context: int = 0, said: Callable[[str], None] = lambda line: None) -> dict:
    """
    Measure what `out`/memory.json lacks, and return all of it.

    peer      a Python that has llama-cpp-python; without one, its rows say so
    repeats   0: 5, or 2 in quick mode (memory moves little; timed work repeats 5 times within a process in both)
    context   the limit of a session; 0: what the model has, up to 4,096 (quick) or 8,192 tokens
    """
    if unknown := set(only) - set(SCENARIOS):
        raise InvalidArgument(f"{', '.join(sorted(unknown))}: no such scenario; there are {', '.join(SCENARIOS)}")
    about = identity.model(path)
    about["n_vocab"] = Vocab.open(path).info.n_tokens
    used = threads or machine.describe()["threads"]
    context = context or min(about["context"] or 4096, 4096 if quick else 8192)
    settings = {"mode": "quick" if quick else "full", "threads": used, "context": context, "repeats": repeats or (2 if quick else 5),
                "model": about["sha256"], "only": sorted(only)}
    record = Record("memory", settings, out / "memory.json")
    record.head |= {"schema": SCHEMA, "device": identity.device(threads), "model": about}
    python, lack = None, "not asked for (--peers)"
    if peers_wanted or peer:
        try:
            python = peers.find_peer(peer)
        except PllamaError as problem:
            lack = str(problem)
    lab = Lab(str(path), about, record, used, context, settings["repeats"], quick, python, lack, said)
    if not record.has("simulated") and not only:
        said("Figure 2, simulated")
        record.add("simulated", {"scenario": "simulated", "paper": simulate.PAPER,
                                 "systems": {s: asdict(simulate.simulate(s)) for s in simulate.SYSTEMS}})
    record.head["beside"] = [machine.quiet()]
    for name, scenario in SCENARIOS.items():
        if not only or name in only:
            scenario(lab)
    record.head["beside"].append(machine.quiet())
    result = record.as_dict()
    return {**result, "verdicts": verdicts.of(result)}
