"""
One step for several sessions at once, which share the reading of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from ._native import call, ffi, lib
from .errors import InvalidArgument
from .session import Session

__all__ = ["step_many"]


def step_many(sessions: Sequence[Session]) -> None:
    """
    Compute one chunk of each session, in one batch. Each needs pending tokens, and none may be there twice.

    The sessions' logits are the same as if each had been stepped alone.
    """
    if len({id(s) for s in sessions}) != len(sessions) or not sessions:
        raise InvalidArgument("a batch is made of one or more different sessions")
    with ExitStack() as entered:
        for session in sessions:
            entered.enter_context(session._gate)
            session._settle()
        pointers = ffi.new("plp_session *[]", [s.pointer for s in sessions])
        call(lib.plp_step_many, pointers, len(sessions))
