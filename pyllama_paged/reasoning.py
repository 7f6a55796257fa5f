"""
What a model thinks before it answers: which marks a model puts around it, and keeping it apart from the answer.

Form       the marks of one kind of model, and what they lead to; `form_of` finds a model's by its template and vocabulary
Splitter   text as it comes, into pieces of the answer (str) and of the reasoning (`Reasoning`); marks are in neither
Switch     the template's variables that turn reasoning on and off
History    a message carries its reasoning as `reasoning_content`; `Thinking.shaped` hands it to the template in the way
           that this template knows, and the template keeps or drops it

States     start      nothing has been said: a mark may come, or the answer begins
           reasoning  up to a mark
           after      a mark was passed: white space is left out, another mark may come, or the answer begins
           text       the answer; of all marks only those that may stand inside it are looked for
           header     names what follows ("analysis"), belongs to neither
           call       of a tool (toolcalls.py adds it to a form): held back whole, until its end shows what it is
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import InvalidArgument
from .text import longest_tail

if TYPE_CHECKING:
    from .template import ChatTemplate
    from .vocab import Vocab

__all__ = ["FORMS", "SWITCHES", "Form", "NoCall", "Reasoning", "Splitter", "Thinking"]

_THOUGHTS = re.compile(r"(?:^|\s)(?:analysis|thought)\b")    # headers of what is not the answer
_FIELDS = ("reasoning_content", "reasoning", "thinking")    # under which templates look for it in a message
_ON_OFF = ("enable_thinking", "thinking")
_EFFORT = "reasoning_effort"
_EFFORTS = ("low", "medium", "high")

#: Template variables about reasoning.
SWITCHES = (*_ON_OFF, _EFFORT)


class Reasoning(str):
    """A piece of a stream that belongs to the reasoning, not to the answer."""


@dataclass(frozen=True)
class Form:
    """
    table   state -> mark -> state that it leads to; "?" is decided by the header, "header+" is more of the same header
    needs   spellings all of which must be in the template, or tokens of the vocabulary
    read    the pieces of a call, of its text with the marks; `ValueError` says why it is none. None: no state `call`
    callee  finds in a header that what follows is a call
    """

    table: Mapping[str, Mapping[str, str]]
    needs: tuple[str, ...]
    read: Callable[[str], Sequence[str]] | None = None
    callee: re.Pattern | None = None

    @property
    def marks(self) -> set[str]:
        return {mark for row in self.table.values() for mark in row}

    @property
    def pair(self) -> tuple[str, str] | None:
        """The marks before and after, where there is no more to it."""
        if "header" in self.table:
            return None
        first = next(mark for mark, state in self.table["start"].items() if state == "reasoning")
        return first, next(iter(self.table["reasoning"]))


def _between(opening: str, closing: str, *others: str, needs: tuple[str, ...] = ()) -> Form:
    """`others` may stand around the answer; like the marks, they are no part of it."""
    hidden = dict.fromkeys(others, "after")
    return Form({"start": {opening: "reasoning", **hidden}, "reasoning": {closing: "after", **hidden},
                 "after": {opening: "reasoning", **hidden}, "text": dict.fromkeys(others, "text")}, needs or (opening, closing))


_CHANNELS = {"<|channel|>": "header", "<|start|>": "header", "<|end|>": "header"}
_HEADER = {**_CHANNELS, "<|channel|>": "header+", "<|message|>": "?"}         # role and receiver stand before the channel

#: The first that fits counts.
FORMS = (
    Form({"start": _CHANNELS, "header": _HEADER, "reasoning": _CHANNELS, "after": _CHANNELS,
          "text": _CHANNELS}, ("<|channel|>", "<|message|>", "<|start|>")),                                     # gpt-oss
    Form({"start": {"<|channel>": "header"}, "header": {"\n": "?", "<channel|>": "after"}, "reasoning": {"<channel|>": "after"},
          "after": {"<|channel>": "header"}, "text": {"<|channel>": "header"}}, ("<|channel>", "<channel|>")),  # Gemma 4
    _between("<think>", "</think>", "<response>", "</response>", needs=("<think>", "<response>")),              # Granite 3.3
    _between("<think>", "</think>", "<answer>", "</answer>", needs=("</think>", "<answer>")),                   # Hunyuan
    _between("<think>", "</think>", needs=("</think>",)),               # Qwen3, DeepSeek-R1, SmolLM3, EXAONE 4, GLM and most others
    _between("[THINK]", "[/THINK]"),                                                                            # Magistral, Ministral
    _between("<seed:think>", "</seed:think>"),
    _between("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>",
             needs=("<|START_THINKING|>", "<|END_THINKING|>")),                                                 # Command
    _between("◁think▷", "◁/think▷"),
    _between("Here is my thought process:", "Here is my response:"),                                            # Granite 3.2
)


class NoCall(ValueError):
    """What looked like a call is ordinary text, and nothing is wrong with it."""


class Splitter:
    """
    Text in, pieces out. What may become a mark is held back until it is clear.

    `spelled` are the marks that are control tokens: they come through `mark`, and a text that only spells one is text.
    """

    def __init__(self, form: Form, spelled: frozenset[str], state: str = "start", header: str = "", held: str = "",
                 space: str | None = None):
        self.spelled = spelled
        self.problem: str | None = None     # why what looked like a call is none
        self._form = form
        self._state = state
        self._header = header               # or the call so far, with its marks
        self._held = held                   # unclear whether it is a mark
        self._space = space                 # white space inside reasoning, left out if its end comes; None: at its beginning

    def copy(self) -> "Splitter":
        return Splitter(self._form, self.spelled, *self.state)

    @property
    def state(self) -> tuple[str, str, str, str | None]:
        """What a splitter that goes on from here is made with."""
        return self._state, self._header, self._held, self._space

    def push(self, text: str) -> list[str]:
        out: list[str] = []
        held, self._held = self._held + text, ""
        while held:
            row = self._form.table.get(self._state, {})
            marks = [m for m in row if m not in self.spelled]
            if self._state in ("start", "after"):
                said = held.lstrip()
                if found := next((m for m in marks if said.startswith(m)), None):
                    self._go(found, out)
                    held = said[len(found):]
                elif any(m.startswith(said) for m in marks) or not said:
                    self._held = held if self._state == "start" else said
                    return out
                else:
                    held = held if self._state == "start" else said
                    self._state = "text"
                continue
            at, found = min(((at, m) for m in marks if (at := held.find(m)) >= 0), default=(-1, ""))
            if not found:
                keep = max((longest_tail(held, m) for m in marks), default=0)
                if self._state == "text" and self._form.read:       # a call may follow, and white space before it is no text
                    keep = len(held) - len(held[:len(held) - keep].rstrip())
                self._held = held[len(held) - keep:]
                self._say(held[:len(held) - keep], out)
                return out
            self._go(found, out, self._flush(held[:at], row[found], out))
            held = held[at + len(found):]
        return out

    def mark(self, spelling: str) -> list[str]:
        """A control token that is a mark."""
        out: list[str] = []
        held, self._held = self._held, ""
        if self._state in ("start", "after") and not held.strip():
            self._go(spelling, out)
        else:
            self._go(spelling, out, self._flush(held, self._form.table.get(self._state, {}).get(spelling), out))
        return out

    def finish(self) -> list[str]:
        """Nothing more comes: what was held back is no mark, and a call is whole."""
        out: list[str] = []
        held, self._held = self._held, ""
        self._flush(held, None, out)
        if self._state == "call":
            self._called(out, "after")
        return out

    def _flush(self, held: str, to: str | None, out: list[str]) -> str:
        """Say what comes before a mark that leads `to`, or before the end; white space before a call is returned instead."""
        if self._state in ("start", "after") and held:
            self._state = "text"
        said = held.rstrip() if self._state == "text" and to == "call" else held
        self._say(said, out)
        return held[len(said):]

    def _say(self, text: str, out: list[str]) -> None:
        if self._state in ("header", "call"):
            self._header += text
        elif self._state == "text":
            if text:
                out.append(text)
        else:
            text = text.lstrip() if self._space is None else self._space + text
            if said := text.rstrip():
                out.append(Reasoning(said))
            if said or self._space is not None:
                self._space = text[len(said):]

    def _go(self, mark: str, out: list[str], space: str = "") -> None:
        to = self._form.table.get(self._state, {}).get(mark)
        if to is None:                  # a mark out of its place
            return
        if to == "?":
            to = "call" if self._form.callee and self._form.callee.search(self._header) else \
                "reasoning" if _THOUGHTS.search(self._header) else "after"
        header = space + mark if to == "call" else ""
        if self._state in ("header", "call") and to in ("header+", "call"):     # one more of its parts
            header, to = self._header + (mark if to == "call" else " "), to.rstrip("+")
        elif self._state == "call":
            self._header += mark if to == "after" else ""
            to = self._called(out, to)
        self._state, self._header, self._space = to, header, None

    def _called(self, out: list[str], to: str) -> str:
        """The call has ended, and its end leads `to`; returns where it does lead."""
        source, self._header, self._state = self._header, "", to
        try:
            out += self._form.read(source)
        except ValueError as problem:
            self.problem = self.problem if isinstance(problem, NoCall) else str(problem)
            out.append(source)
            self._state = "text" if to == "after" else to
        return self._state


class Thinking:
    """What a model's file says about reasoning: its form, the switches and message fields of its template."""

    def __init__(self, template: "ChatTemplate", vocab: "Vocab"):
        known = lambda mark: mark in template.source or vocab.find(mark) is not None     # noqa: E731
        self.form = next((form for form in FORMS if all(map(known, form.needs))), None)
        self._control = vocab.control
        self._spelled = self._controls(self.form)
        self._switches = [name for name in _ON_OFF if name in template.variables]
        self._efforts = _EFFORT in template.variables
        self._field = next((name for name in _FIELDS if name in template.words), None)

    def _controls(self, form: Form | None) -> frozenset[str]:
        return frozenset(m for m in form.marks if m in self._control) if form else frozenset()

    def splitter(self, parts: Sequence["int | str"], calls: Form | None = None) -> Splitter | None:
        """
        For what follows a rendered conversation: a template may have opened the reasoning already.

        `calls` is the form to read by if tools are offered: this one's, and theirs (see toolcalls.py).
        """
        form = calls or self.form
        if form is None:
            return None
        state: tuple = ()
        if self.form is not None and self.form.pair is None:
            spellings = {self._control[m]: m for m in self._spelled}
            reader = Splitter(self.form, self._spelled)
            for part in parts:
                if isinstance(part, str):
                    reader.push(part)
                elif part in spellings:
                    reader.mark(spellings[part])
            state = reader.state
        elif self.form is not None:
            opening = self.form.pair[0]
            tail = "".join(p if isinstance(p, str) else opening if p == self._control.get(opening) else "\0" for p in parts[-3:])
            if tail.rstrip().endswith(opening):
                state = ("reasoning",)
        return Splitter(form, self._controls(form), *state)

    def restored(self, state: Sequence, calls: Form | None = None) -> Splitter | None:
        form = calls or self.form
        return Splitter(form, self._controls(form), *state) if form else None

    def shaped(self, messages: Iterable[Mapping]) -> list[dict]:
        """The messages with their `reasoning_content` where this template looks for it."""
        return [self._shaped(m) if m.get("reasoning_content") else dict(m) for m in messages]

    def _shaped(self, message: Mapping) -> dict:
        said, thought = message.get("content"), message["reasoning_content"]
        if self._field:
            if said and message.get("tool_calls") and self.form is FORMS[0]:    # gpt-oss's refuses to have both before a call
                return {**message, self._field: f"{thought}\n\n{said}", "content": ""}
            return {**message, self._field: thought}
        pair = self.form and self.form.pair
        if not pair or self._spelled or not isinstance(said, str) or not isinstance(thought, str):
            return dict(message)        # it has no place: marks that are control tokens cannot be spelled in a message
        return {**message, "content": f"{pair[0]}\n{thought}\n{pair[1]}\n\n{said}"}

    def variables(self, setting: bool | str | None) -> dict:
        """The template variables that turn reasoning on (True), off (False), or to an effort ("low", "medium", "high")."""
        if setting is None:
            return {}
        if isinstance(setting, bool) and self._switches:
            return dict.fromkeys(self._switches, setting)
        if setting in _EFFORTS and self._efforts:
            return {_EFFORT: setting}
        if not self._switches and not self._efforts:
            raise InvalidArgument("this model's chat template has no switch for reasoning")
        offered = (["on", "off"] if self._switches else []) + (list(_EFFORTS) if self._efforts else [])
        shown = {True: "on", False: "off"}.get(setting, setting)
        raise InvalidArgument(f"reasoning cannot be set to {shown!r} in this model; it can be {', '.join(offered)}")
