"""Run tests/cross/follow on this machine and on an emulated one, along the reference's greedy text.

    follow.py REFERENCE.json MODEL HOST_PROGRAM -- EMULATED PROGRAM...

Two things must hold: both print the same tokens and checksums (the arithmetic is one), and the tokens are the
reference's wherever its own first and second choice are at least 0.2 apart: closer than that, 8-bit activations
may decide otherwise.
"""

import json
import subprocess
import sys

N_TOKENS = 8
N_PROMPTS = 2
GAP = 0.2


def follow(program, model, prompt, continuation):
    ids = [str(i) for i in prompt + continuation]
    run = subprocess.run([*program, model, str(len(prompt)), *ids], capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{' '.join(program)}: {run.stderr.strip() or run.returncode}")
    tier, *lines = run.stdout.splitlines()
    return tier, [line.split() for line in lines]


def main():
    split = sys.argv.index("--")
    reference, model, host = sys.argv[1:split]
    emulated = sys.argv[split + 1 :]
    with open(reference, encoding="utf-8") as file:
        prompts = json.load(file)
    failures = compared = 0
    for case in prompts[:N_PROMPTS]:
        want = case["greedy_tokens"][:N_TOKENS]
        there = follow(emulated, model, case["prompt_tokens"], want[:-1])
        here = follow([host], model, case["prompt_tokens"], want[:-1])
        print(f"{case['prompt']!r}: {here[0]} here, {there[0]} there")
        if here[1] != there[1]:
            failures += 1
            print(f"  logits differ\n  here  {here[1]}\n  there {there[1]}")
        for i, (token, gap) in enumerate(zip(want, case["top1_minus_top2"])):
            if gap >= GAP:
                compared += 1
                if int(there[1][i][0]) != token:
                    failures += 1
                    print(f"  token {i} is {there[1][i][0]}, the reference's is {token} by {gap}")
    print(f"{compared} tokens compared with the reference, {failures} failures")
    sys.exit(failures != 0 or compared == 0)


if __name__ == "__main__":
    main()
