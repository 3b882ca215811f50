"""A judge trains after its trial: what `plan` refuses and says, what the manifest keeps, a run whose judge is asked over HTTP."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commanding import workbench

import workbench as wb
from workbench.base.errors import BudgetError, RecipeError
from workbench.instruments.judge.feature import JudgeWatch, _summed
from workbench.rewards.code import judge_of
from workbench.run.rollouts import read_batches
from workbench.training.feature import Asked

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
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
    trial = wb.rewards.trial("judged.py", cases=40)
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
    assert wb.rewards.trial(task).ok
    assert notes(wb.plan(recipe(task="arithmetic"), task))[1] == "judge_reward, on trial: passed"
    other = wb.Task("judged", task.rows, [wb.rewards.make_judge_reward(judges.answers(judges.quality), "Is it kind?")])
    with pytest.raises(RecipeError, match="has no trial on this task") as met:
        wb.plan(recipe(task="arithmetic"), other)
    assert "wb.rewards.trial(task)" in met.value.remedy


def test_a_public_address_is_named(home):
    task = honest_task(wb.rewards.Endpoint("https://api.example.com/v1", "large"))
    [asks, _] = notes(wb.plan(recipe(task="arithmetic", judge="accept"), task))
    assert asks == ("judge_reward asks large at api.example.com, over the network: it is sent every prompt and every completion")


def test_a_run_records_what_its_judge_was_and_took(home):
    task = honest_task(judges.answers(judges.quality))
    trial = wb.rewards.trial(task)
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


def test_what_is_continued_with_another_judge_wants_a_trial_of_it_and_says_what_all_took(home):
    task = honest_task(judges.answers(judges.quality), cache=False)
    wb.rewards.trial(task)
    run = wb.train(recipe(task="arithmetic"), task=task)
    first = run.result()["judges"]["judge_reward"]
    assert run.manifest()["judges"]["judge_reward"]["key"] == judge_of(task.reward_funcs[1]).key(task)

    def planned(task, judge=None):
        plan = wb.plan(recipe(task="arithmetic", judge="accept"), task)
        own = recipe(task="arithmetic", **({"judge": judge} if judge else {}))
        return JudgeWatch.plan(Asked(own, task, plan.stages, 2, run)).lines

    assert planned(task)[-1].endswith("on trial: passed")
    other = wb.rewards.make_judge_reward(judges.answers(judges.quality), "Is it kind?", cache=False)
    changed = wb.Task("judged", task.rows, [wb.rewards.correctness_reward, other])
    with pytest.raises(RecipeError, match="has no trial on this task"):
        planned(changed)
    assert planned(changed, "accept")[-1].endswith("no trial: accepted")

    own = {"calls": 3, "tokens": 5, "model": "", "seconds": 1.5}
    assert _summed(first | {"model": "m"}, own) == {
        "calls": first["calls"] + 3, "tokens": 5, "model": "m", "seconds": first["seconds"] + 1.5,
    }  # fmt: skip
    run.update_manifest(before=run.result())
    watch = JudgeWatch(SimpleNamespace(stages=wb.plan(recipe(task="arithmetic"), task).stages, run=run))
    judge_of(task.reward_funcs[1]).spent.calls = 7
    assert watch.result(1.0)["judges"]["judge_reward"]["calls"] == first["calls"] + 7


def test_a_ranking_cannot_decide_what_is_right_of_held_out_answers(home):
    ranked = wb.rewards.make_ranking_reward(judges.answers(judges.quality))
    task = wb.Task("judged", wb.load_task("arithmetic").rows[:64], [ranked])
    with pytest.raises(RecipeError, match="ranking_reward decides which answers are right") as met:
        wb.plan(recipe(task="arithmetic", judge="accept", eval_every=1), task)
    assert "right_by" in met.value.remedy
    wb.plan(recipe(task="arithmetic", judge="accept"), task)


def test_a_trial_counts_for_what_decides_and_for_its_limits(home, monkeypatch):
    task = honest_task(judges.answers(judges.quality))
    judge = judge_of(task.reward_funcs[1])
    key = judge.key(task)
    assert judge.key(wb.Task("judged", task.rows, [*task.reward_funcs])) == key
    assert judge.key(wb.Task("judged", task.rows, [*task.reward_funcs[1:]])) != key
    assert judge.key(wb.Task("judged", task.rows, [wb.rewards.lenient_correctness_reward, task.reward_funcs[1]])) != key
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, **how: read(self, **how) + "\n# stricter" * (self.name == "trial.yaml"))
    assert judge.key(task) != key


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
