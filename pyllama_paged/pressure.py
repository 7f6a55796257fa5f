"""
Giving memory back when the system is short of it (Linux, opt-in).

The kernel's pressure stall information says how long tasks waited for memory. It is read once a second: no
privileges are needed, and a second is soon enough for what happens over several.

On Android call `model.trim("64MiB")` from onTrimMemory, on macOS and iOS from the handler of a memory pressure
source: those systems tell an app themselves, and a thread of the library would only learn it later.
"""

from __future__ import annotations

import re
import threading
import weakref
from typing import TYPE_CHECKING

from .errors import InvalidArgument, PllamaError

if TYPE_CHECKING:
    from .model import Model

__all__ = ["PressureWatcher"]

_FILE = "/proc/pressure/memory"


def _stalled(path: str) -> int:
    """Microseconds, since the system started, in which some task waited for memory."""
    with open(path, encoding="ascii") as f:
        found = re.search(r"^some .*total=(\d+)", f.read(), re.M)
    if not found:
        raise OSError(f"{path} has another form than expected")
    return int(found[1])


class PressureWatcher:
    """
    Made by `Model.watch_pressure()`. Ends with `close`, its `with` block, or the model.

    size       what is given back each time, in bytes
    share      of a period in which tasks waited; from there on memory is given back
    trimmed    bytes given back so far
    """

    def __init__(self, model: "Model", size: int, *, share: float = 0.1, period: float = 1.0, path: str = _FILE):
        try:
            self._last = _stalled(path)
        except OSError as problem:
            raise InvalidArgument(f"this system does not tell memory pressure: {problem}") from None
        self.size, self.share, self.period = size, share, period
        self.trimmed = 0
        self._path = path
        self._model = weakref.ref(model)        # watching must not keep it alive
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plp-pressure", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self.period):
            model = self._model()
            if model is None or model.closed:
                return
            try:
                now = _stalled(self._path)
                if now - self._last >= self.share * self.period * 1e6:
                    self.trimmed += model.trim(self.size)
                self._last = now
            except (OSError, PllamaError):      # the file went away, or the model is being closed
                return
            del model

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> "PressureWatcher":
        return self

    def __exit__(self, *exc) -> None:
        self.close()
