"""
Random programs of everything that touches the pool, against a model that computes each timeline cold.

A program opens, feeds, computes, forks, rewinds, syncs, pins, unpins, keeps, saves, resumes, closes and trims, with a budget
that is often too small. After each step the books must add up; whenever logits are read they must be, bit for bit, those of the
cold model; a refused session must be as it was; and when all is closed, nothing may be held.

PLP_PROGRAMS   how many programs for each kind of pool (default: few, for every day)
"""
import os
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from pyllama_paged import ContextFull, KvBudgetExceeded, Model
from pyllama_paged._native import call, ffi, lib

PROGRAMS = int(os.environ.get("PLP_PROGRAMS", "25"))
CONTEXT = 200
#: Few different lines, which agree in long beginnings: without that nothing would ever be shared.
LINES = [[(a * i * i + 3 * i + b) % 300 for i in range(CONTEXT)] for a, b in ((7, 0), (5, 1))]
LINES += [LINES[0][:40] + LINES[1][40:], LINES[0][:70] + LINES[1][:100]]

POOLS = {
    "f16": dict(),
    "f16, blocks of 8, shuffled": dict(block=8, shuffle=True),
    "f16, blocks of 32, cache": dict(block=32, kv_cache="1MiB"),
    "q8": dict(kv="q8", kv_cache="64KiB"),
    "q4, shuffled": dict(kv="q4", shuffle=True),
    "f16, tight, cache": dict(kv_budget="192KiB", kv_cache="96KiB"),           # 12 blocks
    "f16, tight, spilling": dict(kv_budget="256KiB", spill=True),
    "q8, tight, spilling": dict(kv="q8", kv_budget="384KiB", spill=True),
}
_cold: dict[tuple, np.ndarray] = {}


