"""Training for real: the record equals what the trainer used, interrupts save, and bad input leaves nothing behind."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time

import numpy as np
import pytest

from workbench.base.errors import DataError, PolicyError, RecipeError, RewardError, TaskError
from workbench.recipe import Recipe, RewardsPart
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory, open_run
from workbench.run.metrics import ALL_RIGHT, ALL_WRONG, DEAD, GROUP_STD, KL, MIXED, REWARD, REWARD_STD
from workbench.run.rollouts import query
from workbench.task import Task
from workbench.tasks.loading import load_task
from workbench.tiny.task import REWARD_FUNCS
from workbench.tiny.task import task as arithmetic
from workbench.training import building
from workbench.training import trainer as training
from workbench.training.control import RunControl
from workbench.training.policy import load_policy
from workbench.training.recorder import Recorder
from workbench.training.signals import ECHO_S
from workbench.training.trainer import train

GRPO = {
    "max_steps": 2,
    "num_generations": 4,
    "per_device_train_batch_size": 16,
    "max_completion_length": 48,
    "learning_rate": 1e-3,
}


def recipe(name="t", *, weights=None, **grpo) -> Recipe:
    return Recipe.of({"run_name": name, "grpo": {**GRPO, **grpo}, "reward_weights": weights or {}})


@pytest.fixture(scope="module")
def policy():
    """A policy of this module's own: the tests below train it."""
    return load_policy("tiny")


@pytest.fixture
def trl_trainer(monkeypatch):
    """The trainer that `train` builds, so that a test can look into it afterwards."""
    built = []
    original = training.build_trainer

    def kept(*args):
        trainer, warnings = original(*args)
        built.append(trainer)
        return trainer, warnings

    monkeypatch.setattr(training, "build_trainer", kept)
    return built


@pytest.mark.parametrize(
    ("grpo", "weights"),
    [
        ({"beta": 0.001}, None),
        pytest.param({"scale_rewards": "batch"}, {"correctness_reward": 0.5}, marks=pytest.mark.slow),
        pytest.param({"scale_rewards": "none"}, {"length_reward": 0.0}, marks=pytest.mark.slow),
        ({"multi_objective_aggregation": "normalize_then_sum"}, {"style_reward": 3.0}),
        ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}, None),
    ],
    ids=["group", "batch", "none", "normalize", "accumulated"],
)
def test_the_recorded_advantages_are_those_that_trl_trained_on(home, policy, trl_trainer, grpo, weights):
    run = train(recipe(weights=weights, **grpo), policy=policy, task=arithmetic(64, 8))
    frame = query(run.rollouts)
    [trainer] = trl_trainer
    assert len(frame) == 2 * 16
    # TRL keeps the latest generation batch.
    last = frame[frame["step"] == 2]
    assert last["advantage"].to_numpy() == pytest.approx(np.array(trainer._logs["advantages"]), abs=1e-5)
    assert last["completion"].tolist() == list(trainer._logs["completion"])
    for name, scores in trainer._logs["rewards"].items():
        assert last[f"score.{name}"].tolist() == pytest.approx(list(scores))
    assert np.abs(frame["advantage"]).max() > 0.1


def test_a_run_leaves_its_whole_record(home, policy):
    run = train(recipe(beta=0.001), policy=policy, task=arithmetic(64, 8))
    assert {file.name for file in run.path.iterdir()} == {
        "recipe.yaml", "manifest.json", "metrics.jsonl", "events.jsonl", "rollouts", "checkpoints",
    }  # fmt: skip
    manifest = run.manifest()
    assert manifest["policy"]["linear4bit"] == 7 * policy.model.config.num_hidden_layers
    assert manifest["policy"]["precision"] == "nf4"
    assert "Unsloth" in manifest["policy"]["backend"]
    assert manifest["settings"]["asked"]["beta"] == manifest["settings"]["in_force"]["beta"] == 0.001
    assert manifest["result"]["status"] == "finished"
    assert manifest["result"]["steps"] == 2
    rows = run.metrics()
    assert [row["step"] for row in rows] == [1, 2]
    for key in (REWARD, REWARD_STD, GROUP_STD, KL, MIXED, ALL_RIGHT, ALL_WRONG, DEAD):
        assert isinstance(rows[0][key], float), key
    assert rows[0][MIXED] + rows[0][ALL_RIGHT] + rows[0][ALL_WRONG] == pytest.approx(1)
    assert [event["event"] for event in run.events()] == ["started", "checkpoint", "finished"]
    assert (run.adapter / "adapter_model.safetensors").is_file()
    assert_no_pickle(run)
    frame = query(run.rollouts)
    assert frame["columns"].str.contains('"answer"').all()
    assert frame.groupby(["step", "group"])["prompt_id"].nunique().eq(1).all()
    # The within-group std in the metrics is the one that the rollouts give.
    first = frame[frame["step"] == 1].groupby("group")["total"].std().mean()
    assert rows[0][GROUP_STD] == pytest.approx(first, abs=1e-5)


