"""A model split into parts is the model: the same logits to the bit, whichever part is named."""
import numpy as np

from models.split import split
from pyllama_paged import Model


def test_parts_give_the_whole_files_logits(tiny_path, tmp_path):
    with Model.open(tiny_path) as model:
        want = model.logits([1, 2, 3, 4, 5])
    parts = sorted(split(tiny_path, tmp_path / "m", 3))
    assert len(parts) == 3
    for part in parts:
        with Model.open(part) as model:
            assert np.array_equal(model.logits([1, 2, 3, 4, 5]).view(np.uint32), want.view(np.uint32))
