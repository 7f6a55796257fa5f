"""
A loaded model: its tokenizer, its pool of KV blocks, the place sessions come from.

Threads   any; different sessions of one model may be used from different threads at once
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

from ._native import Handle, call, ffi, lib, path_bytes, text_of
from .errors import InvalidArgument, ModelFileError, NumericError, TemplateError, UnsupportedModel
from .memory import Counters, Memory, parse_bytes
from .messages import one_by_one, shaped, unreadable
from .stream import Opening
from .vocab import Vocab, token_array

if TYPE_CHECKING:
    import numpy

    from .parallel import Several
    from .prefix import Prefix
    from .pressure import PressureWatcher
    from .reasoning import Thinking
    from .session import Session
    from .store import PrefixStore
    from .template import ChatTemplate
    from .toolcalls import Calls

__all__ = ["Model", "ModelInfo"]

_KV = {"f16": lib.PLP_KV_F16, "q8": lib.PLP_KV_Q8, "q4": lib.PLP_KV_Q4}
_LAYOUTS = {"paged": lib.PLP_LAYOUT_PAGED, "contiguous": lib.PLP_LAYOUT_CONTIGUOUS, "lazy": lib.PLP_LAYOUT_LAZY}


@dataclass(frozen=True)
class ModelInfo:
    architecture: str
    device: str
    tier: str                   #: which kernels run: "avx2", "neon", ...
    kv: str                     #: format of sealed KV blocks
    n_threads: int
    n_layers: int
    n_embd: int
    n_vocab: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    context_train: int
    context_limit: int
    block_len: int
    weights_bytes: int
    n_params: int
    kv_bytes_per_token: int
    kv_budget_bytes: int


class Model:
    """
    A model, opened. Close it with `with` or `close`; a forgotten one is closed when it is collected.

        with Model.open("smollm2-135m") as model, model.session() as chat:
            for piece in chat.stream("Name a prime above 90."):
                print(piece, end="")
    """

    def __init__(self, pointer, path: str):
        self.path = path
        self._handle = Handle(self, pointer, lib.plp_engine_close, "model")
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._prefixes: list[Prefix] = []
        self.vocab = Vocab(lib.plp_engine_vocab(pointer), self._handle)

    @classmethod
    def open(
        cls,
        name: str | os.PathLike,
        *,
        kv: str = "f16",
        kv_budget: int | str | None = None,
        kv_cache: int | str | None = None,
        device: str = "auto",
        threads: int = 0,
        context: int = 0,
        chunk: int = 0,
        block: int = 0,
        layout: str = "paged",
        reuse: bool = True,
        shuffle: bool = False,
        one_hash: bool = False,
        mlock: bool = False,
        prefetch: bool = False,
        spill_dir: str | os.PathLike | None = None,
    ) -> "Model":
        """
        name       a GGUF file, a name of the catalog ("smollm2-135m"), or "org/repository:QUANT"; what is
                   not there yet is fetched
        kv         format of full KV blocks: "f16" (exact), "q8", "q4"
        kv_budget  the most the KV pool may ever hold: bytes, or "512MiB"; None: half of the physical memory,
                   or of the container's limit
        kv_cache   the most that KV nobody holds may keep for later reuse; None: nothing, it goes back
                   to the system with its last holder
        spill_dir  where blocks of idle sessions may go when the budget is used up; None: nowhere
        device     "auto", "cpu", "cuda", "metal", "emu"
        threads    0: the performance cores, within affinity and quota
        context    the most tokens of a session; 0: the model's own limit. It costs no memory
        chunk      the most prompt tokens of one step; 0: what a second computes, 32 to 256
        block      tokens per KV block
        layout     "paged"; "contiguous" and "lazy" are baselines for benchmarks
        reuse      find and share KV that other sessions have computed
        shuffle    hand out blocks in random order (for tests: it must change nothing)
        one_hash   all blocks hash alike (the same)
        """
        for option, value, known in (("kv", kv, _KV), ("layout", layout, _LAYOUTS)):
            if value not in known:
                raise InvalidArgument(f"{option}={value!r} is not known; it is one of {', '.join(known)}")
        for option, value in (("threads", threads), ("context", context), ("chunk", chunk), ("block", block)):
            if not 0 <= value < 2**32:
                raise InvalidArgument(f"{option}={value} is out of range; it must be 0 (the default) or more")
        from . import hub           # downloads and archives: much to import, and a path needs none of it

        path = hub.find(name)
        o = ffi.new("plp_engine_options *")
        lib.plp_engine_defaults(o)
        keep = [ffi.new("char[]", device.encode())]
        o.device = keep[0]
        o.n_threads, o.context_limit, o.chunk_len, o.block_len = threads, context, chunk, block
        o.kv_format, o.kv_layout = _KV[kv], _LAYOUTS[layout]
        o.kv_budget_bytes, o.kv_cache_bytes = parse_bytes(kv_budget), parse_bytes(kv_cache)
        o.flags = (
            (lib.PLP_ENGINE_SHUFFLE if shuffle else 0) | (lib.PLP_ENGINE_MLOCK if mlock else 0)
            | (lib.PLP_ENGINE_PREFETCH if prefetch else 0) | (0 if reuse else lib.PLP_ENGINE_NO_REUSE)
            | (lib.PLP_ENGINE_ONE_HASH if one_hash else 0)
        )
        if spill_dir is not None:
            keep.append(ffi.new("char[]", path_bytes(spill_dir)))
            o.spill_dir = keep[1]
        out = ffi.new("plp_engine **")
        try:
            call(lib.plp_engine_open, out, path_bytes(path), o)
        except (ModelFileError, UnsupportedModel) as problem:
            # Some of these are about a tensor or a key; whoever opens several files wants to know of which.
            file = os.path.basename(path)
            raise problem if file in str(problem) else type(problem)(f"{file}: {problem}") from None
        return cls(out[0], str(path))

    # ---- closing

    @property
    def pointer(self):
        return self._handle.pointer

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def close(self) -> None:
        """Stops what runs, closes the sessions, gives everything back. Closing twice is fine."""
        for session in list(self._sessions):
            session.close()
        self._handle.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Model {os.path.basename(self.path)}{' (closed)' if self.closed else ''}>"

    # ---- what it is

    @cached_property
    def info(self) -> ModelInfo:
        raw = ffi.new("plp_engine_info *")
        lib.plp_engine_get_info(self.pointer, raw)
        texts = {name: text_of(getattr(raw, name)) for name in ("architecture", "device", "tier")}
        kv = next(name for name, value in _KV.items() if value == raw.kv_format)
        counts = {name: int(getattr(raw, name)) for name in ModelInfo.__dataclass_fields__ if name not in texts and name != "kv"}
        return ModelInfo(**texts, kv=kv, **counts)

    @property
    def memory(self) -> Memory:
        return Memory.of(self.pointer)

    @property
    def counters(self) -> Counters:
        return Counters.of(self.pointer)

    def trim(self, bytes: int | str) -> int:
        """
        Give at least this much KV memory back to the system, if that can be done; returns what was given.

        First what nobody holds, then, with `spill_dir`, the blocks of sessions that do nothing. For a phone's
        low-memory callback; nothing that is being used is harmed.
        """
        freed = ffi.new("uint64_t *")
        call(lib.plp_engine_trim, self.pointer, parse_bytes(bytes), freed)
        return freed[0]

    def check(self) -> bool:
        """Counts the pool's books again; slow."""
        return lib.plp_engine_check(self.pointer)

    # ---- text

    def tokenize(self, text: str | bytes, *, bos: bool = False, control: bool = False) -> list[int]:
        return self.vocab.tokenize(text, bos=bos, control=control)

    def detokenize(self, tokens: Iterable[int], *, control: bool = False) -> str:
        return self.vocab.detokenize(tokens, control=control)

    @cached_property
    def template_origin(self) -> str:
        """Where the chat template comes from: "file", or which fallback: "chatml", "plain"."""
        return self._template_source[0]

    @cached_property
    def _template_source(self) -> tuple[str, str]:
        from . import template

        file = lib.plp_engine_file(self.pointer)
        at = lib.plp_file_find(file, b"tokenizer.chat_template")
        if at >= 0:
            s, n = ffi.new("const char **"), ffi.new("size_t *")
            call(lib.plp_file_str, file, at, 0, s, n)
            return "file", bytes(ffi.buffer(s[0], n[0])).decode("utf-8", "replace")
        if {"<|im_start|>", "<|im_end|>"} <= self.vocab.control.keys():
            return "chatml", template.CHATML
        return "plain", template.PLAIN

    @cached_property
    def template(self) -> "ChatTemplate":
        from .template import ChatTemplate

        info = self.vocab.info
        special = {f"{name}_token": self.vocab.spelling(i) if (i := getattr(info, name)) is not None else ""
                   for name in ("bos", "eos", "pad", "unk")}
        return ChatTemplate(self._template_source[1], self.vocab.control, special)

    def chat_tokens(self, messages: Sequence[dict], **variables) -> list[int]:
        """A conversation as the tokens that the model's template makes of it, ready for an answer."""
        return self._chat_tokens(messages, {}, variables)[0]

    @cached_property
    def _thinking(self) -> "Thinking":
        from .reasoning import Thinking

        return Thinking(self.template, self.vocab)

    @property
    def thinks(self) -> bool:
        """Whether this model marks its reasoning, so that answers come with it apart (`Answer.reasoning`)."""
        return self._thinking.form is not None

    @cached_property
    def _calls(self) -> "Calls":
        from .toolcalls import Calls

        return Calls(self.template, self.vocab)

    @property
    def calls_tools(self) -> bool:
        """Whether this model is told about tools by its template, and its calls are recognised (`Answer.tool_calls`)."""
        return self._calls.taken and self._calls.read

    def _chat_tokens(self, messages, known: dict[str, list[int]], variables) -> "tuple[list[int], Opening]":
        """
        The tokens, and what an answer continues.

        `known` maps plain texts to the tokens they came from, so that an answer given once keeps its tokens
        even where the tokenizer would cut the same text differently.
        """
        tokens: list[int] = []
        text, ids = "", []
        given = self._calls.variables(variables)
        history = shaped(messages, self.template)               # as templates expect messages, then
        history = self._thinking.shaped(history)                # with reasoning and tools where this one looks for them
        parts = self._rendered(self._calls.placed(history, given), given)
        vocab = self.vocab
        for part, following in zip(parts, [*parts[1:], None]):
            if isinstance(part, int):
                tokens.append(part)
                text, ids = "", []
            else:
                ids = known.get(part) or vocab.tokenize(part, strip=bool(tokens) and vocab.strips(tokens[-1]),
                                                        strip_end=isinstance(following, int) and vocab.strips_before(following))
                tokens += ids
                text = part
        if not tokens:
            raise TemplateError("the chat template makes nothing of these messages")
        return tokens, Opening(text, ids, self._thinking.splitter(parts, self._calls.form(self._thinking.form, variables)))

    def _rendered(self, messages: list[dict], variables: Mapping) -> list:
        apart = one_by_one(messages)
        if apart and self.template.knows_one_call:
            messages, apart = apart, None
        try:
            return self.template.render(messages, **variables)
        except TemplateError as problem:
            if apart is not None:               # it may refuse several calls in one message
                with contextlib.suppress(TemplateError):
                    return self.template.render(apart, **variables)
            if (where := unreadable(messages)) is None:
                raise
            raise TemplateError(f"{problem} (the arguments of {where} are no JSON object)") from None

    # ---- computing

    def session(self, *, system: str | None = None, messages: Sequence[dict] = (), tools: Sequence[Any] | None = None,
                template: Mapping | None = None, think: bool | str | None = None, when_full: Literal["stop", "shift"] = "stop",
                speculate: Literal[False, True, "always"] = False) -> "Session":
        """
        A new conversation.

        messages   its history so far; `system` is a first message of that role
        tools      functions that the model may call, as the OpenAI API describes them; its calls are `Answer.tool_calls`
        template   further variables for the chat template, for every message
        think      reasoning on (True), off (False), or an effort ("low", "medium", "high"), as far as the model's
                   template has such a switch; None: as the template does by itself
        when_full  what happens at the context limit: "stop" raises `ContextFull`, or ends the answer, and
                   nothing is lost; "shift" gives up the oldest whole turns, keeps what comes before them, and
                   computes the rest anew
        speculate  where a text repeats itself, compute what followed last time beside the next token; no answer
                   changes by it. True: where it pays; "always" is for tests
        """
        from .session import Session
        from .toolcalls import TOOL_LISTS

        history = _with_system(system, messages)
        variables = {**(template or {}), **({"tools": list(tools)} if tools else {}),
                     **(self._thinking.variables(think) if think is not None else {})}
        if any(map(variables.get, TOOL_LISTS)):     # else no template is needed yet, and none is parsed
            self._calls.variables(variables)        # which says so if there is no place for them
        out = ffi.new("plp_session **")
        call(lib.plp_session_open, out, self.pointer)
        session = Session(self, out[0], history, template=variables, when_full=when_full)
        session.speculate = speculate
        return session

    def resume(self, path: str | os.PathLike) -> "Session":
        """
        A conversation that `Session.save` wrote, as it was: nothing is computed again.

        If the stored prefix that it refers to is gone, its beginning is computed anew, with a warning.
        """
        from . import saved

        return saved.resume(self, path)

    def prefix(self, *, system: str | None = None, tools: Sequence[Any] | None = None, messages: Sequence[dict] = (),
               text: str | bytes | Sequence[int] | None = None, template: Mapping | None = None, name: str | None = None,
               keep: bool = False, store: "PrefixStore | None" = None) -> "Prefix":
        """
        Compute a beginning once and pin it, for all the sessions that start from it.

        system, tools, messages   what conversations begin with
        text                      instead: what completions begin with, as text or tokens
        keep                      keep it on disk too (`store`, or the default one): the next process maps it
        """
        from . import prefix

        variables = dict(template or {}) | ({"tools": list(tools)} if tools else {})
        return prefix.make(self, messages=_with_system(system, messages), template=variables, text=text, name=name,
                           keep=keep, store=store)

    @property
    def prefixes(self) -> list["Prefix"]:
        """The pinned ones, oldest first."""
        return list(self._prefixes)

    def watch_pressure(self, size: int | str = "64MiB", **options) -> "PressureWatcher":
        """On Linux: `trim` this much whenever the system is short of memory, from a thread, until it is closed."""
        from .pressure import PressureWatcher

        return PressureWatcher(self, parse_bytes(size), **options)

    def logits(self, tokens: Sequence[int], *, chunk: int = 0) -> "numpy.ndarray":
        """
        float32 [n, n_vocab]: the logits after each of the tokens.

        `chunk` feeds that many at a time; it changes speed and memory, never a number.
        """
        import numpy

        ids = token_array(tokens)
        n, n_vocab = len(ids), self.info.n_vocab
        if not n:
            raise InvalidArgument("there are no tokens, so there are no logits")
        out = numpy.empty((n, n_vocab), numpy.float32)
        size = chunk or n
        with self.session() as session:
            for start in range(0, n, size):
                rows = out[start:start + size]
                session.feed(list(ids[start:start + len(rows)]))
                session.compute_logits(rows)
        finite = numpy.isfinite(out)
        if not finite.all():
            position, token = (int(i) for i in numpy.argwhere(~finite)[0])
            raise NumericError(f"the logit of token {token} after position {position} is {out[position, token]}")
        return out

    @overload
    def generate(self, prompt: str | bytes | Sequence[int], *, max_tokens: int | None = None, **options) -> str: ...

    @overload
    def generate(self, prompt: str | bytes | Sequence[int], *, n: int, max_tokens: int | None = None, **options) -> "Several": ...

    @overload
    def generate(self, prompt: str | bytes | Sequence[int], *, beams: int, max_tokens: int | None = None, **options) -> "Several": ...

    def generate(self, prompt, *, n=None, beams=None, max_tokens=None, **options):
        """
        The prompt's continuation, without any chat template.

        n      that many samples at once; they share the prompt and the reading of the weights, and their seeds
               are derived from `seed`. Returns them with their log-probabilities
        beams  beam search of that width instead; the beams it ended with, the best first
        """
        from . import parallel

        if n is not None and beams is not None:
            raise InvalidArgument("n= draws samples and beams= searches; give one of the two")
        if n is not None:
            return parallel.samples(self, prompt, n, max_tokens=max_tokens, **options)
        if beams is not None:
            return parallel.beams(self, prompt, beams, max_tokens=max_tokens, **options)
        with self.session() as session:
            return session.complete(prompt, max_tokens=max_tokens, **options).read()


def _with_system(system: str | None, messages: Sequence[Mapping]) -> list[dict]:
    return ([{"role": "system", "content": system}] if system is not None else []) + [dict(m) for m in messages]
