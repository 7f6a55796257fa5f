"""
Several continuations of one prompt: independent samples, or a beam search.

Each continuation is a fork of one session. A fork holds the same blocks; the last, unfinished one is copied when
a continuation first writes to it, and what a dropped beam held alone goes back. All of them are computed in one
batch, so the weights are read once a step.

What sharing saves is counted as in the PagedAttention paper (section 6.3): blocks saved by sharing, divided by the
blocks that would be held without it, here summed over all steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from .batch import step_many
from .errors import ContextFull, InvalidArgument, KvBudgetExceeded, NumericError
from .sampling import Sampling
from .session import Session
from .text import Characters, StopStrings

__all__ = ["Continuation", "Several", "Sharing"]

_MOST = 64              # continuations of one prompt


@dataclass
class Continuation:
    """
    One way to go on.

    score    sum of the tokens' log-probabilities, as the model gave them (before temperature and filters)
    finish   "stop" (the model, or a stop string, ended it) or "length" (max_tokens or the context limit)
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    score: float = 0.0
    finish: str | None = None

    def __str__(self) -> str:
        return self.text


@dataclass
class Sharing:
    """Blocks, summed over the steps."""

    saved: int = 0          #: need not be held, because another continuation holds the same
    unshared: int = 0       #: would be held without sharing

    @property
    def fraction(self) -> float:
        return self.saved / self.unshared if self.unshared else 0.0

    def count(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            memory = session.memory
            self.saved += memory.n_saved_blocks
            self.unshared += memory.n_blocks


@dataclass
class Several(Sequence[Continuation]):
    """The continuations: samples in the order of their seeds, beams the best first."""

    continuations: list[Continuation]
    sharing: Sharing
    prompt_tokens: int
    reused_tokens: int

    def __getitem__(self, i):
        return self.continuations[i]

    def __len__(self) -> int:
        return len(self.continuations)


def seed_of(seed: int, i: int) -> int:
    """The seed of sample i: SplitMix64, so that neighbouring seeds have nothing to do with each other."""
    z = (seed + (i + 1) * 0x9E3779B97F4A7C15) & (1 << 64) - 1
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    z = (z ^ z >> 27) * 0x94D049BB133111EB & (1 << 64) - 1
    return z ^ z >> 31


def _begin(model, prompt) -> tuple[Session, int, int]:
    """A session with the prompt computed, its length, and what was reused of it."""
    tokens = model.vocab.tokenize(prompt, bos=True) if isinstance(prompt, (str, bytes)) else list(prompt)
    if not tokens:
        raise InvalidArgument("the prompt is empty: there is nothing to continue")
    session = model.session()
    try:
        report = session.sync(tokens)
        session.compute()
    except BaseException:
        session.close()
        raise
    return session, len(tokens), report.kept + report.reused


def _check(n: int, what: str, max_tokens: int | None) -> None:
    if not 1 <= n <= _MOST:
        raise InvalidArgument(f"{what}={n}; 1 to {_MOST} are possible")
    if max_tokens is not None and max_tokens < 0:
        raise InvalidArgument(f"max_tokens is {max_tokens}; it must be 0 or more")


# ---- samples

class _Sample:
    """A fork, its own generator, and what it has said."""

    def __init__(self, session: Session, sampling: Sampling, stop):
        self.session = session
        self.result = Continuation()
        self._native, self._keep = sampling.native()
        self._stops = StopStrings(stop)
        self._characters = Characters()
        self._vocab = session.model.vocab

    def draw(self, max_tokens: int | None) -> bool:
        """One token more; false if this was the end, and the session is closed."""
        result = self.result
        if max_tokens is not None and len(result.tokens) >= max_tokens:
            return self._end("length")
        token, logprob = self.session._draw(self._native)
        try:
            self.session.feed([token])
        except ContextFull:
            return self._end("length")
        result.tokens.append(token)
        result.score += logprob
        if self._vocab.ends(token):
            return self._end("stop")
        result.text += self._stops.push(self._characters.push(self._vocab.token_bytes(token)))
        return self._stops.hit is None or self._end("stop")

    def _end(self, finish: str) -> bool:
        self.result.text += self._stops.push(self._characters.finish()) + self._stops.finish()
        self.result.finish = finish
        self.session.close()            # its own blocks are there for the others at once
        return False


def samples(model, prompt, n: int, *, max_tokens: int | None = None, stop=None, sampling: Sampling | None = None, **changes) -> Several:
    _check(n, "n", max_tokens)
    settings, sharing = (sampling or Sampling()).with_(**changes), Sharing()
    with ExitStack() as opened:
        first, n_prompt, n_reused = _begin(model, prompt)
        forks = [opened.enter_context(first)] + [opened.enter_context(first.fork()) for _ in range(n - 1)]
        running = all_of_them = [_Sample(s, settings.with_(seed=seed_of(settings.seed, i)), stop) for i, s in enumerate(forks)]
        while running := [sample for sample in running if sample.draw(max_tokens)]:
            _step([sample.session for sample in running])
            sharing.count(sample.session for sample in running)
        return Several([sample.result for sample in all_of_them], sharing, n_prompt, n_reused)


def _step(sessions: list[Session]) -> None:
    """
    One token for each. Whom the budget refuses waits for the others' step, which may end and free blocks; if
    nobody can go on, the refusal is the caller's.
    """
    waiting = sessions
    while waiting:
        try:
            step_many(waiting)
        except KvBudgetExceeded:
            left = [s for s in waiting if s.n_computed < len(s)]
            if len(left) == len(waiting):
                raise
            waiting = left
        else:
            return


# ---- beams

@dataclass
class _Beam:
    session: Session
    tokens: list[int]
    score: float


def beams(model, prompt, width: int, *, max_tokens: int | None = None, stop=None, length_penalty: float = 1.0) -> Several:
    """
    The `width` best continuations found: by the sum of log-probabilities, divided by length ** length_penalty.

    Ends when no running beam can become better than the worst of `width` finished ones.
    """
    _check(width, "beams", max_tokens)
    if stop:
        raise InvalidArgument("beam search takes no stop strings; cut the texts that it returns")
    limit = model.info.context_limit
    sharing, done = Sharing(), []
    with ExitStack() as opened:
        first, n_prompt, n_reused = _begin(model, prompt)
        running = [_Beam(opened.enter_context(first), [], 0.0)]
        room = limit - n_prompt if max_tokens is None else min(max_tokens, limit - n_prompt)

        def worth(score: float, n: int) -> float:
            return score / max(n, 1) ** length_penalty

        for _ in range(room):
            following, ended = _following(running, width, model.vocab)
            done += ended
            running = _grow(running, following, opened)
            if not running:
                break
            _step([beam.session for beam in running])
            sharing.count(beam.session for beam in running)
            done = sorted(done, key=lambda c: -worth(c.score, len(c.tokens)))[:width]
            if len(done) == width and worth(done[-1].score, len(done[-1].tokens)) >= max(worth(b.score, len(b.tokens)) for b in running):
                running = []
                break
        done += [Continuation(tokens=beam.tokens, score=beam.score, finish="length") for beam in running]
    done = sorted(done, key=lambda c: -worth(c.score, len(c.tokens)))[:width]
    for continuation in done:
        continuation.text = model.vocab.detokenize(continuation.tokens)
    return Several(done, sharing, n_prompt, n_reused)


def _following(running: list[_Beam], width: int, vocab) -> tuple[list[tuple[int, int, float]], list[Continuation]]:
    """The best `width` (beam, token, score) that go on, and what of the best ends here. Equal scores: lower beam, lower id."""
    import numpy

    candidates = []
    for i, beam in enumerate(running):
        row = beam.session.logits.astype(numpy.float64)
        if not numpy.isfinite(row).all():
            raise NumericError(f"the logit of token {int(numpy.argmin(numpy.isfinite(row)))} is not a number (after {len(beam.session)} tokens)")
        row -= row.max()
        row -= numpy.log(numpy.exp(row).sum())
        # Each beam may bring `width` that go on, besides those that end: a vocabulary has a handful of end tokens.
        best = numpy.argsort(-row, kind="stable")[:2 * width + 8]
        candidates += [(-(beam.score + float(row[token])), i, int(token)) for token in best]
    going, ended = [], []
    for negative, i, token in sorted(candidates):
        if len(going) == width:
            break
        if vocab.ends(token):
            if len(going) + len(ended) < width:         # one that ends must itself be among the best
                ended.append(Continuation(tokens=[*running[i].tokens, token], score=-negative, finish="stop"))
        else:
            going.append((i, token, -negative))
    return going, ended


def _grow(running: list[_Beam], following: list[tuple[int, int, float]], opened: ExitStack) -> list[_Beam]:
    """Beams with several successors are forked, those with none closed, before anybody takes a new block."""
    parents = {i for i, _, _ in following}
    for i, beam in enumerate(running):
        if i not in parents:
            beam.session.close()
    grown, taken = [], set()
    for i, token, score in following:
        parent = running[i]
        session = opened.enter_context(parent.session.fork()) if i in taken else parent.session
        taken.add(i)
        grown.append(_Beam(session, [*parent.tokens, token], score))
    for beam in grown:
        beam.session.feed([beam.tokens[-1]])
    return grown
