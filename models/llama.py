"""
Models of the llama architecture: shapes, the tensors they have, and a GGUF writer that streams.
"""
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type, GGUFWriter, LlamaFileType

from .blocks import block_bytes, block_len

ALIGNMENT = 32


@dataclass(frozen=True)
class Shape:
    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    context: int
    rope_base: float = 10000.0
    eps: float = 1e-5
    tied: bool = True               # the output matrix is the embedding


SHAPES = {
    "135m": Shape(30, 576, 1536, 9, 3, 64, 49152, 8192, rope_base=100000.0),
    "1b": Shape(16, 2048, 8192, 32, 8, 64, 128256, 131072, rope_base=500000.0),
    "8b": Shape(32, 4096, 14336, 32, 8, 128, 128256, 131072, rope_base=500000.0, tied=False),
}


@dataclass(frozen=True)
class Tensor:
    """``shape`` as numpy writes it, rows first; ``chunks()`` yields the bytes in order."""
    name: str
    shape: tuple
    type: str
    chunks: object

    @property
    def n_bytes(self):
        return int(np.prod(self.shape, dtype=np.int64)) // block_len(self.type) * block_bytes(self.type)


def tensor_shapes(s):
    """Every tensor of the model in file order, as (name, shape, is_norm)."""
    out = [("token_embd.weight", (s.n_vocab, s.n_embd), False)]
    for i in range(s.n_layers):
        out += [(f"blk.{i}.{name}.weight", shape, len(shape) == 1) for name, shape in (
            ("attn_norm", (s.n_embd,)),
            ("attn_q", (s.n_heads * s.head_dim, s.n_embd)),
            ("attn_k", (s.n_kv_heads * s.head_dim, s.n_embd)),
            ("attn_v", (s.n_kv_heads * s.head_dim, s.n_embd)),
            ("attn_output", (s.n_embd, s.n_heads * s.head_dim)),
            ("ffn_norm", (s.n_embd,)),
            ("ffn_gate", (s.n_ff, s.n_embd)),
            ("ffn_up", (s.n_ff, s.n_embd)),
            ("ffn_down", (s.n_embd, s.n_ff)))]
    out.append(("output_norm.weight", (s.n_embd,), True))
    if not s.tied:
        out.append(("output.weight", (s.n_vocab, s.n_embd), False))
    return out


def array_tensor(name, values, type_name="F32"):
    """A tensor from float32 values, quantised by gguf-py."""
    from gguf.quants import quantize

    values = np.ascontiguousarray(values, dtype=np.float32)
    if values.shape[-1] % block_len(type_name):
        raise ValueError(f"{name}: rows of {values.shape[-1]} values are no whole blocks of {type_name}")
    data = quantize(values, Type[type_name])
    return Tensor(name, values.shape, type_name, lambda: iter([data.tobytes()]))


def write_model(path, shape, vocab, tensors, *, name, file_type=None, arch="llama"):
    """
    Write the file; memory use is one chunk. gguf-py writes everything up to the tensor data, which
    is appended in the order of the table.
    """
    path = Path(path)
    w = GGUFWriter(path, arch)
    w.add_name(name)
    w.add_block_count(shape.n_layers)
    w.add_context_length(shape.context)
    w.add_embedding_length(shape.n_embd)
    w.add_feed_forward_length(shape.n_ff)
    w.add_head_count(shape.n_heads)
    w.add_head_count_kv(shape.n_kv_heads)
    w.add_key_length(shape.head_dim)
    w.add_value_length(shape.head_dim)
    w.add_rope_dimension_count(shape.head_dim)
    w.add_rope_freq_base(shape.rope_base)
    w.add_layer_norm_rms_eps(shape.eps)
    w.add_vocab_size(shape.n_vocab)
    known = LlamaFileType.__members__
    if file_type is not None and (number := known.get(f"MOSTLY_{file_type}", known.get(f"ALL_{file_type}"))) is not None:
        w.add_file_type(number)
    for key, value, kind, element in vocab.fields:
        if value != []:             # gguf-py cannot write an empty array
            w.add_key_value(key, value, kind, sub_type=element)
    for t in tensors:
        w.add_tensor_info(t.name, t.shape, np.dtype(np.float32), t.n_bytes, raw_dtype=Type[t.type])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    w.close()
    with path.open("ab") as out:
        out.write(bytes(-out.tell() % ALIGNMENT))
        for t in tensors:
            n = sum(out.write(chunk) for chunk in t.chunks())
            if n != t.n_bytes:
                raise ValueError(f"{t.name}: {n} bytes written, {t.n_bytes} announced")
            out.write(bytes(-n % ALIGNMENT))
    return path
