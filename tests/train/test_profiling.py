"""The difficulty profile with a real policy: the same rates as sampling by hand, and resumed as if never stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.data.difficulty import load_profile, row_key
from workbench.rewards.scoring import score
from workbench.rewards.suite import RewardSuite
from workbench.tiny.task import task as arithmetic
from workbench.training import sampling
from workbench.training.profiling import profile_difficulty
from workbench.training.sampling import sample, scored_groups
from workbench.views.display import view_of

SMALL = {"num_generations": 4, "max_completion_length": 64, "batch": 4}


def test_the_embedded_policy_is_right_sometimes(home, tiny_policy):
    task = arithmetic(64, 8)
    profile = profile_difficulty(tiny_policy, task.rows[:16], "d.jsonl", task=task, **SMALL)
    assert len(profile.solved) == 16
    assert profile.shares["sometimes"] > 0.3
    rate = sum(s.right for s in profile.solved.values()) / 64
    assert 0.1 < rate < 0.7
    assert profile.settings["policy"] == "tiny"
    assert profile.settings["right_by"].startswith("correctness_reward ")
    assert profile.finished > 0.8


@pytest.mark.slow
def test_interrupted_and_resumed_it_is_the_same_profile(home, tiny_policy, monkeypatch):
    task, calls = arithmetic(64, 8), []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return sample(*args, **kwargs)

    whole = profile_difficulty(tiny_policy, task.rows[:16], "whole.jsonl", task=task, **SMALL)
    monkeypatch.setattr(sampling, "sample", interrupted)
    part = profile_difficulty(tiny_policy, task.rows[:16], "part.jsonl", task=task, **SMALL)
    assert len(part.solved) == 8
    resumed = profile_difficulty(tiny_policy, task.rows[:16], "part.jsonl", task=task, **SMALL)
    assert resumed.solved == whole.solved == load_profile("part.jsonl").solved


def test_partial_credit_is_right_from_the_threshold_on(home, tiny_policy):
    def length(completions, **kwargs):
        return [len(text[0]["content"]) / 100 for text in completions]

    task = replace(arithmetic(64, 8), reward_funcs=[length], reward_weights=None, right_by=("length", 0.6), format_by=None)
    [row] = task.rows[:1]
    [group] = scored_groups(tiny_policy, task, [row], RewardSuite(task, 8), 8, max_completion_length=48)
    right = [len(own["completion"]) >= 60 for own in group]
    assert [own["right"] for own in group] == right
    assert 0 < sum(right) < 8
    assert score(task, row, [own["completion"] for own in group]).right.tolist() == right
    profile = profile_difficulty(tiny_policy, [row], "d.jsonl", task=task, **SMALL)
    whole = profile_difficulty(tiny_policy, [row], "e.jsonl", task=replace(task, right_by="length"), **SMALL)
    assert profile.settings["right_by"].startswith("length >= 0.6 ")
    assert [solved.right for solved in whole.solved.values()] == [4]
    assert sum(solved.right for solved in profile.solved.values()) < 4


def test_right_is_what_the_tasks_own_function_says(home, tiny_policy):
    task = arithmetic(64, 8)
    [row] = task.rows[:1]
    profile = profile_difficulty(tiny_policy, [row], "d.jsonl", task=task, seed=3, **SMALL)
    [solved] = profile.solved.values()
    own_seed = 3 + int(row_key(row)[:6], 16)
    [group] = sample(tiny_policy, [row["prompt"]], num_generations=4, max_completion_length=64, seed=own_seed)
    suite = RewardSuite(task, 4)
    scores = suite.score([row] * 4, [completion.text for completion in group])
    assert solved.right == int((scores[:, suite.names.index("correctness_reward")] > 0).sum())


@pytest.mark.parametrize("rows", [
    [{"prompt": "Put it in <SOLUTION></SOLUTION>. What is 1 + 1?", "answer": "2"}],
    [{"prompt": f"What is {n} + 1?", "answer": 0} for n in range(8)],
])  # fmt: skip
def test_without_a_ruler_nothing_is_loaded_measured_or_drawn(rows, home, capsys):
    profile = profile_difficulty("no such policy", rows, "d.jsonl", **SMALL)
    assert str(profile) == "difficulty not measured"
    assert "no ruler yet" in capsys.readouterr().out
    assert not (home / "d.jsonl").exists()
    assert "image/png" not in view_of(profile)._repr_html_()


def test_a_task_file_is_a_ruler(tiny_policy, home):
    (home / "task.py").write_text(
        "import workbench as wb\n\ndef any_reward(completions, **kwargs):\n    return [1.0] * len(completions)\n\n"
        "task = wb.Task('mine', [{'prompt': 'x'}], [any_reward])\n"
    )
    rows = [{"prompt": "Reply as <SOLUTION></SOLUTION>.", "answer": "2"}]
    profile = profile_difficulty(tiny_policy, rows, "d.jsonl", task=home / "task.py", **SMALL)
    assert profile.shares["always"] == 1
    assert profile.settings["right_by"].startswith("any_reward ")
