"""
Serving simulated, and `plan`: the paper's Figure 2, the buddy allocator under random use, and that the arithmetic of
KV bytes is the engine's.
"""
import json
import random

import pytest

from pyllama_paged import Model, plan                                                    # noqa: E402
from pyllama_paged.bench.memory.buddy import Buddy                                       # noqa: E402
from pyllama_paged.bench.memory.lengths import ALPACA, SHAREGPT                          # noqa: E402
from pyllama_paged.bench.memory.simulate import PAPER, SYSTEMS, Serving, simulate        # noqa: E402
from pyllama_paged.cli.main import main                                                  # noqa: E402
from pyllama_paged.errors import InvalidArgument, ModelFileError                         # noqa: E402


# ---- lengths

@pytest.mark.parametrize("lengths", [SHAREGPT, ALPACA], ids=lambda l: l.name)
def test_lengths_have_the_stated_means_and_the_limit(lengths):
    drawn = lengths.several(20_000, seed=3, limit=2048)
    assert sum(i for i, _ in drawn) / len(drawn) == pytest.approx(lengths.mean_in, rel=0.06)
    assert sum(o for _, o in drawn) / len(drawn) == pytest.approx(lengths.mean_out, rel=0.06)
    assert all(i >= 1 and o >= 1 and i + o <= 2048 for i, o in drawn)
    assert drawn == lengths.several(20_000, seed=3, limit=2048) != lengths.several(20_000, seed=4, limit=2048)


# ---- the buddy allocator

@pytest.mark.parametrize("n_slots", [1, 64, 1000, 15_700])
def test_buddy_blocks_never_overlap_and_join_again(n_slots):
    rng, buddy, held = random.Random(n_slots), Buddy(n_slots), {}
    for _ in range(3000):
        if held and rng.random() < 0.5:
            at = rng.choice(list(held))
            del held[at]
            buddy.give(at)
            continue
        n = min(n_slots, 1 + int(rng.expovariate(1 / 40)))
        at = buddy.take(n)
        if at is None:
            continue
        size = buddy.size(at)
        assert n <= size < 2 * n and at % size == 0 and at + size <= n_slots
        assert all(at + size <= a or a + s <= at for a, s in held.items())
        held[at] = size
        assert buddy.n_free == n_slots - sum(held.values())
    for at in held:
        buddy.give(at)
    assert buddy.n_free == n_slots
    assert buddy.take(1 << n_slots.bit_length() - 1) is not None        # the largest block is whole again
    assert buddy.take(n_slots + 1) is None


# ---- the paper

@pytest.fixture(scope="module")
def shares():
    return {system: simulate(system) for system in SYSTEMS}


@pytest.mark.parametrize("system", PAPER)
def test_figure_2_within_five_points(shares, system):
    assert shares[system].tokens == pytest.approx(PAPER[system]["tokens"], abs=5)


@pytest.mark.parametrize("system", SYSTEMS)
def test_shares_add_up(shares, system):
    s = shares[system]
    assert s.tokens + s.reserved + s.internal + s.external == pytest.approx(100)
    assert min(s.tokens, s.reserved, s.internal, s.external) >= 0


def test_what_each_system_is(shares):
    assert shares["orca-oracle"].internal == 0
    assert shares["orca-max"].running == pytest.approx(7, abs=0.1)      # 7 x 2,048 of 15,700 slots
    assert shares["faster-transformer"].tokens < shares["orca-max"].tokens
    assert shares["paged"].internal < 1                                 # only ends of last blocks


def test_paged_preempts_rather_than_overflow():
    s = simulate("paged", Serving(slots=2_100, rate=20, n_requests=200, seed=5))
    assert s.preempted > 0 and s.seconds > 0 and s.tokens > 90


def test_the_same_seed_gives_the_same_run():
    quick = Serving(n_requests=60, rate=8)
    assert simulate("orca-pow2", quick) == simulate("orca-pow2", quick)


# ---- plan

def test_the_papers_numbers(capsys):
    assert main(["plan", "--shape", "opt-13b", "--memory", "40GB"]) == 0
    said = capsys.readouterr().out
    assert "800 KB" in said and "1.6 GB" in said
    assert main(["plan", "--shape", "opt-13b", "--memory", "40GB", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["kv"]["f16"]["bytes_per_token"] == 2 * 5120 * 40 * 2


def test_sessions_share_their_beginning(capsys):
    def fits(*more):
        assert main(["plan", "--shape", "llama-3.2-1b", "--memory", "4GB", "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)["kv"]["f16"]["context_that_fits"]

    alone, four, shared = fits(), fits("--sessions", "4"), fits("--sessions", "4", "--prefix", "1000")
    assert 0 <= alone // 4 - four < 16, "whole blocks"
    assert 4 * (shared - 992) + 992 == pytest.approx(alone, abs=64), "62 whole blocks are held once"


@pytest.mark.parametrize("kv", plan.FORMATS)
def test_the_engine_needs_what_plan_says(tiny_path, kv):
    shape = plan.of_file(tiny_path)
    with Model.open(tiny_path, kv=kv, reuse=False) as model, model.session() as session:
        session.feed([1] * 48)
        session.compute()
        assert model.memory.token_state == 48 * plan.kv_bytes(shape, kv) == plan.held_bytes(shape, kv, 48)
        assert model.info.kv_bytes_per_token == plan.kv_bytes(shape, "f16")
        assert model.info.n_params == shape.params
    group, = shape.groups
    assert group.block_bytes == plan._block_bytes(2, 2, 16), "the arithmetic for known shapes is the engine's"


def test_longest_context_fits_and_one_more_does_not():
    shape = plan.shapes()["llama-3.2-1b"]
    for kv in plan.FORMATS:
        for sessions, prefix in ((1, 0), (3, 0), (3, 500)):
            n = plan.longest_context(shape, kv, 1e9, sessions=sessions, prefix=prefix)
            assert plan._need(shape, kv, n, sessions, prefix) <= 1e9 < plan._need(shape, kv, n + 1, sessions, prefix)
            assert sessions * plan.held_bytes(shape, kv, n) <= 1e9 + (sessions - 1) * prefix * plan.kv_bytes(shape, kv)
        assert plan.longest_context(shape, kv, 0) == 0


def test_wrong_words(tmp_path, tiny_path, capsys):
    with pytest.raises(InvalidArgument):
        plan.kv_bytes(plan.shapes()["opt-13b"], "q5")
    assert main(["plan", "--shape", "opt-14b"]) == 2 and "opt-13b" in capsys.readouterr().err
    assert main(["plan", str(tiny_path), "--shape", "opt-13b"]) == 2 and "not both" in capsys.readouterr().err
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_path.read_bytes()[:-1])
    with pytest.raises(ModelFileError):
        plan.of_file(cut)
    assert main(["plan", str(cut)]) == 2 and len(capsys.readouterr().err.splitlines()) == 1
