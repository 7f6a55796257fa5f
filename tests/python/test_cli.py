"""The command as a process: answers on stdout, one sentence on stderr when something is wrong, exit codes."""
import io
import json
import os
import struct
import subprocess
import sys
from unittest import mock

import pytest
from hypothesis import example, given, strategies as st

from pyllama_paged import Reasoning
from pyllama_paged.cli import looks
from pyllama_paged.cli.main import main


def one_sentence(done, *words):
    """Exit code 2, nothing on stdout, one line on stderr that holds the words and no trace."""
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == "" and len(lines) == 1 and lines[0].startswith("pyllama-paged"), done.stderr
    assert "Traceback" not in done.stderr and "Error:" not in done.stderr
    for word in words:
        assert word in lines[0], (word, lines[0])
    return lines[0]


# ---- answering

def test_chat_answers_what_is_piped_in(command, smol_path):
    done = command("chat", smol_path, input="What is the capital of France?\n")
    assert done.returncode == 0 and done.stderr == ""
    assert "Paris" in done.stdout and done.stdout.endswith("\n")


def test_chat_commands_and_several_lines(command, makers, tmp_path):
    path = makers.puppet(tmp_path / "p.gguf", ["One", " two", "."])
    done = command("chat", path, input='/help\n"""\nfirst\n\nsecond\n"""\n/stats\n/mem\n/clear\n/system Be kind.\nhello\n/regen\n/exit\nnot reached\n')
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("One two.") == 3
    for name in ("help", "exit", "clear", "regen", "system", "mem", "stats", "set"):
        assert f"/{name}" in done.stdout
    assert "blocks" in done.stderr and "reused" in done.stderr


def test_chat_ends_with_a_sentence_where_it_cannot_go_on(command, makers, tmp_path):
    path = makers.puppet(tmp_path / "p.gguf", ["a"], context=64)
    one_sentence(command("chat", path, input="/nothing\n"), "/nothing")
    one_sentence(command("chat", path, input="x" * 100 + "\n"), "64")


def test_run(command, makers, tmp_path):
    path = makers.puppet(tmp_path / "p.gguf", ["One", " two", " three"])
    done = command("run", path, "-p", "count")
    assert (done.returncode, done.stdout, done.stderr) == (0, "One two three\n", "")
    assert command("run", "-m", path, input="count").stdout == "One two three\n"
    assert command("run", path, "-p", "count", "-n", "2").stdout == "One two\n"
    assert command("run", path, "-p", "x", "--raw", "-t", "1", "-c", "100", "--temp", "0.01", "--top-k", "5", "--top-p", "0.9", "--min-p", "0.1",
                   "--seed", "3").stdout == "One two three\n"
    (tmp_path / "prompt.txt").write_text("count")
    assert command("run", path, "-f", tmp_path / "prompt.txt", "-sys", "Be kind.").stdout == "One two three\n"
    out = json.loads(command("run", path, "-p", "count", "--json").stdout)
    assert out["text"] == "One two three" and out["finish"] == "stop" and out["model"] == "p.gguf"
    assert out["usage"]["total_tokens"] == out["usage"]["prompt_tokens"] + out["usage"]["completion_tokens"]
    assert out["usage"]["completion_tokens"] == 4 and out["memory"]["kv_resident"] > 0
    assert out["usage"]["speculation"] == {"drafted_tokens": 0, "accepted_tokens": 0}
    assert command("run", path, "-p", "count", "--speculate", "on").stdout == "One two three\n"


def test_reasoning_is_not_in_what_other_programs_get(command, makers, tmp_path):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
    path = makers.puppet(tmp_path / "p.gguf", ["<think>", "Hm", ".", "</think>", "Yes", "!"], template=template)
    done = command("run", path, "-p", "so")
    assert (done.stdout, done.stderr) == ("Yes!\n", "")
    assert command("chat", path, "--think", "off", input="so\n").stdout == "Yes!\n"
    out = json.loads(command("run", path, "-p", "so", "--json", "--think", "on").stdout)
    assert (out["text"], out["reasoning"], out["usage"]["prompt_tokens"]) == ("Yes!", "Hm.", len("soTrue"))
    short = command("run", path, "-p", "so", "-n", "3")
    assert (short.returncode, short.stdout) == (0, "") and "only enough for reasoning" in short.stderr
    one_sentence(command("run", path, "-p", "so", "--think", "high"), "on, off")
    one_sentence(command("run", makers.puppet(tmp_path / "q.gguf", ["No"]), "-p", "so", "--think", "off"), "no switch")


