"""What the documentation shows is true: its programs run."""
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / path).read_text(), re.S | re.M)


def test_the_readmes_python(smol_path, script):
    code, _ = blocks("README.md", "python")
    out = script(code.replace('"smollm2-135m"', repr(str(smol_path))))
    assert "SessionMemory" in out and "Memory(" in out and len(out) > 200


def test_the_readmes_python_about_tools(puppet):
    from test_toolcalls import QWEN

    _, code = blocks("README.md", "python")
    # What it says after a result begins in the middle of what it says without one.
    model = puppet(['<tool_call>{"name": "clock"}</tool_call>', "\v", "Noon."], template=QWEN + "{% if messages[-1].role == 'tool' %}\v{% endif %}")
    ran = []
    names = {"model": model, "run": lambda name, arguments: ran.append((name, arguments)) or "12:00"}
    exec(code, names)
    assert ran == [("clock", "{}")] and names["answer"].text == "Noon."


def test_the_c_program(makers, tmp_path):
    compiler, library = shutil.which("cc"), ROOT / "build" / "python" / "libplp.a"
    if not compiler or not library.exists():
        pytest.skip("no C compiler, or libplp.a is not in build/python")
    source, = blocks("docs/c-api.md", "c")
    (tmp_path / "a.c").write_text(source)
    subprocess.run([compiler, "-Wall", "-Werror", f"-I{ROOT}/native/include", tmp_path / "a.c", library, "-o", tmp_path / "a",
                    "-lpthread", "-lm", *(["-ldl"] if sys.platform == "linux" else [])], check=True)
    model = makers.puppet(tmp_path / "p.gguf", ["One", " two"])
    done = subprocess.run([tmp_path / "a", model, "x"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "One two\n")
    done = subprocess.run([tmp_path / "a", tmp_path / "none.gguf", "x"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "none.gguf" in done.stderr


def test_every_command_and_option_named_is_there():
    text = (ROOT / "README.md").read_text()
    for name in set(re.findall(r"^pyllama-paged (\w+)", text, re.M)):
        done = subprocess.run([sys.executable, "-m", "pyllama_paged.cli.main", name, "--help"], capture_output=True, text=True)
        assert done.returncode == 0, name
    known = subprocess.run([sys.executable, "-m", "pyllama_paged.cli.main", "run", "--help"], capture_output=True, text=True).stdout
    for option in re.findall(r"`(-m -c [^`]*)`", text)[0].split():
        assert re.search(rf"(^|[ ,]){re.escape(option)}\b", known, re.M), option
