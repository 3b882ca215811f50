"""Steering a run while it trains: each request, answered and recorded, and the run replayed from its record."""

from __future__ import annotations

import json
import shutil
import threading
import time

import pytest
import torch
from driving import waited_for

from workbench.base.errors import RequestError
from workbench.recipe import Recipe
from workbench.run.control_file import RunState, answer_to, send
from workbench.run.directory import RunDirectory
from workbench.run.metrics import KL, weight_of
from workbench.run.rollouts import query
from workbench.tasks.loading import load_task
from workbench.tiny.task import task as arithmetic
from workbench.training import trainer as training
from workbench.training.policy import load_policy
from workbench.training.trainer import train

GRPO = {
    "max_steps": 5,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "max_completion_length": 32,
    "learning_rate": 1e-3,
    "beta": 0.01,
}
CORRECT, LENGTH = "correctness_reward", "length_reward"


def recipe(name="t", **grpo) -> Recipe:
    return Recipe.of({"run_name": name, "grpo": {**GRPO, **grpo}})


def fresh():
    return load_policy("tiny", load_in_4bit=False)


@pytest.fixture(scope="module")
def policy():
    """For the tests that do not compare runs with one another."""
    return fresh()


class Asks:
    """A watcher that asks for things when the rows of some steps have been logged; they are answered a step later."""

    def __init__(self, asked: dict[int, list[tuple]]) -> None:
        self.asked, self.ids = asked, []

    def begin(self, run, total_steps, settings):
        self.run = run

    def update(self, step, values):
        for action, details in self.asked.get(step, []):
            self.ids.append(send(self.run, action, by="test", **details))

    def end(self, message):
        self.message = message


def test_whatever_is_asked_at_the_very_end_has_an_answer_or_is_refused(home, policy):
    ids, refusals = [], []

    def asks_on(run):
        while not refusals:
            try:
                ids.append(send(run, "weight", by="late", function=LENGTH, value=1.0))
            except RequestError as error:
                refusals.append(str(error))

    class AsksOn(Asks):
        def update(self, step, values):
            if step == 2:
                self.thread = threading.Thread(target=asks_on, args=(self.run,))
                self.thread.start()

    watcher = AsksOn({})
    run = train(recipe(max_steps=3), policy=policy, task=arithmetic(8, 4), watchers=[watcher])
    watcher.thread.join()
    assert len(ids) > 1
    assert all(answer_to(run, identity) for identity in ids)
    assert "is not training" in refusals[0] or "ended before it read this" in refusals[0]


def numbers(run: RunDirectory) -> list[dict]:
    """What a run's metrics say, but for the times."""
    return [
        {key: value for key, value in row.items() if key != "step_time" and not key.startswith("time/")} for row in run.metrics()
    ]


def controls(run: RunDirectory) -> list[dict]:
    return [event for event in run.events() if event["event"] == "control"]


@pytest.mark.slow
def test_a_changed_weight_is_in_force_for_the_next_step_in_trl_in_the_record_and_in_the_metrics(home, policy, monkeypatch):
    used = []
    original = training.build_trainer

    def watched(*args):
        trainer, warnings = original(*args)
        generate = trainer._generate_and_score_completions
        trainer._generate_and_score_completions = lambda *a: (
            used.append(trainer.reward_weights.tolist()),
            generate(*a),
        )[1]
        return trainer, warnings

    monkeypatch.setattr("workbench.training.trainer.build_trainer", watched)
    asks = Asks({1: [("weight", {"function": CORRECT, "value": 4})]})
    run = train(recipe(), policy=policy, task=arithmetic(64, 8), watchers=[asks])
    [event] = controls(run)
    assert (event["step"], event["from_step"], event["applied"]) == (2, 3, True)
    assert (event["before"][CORRECT], event["after"][CORRECT]) == (1.0, 4.0)
    expected = [1.0, 1.0, 4.0, 4.0, 4.0]
    assert [weights[0] for weights in used] == expected
    assert [row[weight_of(CORRECT)] for row in run.metrics()] == expected
    frame = query(run.rollouts)
    assert frame.groupby("step")[f"weight.{CORRECT}"].unique().tolist() == [[value] for value in expected]
    # The record's totals are the weighted sums, and TRL's reward is their mean.
    scores = [name for name in frame.columns if name.startswith("score.")]
    totals = sum(frame[name] * frame[name.replace("score.", "weight.")] for name in scores)
    assert totals.to_numpy() == pytest.approx(frame["total"].to_numpy())
    logged = [row["reward"] for row in run.metrics()]
    assert frame.groupby("step")["total"].mean().tolist() == pytest.approx(logged, abs=1e-5)
    # The record tells the two apart by their hash, too.
    assert len(set(frame["reward_hash"])) == 2
    assert answer_to(run, asks.ids[0]) == event


