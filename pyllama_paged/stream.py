"""
An answer while it comes: tokens drawn one by one, text pieces out, figures at the end.

Threads   a stream belongs to the thread that began it, and while it is unfinished so does its session.
          AsyncStream runs each piece in a worker thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from .errors import Cancelled, ContextFull
from .reasoning import Reasoning, Splitter
from .text import StopStrings
from .toolcalls import ToolCall, id_of

if TYPE_CHECKING:
    from .sampling import Sampling
    from .session import Session

__all__ = ["Answer", "AsyncStream", "Opening", "Stats", "Stream"]


class Opening(NamedTuple):
    """What an answer continues: the plain text (and its tokens) that a rendered conversation ends in."""

    text: str
    tokens: list[int]
    splitter: Splitter | None       #: in the state in which the conversation ends; None: the model marks no reasoning


@dataclass
class Stats:
    """Counts in tokens, times in seconds. Final once the stream has ended."""

    prompt_tokens: int = 0          #: the timeline that the answer follows
    reused_tokens: int = 0          #: of these, how many had not to be computed again
    dropped_tokens: int = 0         #: old tokens given up because the timeline changed there
    answer_tokens: int = 0          #: the end token included
    drafted_tokens: int = 0         #: guessed and computed beside the others (`Model.session(speculate=True)`)
    accepted_tokens: int = 0        #: of these, how many came true and needed no step
    prompt_seconds: float = 0.0
    answer_seconds: float = 0.0

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens computed per second."""
        return (self.prompt_tokens - self.reused_tokens) / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def answer_rate(self) -> float:
        """Answer tokens per second."""
        return self.answer_tokens / self.answer_seconds if self.answer_seconds else 0.0


@dataclass
class Answer:
    """
    What has been said so far, and how it ended.

    finish   None while it goes on; then "stop" (the model, or a stop string, ended it), "tool_calls" (the model ended
             it, and waits for what its calls return), "length" (max_tokens or the context limit), "cancelled",
             "interrupted" (the caller broke it off), "error"
    """

    text: str = ""                  #: the answer itself
    reasoning: str = ""             #: what the model thought before it, where its marks are known (`Model.thinks`)
    tool_calls: list[ToolCall] = field(default_factory=list)    #: what the model wants called, where tools are offered
    call_problem: str | None = None     #: why something that began like a call is none; it is in `text` then
    raw: str = ""                   #: all that was said, with the marks that are text
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None
    stop_string: str | None = None
    context_full: bool = False
    dropped_messages: list[dict] = field(default_factory=list)      #: the oldest, given up for room (`when_full="shift"`)
    stats: Stats = field(default_factory=Stats)

    def __str__(self) -> str:
        return self.text


