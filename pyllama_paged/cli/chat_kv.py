"""
The chat's commands about its KV: branches, going back, pinning, files, and what all of it holds.

Imported by `chat()`, which registers them. They only call what the Python API offers.
"""

from __future__ import annotations

import os

from ..errors import InvalidArgument
from . import looks
from .chat import Chat, command


def _number(text: str, default: int | None = None) -> int:
    if not text and default is not None:
        return default
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"{text!r} is not a number") from None


def _which(chat: Chat, text: str) -> int:
    at = _number(text)
    if not 1 <= at <= len(chat.sessions):
        raise InvalidArgument(f"there is no conversation {at}; " + ("there is only one" if len(chat.sessions) == 1 else f"there are {len(chat.sessions)}"))
    return at - 1


@command("fork")
def fork(chat: Chat, _: str) -> None:
    """go on in a copy, which shares memory; /switch goes back"""
    chat.add(chat.session.fork())
    chat.note(f"conversation {chat.current + 1} begins as a copy of the last one; /sessions lists them")


@command("sessions")
def sessions(chat: Chat, _: str) -> None:
    """list the conversations"""
    rows = []
    for i, session in enumerate(chat.sessions):
        memory = session.memory
        said = next((m["content"] for m in reversed(session.messages) if m.get("role") == "user" and isinstance(m.get("content"), str)), "")
        first = " ".join(looks.clean(said).split())
        rows.append((f"{'*' if i == chat.current else ' '} {i + 1}", looks.several(memory.n_tokens, "token"),
                     f"{looks.size(memory.own)} own, {looks.size(memory.shared)} shared" + (f", {looks.size(memory.spilled)} on disk" if memory.spilled else ""),
                     first if len(first) <= 40 else first[:37] + "..."))
    chat.figures(rows)


@command("switch")
def switch(chat: Chat, text: str) -> None:
    """go to another conversation: /switch 1"""
    chat.go(_which(chat, text))
    chat.note(f"conversation {chat.current + 1}; /show shows it")


@command("close")
def close(chat: Chat, text: str) -> None:
    """end this conversation, or another one: /close 2"""
    at = _which(chat, text) if text else chat.current
    if len(chat.sessions) == 1:
        raise InvalidArgument("this is the only conversation; /clear begins anew, /exit leaves")
    chat.sessions.pop(at).close()
    if at == chat.current:
        chat.go(min(at, len(chat.sessions) - 1))
    elif at < chat.current:
        chat.current -= 1
    chat.note(f"closed; this is now conversation {chat.current + 1} of {len(chat.sessions)}")


@command("rewind")
def rewind(chat: Chat, text: str) -> None:
    """take back the last messages and answers: /rewind 2"""
    n = _number(text, 1)
    gone = chat.session.rewind_turns(n)
    chat.last = None
    chat.note(f"{looks.several(len(gone), 'message')} taken back, {looks.several(len(chat.session), 'token')} remain")


@command("pin")
def pin(chat: Chat, _: str) -> None:
    """keep the system prompt computed, also on disk"""
    head = [m for m in chat.session.messages[:1] if m.get("role") == "system"]
    if not head:
        raise InvalidArgument("there is no system prompt to pin; /system sets one")
    prefix = chat.model.prefix(messages=head, template=chat.session.template, keep=True)
    where = f", kept in {prefix.path}" if prefix.path else ""
    chat.note(f"{looks.several(len(prefix), 'token')} pinned{where}; {prefix.reused:,} of them were computed already")


@command("trim")
def trim(chat: Chat, text: str) -> None:
    """give unused memory back to the system: /trim 64MiB"""
    chat.note(f"{looks.size(chat.model.trim(text or 1 << 60))} given back", always=True)


@command("save")
def save(chat: Chat, text: str) -> None:
    """write the conversation to a file: /save talk.plpkv"""
    if not text:
        raise InvalidArgument("a file name is missing: /save talk.plpkv")
    chat.session.save(os.path.expanduser(text))
    chat.note(f"saved, {looks.size(os.path.getsize(os.path.expanduser(text)))}; /load {text} brings it back")


@command("load")
def load(chat: Chat, text: str) -> None:
    """go on with a saved conversation: /load talk.plpkv"""
    if not text:
        raise InvalidArgument("a file name is missing: /load talk.plpkv")
    chat.add(chat.model.resume(os.path.expanduser(text)))
    chat.note(f"conversation {chat.current + 1}: {looks.several(len(chat.session.messages), 'message')}, {looks.several(len(chat.session), 'token')}, "
              f"{len(chat.session) - chat.session.n_computed:,} to compute; /show shows them")


@command("mem")
def mem(chat: Chat, _: str) -> None:
    """what this conversation, and all of them, hold in memory"""
    own, pool, info = chat.session.memory, chat.model.memory, chat.model.info
    size = looks.size
    rows = [
        ("this conversation", f"{looks.several(own.n_tokens, 'token')} in {looks.several(own.n_blocks, 'block')} of {info.block_len}: {size(own.own)} own, "
                              f"{size(own.shared)} shared ({size(own.saved)} saved), {size(own.reserved)} reserved"
                              + (f", {size(own.spilled)} on disk" if own.spilled else "")),
        ("pool", f"{size(pool.resident)} of at most {size(pool.budget)}, in {looks.several(pool.n_slabs, 'slab')}"),
        ("  token state", f"{size(pool.token_state)}: {looks.several(pool.n_tokens, 'token')}, shared ones once; {size(pool.pinned)} of it pinned"),
        ("  reserved", f"{size(pool.reserved)} for the next tokens of open blocks"),
        ("  internal", f"{size(pool.internal)} held and never to be used"),
        ("  external", f"{size(pool.external)} free inside slabs"),
        ("  cached", f"{size(pool.cached)} held by nobody, still findable"),
        ("saved by sharing", size(pool.shared_saved)),
        ("mapped", f"{size(pool.mapped)} of stored prefixes, in their files"),
        ("spilled", f"{size(pool.spilled)} of idle conversations, on disk"),
        ("work space", f"{size(pool.scratch)}; bookkeeping {size(pool.metadata)}"),
        ("weights", f"{size(pool.weights)}, in the file"),
        ("context limit", f"{info.context_limit:,} tokens; reserving it would take {size(info.kv_bytes_per_token * info.context_limit)}"),
    ]
    chat.figures(rows)
