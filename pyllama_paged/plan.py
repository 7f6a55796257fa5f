"""
What a model needs, before it is loaded: weights, KV per token in each format, and how long a context a machine holds.

Pure arithmetic on counts: of a known shape (shapes.json), or of a GGUF file's header and tensor list.
"""

from __future__ import annotations

import importlib.resources
import json
import math
from dataclasses import dataclass
from functools import cache

from .errors import InvalidArgument, ModelFileError
from .gguf import File

__all__ = ["FORMATS", "Shape", "kv_bytes", "longest_context", "of_file", "shapes"]

FORMATS = ("f16", "q8", "q4")
BLOCK_LEN = 16
_ALIGNMENT = 64             # of a block
_Q4_K_M_BITS = 4.85         # a parameter, with the scales and the larger types of some matrices


@dataclass(frozen=True)
class Shape:
    title: str
    kv_heads: tuple[int, ...]   #: of each layer
    head_dim: int               #: of K
    value_dim: int              #: of V
    params: int
    context: int                #: what it was trained for
    weights: dict[str, int]     #: bytes, by a name of the type
    window: int = 0             #: some or all layers look back no further; 0: all see everything

    @property
    def layers(self) -> int:
        return len(self.kv_heads)


@cache
def shapes() -> dict[str, Shape]:
    known = json.loads(importlib.resources.files(__package__).joinpath("shapes.json").read_text("utf-8"))
    return {name: Shape(s["title"], (s["kv_heads"],) * s["layers"], s["head_dim"], s["head_dim"], s["params"], s["context"],
                        {"f16": 2 * s["params"], "Q4_K_M, about": int(s["params"] * _Q4_K_M_BITS / 8)})
            for name, s in known.items()}


def of_file(path) -> Shape:
    """A file's shape. `ModelFileError` if it is damaged, incomplete, or names no layers."""
    with File.open(path) as file:
        arch = file.get("general.architecture")

        def number(key: str, default: int | None = None) -> int:
            value = file.get(f"{arch}.{key}", default)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
                raise ModelFileError(f"{path}: {arch}.{key} is {value!r}, so what the KV cache needs cannot be told")
            return value

        layers, width, heads = number("block_count") - number("nextn_predict_layers", 0), number("embedding_length"), file.get(f"{arch}.attention.head_count")
        most_heads = max(heads) if isinstance(heads, list) else number("attention.head_count")
        per_layer = file.get(f"{arch}.attention.head_count_kv", most_heads)
        if not isinstance(per_layer, list):
            per_layer = [number("attention.head_count_kv", most_heads)] * min(layers, 100_000)
        per_layer = per_layer[:layers]
        borrowing = min(number("attention.shared_kv_layers", 0), layers)        # the last ones attend to keys of layers before
        per_layer = per_layer[:layers - borrowing] + [0] * borrowing
        every = number("full_attention_interval", 0)        # the layers between have a running state of fixed size instead
        if every:
            per_layer = [n if (i + 1) % every == 0 else 0 for i, n in enumerate(per_layer)]
        usual = width // most_heads if most_heads else 0
        tensors = list(file.tensors())
        return Shape(
            title=str(file.get("general.name", path)), kv_heads=tuple(per_layer), head_dim=number("attention.key_length", usual),
            value_dim=number("attention.value_length", usual), params=sum(math.prod(t.shape) for t in tensors),
            context=number("context_length", 0), weights={"in the file": sum(t.n_bytes for t in tensors)},
            window=number("attention.sliding_window", 0))


def kv_bytes(shape: Shape, kv: str) -> float:
    """
    Of one token in a full block, all layers. A window is not taken off: it bounds what is held, not what a token costs.

    f16: two bytes a value. q8 and q4 with their scales: K has one a channel and block, V one a token and 32 channels.
    """
    if kv == "f16":
        return 2.0 * sum(shape.kv_heads) * (shape.head_dim + shape.value_dim)
    if kv not in FORMATS:
        raise InvalidArgument(f"kv={kv!r} is not known; it is one of {', '.join(FORMATS)}")
    d, groups = shape.head_dim, math.ceil(shape.value_dim / 32)
    values = BLOCK_LEN * (shape.head_dim + shape.value_dim)
    tile = values + 2 * d + 2 * BLOCK_LEN * groups if kv == "q8" else values // 2 + 2 * d + 2 * BLOCK_LEN * groups + 8
    block = sum(shape.kv_heads) * tile
    return (block + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT / BLOCK_LEN


def longest_context(shape: Shape, kv: str, memory_bytes: float) -> int:
    """Tokens whose KV fits into `memory_bytes`, the open block in f16 included; not cut at the model's own limit."""
    open_block = kv_bytes(shape, "f16") * BLOCK_LEN if kv != "f16" else 0
    per_token = kv_bytes(shape, kv)
    return max(0, int((memory_bytes - open_block) // per_token)) if per_token else 0
