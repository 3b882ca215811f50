"""Tasks: the parts fit together, and a file of one's own is imported with clear errors."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import pytest

from workbench.base.errors import TaskError
from workbench.rewards.suite import RewardSuite
from workbench.task import RESERVED_COLUMNS, Task, function_name
from workbench.tasks import loading
from workbench.tasks.loading import load_task


def a_reward(completions, **kwargs):
    return [0.0] * len(completions)


def b_reward(completions, **kwargs):
    return [0.0] * len(completions)


ROWS = [{"prompt": "x", "answer": "1"}]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"reward_funcs": []}, "no reward functions"),
        ({"reward_funcs": [a_reward, a_reward]}, "two reward functions are called 'a_reward'"),
        ({"reward_weights": [1.0, 2.0]}, "2 reward_weights for 1 reward functions"),
        ({"right_by": "c_reward"}, "right_by = 'c_reward'"),
        ({"right_by": ("c_reward", 1.0)}, "right_by = \\('c_reward', 1.0\\)"),
        *[({"right_by": odd}, "right_by = ") for odd in (("a_reward",), ("a_reward", float("nan")), ("a_reward", "1"), 1.0)],
        ({"format_by": "c_reward"}, "format_by = 'c_reward'"),
        ({"rows": [{"query": "x"}]}, "has the columns query"),
        ({"rows": [{"prompt": "x"}, {"query": "x"}]}, "rows\\[1\\] has the columns query"),
        *[({"rows": [{"prompt": "x", column: 1}]}, f"have a column '{column}'") for column in sorted(RESERVED_COLUMNS)],
    ],
)
def test_parts_that_do_not_fit_are_named(parts, said):
    with pytest.raises(TaskError, match=said):
        Task(**{"name": "t", "rows": ROWS, "reward_funcs": [a_reward], **parts})


@pytest.mark.parametrize(
    ("right_by", "words", "right"),
    [
        (None, "a_reward > 0", [True, True, False, False, False]),
        ("b_reward", "b_reward > 0", [True, True, False, False, False]),
        (("b_reward", 0.5), "b_reward >= 0.5", [True, False, False, False, False]),
        (("b_reward", -1), "b_reward >= -1", [True, True, True, True, False]),
    ],
)
def test_what_is_right_is_above_0_or_at_least_the_threshold(right_by, words, right):
    task = Task("t", ROWS, [a_reward, b_reward], right_by=right_by)
    assert task.right_words == words
    assert task.right_rule == words.removesuffix(" > 0")
    assert task.is_right([0.5, 0.49, 0.0, -1.0, float("nan")]).tolist() == right


def test_a_partial_goes_by_its_own_name():
    def tag_reward(completions, tag, **columns):
        return [float(tag in text) for text in completions]

    first, second = (functools.partial(tag_reward, tag=tag) for tag in "ab")
    first.__name__ = "a_reward"
    outer = functools.partial(first, worth=1)
    assert [*map(function_name, (first, second, outer))] == ["a_reward", "tag_reward", "a_reward"]
    task = Task("t", [{"prompt": "?"}], [first, second])
    assert RewardSuite(task, 1).score(task.rows * 2, ["a", "b"]).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(TaskError, match="two reward functions are called 'a_reward'"):
        Task("t", [{"prompt": "?"}], [first, outer])


def test_defaults():
    task = Task("t", ROWS, [a_reward, b_reward])
    assert task.weights == [1.0, 1.0]
    assert task.right_function == "a_reward"


def test_prompt_ids_are_stable_and_kept():
    task = Task("t", ROWS, [a_reward])
    [first], [again] = task.with_ids(ROWS), task.with_ids(ROWS)
    assert first["prompt_id"] == again["prompt_id"]
    assert len(first["prompt_id"]) == 12
    assert task.with_ids([{"prompt": "x", "prompt_id": 7}])[0]["prompt_id"] == "7"


def test_starts_of_an_environment_that_share_a_prompt_are_told_apart():
    class Lamp:
        def reset(self, seed, **row):
            pass

        def get_reward(self):
            return 0.0

    starts = [{"prompt": "x", "seed": seed} for seed in (1, 2, 1)]
    first, second, again = (row["prompt_id"] for row in Task("lamp", starts, [], environment=Lamp).with_ids(starts))
    assert first == again != second
    assert len({row["prompt_id"] for row in Task("text", starts, [print]).with_ids(starts)}) == 1


def test_the_embedded_task():
    task = load_task("arithmetic")
    assert len(task.rows) == 2000
    assert len(task.held_out) == 200


FILE = """
from workbench.task import Task

