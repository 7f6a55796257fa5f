"""
Two small models for tests: ``tiny`` has random weights, ``puppet`` says what it is told.

    python -m models.tiny tiny -o tiny.gguf --type Q8_0
    python -m models.tiny puppet -o puppet.gguf --say "The quick br" own " fox" " jumps"

Both have a byte-level vocabulary: token i < 256 is the byte i, 256 is <|im_start|>, 257 is <|im_end|>
(which ends an answer), then come the pieces. The chat template is ChatML.
"""
import argparse

import numpy as np

from .llama import Shape, array_tensor, tensor_shapes, write_model
from .vocabs import CHATML, byte_vocab

START, END = 256, 257               # the control tokens' ids

TINY = Shape(n_layers=2, n_embd=64, n_ff=128, n_heads=4, n_kv_heads=2, head_dim=16, n_vocab=300, context=512)
TINY_PIECES = ["th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "of", "ed", "is", "it",
               "al", "ar", "st", "to", "nt", "ng", " t", " a", " th", "the", " the", "ing", "and", " of", " to", " in"]
TINY_MERGES = [("t", "h"), ("h", "e"), ("i", "n"), ("e", "r"), ("a", "n"), ("r", "e"), ("o", "n"), ("a", "t"), ("e", "n"),
               ("n", "d"), ("t", "i"), ("e", "s"), ("o", "r"), ("t", "e"), ("o", "f"), ("e", "d"), ("i", "s"), ("i", "t"),
               ("a", "l"), ("a", "r"), ("s", "t"), ("t", "o"), ("n", "t"), ("n", "g"), (" ", "t"), (" ", "a"), (" ", "th"),
               ("th", "e"), (" ", "the"), ("in", "g"), ("an", "d"), (" ", "of"), (" ", "to"), (" ", "in")]

PUPPET = Shape(n_layers=1, n_embd=320, n_ff=64, n_heads=5, n_kv_heads=1, head_dim=64, n_vocab=320, context=512, tied=False)


def tiny(path, type="F32", *, shape=TINY, seed=1, edit=None, template=CHATML):
    """
    Random weights from a fixed seed: the same file every time. ``type`` is the matrices' tensor type
    (norms stay F32): any that gguf-py quantises to and whose blocks fit the rows. ``edit`` gets a
    dict of name to float32 array before the file is written, to spoil or replace values.
    """
    rng = np.random.default_rng(seed)
    values = {}
    for name, dims, is_norm in tensor_shapes(shape):
        if is_norm:
            values[name] = rng.uniform(0.5, 1.5, dims).astype(np.float32)
        else:                       # such that a product of a normalised row has values of about 1
            values[name] = (rng.standard_normal(dims) / np.sqrt(dims[-1])).astype(np.float32)
    if edit:
        edit(values)
    vocab = byte_vocab(shape.n_vocab, pieces=TINY_PIECES, merges=TINY_MERGES, template=template)
    tensors = [array_tensor(name, v, "F32" if v.ndim == 1 else type) for name, v in values.items()]
    return write_model(path, shape, vocab, tensors, name="tiny", file_type=type)


def puppet(path, say, *, gain=4.0, cycle=False, context=512, type="F32", edit=None, template=CHATML, control=("<|im_start|>", "<|im_end|>")):
    """
    A model whose greedy answer is ``say``, after any prompt whose last token is not part of it.

    ``say`` is a list of pieces (text or bytes) and token ids. A single byte is its own token; longer
    pieces become tokens after the control tokens, in order of appearance. After the last one comes the
    last control token, which ends an answer, or with ``cycle`` the first again. A token has one
    successor, so none may be said twice.

    How: one layer that adds nothing (attn_output and ffn_down are 0), the identity as embedding,
    and in row j of the output matrix ``gain`` in column i where token j follows token i. The
    successor's logit is gain * sqrt(320 / (1 + 320e-5)) = 71.44 for 4.0, every other 0.
    """
    pieces, chain, end = [], [], 255 + len(control)
    for piece in say:
        if isinstance(piece, int):
            chain.append(piece)
            continue
        raw = piece.encode() if isinstance(piece, str) else bytes(piece)
        if len(raw) == 1:
            chain.append(raw[0])
            continue
        if raw not in pieces:
            pieces.append(raw)
        chain.append(256 + len(control) + pieces.index(raw))
    if not chain or len(set(chain)) != len(chain):
        raise ValueError("say at least one token, and none twice: a token has one successor")
    if end in chain[:-1]:
        raise ValueError(f"{control[-1]} can only come last")

    n = PUPPET.n_vocab
    follow = np.full(n, chain[0])                                       # whatever was said before: begin
    for token, successor in zip(chain, chain[1:] + [chain[0] if cycle else end]):
        follow[token] = successor
    follow[end] = chain[0]

    shape = Shape(**{**PUPPET.__dict__, "context": context})
    rng = np.random.default_rng(0)
    values = {}
    for name, dims, is_norm in tensor_shapes(shape):
        if is_norm:
            values[name] = np.ones(dims, np.float32)
        elif name == "token_embd.weight":
            values[name] = np.eye(n, dtype=np.float32)
        elif name == "output.weight":
            values[name] = np.zeros(dims, np.float32)
            values[name][follow, np.arange(n)] = gain
        elif "attn_output" in name or "ffn_down" in name:
            values[name] = np.zeros(dims, np.float32)
        else:
            values[name] = (rng.standard_normal(dims) * 0.05).astype(np.float32)
    if edit:
        edit(values)
    vocab = byte_vocab(n, pieces=pieces, merges=[("\x00", "\x01")], template=template, control=control)
    tensors = [array_tensor(name, v, "F32" if v.ndim == 1 else type) for name, v in values.items()]
    return write_model(path, shape, vocab, tensors, name="puppet", file_type=type)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m models.tiny", description=__doc__.splitlines()[1])
    parser.add_argument("kind", choices=["tiny", "puppet"])
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--type", default="F32", help="tensor type of the matrices")
    parser.add_argument("--seed", type=int, default=1, help="tiny: seed of the weights")
    parser.add_argument("--say", nargs="+", default=["Hello", " from", " a", " puppet", "."], help="puppet: its pieces")
    parser.add_argument("--cycle", action="store_true", help="puppet: begin again instead of ending")
    parser.add_argument("--context", type=int, default=512, help="puppet: context limit")
    args = parser.parse_args(argv)
    if args.kind == "tiny":
        path = tiny(args.output, args.type, seed=args.seed)
    else:
        path = puppet(args.output, args.say, cycle=args.cycle, context=args.context, type=args.type)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
