"""The conversation in a terminal: what keys and pastes do at each moment, what the slash commands say, how it ends."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

import pyllama_paged
from pyllama_paged.cli.chat import Chat, _history
from test_cli import one_sentence

ECHO = "{% for m in messages %}{{ m.content }}{% endfor %}"


class Screen:
    """The command under a terminal of 80 x 24 of its own: `keys` presses, `see` waits for words. Escape sequences are left out."""

    def __init__(self, folder, *args):
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80)) if hasattr(termios, "tcsetwinsize") else \
            fcntl.ioctl(slave, termios.TIOCSWINSZ, b"\x18\0\x50\0\0\0\0\0")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyllama_paged", *map(str, args)], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), env={**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(folder)})
        os.close(slave)
        self._raw = ""
        self._at = 0                # what was seen already

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    @property
    def text(self):
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]", "", self._raw).replace("\r\n", "\n")

    def keys(self, text):
        os.write(self._master, text.encode())

    def see(self, words, seconds=40):
        """Waits until the words stand behind what was seen last; returns what came before them."""
        end = time.monotonic() + seconds
        while (found := self.text.find(words, self._at)) < 0:
            assert time.monotonic() < end, f"{words!r} did not come: {self.text[self._at:][-500:]!r}"
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    self._raw += os.read(self._master, 65536).decode("utf-8", "replace")
                except OSError:             # Linux: the other side has gone
                    assert self.text.find(words, self._at) >= 0, f"it ended without {words!r}: {self.text[self._at:]!r}"
        before, self._at = self.text[self._at:found], found + len(words)
        return before

    def ask(self, message):
        """Of a talker: until its answer has begun."""
        self.keys(message + "\r")
        self.see("la la")

    def stop(self):
        self.keys("\x03")
        self.see("stopped")

    def line_mode_was_left(self):
        """Whether the terminal is not what it was at the start: a shell's own line editing would not work."""
        return not termios.tcgetattr(self._master)[3] & termios.ICANON or not termios.tcgetattr(self._master)[3] & termios.ECHO

    def end(self):
        """The exit status; what the command still says is read, or it could not end."""
        last = time.monotonic() + 40
        while self.process.poll() is None:
            assert time.monotonic() < last, f"it does not end: {self.text[-500:]!r}"
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    self._raw += os.read(self._master, 65536).decode("utf-8", "replace")
                except OSError:
                    break
        return self.process.wait(60)


@pytest.fixture
def talker(makers, tmp_path):
    """A model that says "la la la ..." without end."""
    return makers.puppet(tmp_path / "talker.gguf", ["la ", "la  "], cycle=True, context=1 << 17, template=ECHO)


# ---- keys

def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(talker, tmp_path):
    with Screen(tmp_path, "chat", talker) as screen:
        screen.see(">>>")
        screen.keys("\x03")
        screen.see("Ctrl-D or /exit leaves")
        screen.see(">>>")
        for _ in range(2):
            screen.ask("hello")
            screen.keys("\x03")
            screen.see("stopped; /more goes on")
            screen.see(">>>")
        screen.ask("/more")
        screen.stop()
        screen.see(">>>")
        screen.keys("\x04")
        assert screen.end() == 0 and "^C" not in screen.text


def test_a_paste_is_one_message_also_while_an_answer_is_written(talker, tmp_path):
    long = "x" * 5000           # more than a line of a terminal's own editing holds
    with Screen(tmp_path, "chat", talker) as screen:
        screen.see(">>>")
        screen.keys("\x1b[200~first\rsecond\x1b[201~\r")
        screen.see("la la")
        screen.keys(f"\x1b[200~third\r/fourth\r{long}\x1b[201~")
        screen.keys("\r")
        time.sleep(0.5)
        screen.stop()
        screen.see("la la")                 # the Enter behind the paste was kept as well
        screen.stop()
        screen.see(">>>")
        screen.keys("/show\r")
        screen.see(">>> first\nsecond")
        screen.see(">>> third\n/fourth\nxxxx")
        screen.keys("\x04")
        assert screen.end() == 0


