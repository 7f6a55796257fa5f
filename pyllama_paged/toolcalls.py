"""
Calls of tools in what a model says: the forms in which models write them, kept apart from the answer.

ToolCall   a piece of a stream: one call, whole. It is a str, the call as the model wrote it
Calls      what a model's file says about tools: which form, and how its template wants to be told
FORMS      rows for the tables of reasoning.py, with the state `call`, and a reader from notation.py

Calls are looked for only where tools are offered. What begins like a call and is none stays text of the answer.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from . import notation
from .errors import InvalidArgument
from .reasoning import Form

if TYPE_CHECKING:
    from .template import ChatTemplate
    from .vocab import Vocab

__all__ = ["CODE", "FORMS", "TOOL_LISTS", "CallForm", "Calls", "ToolCall", "id_of"]

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VARIABLES = ("tools", "xml_tools")     # how templates call the list; the second is SmolLM3's
_IN_CODE = "python_tools"               # SmolLM3's list of tools that are called by code
TOOL_LISTS = (*_VARIABLES, _IN_CODE)    # template variables that offer tools


class ToolCall(str):
    """
    One call that a model asks for. The text is what the model wrote (of several calls in one, the first has it).

    name        of the function
    arguments   a JSON object, as text
    id          what the message with the result refers to (`tool_call_id`)
    index       0 for the first call of an answer
    """

    name: str
    arguments: str
    id: str
    index: int

    def __new__(cls, text: str, name: str, arguments: str, id: str = "", index: int = 0) -> "ToolCall":
        self = super().__new__(cls, text)
        self.name, self.arguments, self.id, self.index = name, arguments, id, index
        return self

    def __getnewargs__(self):
        return str(self), self.name, self.arguments, self.id, self.index

    def message(self) -> dict:
        """As an entry of a message's `tool_calls`."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def id_of(call: ToolCall, n_tokens: int, index: int) -> str:
    """An id for a call that came without one: nine letters and digits, as Mistral's templates ask for; the same every time."""
    number = int.from_bytes(hashlib.sha256(f"{n_tokens} {index} {call.name} {call.arguments}".encode("utf-8", "replace")).digest(), "big")
    return "".join(_DIGITS[number // 62**i % 62] for i in range(9))


@dataclass(frozen=True)
class CallForm:
    """
    opens    marks that begin a call, wherever an answer may
    inside   marks that are part of a call
    closes   marks that end it, and the state that they lead to; the end of the answer ends it, too
    read     notation.py: the calls in a text from the opening mark on
    needs    spellings all of which must be in the template, or control tokens of the vocabulary
    first    further marks, as text, that begin a call only at the beginning; they are part of what is read
    callee   for forms whose calls begin with a header
    write    a call as text, for the history, where a template does not write it
    """

    opens: tuple[str, ...]
    read: Callable[[str, "Offered"], Iterator[notation.Call]]
    needs: tuple[str, ...]
    inside: tuple[str, ...] = ()
    closes: Mapping[str, str] = ()      # type: ignore[assignment]
    first: Callable[["Offered"], Sequence[str]] = lambda offered: ()
    callee: re.Pattern | None = None
    write: Callable[[str, Any], str] | None = None

    def merged(self, base: Form | None, offered: "Offered") -> Form:
        """A form of reasoning or of other calls, or none, with this one's calls in it."""
        table = {state: dict(row) for state, row in (base.table if base else {}).items()}
        for state in ("start", "after", "text"):
            table.setdefault(state, {}).update(dict.fromkeys(self.opens, "call"))
        for state in ("start", "after"):
            table[state].update(dict.fromkeys(self.first(offered), "call"))
        table.setdefault("call", {}).update({**dict.fromkeys(self.inside, "call"), **dict(self.closes)})
        read = partial(self._pieces, offered)
        if base and (other := base.read):       # what a call begins with tells whose it is
            mine, read = read, lambda source: (mine if source.lstrip().startswith(self.opens) else other)(source)
        return Form(table, (), read, self.callee or (base and base.callee))

    def _pieces(self, offered: "Offered", source: str) -> list[ToolCall]:
        source = source.strip()
        found = list(self.read(source, offered))
        if not found:
            raise ValueError("the tool call is empty")
        return [ToolCall("" if i else source, _whole(name), _json(arguments), _whole(id or "")) for i, (name, arguments, id) in enumerate(found)]


class Offered:
    """The tools that a caller offers, by name, as far as they say what they take."""

    def __init__(self, tools: Sequence[Any]):
        self.parameters: dict[str, Mapping] = {}
        for tool in tools:
            function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
            if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
                given = function.get("parameters")
                known = given.get("properties") if isinstance(given, Mapping) else None
                self.parameters[name] = known if isinstance(known, Mapping) else {}

    def is_text(self, name: str, parameter: str) -> bool:
        """Whether a parameter is to be taken as it is written, because it is, or may only be, a string."""
        declared = self.parameters.get(name, {}).get(parameter)
        return not isinstance(declared, Mapping) or declared.get("type") in ("string", ["string"])


def _whole(text: str) -> str:
    """Half a surrogate pair can be spelled in JSON, but never tokenized again."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _json(arguments: Mapping) -> str:
    try:
        return _whole(json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except RecursionError:
        raise ValueError("the tool call nests too deeply") from None


def _objects(offered: Offered) -> list[str]:
    """How a bare JSON object with a call begins."""
    return [f'{{{space}"{key}"' for space in ("", " ", "\n", "\n  ", "\n    ") for key in ("name", "type", "function")]


#: SmolLM3's, offered as `python_tools`: "When you send a message containing Python code between '<code>' and '</code>' tags".
CODE = CallForm(("<code>",), notation.code, ("<code>", "</code>"), closes={"</code>": "after"}, write=notation.written_code)

_HARMONY_ENDS = {"<|call|>": "after", "<|end|>": "header", "<|start|>": "header", "<|channel|>": "header"}

#: The first that fits counts: what a template spells tells more than what a vocabulary has.
FORMS = (
    CallForm((), notation.harmony, ("<|channel|>", "<|message|>", "<|call|>"), closes=_HARMONY_ENDS,
             callee=notation.HARMONY_CALLEE),                                                               # gpt-oss
    CallForm(("<|tool_call>",), notation.gemma, ("<|tool_call>", "<tool_call|>"), ('<|"|>',), {"<tool_call|>": "after"}),   # Gemma 4
    CallForm(notation.DEEPSEEK_BEGINS, notation.deepseek, ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
             ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"), {"<｜tool▁calls▁end｜>": "after"}),        # DeepSeek-R1 and its distilled models, V3.1
    CallForm(("<|tool_call_start|>",), notation.python, ("<|tool_call_start|>",), (), {"<|tool_call_end|>": "after"}),      # LFM2
    CallForm(("<tool_call>",), notation.tagged, ("<tool_call>", "</tool_call>"), (), {"</tool_call>": "after"},
             write=notation.written_tagged),
    #        Qwen 2.5 to 3.6, Hermes, Granite 4, EXAONE 4, SmolLM3
    CallForm(("<function_calls>",), notation.olmo, ("<function_calls>", "</function_calls>"), (), {"</function_calls>": "after"}),     # OLMo 3
    CallForm(("[TOOL_CALLS]",), notation.mistral, ("[TOOL_CALLS]",), ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")),              # Mistral
    CallForm(("<|tool_call|>",), notation.marked, ("<|tool_call|>",), (), {"<|/tool_call|>": "after"}),     # Granite 3, Phi-4-mini
    CallForm((), notation.named, ("<|observation|>",), first=lambda offered: [f"{name}\n{{" for name in offered.parameters]),   # GLM-4
    CallForm(("<|python_tag|>",), notation.llama, ("<|python_tag|>",), first=_objects),                     # Llama 3.1 to 3.3
)


class Calls:
    """What a model's file says about tools."""

    def __init__(self, template: "ChatTemplate", vocab: "Vocab"):
        known = lambda mark: mark in template.source or mark in vocab.control     # noqa: E731
        self._form = next((form for form in FORMS if all(map(known, form.needs))), None)
        self._variable = next((name for name in _VARIABLES if name in template.names), None)
        self._in_message = self._variable is None and "tools" in template.keys     # Phi-4-mini's
        self._names = template.names
        self._code = CODE if _IN_CODE in template.names and all(map(known, CODE.needs)) else None
        self._writes = "tool_calls" in template.words       # SmolLM3's does not: a call would vanish from the history
        self._is_token = lambda form: any(mark in vocab.control for mark in form.opens)

    @property
    def taken(self) -> bool:
        """Whether the template tells the model about tools."""
        return self._variable is not None or self._in_message

    @property
    def read(self) -> bool:
        """Whether calls in this model's answers are recognised."""
        return self._form is not None

    def variables(self, variables: Mapping) -> dict:
        """The variables with `tools` under the name that this template knows."""
        for name in TOOL_LISTS:
            if variables.get(name) and not isinstance(variables[name], (list, tuple)):
                raise InvalidArgument(f"{name} must be a list of tools")
            if variables.get(name) and name != "tools" and name not in self._names:
                raise InvalidArgument(f"this model's chat template takes no {name}")
        if not variables.get("tools"):
            return dict(variables)
        if not self.taken:
            raise InvalidArgument("this model's chat template takes no tools")
        return {**variables, self._variable: variables["tools"]} if self._variable else dict(variables)

    def placed(self, messages: list[dict], variables: Mapping) -> list[dict]:
        """The messages, with calls in their text and tools in the system prompt, where this template expects that."""
        messages = self._written(messages, variables)
        if not self._in_message or not variables.get("tools"):
            return messages
        functions = [tool.get("function", tool) if isinstance(tool, Mapping) else tool for tool in variables["tools"]]
        n = bool(messages and messages[0].get("role") == "system")
        system = messages[0] if n else {"role": "system", "content": ""}
        return [{**system, "tools": json.dumps(functions, ensure_ascii=False)}, *messages[n:]]

    def _written(self, messages: list[dict], variables: Mapping) -> list[dict]:
        in_code = variables.get(_IN_CODE) and not any(map(variables.get, _VARIABLES))
        form = self._code if in_code else self._form
        if self._writes or form is None or form.write is None or self._is_token(form):      # a message cannot spell tokens
            return messages
        out = []
        for message in messages:
            calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
            said = [message.get("content") or "", *(form.write(call["name"], call.get("arguments", {})) for call in calls)]
            out.append({**message, "content": "\n".join(filter(None, said))} if calls else message)
        return out

    def form(self, base: Form | None, variables: Mapping) -> Form | None:
        """What answers are read by where these variables offer tools; None: no call is looked for."""
        tools = next((value for name in _VARIABLES if (value := variables.get(name))), None)
        out = None
        for form, offered in ((self._form, tools), (self._code, variables.get(_IN_CODE))):
            if form is not None and offered and isinstance(offered, (list, tuple)):
                out = form.merged(out or base, Offered(offered))
        return out
