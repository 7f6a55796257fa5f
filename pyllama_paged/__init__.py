"""
pyllama_paged: quantised GGUF models on a paged KV cache.

    from pyllama_paged import Model

    with Model.open("smollm2-135m") as model, model.session() as chat:
        for piece in chat.stream("What is the capital of France?"):
            print(piece, end="", flush=True)
"""

from . import errors
from ._native import lib as _lib
from ._native import text_of as _text_of
from .errors import *  # noqa: F403
from .errors import __all__ as _errors
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

__version__ = _text_of(_lib.plp_version())
__all__ = [
    "Answer", "AsyncStream", "Continuation", "Counters", "Memory", "Model", "ModelInfo", "Prefix", "PrefixStore",
    "Reasoning", "Sampling", "Session", "SessionMemory", "Several", "Sharing", "Stats", "Stream", "Sync", "ToolCall", "Vocab", "VocabInfo",
    "errors", "__version__", *_errors,
]
