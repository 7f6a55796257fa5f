"""
The one door to libplp: the cffi extension, calls whose status becomes an exception, and pointers that know
when they must not be used.

Threads   cffi releases the GIL around every call
Fork      a child process inherits memory but not the worker threads, so every handle remembers its process
"""

from __future__ import annotations

import os
import threading
import weakref

from . import errors

try:
    from ._plp import ffi, lib
except ImportError as problem:          # a source folder on sys.path without the built extension
    raise ImportError(
        "pyllama_paged is not built: its extension module _plp cannot be imported "
        f"({problem}). Install it (pip install .) or run `make` in the project's folder."
    ) from problem

__all__ = ["ffi", "lib", "call", "path_bytes", "text_of", "Handle"]

_ERRORS = {
    lib.PLP_E_ARG: errors.InvalidArgument,
    lib.PLP_E_NOMEM: errors.OutOfMemory,
    lib.PLP_E_IO: errors.FileAccessError,
    lib.PLP_E_FILE: errors.ModelFileError,
    lib.PLP_E_UNSUPPORTED: errors.UnsupportedModel,
    lib.PLP_E_BUDGET: errors.KvBudgetExceeded,
    lib.PLP_E_CONTEXT: errors.ContextFull,
    lib.PLP_E_BUSY: errors.Busy,
    lib.PLP_E_CANCELLED: errors.Cancelled,
    lib.PLP_E_NUMERIC: errors.NumericError,
    lib.PLP_E_CLOSED: errors.Closed,
}


def call(function, *args) -> None:
    """Run a C function that ends in `plp_error *`; raise what it reports."""
    err = ffi.new("plp_error *")
    try:
        status = function(*args, err)
    except OverflowError as problem:        # before anything was called
        raise errors.InvalidArgument(f"a number is out of range: {problem}") from None
    if status < 0:
        kind = _ERRORS.get(status, errors.PllamaError)
        message = text_of(err.msg) or text_of(lib.plp_status_name(status))
        raise kind(message, err.wanted, err.available)


def text_of(chars) -> str:
    """A NUL-terminated C string. Names inside files are hostile, so bad UTF-8 is replaced, not raised."""
    return ffi.string(chars).decode("utf-8", "replace")


def path_bytes(path: str | os.PathLike) -> bytes:
    """A path as C takes it, which would end at a zero byte and so be another file's."""
    data = os.fsencode(path)
    if b"\0" in data:
        raise errors.InvalidArgument(f"{path!r} holds a zero byte, so it is no path")
    return data


def _release(close, pointer, pid: int) -> None:
    if os.getpid() == pid:
        close(pointer)


class Handle:
    """
    A C object with its closing function, closed once: by `close`, or when its owner is collected.

    In a forked child it is neither usable nor closed: the worker threads that closing would wait for do not
    exist there, and the memory goes with the process.
    """

    __slots__ = ("_pointer", "_what", "_pid", "_finalizer", "__weakref__")

    def __init__(self, owner: object, pointer, close, what: str):
        self._pointer = pointer
        self._what = what
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(owner, _release, close, pointer, self._pid)

    @property
    def pointer(self):
        """The live pointer; raises `Closed` or `Forked`."""
        if not self._finalizer.alive:
            raise errors.Closed(f"this {self._what} is closed")
        if os.getpid() != self._pid:
            raise errors.Forked(
                f"this {self._what} was opened before os.fork() and its threads did not come along; "
                "open the model again in the child process"
            )
        return self._pointer

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        self._finalizer()


class Gate:
    """
    One user at a time, and nobody waits: who comes second gets `Busy`.

    The thread that is inside may enter again (a stream that computes calls the same methods a caller would).
    """

    def __init__(self, what: str):
        self._lock = threading.RLock()
        self._what = what

    def __enter__(self) -> "Gate":
        if not self._lock.acquire(blocking=False):
            raise errors.Busy(f"another thread is using this {self._what}")
        return self

    def __exit__(self, *exc) -> None:
        self._lock.release()

    def wait(self, timeout: float) -> bool:
        """Enter even if that takes a while; for closing."""
        return self._lock.acquire(timeout=timeout)

    def leave(self) -> None:
        self._lock.release()
