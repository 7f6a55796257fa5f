"""
The memory protocol: counters see what a process really does, verdicts can go either way, rows say what happened, and
the command leaves a whole report. Figures are looked at only where they are certain.
"""
import copy
import json
import re
import subprocess
import sys
import time

import pytest

from pyllama_paged import Model                                                                             # noqa: E402
from pyllama_paged.bench.memory import churn, compare, energy, lab, page, price, process, tables, verdicts    # noqa: E402
from pyllama_paged.bench.memory.loop import tokens_of                                                       # noqa: E402
from pyllama_paged.bench.memory.worker import Own                                                           # noqa: E402
from pyllama_paged.cli.main import main                                                                     # noqa: E402
from pyllama_paged.errors import ContextFull, InvalidArgument                                               # noqa: E402

MB = 10**6
needs_proc = pytest.mark.skipif(not sys.platform.startswith(("linux", "android")), reason="reads /proc")

# ---- counters

CHILD = """
import mmap, sys
print("ready", flush=True)
for line in sys.stdin:
    if line == "take\\n":
        held = bytearray(100 * 10**6); held[::4096] = b"x" * len(range(0, len(held), 4096))
    elif line == "map\\n":
        f = open(sys.argv[1], "rb"); seen = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); sum(seen[::4096])
    elif line == "give\\n":
        del held
    print("done", flush=True)
"""


@pytest.fixture
def child(tmp_path):
    (tmp_path / "file").write_bytes(b"\1" * (100 * MB))
    with subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "file")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        p.stdout.readline()

        def order(word):
            p.stdin.write(word + "\n")
            p.stdin.flush()
            p.stdout.readline()

        p.order = order
        yield p
        p.stdin.close()


@needs_proc
def test_100_mb_are_seen_by_every_measure_and_gone_afterwards(child):
    before, mine = process.of(child.pid), process.of()
    child.order("take")
    after = process.of(child.pid)
    for measure in ("rss", "pss", "uss", "anonymous"):
        assert getattr(after, measure) - getattr(before, measure) == pytest.approx(100 * MB, rel=0.02), measure
    assert abs(after.file - before.file) < MB
    assert abs(process.of().anonymous - mine.anonymous) < 10 * MB           # it is the child that was measured
    child.order("give")
    assert abs(process.of(child.pid).anonymous - before.anonymous) < MB


@needs_proc
def test_a_mapped_file_is_not_anonymous(child):
    before = process.of(child.pid)
    child.order("map")
    after = process.of(child.pid)
    assert after.file - before.file == pytest.approx(100 * MB, rel=0.02)
    assert after.anonymous - before.anonymous < 2 * MB


@needs_proc
def test_quick_counters_agree_with_the_slow_ones(child):
    child.order("take")
    slow, quick = process.of(child.pid), process.quick(child.pid)
    assert quick.rss == pytest.approx(slow.rss, abs=2 * MB) and quick.anonymous == pytest.approx(slow.anonymous, abs=2 * MB)


@needs_proc
def test_the_sampler_sees_a_peak_between_marks(child):
    with process.Sampler(child.pid, every=0.005) as sampler:
        time.sleep(0.05)
        child.order("take")
        time.sleep(0.1)
        child.order("give")
        time.sleep(0.05)
    values = [f.anonymous for _, f in sampler.samples]
    assert max(values) - values[0] == pytest.approx(100 * MB, rel=0.02)
    assert max(v for _, _, v in sampler.thin(4)) == max(values) and len(sampler.thin(4)) <= 4


def test_a_process_that_is_gone_has_no_figures():
    with subprocess.Popen([sys.executable, "-c", ""]) as p:
        p.wait()
    assert process.of(p.pid).as_dict() == {}