@pytest.mark.slow
def test_a_muted_function_weighs_nothing_and_gets_its_weight_back(home, policy):
    asks = Asks({1: [("mute", {"function": LENGTH})], 2: [("unmute", {"function": LENGTH})]})
    run = train(recipe(), policy=policy, task=arithmetic(64, 8), watchers=[asks])
    assert [row[weight_of(LENGTH)] for row in run.metrics()] == [1.0, 1.0, 0.0, 1.0, 1.0]
    assert query(run.rollouts, f'select count("score.{LENGTH}") as n from rollouts').iloc[0]["n"] == 5 * 8


def test_what_cannot_be_done_is_refused_and_training_goes_on(home, policy):
    refused = [
        ("weight", {"function": "nope_reward", "value": 1}, "choose from correctness_reward"),
        ("unmute", {"function": LENGTH}, "it is not muted"),
        ("resume", {}, "the run was not paused"),
        ("reload", {}, "is not a file"),
    ]
    asks = Asks({1: [(action, details) for action, details, _ in refused]})
    run = train(recipe(max_steps=3), policy=policy, task=arithmetic(64, 8), watchers=[asks])
    events = controls(run)
    assert [(event["action"], event["applied"]) for event in events] == [(action, False) for action, _, _ in refused]
    for event, (_, _, message) in zip(events, refused, strict=True):
        assert message in event["why"]
    assert run.result()["status"] == "finished"
    assert len({row[weight_of(CORRECT)] for row in run.metrics()}) == 1


def test_all_functions_cannot_be_muted(home, policy):
    names = arithmetic(4, 2).function_names
    asks = Asks({1: [("mute", {"function": name}) for name in names]})
    run = train(recipe(max_steps=3), policy=policy, task=arithmetic(64, 8), watchers=[asks])
    assert [event["applied"] for event in controls(run)] == [True] * (len(names) - 1) + [False]
    assert "all would weigh 0" in controls(run)[-1]["why"]


def test_a_line_that_is_no_request_is_answered_and_harms_nothing(home, policy):
    class Scribbles(Asks):
        def update(self, step, values):
            if step == 1:
                with (self.run.path / "control.jsonl").open("a") as lines:
                    lines.write("what?\n")
                    lines.write('{"action": "weight", "function": "correctness_reward"}\n')

    run = train(recipe(max_steps=3), policy=policy, task=arithmetic(64, 8), watchers=[Scribbles({})])
    assert [event["applied"] for event in controls(run)] == [False, False]
    assert run.result()["status"] == "finished"


@pytest.mark.slow
def test_beta_and_learning_rate_change_what_the_next_step_does(home):
    asked = {2: [("beta", {"value": 0.0}), ("learning_rate", {"value": 5e-4})]}
    run = train(recipe(lr_scheduler_type="linear", max_steps=6), policy=fresh(), task=arithmetic(64, 8), watchers=[Asks(asked)])
    rows = run.metrics()
    # The schedule keeps its shape: 1e-3 x (6 - k)/6, from step 4 on 5e-4 x (6 - k)/6.
    expected = [1e-3 * share for share in (1, 5 / 6, 4 / 6)] + [5e-4 * share for share in (3 / 6, 2 / 6, 1 / 6)]
    assert [row["learning_rate"] for row in rows] == pytest.approx(expected)
    # Without beta there is no reference, so KL is not measured from there on.
    assert [KL in row for row in rows] == [True, True, True, False, False, False]
    found = RunState.of(run)
    assert (found.beta, found.learning_rate) == (0.0, 5e-4)


