"""Against an fp32 computation of the same weights: distributions on two texts, and eight greedy answers step by step."""
import json

import numpy as np
import pytest

from pyllama_paged import Model

MAX_COARSE_KL = 0.0030      # over the reference's 64 most likely tokens and one bucket for the rest
MIN_TOP1 = 0.96
SEALED = {"q8": (0.0032, 0.96), "q4": (0.015, 0.90)}    # the same two bars for quantised KV
CLOSE = 0.2                 # a step whose two best logits are closer may go either way with 8-bit activations


def log_softmax(logits):
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def against_truth(model, shared, text):
    """Mean coarse KL and top-1 agreement on one of the reference's texts."""
    data = np.load(shared / "reference" / "smollm2-135m-q4_1.npz")
    ids, logp = data[f"{text}_top_ids"].astype(np.int64), data[f"{text}_top_logp"].astype(np.float64)
    logits = model.logits(data[f"{text}_tokens"])
    got = np.take_along_axis(log_softmax(logits), ids, axis=1)
    p = np.exp(logp)
    rest, got_rest = 1 - p.sum(axis=1), 1 - np.exp(got).sum(axis=1)
    kl = (p * (logp - got)).sum(axis=1) + rest * (np.log(np.maximum(rest, 1e-12)) - np.log(np.maximum(got_rest, 1e-12)))
    return kl.mean(), (logits.argmax(axis=1) == ids[:, 0]).mean()


@pytest.mark.parametrize("text", ["gpl", "code"])
def test_distributions(smol, shared, text):
    kl, top1 = against_truth(smol, shared, text)
    print(f"{text}: coarse KL {kl:.5f}, top-1 agreement {top1:.4f}")
    assert kl <= MAX_COARSE_KL and top1 >= MIN_TOP1


@pytest.mark.parametrize("kv", SEALED)
def test_distributions_of_quantised_kv(smol_path, shared, kv):
    """Many sealed blocks, the kernels that chat uses: 8- and 4-bit keys must not turn a small model to gibberish."""
    with Model.open(smol_path, kv=kv) as model:
        for text in ("gpl", "code"):
            kl, top1 = against_truth(model, shared, text)
            print(f"{kv} {text}: coarse KL {kl:.5f}, top-1 agreement {top1:.4f}")
            assert kl <= SEALED[kv][0] and top1 >= SEALED[kv][1]


@pytest.mark.parametrize("kv", ["f16", "q8"])
def test_greedy_answers_step_by_step(smol_path, shared, kv):
    smol = Model.open(smol_path, kv=kv)
    cases = json.loads((shared / "reference" / "smollm2-135m-q4_1.greedy.json").read_text())
    assert len(cases) == 8
    steps = close = 0
    for case in cases:
        prompt, answer = case["prompt_tokens"], case["greedy_tokens"]
        best = smol.logits(prompt + answer[:-1])[len(prompt) - 1:].argmax(axis=1)
        for step, (got, want, gap) in enumerate(zip(best, answer, case["top1_minus_top2"], strict=True)):
            steps += 1
            if got != want:
                close += 1
                assert gap < CLOSE, f"{case['prompt']!r}, step {step}: {got} instead of {want}, gap {gap}"
    print(f"{steps} steps, {close} of them another way where the reference is undecided")
    assert close < steps / 20
    smol.close()