def test_the_sum_of_smaps_where_there_is_no_rollup():
    text = "".join(f"00-01 r-xp 0 0 0 x\nSize: 100 kB\nRss: {r} kB\nPss: {p} kB\nPrivate_Clean: 1 kB\nPrivate_Dirty: 2 kB\nAnonymous: {a} kB\nSwap: 0 kB\n"
                   for r, p, a in ((8, 4, 2), (16, 16, 16)))
    f = process._from_smaps(text)
    assert (f.rss, f.pss, f.uss, f.anonymous, f.file) == (24 * 1024, 20 * 1024, 6 * 1024, 18 * 1024, 6 * 1024)


def test_energy_counters(tmp_path):
    domain = tmp_path / "rapl" / "intel-rapl:0"
    domain.mkdir(parents=True)
    (domain / "energy_uj").write_text("900000")
    (domain / "max_energy_range_uj").write_text("1000000")
    meter = energy.Meter(tmp_path / "rapl", tmp_path / "none")
    meter.start()
    (domain / "energy_uj").write_text("100000")             # went round: 0.1 J to the end, 0.1 J after
    assert meter.joules() == pytest.approx(0.2) and "RAPL" in meter.source
    battery = tmp_path / "supply" / "BAT0"
    battery.mkdir(parents=True)
    for name, value in (("status", "Discharging"), ("charge_now", "1000000"), ("voltage_now", "4000000")):
        (battery / name).write_text(value)
    meter = energy.Meter(tmp_path / "none", tmp_path / "supply")
    meter.start()
    (battery / "charge_now").write_text("999000")           # 1 mAh at 4 V
    assert meter.joules() == pytest.approx(3.6 * 4)
    (battery / "status").write_text("Charging")
    assert meter.joules() is None and energy.Meter(tmp_path / "none", tmp_path / "none").joules() is None


# ---- verdicts

def figure(value, spread=0.0):
    return {"n": 5, "median": value, "spread": spread, "low": value, "high": value}


@pytest.mark.parametrize("ours, theirs, more, answer", [
    (50, 100, {}, "gain"), (100, 50, {}, "loss"), (100, 103, {}, "level"), (50, 100, {"less_is_better": False}, "loss"),
    (100, 50, {"less_is_better": False}, "gain"), (80, 100, {"spread": 0.3}, "level"), (100, 80, {"spread": 0.3}, "level"),
    (1.0, 2.0, {"least": 5}, "level"), (None, 1.0, {}, "unknown"), (1.0, None, {}, "unknown"), (0.0, 0.0, {}, "level"), (0, 10, {}, "gain"),
])
def test_judge(ours, theirs, more, answer):
    assert verdicts.judge(ours, theirs, **more) == answer


def lost():
    """A result in which paging is worse at everything."""
    def held(scenario, side, variant, value, key="x", **more):
        marks = {"launched": {"anonymous": figure(10 * MB)}, "loaded": {"anonymous": figure(20 * MB)}, key: {"anonymous": figure(10 * MB + value)}}
        return {"scenario": scenario, "side": side, "variant": variant, "key": key, "held": figure(value), "marks": marks, **more}

    rows = {}
    for side, bad in (("paged", 10), ("max", 1), ("lazy", 1), ("llama", 1), ("unified", 1), ("pow2", 1), ("oracle", 1)):
        for limit, factor in ((4096, 1), (131072, 30)):
            rows[f"one word limit {limit} {side}"] = held("one word", side, f"limit {limit}", bad * factor * MB)
        rows[f"sessions system 80 {side}"] = held("sessions", side, "system 80", bad * 80 * MB, "8 sessions")
        rows[f"churn ShareGPT-like {side}"] = held("churn", side, "ShareGPT-like", bad * MB, at_a_time=figure(10 / bad), of_held=figure(100 / bad),
                                                      computed_again=figure(40.0))
        rows[f"forks beams 2 {side}"] = held("forks", side, "beams 2", bad * MB, saving=figure(0.01))
        back = held("give back", side, "", 100 * MB, "all open")
        for mark in ("half closed", "all closed"):
            back["marks"][mark] = {"anonymous": figure((110 if side == "paged" else 20) * MB)}
        rows[f"give back {side}"] = back
        rows[f"restart {side}"] = held("restart", side, "", MB, restart_seconds=[0.1 * bad] * 5, cold_seconds=figure(0.5), together_pss=figure(bad * 50 * MB))
        rows[f"budget {side}"] = held("budget", side, "", MB, fit=figure(10 / bad), refused=True, others_go_on=side != "paged", refused_goes_on=True)
        rows[f"latency {side}"] = held("latency", side, "", MB, cold_seconds=[0.1 * bad] * 5, warm_seconds=[0.2 * bad] * 5, fork_seconds=[0.2 * bad] * 5,
                                       steps=[0.01 * bad] * 64)
        life = held("life", side, "", bad * 10 * MB, "ten turns")
        life["marks"]["chat closed, trimmed"] = {"anonymous": figure((10 + bad * 10) * MB)}
        rows[f"life {side}"] = life
    for kv, size in (("f16", 1), ("q8", 2), ("q4", 2)):
        row = held("formats", "paged", kv, MB, "deep", steps=[0.01 * size] * 9)
        row["marks"]["deep"]["ledger"] = {"resident": figure(size * 50 * MB)}
        rows[f"formats {kv} paged"] = row
    rows["price block 16 depth 1024"] = {"scenario": "price", "side": "paged", "block": 16, "depth": 1024, **price.compare([1 / 1.3] * 20, [1.0] * 20)}
    return {"rows": rows}


