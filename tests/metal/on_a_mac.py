"""
What only a Mac can show: the Metal backend on a real GPU, beside the CPU. Run by `make check-metal`.

The kernels keep the CPU's arithmetic, so logits should be equal to the bit; where the GPU flushes denormals
they may differ in the last places, which is said, and is no failure while the distance is small.
"""
import os
import sys
import time
from pathlib import Path

import numpy as np

from pyllama_paged import Model

ROOT = Path(__file__).resolve().parents[2]
PATH = Path(os.environ.get("PLP_MODEL") or ROOT / "models" / "cache" / "SmolLM2-135M-Instruct.Q4_1.gguf")
TEXT = "A page is a run of tokens. " * 40


def log_softmax(x):
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def run(device, kv, tokens):
    with Model.open(PATH, device=device, kv=kv) as model, model.session() as session:
        start = time.perf_counter()
        logits = model.logits(tokens)
        prompt = time.perf_counter() - start
        session.feed(tokens[:1])
        session.compute()
        start = time.perf_counter()
        for _ in range(50):
            session.feed([int(session.logits.argmax())])
            session.compute()
        return logits, session.tokens, prompt, time.perf_counter() - start


def main():
    failed = False
    with Model.open(PATH, device="cpu") as model:
        tokens = model.tokenize(TEXT)
    for kv in ("f16", "q8", "q4"):
        want, cpu_tokens, cpu_prompt, cpu_decode = run("cpu", kv, tokens)
        got, gpu_tokens, gpu_prompt, gpu_decode = run("metal", kv, tokens)
        a, b = log_softmax(want.astype(np.float64)), log_softmax(got.astype(np.float64))
        kl = float((np.exp(a) * (a - b)).sum(1).mean())
        same = bool((want.view(np.uint32) == got.view(np.uint32)).all())
        bad = not np.isfinite(got).all() or kl > 1e-4 or gpu_tokens != cpu_tokens
        failed |= bad
        print(f"{kv}: {'FAILED' if bad else 'ok'}: {'equal bits' if same else 'not equal bits'}, KL {kl:.2g}, "
              f"top-1 {np.mean(want.argmax(1) == got.argmax(1)):.1%}, {len(tokens)} tokens of prompt {cpu_prompt:.2f} s on the CPU, "
              f"{gpu_prompt:.2f} s on the GPU, 50 tokens {cpu_decode:.2f} s and {gpu_decode:.2f} s")
    return failed


if __name__ == "__main__":
    sys.exit(main())
