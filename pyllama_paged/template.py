"""
From messages to text, by the chat template that comes with a model.

A template is a program from a file, and a message is text from anybody; neither is trusted.

Template   runs in Jinja2's immutable sandbox, and besides with a budget: loop turns and calls, seconds, the
           size of every string it builds. What it may not do ends in a `TemplateError`.
Messages   cannot spell control tokens. Before rendering, the first character of every control spelling in them
           is replaced by a stand-in that no input uses; after rendering, the text is cut at the control
           spellings that are left, which are the template's own, and the stand-ins become what they were.
           What comes out is a list of parts: control token ids, and texts in which nothing is special.

Threads    one rendering at a time per template (it waits); different templates are independent
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes as nodes
import jinja2.sandbox
import jinja2.visitor

from .errors import TemplateError

__all__ = ["ChatTemplate", "Part", "CHATML", "PLAIN"]

Part = "int | str"

#: For files without a template whose vocabulary has ChatML's control tokens.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: For files that have neither.
PLAIN = (
    "{{ bos_token }}{% for message in messages %}{{ message.role|capitalize }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)

MAX_SOURCE = 1 << 17        # characters of a template
MAX_WORDS = 20_000          # names, signs and pieces of text in it
MAX_NODES = 6_000           # of its syntax tree: three times what the longest ones have; compiling them takes a second on a slow core
MAX_TEXT = 1 << 23          # characters of any string that it builds, or of all strings in a list
MAX_BUILT = 1 << 27         # characters of all strings that one rendering builds
MAX_ITEMS = 1 << 17         # of a list
MAX_DEPTH = 100             # of lists in lists
MAX_TICKS = 1_000_000       # loop turns and calls of one rendering
MAX_SECONDS = 1.0           # of this thread's CPU time: a busy machine makes no template hostile
MAX_NUMBER = 100_000        # in a call: widths, indents, counts
_GROWING = {"replace", "join", "expandtabs", "translate", "indent", "batch", "slice"}
_CHEAP = {"length", "count", "first", "last", "items", "attr", "default", "d", "list", "map", "select", "selectattr", "reject",
          "rejectattr", "random", "reverse", "batch", "slice"}      # filters that look at no item's inside


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: marks the assistant's words for training. Here it is only its content."""

    tags = {"generation"}

    def filter_stream(self, stream):
        """Counts words as they are read: parsing costs time before there is a tree to count."""
        for n, word in enumerate(stream):
            if n >= MAX_WORDS:
                raise jinja2.TemplateError(f"it has more than {MAX_WORDS:,} words")
            yield word

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Checks(jinja2.visitor.NodeTransformer):
    """Puts checks around what no call can be intercepted in: comparing, slicing, hashing."""

    def _checked(self, node: nodes.Expr, how: str = "light") -> nodes.Expr:
        if isinstance(node, nodes.Const):
            return node
        return nodes.Call(nodes.EnvironmentAttribute(how), [node], [], None, None).set_lineno(node.lineno, override=True)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        if any(isinstance(o.expr, nodes.Const) and o.op not in ("in", "notin") for o in node.ops):
            return node                 # as cheap as the constant
        node.expr = self._checked(node.expr)
        for operand in node.ops:
            operand.expr = self._checked(operand.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Test:
        self.generic_visit(node)
        node.args = [self._checked(a) for a in node.args or ()]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return self._checked(node, "built") if isinstance(node.arg, nodes.Slice) else node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:
        self.generic_visit(node)
        node.key = self._checked(node.key)
        return node


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The immutable sandbox, with a budget counted at every loop turn, call, filter and join."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, finalize=self.light,
                         extensions=["jinja2.ext.loopcontrols", _Generation])
        self.concat = self.join
        self.globals.pop("lipsum", None)
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self.filters["tojson"] = _tojson
        for name in ("pprint", "urlize", "wordwrap", "xmlattr"):      # for web pages; their cost is hard to bound
            self.filters.pop(name, None)
        self.filters = {name: self._guarded(function, name) for name, function in self.filters.items()}
        self.start()

    def start(self) -> None:
        self.ticks = self.n_built = 0
        self.deadline = time.thread_time() + MAX_SECONDS

    # ---- the budget

    def tick(self, _=None) -> str:
        self.ticks += 1
        if self.ticks > MAX_TICKS:
            raise jinja2.sandbox.SecurityError(f"it goes round more than {MAX_TICKS:,} times")
        if time.thread_time() > self.deadline:
            raise jinja2.sandbox.SecurityError(f"it runs longer than {MAX_SECONDS:.0f} s")
        return ""

    def _small(self, values) -> None:
        for value in values:
            if isinstance(value, int) and not -MAX_NUMBER <= value <= MAX_NUMBER:
                raise jinja2.sandbox.SecurityError(f"it asks for a size of {value:.3g}")

    def built(self, value):
        """A value that was made just now."""
        self.tick()
        if isinstance(value, (str, bytes)):
            self.n_built += len(value)
            if len(value) > MAX_TEXT or self.n_built > MAX_BUILT:
                raise _too_long()
        elif isinstance(value, (list, tuple)) and len(value) > MAX_ITEMS:
            raise jinja2.sandbox.SecurityError(f"it builds a list of more than {MAX_ITEMS:,} items")
        return value

    def light(self, value):
        """A value that is written, compared or hashed: lists in lists can be far more than they hold in memory."""
        if isinstance(value, (list, tuple, Mapping)):
            self.tick()
            _weight(value)
        return value

    def _bounded(self, name: str, value, args) -> None:
        """What a call may not ask for: huge numbers, and products of two large things."""
        self._small(args)
        heaviest = max(map(_weight, args), default=0)
        if name in _GROWING and isinstance(value, (str, list, tuple)):
            factor = max([heaviest, *(a for a in args if isinstance(a, int))])
            if len(value) * factor > 8 * MAX_TEXT:
                raise _too_long()
        if name in ("format", "format_map") and isinstance(value, str):
            _narrow(value)
            if max(value.count("{"), value.count("%")) * heaviest > MAX_TEXT:
                raise _too_long()
        if name == "sum" and any(isinstance(a, (str, list, tuple)) for a in args[1:]):
            raise jinja2.sandbox.SecurityError("it sums up lists")

    def _guarded(self, function, name: str):
        @functools.wraps(function)          # Jinja marks on it what a filter wants to be passed
        def guarded(*args, **kwargs):
            self.tick()
            at = hasattr(function, "jinja_pass_arg")        # then the first argument is Jinja's own
            value, rest = args[at], (*args[at + 1:], *kwargs.values())
            self._bounded(name, value, rest)
            if name not in _CHEAP:
                self.light(value)
            return self.built(function(*args, **kwargs))

        return guarded

    def join(self, pieces) -> str:
        out, size = [], 0
        for piece in pieces:
            piece = str(self.light(piece))
            size += len(piece)
            if size > MAX_TEXT:
                raise _too_long()
            out.append(piece)
        return self.built("".join(out))

    def call(self, context, function, /, *args, **kwargs):
        self.tick()
        name = getattr(function, "__name__", "")
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)   # of "...".format too
        self._bounded(name, owner, (*args, *kwargs.values()))
        return self.built(super().call(context, function, *args, **kwargs))

    def call_binop(self, context, operator, left, right):
        sized = (str, bytes, list, tuple)
        limit = MAX_ITEMS if isinstance(left, (list, tuple)) or isinstance(right, (list, tuple)) else MAX_TEXT
        if operator == "+" and isinstance(left, sized) and isinstance(right, sized):
            size = len(left) + len(right)
        elif operator == "*" and (isinstance(left, sized) or isinstance(right, sized)):
            size = (len(left) if isinstance(left, sized) else left) * (len(right) if isinstance(right, sized) else right)
        elif operator == "%" and isinstance(left, str):
            _narrow(left)
            size = _weight(right) * left.count("%")
        elif operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            size = MAX_TEXT * (left.bit_length() * (right if operator == "**" else 1) + right.bit_length() > 4096)
            size += size > 0
        else:
            size = 0
        if size > limit:
            raise jinja2.sandbox.SecurityError("it builds something of enormous size")
        return self.built(super().call_binop(context, operator, left, right))

    def getitem(self, obj, argument):
        return super().getitem(obj, self.light(argument))

    # ---- the compiler's part

    def _parse(self, source, name, filename):
        """Puts a tick at the start of every loop body and macro, where a template can spend time without a call."""
        tree = super()._parse(source, name, filename)
        if sum(1 for _ in tree.find_all(nodes.Node)) > MAX_NODES:
            raise jinja2.TemplateError(f"it has more than {MAX_NODES:,} parts")
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            tick = nodes.ExprStmt(nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None))
            node.body.insert(0, tick.set_lineno(node.lineno, override=True))
        return _Checks().visit(tree).set_environment(self)

    def compiled(self, source: str) -> jinja2.Template:
        template = self.from_string(source)
        names = template.root_render_func.__globals__
        for name in ("str_join", "markup_join"):        # what `~` compiles to
            if name in names:
                names[name] = self.join
        return template


