"""What a function's completions reach, by expression, and what it matched in them."""

from __future__ import annotations

import functools
import linecache
import re

import pytest

from workbench.rewards.code import code_objects
from workbench.rewards.tracing import broad_handlers, traced, unreached
from workbench.teaching.exercises import EXERCISES


def half_line(completions, **kwargs):
    matches = [re.search(r"<a>(\d+)</a>", text) for text in completions]
    return [2.5 if match else 0.0 for match in matches]


def branches(completions, **kwargs):
    scores = []
    for text in completions:
        if "a" in text:
            scores.append(1.0)
        elif "b" in text and len(text) > 3:
            scores.append(0.5)
        else:
            scores.append(0.0)
    return scores


def early(completions, **kwargs):
    if not any(completions):
        return [0.0] * len(completions)
    return [3.0] * len(completions)


def helper(text):
    return 4.0 if text.isdigit() else 0.0


def with_helper(completions, **kwargs):
    return [helper(text) for text in completions]


def catching(completions, **kwargs):
    scores = []
    for text in completions:
        try:
            scores.append(float(text))
        except ValueError:
            scores.append(0.0)
    return scores


def missed(function, *texts) -> list[str]:
    found = unreached(function, traced(function, texts, completions=list(texts)))
    return [each.part for each in found]


@pytest.mark.parametrize(
    ("function", "texts", "parts"),
    [
        (half_line, ["x"], ["2.5"]),
        (half_line, ["<a>1</a>"], ["0.0"]),
        (half_line, ["<a>1</a>", "x"], []),
        (branches, ["a"], ["if 'b' in text and len(text) > 3:"]),  # and what is in it
        (branches, ["a", "c"], ["len(text) > 3", "scores.append(0.5)"]),
        (branches, ["a", "b"], ["scores.append(0.5)"]),
        (branches, ["a", "bbbb", "c"], []),
        (early, [""], ["return [3.0] * len(completions)"]),
        (early, ["x"], ["return [0.0] * len(completions)"]),
        (with_helper, ["x"], ["4.0"]),
        (catching, ["1"], ["scores.append(0.0)"]),
        (catching, ["1", "x"], []),
        (functools.partial(half_line), ["x"], ["2.5"]),
    ],
)
def test_what_nothing_reaches_is_named_to_the_half_line(function, texts, parts):
    found = missed(function, *texts)
    assert [part for part in parts if not any(part in each for each in found)] == []
    assert len(found) <= len(parts)


def test_a_branch_says_its_file_its_line_and_what_it_would_pay():
    [found] = unreached(half_line, traced(half_line, ["x"], completions=["x"]))
    assert re.fullmatch(r"test_tracing.py:\d+: `2.5` in `return \[2.5 if match else 0.0 for match in matches\]`", str(found))
    assert found.pays == 2.5


def test_the_pattern_that_cannot_match_two_lines_shows_its_dead_half():
    [function] = EXERCISES["think_tags"].functions
    text = "<think>\n15 + 27\n</think>\n<answer>\n42\n</answer>"
    [found] = unreached(function, traced(function, [text], completions=[text]))
    assert (found.part, found.pays) == ("1.0", 1.0)
    assert found.source == "return [1.0 if re.match(pattern, c) else 0.0 for c in completions]"


def test_what_it_reached_before_it_failed_counts():
    def failing(completions, **kwargs):
        total = sum(map(len, completions))
        if total > 3:
            raise ValueError("long")
        return [1.0]

    assert missed(failing, "abcd") == ["return [1.0]"]
    assert missed(failing, "a") == ["raise ValueError('long')"]


def test_matches_and_answers_are_found_again_in_the_text():
    text = "so <a>17</a>"
    trace = traced(half_line, [text], completions=[text])
    assert trace.matched == {text: {(3, 12), (6, 8)}}

    def taking(completions, **kwargs):
        answer = completions[0].split()[-1]
        return [float(len(answer))]

    assert traced(taking, ["it is 42"], completions=["it is 42"]).matched == {"it is 42": {(6, 8)}}


COMPILED = re.compile(r"<a>(\d+)</a>")


def inline(completions, **kwargs):
    pattern = r"so <a>(\d+)</a>"
    return [0.5 if re.match(pattern, text[0]["content"]) else 0.0 for text in completions]


def inline_findall(completions, **kwargs):
    return [float(len(re.findall(r"\d+", text[0]["content"]))) for text in completions]


def inline_compiled(completions, **kwargs):
    return [float(COMPILED.search(text[0]["content"]) is not None) for text in completions]


def inline_nothing(completions, **kwargs):
    return [1.0 if re.search("nowhere", text[0]["content"]) else 0.0 for text in completions]


@pytest.mark.parametrize(
    ("function", "spans"),
    [
        (inline, {(0, 12), (6, 8)}),
        (inline_findall, {(6, 8)}),
        (inline_compiled, {(3, 12), (6, 8)}),
        (inline_nothing, set()),
    ],
)
def test_a_match_that_is_bound_to_no_variable_is_seen(function, spans):
    text = "so <a>17</a>"
    trace = traced(function, [text], completions=[[{"role": "assistant", "content": text}]])
    assert trace.matched == {text: spans}


def test_a_cell_of_a_notebook_is_followed():
    source = "def from_a_cell(completions, **kwargs):\n    return [1.0 if c == 'x' else 0.0 for c in completions]\n"
    linecache.cache["<cell 3>"] = (len(source), None, source.splitlines(keepends=True), "<cell 3>")
    names = {}
    exec(compile(source, "<cell 3>", "exec"), names)
    [found] = unreached(names["from_a_cell"], traced(names["from_a_cell"], ["y"], completions=["y"]))
    assert str(found).startswith("<cell 3>:2: `1.0` in")


def test_without_source_nothing_is_claimed():
    names = {}
    exec(
        compile("def nowhere(completions, **kwargs):\n    return [1.0 if c else 0.0 for c in completions]", "<none>", "exec"),
        names,
    )
    assert unreached(names["nowhere"], traced(names["nowhere"], [""], completions=[""])) == []
    assert unreached(len, traced(len, [""], completions=[""])) == []
    assert code_objects(len) == []


def test_the_callers_own_trace_is_put_back():
    import sys

    before = sys.gettrace()
    traced(half_line, ["x"], completions=["x"])
    assert sys.gettrace() is before


def swallowing(completions, **kwargs):
    try:
        return [float(text) for text in completions]
    except:  # noqa: E722
        return [0.0] * len(completions)


def swallowing_in_a_helper(completions, **kwargs):
    return swallowing(completions)


def raising_again(completions, **kwargs):
    try:
        return [float(text) for text in completions]
    except Exception as error:
        raise ValueError("no") from error


@pytest.mark.parametrize(
    ("function", "count"),
    [(swallowing, 1), (swallowing_in_a_helper, 1), (raising_again, 0), (catching, 0), (half_line, 0), (len, 0)],
)
def test_broad_handlers_that_hide_what_they_catch(function, count):
    found = broad_handlers(function)
    assert len(found) == count
    assert all(re.fullmatch(r"test_tracing.py:\d+", place) for place in found)
