"""Held-out prompts measured while a run trains: nothing else changes, nothing is lost, and the best adapter is kept."""

from __future__ import annotations

import json
import os
import random
import signal

import pytest
import torch
from safetensors.torch import load_file

from workbench.base.errors import RecipeError
from workbench.inspection.evaluation import measure_policy
from workbench.recipe import Recipe
from workbench.rewards import library
from workbench.run.directory import RunDirectory
from workbench.run.held_out import best_of, held_out, told
from workbench.run.rollouts import query
from workbench.task import Task
from workbench.tiny.task import task as arithmetic
from workbench.training.features.held_out import HeldOut, chosen
from workbench.training.plan.prepare import prepare
from workbench.training.policy import load_policy
from workbench.training.trainer import continue_run, train


class Counting:
    """Pays by how often it was asked, and draws: what held-out completions would disturb, if they came by."""

    __name__ = "counting_reward"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, completions, **kwargs):
        self.calls += 1
        return [0.01 * self.calls + 0.01 * random.random() + 0.001 * len(each[0]["content"]) for each in completions]


def task() -> Task:
    given = arithmetic(8, 12)
    functions = [library.correctness_reward, Counting()]
    return Task("sums", given.rows, functions, held_out=given.held_out, right_by="correctness_reward")


def recipe(name="t", every: int | None = 2, **grpo) -> Recipe:
    usual = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 32, "learning_rate": 1e-3}
    # A checkpoint after each step but one, and only the latest is kept.
    saves = {"max_steps": 5, "save_steps": 1, "save_total_limit": 1, "gradient_checkpointing": True}
    lora = {"lora_dropout": 0.1}
    asked = {"run_name": name, "policy": {"load_in_4bit": False}, "lora": lora, "grpo": {**usual, **saves, **grpo}}
    return Recipe.of({**asked, "eval_every": every, "eval_prompts": 6})


def trained(asked: Recipe, watchers=()) -> RunDirectory:
    return train(asked, policy=load_policy(asked), task=task(), watchers=list(watchers))


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def rows(run: RunDirectory) -> list[dict]:
    timed = ("step_time", "time/", "held_out/")
    return [{key: value for key, value in row.items() if not key.startswith(timed)} for row in run.metrics()]


COLUMNS = 'select step, "group", generation, completion, total, advantage from rollouts order by all'


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    os.environ["WORKBENCH_HOME"] = str(tmp_path_factory.mktemp("whole"))
    try:
        yield trained(recipe("whole"))
    finally:
        del os.environ["WORKBENCH_HOME"]


@pytest.mark.slow
def test_what_is_trained_is_equal_to_the_bit_without_it(home, whole):
    """With dropout, gradient checkpointing, a reward that counts its calls, and random numbers of Python's own."""
    run = trained(recipe("without", every=None))
    theirs = weights(whole.final)
    assert all(torch.equal(own, theirs[name]) for name, own in weights(run.final).items())
    assert rows(run) == rows(whole)
    assert query(run.rollouts, COLUMNS).equals(query(whole.rollouts, COLUMNS))
    assert not (run.path / "held_out").exists()
    assert "held_out" not in run.result()


@pytest.mark.slow
def test_it_measures_base_every_so_many_steps_and_the_end(whole):
    found = held_out(whole.events())
    assert [own["step"] for own in found] == [0, 2, 4, 5]
    assert [row["step"] for row in whole.metrics() if "held_out/correct" in row] == [2, 4, 5]
    kept = query(
        whole.path / "held_out", 'select step, prompt_id, completion, total, "right" from rollouts order by step, "group"'
    )
    for own in found:
        part = kept[kept["step"] == own["step"]]
        assert len(part) == own["prompts"] == 6
        assert [str(int(right)) for right in part["right"]] == list(own["right"])
        assert part["prompt_id"].tolist() == kept["prompt_id"].tolist()[:6], "the same prompts each time"
        assert own["correct"] == pytest.approx(own["right"].count("1") / 6)
    # The same evaluator, with the same seed and rows, on the base: the same completions.
    rows = chosen(recipe(), task())
    policy = load_policy(recipe())
    base = measure_policy(policy, task(), rows, samples=1, max_completion_length=32, base=True, batch_size=8)
    assert [group[0] for group in base.completions] == kept[kept["step"] == 0]["completion"].tolist()
    result = whole.result()["held_out"]
    assert (result["measurements"], result["prompts"], result["base"]) == (4, 6, found[0]["correct"])
    assert 0 < result["share"] < 1
    assert set(query(whole.rollouts, "select distinct step from rollouts")["step"]) == {1, 2, 3, 4, 5}


def test_the_closing_line_says_the_share_of_the_time_that_the_manifest_has(home):
    class Heard:
        def begin(self, *_: object) -> None: ...
        def update(self, *_: object) -> None: ...

        def end(self, message: str) -> None:
            self.words = message

    heard = Heard()
    share = trained(recipe(max_steps=2), [heard]).result()["held_out"]["share"]
    assert 0 < share < 1
    assert f" {100 * share:.1f} % of the time" in heard.words