def test_verdicts_can_come_out_against_paging():
    found = verdicts.of(lost())
    topics = {v["topic"] for v in found}
    assert topics == {"one word", "sessions", "churn", "forks", "give back", "restart", "budget", "price", "formats", "life", "latency"}
    assert {v["answer"] for v in found if v["topic"] == "forks"} == {"level"}
    others = [v for v in found if v["topic"] != "forks" and v["against"] not in ("faster-transformer",)]
    assert [v["words"] for v in others if v["answer"] != "loss"] == []
    words = " ".join(v["words"] for v in others)
    assert "LOSES" in words and "COSTS" in words and "DEPENDS" in words and "do NOT" in words


def test_the_same_numbers_exchanged_come_out_for_paging():
    result = lost()
    rows = result["rows"]
    for name in [n for n in rows if n.endswith(" paged") and not n.startswith(("forks", "formats"))]:
        for rival in ("max", "lazy", "llama", "unified", "pow2", "oracle"):
            other = name[:-5] + rival
            rows[other] = {**copy.deepcopy(rows[name]), "side": rival}
    good = lost()["rows"]
    for name in [n for n in rows if n.endswith(" paged") and not n.startswith(("forks", "formats", "restart", "latency"))]:
        rows[name] = {**good[name[:-5] + "max"], "side": "paged"}
    answers = {(v["topic"], v["against"]): v["answer"] for v in verdicts.of(result)}
    for topic in ("one word", "sessions", "churn", "life", "give back"):
        assert answers[topic, "lazy"] == "gain", topic
    assert answers["budget", "failing"] == "gain"


def test_what_was_not_measured_is_unknown_and_not_a_gain():
    result = lost()
    result["rows"] = {n: r for n, r in result["rows"].items() if r["side"] == "paged"}
    found = verdicts.of(result)
    against_rivals = [v for v in found if v["against"] in ("max", "lazy", "llama", "unified", "pow2", "oracle")]
    assert against_rivals and {v["answer"] for v in against_rivals} == {"unknown"}
    assert verdicts.of({"rows": {}}) == []
    result["rows"]["one word limit 131072 paged"] = {"scenario": "one word", "side": "paged", "variant": "limit 131072", "not_run": "too much"}
    assert all(v["answer"] in ("unknown", "loss", "level") for v in verdicts.of(result))


def test_price_of_steps_taken_in_turn():
    slower = price.compare([1.0] * 20, [1.3] * 20)
    assert slower["ratio"] == pytest.approx(1.3, rel=1e-3) and slower["low"] <= slower["ratio"] <= slower["high"]
    noisy = price.compare([1.0, 1.3] * 10, [1.3, 1.0] * 10)
    assert noisy["low"] < 1 < noisy["high"] or noisy["ratio"] == pytest.approx(1.0, abs=0.05)


