"""A duel of recipes: how it divides its budget, what it refuses, and what its runs share."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commanding import workbench

import workbench as wb
from workbench.base.errors import RecipeError, RunError
from workbench.instruments.duel.fighting import Duel, duel, fight
from workbench.instruments.duel.planning import plan_duel
from workbench.run.directory import RunDirectory
from workbench.run.held_out import held_out
from workbench.run.rollouts import query
from workbench.task import fingerprint

GRPO = {"num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 8, "learning_rate": 1e-2, "beta": 0.0}
POLICY = {"name": "tiny", "backend": "transformers", "load_in_4bit": False}
TASK = """
import dataclasses
import workbench as wb

def any_reward(completions, **columns):
    return [1.0 for _ in completions]

def first_reward(completions, **columns):
    return [float(wb.rewards.completion_text(own)[:1] == "<") for own in completions]

shipped = wb.load_task("arithmetic")
task = dataclasses.replace(shipped, reward_funcs=[any_reward, first_reward], right_by="RIGHT", format_by=None, HELD)
"""

LATE = """
import dataclasses
import workbench as wb

def late_reward(completions, **columns):
    if len(completions) == 4:
        raise KeyError("boom")
    return [0.0] * len(completions)

shipped = wb.load_task("arithmetic")
task = dataclasses.replace(shipped, reward_funcs=[*shipped.reward_funcs, late_reward])
"""
COIN = """
import dataclasses
import hashlib
import workbench as wb

def coin_reward(completions, **columns):
    texts = [wb.rewards.completion_text(own).encode() for own in completions]
    return [float(hashlib.sha256(text).digest()[0] & 1) for text in texts]

