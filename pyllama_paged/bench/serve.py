"""
The loop of a process that works for `bench peers`: orders in, times out, one JSON object a line.

    {"do": "open", "model": path, "threads": 2, "context": 8192, "kv": "f16"}
    {"do": "depth", "n": 7168}
    {"do": "prefill", "n": 512}     -> {"seconds": ...}
    {"do": "decode", "n": 32}       -> {"seconds": ...}
    {"do": "memory"}                -> {"anonymous": bytes, "at_start": bytes}
    {"do": "close"}

Standard library only: it also runs in the peer's own Python.
"""

import json
import re
import sys

__all__ = ["anonymous", "serve", "some_tokens"]


def some_tokens(n, n_vocab):
    """The same n token ids for every runtime."""
    out, state = [], 12345
    for _ in range(n):
        state = (state * 1103515245 + 12345) % 2**31
        out.append((state >> 8) % n_vocab)
    return out


def anonymous():
    """Linux: bytes of this process that no file is behind; None elsewhere."""
    try:
        with open("/proc/self/status") as f:
            found = re.search(r"^RssAnon:\s+(\d+) kB$", f.read(), re.M)
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None


def serve(runtime, orders=sys.stdin, answers=sys.stdout):
    """
    runtime   an object with open(model, threads, context, kv) -> what it is, depth(n), prefill(n) and
              decode(n) -> seconds, close()
    """
    at_start = anonymous()
    for line in orders:
        order = json.loads(line)
        do = order.pop("do")
        try:
            if do == "memory":
                answer = {"anonymous": anonymous(), "at_start": at_start}
            elif do == "open":
                answer = {"what": runtime.open(**order)}
            elif do in ("prefill", "decode"):
                answer = {"seconds": getattr(runtime, do)(**order)}
            else:
                getattr(runtime, do)(**order)
                answer = {}
        except Exception as problem:            # whatever it is, the other side must hear of it
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if do == "close":
            return
