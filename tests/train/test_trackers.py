"""Trackers: what they show is what the run logged, and one that fails never stops a run."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest

from workbench.errors import RecipeError
from workbench.training.features.trackers import KNOWN, planned_trackers, tracker_callbacks
from workbench.training.policy import load_policy, trainer_classes
from workbench.training.precision import config_overrides

TRACKERS = [name for name in ("tensorboard", "trackio", "wandb") if importlib.util.find_spec(name)]
VARIABLES = (
    "TENSORBOARD_LOGGING_DIR", "TRACKIO_DIR", "WANDB_DIR", "WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT",
    "WANDB_SILENT", "WANDB_CONSOLE", "WANDB_INIT_TIMEOUT", "MLFLOW_TRACKING_URI",
    "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "RANK",
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny", backend="transformers", load_in_4bit=False)


def short_reward(completions, **kwargs):
    return [-float(len(completion[0]["content"])) for completion in completions]


def silent_reward(completions, **kwargs):
    return [None] * len(completions)


def run(policy, folder, report_to, name="r", stages=1, callbacks=None):
    """Two steps a stage with these trackers. Returns (lines of metrics as logged, notes, failures, trainer)."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback

    lines, failures = [], []

    class Lines(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            if "loss" in logs:
                logs["reward_std_in_group"] = 0.25 + state.global_step  # as the recorder adds its own
                lines.append(json.dumps({"step": state.global_step, **logs}))

    config_class, trainer_class = trainer_classes("transformers")
    settings = {
        "max_steps": 2, "num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 8,
        "report_to": "none", "save_strategy": "no", "logging_steps": 1, "gradient_checkpointing": False,
    }  # fmt: skip
    more = config_overrides("transformers", policy.compute_dtype, settings, cuda=False)
    rows = [{"prompt": [{"role": "user", "content": f"What is {n} + 1?"}]} for n in range(8)]
    notes = []
    if callbacks is None:
        callbacks, notes = tracker_callbacks(
            report_to, name, folder / "trackers", lambda tracker, error: failures.append((tracker, error))
        )
    try:
        for stage in range(stages):
            trainer = trainer_class(
                model=policy.model, processing_class=policy.tokenizer, reward_funcs=[short_reward, silent_reward],
                args=config_class(**settings, **more, output_dir=str(folder), disable_tqdm=True),
                train_dataset=Dataset.from_list(rows),
            )  # fmt: skip
            trainer.remove_callback(PrinterCallback)
            for callback in (Lines(), *callbacks):
                trainer.add_callback(callback)
            trainer.add_callback(_Offset(2 * stage))
            trainer.train()
    finally:
        for callback in callbacks:
            callback.close()
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()], notes, failures


def _Offset(steps):
    from transformers import TrainerCallback

    class Offset(TrainerCallback):
        """Step numbers go on through the stages."""

        def on_train_begin(self, args, state, control, **_):
            state.global_step, state.max_steps = steps, steps + 2

    return Offset()


def of_tensorboard(folder) -> dict:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        (scalar.step, tag.removeprefix("train/")): scalar.value
        for tag in events.Tags()["scalars"]
        for scalar in events.Scalars(tag)
    }


def of_trackio(folder) -> dict:
    import sqlite3

    [file] = folder.glob("*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("select run_name, metrics from metrics").fetchall()
    assert {name for name, _ in rows} == {"r"}
    return _by_step([json.loads(metrics) for _, metrics in rows])


def of_wandb(folder) -> dict:
    from wandb.proto import wandb_internal_pb2

    [file] = [file for file in folder.rglob("*.wandb") if "latest-run" not in file.parts]
    lines = []
    for data in _records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            lines.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
        if record.WhichOneof("record_type") == "run":
            assert record.run.display_name == "r"
    return _by_step(lines)


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


def assert_shows(folder, tracker, lines):
    shown = READ[tracker](folder / "trackers" / tracker)
    for line in lines:
        for key, value in line.items():
            if key != "step" and isinstance(value, int | float):
                assert shown[line["step"], key] == pytest.approx(value, rel=1e-5), (tracker, key)


@pytest.mark.slow
@pytest.mark.skipif(not TRACKERS, reason="no tracker is installed")
def test_each_tracker_shows_what_the_run_logged_and_a_second_run_is_its_own(policy, tmp_path, capfd):
    before = {key: os.environ.get(key) for key in VARIABLES}
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        lines, notes, failures = run(policy, folder, TRACKERS, stages=2 if name == "second" else 1)
        assert not failures
        assert [line["step"] for line in lines] == ([1, 2, 3, 4] if name == "second" else [1, 2])
        assert len(notes) == len(TRACKERS)
        assert all("reward_std_in_group" in line and line["rewards/silent_reward/mean"] is None for line in lines)
        for tracker in TRACKERS:
            assert any(note.startswith(f"{tracker}: in ") for note in notes)
            assert_shows(folder, tracker, lines)
    assert {key: os.environ.get(key) for key in VARIABLES} == before
    assert "already one" not in capfd.readouterr().err


@pytest.fixture
def fake(monkeypatch):
    """Puts a tracker of the test's own in the place of transformers' TensorBoard."""
    from transformers import TrainerCallback
    from transformers.integrations import integration_utils

    def put(**methods):
        made = type("Fake", (TrainerCallback,), {"seen": [], **methods})
        monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "tensorboard", made)
        return made

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: name == "tensorboard" or real(name, *more))
    return put


