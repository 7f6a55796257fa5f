#!/usr/bin/env python3
"""
Writes quants.bin: for every type of native/format/quants.def, random valid blocks and what gguf-py
makes of them. tests/native/check_quants.c replays it and wants equality bit for bit.

    python tests/golden/make_quant_goldens.py            # quants.bin beside this file
    python tests/golden/make_quant_goldens.py 100000 /tmp/many.bin   # more blocks: PLP_QUANT_GOLDEN=/tmp/many.bin check_quants

Layout, little-endian: "PLPQ", u32 number of types; per type: i32 id, u32 n_blocks, u32 block_len,
u32 block_bytes, the blocks, then per block the u64 FNV-1a hash of the bytes of its f32 values. The
first block's values follow in full, so that a difference can be looked at.
"""
import re
import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent.parent))
from models.blocks import F16_AT                                           # noqa: E402

DEF = HERE.parent.parent / "native" / "format" / "quants.def"

def random_f16(rng, n):
    """Any finite half: normal and subnormal, both signs."""
    bits = rng.integers(0, 0x7c00, n, dtype=np.uint16)
    return bits | (rng.integers(0, 2, n, dtype=np.uint16) << np.uint16(15))


def valid_blocks(name, n, rng):
    """Random bytes, with only those scales made finite that would not be."""
    block_len, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    if name == "F32":
        return rng.standard_normal(n).astype(np.float32).view(np.uint8).reshape(n, 4)
    if name == "BF16":
        return (rng.standard_normal(n).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(n, 2)
    blocks = rng.integers(0, 256, (n, block_bytes), dtype=np.uint8)
    for at in F16_AT.get(name, []):
        blocks[:, at:at + 2] = random_f16(rng, n).view(np.uint8).reshape(n, 2)
    if name == "IQ1_M":     # the scale is spread over the top nibbles of four words; the last has sign and exponent
        blocks[:, 55] &= 0xbf
    if name == "MXFP4":     # 255 is the format's NaN; above 252 the largest value would overflow
        blocks[:, 0] %= 253
    return blocks


def fnv1a(rows):
    """The hash of each row of bytes."""
    h = np.full(rows.shape[0], 0xcbf29ce484222325, dtype=np.uint64)
    for i in range(rows.shape[1]):
        h = (h ^ rows[:, i].astype(np.uint64)) * np.uint64(0x100000001b3)
    return h


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else HERE / "quants.bin"
    rng = np.random.default_rng(20240501)
    types = re.findall(r"^QUANT\( *(\d+), (\w+), +(\d+), +(\d+),", DEF.read_text(), re.M)
    with path.open("wb") as out:
        out.write(b"PLPQ" + struct.pack("<I", len(types)))
        for type_id, name, block_len, block_bytes in types:
            type_id, block_len, block_bytes = int(type_id), int(block_len), int(block_bytes)
            assert GGML_QUANT_SIZES[GGMLQuantizationType(type_id)] == (block_len, block_bytes), name
            count = n or (64 if block_bytes > 36 else 200)
            blocks = valid_blocks(name, count, rng)
            values = dequantize(blocks.reshape(-1) if block_len == 1 else blocks, GGMLQuantizationType(type_id))
            values = np.ascontiguousarray(values, dtype=np.float32).reshape(count, block_len)
            assert np.isfinite(values).all(), name
            out.write(struct.pack("<iIII", type_id, count, block_len, block_bytes) + blocks.tobytes())
            out.write(fnv1a(values.view(np.uint8).reshape(count, -1)).tobytes() + values[0].tobytes())
    print(f"{path}: {path.stat().st_size} bytes, {len(types)} types")


if __name__ == "__main__":
    main()
