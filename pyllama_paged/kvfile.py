"""
A prefix or session file, looked at without a model; and the note in it, which is JSON.

The file is checked whole before anything of it is believed. The note is whatever somebody wrote, so its shape
is checked too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from ._native import call, ffi, lib, path_bytes, text_of
from .errors import InvalidArgument, ModelFileError

__all__ = ["KvFile", "look", "pack", "unpack"]

_KINDS = {lib.PLP_KV_FILE_PREFIX: "prefix", lib.PLP_KV_FILE_SESSION: "session"}
_FORMATS = {lib.PLP_KV_F16: "f16", lib.PLP_KV_Q8: "q8", lib.PLP_KV_Q4: "q4"}


@dataclass(frozen=True)
class KvFile:
    """What a file says of itself."""

    path: str
    kind: str               #: "prefix" or "session"
    fingerprint: str        #: of model, geometry, KV format and the library's numerics
    kv: str
    block_len: int
    n_bytes: int
    tokens: list[int]
    reference: str | None   #: the prefix file that has the beginning of a session
    note: dict              #: empty where there is none, or none that can be read


def look(path: str | os.PathLike) -> KvFile:
    """Raises `ModelFileError` for a damaged file or another kind of file, `FileAccessError` if there is none."""
    out = ffi.new("plp_kv_file **")
    call(lib.plp_kv_file_open, out, path_bytes(path))
    try:
        raw = ffi.new("plp_kv_file_info *")
        lib.plp_kv_file_get_info(out[0], raw)
        try:
            note = unpack(bytes(ffi.buffer(raw.note, raw.n_note)) if raw.n_note else b"")
        except ModelFileError:
            note = {}
        return KvFile(
            path=os.fspath(path), kind=_KINDS[raw.kind], fingerprint=text_of(raw.fingerprint),
            kv=_FORMATS.get(raw.kv_format, "unknown"), block_len=raw.block_len, n_bytes=raw.n_bytes,
            tokens=ffi.unpack(raw.tokens, raw.n_tokens) if raw.n_tokens else [],
            reference=os.fsdecode(ffi.string(raw.reference)) if raw.reference != ffi.NULL else None, note=note)
    finally:
        lib.plp_kv_file_close(out[0])


def pack(note: Mapping) -> bytes:
    try:
        return json.dumps(note, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError) as problem:
        raise InvalidArgument(f"the messages cannot be written to a file: {problem}") from None


def unpack(data: bytes) -> dict:
    if not data:
        return {}
    try:
        note = json.loads(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        note = None
    if not isinstance(note, dict):
        raise ModelFileError("the file's note is not one of this program's")
    return note