def test_with_beta_0_no_kl_is_made_up(home, policy):
    run = train(recipe(max_steps=1), policy=policy, task=arithmetic(64, 8))
    assert all(KL not in row for row in run.metrics())


def test_weights_reach_the_trainer(home, policy):
    run = train(recipe(max_steps=1, weights={"length_reward": 0.0}), policy=policy, task=arithmetic(64, 8))
    frame = query(run.rollouts)
    others = [f.__name__ for f in REWARD_FUNCS if f.__name__ != "length_reward"]
    assert frame["total"].to_numpy() == pytest.approx(frame[[f"score.{name}" for name in others]].sum(axis=1).to_numpy())


def assert_no_pickle(run):
    assert not [file for file in run.path.rglob("*") if file.suffix in (".bin", ".pt", ".pth", ".pkl")]


class InterruptAt:
    """A watcher that sends the process an Interrupt after a step, as the notebook's stop button does."""

    def __init__(self, step: int, times: int = 1) -> None:
        self.step, self.times, self.message = step, times, None

    def begin(self, run, total_steps, settings):
        self.total = total_steps

    def update(self, step, values):
        if step == self.step:
            for number in range(self.times):
                time.sleep(ECHO_S + 0.1 if number else 0)
                os.kill(os.getpid(), signal.SIGINT)

    def end(self, message):
        self.message = message


def test_the_first_interrupt_saves_and_returns(home, policy):
    before = signal.getsignal(signal.SIGINT)
    watcher = InterruptAt(2)
    run = train(recipe(max_steps=50, logging_steps=1), policy=policy, task=arithmetic(64, 8), watchers=[watcher])
    steps = run.manifest()["result"]["steps"]
    assert 2 <= steps <= 4
    assert run.manifest()["result"]["status"] == "stopped"
    assert watcher.message == f"stopped after {steps} steps"
    assert [e["event"] for e in run.events()] == ["started", "control", "checkpoint", "stopped"]
    assert run.events()[1]["action"] == "stop"
    assert run.events()[1]["by"] == "interrupt"
    assert (run.checkpoints / f"checkpoint-{steps}" / "trainer_state.json").is_file()
    assert (run.adapter / "adapter_model.safetensors").is_file()
    assert_no_pickle(run)
    assert not (run.path / "lock").exists()
    assert signal.getsignal(signal.SIGINT) is before


class TerminateAt(InterruptAt):
    def update(self, step, values):
        if step == self.step:
            for _ in range(2):  # a launcher in the same process group hands on what both have had
                os.kill(os.getpid(), signal.SIGTERM)


def test_a_scheduler_that_ends_the_job_loses_nothing(home, policy):
    run = train(recipe(max_steps=50), policy=policy, task=arithmetic(64, 8), watchers=[TerminateAt(1)])
    assert run.result()["status"] == "stopped"
    assert run.events()[-1]["by"] == "SIGTERM"
    assert run.adapter == run.final


@pytest.mark.parametrize(("score", "advice"), [(1.0, "look at the rewards in 02"), (0.0, "begin with `warm_start: 32`")])
def test_a_run_that_learns_nothing_says_so(score, advice, home, policy, capsys):
    def equal_reward(completions, **kwargs):
        return [score] * len(completions)

    watcher = InterruptAt(0)
    train(recipe(delta=4.0), policy=policy, task=own_task(equal_reward), watchers=[watcher])
    assert "finished after 2 steps: NOTHING LEARNT" in watcher.message
    assert advice in watcher.message
    assert "did nothing" not in watcher.message  # where every group was dead, no setting could do anything
    said = capsys.readouterr().out
    assert "WARNING: the task names no right_by" in said
    assert "WARNING: the task has no held_out prompts" in said


