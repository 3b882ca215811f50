"""Going on with a run: exactly as if it had never stopped, from a stop, a kill and a failure."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from driving import waited_for
from safetensors.torch import load_file

from workbench.base.errors import RewardError, RunError, TaskError
from workbench.base.notebook import notebooks_folder
from workbench.recipe import LoraPart, Recipe
from workbench.rewards import compare
from workbench.rewards.hashing import reward_hash
from workbench.run.control_file import RunState, send
from workbench.run.directory import RunDirectory, open_run
from workbench.run.rollouts import query
from workbench.task import Task
from workbench.tasks.loading import load_task
from workbench.tiny.task import task as arithmetic
from workbench.training import trainer
from workbench.training.background import start
from workbench.training.policy import load_policy
from workbench.training.resuming import latest_point, sum_of_state
from workbench.training.trainer import continue_run, train
from workbench.views.history import add_mark

GRPO = {
    "max_steps": 7,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "max_completion_length": 32,
    "learning_rate": 1e-3,
    "beta": 0.01,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 2,
}


def recipe(name="t", **more) -> Recipe:
    grpo = {**GRPO, **more.pop("grpo", {})}
    return Recipe.of({"run_name": name, "grpo": grpo, "policy": {"load_in_4bit": False}, **more})


def fresh():
    return load_policy("tiny", load_in_4bit=False)


def task() -> Task:
    return arithmetic(8, 4)  # two prompts a step: four steps an epoch


class Asks:
    def __init__(self, asked):
        self.asked = asked

    def begin(self, run, total_steps, settings):
        self.run = run

    def update(self, step, values):
        for action, details in self.asked.get(step, []):
            send(self.run, action, by="test", **details)

    def end(self, message):
        pass


def numbers(run: RunDirectory) -> list[dict]:
    return [
        {key: value for key, value in row.items() if key != "step_time" and not key.startswith("time/")} for row in run.metrics()
    ]


def weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    return load_file(run.final / "adapter_model.safetensors")


def assert_same(run: RunDirectory, whole: RunDirectory) -> None:
    assert numbers(run) == numbers(whole)
    columns = 'select step, "group", generation, completion, total, advantage from rollouts order by all'
    assert query(run.rollouts, columns).equals(query(whole.rollouts, columns))
    mine, theirs = weights(run), weights(whole)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that is never stopped."""
    return train(recipe("whole"), policy=fresh(), task=task(), runs=tmp_path_factory.mktemp("runs"))


# Step 4 is the end of an epoch, 6 lies in the second one.
@pytest.mark.parametrize("stop_after", [pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(6, marks=pytest.mark.slow)])
def test_a_stopped_run_goes_on_to_the_last_bit(home, whole, stop_after):
    run = train(recipe(), policy=fresh(), task=task(), watchers=[Asks({stop_after - 1: [("stop", {})]})])
    assert (run.result()["status"], run.result()["steps"]) == ("stopped", stop_after)
    first = run.result()["minutes"]
    # A fresh policy, as after a restart of the kernel.
    assert continue_run(run, policy=fresh(), task=task()).path == run.path
    assert (run.result()["status"], run.result()["steps"]) == ("finished", 7)
    assert run.result()["minutes"] > first
    assert_same(run, whole)
    assert not run.live


@pytest.mark.slow
def test_it_goes_on_with_the_same_policy_in_the_same_kernel(home, whole):
    policy = fresh()
    run = train(recipe(), policy=policy, task=task(), watchers=[Asks({2: [("stop", {})]})])
    continue_run("latest", policy=policy, task=task())
    assert_same(run, whole)


@pytest.mark.slow
def test_accumulated_and_with_an_optimiser_without_moments(home):
    more = {"grpo": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "max_steps": 4, "optim": "sgd"}}
    full = train(recipe("full", **more), policy=fresh(), task=task())
    run = train(recipe("part", **more), policy=fresh(), task=task(), watchers=[Asks({1: [("stop", {})]})])
    continue_run(run, policy=fresh(), task=task())
    assert_same(run, full)


