"""
Figures of the KV pool that a test cannot judge on a busy machine, or that take the default model minutes.

    python bench/kv_pool.py sharing MODEL.gguf      ten sessions on one beginning of 1,000 tokens, shared and not
    python bench/kv_pool.py restart MODEL.gguf      first token after a restart with a stored beginning, beside a warm one
      --cpu     by one thread's own time, which others on the machine disturb less

`restart` takes turns: a new process (its clock starts when the model is open: what is measured is the beginning, not the
weights' first reading, which a warm-up of one token has done on both sides), then the process that has the beginning
pinned. Both compute three tokens of their own.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

from pyllama_paged import Model, PrefixStore

N_BEGINNING, N_SESSIONS, N_SAMPLES = 1000, 10, 15


def beginning(model):
    text = " ".join(f"{i}: every line differs from the others, {i * i % 97} {chr(97 + i % 26)}." for i in range(200))
    return model.tokenize(text)[:N_BEGINNING]


def sharing(path):
    held = {}
    for shared in (True, False):
        with Model.open(path, reuse=shared) as model:
            line, sessions = beginning(model), []
            prefix = model.prefix(text=line) if shared else None
            for i in range(N_SESSIONS):
                sessions.append(prefix.session() if shared else model.session())
                sessions[-1].sync([*line, i, i + 1, i + 2])
                sessions[-1].compute()
            held[shared] = model.memory.resident
            print(f"{'shared' if shared else 'apart'}: {held[shared]:,} bytes, {model.counters.tokens_computed:,} tokens computed")
    print(f"{held[False] / held[True]:.2f} times less")


def clock(cpu):
    return time.thread_time() if cpu else time.perf_counter()


def first_token(model, line, i, cpu):
    """Seconds from having the tokens to having the logits of the last one."""
    begin = clock(cpu)
    with model.session() as session:
        session.sync([*line, i, i + 1, i + 2])
        session.compute()
        return clock(cpu) - begin


def warm_up(model):
    with model.session() as session:
        session.sync([1])
        session.compute()


def after_restart(path, folder, i, cpu):
    with Model.open(path, threads=int(cpu)) as model:
        line = beginning(model)
        warm_up(model)
        begin = clock(cpu)
        prefix = model.prefix(text=line, keep=True, store=PrefixStore(folder))
        loaded = clock(cpu) - begin
        seconds = loaded + first_token(model, line, i, cpu)
        print(json.dumps(dict(seconds=seconds, loaded=loaded, reused=prefix.reused)))


def restart(path, cpu):
    with tempfile.TemporaryDirectory() as folder, Model.open(path, threads=int(cpu)) as model:
        line, cold, warm, loaded = beginning(model), [], [], []
        model.prefix(text=line, keep=True, store=PrefixStore(folder))
        for i in range(N_SAMPLES):
            command = [sys.executable, __file__, "after-restart", path, folder, str(i), *(["--cpu"] if cpu else [])]
            out = subprocess.run(command, check=True, capture_output=True, text=True)
            sample = json.loads(out.stdout)
            assert sample["reused"] == len(line)
            cold.append(sample["seconds"])
            loaded.append(sample["loaded"])
            warm.append(first_token(model, line, i, cpu))
    a, b = statistics.median(cold), statistics.median(warm)
    print(f"first token, medians of {N_SAMPLES}: after a restart {a * 1e3:.1f} ms (of it loading {statistics.median(loaded) * 1e3:.1f}), "
          f"warm {b * 1e3:.1f} ms; {a / b:.2f} times. Ranges {min(cold) * 1e3:.1f} to {max(cold) * 1e3:.1f}, {min(warm) * 1e3:.1f} to {max(warm) * 1e3:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("what", choices=["sharing", "restart", "after-restart"])
    parser.add_argument("model")
    parser.add_argument("more", nargs="*")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    if args.what == "after-restart":
        after_restart(args.model, args.more[0], int(args.more[1]), args.cpu)
    elif args.what == "restart":
        restart(args.model, args.cpu)
    else:
        sharing(args.model)