def _too_long() -> Exception:
    return jinja2.sandbox.SecurityError(f"it builds a text of more than {MAX_TEXT:,} characters")


def _weight(value, depth: int = 0) -> int:
    """Characters of all strings in a value, and something for each item; what weighs too much is refused."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if not isinstance(value, (list, tuple, Mapping)):
        return 1
    if depth > MAX_DEPTH:
        raise jinja2.sandbox.SecurityError("it nests too deeply")
    total = 0
    for item in (value.items() if isinstance(value, Mapping) else value):
        total += MAX_TEXT // MAX_ITEMS + _weight(item, depth + 1)
        if total > MAX_TEXT:
            raise _too_long()
    return total


def _narrow(layout: str) -> None:
    """A format string may pad, but not to a million."""
    if re.search(r"\d{5}|\*", layout):
        raise jinja2.sandbox.SecurityError("it pads a text to an enormous width")


def _raise_exception(message) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().strftime(layout)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    # Jinja's own escapes < and > for HTML, which models were not trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """
    A compiled chat template.

    source    the template's text
    control   spelling -> id of the vocabulary's control tokens
    special   what the template knows the special tokens by: {"bos_token": "<s>", ...}
    """

    def __init__(self, source: str, control: Mapping[str, int], special: Mapping[str, str]):
        self.source = source
        self._special = dict(special)
        self._control = dict(control)
        spellings = sorted((s for s in control if s), key=len, reverse=True)
        either = "|".join(map(re.escape, spellings))
        self._cut = re.compile(f"({either})" if spellings else r"(?!)")
        # Case does not help either: a template may change it.
        self._spelled = re.compile(f"(?=(?:{either}))." if spellings else r"(?!)", re.S | re.I)
        self._heads = {s[:n] for s in spellings for n in range(1, len(s))}
        self._tails = {s[n:] for s in spellings for n in range(1, len(s))}
        self._longest = max(map(len, spellings), default=1)
        self._lock = threading.Lock()
        self._sandbox = _Sandbox()
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"the chat template has {len(source):,} characters; at most {MAX_SOURCE:,} are taken")
        try:
            self._sandbox.start()
            self._template = self._sandbox.compiled(source)
        except jinja2.TemplateSyntaxError as problem:
            raise TemplateError(f"the chat template does not parse: {problem.message} (line {problem.lineno})") from None
        except (RecursionError, MemoryError, ValueError, OverflowError, jinja2.TemplateError, SyntaxError) as problem:
            raise TemplateError(f"the chat template does not compile: {_reason(problem)}") from None

    @functools.cached_property
    def _tree(self) -> nodes.Template:
        return self._sandbox.parse(self.source)

    @functools.cached_property
    def variables(self) -> frozenset[str]:
        """What it takes besides the messages: `enable_thinking` and the like."""
        return frozenset(jinja2.meta.find_undeclared_variables(self._tree))

    @functools.cached_property
    def words(self) -> frozenset[str]:
        """Attributes and strings in it: what it looks for in a message is among them."""
        return frozenset(n.attr for n in self._tree.find_all(nodes.Getattr)) | \
            frozenset(n.value for n in self._tree.find_all(nodes.Const) if isinstance(n.value, str))

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """All names that it looks up: `tools` is among them if it tells the model about tools."""
        return frozenset(n.name for n in self._tree.find_all(nodes.Name))

    @functools.cached_property
    def keys(self) -> frozenset[str]:
        """What it takes out of messages and the like by name."""
        return frozenset(key for n in self._tree.find_all((nodes.Getattr, nodes.Getitem)) if (key := _key(n)) is not None)

    @functools.cached_property
    def asks_for_none(self) -> bool:
        """Whether it looks if a content is none, as DeepSeek's do for messages that only call tools."""
        return any(test.name == "none" and _key(test.node) == "content" for test in self._tree.find_all(nodes.Test))

    @functools.cached_property
    def takes_argument_text(self) -> bool:
        """Whether it joins a call's arguments to other text as they are, as DeepSeek's do, and does not ask what they are."""
        named = {a.target.name for a in self._tree.find_all(nodes.Assign) if isinstance(a.target, nodes.Name) and _key(a.node) == "arguments"}
        is_it = lambda node: _key(node) == "arguments" or isinstance(node, nodes.Name) and node.name in named      # noqa: E731
        if any(test.name in ("string", "mapping") and is_it(test.node) for test in self._tree.find_all(nodes.Test)):
            return False
        parts = [part for n in self._tree.find_all((nodes.Add, nodes.Concat, nodes.Output))
                 for part in ((n.left, n.right) if isinstance(n, nodes.Add) else n.nodes)]
        return any(map(is_it, parts))

    @functools.cached_property
    def knows_one_call(self) -> bool:
        """Whether it looks at the first of a message's calls by its number, and so at no other."""
        return any(_key(item.node) == "tool_calls" and isinstance(item.arg, nodes.Const) and item.arg.value == 0
                   for item in self._tree.find_all(nodes.Getitem))

    def render(self, messages: Sequence[Mapping], *, add_generation_prompt: bool = True, **variables) -> list:
        """
        The conversation as parts: control token ids (int) and plain texts (str).

        Raises `TemplateError` with the template's own words where it refuses the messages.
        """
        given = {"messages": list(messages), "tools": None, "documents": None, **variables}
        stand_ins = _StandIns(self.source, given)
        try:
            given = {name: self._protect(value, stand_ins) for name, value in given.items()}
        except RecursionError:
            raise TemplateError("the messages nest too deeply") from None
        with self._lock:
            self._sandbox.start()
            try:
                text = self._sandbox.join(self._template.generate(
                    **self._special, **given, add_generation_prompt=add_generation_prompt))
            except jinja2.sandbox.SecurityError as problem:
                raise TemplateError(f"the chat template was stopped: {problem}") from None
            except jinja2.UndefinedError as problem:
                raise TemplateError(f"the chat template does not fit these messages: {problem}") from None
            except jinja2.TemplateError as problem:
                raise TemplateError(str(problem) or "the chat template refused the messages") from None
            except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError,
                    ValueError) as problem:
                raise TemplateError(f"the chat template failed: {_reason(problem)}") from None
        parts = []
        for at, piece in enumerate(self._cut.split(text)):
            if at % 2:
                parts.append(self._control[piece])
            elif piece:
                parts.append(stand_ins.restore(piece))
        return parts

    # ---- keeping messages from spelling control tokens

    def _protect(self, value, stand_ins):
        if isinstance(value, str):
            return self._protect_text(value, stand_ins)
        if isinstance(value, Mapping):
            return {self._protect(k, stand_ins): self._protect(v, stand_ins) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._protect(v, stand_ins) for v in value]
        return value

    def _protect_text(self, text: str, stand_ins) -> str:
        hidden = {m.start() for m in self._spelled.finditer(text)}
        # Half a spelling at either end could meet its other half in the next message. Templates trim.
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())
        for n in range(1, min(self._longest, end - start + 1)):
            if text[end - n:end] in self._heads:
                hidden.add(end - n)
            if text[start:start + n] in self._tails:
                hidden.add(start)
        if not hidden:
            return text
        return "".join(stand_ins.of(c) if i in hidden else c for i, c in enumerate(text))


