"""
A tiny model of every supported architecture, with random weights, for comparison with transformers.

    python -m models.architectures gemma3 -o gemma3.gguf --type Q8_0

A case says three things about one model: how it is built (its shape and which parts it has), what a GGUF
file calls that (metadata, names and layout as the usual converters write them), and the configuration
with which transformers builds the same model. The weights come from the case's name through PCG64's raw
stream, which numpy keeps stable for ever; this file needs only numpy and gguf. The truth computed by
transformers lies in tests/golden/architectures, made by tests/golden/make_architecture_goldens.py.

Matrices are [rows, k] here and in transformers' Linear; GGUF's dimensions are the reverse.
"""
import argparse
import hashlib
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np
from gguf import GGMLQuantizationType as Type, GGUFValueType as V, GGUFWriter
from gguf.quants import dequantize, quantize

from .blocks import block_len
from .vocabs import byte_vocab

U, F, A = V.UINT32, V.FLOAT32, V.ARRAY
ELEMENT = {bool: V.BOOL, int: V.INT32, float: F}       # of an array
N_VOCAB = 300
CONTEXT = 512
N_TOKENS = 48                       # of the golden sequence: longer than every window here


@dataclass(frozen=True)
class Case:
    name: str
    arch: str                       # general.architecture
    hf: str                         # transformers' model_type
    config: dict = field(default_factory=dict)      # what transformers is told beyond the shape
    meta: tuple = ()                # (key after the architecture, value, type): what the file says beyond the shape
    n_layers: int = 2
    n_embd: int = 64
    n_ff: int = 96
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    n_rot: int = 0                  # 0: the whole head
    rope_base: float = 10000.0
    eps: float = 1e-5
    tied: bool = False
    norms: str = "pre"              # pre, post, both
    layer_norm: bool = False
    qk_norm: str = ""               # head, whole
    ffn_norm: str = "ffn_norm"
    biases: tuple = ()              # qkv, output, ffn
    fused: tuple = ()               # qkv, ffn
    plain_mlp: bool = False
    sinks: bool = False
    n_experts: int = 0
    n_chosen: int = 0
    n_ff_expert: int = 32
    n_ff_shared: int = 0
    shared_gate: bool = False
    experts_apart: bool = False     # a tensor for each expert, as early converters wrote them
    expert_type: str = ""           # the experts' tensor type, whatever the file's: values are representable in it
    choice_bias: bool = False       # added to the experts' scores for choosing
    n_dense: int = 0                # first layers without experts
    conv_layers: tuple = ()         # layers with a short convolution instead of attention
    conv_len: int = 3
    delta: tuple = ()               # gated delta nets in most layers: key heads, value heads, their width, conv_len
    full_every: int = 0             # of those: every n-th layer attends, with a gate for what is attended
    final_norm: str = "output_norm"
    window: int = 0
    windowed: tuple = ()            # by layer, where the heads depend on it:
    window_heads: tuple = ()        # KV heads and head_dim of windowed layers
    keys_as_values: bool = False    # layers that see everything have no values of their own
    n_borrowing: int = 0            # last layers without keys and values of their own
    n_embd_layer: int = 0           # width of a token's input for each layer
    n_ff_borrowing: int = 0         # feed-forward of those last layers, where it is another
    out_scale: bool = False         # a factor on each layer's result
    beside: bool = False            # experts beside the dense feed-forward
    n_partial: int = 0              # rotated dimensions of a full layer's head: the others' divisor is 1e30
    n_streams: int = 0              # residual streams, where there are several
    low_rank: int = 0               # of the step beside attention that comes with them
    sparsity: tuple = ()            # by layer: the share of the feed-forward's gate that is cut off, 0: nothing
    embed_std: float = 1.0
    paired: bool = False            # q and k rows lie pairwise, (0, n/2), (1, n/2 + 1) ...: rotations of neighbours
    plus_one: bool = False          # transformers' norms multiply by 1 + w; files hold the sum
    llama3: tuple = ()              # factor, low, high, original context
    longrope: tuple = ()            # original context, attention factor
    context_limit: int = 0          # to open it with

    # ---- tensors

    @cached_property
    def shapes(self):
        """Every tensor in file order: name -> shape."""
        d = self.n_embd
        out = {"token_embd.weight": (N_VOCAB, d)}
        if p := self.n_embd_layer:
            out |= {"per_layer_token_embd.weight": (N_VOCAB, self.n_layers * p), "per_layer_model_proj.weight": (self.n_layers * p, d),
                    "per_layer_proj_norm.weight": (p,)}
        if self.n_streams:
            out |= {f"altup_{name}.weight": (self.n_streams - 1, d, d) for name in ("proj", "unembd_proj")}
        for i in range(self.n_layers):
            layer = {"attn_norm.weight": (d,)} if self.norms != "post" else {}
            if self.delta and (i + 1) % self.full_every:
                layer |= self._delta_net()
            elif i in self.conv_layers:
                layer |= {"shortconv.conv.weight": (d, self.conv_len), "shortconv.in_proj.weight": (3 * d, d),
                          "shortconv.out_proj.weight": (d, d)}
            else:
                layer |= self._attention(i)
            if self.norms != "pre":
                layer["post_attention_norm.weight"] = (d,)
            if self.norms != "post":
                layer[f"{self.ffn_norm}.weight"] = (d,)
            layer |= self._feed_forward(i)
            if self.norms != "pre":
                layer["post_ffw_norm.weight"] = (d,)
            if self.n_embd_layer:
                layer |= {"inp_gate.weight": (p, d), "proj.weight": (d, p), "post_norm.weight": (d,)}
            if self.n_streams:
                layer |= self._streams()
            if self.out_scale:
                layer["layer_output_scale.weight"] = (1,)
            if self.layer_norm:
                layer |= {"attn_norm.bias": (d,), "ffn_norm.bias": (d,)}
            out |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
        out[f"{self.final_norm}.weight"] = (d,)
        if self.layer_norm:
            out["output_norm.bias"] = (d,)
        if not self.tied:
            out["output.weight"] = (N_VOCAB, d)
        return out

    def _delta_net(self):
        """
        Converters store -exp(A_log) as ssm_a, the convolution as [channel][tap] and, where value heads outnumber key
        heads, the value heads in the order 0 of each key head, 1 of each key head, ...: head h goes with h % key heads.
        """
        k_heads, v_heads, width, conv_len = self.delta
        d, values, channels = self.n_embd, v_heads * width, (2 * k_heads + v_heads) * width
        return {"attn_qkv.weight": (channels, d), "attn_gate.weight": (values, d), "ssm_conv1d.weight": (channels, conv_len),
                "ssm_dt.bias": (v_heads,), "ssm_a": (v_heads,), "ssm_beta.weight": (v_heads, d), "ssm_alpha.weight": (v_heads, d),
                "ssm_norm.weight": (width,), "ssm_out.weight": (d, values)}

    def _attention(self, layer):
        windowed = bool(self.windowed) and self.windowed[layer]
        n_kv_heads, head_dim = windowed and self.window_heads or (self.n_kv_heads, self.head_dim)
        d, nq, nkv = self.n_embd, self.n_heads * head_dim, n_kv_heads * head_dim
        if "qkv" in self.fused:
            out = {"attn_qkv.weight": (nq + 2 * nkv, d)}
        else:
            out = {"attn_q.weight": (2 * nq if self.full_every else nq, d), "attn_k.weight": (nkv, d), "attn_v.weight": (nkv, d)}
        out["attn_output.weight"] = (d, nq)
        if "qkv" in self.biases:
            out |= {"attn_q.bias": (nq,), "attn_k.bias": (nkv,), "attn_v.bias": (nkv,)}
        if "output" in self.biases:
            out["attn_output.bias"] = (d,)
        if self.qk_norm:
            whole = self.qk_norm == "whole"
            out |= {"attn_q_norm.weight": (nq if whole else head_dim,), "attn_k_norm.weight": (nkv if whole else head_dim,)}
        if self.keys_as_values and not windowed:
            del out["attn_v.weight"]
        if layer >= self.n_layers - self.n_borrowing:
            out = {name: shape for name, shape in out.items() if not name.startswith(("attn_k", "attn_v"))}
        if self.sinks:
            out["attn_sinks.weight"] = (self.n_heads,)
        return out

    def _feed_forward(self, layer):
        d, ff, e = self.n_embd, self._n_ff(layer), self.n_experts
        if self.beside:
            experts = {f"ffn_{part}_exps.weight": (e, *dims) for part, dims in _gated(d, self.n_ff_expert).items()}
            norms = {f"{name}.weight": (d,) for name in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2")}
            return {f"ffn_{part}.weight": dims for part, dims in _gated(d, ff).items()} | experts | norms | {
                "ffn_gate_inp.weight": (e, d), "ffn_gate_inp.scale": (d,), "ffn_down_exps.scale": (e,)}
        if e and layer >= self.n_dense:
            out = {"ffn_gate_inp.weight": (e, d)}
            if self.choice_bias:
                out["exp_probs_b.bias"] = (e,)
            out |= {f"ffn_{part}_exps.weight": (e, *dims) for part, dims in _gated(d, self.n_ff_expert).items()}
            if "ffn" in self.biases:
                out["ffn_gate_inp.bias"] = (e,)
                out |= {f"ffn_{part}_exps.bias": (e, dims[0]) for part, dims in _gated(d, self.n_ff_expert).items()}
            if self.n_ff_shared:
                out |= {f"ffn_{part}_shexp.weight": dims for part, dims in _gated(d, self.n_ff_shared).items()}
            if self.shared_gate:
                out["ffn_gate_inp_shexp.weight"] = (d,)
            return out
        parts = _gated(d, ff)
        if self.plain_mlp or "ffn" in self.fused:
            del parts["gate"]
        if "ffn" in self.fused:
            parts["up"] = (2 * ff, d)
        out = {f"ffn_{part}.weight": dims for part, dims in parts.items()}
        if "ffn" in self.biases:
            out |= {f"ffn_{part}.bias": dims[:1] for part, dims in parts.items()}
        return out

    def _streams(self):
        d, s, r = self.n_embd, self.n_streams, self.low_rank
        return {"altup_router.weight": (s, d), "altup_router_norm.weight": (d,), "altup_predict_coef.weight": (s * s, s),
                "altup_correct_coef.weight": (s, s), "altup_correct_scale.weight": (d,),
                "laurel_l.weight": (r, d), "laurel_r.weight": (d, r), "laurel_post_norm.weight": (d,)}

    def _n_ff(self, layer):
        return self.n_ff_borrowing if self.n_ff_borrowing and layer >= self.n_layers - self.n_borrowing else self.n_ff

    def values(self):
        """name -> float32 array, the same on every machine."""
        return {name: self._value(name, shape) for name, shape in self.shapes.items()} | self._rope_tensors()

    def _value(self, name, shape):
        part = name.removesuffix(".weight")
        size = math.prod(shape)
        if name.endswith("exp_probs_b.bias"):           # wider than the scores' spread: the choice is no matter of rounding
            return _uniform(self.name, name, size, -1, 1).reshape(shape)
        if name.endswith(".bias"):
            return _uniform(self.name, name, size, -0.5, 0.5).reshape(shape)
        if name.endswith("ffn_gate_inp.scale"):         # what it multiplies is divided by sqrt(n_embd)
            return _uniform(self.name, name, size, 0.5, 1.5) * np.float32(math.sqrt(self.n_embd))
        if part.endswith("ssm_a"):      # from a state that hardly decays to one that is soon forgotten
            return _uniform(self.name, name, size, -1, -0.01)
        if "norm" in part or part.endswith("scale"):
            return _uniform(self.name, name, size, 0.5, 1.5).reshape(shape)
        if name == "token_embd.weight":
            std = self.embed_std
        elif part.endswith("sinks"):
            std = 1
        elif part.endswith("altup_router"):             # what it multiplies is divided by n_embd
            std = math.sqrt(self.n_embd)
        elif "in_proj" in part:     # three of its outputs are multiplied
            std = 0.5 / math.sqrt(shape[-1])
        elif "gate_inp" in part:    # spread, so that the choice of experts is no matter of rounding; sigmoids are close by
            std = (0.5 if self.choice_bias else 2) / math.sqrt(shape[-1])
        else:                       # a product of a normalised row has values of about 1, a logit of about 2
            std = (2 if name == "output.weight" else 1) / math.sqrt(shape[-1])
        out = _uniform(self.name, name, size, -std * math.sqrt(3), std * math.sqrt(3)).reshape(shape)
        if self.expert_type and "_exps" in part:
            out = dequantize(quantize(out, Type[self.expert_type]), Type[self.expert_type]).reshape(shape).astype(np.float32)
        return out

    def _rope_tensors(self):
        n = self.n_rot or self.head_dim
        if self.n_partial:
            return {"rope_freqs.weight": np.array([1] * (self.n_partial // 2) + [1e30] * ((n - self.n_partial) // 2), np.float32)}
        if self.llama3:
            return {"rope_freqs.weight": llama3_divisors(self.rope_base, n, *self.llama3)}
        if self.longrope:
            half = n // 2
            return {f"rope_factors_{kind}.weight": _uniform(self.name, kind, half, 1, most).round(3).astype(np.float32)
                    for kind, most in (("long", 8), ("short", 1.5))}
        return {}

    def digest(self):
        """Of the weights: a golden belongs to exactly these."""
        h = hashlib.sha256()
        for name, value in sorted(self.values().items()):
            h.update(name.encode())
            h.update(np.ascontiguousarray(value).tobytes())
        return h.hexdigest()

    # ---- the file

    def fields(self):
        """Metadata as (key, value, type)."""
        out = [
            ("block_count", self.n_layers, V.UINT32), ("context_length", CONTEXT, V.UINT32),
            ("embedding_length", self.n_embd, V.UINT32),
            ("attention.head_count", self.n_heads, V.UINT32),
            ("attention.key_length", self.head_dim, V.UINT32), ("attention.value_length", self.head_dim, V.UINT32),
            ("rope.dimension_count", self.n_rot or self.head_dim, V.UINT32), ("rope.freq_base", self.rope_base, V.FLOAT32),
            (f"attention.layer_norm_{'' if self.layer_norm else 'rms_'}epsilon", self.eps, V.FLOAT32),
            ("vocab_size", N_VOCAB, V.UINT32),
        ]
        if self.n_ff_borrowing:
            out.append(("feed_forward_length", [self._n_ff(i) for i in range(self.n_layers)], V.ARRAY))
        else:
            out.append(("feed_forward_length", self.n_ff, V.UINT32))
        if self.windowed:
            out += [("attention.sliding_window_pattern", list(self.windowed), V.ARRAY),
                    ("attention.shared_kv_layers", self.n_borrowing, V.UINT32),
                    ("embedding_length_per_layer_input", self.n_embd_layer, V.UINT32)]
        if self.n_streams:
            out += [("altup.num_inputs", self.n_streams, V.UINT32), ("altup.active_idx", 0, V.UINT32),
                    ("activation_sparsity_scale", [NormalDist().inv_cdf(s) if s else -math.inf for s in self.sparsity], V.ARRAY)]
        n_kv = self.n_kv_heads
        if self.window_heads:
            n_kv, head_dim = self.window_heads
            out += [(f"{key}_swa", head_dim, V.UINT32) for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")]
        if n_kv != self.n_kv_heads:
            out.append(("attention.head_count_kv", [n_kv if w else self.n_kv_heads for w in self.windowed], V.ARRAY))
        elif self.conv_layers:
            out.append(("attention.head_count_kv", [0 if i in self.conv_layers else self.n_kv_heads for i in range(self.n_layers)], V.ARRAY))
            out.append(("shortconv.l_cache", self.conv_len, V.UINT32))
        else:
            out.append(("attention.head_count_kv", self.n_kv_heads, V.UINT32))
        if self.delta:
            k_heads, v_heads, width, conv_len = self.delta
            out += [("ssm.conv_kernel", conv_len, V.UINT32), ("ssm.state_size", width, V.UINT32), ("ssm.group_count", k_heads, V.UINT32),
                    ("ssm.time_step_rank", v_heads, V.UINT32), ("ssm.inner_size", v_heads * width, V.UINT32),
                    ("full_attention_interval", self.full_every, V.UINT32)]
        if self.window:
            out.append(("attention.sliding_window", self.window, V.UINT32))
        if self.n_experts:
            out += [("expert_count", self.n_experts, V.UINT32), ("expert_used_count", self.n_chosen, V.UINT32)]
        return [(f"{self.arch}.{key}", value, kind) for key, value, kind in [*out, *self.meta]]

    def tensor_type(self, name, value, kind, experts=""):
        if value.ndim == 1 or name.endswith(".bias"):
            return "F32"
        if "_exps" in name and (experts or self.expert_type):
            return experts or self.expert_type
        unquantised = ("gate_inp", "shortconv.conv.", "ssm_conv1d", "_coef.")
        return "F32" if any(part in name for part in unquantised) else kind

    def _in_file(self):
        """(name, value) of each tensor."""
        for name, value in self.values().items():
            if self.experts_apart and "_exps." in name:
                yield from ((name.replace("_exps.", f".{i}."), expert) for i, expert in enumerate(value))
            else:
                yield name, value

    def write(self, path, kind="F32", experts="", rounded=""):
        """`experts`: another type for them than this case's, which holds the same values; `rounded`: values that this kind could hold."""
        w = GGUFWriter(path, self.arch)
        w.add_name(self.name)
        for key, value, value_type in self.fields():
            element = ELEMENT[type(value[0])] if value_type == V.ARRAY else None
            w.add_key_value(key, value, value_type, sub_type=element)
        for key, value, value_type, element in byte_vocab(N_VOCAB).fields:
            if value != []:         # gguf-py cannot write an empty array
                w.add_key_value(key, value, value_type, sub_type=element)
        for name, value in self._in_file():
            if rounded and (of := self.tensor_type(name, value, rounded, experts)) != "F32":
                value = dequantize(quantize(value, Type[of]), Type[of]).reshape(value.shape)
            of = self.tensor_type(name, value, kind, experts)
            if value.shape[-1] % block_len(of):
                raise ValueError(f"{name}: rows of {value.shape[-1]} values are no whole blocks of {of}")
            data = quantize(value, Type[of])
            w.add_tensor(name, data, raw_dtype=Type[of])
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        return path

    # ---- transformers

    def hf_config(self):
        """Keyword arguments of the configuration class."""
        out = dict(
            vocab_size=N_VOCAB, hidden_size=self.n_embd, intermediate_size=self.n_ff, num_hidden_layers=self.n_layers,
            num_attention_heads=self.n_heads, num_key_value_heads=self.n_kv_heads, head_dim=self.head_dim,
            max_position_embeddings=CONTEXT, tie_word_embeddings=self.tied, rms_norm_eps=self.eps,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_base},
            pad_token_id=None, bos_token_id=None, eos_token_id=None)
        return out | self.config


def _gated(d, ff):
    return {"gate": (ff, d), "up": (ff, d), "down": (d, ff)}


def _uniform(case, name, n, low, high):
    """n float32 from [low, high): the upper 24 bits of PCG64's raw words."""
    seed = int.from_bytes(hashlib.sha256(f"{case}/{name}".encode()).digest()[:8], "little")
    unit = (np.random.PCG64(seed).random_raw(n) >> np.uint64(40)).astype(np.float64) / 2**24
    return (low + (high - low) * unit).astype(np.float32)


def llama3_divisors(base, n_rot, factor, low, high, original):
    """Llama 3's rule as divisors of the plain frequencies, one per rotated pair."""
    out = []
    for i in range(n_rot // 2):
        turns = original / (2 * math.pi * base ** (2 * i / n_rot))      # over the original context
        smooth = min(max((turns - low) / (high - low), 0), 1)
        out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


def golden_tokens():
    """The sequence that every golden is computed for."""
    return (_uniform("golden", "tokens", N_TOKENS, 0, N_VOCAB)).astype(int).tolist()


def _rope(base, **more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base} | more}


def _layer_types(n, full_every):
    return ["full_attention" if full_every and (i + 1) % full_every == 0 else "sliding_attention" for i in range(n)]


GEMMA = dict(tied=True, eps=1e-6, plus_one=True, embed_std=0.125, head_dim=32)
GEMMA4 = dict(tied=True, eps=1e-6, embed_std=0.125, head_dim=32, norms="both", qk_norm="head", window=16, rope_base=1e6)
GEMMA4_CONFIG = dict(head_dim=16, num_key_value_heads=2, sliding_window=16, final_logit_softcapping=3.0, vocab_size_per_layer_input=N_VOCAB,
                     rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=10000.0),
                                          full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1e6)))
QWEN35 = dict(n_layers=4, tied=True, embed_std=0.25, eps=1e-6, rope_base=1e7, head_dim=32, n_rot=8, plus_one=True, qk_norm="head",
              ffn_norm="post_attention_norm", delta=(2, 4, 16, 4), full_every=4)
QWEN35_CONFIG = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
                     linear_conv_kernel_dim=4, full_attention_interval=4, **_rope(1e7, partial_rotary_factor=0.25, mrope_section=[2, 1, 1]))