def test_a_paste_may_go_on_when_the_answer_has_ended(talker, tmp_path):
    with Screen(tmp_path, "chat", talker) as screen:
        screen.see(">>>")
        screen.ask("x")
        screen.keys("\x1b[200~first\rsec")
        time.sleep(0.5)
        screen.stop()
        screen.see(">>>")
        screen.keys("ond\x1b[201~\r")
        screen.see("la la")
        screen.stop()
        screen.see(">>>")
        screen.keys("/show\r")
        screen.see(">>> first\nsecond\nla la")
        screen.keys("\x04")
        assert screen.end() == 0 and "201~" not in screen.text


def test_ctrl_c_right_behind_a_paste(talker, tmp_path):
    with Screen(tmp_path, "chat", talker) as screen:
        screen.see(">>>")
        screen.ask("x")
        screen.keys("\x1b[200~")
        for _ in range(6):
            screen.keys("one line of many\r" * 60)
        screen.keys("\x1b[201~\x03")
        screen.see("stopped")
        screen.see("one line of many")
        screen.ask("")
        screen.stop()
        screen.keys("\x04")
        assert screen.end() == 0


def test_after_a_shell_in_between(talker, tmp_path):
    """As after Ctrl-Z and fg: the terminal is as the shell left it."""
    with Screen(tmp_path, "chat", talker) as screen:
        before = termios.tcgetattr(screen._master)
        screen.see(">>>")
        screen.ask("x")
        termios.tcsetattr(screen._master, termios.TCSANOW, before)
        screen.stop()
        screen.see(">>>")
        screen.ask("y")
        screen.keys("never echoed")
        time.sleep(0.5)
        screen.keys("\x03")
        screen.see(">>> never echoed")
        assert screen.text.count("never") == 1
        screen.keys("\x15\x04")
        assert screen.end() == 0 and not screen.line_mode_was_left()


def test_ctrl_c_again_and_again(talker, tmp_path):
    """While a prompt comes and goes, it stops nothing and is not complained about."""
    with Screen(tmp_path, "chat", talker) as screen:
        screen.see(">>>")
        for _ in range(3):
            screen.ask("x")
            for _ in range(25):
                screen.keys("\x03")
                time.sleep(0.004)
            screen.see("stopped")
            time.sleep(0.5)
        screen.keys("\x04")
        assert screen.end() == 0
        assert not [word for word in ("Traceback", "Exception", "never awaited") if word in screen.text], screen.text


def test_a_remark_is_shown_as_it_is(talker, tmp_path):
    with Screen(tmp_path, "chat", talker, "-sys", "Be :fire: [bold]kind[/]\x1b]0;title\x07") as screen:
        screen.see(">>>")
        screen.keys("/system\r")
        screen.see("Be :fire: [bold]kind[/]\N{REPLACEMENT CHARACTER}]0;title\N{REPLACEMENT CHARACTER}")
        screen.keys("\x04")
        assert screen.end() == 0 and "\x1b]" not in screen._raw


def test_ctrl_c_while_the_prompt_is_read(smol_path, tmp_path):
    (tmp_path / "long.txt").write_text("The quick brown fox jumps over the lazy dog. " * 400)
    with Screen(tmp_path, "chat", smol_path, "-n", "3") as screen:
        screen.see(">>>")
        screen.keys(f"/read {tmp_path}/long.txt\r")
        screen.see("tokens, to go before the next message")
        screen.keys("What is this?\r")
        screen.see("reading the prompt: ")
        screen.keys("\x03")
        screen.see("stopped before the answer began; the message is taken back")
        screen.keys("/more\r")
        screen.see("no unfinished answer")
        screen.keys("/regen\r")
        screen.see("no answer to give again")
        screen.keys("Hello\r")
        screen.see("3 tokens, the most of an answer")
        screen.keys("\x04")
        assert screen.end() == 0


def test_no_key_is_lost_between_answer_and_prompt(makers, tmp_path):
    """Whenever Ctrl-D comes, it leaves. In line mode it is nothing but the end of a line that nobody reads."""
    path = makers.puppet(tmp_path / "p.gguf", ["One", " two", " three", " four"], template=ECHO)
    with Screen(tmp_path, "chat", path) as screen:
        screen.see(">>>")
        for i in range(20):
            screen.keys("x\r")
            screen.see("One two")
            time.sleep(0.002 * i)
            screen.keys("y\r")
            screen.see("One two")
        time.sleep(0.01)
        screen.keys("\x04")
        assert screen.end() == 0
    for i in range(8):
        with Screen(tmp_path, "chat", path) as screen:
            screen.see(">>>")
            screen.keys("x\r")
            screen.see("three")
            time.sleep(0.003 * i)
            screen.keys("\x04")
            assert screen.end() == 0
            assert not screen.line_mode_was_left()


