"""Stages and adaptive weights: what is trained under what, recorded, and better at the end than in the middle."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.base.errors import RecipeError, TaskError
from workbench.recipe import AdaptivePart, Recipe
from workbench.rewards import library
from workbench.rewards.library import max_score
from workbench.rewards.suite import RewardSuite
from workbench.run.metrics import weight_of
from workbench.run.rollouts import query
from workbench.task import Task
from workbench.tiny.task import task as arithmetic
from workbench.training.features.adaptive import Adaptive
from workbench.training.policy import load_policy
from workbench.training.trainer import train

GRPO = {
    "num_generations": 8,
    "per_device_train_batch_size": 32,
    "max_completion_length": 48,
    "learning_rate": 1.5e-3,
    "beta": 0.001,
}
CORRECT, STRICT, SOFT = "correctness_reward", "strict_format_reward", "incremental_format_reward"


def two_functions(train_rows=200) -> Task:
    whole = arithmetic(train_rows, 8)
    return Task(
        name="two", rows=whole.rows, held_out=whole.held_out,
        reward_funcs=[library.correctness_reward, library.strict_format_reward],
        right_by=CORRECT, format_by=STRICT,
    )  # fmt: skip


def means(frame, column, steps) -> float:
    return float(frame[frame["step"].isin(steps)][column].mean())


@pytest.mark.slow
def test_format_first_then_correctness_ends_better_and_keeps_the_format(home):
    stages = [
        {"name": "format", "steps": 14, "reward_weights": {CORRECT: 0.0, STRICT: 1.0}},
        {
            "name": "correctness",
            "steps": 16,
            "reward_weights": {CORRECT: 2.0, STRICT: 0.5},
            "grpo": {"temperature": 0.9},
        },
    ]
    run = train(
        Recipe.of({"run_name": "staged", "grpo": GRPO, "stages": stages, "policy": {"load_in_4bit": False}}),
        task=two_functions(),
    )
    frame = query(run.rollouts)
    assert sorted(frame["step"].unique()) == list(range(1, 31))
    # The record shows which stage and which weight each completion was scored under.
    by_step = frame.groupby("step")[["stage", f"weight.{CORRECT}", f"weight.{STRICT}"]].agg(["nunique", "first"])
    assert (by_step.xs("nunique", axis=1, level=1) == 1).all().all()
    first = by_step.xs("first", axis=1, level=1)
    assert first["stage"].tolist() == ["format"] * 14 + ["correctness"] * 16
    assert first[f"weight.{CORRECT}"].tolist() == [0.0] * 14 + [2.0] * 16
    assert first[f"weight.{STRICT}"].tolist() == [1.0] * 14 + [0.5] * 16
    # What the two stages bought.
    score, form = f"score.{CORRECT}", f"score.{STRICT}"
    begin, middle, end = range(1, 5), range(11, 15), range(27, 31)
    assert means(frame, form, middle) > means(frame, form, begin) + 0.1
    assert means(frame, score, end) > means(frame, score, middle) + 0.1
    assert means(frame, form, end) > means(frame, form, middle) - 0.05
    # Steps, checkpoints and rows go on as one run.
    assert [row["step"] for row in run.metrics()] == list(range(1, 31))
    assert {folder.name for folder in run.checkpoints.iterdir()} == {"checkpoint-14", "checkpoint-30", "final"}
    begun = [event for event in run.events() if event["event"] == "stage"]
    assert [(event["stage"], event["step"], event["temperature"]) for event in begun] == [
        ("format", 0, 1.0),
        ("correctness", 14, 0.9),
    ]
    assert [stage["name"] for stage in run.manifest()["stages"]] == ["format", "correctness"]
    assert run.result()["steps"] == 30


@pytest.mark.slow
def test_a_stage_can_have_its_own_prompts_and_task(home):
    rows = [{**row, "level": number % 2} for number, row in enumerate(arithmetic(64, 4).rows)]
    task = Task("levels", rows, [library.correctness_reward])
    stages = [
        {"name": "easy", "steps": 2, "prompts": {"level": 0}},
        {"name": "both", "steps": 1, "prompts": {"level": [0, 1]}},
        {"name": "other", "steps": 1, "task": "countdown"},
    ]
    recipe = Recipe.of(
        {
            "run_name": "r",
            "grpo": {**GRPO, "per_device_train_batch_size": 16},
            "stages": stages,
            "policy": {"load_in_4bit": False},
        }
    )
    run = train(recipe, task=task)
    frame = query(run.rollouts)
    assert set(frame[frame["step"] <= 2]["columns"].str.contains('"level": 0')) == {True}
    other = frame[frame["stage"] == "other"]
    assert len(other) == 16
    assert other["score.correctness_reward"].isna().all()
    assert other[[name for name in other.columns if "countdown" in name and name.startswith("score.")]].notna().all().all()


@pytest.mark.parametrize(
    ("stage", "error", "message"),
    [
        ({"grpo": {"max_steps": 5}}, RecipeError, "a stage's length is its `steps`"),
        ({"grpo": {"kl_cof": 0.1}}, RecipeError, "grpo.kl_cof"),
        ({"grpo": {"num_generations": 5, "generation_batch_size": 32}}, RecipeError, "num_generations"),
        ({"reward_weights": {"nope": 1}}, RecipeError, "choose from correctness_reward"),
        ({"adaptive_weights": {"nope": {}}}, RecipeError, "adaptive_weights: 'nope'"),
        ({"adaptive_weights": {SOFT: {}}}, RecipeError, "adaptive_weights: 'incremental_format_reward'"),
        ({"adaptive_weights": {STRICT: {}}, "reward_weights": {STRICT: 0}}, RecipeError, "has the weight 0"),
        ({"prompts": {"level": 3}}, RecipeError, "the rows have"),
        ({"prompts": {"answer": "none of them"}}, RecipeError, "no row has answer"),
        ({"task": "no_such_task"}, TaskError, "no_such_task"),
    ],
)
def test_a_later_stage_that_cannot_work_is_found_before_the_first_one_trains(home, stage, error, message):
    stages = [{"name": "fine", "steps": 1}, {"name": "second", "steps": 1, **stage}]
    with pytest.raises(error, match=message):
        train(Recipe.of({"run_name": "r", "grpo": GRPO, "stages": stages}), task=two_functions(32))
    assert not (home / "runs" / "r").exists()


# -- adaptive weights ---------------------------------------------------------------------------------------------------
def half_reward(completions, **kwargs):
    return [0.0] * len(completions)


@max_score(2.0)
def double_reward(completions, **kwargs):
    return [0.0] * len(completions)


class Scored:
    names = ("half_reward", "double_reward")

    def __init__(self, *columns):
        self.scores = np.array(columns, dtype=float).T


@pytest.fixture
def suite():
    return RewardSuite(Task("t", [{"prompt": "x"}], [half_reward, double_reward], [1.0, 0.5]), 2)


def following(parts, suite):
    adaptive = Adaptive(None)
    adaptive.follow(parts, suite)
    return adaptive


def test_a_weight_grows_while_its_function_fails_and_shrinks_when_it_succeeds(suite):
    adaptive = following({"double_reward": AdaptivePart(every=2)}, suite)
    weights = {"half_reward": 1.0, "double_reward": 0.5}
    found = []
    for mean in (0.2, 0.4, 1.0, 1.0, 1.9, 2.0):  # of 2: 15 % -> grows; 50 % -> stays; 97.5 % -> shrinks
        adaptive.on_batch(Scored([0, 0], [mean, mean]))
        changes = adaptive.changes(weights)
        weights.update({change["function"]: change["value"] for change in changes})
        found.append(weights["double_reward"])
    assert found == pytest.approx([0.5, 0.6, 0.6, 0.6, 0.6, 0.54])


def test_it_stays_within_its_bounds(suite):
    parts = {"double_reward": AdaptivePart(every=1, up=10, down=0.01)}
    adaptive, weights = following(parts, suite), {"half_reward": 1.0, "double_reward": 0.5}
    for mean, expected in ((0, 2.0), (0, 2.0), (2, 0.125), (2, 0.125)):  # 4 x and 0.25 x 0.5
        adaptive.on_batch(Scored([0], [mean]))
        weights.update({change["function"]: change["value"] for change in adaptive.changes(weights)})
        assert weights["double_reward"] == expected


def test_without_a_stated_maximum_success_is_of_the_most_that_was_seen(suite):
    adaptive = following({"half_reward": AdaptivePart(every=1)}, suite)
    adaptive.on_batch(Scored([4.0, 0.0, 0.0, 0.0], [0, 0, 0, 0]))
    [change] = adaptive.changes({"half_reward": 1.0, "double_reward": 0.5})
    assert change["value"] == pytest.approx(1.2)
    assert change["why"] == "pays 25% of 4 over 1 steps, below 30%"


def test_a_muted_function_is_left_alone_and_one_without_weight_is_refused(suite):
    adaptive = following({"double_reward": AdaptivePart(every=1)}, suite)
    adaptive.on_batch(Scored([0], [0]))
    assert adaptive.changes({"half_reward": 1.0, "double_reward": 0.0}) == []
    silent = RewardSuite(suite.task, 2, {"double_reward": 0.0})
    with pytest.raises(RecipeError, match="has the weight 0"):
        following({"double_reward": AdaptivePart()}, silent)


@pytest.mark.weekly
def test_adaptive_weights_end_better_keep_the_format_and_are_recorded(home):
    recipe = Recipe.of(
        {
            "run_name": "adaptive",
            "grpo": {**GRPO, "max_steps": 28},
            "reward_weights": {CORRECT: 1.0, STRICT: 1.0},
            "adaptive_weights": {
                CORRECT: {"every": 4, "below": 0.6, "most": 2.0},
                STRICT: {"every": 4, "above": 0.7, "least": 0.5},
            },
            "policy": {"load_in_4bit": False},
        }
    )
    run = train(recipe, task=two_functions())
    frame = query(run.rollouts)
    score, form = f"score.{CORRECT}", f"score.{STRICT}"
    assert means(frame, score, range(25, 29)) > means(frame, score, range(1, 5)) + 0.2
    assert means(frame, form, range(25, 29)) > means(frame, form, range(1, 5)) + 0.1
    changes = [event for event in run.events() if event["event"] == "control"]
    assert changes
    assert all(event["by"] == "adaptive" and event["applied"] and "pays" in event["why"] for event in changes)
    assert all(event["step"] % 4 == 0 for event in changes)
    weights = frame.groupby("step")[[f"weight.{CORRECT}", f"weight.{STRICT}"]].first()
    assert weights[f"weight.{CORRECT}"].between(0.25, 2.0).all()
    assert weights[f"weight.{STRICT}"].between(0.5, 4.0).all()
    for event in changes:
        column = f"weight.{event['function']}"
        assert weights.loc[event["from_step"] - 1, column] == event["before"][event["function"]]
        if event["from_step"] <= 28:
            assert weights.loc[event["from_step"], column] == event["after"][event["function"]]
    assert [row[weight_of(CORRECT)] for row in run.metrics()] == weights[f"weight.{CORRECT}"].tolist()
    # It adapts again in the same way, without being told.
    again = train(recipe.model_copy(update={"run_name": "again", "grpo": {**recipe.grpo, "max_steps": 9}}),
                  task=two_functions())  # fmt: skip
    assert query(again.rollouts)["total"].tolist() == frame[frame["step"] <= 9]["total"].tolist()


def test_both_load_the_same_policy_anew(home):
    """The two runs above compare their own ends with their own beginnings, so the embedded policy must be untouched."""
    assert load_policy("tiny", load_in_4bit=False).trained_in == []
