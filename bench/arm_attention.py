"""Count the instructions that ARM's attention and sealing kernels execute, in qemu.

    python bench/arm_attention.py [--library build-cross/arm/libplp.a] [--tier neon] ... > table.md

Unlike bench/arm_instructions.py, which takes inner loops apart, this runs a kernel once and twice, one instruction at a
time, and counts the difference. The library is what `tests/cross/run arm` builds. Counts stand for time only where
instructions cost alike: divisions and cache misses do not.
"""

import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CROSS = "aarch64-linux-gnu-"
# kernel, queries, channels
CASES = [("attn_f16", 1, 64), ("attn_f16", 4, 64), ("attn_f16_run", 8, 64), ("attn_f16_run", 12, 64),
         ("attn_q8", 1, 64), ("attn_q8", 4, 64), ("attn_q8", 4, 128), ("attn_q4", 1, 64), ("attn_q4", 4, 64), ("attn_q4", 4, 128),
         ("kv_seal_q8", 1, 64), ("kv_seal_q4", 1, 64)]
UNITS = 16          # of 16 tokens, of a run: one split

SOURCE = """
#include <stdlib.h>
#include <string.h>
#include "kernels/kernels.h"

static float some(void) { return (float)rand() / (float)RAND_MAX - 0.5f; }

int main(int argc, char **argv)     /* kernel, queries, channels, times */
{
    enum { UNITS = %d };
    const uint32_t n_q = (uint32_t)atoi(argv[2]), dim = (uint32_t)atoi(argv[3]);
    const plp_kernels *k;
    plp_error err;
    void *f16[UNITS], *q8, *q4;
    if (plp_kernels_get(&k, &err)) return 1;
    float *q = malloc(sizeof(float) * n_q * dim), *acc = calloc(n_q * dim, sizeof(float)), *kv = malloc(sizeof(float) * dim);
    float *m = malloc(sizeof(float) * n_q), *s = calloc(n_q, sizeof(float));
    uint32_t *lo = calloc(n_q, sizeof *lo), *hi = malloc(n_q * sizeof *hi);
    for (uint32_t i = 0; i < n_q * dim; i++) q[i] = some();
    for (uint32_t i = 0; i < n_q; i++) m[i] = 1e9f, hi[i] = 16 * UNITS;         /* no new maximum: the usual case */
    for (int b = 0; b < UNITS; b++) {
        f16[b] = aligned_alloc(64, 64 * dim);
        for (uint32_t t = 0; t < 16; t++) {
            for (uint32_t i = 0; i < dim; i++) kv[i] = some();
            k->kv_put(f16[b], 16, t, kv, kv, dim);
        }
    }
    q8 = aligned_alloc(64, 64 * dim), q4 = aligned_alloc(64, 64 * dim);
    k->kv_seal_q8(f16[0], q8, dim);
    k->kv_seal_q4(f16[0], q4, dim);
    void *work = aligned_alloc(64, (k->attn_run_work(n_q, dim) + 63) / 64 * 64);
    plp_attn a = { n_q, dim, q, m, s, acc, 0 };
    const plp_seen all = { 0 };
    for (int i = atoi(argv[4]); i > 0; i--) {
        if (!strcmp(argv[1], "attn_f16"))     k->attn_f16(&a, f16[0], 16, all, NULL);
        if (!strcmp(argv[1], "attn_f16_run")) k->attn_f16_run(&a, (const void *const *)f16, 16, (plp_seen){ lo, hi }, work);
        if (!strcmp(argv[1], "attn_q8"))      k->attn_q8(&a, q8, 16, all, NULL);
        if (!strcmp(argv[1], "attn_q4"))      k->attn_q4(&a, q4, 16, all, NULL);
        if (!strcmp(argv[1], "kv_seal_q8"))   k->kv_seal_q8(f16[0], q8, dim);
        if (!strcmp(argv[1], "kv_seal_q4"))   k->kv_seal_q4(f16[0], q4, dim);
    }
    return 0;
}
"""


def instructions(program):
    """{address: (mnemonic, operands, function)}"""
    text = subprocess.run([CROSS + "objdump", "-d", "--no-show-raw-insn", program], check=True, capture_output=True, text=True).stdout
    found, function = {}, ""
    for line in text.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.+)>:", line):
            function = head[1]
        elif one := re.match(r"\s+([0-9a-f]+):\s+(\S+)\s*(.*)", line):
            found[int(one[1], 16)] = (one[2], one[3], function)
    return found


def executed(program, tier, case, times, log):
    """How often each address was executed."""
    subprocess.run(["qemu-aarch64-static", "-cpu", "max", "-singlestep", "-d", "exec,nochain", "-D", log,
                    program, *map(str, case), str(times)], check=True, env={**os.environ, "PLP_CPU": tier})
    with open(log) as lines:
        return collections.Counter(int(line.split("/")[1], 16) for line in lines if line.startswith("Trace"))


def count(code, program, tier, case, log):
    total = collections.Counter()
    once, twice = (executed(program, tier, case, times, log) for times in (1, 2))
    for address, n in twice.items():
        mnemonic, operands, function = code[address]
        if function in ("main", "strcmp", ".plt") or n == once[address]:
            continue
        n -= once[address]
        total["all"] += n
        if re.match(r"ld|st|prfm", mnemonic):
            total["memory"] += n
        elif re.search(r"\b[vqdsh]\d+\b", operands):
            total["vector"] += n
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, default=ROOT / "build-cross/arm/libplp.a")
    parser.add_argument("--tier", action="append")
    options = parser.parse_args()
    for tool in ("qemu-aarch64-static", CROSS + "gcc", CROSS + "objdump"):
        if not shutil.which(tool):
            sys.exit(f"skipped: {tool} is absent")
    if not options.library.exists():
        sys.exit(f"skipped: {options.library} is absent; tests/cross/run arm builds it")
    print("| kernel | queries | channels | tier | vector | memory | all |\n| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        source, program, log = (Path(folder, name) for name in ("count.c", "count", "log"))
        source.write_text(SOURCE % UNITS)
        subprocess.run([CROSS + "gcc", "-O1", "-static", "-D_GNU_SOURCE", f"-I{ROOT / 'native'}", f"-I{ROOT / 'native/include'}",
                        source, options.library, "-lm", "-lpthread", "-o", program], check=True)
        code = instructions(program)
        for case in CASES:
            for tier in options.tier or ["neon", "dotprod"]:
                if tier != "neon" and not re.match("attn_q", case[0]):
                    continue            # the same kernel
                total = count(code, program, tier, case, log)
                parts = case[1] * (UNITS if case[0] == "attn_f16_run" else 1)
                print(f"| {case[0]} | {case[1]} | {case[2]} | {tier} | {total['vector'] / parts:.0f} | {total['memory'] / parts:.0f} "
                      f"| {total['all'] / parts:.0f} |", flush=True)


if __name__ == "__main__":
    main()
