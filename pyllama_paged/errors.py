"""
What can go wrong, one exception type per trouble.

Every exception says in one sentence what happened and what to do about it. Those with amounts carry them as
attributes, so that a program can act on them without reading the sentence.
"""

from __future__ import annotations

__all__ = [
    "PllamaError", "InvalidArgument", "OutOfMemory", "FileAccessError", "ModelFileError", "UnsupportedModel",
    "KvBudgetExceeded", "ContextFull", "Busy", "Cancelled", "NumericError", "Closed", "Forked", "TemplateError",
    "ModelNotFound", "DownloadError",
]


class PllamaError(Exception):
    """The base of all of them."""

    def __init__(self, message: str, wanted: int = 0, available: int = 0):
        super().__init__(message)
        self.wanted = wanted
        self.available = available


class InvalidArgument(PllamaError, ValueError):
    """The caller passed something that cannot be."""


class OutOfMemory(PllamaError, MemoryError):
    """The operating system refused `wanted` bytes."""


class FileAccessError(PllamaError, OSError):
    """A file could not be opened, read or written."""

    def __str__(self) -> str:       # OSError would print its own idea of the arguments
        return str(self.args[0])


class ModelFileError(PllamaError):
    """A file's content is damaged, or is not what it should be."""


class UnsupportedModel(PllamaError):
    """A sound file of a kind that this build does not run, or a device that is not there."""


class KvBudgetExceeded(PllamaError):
    """The byte budget of the KV pool is used up; the session's timeline is as before.

    `wanted` and `available` are bytes.
    """


class ContextFull(PllamaError):
    """The session's context limit is reached; nothing was dropped.

    `wanted` and `available` are tokens.
    """


class Busy(PllamaError):
    """Another thread, or an answer still being read elsewhere, is using this session."""


class Cancelled(PllamaError):
    """`Session.cancel` stopped the call; what was computed so far stays."""


class NumericError(PllamaError):
    """A NaN or an infinity where a logit should be."""


class Closed(PllamaError):
    """The model or session was closed."""


class Forked(PllamaError):
    """The object was made before `os.fork()` and cannot be used in the child process."""


class TemplateError(PllamaError):
    """The model's chat template refused the messages, or is itself at fault."""


class ModelNotFound(PllamaError):
    """No such file, catalog name or repository."""


class DownloadError(PllamaError):
    """A download failed or did not check."""
