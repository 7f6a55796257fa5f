"""
`pyllama-paged chat`: a conversation in the terminal.

    Input      where lines come from: a prompt with history, or a pipe
    Chat       the conversation and its slash commands; a new command is one method with @command
    chat()     puts them together

Ctrl-C stops the answer and keeps the conversation; Ctrl-D leaves. Piped input is answered message by message,
with nothing but the answers on standard output.

A message   a line, or what is between two lines of three quotes; a line that begins with / is a command
"""

from __future__ import annotations

import contextlib
import difflib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from .. import hub
from .._native import path_bytes
from ..errors import Closed, FileAccessError, InvalidArgument, PllamaError
from ..messages import text_of
from ..reasoning import Reasoning
from . import looks
from .main import open_model, sampling, thought, with_stored_beginning

__all__ = ["chat"]

_QUOTE = '"""'
_MOST_BYTES = 64            # of a token in a text, on average; what is longer is not read at all


class _Leave(Exception):
    """The person wants to go."""


def _history():
    """What was typed before. Where it can be neither read nor written, that is no reason not to talk."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class History(FileHistory):
        def store_string(self, string: str) -> None:
            with contextlib.suppress(OSError):
                super().store_string(string)

    path = Path(os.environ.get("XDG_STATE_HOME") or hub.home() / ".local" / "state") / "pyllama_paged" / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        path.open("rb").close()
    except OSError:
        return InMemoryHistory()
    return History(str(path))


class _Terminal:
    """Lines typed by a person."""

    def __init__(self, commands: list[str], keyboard: looks.Keyboard):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter

        # Asking the terminal where its cursor is would be for menus that this has not; some do not answer, and are complained about.
        os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")
        self._keyboard = keyboard
        self._session = PromptSession(
            history=_history(),
            completer=WordCompleter([f"/{name}" for name in commands], sentence=True),
            complete_while_typing=False,
        )

    def _put(self, keys: bytes) -> None:
        """What was typed or pasted meanwhile: as if it were typed now. The rest of a paste, or of a character, may still come."""
        from prompt_toolkit.input.typeahead import store_typeahead

        source = self._session.input
        source.vt100_parser.feed(keys.decode(sys.stdin.encoding, "surrogateescape"))
        store_typeahead(source, source.read_keys() + source.flush_keys())

    def line(self, more: bool) -> str:
        from prompt_toolkit.formatted_text import FormattedText

        if keys := self._keyboard.taken():
            self._put(keys)
        try:
            return looks.typed(self._session.prompt(FormattedText([("bold", "... " if more else ">>> ")]), handle_sigint=False))
        finally:
            self._keyboard.hold()


class _Pipe:
    """Lines from a file or another program."""

    def line(self, more: bool) -> str:
        line = sys.stdin.buffer.readline()
        if not line:
            raise EOFError
        return line.decode("utf-8", "replace").rstrip("\r\n")


def _message(source) -> tuple[str, bool]:
    """What is said next, and whether it is a command: a line, or everything between two lines of three quotes."""
    text = source.line(False)
    if not text.lstrip().startswith(_QUOTE):
        return text, text.startswith("/") and "\n" not in text         # a pasted text of several lines is no command
    text = text.lstrip()[len(_QUOTE):]
    while not text.rstrip().endswith(_QUOTE):
        try:
            text += "\n" + source.line(True)
        except EOFError:                    # the end of the input, or Ctrl-D, ends the message too
            return text.strip("\n"), False
    return text.rstrip()[:-len(_QUOTE)].strip("\n"), False


_COMMANDS: dict[str, tuple[Callable, str]] = {}


def command(*names: str):
    """A slash command under one or more names; its help is the method's docstring."""
    def register(function):
        for name in names:
            _COMMANDS[name] = (function, names[0])
        return function

    return register


