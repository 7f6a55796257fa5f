"""This runtime as a scenario's process: python -m pyllama_paged.bench.memory.worker"""

from __future__ import annotations

import time
from dataclasses import asdict

from ... import Model
from ..._native import call, ffi, lib
from ...errors import KvBudgetExceeded
from .loop import run, tokens_of

__all__ = ["Own"]


class Own:
    model: Model | None = None

    def __init__(self):
        self.sessions: dict = {}

    def hello(self):
        # What may be imported later counts as interpreter, not as memory of a session: beams need numpy.
        import numpy  # noqa: F401

        import pyllama_paged

        for name in pyllama_paged.__all__:
            getattr(pyllama_paged, name)

    def open(self, model, threads, context, sessions, *, layout="paged", kv="f16", block=0, budget=None, shuffle=False, unified=False):
        # A fixed chunk: figures must not follow the machine's speed.
        self.model = Model.open(model, threads=threads, context=context, layout=layout, kv=kv, block=block, chunk=128, kv_budget=budget,
                                shuffle=shuffle, reuse=layout == "paged")
        from ... import __version__

        return {"what": f"pyllama_paged {__version__}, {self.model.info.tier}", "n_vocab": self.model.info.n_vocab,
                "context": self.model.info.context_limit, "bytes_per_token": self.model.info.kv_bytes_per_token}

    def start(self, id, reserve=0):
        self.sessions[id] = session = self.model.session()
        if reserve:
            call(lib.plp_session_reserve, session.pointer, reserve)

    def feed(self, id, tokens):
        session = self.sessions[id]
        start = time.perf_counter()
        reused, before = 0, len(session)
        try:
            if before:
                session.feed(tokens)
            else:
                reused = session.sync(tokens).reused
            session.compute()
        except KvBudgetExceeded as problem:
            there = session.n_computed
            session.rewind(there)
            return {"refused": True, "error_type": type(problem).__name__, "message": str(problem), "computed": there - before}
        return {"refused": False, "seconds": time.perf_counter() - start, "reused": reused}

    def decode(self, ids, n):
        """The tokens are fixed: which ones they are changes neither time nor place."""
        pointers = ffi.new("plp_session *[]", [self.sessions[id].pointer for id in ids])
        tokens, steps = tokens_of(n * len(ids), self.model.info.n_vocab, seed=len(ids)), []
        one = ffi.new("int32_t *")
        for i in range(n):
            start = time.perf_counter()
            for k in range(len(ids)):
                one[0] = tokens[i * len(ids) + k]
                call(lib.plp_session_feed, pointers[k], one, 1)
            call(lib.plp_step_many, pointers, len(ids))
            steps.append(time.perf_counter() - start)
        return {"steps": steps}

    def fork(self, id, to):
        start = time.perf_counter()
        self.sessions[to] = self.sessions[id].fork()
        return {"seconds": time.perf_counter() - start}

    def end(self, id):
        self.sessions.pop(id).close()

    def trim(self):
        self.model.trim(1 << 62)

    def unload(self):
        for session in self.sessions.values():
            session.close()
        self.sessions.clear()
        self.model.close()
        self.model = None

    def save(self, id, n, path):
        start = time.perf_counter()
        call(lib.plp_prefix_save, self.sessions[id].pointer, n, path.encode())
        return {"seconds": time.perf_counter() - start}

    def load(self, path, id):
        pin, n = ffi.new("uint64_t *"), ffi.new("uint32_t *")
        start = time.perf_counter()
        call(lib.plp_prefix_load, self.model._handle.pointer, path.encode(), pin, n)
        return {"seconds": time.perf_counter() - start, "tokens": n[0]}

    def ledger(self):
        return asdict(self.model.memory) if self.model else {}

    # ---- searches, by the model's own logits

    def samples(self, id, width, n, seed=1):
        """`width` answers to one prompt, drawn at temperature 1."""
        twins = [self.sessions[id].fork() for _ in range(width)]
        try:
            def grow():
                for i, twin in enumerate(twins):
                    twin.feed([twin.sample(temperature=1.0, seed=seed + i)[0]])
                self._step(twins)

            return self._watch(n, grow)
        finally:
            for twin in twins:
                twin.close()

    def beams(self, id, width, n):
        """Beam search: the `width` most likely continuations; a beam that has no child ends, one with several is forked."""
        import numpy

        beams = [(0.0, self.sessions[id].fork())]
        try:
            def grow():
                candidates = []
                for b, (score, session) in enumerate(beams):
                    row = session.logits.astype(numpy.float64)
                    row -= row.max()
                    row -= numpy.log(numpy.exp(row).sum())
                    best = numpy.argpartition(row, -width)[-width:]
                    candidates += [(score + row[token], b, int(token)) for token in best]
                chosen = sorted(candidates, reverse=True)[:width]
                children, used = [], set()
                for score, b, token in chosen:
                    children.append((score, beams[b][1].fork() if b in used else beams[b][1], token))
                    used.add(b)
                for b, (_, session) in enumerate(beams):
                    if b not in used:
                        session.close()
                beams[:] = [(score, session) for score, session, _ in children]
                for _, session, token in children:
                    session.feed([token])
                self._step([session for _, session in beams])

            return self._watch(n, grow)
        finally:
            for _, session in beams:
                session.close()

    def _step(self, sessions):
        pointers = ffi.new("plp_session *[]", [s.pointer for s in sessions])
        call(lib.plp_step_many, pointers, len(sessions))

    def _watch(self, n, grow):
        """
        n steps; what sharing saves of the blocks that there would be without it (the paper's measure), at each step,
        and the most that the pool held. The prompt's own session counts in neither.
        """
        savings, most, steps = [], 0, []
        for _ in range(n):
            start = time.perf_counter()
            grow()
            steps.append(time.perf_counter() - start)
            m = self.model.memory
            held, saved = m.token_state + m.reserved, m.shared_saved
            prompt, alone = self._prompt_bytes()
            savings.append((saved - (prompt - alone)) / (held + saved - prompt))
            most = max(most, m.resident)
        return {"saving": sum(savings) / len(savings), "saving_at_end": savings[-1], "most_resident": most, "steps": steps}

    def _prompt_bytes(self):
        """Of the blocks of the sessions that are not searched: all of them, and those that no searched one shares."""
        block = self.model.info.block_len * self.model.info.kv_bytes_per_token
        held = [s.memory for s in self.sessions.values()]
        return sum(m.n_blocks for m in held) * block, sum(m.n_blocks - m.n_shared_blocks for m in held) * block


if __name__ == "__main__":
    run(Own())
