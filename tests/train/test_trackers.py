"""Trackers: what they show is what the run logged, and one that fails never stops a run."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import workbench as wb
from workbench.base.errors import RecipeError
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.training.features.trackers import Trackers

TRACKERS = [name for name in ("tensorboard", "trackio", "wandb") if importlib.util.find_spec(name)]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)


def of_tensorboard(folder) -> dict:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "trackers"))
    events.Reload()
    return {
        (scalar.step, tag.removeprefix("train/")): scalar.value
        for tag in events.Tags()["scalars"]
        for scalar in events.Scalars(tag)
    }


def of_trackio(folder) -> dict:
    import sqlite3

    [file] = (folder.parents[1] / "trackio").glob("*.db")
    assert file.stem == "grpo-workbench"
    with sqlite3.connect(file) as database:
        rows = database.execute("select metrics from metrics where run_name = ?", [folder.name]).fetchall()
    return _by_step([json.loads(metrics) for [metrics] in rows])


def of_wandb(folder) -> dict:
    files = folder.parents[1].glob("wandb/offline-run-*/*.wandb")
    [lines] = [lines for name, lines in map(_of_file, files) if name == folder.name]
    return _by_step(lines)


def _of_file(file) -> tuple[str, list[dict]]:
    from wandb.proto import wandb_internal_pb2

    name, lines = "", []
    for data in _records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            lines.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
        if record.WhichOneof("record_type") == "run":
            name = record.run.display_name
    return name, lines


def _records(log: bytes):
    """The records of a LevelDB log, which wandb's file is: pieces of (checksum, length, kind) in blocks of 32 KiB."""
    block, header, at, record = 32 * 1024, 7, 7, b""  # the file begins with 7 bytes of its own
    while at + header <= len(log):
        if block - at % block < header:
            at += block - at % block
            continue
        length, kind = int.from_bytes(log[at + 4 : at + 6], "little"), log[at + 6]
        record += log[at + header : at + header + length]
        at += header + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def _by_step(lines: list[dict]) -> dict:
    return {
        (line["train/global_step"], key.removeprefix("train/")): value
        for line in lines
        for key, value in line.items()
        if isinstance(value, int | float) and "train/global_step" in line and key.startswith("train/")
    }


READ = {"tensorboard": of_tensorboard, "trackio": of_trackio, "wandb": of_wandb}
GRPO = {"max_steps": 2, "num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 8}
TWO_RUNS = f"""
import sys
import workbench as wb
from workbench.tiny.task import task


def silent_reward(completions, **kwargs):
    return [None] * len(completions)


if __name__ == "__main__":
    made = task(16, 2)
    made = wb.Task("sums", made.rows, [*made.reward_funcs, silent_reward])
    asked = {{"policy": {{"load_in_4bit": False}}, "grpo": {{**{GRPO!r}, "report_to": sys.argv[1:]}}}}
    stages = [{{"name": "one", "steps": 2}}, {{"name": "two", "steps": 2}}]
    for name, more in {{"first": {{}}, "second": {{"stages": stages}}}}.items():
        if more:
            asked["grpo"].pop("max_steps")
        wb.train(wb.Recipe.of({{**asked, **more, "run_name": name}}), task=made, watchers=[])
"""


@pytest.mark.slow
@pytest.mark.skipif(not TRACKERS, reason="no tracker is installed")
def test_each_tracker_shows_what_the_run_logged_and_a_second_run_is_its_own(home):
    (home / "two_runs.py").write_text(TWO_RUNS)
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(home), "TRACKIO_DIR": str(home / "trackio")}
    done = subprocess.run([sys.executable, "two_runs.py", *TRACKERS], cwd=home, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, steps in {"first": [1, 2], "second": [1, 2, 3, 4]}.items():
        run = wb.open_run(name)
        assert "tracker_failed" not in {event["event"] for event in run.events()}
        rows = run.metrics()
        assert [row["step"] for row in rows] == steps
        for tracker in TRACKERS:
            shown = READ[tracker](run.path)
            assert {step for step, _ in shown} == set(steps)
            for row in rows:
                for key, value in row.items():
                    if key != "step" and isinstance(value, int | float):
                        assert shown[row["step"], key] == pytest.approx(value, rel=1e-5), (tracker, key)


@pytest.fixture
def fake(monkeypatch):
    """Puts a tracker of the test's own in the place of transformers' TensorBoard."""
    from transformers import TrainerCallback
    from transformers.integrations import integration_utils

    def put(**methods):
        made = type("Fake", (TrainerCallback,), {"seen": [], **methods})
        monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "tensorboard", made)
        return made

    return put


def of(run, report_to) -> Trackers:
    """The feature as a session of this run makes it."""
    return Trackers(SimpleNamespace(run=run, stages=[SimpleNamespace(settings={"report_to": report_to})]))


def tell(trackers, steps=(1, 2), stages=1, control=None):
    """What a trainer of each stage tells; a run's steps go on through its stages. Returns what was logged."""
    logged, args = [], SimpleNamespace()
    for stage in range(stages):
        told = args, SimpleNamespace(global_step=0, is_world_process_zero=True), control
        trackers.on_train_begin(*told, model=None)
        for step in steps:
            told[1].global_step = stage * len(steps) + step
            logged.append({"loss": 0.5, "silent": None})
            trackers.on_log(*told, logs=logged[-1])
        trackers.on_train_end(*told)
    return logged


