"""
How models write calls of tools down: one reader per notation.

A reader takes the text of a call, from its opening mark on, and yields (name, arguments, id or None) for each call
in it. What is no call raises `ValueError` with the reason; `NoCall` where that is nothing to complain about.

The text is a model's, so anybody's: no reader evaluates it, and nesting has a limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .reasoning import NoCall

if TYPE_CHECKING:
    from .toolcalls import Offered

__all__ = ["DEEPSEEK_BEGINS", "HARMONY_CALLEE", "Call", "code", "deepseek", "gemma", "harmony", "llama", "marked", "mistral", "named", "olmo", "python",
           "tagged", "written_code", "written_tagged"]

Call = tuple[str, Mapping[str, Any], "str | None"]

_MAX_DEPTH = 64
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_WORD = re.compile(r"[A-Za-z_][\w.-]*")
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None, "none": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>|\Z)", re.S)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)(?:</parameter>|\Z)", re.S)
_MISTRAL = re.compile(r"([\w.-]+)\s*(?:\[CALL_ID\]\s*([\w-]+)\s*)?(?:\[ARGS\]\s*)?(?=\{)")
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)")
_DEEPSEEK = re.compile(r"\s*(?:<｜tool▁call▁begin｜>)?([^<\n]*)<｜tool▁sep｜>(?:([^\n{`]*)\n\s*```(?:json)?)?\s*")
_DEEPSEEK_END = re.compile(r"\s*(?:```)?\s*(?:<｜tool▁call▁end｜>)?\s*")
_BUILTIN = re.compile(r"([A-Za-z_]\w*)\.call\((.*)\)\Z", re.S)

#: The first is the right one; the others are how DeepSeek's distilled models spell it, too.
DEEPSEEK_BEGINS = ("<｜tool▁calls▁begin｜>", "<｜tool_calls_begin｜>", "<｜tool calls begin｜>", "<｜tool\\_calls\\_begin｜>", "<｜tool▁calls｜>")
#: In a header of gpt-oss: who is called.
HARMONY_CALLEE = re.compile(r"\bto=functions\.([\w.-]+)")


# ---- writing, for templates that know no calls

def written_tagged(name: str, arguments: Any) -> str:
    return f'<tool_call>\n{{"name": {_dumped(name)}, "arguments": {_dumped(arguments)}}}\n</tool_call>'


def written_code(name: str, arguments: Any) -> str:
    if not isinstance(arguments, Mapping):
        return f"<code>{name}({arguments})</code>"
    return f"<code>{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})</code>"


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# ---- JSON

def _refuse(constant: str):
    raise ValueError(f"{constant} is no JSON")


_decoder = json.JSONDecoder(strict=False, parse_constant=_refuse)      # models write line ends into strings


def _decoded(text: str, at: int = 0) -> tuple[Any, int]:
    try:
        return _decoder.raw_decode(text, at)
    except json.JSONDecodeError as problem:
        raise ValueError(f"the tool call is no JSON: {problem.msg} at character {problem.pos}") from None
    except RecursionError:
        raise ValueError("the tool call is no JSON: it nests too deeply") from None
    except ValueError as problem:
        raise ValueError(f"the tool call is no JSON: {problem}") from None


def _check_depth(value: Any, depth: int = 0) -> None:
    """What nests deeper than templates may would be refused in every later turn."""
    if depth > _MAX_DEPTH:
        raise ValueError("the tool call nests too deeply")
    if isinstance(value, (Mapping, list)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            _check_depth(inner, depth + 1)


def _call(item: Any) -> Call:
    """{"name": ..., "arguments" or "parameters": {...}}, also with "function" around it or in place of "name"."""
    if isinstance(item, Mapping) and isinstance(item.get("function"), Mapping):
        item = {"id": item.get("id"), **item["function"]}
    name = item.get("name", item.get("function")) if isinstance(item, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ValueError("the tool call names no function")
    arguments = next((item[key] for key in ("arguments", "parameters") if item.get(key) is not None), {})
    if isinstance(arguments, str):
        arguments = _decoded(arguments)[0] if arguments.strip() else {}
    if not isinstance(arguments, Mapping):
        raise ValueError(f"the arguments of {name} are no JSON object")
    _check_depth(arguments)
    id = item.get("id")
    return name, arguments, id if isinstance(id, str) and id else None


def _json_calls(text: str) -> Iterator[Call]:
    """Objects, alone, in a list, or one after another."""
    at = 0
    while at < len(text):
        value, at = _decoded(text, at)
        yield from map(_call, value if isinstance(value, list) else [value])
        while at < len(text) and (text[at].isspace() or text[at] in ",;"):
            at += 1


def _within(source: str, opening: str, closing: str = "") -> str:
    return (source.removeprefix(opening).removesuffix(closing) if closing else source.removeprefix(opening)).strip()


def tagged(source: str, offered: "Offered") -> Iterator[Call]:
    """<tool_call>, then JSON, or <function=f><parameter=p>value</parameter></function> (Qwen3-Coder, Qwen3.5)."""
    text = _within(source, "<tool_call>", "</tool_call>")
    if not text.startswith("<function="):
        yield from _json_calls(text)
        return
    for name, body in _FUNCTION.findall(text):
        name = name.strip()
        arguments = {key.strip(): _typed(value, offered.is_text(name, key.strip())) for key, value in _PARAMETER.findall(body)}
        _check_depth(arguments)
        yield name, arguments, None


def _typed(value: str, is_text: bool) -> Any:
    value = value.removeprefix("\n").removesuffix("\n")
    try:
        return value if is_text else json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return value


def marked(source: str, offered: "Offered") -> Iterator[Call]:
    """<|tool_call|>, then JSON, mostly a list."""
    return _json_calls(_within(source, "<|tool_call|>", "<|/tool_call|>"))


def mistral(source: str, offered: "Offered") -> Iterator[Call]:
    """[TOOL_CALLS], then a list in JSON, or name[CALL_ID]id[ARGS]{...}, once a call."""
    for text in map(str.strip, source.split("[TOOL_CALLS]")):
        if not text:
            continue
        if text[0] in "[{":
            yield from _json_calls(text)
            continue
        at = 0
        while at < len(text):
            if not (found := _MISTRAL.match(text, at)):
                raise ValueError("the tool call has no arguments in JSON")
            arguments, at = _decoded(text, found.end())
            yield _call({"name": found[1], "arguments": arguments, "id": found[2]})
            at += len(text[at:]) - len(text[at:].lstrip())


def llama(source: str, offered: "Offered") -> Iterator[Call]:
    """JSON by itself, or after <|python_tag|>, or a built-in tool's name.call(key="value")."""
    text = _within(source, "<|python_tag|>")
    if found := _BUILTIN.match(text):
        yield found[1], _Notation(found[2] + ")").arguments(), None
        return
    sure = text != source or any(f'"{name}"' in text for name in offered.parameters)
    try:
        calls = list(_json_calls(text))
    except ValueError as problem:
        raise problem if sure else NoCall() from None
    if text == source and not all(name in offered.parameters for name, _, _ in calls):
        raise NoCall()                  # an object with a name in it, as any answer in JSON may be
    yield from calls


