"""
How the next token is drawn: the settings, checked and named as users know them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ._native import ffi, lib
from .errors import InvalidArgument

__all__ = ["Sampling"]


@dataclass(frozen=True)
class Sampling:
    """
    `temperature=0` is greedy: the most likely token, always. Every other default is "off".

    The same timeline, settings and seed give the same text.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64            #: tokens the penalties look back; -1: all
    seed: int = 0
    logit_bias: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        def need(ok: bool, sentence: str) -> None:
            if not ok:
                raise InvalidArgument(sentence)

        need(0 <= self.temperature <= 1000, f"temperature is {self.temperature}; it must be 0 or more")
        need(0 <= self.top_k < 2**31, f"top_k is {self.top_k}; it must be 0 (off) or more, and fit in 32 bits")
        for name in ("top_p", "min_p", "typical_p"):
            value = getattr(self, name)
            need(0 <= value <= 1, f"{name} is {value}; it must be between 0 and 1")
        need(self.repeat_penalty > 0, f"repeat_penalty is {self.repeat_penalty}; it must be above 0")
        need(-1 <= self.penalty_last_n < 2**31, f"penalty_last_n is {self.penalty_last_n}; it must be -1 (all) or more, and fit in 32 bits")

    def with_(self, **changes) -> "Sampling":
        """A copy with some settings changed; None leaves a setting as it is."""
        changes = {k: v for k, v in changes.items() if v is not None}
        try:
            return replace(self, **changes) if changes else self
        except TypeError as problem:
            raise InvalidArgument(f"unknown sampling setting: {problem}") from None

    def native(self):
        """The C structure, and whatever must live as long as it does."""
        out = ffi.new("plp_sampling *")
        lib.plp_sampling_defaults(out)
        for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty",
                     "presence_penalty", "frequency_penalty", "penalty_last_n"):
            setattr(out, name, getattr(self, name))
        out.seed = self.seed & 0xFFFFFFFFFFFFFFFF
        bias = self.logit_bias or {}
        try:
            ids = ffi.new("int32_t[]", [int(i) for i in bias])
        except (OverflowError, TypeError, ValueError) as problem:
            raise InvalidArgument(f"logit_bias goes from token ids to numbers: {problem}") from None
        values = ffi.new("float[]", [float(v) for v in bias.values()])
        out.bias_ids, out.bias_values, out.n_bias = ids, values, len(bias)
        return out, (ids, values)
