"""
Every architecture of native/model/archs.def against transformers in fp32, by tiny models with random weights.

The truth (tests/golden/architectures) holds the 64 most probable tokens at every third position, which have
half to nineteen twentieths of the probability. What the others would add to a divergence is estimated: their share of it.
"""
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))                                                 # models/ is no installed package
from gguf import GGUFValueType as V                                        # noqa: E402

from models import supported as listed                                     # noqa: E402
from models.architectures import CASES, LARGE_STATE, N_TOKENS, N_VOCAB, Case, golden_tokens     # noqa: E402
from pyllama_paged import Model, plan                                       # noqa: E402
from pyllama_paged.errors import ModelFileError, UnsupportedModel           # noqa: E402

GOLDENS = ROOT / "tests" / "golden" / "architectures"
KL_LIMIT = {"F32": 1e-5, "Q8_0": 0.01}      # nats a token, beside the truth in fp32
TOUCHY = ("gemma3n", "gemma4-moe")          # thresholds and choices of experts that rounding the weights to Q8_0 alone turns over


def supported():
    return [name for name, _, _ in listed.architectures()]


@pytest.fixture(scope="module")
def file_of(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("architectures"), {}

    def make(name, kind="F32"):
        if (name, kind) not in made:
            made[name, kind] = CASES[name].write(folder / f"{name}.{kind}.gguf", kind)
        return made[name, kind]
    return make


def open_case(path, name, **options):
    return Model.open(path, threads=options.pop("threads", 2), context=CASES[name].context_limit, **options)


def all_logits(session, tokens):
    session.feed(tokens)
    rows = np.empty((len(tokens), N_VOCAB), np.float32)
    session.compute_logits(rows)
    return rows


def logprobs(logits):
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def golden(name):
    with np.load(GOLDENS / f"{name}.npz") as file:
        return {key: file[key] for key in file.files} | {"provenance": json.loads(str(file["provenance"]))}


def divergence(truth, got):
    """
    Mean KL(truth || got) over positions. A token's part of it is p log(p/q) - p + q, never below 0; tokens beyond the top are taken to
    differ as much as those.
    """
    p = np.exp(truth["logprobs"].astype(np.float64))
    q = np.exp(np.take_along_axis(got, truth["ids"].astype(int), axis=-1))
    return float(((p * np.log(p / q) - p + q).sum(-1) / p.sum(-1)).mean())


def test_the_divergence_is_what_the_whole_distribution_gives():
    rng = np.random.default_rng(3)
    true = logprobs(rng.standard_normal((16, N_VOCAB)))
    got = logprobs(true + 0.01 * rng.standard_normal(true.shape))
    ids = np.argsort(-true)[:, :64]
    whole = (np.exp(true) * (true - got)).sum(-1).mean()
    assert divergence({"ids": ids, "logprobs": np.take_along_axis(true, ids, axis=-1)}, got) == pytest.approx(whole, rel=0.2)


def test_every_architecture_has_a_golden():
    assert supported() and set(supported()) == {c.arch for c in CASES.values()}
    assert {f.stem for f in GOLDENS.glob("*.npz")} == set(CASES)


def test_the_readme_agrees():
    readme = listed.README.read_text()
    assert listed.BEGIN in readme and listed.with_section(readme) == readme, "run: python -m models.supported --write"
    assert len(supported()) == (ROOT / "native" / "model" / "archs.def").read_text().count("\nARCH(")


@pytest.mark.parametrize("name", CASES)
def test_goldens_belong_to_these_weights(name):
    truth = golden(name)
    assert truth["provenance"]["weights"] == CASES[name].digest()
    assert truth["tokens"].tolist() == golden_tokens()
    assert truth["ids"].shape == truth["logprobs"].shape == (len(truth["positions"]), 64)


@pytest.mark.parametrize("kind", KL_LIMIT)
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_transformers(file_of, name, kind):
    """F32 to 1e-5, in every architecture; where weights are of an integer form, activations are rounded to 8 bits, and 0.01 is the bar, if the
    weights that are rounded so keep to it themselves."""
    truth = golden(name)
    with open_case(file_of(name, kind), name) as model, model.session() as session:
        assert model.info.architecture == CASES[name].arch
        got = logprobs(all_logits(session, golden_tokens()))[truth["positions"]]
    exact = kind == "F32" and not CASES[name].expert_type       # experts of an integer form round activations, as Q8_0's do
    found, limit = divergence(truth, got), KL_LIMIT["F32" if exact else "Q8_0"]
    print(f"KL {found:.3g}")
    if name in TOUCHY and kind == "Q8_0":
        path = CASES[name].write(file_of(name).with_suffix(".rounded"), rounded="Q8_0")
        with open_case(path, name) as model, model.session() as session:
            of_weights = divergence(truth, logprobs(all_logits(session, golden_tokens()))[truth["positions"]])
        assert limit / 2 < of_weights
        limit = 2 * of_weights
    assert found <= limit
    if exact:
        worst = np.abs(np.take_along_axis(got, truth["ids"].astype(int), axis=-1) - truth["logprobs"]).max()
        assert worst < 0.02                     # KV is f16


def test_mxfp4_experts_are_exact_but_for_the_rounding_of_activations(tmp_path):
    """The same values stored as F32 meet the bar of F32, so what the integer form misses is what it rounds."""
    name = "gpt-oss-mxfp4"
    truth, found = golden(name), {}
    for experts in ("F32", "MXFP4"):
        path = CASES[name].write(tmp_path / f"{experts}.gguf", experts=experts)
        with open_case(path, name) as model, model.session() as session:
            found[experts] = divergence(truth, logprobs(all_logits(session, golden_tokens()))[truth["positions"]])
    print(found)
    assert found["F32"] <= KL_LIMIT["F32"] < found["MXFP4"] <= 1e-3


@pytest.mark.parametrize("name", CASES)
def test_every_path_gives_the_same_bits(file_of, name):
    """Prefill whole or in pieces, decode, other sessions in the batch, other threads, a reused prefix, a fork."""
    path, tokens = file_of(name, "Q8_0"), golden_tokens()
    with open_case(path, name, threads=1) as model, model.session() as session:
        want = all_logits(session, tokens)
    with open_case(path, name, threads=2, chunk=7, shuffle=True) as model:
        with model.session() as session:
            assert np.array_equal(all_logits(session, tokens), want)
        with model.session() as session:                        # in chunks of 7 and decode, one by one
            for i in range(20, N_TOKENS):
                session.sync(tokens[:i + 1])
                assert np.array_equal(session.logits, want[i]), i
    with open_case(path, name, threads=2, kv_cache="16MiB") as model:
        with model.session() as first:
            first.sync(tokens)
            first.compute()
        with model.session() as second:
            assert second.sync(tokens).reused >= 32             # what the first has left in the cache
            assert np.array_equal(second.logits, want[-1])
            with second.fork() as twin:
                second.rewind(40)
                second.feed([1, 2, 3])
                second.compute()
                assert np.array_equal(twin.logits, want[-1])
            second.sync(tokens)
            assert np.array_equal(second.logits, want[-1])
        assert model.check()


@pytest.mark.parametrize("kv", ["q8", "q4"])
@pytest.mark.parametrize("name", ["gemma3", "gpt-oss", "qwen3moe", "lfm2", "qwen35", "gemma3n", "gemma4", "gemma4-moe"])
def test_sealed_formats_keep_the_bits(file_of, name, kv):
    path, tokens = file_of(name, "Q8_0"), golden_tokens()
    with open_case(path, name, kv=kv, threads=1) as model, model.session() as session:
        want = all_logits(session, tokens)
    with open_case(path, name, kv=kv, chunk=5, kv_cache="16MiB") as model:
        for _ in range(2):
            with model.session() as session:
                session.sync(tokens)
                assert np.array_equal(session.logits, want[-1])


# ---- windows

def test_a_window_group_stays_flat(tmp_path):
    """Blocks behind the window (and 256 tokens of slack) go back; the layers with full attention keep theirs."""
    tokens = (golden_tokens() * 10)[:480]
    path = CASES["gemma3"].write(tmp_path / "m.gguf")
    with Model.open(path, reuse=False) as model, model.session() as session:
        case, per_layer = CASES["gemma3"], 2 * 2 * CASES["gemma3"].n_kv_heads * CASES["gemma3"].head_dim
        sizes = []
        for end in (320, 400, 480):
            session.sync(tokens[:end])
            session.compute()
            sizes.append(model.memory.token_state + model.memory.internal)
        assert model.check()
    full, windowed = 1, case.n_layers - 1
    for end, size in zip((320, 400, 480), sizes):
        kept = min(end, case.window + 256 + 16)                 # and what remains of a block
        assert size <= per_layer * (full * end + windowed * kept)
    assert sizes[2] - sizes[1] <= per_layer * full * 80


@pytest.mark.parametrize("name", ["gpt-oss", "lfm2"])
def test_a_prefix_is_reused_across_its_window(tmp_path, name):
    """Of the layers with a window, or a running state, only the end is still there."""
    tokens = (golden_tokens() * 9)[:400]
    path = CASES[name].write(tmp_path / "m.gguf", "Q8_0")
    with Model.open(path, reuse=False) as model, model.session() as session:
        want = all_logits(session, tokens)
    with Model.open(path, kv_cache="16MiB") as model:
        with model.session() as first:
            first.sync(tokens)
            first.compute()
            assert np.array_equal(first.logits, want[-1])
            with model.session() as second:
                report = second.sync(tokens)
                assert report.reused >= 384
                assert np.array_equal(second.logits, want[-1])
                second.rewind(300)
                second.sync(tokens)
                assert np.array_equal(second.logits, want[-1])
                with second.fork() as twin:
                    twin.rewind(397)                            # inside a block
                    assert np.array_equal(twin.logits, want[396])
                    twin.feed(tokens[397:])
                    assert np.array_equal(twin.logits, want[-1])
            first.rewind(20)                                    # the windows before it are gone
            assert np.array_equal(first.logits, want[19])
        assert model.check()


def test_a_large_state_is_kept_less_often(tmp_path):
    """Every 64 tokens instead of every 16; what is found and gone back to follows from that, no bit does."""
    tokens = (golden_tokens() * 9)[:400]
    path = LARGE_STATE.write(tmp_path / "m.gguf", "Q8_0")
    with Model.open(path, reuse=False, threads=1) as model, model.session() as session:
        want = all_logits(session, tokens)
        recurrent, (_, heads, width, _) = LARGE_STATE.n_layers - 1, LARGE_STATE.delta
        state = recurrent * heads * width * width * 4
        assert 6 * state < model.memory.resident < 10 * state       # 400 tokens: 256 and a block before, of 64 each, and the open one
    with Model.open(path, kv_cache="16MiB", chunk=50, shuffle=True) as model:
        with model.session() as first:
            first.sync(tokens)
            assert np.array_equal(first.logits, want[-1])
            with model.session() as second:
                assert second.sync(tokens).reused == 384
                assert np.array_equal(second.logits, want[-1])
            first.rewind(200)
            report = first.sync(tokens[:260])
            assert (report.kept, report.reused) == (192, 64)        # its own, and what it left in the cache
            assert np.array_equal(first.logits, want[259])
        with model.session() as third:                              # the cache has blocks of 16, but no state between
            assert third.sync(tokens[:190]).reused == 128
            assert np.array_equal(third.logits, want[189])
        assert model.check()


@pytest.mark.parametrize("kv", ["f16", "q8"])
@pytest.mark.parametrize("case", [LARGE_STATE, CASES["lfm2"], CASES["gpt-oss"]], ids=lambda c: c.name)
def test_a_pinned_prefix_is_reused_to_its_last_token(tmp_path, case, kv):
    """Also where neither the index nor a running state has its end."""
    from pyllama_paged import PrefixStore

    tokens, n = (golden_tokens() * 4)[:150], 107
    path = case.write(tmp_path / "m.gguf", "Q8_0")
    store = PrefixStore(tmp_path / "store")
    with Model.open(path, reuse=False, kv=kv) as model, model.session() as session:
        want = all_logits(session, tokens)
    with Model.open(path, kv=kv) as model:
        model.prefix(text=tokens[:n], keep=True, store=store)
        for _ in range(2):
            with model.session() as session:
                assert session.sync(tokens).reused == n
                assert np.array_equal(session.logits, want[-1])
                session.save(tmp_path / "s.plpkv")
        assert model.check()
    with Model.open(path, kv=kv) as model:                          # from the file
        stored = model.prefix(text=tokens[:n], keep=True, store=store)
        assert stored.reused == n
        with model.session() as session:
            assert session.sync(tokens).reused == n
            assert np.array_equal(session.logits, want[-1])
        with model.resume(tmp_path / "s.plpkv") as session:
            assert np.array_equal(session.logits, want[-1])
            session.rewind(120)
            session.sync(tokens)
            assert np.array_equal(session.logits, want[-1])
        assert model.check()


# ---- what is refused, and how

def broken(tmp_path, case="qwen3", drop=(), extra=(), fields=(), reshape=None):
    """The case's file without, or with other, tensors and fields."""
    from dataclasses import replace

    class Broken(Case):
        def values(self):
            out = {name: value for name, value in super().values().items() if name not in drop}
            out |= {name: np.zeros(shape, np.float32) for name, shape in extra}
            return out | {name: np.zeros(shape, np.float32) for name, shape in (reshape or {}).items()}

    c = CASES[case]
    c = Broken(**{f: getattr(c, f) for f in Case.__dataclass_fields__})
    return replace(c, meta=(*c.meta, *fields)).write(tmp_path / "broken.gguf")


@pytest.mark.parametrize("case, change, message", [
    ("qwen3", dict(drop=["blk.1.attn_k_norm.weight"]), "tensor blk.1.attn_k_norm.weight is missing"),
    ("qwen3", dict(extra=[("blk.1.attn_gate.weight", (64, 64))]), "tensor blk.1.attn_gate.weight has no place in a qwen3 model"),
    ("qwen2moe", dict(reshape={"blk.0.ffn_up_exps.weight": (7, 32, 64)}), r"tensor blk.0.ffn_up_exps.weight is \[64, 32, 7, 1\]; \[64, 32, 8, 1\]"),
    ("mixtral-apart", dict(drop=["blk.1.ffn_down_exps.weight"]), "tensor blk.1.ffn_down.0.weight is missing"),
    ("gpt-oss", dict(drop=["blk.0.attn_sinks.weight"]), "tensor blk.0.attn_sinks.weight is missing"),
    ("phi3", dict(reshape={"blk.0.attn_qkv.weight": (96, 64)}), r"tensor blk.0.attn_qkv.weight is \[64, 96, 1, 1\]; \[64, 128, 1, 1\]"),
    ("qwen3moe", dict(fields=[("expert_gating_func", 4, V.UINT32)]), "expert_gating_func is 4"),
    ("lfm2", dict(reshape={"blk.0.shortconv.conv.weight": (64, 4)}), r"tensor blk.0.shortconv.conv.weight is \[4, 64, 1, 1\]; \[3, 64, 1, 1\]"),
    ("gemma3n", dict(drop=["blk.5.altup_router.weight"]), "tensor blk.5.altup_router.weight is missing"),
    ("gemma3n", dict(drop=["blk.0.laurel_l.weight"]), "tensor blk.0.laurel_l.weight is missing"),
    ("gemma3n", dict(reshape={"altup_proj.weight": (2, 64, 64)}), r"tensor altup_proj.weight is \[64, 64, 2, 1\]; \[64, 64, 3, 1\]"),
    ("gemma3n", dict(reshape={"blk.0.laurel_l.weight": (128, 64), "blk.0.laurel_r.weight": (64, 128)}), "laurel_l.weight has 128 rows; up to"),
    ("gemma3n", dict(fields=[("altup.num_inputs", 0, V.UINT32)]), "altup.num_inputs is missing or 0"),
    ("gemma3n", dict(fields=[("altup.num_inputs", 9, V.UINT32)]), "altup.num_inputs is 9; 1 to 8"),
    ("gemma3n", dict(fields=[("altup.active_idx", 4, V.UINT32)]), "altup.active_idx is 4; 0 to 3"),
    ("gemma3n", dict(fields=[("embedding_length_per_layer_input", 0, V.UINT32)]), "embedding_length_per_layer_input is missing or 0"),
    ("gemma3n", dict(fields=[("activation_sparsity_scale", [1.0] * 5, V.ARRAY)]), "activation_sparsity_scale is missing or has not an element for each of 6"),
    ("gemma3n", dict(fields=[("activation_sparsity_scale", [1.0] * 5 + [float("nan")], V.ARRAY)]), "activation_sparsity_scale: layer 5 has"),
    ("gemma4", dict(drop=["blk.3.attn_k.weight"]), "tensor blk.3.attn_k.weight is missing"),
    ("gemma4", dict(drop=["per_layer_token_embd.weight"]), "tensor per_layer_token_embd.weight is missing"),
    ("gemma4", dict(fields=[("attention.shared_kv_layers", 6, V.UINT32)]), "shared_kv_layers is 6; 0 to 5"),
    ("gemma4", dict(fields=[("attention.shared_kv_layers", 5, V.UINT32)]), "no layer before layer 1 has keys and values for it"),
    ("gemma4", dict(fields=[("attention.key_length_swa", 24, V.UINT32), ("attention.value_length_swa", 24, V.UINT32)]), "heads of 24 dimensions"),
    ("gemma4", dict(fields=[("attention.key_length_swa", 32, V.UINT32)]), "keys of 32 dimensions and values of 16"),
    ("gemma4", dict(fields=[("rope.dimension_count_swa", 64, V.UINT32)]), "64 rotated dimensions of a head of 16"),
    ("gemma4", dict(fields=[("feed_forward_length", [96, 96, 96], V.ARRAY)]), "feed_forward_length has 3 elements for 6 layers"),
    ("gemma4", dict(fields=[("feed_forward_length", [96, 96, 96, 96, -1, 192], V.ARRAY)]), "feed_forward_length: layer 4 has -1; 0 to"),
    ("gemma4", dict(fields=[("attention.head_count_kv", [2, 2, 1, 2, 2, 2], V.ARRAY)]), "head_count_kv: layer 2 has 1, others with the same window have 2"),
    ("gemma4", dict(fields=[("embedding_length_per_layer_input", 1 << 20, V.UINT32)]), "embedding_length_per_layer_input is 1048576; 0 to"),
    ("gemma4-moe", dict(drop=["blk.1.ffn_gate_inp.scale"]), "tensor blk.1.ffn_gate_inp.scale is missing"),
    ("qwen35", dict(drop=["blk.0.ssm_a"]), "tensor blk.0.ssm_a is missing"),
    ("qwen35", dict(reshape={"blk.1.ssm_dt.bias": (5,)}), r"tensor blk.1.ssm_dt.bias is \[5, 1, 1, 1\]; \[4, 1, 1, 1\]"),
    ("qwen35", dict(fields=[("ssm.conv_kernel", 0, V.UINT32)]), "ssm.conv_kernel is missing or 0"),
    ("qwen35", dict(fields=[("ssm.conv_kernel", 9, V.UINT32)]), "ssm.conv_kernel is 9; 1 to 8"),
    ("qwen35", dict(fields=[("ssm.state_size", 24, V.UINT32)]), "ssm.state_size is 24; multiples of 16 up to 256"),
    ("qwen35", dict(fields=[("ssm.state_size", 1 << 20, V.UINT32)]), "ssm.state_size is 1048576; 1 to 256"),
    ("qwen35", dict(fields=[("ssm.group_count", 0, V.UINT32)]), "ssm.group_count is missing or 0"),
    ("qwen35", dict(fields=[("ssm.group_count", 3, V.UINT32)]), "ssm.time_step_rank is 4: that many value heads do not share 3 key heads"),
    ("qwen35", dict(fields=[("ssm.inner_size", 128, V.UINT32)]), "ssm.inner_size is 128; 4 value heads as wide as keys, 16, are run"),
    ("qwen35", dict(fields=[("full_attention_interval", 5, V.UINT32)]), "no layer attends"),
    ("qwen35", dict(fields=[("full_attention_interval", 0, V.UINT32)]), "full_attention_interval is 0"),
    ("qwen35", dict(fields=[("nextn_predict_layers", 4, V.UINT32)]), "nextn_predict_layers is 4; 0 to 3"),
    ("qwen35", dict(fields=[("ssm.state_size", 256, V.UINT32), ("ssm.time_step_rank", 1024, V.UINT32), ("ssm.inner_size", 1 << 18, V.UINT32),
                            ("block_count", 1024, V.UINT32)]), "the running state of 768 layers is .* bytes each"),
    ("qwen3moe", dict(fields=[("expert_weights_scale", -1.0, V.FLOAT32)]), "expert_weights_scale is -1"),
    ("granite", dict(fields=[("final_logit_softcapping", -3.0, V.FLOAT32)]), "final_logit_softcapping is -3"),
    ("gemma2", dict(fields=[("attention.sliding_window_pattern", [True], V.ARRAY)]), "sliding_window_pattern has 1 elements for 2 layers"),
])
def test_odd_files_are_refused_by_name(tmp_path, case, change, message):
    with pytest.raises((ModelFileError, UnsupportedModel), match=message):
        Model.open(broken(tmp_path, case, **change))


def test_layers_that_draft_further_tokens_are_left_out(tmp_path, file_of):
    """Files count them in block_count and name them blk.<n>, behind the others."""
    n = CASES["qwen35"].n_layers
    path = broken(tmp_path, "qwen35", extra=[(f"blk.{n}.nextn.eh_proj.weight", (64, 128)), (f"blk.{n}.attn_norm.weight", (64,))],
                  fields=[("block_count", n + 1, V.UINT32), ("nextn_predict_layers", 1, V.UINT32)])
    with Model.open(path) as model, Model.open(file_of("qwen35")) as plain:
        assert model.info.n_layers == plan.of_file(path).layers == n
        assert np.array_equal(model.logits(golden_tokens()), plain.logits(golden_tokens()))


@pytest.mark.parametrize("name", [*CASES, LARGE_STATE.name])
def test_a_plan_is_what_a_session_holds(name, tmp_path, file_of):
    """To the byte, in each format: windows, running states, borrowed keys and heads by window included."""
    path = LARGE_STATE.write(tmp_path / "large.gguf", "F32") if name == LARGE_STATE.name else file_of(name)
    shape = plan.of_file(path)
    far = [n for n in (300, 700) if any(g.window for g in shape.groups)]
    for kv in plan.FORMATS:
        with Model.open(path, kv=kv, threads=1, context=1024, reuse=False) as model, model.session() as session:
            assert shape.layers == model.info.n_layers and shape.context == model.info.context_train
            assert sum(int(g.block_bytes[0] / g.block_len) for g in shape.groups) == model.info.kv_bytes_per_token
            for n in (1, 16, 17, 40, *(far if kv == "q8" else ())):
                session.feed([3] * (n - len(session)))
                session.compute()
                ledger = model.memory
                assert ledger.token_state + ledger.reserved == plan.held_bytes(shape, kv, n), (kv, n)


def test_an_unknown_architecture_is_refused_with_the_list(tmp_path):
    from dataclasses import replace
    path = replace(CASES["qwen2"], arch="mamba").write(tmp_path / "m.gguf")
    with pytest.raises(UnsupportedModel) as e:
        Model.open(path)
    assert '"mamba"' in str(e.value)
    for name in supported():
        assert name in str(e.value)
