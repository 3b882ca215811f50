"""reasoning-gym's tasks: names, rows that carry their own data, and their scorers' scores."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from workbench.base.errors import TaskError
from workbench.data.sources import open_source
from workbench.instruments.games import gym
from workbench.tasks.loading import load_task

NAMED = gym.GymName("chain_sum", 3)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    for ask in (load_task, open_source):
        with pytest.raises(TaskError, match=r"not installed\n.*\n.*uv sync --extra tasks"):
            ask("reasoning_gym/chain_sum")


@pytest.mark.parametrize(
    "entry",
    [
        {"answer": "1", "metadata": {"a": [1, (2, 3.5)], "b": {"c": None, "d": True}}},
        {"set": {3, 1, 2}, "frozen": frozenset({"x"}), "nested": ({(1, 2)},)},
        {"keys": {1: "a", (2, 3): "b"}, "dollar": {"$tuple": [1]}, "empty": {}},
        {"day": datetime.date(2026, 2, 28), "time": datetime.datetime(2026, 2, 28, 12, 30)},
        {"unicode": "a\u2028b\x00", "large": 10**30, "nothing": float("inf")},
    ],
)
def test_an_entry_comes_back_as_the_same_objects(entry):
    text = gym.entry_text(NAMED, entry)
    named, back = gym.entry_of(text)
    assert (named, back) == (NAMED, entry)
    assert repr(back) == repr(entry) or "set" in entry  # whose order is its own
    assert isinstance(json.loads(text), dict)


def test_numbers_of_other_libraries_become_pythons():
    assert gym.entry_of(gym.entry_text(NAMED, {"a": np.float64(1.5), "b": np.int64(2)}))[1] == {"a": 1.5, "b": 2}
    with pytest.raises(TaskError, match=r"an entry holds a builtins\.object"):
        gym.entry_text(NAMED, {"a": object()})


@pytest.mark.parametrize(
    ("text", "right", "answer"),
    [
        ("<answer>-4</answer>", "-4", "-4"),
        ("<answer>0 - 4 = -4</answer>", "-4", "0 - 4 = -4"),  # the block is what is scored
        ("I think it is -4.", "-4", "-4"),
        ("so\n1 2\n3 4", "1 2\n3 4", "so\n1 2\n3 4"),  # several lines: all of it
        ("<answer>\n1 2\n3 4\n</answer>", "1 2\n3 4", "1 2\n3 4"),
        ("north", "", "north"),  # the right answer is not known
        ("", "-4", None),
    ],
)
def test_the_answer_is_the_block_or_what_reads_like_one(text, right, answer):
    assert gym.answer_in(text, right) == answer


# --- with the library -------------------------------------------------------------------------------------------------


def test_a_task_has_rows_held_out_and_their_scorer():
    pytest.importorskip("reasoning_gym")
    task = load_task("reasoning_gym/chain_sum@1")
    assert (task.name, task.right_words) == ("reasoning_gym/chain_sum@1", "score_reward >= 1")
    questions = [{row["prompt"][-1]["content"] for row in rows} for rows in (task.rows, task.held_out)]
    assert not questions[0] & questions[1]
    assert sum(map(len, questions)) == len(task.rows) + len(task.held_out) == 1200
    row = task.rows[0]
    score, columns = task.reward_funcs[0], {"answer": [row["answer"]], "entry": [row["entry"]]}
    assert score([f"<answer>{row['answer']}</answer>"], **columns) == [1.0]
    theirs = gym.dataset(gym.GymName("chain_sum", 1))
    for answer in ("-40", f"{row['answer']} or so", "x", f"0 - 0 = {row['answer']}"):
        expected = theirs.score_answer(answer, gym.entry_of(row["entry"])[1])
        assert score([f"<answer>{answer}</answer>"], **columns) == [expected]


def test_a_held_out_question_of_one_level_is_a_training_question_of_none():
    pytest.importorskip("reasoning_gym")
    tasks = [load_task(f"reasoning_gym/letter_counting@{level}") for level in (0, 1)]
    held_out = {row["prompt"][-1]["content"] for task in tasks for row in task.held_out}
    assert not held_out & {row["prompt"][-1]["content"] for task in tasks for row in task.rows}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("chain_sun", "did you mean 'chain_sum'?"),
        ("chain_sum@77", "reasoning_gym/chain_sum@0 to @10"),
        ("chain_sum@", "chain_sum@0 to @10"),
        ("gsm_symbolic@1", "leave @1 out"),
        ("composite", "no 'composite'"),
        ("coin_flip@0", "8 different questions"),
    ],
)
def test_a_wrong_name_is_told_the_right_one(name, said):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(TaskError, match=said.replace("?", r"\?")):
        load_task(f"reasoning_gym/{name}")


def test_an_answer_beyond_their_scorer_earns_nothing_and_a_broken_entry_is_raised():
    pytest.importorskip("reasoning_gym")

    class Scorer:
        def score_answer(self, answer, entry):
            return {"4": 1.0}[answer]

    row = {"answer": ["4"], "entry": [gym.entry_text(NAMED, {"answer": "4"})]}
    broken = {"answer": ["4"], "entry": [gym.entry_text(NAMED, {"answer": "5"})]}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gym, "dataset", lambda named: Scorer())
        assert gym.score_reward(["<answer>x</answer>"], **row) == [0.0]
        with pytest.raises(KeyError):
            gym.score_reward(["<answer>x</answer>"], **broken)


def test_as_a_source_the_rows_are_questions():
    pytest.importorskip("reasoning_gym")
    rows = open_source("reasoning_gym/graph_color", limit=3).first()
    assert [sorted(row) for row in rows] == [["answer", "entry", "question"]] * 3


def test_programs_that_make_questions_write_nothing_where_one_stands(tmp_path, monkeypatch):
    class Writes:
        def __getitem__(self, index):
            open("left.csv", "w").close()
            return {"question": f"{index}?", "answer": "1", "metadata": {}}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gym, "dataset", lambda *_: Writes())
    assert len(gym._questions(gym.GymName("codeio", None), 3, 7)) == 3
    gym._questions.cache_clear()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["graph_color", "knights_knaves", "family_relationships", "zebra_puzzles", "codeio"])
def test_every_process_makes_the_same_rows(name):
    pytest.importorskip("reasoning_gym")
    fingerprints = f"print(fingerprint(gym.source('reasoning_gym/{name}', 40)))"
    script = f"from workbench.instruments.games import gym; from workbench.task import fingerprint; {fingerprints}"
    made = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(made) == 1
