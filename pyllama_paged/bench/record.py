"""
A run's results in a file that grows row by row, so that a run that was broken off can be taken up again.

    {"bench": "speed", "machine": {...}, "settings": {...}, "rows": {"id": {...}, ...}}
"""

from __future__ import annotations

import json
import os
import re
from datetime import datetime, timezone
from pathlib import Path

from ..errors import InvalidArgument
from . import machine

__all__ = ["Record"]

_SAME = ("cpu", "family", "cpus", "tier", "version", "commit")  # a run goes on only on the same machine and build


class Record:
    """
    path   None: nothing is written. A folder: a new file in it, named after the bench, the CPU and the time.
           A file that exists: the run is taken up where it stopped.
    """

    def __init__(self, bench: str, settings: dict, path: str | os.PathLike | None = None):
        self.head = {"bench": bench, "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
                     "machine": machine.describe(), "settings": settings}
        self.rows: dict[str, dict] = {}
        self.path = self._place(bench, Path(path)) if path is not None else None
        if self.path and self.path.exists():
            self._take_up()

    def _place(self, bench: str, path: Path) -> Path:
        if not path.is_dir():
            return path
        about = self.head["machine"]
        cpu = re.sub(r"[^a-z0-9]+", "-", f"{about['cpu']} {about['family'] or ''}".lower()).strip("-")
        return path / f"{bench}-{cpu}-{self.head['date'].replace(':', '')}.json"

    def _take_up(self) -> None:
        try:
            old = json.loads(self.path.read_text())
            there, here = old["machine"], self.head["machine"]
            same = old["bench"] == self.head["bench"] and old["settings"] == self.head["settings"]
            self.rows = dict(old["rows"])
        except (ValueError, KeyError, TypeError) as problem:
            raise InvalidArgument(f"{self.path} is no earlier result of this command") from problem
        if not same or any(there.get(key) != here.get(key) for key in _SAME):
            raise InvalidArgument(f"{self.path} is of another machine, build or setting: remove it, or let this result go elsewhere")
        self.head["date"] = old["date"]

    def has(self, row: str) -> bool:
        return row in self.rows

    def add(self, row: str, values: dict) -> None:
        self.rows[row] = values
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            aside = self.path.with_name(self.path.name + ".tmp")
            aside.write_text(json.dumps(self.as_dict(), indent=1) + "\n")
            os.replace(aside, self.path)

    def as_dict(self) -> dict:
        return {**self.head, "rows": self.rows}