@pytest.fixture
def scalers(monkeypatch) -> list[torch.amp.GradScaler]:
    """Every trainer gets the scaler that accelerate makes where float16 is trained on a GPU; torch's works on a CPU.

    Its scale is too large at first and doubles after two good steps, so steps are left out at the start and later.
    """
    build, found = trainer.build_trainer, []

    def with_scaler(*args):
        built, warnings = build(*args)
        found.append(torch.amp.GradScaler("cpu", init_scale=2.0**69, growth_interval=2))
        built.accelerator.scaler, built.args.fp16 = found[-1], True
        return built, warnings

    monkeypatch.setattr(trainer, "build_trainer", with_scaler)
    return found


@pytest.mark.slow
def test_float16s_gradient_scaler_goes_on_where_it_was(home, scalers):
    more = {"grpo": {"max_grad_norm": 0, "max_steps": 9}}  # accelerate unscales before it clips only for its own scaler
    full = train(recipe("full", **more), policy=fresh(), task=task())
    run = train(recipe("part", **more), policy=fresh(), task=task(), watchers=[Asks({6: [("stop", {})]})])
    saved = json.loads((run.checkpoints / "checkpoint-7" / "state.json").read_text())["scaler"]
    assert saved == scalers[1].state_dict()
    assert (saved["scale"] < 2.0**69, saved["_growth_tracker"]) == (True, 1)
    continue_run(run, policy=fresh(), task=task())
    assert scalers[2].state_dict() == scalers[0].state_dict()
    assert_same(run, full)
    assert "inexact" not in next(event for event in run.events() if event["event"] == "continued")
    # Steps that a scaler leaves out are no illness.
    assert "non_finite" not in {verdict["name"] for verdict in full.result()["health"]}


@pytest.mark.slow
def test_a_scaler_that_a_checkpoint_has_not_is_named(home, scalers):
    more = {"grpo": {"max_grad_norm": 0, "max_steps": 3}}
    run = train(recipe(**more), policy=fresh(), task=task(), watchers=[Asks({1: [("stop", {})]})])
    state = run.checkpoints / "checkpoint-2" / "state.json"
    kept = json.loads(state.read_text())
    del kept["sha256"]
    kept["scaler"] = None  # as where bfloat16 was trained
    state.write_text(json.dumps(kept | {"sha256": sum_of_state(kept)}))
    continue_run(run, policy=fresh(), task=task())
    [event] = [event for event in run.events() if event["event"] == "continued"]
    assert "float16's gradient scaler" in event["inexact"]


@pytest.mark.slow
def test_what_was_changed_before_the_stop_is_in_force_after_it(home):
    changes = {
        1: [("weight", {"function": "correctness_reward", "value": 3}), ("beta", {"value": 0.2})],
        2: [("mute", {"function": "length_reward"}), ("learning_rate", {"value": 3e-3})],
    }
    full = train(recipe("full"), policy=fresh(), task=task(), watchers=[Asks(changes)])
    stopped = {**changes, 4: [("stop", {})]}
    run = train(recipe("part"), policy=fresh(), task=task(), watchers=[Asks(stopped)])
    continue_run(run, policy=fresh(), task=task())
    assert_same(run, full)
    assert RunState.of(run).muted == RunState.of(full).muted == {"length_reward": 1.0}


@pytest.mark.slow
def test_a_run_that_is_over_takes_more_steps_if_asked(home, capsys):
    run = train(recipe(grpo={"max_steps": 2, "lr_scheduler_type": "constant"}), policy=fresh(), task=task())
    with pytest.raises(RunError, match="all 2 steps are trained") as refused:
        continue_run(run, policy=fresh(), task=task())
    assert "--steps" in refused.value.remedy
    assert run.result()["status"] == "finished"
    capsys.readouterr()
    continue_run(run, policy=fresh(), task=task(), steps=2)
    told = capsys.readouterr().out
    assert "to step 4" in told
    assert re.search(r"^4 steps; each learns from 8 completions", told, re.M)
    assert "2 steps" not in told
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4]
    assert run.recipe().grpo["max_steps"] == 4


