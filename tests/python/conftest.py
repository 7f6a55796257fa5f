"""
What the Python tests share: where models and reference data are, and models made on the spot.

smol     the default model: PLP_MODEL, or models/cache/ (make model fetches it)
shared   reference data beside the project: PLP_SHARED, or ../shared
tiny     random weights, made here          puppet   a model that says what it is told

Tests that need what is not there are skipped with a sentence that says so.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))                       # for models/, which is no installed package

from pyllama_paged import Model                     # noqa: E402

SMOL = Path(os.environ.get("PLP_MODEL") or ROOT / "models" / "cache" / "SmolLM2-135M-Instruct.Q4_1.gguf")
SHARED = Path(os.environ.get("PLP_SHARED") or ROOT.parent / "shared")
THREADS = int(os.environ.get("PLP_TEST_THREADS") or 0)      # fewer, where the machine has other work too


def fed(splitter, text, tokens=(), cuts=None):
    """All pieces of a text, in which marks that are tokens are spelled; pushed in pieces of the sizes `cuts`."""
    out, cuts = [], iter(cuts or ())
    while text:
        if found := next((t for t in tokens if text.startswith(t)), None):
            out += splitter.mark(found)
            text = text[len(found):]
            continue
        end = min([n for t in tokens if (n := text.find(t)) >= 0] + [len(text), next(cuts, len(text))])
        out += splitter.push(text[:end])
        text = text[end:]
    return out + splitter.finish()


@pytest.fixture(scope="session")
def smol_path():
    if not SMOL.is_file():
        pytest.skip(f"the default model is not at {SMOL}; `make model` fetches it")
    return SMOL


@pytest.fixture(scope="session")
def smol(smol_path):
    with Model.open(smol_path, threads=THREADS) as model:
        yield model


@pytest.fixture(scope="session")
def shared():
    if not SHARED.is_dir():
        pytest.skip(f"there is no reference data at {SHARED} (PLP_SHARED)")
    return SHARED


@pytest.fixture(scope="session")
def makers():
    """The module that writes small models."""
    from models import tiny

    return tiny


@pytest.fixture(scope="session")
def tiny_path(makers, tmp_path_factory):
    return makers.tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def tiny(tiny_path):
    with Model.open(tiny_path) as model:
        yield model


@pytest.fixture
def puppet(makers, tmp_path):
    """puppet(["The", " fox"], context=64): a model that says these pieces after anything."""
    opened = []

    def make(say, options=None, **kwargs):
        path = makers.puppet(tmp_path / f"puppet{len(opened)}.gguf", say, **kwargs)
        opened.append(Model.open(path, **(options or {})))
        return opened[-1]

    yield make
    for model in opened:
        model.close()


@pytest.fixture
def command(tmp_path):
    """command("run", "-p", "x", input="", env={}): the command as a process; output is text."""
    def run(*args, input="", env=None, timeout=240, **options):
        return subprocess.run(
            [sys.executable, "-m", "pyllama_paged.cli.main", *map(str, args)], input=input, capture_output=True, text=True,
            timeout=timeout, cwd=tmp_path, env={**os.environ, "XDG_STATE_HOME": str(tmp_path), **(env or {})}, **options)

    return run


@pytest.fixture
def script(tmp_path):
    """script("code", "arg"): Python code in a process of its own; returns its output, fails with its errors."""
    def run(code, *args, timeout=240, env=None):
        done = subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, timeout=timeout,
                              cwd=tmp_path, env={**os.environ, **(env or {})})
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
