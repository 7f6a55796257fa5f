"""Count the instructions of the ARM kernels' hot loops, from the compiled code.

    python bench/arm_instructions.py [--compiler aarch64-linux-gnu-gcc | clang-19] ... > table.md

There is no ARM machine in every workshop, so this counts what can be counted: each tier's products are compiled
one function a format, disassembled, and their innermost loops taken apart. The ideal beside it counts only the
arithmetic that the contract asks for (dots, conversion, scales, sum), as if loads and bookkeeping were free.
Vector instructions are what bounds these loops on every core with two or more load ports.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUANTS = {name: (int(length), form) for name, length, form in re.findall(
    r"^QUANT\( *\d+, (\w+), *(\d+), *\d+, (\w+)\)", (ROOT / "native/format/quants.def").read_text(), re.M) if form != "FLT"}
FORMS = {name: form for name, (_, form) in QUANTS.items()}
EARLY = {"Q8_0", "IQ4_NL", "IQ4_XS", "Q5_1", "Q5_K", "Q2_K"}        # neon: products that are widened before they are folded
TIERS = {
    "neon": "-march=armv8-a",
    "dotprod": "-march=armv8.2-a+dotprod+fp16",
    "i8mm": "-march=armv8.2-a+dotprod+fp16+i8mm",
}
DOTS = re.compile(r"sdot|smmla|smull2?|smlal2?")

SOURCE = """
void hot_direct_{name}(const plp_rows *w, uint32_t r0, uint32_t r1, const x_block *x, float *y);
void hot_direct_{name}(const plp_rows *w, uint32_t r0, uint32_t r1, const x_block *x, float *y)
{{
    direct_tokens(PLP_TYPE_{name}, PLP_FORM_{form}, 1, w, r0, r1, x, y, 1, false);
}}
void hot_tile_{name}(const panel_block *w, const x_tile *x, uint32_t n, float (*out)[4]);
void hot_tile_{name}(const panel_block *w, const x_tile *x, uint32_t n, float (*out)[4])
{{
    float32x4_t acc[N_GROUPS];
    for (int g = 0; g < N_GROUPS; g++)
        acc[g] = vld1q_f32(out[g]);
    tile(PLP_TYPE_{name}, PLP_FORM_{form}, w, x, n, acc);
    for (int g = 0; g < N_GROUPS; g++)
        vst1q_f32(out[g], acc[g]);
}}
void hot_unpack_{name}(const plp_rows *w, uint32_t r, uint32_t r1, uint32_t b0, uint32_t b1, panel_block *panel, uint32_t quad);
void hot_unpack_{name}(const plp_rows *w, uint32_t r, uint32_t r1, uint32_t b0, uint32_t b1, panel_block *panel, uint32_t quad)
{{
    unpack(PLP_TYPE_{name}, w, r, r1, b0, b1, panel, quad);
}}
"""


def functions(compiler, tier):
    """{function: [(address, mnemonic, operands)]}, of all formats at once: the tier's file is compiled with them"""
    flags = "-O3 -std=gnu11 -ffp-contract=off -fno-math-errno -fno-strict-aliasing -D_GNU_SOURCE".split()
    if "clang" not in compiler:
        flags.append("-fno-ipa-icf")        # formats of one form have the same tile, and each is to be found
    else:
        flags += ["--target=aarch64-linux-gnu", "-isystem", "/usr/aarch64-linux-gnu/include"]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "hot.c"), Path(folder, "hot.o")
        source.write_text(f'#include "kernels/arm/{tier}_linear.c"\n'
                          + "".join(SOURCE.format(name=name, form=form) for name, form in FORMS.items()))
        includes = [f"-I{ROOT / 'native'}", f"-I{ROOT / 'native/include'}"]
        subprocess.run([compiler, *flags, TIERS[tier], *includes, "-c", source, "-o", target], check=True)
        text = subprocess.run(["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", target],
                              check=True, capture_output=True, text=True).stdout
    found, current = {}, None
    for line in text.splitlines():
        if head := re.match(r"[0-9a-f]+ <(\w+)>:", line):
            current = found.setdefault(head[1], [])
        elif instruction := re.match(r"\s+([0-9a-f]+):\s+(\S+)\s*(.*)", line):
            current.append((int(instruction[1], 16), instruction[2], instruction[3]))
    return found