# ---- interrupted before anything is done

_INTERRUPTED = """
import os, signal, sys
target = sys.argv.pop(1)
if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

class Finder:
    hit = False

    def find_spec(self, name, path=None, of=None):
        if name == target and not self.hit:
            self.hit = True
            os.kill(os.getpid(), signal.SIGINT)

finder = Finder()
sys.meta_path.insert(0, finder)
from pyllama_paged.__main__ import main
status = main()
sys.exit(status if finder.hit else 99)
"""


@pytest.mark.parametrize("module", ["pyllama_paged.cli.main", "pyllama_paged.hub", "pyllama_paged._native", "pyllama_paged.model", "pyllama_paged.cli.run",
                                    "pyllama_paged.template", "jinja2"])
def test_ctrl_c_while_something_is_imported(makers, tmp_path, module):
    path = makers.puppet(tmp_path / "p.gguf", ["One"])
    args = [sys.executable, "-c", _INTERRUPTED, module, "run", path, "-p", "x"]
    done = subprocess.run(args, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
    # A shell's background job must not be ended by the Ctrl-C that is meant for another.
    done = subprocess.run(args, capture_output=True, text=True, timeout=240, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert (done.returncode, done.stdout, done.stderr) == (0, "One\n", "")


def test_a_shell_says_130(talker, tmp_path):
    with subprocess.Popen(["sh", "-c", f"{sys.executable} -m pyllama_paged run {talker} -p x; echo; echo status $?"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, start_new_session=True,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as shell:
        assert shell.stdout.read(6) == b"la la "
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(shell.pid)], capture_output=True, text=True).stdout.split()
        if len(children) != 1:
            shell.terminate()
            pytest.skip("this system's ps does not name a process's children")
        os.kill(int(children[0]), signal.SIGINT)
        shell.stdout.read()
        assert shell.stderr.read() == b""


def test_a_history_that_cannot_be_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    history, path = _history(), tmp_path / "pyllama_paged" / "history"
    history.store_string("one")
    assert list(_history().load_history_strings()) == ["one"]
    path.unlink()
    path.mkdir()
    history.store_string("two")
    assert list(_history().load_history_strings()) == []


def test_names_are_imported_when_they_are_asked_for(script):
    out = script("import sys, pyllama_paged; print([m for m in sys.modules if m.startswith('pyllama_paged.')], 'Model' in dir(pyllama_paged))\n"
                 "from pyllama_paged import *; print(Model.__name__, __version__, errors.__name__, ContextFull.__name__)")
    assert out.splitlines()[0] == "[] True"
    assert out.splitlines()[1] == f"Model {pyllama_paged.__version__} pyllama_paged.errors ContextFull"
    for name in pyllama_paged.__all__:
        assert getattr(pyllama_paged, name) is not None
    assert set(pyllama_paged.errors.__all__) < set(pyllama_paged.__all__)
    with pytest.raises(AttributeError, match="Modle"):
        pyllama_paged.Modle


# ---- commands

def test_a_conversation_in_a_file_is_gone_on_with(command, makers, tmp_path):
    path = makers.puppet(tmp_path / "p.gguf", ["One", " two", " three"])
    done = command("chat", path, "-n", "2", "-sys", "Be kind.", input="count\n/save talk\n")
    assert (done.returncode, done.stdout) == (0, "One two\n"), done.stderr
    done = command("chat", path, "--load", "talk", input="/more\n/show\n/regen\n/stats\n")
    assert done.stdout == " three\n(system) Be kind.\n>>> count\nOne two three\nOne two three\n" and done.returncode == 0, done.stderr
    done = command("chat", path, "-sys", "Be kind.", input="/save begun\n")
    assert command("chat", path, "--load", "begun", input="/show\n").stdout == "(system) Be kind.\n", done.stderr
    one_sentence(command("chat", path, "--load", "talk", "-sys", "x", input=""), "--load", "-sys")
    one_sentence(command("chat", path, "--load", "none", input=""), "none")
    done = command("chat", path, input="hello\n/more\n")
    assert (done.returncode, done.stdout) == (2, "One two three\n") and "unfinished" in done.stderr


def test_a_new_conversation_that_cannot_begin_leaves_the_old_one(puppet, monkeypatch):
    talk = Chat(puppet(["One"]), pyllama_paged.Sampling(), "Be kind.", None, False)
    monkeypatch.setattr(talk, "_session", {}.__getitem__)
    for line in ("/clear", "/system Be terse."):
        with pytest.raises((KeyError, TypeError)):
            talk.run(line)
        assert not talk.session.closed and talk.session.messages == [{"role": "system", "content": "Be kind."}]


def test_messages_of_other_shapes_are_shown(command, makers, tmp_path):
    path = makers.puppet(tmp_path / "p.gguf", ["One"])
    for first in ({"role": "system"}, {"content": "Be kind."}, {"role": "system", "content": [{"type": "text", "text": "Be kind."}]}):
        with pyllama_paged.Model.open(path) as model:
            model.session(messages=[first, {"role": "user", "content": "hi"}]).save(tmp_path / "talk")
        done = command("chat", path, "--load", "talk", input="/system\n/show\n/clear\n")
        assert done.returncode == 0 and "hi" in done.stdout, done.stderr


def test_conversations_are_closed(command, makers, tmp_path):
    path = makers.puppet(tmp_path / "p.gguf", ["One"])
    done = command("chat", path, input="first\n/fork\nsecond\n/close 1\n/show\n/fork\n/close\n/show\n/sessions\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "One\n" * 2 + ">>> first\nOne\n>>> second\nOne\n" * 2
    assert [line.split()[:2] for line in done.stderr.splitlines()] == [["*", "1"]]
    for said, words in (("/close\n", ["only conversation"]), ("/close 2\n", ["only one"]), ("/fork\n/close 3\n", ["there are 2"]), ("/switch x\n", ["'x'"])):
        one_sentence(command("chat", path, input=said), *words)


def test_a_file_goes_before_a_message(command, makers, tmp_path):
    path = makers.puppet(tmp_path / "p.gguf", ["One"], context=100, template=ECHO)
    (tmp_path / "a b.txt").write_bytes(b"text\n\xff\n")
    (tmp_path / "long.txt").write_text("x" * 100)
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / "empty").write_bytes(b"\n")
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    done = command("chat", path, input="/read a b.txt\nwhat?\n/show\nnext\n/read a b.txt\n\n/show\n")
    assert done.stdout == "One\n>>> text\n\N{REPLACEMENT CHARACTER}\n\nwhat?\nOne\nOne\nOne\n>>> text\n\N{REPLACEMENT CHARACTER}\n\nwhat?\nOne\n>>> next\n" \
        "One\n>>> text\n\N{REPLACEMENT CHARACTER}\nOne\n"
    assert command("chat", path, input="/read windows.txt\n\n/show\n").stdout == "One\n>>> one\ntwo\nOne\n"
    for said, words in (("/read", ["missing"]), ("/read none", ["none"]), ("/read long.txt", ["100 tokens"]), ("/read binary", ["no text"]), ("/read .", ["directory"]),
                        ("/read empty", ["empty"]), ("/read a\0b", ["no path"])):
        one_sentence(command("chat", path, input=said + "\n"), *words)


def test_what_is_a_message_and_what_a_command(command, makers, tmp_path):
    path = makers.puppet(tmp_path / "p.gguf", ["One"], template=ECHO)
    said = '"""\n/usr/bin is a folder\n"""\n"""/help"""\n"""\nnever ended\n/show'
    done = command("chat", path, input=said)
    assert (done.returncode, done.stdout) == (0, "One\n" * 3), done.stderr
    assert command("chat", path, input='"""/usr"""\n/show\n').stdout == "One\n>>> /usr\nOne\n"
    one_sentence(command("chat", path, input="/shwo\n"), "/shwo", "/show")
    one_sentence(command("chat", path, input="/usr/bin is a folder\n"), "/usr/bin", '"""')
    one_sentence(command("chat", path, input="/frobnicate\n"), "/help")


def test_settings_are_shown_and_changed(command, makers, tmp_path):
    path = makers.puppet(tmp_path / "p.gguf", ["One", " two", " three"])
    done = command("chat", path, input="/set n 2\nx\n/set max_tokens=-1\nx\n/set temp 0.7\n/set top-k 5\n/set\n/think\n")
    assert done.stdout == "One two\nOne two three\n" and done.returncode == 0
    assert {"temperature  0.7", "top_k  5", "max_tokens  -1, until it is done"} <= {re.sub(" {2,}", "  ", line) for line in done.stderr.splitlines()}
    for said, words in (("/set temp warm", ["'warm'", "no number"]), ("/set top_k 1.5", ["whole number"]), ("/set warmth 1", ["warmth", "temperature"]),
                        ("/set temp -1", ["temperature"])):
        one_sentence(command("chat", path, input=said + "\n"), *words)


def test_a_stored_system_prompt_is_not_computed_again(command, smol_path, tmp_path):
    env = {"PLP_PREFIX_DIR": str(tmp_path / "prefixes")}
    system = "You answer in one line, and never explain. " * 3

    def answer(*args):
        done = command("run", smol_path, "-sys", system, "-p", "Hello", "-n", "3", "--json", *args, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        out = json.loads(done.stdout)
        return out["text"], out["usage"]["prompt_tokens_details"]["cached_tokens"]

    text, reused = answer()
    assert reused == 0 and not (tmp_path / "prefixes").exists()
    built = command("prefix", "build", smol_path, "-sys", system, env=env)
    assert built.returncode == 0, built.stderr
    again = answer()
    assert again[0] == text and again[1] > 20
    assert answer("--kv", "q8")[1] == 0, "another format's prefix is another prefix"
    done = command("chat", smol_path, "-sys", system, "-n", "3", "--temp", "0", "--repeat-penalty", "1", input="Hello\n/stats\n/clear\nHello\n/mem\n", env=env)
    assert done.stdout == f"{text}\n" * 2 and f"{again[1]} reused" in done.stderr, done.stderr
    path = next((tmp_path / "prefixes").glob("*.plpkv"))
    path.write_bytes(path.read_bytes()[:-100])
    done = command("run", smol_path, "-sys", system, "-p", "Hello", "-n", "3", env=env)
    assert (done.returncode, done.stdout) == (0, f"{text}\n")
    assert done.stderr.startswith("pyllama-paged: a stored prefix is not usable and is not used: ") and len(done.stderr.splitlines()) == 1


# ---- options

def test_options_by_habit(command, makers, tmp_path):
    path = makers.puppet(tmp_path / "p.gguf", ["One"])
    for args, words in ((["-ngl", "99"], "--device"), (["--no-mmap"], "--mlock"), (["-fa", "on"], "not needed"), (["--prompt-cache", "x"], "--load"),
                        (["--n-gpu-layers=99"], "--device"), (["-no-cnv"], "single answers"), (["--bogus"], "--bogus"), (["-ctk", "q8_0", "-ctv", "q4_0"], "one format"), (["-c", "many"], "no whole number")):
        done = command("run", path, "-p", "x", *args)
        assert done.returncode == 2 and done.stdout == "", args
        first, second = done.stderr.splitlines()
        assert first.startswith("pyllama-paged run: ") and words in first and second == "pyllama-paged run --help shows what is possible"
    assert command("run", "-hf", path, "-p", "x", "-ctk", "q8_0", "-ctv", "q8").stdout == "One\n"
    assert "seed 7" in " ".join(command("chat", path, "-s", "7", input="/set\n").stderr.split()), "-sys, shortened, would be a system prompt"
    done = command()
    assert done.returncode == 2 and done.stdout == "" and "examples:" in done.stderr and "PLP_CACHE_DIR" in done.stderr


def test_utf8_where_the_locale_knows_none(command, makers, tmp_path):
    path = makers.puppet(tmp_path / "p.gguf", ["One"], template=ECHO)
    done = command("run", path, "-p", "é", "--json", env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    assert done.returncode == 0 and '"prompt_tokens": 2' in done.stdout, done.stderr


def test_output_that_cannot_be_written(talker):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    done = subprocess.run(f"echo x | {sys.executable} -m pyllama_paged chat {talker} > /dev/full", shell=True, capture_output=True, text=True, timeout=120)
    assert done.stderr.startswith("pyllama-paged: writing failed: ") and len(done.stderr.splitlines()) == 1