class Stream:
    """
    Iterate for the pieces (never half a character), or `read()` for the whole answer. Pieces of the model's
    reasoning are of the type `Reasoning`, whole calls of tools of the type `ToolCall`, both of them str; stop strings
    are looked for in the answer alone.

    Leaving the loop early is fine: what was said stays in the session. The attributes of `Answer` can be read
    at any time: `stream.text`, `stream.finish`, `stream.stats`.
    """

    def __init__(self, session: "Session", sampling: "Sampling", stops: StopStrings, max_tokens: int | None,
                 ended, splitter: Splitter | None = None, exclusive: bool = False,
                 progress: Callable[[int, int], object] | None = None):
        self.session = session
        self.answer = Answer()
        self._native, self._keep = sampling.native()
        self._stops = stops
        self._max_tokens = max_tokens
        self._splitter = splitter                   # keeps reasoning apart
        control = session.model.vocab.control if splitter else {}
        self._marks: Mapping[int, str] = {control[m]: m for m in splitter.spelled} if splitter else {}     # its control tokens
        self._ready: deque[str] = deque()           # split, not yet handed out
        self._drafts = session._drafts()            # before this answer
        self._progress = progress                   # told after each piece of the prompt: tokens computed, tokens in all
        self._ended = ended                         # told once, with the answer, when nothing more comes
        self._owner = None if exclusive else threading.get_ident()
        self.cancelled = False
        self.make_room = lambda token: False        # asked at the context limit; true if the token has its place now

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> str:
        with self.session._gate:
            try:
                while self.answer.finish is None and not self._ready:
                    self._advance()
                if self._ready:
                    if self.answer.finish is not None and len(self._ready) == 1:
                        self._end(self.answer.finish)
                    return self._ready.popleft()
            except BaseException as problem:
                self._end("cancelled" if isinstance(problem, Cancelled) else
                          "interrupted" if isinstance(problem, KeyboardInterrupt) else "error")
                raise
            self._end(self.answer.finish)
            raise StopIteration

    def _advance(self) -> None:
        """One token further; what is now safe to show becomes ready. Sets `finish` with the last of it."""
        session, answer, began = self.session, self.answer, time.perf_counter()
        if self._max_tokens is not None and len(answer.tokens) >= self._max_tokens:
            self._last("length")
            return
        for n_pending in session._steps():
            self._check()
            if self._progress is not None and not answer.tokens:
                self._progress(answer.stats.prompt_tokens - n_pending, answer.stats.prompt_tokens)
        self._check()
        token, logprob = session._draw(self._native)
        if not answer.tokens:
            answer.stats.prompt_seconds, began = time.perf_counter() - began, time.perf_counter()
        try:
            session._append(token)
        except ContextFull:
            if not self.make_room(token):
                answer.context_full = True
                self._last("length")
                return
        answer.tokens.append(token)
        answer.logprobs.append(logprob)
        answer.stats.answer_tokens += 1
        drafted, accepted = session._drafts()
        answer.stats.drafted_tokens, answer.stats.accepted_tokens = drafted - self._drafts[0], accepted - self._drafts[1]
        if session.model.vocab.ends(token):
            self._last("stop")
        elif token in self._marks:
            self._say(self._splitter.mark(self._marks[token]))
        else:
            self._push(session._characters.push(session.model.vocab.token_bytes(token)))
        answer.stats.answer_seconds += time.perf_counter() - began

    def _push(self, text: str) -> None:
        self.answer.raw += text
        self._say([text] if self._splitter is None else self._splitter.push(text))

    def _say(self, pieces: Iterable[str]) -> None:
        answer = self.answer
        for piece in pieces:
            if self._stops.hit is not None:
                return
            if isinstance(piece, ToolCall):
                piece.index = len(answer.tool_calls)
                piece.id = piece.id or id_of(piece, answer.stats.prompt_tokens, piece.index)
                answer.tool_calls.append(piece)
                self._ready.append(piece)
                continue
            if isinstance(piece, Reasoning):
                answer.reasoning += piece
            else:
                piece = self._stops.push(piece)
                answer.text += piece
                if self._stops.hit is not None:
                    answer.finish, answer.stop_string = "stop", self._stops.hit
            if piece:
                self._ready.append(piece)
        if self._splitter is not None:
            answer.call_problem = self._splitter.problem or answer.call_problem

    def _last(self, finish: str) -> None:
        """Ends the answer: what stop strings held back is text after all. Half a character, or half a mark, is only
        given up where the model is done; otherwise it waits for `resume`."""
        if finish == "stop":
            self._push(self.session._characters.finish())
            self._say(self._splitter.finish() if self._splitter else ())
        if self._stops.hit is None and (rest := self._stops.finish()):
            self.answer.text += rest
            self._ready.append(rest)
        self.answer.finish = "tool_calls" if finish == "stop" and self.answer.tool_calls else finish

    def _check(self) -> None:
        if self.cancelled:
            raise Cancelled(f"cancelled after {self.session.n_computed} of {len(self.session)} tokens")

    def _end(self, finish: str) -> None:
        ended, self._ended = self._ended, None
        self.answer.finish = finish
        if ended is not None:
            ended(self.answer)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def __del__(self) -> None:
        if self.__dict__.get("_ended") is not None and not self.session.closed:     # not there if __init__ did not get that far
            self._end(self.answer.finish or "interrupted")

    def __getattr__(self, name: str):
        if name.startswith("_") or name == "answer":
            raise AttributeError(name)
        return getattr(self.answer, name)

    def close(self, finish: str = "interrupted") -> None:
        """End the answer here, and say why; one that has ended keeps its own reason."""
        with self.session._gate:
            self._end(self.answer.finish or finish)

    def read(self) -> str:
        """The rest of the answer; returns all of its text."""
        for _ in self:
            pass
        return self.answer.text

    def yields_to(self, thread: int) -> bool:
        """Whether a new operation from that thread may end this stream. One that is done is in nobody's way."""
        return self.answer.finish is not None or self._owner == thread


class AsyncStream:
    """A `Stream` for `async for`; cancelling the task stops the computation."""

    def __init__(self, stream: Stream):
        self._stream = stream

    def __aiter__(self) -> "AsyncStream":
        return self

    async def __anext__(self) -> str:
        import asyncio              # half as large as the rest of the package; only for those who use it

        work = asyncio.ensure_future(asyncio.to_thread(next, self._stream, None))
        try:
            piece = await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stream.session.cancel()
            await asyncio.wait([work])
            work.exception()                        # looked at, so that the loop does not report it
            self._stream.close("cancelled")         # the piece may have been ready, and nothing there to be stopped
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._stream, name)

    async def aclose(self) -> None:
        self._stream.close()

    async def read(self) -> str:
        async for _ in self:
            pass
        return self._stream.text