@pytest.mark.slow
def test_prompts_of_which_nothing_says_whether_they_are_right_are_counted_in_neither(home):
    """The right function reads the row alone: of a third of the prompts it says nothing, a third each is right and wrong."""
    given = arithmetic(8, 12)
    rows, asking = ([{**row, "says": "-10"[at % 3]} for at, row in enumerate(own)] for own in (given.rows, given.held_out))

    def says_reward(completions, says, **kwargs):
        return [None if own == "-" else float(own) for own in says]

    task = Task("sums", rows, [says_reward, Counting()], held_out=asking, right_by="says_reward")
    asked = recipe(every=1, max_steps=1)
    run = train(asked, policy=load_policy(asked), task=task)
    expected = [row["says"] for row in chosen(asked, task)]
    assert sorted(expected) == ["-", "-", "0", "1", "1", "1"]
    base, last = held_out(run.events())
    assert base["right"] == last["right"] == "".join(expected)
    # Wilson, 95 %, for three of four: (0.75 + z^2 / 8 -+ z * sqrt(0.1875 / 4 + z^2 / 64)) / (1 + z^2 / 4), z = 1.96
    assert (last["prompts"], last["correct"]) == (6, 0.75)
    assert (last["low"], last["high"]) == pytest.approx((0.3006, 0.9544), abs=1e-4)
    assert (last["base"], last["gain"]) == (0.75, 0.0)


def test_a_run_that_was_never_above_its_base_has_no_best_step():
    last = {"correct": 0.0, "low": 0.0, "high": 0.11, "gain": -0.38, "gain_low": -0.55, "gain_high": -0.2, "step": 30}
    found = {"last": last, "best": last, "base": 0.38, "seconds": 4, "share": 0.06}
    assert "never above base" in told(found)
    assert "step 30" not in told(found)
    assert "best: 40 % at step 15" in told({**found, "best": {"correct": 0.4, "step": 15}})


@pytest.mark.slow
def test_the_best_adapter_outlasts_the_rotation(whole):
    best = best_of(held_out(whole.events()))
    assert [folder.name for folder in whole.saved()] == ["checkpoint-5"]
    assert whole.best.name == f"best-{best['step']}"
    assert whole.result()["held_out"]["best"]["adapter"] == f"checkpoints/{whole.best.name}"
    same = all(torch.equal(own, weights(whole.final)[name]) for name, own in weights(whole.best).items())
    assert same == (best["step"] == 5)


@pytest.mark.slow
def test_a_run_that_goes_on_repeats_no_measurement_and_loses_none(home, monkeypatch):
    counted, numbers = [], HeldOut._numbers

    def stops(self, step, base):
        found = numbers(self, step, base)
        if step == 2 and 2 not in counted:
            os.kill(os.getpid(), signal.SIGINT)  # in the middle of a measurement
        counted.append(step)
        return found

    monkeypatch.setattr(HeldOut, "_numbers", stops)
    asked, plain = recipe("part", save_total_limit=3), arithmetic(8, 12)  # functions that keep no state: it goes on exactly
    run = train(asked, policy=load_policy(asked), task=plain, watchers=[])
    assert (run.result()["status"], run.result()["steps"], counted) == ("stopped", 2, [0, 2])
    assert [own["step"] for own in held_out(run.events())] == [0, 2]
    # From the checkpoint before the measurement: step 2 is trained again, to the same weights.
    continue_run(run, policy=load_policy(asked), task=plain, checkpoint="1", watchers=[])
    assert counted == [0, 2, 4, 5]
    assert [own["step"] for own in held_out(run.events())] == [0, 2, 4, 5]
    assert run.result()["status"] == "finished"
    assert run.best.is_dir()


@pytest.mark.slow
def test_a_measurement_that_fails_is_left_out_and_training_goes_on(home, capsys):
    def picky_reward(completions, answer, **kwargs):
        if any(each == hidden for each in answer):
            raise ValueError("never seen")
        return [float(len(each[0]["content"])) for each in completions]

    given = arithmetic(8, 4)
    hidden = "no such answer"
    held = [{**row, "answer": hidden} for row in given.held_out]
    own = Task("picky", given.rows, [picky_reward], held_out=held)
    run = train(recipe(max_steps=2), task=own, watchers=[])
    assert run.result()["status"] == "finished"
    [failed] = [event for event in run.events() if event["event"] == "held_out_failed"]
    assert "never seen" in failed["error"]
    assert "no longer measured, training continues" in capsys.readouterr().out


def test_the_rows_are_each_once_and_the_same_for_the_same_seed():
    given = arithmetic(8, 12)
    twice = Task("t", given.rows, [library.correctness_reward], held_out=[*given.held_out, *given.held_out])
    ids = [row["prompt_id"] for row in chosen(recipe(), twice)]
    assert len(set(ids)) == 6
    assert ids == [row["prompt_id"] for row in chosen(recipe(), twice)]
    assert ids != [row["prompt_id"] for row in chosen(recipe().model_copy(update={"seed": 1}), twice)]


def test_the_plan_says_what_is_measured_and_refuses_what_cannot_be(monkeypatch):
    # 6 completions of base, after 2 and 4 steps and at the end, beside 5 steps of 8: 24 / 40.
    [line] = [note for note in prepare(recipe(), task()).notes if "6 held-out prompts of sums" in note]
    assert "60 %" in line
    assert line.endswith("too few to tell that a run is learnt out, which takes 31 prompts")
    none = Task("none", arithmetic(8, 2).rows, [library.correctness_reward])
    with pytest.raises(RecipeError, match="task 'none' has 0 held-out prompts"):
        prepare(recipe(), none)
    assert json.loads(recipe().model_dump_json())["eval_every"] == 2
    with pytest.raises(RecipeError, match="remedy: leave eval_every out"):
        Recipe.of({"eval_every": 0})
