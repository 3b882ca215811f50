"""What the factories return: exact scores, names of their own, stated maxima, and refusals of what cannot work."""

from __future__ import annotations

import re

import pytest

from workbench.base.errors import TaskError
from workbench.rewards.answers import PLACES
from workbench.rewards.library import (
    make_answer_reward,
    make_tags_reward,
    max_score_of,
)
from workbench.rewards.shaping import make_pattern_reward
from workbench.rewards.suite import RewardSuite, reward_hash
from workbench.rewards.verifiers import make_json_reward
from workbench.task import Task

THINK = "<think>\n15 + 27\n</think>\n<answer>\n42\n</answer>"
SCHEMA = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}}


def one(func, text: str, **columns):
    plain = func(completions=[text], completion_ids=[[1]], **columns)
    chat = func(completions=[[{"role": "assistant", "content": text}]], completion_ids=[[1]], **columns)
    assert plain == chat
    return plain[0]


@pytest.mark.parametrize(
    ("text", "strict", "expected"),
    [
        (THINK, True, 2.0),
        (THINK, False, 2.0),
        ("Sure! " + THINK, True, 0.0),
        ("Sure! " + THINK, False, 2.0),
        (THINK.replace("</think>", ""), True, 0.0),
        (THINK.replace("</think>", ""), False, 1.0),  # the first block has no end, and so no share
        (THINK.replace("</answer>", ""), False, 1.5),
        ("<think></think><answer></answer>", True, 0.0),
        ("<think></think><answer></answer>", False, 0.0),
        ("</answer><answer></think><think>", False, 0.0),
        ("", False, 0.0),
    ],
)
def test_tags(text, strict, expected):
    assert one(make_tags_reward(("think", "answer"), 2.0, strict), text) == expected


def test_tags_that_the_template_opens():
    func = make_tags_reward(opened=True)
    assert one(func, THINK.removeprefix("<think>")) == 1.0
    assert one(func, THINK) == 0.0  # the tag would stand twice


def test_tags_are_named_and_checked():
    assert make_tags_reward().__name__ == "think_answer_strict_reward"
    assert make_tags_reward(("plan", "code"), strict=False).__name__ == "plan_code_tags_reward"
    assert max_score_of(make_tags_reward(maximum=0.5)) == 0.5
    for tags in ((), ("<think>",), ("a b",), ("answer", "answer"), ("",)):
        with pytest.raises(TaskError, match="tags"):
            make_tags_reward(tags)


@pytest.mark.parametrize(
    ("options", "text", "expected"),
    [
        ({}, "a\nb", 1.0),  # a dot is also a line break
        ({}, "xa\nby", 1.0),
        ({"whole": True}, "xa\nby", 0.0),
        ({"whole": True}, "a\nb", 1.0),
        ({"flags": 0}, "a\nb", 0.0),
        ({"score": -0.5}, "a\nb", -0.5),
        ({"score": -0.5}, "", 0.0),
    ],
)
def test_pattern(options, text, expected):
    assert one(make_pattern_reward("a.b", **options), text) == expected


def test_patterns_run_where_they_can_be_stopped():
    func = make_pattern_reward(r"\d", name="digit_reward")
    assert func.runs_in_worker
    assert func.__name__ == "digit_reward"
    assert max_score_of(func) == 1.0
    assert max_score_of(make_pattern_reward("sorry", score=-1.0)) == 0.0


@pytest.mark.parametrize("pattern", ["(", "*", "x{99999999999}", b"x", None, re.compile("x")])
def test_what_is_no_pattern_is_refused(pattern):
    with pytest.raises(TaskError, match="pattern"):
        make_pattern_reward(pattern)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("only", "<answer>42</answer>"),
        ("tag", "<answer>42</answer>"),
        ("mark", "#### 42"),
        ("boxed", "\\boxed{42}"),
        ("number", "It is 42 apples"),
        ("plain", "thinking\n42"),
        ("any", "It is 42 apples"),
    ],
)
def test_answer(where, text):
    func = make_answer_reward(where, 3.0)
    assert one(func, text, answer=["42"]) == 3.0
    assert one(func, text.replace("42", "41"), answer=["42"]) == 0.0
    assert one(func, "", answer=["42"]) == 0.0
    assert func.__name__ == f"{where}_answer_reward"
    assert max_score_of(func) == 3.0


def test_an_answer_is_looked_for_in_known_places():
    assert len({make_answer_reward(where).__name__ for where in PLACES}) == len(PLACES)
    with pytest.raises(TaskError, match="where = 'end'"):
        make_answer_reward("end")


@pytest.mark.parametrize("schema", [SCHEMA, '{"type": "object", "required": ["age"]}'])
def test_json(schema):
    func = make_json_reward(schema, 0.5)
    assert one(func, '{"age": 4}') == 0.5
    assert one(func, '```json\n{"age": 4}\n```') == 0.5
    assert one(func, "{}") == 0.0
    assert one(func, "age: 4") == 0.0
    assert one(func, "") == 0.0
    assert max_score_of(func) == 0.5


def test_a_schema_is_checked_when_the_function_is_made():
    for schema in ('{"type": "objekt"}', "{", {"required": "age"}):
        with pytest.raises(TaskError, match="schema"):
            make_json_reward(schema)
    assert not make_json_reward(SCHEMA).runs_in_worker
    assert make_json_reward({"type": "string", "pattern": "(a+)+$"}).runs_in_worker


def test_all_of_them_run_through_the_suite():
    rows = [{"prompt": [{"role": "user", "content": "What is 15 + 27?"}], "answer": "42"}]
    functions = (
        make_tags_reward(),
        make_pattern_reward(r"\d+ \+ \d+", 0.5, name="sum_reward"),
        make_answer_reward("tag"),
        make_json_reward({"type": "integer"}),
    )
    suite = RewardSuite(Task("t", rows=rows, reward_funcs=functions), 2)
    assert suite.score(rows * 2, [THINK, "42"]).tolist() == [[1.0, 0.5, 2.0, 1.0], [0.0, 0.0, 0.0, 1.0]]
    suite.rehearse(rows)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: make_tags_reward(maximum=1.0), lambda: make_tags_reward(maximum=2.0)),
        (lambda: make_pattern_reward("x" * 300 + "a"), lambda: make_pattern_reward("x" * 300 + "b")),
        (lambda: make_answer_reward("tag"), lambda: make_answer_reward("mark")),
        (lambda: make_json_reward({"type": "string"}), lambda: make_json_reward({"type": "number"})),
    ],
)
def test_other_settings_are_another_reward(one, other):
    assert reward_hash(one()) == reward_hash(one())
    assert reward_hash(one()) != reward_hash(other())