def test_weights_that_are_all_0_are_refused(home, policy):
    with pytest.raises(RecipeError, match="all 5 are 0"):
        train(recipe(weights={f.__name__: 0 for f in REWARD_FUNCS}), policy=policy, task=arithmetic(64, 8))


def test_an_interrupt_that_comes_twice_is_one_when_it_stops_and_when_it_aborts(home):
    run = RunDirectory.create("t", Recipe(), {})
    control = RunControl(run, Recorder(run, None))
    with control.interrupts.graceful():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        control.interrupts.at -= ECHO_S
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # while what the abort leaves is saved
    run.release()


@pytest.mark.slow
def test_the_second_interrupt_aborts_and_the_record_stays(home, policy):
    with pytest.raises(KeyboardInterrupt):
        train(recipe(max_steps=50), policy=policy, task=arithmetic(64, 8), watchers=[InterruptAt(2, times=2)])
    run = open_run("t")
    # The first Interrupt's request was overtaken by the second, and its writer is told so.
    assert [e["event"] for e in run.events()] == ["started", "checkpoint", "control", "aborted"]
    assert not run.events()[2]["applied"]
    assert run.manifest()["result"]["status"] == "aborted"
    assert [folder.name for folder in run.saved()] == ["checkpoint-2"]
    assert len(run.metrics()) == 2
    assert not (run.path / "lock").exists()


class BrokenWatcher(InterruptAt):
    def update(self, step, values):
        raise ZeroDivisionError("cannot draw")


def test_a_watcher_that_fails_is_left_out_and_training_goes_on(home, policy):
    with pytest.warns(UserWarning, match="BrokenWatcher failed and is left out, training continues: ZeroDivisionError"):
        run = train(recipe(), policy=policy, task=arithmetic(64, 8), watchers=[BrokenWatcher(1)])
    assert run.manifest()["result"]["steps"] == 2
    assert [e["event"] for e in run.events()] == ["started", "watcher_failed", "checkpoint", "finished"]


@pytest.mark.slow
def test_an_abort_between_two_log_lines_keeps_the_rollouts_of_the_steps_before(home, policy):
    calls = []

    def tiring_reward(completions, **kwargs):
        calls.append(len(completions))
        if calls.count(16) > 3:
            raise RuntimeError("tired")
        return [float(index % 3) for index in range(len(completions))]

    with pytest.raises(RewardError, match="tired"):
        train(recipe(max_steps=9, logging_steps=9), policy=policy, task=own_task(tiring_reward))
    run = open_run("t")
    assert run.manifest()["result"]["steps"] == 3
    assert query(run.rollouts)["step"].max() == 3


def test_off_the_main_thread_training_still_works(home, policy):
    # Only the main thread can handle signals.
    done = []
    thread = threading.Thread(target=lambda: done.append(train(recipe(max_steps=1), policy=policy, task=arithmetic(64, 8))))
    thread.start()
    thread.join()
    assert done[0].manifest()["result"]["status"] == "finished"


@pytest.mark.slow
def test_a_policy_can_be_trained_again_and_says_that_it_goes_on(home, capsys):
    policy = load_policy("tiny")
    first = train(recipe(max_steps=1, beta=0.001), policy=policy, task=arithmetic(64, 8))
    assert "already trained" not in capsys.readouterr().out
    second = train(recipe(max_steps=1, beta=0.001), policy=policy, task=arithmetic(64, 8))
    assert "already trained in t; this run continues from there" in capsys.readouterr().out
    assert first.manifest()["policy"]["trained_in"] == []
    assert second.manifest()["policy"]["trained_in"] == ["t"]
    assert second.name == "t-2"
    # Only the trained adapter is saved, not the reference's copy.
    assert not (second.adapter / "ref").exists()


