"""What stands around a run leaves its trace in one: a feature that is not called is found out here, in one short run."""

from __future__ import annotations

import pytest

from workbench.base.instruments import TABLE
from workbench.recipe import Recipe
from workbench.rewards.library import correctness_reward
from workbench.run.held_out import held_out
from workbench.run.metrics import RATIO_HIGH, RATIO_LOW
from workbench.task import Task
from workbench.tiny.task import task as arithmetic
from workbench.training.policy import load_policy
from workbench.training.trainer import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    grpo = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 16}
    asked = {"run_name": "all", "policy": {"load_in_4bit": False}, "grpo": grpo, "eval_every": 1, "eval_prompts": 2}
    asked |= {"adaptive_weights": {"correctness_reward": {"every": 1, "below": 1.0}}}
    asked |= {"warm_start": {"samples": 2, "source": "reference"}}
    given = arithmetic(8, 4)

    def ideal(row):
        return f"<reasoning>\nso\n</reasoning>\n<answer>\n{row['answer']}\n</answer>"

    task = Task("sums", given.rows, [correctness_reward], held_out=given.held_out, right_by="correctness_reward", ideal=ideal)
    policy = load_policy("tiny", load_in_4bit=False)
    return train(Recipe.of(asked), policy=policy, task=task, runs=tmp_path_factory.mktemp("runs"))


def test_health_is_looked_at(run):
    assert "health" in run.result()


def test_weights_adapt(run):
    changes = [event for event in run.events() if event["event"] == "control" and event["by"] == "adaptive"]
    assert changes
    assert changes[0]["after"]["correctness_reward"] > changes[0]["before"]["correctness_reward"]


def test_the_importance_ratio_is_noted(run):
    for row in run.metrics():
        assert row[RATIO_LOW] <= 1.0 <= row[RATIO_HIGH]


@pytest.mark.skipif("cpu" not in TABLE, reason="its instrument is not here")
def test_the_workbenchs_loop_generates(run):
    assert run.result()["generation"]["by"] == "workbench"
    assert run.result()["generation"]["calls"]["workbench"] == 2


def test_a_warm_start_comes_first(run):
    assert run.manifest()["warm_start"]["samples"] == 2
    names = [event["event"] for event in run.events()]
    assert "warm_start" in names[: names.index("checkpoint", names.index("started"))]


def test_held_out_prompts_are_measured(run):
    assert {point["step"] for point in held_out(run.events())} >= {1, 2}
