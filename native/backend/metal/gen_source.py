"""
The portable kernels as one Metal source: includes are put in place, comments and blank lines left out.

    python gen_source.py OUT.h          a C array `plp_metal_source`
    python gen_source.py OUT.metal      the text itself (for a check by a compiler)
"""
import re
import sys
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[2]
PARTS = ["tile.h", "prelude_metal.h", "args.h", "all.h"]


def inlined(path):
    text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
    lines = []
    for line in text.splitlines():
        include = re.match(r'\s*#include "(.*)"', line)
        if include:
            lines += inlined(NATIVE / include[1])
        elif line.strip():
            lines.append(line.rstrip())
    return lines


def main(out):
    text = "\n".join(line for part in PARTS for line in inlined(NATIVE / "backend" / "gpu" / "kernels" / part)) + "\n"
    if out.suffix == ".metal":
        out.write_text(text)
        return
    data = text.encode() + b"\0"
    rows = [",".join(map(str, data[i:i + 32])) for i in range(0, len(data), 32)]
    out.write_text("static const char plp_metal_source[] = {\n" + ",\n".join(rows) + "\n};\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
