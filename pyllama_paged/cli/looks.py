"""
What a person sees: sizes and rates in words, text that cannot play with the terminal, words kept whole.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
import time
import unicodedata
from typing import TextIO

from ..reasoning import Reasoning

try:
    import termios
except ImportError:             # a system without POSIX terminals
    termios = None

__all__ = ["Keyboard", "Typist", "clean", "columns", "console", "count", "grid", "no_pipe_error", "progress", "rate", "several", "size", "typed"]

_DIM, _PLAIN = ("", "") if os.environ.get("TERM") == "dumb" else ("\x1b[2m", "\x1b[0m")
_PATIENCE = 1.0             # seconds without a word before a person is told what goes on
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """Without control characters: a file's metadata, or a model, may hold terminal commands."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def typed(text: str) -> str:
    """What a person typed, or gave as an option, where the locale's encoding could not say what it was: it was UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if any("\udc80" <= c <= "\udcff" for c in text) else text


def size(n: float) -> str:
    """Bytes: 93.8 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(n) < 1024 or unit == "TiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError("the last unit takes everything")


def count(n: float) -> str:
    """Numbers of things: 134.5 M."""
    for factor, unit in ((1e12, " T"), (1e9, " B"), (1e6, " M")):
        if n >= factor:
            return f"{n / factor:.1f}{unit}"
    return f"{n:,.0f}"


def several(n: int, thing: str) -> str:
    """1 token, 2,000 tokens."""
    return f"{n:,} {thing}" + ("" if n == 1 else "s")


def rate(n: float) -> str:
    return f"{n:.0f}" if n >= 100 else f"{n:.1f}"


