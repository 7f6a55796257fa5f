"""
A conversation in a file: what `Session.save` writes and `Model.resume` reads.

The library writes timeline and KV (plp_session_save); what Python knows besides goes into the file's note: messages,
template variables, which texts are which tokens, an unfinished answer. A file is anybody's, so everything read back has
its type checked.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ._native import call, ffi, lib, path_bytes
from .errors import FileAccessError, ModelFileError
from .kvfile import KvFile, look, pack, unpack
from .session import Session

if TYPE_CHECKING:
    from .model import Model

__all__ = ["resume", "save"]


# ---- writing

def save(session: Session, path: str | os.PathLike) -> None:
    """By who has the session's gate."""
    note = pack({"messages": session.messages, "template": session.template, "known": session._known,
                 "unfinished": session._unfinished, "splitter": session._splitter.state if session._splitter else None,
                 "when_full": session.when_full})
    call(lib.plp_session_set_note, session.pointer, note, len(note))
    try:
        call(lib.plp_session_save, session.pointer, path_bytes(path), _reference(session))
    except ModelFileError:              # the prefix was damaged or replaced meanwhile: the file holds everything then
        call(lib.plp_session_save, session.pointer, path_bytes(path), ffi.NULL)
    finally:
        call(lib.plp_session_set_note, session.pointer, ffi.NULL, 0)


def _reference(session: Session):
    """The stored prefix that has the conversation's beginning, or NULL."""
    prefix = session.prefix
    if prefix is None or prefix.path is None or not prefix.path.exists():
        return ffi.NULL
    n = len(prefix.tokens)
    begins = session.n_computed >= n and session.tokens[:n] == prefix.tokens
    return path_bytes(os.path.abspath(prefix.path)) if begins else ffi.NULL


# ---- reading

def resume(model: "Model", path: str | os.PathLike) -> Session:
    """See `Model.resume`."""
    out = ffi.new("plp_session **")
    try:
        call(lib.plp_session_resume, out, model.pointer, path_bytes(path))
    except (ModelFileError, FileAccessError) as problem:
        return _recomputed(model, look(path), problem)
    session = Session(model, out[0], [])
    n = ffi.new("size_t *")
    note = lib.plp_session_note(session.pointer, n)
    try:
        _restore(session, unpack(bytes(ffi.buffer(note, n[0])) if n[0] else b""))
    except BaseException:
        session.close()
        raise
    return session


def _recomputed(model: "Model", file: KvFile, problem: Exception) -> Session:
    """A sound file of this model whose stored prefix is not what it was: its tokens still say everything."""
    from .prefix import fingerprint

    if file.kind != "session" or not file.reference or file.fingerprint != fingerprint(model):
        raise problem
    warnings.warn(f"the conversation's beginning will be computed anew: {problem}", RuntimeWarning, stacklevel=4)
    session = model.session()
    try:
        session.sync(file.tokens)
        _restore(session, file.note)
    except BaseException:
        session.close()
        raise
    return session


def _restore(session: Session, note: Mapping) -> None:
    messages, template, known = note.get("messages", []), note.get("template", {}), note.get("known", {})
    unfinished, splitter, policy = note.get("unfinished"), note.get("splitter"), note.get("when_full", "stop")
    n_vocab = session.model.info.n_vocab

    def ids(value) -> bool:
        return isinstance(value, list) and all(type(i) is int and 0 <= i < n_vocab for i in value)

    def opening(value) -> bool:
        return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and ids(value[1])

    def state(value) -> bool:
        return isinstance(value, list) and len(value) == 4 and all(isinstance(s, str) for s in value[:3]) and isinstance(value[3], str | None)

    if not (isinstance(messages, list) and all(isinstance(m, dict) for m in messages) and isinstance(template, dict)
            and isinstance(known, dict) and all(map(ids, known.values())) and policy in ("stop", "shift")
            and (unfinished is None or opening(unfinished)) and (splitter is None or state(splitter))):
        raise ModelFileError("the file's note is not that of a conversation")
    session.messages, session.template, session._known, session.when_full = messages, template, known, policy
    session._unfinished = tuple(unfinished) if unfinished is not None else None
    thinking, calls = session.model._thinking, session.model._calls
    session._splitter = thinking.restored(splitter, calls.form(thinking.form, template)) if splitter else None
