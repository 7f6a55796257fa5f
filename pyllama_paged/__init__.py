"""
pyllama_paged: quantised GGUF models on a paged KV cache.

    from pyllama_paged import Model

    with Model.open("smollm2-135m") as model, model.session() as chat:
        for piece in chat.stream("What is the capital of France?"):
            print(piece, end="", flush=True)

Names are imported when they are asked for. So the command can see to it that Ctrl-C ends it quietly before most of
the package, and what that needs, is imported (`__main__`).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import errors
    from .errors import *  # noqa: F403
    from .memory import Counters, Memory, SessionMemory
    from .model import Model, ModelInfo
    from .parallel import Continuation, Several, Sharing
    from .prefix import Prefix
    from .reasoning import Reasoning
    from .sampling import Sampling
    from .session import Session, Sync
    from .store import PrefixStore
    from .stream import Answer, AsyncStream, Stats, Stream
    from .toolcalls import ToolCall
    from .vocab import Vocab, VocabInfo

    __version__: str

_MODULES = {
    "memory": ("Counters", "Memory", "SessionMemory"),
    "model": ("Model", "ModelInfo"),
    "parallel": ("Continuation", "Several", "Sharing"),
    "prefix": ("Prefix",),
    "reasoning": ("Reasoning",),
    "sampling": ("Sampling",),
    "session": ("Session", "Sync"),
    "store": ("PrefixStore",),
    "stream": ("Answer", "AsyncStream", "Stats", "Stream"),
    "toolcalls": ("ToolCall",),
    "vocab": ("Vocab", "VocabInfo"),
    "errors": (
        "PllamaError", "InvalidArgument", "OutOfMemory", "FileAccessError", "ModelFileError", "UnsupportedModel", "KvBudgetExceeded",
        "ContextFull", "Busy", "Cancelled", "NumericError", "Closed", "Forked", "TemplateError", "ModelNotFound", "DownloadError"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["errors", "__version__", *_HOMES]


def __getattr__(name: str):
    from importlib import import_module

    if name == "__version__":
        from ._native import lib, text_of

        value = text_of(lib.plp_version())
    elif name in _HOMES:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    elif name == "errors":
        return import_module(".errors", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value         # not asked again
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
