"""Reasoning apart from the answer: every form of marks, however the text is cut; what the next turn is given of it."""
from types import SimpleNamespace

import pytest
from conftest import fed
from hypothesis import given, settings, strategies as st

from pyllama_paged import InvalidArgument, Model, Reasoning
from pyllama_paged.reasoning import FORMS, Splitter, Thinking
from pyllama_paged.template import ChatTemplate

THINK = next(f for f in FORMS if f.needs == ("</think>",))
HARMONY, GEMMA = FORMS[0], FORMS[1]
QWEN = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and m.reasoning_content and loop.last %}<think>\n"
        "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}"
        "<|im_start|>assistant\n{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}")


def split(form, text, state="start", tokens=(), cuts=None):
    """(reasoning, answer) of a text, in which marks that are tokens are spelled; pushed in pieces of these sizes."""
    out = fed(Splitter(form, frozenset(tokens), state), text, tokens, cuts)
    assert "" not in out
    return "".join(p for p in out if isinstance(p, Reasoning)), "".join(p for p in out if not isinstance(p, Reasoning))


CASES = [
    (THINK, "start", "<think>\nWhy not?\n\nYes.\n</think>\n\nYes: 1 < 2.", ("Why not?\n\nYes.", "Yes: 1 < 2.")),
    (THINK, "start", "\n<think>\n\n</think>\n\nYes.", ("", "Yes.")),
    (THINK, "start", "  Yes, <think> is a tag and so is </think>.", ("", "  Yes, <think> is a tag and so is </think>.")),
    (THINK, "start", "<thin", ("", "<thin")),
    (THINK, "start", "<think>a <b> </thin k></think><br>", ("a <b> </thin k>", "<br>")),
    (THINK, "reasoning", "\nso\n</think>\nYes.", ("so", "Yes.")),
    (THINK, "reasoning", "and so on ", ("and so on", "")),
    (FORMS[2], "start", "<think>hm</think>\n<response>Yes.</response>", ("hm", "Yes.")),
    (FORMS[-1], "start", "Here is my thought process:\n hm \nHere is my response:\n Yes.", ("hm", "Yes.")),
    (HARMONY, "header", "<|channel|>analysis<|message|>User says hi.<|end|><|start|>assistant<|channel|>final<|message|>Hi!", ("User says hi.", "Hi!")),
    (HARMONY, "header", "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|> B<|end|><|start|>assistant"
     "<|channel|>final<|message|>C", ("AB", "C")),
    (HARMONY, "header", "<|channel|>final<|message|>No marks, no <end>.", ("", "No marks, no <end>.")),
    (GEMMA, "start", "<|channel>thought\nhm\n<channel|>Yes.", ("hm", "Yes.")),
    (GEMMA, "start", "Yes.", ("", "Yes.")),
]


@pytest.mark.parametrize("form, state, text, want", CASES)
@given(cuts=st.lists(st.integers(1, 9), min_size=60, max_size=60))
@settings(max_examples=25, deadline=None)
def test_forms(form, state, text, want, cuts):
    assert split(form, text, state, (), cuts) == want
    if not any(mark in "".join(want) for mark in form.marks - {"\n"}):
        assert split(form, text, state, sorted(form.marks - {"\n"}), cuts) == want, "marks as control tokens"


def test_a_control_token_that_is_only_spelled_is_text():
    tokens = tuple(HARMONY.marks)
    splitter = Splitter(HARMONY, frozenset(tokens), "text")
    assert splitter.push("It begins with <|channel|>analysis") == ["It begins with <|channel|>analysis"]


def thinking(source, control=()):
    vocab = SimpleNamespace(control={c: 1000 + i for i, c in enumerate(control)}, find=lambda s: None)
    return Thinking(ChatTemplate(source, vocab.control, {}), vocab)


def test_which_form_a_file_has():
    assert thinking("{{ messages }}").form is None
    assert thinking("{{ m.content.split('</think>')[-1] }}").form is THINK
    assert thinking("x", ("<|channel|>", "<|message|>", "<|start|>", "<|end|>")).form is None, "the vocabulary knows them as nothing here"
    assert thinking("<|start|>{{ m }}<|channel|>final<|message|>").form is HARMONY


def test_where_a_conversation_ends():
    t = thinking("<think></think>")
    assert t.splitter([1, "assistant\n<think>\n"]).state[0] == "reasoning"
    assert t.splitter([1, "assistant\n<think>\n\n</think>\n\n"]).state[0] == t.splitter([1, "assistant\n"]).state[0] == "start"
    marks = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>")
    t = thinking("".join(marks), marks)
    line = [1002, "user", 1001, "What is <|channel|>analysis<|message|>?", 1003, 1002, "assistant"]
    assert t.splitter(line).state[0] == "header"
    assert "".join(t.splitter(line).mark("<|channel|>")) == ""