def test_reasoning_is_dim_on_a_terminal(monkeypatch):
    screen = Screen()
    monkeypatch.setenv("COLUMNS", "20")
    typist = looks.Typist(screen)
    for piece in (Reasoning("Let me"), Reasoning(" see."), "Yes, ", "I do."):
        typist.write(piece)
    typist.finish()
    typist.write(Reasoning("Only this"))
    typist.finish()
    assert screen.getvalue() == "\x1b[2mLet me see.\n\n\x1b[0mYes, I do.\n\x1b[2mOnly this\n\x1b[0m"


def test_piped_text_comes_before_the_prompt(command, makers, tmp_path):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    path = makers.puppet(tmp_path / "p.gguf", ["One"], template=template)
    both = json.loads(command("run", path, "-p", "abc", "--json", input="12345\n").stdout)
    assert both["usage"]["prompt_tokens"] == len("12345\n\nabc")


def test_the_same_seed_gives_the_same_text(command, tiny_path):
    runs = [command("run", tiny_path, "-p", "x", "-n", "20", "--temp", "1", "--seed", seed).stdout for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_full_context_is_said(command, makers, tmp_path):
    path = makers.puppet(tmp_path / "p.gguf", ["a", "b"], cycle=True, context=64)
    done = command("run", path, "-p", "x")
    assert done.returncode == 0 and "context of 64 tokens is full" in done.stderr


# ---- what is wrong

@pytest.mark.parametrize("args, words", [
    (["run", "-p", "x"], ["nothing-here.gguf"]), (["inspect"], ["nothing-here.gguf"]), (["chat"], ["nothing-here.gguf"])])
def test_a_file_that_is_not_there(command, args, words):
    one_sentence(command(args[0], "nothing-here.gguf", *args[1:]), *words)


@pytest.mark.parametrize("name, content, words", [
    ("empty", b"", ["empty"]),
    ("page", b"<!DOCTYPE html><html><body>Sign in</body></html>", ["page"]),
    ("pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n", ["pointer"]),
    ("zip", b"PK\x03\x04" + bytes(100), ["zip"]),
    ("magic", b"GGUX" + bytes(100), []),
    ("version", b"GGUF" + struct.pack("<IQQ", 99, 0, 0), ["99"]),
    ("big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), ["endian"]),
    ("tensors", b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), []),
    ("pairs", b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), []),
    ("empty-key", b"GGUF" + struct.pack("<IQQQIB", 3, 0, 1, 0, 0, 1), ["key", "empty"]),
])
def test_files_that_are_none(command, tmp_path, name, content, words):
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(content)
    one_sentence(command("run", path, "-p", "x"), f"{name}.gguf", *words)


def test_a_folder_and_a_file_one_may_not_read(command, tmp_path):
    (tmp_path / "folder.gguf").mkdir()
    one_sentence(command("run", tmp_path / "folder.gguf", "-p", "x"), "folder.gguf")
    closed = tmp_path / "closed.gguf"
    closed.write_bytes(b"GGUF")
    closed.chmod(0)
    if not os.access(closed, os.R_OK):
        one_sentence(command("run", closed, "-p", "x"), "closed.gguf", "ermission")


@pytest.mark.parametrize("args", [
    ["run", "-p"], ["nothing"], ["prefix"], ["run", "-p", "x", "--temp", "warm"], ["inspect"], ["run", "MODEL", "-p", "x", "--kv", "f12"]])
def test_arguments_that_cannot_be(command, args):
    done = command(*args)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 2


@pytest.mark.parametrize("args, words", [
    (["--temp", "-1"], ["temperature"]), (["--top-p", "3"], ["top_p"]), (["-t", "-2"], ["threads"]), (["--kv-budget", "lots"], ["lots"]),
    (["--kv-budget", "1KiB"], ["budget"]), (["--device", "abacus"], ["abacus"]), (["--kv-budget", "99999999999TiB"], ["99999999999TiB"]),
    (["--kv-budget", "9" * 400], ["999"]), (["--top-k", "99999999999"], ["top_k"]), (["-c", "99999999999"], ["context"])])
