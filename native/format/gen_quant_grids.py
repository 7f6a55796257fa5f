#!/usr/bin/env python3
"""
Writes quant_grids.h from the grids in gguf-py (MIT licence), the reference that the tests compare
with. The header is committed, because the build does not need gguf; run this after a change there:

    python native/format/gen_quant_grids.py > native/format/quant_grids.h
"""
from gguf import quants

GRIDS = [("iq2_xxs", quants.IQ2_XXS, 2), ("iq2_xs", quants.IQ2_XS, 2), ("iq2_s", quants.IQ2_S, 2),
         ("iq3_xxs", quants.IQ3_XXS, 4), ("iq3_s", quants.IQ3_S, 4), ("iq1", quants.IQ1_S, 2)]


def codes(quant, bits):
    """The grid's entries, each value replaced by its place in grid_map and packed, first lowest."""
    quant.init_grid()
    grid = quant.grid.reshape(quant.grid_shape)
    place = {float(value): i for i, value in enumerate(quant.grid_map)}
    assert len(place) <= 1 << bits
    return [sum(place[float(v)] << (bits * i) for i, v in enumerate(row)) for row in grid]


def main():
    print("/* format/quant_grids.h - written by gen_quant_grids.py from the grids of gguf-py (MIT licence).\n"
          " * One number per entry: its 8 values as 2-bit codes, or its 4 values as 4-bit codes, first value lowest. */\n"
          "#ifndef PLP_FORMAT_QUANT_GRIDS_H\n#define PLP_FORMAT_QUANT_GRIDS_H\n\n#include <stdint.h>")
    for name, quant, bits in GRIDS:
        numbers = codes(quant, bits)
        print(f"\nstatic const uint16_t plp_grid_{name}[{len(numbers)}] = {{")
        for i in range(0, len(numbers), 16):
            print("    " + ",".join(f"0x{n:04x}" for n in numbers[i:i + 16]) + ",")
        print("};")
    print("\n#endif")


if __name__ == "__main__":
    main()
