"""
A model of real size with random weights, for measuring speed and memory without a download.

    python -m models.generate --shape 1b --type Q4_K_M -o models/1b.gguf
    python -m models.generate --shape 8b --type Q4_0 --vocab some.gguf -o models/8b.gguf

Values have a standard deviation of about 0.02 and mean 0, as trained weights do, so activations stay
finite; what the model says means nothing. Written in chunks, so that memory use does not grow with the
model: about 90 MB, and 120 MB with a copied vocabulary of 128,256 tokens.
"""
import argparse
import re
import time
from dataclasses import replace

import numpy as np

from . import blocks, vocabs
from .llama import SHAPES, Tensor, tensor_shapes, write_model

CHUNK_BYTES = 8 << 20
MIXES = {"Q4_K_M": ("Q4_K", "Q6_K"), "Q5_K_M": ("Q5_K", "Q6_K"), "Q3_K_M": ("Q3_K", "Q5_K"), "Q4_K_S": ("Q4_K", "Q4_K")}
# What takes the place of a type with blocks of 256 in a matrix whose rows are no multiple of that.
NARROW = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


def tensor_type(name, dims, mix, shape):
    """
    The type of a matrix. A mix is llama.cpp's: the better type for the output matrix (or the
    embedding that stands for it) and for attn_v and ffn_down in the first and last eighth of the
    layers and every third one between; the plain type for the rest.
    """
    plain, better = MIXES.get(mix, (mix, mix))
    layer = re.match(r"blk\.(\d+)\.(attn_v|ffn_down)\.", name)
    if layer:
        i, n = int(layer[1]), shape.n_layers
        is_better = i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2
    else:
        is_better = name == ("token_embd.weight" if shape.tied else "output.weight")
    chosen = better if is_better else plain
    return chosen if dims[-1] % blocks.block_len(chosen) == 0 else NARROW.get(chosen, "IQ4_NL")


def random_tensor(name, shape, type_name, seed):
    """A tensor whose chunks are drawn when they are written; the same for the same seed and name."""
    rows, row_blocks = int(np.prod(shape[:-1])), shape[-1] // blocks.block_len(type_name)
    total, step = rows * row_blocks, max(CHUNK_BYTES // blocks.block_bytes(type_name), 1)

    def chunks():
        rng = np.random.default_rng([seed, *name.encode()])
        for at in range(0, total, step):
            yield blocks.random_blocks(type_name, min(step, total - at), rng).tobytes()

    return Tensor(name, shape, type_name, chunks)


def norm_tensor(name, shape):
    return Tensor(name, shape, "F32", lambda: iter([np.ones(shape, np.float32).tobytes()]))


def generate(path, shape, mix, *, vocab=None, seed=1, name="random"):
    """Write a model of this Shape; ``vocab`` is a GGUF file to copy the vocabulary from, or None."""
    v = vocabs.copied_vocab(vocab, shape.n_vocab) if vocab else vocabs.synthetic_vocab(shape.n_vocab)
    shape = replace(shape, n_vocab=v.n_tokens)
    tensors = []
    for tensor_name, dims, is_norm in tensor_shapes(shape):
        if is_norm:
            tensors.append(norm_tensor(tensor_name, dims))
        else:
            tensors.append(random_tensor(tensor_name, dims, tensor_type(tensor_name, dims, mix, shape), seed))
    return write_model(path, shape, v, tensors, name=name, file_type=mix)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m models.generate", description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--type", default="Q4_K_M", choices=[*MIXES, *blocks.NAMES], metavar="TYPE",
                        help="a tensor type, or one of the mixes " + ", ".join(MIXES))
    parser.add_argument("--vocab", metavar="GGUF", help="copy the vocabulary of this file; else a made one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", required=True)
    args = parser.parse_args(argv)
    start = time.monotonic()
    path = generate(args.output, SHAPES[args.shape], args.type, vocab=args.vocab, seed=args.seed,
                    name=f"random {args.shape} {args.type}")
    print(f"{path}: {path.stat().st_size} bytes in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
