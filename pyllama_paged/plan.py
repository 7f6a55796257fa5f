"""
What a model needs, before it is loaded: weights, KV in each format, and how long a context a machine holds.

Of a GGUF file it is the engine's own reading of the header; of a known shape (shapes.json) arithmetic on its counts.
"""

from __future__ import annotations

import importlib.resources
import json
import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ._native import call, ffi, lib
from .errors import InvalidArgument
from .gguf import File

__all__ = ["FORMATS", "Group", "Shape", "held_bytes", "kv_bytes", "longest_context", "of_file", "of_header", "shapes"]

FORMATS = ("f16", "q8", "q4")
BLOCK_LEN = 16
_ALIGNMENT = 64             # of a block
_Q4_K_M_BITS = 4.85         # a parameter, with the scales and the larger types of some matrices
_MOST = 1 << 30             # tokens


@dataclass(frozen=True)
class Group:
    """Layers that share one kind of block."""

    layers: int
    block_len: int                  #: tokens
    block_bytes: tuple[int, ...]    #: all its layers, by format
    window: int = 0                 #: tokens that they look back; 0: all
    is_state: bool = False          #: a running state instead of keys and values: as large however long the context is


@dataclass(frozen=True)
class Shape:
    title: str
    layers: int                 #: those that borrow keys and values are in no group
    groups: tuple[Group, ...]
    params: int
    context: int                #: what it was trained for
    weights: dict[str, int]     #: bytes, by a name of the type
    _native: Any = field(repr=False, compare=False, default=None)

    @property
    def window(self) -> int:
        """Some or all layers look back no further; 0: all see everything."""
        return max((group.window for group in self.groups if not group.is_state), default=0)


def _block_bytes(layers: int, kv_heads: int, head_dim: int) -> tuple[int, ...]:
    """
    Of a block, by format. f16: two bytes a value. q8 and q4 with their scales: K has one a channel and block, V one a
    token and 32 channels.
    """
    values, scales = 2 * BLOCK_LEN * head_dim, 2 * head_dim + 2 * BLOCK_LEN * math.ceil(head_dim / 32)
    tiles = (2 * values, values + scales, values // 2 + scales + 8)
    return tuple(-(-layers * kv_heads * tile // _ALIGNMENT) * _ALIGNMENT for tile in tiles)


def _native(groups: tuple[Group, ...], context: int):
    shape = ffi.new("plp_kv_shape *")
    shape.n_layers, shape.context_train, shape.n_groups = sum(g.layers for g in groups), context, len(groups)
    for to, group in zip(shape.group, groups):
        to.n_layers, to.block_len, to.window, to.is_state, to.block_bytes = \
            group.layers, group.block_len, group.window, group.is_state, group.block_bytes
    return shape


@cache
def shapes() -> dict[str, Shape]:
    known = json.loads(importlib.resources.files(__package__).joinpath("shapes.json").read_text("utf-8"))
    out = {}
    for name, s in known.items():
        groups = (Group(s["layers"], BLOCK_LEN, _block_bytes(s["layers"], s["kv_heads"], s["head_dim"])),)
        out[name] = Shape(s["title"], s["layers"], groups, s["params"], s["context"],
                          {"f16": 2 * s["params"], "Q4_K_M, about": int(s["params"] * _Q4_K_M_BITS / 8)}, _native(groups, s["context"]))
    return out


def of_header(file: File) -> Shape:
    """A file's shape, whether its tensors are all there or not."""
    shape = ffi.new("plp_kv_shape *")
    call(lib.plp_kv_shape_of, file.pointer, BLOCK_LEN, shape)
    groups = tuple(Group(g.n_layers, g.block_len, tuple(g.block_bytes), g.window, g.is_state) for g in shape.group[0:shape.n_groups])
    tensors = list(file.tensors())
    return Shape(title=str(file.get("general.name", file.path)), layers=shape.n_layers, groups=groups, params=sum(math.prod(t.shape) for t in tensors),
                 context=shape.context_train, weights={"in the file": sum(t.n_bytes for t in tensors)}, _native=shape)


def of_file(path) -> Shape:
    """`ModelFileError` if the file is damaged or incomplete, `UnsupportedModel` if it is of a kind that is not run."""
    with File.open(path) as file:
        return of_header(file)


def _format(kv: str) -> int:
    if kv not in FORMATS:
        raise InvalidArgument(f"kv={kv!r} is not known; it is one of {', '.join(FORMATS)}")
    return FORMATS.index(kv)


def kv_bytes(shape: Shape, kv: str) -> float:
    """
    Of one token in a full block, all layers. A window is not taken off: it bounds what is held, not what a token costs;
    a running state is shared out over its block.
    """
    at = _format(kv)
    return sum(group.block_bytes[at] / group.block_len for group in shape.groups)


def held_bytes(shape: Shape, kv: str, tokens: int) -> int:
    """What a session of so many tokens holds, exactly; while a part of a prompt is computed, that part's blocks besides."""
    return lib.plp_kv_shape_bytes(shape._native, _format(kv), tokens)


def _need(shape: Shape, kv: str, tokens: int, sessions: int, prefix: int) -> int:
    """The most that so many sessions ever held until each had so many tokens, whole blocks of their beginning once."""
    longest = max(group.block_len for group in shape.groups)        # what is held rises and falls with a period of this
    peak = max(held_bytes(shape, kv, n) for n in range(max(tokens - longest + 1, 0), tokens + 1))
    shared = sum(min(prefix, tokens) // group.block_len * group.block_bytes[_format(kv)] for group in shape.groups if not group.window)
    return sessions * peak - (sessions - 1) * shared


def longest_context(shape: Shape, kv: str, memory_bytes: float, *, sessions: int = 1, prefix: int = 0) -> int:
    """
    Tokens that each of these sessions may have, such that their KV fits into `memory_bytes`; not cut at the model's own limit.

    prefix    tokens that they all begin with, held once (as far as layers without a window go)
    """
    if not any(group.block_bytes[0] and not group.is_state for group in shape.groups):
        return 0
    low, high = 0, 1
    while high < _MOST and _need(shape, kv, high, sessions, prefix) <= memory_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _need(shape, kv, middle, sessions, prefix) <= memory_bytes else (low, middle)
    return low
