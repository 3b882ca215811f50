"""Calls that nobody parsed: what looks like one is named with its reason, and nothing else is."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from made_tokenizers import made_tokenizer

from workbench.data.template import markers_of
from workbench.run.calls import Markers, unparsed

QWEN = Markers("<tool_call>", "</tool_call>", "")
TOOLS = {"guess", "calculate"}
RIGHT = json.dumps({"name": "guess", "arguments": {"number": 7}})

PLANTED = {
    "without <tool_call>": RIGHT,
    "single quotes, without <tool_call>": "{'name': 'guess', 'arguments': {'number': 7}}",
    "in a code fence, without <tool_call>": f"```json\n{RIGHT}\n```",
    "unknown tool 'gues', without <tool_call>": RIGHT.replace("guess", "gues"),
    "<function= is another template's": "<function=guess><parameter=number>7</parameter></function>",
    "as Python, without <tool_call>": "I try it:\nguess(7)",
    "cut off: no </tool_call> follows": f"<tool_call>\n{RIGHT}",
    "single quotes: JSON has double ones": "<tool_call>{'name': 'guess', 'arguments': {'number': 7}}</tool_call>",
    "no JSON between the tags": '<tool_call>{"name": "guess", "arguments": {"number": 7}</tool_call>',
    "arguments is not an object": '<tool_call>{"name": "guess", "arguments": "7"}</tool_call>',
    "inside the reasoning": f"<think>so <tool_call>{RIGHT}</tool_call> might do</think> Seven.",
    "list in place of an object with name and arguments": f"<tool_call>[{RIGHT}]</tool_call>",
    "unknown tool 'gues': did you mean 'guess'?": f"<tool_call>{RIGHT.replace('guess', 'gues')}</tool_call>",
    "[TOOL_CALLS] is another template's": f"[TOOL_CALLS] [{RIGHT.replace('name', 'nom')}]",
}


@pytest.mark.parametrize("why", PLANTED)
def test_each_malformation_has_its_reason(why):
    assert unparsed(PLANTED[why], TOOLS, QWEN) == why


PLAIN = [
    "", "7", "The answer is 7.", "I would guess (but am not sure) that it is 7.", "My guess: 7", "guess", "guess 7",
    "Let me calculate: 3 * 4 = 12.", "You may call guess(number) to try.", "The tool guess takes a number.",
    '{"answer": 7}', '{"name": "Anna", "age": 7}', '[{"name": "Anna"}, {"name": "Bob"}]', '{"number": 7, "guess": 3}',
    '```json\n{"name": "Anna", "city": "Rome"}\n```', "```python\nprint(7)\n```", "```\nx = 3\n```", "f(x) = 3 x",
    "<answer>7</answer>", "<think>It may be 7.</think><answer>7</answer>", "<reasoning>\n7 < 9\n</reasoning>",
    "Then guess 9?", "if a < b and c > d: stop", "<b>bold</b>", "<html><body>7</body></html>",
    "a tool_call is made of a name and arguments",
    "print(guess(7))", "result = calculate(3)", "higher, so I take the half of it", "What is your guess?", "{7}", "{}", "[]",
    '{"arguments": [1, 2]}', "{'a': 1}", "The name is 'guess', I think.", '"name": "guess"', "$x^2$", r"\boxed{7}", "7\n\n\n",
    "def guess(number):\n    return number", "(7)", "guess(7) or guess(8), who knows", "1. guess\n2. calculate", "ÄÖ \ud800 7",
    "name: guess", "Name = guess; arguments = 7", '{"title": "The guess", "pages": 7}', "| name | guess |", "# guess",
]  # fmt: skip


@pytest.mark.parametrize("text", PLAIN)
def test_nothing_else_is_named(text):
    assert unparsed(text, TOOLS, QWEN) == ""


def test_there_are_enough_of_both():
    assert len(PLANTED) >= 12
    assert len(set(PLAIN)) >= 50


@given(some.text(), some.sampled_from([QWEN, None, Markers("<t>", "", json=False)]))
def test_it_never_raises(text, markers):
    assert isinstance(unparsed(text + "<t>" + text, TOOLS, markers), str)


JSON = some.recursive(
    some.none() | some.integers() | some.text(), lambda own: some.lists(own) | some.dictionaries(some.text(), own), max_leaves=4
)


@given(some.fixed_dictionaries({"name": JSON, "arguments": JSON}), JSON)
def test_whatever_stands_where_a_name_should_has_a_reason(call, other):
    for inside in (call, other):
        assert unparsed(f"<tool_call>{json.dumps(inside)}</tool_call>", TOOLS, QWEN)


def test_brackets_deeper_than_python_reads_have_a_reason():
    why = unparsed("<tool_call>" + "[" * 9000 + "]" * 9000 + "</tool_call>", TOOLS, QWEN)
    # Python 3.13 reads as many
    assert why in ("no JSON between the tags", "list in place of an object with name and arguments")


@pytest.mark.timing
@pytest.mark.parametrize("text", ["{" * 10**6, '{"name"' * 10**5, "<tool_call>" * 10**5, "guess(" * 10**5 + ")", "```" * 10**5])
def test_a_long_text_takes_no_time(text):
    started = time.perf_counter()
    unparsed(text, TOOLS, QWEN)
    assert time.perf_counter() - started < 1


FAMILIES = {
    "qwen2_5": ("<tool_call>", "</tool_call>", True),
    "qwen3": ("<tool_call>", "</tool_call>", True),
    "qwen3_5_think": ("<tool_call>", "</tool_call>", False),
    "nemotron_3_nano": ("<tool_call>", "</tool_call>", False),
    "glm4moe": ("<tool_call>", "</tool_call>", False),
    "gemma4": ("<|tool_call>", "", False),
    "phi3": None,
    "llama3": None,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_markers_of_a_family(family):
    import trl

    template = Path(trl.__file__).parent / "chat_templates" / f"{family}.jinja"
    found = markers_of(made_tokenizer(template.read_text(encoding="utf-8")))
    if FAMILIES[family] is None:
        assert found is None
        return
    assert (found.open, found.close, found.json) == FAMILIES[family]
    assert found.open in found.line


def test_a_form_that_is_no_json_is_not_read_as_such():
    xml = Markers("<tool_call>", "</tool_call>", json=False)
    assert unparsed("<tool_call><function=guess></tool_call>", TOOLS, xml) == "not in the template's form"
    assert unparsed("<tool_call><function=guess>", TOOLS, xml) == "cut off: no </tool_call> follows"
    assert unparsed(RIGHT, TOOLS, xml) == "without <tool_call>"
    assert unparsed(RIGHT, TOOLS) == "without the template's tags"