@contextlib.contextmanager
def _interrupts(handler):
    """What Ctrl-C does for as long as this is entered; as its value, what it did before."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield before
    finally:
        signal.signal(signal.SIGINT, before)


class Chat:
    """A conversation, its settings, and what the slash commands do to them."""

    def __init__(self, model, settings, system: str | None, max_tokens: int | None, interactive: bool, think: bool | str | None = None,
                 speculate: bool = False, session=None):
        self.model = model
        self.think = think
        self.speculate = speculate
        self.settings = settings
        self.max_tokens = max_tokens
        self.interactive = interactive
        self.sessions = []
        self.current = 0
        self.add(session if session is not None else self._session([{"role": "system", "content": system}] if system is not None else []))
        self.last = None                # the last answer
        self.while_busy: Callable = contextlib.nullcontext      # entered while something is done that Ctrl-C may stop
        self.meanwhile: Callable[[], None] = lambda: None       # to be called between pieces of an answer
        self.read: list[str] = []       # texts of files that go before the next message

    @property
    def session(self):
        return self.sessions[self.current]

    def add(self, session, at: int | None = None) -> None:
        """A further conversation, which becomes the current one; the last, if no place is given."""
        session.speculate = self.speculate
        self.current, self.last = len(self.sessions) if at is None else at, None
        self.sessions.insert(self.current, session)

    def go(self, at: int) -> None:
        self.current, self.last = at, None

    def _session(self, messages: list[dict]):
        return with_stored_beginning(self.model, self.model.session(messages=messages, think=self.think, when_full="shift"))

    # ---- talking

    def say(self, text: str) -> None:
        files, self.read = self.read, []
        self._answer(lambda **options: self.session.stream("\n\n".join(filter(None, [*files, text])), **options))

    def _answer(self, begin: Callable) -> None:
        typist = looks.Typist(sys.stdout)
        stopped = False

        def progress(done: int, total: int) -> None:
            typist.progress(done, total)
            self.meanwhile()

        stream = begin(max_tokens=self.max_tokens, sampling=self.settings, progress=progress)
        try:
            for piece in stream:
                typist.write(piece)
                self.meanwhile()
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            stream.close()              # it may have come between two pieces, where the stream does not see it
            stopped = True
        finally:
            typist.finish()
            self.last = stream.answer
        if stream.reasoning and not stream.text and stream.finish == "length":
            self.note("there was only room for reasoning; /more goes on", always=True)
        elif stream.finish == "length" and not stream.context_full:
            self.note(f"{looks.several(self.max_tokens, 'token')}, the most of an answer (/set max_tokens); /more goes on")
        if stopped:
            self.note("stopped; /more goes on, /regen answers anew" if self.session.unfinished
                      else "stopped before the answer began; the message is taken back")
        if dropped := stream.dropped_messages:
            self.note(f"the context of {self.model.info.context_limit:,} tokens was full: the oldest {looks.several(len(dropped), 'message')} dropped, "
                      "the system prompt and the rest kept", always=True)
        if stream.context_full:
            self.note(f"the context of {self.model.info.context_limit:,} tokens is full; /clear begins anew", always=True)

    def note(self, text: str, always: bool = False) -> None:
        """A remark that is not part of the conversation."""
        if self.interactive:
            looks.console().print(looks.clean(text), style="dim", markup=False)
        elif always:
            print(text, file=sys.stderr)

    def figures(self, rows: list[tuple[str, str]]) -> None:
        """As `note`, for several named things."""
        if self.interactive:
            looks.grid(looks.console(), rows, ("dim", "dim"))
        else:
            for row in rows:
                print("  ".join(row), file=sys.stderr)

    def run(self, line: str) -> None:
        name, _, rest = line[1:].strip().partition(" ")
        if name not in _COMMANDS:
            near = difflib.get_close_matches(name, _COMMANDS, n=1, cutoff=0.7)
            other = f"did you mean /{near[0]}? /help lists all" if near else "/help lists them"
            if not name.isalpha() and not near:
                other += f"; a message that begins with / is put between two {_QUOTE}"
            raise InvalidArgument(f"there is no command /{name}; {other}")
        _COMMANDS[name][0](self, rest.strip())

    # ---- commands

    @command("help", "?")
    def help(self, _: str) -> None:
        """what can be typed here"""
        names: dict[str, list[str]] = {}
        for name, (_function, first) in _COMMANDS.items():
            names.setdefault(first, []).append(f"/{name}")
        rows = [(", ".join(all_names), (_COMMANDS[first][0].__doc__ or "").strip()) for first, all_names in names.items()]
        rows += [(_QUOTE, "begins and ends a message of several lines"), ("Ctrl-C, Ctrl-D", "stops an answer; leaves")]
        looks.grid(looks.console(), rows)

    @command("exit", "bye", "quit")
    def exit(self, _: str) -> None:
        """leave"""
        raise _Leave

    @command("clear", "new")
    def clear(self, _: str) -> None:
        """forget the conversation, keep the system prompt"""
        self._restart([m for m in self.session.messages[:1] if m.get("role") == "system"])
        self.read = []
        self.note("a new conversation")

    @command("regen")
    def regen(self, _: str) -> None:
        """answer the last message again, with the next seed"""
        if not any(m.get("role") == "user" for m in self.session.messages):
            raise InvalidArgument("there is no answer to give again")
        self.settings = self.settings.with_(seed=self.settings.seed + 1)
        if self.settings.temperature == 0:
            self.note("the temperature is 0, so the answer will be the same; /set temp 0.7 changes that")
        self._answer(self.session.regenerate)

    @command("more")
    def more(self, _: str) -> None:
        """go on with an answer that was stopped"""
        if not self.session.unfinished:
            raise InvalidArgument("there is no unfinished answer to go on with")
        self._answer(self.session.resume)

    @command("system")
    def system(self, text: str) -> None:
        """show the system prompt, or set it: /system You are terse."""
        if text:
            self._restart([{"role": "system", "content": text}])
            self.note("a new conversation with this system prompt")
            return
        first = self.session.messages[0] if self.session.messages else {}
        self.note(text_of(first) if first.get("role") == "system" else "none; the chat template may bring its own")

    @command("think")
    def thinking(self, text: str) -> None:
        """show or change whether it reasons first: /think off"""
        if text:
            setting = thought(text)
            for session in self.sessions:
                session.think = setting
            self.think = setting
        now = ", ".join(f"{name}={value}" for name, value in self.session.think.items())
        if not now and not self.model.thinks:
            self.note("this model marks no reasoning")
            return
        self.note(f"reasoning: {now or 'as the chat template does by itself'}"
                  + ("" if self.model.thinks else "; it cannot be told from the answer, because this model does not mark it"))

    @command("set")
    def set(self, text: str) -> None:
        """show the settings, or change one: /set temp 0.7"""
        name, _, value = text.replace("=", " ", 1).partition(" ")
        value = value.strip()
        name = {"temp": "temperature", "n": "max_tokens"}.get(name.replace("-", "_"), name.replace("-", "_"))
        fields = [f for f in vars(self.settings) if f != "logit_bias"]
        now = {f: getattr(self.settings, f) for f in fields} | {"max_tokens": -1 if self.max_tokens is None else self.max_tokens}
        if not name:
            self.figures([(f, f"{v}" + (", until it is done" if (f, v) == ("max_tokens", -1) else "")) for f, v in now.items()])
            return
        if name not in now:
            raise InvalidArgument(f"there is no setting {name}; there are {', '.join(now)}")
        if not value:
            self.note(f"{name} is {now[name]}")
            return
        try:
            number = type(now[name])(value)
        except ValueError:
            raise InvalidArgument(f"{value!r} is no {'whole ' if isinstance(now[name], int) else ''}number") from None
        if name == "max_tokens":
            self.max_tokens = number if number >= 0 else None
        else:
            self.settings = self.settings.with_(**{name: number})
        self.note(f"{name} is now {number}")

    @command("stats")
    def stats(self, _: str) -> None:
        """figures of the last answer"""
        if self.last is None:
            raise InvalidArgument("there is no answer yet")
        s = self.last.stats
        rows = [("prompt", f"{s.prompt_tokens:,} tokens, {s.reused_tokens:,} reused; "
                           f"{s.prompt_tokens - s.reused_tokens:,} computed in {s.prompt_seconds:.2f} s ({looks.rate(s.prompt_rate)}/s)"),
                ("answer", f"{s.answer_tokens:,} tokens in {s.answer_seconds:.2f} s ({looks.rate(s.answer_rate)}/s); ended by: {self.last.finish}")]
        if s.drafted_tokens:
            rows.append(("guessed", f"{s.drafted_tokens:,} tokens computed ahead, of which {s.accepted_tokens:,} came true"))
        if s.dropped_tokens:
            rows.insert(1, ("given up", f"{s.dropped_tokens:,} tokens, because the conversation changed there"))
        self.figures(rows)

    @command("show")
    def show(self, _: str) -> None:
        """show the conversation"""
        if not self.session.messages:
            self.note("nothing has been said yet")
        for message in self.session.messages:
            typist, role, text = looks.Typist(sys.stdout), message.get("role"), text_of(message)
            if thought := message.get("reasoning_content"):
                typist.write(Reasoning(thought))
            typist.write({"user": ">>> ", "assistant": ""}.get(role, f"({role}) ") + text)
            typist.finish()

    @command("read")
    def read_file(self, name: str) -> None:
        """put a file before the next message: /read notes.txt"""
        if not name:
            raise InvalidArgument("a file name is missing: /read notes.txt")
        limit = self.model.info.context_limit
        try:
            with open(path_bytes(os.path.expanduser(name)), "rb") as f:
                data = f.read(limit * _MOST_BYTES + 1)
        except OSError as problem:
            raise FileAccessError(f"{name}: {problem.strerror}") from None
        if b"\0" in data:
            raise InvalidArgument(f"{name} is no text")
        text = data.decode("utf-8-sig", "replace").replace("\r\n", "\n").strip("\n")
        if not text.strip():
            raise InvalidArgument(f"{name} is empty")
        n = len(self.model.tokenize(text)) if len(data) <= limit * _MOST_BYTES else limit
        if n >= limit:
            raise InvalidArgument(f"{name} does not fit into the context of {limit:,} tokens")
        self.read.append(text)
        self.note(f"{looks.several(n, 'token')}, to go before the next message")

    def _restart(self, messages: list[dict]) -> None:
        new = self._session(messages)               # may be refused or interrupted: the old one is still there then
        self.sessions.pop(self.current).close()
        self.add(new, self.current)


def chat(args) -> int:
    from . import chat_kv  # noqa: F401     its commands register themselves

    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    settings = sampling(args)
    limit = args.max_tokens if args.max_tokens >= 0 else None
    if args.load and args.system is not None:
        raise InvalidArgument("--load brings the system prompt of the saved conversation; -sys cannot be given beside it")
    with open_model(args) as model:
        saved = model.resume(os.path.expanduser(args.load)) if args.load else None
        if saved is not None and args.think:
            saved.think = thought(args.think)
        talk = Chat(model, settings, args.system, limit, interactive, thought(args.think), args.speculate == "on", saved)
        if not interactive:
            return _converse(talk, _Pipe())
        _greet(model)
        if saved is not None:
            talk.note(f"{looks.several(len(saved.messages), 'message')}, {looks.several(len(saved), 'token')}; /show shows them")
        names = [name for name, (_f, first) in _COMMANDS.items() if name == first]
        # A prompt takes Ctrl-C as a key. The signal, while a prompt comes and goes, has nothing to stop, and an event loop half made complains.
        with looks.Keyboard() as keyboard, _interrupts(lambda *_: None) as stop:
            talk.meanwhile, talk.while_busy = keyboard.take, lambda: _interrupts(stop)
            return _converse(talk, _Terminal(names, keyboard))


def _converse(talk: Chat, source) -> int:
    while True:
        try:
            text, is_command = _message(source)
            with talk.while_busy():
                if is_command:
                    talk.run(text)
                elif text.strip() or talk.read:
                    talk.say(text)
        except (_Leave, EOFError):
            return 0
        except KeyboardInterrupt:
            if not talk.interactive:
                raise
            talk.note("Ctrl-D or /exit leaves")
        except PllamaError as problem:          # the conversation can go on after most of them
            if not talk.interactive or isinstance(problem, Closed):
                raise
            looks.console().print(looks.clean(str(problem)), style="red", markup=False)


def _greet(model) -> None:
    info, out = model.info, looks.console()
    name = os.path.basename(model.path)
    out.print(name, style="bold", markup=False)
    out.print(f"{looks.size(info.weights_bytes)}, {info.device} {info.tier}, {info.n_threads} {'thread' if info.n_threads == 1 else 'threads'}", style="dim", markup=False)
    if model.template_origin != "file":
        kind = "ChatML" if model.template_origin == "chatml" else "plain 'User:' and 'Assistant:' lines"
        out.print(f"This file has no chat template; {kind} will be used.", style="yellow", markup=False)
    if model.vocab.info.warning:
        out.print(looks.clean(model.vocab.info.warning), style="yellow", markup=False)
    out.print("/help lists commands; Ctrl-C stops an answer.", style="dim", markup=False)
