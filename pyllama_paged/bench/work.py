"""
One model of this runtime under the clock.

A context is computed once; every repetition is a fork of it, which shares its blocks and costs nothing.
Tokens are arbitrary but fixed: what they mean changes no time. Nothing is reused between sessions, so what
is timed is computed.
"""

from __future__ import annotations

import time

from .. import Model, Session
from .._native import call, ffi, lib
from ..gguf import File
from .serve import some_tokens

__all__ = ["Weights", "Work"]


class Weights:
    """
    What a token's forward pass reads and multiplies: matrices only; an embedding that is only looked up does
    not count, and of a mixture's experts only as many as a token uses.
    """

    def __init__(self, path):
        with File.open(path) as file:
            arch = file.get("general.architecture")
            #: counts of the model's header
            self.context, self.layers, self.width = (file.get(f"{arch}.{key}") for key in ("context_length", "block_count", "embedding_length"))
            experts, used = (file.get(f"{arch}.{key}") for key in ("expert_count", "expert_used_count"))
            matrices = [t for t in file.tensors() if len([d for d in t.shape if d > 1]) > 1]
        names = {t.name for t in matrices}
        output = "output.weight" if "output.weight" in names else "token_embd.weight"
        read = [t for t in matrices if t.name == output or t.name != "token_embd.weight"]
        share = {t.name: used / experts if experts and "_exps." in t.name else 1 for t in read}
        self.bytes = int(sum(t.n_bytes * share[t.name] for t in read))  #: of a decoded token
        self.values = int(sum(_product(t.shape) * share[t.name] for t in read))
        self.output_values = sum(_product(t.shape) for t in read if t.name == output)
        kinds: dict[str, int] = {}
        for t in read:
            kinds[t.type] = kinds.get(t.type, 0) + t.n_bytes
        self.type = max(kinds, key=kinds.get)                           #: the type of most bytes

    def operations(self, n_tokens: int, n_logits: int) -> float:
        """Of the products with weights; a multiplication and an addition are two. Attention is not in it."""
        return 2.0 * ((self.values - self.output_values) * n_tokens + self.output_values * n_logits)


def _product(shape) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


class Work:
    def __init__(self, path, *, kv: str = "f16", threads: int = 0, context: int = 0):
        self.model = Model.open(path, kv=kv, threads=threads, context=context, reuse=False)
        self.base: Session = self.model.session()
        self._err = ffi.new("plp_error *")

    def close(self) -> None:
        self.model.close()

    def __enter__(self) -> "Work":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def _tokens(self, n: int):
        return ffi.new("int32_t[]", some_tokens(n, self.model.info.n_vocab))

    def to_depth(self, n: int) -> None:
        """The context that everything is measured after; longer ones cost only what is new."""
        if n < len(self.base):
            self.base.rewind(n)
        elif n > len(self.base):
            self.base.feed(some_tokens(n, self.model.info.n_vocab)[len(self.base):])
        if n:
            self.base.compute()

    @property
    def kv_bytes(self) -> int:
        """Of the context."""
        return self.model.memory.token_state

    def prefill(self, n: int) -> float:
        tokens, pending = self._tokens(n), ffi.new("uint32_t *", 1)
        with self.base.fork() as session:
            pointer = session.pointer
            start = time.perf_counter()
            call(lib.plp_session_feed, pointer, tokens, n)
            while pending[0]:
                call(lib.plp_session_step, pointer, pending)
            return time.perf_counter() - start

    def decode(self, n: int) -> float:
        """n tokens, one after the other."""
        tokens, pending, err = self._tokens(n), ffi.new("uint32_t *"), self._err
        feed, step = lib.plp_session_feed, lib.plp_session_step
        with self.base.fork() as session:
            pointer = session.pointer
            start = time.perf_counter()
            for i in range(n):
                if feed(pointer, tokens + i, 1, err) < 0 or step(pointer, pending, err) < 0:
                    raise RuntimeError(ffi.string(err.msg).decode())
            return time.perf_counter() - start

    def idle(self, seconds: float) -> float:
        """The share of one CPU that this process uses while a session waits for its next token."""
        self.decode(1)
        start, used = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        return (time.process_time() - used) / (time.perf_counter() - start)

    def decode_together(self, n_sessions: int, n: int) -> float:
        """n tokens for each of several sessions, a step of all at a time."""
        tokens, err = self._tokens(n), self._err
        sessions = [self.base.fork() for _ in range(n_sessions)]
        try:
            pointers = ffi.new("plp_session *[]", [s.pointer for s in sessions])
            start = time.perf_counter()
            for i in range(n):
                for s in range(n_sessions):
                    if lib.plp_session_feed(pointers[s], tokens + i, 1, err) < 0:
                        raise RuntimeError(ffi.string(err.msg).decode())
                call(lib.plp_step_many, pointers, n_sessions)
            return time.perf_counter() - start
        finally:
            for session in sessions:
                session.close()