def breaks(*_, **__):
    raise ConnectionError("no route to host\nand more lines")


def exits(*_, **__):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"__init__": breaks}, "start: ConnectionError: no route to host"),
        ({"on_train_begin": breaks}, "train_begin: ConnectionError: no route to host"),
        ({"on_log": breaks}, "log: ConnectionError: no route to host"),
        ({"on_log": exits}, "log: SystemExit: 3"),
        ({"on_train_end": breaks}, "train_end: ConnectionError: no route to host"),
    ],
    ids=["start", "begin", "log", "exit", "end"],
)
def test_a_tracker_that_fails_is_said_once_and_the_run_is_whole(policy, tmp_path, fake, methods, said):
    fake(**methods)
    lines, _, failures = run(policy, tmp_path, "tensorboard")
    assert failures == [("tensorboard", said)]
    assert [line["step"] for line in lines] == [1, 2]
    assert "TENSORBOARD_LOGGING_DIR" not in os.environ


def test_a_tracker_sees_one_run_under_its_name_and_cannot_steer_it(policy, tmp_path, fake):
    def steers(self, args, state, control, **_):
        self.seen.append(("begin", args.run_name, args.report_to, args.project))
        control.should_training_stop = True

    def logs(self, args, state, control, logs=None, **_):
        self.seen.append(("log", state.global_step, "loss" in logs, None in logs.values()))
        logs.clear()

    def ends(self, args, state, control, **_):
        self.seen.append(("end", state.global_step))

    made = fake(on_train_begin=steers, on_log=logs, on_train_end=ends)
    lines, _, failures = run(policy, tmp_path, "tensorboard", name="mine", stages=2)
    assert not failures
    assert made.seen[0] == ("begin", "mine", ["tensorboard"], "grpo-workbench")
    assert [seen[0] for seen in made.seen].count("begin") == 1
    assert [seen[1:] for seen in made.seen if seen[0] == "log" and seen[2]] == [(n, True, False) for n in (1, 2, 3, 4)]
    assert made.seen[-1] == ("end", 4)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all("reward" in line for line in lines)


def test_a_run_that_is_aborted_still_ends_its_trackers(fake, tmp_path):
    made = fake(on_train_end=lambda self, *_, **__: self.seen.append("end"))
    [tracker], _ = tracker_callbacks("tensorboard", "r", tmp_path, lambda *_: None)
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == str(tmp_path / "tensorboard")
    tracker.on_train_begin(_args(), None, None)
    tracker.close()
    tracker.close()
    assert made.seen == ["end"]
    assert "TENSORBOARD_LOGGING_DIR" not in os.environ


def _args():
    from types import SimpleNamespace

    return SimpleNamespace(run_name=None, report_to=[], project="huggingface")


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
def test_an_unknown_tracker_is_an_error_with_the_nearest(report_to, said, tmp_path):
    with pytest.raises(RecipeError, match=said):
        tracker_callbacks(report_to, "r", tmp_path / "trackers", lambda *_: None)
    assert not (tmp_path / "trackers").exists()


@pytest.mark.parametrize("report_to", ["none", None, [], ["none"]])
def test_none_is_none(report_to, tmp_path):
    assert tracker_callbacks(report_to, "r", tmp_path / "trackers", lambda *_: None) == ([], [])
    assert not (tmp_path / "trackers").exists()


def test_one_that_is_not_installed_is_left_out_with_the_package_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "comet_ml" else True)
    names, notes = planned_trackers(["tensorboard", "comet_ml"])
    assert names == ["tensorboard"]
    assert notes == [
        "WARNING: report_to = comet_ml is left out: it is not installed (uv pip install comet-ml); the run's own files are "
        "written as always"
    ]


def test_what_is_known_of_trackers_is_of_trackers_that_there_are():
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    assert set(KNOWN) <= set(INTEGRATION_TO_CALLBACK)
    for name, known in KNOWN.items():
        assert set(known) <= {"modules", "package", "environment", "look"}, name
        assert ("environment" in known) == ("look" in known), name


def test_all_is_every_one_that_is_installed():
    assert set(planned_trackers("all")[0]) >= set(TRACKERS)


def test_what_the_user_set_stays(monkeypatch, fake, tmp_path):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "mine"))
    fake()
    [tracker], notes = tracker_callbacks("tensorboard", "r", tmp_path / "trackers", lambda *_: None)
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == str(tmp_path / "mine")
    assert notes == ["tensorboard: where the environment says"]
    tracker.close()
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == str(tmp_path / "mine")
    assert not (tmp_path / "trackers").exists()


def test_of_several_processes_one_reports(monkeypatch, fake, tmp_path):
    fake()
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert tracker_callbacks("tensorboard", "r", tmp_path / "trackers", lambda *_: None) == ([], [])
    assert not (tmp_path / "trackers").exists()


@pytest.mark.parametrize(("key", "mode"), [("", "offline"), ("0" * 40, None)])
def test_wandb_is_offline_unless_there_is_a_key(monkeypatch, key, mode, tmp_path):
    from workbench.training.features.trackers import _environment

    monkeypatch.setenv("WANDB_API_KEY", key)
    assert _environment("wandb", tmp_path / "wandb")[0].get("WANDB_MODE") == mode
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert "WANDB_MODE" not in _environment("wandb", tmp_path / "wandb")[0]