def own_task(*funcs, rows=None) -> Task:
    return Task("own", rows=rows or arithmetic(64, 8).rows, reward_funcs=funcs)


def raising_reward(completions, **kwargs):
    raise KeyError("solution")


def silent_reward(completions, **kwargs):
    return [None] * len(completions)


def nan_reward(completions, **kwargs):
    return [math.nan] * len(completions)


def short_reward(completions, **kwargs):
    return [1.0] * (len(completions) - 1)


def column_reward(completions, solution, **kwargs):
    return [1.0] * len(completions)


def fine_reward(completions, **kwargs):
    return [float(len(completion[0]["content"])) for completion in completions]


LONG_ROWS = [{"prompt": [{"role": "user", "content": "1 + " * 400}], "answer": "2"} for _ in range(64)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "task", "error", "said"),
    [
        ({}, own_task(raising_reward), RewardError, "raising_reward raised KeyError.*the completion '' to the prompt"),
        ({}, own_task(nan_reward), RewardError, "nan_reward returned nan for the completion ''"),
        ({}, own_task(short_reward), RewardError, "short_reward returned 7 scores for 8 completions"),
        ({}, own_task(column_reward), TaskError, "column_reward needs 'solution'; the rows have the columns prompt, answer"),
        ({}, own_task(fine_reward, rows=arithmetic(64, 8).rows[:3]), RecipeError, "3 prompts.*takes 4 different prompts"),
        ({"num_generations": 5}, own_task(fine_reward), RecipeError, "= 16 completions, and num_generations = 5"),
        ({}, own_task(fine_reward, rows=LONG_ROWS), DataError, "the longest prompt has .* tokens.*max_seq_length = 256"),
        ({"num_generations": "8"}, own_task(fine_reward), RecipeError, "num_generations = '8'.*whole number"),
        ({"per_device_train_batch_size": 0}, own_task(fine_reward), RecipeError, "per_device_train_batch_size = 0"),
        ({}, own_task(silent_reward), RewardError, "silent_reward returned None for 8 completions"),
        ({"loss_type": "foo"}, own_task(fine_reward), RecipeError, "grpo.loss_type = 'foo'.*one of grpo"),
        ({"learning_rate": "fast"}, own_task(fine_reward), RecipeError, "grpo.learning_rate = 'fast'.*a number"),
        ({"learning_rat": 1e-3}, own_task(fine_reward), RecipeError, "grpo.learning_rat = 0.001.*did you mean 'learning_rate'"),
        ({"generation_batch_size": 16, "steps_per_generation": 1}, own_task(fine_reward), RecipeError,
             "generation_batch_size = 16 and grpo.steps_per_generation = 1.*keep one of them"),
    ],
    ids=["raises", "nan", "short", "column", "prompts", "groups", "long", "text", "zero", "none", "loss",
         "word", "name", "value"],
)  # fmt: skip
def test_bad_input_is_named_and_leaves_nothing(home, policy, changes, task, error, said):
    with pytest.raises(error, match=f"(?s){said}") as caught:
        train(recipe(**changes), policy=policy, task=task)
    assert "rule:" in str(caught.value)
    assert "remedy:" in str(caught.value)
    assert not list((home / "runs").glob("*")) if (home / "runs").exists() else True


@pytest.mark.parametrize(("name", "said"), [("tinny", "unknown"), ("./none", "no such folder")])
def test_an_unknown_policy_is_named_and_leaves_nothing(home, name, said):
    asked = recipe().model_copy(update={"policy": recipe().policy.model_copy(update={"name": name})})
    with pytest.raises(PolicyError, match=said):
        train(asked, task=arithmetic(64, 8))
    assert not (home / "runs").exists()


@pytest.mark.slow
def test_too_long_prompts_are_left_out_on_request_and_counted(home, policy, capsys):
    rows = [*arithmetic(64, 8).rows, *LONG_ROWS[:3]]
    asked = recipe(max_steps=1).model_copy(update={"max_prompt_length": 100})
    run = train(asked, policy=policy, task=own_task(fine_reward, rows=rows))
    assert run.manifest()["prompts"]["left_out_too_long"] == 3
    assert run.manifest()["prompts"]["used"] == 64
    assert "3 longer prompts left out, 64 kept" in capsys.readouterr().out