def loops(code):
    """[(first, last)] index pairs of backward branches."""
    at = {address: i for i, (address, _, _) in enumerate(code)}
    pairs = set()
    for i, (address, mnemonic, operands) in enumerate(code):
        target = re.search(r"\b([0-9a-f]+) <", operands)
        if target and re.fullmatch(r"b|b\.\w+|cbn?z|tbn?z", mnemonic) and int(target[1], 16) <= address:
            pairs.add((at[int(target[1], 16)], i))
    return sorted(pairs)


def count(code, first, last):
    total = {"all": 0, "dots": 0, "vector": 0, "memory": 0}
    for _, mnemonic, operands in code[first:last + 1]:
        total["all"] += 1
        if re.match(r"ld|st|prfm", mnemonic):
            total["memory"] += 1
        elif re.search(r"\b[vqds]\d+\b", operands):
            # A zeroed register is renamed, not computed.
            total["vector"] += not (mnemonic == "movi" and operands.endswith("#0x0"))
            total["dots"] += bool(DOTS.fullmatch(mnemonic))
    return total


def per_block(code, unit, wants):
    """Instructions for one block step: the inner loop, plus a share of what a unit needs once around it."""
    all_loops = loops(code)
    inner = [p for p in all_loops if not any(q != p and p[0] <= q[0] and q[1] <= p[1] for q in all_loops)]
    inner = max((p for p in inner if wants(code[p[0]:p[1] + 1])), key=lambda p: p[1] - p[0])
    body = count(code, *inner)
    if unit == 1:
        return body
    outer = min((p for p in all_loops if p != inner and p[0] <= inner[0] and inner[1] <= p[1]),
                key=lambda p: p[1] - p[0], default=None)
    if not outer:               # a compiler may unroll the whole unit: then what was found is the loop over units
        return {key: value / unit for key, value in body.items()}
    around = count(code, *outer)
    return {key: body[key] + (around[key] - body[key]) / unit for key in body}


def ideal_vector(tier, name, direct):
    """Vector instructions per 128 multiply-adds (4 rows x 1 token, or 2 x 2, of one 32-block)."""
    smmla = tier == "i8mm" and not direct
    halves = 2 if FORMS[name] == "SUB" else 1
    floats = {"SYM": 4, "MIN": 5, "SUB": 6, "MN2": 6}[FORMS[name]]
    if tier == "neon":          # 8-bit multiplies, and what brings four rows' lanes into one vector
        dots = 16
        fold = 8 + 3 if name in EARLY else 4 * halves
    else:
        dots = 4 if smmla else 8
        fold = 3 * halves if direct else 0
    return dots + fold + floats


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", action="append")
    compilers = parser.parse_args().compiler or ["aarch64-linux-gnu-gcc"]
    for tool in [*compilers, "aarch64-linux-gnu-objdump"]:
        if not shutil.which(tool):
            sys.exit(f"skipped: {tool} is absent")
    dotted = lambda part: any(DOTS.fullmatch(m) for _, m, _ in part)            # noqa: E731
    stores = lambda part: sum(m.startswith("st") for _, m, _ in part) >= 4      # noqa: E731
    for compiler in compilers:
        version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
        print(f"## {version}\n")
        print("| tier | format | prefill: vector (ideal) | memory | all | decode: vector (ideal) | memory | all | unpack: all per 1,024 weights |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for tier in TIERS:
            code = functions(compiler, tier)
            for name in FORMS:
                unit = QUANTS[name][0] // 32
                # A tile step is 8 rows x 4 tokens x 32 = 1,024 multiply-adds, a direct step 4 x 32 = 128.
                tile = per_block(code["hot_tile_" + name], 1, dotted)
                direct = {k: 8 * v for k, v in per_block(code["hot_direct_" + name], unit, dotted).items()}
                unpack = 8 * per_block(code["hot_unpack_" + name], unit, stores)["all"]
                print(f"| {tier} | {name} | {tile['vector']} ({8 * ideal_vector(tier, name, False)}) | {tile['memory']} | {tile['all']} "
                      f"| {direct['vector']:.0f} ({8 * ideal_vector(tier, name, True)}) | {direct['memory']:.0f} | {direct['all']:.0f} | {unpack:.0f} |")
        print()


if __name__ == "__main__":
    main()
