"""
What ptxas says of the CUDA kernels: registers, spills, shared memory, and the occupancy that follows.

    python bench/ptxas_table.py build/generated/ptxas.log ... > bench/results/cuda-ptxas.md

The log is what `nvcc -Xptxas -v` prints (the build with PLP_CUDA=ON keeps it). Occupancy is computed, not measured:
groups of a multiprocessor as registers, shared memory, threads and the limit on groups allow.
"""
import re
import sys
from pathlib import Path

THREADS = 128
# Per multiprocessor: shared memory in KiB, threads, groups; registers are 65,536 everywhere.
LIMITS = {75: (64, 1024, 16), 80: (164, 2048, 32), 86: (100, 1536, 16), 89: (100, 1536, 24), 90: (228, 2048, 32),
          100: (228, 2048, 32), 120: (100, 1536, 24)}
ENTRY = re.compile(r"Compiling entry function 'plp_k_(\w+)' for 'sm_(\d+)a?'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
                   r"(\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)", re.S)


def occupancy(target, registers, shared):
    memory, threads, groups = LIMITS[target]
    per_warp = -(-registers * 32 // 256) * 256
    fits = min(threads // THREADS, groups, 65536 // (per_warp * (THREADS // 32)), memory * 1024 // (shared + 1024))
    return fits * THREADS / threads


def main(paths):
    kernels = {}
    for path in paths:
        for name, target, _, stores, loads, registers, rest in ENTRY.findall(Path(path).read_text()):
            shared = re.search(r"(\d+) bytes smem", rest)
            shared = int(shared[1]) if shared else 0
            kernels.setdefault(name, {})[int(target)] = (int(registers), int(stores) + int(loads), shared)
    targets = sorted({t for k in kernels.values() for t in k})
    print("# CUDA kernels as ptxas compiled them\n")
    print("Registers of a thread / bytes spilled / occupancy in percent, per compute capability; shared memory in bytes. Compiled with nvcc 13.0,")
    print(f"`-O3 -fmad=false`, groups of {THREADS} threads. Not run: no GPU was at hand.\n")
    print("| kernel | shared | " + " | ".join(f"{t / 10:.1f}" for t in targets) + " |")
    print("| --- | ---: | " + " | ".join("---:" for _ in targets) + " |")
    for name, by_target in sorted(kernels.items()):
        cells = [f"{r} / {s} / {occupancy(t, r, m):.0%}" for t in targets for r, s, m in [by_target[t]]]
        print(f"| {name} | {max(m for _, _, m in by_target.values())} | " + " | ".join(cells) + " |")
    spilling = sorted({name for name, k in kernels.items() if any(s for _, s, _ in k.values())})
    print(f"\n{len(kernels)} kernels; {len(spilling)} spill on some target" + (": " + ", ".join(spilling) if spilling else "") + ".")


if __name__ == "__main__":
    main(sys.argv[1:])
