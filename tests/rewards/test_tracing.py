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


def filtered(completions, **kwargs):
    return [1.5 for text in completions if "x" in text] or [0.25]


def filtered_twice(completions, **kwargs):
    return [1.0 for text in completions if text if text[0] == "a" and len(text) > 2]


def in_two_loops(completions, **kwargs):
    return [sum(2.0 if word.isdigit() else 0.5 for word in text.split()) for text in completions]


def named_within(completions, **kwargs):
    return [float(found[1]) if (found := re.search(r"(\d+)", text)) else -1.0 for text in completions]


def by_cases(completions, **kwargs):
    kinds = {text: 3.0 if text.startswith("a") else 0.0 for text in completions}
    return [kinds[text] for text in completions]


def generated(texts):
    for text in texts:
        if not text:
            continue
        yield 1.0 if text == "a" else 0.0


def from_a_generator(completions, **kwargs):
    return [*generated(completions)]


def by_letters(completions, **kwargs):
    scores = []
    for text in completions:
        total = 0.0
        while text:
            if text[0] == "a":
                total += 1.0
            elif text[0] == "b":
                total -= 0.25
            text = text[1:]
        scores.append(total)
    return scores


class Scoring:
    def one(self, text):
        return 2.0 if text.isdigit() else 0.5

    def __call__(self, completions, **kwargs):
        return [self.one(text) for text in completions]


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


@pytest.mark.parametrize(
    ("function", "texts", "parts"),
    [
        (filtered, ["a"], ["1.5"]),
        (filtered, ["x"], ["[0.25]"]),
        (filtered, [], ["1.5"]),
        (filtered_twice, [""], ["1.0", "len(text) > 2"]),
        (filtered_twice, ["aa"], ["1.0"]),
        (filtered_twice, ["aaa"], []),
        (in_two_loops, [""], ["2.0", "0.5"]),
        (in_two_loops, ["7"], ["0.5"]),
        (in_two_loops, ["a 7"], []),
        (named_within, ["a"], ["float(found[1])"]),
        (named_within, ["7"], ["-1.0"]),
        (by_cases, ["a"], ["0.0"]),
        (by_cases, ["b", "a"], []),
        (from_a_generator, ["a"], ["continue", "0.0"]),
        (from_a_generator, ["a", "", "b"], []),
        (by_letters, ["a"], ["if text[0] == 'b':"]),
        (by_letters, ["ac"], ["total -= 0.25"]),
        (by_letters, ["cb"], ["total += 1.0"]),
    ],
)
def test_loops_within_a_line_are_followed_alike_on_every_python(function, texts, parts):
    assert missed(function, *texts) == parts


def test_code_of_the_same_file_that_is_met_on_the_way_is_followed():
    trace = traced(Scoring(), ["7"], completions=["7"])
    line = Scoring.one.__code__.co_firstlineno + 1
    assert {place[2:] for place in trace.reached[__file__] if place[0] == line} >= {(15, 18)}
    assert {place[2:] for place in trace.reached[__file__] if place[0] == line}.isdisjoint({(40, 43)})
    assert {type(place) for place in trace.reached[__file__]} == {tuple}  # a worker's answer holds nothing else


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
    assert traced(named_within, ["it is 42"], completions=["it is 42"]).matched == {"it is 42": {(6, 8)}}
    assert [*traced(taken_in_a_loop, TWO, completions=TWO).matched.values()] == [{(6, 8)}, {(3, 4)}]


TWO = ["it is 42", "or 7"]


def taken_in_a_loop(completions, **kwargs):
    return [float(found[0]) for text in completions for found in [re.search(r"\d+", text)] if found]


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

    def own(*_):
        return None

    before = sys.gettrace()
    for mine in (before, own):
        sys.settrace(mine)
        try:
            traced(half_line, ["x"], completions=["x"])
            assert sys.gettrace() is mine
        finally:
            sys.settrace(before)
    if sys.version_info >= (3, 12):
        tools = [sys.monitoring.get_tool(each) for each in range(6)]
        for _ in range(8):  # more often than there are tools
            assert missed(half_line, "x") == ["2.5"]
        assert [sys.monitoring.get_tool(each) for each in range(6)] == tools


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
