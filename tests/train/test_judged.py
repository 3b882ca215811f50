"""A judge trains after its trial: what `plan` refuses and says, what the manifest keeps, a run whose judge is asked over HTTP."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from commanding import workbench

import workbench as wb
from workbench.errors import BudgetError, RecipeError
from workbench.rewards.judging import judge_of
from workbench.run.rollouts import read_batches

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
judges = importlib.import_module("judges")

SMALL = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 32}
POLICY = {"load_in_4bit": False, "backend": "transformers"}
FILE = """
import pathlib
import workbench as wb


def call(text):
    with pathlib.Path("asked.txt").open("a") as file:
        file.write("x")
    return '{"score": 5}'


judged = wb.rewards.make_judge_reward(call, "Is it right?")
task = wb.Task("judged", wb.load_task("arithmetic").rows[:64], [wb.rewards.correctness_reward, judged])
"""


def recipe(**more) -> wb.Recipe:
    return wb.Recipe.of({"run_name": "judged", "task": "judged.py", "policy": POLICY, "grpo": SMALL, **more})


@pytest.fixture
def file(home):
    (home / "judged.py").write_text(FILE)
    return home


def notes(plan) -> list[str]:
    return [line for line in plan.notes if line.startswith("judge_reward")]


def test_a_judge_without_a_trial_is_refused_unless_the_recipe_accepts_it(file):
    with pytest.raises(RecipeError, match="judge_reward has no trial on this task") as met:
        wb.plan(recipe())
    assert "workbench trial judged.py" in met.value.remedy
    assert "judge: accept" in met.value.remedy
    asks, tried = notes(wb.plan(recipe(judge="accept")))
    assert "the function call" in asks
    assert "every prompt and every completion" in asks
    assert tried.endswith("no trial: accepted")
    with pytest.raises(RecipeError, match="judge"):
        wb.plan(recipe(judge="yes"))


def test_nothing_is_asked_while_it_is_planned(file):
    wb.plan(recipe(judge="accept"))
    with pytest.raises(RecipeError):
        wb.plan(recipe())
    assert (
        workbench(
            "plan", "cpu", "--set", "task=judged.py", "--set", "judge=accept", "--set", "eval_every=null", home=file
        ).returncode
        == 0
    )
    assert not (file / "asked.txt").exists()
    assert not (file / "judges").exists()


def test_a_failed_trial_is_refused_with_its_numbers(file):
    trial = wb.trial("judged.py", cases=40)
    assert not trial.ok
    with pytest.raises(RecipeError, match=r"judge_reward, on trial: failed: dead groups 1\.00 \(0\.91 to 1\.00") as met:
        wb.plan(recipe())
    assert "workbench trial judged.py" in met.value.remedy
    assert notes(wb.plan(recipe(judge="accept")))[1] == f"judge_reward, on trial: {trial.verdict}"


def honest_task(call, **limits) -> wb.Task:
    rows = wb.load_task("arithmetic").rows[:64]
    judged = wb.rewards.make_judge_reward(call, judges.RUBRIC, **limits)
    return wb.Task("judged", rows, [wb.rewards.correctness_reward, judged])


def test_a_passed_trial_is_planned_and_one_of_another_rubric_is_not(home):
    task = honest_task(judges.answers(judges.quality))
    assert wb.trial(task).ok
    assert notes(wb.plan(recipe(task="arithmetic"), task))[1] == "judge_reward, on trial: passed"
    other = wb.Task("judged", task.rows, [wb.rewards.make_judge_reward(judges.answers(judges.quality), "Is it kind?")])
    with pytest.raises(RecipeError, match="has no trial on this task") as met:
        wb.plan(recipe(task="arithmetic"), other)
    assert "wb.trial(task)" in met.value.remedy


def test_a_public_address_is_named(home):
    task = honest_task(wb.rewards.Endpoint("https://api.example.com/v1", "large"))
    [asks, _] = notes(wb.plan(recipe(task="arithmetic", judge="accept"), task))
    assert asks == ("judge_reward asks large at api.example.com, over the network: it is sent every prompt and every completion")


def test_a_run_records_what_its_judge_was_and_took(home):
    task = honest_task(judges.answers(judges.quality))
    trial = wb.trial(task)
    run = wb.train(recipe(task="arithmetic"), task=task)
    kept = run.manifest()["judges"]["judge_reward"]
    assert kept["accepted"] is False
    assert (kept["trial"]["verdict"], kept["trial"]["key"]) == ("passed", trial.key)
    assert {each["name"] for each in kept["trial"]["measures"]} == {each.name for each in trial.measures}
    spent = run.result()["judges"]["judge_reward"]
    assert spent["calls"] + spent["cached"] <= 16
    assert spent["calls"] > 0
    assert run.manifest()["rewards"]["run"]["judge_reward"] == "awaited"
    shown = [line for line in run.manifest()["settings"]["translated"] if line.startswith("judge_reward")]
    assert len(shown) == 2


def test_a_budget_ends_a_run_whatever_errors_do_and_the_record_says_so(home):
    task = honest_task(judges.answers(judges.quality), max_tokens=300)
    with pytest.raises(BudgetError, match="the judge's budget"):
        wb.train(recipe(task="arithmetic", judge="accept", rewards={"on_error": "skip"}), task=task)
    calls = judge_of(task.reward_funcs[1]).spent.calls
    assert calls * 150 < 450, "no call was made that might have gone beyond"


@pytest.mark.slow
def test_a_run_with_a_judge_over_http_learns_from_its_scores(home):
    """On trial, planned, trained and continued, with the judge asked over HTTP on this machine."""
    with judges.served(judges.answers(judges.quality)) as address:
        text = FILE.partition("def call")[0] + (
            f'\ncall = wb.rewards.Endpoint("{address}", "scripted")\n'
            f'judged = wb.rewards.make_judge_reward(call, "{judges.RUBRIC}")\n'
            'task = wb.Task("judged", wb.load_task("arithmetic").rows[:64], [judged, wb.rewards.correctness_reward])\n'
        )
        (home / "judged.py").write_text(text)
        grpo = {**SMALL, "max_steps": 6, "learning_rate": 1e-3, "max_completion_length": 64}
        recipe(grpo=grpo).save(home / "recipe.yaml")
        assert workbench("train", "recipe.yaml", home=home).returncode == 2
        tried = workbench("trial", "recipe.yaml", "--json", home=home)
        assert tried.returncode == 0, tried.stdout
        assert json.loads(tried.stdout)["planned"]["completions"] == 48
        done = workbench("train", "recipe.yaml", "--json", home=home)
        assert done.returncode == 0, done.stderr
        run = wb.open_run("runs/judged")
        batches = [*read_batches(run)]
        assert [batch.step for batch in batches] == [1, 2, 3, 4, 5, 6]
        assert {*np.concatenate([batch.scores[:, 0] for batch in batches])} <= {0.1, 0.2, 0.3, 0.7}
        spent = run.result()["judges"]["judge_reward"]
        assert spent["model"] == "scripted"
        assert 0 < spent["calls"] <= 48
        assert spent["calls"] + spent["cached"] <= 48
        assert run.result()["reward_errors"] in ({}, {"judge_reward": 0}, {"judge_reward": 0, "correctness_reward": 0})
        assert workbench("continue", "judged", "--steps", "2", home=home).returncode == 0
        assert wb.open_run("runs/judged").result()["steps"] == 8