def test_settings_that_cannot_be(command, tiny_path, args, words):
    one_sentence(command("run", tiny_path, "-p", "x", *args), *words)


def test_no_prompt(command, tiny_path):
    one_sentence(command("run", tiny_path), "-p")
    one_sentence(command("run", tiny_path, "--raw", "-p", "x", "-sys", "y"), "--raw", "-sys")


def test_names_that_mean_nothing(command, tmp_path):
    one_sentence(command("run", "smolm2-135m", "-p", "x"), "smollm2-135m")
    one_sentence(command("pull", "what"), "catalog")
    listed = command("pull", "--list", env={"PLP_CACHE_DIR": str(tmp_path), "HF_HUB_CACHE": str(tmp_path)})
    assert listed.returncode == 0 and "  SmolLM2 135M Instruct, Q4_1; 93.8 MiB; Apache-2.0; QuantFactory/" in listed.stdout
    assert len(listed.stdout.splitlines()) >= 12 and "it is here" not in listed.stdout


def test_a_reader_that_goes_away(tiny_path, tmp_path):
    import subprocess
    import sys

    done = subprocess.run(f"{sys.executable} -m pyllama_paged.cli.main inspect {tiny_path} --tensors | head -c 10", shell=True,
                          capture_output=True, text=True, timeout=120)
    assert done.stderr == ""


@pytest.mark.parametrize("closed, said", [("<&-", "One two\n"), (">&-", ""), ("2>&-", "One two\n")])
def test_started_without_one_of_its_streams(makers, tmp_path, closed, said):
    import subprocess
    import sys

    path = makers.puppet(tmp_path / "p.gguf", ["One", " two"])
    for what in (f"run {path} -p x", f"chat {path}"):
        want = said if "run" in what or closed != "<&-" else ""
        done = subprocess.run(f"{'' if closed == '<&-' else 'echo x | '}{sys.executable} -m pyllama_paged.cli.main {what} {closed}", shell=True,
                              capture_output=True, text=True, timeout=240)
        assert (done.returncode, done.stdout, done.stderr) == (0, want, "")


def test_an_encoding_that_lacks_characters(command, makers, tmp_path):
    path = makers.puppet(tmp_path / "p.gguf", ["Ærø", " yes"])
    done = command("run", path, "-p", "x", env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "?r? yes\n", "")
    done = command("run", path, "-p", "x", env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "?r? yes\n", "")


# ---- inspect

def test_inspect(command, smol_path):
    out = command("inspect", smol_path).stdout
    for word in ("llama", "30 layers", "23,040 bytes a token", "8,192", "Q4_1", "smollm", "49,152", "general.architecture", "bos 1"):
        assert word in out, word
    facts = json.loads(command("inspect", smol_path, "--json", "--tensors").stdout)
    assert facts["bytes"] == 98362432 and facts["n_tensors"] == 272 == len(facts["tensors"]) and facts["problem"] is None
    assert facts["kv_bytes_per_token"] == 23040 and facts["vocab"]["eos"]["text"] == "<|im_end|>"


@pytest.mark.parametrize("n_bytes", [59_017_459, 1_785_665, 98_362_431])
def test_inspect_shows_what_an_incomplete_file_has(command, smol_path, tmp_path, n_bytes):
    short = tmp_path / "short.gguf"
    with open(smol_path, "rb") as f:
        short.write_bytes(f.read(n_bytes))
    done = command("inspect", short)
    assert done.returncode == 0 and "incomplete" in done.stdout and "llama.block_count" in done.stdout
    line = one_sentence(command("run", short, "-p", "x"), "short.gguf")
    assert str(n_bytes) in line.replace(",", "") and "98362432" in line.replace(",", "")


def test_inspect_every_vocabulary(shared, capsys):
    files = sorted((shared / "vocabs").glob("*.gguf"))
    for path in files:
        assert main(["inspect", str(path)]) == 0 and "tokenizer" in capsys.readouterr().out, path
    assert len(files) == 8


def test_inspect_says_that_there_is_no_bos(shared, tmp_path, capsys):
    data = (shared / "vocabs" / "ggml-vocab-qwen2.gguf").read_bytes()
    key = b"tokenizer.ggml.bos_token_id"
    assert data.count(key) == 1
    (tmp_path / "v.gguf").write_bytes(data.replace(key, key.replace(b"bos", b"b0s")))
    assert main(["inspect", str(tmp_path / "v.gguf")]) == 0 and "no bos" in capsys.readouterr().out
    assert main(["inspect", str(shared / "vocabs" / "ggml-vocab-qwen2.gguf")]) == 0 and "bos 151643" in capsys.readouterr().out


