"""Calls of tools: every form in which models write them, however the text is cut; what is no call stays text; messages for templates."""
import copy
import json
import pickle
from types import SimpleNamespace

import pytest
from conftest import fed
from hypothesis import given, settings, strategies as st

from pyllama_paged import InvalidArgument, Model, Reasoning, TemplateError, ToolCall
from pyllama_paged.messages import shaped
from pyllama_paged.notation import _Notation
from pyllama_paged.reasoning import Splitter, Thinking
from pyllama_paged.template import CHATML, ChatTemplate
from pyllama_paged.toolcalls import Calls, id_of


def tool(name, **properties):
    return {"type": "function", "function": {"name": name, "description": "é<", "parameters": {
        "type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}}}


TOOLS = [tool("f", a="integer", s="string"), tool("get-it.now", deep="object")]
F = ("f", {"a": 1, "s": "é<"})
F_JSON = '{"name": "f", "arguments": {"a": 1, "s": "é<"}}'

DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")

# A family's template, as far as it tells one from the others; the control tokens among the marks.
FAMILIES = {
    "qwen3": ("{{ tools }}<think></think><tool_call></tool_call>", ()),
    "hermes": ("{{ tools }}<tool_call></tool_call>", ("<|python_tag|>",)),
    "mistral": ("{{ tools }}[AVAILABLE_TOOLS][TOOL_CALLS]", ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")),
    "magistral": ("{{ tools }}[THINK][/THINK][TOOL_CALLS]", ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")),
    "granite": ("{{ tools }}<|tool_call|>", ("<|tool_call|>",)),
    "phi4-mini": ("{{ tools }}<|tool_call|><|/tool_call|>", ("<|tool_call|>", "<|/tool_call|>")),
    "olmo3": ("{{ tools }}<functions></functions><function_calls></function_calls>", ()),
    "lfm2": ("{{ tools }}<|tool_list_start|>", ("<|tool_call_start|>", "<|tool_call_end|>")),
    "llama3": ("{{ tools }}", ("<|python_tag|>",)),
    "glm4": ("{{ tools }}<|observation|>", ("<|observation|>",)),
    "gemma4": ("{{ tools }}<|channel><channel|><|tool_call><tool_call|>", ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>')),
    "deepseek": ("{{ tools }}<think></think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁sep｜>", DEEPSEEK),
    "smollm3": ("{{ xml_tools }}{{ python_tools }}<think></think><tool_call></tool_call> between '<code>' and '</code>' tags", ()),
    "gpt-oss": ("{{ tools }}<|start|><|channel|><|message|><|end|><|call|>", ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>")),
}


def family(name):
    source, control = FAMILIES[name]
    vocab = SimpleNamespace(control={c: 1000 + i for i, c in enumerate(control)}, find=lambda s: None)
    template = ChatTemplate(source, vocab.control, {})
    return Thinking(template, vocab), Calls(template, vocab)


def split(name, text, state="start", tokens=True, cuts=None, tools=TOOLS, variable="tools"):
    """(reasoning, answer, calls, problem) of a text in which control tokens are spelled; pushed in pieces of these sizes."""
    thinking, calls = family(name)
    splitter = thinking.restored((state, "", "", None), calls.form(thinking.form, {variable: tools}))
    marks = FAMILIES[name][1] if tokens else ()
    if not tokens:
        splitter = Splitter(splitter._form, frozenset(), state)
    out = fed(splitter, text, marks, cuts)
    calls = [(p.name, json.loads(p.arguments)) for p in out if isinstance(p, ToolCall)]
    assert "" not in [p for p in out if not isinstance(p, ToolCall)]
    return ("".join(p for p in out if isinstance(p, Reasoning)),
            "".join(p for p in out if not isinstance(p, (Reasoning, ToolCall))), calls, splitter.problem)


G = ("get-it.now", {"deep": {"x": [1, 2.5, None, True], "y": "a\nb"}})
G_JSON = '{"name": "get-it.now", "arguments": {"deep": {"x": [1, 2.5, null, true], "y": "a\\nb"}}}'
XML = "<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=s>\né<\n</parameter>\n</function>"

# family, state, text, reasoning, answer, calls
CASES = [
    ("qwen3", "start", f"<think>\nHm. <tool_call>?\n</think>\n\n<tool_call>\n{F_JSON}\n</tool_call>", "Hm. <tool_call>?", "", [F]),
    ("qwen3", "reasoning", f"so\n</think>\n\nI look.\n<tool_call>\n{F_JSON}\n</tool_call>\n<tool_call>\n{G_JSON}\n</tool_call>", "so", "I look.", [F, G]),
    ("qwen3", "start", f"<tool_call>\n{XML}\n</tool_call>\n<tool_call><function=get-it.now><parameter=deep>{{\"x\": []}}</parameter></function></tool_call>", "", "",
     [F, ("get-it.now", {"deep": {"x": []}})]),
    ("qwen3", "start", f"<tool_call>{F_JSON}", "", "", [F]),
    ("qwen3", "start", f"<tool_call>{F_JSON}</tool_call> Done.", "", "Done.", [F]),
    ("qwen3", "start", "Plain <tool and 1 < 2.\n ", "", "Plain <tool and 1 < 2.\n ", []),
    ("hermes", "start", f"<tool_call>\n[{F_JSON}, {G_JSON}]\n</tool_call>", "", "", [F, G]),
    ("hermes", "start", '{"name": "f", "arguments": {}}', "", '{"name": "f", "arguments": {}}', []),
    ("mistral", "start", f'[TOOL_CALLS] [{F_JSON[:-1]}, "id": "abcdefghi"}}, {G_JSON}]', "", "", [F, G]),
    ("mistral", "start", 'Well.[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1, "s": "é<"}[TOOL_CALLS]get-it.now[ARGS]' + json.dumps(G[1]), "", "Well.", [F, G]),
    ("mistral", "start", '[TOOL_CALLS]f{"a": 1, "s": "é<"}', "", "", [F]),
    ("magistral", "start", '[THINK]Hm.[/THINK][TOOL_CALLS]f[ARGS]{"a": 1, "s": "é<"}', "Hm.", "", [F]),
    ("granite", "start", f"<|tool_call|>[{F_JSON}]", "", "", [F]),
    ("phi4-mini", "start", f"<|tool_call|>[{F_JSON}]<|/tool_call|>", "", "", [F]),
    ("lfm2", "start", '<|tool_call_start|>[f(a=1, s="é<"), get-it.now(deep={"x": [1, 2.5, None, True], \'y\': "a\\nb"})]<|tool_call_end|>Look.', "", "Look.", [F, G]),
    ("lfm2", "start", f"<|tool_call_start|>[{F_JSON}]<|tool_call_end|>", "", "", [F]),
    ("olmo3", "start", 'So.\n<function_calls>f(a=1, s="é<")\nget-it.now(deep={"x": [1, 2.5, null, true], "y": "a\\nb"})</function_calls>', "", "So.", [F, G]),
    ("llama3", "start", '{"name": "f", "parameters": {"a": 1, "s": "é<"}}', "", "", [F]),
    ("llama3", "start", '\n{\n  "name": "f", "parameters": {"a": 1, "s": "é<"}}; ' + G_JSON, "", "", [F, G]),
    ("llama3", "start", '{"type": "function", "function": "f", "parameters": "{\\"a\\": 1, \\"s\\": \\"é<\\"}"}', "", "", [F]),
    ("llama3", "start", '{"type": "function", "function": {"name": "f", "arguments": {"a": 1, "s": "é<"}}}', "", "", [F]),
    ("llama3", "start", f"<|python_tag|>{F_JSON}", "", "", [F]),
    ("llama3", "start", '<|python_tag|>brave_search.call(query="é<")', "", "", [("brave_search", {"query": "é<"})]),
    ("llama3", "start", '{"name": "Bob", "age": 3}', "", '{"name": "Bob", "age": 3}', []),
    ("llama3", "start", 'So: {"name": "f", "parameters": {}}', "", 'So: {"name": "f", "parameters": {}}', []),
    ("glm4", "start", '\nf\n{"a": 1, "s": "é<"}', "", "", [F]),
    ("glm4", "start", 'f is {"a": 1}', "", 'f is {"a": 1}', []),
    ("gemma4", "start", '<|channel>thought\nHm.<channel|><|tool_call>call:f{a:1,s:<|"|>é<<|"|>}<tool_call|><|tool_call>call:get-it.now{deep:{x:[1,2.5,null,true],y:<|"|>a\nb<|"|>}}<tool_call|>',
     "Hm.", "", [F, G]),
    ("deepseek", "reasoning", 'Hm.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1, "s": "é<"}\n```<｜tool▁call▁end｜>\n'
     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get-it.now\n```json\n" + json.dumps(G[1], indent=2) + "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "Hm.", "", [F, G]),
    ("deepseek", "start", 'I look.\n\n<｜tool▁calls▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1, "s": "é<"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>Done.',
     "", "I look.Done.", [F]),
    ("deepseek", "start", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1, "s": "é<"}\n```\n<｜tool▁call▁end｜><｜tool▁calls▁end｜>', "", "", [F]),
    ("deepseek", "start", '<｜tool▁calls▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1, "s": "é<"}\n```<｜tool▁calls▁end｜>', "", "", [F]),
    ("deepseek", "start", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1, "s": "é<"}', "", "", [F]),
    ("deepseek", "start", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1, "s": "é<"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get-it.now<｜tool▁sep｜>'
     + json.dumps(G[1]) + "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "", "", [F, G]),
    *(("deepseek", "start", mark + 'function<｜tool▁sep｜>f\n```json\n{"a": 1, "s": "é<"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', "", "", [F])
      for mark in ("<｜tool_calls_begin｜>", "<｜tool calls begin｜>", "<｜tool\\_calls\\_begin｜>", "<｜tool▁calls｜>")),
    ("deepseek", "start", "1 <｜ 2 and <｜tool▁", "", "1 <｜ 2 and <｜tool▁", []),
    ("smollm3", "start", f"<think>\nHm.\n</think>\n<tool_call>{F_JSON}</tool_call>", "Hm.", "", [F]),
    ("smollm3", "start", '<code>f(a=1)</code>', "", '<code>f(a=1)</code>', []),
    ("gpt-oss", "header", '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f json<|message|>{"a": 1, "s": "é<"}<|call|>', "Hm.", "", [F]),
    ("gpt-oss", "header", 'assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1, "s": "é<"}', "", "", [F]),
    ("gpt-oss", "header", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get-it.now<|message|>" + json.dumps(G[1]),
     "", "I look.", [G]),
    ("gpt-oss", "header", "<|channel|>commentary to=functions.f<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>Hi.", "", "Hi.", [("f", {})]),
]


@pytest.mark.parametrize("name, state, text, reasoning, answer, calls", CASES)
@given(cuts=st.lists(st.integers(1, 9), min_size=80, max_size=80))
@settings(max_examples=20, deadline=None)
def test_forms(name, state, text, reasoning, answer, calls, cuts):
    for tokens in (True, False):
        assert split(name, text, state, tokens, cuts) == (reasoning, answer, calls, None), f"marks as control tokens: {tokens}"


# What SmolLM3 writes where `python_tools` are offered; the state, the text, the reasoning, the answer, the calls.
IN_CODE = [
    ("start", '<code>f(a=1, s="é<")</code>', "", "", [F]),
    ("reasoning", 'Hm. <code>f(a=2)</code>?\n</think>\nI look.\n<code>\nf(a=1, s=\'é<\')\nget_it(deep={"x": [1, 2.5, None, True]})\n</code>\n', "Hm. <code>f(a=2)</code>?",
     "I look.", [F, ("get_it", {"deep": {"x": [1, 2.5, None, True]}})]),
    ("start", "<code>f(1, 'é<'); f(1, s='é<',)", "", "", [F, F]),
    ("start", "<code>f()</code> and <code>f(True)</code>", "", "and", [("f", {}), ("f", {"a": True})]),
    ("start", f"<tool_call>{F_JSON}</tool_call>", "", f"<tool_call>{F_JSON}</tool_call>", []),
    ("start", "a <code", "", "a <code", []),
]


@pytest.mark.parametrize("state, text, reasoning, answer, calls", IN_CODE)
@given(cuts=st.lists(st.integers(1, 9), min_size=80, max_size=80))
@settings(max_examples=20, deadline=None)
def test_calls_in_code(state, text, reasoning, answer, calls, cuts):
    tools = [TOOLS[0], tool("get_it", deep="object")]
    assert split("smollm3", text, state, True, cuts, tools, "python_tools") == (reasoning, answer, calls, None)


@pytest.mark.parametrize("text, why", [
    ("<code>print(f(a=1))</code>", "more than call tools: print"),
    ("<code>x = f(a=1)</code>", "more than call tools: x"),
    ("<code>import os\nos.system('x')</code>", "more than call tools: import"),
    ("<code>f(a=1).b</code>", "a name is missing"),
    ("<code>f(a=1) + 1</code>", "a name is missing"),
    ("<code>f(1 + 1)</code>", "')' is missing"),
    ("<code>f(a=g)</code>", "a value is missing"),
    ("<code>f(s=f'{x}')</code>", "a value is missing"),
    ("<code>f(1, 'x', 2)</code>", "name of an argument"),
    ("<code>f(a=1, 'x')</code>", "name of an argument"),
    ("<code>f(1, a=2)</code>", "gives a twice"),
    ('<code>f(s="""x""")</code>', "')' is missing"),
    ("<code>f(" + "[" * 5000, "nests too deeply"),
    ("<code></code>", "empty"),
    ("<code>f(a=1)</tool_call>", "a name is missing"),
])
@pytest.mark.parametrize("both", [False, True])
def test_programs_stay_text_and_are_said(text, why, both):
    thinking, calls = family("smollm3")
    splitter = thinking.restored(("start", "", "", None), calls.form(thinking.form, {"python_tools": TOOLS, **({"tools": TOOLS} if both else {})}))
    assert "".join(p for p in fed(splitter, text)) == text and why in splitter.problem


def test_both_kinds_of_tools():
    thinking, calls = family("smollm3")
    splitter = thinking.restored(("start", "", "", None), calls.form(thinking.form, {"xml_tools": TOOLS[1:], "python_tools": TOOLS[:1]}))
    out = fed(splitter, f"<think>Hm.</think>So <code>f(1, 'é<')</code><tool_call>{G_JSON}</tool_call>.")
    assert [(p.name, json.loads(p.arguments)) for p in out if isinstance(p, ToolCall)] == [F, G] and splitter.problem is None
    assert [str(p) for p in out if not isinstance(p, ToolCall)] == ["Hm.", "So", "."]


BROKEN = [
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>", "empty"),
    ("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', "no JSON"),
    ("deepseek", '<｜tool▁calls▁begin｜>{"name": "f"}', "names no function"),
    ("deepseek", "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>f", "no JSON"),
    ("deepseek", "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>f\n```json\n[1]\n```", "f are no JSON object"),
    ("deepseek", "<｜tool▁calls▁begin｜>code<｜tool▁sep｜>f\n```json\n{}\n```", "of no function"),
    ("deepseek", "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>\n```json\n{}\n```", "names no function"),
    ("deepseek", "<｜tool▁calls▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜> and so on", "names no function"),
    ("deepseek", "<｜tool▁calls▁begin｜>" + "function<｜tool▁sep｜>f\n" * 3000, "no JSON"),
    ("qwen3", 'So:\n<tool_call>\n{"name": "f", "arguments": {"path":"a\n</tool_call>\nOh.', "no JSON"),
    ("qwen3", "<tool_call></tool_call>", "empty"),
    ("qwen3", '<tool_call>{"arguments": {}}</tool_call>', "names no function"),
    ("qwen3", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "f are no JSON object"),
    ("qwen3", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "NaN is no JSON"),
    ("qwen3", '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>', "Out of range"),
    ("qwen3", "<tool_call>" + '{"a":' * 100_000, "no JSON"),
    ("qwen3", '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 70 + "]" * 70 + "}}", "nests too deeply"),
    ("qwen3", '<tool_call>{"name": "f", "arguments": {"a": ' + "1" * 9000 + "}}", "no JSON"),
    ("qwen3", "<tool_call><function=get-it.now><parameter=deep>" + "[" * 120 + "]" * 120 + "</parameter></function></tool_call>", "nests too deeply"),
    ("qwen3", "The tags are <tool_call> and </tool_call>.", "no JSON"),
    ("mistral", "[TOOL_CALLS]f and no more", "no arguments"),
    ("granite", f"<|tool_call|>[{F_JSON}", "no JSON"),
    ("lfm2", "<|tool_call_start|>[f(open('x'))]<|tool_call_end|>", "'=' is missing"),
    ("lfm2", "<|tool_call_start|>[f(a=__import__('os'))]<|tool_call_end|>", "a value is missing"),
    ("lfm2", "<|tool_call_start|>f(a=" + "[" * 200, "nests too deeply"),
    ("lfm2", "<|tool_call_start|>f(a='x", "end of a string"),
    ("olmo3", "<function_calls>f(a=1) and</function_calls>", "'(' is missing"),
    ("gemma4", '<|tool_call>call:f{a:1,s:<|"|>x<tool_call|>', "end of a string"),
    ("gemma4", "<|tool_call>f<tool_call|>", "no arguments"),
    ("llama3", '{"name": "f", "parameters": {"a": ', "no JSON"),
    ("llama3", "<|python_tag|>print(1)", "no JSON"),
    ("glm4", 'f\n{"a": 1} and so on', "text follows"),
    ("gpt-oss", '<|channel|>commentary to=functions.f<|message|>{"path":"a', "no JSON"),
]


@pytest.mark.parametrize("name, text, why", BROKEN)
@given(cuts=st.lists(st.integers(1, 9), min_size=40, max_size=40))
@settings(max_examples=5, deadline=None)
def test_what_is_no_call_stays_text_and_is_said(name, text, why, cuts):
    state = "header" if name == "gpt-oss" else "start"
    reasoning, answer, calls, problem = split(name, text, state, True, cuts)
    assert answer == (text if name != "gpt-oss" else text.replace("<|channel|>", " ")) and not reasoning and not calls
    assert why in problem and "\n" not in problem


def test_only_where_tools_are_offered():
    thinking, calls = family("qwen3")
    assert calls.form(thinking.form, {}) is None and calls.form(thinking.form, {"tools": []}) is None
    assert thinking.splitter([]).push(f"<tool_call>{F_JSON}</tool_call>") == [f"<tool_call>{F_JSON}</tool_call>"]


def test_a_control_token_that_is_only_spelled_is_text():
    thinking, calls = family("mistral")
    splitter = thinking.splitter([], calls.form(thinking.form, {"tools": TOOLS}))
    text = '[TOOL_CALLS][{"name": "f"}]'
    assert "".join(splitter.push(text) + splitter.finish()) == text and splitter.problem is None


def test_a_call():
    call = ToolCall("<f>", "f", '{"a": 1}')
    assert id_of(call, 10, 0) == id_of(call, 10, 0) != id_of(call, 10, 1) and len(id_of(call, 10, 0)) == 9 and id_of(call, 10, 0).isalnum()
    call = ToolCall("<f>", "f", "{}", "abc", 2)
    for twin in (pickle.loads(pickle.dumps(call)), copy.deepcopy(call)):
        assert twin == "<f>" and (twin.name, twin.arguments, twin.id, twin.index) == ("f", "{}", "abc", 2)
    assert call.message() == {"id": "abc", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_half_a_character_in_arguments():
    for escape, want in (("\\ud83d", "\ufffd"), ("\\ud83e\\udd99", "🦙")):
        assert split("qwen3", f'<tool_call>{{"name": "f", "arguments": {{"s": "{escape}"}}}}</tool_call>')[2] == [("f", {"s": want})]
    thinking, calls = family("qwen3")
    splitter = thinking.splitter([], calls.form(thinking.form, {"tools": TOOLS}))
    call, = splitter.push('<tool_call>{"name": "f", "id": "\\ud83d"}</tool_call>')
    assert call.id == "\ufffd", "an id with half a character could never be handed back"


@given(st.recursive(st.none() | st.booleans() | st.integers(-10**9, 10**9) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8))
@settings(max_examples=150, deadline=None)
def test_values_as_python_and_json_write_them(value):
    assert _Notation(repr(value)).value() == value
    assert _Notation(json.dumps(value, ensure_ascii=False)).value() == value


@given(st.text(alphabet="fa=([{'\"\\}]), 1.x:u<|>", max_size=30))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_or_refused(text):
    for name, marks in (("lfm2", "<|tool_call_start|>"), ("gemma4", "<|tool_call>call:f{"), ("mistral", "[TOOL_CALLS]"), ("qwen3", "<tool_call>"),
                        ("deepseek", "<｜tool▁calls▁begin｜>f<｜tool▁sep｜>"), ("deepseek", "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>f\n```json\n")):
        _, answer, calls, problem = split(name, marks + text)
        assert (answer and problem and not calls) or (calls and not problem) or name == "qwen3" and "</tool_call>" in text


# ---- messages

def message_of(template, message):
    return shaped([message], ChatTemplate(template, {}, {}))[0]


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
PLAIN = "{{ messages[0].content }}"


def test_content_that_is_null_or_in_parts():
    user = {"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "text", "text": "c"}]}
    assert message_of(PLAIN, user)["content"] == "abc" and isinstance(user["content"], list)
    assert message_of(PLAIN, {"role": "user", "content": None})["content"] == ""
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    for given in (calling, {**calling, "content": ""}, {"role": "assistant", "tool_calls": [CALL]}):
        assert message_of(PLAIN, given)["content"] == ""
        for asking in ("{% if messages[0]['content'] is none %}{% endif %}", "{% if messages[0].content is not none %}{% endif %}"):
            assert message_of(asking, given)["content"] is None
    assert message_of("{{ x is none }}", calling)["content"] == ""
    assert "tool_calls" not in message_of(PLAIN, {"role": "assistant", "content": "x", "tool_calls": []})
    assert message_of(PLAIN, {"role": "tool", "content": {"t": 1}})["content"] == {"t": 1}
    assert message_of(PLAIN, {"role": "tool", "content": [{"t": 1}]})["content"] == [{"t": 1}]
    assert message_of(PLAIN, {"role": "tool", "content": [{"type": "text", "text": "a"}]})["content"] == "a"


@pytest.mark.parametrize("message, why", [
    ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]}, r"messages\[1\]\.content\[1\] is an image"),
    ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, r"messages\[1\]\.content\[0\] is audio"),
    ({"role": "user", "content": [{"type": "text"}]}, r"messages\[1\]\.content\[0\] is no part of text"),
    ({"role": "user", "content": [7]}, r"messages\[1\]\.content\[0\]"),
    ({"role": "user", "content": 7}, r"messages\[1\]\.content is a int"),
    ("hello", r"messages\[1\] is a str"),
    ({"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}, r"messages\[1\]\.tool_calls\[0\] names no function"),
    ({"role": "assistant", "content": None, "tool_calls": "f"}, r"messages\[1\]\.tool_calls is a str"),
])
def test_what_cannot_be_is_named(puppet, message, why):
    session = puppet(["Yes", "."]).session(system="s")
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=why) as problem:
            session.send([message])
        assert "\n" not in str(problem.value) and len(session) == 0 and len(session.messages) == 1
    assert session.send("one").text == "Yes."


def test_arguments_for_templates():
    reads = lambda arguments: message_of(PLAIN, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]})[  # noqa: E731
        "tool_calls"][0]["function"]["arguments"]
    assert reads('{"a": 1}') == reads({"a": 1}) == {"a": 1} and reads("") == {}
    assert reads('{"path":"a') == '{"path":"a' and reads("[1]") == "[1]"
    assert message_of(PLAIN, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{}"}]})["tool_calls"] == [{"name": "f", "arguments": {}}]


# ---- with models

# As Qwen's, in short.
QWEN = ("{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<tool_call></tool_call><|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SAID = [f"<tool_call>{F_JSON}</tool_call>"]


def test_a_model_calls(puppet):
    """One piece is the whole call; the arguments are a text that parses, the id is not empty, the end says why."""
    model = puppet(SAID, template=QWEN)
    assert model.calls_tools
    chat = model.session(tools=TOOLS)
    stream = chat.stream("Go.")
    pieces = list(stream)
    assert [type(p) for p in pieces] == [ToolCall] and stream.text == "" and stream.raw == SAID[0]
    call, = stream.tool_calls
    assert call is pieces[0] and call.name == "f" and json.loads(call.arguments) == F[1] and call.id and call.index == 0
    assert stream.finish == "tool_calls" and stream.call_problem is None
    assert chat.messages[-1] == {"role": "assistant", "content": "", "tool_calls": [call.message()]}
    answer = chat.send({"role": "tool", "tool_call_id": call.id, "content": "42"}, max_tokens=0)
    line = model.detokenize(chat.tokens, control=True)
    assert f"<|im_start|>assistant\n<tool_call>\n{F_JSON}\n</tool_call><|im_end|>\n<|im_start|>tool\n42<|im_end|>" in line and answer.finish == "length"


def test_broken_arguments_do_not_block_the_conversation(puppet):
    broken = {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"path":"a'}}]}
    talk = [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}, broken, {"role": "tool", "tool_call_id": "c", "content": None}]
    model = puppet(["Yes", "."], template=QWEN)
    chat = model.session(tools=TOOLS)
    assert chat.send(talk).text == "Yes."
    line = model.detokenize(chat.tokens, control=True)
    assert "user\nxy<|im_end|>" in line and '"arguments": "{\\"path\\":\\"a"' in line and "tool\n<|im_end|>" in line
    assert chat.send("And?").text == "Yes."
    strict = puppet(["Yes", "."], template=QWEN.replace("c.function.arguments | tojson", "c.function.arguments | items | list"))
    other = strict.session(tools=TOOLS)
    with pytest.raises(TemplateError, match=r"messages\[1\]\.tool_calls\[0\]"):
        other.send(talk)
    assert other.send("x").text == "Yes."


@pytest.mark.parametrize("source", [
    "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one at a time') }}{% endif %}"
    "[{{ m.content }}{{ m.tool_calls[0].id }}]{% else %}{{ m.content }}{% endif %}{% endfor %}{{ tools }}",
    "{% for m in messages %}{% if m.tool_calls %}{% if m['tool_calls'] | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}"
    "{% for c in m.tool_calls %}[{{ m.content }}{{ c.id }}]{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}{{ tools }}",
    "{% for m in messages %}{% if m.tool_calls %}{% set c = m.tool_calls[0] %}[{{ m.content }}{{ c.id }}]{% else %}{{ m.content }}{% endif %}{% endfor %}{{ tools }}",
])
def test_templates_that_know_one_call_a_message(puppet, source):
    model = puppet(["Yes"], template=source)
    calls = [{**CALL, "id": i} for i in "abc"]
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "tool_calls": calls}, {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "tool", "tool_call_id": "a", "content": "1"}, {"role": "user", "content": "z"}]
    assert model.detokenize(model.chat_tokens(talk)).removesuffix("None") == "x[ya]1[b]2[c]z"
    assert model.detokenize(model.chat_tokens(talk[:1])).removesuffix("None") == "x"


def test_nested_beyond_measure(puppet):
    deep = {"role": "assistant", "content": "", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"a":' * 900 + "1" + "}" * 900}}]}
    chat = puppet(["Yes"], template=QWEN).session()
    with pytest.raises(TemplateError, match="nest"):
        chat.send([{"role": "user", "content": "x"}, deep])
    assert chat.send("x").text == "Yes"


def test_tools_are_never_ignored(puppet):
    model = puppet(["Yes"])
    assert not model.calls_tools
    for offer in (lambda: model.session(tools=TOOLS), lambda: model.session().send("x", template={"tools": TOOLS}),
                  lambda: model.prefix(system="s", tools=TOOLS)):
        with pytest.raises(InvalidArgument, match="takes no tools"):
            offer()
    with pytest.raises(InvalidArgument, match="must be a list"):
        puppet(["Yes"], template=QWEN).session().send("x", template={"tools": "f"})
    in_system = puppet(["Yes"], template="{% for m in messages %}{{ m.role }}:{{ m.content }}{% if 'tools' in m and m['tools'] is not none %}"
                                         "{{ m['tools'] }}{% endif %};{% endfor %}")
    for talk, begins in (([{"role": "user", "content": "x"}], "system:["), ([{"role": "system", "content": "s"}, {"role": "user", "content": "x"}], "system:s[")):
        line = in_system.detokenize(in_system.chat_tokens(talk, tools=TOOLS))
        assert line.startswith(begins + '{"name": "f", "description": "é<"') and line.endswith("];user:x;") and "tools" not in talk[0]
        assert in_system.detokenize(in_system.chat_tokens(talk)).endswith("user:x;")
    other = puppet(["Yes"], template="{% for t in xml_tools or [] %}{{ t.function.name }}{% endfor %}<|im_start|>")
    assert other.detokenize(other.chat_tokens([], tools=TOOLS), control=True) == "fget-it.now<|im_start|>"


# The parts that matter here of the templates of DeepSeek-R1's distilled models, of SmolLM3.
R1 = ("{% for m in messages %}{% if m['role'] == 'user' %}{{ '<U>' + m['content'] }}{% endif %}{% if m['role'] == 'assistant' and m['content'] is none %}"
      "{% for tool in m['tool_calls'] %}{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\n' + '```json'"
      " + '\n' + tool['function']['arguments'] + '\n' + '```' + '<｜tool▁call▁end｜>' }}{% endfor %}{{ '<｜tool▁calls▁end｜>' }}{% endif %}"
      "{% if m['role'] == 'tool' %}{{ m['content'] }}{% endif %}{% endfor %}{{ tools }}")
SMOLLM3 = ("{%- if xml_tools or python_tools or tools -%}{%- if xml_tools or tools -%}{%- if tools -%}{%- set xml_tools = tools -%}{%- endif -%}<tools>"
           "{%- for tool in xml_tools[:] -%}{{ (tool | string) ~ '\n' }}{%- endfor -%}</tools> <tool_call></tool_call>{%- endif -%}{%- if python_tools -%}'<code>' and "
           "'</code>' <tools>{%- for tool in python_tools[:] -%}{{ (tool | string) ~ '\n' }}{%- endfor -%}</tools>{%- endif -%}{%- endif -%}"
           "{%- for message in messages -%}{%- set content = message.content if message.content is string else '' -%}<|im_start|>{{ 'user' if message.role == 'tool' "
           "else message.role }}:{{ content }};{%- endfor -%}")


def test_arguments_as_text_where_templates_join_them():
    for arguments in ('{"a": 1, "s": "é<"}', {"a": 1, "s": "é<"}):
        talk = [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": arguments}}]}]
        template = ChatTemplate(R1, {}, {})
        assert "".join(template.render(shaped(talk, template))) == (
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1, "s": "é<"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>None')
        for source, want in (
                ("{% for c in messages[0].tool_calls %}{% set a = c.function.arguments %}{{ 'x' ~ a }}{% endfor %}", 'x{"a": 1, "s": "é<"}'),
                ("{{ messages[0].tool_calls[0].function.arguments }}", '{"a": 1, "s": "é<"}'),
                ("{{ 'x' + messages[0].tool_calls[0].function.arguments | tojson }}", 'x{"a": 1, "s": "é<"}'),
                ("{% set a = messages[0].tool_calls[0].function.arguments %}{{ a if a is string else a | tojson }}", '{"a": 1, "s": "é<"}'),
                ("{% for k, v in messages[0].tool_calls[0].function.arguments | items %}{{ k ~ v }}{% endfor %}", "a1sé<")):
            template = ChatTemplate(source, {}, {})
            assert "".join(template.render(shaped(talk, template))) == want, source
    template = ChatTemplate(R1, {}, {})
    broken = [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": '{"path":"a'}}]}]
    assert '{"path":"a' in "".join(template.render(shaped(broken, template)))
    with pytest.raises(InvalidArgument, match=r"messages\[0\]\.tool_calls\[0\] has arguments that are no JSON"):
        shaped([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": {1}}}}]}], template)


def test_deepseek_calls(puppet):
    said = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1, "s": "é<"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    model = puppet([said], template=R1)
    chat = model.session(tools=TOOLS)
    answer = chat.send("Go.")
    assert model.calls_tools and answer.finish == "tool_calls" and [(c.name, json.loads(c.arguments)) for c in answer.tool_calls] == [F] and answer.text == ""
    chat.send({"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "42"}, max_tokens=0)
    assert model.detokenize(chat.tokens).startswith("<U>Go." + said + "42")


def test_a_history_of_calls_where_the_template_writes_none(puppet):
    """SmolLM3's template passes over them: its model would be given results of calls that it never made."""
    model = puppet(['<code>f(a=1, s="é<")</code>'], template=SMOLLM3)
    chat = model.session(template={"python_tools": TOOLS[:1]})
    answer = chat.send("Go.")
    assert [(c.name, json.loads(c.arguments)) for c in answer.tool_calls] == [F] and answer.finish == "tool_calls"
    chat.send({"role": "tool", "content": "42"}, max_tokens=0)
    assert "assistant:<code>f(a=1, s='é<')</code>;<|im_start|>user:42;" in model.detokenize(chat.tokens, control=True)
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL]}, {"role": "tool", "content": "1"}]
    wants = 'I look.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>;<|im_start|>user:1;'
    for tools in ({}, {"tools": TOOLS}, {"xml_tools": TOOLS}, {"tools": TOOLS, "python_tools": TOOLS}):
        assert wants in model.detokenize(model.chat_tokens(talk, **tools), control=True)
    assert "I look." in model.detokenize(puppet(["x"], template=QWEN).chat_tokens(talk)).split(F_JSON)[0] and "content" in talk[1]
    for name in ("python_tools", "xml_tools"):
        with pytest.raises(InvalidArgument, match=f"takes no {name}"):
            puppet(["x"], template=QWEN).session(template={name: TOOLS})
        with pytest.raises(InvalidArgument, match=f"{name} must be a list"):
            model.session(template={name: "f"})


def test_without_tools_the_text_is_the_answer(puppet):
    answer = puppet(SAID, template=QWEN).session().send("Go.")
    assert answer.text == SAID[0] and answer.tool_calls == [] and answer.finish == "stop"


def test_a_broken_call_is_text_and_said(puppet):
    chat = puppet(['<tool_call>{"name": "f", "arg', "</tool_call>"], template=QWEN).session(tools=TOOLS)
    answer = chat.send("Go.")
    assert answer.text == '<tool_call>{"name": "f", "arg</tool_call>' == chat.messages[-1]["content"]
    assert answer.finish == "stop" and "no JSON" in answer.call_problem and "tool_calls" not in chat.messages[-1]


def test_resumed_forked_and_saved_in_the_middle(puppet, tmp_path):
    model = puppet(["Well", ".", "<tool_call>", F_JSON, "</tool_call>", "!"], template=QWEN)
    chat = model.session(tools=TOOLS)
    assert chat.send("Go.", max_tokens=4).text == "Well." and chat.messages[-1]["content"] == "Well."
    chat.save(tmp_path / "s")
    for session in (chat.fork(), model.resume(tmp_path / "s"), chat):
        more = session.resume()
        assert more.read() == "!" and [(c.name, json.loads(c.arguments)) for c in more.tool_calls] == [F] and more.finish == "tool_calls"
        assert session.messages[-1]["content"] == "Well.!" and len(session.messages[-1]["tool_calls"]) == 1


def test_stop_strings_do_not_look_into_calls(puppet):
    answer = puppet([f"<tool_call>{F_JSON}</tool_call>", "Now", " stop", "!"], template=QWEN).session(tools=TOOLS).send("Go.", stop=["name", " st"])
    assert answer.text == "Now" and answer.stop_string == " st" and answer.finish == "stop" and len(answer.tool_calls) == 1


def test_marks_that_are_control_tokens(makers, tmp_path):
    control = ("<|im_start|>", "[TOOL_CALLS]", "[ARGS]", "<|im_end|>")
    template = QWEN.replace("<tool_call>", "[TOOL_CALLS]").replace("</tool_call>", "")
    path = makers.puppet(tmp_path / "m.gguf", ["Ok", 257, "ff", 258, '{"a": 1}'], control=control, template=template)
    with Model.open(path) as model:
        answer = model.session(tools=[tool("ff", a="integer")]).send("Go.")
        assert answer.text == "Ok" and [(c.name, c.arguments) for c in answer.tool_calls] == [("ff", '{"a": 1}')]


def test_a_token_that_waits_for_results_ends_the_answer(makers, tmp_path):
    """GLM-4's <|observation|>, which its file names nowhere; a name and JSON on the next line are its call."""
    control = ("<|im_start|>", "<|observation|>", "<|im_end|>")
    path = makers.puppet(tmp_path / "g.gguf", ['ff\n{"a": 1}', 257], control=control, template=CHATML + "{% if false %}{{ tools }}<|observation|>{% endif %}")
    with Model.open(path) as model:
        answer = model.session(tools=[tool("ff", a="integer")]).send("Go.")
        assert answer.finish == "tool_calls" and answer.tokens[-1] == 257 and [(c.name, c.arguments) for c in answer.tool_calls] == [("ff", '{"a": 1}')]


def test_gpt_oss_calls(makers, tmp_path):
    """Its header says who is called; <|call|> ends the turn, and what was thought is put before the call."""
    control = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
    start, channel, message, end = range(256, 260)
    template = ("{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}"
                "{{ raise_exception('both') }}{% endif %}<|start|>{{ m.role }}{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}{% endif %}"
                "<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant")
    path = makers.puppet(tmp_path / "oss.gguf", [channel, "analysis", message, "Hm", ".", end, start, "assistant", "\v"], control=control, template=template)
    with Model.open(path) as model:
        assert model.session(tools=TOOLS).send("Go.").reasoning == "Hm."
    said = [" to=functions.f", channel, "commentary json", message, '{"a": 1, "s": "é<"}']
    path = makers.puppet(tmp_path / "call.gguf", said, control=control, template=template)
    with Model.open(path) as model:
        chat = model.session(tools=TOOLS, messages=[
            {"role": "user", "content": "x"}, {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [CALL]}])
        answer = chat.send({"role": "tool", "content": "1"})
        assert [(c.name, json.loads(c.arguments)) for c in answer.tool_calls] == [F] and answer.finish == "tool_calls"
        assert model.vocab.spelling(answer.tokens[-1]) == "<|call|>"
        assert "analysis<|message|>Hm.\n\nI look.<|message|><|end|>" in model.detokenize(chat.tokens, control=True)


def test_files_without_a_template_take_no_tools(puppet):
    with pytest.raises(InvalidArgument, match="takes no tools"):
        puppet(["Yes"], template=None).session(tools=TOOLS)
    assert "tools" not in CHATML


# How families write calls and results, in short: arguments as JSON, key by key, or by what they are; results by id or by name.
TEMPLATES = [
    QWEN,
    "{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}{% for c in m.tool_calls %}{% set f = c.function if c.function else c %}<function={{ f.name }}>"
    "{% for k, v in f.arguments | items %}<parameter={{ k }}>{{ v | tojson if v is not string else v }}{% endfor %}{% endfor %}"
    "{% elif m.content is none or m.content is undefined %}nothing{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "{{ bos_token }}{%- for m in messages %}{%- if m['tool_calls'] is defined and m['tool_calls'] is not none %}{{- '[TOOL_CALLS] [' }}{%- for c in m.tool_calls %}"
    "{{- (c.function | tojson)[:-1] + ', \"id\": \"' + c.id[-9:] + '\"}' + (']' if loop.last else ', ') }}{%- endfor %}{{ eos_token }}{%- elif m.role == 'tool' %}"
    "{{- '[TOOL_RESULTS] {\"content\": ' + m.content | string + ', \"call_id\": \"' + m.tool_call_id + '\"}' }}{%- else %}{{- m.content }}{%- endif %}{%- endfor %}",
    "{% for m in messages %}{% if 'tool_calls' in m %}{% for c in m.tool_calls %}{{ c.id }}{{ c.function.arguments | tojson(indent=2) }}{% endfor %}"
    "{% elif m.role == 'tool' %}{{ m.content if m.content is string else m.content | tojson }}{{ m.name }}{% else %}{{ m.content | trim }}{% endif %}{% endfor %}",
]


@pytest.mark.parametrize("source", TEMPLATES)
def test_talks_with_tools_as_transformers_renders_them(source):
    """Arguments as text here, as the OpenAI API has them, and as objects there."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils", reason="transformers is not installed")
    for arguments in ({}, F[1], G[1], {"s": "<|im_end|>\n"}):
        def talk(arguments):
            return [{"role": "user", "content": "x"},
                    {"role": "assistant", "content": "", "tool_calls": [{"id": f"abcdefgh{i}", "type": "function", "function": {"name": "f", "arguments": arguments}}
                                                                        for i in range(2)]},
                    {"role": "tool", "tool_call_id": "abcdefgh0", "name": "f", "content": "1"},
                    {"role": "tool", "tool_call_id": "abcdefgh1", "name": "f", "content": {"x": "é<"}}, {"role": "assistant", "content": "y"}]

        special = {"bos_token": "<s>", "eos_token": "</s>"}
        theirs = utils._compile_jinja_template(source).render(messages=talk(arguments), tools=TOOLS, documents=None, add_generation_prompt=True, **special)
        template = ChatTemplate(source, {"<|im_start|>": 1}, special)
        parts = template.render(shaped(talk(json.dumps(arguments)), template), tools=TOOLS)
        assert "".join("<|im_start|>" if p == 1 else p for p in parts) == theirs
