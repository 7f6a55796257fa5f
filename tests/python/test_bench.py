"""
The benchmarks: their arithmetic on made-up samples, and that every command runs on a tiny model within seconds
and prints JSON that says what it should. No test looks at how fast anything is.
"""
import io
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))                # models/ is no installed package

from models import tiny                                                    # noqa: E402
from pyllama_paged.bench import kernels, machine, native, peers, record, serve, speed, stats, tables, work     # noqa: E402
from pyllama_paged.cli.main import main                                    # noqa: E402
from pyllama_paged.errors import InvalidArgument, PllamaError              # noqa: E402

needs_program = pytest.mark.skipif(not native.program(), reason="plp-bench is not built (-DPLP_BENCH=ON)")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.tiny(tmp_path_factory.mktemp("bench") / "tiny.gguf", "Q8_0")


# ---- arithmetic

def test_median_and_spread():
    s = stats.summary([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (s.n, s.median, s.low, s.high) == (5, 3.0, 1.0, 5.0)
    assert s.spread == pytest.approx((4.0 - 2.0) / 3.0)
    assert stats.summary([1.0, 2.0]).median == 1.5
    assert stats.summary([7.0]).spread == 0


def test_one_slow_repetition_moves_neither_median_nor_spread_far():
    s = stats.summary([1.0, 1.01, 1.02, 1.03, 50.0])
    assert s.median == 1.02 and s.spread < 0.03


def test_no_samples_is_an_error_and_not_a_zero():
    with pytest.raises(ValueError):
        stats.summary([])


def test_rates_are_amounts_over_times():
    assert stats.rates(512, [0.5, 2.0]) == [1024.0, 256.0]


def test_ratio_is_of_medians_and_shows_its_pairs():
    # times 1, 2, 4 against 2, 2, 2: rates 1, 1/2, 1/4 against 1/2 each
    got = stats.ratio(stats.rates(1, [1, 2, 4]), stats.rates(1, [2, 2, 2]))
    assert got == {"ratio": 1.0, "low": 0.5, "high": 2.0}


@pytest.mark.parametrize("ratio, bar, word", [
    (6.1, 6.0, "reached"), (6.0, 6.0, "reached"), (5.9, 6.0, "short"), (0.9, 6.0, "behind"), (0.9, None, "behind"),
    (1.1, None, "ahead"), (0.96, 0.95, "reached"), (0.94, 0.95, "short"), (None, 2.0, "not measured"),
])
def test_verdicts(ratio, bar, word):
    assert stats.verdict(ratio, bar) == word


def test_a_peer_that_wins_is_reported_as_winning():
    row = {"work": "decode", "tokens": 32, "depth": 0, "kv": "f16", "bar": 1.7}
    got = peers.compare(row, our_seconds=[2.0, 2.1, 1.9], their_seconds=[1.0, 1.1, 0.9])
    assert got["verdict"] == "behind" and got["ratio"] == pytest.approx(0.5)
    assert got["ours"]["median"] == pytest.approx(16) and got["peer"]["median"] == pytest.approx(32)


def test_a_bar_of_the_limit_is_no_excuse_for_a_peer_that_wins():
    row = {"work": "decode", "tokens": 10, "depth": 0, "kv": "f16", "limit_bar": 0.95}
    # 10 tokens of 1 GB in 0.25 s: 40 GB/s
    fine = peers.compare(row, [0.25], [0.3], weights_bytes=10**9, reads=[41e9])
    assert fine["of_limit"] == pytest.approx(40 / 41, rel=1e-3) and fine["verdict"] == "reached"
    assert peers.compare(row, [0.25], [0.3], weights_bytes=10**9, reads=[50e9])["verdict"] == "short"
    assert peers.compare(row, [0.25], [0.2], weights_bytes=10**9, reads=[41e9])["verdict"] == "behind"
    assert peers.compare(row, [0.25], [0.3], weights_bytes=10**9, reads=[])["verdict"] == "not measured"


def test_memory_is_compared_beyond_the_interpreter():
    row = {"work": "memory", "context": 8192, "most_mb": 40}
    side = {"anonymous": 50_000_000, "at_start": 20_000_000}
    heavy = {"anonymous": 150_000_000, "at_start": 30_000_000}
    got = peers.compare_memory(row, side, heavy)
    assert (got["ours"], got["peer"], got["verdict"]) == (30_000_000, 120_000_000, "reached")
    assert peers.compare_memory(row, heavy, side)["verdict"] == "behind"
    assert peers.compare_memory(row, heavy, {**heavy, "anonymous": 200_000_000})["verdict"] == "short"
    assert peers.compare_memory(row, {"anonymous": None, "at_start": None}, heavy)["verdict"] == "not measured"


def test_price_of_paging_is_time_over_time():
    def line(place, seconds):
        return {"tier": "t", "kernel": "attn_f16", "pages": "small", "block_len": 16, "place": place, "seconds": seconds,
                "median": sorted(seconds)[1], "bytes_per_second": 1e9, "of_read_limit": 0.5}

    [row] = kernels.paging([line("contiguous", [1.0, 1.0, 1.0]), line("in order", [1.0, 1.0, 1.0]), line("shuffled", [1.2, 1.25, 1.3])])
    assert row["in order"] == 1.0 and row["shuffled"] == 1.25


def test_bars_name_their_provenance_and_known_models():
    table = peers.bars()
    assert "measured on one machine" in table["provenance"]
    assert {row["model"] for row in table["rows"]} == set(table["models"])
    for row in table["rows"]:
        assert len({"bar", "limit_bar", "most_mb"} & row.keys()) == 1 and "llama.cpp" in row["seen"]


# ---- weights, records, processes

def test_weights_count_what_a_token_reads(model):
    import gguf

    w = work.Weights(model)
    tensors = [t for t in gguf.GGUFReader(model).tensors if len(t.shape) > 1 and min(t.shape) > 1]
    assert w.bytes == sum(t.n_bytes for t in tensors)                      # tied: the embedding is the output matrix
    assert w.values == sum(t.n_elements for t in tensors)
    assert w.operations(1, 1) == 2 * w.values and w.type == "Q8_0"
    assert w.operations(10, 1) == 2 * (10 * (w.values - w.output_values) + w.output_values)


def test_a_record_is_taken_up_where_it_stopped(tmp_path):
    path = tmp_path / "run.json"
    first = record.Record("speed", {"repeats": 3}, path)
    first.add("a", {"x": 1})
    again = record.Record("speed", {"repeats": 3}, path)
    assert again.has("a") and not again.has("b")
    again.add("b", {"x": 2})
    assert json.loads(path.read_text())["rows"] == {"a": {"x": 1}, "b": {"x": 2}}
    with pytest.raises(InvalidArgument, match="another machine, build or setting"):
        record.Record("speed", {"repeats": 4}, path)
    path.write_text("[]")
    with pytest.raises(InvalidArgument, match="no earlier result"):
        record.Record("speed", {"repeats": 3}, path)


def test_a_record_in_a_folder_gets_a_name(tmp_path):
    made = record.Record("speed", {}, tmp_path)
    made.add("a", {})
    assert made.path.parent == tmp_path and made.path.name.startswith("speed-") and made.path.exists()


def test_serve_answers_every_order_and_survives_errors():
    class Runtime:
        def open(self, model, threads, context, kv):
            return f"{model} {threads} {context} {kv}"

        def prefill(self, n):
            return n / 100

        def decode(self, n):
            raise RuntimeError("broken")

        def depth(self, n):
            pass

        def close(self):
            pass

    orders = [{"do": "open", "model": "m", "threads": 1, "context": 2, "kv": "f16"}, {"do": "depth", "n": 3}, {"do": "prefill", "n": 50},
              {"do": "decode", "n": 1}, {"do": "memory"}, {"do": "close"}, {"do": "prefill", "n": 1}]
    out = io.StringIO()
    serve.serve(Runtime(), [json.dumps(o) for o in orders], out)
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    assert answers[:4] == [{"what": "m 1 2 f16"}, {}, {"seconds": 0.5}, {"error": "RuntimeError: broken"}]
    assert len(answers) == 6                                                # nothing after close


def test_our_process_does_the_work(model):
    with peers.ours() as side:
        assert "pyllama_paged" in side("open", model=str(model), threads=1, context=128, kv="f16")["what"]
        side("depth", n=20)
        assert side("prefill", n=16)["seconds"] > 0
        assert side("decode", n=4)["seconds"] > 0
        memory = side("memory")
        assert memory["anonymous"] is None or memory["anonymous"] > memory["at_start"]
        with pytest.raises(PllamaError, match="TypeError"):
            side("prefill", tokens=1)
        side("close")


def test_depth_is_computed_once_and_forks_leave_it_alone(model):
    with work.Work(model, threads=1) as w:
        for depth in (32, 48, 16, 0):
            w.to_depth(depth)
            before = w.model.counters.tokens_computed
            w.prefill(8)
            w.decode(3)
            w.decode_together(2, 3)
            assert w.model.counters.tokens_computed - before == 8 + 3 + 6   # nothing else was computed
            assert len(w.base) == depth


def test_a_python_without_the_peer_is_one_clear_error(tmp_path):
    with pytest.raises(InvalidArgument, match="/nowhere/python: No such file"):
        peers.find_peer("/nowhere/python")
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    with pytest.raises(InvalidArgument, match="no llama-cpp-python.*--peer-python"):
        peers.find_peer(str(bare))


def test_a_peer_that_cannot_is_a_row_and_no_crash(model, tmp_path, monkeypatch):
    """Taking turns with a stand-in for the peer: a script that opens nothing, then one that answers."""
    def stand_in(name, answers):
        script = tmp_path / name
        script.write_text(f"import json, sys\nfor line in sys.stdin:\n    print(json.dumps({answers}[json.loads(line)['do']]), flush=True)\n")
        return peers.Other([sys.executable, str(script)])

    row = {"work": "decode", "tokens": 4, "depth": 16, "kv": "f16"}
    monkeypatch.setattr(peers, "bars", lambda: {"models": {}, "any_model": [row]})
    for name, answers, verdicts in (
        ("cannot.py", {"open": {"error": "no such luck"}}, ("not measured",)),
        ("fast.py", {"open": {"what": "fast"}, "depth": {}, "decode": {"seconds": 1e-9}, "close": {}}, ("behind",)),
        ("slow.py", {"open": {"what": "slow"}, "depth": {}, "decode": {"seconds": 1e9}, "close": {}}, ("ahead",)),
    ):
        monkeypatch.setattr(peers, "llama", lambda python: stand_in(name, answers))
        result = peers.run(model, record.Record("peers", {}), python="", threads=1, repeats=2)
        assert tuple(r["verdict"] for r in result["rows"].values()) == verdicts
        tables.show(result)


def test_quiet_check_says_what_it_knows():
    state = machine.quiet(0.05)
    assert set(state) == {"load", "busy", "steal", "quiet"}
    assert state["quiet"] in (True, False, None)


# ---- commands

def command(capsys, *words):
    assert main(["bench", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


def test_speed_prints_json(model, capsys, tmp_path):
    words = ("speed", model, "--json", "--small", "-p", "16", "-n", "4", "-d", "0,32", "-b", "2", "-r", "2", "-t", "1", "--kv", "f16,q8",
             "--save", tmp_path / "out.json")
    result = command(capsys, *words)
    rows = result["rows"]
    assert len(rows) == 2 * 2 * 3                                           # formats, depths, works
    assert {row["work"] for row in rows.values()} == {"prefill", "decode"}
    for row in rows.values():
        assert len(row["seconds"]) == 2
        assert row["tokens_per_second"]["median"] > 0
        assert row["sessions"] in (1, 2)
        if native.program() and row["work"] == "decode":
            assert row["of_read_limit"] > 0
    assert result["machine"]["cpu"] and result["machine"]["tier"]
    with open(tmp_path / "out.json") as f:
        assert json.load(f) == result
    assert command(capsys, *words) == result                                # nothing is measured a second time


def test_depths_beyond_the_context_are_left_out():
    rows = list(speed.Plan(prefill=(64,), decode=8, depths=(0, 100, 1000), batches=(1,)).rows(limit=150))
    assert [(what, depth) for _, _, what, depth, _, _ in rows] == [("prefill", 0), ("decode", 0), ("decode", 100)]


def test_speed_table_is_readable(model, capsys):
    assert main(["bench", "speed", str(model), "--small", "-p", "16", "-n", "2", "-d", "0", "-b", "1", "-r", "1", "-t", "1"]) == 0
    out = capsys.readouterr().out
    assert "prefill 16" in out and "decode 2" in out and "tokens/s" in out


def test_a_waiting_session_is_timed_too(model, capsys):
    result = command(capsys, "speed", model, "--json", "--small", "-p", "16", "-n", "2", "-d", "0", "-b", "1", "-r", "1", "-t", "2", "--idle")
    [idle] = [row for row in result["rows"].values() if row["work"] == "idle"]
    assert idle["threads"] == 2 and 0 <= idle["cpu_share"] < 1


def test_busy_processes_run_and_end():
    import time

    with machine.busy(2) as processes:
        time.sleep(0.1)
        assert [p.poll() for p in processes] == [None, None]
    assert all(p.poll() is not None for p in processes)


@needs_program
def test_kernels_prints_json(capsys):
    result = command(capsys, "kernels", "--small", "--json", "-t", "1", "--types", "Q4_K", "--kv", "f16,q8")
    lines = [line for part in result["rows"].values() for line in part["lines"]]
    names = {line["kernel"] for line in lines}
    assert {"linear", "x_pack", "rmsnorm", "glu silu", "attn_f16", "attn_q8"} <= names
    assert {line["block_len"] for line in lines if line["kernel"] == "attn_f16"} == {8, 16, 32, 64, 128}
    for line in lines:
        assert "skipped" in line or line["bytes_per_second"] > 0
    assert {row["block_len"] for row in kernels.paging(lines)} >= {16}


@needs_program
def test_kernels_names_every_kernel_of_the_list():
    """A kernel that is added to kernels.def is to be timed too."""
    import re

    listed = Path(__file__).resolve().parents[2] / "native/kernels/kernels.def"
    if not listed.exists():
        pytest.skip("no source folder")
    names = set(re.findall(r"^KERNEL\(\w+ ?\*?, +(\w+)", listed.read_text(), re.M)) - {"x_bytes", "linear_work", "attn_run_work"}
    lines = native.run("kernels", threads=1, cold_mib=32, reps=1, seconds=0.0001, patience=0.02, types=["Q4_K", "F16"])
    lines += native.run("attention", threads=1, reps=1, seconds=0.0001, patience=0.02, tokens=64, layers=1, heads=2, kv_heads=1)
    assert names <= {line["kernel"].split()[0] for line in lines}


@needs_program
def test_limits_are_measured():
    limits = native.Limits(cold_mib=8, seconds=0.001)
    assert limits.read(1) > 1e8
    assert limits.peak("read_l1", "", 1) > limits.read(1) / 4
    assert limits.peak("int8", "no such tier", 1) is None


def test_wrong_arguments_are_one_line(model, capsys):
    assert main(["bench", "speed", str(model), "--kv", "f17"]) == 2
    assert "f17" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["bench", "speed", str(model), "-d", "much"])
    assert end.value.code == 2 and "no list of numbers" in capsys.readouterr().err
