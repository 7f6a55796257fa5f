"""
One conversation: a token timeline, the KV blocks behind it, and the messages that it was made from.

Two ways to use one, which may be mixed:
    messages   stream, send, regenerate, resume: the model's chat template, the answer kept as a message
    tokens     sync, feed, compute, logits, sample, rewind, score: the timeline itself

Threads   one at a time; a second one gets `Busy`. `cancel` may be called from any.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._native import Gate, Handle, call, ffi, lib
from .errors import Busy, Cancelled, Closed, ContextFull, InvalidArgument, NumericError
from .memory import SessionMemory
from .reasoning import SWITCHES
from .sampling import Sampling
from .stream import Answer, AsyncStream, Opening, Stream
from .text import Characters, StopStrings
from .vocab import token_array

if TYPE_CHECKING:
    import numpy

    from .model import Model
    from .prefix import Prefix
    from .reasoning import Splitter

__all__ = ["Session", "Sync"]

_SPECULATE = {False: lib.PLP_SPECULATE_OFF, True: lib.PLP_SPECULATE_ON, "always": lib.PLP_SPECULATE_ALWAYS}


@dataclass(frozen=True)
class Sync:
    """What `Session.sync` did with the timeline it was given; counts of tokens."""

    kept: int           #: this session had them
    reused: int         #: other sessions or prefixes had them computed
    pending: int        #: to be computed
    dropped: int        #: old ones given up, because the new timeline differs from there on

    def __str__(self) -> str:
        why = f"; {self.dropped} given up, the timeline differs after {self.kept}" if self.dropped else ""
        return f"{self.kept + self.reused} tokens reused, {self.pending} to compute{why}"


class Session:
    """
    Made by `Model.session()`. Close it with `with` or `close`; a forgotten one is closed when it is collected.
    Calls release the GIL.
    """

    def __init__(self, model: "Model", pointer, messages: list[dict], *, template: Mapping | None = None, when_full: str = "stop"):
        self.model = model
        self.messages = messages
        self.template = dict(template or {})        # variables of every rendering
        self.when_full = when_full
        self.prefix: Prefix | None = None           # what it was started from
        self.last_sync: Sync | None = None
        self._handle = Handle(self, pointer, lib.plp_session_close, "session")
        self._gate = Gate("session")
        self._stream: weakref.ref[Stream] | None = None
        self._known: dict[str, list[int]] = {}      # texts of answers given -> their tokens
        self._unfinished: tuple[str, list[int]] | None = None   # the same of an answer that `resume` may go on with
        self._splitter: Splitter | None = None      # of the last answer, where it ended
        self._cancel_lock = threading.Lock()        # so that no cancel outlives the work it was meant for
        self._inside = self._cancelled = False
        self._characters = Characters()             # may hold half a character between two answers
        self._speculate: bool | str = False
        model._sessions.add(self)

    # ---- closing

    @property
    def pointer(self):
        if self.model.closed:
            raise Closed("the model of this session is closed")
        return self._handle.pointer

    @property
    def closed(self) -> bool:
        return self._handle.closed or self.model.closed

    def close(self) -> None:
        """Stops what runs and gives the blocks back. Closing twice is fine."""
        if self._handle.closed:
            return
        self.cancel()
        while not self._gate.wait(0.05):            # whoever is inside leaves within one step
            self.cancel()
        try:
            self._handle.close()
        finally:
            self._gate.leave()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<Session (closed)>" if self.closed else f"<Session of {len(self)} tokens>"

    # ---- tokens

    def __len__(self) -> int:
        return lib.plp_session_n_tokens(self.pointer)

    @property
    def n_computed(self) -> int:
        return lib.plp_session_n_computed(self.pointer)

    @property
    def tokens(self) -> list[int]:
        """The timeline, tokens still to be computed included."""
        with self._gate:
            cap = len(self)
            out, n = ffi.new("int32_t[]", max(cap, 1)), ffi.new("uint32_t *")
            call(lib.plp_session_tokens, self.pointer, out, cap, n)
            return ffi.unpack(out, n[0]) if n[0] else []

    @property
    def memory(self) -> SessionMemory:
        return SessionMemory.of(self.pointer)

    def sync(self, tokens: Sequence[int]) -> Sync:
        """
        Adopt a whole timeline: what it has in common with the present one is kept, the rest is given up, and
        what other sessions have computed is reused. Nothing is computed yet.
        """
        with self._gate:
            self._settle()
            report = self._adopt(tokens)
            self._begin_anew()
            return report

    def feed(self, tokens: Sequence[int]) -> None:
        """Append tokens to the timeline, to be computed by the next `compute`."""
        ids = token_array(tokens)
        with self._gate:
            self._settle()
            call(lib.plp_session_feed, self.pointer, ids, len(ids))
            self._unfinished = None

    def compute(self, progress: Callable[[int, int], object] | None = None) -> None:
        """
        Compute what is pending, a chunk at a time. Ctrl-C and `cancel` act between chunks, and `progress`, if given,
        is called there with the number of tokens computed and of all.
        """
        with self._gate:
            self._settle()
            for n_pending in self._steps():
                if progress is not None:
                    progress(len(self) - n_pending, len(self))

    def compute_logits(self, out: "numpy.ndarray") -> None:
        """As `compute`; the logits of every token computed go to `out`, float32 [n_pending, n_vocab]."""
        with self._gate:
            self._settle()
            n_done, n_pending = ffi.new("uint32_t *", 1), ffi.new("uint32_t *", 1)
            row = 0
            with _Work(self) as work:
                while n_pending[0] and n_done[0] and row < len(out):
                    work.check()
                    rows = ffi.cast("float *", out[row:].ctypes.data)
                    call(lib.plp_session_step_logits, self.pointer, rows, len(out) - row, n_done, n_pending)
                    row += n_done[0]
            if row != len(out):
                raise InvalidArgument(f"room for the logits of {len(out)} tokens, but {row} were pending")

    @property
    def logits(self) -> "numpy.ndarray":
        """float32 [n_vocab] after the last token; a copy. Computes what is pending."""
        import numpy

        with self._gate:
            self.compute()
            row = lib.plp_session_logits(self.pointer)
            if row == ffi.NULL:
                raise InvalidArgument("this session has no tokens, so it has no logits")
            return numpy.frombuffer(ffi.buffer(row, 4 * self.model.info.n_vocab), numpy.float32).copy()

    def sample(self, sampling: Sampling | None = None, **changes) -> tuple[int, float]:
        """Draw the next token and its log-probability; it is not appended. Computes what is pending."""
        native, _keep = (sampling or Sampling()).with_(**changes).native()
        with self._gate:
            self.compute()
            return self._draw(native)

    def rewind(self, n: int) -> None:
        """Drop the last tokens so that `n` remain."""
        with self._gate:
            self._settle()
            call(lib.plp_session_rewind, self.pointer, n)
            self._begin_anew()

    def fork(self) -> "Session":
        """A second session with the same timeline and messages. It shares every block until one of the two writes."""
        with self._gate:
            out = ffi.new("plp_session **")
            call(lib.plp_session_fork, out, self.pointer)
            twin = Session(self.model, out[0], [dict(m) for m in self.messages], template=self.template, when_full=self._when_full)
            twin._known = dict(self._known)
            twin._unfinished, twin._speculate = self._unfinished, self._speculate
            twin._splitter = self._splitter.copy() if self._splitter else None
            if self.prefix is not None:
                self.prefix.adopt(twin)
            return twin

    def score(self, text: str | Sequence[int]) -> list[float]:
        """
        The log-probability of each token of `text`, were it to follow. The session itself stays as it is.

        With an empty timeline nothing predicts the first token, so the list begins with the second.
        """
        import numpy

        with self._gate, self.fork() as twin:
            before = self.tokens
            new = self.model.vocab.tokenize(text, continues=bool(before)) if isinstance(text, (str, bytes)) else list(text)
            line = before[-1:] + new
            if len(line) < 2:
                return []
            if before:
                twin.rewind(len(before) - 1)
            twin.compute()
            twin.feed(line[:-1])
            rows = numpy.empty((len(line) - 1, self.model.info.n_vocab), numpy.float32)
            twin.compute_logits(rows)
        out = []
        for row, token in zip(rows, line[1:]):
            wide = row.astype(numpy.float64)
            if not numpy.isfinite(wide).all():
                bad = int(numpy.argmin(numpy.isfinite(wide)))
                raise NumericError(f"the logit of token {bad} before token {len(out)} of the text is {wide[bad]}")
            if not 0 <= token < len(wide):
                raise InvalidArgument(f"token {token} is not in the vocabulary of {len(wide)}")
            top = wide.max()
            out.append(float(wide[token] - top - numpy.log(numpy.exp(wide - top).sum())))
        return out

    # ---- messages

    def stream(
        self,
        content: str | Mapping | Sequence[Mapping] | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Iterable[str] | None = None,
        sampling: Sampling | None = None,
        template: Mapping | None = None,
        progress: Callable[[int, int], object] | None = None,
        _exclusive: bool = False,
        **changes,
    ) -> Stream:
        """
        Say something and stream the answer, as text pieces.

        content     the user's words; or a message, or several (results of tools: {"role": "tool", "tool_call_id": ...});
                    None: the last message is to be answered
        max_tokens  None: until the model is done or the context is full
        stop        up to four strings that end the answer; they are not part of it
        sampling    or its settings by name: temperature=0.8, seed=1 ...
        template    variables for the chat template: {"tools": [...]}, if they are not the session's
        progress    called while the prompt is computed, with the number of its tokens that are done and of all

        If the template refuses the messages or they do not fit, the session stays as it was.
        """
        new = [content] if isinstance(content, Mapping) else \
            [{"role": "user", "content": content}] if isinstance(content, str) else list(content or ())
        settings, stops = (sampling or Sampling()).with_(**changes), StopStrings(stop)
        _check_count(max_tokens)
        with self._gate:
            self._settle()
            back, history = self.messages, self.messages + new
            if not history:
                raise InvalidArgument("there is nothing to answer: the conversation has no messages")
            variables = {**self.template, **(template or {})}
            tokens, opening = self.model._chat_tokens(history, self._known, variables)
            history = [*back, *map(dict, new)]
            dropped: list[dict] = []
            try:
                report = self.sync(tokens)
            except ContextFull:
                if (found := self._shifted(history, variables, [])) is None:
                    raise
                tokens, history, dropped = found
                report = self.sync(tokens)
            self.messages = history
            stream = self._begin(settings, stops, max_tokens, lambda answer: self._said(answer, back, opening),
                                 report=report, exclusive=_exclusive, splitter=opening.splitter, progress=progress)
            answer = stream.answer              # the stream itself, in its own attribute, would never be collected
            answer.dropped_messages = dropped
            stream.make_room = lambda token: self._make_room(answer, variables, token)
            return stream

    def regenerate(self, **options) -> Stream:
        """Answer the last message once more, in place of the answer that was given."""
        with self._gate:
            self._settle()
            kept = self.messages
            if kept and kept[-1].get("role") == "assistant":
                self.messages = kept[:-1]
            try:
                return self.stream(**options)
            except BaseException:
                self.messages = kept
                raise

    @property
    def unfinished(self) -> bool:
        """Whether the last message is an answer that ended before the model was done, so that `resume` completes it."""
        last = self.messages[-1] if self.messages else {}
        return self._unfinished is not None and last.get("role") == "assistant" and isinstance(last.get("content"), str)

    def resume(self, *, max_tokens: int | None = None, stop: str | Iterable[str] | None = None, sampling: Sampling | None = None,
               progress: Callable[[int, int], object] | None = None, **changes) -> Stream:
        """Go on with an answer that ended too early (`max_tokens`, Ctrl-C), from exactly where the timeline is."""
        settings, stops = (sampling or Sampling()).with_(**changes), StopStrings(stop)
        _check_count(max_tokens)
        with self._gate:
            self._settle()
            if not len(self):
                raise InvalidArgument("the session has no tokens, so there is nothing to go on with")
            return self._begin(settings, stops, max_tokens, self._went_on, splitter=self._splitter, progress=progress)

    def complete(self, prompt: str | bytes | Sequence[int], *, max_tokens: int | None = None,
                 stop: str | Iterable[str] | None = None, sampling: Sampling | None = None,
                 progress: Callable[[int, int], object] | None = None, **changes) -> Stream:
        """Append a text (or tokens) as it is, without any template, and stream its continuation."""
        settings, stops = (sampling or Sampling()).with_(**changes), StopStrings(stop)
        _check_count(max_tokens)
        with self._gate:
            self._settle()
            before = self.tokens
            new = list(prompt) if not isinstance(prompt, (str, bytes)) else \
                self.model.vocab.tokenize(prompt, bos=not before, continues=bool(before))
            if not before and not new:
                raise InvalidArgument("the prompt is empty, and so is the session: there is nothing to continue")
            report = self.sync(before + new) if new else None
            self._unfinished = None
            return self._begin(settings, stops, max_tokens, lambda answer: None, report=report, progress=progress)

    def send(self, content: str | Mapping | Sequence[Mapping] | None = None, **options) -> Answer:
        """As `stream`, but returns when the answer is complete."""
        with self.stream(content, **options) as stream:
            stream.read()
        return stream.answer

    def astream(self, content=None, **options) -> AsyncStream:
        """`stream` for `async for`. The prompt is computed when the first piece is awaited."""
        return AsyncStream(self.stream(content, _exclusive=True, **options))

    async def asend(self, content=None, **options) -> Answer:
        """`send`, awaited; other tasks run meanwhile, and cancelling the task stops the computation."""
        stream = self.astream(content, **options)
        await stream.read()
        return stream.answer

    def cancel(self) -> None:
        """
        Stop what this session is doing: it raises `Cancelled` after the token or prompt chunk at hand.

        From any thread. If it is doing nothing, nothing happens, now or later.
        """
        stream = self._stream and self._stream()
        if stream is not None and stream.finish is None:
            stream.cancelled = True
        with self._cancel_lock:
            self._cancelled = self._inside

    def rewind_turns(self, n: int = 1) -> list[dict]:
        """
        Take back the last `n` things said to the model, with their answers; returns those messages.

        The KV of what remains is kept.
        """
        with self._gate:
            self._settle()
            starts = [i for i, m in enumerate(self.messages) if m.get("role") == "user"]
            if not 0 < n <= len(starts):
                raise InvalidArgument(f"{n} turns cannot be taken back; the conversation has {len(starts)}")
            kept, gone = self.messages[:starts[-n]], self.messages[starts[-n]:]
            line = self.tokens
            after = self.model._chat_tokens(kept, self._known, {**self.template, "add_generation_prompt": False})[0] if kept else []
            same = next((i for i, (a, b) in enumerate(zip(line, after)) if a != b), min(len(line), len(after)))
            self.rewind(same)
            self.messages = kept
            return gone

    # ---- reasoning

    @property
    def think(self) -> dict:
        """The template variables that say whether, or how much, the model reasons; empty: as the template does by itself."""
        return {name: value for name, value in self.template.items() if name in SWITCHES}

    @think.setter
    def think(self, setting: bool | str | None) -> None:
        changes = self.model._thinking.variables(setting)
        self.template = {name: value for name, value in self.template.items() if name not in SWITCHES} | changes

    # ---- speculation

    @property
    def speculate(self) -> bool | str:
        """Whether tokens are guessed and computed ahead (see `Model.session`); may be changed at any time."""
        return self._speculate

    @speculate.setter
    def speculate(self, setting: bool | str) -> None:
        if setting not in _SPECULATE:
            raise InvalidArgument(f"speculate={setting!r} is not known; it is False, True or 'always'")
        with self._gate:
            call(lib.plp_session_speculate, self.pointer, _SPECULATE[setting])
            self._speculate = setting

    def _drafts(self) -> tuple[int, int]:
        """Tokens computed ahead so far, and those of them that came true."""
        drafted, accepted = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        lib.plp_session_drafts(self.pointer, drafted, accepted)
        return drafted[0], accepted[0]

    # ---- the context limit

    @property
    def when_full(self) -> str:
        """What happens at the context limit: "stop" or "shift" (see `Model.session`)."""
        return self._when_full

    @when_full.setter
    def when_full(self, policy: str) -> None:
        if policy not in ("stop", "shift"):
            raise InvalidArgument(f"when_full={policy!r} is not known; it is stop or shift")
        self._when_full = policy

    def _shifted(self, messages: list[dict], variables: Mapping, answer: list[int]) -> tuple[list[int], list[dict], list[dict]] | None:
        """
        The conversation without its oldest turns, such that a quarter of the context is free: tokens, messages
        kept, messages given up. If that cannot be, as much as can be; None if nothing can be given up.

        Positions change, so what follows the kept beginning is computed anew; moving keys instead would be fast
        and would not be what the model computes for this text.
        """
        if self._when_full != "shift":
            return None
        limit = self.model.info.context_limit
        fixed = len(self.prefix.messages) if self.prefix is not None else 0
        while fixed < len(messages) and messages[fixed].get("role") in ("system", "developer"):
            fixed += 1
        starts = [i for i in range(fixed + 1, len(messages)) if messages[i].get("role") == "user"]
        best = None
        for start in starts:
            kept = messages[:fixed] + messages[start:]
            tokens = self.model._chat_tokens(kept, self._known, variables)[0] + answer
            if len(tokens) < limit:
                best = tokens, kept, messages[fixed:start]
                if len(tokens) <= limit - limit // 4:
                    break
        return best

    def _make_room(self, answer: Answer, variables: Mapping, token: int) -> bool:
        """In the middle of an answer whose next token has no place: shift, and append it."""
        if (found := self._shifted(self.messages, variables, answer.tokens)) is None:
            return False
        tokens, kept, dropped = found
        self._adopt([*tokens, token])
        self.messages = kept
        answer.dropped_messages = answer.dropped_messages + dropped
        return True

    # ---- files

    def save(self, path: str | os.PathLike) -> None:
        """
        Write the conversation to a file: messages, tokens, and the KV that it does not share with a stored prefix.

        A reader sees the old file or the whole new one. The file is a program's own data: it is checked for
        damage when it is read, not for forgery.
        """
        from . import saved

        with self._gate:
            self._settle()
            saved.save(self, path)

    # ---- inside

    def _adopt(self, tokens: Sequence[int]) -> Sync:
        ids, report = token_array(tokens), ffi.new("plp_sync *")
        call(lib.plp_session_sync, self.pointer, ids, len(ids), report)
        self.last_sync = Sync(report.n_kept, report.n_reused, report.n_pending, report.n_dropped)
        return self.last_sync

    def _begin_anew(self) -> None:
        """The timeline is no longer what the last answer left: nothing of it is carried on."""
        self._characters, self._splitter, self._unfinished = Characters(), None, None

    def _settle(self) -> None:
        """Before the timeline changes: end an unfinished answer of this thread; refuse if it is another's."""
        stream = self._stream and self._stream()
        if stream is None or stream.finish is not None:
            return
        if not stream.yields_to(threading.get_ident()):
            raise Busy("an answer of this session is still being read elsewhere")
        stream.close()

    def _steps(self) -> Iterator[int]:
        """Compute what is pending; yields what is left after each chunk."""
        with _Work(self) as work:
            n_pending = ffi.new("uint32_t *", 1)
            while n_pending[0]:
                work.check()
                call(lib.plp_session_step, self.pointer, n_pending)
                yield n_pending[0]

    def _draw(self, native) -> tuple[int, float]:
        token, logprob = ffi.new("int32_t *"), ffi.new("float *")
        try:
            call(lib.plp_session_sample, self.pointer, native, token, logprob)
        except NumericError as problem:
            raise NumericError(f"{problem} (after {len(self)} tokens)") from None
        return token[0], logprob[0]

    def _append(self, token: int) -> None:
        call(lib.plp_session_feed, self.pointer, ffi.new("int32_t[]", [token]), 1)

    def _begin(self, settings: Sampling, stops: StopStrings, max_tokens: int | None, ended, *,
               report: Sync | None = None, exclusive: bool = False, splitter: "Splitter | None" = None,
               progress: Callable[[int, int], object] | None = None) -> Stream:
        self._splitter = splitter
        stream = Stream(self, settings, stops, max_tokens, ended, splitter, exclusive, progress)
        stats = stream.answer.stats
        stats.prompt_tokens = len(self)
        stats.reused_tokens = report.kept + report.reused if report else self.n_computed
        stats.dropped_tokens = report.dropped if report else 0
        self._stream = weakref.ref(stream)
        return stream

    def _said(self, answer: Answer, back: list[dict], opening: Opening) -> None:
        """An answer ended: it becomes a message, unless it was broken off before it said anything."""
        if not answer.tokens and answer.finish in ("cancelled", "interrupted", "error"):
            self.messages = back
            return
        self.messages.append({"role": "assistant", "content": answer.text})
        self._add(self.messages[-1], answer)
        self._remember(opening, answer)

    def _add(self, message: dict, answer: Answer) -> None:
        if answer.reasoning:
            message["reasoning_content"] = message.get("reasoning_content", "") + answer.reasoning
        if answer.tool_calls:
            message["tool_calls"] = message.get("tool_calls", []) + [call.message() for call in answer.tool_calls]

    def _went_on(self, answer: Answer) -> None:
        if self.unfinished:
            self.messages[-1] = {**self.messages[-1], "content": self.messages[-1]["content"] + answer.text}
            self._add(self.messages[-1], answer)
            self._remember(self._unfinished, answer)

    def _remember(self, opening: Sequence, answer: Answer) -> None:
        """The next rendering will hold this text; it shall become these tokens, which are computed."""
        if self.closed:
            return
        vocab, ids = self.model.vocab, list(answer.tokens)
        if ids and vocab.ends(ids[-1]):
            ids.pop()
        text, tokens = opening[0] + answer.raw, opening[1] + ids
        self._unfinished = (text, tokens) if answer.finish not in ("stop", "tool_calls") else None
        if vocab.detokenize_bytes(ids, control=True) == answer.raw.encode():
            self._known[text] = tokens


def _check_count(max_tokens: int | None) -> None:
    if max_tokens is not None and max_tokens < 0:
        raise InvalidArgument(f"max_tokens is {max_tokens}; it must be 0 or more")


class _Work:
    """
    While this is entered, `Session.cancel` has something to stop.

    A C call computes one chunk at most, so looking between calls is soon enough, and a flag that is looked at
    only here cannot hit a later call, as one that the C side remembers could.
    """

    def __init__(self, session: Session):
        self._session = session

    def __enter__(self) -> "_Work":
        with self._session._cancel_lock:
            self._session._cancelled = False
            self._session._inside = True
        return self

    def __exit__(self, *exc) -> None:
        with self._session._cancel_lock:
            self._session._inside = False

    def check(self) -> None:
        session = self._session
        if session._cancelled:
            raise Cancelled(f"cancelled after {session.n_computed} of {len(session)} tokens")