def a_reward(completions, **kwargs):
    return [{value}] * len(completions)

task = Task("mine", rows=[{{"prompt": "x"}}], reward_funcs=[a_reward])
"""


def test_a_task_file_is_loaded_and_loaded_again_when_edited(tmp_path):
    file = tmp_path / "task.py"
    for value in (1.0, 2.0):
        file.write_text(FILE.format(value=value))
        task = load_task(file)
        assert task.reward_funcs[0](completions=["x"]) == [value]
    assert task.source == str(file)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("x = 1", "`task` is not bound"),
        ("task = 1", "`task` is int"),
        ("x = 1\n1 / 0", "ZeroDivisionError: division by zero \\(task.py:2: 1 / 0\\)"),
        ("def (", "SyntaxError.*\\(task.py:1: def \\(\\)"),
        ("import json\njson.loads('')", "task.py:2: json.loads"),
        ("from workbench.task import Task\ntask = Task('t', [], [])", "no reward functions"),
    ],
)
def test_bad_files(tmp_path, content, said):
    file = tmp_path / "task.py"
    file.write_text(content)
    with pytest.raises(TaskError, match=said):
        load_task(file)


def test_an_unknown_task():
    with pytest.raises(TaskError, match="(?s)task 'arithmetics': no task of that name.*did you mean 'arithmetic'"):
        load_task("arithmetics")


BESIDE = """
from grading import grade
from workbench.task import Task

def graded_reward(completions, **kwargs):
    return [grade(completion) for completion in completions]

task = Task("t", [{"prompt": "?", "answer": "2"}], [graded_reward])
"""


def test_a_module_beside_the_task_file_is_found_and_loaded_anew(home, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    scores = []
    for folder, worth in (("first", 1), ("second", 2), ("second", 3)):
        (home / folder).mkdir(exist_ok=True)
        (home / folder / "grading.py").write_text(f"def grade(text):\n    return float(len(text) * {worth})\n")
        os.utime(home / folder / "grading.py", (1e9, 1e9))  # saved twice within a second, of the same length
        (home / folder / "task.py").write_text(BESIDE)
        suite = RewardSuite(load_task(home / folder / "task.py"), 1)
        assert suite.functions.places["graded_reward"] == "worker"
        scores.append(suite.score(suite.task.rows, ["ab"]).item())
        suite.close()
    assert scores == [2.0, 4.0, 6.0]
    # what a function imports when it is called lies in the last one's folder
    assert [path for path in sys.path if str(home) in path] == [f"{home / 'second'}/"] == sys.path[-1:]


def test_in_a_clone_the_package_is_no_module_of_a_task_file(home, monkeypatch):
    (home / "task.py").write_text("import workbench.base.progress\n")
    monkeypatch.delitem(sys.modules, "workbench.base.progress", raising=False)
    clone = Path(loading.__file__).parents[2]
    loading.executed(home / "task.py", clone / "task.py")
    assert not [name for name in loading._brought() if name.startswith("workbench")]
    loaded = sys.modules["workbench.base.progress"]
    loading.executed(home / "task.py", clone / "task.py")
    assert sys.modules["workbench.base.progress"] is loaded


def test_a_module_that_is_missing_is_asked_for_beside_the_file(home):
    (home / "task.py").write_text("import not_there_at_all\n")
    with pytest.raises(TaskError, match="not_there_at_all.*(\n.*)*put that module beside the task file"):
        load_task(home / "task.py")