class _StandIns:
    """
    Characters that none of the inputs uses, each standing for another one during a rendering.

    They are rare letters without case: what a template does to text (strip it, change its case, write a list that it
    is in as Python does) leaves letters as they are. JSON in ASCII does not, so its escapes are known, too.
    """

    def __init__(self, *inputs):
        self._inputs = inputs
        self._free = None
        self._of: dict[str, str] = {}

    def of(self, character: str) -> str:
        if character not in self._of:
            if self._free is None:
                texts = list(_texts(self._inputs))
                used = set().union(*texts)
                self._free = (c for c in map(chr, range(0x20000, 0x2A6E0)) if c not in used and not any(_escape(c) in t for t in texts))
            self._of[character] = next(self._free)
        return self._of[character]

    def restore(self, text: str) -> str:
        for character, stand_in in self._of.items():
            text = text.replace(stand_in, character).replace(_escape(stand_in), character)
        return text


def _key(node: nodes.Node) -> str | None:
    """The name by which an expression takes something out of something, as an attribute or an item."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    item = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value
    return item if isinstance(item, str) else None


def _escape(character: str) -> str:
    return json.dumps(character)[1:-1]


def _texts(value) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for k, v in value.items():
            yield from _texts(k)
            yield from _texts(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _texts(v)


def _reason(problem: BaseException) -> str:
    if isinstance(problem, RecursionError):
        return "it nests too deeply"
    if isinstance(problem, MemoryError):
        return "it wants too much memory"
    return str(problem) or type(problem).__name__