def _sole(name: str | None, text: str) -> Call:
    """One call, whose arguments are all of the text."""
    value, end = _decoded(text)
    if text[end:].strip():
        raise ValueError("text follows the tool call's arguments")
    return _call({"name": name, "arguments": value})


def named(source: str, offered: "Offered") -> Iterator[Call]:
    """GLM-4: the name, and on the next line its arguments in JSON."""
    name, _, arguments = source.partition("\n")
    yield _sole(name.strip(), arguments)


def harmony(source: str, offered: "Offered") -> Iterator[Call]:
    """gpt-oss: a header with "to=functions.f", <|message|>, the arguments in JSON, <|call|>."""
    header, _, text = source.partition("<|message|>")
    name = HARMONY_CALLEE.search(header)
    yield _sole(name[1] if name else None, _within(text, "", "<|call|>") or "{}")


def deepseek(source: str, offered: "Offered") -> Iterator[Call]:
    """DeepSeek: "function", a mark, the name, on the next line the arguments in a fence; since V3.1 the name, the mark, the arguments."""
    text = source[len(next((mark for mark in DEEPSEEK_BEGINS if source.startswith(mark)), "")):].removesuffix("<｜tool▁calls▁end｜>").strip()
    at = 0
    while at < len(text):
        if not (found := _DEEPSEEK.match(text, at)):
            raise ValueError("the tool call names no function")
        if found[2] is not None and found[1].strip() != "function":
            raise ValueError("the tool call is of no function")
        arguments, at = _decoded(text, found.end())
        yield _call({"name": (found[1] if found[2] is None else found[2]).strip(), "arguments": arguments})
        at = _DEEPSEEK_END.match(text, at).end()


def gemma(source: str, offered: "Offered") -> Iterator[Call]:
    """Gemma 4: call:f{key:value,...}; strings stand between <|"|>."""
    text = _within(source, "<|tool_call>", "<tool_call|>")
    name, brace, rest = text.removeprefix("call:").partition("{")
    if not brace:
        raise ValueError("the tool call has no arguments")
    reader = _Notation("{" + rest)
    arguments = reader.value()
    reader.end()
    yield _call({"name": name.strip(), "arguments": arguments})


def python(source: str, offered: "Offered") -> Iterator[Call]:
    """LFM2: [f(key="value", other=1), ...], or the same as JSON."""
    text = _within(source, "<|tool_call_start|>", "<|tool_call_end|>")
    if re.match(r"\[?\s*\{", text):
        yield from _json_calls(text)
        return
    yield from _python_calls(text)