def breaks(*_, **__):
    raise ConnectionError("no route to host\nand more lines")


def exits(*_, **__):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"__init__": breaks}, "start: ConnectionError: no route to host"),
        ({"on_train_begin": breaks}, "on_train_begin: ConnectionError: no route to host"),
        ({"on_log": breaks}, "on_log: ConnectionError: no route to host"),
        ({"on_log": exits}, "on_log: SystemExit: 3"),
        ({"on_train_end": breaks}, "on_train_end: ConnectionError: no route to host"),
    ],
    ids=["start", "begin", "log", "exit", "end"],
)
def test_a_tracker_that_fails_is_said_once_and_training_goes_on(home, fake, capsys, methods, said):
    fake(**methods)
    run = RunDirectory.create("r", Recipe(), {})
    trackers = of(run, "tensorboard")
    tell(trackers)
    trackers.close()
    assert [(event["tracker"], event["error"]) for event in run.events()] == [("tensorboard", said)]
    assert f"tensorboard failed and is left out, training continues: {said}" in capsys.readouterr().out


def test_a_tracker_sees_one_run_under_its_name_and_cannot_steer_it(home, fake):
    def steers(self, args, state, control, **_):
        self.seen.append(("begin", args.run_name, args.project))
        control.should_training_stop = True

    def logs(self, args, state, control, logs=None, **_):
        self.seen.append(("log", state.global_step, dict(logs)))
        logs.clear()

    def ends(self, args, state, control, **_):
        self.seen.append(("end", state.global_step))

    made = fake(on_train_begin=steers, on_log=logs, on_train_end=ends)
    control = SimpleNamespace(should_training_stop=False)
    trackers = of(RunDirectory.create("mine", Recipe(), {}), "tensorboard")
    logged = tell(trackers, stages=2, control=control)
    trackers.close()
    trackers.close()
    steps = [("log", step, {"loss": 0.5}) for step in (1, 2, 3, 4)]
    assert made.seen == [("begin", "mine", "grpo-workbench"), *steps, ("end", 4)]
    assert logged == [{"loss": 0.5, "silent": None}] * 4
    assert not control.should_training_stop


@pytest.mark.slow
@pytest.mark.parametrize("methods", [{"__init__": breaks}, {"on_log": exits}], ids=["start", "log"])
def test_a_run_whose_tracker_fails_is_whole(home, fake, methods):
    fake(**methods)
    run = wb.train(Recipe.of({"policy": {"load_in_4bit": False}, "grpo": {**GRPO, "report_to": "tensorboard"}}), watchers=[])
    assert run.result()["status"] == "finished"
    assert [row["step"] for row in run.metrics()] == [1, 2]
    assert [event["tracker"] for event in run.events() if event["event"] == "tracker_failed"] == ["tensorboard"]


@pytest.mark.parametrize(
    ("report_to", "said"),
    [
        ("aim", "grpo.report_to = 'aim'"),
        ("wandbb", r"(?s)grpo.report_to = 'wandbb'.*did you mean 'wandb'\?"),
        (["tensorboard", "tensorbord"], r"(?s)'tensorbord'.*did you mean 'tensorboard'\?"),
        (["all", "none"], "(?s)'all'"),
        (7, "grpo.report_to = 7"),
    ],
)
def test_an_unknown_tracker_is_an_error_with_the_nearest(report_to, said):
    with pytest.raises(RecipeError, match=said):
        Trackers.plan(SimpleNamespace(stages=[SimpleNamespace(settings={"report_to": report_to})]))


@pytest.mark.parametrize("report_to", ["none", None, [], ["none"]])
def test_none_is_none(home, report_to):
    assert of(RunDirectory.create("r", Recipe(), {}), report_to).working == {}


def test_one_that_is_not_installed_is_left_out_with_what_to_install(home, capsys):
    run = RunDirectory.create("r", Recipe(), {})
    assert of(run, ["comet_ml"]).working == {}
    [event] = run.events()
    assert (event["event"], event["tracker"]) == ("tracker_failed", "comet_ml")
    assert "comet-ml" in event["error"]


def test_all_is_every_one_that_is_installed(home):
    assert {*of(RunDirectory.create("r", Recipe(), {}), "all").working} >= {*TRACKERS}


@pytest.mark.skipif("tensorboard" not in TRACKERS, reason="no TensorBoard is installed")
def test_tensorboard_writes_beside_the_record_unless_the_environment_says_otherwise(home, monkeypatch):
    run = RunDirectory.create("r", Recipe(), {})
    assert of(run, "tensorboard").working["tensorboard"].logging_dir == str(run.path / "trackers")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(home / "mine"))
    assert of(run, "tensorboard").working["tensorboard"].logging_dir == str(home / "mine")


def test_of_several_processes_one_reports(home, monkeypatch, fake):
    fake()
    run = RunDirectory.create("r", Recipe(), {})
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert of(run, "tensorboard").working == {}
