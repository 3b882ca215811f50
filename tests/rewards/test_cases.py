"""Regression cases: read with their lines, scored with the task's functions, and refused in words."""

from __future__ import annotations

import json

import pytest

from workbench.audit.regression_cases import cases_file, check_cases, load_cases
from workbench.base.errors import TaskError
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.rewards.library import correctness_reward, strict_format_reward
from workbench.task import Task
from workbench.tasks.loading import EMBEDDED, load_task

RIGHT = "<reasoning>\nx\n</reasoning>\n<answer>\n42\n</answer>"
ROWS = [{"prompt": to_messages(f"What is {n} + 27?", SYSTEM_PROMPT), "answer": str(n + 27)} for n in (15, 16)]
TASK_FILE = """
from workbench.task import Task
from workbench.rewards.library import correctness_reward, strict_format_reward

task = Task("mine", [{"prompt": "What is 15 + 27?", "answer": "42"}], [correctness_reward, strict_format_reward])
"""


def only_numbers_reward(completions, answer, **kwargs):
    return [None if not right.isdigit() else 1.0 for right in answer]


def task(file=None) -> Task:
    return Task("t", ROWS, [correctness_reward, strict_format_reward, only_numbers_reward], [1.0, 0.5, 1.0], cases=file)


@pytest.fixture
def written(tmp_path):
    def write(*lines) -> str:
        file = tmp_path / "golden.jsonl"
        file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return str(file)

    return write


def test_cases_that_hold(written):
    file = written(
        {"completion": RIGHT, "expected": 3.5},
        {"completion": RIGHT, "expected": {"correctness_reward": 2, "strict_format_reward": 1.0, "total": 3.5}},
        {"completion": RIGHT, "row": 1, "expected": {"correctness_reward": 0}},
        {
            "completion": RIGHT.replace("42", "Paris"),
            "columns": {"answer": "Paris"},
            "expected": {"correctness_reward": 2},
        },
        {"completion": "x", "columns": {"answer": "Paris"}, "expected": {"only_numbers_reward": None, "total": 0}},
        "",
        {"completion": "", "expected": 1, "name": "silence"},
    )
    cases = load_cases(task(file))
    assert [case.line for case in cases] == [1, 2, 3, 4, 5, 7]
    assert [case.name for case in cases][-2:] == ["x", "silence"]
    assert cases[0].name == "</answer>"
    assert check_cases(task(file)).ok
    assert str(check_cases(task(file))) == "6 of 6 regression cases hold"


def test_those_that_do_not_are_named_with_line_and_both_numbers(written):
    file = written(
        {"completion": RIGHT, "expected": {"correctness_reward": 1, "strict_format_reward": 1}},
        {"completion": "", "expected": {"only_numbers_reward": None}, "name": "silence"},
    )
    found = check_cases(task(file))
    assert not found.ok
    assert str(found).splitlines() == [
        "0 of 2 regression cases hold",
        "line 1 (</answer>): correctness_reward is 2, expected 1",
        "line 2 (silence): only_numbers_reward is 1, expected None",
    ]


def test_a_function_that_fails_on_a_case_misses_it(written):
    def fragile_reward(completions, **kwargs):
        return [1 / len(completion[0]["content"]) for completion in completions]

    fragile = Task("t", ROWS, [fragile_reward], cases=written({"completion": "", "expected": {"fragile_reward": 0}}))
    [(line, missed)] = check_cases(fragile).failures
    assert line == 1
    assert missed.startswith("line 1 ((empty)): fragile_reward raised ZeroDivisionError: division by zero (")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{nope", "line 2: '{nope': Invalid JSON"),
        ("[1]", r"line 2: \[1\]"),
        ({"completion": 3, "expected": 1}, "line 2: completion = 3"),
        ({"completion": "x"}, "line 2: expected.*Field required"),
        ({"completion": "x", "expected": 1, "score": 2}, "line 2: score = 2"),
        (
            {"completion": "x", "expected": {"correct": 1}},
            "line 2: expects 'correct'.*choose from correctness_reward, ",
        ),
        ({"completion": "x", "expected": "high"}, "line 2: expected.total = 'high'"),
        ({"completion": "x", "expected": True}, "line 2: expected.total = True"),
        ({"completion": "x", "expected": 1, "row": 2}, "line 2: row = 2.*rows 0 to 1"),
        ({"completion": "x", "expected": 1, "row": "a"}, "line 2: row = 'a'"),
        ({"completion": "x", "expected": 1, "row": True}, "line 2: row = True"),
        ({"completion": "x", "expected": 1, "columns": [1]}, "line 2: columns"),
    ],
)
def test_a_line_that_is_no_case_is_named(written, line, said):
    with pytest.raises(TaskError, match=f"(?s)golden.jsonl, {said}"):
        load_cases(task(written({"completion": "", "expected": 0}, line)))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(TaskError, match="none.jsonl: no such file"):
        load_cases(task(str(tmp_path / "none.jsonl")))


def test_cases_lie_beside_the_task_file(tmp_path):
    (tmp_path / "task.py").write_text(TASK_FILE)
    mine = load_task(tmp_path / "task.py")
    assert cases_file(mine) is None
    assert load_cases(mine) == []
    assert not check_cases(mine).ok
    assert "no regression cases" in str(check_cases(mine))
    (tmp_path / "cases.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps({"completion": "", "expected": 0}).encode() + b"\r\n")
    assert cases_file(mine) == tmp_path / "cases.jsonl"
    assert check_cases(tmp_path / "task.py").ok


@pytest.mark.parametrize("name", sorted(set(EMBEDDED) - {"gsm8k", "guess_the_number"}))
def test_the_cases_of_a_task_that_ships_hold(name):
    assert check_cases(name).failures == []
