"""The Metal source: a compiler that knows address spaces accepts it, and rejects it when one is mixed up."""
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT

CLANG = next((p for n in ("clang-19", "clang-18", "clang-17", "clang-16", "clang") if (p := shutil.which(n))), None)


def refused(text, folder):
    # A C++ compiler wants shared arrays of a kernel to be static; Metal has them so anyway.
    source = folder / "kernels.metal"
    source.write_text(text.replace("threadgroup T name[n]", "static threadgroup T name[n]"))
    done = subprocess.run([CLANG, "-x", "c++", "-std=c++14", "-fsyntax-only", "-Wno-unknown-attributes", "-I", str(ROOT / "tests" / "metal"),
                           str(source)], capture_output=True, text=True, timeout=300)
    return done.stderr if done.returncode else ""


@pytest.mark.skipif(not CLANG, reason="no clang, which knows address spaces, is installed")
def test_address_spaces(tmp_path):
    subprocess.run([sys.executable, str(ROOT / "native" / "backend" / "metal" / "gen_source.py"), str(tmp_path / "all.metal")], check=True)
    text = (tmp_path / "all.metal").read_text()
    assert refused(text, tmp_path) == ""
    for right, wrong in (("DEVICE const u8 *p = row + b / 8 * 210u;", "LOCAL const u8 *p = row + b / 8 * 210u;"),
                         ("LOCAL float *mine = terms", "DEVICE float *mine = terms"),
                         ("DEVICE u8 *scales = to_k", "PRIVATE u8 *scales = to_k")):
        assert right in text
        assert "address space" in refused(text.replace(right, wrong), tmp_path) or "cannot initialize" in refused(text.replace(right, wrong), tmp_path)
