"""
Text to tokens and back.

Threads   read-only after it is opened: any
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ._native import Handle, call, ffi, lib, text_of
from .errors import InvalidArgument
from .text import utf8

__all__ = ["Vocab", "VocabInfo"]


@dataclass(frozen=True)
class VocabInfo:
    """What the file says about its tokenizer; special ids are None where it names none."""

    n_tokens: int
    model: str
    pre: str
    warning: str
    bos: int | None
    eos: int | None
    eot: int | None
    pad: int | None
    unk: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool


class Vocab:
    """A tokenizer. `owner` is whatever keeps the C object alive: a model, or this object's own handle."""

    def __init__(self, pointer, owner):
        self._v = pointer
        self._owner = owner

    @classmethod
    def open(cls, path) -> "Vocab":
        """The tokenizer of a model file, or of a file that holds nothing but a vocabulary."""
        from .gguf import File          # not needed by a model, which brings its own vocabulary

        with File.open(path, lenient=True) as file:
            out = ffi.new("plp_vocab **")
            call(lib.plp_vocab_open, out, file.pointer)
        vocab = cls(out[0], None)
        vocab._owner = Handle(vocab, out[0], lib.plp_vocab_close, "tokenizer")
        return vocab

    @property
    def pointer(self):
        self._owner.pointer             # raises when what we live in is closed
        return self._v

    @cached_property
    def info(self) -> VocabInfo:
        raw = ffi.new("plp_vocab_info *")
        lib.plp_vocab_get_info(self.pointer, raw)
        ids = {name: (i if (i := getattr(raw, name)) >= 0 else None) for name in ("bos", "eos", "eot", "pad", "unk")}
        return VocabInfo(raw.n_tokens, text_of(raw.model), text_of(raw.pre), text_of(raw.warning),
                         add_bos=raw.add_bos, add_eos=raw.add_eos, add_space_prefix=raw.add_space_prefix, **ids)

    def tokenize(self, text: str | bytes, *, bos: bool = False, control: bool = False, continues: bool = False,
                 strip: bool = False, strip_end: bool = False) -> list[int]:
        """
        The tokens of a text.

        bos         add what the vocabulary's own rules put around a text
        control     control tokens spelled in the text become control tokens; never do this to a user's text
        continues   the text goes on from earlier text, so no rule for the beginning of a text applies
        strip       leave out white space at the start: the text follows a token that takes it (`strips`)
        strip_end   leave it out at the end: the token that follows takes it (`strips_before`)
        """
        data = utf8(text)
        flags = (lib.PLP_TOKENIZE_BOS if bos else 0) | (lib.PLP_TOKENIZE_CONTROL if control else 0) \
            | (lib.PLP_TOKENIZE_CONTINUE if continues else 0) | (lib.PLP_TOKENIZE_STRIP if strip else 0) \
            | (lib.PLP_TOKENIZE_STRIP_END if strip_end else 0)
        # A token spells at least one byte; besides room for BOS, EOS and a leading space.
        out, n = _sized(lib.plp_tokenize, "int32_t[]", len(data) + 8, self.pointer, data, len(data), flags)
        return ffi.unpack(out, n) if n else []

    def detokenize_bytes(self, tokens: Iterable[int], *, control: bool = False) -> bytes:
        ids = token_array(tokens)
        flags = lib.PLP_TEXT_CONTROL if control else 0
        out, n = _sized(lib.plp_detokenize, "char[]", 64 + 8 * len(ids), self.pointer, ids, len(ids), flags)
        return bytes(ffi.buffer(out, n))

    def detokenize(self, tokens: Iterable[int], *, control: bool = False) -> str:
        """The text of tokens; bytes that are no characters become U+FFFD."""
        return self.detokenize_bytes(tokens, control=control).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token's text; none for control tokens."""
        out, n = _sized(lib.plp_token_text, "char[]", 512, self.pointer, token, 0)
        return bytes(ffi.buffer(out, n))

    def spelling(self, token: int) -> str:
        """A token as it is written, control tokens included."""
        return self.detokenize([token], control=True)

    def find(self, spelling: str | bytes) -> int | None:
        data = utf8(spelling)
        token = lib.plp_token_find(self.pointer, data, len(data))
        return token if token >= 0 else None

    def ends(self, token: int) -> bool:
        """Whether a model says with this token that it is done."""
        return lib.plp_token_ends(self.pointer, token)

    def strips(self, token: int) -> bool:
        """Whether white space after this token belongs to it."""
        return lib.plp_token_strips(self.pointer, token)

    def strips_before(self, token: int) -> bool:
        """Whether white space before this token belongs to it."""
        return lib.plp_token_strips_before(self.pointer, token)

    @cached_property
    def control(self) -> dict[str, int]:
        """Spelling to id of every control token."""
        pointer, kind = self.pointer, lib.plp_token_kind_of
        ids = [i for i in range(self.info.n_tokens) if kind(pointer, i) == lib.PLP_TOKEN_CONTROL]
        return {text: i for i in reversed(ids) if (text := self.spelling(i))}


def token_array(tokens: Iterable[int]):
    """Token ids as C has them. Takes lists, arrays and any other iterable of whole numbers."""
    try:
        return ffi.new("int32_t[]", tokens if isinstance(tokens, (list, tuple)) else [int(t) for t in tokens])
    except (TypeError, ValueError, OverflowError) as problem:
        raise InvalidArgument(f"tokens must be whole numbers that fit in 32 bits: {problem}") from None


def _sized(function, kind: str, cap: int, *args):
    """Call a function that says how much room it needs; again, with that room, if the first was too little."""
    out, n = ffi.new(kind, cap), ffi.new("size_t *")
    if function(*args, out, cap, n, ffi.NULL) != lib.PLP_OK:
        cap = max(cap, n[0])
        out = ffi.new(kind, cap)
        call(function, *args, out, cap, n)
    return out, n[0]
