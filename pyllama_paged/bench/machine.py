"""
What ran a measurement, and whether anything else ran beside it.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["busy", "describe", "quiet", "wait_quiet"]

_BUSY, _STEAL = 0.10, 0.01      # more of the CPUs' time than this is not quiet


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _cpu_name() -> str:
    found = re.search(r"^(?:model name|Hardware)\s*:\s*(.+)$", _read("/proc/cpuinfo") or "", re.M)
    if found:
        return found[1]
    if platform.system() == "Darwin":
        said = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        if said.returncode == 0:
            return said.stdout.strip()
    return platform.processor() or platform.machine()


def _family() -> str | None:
    """x86: "family 25 model 17", which a virtual machine's name may not tell."""
    text = _read("/proc/cpuinfo") or ""
    found = [re.search(rf"^{key}\s*:\s*(\d+)$", text, re.M) for key in ("cpu family", "model")]
    return f"family {found[0][1]} model {found[1][1]}" if all(found) else None


def _caches() -> dict[str, str]:
    out = {}
    for i in range(6):
        at = f"/sys/devices/system/cpu/cpu0/cache/index{i}/"
        level, kind, size = (_read(at + name) for name in ("level", "type", "size"))
        if level and size and kind != "Instruction":
            out[f"L{level}"] = size
    return out


def _commit() -> str | None:
    """Of the source folder this package is in, if it is in one; "+" where files differ from it."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / "CMakeLists.txt").exists():
        return None
    try:
        git = ["git", "-C", str(folder)]
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def describe() -> dict:
    """The machine and the build, for the head of every result."""
    from .. import __version__
    from .._native import call, ffi, lib, text_of

    info = ffi.new("plp_machine *")
    call(lib.plp_machine_info, info)
    return {
        "cpu": _cpu_name(),
        "family": _family(),
        "cpus": os.cpu_count(),
        "threads": info.n_threads,
        "threads_reason": text_of(info.threads_reason),
        "tier": text_of(info.tier),
        "features": text_of(info.features),
        "caches": _caches(),
        "memory_bytes": info.memory_bytes,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "virtual": "hypervisor" in (_read("/proc/cpuinfo") or ""),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "version": __version__,
        "commit": _commit(),
    }


def _cpu_times() -> tuple[int, int, int] | None:
    """Linux: total, idle and stolen jiffies since boot."""
    line = (_read("/proc/stat") or "").split("\n", 1)[0].split()
    if len(line) < 9:
        return None
    times = [int(t) for t in line[1:9]]
    return sum(times), times[3] + times[4], times[7]


def quiet(seconds: float = 0.5) -> dict:
    """
    How busy the machine is while this process sleeps. "quiet" is None where it cannot be told.
    """
    before = _cpu_times()
    time.sleep(seconds)
    after = _cpu_times()
    try:
        load = round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):           # Windows; Android, which keeps it from apps
        load = None
    if not before or not after or after[0] == before[0]:
        return {"load": load, "busy": None, "steal": None, "quiet": None}
    total, idle, steal = (b - a for a, b in zip(before, after))
    busy, stolen = round(1 - idle / total, 3), round(steal / total, 3)
    return {"load": load, "busy": busy, "steal": stolen, "quiet": busy <= _BUSY and stolen <= _STEAL}


def wait_quiet(patience: float, seconds: float = 0.5) -> dict:
    """Wait until the machine is quiet, `patience` seconds at most; what it was like in the last `seconds`."""
    end = time.monotonic() + patience
    while True:
        state = quiet(seconds)
        if state["quiet"] is not False or time.monotonic() >= end:
            return state


@contextmanager
def busy(n: int) -> Iterator[list[subprocess.Popen]]:
    """n processes that do nothing as fast as they can, for as long as this is entered."""
    processes = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