@pytest.mark.slow
def test_added_steps_are_on_the_schedule_of_all_or_on_the_rate_of_the_last(home, capsys):
    grpo = {"max_steps": 2, "lr_scheduler_type": "linear", "warmup_steps": 0}
    run = train(recipe(grpo=grpo), policy=fresh(), task=task())
    with pytest.raises(RunError, match="hold_rate"):
        continue_run(run, policy=fresh(), task=task(), hold_rate=True, checkpoint="checkpoint-2")
    continue_run(run, policy=fresh(), task=task(), steps=2)
    continue_run(run, policy=fresh(), task=task(), steps=1, hold_rate=True)
    continue_run(run, policy=fresh(), task=task(), steps=1)  # once held, it is
    rates = [row["learning_rate"] for row in run.metrics()]
    assert rates == pytest.approx([1e-3, 5e-4, 5e-4, 2.5e-4, 2.5e-4, 2.5e-4])
    begun = [event for event in run.events() if event["event"] == "continued"]
    assert [event.get("learning_rate") for event in begun] == [pytest.approx(5e-4), pytest.approx(2.5e-4), None]
    assert "linear now runs over 4 steps" in begun[0]["schedule"]
    assert begun[0]["schedule"] in capsys.readouterr().out
    marks = []
    for event in run.events():
        add_mark(marks, event)
    assert [mark.text for mark in marks if mark.text.startswith("continued")] == [
        "continued, learning_rate 0.0005", "continued, learning_rate 0.00025", "continued",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_staged_run_goes_on_in_its_stage_and_into_the_next(home):
    stages = [
        {"name": "a", "steps": 3, "reward_weights": {"correctness_reward": 0}},
        {"name": "b", "steps": 3, "adaptive_weights": {"correctness_reward": {"every": 2, "below": 1.0}}},
    ]
    full = train(recipe("full", stages=stages), policy=fresh(), task=task())
    for stop_after in (2, 3, 5):  # within the first stage, at its end, within the second
        run = train(
            recipe(f"part{stop_after}", stages=stages), policy=fresh(), task=task(),
            watchers=[Asks({stop_after - 1: [("stop", {})]})],
        )  # fmt: skip
        assert run.result()["steps"] == stop_after
        continue_run(run, policy=fresh(), task=task())
        assert_same(run, full)
        assert query(run.rollouts)["stage"].tolist() == query(full.rollouts)["stage"].tolist()


@pytest.mark.slow
def test_a_run_of_epochs_goes_on_to_its_last_step_on_its_schedule(home):
    more = {"grpo": {"max_steps": -1, "num_train_epochs": 2, "lr_scheduler_type": "linear", "warmup_steps": 0}}
    full = train(recipe("full", **more), policy=fresh(), task=task())
    assert [row["step"] for row in full.metrics()] == list(range(1, 9))
    run = train(recipe("part", **more), policy=fresh(), task=task(), watchers=[Asks({4: [("stop", {})]})])
    continue_run(run, policy=fresh(), task=task())
    assert_same(run, full)


@pytest.mark.slow
def test_what_fails_before_it_goes_on_leaves_the_run_as_it_was(home):
    stages = [{"name": "a", "steps": 2}, {"name": "b", "steps": 2}]
    run = train(recipe(stages=stages), policy=fresh(), task=task(), watchers=[Asks({1: [("stop", {})]})])
    before = (run.result(), run.recipe(), sorted(run.path.rglob("*.safetensors")))
    other = load_policy("tiny", load_in_4bit=False, lora=LoraPart(r=4))
    for _ in range(2):
        with pytest.raises(RunError, match="fit"):
            continue_run(run, policy=other, task=task(), steps=3)
    assert (run.result(), run.recipe(), sorted(run.path.rglob("*.safetensors"))) == before
    assert not run.live
    assert continue_run(run, policy=fresh(), task=task(), steps=1).result()["steps"] == 5


@pytest.mark.slow
def test_after_going_on_and_an_abort_the_adapter_is_the_newest(home):
    class Aborts(Asks):
        def update(self, step, values):
            if step == 5:
                raise KeyboardInterrupt

    run = train(recipe(grpo={"save_steps": 1}), policy=fresh(), task=task(), watchers=[Asks({1: [("stop", {})]})])
    assert run.adapter.name == "final"
    with pytest.raises(KeyboardInterrupt):
        continue_run(run, policy=fresh(), task=task(), watchers=[Aborts({})])
    assert int(run.adapter.name.removeprefix("checkpoint-")) >= 4


EDITED = """
from workbench.task import Task
from workbench.tiny.task import task as arithmetic

def length_reward(completions, **kwargs):
    return [{factor} * len(text[0]["content"]) for text in completions]

task = Task(name="edited", rows=arithmetic(8, 4).rows, reward_funcs=[length_reward])
"""


@pytest.mark.slow
def test_a_run_that_goes_on_keeps_its_rewards_and_can_be_given_the_edited_ones(home):
    file = home / "edited.py"
    file.write_text(EDITED.format(factor=1))
    run = train(recipe(task=str(file)), policy=fresh(), watchers=[Asks({1: [("stop", {})]})])
    file.write_text(EDITED.format(factor=100))
    continue_run(run, policy=fresh(), watchers=[Asks({4: [("reload", {})]})])
    frame = query(run.rollouts)
    ratio = frame["score.length_reward"] / frame["completion"].str.len()
    assert set(ratio[frame["step"] <= 5].round()) == {1.0}
    assert set(ratio[frame["step"] > 5].round()) == {100.0}


BESIDE = """
from pathlib import Path

import own_scoring
from workbench.data.sources import load_rows
from workbench.task import Task

def length_reward(completions, **kwargs):
    return [{factor} * own_scoring.length(text) for text in completions]

task = Task(name="beside", rows=load_rows(Path(__file__).parent / "rows.jsonl"), reward_funcs=[length_reward])
"""


def task_folder(folder, factor=1):
    """A task file that reads rows, and imports a module, beside itself."""
    folder.mkdir(exist_ok=True)
    (folder / "task.py").write_text(BESIDE.format(factor=factor))
    (folder / "own_scoring.py").write_text("def length(text):\n    return len(text[0]['content'])\n")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in task().rows))
    return folder / "task.py"