# ---- rows

def test_merging_repetitions():
    merged = lab.merge([{"n": 1, "s": [1.0, 2.0], "w": "a", "ok": True, "marks": {"x": {"rss": 10}}},
                        {"n": 3, "s": [3.0], "w": "b", "ok": True, "marks": {"x": {"rss": 20}}}])
    assert merged["n"]["median"] == 2 and merged["n"]["n"] == 2
    assert merged["s"] == [1.0, 2.0, 3.0] and merged["w"] == ["a", "b"] and merged["ok"] is True
    assert merged["marks"]["x"]["rss"]["median"] == 15


def test_tokens_differ_by_seed_from_the_first_on():
    a, b = tokens_of(50, 300, 0), tokens_of(50, 300, 1)
    assert a == tokens_of(50, 300, 0) and a[0] != b[0] and all(0 <= t < 300 for t in a + b)


@pytest.fixture
def own(tiny_path):
    opened = []

    def make(**options):
        worker = Own()
        worker.open(str(tiny_path), threads=1, context=512, sessions=1, **options)
        opened.append(worker)
        return worker

    yield make
    for worker in opened:
        if worker.model:
            worker.unload()


def test_a_refused_session_has_exactly_what_it_says(own, tiny_path):
    with Model.open(tiny_path) as model:
        w = own(budget=model.info.kv_bytes_per_token * 1024)            # 64 blocks, one slab of this model
    for i, n in ((0, 490), (1, 290)):                                   # 31 + 19 blocks
        w.start(i)
        assert not w.feed(i, tokens_of(n, 300, i))["refused"]
    w.start(2)
    tokens = tokens_of(300, 300, 5)
    answer = w.feed(2, tokens)                                          # the first chunk, of 128, fits into the other 14
    assert answer["refused"] and answer["error_type"] == "KvBudgetExceeded"
    assert len(w.sessions[2]) == answer["computed"] == 128
    w.end(0)
    assert not w.feed(2, tokens[128:])["refused"]
    assert w.sessions[2].tokens == tokens


@pytest.mark.parametrize("reserve, blocks", [(0, 32), (100, 7), (16, 2)])
def test_reservations_are_a_sessions_own(own, reserve, blocks):
    """32 blocks: the limit of 512. A reservation that turns out too short grows to what is needed."""
    w = own(layout="contiguous")
    w.start(0, reserve=reserve)
    w.feed(0, tokens_of(20, 300))
    assert w.ledger()["n_blocks"] == blocks
    with pytest.raises(InvalidArgument):
        from pyllama_paged._native import call, lib
        call(lib.plp_session_reserve, w.sessions[0].pointer, 50)
    w.start(1)
    with pytest.raises(ContextFull):
        call(lib.plp_session_reserve, w.sessions[1].pointer, 513)


def test_layouts_give_the_same_logits(own):
    rows = []
    for options in ({}, {"layout": "contiguous"}, {"layout": "lazy"}):
        w = own(**options)
        w.start(0, reserve=40)
        w.feed(0, tokens_of(60, 300))
        rows.append(w.sessions[0].logits.tobytes())
    assert rows[0] == rows[1] == rows[2]


@pytest.mark.parametrize("kind", ["samples", "beams"])
def test_searches_share_and_leave_nothing_behind(own, kind):
    w = own()
    w.start(0)
    w.feed(0, tokens_of(64, 300))
    before = w.ledger()["n_blocks"]
    found = getattr(w, kind)(0, 4, 12)
    assert w.ledger()["n_blocks"] == before == 4 and len(found["steps"]) == 12
    # four branches of 64 + 12 tokens are 5 blocks each; the prompt's 4 are there once
    assert found["saving_at_end"] == pytest.approx(1 - (4 + 4) / 20, abs=0.16 if kind == "beams" else 1e-9)