def test_beta_can_be_switched_on_and_then_kl_is_measured_from_the_base_model(home):
    run = train(
        recipe(beta=0.0, max_steps=4), policy=fresh(), task=arithmetic(64, 8),
        watchers=[Asks({1: [("beta", {"value": 0.05})]})],
    )  # fmt: skip
    rows = run.metrics()
    assert [KL in row for row in rows] == [False, False, True, True]
    assert rows[-1][KL] > 0  # the policy has moved from the base model by then


@pytest.mark.slow
def test_samples_are_written_and_leave_the_run_as_it_would_have_been(home):
    plain = train(recipe("plain", max_steps=4), policy=fresh(), task=arithmetic(64, 8))
    asks = Asks({1: [("sample", {}), ("checkpoint", {})]})
    sampled = train(recipe("sampled", max_steps=4), policy=fresh(), task=arithmetic(64, 8), watchers=[asks])
    assert numbers(sampled) == numbers(plain)
    lines = [json.loads(line) for line in (sampled.path / "samples.jsonl").read_text().splitlines()]
    assert len(lines) == 4
    assert all(line["step"] == 2 and line["held_out"] and set(line["scores"]) >= {CORRECT} for line in lines)
    assert (sampled.checkpoints / "checkpoint-2" / "adapter_config.json").is_file()
    # The samples are none of the training's own calls.
    assert sampled.result()["generation"] == plain.result()["generation"]
    assert not [event for event in sampled.events() if event["event"] == "generation"]


@pytest.mark.slow
def test_changes_count_from_the_next_step_on(home):
    asked = {
        1: [("weight", {"function": CORRECT, "value": 3}), ("learning_rate", {"value": 3e-3})],
        2: [("mute", {"function": LENGTH}), ("beta", {"value": 0.1})],
        3: [("unmute", {"function": LENGTH})],
    }
    run = train(recipe("first", max_steps=6), policy=fresh(), task=arithmetic(64, 8), watchers=[Asks(asked)])
    plain = train(recipe("plain", max_steps=6), policy=fresh(), task=arithmetic(64, 8))
    assert numbers(plain)[:2] == numbers(run)[:2]
    assert numbers(plain)[3:] != numbers(run)[3:]


TASK = """
from workbench.task import Task
from workbench.tiny.task import task as arithmetic


def correctness_reward(completions, answer, **kwargs):
    return [{pays} if right in text[0]["content"] else 0.0 for text, right in zip(completions, answer)]

{more}
task = Task(name="mine", rows=arithmetic(32, 4).rows, held_out=arithmetic(32, 4).held_out,
            reward_funcs=[correctness_reward{names}], right_by="correctness_reward")
"""
OTHER = """
def brevity_reward(completions, **kwargs):
    return [-len(text[0]["content"]) / 1000 for text in completions]
"""


class Edits(Asks):
    """Edits the task file and asks for it to be loaded again."""

    def __init__(self, file, texts):
        super().__init__({})
        self.file, self.texts = file, texts

    def update(self, step, values):
        if step in self.texts:
            self.file.write_text(self.texts[step])
            self.ids.append(send(self.run, "reload", by="test"))


