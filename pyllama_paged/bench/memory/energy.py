"""
Joules, where the machine tells: RAPL counters (Linux on x86, often for root alone), or the battery's own gauge while it
discharges. Both count the whole package or device, not a process, so they mean something on a quiet machine only.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["Meter"]

_RAPL = Path("/sys/class/powercap")
_BATTERY = Path("/sys/class/power_supply")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


class Meter:
    """
    `joules()` is what was used since `start`; None where nothing can be read. `source` says what was read.

    A battery's gauge moves in coarse steps, and while it charges it says nothing of what is used.
    """

    def __init__(self, rapl: Path = _RAPL, battery: Path = _BATTERY):
        self._domains = [d for d in sorted(rapl.glob("intel-rapl:[0-9]")) + sorted(rapl.glob("amd-rapl:[0-9]"))
                         if _number(d / "energy_uj") is not None]
        self._battery = next((b for b in sorted(battery.glob("*")) if _gauge(b) is not None), None)
        self.source = "RAPL, whole package" if self._domains else "battery gauge, whole device" if self._battery else None

    def start(self) -> None:
        self._before = [_number(d / "energy_uj") for d in self._domains]
        self._charge = _gauge(self._battery) if self._battery else None

    def joules(self) -> float | None:
        if self._domains:
            total = 0
            for domain, before in zip(self._domains, self._before):
                used = (_number(domain / "energy_uj") or 0) - before
                if used < 0:                    # the counter has gone round
                    used += _number(domain / "max_energy_range_uj") or 0
                total += used
            return total / 1e6
        if self._battery and self._charge is not None and (now := _gauge(self._battery)) is not None and now < self._charge:
            return self._charge - now
        return None


def _gauge(battery: Path) -> float | None:
    """Joules left, while discharging."""
    try:
        if (battery / "status").read_text().strip() != "Discharging":
            return None
    except OSError:
        return None
    if (energy := _number(battery / "energy_now")) is not None:         # microwatt-hours
        return energy * 3600 / 1e6
    charge = _number(battery / "charge_now") or _number(battery / "charge_counter")     # microampere-hours
    volts = _number(battery / "voltage_now")                            # microvolts
    return charge * 3600 / 1e6 * volts / 1e6 if charge and volts else None
