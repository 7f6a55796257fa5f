"""
Broken GPU kernels: each is the portable source with one change, and the checks must notice every one.

    python gpu_mutants.py FOLDER        writes FOLDER/<number>/kernels.c, what it includes, and FOLDER/gpu_mutants.def
    python gpu_mutants.py --count       how many there are

A change names text that stands exactly once in its file; when the source moves on, this script says so.
"""
import sys
from pathlib import Path

BACKEND = Path(__file__).resolve().parents[2] / "native" / "backend"
KERNELS = BACKEND / "gpu" / "kernels"

MUTANTS = [
    # missing barriers
    ("rmsnorm overwrites what others still sum", "rows.h",
     "SQRT(sum / (float)a.n + a.eps);\n    BARRIER();                      /* y may be x */", "SQRT(sum / (float)a.n + a.eps);"),
    ("matvec adds terms that are not there yet", "linear_body.h",
     "        SIMD_BARRIER();\n        if (my_token < a.n) {", "        if (my_token < a.n) {"),
    ("matvec overwrites terms before they are added", "linear_body.h",
     "mine[LANE * 33 + i];\n        }\n        SIMD_BARRIER();", "mine[LANE * 33 + i];\n        }"),
    ("matmul stages over a tile in use", "linear_body.h", "        BARRIER();\n        /* A thread unpacks", "        /* A thread unpacks"),
    ("matmul uses a tile before it is staged", "linear_body.h", "        BARRIER();\n\n        for (u32 b = 0; b < n; b++)", "        for (u32 b = 0; b < n; b++)"),
    ("attention reads probabilities too early", "attention_body.h",
     "                        SIMD_BARRIER();\n                        for (u32 t = 0; t < UNIT; t++)", "                        for (u32 t = 0; t < UNIT; t++)"),
    ("attention reads queries too early", "attention_body.h",
     "        SIMD_BARRIER();\n\n        const u32 lowest", "        const u32 lowest"),
    ("q4 sealing reads ranges too early", "kv.h", "        BARRIER();\n        float width = 0.0f", "        float width = 0.0f"),
    ("threads leave before a barrier", "rows.h",
     "KERNEL(layernorm, norm_args)\n{", "KERNEL(layernorm, norm_args)\n{\n    if (THREAD >= a.n)\n        return;"),
    # tails and reads past the end
    ("copy writes one word too many", "rows.h", "    if (i < a.n)\n        a.to[i] = a.from[i];", "    if (i <= a.n)\n        a.to[i] = a.from[i];"),
    ("matvec reads a block past the row", "linear_body.h", "        if (b < n_blocks) {", "        if (b <= n_blocks) {"),
    ("float matvec reads rows that do not exist", "linear_float_body.h", "(row < a.rows ? row : a.rows - 1)", "row"),
    ("matmul reads rows that do not exist", "linear_body.h",
     "(row0 + r < a.rows ? row0 + r : a.rows - 1) * a.row_bytes;\n            LOCAL", "(row0 + r) * a.row_bytes;\n            LOCAL"),
    ("attention sees one token too far", "attention_body.h", "to = pos[i] + 1;", "to = pos[i] + 2;"),
    ("the window begins one token early", "attention.h", "pos + 1 > window ? pos + 1 - window : 0", "pos > window ? pos - window : 0"),
    ("the last split is not folded", "attention.h", "i < f->n_splits", "i + 1 < f->n_splits"),
    # wrong indices
    ("Q6_K takes the wrong high bits", "linear.h", "(four_bytes(high + 4 * i) >> (2 * c)", "(four_bytes(high + 4 * i) >> (2 * (c % 2))"),
    ("Q4_K takes the wrong scale bits", "linear.h", "(packed[j + 4] & 15u) | (u32)(packed[j - 4] >> 6) << 4", "(packed[j + 4] & 15u) | (u32)(packed[j] >> 6) << 4"),
    ("Q5_K takes its neighbour's fifth bits", "linear.h", ">> (b % 8) & 0x01010101u", ">> ((b ^ 1) % 8) & 0x01010101u"),
    ("rope pairs across the head, not the rotated part", "rows.h", "apart = a.neox ? pairs : 1", "apart = a.neox ? a.head_dim / 2 : 1"),
    ("keys go to another slot", "kv.h", "k[d * a.block_len + slot] =", "k[d * a.block_len + (slot ^ 1)] ="),
    ("attention asks the first block of the table", "attention_body.h", "tile_of(a.sealed[seq->first_block + b].at, a.layer", "tile_of(a.sealed[seq->first_block].at, a.layer"),
    ("a sequence's blocks begin at 0", "kv.h", "a.open[s->first_block + r->pos / a.block_len]", "a.open[r->pos / a.block_len]"),
    ("a kv head takes its neighbour's queries", "attention_body.h", "(GROUP_Y * G + n % G) * D;", "(GROUP_Y * G + (n + 1) % G) * D;"),
    ("q8 values of the wrong tokens", "attention_body.h", "(i32)v[2 * D + ch], (i32)v[3 * D + ch]", "(i32)v[3 * D + ch], (i32)v[2 * D + ch]"),
    # wrong scales and formulas
    ("activations are scaled for 128 steps", "linear.h", "zero ? 0.0f : most / 127.0f;", "zero ? 0.0f : most / 128.0f;"),
    ("the minimum is not multiplied with the sum", "linear.h", "d1) FMA((w)[1], (x)[1], TERM_SYM", "d1) FMA((w)[1], (x)[0], TERM_SYM"),
    ("the second half's minimum is multiplied with the first's sum", "linear.h", "FMA((w)[2], (x)[2], FMA", "FMA((w)[2], (x)[1], FMA"),
    ("the sum is not shrunk for a new maximum", "attention_body.h", "                            s[i] = s[i] * shrink;\n", ""),
    ("queries are not scaled", "attention_body.h", "from[d] * a.scale", "from[d]"),
    ("the soft cap is forgotten", "attention_body.h", "if (a.softcap > 0.0f)", "if (a.softcap < 0.0f)"),
    ("sinks are forgotten when splits are folded", "attention.h", "if (a.sinks)", "if (a.sinks && a.head_dim == 0)"),
    ("a token attends its own block sealed", "attention_body.h", "(pos[i] / len == b) == (own == 1)", "(pos[i] / len >= b) == (own == 1)"),
    ("q4 units are swapped", "kv.h", "units[2 * part] = us;", "units[2 * part] = um;"),
]


def write(folder):
    local = {path.name: path.read_text().replace('"backend/gpu/kernels/', '"') for path in KERNELS.iterdir()}
    local["kernels.c"] = (BACKEND / "emu" / "kernels.c").read_text().replace('"backend/gpu/kernels/', '"')
    for i, (name, file, old, new) in enumerate(MUTANTS):
        if local[file].count(old) != 1:
            sys.exit(f"{file}: {local[file].count(old)} places for the mutant \"{name}\"; it needs a new one")
        (folder / str(i)).mkdir(parents=True, exist_ok=True)
        for path, text in {**local, file: local[file].replace(old, new)}.items():
            if path == "kernels.c":
                text = f"#define PLP_EMU_TABLE plp_mutant_{i}\n" + text
            (folder / str(i) / path).write_text(text)
    lines = [f'MUTANT({i}, "{name}")\n' for i, (name, *_) in enumerate(MUTANTS)]
    (folder / "gpu_mutants.def").write_text("".join(lines))


if __name__ == "__main__":
    if sys.argv[1:] == ["--count"]:
        print(len(MUTANTS))
    else:
        write(Path(sys.argv[1]))
