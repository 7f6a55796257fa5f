"""
A beginning that many conversations share: computed once, pinned in the pool, on request kept on disk.

What is pinned are tokens. Which ones a system prompt and tools become, wherever the chat template puts them, is
found by rendering two conversations that differ in their first user message: the prefix is where they agree. A
session compares its own tokens with it, one by one, so a template that does something unexpected costs reuse,
never correctness.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ._native import call, ffi, lib, path_bytes, text_of
from .errors import Closed, FileAccessError, InvalidArgument, ModelFileError, TemplateError
from .kvfile import pack
from .store import PrefixStore

if TYPE_CHECKING:
    from .model import Model
    from .session import Session

__all__ = ["Prefix"]


class Prefix:
    """
    Made by `Model.prefix()`; stays pinned until `unpin`, the end of its `with` block, or the end of the model.

    name        what it is listed as
    tokens      the shared beginning itself
    reused      of these, how many needed no computing when it was made (a stored prefix: all)
    path        its file, if it is kept
    """

    def __init__(self, model: "Model", pin: int, name: str, tokens: list[int], messages: list[dict], template: dict,
                 reused: int, path: Path | None):
        self.model = model
        self.name = name
        self.tokens = tokens
        self.messages = messages
        self.template = template
        self.reused = reused
        self.path = path
        self._pin: int | None = pin
        self._pid = os.getpid()
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        model._prefixes.append(self)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        kept = f", kept in {self.path}" if self.path else ""
        return f"<Prefix {self.name!r} of {len(self)} tokens{kept}{'' if self.pinned else ' (unpinned)'}>"

    def session(self, **options) -> "Session":
        """A conversation that begins with this prefix and shares its blocks from the start."""
        if not self.pinned:
            raise Closed(f"the prefix {self.name!r} is not pinned any more")
        session = self.model.session(messages=self.messages, template=self.template, **options)
        self.adopt(session)
        session.sync(self.tokens)
        return session

    def adopt(self, session: "Session") -> None:
        """Count a session as one of those that begin with this prefix."""
        session.prefix = self
        self._sessions.add(session)

    @property
    def pinned(self) -> bool:
        return self._pin is not None and not self.model.closed

    @property
    def n_sessions(self) -> int:
        """Sessions that were started from it and are open."""
        return len(self._live())

    @property
    def saved(self) -> int:
        """Bytes of KV that its open sessions need not hold, because they share."""
        return sum(session.memory.saved for session in self._live())

    def unpin(self) -> None:
        """Its blocks go back with the last session that uses them. A kept file stays. Twice is fine."""
        pin, self._pin = self._pin, None
        if pin is None or self.model.closed:
            return
        self.model._prefixes.remove(self)
        if os.getpid() == self._pid:
            call(lib.plp_engine_unpin, self.model.pointer, pin)

    def __enter__(self) -> "Prefix":
        return self

    def __exit__(self, *exc) -> None:
        self.unpin()

    def _live(self) -> list["Session"]:
        return [s for s in self._sessions if not s.closed]


def fingerprint(model: "Model") -> str:
    out = ffi.new("char[65]")
    lib.plp_engine_fingerprint(model.pointer, out)
    return text_of(out)


def make(model: "Model", *, messages: Sequence[Mapping], template: Mapping, text: str | bytes | Sequence[int] | None,
         name: str | None, keep: bool, store: PrefixStore | None) -> Prefix:
    history = [dict(m) for m in messages]
    tokens = _given(model, text) if text is not None else _rendered(model, history, template)
    if text is not None and (history or template):
        raise InvalidArgument("a prefix is either a text, or what messages and tools become; not both")
    name = name or _title(history, text) or f"prefix {len(model._prefixes) + 1}"
    if not keep:
        pin, reused = _compute(model, tokens)
        return Prefix(model, pin, name, tokens, history, dict(template), reused, None)

    store = store or PrefixStore()
    path = store.path_of(fingerprint(model), tokens)
    if (pin := _load(model, path)) is not None:
        store.touch(path)
        return Prefix(model, pin, name, tokens, history, dict(template), len(tokens), path)
    note = {"name": name, "model": os.path.basename(model.path), "system": _title(history, text, 2000)}
    pin, reused = _compute(model, tokens, (store, path, pack(note)))
    return Prefix(model, pin, name, tokens, history, dict(template), reused, path if path.exists() else None)


def stored(model: "Model", messages: Sequence[Mapping], template: Mapping, store: PrefixStore | None = None) -> Prefix | None:
    """The prefix of these messages, if an earlier process has kept it; else nothing is computed, and None returned."""
    store = store or PrefixStore()
    if not messages or not store.folder.is_dir():
        return None
    history = [dict(m) for m in messages]
    try:
        tokens = _rendered(model, history, template)
    except (InvalidArgument, TemplateError):        # whoever uses the messages is told
        return None
    if (there := next((p for p in model._prefixes if p.tokens == tokens), None)) is not None:
        return there
    path = store.path_of(fingerprint(model), tokens)
    if (pin := _load(model, path, "and is not used")) is None:
        return None
    store.touch(path)
    return Prefix(model, pin, _title(history, None), tokens, history, dict(template), len(tokens), path)


def _given(model: "Model", text: str | bytes | Sequence[int]) -> list[int]:
    tokens = model.vocab.tokenize(text, bos=True) if isinstance(text, (str, bytes)) else [int(t) for t in text]
    if not tokens:
        raise InvalidArgument("the prefix is empty")
    return tokens


def _rendered(model: "Model", history: list[dict], template: Mapping) -> list[int]:
    """What every conversation that begins with these messages begins with."""
    if not history and not template:
        raise InvalidArgument("a prefix needs something to begin with: system=, tools=, messages= or text=")
    one, other = (model.chat_tokens([*history, {"role": "user", "content": words}], **template) for words in ("0", "A"))
    n = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    if not n:
        raise InvalidArgument("the chat template puts the user's words first, so there is no common beginning to keep")
    return one[:n]


def _title(history: list[dict], text, length: int = 40) -> str:
    words = text if isinstance(text, str) else next((m["content"] for m in history if isinstance(m.get("content"), str)), "")
    words = " ".join(words.split())
    return words if len(words) <= length else words[:length - 3] + "..."


def _load(model: "Model", path: Path, instead: str = "and will be built again") -> int | None:
    """Map a stored prefix. One that cannot be used costs a warning, which says what is done instead."""
    pin, n = ffi.new("uint64_t *"), ffi.new("uint32_t *")
    if not path.exists():
        return None
    try:
        call(lib.plp_prefix_load, model.pointer, path_bytes(path), pin, n)
    except FileAccessError:                 # removed by another process meanwhile
        return None
    except ModelFileError as problem:
        warnings.warn(f"a stored prefix is not usable {instead}: {problem}", RuntimeWarning, stacklevel=5)
        return None
    return pin[0]


def _compute(model: "Model", tokens: list[int], keep: tuple[PrefixStore, Path, bytes] | None = None) -> tuple[int, int]:
    """Compute and pin; with `keep`, write the file first and pin what is mapped from it. Returns pin and tokens reused."""
    with model.session() as session:
        report = session.sync(tokens)
        session.compute()
        if keep is not None and (pin := _write(session, len(tokens), *keep)) is not None:
            return pin, report.reused
        pin = ffi.new("uint64_t *")
        call(lib.plp_session_pin, session.pointer, len(tokens), pin)
        return pin[0], report.reused


def _write(session: "Session", n: int, store: PrefixStore, path: Path, note: bytes) -> int | None:
    model = session.model
    if n * model.info.kv_bytes_per_token > store.limit:
        warnings.warn(f"a prefix of {n} tokens is larger than the prefix store may be ({store.limit:,} bytes) and is not kept",
                      RuntimeWarning, stacklevel=6)
        return None
    store.prepare()
    call(lib.plp_session_set_note, session.pointer, note, len(note))
    call(lib.plp_prefix_save, session.pointer, n, path_bytes(path))
    store.tidy(keep=path)
    session.rewind(0)                       # its own blocks give way to those of the file
    return _load(model, path)