def test_inspect_every_tiny_model(makers, tmp_path, capsys):
    from models.architectures import CASES

    for name, case in CASES.items():
        case.write(tmp_path / "m.gguf", "F32")
        assert main(["inspect", str(tmp_path / "m.gguf")]) == 0 and f"architecture {case.arch}" in capsys.readouterr().out, name


@pytest.mark.parametrize("template", ["{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
                                      "{% for i in range(10**12) %}{% endfor %}", "{{ ''.__class__.__mro__ }}"])
def test_a_hostile_template_in_a_file(command, makers, tmp_path, template):
    path = makers.puppet(tmp_path / "p.gguf", ["Yes"], template=template)
    assert command("inspect", path).returncode == 0, "it is shown, not run"
    before = os.times()
    one_sentence(command("run", path, "-p", "x"), "the chat template was stopped")
    assert os.times().children_user - before.children_user < 2


def test_inspect_does_not_let_a_file_play_with_the_terminal(makers, tmp_path, capsys, monkeypatch):
    path = makers.puppet(tmp_path / "p.gguf", ["a"], template="\x1b[31mred\x07\x1b]0;title\x07")
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b]" not in out and "\x07" not in out and "red" in out


def test_devices(command):
    out = json.loads(command("devices", "--json").stdout)
    assert out["device"] == "cpu" and out["threads"] >= 1 and out["threads_reason"] and out["tier"]
    forced = command("devices", env={"PLP_CPU": "ref"})
    assert "ref" in forced.stdout
    one_sentence(command("devices", env={"PLP_CPU": "abacus"}), "abacus")

    names = [device["name"] for device in out["devices"]]
    assert names == ["cpu", "cuda", "metal", "emu"] and out["devices"][0]["there"]
    for device in out["devices"]:
        assert device["what"]                   # or why it is not there
        if not device["there"]:
            assert f"not there: {device['what']}" in forced.stdout


def test_as_a_module():
    done = subprocess.run([sys.executable, "-m", "pyllama_paged", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("pyllama-paged ")


# ---- looks

class Screen(io.StringIO):
    def isatty(self):
        return True


@given(st.lists(st.text("ab 中\n", max_size=9), max_size=30), st.integers(8, 40))
@example(["aaaaaa中"], 8)
@example(["a" * 6, "中", "b" * 7, "中"], 8)
def test_words_are_kept_whole_and_nothing_is_lost(pieces, width):
    screen = Screen()
    with mock.patch.dict(os.environ, COLUMNS=str(width)):
        typist = looks.Typist(screen)
        for piece in pieces:
            typist.write(piece)
        typist.finish()
    shown, text = screen.getvalue(), "".join(pieces)
    assert shown.replace("\n", "").replace(" ", "") == text.replace("\n", "").replace(" ", "")
    for line in shown.split("\n"):
        assert sum(2 if c == "中" else 1 for c in line) < width
    for word in text.replace("中", " ").split():
        if len(word) < width - 1:
            assert word in shown


def test_a_terminal_that_changes_its_width(monkeypatch):
    screen = Screen()
    monkeypatch.setenv("COLUMNS", "30")
    typist = looks.Typist(screen)
    for width, piece in ((30, "twelve words or fewer in a "), (12, "narrow window "), (40, "and then all the rest in a wide one")):
        monkeypatch.setenv("COLUMNS", str(width))
        typist.write(piece)
    typist.finish()
    assert screen.getvalue() == "twelve words or fewer in a \nnarrow \nwindow and then all the rest in a wide \none\n"


def test_sizes_and_counts():
    assert [looks.size(n) for n in (0, 1023, 1024, 98362432, 3 << 40)] == ["0 B", "1023 B", "1.0 KiB", "93.8 MiB", "3.0 TiB"]
    assert [looks.count(n) for n in (999, 134515008, 2e9)] == ["999", "134.5 M", "2.0 B"]
    assert looks.clean("a\x1b[2Jb\x9bc\n") == "a\ufffd[2Jb\ufffdc\n"