def test_a_reward_that_fails_later_keeps_the_record_and_the_weights_of_the_steps_before(home, policy):
    calls = []

    def tiring_reward(completions, **kwargs):
        calls.append(len(completions))
        if calls.count(16) > 1:
            raise RuntimeError("tired")
        return [float(index % 3) for index in range(len(completions))]

    watcher = InterruptAt(0)
    with pytest.raises(RewardError, match="tiring_reward raised RuntimeError: tired"):
        train(recipe(max_steps=3), policy=policy, task=own_task(tiring_reward), watchers=[watcher])
    run = open_run("t")
    assert [event["event"] for event in run.events()] == ["started", "checkpoint", "failed"]
    assert "tiring_reward" in run.events()[-1]["error"]
    assert len(run.metrics()) == 1
    assert (run.result()["status"], run.result()["steps"]) == ("failed", 1)
    assert watcher.message == "failed after 1 step"
    saved = run.checkpoints / "checkpoint-1"
    assert (saved / "adapter_model.safetensors").is_file()
    assert (saved / "trainer_state.json").is_file()
    assert run.adapter == saved
    assert not (saved / "training_args.bin").exists()
    assert not (run.path / "lock").exists()


def unread(text):
    return sum(map(ord, text)) % 3 == 0


def fragile_reward(completions, **kwargs):
    if len(completions) == 16 or (len(completions) == 1 and unread(completions[0][0]["content"])):
        raise ValueError("cannot read it")
    return [float(len(completion[0]["content"]) % 5) for completion in completions]


@pytest.mark.slow
def test_with_skip_the_run_goes_on_and_says_which_completions_have_no_score(home, policy):
    asked = recipe(max_steps=2).model_copy(update={"rewards": RewardsPart(on_error="skip")})
    run = train(asked, policy=policy, task=own_task(fine_reward, fragile_reward))
    assert run.result()["status"] == "finished"
    frame = query(run.rollouts)
    failed = frame["error.fragile_reward"].notna()
    assert failed.tolist() == frame["completion"].map(unread).tolist()
    assert 0 < failed.sum() < len(frame)
    assert frame.loc[failed, "score.fragile_reward"].isna().all()
    assert frame.loc[~failed, "score.fragile_reward"].notna().all()
    assert frame.loc[failed, "error.fragile_reward"].str.startswith("raised ValueError: cannot read it").all()
    assert frame["error.fine_reward"].isna().all()
    assert frame.loc[failed, "total"].tolist() == frame.loc[failed, "score.fine_reward"].tolist()
    events = [event for event in run.events() if event["event"] == "reward_error"]
    assert sum(event["completions"] for event in events) == failed.sum()
    assert {event["function"] for event in events} == {"fragile_reward"}
    assert all(unread(event["completion"]) for event in events)
    assert run.result()["reward_errors"] == {"fragile_reward": int(failed.sum())}
    assert run.result()["rewards_s"] == pytest.approx(sum(run.result()["rewards_s_by_function"].values()))


@pytest.mark.timing
def test_a_deadline_of_the_recipe_is_kept(home, policy):
    def sleeping_reward(completions, **kwargs):
        time.sleep(3600 if len(completions) == 16 else 0)
        return [float(len(completion[0]["content"]) % 5) for completion in completions]

    asked = recipe(max_steps=1).model_copy(update={"rewards": RewardsPart(deadline_s=2.0)})
    run = train(asked, policy=policy, task=own_task(sleeping_reward, REWARD_FUNCS[0]))
    assert run.result()["status"] == "finished"
    assert query(run.rollouts)["score.sleeping_reward"].notna().all()
    assert run.manifest()["rewards"]["run"] == {
        "sleeping_reward": "worker",
        "correctness_reward": "here: the workbench's own",
    }
    assert 0.5 < run.result()["rewards_s_by_function"]["sleeping_reward"] < 3.0


def test_a_reward_that_fails_in_the_first_step_leaves_nothing(home, policy):
    def picky_reward(completions, **kwargs):
        if len(completions) == 16:
            raise RuntimeError("too many")
        return [1.0] * len(completions)

    with pytest.raises(RewardError, match="too many"):
        train(recipe(), policy=policy, task=own_task(picky_reward))
    assert not list((home / "runs").glob("*"))