def olmo(source: str, offered: "Offered") -> Iterator[Call]:
    """OLMo 3: f(key="value"), one a line."""
    return _python_calls(_within(source, "<function_calls>", "</function_calls>"))


def code(source: str, offered: "Offered") -> Iterator[Call]:
    """
    SmolLM3's code: calls of tools, one a line, whose arguments are plain values.

    Any other program is no call: it may be run by whoever can, but there is nothing to answer.
    """
    reader = _Notation(_within(source, "<code>", "</code>"))
    while not reader.at_end():
        name = reader.word()
        if name not in offered.parameters:
            raise ValueError(f"the code does more than call tools: {name[:80]} is none")
        reader.expect("(")
        yield name, reader.arguments(list(offered.parameters[name])), None
        reader.take(";")


def _python_calls(text: str) -> Iterator[Call]:
    reader = _Notation(text)
    listed = reader.take("[")
    while True:
        name = reader.word()
        reader.expect("(")
        yield name, reader.arguments(), None
        if not reader.take(",") and (listed or reader.at_end()):
            break
    if listed:
        reader.expect("]")
    reader.end()


class _Notation:
    """Values as Python, JavaScript and Gemma write them: a little more than JSON, and no expressions."""

    def __init__(self, text: str):
        self._text = text
        self._at = 0

    def _fail(self, wanted: str) -> ValueError:
        return ValueError(f"the tool call cannot be read: {wanted} is missing at character {self._at}")

    def _space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def take(self, what: str) -> bool:
        self._space()
        if not self._text.startswith(what, self._at):
            return False
        self._at += len(what)
        return True

    def expect(self, what: str) -> None:
        if not self.take(what):
            raise self._fail(repr(what))

    def at_end(self) -> bool:
        self._space()
        return self._at >= len(self._text)

    def end(self) -> None:
        if not self.at_end():
            raise self._fail("its end")

    def word(self) -> str:
        self._space()
        if not (found := _WORD.match(self._text, self._at)):
            raise self._fail("a name")
        self._at = found.end()
        return found[0]

    def arguments(self, declared: Sequence[str] = ()) -> dict[str, Any]:
        """key=value, ... up to the closing parenthesis; before them, as many values without a key as are `declared`."""
        out: dict[str, Any] = {}
        by_place = iter(declared)
        while not self.take(")"):
            if not declared or _KEY.match(self._text, self._at):
                key = self.word()
                self.expect("=")
                by_place = iter(())
            elif not (key := next(by_place, None)):
                raise self._fail("the name of an argument")
            if key in out:
                raise ValueError(f"the tool call gives {key[:80]} twice")
            out[key] = self.value()
            if not self.take(","):
                self.expect(")")
                break
        return out

    def value(self, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("the tool call nests too deeply")
        self._space()
        if self.take('<|"|>'):
            at, self._at = self._at, self._text.find('<|"|>', self._at)
            if self._at < 0:
                self._at = len(self._text)
                raise self._fail("the end of a string")
            self._at += len('<|"|>')
            return self._text[at:self._at - len('<|"|>')]
        if self._text[self._at:self._at + 1] in ('"', "'"):
            return self._string()
        for opening, closing in ("[]", "()"):
            if self.take(opening):
                items = []
                while not self.take(closing):
                    items.append(self.value(depth + 1))
                    if not self.take(","):
                        self.expect(closing)
                        break
                return items
        if self.take("{"):
            return self._object(depth)
        if found := _NUMBER.match(self._text, self._at):
            self._at = found.end()
            return float(found[0]) if set(found[0]) & set(".eE") else int(found[0])
        word = self.word()
        if word not in _CONSTANTS:
            self._at -= len(word)
            raise self._fail("a value")
        return _CONSTANTS[word]

    def _object(self, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        while not self.take("}"):
            self._space()
            bare = _WORD.match(self._text, self._at)
            key = self.word() if bare else self.value(depth + 1)
            if not isinstance(key, str):
                raise self._fail("a key")
            self.expect(":")
            out[key] = self.value(depth + 1)
            if not self.take(","):
                self.expect("}")
                break
        return out

    def _string(self) -> str:
        quote, out = self._text[self._at], []
        self._at += 1
        while self._at < len(self._text) and self._text[self._at] != quote:
            c = self._text[self._at]
            self._at += 1
            if c == "\\":
                c = self._escape()
            out.append(c)
        self._at += 1
        if self._at > len(self._text):
            raise self._fail("the end of a string")
        return "".join(out)

    def _escape(self) -> str:
        c = self._text[self._at:self._at + 1]
        self._at += 1
        n = {"x": 2, "u": 4, "U": 8}.get(c, 0)
        digits = self._text[self._at:self._at + n]
        if n and re.fullmatch(r"[0-9a-fA-F]+", digits) and len(digits) == n and int(digits, 16) <= 0x10FFFF:
            self._at += n
            return chr(int(digits, 16))
        return _ESCAPES.get(c, c)
