"""Checkpoints that are damaged, weights that are no numbers, full disks, edited recipes: nothing in silence."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import signal
from collections import namedtuple

import pytest
import torch
from killing import contents
from safetensors.torch import load_file

from workbench.base.errors import RunError
from workbench.base.workspace import replace_folder
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory, open_run
from workbench.run.held_out import standing
from workbench.run.rollouts import query, read_batches
from workbench.tiny.task import task as arithmetic
from workbench.training import changes, resuming
from workbench.training.changes import lost_since
from workbench.training.policy import load_policy
from workbench.training.resuming import latest_point
from workbench.training.trainer import continue_run, train

GRPO = {
    "max_steps": 4, "save_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 16,
    "learning_rate": 1e-3,
}  # fmt: skip


def recipe(**more) -> Recipe:
    grpo = {**GRPO, **more.pop("grpo", {})}
    return Recipe.of({"run_name": "r", "grpo": grpo, "policy": {"load_in_4bit": False}, **more})


def task():
    return arithmetic(8, 4)


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny", load_in_4bit=False)


@pytest.fixture(scope="module")
def recorded(policy, tmp_path_factory):
    return train(recipe(), policy=policy, task=task(), runs=tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(recorded, home):
    return RunDirectory(shutil.copytree(recorded.path, home / "runs" / "r"))


# -- checkpoints -------------------------------------------------------------------------------------------------------
def flipped(file, older):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def zeroed(file, older):
    size = file.stat().st_size
    with file.open("r+b") as content:
        content.truncate(size // 2)
        content.truncate(size)


def cut(file, older):
    with file.open("r+b") as content:
        content.truncate(file.stat().st_size * 2 // 3)


def swapped(file, older):
    shutil.copyfile(older / file.name, file)


DAMAGES = [lambda file, older: file.unlink(), lambda file, older: file.write_bytes(b""), cut, flipped, zeroed, swapped]


@pytest.mark.parametrize("damage", DAMAGES, ids=["missing", "empty", "cut", "flipped", "zeroed", "swapped"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(run, damage):
    newest, older = run.saved()
    names = sorted(file.name for file in newest.iterdir())
    assert {"adapter_model.safetensors", "optimizer.safetensors", "state.json", "trainer_state.json"} <= set(names)
    for name in names:
        before = (newest / name).read_bytes()
        damage(newest / name, older)
        found = latest_point(run)
        if (newest / name).is_file() and (newest / name).read_bytes() == before:
            assert found.folder == newest  # the two have the same file
        else:
            assert found.folder == older, name
            [said] = found.passed_over
            assert said.startswith("checkpoint-4 is damaged (")
            with pytest.raises(RunError, match="checkpoint-4 is damaged"):
                latest_point(run, "checkpoint-4")
        (newest / name).write_bytes(before)
    assert latest_point(run).folder == newest


def test_a_file_that_is_no_state_is_damage_and_is_named_in_a_line(run):
    state = run.checkpoints / "checkpoint-4" / "state.json"
    for content in (b"{}", b"[]", b'{"sha256": 1}', bytes(range(256)) * 4000):
        state.write_bytes(content)
        point = latest_point(run)
        assert point.folder.name == "checkpoint-3"
        assert len(point.passed_over[0]) < 200


def test_folders_that_are_no_checkpoints_are_none(run):
    for name in ("checkpoint-²", "checkpoint-abc", "checkpoint-"):
        (run.checkpoints / name).mkdir()
    assert latest_point(run).folder.name == "checkpoint-4"
    assert not latest_point(run).passed_over


def test_the_checkpoint_of_another_run_is_damage_too(run):
    other = json.loads((run.path / "manifest.json").read_text())
    run.write_json("manifest.json", {**other, "id": "another"})
    with pytest.raises(RunError, match=r"checkpoint-4 is damaged \(it is another run's\); checkpoint-3 is damaged"):
        latest_point(run)


def test_a_checkpoint_that_is_not_there_is_named_with_those_that_are(run):
    with pytest.raises(RunError, match=r"no checkpoint-9[\s\S]*checkpoint-4, checkpoint-3"):
        continue_run(run, checkpoint="checkpoint-9")


def test_it_goes_on_from_the_older_one_and_says_so(run, recorded, policy, capsys):
    flipped(run.checkpoints / "checkpoint-4" / "optimizer.safetensors", None)
    run.update_manifest(result=None)  # it was killed
    shutil.rmtree(run.final)
    continue_run(run, policy=policy, task=task())
    assert "WARNING: checkpoint-4 is damaged (optimizer.safetensors was changed: SHA-256" in capsys.readouterr().out
    [told] = [event for event in run.events() if event["event"] == "changed"]
    [passed_over] = told["passed_over"]
    assert passed_over.startswith("checkpoint-4 is damaged (optimizer.safetensors was changed: SHA-256")
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4]
    whole, again = (load_file(each.final / "adapter_model.safetensors") for each in (recorded, run))
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert latest_point(run).folder.name == "checkpoint-4"  # made anew


def test_going_on_from_an_earlier_one_takes_out_what_came_after(run, policy):
    continue_run(run, policy=policy, task=task(), checkpoint="checkpoint-3", steps=1)
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4, 5]
    assert [folder.name for folder in run.saved()] == ["checkpoint-5", "checkpoint-4"]


def test_the_old_one_goes_when_the_new_one_is_whole(home, policy, monkeypatch):
    seen, rename = [], resuming.write_json

    def looked(path, content):
        if path.name == "state.json":
            seen.append([folder.name for folder in open_run("r").saved()])
        return rename(path, content)

    monkeypatch.setattr(resuming, "write_json", looked)
    run = train(recipe(grpo={"save_total_limit": 1, "max_steps": 3}), policy=policy, task=task())
    assert seen == [[], ["checkpoint-1"], ["checkpoint-2"]]
    assert [folder.name for folder in run.saved()] == ["checkpoint-3"]
    assert not [file for file in run.checkpoints.iterdir() if file.name.startswith(".")]


# -- the record --------------------------------------------------------------------------------------------------------
def folder(file):
    file.unlink()
    file.mkdir()


def without(number):
    def change(file):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(lines[:number] + lines[number + 1 :]))

    return change


def steered(file):
    # As if the line of a change were lost: what is in force is not what the checkpoint knows.
    change = {"event": "control", "step": 1, "action": "beta", "applied": True, "after": 0.5}
    file.write_text(json.dumps(change) + "\n" + file.read_text())


RECORD = [
    *[("manifest.json", lambda file, text=text: file.write_bytes(text), "manifest.json: empty, torn, or not a JSON object")
      for text in (b"", b'{"id": "', b"null", b"[]", bytes(range(256)))],
    ("manifest.json", folder, "manifest.json: no such file"),
    ("metrics.jsonl", without(0), "metrics.jsonl up to step 4: 4 -> 3"),
    ("metrics.jsonl", without(2), "metrics.jsonl up to step 4: 4 -> 3"),
    ("metrics.jsonl", without(3), "metrics.jsonl up to step 4: 4 -> 3"),
    ("metrics.jsonl", lambda file: file.write_text("null\n[]\n{}\n"), "metrics.jsonl up to step 4: 4 -> 0"),
    ("metrics.jsonl", folder, "metrics.jsonl up to step 4: 4 -> 0"),
    ("events.jsonl", steered, r"events.jsonl.beta up to step 4: 0.0 -> 0.5"),
    ("rollouts/step-0000002-00.parquet", lambda file: file.unlink(), "rollouts up to step 4: 32 -> 24"),
    ("rollouts/step-0000002-00.parquet", lambda file: file.write_bytes(b"PAR1"), r"step-0000002[\s\S]*move that file"),
    ("rollouts/step-0000002-00.parquet", lambda file: shutil.rmtree(file.parent), "rollouts up to step 4: 32 -> 0"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torn, skipped")
def test_what_is_lost_of_the_record_is_found(run):
    assert lost_since(run, latest_point(run)) == []
    for name, damage, said in RECORD:
        kept = shutil.copytree(run.path, run.path.with_name("kept"))
        damage(run.path / name)
        try:
            found = "; ".join(lost_since(run, latest_point(run)))
        except RunError as error:
            found = str(error)
        assert re.search(said, found), (name, found)
        shutil.rmtree(run.path)
        kept.rename(run.path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts/step-0000002-00.parquet", "manifest.json", "lock"])
def test_a_run_does_not_go_on_without_its_record_and_nothing_is_touched(run, policy, name):
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).mkdir()
    with pytest.raises(
        RunError, match=rf"{name.partition('/')[0]}[\s\S]*(4 -> 0|32 -> 24|no such file|whole Parquet|stands in its place)"
    ):
        continue_run(run, policy=policy, task=task(), steps=1)
    assert run.final.exists()
    assert not run.live


@pytest.mark.slow
def test_a_run_goes_on_with_a_hole_that_is_accepted_and_is_not_asked_again(run, policy, capsys):
    without(1)(run.path / "metrics.jsonl")
    (run.path / "rollouts" / "step-x.parquet").write_bytes((run.path / "rollouts" / "step-0000001-00.parquet").read_bytes())
    (run.path / "control.jsonl").mkdir()
    continue_run(run, policy=policy, task=task(), steps=1, accept_changes=True)
    assert "metrics.jsonl up to step 4: 4 -> 3" in capsys.readouterr().out
    assert [row["step"] for row in run.metrics()] == [1, 3, 4, 5]
    assert continue_run(run, policy=policy, task=task(), steps=1).result()["steps"] == 6


def test_a_step_with_two_rows_has_one_afterwards_and_that_is_said(run, policy, capsys):
    lines = (run.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run.path / "metrics.jsonl").write_text("".join([*lines[:2], lines[1], *lines[2:]]))
    continue_run(run, policy=policy, task=task(), steps=1)
    assert "metrics.jsonl has two rows for step 2: the later one is kept" in capsys.readouterr().out
    assert [json.loads(line)["step"] for line in (run.path / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3, 4, 5]
    [told] = [event for event in run.events() if event["event"] == "changed"]
    assert told["shown"] == ["metrics.jsonl has two rows for step 2: the later one is kept"]


# -- a step that is not finished ---------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("error", [RuntimeError("CUDA error"), KeyboardInterrupt()], ids=["error", "abort"])
def test_a_run_that_ends_in_the_middle_of_a_step_goes_on_from_the_step_before(home, policy, monkeypatch, error):
    """What the step in flight has scored already is not part of what is saved: it is scored again."""
    from workbench.training import trainer as trainers

    asked = recipe(adaptive_weights={"correctness_reward": {}}, grpo={"save_steps": 100})
    full = train(asked.model_copy(update={"run_name": "full"}), policy=load_policy("tiny", load_in_4bit=False), task=task())
    make = trainers.make_trainer

    def failing(*args, **kwargs):
        trainer = make(*args, **kwargs)
        step = trainer.training_step

        def third(*args, **kwargs):
            if trainer.state.global_step == 2:
                trainer._prepare_inputs(args[1])  # generated and scored
                raise error
            return step(*args, **kwargs)

        trainer.training_step = third
        return trainer

    fresh = load_policy("tiny", load_in_4bit=False)
    with monkeypatch.context() as patched:
        patched.setattr(trainers, "make_trainer", failing)
        with pytest.raises(type(error)):
            train(asked, policy=fresh, task=task())
    run = open_run("r")
    assert [folder.name for folder in run.saved()] == ["checkpoint-2"]
    assert max(query(run.rollouts)["step"]) == 3
    continue_run(run, policy=load_policy("tiny", load_in_4bit=False), task=task())
    assert [event["event"] for event in run.events() if event["event"] == "changed"] == []
    whole, again = (load_file(each.final / "adapter_model.safetensors") for each in (full, run))
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert len(query(run.rollouts)) == len(query(full.rollouts)) == 32


def test_a_checkpoint_made_during_a_pause_is_older_than_the_row_of_its_step(run):
    point = latest_point(run)
    point.state["recorded"]["metrics.jsonl"] -= 1
    assert lost_since(run, point) == []
    without(3)(run.path / "metrics.jsonl")  # killed before it was over
    assert lost_since(run, point) == []
    shown = changes.changed_since_begun(run, run.recipe(), [], point).shown
    assert "metrics.jsonl ends with step 3, the checkpoint with step 4" in shown


def test_a_run_that_cannot_be_taken_back_is_nobodys_and_whole(run, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device", str(run.path / "manifest.json"))

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "update_manifest", full)
        with pytest.raises(RunError, match="the disk is full"):
            run.reopen(4)
    assert run.final.exists()
    assert not run.live
    run.reopen(4)
    run.release()


def raises(error):
    def fails(*args, **kwargs):
        raise error

    return fails


def in_the_first_step(error):
    """The step generates and scores, its part is written, and then it fails."""

    def patch(monkeypatch, run):
        from workbench.training import trainer as trainers

        make = trainers.make_trainer

        def failing(*args, **kwargs):
            trainer = make(*args, **kwargs)
            step = trainer.training_step

            def first(*args, **kwargs):
                step(*args, **kwargs)
                raise error

            trainer.training_step = first
            return trainer

        monkeypatch.setattr(trainers, "make_trainer", failing)

    return patch


def disk_without_room(monkeypatch, run):
    monkeypatch.setattr(resuming.shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 1000))


def row_that_fails(monkeypatch, run):
    error = OSError(errno.EDQUOT, "Disk quota exceeded", str(run.path / "metrics.jsonl"))
    monkeypatch.setattr(RunDirectory, "log_metrics", raises(error))


def copy_that_fails(monkeypatch, run):
    error = OSError(errno.ENOSPC, "No space left on device", str(run.path / ".before"))
    monkeypatch.setattr("workbench.run.reopening.shutil.copy2", raises(error))


def damaged_checkpoint(monkeypatch, run):
    flipped(run.checkpoints / "checkpoint-4" / "optimizer.safetensors", None)


def training(monkeypatch, run):
    owner = RunDirectory(run.path)
    assert owner.lock.take()
    monkeypatch.setattr(run, "_owner", owner, raising=False)  # or it is let go


LAST, THIRD = {"steps": 2}, {"steps": 2, "checkpoint": "checkpoint-3"}
REFUSALS = {
    "no room": (disk_without_room, LAST, RunError, "MB are free"),
    "no room, from an earlier one": (disk_without_room, THIRD, RunError, "MB are free"),
    "no room for what is kept aside": (copy_that_fails, THIRD, RunError, "the disk is full"),
    "an edited recipe": (lambda _, run: edit(run, seed=3), LAST, RunError, "seed: 0 -> 3"),
    "another task": (lambda *_: None, LAST | {"task": "fewer"}, RunError, "rows were changed"),
    "no such checkpoint": (lambda *_: None, LAST | {"checkpoint": "checkpoint-9"}, RunError, "no checkpoint-9"),
    "a damaged checkpoint": (damaged_checkpoint, LAST | {"checkpoint": "checkpoint-4"}, RunError, "is damaged"),
    "nothing left to train": (lambda *_: None, {}, RunError, "all 4 steps are trained"),
    "it trains": (training, THIRD, RunError, "r is training"),
    "the watchers cannot be made": (
        lambda patch, _: patch.setattr("workbench.training.background.announce", raises(ZeroDivisionError)), THIRD,
        ZeroDivisionError, "",
    ),
    "Ctrl-C after opening": (
        lambda patch, _: patch.setattr("workbench.training.trainer.go_on", raises(KeyboardInterrupt)), THIRD,
        KeyboardInterrupt, "",
    ),
    "Ctrl-C in the first step": (in_the_first_step(KeyboardInterrupt()), THIRD, KeyboardInterrupt, ""),
    "the first step fails": (in_the_first_step(RuntimeError("CUDA error")), THIRD, RuntimeError, "CUDA error"),
    "the first step fails at the end": (in_the_first_step(RuntimeError("CUDA error")), LAST, RuntimeError, "CUDA error"),
    "its row cannot be written": (row_that_fails, THIRD, RunError, "the quota is used up"),
}  # fmt: skip


# One for each place where it ends: before it is taken, as it is, because it is another's, and in a step.
QUICK = ("no room, from an earlier one", "no room for what is kept aside", "it trains", "the first step fails at the end")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in REFUSALS])
def test_a_finished_run_that_goes_on_no_further_is_what_it_was(run, policy, monkeypatch, name, capsys):
    patch, asked, kind, said = REFUSALS[name]
    asked = asked | {"task": dataclasses.replace(task(), rows=task().rows[:-1]) if asked.get("task") else task()}
    with monkeypatch.context() as patched:
        patch(patched, run)
        before = contents(run.path)
        with pytest.raises(kind, match=said or None):
            continue_run(run, policy=policy, **asked)
        after = contents(run.path)
        told = after.pop("events.jsonl").removeprefix(before.pop("events.jsonl"))
        assert after == before
        assert not told or json.loads(told)["event"] == "put_back"
        assert bool(told) == ("step" in name or "row" in name), told
        assert run.live == (name == "it trains")
    if name in ("an edited recipe", "a damaged checkpoint"):
        return
    assert (run.result()["status"], run.adapter.name) == ("finished", "final")
    run.lock.file.unlink(missing_ok=True)
    again = continue_run(run, policy=policy, task=task(), checkpoint="checkpoint-3", steps=1)
    assert [row["step"] for row in again.metrics()] == [1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("asked", [LAST, THIRD], ids=["the last", "an earlier one"])
def test_a_finished_run_that_is_killed_before_a_new_step_is_what_it_was(run, policy, monkeypatch, asked):
    before = contents(run.path)
    if (child := os.fork()) == 0:
        monkeypatch.setattr(RunDirectory, "log_metrics", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        continue_run(run, policy=policy, task=task(), **asked)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert run.result()["status"] == "killed"
    assert run.kept_aside
    assert open_run("r").result()["status"] == "finished"  # a reader suffices
    assert contents(run.path) == before
    assert continue_run(run, policy=policy, task=task(), **asked).result()["steps"] == 6


def test_what_only_fsync_tells_is_told(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    (tmp_path / "kept").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="quota"), replace_folder(tmp_path / "kept") as folder:
            (folder / "new").touch()
    assert [each.name for each in tmp_path.rglob("*")] == ["kept"]


# -- weights -----------------------------------------------------------------------------------------------------------
class Breaks:
    """A watcher that makes the weights nan after a step, as a step that overflows does."""

    def __init__(self, policy, step) -> None:
        self.policy, self.step = policy, step

    def begin(self, run, total_steps, settings):
        pass

    def update(self, step, values):
        if step == self.step:
            weight = next(weight for weight in self.policy.model.parameters() if weight.requires_grad)
            weight.data.fill_(float("nan"))

    def end(self, message):
        pass


@pytest.mark.parametrize(("generation", "step"), [("auto", 2), pytest.param("trl", 2, marks=pytest.mark.slow), ("auto", 4)])
def test_weights_that_are_no_numbers_are_never_saved(home, generation, step):
    policy = load_policy("tiny", load_in_4bit=False)
    asked = recipe(generation=generation, grpo={"save_total_limit": 1})
    with pytest.raises(RunError, match=rf"nan[\s\S]*workbench continue r` resumes from checkpoint-{step - 1}"):
        train(asked, policy=policy, task=task(), watchers=[Breaks(policy, step)])
    run = open_run("r")
    assert run.result()["status"] == "failed"
    assert not run.final.exists()
    for file in run.checkpoints.rglob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(file).values() if tensor.is_floating_point())
    continue_run(run, policy=load_policy("tiny", load_in_4bit=False), task=task())
    assert run.result()["status"] == "finished"


# -- its health --------------------------------------------------------------------------------------------------------
def picky_reward(completions, **kwargs):
    return [len(text[0]["content"]) / (len(text[0]["content"]) % 5) for text in completions]  # at times a division by 0


def told_by(run):
    return [event for event in standing(run.events()) if event["event"] in ("health", "reward_error")]


TWO = ({"name": "a", "steps": 3}, {"name": "b", "steps": 8})


@pytest.mark.parametrize(
    ("stages", "steps"),
    [((), [10]), *(pytest.param(stages, [2, 3, 10], marks=pytest.mark.slow) for stages in ((), TWO))],
    ids=["its last step", "one stage", "two"],
)
def test_a_run_that_goes_on_has_the_health_of_one_that_never_stopped(home, monkeypatch, stages, steps):
    policy = load_policy("tiny", load_in_4bit=False)
    monkeypatch.setattr("workbench.health.diagnosis.BUDGET", 1.0)  # a look after every step, however slow the machine is
    grpo = {"max_completion_length": 8, "max_steps": None if stages else 11, "save_total_limit": 11}
    asked = recipe(grpo=grpo, stages=list(stages), rewards={"on_error": "skip"})
    own = dataclasses.replace(task(), reward_funcs=[*task().reward_funcs, picky_reward], reward_weights=None)
    whole = train(asked, policy=policy, task=own)
    result = whole.result()
    assert "truncation" in {each["name"] for each in result["health"]}  # after 6 steps of a stage
    assert result["reward_errors"]["picky_reward"] > 5
    for step in steps:
        run = RunDirectory(shutil.copytree(whole.path, home / "runs" / f"from-{step}"))
        continue_run(run, policy=policy, task=own, checkpoint=f"checkpoint-{step}")
        for name in ("health", "reward_errors", "status", "steps"):
            assert run.result()[name] == result[name], (step, name)
        told = ([{**event, "time": ""} for event in told_by(each)] for each in (run, whole))
        assert next(told) == next(told)


# -- the disk ----------------------------------------------------------------------------------------------------------
Usage = namedtuple("Usage", "total used free")


def test_too_little_room_is_said_before_the_first_step_and_before_a_checkpoint(home, policy, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(resuming.shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 1000))
        with pytest.raises(RunError, match=r"0 MB are free[\s\S]*checkpoints need about"):
            train(recipe(), policy=policy, task=task())
        assert not any((home / "runs").iterdir())
        with pytest.raises(RunError, match="make room, then train again"):
            train(recipe(), policy=policy, task=task())
        left = iter([10**9] * 3)
        full.setattr(resuming.shutil, "disk_usage", lambda path: Usage(10**9, 0, next(left, 0)))
        with pytest.raises(RunError, match=r"make room, then `workbench continue r` resumes"):
            train(recipe(), policy=policy, task=task())
    run = open_run("r")
    assert [folder.name for folder in run.saved()] == ["checkpoint-2", "checkpoint-1"]
    continue_run(run, policy=policy, task=task())
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4]


OTHERS = [pytest.param(number, marks=pytest.mark.slow) for number in (errno.EROFS, errno.EDQUOT)]


@pytest.mark.parametrize("number", [errno.ENOSPC, *OTHERS])
def test_a_line_that_cannot_be_written_is_named_and_leaves_no_hole(home, policy, monkeypatch, number):
    write = RunDirectory.log_metrics

    def full(run, step, values):
        if step == 3:
            raise OSError(number, "as the system says it", str(run.path / "metrics.jsonl"))
        write(run, step, values)

    with monkeypatch.context() as broken:
        broken.setattr(RunDirectory, "log_metrics", full)
        with pytest.raises(RunError, match=r"runs/r/metrics.jsonl cannot be written: [\s\S]*workbench continue r"):
            train(recipe(grpo={"save_steps": 2}), policy=policy, task=task())
    run = open_run("r")
    assert [folder.name for folder in run.saved()] == ["checkpoint-2"]  # step 3 is not on record, so it is not saved
    continue_run(run, policy=policy, task=task())
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4]


def test_a_run_that_cannot_be_begun_leaves_nothing(home, policy, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")  # as a write says it, without the file

    monkeypatch.setattr("workbench.run.directory.write_json", full)
    with pytest.raises(RunError, match=r"runs/r cannot be written: the disk is full[\s\S]*train again"):
        train(recipe(), policy=policy, task=task())
    assert not any((home / "runs").iterdir())


# -- the same run ------------------------------------------------------------------------------------------------------
def edit(run, **changes) -> None:
    content = run.recipe().model_dump(mode="json")
    for name, value in changes.items():
        *parts, last = name.split("__")
        place = content
        for part in parts:
            place = place[part]
        place[last] = value
    Recipe.of(content).save(run.path / "recipe.yaml")


REFUSED = {
    "seed": 3, "grpo__beta": 0.5, "grpo__temperature": 0.5, "grpo__num_generations": 2, "grpo__per_device_train_batch_size": 16,
    "grpo__loss_type": "dr_grpo", "lora__r": 8, "lora__lora_alpha": 64, "reward_weights": {"correctness_reward": 5.0},
    "policy__load_in_4bit": True, "grpo__max_completion_length": 8, "max_prompt_length": 43,
}  # fmt: skip
HELD = {
    "grpo__learning_rate": 1.0, "grpo__lr_scheduler_type": "cosine", "grpo__warmup_steps": 3, "grpo__optim": "sgd",
    "grpo__weight_decay": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("name", [*REFUSED, *HELD])
def test_an_edit_that_makes_another_run_of_it_is_refused(run, policy, name):
    edit(run, **{name: (REFUSED | HELD)[name]}, grpo__max_steps=5)
    shown = name.replace("__", ".").replace("reward_weights", "reward_weights.correctness_reward")
    advice = "workbench control" if name in HELD else "accept_changes=True"
    with pytest.raises(RunError, match=rf"not as when it was begun: .*{shown}[\s\S]*{advice}"):
        continue_run(run, policy=policy, task=task())
    assert run.result()["status"] == "finished"
    if name in HELD:
        with pytest.raises(RunError, match="not as when it was begun"):
            continue_run(run, policy=policy, task=task(), accept_changes=True)


def test_an_accepted_edit_is_recorded_and_not_asked_about_again(run, policy, capsys):
    edit(run, seed=3, grpo__save_steps=2)
    continue_run(run, policy=policy, task=task(), steps=1, accept_changes=True)
    assert "not as when r was begun, and accepted: seed: 0 -> 3" in capsys.readouterr().out
    [told] = [event for event in run.events() if event["event"] == "changed"]
    assert (told["accepted"], told["shown"]) == (["seed: 0 -> 3"], ["grpo.save_steps: 1 -> 2"])
    assert continue_run(run, policy=policy, task=task(), steps=1).result()["steps"] == 6
    assert len([event for event in run.events() if event["event"] == "changed"]) == 1


def test_what_nobody_edited_is_no_edit(run):
    """A field that the version which began the run had not, and a task file that is found from another folder."""
    begun = run.manifest()["recipe"]
    del begun["generation"], begun["lora"]["lora_dropout"]
    run.update_manifest(recipe=begun | {"task": "mine/task.py"})
    moved = run.recipe().model_copy(update={"task": "/elsewhere/task.py"})
    assert changes.changed_since_begun(run, moved, [], latest_point(run)).refused == []
    other = run.recipe().model_copy(update={"task": "mine/other.py"})
    assert changes.changed_since_begun(run, other, [], latest_point(run)).refused == ["task: 'mine/task.py' -> 'mine/other.py'"]


@pytest.mark.slow
def test_after_an_accepted_number_of_generations_every_batch_is_read(run, policy):
    edit(run, grpo__num_generations=2)
    continue_run(run, policy=policy, task=task(), steps=1, accept_changes=True)
    assert [(batch.step, batch.num_generations) for batch in read_batches(run)] == [*((step, 4) for step in range(1, 5)), (5, 2)]
    assert run.manifest()["settings"]["in_force"]["num_generations"] == 2


@pytest.mark.slow
def test_another_weight_of_the_task_is_refused_and_once_accepted_it_is_the_runs(run, policy):
    weights = [7.0, *task().weights[1:]]
    other = dataclasses.replace(task(), reward_weights=weights)
    with pytest.raises(RunError, match=r"weight of correctness_reward: 1 -> 7"):
        continue_run(run, policy=policy, task=other, steps=1)
    continue_run(run, policy=policy, task=other, steps=1, accept_changes=True)
    assert continue_run(run, policy=policy, task=other, steps=1).result()["steps"] == 6


def test_another_template_is_refused_and_another_device_is_shown(run, policy):
    manifest = run.manifest()
    run.update_manifest(template="another", policy=manifest["policy"] | {"device": "cuda:0"})
    with pytest.raises(RunError, match=r"chat template was changed; device: cuda:0 -> the CPU"):
        continue_run(run, policy=policy, task=task(), steps=1)


def fewer(made):
    return {"rows": made.rows[:-1]}


def other_rewards(made):
    return {"reward_funcs": made.reward_funcs[:-1], "reward_weights": None}


def reversed_rows(made):
    return {"rows": made.rows[::-1]}


def other_answers(made):
    return {"rows": [{**row, "answer": "7"} for row in made.rows]}


@pytest.mark.parametrize("change", [fewer, reversed_rows, other_answers, other_rewards])
def test_another_task_is_another_run(run, policy, change):
    from dataclasses import replace

    changed = "(rows were changed|reward function .* was changed: .* -> none)"
    with pytest.raises(RunError, match=f"not as when it was begun: .*{changed}"):
        continue_run(run, policy=policy, task=replace(task(), **change(task())), steps=1)
