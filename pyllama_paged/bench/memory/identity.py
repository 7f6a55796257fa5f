"""
What ran a measurement: the device, its system, memory, power, and the model file; enough to compare with another run.

Works without privileges on Linux, in Termux on Android, and on macOS; what cannot be told is left out.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from .. import machine
from . import process

__all__ = ["available_bytes", "device", "model", "power_source"]

_POWER = Path("/sys/class/power_supply")


def _said(*command: str) -> str | None:
    if not shutil.which(command[0]):
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 and done.stdout.strip() else None


def _read(path) -> str | None:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def is_termux() -> bool:
    return "com.termux" in os.environ.get("PREFIX", "") or hasattr(sys, "getandroidapilevel")


def _name() -> str | None:
    if is_termux() or shutil.which("getprop"):
        parts = [_said("getprop", f"ro.product.{key}") for key in ("manufacturer", "model")]
        chip = _said("getprop", "ro.soc.model") or _said("getprop", "ro.board.platform")
        return " ".join(p for p in (*parts, f"({chip})" if chip else None) if p) or None
    if sys.platform == "darwin":
        return _said("sysctl", "-n", "hw.model")
    product = _read("/sys/devices/virtual/dmi/id/product_name")
    return product or (_read("/proc/device-tree/model") or "").strip("\0") or None


def _system() -> str:
    if android := _said("getprop", "ro.build.version.release"):
        return f"Android {android}"
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', _read("/etc/os-release") or "", re.M)
    return found[1] if found else platform.system()


def power_source() -> str | None:
    """ "mains", "battery 83 %" or None."""
    if sys.platform == "darwin":
        said = _said("pmset", "-g", "batt") or ""
        share = re.search(r"(\d+)%", said)
        return None if not said else "mains" if "AC Power" in said else f"battery {share[1]} %" if share else "battery"
    kinds: dict[str, list[Path]] = {}
    try:
        for supply in _POWER.iterdir():
            kinds.setdefault(_read(supply / "type") or "", []).append(supply)
    except OSError:
        return None
    if any(_read(s / "online") == "1" for kind in ("Mains", "USB", "Wireless") for s in kinds.get(kind, ())):
        return "mains"
    for battery in kinds.get("Battery", ()):
        if share := _read(battery / "capacity"):
            return f"battery {share} %"
    return None


def available_bytes() -> int | None:
    """Memory that can be had without pushing others out."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", _read("/proc/meminfo") or "", re.M)
    if found:
        return int(found[1]) * 1024
    if sys.platform == "darwin" and (said := _said("vm_stat")):
        page = int(re.search(r"page size of (\d+)", said)[1])
        counts = dict(re.findall(r"^Pages (free|inactive|speculative):\s+(\d+)\.$", said, re.M))
        return page * sum(map(int, counts.values()))
    return None


def device(threads: int) -> dict:
    swap = re.search(r"^SwapTotal:\s+(\d+) kB$", _read("/proc/meminfo") or "", re.M)
    about = machine.describe()
    used = threads or about["threads"]
    return {
        "device": _name(), "os": _system(), "termux": is_termux(), "available_bytes": available_bytes(),
        "swap_bytes": int(swap[1]) * 1024 if swap else None, "page_bytes": os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None,
        "cpus_allowed": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "threads_used": used, "threads_why": about["threads_reason"] if not threads else "as asked",
        "overcommit": _read("/proc/sys/vm/overcommit_memory"), "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "power": power_source(), "measures_lacking": process.lacks(),
        "flags": {key: value for key, value in os.environ.items() if key.startswith("PLP_") and "CACHE" not in key and "MODEL" not in key},
    }


def model(path) -> dict:
    """A model file by content: two runs are of the same model if the hashes agree."""
    from ...plan import kv_bytes, of_file

    shape, digest = of_file(path), hashlib.sha256()
    with open(path, "rb") as f:
        while piece := f.read(1 << 20):
            digest.update(piece)
    return {"name": shape.title, "file": Path(path).name, "sha256": digest.hexdigest(), "file_bytes": os.path.getsize(path),
            "params": shape.params, "layers": shape.layers, "context": shape.context, "kv_bytes_per_token": int(kv_bytes(shape, "f16"))}
