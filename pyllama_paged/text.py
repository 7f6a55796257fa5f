"""
Between token bytes and the text a person sees: whole characters only, and nothing of a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from .errors import InvalidArgument

__all__ = ["Characters", "StopStrings", "MAX_STOPS", "longest_tail", "utf8"]

MAX_STOPS = 4           #: as many as the OpenAI API takes


def utf8(text: str | bytes) -> bytes:
    """The bytes of a text. Half a surrogate pair has none, and saying so beats replacing it in silence."""
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise InvalidArgument(f"text must be str or bytes, not {type(text).__name__}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise InvalidArgument(
            f"the text holds a lone surrogate (U+{ord(text[problem.start]):04X}) at position {problem.start}, "
            "which is not a character"
        ) from None


class Characters:
    """
    Bytes in, whole characters out. What is left of an unfinished character waits for the next bytes.

    Invalid bytes become U+FFFD exactly as `bytes.decode("utf-8", "replace")` would have it, so that the joined
    pieces equal the decoded whole.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def finish(self) -> str:
        """The unfinished rest, as U+FFFD."""
        return self._decoder.decode(b"", final=True)


def longest_tail(text: str, stop: str) -> int:
    """How many characters at the end of `text` may be the beginning of `stop`."""
    for n in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0


class StopStrings:
    """
    Holds back what may become a stop string, and lets go of it as soon as it cannot.

    `push` returns text that is safe to show; after a match `hit` is the stop string found, and nothing more
    comes. The match that is complete first wins, so that the result does not depend on how the text was cut.
    """

    def __init__(self, stops: str | Iterable[str] | None):
        given: Sequence[str] = [stops] if isinstance(stops, str) else list(stops or ())
        if len(given) > MAX_STOPS:
            raise InvalidArgument(f"{len(given)} stop strings; at most {MAX_STOPS} are taken")
        for stop in given:
            if not isinstance(stop, str) or not stop:
                raise InvalidArgument("a stop string must be a text of at least one character")
        self._stops = given
        self._held = ""
        self.hit: str | None = None

    def push(self, text: str) -> str:
        if not self._stops:
            return text
        if self.hit is not None:
            return ""
        held = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            _, at, self.hit = min(found)
            self._held = ""
            return held[:at]
        keep = max(longest_tail(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep:]
        return held[:len(held) - keep]

    def finish(self) -> str:
        """What was held back and turned out to be ordinary text."""
        held, self._held = self._held, ""
        return held