QWEN35_META = (("rope.dimension_sections", [2, 1, 1, 0], A),)
LFM2 = dict(n_layers=4, tied=True, embed_std=0.25, qk_norm="head", rope_base=1e6, final_norm="token_embd_norm")
LONGROPE = dict(fused=("qkv", "ffn"), n_rot=8)
LONGROPE_FACTOR = 1.25
MOE = dict(n_experts=8, n_chosen=2)
GRANITE = dict(embedding_multiplier=3.0, attention_multiplier=0.4, residual_multiplier=0.7, logits_scaling=0.8)
GRANITE_META = (("embedding_scale", 3.0, F), ("attention.scale", 0.4, F), ("residual_scale", 0.7, F), ("logit_scale", 0.8, F))
GPT_OSS = dict(
    arch="gpt-oss", hf="gpt_oss", n_layers=2, head_dim=32, n_heads=4, n_kv_heads=2, rope_base=150000.0, window=16, sinks=True,
    biases=("qkv", "output", "ffn"), ffn_norm="post_attention_norm", n_ff=64, n_ff_expert=64, n_experts=8, n_chosen=4,
    config=dict(num_local_experts=8, num_experts_per_tok=4, sliding_window=16, layer_types=["sliding_attention", "full_attention"],
                rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0,
                                     truncate=False, original_max_position_embeddings=128)),
    meta=(("rope.scaling.type", "yarn", V.STRING), ("rope.scaling.factor", 32.0, F),
          ("rope.scaling.original_context_length", 128, U), ("expert_feed_forward_length", 64, U)))