class Pool(RuleBasedStateMachine):
    path = options = folder = None          # set by the test
    cold = None

    @initialize()
    def begin(self):
        options = dict(self.options)
        if options.pop("spill", False):
            options["spill_dir"] = self.folder
        self.model = Model.open(self.path, context=CONTEXT, threads=1, chunk=48, **options)
        self.sessions = []                  # [session, its timeline]
        self.pins = []
        self.files = []                     # (path, timeline)
        self.n_files = 0
        self.store = self.folder / "store"
        shutil.rmtree(self.store, ignore_errors=True)       # a program must find what it finds when it is run again

    # ---- the reference

    def want(self, line):
        key = (self.options.get("kv", "f16"), self.options.get("block", 16), tuple(line))
        if key not in _cold:
            if len(_cold) > 20000:
                _cold.clear()
            _cold[key] = self.cold(self.options).logits(line)[-1].view(np.uint32)
        return _cold[key]

    def right(self, session, line):
        assert session.tokens == line
        if line:
            assert (session.logits.view(np.uint32) == self.want(line)).all(), f"other logits after {len(line)} tokens"

    def tried(self, at, step, after):
        """Do something that the budget or the context may refuse; then the timeline is what it was."""
        session, line = self.sessions[at]
        try:
            step(session)
        except (KvBudgetExceeded, ContextFull) as problem:
            if isinstance(problem, ContextFull):
                assert len(after) > CONTEXT
            else:
                assert "kv_budget" in self.options and problem.wanted > 0
            after = line
        self.sessions[at][1] = after
        assert session.tokens == after

    # ---- steps

    at = st.integers(0, 1 << 16)
    few = st.one_of(st.integers(1, 20), st.sampled_from([15, 16, 17, 31, 32, 33, 48, 64]))

    @rule()
    @precondition(lambda self: len(self.sessions) < 6)
    def open(self):
        self.sessions.append([self.model.session(), []])

    @rule(at=at, n=few, which=st.integers(0, 3), compute=st.booleans())
    @precondition(lambda self: self.sessions)
    def feed(self, at, n, which, compute):
        at %= len(self.sessions)
        line = self.sessions[at][1]
        new = (LINES[which][len(line):] or LINES[which])[:n]
        self.tried(at, lambda s: s.feed(new), line + new)
        if compute:
            self.compute(at)

    @rule(at=at)
    @precondition(lambda self: self.sessions)
    def compute(self, at):
        at %= len(self.sessions)
        self.tried(at, lambda s: s.compute(), self.sessions[at][1])

    @rule(at=at, n=st.integers(0, CONTEXT + 4), which=st.integers(0, 3), compute=st.booleans())
    @precondition(lambda self: self.sessions)
    def sync(self, at, n, which, compute):
        at %= len(self.sessions)
        line = LINES[which][:n] if n <= CONTEXT else LINES[which] + [1] * (n - CONTEXT)
        self.tried(at, lambda s: s.sync(line), line)
        if compute:
            self.compute(at)

    @rule(at=at, n=few)
    @precondition(lambda self: self.sessions)
    def rewind(self, at, n):
        at %= len(self.sessions)
        line = self.sessions[at][1]
        kept = line[:max(len(line) - n, 0)]
        try:
            self.sessions[at][0].rewind(len(kept))
        except KvBudgetExceeded:            # a spilled session has no room to come back to
            assert "kv_budget" in self.options
            return
        self.sessions[at][1] = kept

    @rule(at=at)
    @precondition(lambda self: self.sessions and len(self.sessions) < 6)
    def fork(self, at):
        session, line = self.sessions[at % len(self.sessions)]
        before = self.model.memory
        try:
            twin = session.fork()
        except KvBudgetExceeded:
            assert "kv_budget" in self.options
            return
        if not before.spilled:
            assert self.model.memory.n_blocks == before.n_blocks, "a fork takes no block"
        self.sessions.append([twin, list(line)])

    @rule(at=at)
    @precondition(lambda self: self.sessions)
    def look(self, at):
        session, line = self.sessions[at % len(self.sessions)]
        try:
            self.right(session, line)
        except KvBudgetExceeded:
            assert "kv_budget" in self.options
            assert session.tokens == line

    @rule(at=at, n=st.integers(1, CONTEXT))
    @precondition(lambda self: self.sessions and len(self.pins) < 3)
    def pin(self, at, n):
        session, _ = self.sessions[at % len(self.sessions)]
        n = min(n, session.n_computed)
        out = ffi.new("uint64_t *")
        if n:
            try:
                call(lib.plp_session_pin, session.pointer, n, out)
            except KvBudgetExceeded:
                assert "kv_budget" in self.options
                return
            self.pins.append(out[0])

    @rule(at=at)
    @precondition(lambda self: self.pins)
    def unpin(self, at):
        call(lib.plp_engine_unpin, self.model.pointer, self.pins.pop(at % len(self.pins)))

    @rule(which=st.integers(0, 3), n=st.integers(17, 80))
    @precondition(lambda self: len(self.pins) < 3)
    def keep(self, which, n):
        """A prefix to disk and mapped from there."""
        from pyllama_paged import PrefixStore

        try:
            prefix = self.model.prefix(text=LINES[which][:n], keep=True, store=PrefixStore(self.store))
        except KvBudgetExceeded:
            assert "kv_budget" in self.options
            return
        self.pins.append(prefix._pin)

    @rule(at=at)
    @precondition(lambda self: self.sessions and len(self.files) < 3)
    def save(self, at):
        session, line = self.sessions[at % len(self.sessions)]
        path = self.folder / f"session{self.n_files}.plpkv"
        self.n_files += 1
        try:
            session.save(path)
        except KvBudgetExceeded:
            assert "kv_budget" in self.options
            return
        self.files.append((path, list(line)))

    @rule(at=at)
    @precondition(lambda self: self.files and len(self.sessions) < 6)
    def resume(self, at):
        path, line = self.files.pop(at % len(self.files))
        self.sessions.append([self.model.resume(path), line])
        path.unlink()                       # mapped blocks outlive the name

    @rule(at=at)
    @precondition(lambda self: self.sessions)
    def close(self, at):
        self.sessions.pop(at % len(self.sessions))[0].close()

    @rule(n=st.integers(0, 1 << 18))
    def trim(self, n):
        self.model.trim(n)

    # ---- always

    @invariant()
    def books_add_up(self):
        assert self.model.check()
        memory = self.model.memory
        assert memory.resident <= memory.budget

    def teardown(self):
        if not hasattr(self, "model"):
            return
        for session, line in self.sessions:
            try:
                self.right(session, line)
            except KvBudgetExceeded:
                assert "kv_budget" in self.options
            session.close()
        for pin in self.pins:
            call(lib.plp_engine_unpin, self.model.pointer, pin)
        self.model.trim(1 << 40)
        memory = self.model.memory
        assert (memory.n_tokens, memory.n_blocks, memory.mapped, memory.cached, memory.spilled, memory.resident) == (0, 0, 0, 0, 0, 0)
        self.model.close()
        for path, _ in self.files:
            path.unlink()


@pytest.fixture(scope="module")
def wide_path(makers, tmp_path_factory):
    """A model whose blocks are four pages, so that a budget counts blocks and not slabs."""
    shape = makers.Shape(n_layers=2, n_embd=128, n_ff=64, n_heads=2, n_kv_heads=2, head_dim=64, n_vocab=300, context=512)
    return makers.tiny(tmp_path_factory.mktemp("wide") / "wide.gguf", shape=shape)


@pytest.mark.parametrize("pool", POOLS)
def test_random_programs(pool, tiny_path, wide_path, tmp_path):
    path = wide_path if "kv_budget" in POOLS[pool] else tiny_path
    references = {}
    _cold.clear()

    def cold(options):
        key = options.get("kv", "f16"), options.get("block", 16)
        if key not in references:
            references[key] = Model.open(path, threads=1, reuse=False, kv=key[0], block=key[1])
        return references[key]

    machine = type("Machine", (Pool,), dict(path=path, options=POOLS[pool], folder=tmp_path, cold=staticmethod(cold)))
    run_state_machine_as_test(machine, settings=settings(
        max_examples=PROGRAMS, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True))
    for model in references.values():
        model.close()