@pytest.mark.slow
def test_edited_rewards_are_loaded_again_and_a_broken_edit_is_refused(home):
    file = home / "mine.py"
    file.write_text(TASK.format(pays=1.0, more="", names=""))
    edits = Edits(
        file,
        {
            1: TASK.format(pays=5.0, more=OTHER, names=", brevity_reward"),
            2: "def broken(:",
            3: TASK.format(pays="[1]", more="", names=""),
        },
    )
    asked = Recipe.of({"run_name": "r", "task": str(file), "grpo": {**GRPO, "max_steps": 6}})
    run = train(asked, policy=fresh(), watchers=[edits])
    events = controls(run)
    assert [event["applied"] for event in events] == [True, False, False]
    assert "mine.py" in events[1]["why"]
    assert "number" in events[2]["why"]
    frame = query(run.rollouts)
    pays = frame[frame["score.correctness_reward"] > 0].groupby("step")["score.correctness_reward"].max()
    assert set(pays[pays.index <= 2]) == {1.0}
    assert set(pays[pays.index > 2]) == {5.0}
    assert frame[frame["step"] <= 2]["score.brevity_reward"].isna().all()
    assert frame[frame["step"] > 2]["score.brevity_reward"].notna().all()
    assert run.metrics()[-1]["rewards/brevity_reward/mean"] < 0
    # The file that is in force is kept, so that the run can go on although it was edited again.
    assert load_task(run.path / events[0]["file"]).function_names == ["correctness_reward", "brevity_reward"]


@pytest.mark.slow
def test_a_paused_run_waits_and_goes_on(home, policy):
    asks = Asks({1: [("pause", {})]})
    seen = []

    def resume():
        waited_for(lambda: RunState.of(asks.run).paused)
        steps = len(asks.run.metrics())
        send(asks.run, "weight", by="while paused", function=CORRECT, value=2)
        send(asks.run, "checkpoint", by="while paused")
        waited_for(lambda: (asks.run.checkpoints / "checkpoint-2").is_dir())
        time.sleep(0.3)
        seen.append((steps, len(asks.run.metrics()), (asks.run.checkpoints / "checkpoint-2").is_dir()))
        send(asks.run, "resume", by="later")

    class Starts(Asks):
        def begin(self, run, total_steps, settings):
            super().begin(run, total_steps, settings)
            threading.Thread(target=resume, daemon=True).start()

    asks.__class__ = Starts
    run = train(recipe(max_steps=4), policy=policy, task=arithmetic(64, 8), watchers=[asks])
    [(before, after, saved)] = seen
    assert after - before <= 1  # the row of the step at whose end it waits
    assert saved
    assert [event["action"] for event in controls(run)] == ["pause", "weight", "checkpoint", "resume"]
    assert [row[weight_of(CORRECT)] for row in run.metrics()] == [1.0, 1.0, 2.0, 2.0]
    assert run.result()["paused_s"] > 0.3
    assert run.result()["status"] == "finished"


def test_a_paused_run_can_be_stopped(home, policy):
    asks = Asks({1: [("pause", {}), ("stop", {})]})
    run = train(recipe(max_steps=4), policy=policy, task=arithmetic(64, 8), watchers=[asks])
    assert (run.result()["status"], run.result()["steps"]) == ("stopped", 2)
    assert (run.checkpoints / "checkpoint-2" / "state.json").is_file()
    assert run.events()[-1]["by"] == "test"


def test_no_frozen_copy_of_the_adapter_stays_behind(home):
    """TRL makes one for the reference, and refuses to find one when the next stage or run begins."""
    own = fresh()
    train(recipe(max_steps=1), policy=own, task=arithmetic(64, 8))
    assert set(own.model.peft_config) == {"default"}
    run = train(recipe("second", max_steps=1), policy=own, task=arithmetic(64, 8))
    # The reference is the base model, so a policy that has moved begins with a KL above zero.
    assert run.metrics()[0][KL] > 0
    assert all(torch.isfinite(p).all() for p in own.model.parameters() if p.requires_grad)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{"num_iterations": 2}, {"steps_per_generation": 2}], ids=["iterations", "generations"])
def test_a_batch_that_serves_several_steps(home, more):
    """A weight counts from the next generation on; a reference that is switched on between two has its numbers at once."""
    sizes = {"per_device_train_batch_size": 4 if "steps_per_generation" in more else 8}
    asks = Asks({1: [("weight", {"function": CORRECT, "value": 4})], 2: [("beta", {"value": 0.05})]})
    run = train(recipe(beta=0.0, max_steps=6, **sizes, **more), policy=fresh(), task=arithmetic(64, 8), watchers=[asks])
    assert run.result()["status"] == "finished"
    weight, beta = controls(run)
    frame = query(run.rollouts)
    first = frame[frame[f"weight.{CORRECT}"] == 4.0]["step"].min()
    assert weight["from_step"] == first
    assert (beta["step"], beta["from_step"]) == (3, 4)
    assert [KL in row for row in run.metrics()][-2:] == [True, True]