CASES = {c.name: c for c in (
    Case("llama", "llama", "llama", paired=True, rope_base=500.0, llama3=(8.0, 1.0, 4.0, 64),
         config=dict(rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
                                          high_freq_factor=4.0, original_max_position_embeddings=64))),
    Case("llama-biases", "llama", "llama", paired=True, tied=True, embed_std=0.25, biases=("qkv", "output", "ffn"),
         config=dict(attention_bias=True, mlp_bias=True)),
    Case("mistral-window", "llama", "mistral", paired=True, window=16, head_dim=32, config=dict(sliding_window=16)),
    Case("mixtral", "llama", "mixtral", paired=True, n_ff_expert=96, **MOE,
         config=dict(num_local_experts=8, num_experts_per_tok=2, sliding_window=None)),
    Case("mixtral-apart", "llama", "mixtral", paired=True, n_ff_expert=96, experts_apart=True, **MOE,
         config=dict(num_local_experts=8, num_experts_per_tok=2, sliding_window=None)),
    Case("qwen2", "qwen2", "qwen2", tied=True, embed_std=0.25, biases=("qkv",), eps=1e-6),
    Case("qwen2moe", "qwen2moe", "qwen2_moe", biases=("qkv",), eps=1e-6, n_ff_shared=64, shared_gate=True, n_experts=8, n_chosen=3,
         config=dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, shared_expert_intermediate_size=64,
                     norm_topk_prob=False),
         meta=(("expert_feed_forward_length", 32, U), ("expert_shared_feed_forward_length", 64, U))),
    Case("qwen3", "qwen3", "qwen3", tied=True, embed_std=0.25, qk_norm="head", head_dim=32, eps=1e-6, rope_base=1e6),
    Case("qwen3moe", "qwen3moe", "qwen3_moe", qk_norm="head", head_dim=32, eps=1e-6, n_experts=8, n_chosen=3,
         config=dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True),
         meta=(("expert_feed_forward_length", 32, U),)),
    Case("gemma", "gemma", "gemma", **GEMMA, n_kv_heads=1),
    Case("gemma2", "gemma2", "gemma2", **GEMMA, norms="both", window=16,
         config=dict(sliding_window=16, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=32,
                     attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
         meta=(("attn_logit_softcapping", 2.0, F), ("final_logit_softcapping", 3.0, F))),
    Case("gemma3", "gemma3", "gemma3_text", **GEMMA, n_layers=6, norms="both", qk_norm="head", window=16, rope_base=1e6,
         config=dict(sliding_window=16, layer_types=_layer_types(6, 6), query_pre_attn_scalar=32, rope_parameters=dict(
             full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
             sliding_attention=dict(rope_type="default", rope_theta=10000.0))),
         meta=(("rope.scaling.type", "linear", V.STRING), ("rope.scaling.factor", 8.0, F))),
    Case("gemma3n", "gemma3n", "gemma3n_text", **GEMMA4 | dict(head_dim=16), n_layers=6, windowed=(True, False) * 3, n_borrowing=2,
         n_embd_layer=32, n_streams=4, low_rank=32, sparsity=(0.9, 0.95, 0.0, 0.5, 0.0, 0.0),
         config=dict(sliding_window=16, layer_types=_layer_types(6, 2), num_kv_shared_layers=2, hidden_size_per_layer_input=32,
                     vocab_size_per_layer_input=N_VOCAB, intermediate_size=[96] * 6, activation_sparsity_pattern=[0.9, 0.95, 0.0, 0.5, 0.0, 0.0],
                     altup_num_inputs=4, altup_active_idx=0, laurel_rank=32, final_logit_softcapping=3.0, rope_parameters=dict(
                         full_attention=dict(rope_type="default", rope_theta=1e6),
                         sliding_attention=dict(rope_type="default", rope_theta=10000.0))),
         meta=(("final_logit_softcapping", 3.0, F),)),
    Case("gemma4", "gemma4", "gemma4_text", **GEMMA4, n_layers=6, windowed=(True, False) * 3, window_heads=(2, 16), n_borrowing=2,
         n_embd_layer=32, n_ff_borrowing=192, out_scale=True, n_partial=8,
         config=dict(GEMMA4_CONFIG, layer_types=_layer_types(6, 2), num_kv_shared_layers=2, hidden_size_per_layer_input=32,
                     use_double_wide_mlp=True, global_head_dim=32),
         meta=(("final_logit_softcapping", 3.0, F), ("rope.freq_base_swa", 10000.0, F))),
    Case("gemma4-moe", "gemma4", "gemma4_text", **GEMMA4 | dict(n_kv_heads=1, head_dim=512), n_layers=3, windowed=(True, True, False),
         window_heads=(2, 16), keys_as_values=True, out_scale=True, n_partial=128, beside=True, n_experts=8, n_chosen=3,
         config=dict(GEMMA4_CONFIG, layer_types=_layer_types(3, 3), hidden_size_per_layer_input=0, attention_k_eq_v=True,
                     num_global_key_value_heads=1, global_head_dim=512, enable_moe_block=True, num_experts=8, top_k_experts=3,
                     moe_intermediate_size=32),
         meta=(("final_logit_softcapping", 3.0, F), ("rope.freq_base_swa", 10000.0, F), ("expert_feed_forward_length", 32, U))),
    Case("phi3", "phi3", "phi3", fused=("qkv", "ffn"), window=20, config=dict(sliding_window=20)),
    Case("phi3-longrope", "phi3", "phi3", **LONGROPE, longrope=(32, LONGROPE_FACTOR),
         meta=(("rope.scaling.original_context_length", 32, U), ("rope.scaling.attn_factor", LONGROPE_FACTOR, F))),
    Case("phi3-longrope-short", "phi3", "phi3", **LONGROPE, longrope=(64, LONGROPE_FACTOR), context_limit=64,
         meta=(("rope.scaling.original_context_length", 64, U), ("rope.scaling.attn_factor", LONGROPE_FACTOR, F))),
    Case("olmo2", "olmo2", "olmo2", norms="post", qk_norm="whole", rope_base=5e5, eps=1e-6),
    Case("olmo3", "olmo2", "olmo3", n_layers=4, norms="post", qk_norm="whole", rope_base=5e5, eps=1e-6, window=16,
         config=dict(sliding_window=16, layer_types=_layer_types(4, 4), rope_parameters=dict(
             full_attention=dict(rope_type="yarn", rope_theta=5e5, factor=8.0, beta_fast=32.0, beta_slow=1.0,
                                 original_max_position_embeddings=64),
             sliding_attention=dict(rope_type="default", rope_theta=5e5))),
         meta=(("attention.sliding_window_pattern", [True, True, True, False], A), ("rope.scaling.type", "yarn", V.STRING),
               ("rope.scaling.factor", 8.0, F), ("rope.scaling.original_context_length", 64, U))),
    Case("olmoe", "olmoe", "olmoe", qk_norm="whole", n_ff=32, n_experts=8, n_chosen=3,
         config=dict(num_experts=8, num_experts_per_tok=3, norm_topk_prob=False)),
    Case("granite", "granite", "granite", paired=True, embed_std=0.5, config=GRANITE, meta=GRANITE_META),
    Case("granitemoe", "granitemoe", "granitemoeshared", paired=True, embed_std=0.5, n_ff=32, n_ff_shared=64, **MOE,
         config=dict(num_local_experts=8, num_experts_per_tok=2, shared_intermediate_size=64, **GRANITE),
         meta=(*GRANITE_META, ("expert_shared_feed_forward_length", 64, U))),
    Case("starcoder2", "starcoder2", "starcoder2", layer_norm=True, plain_mlp=True, biases=("qkv", "output", "ffn"), tied=True,
         embed_std=0.25, config=dict(norm_epsilon=1e-5, use_bias=True, sliding_window=None)),
    Case("smollm3", "smollm3", "smollm3", paired=True, tied=True, embed_std=0.25, n_layers=4, eps=1e-6, rope_base=2e6),
    Case("exaone4", "exaone4", "exaone4", n_layers=4, norms="post", qk_norm="head", window=16,
         config=dict(sliding_window=16, sliding_window_pattern="LLLG", layer_types=_layer_types(4, 4)),
         meta=(("attention.sliding_window_pattern", [True, True, True, False], A),)),
    Case("exaone4-small", "exaone4", "exaone4", tied=True, embed_std=0.25, norms="post", qk_norm="head",
         config=dict(sliding_window=None, layer_types=["full_attention"] * 2)),
    Case("glm4", "glm4", "glm4", norms="both", fused=("ffn",), biases=("qkv",), head_dim=32, n_rot=16,
         config=dict(attention_bias=True, **_rope(10000.0, partial_rotary_factor=0.5))),
    Case("lfm2", **LFM2, arch="lfm2", hf="lfm2", conv_layers=(0, 2), config=dict(
        norm_eps=1e-5, layer_types=["conv", "full_attention", "conv", "full_attention"], block_auto_adjust_ff_dim=False)),
    Case("lfm2moe", **LFM2, arch="lfm2moe", hf="lfm2_moe", conv_layers=(0, 1, 3), n_experts=8, n_chosen=3, n_dense=1, choice_bias=True,
         config=dict(norm_eps=1e-5, layer_types=["conv", "conv", "full_attention", "conv"], num_experts=8, num_experts_per_tok=3,
                     moe_intermediate_size=32, num_dense_layers=1, use_expert_bias=True, norm_topk_prob=True),
         meta=(("expert_feed_forward_length", 32, U), ("leading_dense_block_count", 1, U), ("expert_gating_func", 2, U))),
    Case("qwen35", "qwen35", "qwen3_5_text", **QWEN35, config=QWEN35_CONFIG, meta=QWEN35_META),
    Case("qwen35moe", "qwen35moe", "qwen3_5_moe_text", **QWEN35 | dict(n_layers=2, full_every=2), n_ff_shared=64, shared_gate=True,
         n_experts=8, n_chosen=3,
         config=dict(QWEN35_CONFIG, full_attention_interval=2, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
                     shared_expert_intermediate_size=64),
         meta=(*QWEN35_META, ("expert_feed_forward_length", 32, U), ("expert_shared_feed_forward_length", 64, U))),
    Case("gpt-oss", **GPT_OSS),
    Case("gpt-oss-mxfp4", **GPT_OSS, expert_type="MXFP4"),
)}

# Not compared with transformers: qwen35 with a running state so large that it is kept only every 64 tokens.
LARGE_STATE = replace(CASES["qwen35"], name="qwen35-large-state", n_layers=3, full_every=3, delta=(8, 16, 64, 4))


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m models.architectures", description=__doc__.splitlines()[1])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--type", default="F32", help="tensor type of the matrices")
    args = parser.parse_args(argv)
    CASES[args.case].write(args.output, args.type)
    print(args.output)


if __name__ == "__main__":
    main()
