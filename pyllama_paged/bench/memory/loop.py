"""
The loop of a process that a scenario works in: orders in, answers out, one JSON object a line.

    {"do": "feed", "id": 3, "tokens": [1, 2]}     -> {"seconds": 0.02, "refused": false}

Standard library only: it also runs in the peer's own Python. The runtime's methods are the orders:

    hello()                                     what is imported is imported
    open(model, threads, context, sessions, ..) -> what
    start(id, reserve)                          a session; reserve: tokens, for runtimes that are told beforehand
    feed(id, tokens)                            -> seconds until the logits after the last token are there, refused
    decode(ids, n)                              -> steps: seconds of each of n steps that advance all of these sessions
    fork(id, to), end(id), trim(), unload()
    save(id, n, path), load(path, id)           -> seconds
    ledger()                                    -> what the runtime says of itself, or {}
"""

import json
import sys

__all__ = ["run", "tokens_of"]


def tokens_of(n, n_vocab, seed=0):
    """n token ids, the same for every runtime; other seeds give others from the first one on."""
    out, state = [], 12345 + 7919 * seed
    for _ in range(n):
        state = (state * 1103515245 + 12345) % 2**31
        out.append((state >> 8) % n_vocab)
    return out


def run(runtime, orders=sys.stdin, answers=sys.stdout):
    for line in orders:
        order = json.loads(line)
        do = order.pop("do")
        try:
            if do.startswith("_"):
                raise ValueError("no such order: " + do)
            answer = getattr(runtime, do)(**order) or {}
        except Exception as problem:            # whatever it is, the other side must hear of it
            answer = {"error": "%s: %s" % (type(problem).__name__, problem)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