def columns(stream: TextIO) -> int:
    """Width of the terminal behind a stream; 0 if it is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else 0


def console(stderr: bool = False):
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=not (sys.stderr if stderr else sys.stdout).isatty())


def grid(out, rows, styles=("bold",)) -> None:
    """Rows of cells in aligned columns; the first column never wraps, the others do, within their column.

    Without a terminal there is no width to keep to: one line a row, for other programs to read.
    """
    if not out.is_terminal:
        widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]) - 1)]
        for row in rows:
            print("  ".join([f"{cell:<{w}}" for cell, w in zip(map(str, row), widths)] + [str(row[-1])]), file=out.file)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for i in range(len(rows[0])):
        table.add_column(style=styles[i] if i < len(styles) else None, overflow="fold", no_wrap=i == 0 and len(rows[0]) == 2)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    out.print(table)


class Keyboard:
    """
    The terminal's keyboard during a conversation, for as long as this is entered: keys pressed (^C among them) do not
    show up in the middle of an answer, but are taken here, for the next prompt. So is a paste, whole, because the
    terminal marks where it begins and ends.

    `take` is to be called now and then: a terminal holds 4 KiB, and what comes behind them waits, ^C as well. The mode
    holds between answers too (a prompt goes back to what it found), since a Ctrl-D that comes in line mode is lost.
    """

    def __init__(self):
        self._keys: list[bytes] = []
        self._fd = sys.stdin.fileno() if termios is not None and sys.stdin.isatty() else -1

    def __enter__(self) -> "Keyboard":
        if self._fd >= 0:
            self._before = termios.tcgetattr(self._fd)
            self.hold()
        return self

    def __exit__(self, *exc) -> None:
        if self._fd >= 0:
            self._mark_pastes(False)
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def hold(self) -> None:
        """To be called before each answer: a prompt ends the marks, and a shell that was come back from (^Z, fg) all of it."""
        if self._fd >= 0:
            quiet = termios.tcgetattr(self._fd)
            quiet[3] &= ~(termios.ECHO | termios.ECHOCTL | termios.ICANON)      # the local modes
            quiet[3] |= termios.NOFLSH          # else ^C throws away what nobody has taken, the end of a paste for one
            quiet[6][termios.VMIN], quiet[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self._fd, termios.TCSADRAIN, quiet)
            self._mark_pastes(True)

    def _mark_pastes(self, on: bool) -> None:
        if _DIM and sys.stdout.isatty():
            sys.stdout.write(f"\x1b[?2004{'h' if on else 'l'}")
            sys.stdout.flush()

    def take(self) -> None:
        while self._fd >= 0 and select.select([self._fd], [], [], 0)[0]:
            # One call in C: a ^C often stands right behind what is read, and must not come between reading and keeping.
            self._keys.extend(map(os.read, [self._fd], [65536]))
            if not self._keys[-1]:
                return                  # the terminal has gone; whoever reads next is told

    def taken(self) -> bytes:
        """What was pressed since it was asked last."""
        self.take()
        keys, self._keys = b"".join(self._keys), []
        return keys


def progress():
    """A callback for `hub.fetch`: a bar where somebody watches, one line where nobody does."""
    if not sys.stderr.isatty():
        seen = set()

        def line(name: str, done: int, total: int) -> None:
            if name not in seen:
                seen.add(name)
                print(f"fetching {name}{f' ({size(total)})' if total else ''} ...", file=sys.stderr, flush=True)

        return line

    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    bars = Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True),
                    TimeRemainingColumn(), console=console(stderr=True))
    tasks: dict[str, int] = {}

    def bar(name: str, done: int, total: int) -> None:
        if name not in tasks:
            bars.start()
            tasks[name] = bars.add_task(name, total=total or None)
        bars.update(tasks[name], completed=done)
        if total and done >= total:
            bars.stop()

    return bar


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class Typist:
    """
    Writes text that arrives in pieces, breaking lines between words where the terminal is too narrow.

    A word is shown when it is complete, so that none is torn apart; without a terminal nothing is held back.
    Reasoning is dim, with an empty line after it; other programs are given the answer alone.
    """

    def __init__(self, stream: TextIO):
        self._out = stream
        self._width = columns(stream)
        self._column = 0
        self._word = ""
        self._open = False              # something stands on the line; only without a terminal
        self._dim = False
        self._began = time.monotonic()
        self._waits = False             # a line about the prompt stands where the answer will

    def progress(self, done: int, total: int) -> None:
        """How far a long prompt is read; gone when the answer begins. Nothing for what is done in a moment."""
        if not self._width or not _DIM or (time.monotonic() - self._began < _PATIENCE and not self._waits):
            return
        text = f"reading the prompt: {done:,} of {total:,} tokens"
        self._out.write(f"\r\x1b[K{_DIM}{text[:self._width - 1]}{_PLAIN}" if done < total else "\r\x1b[K")
        self._out.flush()
        self._waits = done < total

    def _waited(self) -> None:
        if self._waits:
            self._out.write("\r\x1b[K")
            self._waits = False

    def write(self, text: str) -> None:
        self._waited()
        self._width = columns(self._out) or self._width         # it may change in the middle of an answer
        dim = isinstance(text, Reasoning)
        if dim and not self._width:
            return
        if dim != self._dim:
            self._change(dim)
        text = clean(text)
        if not self._width:
            self._open = self._open or bool(text)       # first, or a Ctrl-C while it is written leaves the line open
            self._put(text)
            return
        for character in text:
            if character in " \n\t":
                self._flush_word()
                if character == "\n":
                    self._put("\n")
                    self._column = 0
                elif self._column < self._width - 1:
                    self._put(" ")
                    self._column += 1
            elif _cells(character) == 2:            # scripts without spaces may break anywhere
                self._flush_word()
                self._word = character
                self._flush_word()
            else:
                self._word += character
                if sum(map(_cells, self._word)) >= self._width - 1:     # and a word wider than the screen must
                    self._flush_word()
        self._out.flush()

    def _change(self, dim: bool) -> None:
        self._flush_word()
        if self._dim:
            self._out.write("\n\n" if self._column else "\n")
            self._column = 0
        self._out.write(_DIM if dim else _PLAIN)
        self._dim = dim

    def _flush_word(self) -> None:
        wide = sum(map(_cells, self._word))
        if self._column and self._column + wide > self._width - 1:
            self._put("\n")
            self._column = 0
        self._put(self._word)
        self._column += wide
        self._word = ""

    def _put(self, text: str) -> None:
        self._out.write(text)
        if not self._width:
            self._out.flush()

    def finish(self) -> None:
        """The last word, and a line end if the text did not bring one."""
        self._waited()
        self._flush_word()
        if self._column or self._open:
            self._out.write("\n")
        if self._dim:                   # it ended before its answer began
            self._out.write(_PLAIN)
            self._dim = False
        self._column, self._open = 0, False
        self._out.flush()


def no_pipe_error() -> None:
    """After a reader has gone away: nothing more can be said, and nothing should be said about that."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:
        pass
