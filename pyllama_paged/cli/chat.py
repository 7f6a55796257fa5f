"""
`pyllama-paged chat`: a conversation in the terminal.

    Input      where lines come from: a prompt with history, or a pipe
    Chat       the conversation and its slash commands; a new command is one method with @command
    chat()     puts them together

Ctrl-C stops the answer and keeps the conversation; Ctrl-D leaves. Piped input is answered message by message,
with nothing but the answers on standard output.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from ..errors import Closed, InvalidArgument, PllamaError
from . import looks
from .main import open_model, sampling, thought

__all__ = ["chat"]

_QUOTE = '"""'


class _Leave(Exception):
    """The person wants to go."""


def _history_file() -> Path | None:
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "pyllama_paged"
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = base / "history"
        path.touch(mode=0o600)
        return path
    except OSError:
        return None


class _Terminal:
    """Lines typed by a person."""

    def __init__(self, commands: dict[str, str]):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory, InMemoryHistory

        path = _history_file()
        self._session = PromptSession(
            history=FileHistory(str(path)) if path else InMemoryHistory(),
            completer=WordCompleter([f"/{name}" for name in commands], sentence=True),
            complete_while_typing=False,
        )

    def line(self, more: bool) -> str:
        from prompt_toolkit.formatted_text import FormattedText

        return self._session.prompt(FormattedText([("bold", "... " if more else ">>> ")]))


class _Pipe:
    """Lines from a file or another program."""

    def line(self, more: bool) -> str:
        line = sys.stdin.buffer.readline()
        if not line:
            raise EOFError
        return line.decode("utf-8", "replace").rstrip("\r\n")


def _message(source) -> str:
    """One message: a line, or everything between two lines of three quotes."""
    text = source.line(False)
    if not text.lstrip().startswith(_QUOTE):
        return text
    text = text.lstrip()[len(_QUOTE):]
    while not text.rstrip().endswith(_QUOTE):
        text += "\n" + source.line(True)
    return text.rstrip()[:-len(_QUOTE)].strip("\n")


_COMMANDS: dict[str, tuple[Callable, str]] = {}


def command(*names: str):
    """A slash command under one or more names; its help is the method's docstring."""
    def register(function):
        for name in names:
            _COMMANDS[name] = (function, names[0])
        return function

    return register


