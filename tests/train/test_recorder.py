"""The recorder, by itself: what it lets through to the file."""

from __future__ import annotations

import os

import pytest
from killing import contents
from recording import record
from running import Running

from workbench.base.errors import RunError
from workbench.health import RunConfig, Verdict, Watchdog
from workbench.recipe import Recipe
from workbench.run import parts
from workbench.run.directory import RunDirectory
from workbench.run.metrics import KL
from workbench.run.rollouts import query
from workbench.task import Task
from workbench.training import recorder as recorder_module
from workbench.training.features.watchdog import words_of
from workbench.training.recorder import Recorder


@pytest.mark.parametrize(
    ("measures_kl", "rows"), [(True, [{"step": 1, "loss": 0.0, "kl": 0.0}]), (False, [{"step": 1, "loss": 0.0}])]
)
def test_a_kl_that_nobody_measured_is_not_recorded_as_zero(home, measures_kl, rows):
    """Unsloth's GPU trainer logs one when beta is 0."""
    run = RunDirectory.create("r", Recipe(), {})
    recorder = Recorder(run, eos_ids=[2])
    recorder.measures_kl = measures_kl
    recorder.log(1, {"loss": 0.0, KL: 0.0})
    assert run.metrics() == rows


def test_the_end_line_names_the_functions(home):
    watchdog = Watchdog(RunConfig)
    kinds = [("reward_cannot_pay", "tag"), ("reward_cannot_pay", "right"), ("kl_runaway", ""), ("length_drift", "")]
    states = ["warning", "warning", "warning", "ok"]
    watchdog.verdicts = [Verdict(name, state, "", function=own) for (name, own), state in zip(kinds, states, strict=True)]
    words = words_of(watchdog, "r")
    assert words.startswith("; warning: rewards that add nothing (tag, right), warning: runaway KL (`workbench watch")


ROWS = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1), "prompt_id": f"p{n}"} for n in range(4)]


def length_reward(completions, **kwargs):
    return [float(len(text)) for text in completions]


def test_parts_of_older_steps_are_merged_while_it_trains(home, monkeypatch):
    task = Task("t", ROWS, [length_reward])
    batches = [[(ROWS[step % 4], ["a" * step, "b"])] for step in range(1, 24)]
    plain = record(task, batches, name="plain")
    for module in (parts, recorder_module):
        monkeypatch.setattr(module, "MERGE", 5)
    handles = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    merged = record(task, batches, name="merged")
    names = sorted(part.name[5:-8] for part in merged.rollouts.iterdir())
    assert names == [f"{end - 4:07d}-to-{end:07d}" for end in (5, 10, 15, 20)] + [f"{step:07d}-00" for step in (21, 22, 23)]
    assert query(plain.rollouts).equals(query(merged.rollouts))
    assert handles == 0 or len(os.listdir("/proc/self/fd")) <= handles + 2  # its worker's and its lock's


def test_a_run_that_somebody_else_owns_by_now_gets_no_part_and_no_row(home):
    running = Running()
    running.step()
    (running.run.path / "lock").unlink()  # as where a drive is shared, and the owner was silent for too long
    other = RunDirectory(running.run.path)
    other.reopen(1)
    before = contents(other.path)
    with pytest.raises(RunError, match="taken over by a process"):
        running.step()
    for late in (lambda: running.recorder.log(2, {}), running.run.went_on, lambda: running.recorder.event("checkpoint", 2)):
        with pytest.raises(RunError, match="taken over by a process"):
            late()
    running.run.put_back()
    running.run.release()
    assert contents(other.path) == before
    assert other.live
    running.suite.close()


def test_a_run_whose_parts_cannot_be_merged_goes_on(home, monkeypatch):
    def full(own, steps=None):
        raise OSError(28, "No space left on device")

    for module in (parts, recorder_module):
        monkeypatch.setattr(module, "MERGE", 2)
    monkeypatch.setattr(parts, "_write_merged", full)
    run = record(Task("t", ROWS, [length_reward]), [[(ROWS[0], ["a", "b"])]] * 7)
    assert len(list(run.rollouts.iterdir())) == 7
    assert len(query(run.rollouts)) == 14
