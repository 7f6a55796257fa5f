"""
Looking at a GGUF file without loading it: metadata, tensors, and what is wrong with it.

Threads   one at a time
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from ._native import Handle, call, ffi, lib, path_bytes, text_of

__all__ = ["File", "Tensor", "VALUE_TYPES"]

VALUE_TYPES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")
_F32, _BOOL, _STRING, _ARRAY, _U64, _F64 = 6, 7, 8, 9, 10, 12


@dataclass(frozen=True)
class Tensor:
    name: str
    type: str               #: "Q4_1"
    shape: tuple[int, ...]  #: fastest-running dimension first, as in the file
    n_bytes: int
    offset: int             #: from the start of its file
    part: int               #: which file of a split model


class File:
    """A GGUF file. Close it with `with` or `close`; a forgotten one is closed when it is collected."""

    def __init__(self, pointer, path: str):
        self.path = path
        self._handle = Handle(self, pointer, lib.plp_file_close, "file")

    @classmethod
    def open(cls, path, *, lenient: bool = False) -> "File":
        """`lenient` opens a file whose tensor data is not all there; `problem` then says what is missing."""
        out = ffi.new("plp_file **")
        name = os.fspath(path)
        call(lib.plp_file_open, out, path_bytes(name), lib.PLP_FILE_LENIENT if lenient else 0)
        return cls(out[0], name)

    @property
    def pointer(self):
        return self._handle.pointer

    def close(self) -> None:
        self._handle.close()

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    @property
    def problem(self) -> str | None:
        said = lib.plp_file_problem(self.pointer)
        return text_of(said) if said != ffi.NULL else None

    @property
    def version(self) -> int:
        return lib.plp_file_version(self.pointer)

    @property
    def n_bytes(self) -> int:
        return lib.plp_file_bytes(self.pointer)

    def _scalar(self, i: int, kind: int, at: int):
        if kind == _STRING:
            s, n = ffi.new("const char **"), ffi.new("size_t *")
            call(lib.plp_file_str, self.pointer, i, at, s, n)
            return bytes(ffi.buffer(s[0], n[0])).decode("utf-8", "replace")
        if kind in (_F32, _F64):
            return self._scalar_f64(i, at)
        v = ffi.new("int64_t *")
        if kind == _U64 and lib.plp_file_i64(self.pointer, i, at, v, ffi.NULL) < 0:
            return int(self._scalar_f64(i, at))     # above 2**63: rounded, but no reason to refuse the file
        call(lib.plp_file_i64, self.pointer, i, at, v)
        return bool(v[0]) if kind == _BOOL else v[0]

    def _scalar_f64(self, i: int, at: int) -> float:
        v = ffi.new("double *")
        call(lib.plp_file_f64, self.pointer, i, at, v)
        return v[0]

    def _meta(self, i: int):
        meta = ffi.new("plp_meta *")
        call(lib.plp_file_meta, self.pointer, i, meta)
        return meta

    def keys(self) -> list[str]:
        return [text_of(self._meta(i).key) for i in range(lib.plp_file_n_meta(self.pointer))]

    def describe(self, key: str) -> tuple[str, int]:
        """Type name and number of elements: ("array[string]", 49152), ("u32", 1)."""
        meta = self._meta(self._index(key))
        if meta.type == _ARRAY:
            return f"array[{VALUE_TYPES[meta.elem_type]}]", meta.n
        return VALUE_TYPES[meta.type], 1

    def _index(self, key: str) -> int:
        i = lib.plp_file_find(self.pointer, key.encode())
        if i < 0:
            raise KeyError(key)
        return i

    def __contains__(self, key: str) -> bool:
        return lib.plp_file_find(self.pointer, key.encode()) >= 0

    def value(self, key: str, limit: int | None = None):
        """A value as Python has it: int, float, bool, str, or a list of these (its first `limit` elements)."""
        i = self._index(key)
        meta = self._meta(i)
        if meta.type != _ARRAY:
            return self._scalar(i, meta.type, 0)
        n = meta.n if limit is None else min(meta.n, limit)
        return [self._scalar(i, meta.elem_type, at) for at in range(n)]

    def get(self, key: str, default=None):
        return self.value(key) if key in self else default

    def tensors(self) -> Iterator[Tensor]:
        info = ffi.new("plp_tensor_info *")
        for i in range(lib.plp_file_n_tensors(self.pointer)):
            call(lib.plp_file_tensor, self.pointer, i, info)
            yield Tensor(text_of(info.name), text_of(info.type_name), tuple(info.dims[d] for d in range(info.n_dims)),
                         info.n_bytes, info.offset, info.part)
