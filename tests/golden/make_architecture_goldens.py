"""
The truth for tests/python/test_architectures.py: top-64 log-probabilities by transformers in fp32.

    python tests/golden/make_architecture_goldens.py [case ...]

Needs torch, transformers, gguf and numpy, best in an environment of their own; the tests need none of it.
Weights come from models/architectures.py in the layout of a GGUF file and are brought back to
transformers' names and layout here, names by gguf-py's own map, so that a wrong name or permutation on
either side shows as a wrong result. Every parameter of the transformers model is set, and every tensor
of the file is used, or this stops.
"""
import json
import re
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
from models.architectures import CASES, golden_tokens                      # noqa: E402

OUT = ROOT / "tests" / "golden" / "architectures"
POSITIONS = range(2, 48, 3)
TOP = 64
# Names that newer versions of transformers gave to what the checkpoints, and so gguf-py's map, call otherwise.
RENAMES = {"block_sparse_moe.router.weight": "block_sparse_moe.router.layer.weight", "self_attn.sinks": "self_attn.sinks.weight",
           "feed_forward.expert_bias": "feed_forward.expert_bias.bias", "linear_attn.dt_bias": "linear_attn.dt_proj.bias",
           "layer_scalar": "layer_scalar.weight", "altup.correct_output_scale": "altup.correct_output_scale.weight"}
# Those that converters name themselves.
DIRECT = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
RENAMED = re.compile("|".join(re.escape(name) + "$" for name in RENAMES))


