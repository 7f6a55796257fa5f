"""
Random quantised blocks whose values are sane: finite, mean about 0, a given standard deviation.

Random bytes are valid quants in every format; what must not be random are the scales. They are set
so that a type's values have the wanted spread, found by dequantising a sample with gguf-py.
"""
from functools import lru_cache

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

# Where a block's f16 scales lie.
F16_AT = {"F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0],
          "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0], "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64]}
# Formats w = d * q - dmin * m: the minimum, in units of d, that puts the mean at 0.
MIDDLE = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}
FLOATS = ("F32", "F16", "BF16")
NAMES = (*FLOATS, *[name for name in F16_AT if name != "F16"], "IQ1_M", "MXFP4", "NVFP4")


def block_len(name):
    return GGML_QUANT_SIZES[Type[name]][0]


def block_bytes(name):
    return GGML_QUANT_SIZES[Type[name]][1]


def random_blocks(name, n, rng, std=0.02):
    """``n`` blocks as uint8 [n, block_bytes]; their values have about this standard deviation."""
    if name in FLOATS:
        return _floats(name, (rng.standard_normal(n, dtype=np.float32) * np.float32(std)))
    blocks = np.frombuffer(rng.bytes(n * block_bytes(name)), dtype=np.uint8).reshape(n, -1).copy()
    _spread_scales(name, blocks)
    _set_scale(name, blocks, std / _spread(name), rng)
    return blocks


def _floats(name, values):
    if name == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1, 2)
    values = values.astype(np.float16) if name == "F16" else values
    return values.view(np.uint8).reshape(values.size, -1)


def _spread_scales(name, blocks):
    """The small integers inside a block: no scale is 0, a minimum follows its scale, digits are digits."""
    if name in ("Q4_K", "Q5_K"):
        six = blocks[:, 4:8] & 31 | 32                                      # groups 0..3: 32..63
        four = blocks[:, 12:16] & 15                                        # groups 4..7: low bits; high bits 2
        blocks[:, 4:8] = six | 0x80
        blocks[:, 8:12] = six | 0x80
        blocks[:, 12:16] = four | four << 4
    elif name == "Q2_K":
        four = blocks[:, :16] & 7 | 8
        blocks[:, :16] = four | four << 4
    elif name == "TQ2_0":           # 3 is no ternary digit: it becomes 1
        q = blocks[:, :64]
        q &= ~((q & q >> 1 & 0x55) << 1)
    elif name == "Q6_K":
        blocks[:, 192:208] = blocks[:, 192:208] % 32 + 32


def _set_scale(name, blocks, d, rng):
    """The overall scale, a little different from block to block."""
    n = blocks.shape[0]
    if name == "MXFP4":             # a power of two
        blocks[:, 0] = np.clip(np.round(np.log2(d)) + 127 + rng.integers(-1, 2, n), 1, 253)
    elif name == "NVFP4":           # unsigned e4m3; below 2^-6 the mantissa alone is left
        exponent = int(np.clip(np.round(np.log2(d)) + 7, 0, 14))
        blocks[:, :4] = blocks[:, :4] % 8 + 8 * exponent
    else:
        scale = (d * rng.uniform(0.75, 1.25, n)).astype(np.float16)
        if name == "IQ1_M":         # four bits of the scale on top of each of four words
            words = blocks[:, 48:56].view(np.uint16)
            for i in range(4):
                words[:, i] = words[:, i] & 0xfff | (scale.view(np.uint16) >> 4 * i & 15) << 12
            return
        at = F16_AT[name]
        blocks[:, at[0]:at[0] + 2] = scale.view(np.uint8).reshape(n, 2)
        if name in MIDDLE:
            minimum = (scale.astype(np.float32) * MIDDLE[name]).astype(np.float16)
            blocks[:, at[1]:at[1] + 2] = minimum.view(np.uint8).reshape(n, 2)


@lru_cache(maxsize=None)
def _spread(name):
    """Standard deviation of the values of blocks whose overall scale is about 1."""
    rng = np.random.default_rng(1)
    blocks = np.frombuffer(rng.bytes(512 * block_bytes(name)), dtype=np.uint8).reshape(512, -1).copy()
    _spread_scales(name, blocks)
    _set_scale(name, blocks, 1.0, rng)
    return float(dequantize(blocks, Type[name]).std())