def test_history_in_the_way_that_the_template_knows():
    said = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    ask = {"role": "user", "content": "?"}
    assert thinking(QWEN).shaped([ask, said]) == [ask, said]
    assert thinking("{{ m.thinking }}<|channel|><|message|><|start|>").shaped([said])[0]["thinking"] == "Hm."
    inline = thinking("{{ m.content.split('</think>')[-1] }}").shaped([said])[0]
    assert inline["content"] == "<think>\nHm.\n</think>\n\nYes."
    assert thinking("{{ m.content }}[/THINK][THINK]", ("[THINK]", "[/THINK]")).shaped([said])[0]["content"] == "Yes."
    assert thinking("{{ m.content }}").shaped([said])[0]["content"] == "Yes."


def test_switches():
    assert thinking(QWEN).variables(False) == {"enable_thinking": False} and thinking(QWEN).variables(None) == {}
    assert thinking("{% if thinking %}think{% endif %}").variables(True) == {"thinking": True}
    assert thinking("{{ reasoning_effort }}").variables("high") == {"reasoning_effort": "high"}
    for source, setting, why in (("{{ messages }}", False, "no switch"), ("my thinking {{ m.thinking }}", True, "no switch"),
                                 ("{{ reasoning_effort }}", False, "low, medium, high"), (QWEN, "high", "'high'.*on, off")):
        with pytest.raises(InvalidArgument, match=why):
            thinking(source).variables(setting)


# ---- with models

SAID = ["<think>", "\r", "Let me", " see", ".", "\t", "</think>", "\v", "Four", "!"]        # no line end, which the prompt ends in


def test_an_answer_comes_apart(puppet):
    model = puppet(SAID, template=QWEN)
    with model.session() as chat:
        stream = chat.stream("2+2?")
        pieces = list(stream)
        assert [p for p in pieces if isinstance(p, Reasoning)] == ["Let me", " see", "."]
        assert [p for p in pieces if not isinstance(p, Reasoning)] == ["Four", "!"]
        assert (stream.text, stream.reasoning, stream.finish) == ("Four!", "Let me see.", "stop")
        assert stream.raw == "".join(SAID) and model.thinks
        assert chat.messages[-1] == {"role": "assistant", "content": "Four!", "reasoning_content": "Let me see."}
        chat.send("And?", max_tokens=0)
        line = model.detokenize(chat.tokens, control=True)
        assert "Let me see" not in line and "<|im_start|>assistant\nFour!<|im_end|>" in line, "this template drops old reasoning"


def test_switched_off(puppet):
    model = puppet(["Four"], template=QWEN)
    off = model.session(think=False)
    off.send("2+2?", max_tokens=0)
    assert model.detokenize(off.tokens, control=True).endswith("<think>\n\n</think>\n\n")
    assert off.think == {"enable_thinking": False}
    off.think = None
    off.send("2+2?", max_tokens=0)
    assert not model.detokenize(off.tokens, control=True).endswith("</think>\n\n") and off.think == {}
    with pytest.raises(InvalidArgument, match="no switch"):
        puppet(["Four"]).session(think=False)


def test_resumed_forked_and_saved_in_the_middle(puppet, tmp_path):
    model = puppet(SAID, template=QWEN)
    chat = model.session()
    assert chat.send("2+2?", max_tokens=4).reasoning == "Let me see"
    chat.save(tmp_path / "s")
    for session in (chat.fork(), model.resume(tmp_path / "s"), chat):
        more = session.resume()
        assert more.read() == "Four!" and more.reasoning == "."
        assert session.messages[-1] == {"role": "assistant", "content": "Four!", "reasoning_content": "Let me see."}


def test_stop_strings_end_the_answer_not_the_reasoning(puppet):
    model = puppet(SAID, template=QWEN)
    answer = model.session().send("2+2?", stop=["see", "!"])
    assert (answer.text, answer.reasoning, answer.stop_string) == ("Four", "Let me see.", "!")


def test_other_models_are_left_alone(puppet):
    model = puppet(["<thi", "nk>", " is", " a tag"])
    answer = model.session().send("2+2?")
    assert not model.thinks and answer.text == answer.raw == "<think> is a tag" and answer.reasoning == ""


def test_gpt_oss_goes_on_after_its_reasoning(makers, tmp_path):
    """Its marks are control tokens, and <|end|> ends a message of the turn, not the turn."""
    control = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
    start, channel, message, end = range(256, 260)
    path = makers.puppet(tmp_path / "oss.gguf", [" Add", " them", end, start, "assistant", channel, "final", message, "Four", "!"], control=control,
                         template="{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
                                  "<|start|>assistant<|channel|>analysis<|message|>Hm.")
    with Model.open(path) as model:
        answer = model.session().send("2+2?")
        assert (answer.reasoning, answer.text, answer.finish) == (" Add them", "Four!", "stop"), "it goes on from what the template began"
        assert end in answer.tokens and model.vocab.spelling(answer.tokens[-1]) == "<|return|>"