shipped = wb.load_task("arithmetic")
task = dataclasses.replace(shipped, reward_funcs=[*shipped.reward_funcs, coin_reward], reward_weights=[0, 0, 0, 0, 0, 1])
"""


def recipe(name: str, **over) -> wb.Recipe:
    grpo = {**GRPO, **over.pop("grpo", {})}
    return wb.Recipe.of({"run_name": name, "policy": POLICY, "grpo": grpo, "eval_prompts": 4, **over})


def task_file(folder: Path, name: str, right: str = "first_reward", held: str = "") -> str:
    file = folder / f"{name}.py"
    file.write_text(TASK.replace("RIGHT", right).replace(", HELD", held and f", {held}"), encoding="utf-8")
    return str(file)


def adapter(run: RunDirectory) -> str:
    return hashlib.sha256((run.final / "adapter_model.safetensors").read_bytes()).hexdigest()


# --- before anything is trained ------------------------------------------------------------------------------------


def test_the_budget_is_divided_into_whole_steps_of_every_arm(home):
    one, other = recipe("one"), recipe("other", grpo={"per_device_train_batch_size": 6})
    plan = plan_duel(one, other, budget=600)  # 600 / (6 x 2) = 50, of which whole steps of 4 and of 6: 48
    assert (plan.completions, plan.pairs) == (48, 6)
    assert [arm.recipe.grpo["max_steps"] for arm in plan.arms] == [12, 8]
    assert [arm.recipe.eval_every for arm in plan.arms] == [3, 2]
    assert plan_duel(one, other, budget=600, steps=3).pairs == 20  # 600 / 24 = 25 pairs; 20 are enough
    short = recipe("short", grpo={"max_steps": 6})  # not longer than the first recipe says
    plan = plan_duel(short, recipe("long", grpo={"max_steps": 99}, reward_weights={"style_reward": 0}), budget=600)
    assert (plan.completions, plan.pairs) == (24, 12)
    assert "reward_weights.style_reward: not set -> 0" in str(plan)
    assert "runs: runs/short-vs-long" in str(plan)


@pytest.mark.parametrize(
    ("others", "options", "value", "remedy"),
    [
        ([], {}, "1 recipe", "another"),
        ([recipe("same")], {}, "one and same differ in nothing", "change"),
        ([recipe("b", grpo={"learning_rate": 1e-3})], {"budget": 20}, "20 completions is 2 runs of 4", "--budget 24"),
        ([recipe("b", task="countdown")], {}, "0 in both", "same held_out"),
        ([recipe("b", stages=[{"name": "s", "steps": 2}])], {}, "b: stages", "compare_runs"),
    ],
)
def test_what_cannot_be_decided_is_refused(home, others, options, value, remedy):
    with pytest.raises(RecipeError) as met:
        plan_duel(recipe("one"), *others, **options)
    assert value in met.value.value
    assert remedy in met.value.remedy
    assert not (home / "runs").exists()


def test_a_step_counts_what_it_samples(home):
    twice = recipe("twice", grpo={"num_iterations": 2})  # a batch of 4 serves two steps
    plan = plan_duel(recipe("once"), twice, budget=144)
    assert [arm.completions for arm in plan.arms] == [4, 2]
    assert [arm.recipe.grpo["max_steps"] for arm in plan.arms] == [3, 6]


@pytest.mark.parametrize("name", ["../outside", "latest", "a/b"])
def test_a_name_is_a_folder_under_runs(home, name):
    with pytest.raises(RunError, match="folder name|mean something else"):
        plan_duel(recipe("one"), recipe("b", grpo={"learning_rate": 1e-3}), name=name)


def test_a_folder_of_something_else_is_left_as_it_is(home):
    plan = plan_duel(recipe("one"), recipe("b", grpo={"learning_rate": 1e-3}), budget=24)
    theirs = plan.folder / "one-1" / "recipe.yaml"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("run_name: mine")
    with pytest.raises(RunError, match="not the folder of a duel"):
        fight(plan)
    assert theirs.read_text() == "run_name: mine"


def test_a_refused_recipe_is_named(home):
    bad = recipe("bad", grpo={"learning_rat": 1})
    with pytest.raises(RecipeError) as met:
        plan_duel(recipe("one"), bad)
    assert any("in bad" in note for note in met.value.__notes__)


def made_up(rates: list[tuple[float, ...]], pairs: int = 6) -> Duel:
    """A duel whose arms solved these shares of 100 prompts, pair by pair."""
    recipes = [recipe(name, grpo={"learning_rate": 1e-3 * place}) for place, name in enumerate("abc"[: len(rates[0])], 1)]
    plan = plan_duel(*recipes, budget=pairs * len(recipes) * 4)
    assert plan.pairs == pairs
    curves = [[{0: np.arange(100) < 20, plan.completions: np.arange(100) < 100 * own} for own in pair] for pair in rates]
    return Duel(plan, curves)


def test_words_and_numbers_of_a_verdict(home):
    called = made_up([(0.2, 0.5), (0.2, 0.52), (0.2, 0.51)])
    assert (called.called, called.over) == (True, True)
    assert called.found["verdict"] == "called"
    assert called.found["comparisons"][0]["better"] == "b"
    assert called.found["rates"] == {"a": [0.2, 0.2, 0.2], "b": [0.5, 0.52, 0.51]}
    assert "b is better than a: 31.0 points" in str(called)
    open_ = made_up([(0.3, 0.2), (0.2, 0.25), (0.3, 0.2)])
    assert (open_.called, open_.over) == (False, False)
    assert "not called yet: a leads b by 5.0 points" in str(open_)
    undecided = made_up([(0.3, 0.25), (0.2, 0.3), (0.3, 0.2)] * 2)
    assert undecided.over
    assert undecided.found["comparisons"][0]["better"] is None
    assert "too small for a duel" in str(undecided)
    assert "too small for a duel" in str(made_up([(0.3, 0.5), (0.4, 0.3), (0.3, 0.5)] * 2))
    assert "a new duel of about" in str(made_up([(0.3, 0.6), (0.4, 0.35), (0.3, 0.45)] * 2))
    assert json.loads(json.dumps(undecided.found))


def test_three_recipes_are_compared_in_pairs(home):
    three = made_up([(0.2, 0.5, 0.5), (0.2, 0.52, 0.51), (0.2, 0.51, 0.52), (0.2, 0.51, 0.51)], pairs=4)
    assert [*three.looks] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [look.called for look in three.looks.values()] == [True, True, False]
    assert not three.called
    assert three.over


# --- trained ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fought(tmp_path_factory):
    """A duel to its end: other learning rates, and another task's measure in the second arm."""
    home = tmp_path_factory.mktemp("duel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(home))
        patch.chdir(home)
        one = recipe("one", task=task_file(home, "first"))
        other = recipe("other", task=task_file(home, "any", right="any_reward"), grpo={"learning_rate": 0.1})
        seen: list[int] = []
        found = duel(one, other, budget=24, on_pair=lambda own: seen.append(len(own.curves)))
        yield found, seen, (one, other)


def runs_of(found: Duel) -> dict[str, RunDirectory]:
    return {folder.name: wb.open_run(folder) for folder in found.plan.folder.iterdir() if folder.is_dir()}


def test_the_arm_that_goes_first_changes(fought):
    found, seen, _ = fought
    begun = sorted(runs_of(found).values(), key=lambda run: (run.path / "recipe.yaml").stat().st_mtime_ns)
    assert [run.name for run in begun] == ["one-1", "other-1", "other-2", "one-2", "one-3", "other-3"]
    assert {run.result()["status"] for run in begun} == {"finished"}
    assert seen == [1, 2, 3]


def test_a_seeds_runs_have_the_same_prompts_and_base(fought):
    runs = runs_of(fought[0])
    by_seed = []
    for seed in (1, 2, 3):
        one, other = runs[f"one-{seed}"], runs[f"other-{seed}"]
        assert one.recipe().seed == other.recipe().seed == seed
        rows = [query(run.rollouts, "select * from rollouts order by step, row_number() over ()") for run in (one, other)]
        prompts = [own["prompt_id"].tolist() for own in rows]
        assert prompts[0] == prompts[1]
        texts = [own[own["step"] == 1]["completion"].tolist() for own in rows]
        assert texts[0] == texts[1]  # of one adapter, on one prompt, with one seed
        by_seed.append(prompts[0])
    assert by_seed[0] != by_seed[1]


def test_both_arms_are_judged_by_the_first_ones_task(fought):
    found, *_ = fought
    own = [held_out(run.events())[-1]["correct"] for name, run in runs_of(found).items() if name.startswith("other")]
    assert own == [1.0, 1.0, 1.0]  # its own task calls everything right
    base = [[pair[place][0].tolist() for place in (0, 1)] for pair in found.curves]
    assert all(one == other for one, other in base)
    assert "judged by the task of one" in str(found.plan)


def test_killed_and_called_again_its_runs_are_the_same(fought, tmp_path):
    found, _, recipes = fought
    before = {name: adapter(run) for name, run in runs_of(found).items()}
    folder = found.plan.folder
    shutil.rmtree(folder / "other-3")
    (folder / "other-3").mkdir()  # killed before its recipe was written
    manifest = json.loads((folder / "one-3" / "manifest.json").read_text())
    del manifest["result"]  # killed before its end, without a checkpoint
    (folder / "one-3" / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(folder / "one-3" / "checkpoints")
    again = duel(*recipes, budget=24, on_pair=lambda own: None)
    assert {name: adapter(run) for name, run in runs_of(again).items()} == before
    assert again.found == found.found


def test_another_duel_is_not_put_in_its_place(fought):
    found, _, recipes = fought
    with pytest.raises(RunError, match="--name another"):
        duel(*recipes, budget=32, steps=1)
    kept = json.loads((found.plan.folder / "duel.json").read_text())
    assert kept["arms"]["one"]["rows"] == [
        fingerprint(found.plan.arms[0].task.rows),
        fingerprint(found.plan.arms[0].task.held_out),
    ]


def test_a_run_that_fails_decides_nothing(home):
    file = home / "failing.py"
    file.write_text(LATE, encoding="utf-8")
    seen: list[Duel] = []
    with pytest.raises(RunError) as met:
        duel(recipe("fails", task=str(file)), recipe("good"), budget=24, on_pair=seen.append)
    assert "fails-1 failed" in met.value.value
    assert "late_reward" in met.value.value
    assert not seen


def test_it_answers_a_script(home, fought):
    found, *_ = fought
    for arm in found.plan.arms:
        arm.recipe.model_copy(update={"run_name": "run", "seed": 0}).save(home / f"{arm.name}.yaml")
    ended = workbench("duel", "one.yaml", "other.yaml", "--budget", "24", "--plan", "--json", home=home)
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["pairs"] == 3
    shutil.copytree(found.plan.folder, home / "runs" / "one-vs-other")
    ended = workbench("duel", "one.yaml", "other.yaml", "--budget", "24", "--json", home=home)
    answer = json.loads(ended.stdout)
    assert answer["verdict"] == "undecided"
    assert ended.returncode == 1
    assert (home / "runs" / "one-vs-other" / "duel.png").read_bytes()[:4] == b"\x89PNG"
    assert "seed 1 of 3" in ended.stderr
    refused = workbench("duel", "one.yaml", "other.yaml", "--budget", "5", home=home)
    assert refused.returncode == 2
    assert "--budget 24" in refused.stderr


def test_the_picture_has_a_line_for_each_run_and_a_thick_one_for_each_arm(fought):
    from workbench.instruments.duel.picture import duel_picture

    found, *_ = fought
    left, right = duel_picture(found).figure.axes
    assert [line.get_linewidth() for line in left.lines].count(2.2) == 2
    assert len(left.lines) == 2 * 3 + 2
    assert len(right.lines[0].get_xdata()) == 3
    assert "one" in {text.get_text() for text in left.get_legend().get_texts()}


@pytest.mark.weekly
@pytest.mark.timeout(3600)
def test_a_planted_difference_is_called_by_command_also_after_a_kill(home):
    """The shipped rewards against a coin, which teaches nothing."""
    grpo = {**GRPO, "num_generations": 8, "per_device_train_batch_size": 32, "max_completion_length": 64, "learning_rate": 5e-3}
    shipped = recipe("shipped", grpo=grpo, eval_prompts=48)
    shipped.save(home / "shipped.yaml")
    (home / "coin.py").write_text(COIN, encoding="utf-8")
    shipped.model_copy(update={"task": "coin.py"}).save(home / "coin.yaml")
    command = [
        sys.executable,
        "-m",
        "workbench",
        "duel",
        "coin.yaml",
        "shipped.yaml",
        "--budget",
        str(8 * 2 * 4 * 32),
    ]
    command += ["--steps", "4", "--json"]
    environment = {**os.environ, "WORKBENCH_HOME": str(home)}
    process = subprocess.Popen(command, cwd=home, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    second = home / "runs" / "coin-vs-shipped" / "shipped-1" / "metrics.jsonl"
    while not second.is_file() and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = adapter(wb.open_run(second.parents[1] / "coin-1"))
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert answer["verdict"] == "called"
    assert answer["comparisons"][0]["better"] == "shipped"
    assert answer["pairs"] < answer["most_pairs"] == 8
    assert adapter(wb.open_run(second.parents[1] / "coin-1")) == first