class Chat:
    """A conversation, its settings, and what the slash commands do to them."""

    def __init__(self, model, settings, system: str | None, max_tokens: int | None, interactive: bool, think: bool | str | None = None,
                 speculate: bool = False):
        self.model = model
        self.think = think
        self.speculate = speculate
        self.settings = settings
        self.max_tokens = max_tokens
        self.interactive = interactive
        self.sessions = []
        self.current = 0
        self.add(self._session([{"role": "system", "content": system}] if system is not None else []))
        self.last = None                # the last answer

    @property
    def session(self):
        return self.sessions[self.current]

    def add(self, session, at: int | None = None) -> None:
        """A further conversation, which becomes the current one; the last, if no place is given."""
        session.speculate = self.speculate
        self.current, self.last = len(self.sessions) if at is None else at, None
        self.sessions.insert(self.current, session)

    def _session(self, messages: list[dict]):
        return self.model.session(messages=messages, think=self.think, when_full="shift")

    # ---- talking

    def say(self, text: str) -> None:
        self._answer(lambda: self.session.stream(text, max_tokens=self.max_tokens, sampling=self.settings))

    def _answer(self, begin: Callable) -> None:
        typist = looks.Typist(sys.stdout)
        stopped = False
        stream = begin()
        try:
            with looks.silent_keyboard():
                for piece in stream:
                    typist.write(piece)
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            stopped = True
        finally:
            typist.finish()
            self.last = stream.answer
        if stream.reasoning and not stream.text and stream.finish == "length":
            self.note("there was only room for reasoning; /more goes on", always=True)
        if stopped:
            self.note("stopped; /more goes on, /regen answers anew")
        if dropped := stream.dropped_messages:
            self.note(f"the context of {self.model.info.context_limit:,} tokens was full: the oldest {len(dropped)} messages were dropped, "
                      "the system prompt and the rest kept", always=True)
        if stream.context_full:
            self.note(f"the context of {self.model.info.context_limit:,} tokens is full; /clear begins anew", always=True)

    def note(self, text: str, always: bool = False) -> None:
        """A remark that is not part of the conversation."""
        if self.interactive:
            looks.console().print(text, style="dim", markup=False)
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
            raise InvalidArgument(f"there is no command /{name}; /help lists them")
        _COMMANDS[name][0](self, rest.strip())

    # ---- commands

    @command("help", "?")
    def help(self, _: str) -> None:
        """what can be typed here"""
        names: dict[str, list[str]] = {}
        for name, (_function, first) in _COMMANDS.items():
            names.setdefault(first, []).append(f"/{name}")
        rows = [(", ".join(all_names), (_COMMANDS[first][0].__doc__ or "").strip()) for first, all_names in names.items()]
        rows += [(_QUOTE, "begins and ends a message of several lines"), ("Ctrl-C", "stops an answer"), ("Ctrl-D", "leaves")]
        looks.grid(looks.console(), rows)

    @command("exit", "bye", "quit")
    def exit(self, _: str) -> None:
        """leave (also Ctrl-D)"""
        raise _Leave

    @command("clear")
    def clear(self, _: str) -> None:
        """forget the conversation, keep the system prompt"""
        self._restart([m for m in self.session.messages[:1] if m["role"] == "system"])
        self.note("a new conversation")

    @command("regen")
    def regen(self, _: str) -> None:
        """answer the last message again, with the next seed"""
        if self.last is None or not any(m["role"] == "user" for m in self.session.messages):
            raise InvalidArgument("there is no answer to give again")
        self.settings = self.settings.with_(seed=self.settings.seed + 1)
        if self.settings.temperature == 0:
            self.note("the temperature is 0, so the answer will be the same; /set temp 0.7 changes that")
        self._answer(lambda: self.session.regenerate(max_tokens=self.max_tokens, sampling=self.settings))

    @command("more")
    def more(self, _: str) -> None:
        """go on with an answer that was stopped"""
        if self.last is None or self.last.finish in ("stop", "tool_calls"):
            raise InvalidArgument("there is no unfinished answer to go on with")
        self._answer(lambda: self.session.resume(max_tokens=self.max_tokens, sampling=self.settings))

    @command("system")
    def system(self, text: str) -> None:
        """show the system prompt, or set it and begin anew: /system You are terse."""
        if text:
            self._restart([{"role": "system", "content": text}])
            self.note("a new conversation with this system prompt")
            return
        first = self.session.messages[:1]
        self.note(first[0]["content"] if first and first[0]["role"] == "system" else "none; the chat template may bring its own")

    @command("think")
    def thinking(self, text: str) -> None:
        """show whether the model reasons before it answers, or change it: /think off"""
        if text:
            setting = thought(text)
            for session in self.sessions:
                session.think = setting
            self.think = setting
        now = ", ".join(f"{name}={value}" for name, value in self.session.think.items())
        self.note(f"reasoning: {now or 'as the chat template does by itself'}"
                  + ("" if self.model.thinks else "; this model's reasoning could not be told from its answers"))

    @command("set")
    def set(self, text: str) -> None:
        """show the settings, or change one: /set temp 0.7"""
        name, _, value = text.partition(" ")
        name = {"temp": "temperature", "n": "max_tokens"}.get(name.replace("-", "_"), name.replace("-", "_"))
        fields = [f for f in vars(self.settings) if f != "logit_bias"]
        if not name:
            self.note("  ".join(f"{f}={getattr(self.settings, f)}" for f in fields) + f"  max_tokens={self.max_tokens}")
            return
        try:
            if name == "max_tokens":
                self.max_tokens = int(value) if int(value) >= 0 else None
            elif name in fields:
                kind = type(getattr(self.settings, name))
                self.settings = self.settings.with_(**{name: kind(value)})
            else:
                raise InvalidArgument(f"there is no setting {name}; there are {', '.join(fields)}, max_tokens")
        except ValueError as problem:
            if isinstance(problem, PllamaError):
                raise
            raise InvalidArgument(f"{value!r} is not a number") from None
        self.note(f"{name} is now {self.max_tokens if name == 'max_tokens' else getattr(self.settings, name)}")

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

    def _restart(self, messages: list[dict]) -> None:
        self.session.close()
        del self.sessions[self.current]
        self.add(self._session(messages), self.current)


def chat(args) -> int:
    from . import chat_kv  # noqa: F401     its commands register themselves

    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    settings = sampling(args)
    limit = args.max_tokens if args.max_tokens >= 0 else None
    with open_model(args) as model:
        talk = Chat(model, settings, args.system, limit, interactive, thought(args.think), args.speculate == "on")
        if interactive:
            _greet(model)
            source = _Terminal({name: "" for name, (_f, first) in _COMMANDS.items() if name == first})
        else:
            source = _Pipe()
        while True:
            try:
                text = _message(source)
                if not text.strip():
                    continue
                if text.startswith("/"):
                    talk.run(text)
                else:
                    talk.say(text)
            except (_Leave, EOFError):
                return 0
            except KeyboardInterrupt:
                if not interactive:
                    raise
                talk.note("Ctrl-D or /exit leaves")
            except PllamaError as problem:          # the conversation can go on after most of them
                if not interactive or isinstance(problem, Closed):
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
