"""
The pool's random programs for models with two groups of layers: windows, running states, experts.

Windowed layers keep their window and 256 tokens, so timelines here are long enough to leave blocks behind.
"""
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))                  # models/ is no installed package

from hypothesis import HealthCheck, settings, strategies as st             # noqa: E402
from hypothesis.stateful import precondition, rule, run_state_machine_as_test      # noqa: E402

import test_kv_machine as machine                                          # noqa: E402
from models.architectures import CASES, LARGE_STATE                        # noqa: E402
from pyllama_paged import Model                                            # noqa: E402
from pyllama_paged.memory import parse_bytes                               # noqa: E402

CONTEXT = 400
LINES = [[(a * i * i + 3 * i + b) % 300 for i in range(CONTEXT)] for a, b in ((7, 0), (5, 1))]
LINES += [LINES[0][:320] + LINES[1][320:], LINES[0][:70] + LINES[1][70:]]
MODELS = {name: CASES[name] for name in ("lfm2", "gpt-oss", "gemma3", "lfm2moe", "qwen35", "gemma4")} | {LARGE_STATE.name: LARGE_STATE}
LARGE = 8                           # how much larger the last one's pools are
POOLS = {
    "f16": dict(kv_cache="2MiB"),
    "q8, shuffled": dict(kv="q8", shuffle=True),
    "f16, tight, spilling": dict(kv_budget="1MiB", kv_cache="96KiB", spill=True),
}


class LongPool(machine.Pool):
    @rule(at=machine.Pool.at, n=st.integers(250, CONTEXT), which=st.integers(0, 3))
    @precondition(lambda self: self.sessions)
    def sync_far(self, at, n, which):
        self.sync(at=at, n=n, which=which, compute=True)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", MODELS)
def test_random_programs(name, pool, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CONTEXT", CONTEXT)
    monkeypatch.setattr(machine, "LINES", LINES)
    path = MODELS[name].write(tmp_path / "m.gguf", "Q8_0")
    options = dict(POOLS[pool])
    for key in {"kv_cache", "kv_budget"} & options.keys() if MODELS[name] is LARGE_STATE else ():
        options[key] = LARGE * parse_bytes(options[key])
    references = {}
    machine._cold.clear()

    def cold(options):
        kv = options.get("kv", "f16")
        if kv not in references:
            references[kv] = Model.open(path, threads=1, reuse=False, kv=kv)
        return references[kv]

    kind = type("Machine", (LongPool,), dict(path=path, options=options, folder=tmp_path, cold=staticmethod(cold)))
    run_state_machine_as_test(kind, settings=settings(
        max_examples=max(machine.PROGRAMS // 4, 1), stateful_step_count=30, deadline=None,
        suppress_health_check=list(HealthCheck)))
    machine._cold.clear()
    for model in references.values():
        model.close()