def unpair(value, n_heads):
    """Rows of q or k from pairwise order back to halves."""
    rest = value.shape[1:]
    return value.reshape(n_heads, value.shape[0] // n_heads // 2, 2, *rest).swapaxes(1, 2).reshape(value.shape)


def group_value_heads(case, name, value):
    """A delta net's value heads from the file's order, one of each key head, to transformers': those of a key head together."""
    k_heads, v_heads, width, _ = case.delta
    axis = 1 if "out_proj" in name else 0
    before = 2 * k_heads * width if "in_proj_qkv" in name or "conv1d" in name else 0
    value = np.moveaxis(value, axis, 0)
    rest, heads = value[:before], value[before:]
    heads = heads.reshape(v_heads // k_heads, k_heads, -1, *heads.shape[1:]).swapaxes(0, 1).reshape(heads.shape)
    return np.moveaxis(np.concatenate([rest, heads]), 0, axis)


def fused_experts(case, tensors, layer):
    """The experts of one layer as transformers stacks them."""
    def take(part, kind="weight"):
        return tensors.pop(f"blk.{layer}.ffn_{part}_exps.{kind}")
    if case.hf == "gpt_oss":        # [expert][in][out], gate and up alternating
        def alternate(gate, up):
            return np.stack([gate, up], axis=2).reshape(gate.shape[0], -1, *gate.shape[2:])
        both = alternate(take("gate"), take("up"))
        return {"gate_up_proj": both.swapaxes(1, 2), "down_proj": take("down").swapaxes(1, 2),
                "gate_up_proj_bias": alternate(take("gate", "bias"), take("up", "bias")), "down_proj_bias": take("down", "bias")}
    return {"gate_up_proj": np.concatenate([take("gate"), take("up")], axis=1), "down_proj": take("down")}


def state_dict(case, model):
    """transformers' parameter names -> values, from the file's tensors."""
    tensors = {name: value for name, value in case.values().items() if not name.startswith("rope_")}
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == case.arch), case.n_layers)
    experts, out = {}, {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and case.tied:
            continue
        found = re.match(r"(.*layers\.(\d+)\..*experts\.)(\w+)$", name)
        if found and "shared" not in name:
            layer = int(found[2])
            if layer not in experts:
                experts[layer] = fused_experts(case, tensors, layer)
            value = experts[layer].pop(found[3])
        elif stacked := re.search(r"altup_(un)?(?:embed_)?projections\.(\d)\.weight$", name):
            part = f"altup_{'unembd_' if stacked[1] else ''}proj.weight"
            value = case.values()[part][int(stacked[2])]
            tensors.pop(part, None)
        elif name.endswith("shared_mlp.input_linear.weight"):
            layer = int(re.search(r"layers\.(\d+)\.", name)[1])
            value = np.concatenate([tensors.pop(f"blk.{layer}.ffn_{part}_shexp.weight") for part in ("gate", "up")])
        else:
            direct = re.match(r".*layers\.(\d+)\.(router\..*scale)$", name)
            mapped = f"blk.{direct[1]}.{DIRECT[direct[2]]}" if direct else names.get_name(RENAMED.sub(lambda m: RENAMES[m[0]], name), try_suffixes=(".weight", ".bias"))
            if mapped is None:
                raise KeyError(f"gguf-py knows no name for {name}")
            value = tensors.pop(mapped)
            if case.paired and re.search(r"\.[qk]_proj\.", name):
                value = unpair(value, case.n_heads if ".q_proj." in name else case.n_kv_heads)
            if "linear_attn" in name and "linear_attn.norm" not in name:
                value = group_value_heads(case, name, value)
            if name.endswith("A_log"):
                value = np.log(-value)
            if case.plus_one and "norm" in name and "linear_attn.norm" not in name:
                value = value - np.float32(1)
        value = torch.from_numpy(np.ascontiguousarray(value)).reshape(parameter.shape)
        if value.numel() != parameter.numel():
            raise ValueError(f"{name}: {tuple(value.shape)} for {tuple(parameter.shape)}")
        out[name] = value
    if tensors:
        raise ValueError(f"{case.name}: transformers has no place for {', '.join(tensors)}")
    return out


def build(case):
    kwargs = case.hf_config()
    if case.longrope:
        values = case.values()
        kwargs["original_max_position_embeddings"] = case.longrope[0]
        kwargs["rope_parameters"] = dict(
            rope_type="longrope", rope_theta=case.rope_base, partial_rotary_factor=case.n_rot / case.head_dim,
            original_max_position_embeddings=case.longrope[0], attention_factor=case.longrope[1],
            long_factor=values["rope_factors_long.weight"].tolist(), short_factor=values["rope_factors_short.weight"].tolist())
    config = transformers.AutoConfig.for_model(case.hf, **kwargs)
    config._attn_implementation = "eager"           # soft caps and sinks, in fp32, no fused kernels
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    missing, unexpected = model.load_state_dict(state_dict(case, model), strict=False)
    if unexpected or set(missing) - ({"lm_head.weight"} if case.tied else set()):
        raise ValueError(f"{case.name}: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model


def make(case):
    tokens = golden_tokens()
    with torch.no_grad():
        logits = build(case)(torch.tensor([tokens])).logits[0].double()
    logprobs = torch.log_softmax(logits, dim=-1)[list(POSITIONS)]
    top = torch.topk(logprobs, TOP, dim=-1)
    provenance = dict(case=case.name, transformers=transformers.__version__, torch=torch.__version__, numpy=np.__version__,
                      model=case.hf, weights=case.digest())
    np.savez_compressed(OUT / f"{case.name}.npz", tokens=np.array(tokens, np.uint16), positions=np.array(POSITIONS, np.uint8),
                        ids=top.indices.numpy().astype(np.uint16), logprobs=top.values.numpy().astype(np.float32),
                        provenance=np.array(json.dumps(provenance)))
    print(f"{case.name}: entropy {-(logprobs.exp() * logprobs).sum(-1).mean():.2f} nats")


def main():
    OUT.mkdir(exist_ok=True)
    failed = 0
    for name in sys.argv[1:] or CASES:
        try:
            make(CASES[name])
        except Exception as e:
            failed += 1
            print(f"{name}: {type(e).__name__}: {e}", file=sys.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    main()