def test_searched_beams_are_the_most_likely_ones(own):
    """Of width 1, beam search is greedy decoding."""
    import numpy

    w = own()
    w.start(0)
    w.feed(0, tokens_of(10, 300))
    seen = []
    w._step = lambda sessions, step=w._step: (seen.append(sessions[0].tokens[-1]), step(sessions))
    w.beams(0, 1, 6)
    greedy = []
    with w.sessions[0].fork() as twin:
        for _ in range(6):
            greedy.append(int(numpy.argmax(twin.logits)))
            twin.feed(greedy[-1:])
    assert seen == greedy


class _Puppet:
    """A process of a side whose memory is a number of tokens: for churn's bookkeeping."""

    def __init__(self, side, room):
        self.side, self.room, self.held, self.reserved, self.marks = side, room, {}, {}, {}

    def __call__(self, do, id=None, reserve=0):
        if do == "start":
            self.held[id], self.reserved[id] = 0, reserve
        elif do == "end":
            del self.held[id], self.reserved[id]
        return {}

    def feed(self, id, tokens):
        wanted = max(self.reserved[id], self.held[id] + len(tokens))
        if sum(max(h, self.reserved[i]) for i, h in self.held.items() if i != id) + wanted > self.room:
            return {"refused": True, "computed": 0}
        self.held[id] += len(tokens)
        return {"refused": False}

    def mark(self, name):
        self.marks[name] = dict(self.held)


@pytest.mark.parametrize("side", ["paged", "max", "pow2", "oracle", "unified"])
def test_churn_serves_everybody_and_shares_add_up(side):
    class Tokens:
        tokens = staticmethod(lambda n, seed=0: tokens_of(n, 300, seed))

    requests = [(100, 200), (30, 500), (400, 100), (10, 10), (300, 300), (50, 900)] * 3
    p = _Puppet(side, 2048)
    out = churn.serve(p, Tokens, requests, 2048)
    assert p.held == {} and out["turns_waited"] > 0
    assert out["tokens"] + out["reserved"] + out["internal"] + out["external"] == pytest.approx(100)
    if side == "max":
        assert out["at_a_time"] <= 2 and out["internal"] > 30 and out["preempted"] == 0
    if side in ("paged", "unified"):
        assert out["reserved"] == out["internal"] == 0 and out["at_a_time"] > 2
        assert out["computed_again"] < 60
    else:
        assert out["computed_again"] == 0
    if side == "oracle":
        assert out["internal"] == 0 < out["reserved"]


# ---- the command