def test_a_request_that_comes_too_late_is_told_so_and_one_that_comes_early_is_kept(home, policy):
    class Eager(Asks):
        def begin(self, run, total_steps, settings):
            super().begin(run, total_steps, settings)
            self.ids.append(send(run, "weight", by="early", function=CORRECT, value=2))

        def end(self, message):
            pass

    eager = Eager({3: [("weight", {"function": CORRECT, "value": 7})]})
    run = train(recipe(max_steps=3), policy=policy, task=arithmetic(64, 8), watchers=[eager])
    early, late = (answer_to(run, identity) for identity in eager.ids)
    assert (early["applied"], early["from_step"]) == (True, 1)
    assert (late["applied"], late["why"]) == (False, "the run is over")
    assert {row[weight_of(CORRECT)] for row in run.metrics()} == {2.0}


def test_a_verdict_that_fails_is_left_out_and_training_goes_on(home, policy, monkeypatch):
    monkeypatch.setattr("workbench.health.diagnosis.diagnose", lambda *_: 1 / 0)
    with pytest.warns(UserWarning, match="the health verdicts failed"):
        run = train(recipe(max_steps=2), policy=policy, task=arithmetic(64, 8))
    assert run.result()["status"] == "finished"
    assert [event["event"] for event in run.events()].count("watchdog_failed") == 1
    assert not run.live


@pytest.mark.slow
def test_a_reload_that_cannot_be_kept_changes_nothing(home, monkeypatch):
    file = home / "mine.py"
    file.write_text(TASK.format(pays=1.0, more="", names=""))
    edits = Edits(file, {1: TASK.format(pays=5.0, more="", names="")})

    def full(source, target):
        if "after-step" in str(target):
            raise OSError(28, "No space left on device")
        return original(source, target)

    original = shutil.copyfile
    monkeypatch.setattr("workbench.training.control.shutil.copyfile", full)
    asked = Recipe.of({"run_name": "r", "task": str(file), "grpo": {**GRPO, "max_steps": 4}})
    run = train(asked, policy=fresh(), watchers=[edits])
    [event] = controls(run)
    assert not event["applied"]
    assert "No space left" in event["why"]
    assert query(run.rollouts)["score.correctness_reward"].max() == 1.0


@pytest.mark.slow
def test_what_is_asked_at_the_end_of_a_stage_is_the_next_ones_and_a_reload_stays(home):
    file = home / "mine.py"
    file.write_text(TASK.format(pays=1.0, more="", names=""))

    class EditsAndAsks(Edits):
        def update(self, step, values):
            super().update(step, values)
            if step == 3:  # read at the boundary after step 4, where the first stage ends
                send(self.run, "weight", by="test", function=CORRECT, value=3)

    edits = EditsAndAsks(file, {1: TASK.format(pays=5.0, more="", names="")})
    stages = [{"name": "a", "steps": 4}, {"name": "b", "steps": 2}]
    asked = Recipe.of({"run_name": "r", "task": str(file), "grpo": {**GRPO, "max_steps": 4}, "stages": stages})
    run = train(asked, policy=fresh(), watchers=[edits])
    frame = query(run.rollouts)
    assert frame.groupby("step")[f"weight.{CORRECT}"].first().tolist() == [1.0] * 4 + [3.0] * 2
    paid = frame[frame["score.correctness_reward"] > 0].groupby("step")["score.correctness_reward"].max()
    assert set(paid[paid.index > 2]) == {5.0}
    assert [(event["action"], event["by"], event["step"]) for event in controls(run)] == [
        ("reload", "test", 2),
        ("reload", "the stage before", 4),
        ("weight", "test", 4),
    ]
    assert RunState.of(run).weights == {CORRECT: 3.0}
