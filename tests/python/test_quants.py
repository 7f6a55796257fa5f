"""Dequantised rows equal gguf-py's bit for bit: every type of quants.def, 1,000 random valid blocks each."""
import re
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "golden")]    # last, so that an installed library wins

from make_quant_goldens import valid_blocks                                # noqa: E402
from pyllama_paged import _native as native                                # noqa: E402

TYPES = re.findall(r"^QUANT\( *\d+, (\w+),", (ROOT / "native" / "format" / "quants.def").read_text(), re.M)


def test_the_list_is_what_gguf_py_dequantises():
    able = {"F32", "F16"} | {t.name for t in gguf.quants._type_traits}
    assert set(TYPES) == able


@pytest.mark.parametrize("name", TYPES)
def test_bit_for_bit(name):
    blocks = valid_blocks(name, 1000, np.random.default_rng(len(name) * 1000 + Type[name]))
    want = dequantize(blocks.reshape(-1) if gguf.GGML_QUANT_SIZES[Type[name]][0] == 1 else blocks, Type[name])
    want = np.ascontiguousarray(want, dtype=np.float32).reshape(-1)
    got = np.full(want.size, np.nan, dtype=np.float32)
    native.call(native.lib.plp_dequantize, Type[name], native.ffi.from_buffer(blocks),
                native.ffi.from_buffer("float[]", got), got.size)
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))