@pytest.fixture(scope="module")
def ran(tmp_path_factory, makers):
    folder = tmp_path_factory.mktemp("memory")
    model = makers.tiny(folder / "tiny.gguf")
    for name in ("a", "b"):
        done = subprocess.run([sys.executable, "-m", "pyllama_paged.cli.main", "bench", "memory", str(model), "--quick", "-o", str(folder / name), "-r", "1",
                               "-t", "1", *(["--only", "one word,give back,budget"] if name == "b" else [])], capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        (folder / name / "said").write_text(done.stdout)
    return folder


def test_a_run_leaves_a_whole_report(ran):
    result = json.loads((ran / "a" / "memory.json").read_text())
    assert result["schema"] == "pyllama-paged memory 1"
    assert {r["scenario"] for r in result["rows"].values()} == {"simulated", "one word", "growth", "sessions", "churn", "forks", "give back", "restart",
                                                                "budget", "price", "formats", "life", "latency"}
    assert len(result["model"]["sha256"]) == 64 and result["device"]["threads_used"] == 1
    for name, row in result["rows"].items():
        if row["side"] == "llama" if "side" in row else False:
            assert row["not_run"].startswith("not asked for"), name
    said, html = (ran / "a" / "said").read_text(), (ran / "a" / "memory.html").read_text()
    for title in ("Figure 2", "Churn", "Forks", "Restart", "budget", "price", "formats", "day"):
        assert title in said and title in html, title
    assert not re.search(r"(src|href)=[\"'](?!#)", html)                # nothing outside is needed
    assert html.count("<svg") == (6 if page.have_plots() else 0)


@needs_proc
def test_the_certain_figures_of_a_run(ran):
    rows = json.loads((ran / "a" / "memory.json").read_text())["rows"]
    per_token = 2 * 2 * 2 * 16 * 2      # the tiny model: layers, K and V, heads, head size, f16
    whole = rows["one word limit 131072 max"]["held"]["median"] - rows["one word limit 131072 paged"]["held"]["median"]
    assert whole == pytest.approx(131072 * per_token, rel=0.1)
    ledger = rows["growth paged"]["marks"]["256 tokens"]["ledger"]
    assert ledger["token_state"]["median"] == 256 * per_token
    assert rows["budget paged"]["error_type"] == "KvBudgetExceeded" and rows["budget paged"]["others_go_on"] and rows["budget paged"]["refused_goes_on"]
    assert rows["budget paged"]["fit"]["median"] >= 8 and rows["budget max"]["fit"]["median"] < rows["budget paged"]["fit"]["median"]
    assert rows["restart paged"]["reused"]["median"] == 256
    assert rows["churn ShareGPT-like paged"]["of_held"]["median"] > 90


def test_an_interrupted_run_goes_on_where_it_stopped(ran, capsys):
    path = ran / "b" / "memory.json"
    before = json.loads(path.read_text())
    cut = {**before, "rows": {n: r for n, r in before["rows"].items() if not n.startswith("budget")}}
    cut.pop("verdicts", None)
    path.write_text(json.dumps(cut))
    assert main(["bench", "memory", str(ran / "tiny.gguf"), "-o", str(ran / "b"), "-r", "1", "-t", "1", "--only", "one word,give back,budget"]) == 0
    done = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("one word", "give back", "budget"))]
    assert done == ["budget paged", "budget max", "budget lazy"]
    after = json.loads(path.read_text())
    assert after["rows"].keys() == before["rows"].keys() and after["rows"]["give back paged"] == before["rows"]["give back paged"]


def test_two_runs_on_one_machine_agree_in_bytes(ran, capsys):
    a, b = (str(ran / name / "memory.json") for name in "ab")
    assert main(["bench", "compare", a, b, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same_model"] and found["same_device"] and len(found["rows"]) > 6
    assert [r for r in found["rows"] if r["what"] == "bytes" and r["word"] != "same"] == []
    assert main(["bench", "compare", a, b, "--all"]) == 0
    assert "give back paged: bytes" in capsys.readouterr().out


def test_compare_finds_a_difference(ran):
    a = compare.load(ran / "a" / "memory.json")
    b = copy.deepcopy(a)
    b["rows"]["give back max"]["held"]["median"] *= 2
    b["model"]["sha256"] = "0" * 64
    found = compare.compare(a, b)
    assert not found["same_model"]
    assert [(r["row"], r["what"]) for r in found["rows"] if r["word"] == "differs"] == [("give back max", "bytes")]


def test_wrong_words(ran, tmp_path, capsys):
    assert main(["bench", "memory", str(ran / "tiny.gguf"), "-o", str(tmp_path), "--only", "nothing"]) == 2
    assert "one word" in capsys.readouterr().err
    (tmp_path / "x.json").write_text('{"bench": "speed"}')
    assert main(["bench", "compare", str(tmp_path / "x.json"), str(tmp_path / "x.json")]) == 2
    assert main(["bench", "report", str(tmp_path)]) == 2
    capsys.readouterr()
    assert main(["bench", "memory", str(ran / "tiny.gguf"), "-o", str(ran / "a"), "-r", "3"]) == 2      # another setting than what is there
    assert "another" in capsys.readouterr().err


def test_percentiles():
    assert tables.percentile([], 0.5) is None and tables.percentile([3, 1, 2], 0.5) == 2 and tables.percentile(range(100), 0.99) == 99
