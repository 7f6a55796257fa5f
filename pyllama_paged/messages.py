"""
Messages as callers have them, made into what chat templates expect.

    content      None is "", or None where a template asks for that; a list of text parts is joined; other parts are refused
    tool_calls   arguments as objects, which templates write as JSON, or as text where a template joins them to others
                 (DeepSeek's); callers have them as text, as the OpenAI API does

What cannot be is named by its place: messages[3].content[0].
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgument

if TYPE_CHECKING:
    from .template import ChatTemplate

__all__ = ["one_by_one", "shaped", "text_of", "unreadable"]

_TEXT = ("text", "input_text", "output_text")
_KINDS = {"image": "an image", "audio": "audio", "video": "a video", "file": "a file"}


def shaped(messages: Iterable[Mapping], template: "ChatTemplate") -> list[dict]:
    """Copies, for this template."""
    return [_shaped(f"messages[{i}]", m, template) for i, m in enumerate(messages)]


def _shaped(where: str, message: Any, template: "ChatTemplate") -> dict:
    if not isinstance(message, Mapping):
        raise InvalidArgument(f"{where} is a {type(message).__name__}; a message has a role and a content")
    out = dict(message)
    calls = out.pop("tool_calls", None)
    if calls:                           # an empty list is as good as none, and templates ask whether there is one
        out["tool_calls"] = _calls(f"{where}.tool_calls", calls, template.takes_argument_text)
    if "content" in out or calls:
        out["content"] = _content(f"{where}.content", out.get("content"), out.get("role") == "tool")
        if calls and not out["content"] and template.asks_for_none:
            out["content"] = None
    return out


def _content(where: str, content: Any, is_result: bool) -> Any:
    if content is None:
        return ""
    if isinstance(content, str) or (is_result and isinstance(content, Mapping)):     # templates may write results as JSON
        return content
    if not isinstance(content, (list, tuple)):
        raise InvalidArgument(f"{where} is a {type(content).__name__}; it must be text, or a list of parts of text")
    if is_result and not all(isinstance(part, str) or (isinstance(part, Mapping) and "type" in part) for part in content):
        return content
    return "".join(_part(f"{where}[{i}]", part) for i, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind in _TEXT and isinstance(text, str):
        return text
    what = next((name for known, name in _KINDS.items() if isinstance(kind, str) and known in kind), None)
    raise InvalidArgument(f"{where} is {what}, and models are given text only" if what else
                          f"{where} is no part of text: {{\"type\": \"text\", \"text\": ...}} is expected")


def text_of(message: Mapping) -> str:
    """What a person would read of it: its text, and the calls it makes. Nothing is refused here."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else content if isinstance(content, (list, tuple)) else []
    text = "".join(p if isinstance(p, str) else str(p.get("text", "")) for p in parts if isinstance(p, (str, Mapping)))
    calls = message.get("tool_calls")
    functions = [c.get("function", c) for c in calls if isinstance(c, Mapping)] if isinstance(calls, (list, tuple)) else []
    return "\n".join([*filter(None, [text]), *(f"{f.get('name')}({f.get('arguments')})" for f in functions if isinstance(f, Mapping))])


def _calls(where: str, calls: Any, as_text: bool) -> list[dict]:
    if not isinstance(calls, (list, tuple)):
        raise InvalidArgument(f"{where} is a {type(calls).__name__}; it must be a list of calls")
    out = []
    for i, call in enumerate(calls):
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidArgument(f"{where}[{i}] names no function")
        arguments = function.get("arguments")
        if as_text and isinstance(arguments, Mapping):
            function = {**function, "arguments": _text(f"{where}[{i}]", arguments)}
        elif isinstance(arguments, str) and not as_text:
            function = {**function, "arguments": _object(arguments)}
        out.append({**call, "function": function} if "function" in call else dict(function))
    return out


def _object(text: str) -> Any:
    """The object that a text spells; the text itself, if a model did not get it right: it is what was said."""
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _text(where: str, arguments: Mapping) -> str:
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidArgument(f"{where} has arguments that are no JSON") from None


def one_by_one(messages: Iterable[Mapping]) -> list[dict] | None:
    """
    The same talk with one call a message, each followed by its result, for templates that know no more (Llama 3, gpt-oss).

    None if there is nothing to take apart.
    """
    out: list[dict] = []
    pending: list[list[dict]] = []      # a call and its results, for each call of one message
    apart = False
    for message in map(dict, messages):
        if message.get("role") == "tool" and pending:
            of = next((p for p in pending if p[0]["tool_calls"][0].get("id") == message.get("tool_call_id")), None) \
                or min(pending, key=len)
            of.append(message)
            continue
        out += [m for p in pending for m in p]
        pending = []
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            out.append(message)
            continue
        apart = True
        content = "" if message.get("content") is not None else None
        pending = [[message | {"tool_calls": [call]} if i == 0 else {"role": message.get("role"), "content": content, "tool_calls": [call]}]
                   for i, call in enumerate(calls)]
    return out + [m for p in pending for m in p] if apart else None


def unreadable(messages: Iterable[Mapping]) -> str | None:
    """Where, in messages that were `shaped`, arguments are no object: a template may stumble over them."""
    for i, message in enumerate(messages):
        for k, call in enumerate(message.get("tool_calls") or ()):
            arguments = call.get("function", call).get("arguments")
            if isinstance(arguments, str) and isinstance(_object(arguments), str):
                return f"messages[{i}].tool_calls[{k}]"
    return None