def test_a_task_file_is_kept_with_the_run(home, policy):
    file = home / "task.py"
    file.write_text("from workbench.tiny.task import task as arithmetic\ntask = arithmetic(64, 8)\n")
    run = train(recipe(max_steps=1).model_copy(update={"task": str(file)}), policy=policy)
    assert (run.path / "task.py").read_text() == file.read_text()
    assert load_task(run.recipe().task).name == "arithmetic"


def test_the_same_seed_gives_the_same_run(home):
    records = []
    for _ in range(2):
        run = train(recipe(beta=0.001), task=arithmetic(64, 8))
        metrics = [{key: value for key, value in row.items() if "time" not in key} for row in run.metrics()]
        records.append((metrics, query(run.rollouts)["completion"].tolist()))
    assert records[0] == records[1]


# Each as a column of its own, one value a row; Arrow refuses some of them and hands others back changed.
AWKWARD = {
    "other_keys": [{"a": 1}, {"b": "x"}, {}, {"a": 2}],
    "other_types": [{"a": 1}, {"a": "x"}, {"a": [1, "x"]}, {"a": {"b": None}}],
    "grid": [[[1, 2], [3]], [], [[0]], [[1, "x"]]],
    "numbers_as_keys": [{1: "x", 2: 3}, {2: None}, {}, {1: {3: 4}}],
    "numbers": [1, 1.5, True, 10**30],
    "large": [2**63, 1, -(2**70), 0],
    "some": [{"a": 1}, None, [1], "x"],
    "tuples": [(1, 2), (3,), (), (1, "x")],
    "words": ["a", "", None, "b"],
    "counts": [1, None, 3, 4],
    "half_pairs": ["a\ud800", "\udfff", None, "b"],
}


def as_given_reward(completions, told, **columns):
    """1 where every column holds what was written down of it as text."""
    return [float(text == repr([columns[name][place] for name in AWKWARD])) for place, text in enumerate(told)]


@pytest.mark.parametrize("places", ["in the worker", "in this process"])
def test_reward_functions_get_columns_as_they_are_in_the_rows(home, policy, places):
    def here_reward(completions, told, **columns):  # holds a lock, which no other process can be handed
        with lock:
            return as_given_reward(completions, told, **columns)

    lock = threading.Lock()
    function = as_given_reward if places == "in the worker" else here_reward
    rows = [{name: values[place] for name, values in AWKWARD.items()} for place in range(4)]
    as_json = [json.loads(json.dumps(row)) for row in rows]  # tuples are lists there, and keys text
    told = [repr([*row.values()]) for row in as_json]
    rows = [{"prompt": f"{place} + 1 =", **row, "told": told[place]} for place, row in enumerate(rows)]
    run = train(recipe(max_completion_length=4), policy=policy, task=Task("awkward", rows=rows, reward_funcs=[function]))
    assert query(
        run.rollouts, f'select min("score.{function.__name__}") as low, count(*) as n from rollouts'
    ).values.tolist() == [[1.0, 32]]
    assert RunDirectory(run.path).result()["status"] == "finished"


def test_a_function_that_writes_into_a_column_changes_no_row():
    def counting_reward(completions, notes, **_):
        for note in notes:
            note["seen"] = 1
        return [0.0] * len(notes)

    rows = [{"prompt": "a", "notes": {"seen": 0}}, {"prompt": "b", "notes": {}}]
    kept, aside = building._for_arrow(rows)
    assert kept == [{"prompt": "a", "notes": 0}, {"prompt": "b", "notes": 1}]
    suite = RewardSuite(Task("counts", rows=rows, reward_funcs=[counting_reward]), 2)
    suite.aside = aside
    call = {"prompts": ["a", "b"], "completions": ["x"] * 2, "completion_ids": [[1]] * 2, "notes": [0, 1]}
    with pytest.raises(RewardError, match="changed its input 'notes'"):
        suite.funcs[0](**call)
    assert rows == [{"prompt": "a", "notes": {"seen": 0}}, {"prompt": "b", "notes": {}}]
    suite.close()
