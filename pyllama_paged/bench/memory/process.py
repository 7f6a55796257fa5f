"""
What a process holds, read from outside it: the measure is the same for every runtime.

    rss         pages in memory, shared ones whole         anonymous   pages no file is behind
    pss         shared pages divided by who shares them    file        pages of mapped files (weights), clean, droppable
    uss         pages of this process alone                footprint   macOS: what the system charges a process for

Linux and Android: /proc/PID/smaps_rollup, where the kernel lacks that the sum of smaps, else /proc/PID/status, which
knows neither PSS nor USS. macOS: proc_pid_rusage. A measure that the platform lacks is None, and `lacks` says why.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
import time
from dataclasses import asdict, dataclass

__all__ = ["Footprint", "Sampler", "lacks", "of"]

_ROLLUP = {"Rss": "rss", "Pss": "pss", "Anonymous": "anonymous", "Private_Clean": "private_clean", "Private_Dirty": "private_dirty",
           "Swap": "swap"}


@dataclass(frozen=True)
class Footprint:
    """Bytes; None: this platform does not tell."""

    rss: int | None = None
    pss: int | None = None
    uss: int | None = None
    anonymous: int | None = None
    file: int | None = None
    swap: int | None = None
    footprint: int | None = None

    def as_dict(self) -> dict:
        return {key: value for key, value in asdict(self).items() if value is not None}


def of(pid: int | None = None) -> Footprint:
    """A process now; None: this one. A process that is gone, or not ours, holds nothing that can be read."""
    pid = os.getpid() if pid is None else pid
    if sys.platform == "darwin":
        return _darwin(pid)
    for name in ("smaps_rollup", "smaps"):
        text = _read(f"/proc/{pid}/{name}")
        if text and "Rss:" in text:
            return _from_smaps(text)
    return quick(pid)


def quick(pid: int) -> Footprint:
    """What the kernel keeps counted: cheap enough for many samples a second. No PSS, no USS."""
    if sys.platform == "darwin":
        return _darwin(pid)
    found = dict(re.findall(r"^(VmRSS|RssAnon|RssFile|VmSwap):\s+(\d+) kB$", _read(f"/proc/{pid}/status") or "", re.M))
    kb = {key: int(value) * 1024 for key, value in found.items()}
    return Footprint(rss=kb.get("VmRSS"), anonymous=kb.get("RssAnon"), file=kb.get("RssFile"), swap=kb.get("VmSwap"))


def lacks() -> dict[str, str]:
    """The measures that this platform does not give, with the reason."""
    here = of()
    if sys.platform == "darwin":
        why = "macOS counts a footprint instead: anonymous, compressed and swapped memory, without clean file pages"
    elif not sys.platform.startswith(("linux", "android")):
        why = "only Linux, Android and macOS are read"
    else:
        why = "this kernel gives neither smaps_rollup nor smaps for a child process"
    wanted = ("rss", "pss", "uss", "anonymous", "file")
    return {key: why for key in wanted if getattr(here, key) is None}


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as f:
            return f.read()
    except OSError:
        return None


def _from_smaps(text: str) -> Footprint:
    sums = dict.fromkeys(_ROLLUP.values(), 0)
    for key, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M):
        if key in _ROLLUP:
            sums[_ROLLUP[key]] += int(value) * 1024
    return Footprint(rss=sums["rss"], pss=sums["pss"], uss=sums["private_clean"] + sums["private_dirty"], anonymous=sums["anonymous"],
                     file=sums["rss"] - sums["anonymous"], swap=sums["swap"])


class _Usage(ctypes.Structure):
    """rusage_info_v2 of <sys/resource.h> on macOS."""

    _fields_ = [("uuid", ctypes.c_uint8 * 16)] + [(name, ctypes.c_uint64) for name in (
        "user_time", "system_time", "pkg_idle_wkups", "interrupt_wkups", "pageins", "wired_size", "resident_size", "phys_footprint",
        "proc_start_abstime", "proc_exit_abstime", "child_user_time", "child_system_time", "child_pkg_idle_wkups",
        "child_interrupt_wkups", "child_pageins", "child_elapsed_abstime", "diskio_bytesread", "diskio_byteswritten")]


def _darwin(pid: int) -> Footprint:
    usage = _Usage()
    try:
        refused = ctypes.CDLL("/usr/lib/libproc.dylib").proc_pid_rusage(pid, 2, ctypes.byref(usage))
    except (OSError, AttributeError):
        refused = -1
    return Footprint() if refused else Footprint(rss=usage.resident_size, footprint=usage.phys_footprint)


class Sampler:
    """Samples a process while this is entered; `samples` are (seconds since entering, Footprint)."""

    def __init__(self, pid: int, every: float = 0.05):
        self._pid, self._every = pid, every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[tuple[float, Footprint]] = []

    def __enter__(self) -> "Sampler":
        self.start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exc) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.samples.append((time.monotonic() - self.start, quick(self._pid)))

    def thin(self, most: int = 240) -> list[list]:
        """[seconds, rss, anonymous or footprint] for a report: evenly left out, the highest kept."""
        have = [(t, f) for t, f in self.samples if f.rss is not None]
        step = max(1, -(-len(have) // most))
        out = []
        for i in range(0, len(have), step):
            t, f = max(have[i:i + step], key=lambda sample: sample[1].rss)
            out.append([round(t, 3), f.rss, f.anonymous if f.anonymous is not None else f.footprint])
        return out