@pytest.mark.slow
def test_notebook_02s_own_file_goes_on_from_the_command_line_in_a_fresh_process(home, monkeypatch):
    monkeypatch.setattr(compare, "DEADLINE_S", 5.0)  # the tests' own deadline is part of a function's hash
    for judging in (compare.same_answer, compare.verdicts):
        monkeypatch.setattr(judging, "__defaults__", (5.0,))
    cells = json.loads((notebooks_folder() / "02_rewards.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    [written] = [source for source in sources if source.startswith("%%write_unless_edited {task_file}")]
    folder = home / "tasks" / "arithmetic"
    folder.mkdir(parents=True)
    (folder / "task.py").write_text(written.partition("\n")[2])
    for split, rows in (("train", task().rows), ("held_out", task().held_out)):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = recipe(task=str(folder / "task.py"), grpo={"max_steps": 3})
    full = train(recipe("full", task=str(folder / "task.py"), grpo={"max_steps": 3}), policy=fresh())
    run = train(asked, policy=fresh(), watchers=[Asks({1: [("stop", {})]})])
    (folder / "task.py").write_text("raise SystemExit('edited meanwhile')")
    gone_on = subprocess.run(
        [sys.executable, "-m", "workbench", "continue", str(run.path), "--json"],
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert gone_on.returncode == 0, gone_on.stderr
    assert json.loads(gone_on.stdout)["status"] == "finished"
    assert_same(run, full)


@pytest.mark.slow
def test_stages_and_reloaded_rewards_read_what_lies_beside_their_files(home):
    files = [task_folder(home / name) for name in ("first", "second")]
    stages = [{"name": name, "steps": 3, "task": f"{name}/task.py"} for name in ("first", "second")]
    run = train(
        recipe(stages=stages), policy=fresh(), watchers=[Asks({1: [("reload", {})], 2: [("stop", {})]})]
    )  # fmt: skip
    assert run.result()["steps"] == 3
    for file in files:
        file.write_text("raise SystemExit('edited meanwhile')")
    continue_run(run, policy=fresh())
    assert run.result()["steps"] == 6


@pytest.mark.slow
def test_what_the_task_reads_has_changed_or_gone(home):
    file = task_folder(home / "mine")
    # One that is no file: nothing beside the run could bring it back.
    run = train(
        recipe(),
        policy=fresh(),
        task=Task("late", task().rows, [fails_late_reward]),
        watchers=[Asks({1: [("stop", {})]})],
    )
    with pytest.raises(RunError, match="task object 'late'") as refused:
        continue_run(run)
    assert "continue_run(run, task=" in refused.value.remedy
    run = train(recipe(task="mine/task.py"), policy=fresh(), watchers=[Asks({1: [("stop", {})]})])
    rows = (home / "mine" / "rows.jsonl").read_text()
    (home / "mine" / "rows.jsonl").write_text("".join(reversed(rows.splitlines(keepends=True))))
    with pytest.raises(RunError, match="mine: its 8 training rows are not those that t-2 started with"):
        continue_run(run)
    (home / "mine" / "rows.jsonl").unlink()
    with pytest.raises(TaskError, match=r"runs/t-2/task.py, executed as mine/task.py: .*mine/rows.jsonl") as refused:
        continue_run(run)
    assert "put back what it reads from mine" in refused.value.remedy
    (home / "mine").rename(home / "moved")
    with pytest.raises(TaskError) as refused:
        continue_run(run)
    assert "mine is gone: put it back" in refused.value.remedy
    (home / "moved").rename(home / "mine")
    (home / "mine" / "rows.jsonl").write_text(rows)
    # Its copy can be loaded by hand, too, and is the file as it was.
    file.write_text(BESIDE.format(factor=100))
    own = load_task(run.path / "task.py")
    assert own.reward_funcs[0]([[{"content": "four"}]]) == [4]
    assert reward_hash(own.reward_funcs[0]) == run.manifest()["rewards"]["functions"]["length_reward"]
    assert not run.live


def fails_late_reward(completions, trainer_state=None, **kwargs):
    if trainer_state.global_step >= 3 and not os.environ.get("MENDED"):
        raise ValueError("a bug that shows late")
    return [float(len(text[0]["content"]) % 3) for text in completions]


@pytest.mark.slow
def test_a_run_that_failed_goes_on_when_its_reward_is_mended(home, monkeypatch):
    rows = arithmetic(8, 4).rows
    broken = Task("late", rows, [fails_late_reward])
    with pytest.raises(RewardError, match="a bug that shows late"):
        train(recipe("late"), policy=fresh(), task=broken)
    run = open_run("late")
    assert run.result()["status"] == "failed"
    monkeypatch.setenv("MENDED", "1")
    continue_run(run, policy=fresh(), task=broken)
    # As if it had never failed: the failing step's random numbers are drawn again.
    assert_same(run, train(recipe("never"), policy=fresh(), task=broken))
    assert [event["event"] for event in run.events()].count("continued") == 1


FAILING = """
import workbench as wb
from workbench.tiny.task import task as arithmetic

def late_reward(completions, trainer_state=None, **kwargs):
    if trainer_state.global_step == 2:
        raise KeyError("unit")
    return [float(len(each[0]["content"]) % 3) for each in completions]

task = wb.Task("t", arithmetic(8, 4).rows, [late_reward])
"""


@pytest.mark.slow
def test_a_task_file_that_is_mended_beside_the_runs_copy_is_named(home, capsys):
    (home / "task.py").write_text(FAILING)
    with pytest.raises(RewardError, match="unit"):
        train(recipe("mended", task="task.py"), policy=fresh())
    mended = FAILING.replace("== 2", "== 200")
    (home / "task.py").write_text(mended)
    with pytest.raises(RewardError, match="unit"):
        continue_run("mended", policy=fresh())
    assert "task.py differs from the run's own copy, runs/mended/task.py" in capsys.readouterr().out
    (home / "runs/mended/task.py").write_text(mended)
    run = continue_run("mended", policy=fresh(), accept_changes=True)
    assert "differs from the run's own copy" not in capsys.readouterr().out
    assert run.result()["status"] == "finished"


class Kills(Asks):
    def event(self, event):
        if event["event"] == "checkpoint":
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_run_that_was_killed_between_its_last_checkpoint_and_its_result_is_finished(home, whole):
    if (child := os.fork()) == 0:
        train(recipe("killed"), policy=fresh(), task=task(), watchers=[Kills({})])
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    run = open_run("killed")
    assert run.result()["status"] == "killed"
    assert not run.final.exists()
    continue_run(run, task=task())
    assert (run.result()["status"], run.result()["steps"], run.live) == ("finished", 7, False)
    assert run.events()[-1]["event"] == "finished"
    assert_same(run, whole)
    assert not (run.final / "state.json").exists()
    with pytest.raises(RunError, match="all 7 steps are trained"):
        continue_run(run, task=task())


@pytest.mark.slow
def test_a_run_of_epochs_that_lacks_its_result_is_finished(home):
    more = {"grpo": {"max_steps": -1, "num_train_epochs": 1}}
    run = train(recipe(**more), policy=fresh(), task=task())
    adapter = weights(run)
    shutil.rmtree(run.final)
    run.update_manifest(result=None)
    continue_run(run, task=task())
    assert (run.result()["status"], run.result()["steps"]) == ("finished", 4)
    assert all(torch.equal(weights(run)[name], tensor) for name, tensor in adapter.items())


def test_a_run_without_a_whole_checkpoint_says_so(home):
    run = train(recipe(grpo={"max_steps": 2}), policy=fresh(), task=task())
    (run.checkpoints / "checkpoint-2" / "state.json").write_text("{")  # killed while it was being written
    with pytest.raises(RunError, match="no checkpoint to resume from"):
        latest_point(run)


def test_a_run_that_trains_is_not_taken_over(home):
    run = train(recipe(grpo={"max_steps": 1}), policy=fresh(), task=task())
    lock = {"pid": os.getppid(), "host": os.uname().nodename, "since": ""}
    (run.path / "lock").write_text(json.dumps(lock))
    with pytest.raises(RunError, match="is training") as refused:
        run.reopen(1, take_over=True)
    assert "take-over" not in str(refused.value)


@pytest.mark.slow
def test_the_run_of_a_machine_that_was_lost_goes_on_when_somebody_says_so(home):
    policy = fresh()
    run = train(recipe(grpo={"max_steps": 1}), policy=policy, task=task())
    (run.path / "lock").write_text(json.dumps({"pid": 1, "host": "a-lost-runtime", "since": ""}))
    with pytest.raises(RunError, match=r"is training on a-lost-runtime[\s\S]*--take-over"):
        continue_run(run, policy=policy, task=task(), steps=1)
    continue_run("latest", policy=policy, task=task(), steps=1, take_over=True)
    assert (run.result()["status"], run.result()["steps"], run.live) == ("finished", 2, False)


@pytest.mark.slow
def test_a_checkpoint_of_another_lora_shape_is_refused(home):
    run = train(recipe(grpo={"max_steps": 3}), policy=fresh(), task=task(), watchers=[Asks({1: [("stop", {})]})])
    smaller = load_policy("tiny", load_in_4bit=False, lora=LoraPart(r=4))
    with pytest.raises(RunError, match="fit") as refused:
        continue_run(run, policy=smaller, task=task())
    assert "recipe.yaml" in refused.value.remedy
    # Nothing is lost by it: with the right one it goes on.
    assert continue_run(run, policy=fresh(), task=task()).result()["steps"] == 3


def test_a_run_that_adapts_the_head_goes_on(home):
    """PEFT writes the head's own weights beside its adapter: of the run's own checkpoint they are taken."""
    lora = LoraPart(r=4, target_modules=["q_proj", "lm_head"])
    run = train(
        recipe(lora=lora.model_dump(), grpo={"max_steps": 3}),
        policy=load_policy("tiny", load_in_4bit=False, backend="transformers", lora=lora),
        task=task(),
        watchers=[Asks({1: [("stop", {})]})],
    )
    again = load_policy("tiny", load_in_4bit=False, backend="transformers", lora=lora)
    assert continue_run(run, policy=again, task=task()).result()["steps"] == 3


# -- in a process of its own ------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_started_run_is_steered_killed_and_goes_on(home):
    asked = recipe("bg", task="arithmetic", grpo={"max_steps": 4000, "save_steps": 3})
    started = start(asked)
    waited_for(lambda: started.run is not None or started.poll() is not None)
    run = started.run
    assert run.path == home / "runs" / "bg"
    waited_for(lambda: len(run.metrics()) >= 2)
    assert run.live
    assert started.poll() is None
    send(run, "weight", by="test", function="correctness_reward", value=2)
    waited_for(lambda: RunState.of(run).weights["correctness_reward"] == 2.0)
    waited_for(lambda: (run.checkpoints / "checkpoint-3" / "state.json").is_file())
    waited_for(lambda: len(run.metrics()) >= 7)
    started.kill()  # as a crash would: no word of farewell
    assert run.result()["status"] == "killed"
    assert "each learns from" in started.log_tail()
    steps = latest_point(run).step
    again = start(run)
    waited_for(lambda: len(run.metrics()) > steps + 2 or again.poll() is not None)
    assert again.poll() is None, again.error
    assert [row["step"] for row in run.metrics()] == list(range(1, len(run.metrics()) + 1))
    send(run, "stop", by="test")
    assert again.wait(300).result()["status"] == "stopped"
    assert RunState.of(run).weights["correctness_reward"] == 2.0
    parts = query(run.rollouts, "select step, count(*) as n from rollouts group by step order by step")
    assert parts["n"].tolist() == [8] * len(parts)
    # The run's own folder holds what both processes printed.
    assert (run.path / "train.log").is_file()
    assert (run.path / "train.log.before").is_file()


@pytest.mark.slow
def test_a_start_that_fails_says_why(home):
    started = start(recipe("bad", grpo={"beta": -1}))
    with pytest.raises(RunError, match="beta is at least 0"):
        started.wait(600)
    assert started.poll() == 2
    assert not (home / "runs" / "bad").exists()


@pytest.mark.slow
def test_the_kernels_interrupt_and_end_are_not_the_runs(home):
    """The run is in a session of its own: what is sent to the notebook's process group does not reach it."""
    code = (
        "import os, sys\n"
        "from workbench.recipe import Recipe\n"
        "from workbench.training.background import start\n"
        f"started = start(Recipe.of({recipe('own', grpo={'max_steps': 500}).model_dump(mode='json')!r}))\n"
        "print(started.process.pid, flush=True)\n"
        "import time; time.sleep(600)\n"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    pid = int(kernel.stdout.readline())
    os.killpg(kernel.pid, signal.SIGINT)
    kernel.wait(300)
    os.kill(pid, 0)  # raises if it is gone
    os.kill(pid, signal.SIGKILL)
