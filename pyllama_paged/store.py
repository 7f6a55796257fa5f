"""
Computed prefixes on disk: where they lie, which stay, what is thrown away.

    <folder>/<fingerprint, 16 digits>-<tokens, 24 digits>.plpkv       one prefix, never changed
    <folder>/<the same>.plpkv.tmp-<process>-<random>                  being written, or left by a process that died

The name says what is inside, so two processes that compute one prefix write the same file, and whichever is
renamed last replaces its equal. Nothing is locked: a file that is deleted stays readable for whoever has mapped
it. Which prefix was used last is its modification time, which loading sets.

Folder    PLP_PREFIX_DIR, else `prefixes` in the folder of downloaded models (`hub.cache_dir`); 0700, its files 0600
Limit     PLP_PREFIX_LIMIT ("2GiB"), which the least recently used go beyond
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import kvfile
from .errors import FileAccessError, InvalidArgument, PllamaError
from .memory import parse_bytes

__all__ = ["Entry", "PrefixStore"]

SUFFIX = ".plpkv"
DEFAULT_LIMIT = 2 << 30
_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{24}\.plpkv")
_TEMPORARY = re.compile(r"[0-9a-f]{16}-[0-9a-f]{24}\.plpkv\.tmp-(\d+)-[0-9a-f]+")
_YOUNG = 60.0               # seconds in which a temporary file is left alone: its process may be on another machine
_OLD = 24 * 3600.0          # after which it goes although a process of that number lives


def _folder() -> Path:
    if chosen := os.environ.get("PLP_PREFIX_DIR"):
        return Path(os.path.expanduser(chosen))
    from .hub import cache_dir

    return cache_dir() / "prefixes"


@dataclass(frozen=True)
class Entry:
    """A file of the store; `file` is None where it is damaged, and `problem` says why."""

    path: Path
    n_bytes: int
    used: float                     #: seconds since the epoch
    file: kvfile.KvFile | None
    problem: str | None

    @property
    def name(self) -> str:
        name = self.file.note.get("name") if self.file else None
        return name if isinstance(name, str) and name else self.path.stem


class PrefixStore:
    """A folder of prefix files. Making the object touches nothing."""

    def __init__(self, folder: str | os.PathLike | None = None, limit: int | str | None = None):
        self.folder = Path(folder) if folder is not None else _folder()
        self.limit = parse_bytes(limit) or parse_bytes(os.environ.get("PLP_PREFIX_LIMIT") or None) or DEFAULT_LIMIT

    def path_of(self, fingerprint: str, tokens: Sequence[int]) -> Path:
        digest = hashlib.sha256(fingerprint.encode() + array("i", tokens).tobytes()).hexdigest()
        return self.folder / f"{fingerprint[:16]}-{digest[:24]}{SUFFIX}"

    def prepare(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as problem:
            raise FileAccessError(f"{self.folder}: the folder of stored prefixes cannot be made ({problem.strerror}); PLP_PREFIX_DIR names another") from None

    def touch(self, path: Path) -> None:
        """It was used now."""
        with contextlib.suppress(OSError):
            os.utime(path)

    def entries(self) -> list[Entry]:
        """What is there, used last first; every file is read and checked."""
        return [self._entry(path, n_bytes, used) for used, n_bytes, path in reversed(list(self._files()))]

    def find(self, name: str) -> Entry:
        """By its name, or by the beginning of its file's name."""
        found = [e for e in self.entries() if name == e.name] or [e for e in self.entries() if name and e.path.name.startswith(name)]
        if len(found) != 1:
            raise InvalidArgument(f"{len(found)} stored prefixes are called {name!r}" if found else f"no stored prefix is called {name!r}")
        return found[0]

    def remove(self, path: Path) -> bool:
        """Whoever has it open keeps it until they close it."""
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def tidy(self, limit: int | None = None, keep: Path | None = None) -> list[Path]:
        """Remove what died processes left, and the least recently used files beyond the limit, never `keep`."""
        gone = [path for path in self._stale() if self.remove(path)]
        files = list(self._files())
        total = sum(n_bytes for _, n_bytes, _ in files)
        for _, n_bytes, path in files:
            if total <= (self.limit if limit is None else limit):
                break
            if path != keep:
                gone += [path] if self.remove(path) else []
                total -= n_bytes
        return gone

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """(used, bytes, path), used least recently first. Other people's files in the folder are not ours to touch."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as listing:
            for item in listing:
                with contextlib.suppress(FileNotFoundError):
                    if _NAME.fullmatch(item.name) and item.is_file(follow_symlinks=False):
                        at = item.stat(follow_symlinks=False)
                        found.append((at.st_mtime, at.st_size, Path(item.path)))
        yield from sorted(found)

    def _stale(self) -> Iterator[Path]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as listing:
            for item in listing:
                with contextlib.suppress(FileNotFoundError):
                    if found := _TEMPORARY.fullmatch(item.name):
                        age = time.time() - item.stat(follow_symlinks=False).st_mtime
                        if age > _OLD or (age > _YOUNG and not _alive(int(found[1]))):
                            yield Path(item.path)

    def _entry(self, path: Path, n_bytes: int, used: float) -> Entry:
        try:
            file = kvfile.look(path)
        except PllamaError as problem:
            return Entry(path, n_bytes, used, None, str(problem))
        if file.kind != "prefix":
            return Entry(path, n_bytes, used, None, f"{path}: is a {file.kind} file")
        return Entry(path, n_bytes, used, file, None)


def _alive(process: int) -> bool:
    if os.name == "nt":
        return True                 # there, asking with signal 0 would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
