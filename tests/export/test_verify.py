"""`workbench verify`: artefacts against their passports, and runs trained again to the bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from driving import waited_for
from made_artefacts import leave, made_artefact, made_run

from workbench.errors import ExportError
from workbench.exporting.artefacts import Artefact
from workbench.exporting.making import export
from workbench.exporting.passport import _write, read_passport
from workbench.exporting.verifying import verify
from workbench.recipe import Recipe
from workbench.run.control_file import send
from workbench.run.directory import RunDirectory
from workbench.training.policy import trainer_classes
from workbench.training.trainer import train

GRPO = {
    "max_steps": 3, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 32, "learning_rate": 1e-3,
    "beta": 0.01,
}  # fmt: skip
TASK = """
from workbench.task import Task
from workbench.tiny.task import task as arithmetic

task = Task("own", arithmetic(8, 4).rows, [function for function in arithmetic(8, 4).reward_funcs[:2]])
"""


def workbench(*arguments: str, home: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "workbench.cli", *arguments]
    environment = {**os.environ, "WORKBENCH_HOME": str(home)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=home)


def test_an_artefact_its_passport_or_all_of_a_run(home):
    run = made_run()
    first, second = made_artefact(run, "adapter"), made_artefact(run, "gguf_q8_0")
    found = verify(run.path)
    assert [each.artefact for each in found] == ["runs/r/export/adapter", "runs/r/export/gguf_q8_0"]
    assert all(each.passed for each in found)
    assert found[0].holds == (
        "5 files, byte by byte, and the passport itself",
        "the recipe is the run's",
        "the adapter is the run's",
    )
    assert str(found[0]).startswith("runs/r/export/adapter: verified\n  holds    5 files")
    assert verify(first.path / "passport.json") == found[:1]
    assert verify("r") == verify("latest") == found
    (second.path / "model.gguf").write_bytes(bytes(range(255, -1, -1)))
    assert [each.passed for each in verify("runs/r")] == [True, False]
    assert "DIFFERS  model.gguf was changed" in str(verify("runs/r")[1])
    # What is still being written is none yet.
    shutil.copytree(first.path, first.path.with_name(".merged_16bit.part"))
    assert len(verify("runs/r")) == 2


def test_the_run_that_it_lies_in_is_held_against_it(home):
    run = made_run()
    artefact = made_artefact(run)
    recipe = run.recipe()
    Recipe.of({**recipe.model_dump(), "seed": 9}).save(run.path / "recipe.yaml")
    assert verify(artefact.path)[0].differs == ("the recipe is no longer the run's",)
    recipe.save(run.path / "recipe.yaml")
    (run.final / "adapter_model.safetensors").write_bytes(b"gone on")
    assert verify(artefact.path)[0].differs == ("the adapter is not the run's, which may have gone on since the export",)
    shutil.rmtree(run.final)
    assert verify(artefact.path)[0].passed
    run.update_manifest(id="another")
    assert verify(artefact.path)[0].differs == ("it was made from another run than r, in whose folder it lies",)
    alone = shutil.copytree(artefact.path, home / "sent")
    assert verify(alone)[0].holds == ("4 files, byte by byte, and the passport itself",)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere", "no run or artefact of that name; looked in"),
        ("rr", "did you mean 'r'"),
        ("runs/r", "r: no artefact in runs/r/export"),
        ("runs/r/export", "r: no artefact in runs/r/export"),
        ("runs/r/rollouts", r"neither an artefact \(no passport.json\) nor a run"),
    ],
)
def test_where_there_is_no_artefact(home, path, said):
    made_run()
    with pytest.raises(ExportError, match=said):
        verify(path)


def test_exit_codes_and_json(home):
    artefact = made_artefact(made_run())
    good = workbench("verify", "runs/r", "--json", home=home)
    assert (good.returncode, json.loads(good.stdout)["passed"]) == (0, True)
    (artefact.path / "model.safetensors").write_bytes(b"")
    bad = workbench("verify", "runs/r/export/merged_16bit", home=home)
    assert (bad.returncode, "DIFFERS  model.safetensors was changed: 256 bytes then, 0 now" in bad.stdout) == (1, True)
    (artefact.path / "passport.json").write_bytes(b"{}")
    none = workbench("verify", "runs/r/export/merged_16bit", home=home)
    assert (none.returncode, none.stderr.startswith("ExportError: runs/r/export/merged_16bit/passport.json")) == (2, True)


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ({"attached": True}, "a trainer of somebody's own"),
        ({"policy": {"device": "NVIDIA T4"}}, "it was trained on NVIDIA T4"),
        ({"processes": 2}, "several processes"),
        ({"policy": {"device": "the CPU (1 threads)", "trained_in": ["before"]}}, "its policy had been trained before"),
        ({"result": {"status": "killed", "steps": 2}}, "its status is killed"),
        ({"task": {"name": "own", "source": "/gone/task.py"}}, "the task file task.py is not here"),
    ],
)
def test_what_cannot_be_trained_again_is_said_at_once(home, manifest, said):
    artefact = made_artefact(made_run(**manifest, recipe={"task": "/gone/task.py"} if "task" in manifest else None))
    with pytest.raises(ExportError, match=said):
        verify(artefact.path, rerun=True)


# -- trained again -----------------------------------------------------------------------------------------------------
@pytest.fixture
def as_shipped(monkeypatch):
    """Functions hash with what they stand on, and the tests have made that more patient here than it is elsewhere."""
    from workbench.rewards import compare

    monkeypatch.setattr(compare, "DEADLINE_S", 5.0)
    for function in (compare.same_answer, compare.verdicts):
        monkeypatch.setattr(function, "__defaults__", (5.0,))


def trained(recipe: dict, watchers=()) -> Artefact:
    asked = {"policy": {"backend": "transformers", "load_in_4bit": False}, **recipe, "grpo": {**GRPO, **recipe.get("grpo", {})}}
    run = train(Recipe.of(asked), watchers=list(watchers))
    return export(run, ["adapter"])["adapter"]


@pytest.mark.slow
def test_a_run_is_trained_again_from_its_passport_alone_and_a_forged_one_is_seen(home, as_shipped):
    artefact = trained({"run_name": "first", "seed": 3})
    sent = shutil.copytree(artefact.path, home / "sent")
    shutil.rmtree(home / "runs")
    seen = []
    [found] = verify(sent, rerun=True, progress=lambda done, total: seen.append((done, total)))
    assert found.passed, str(found)
    assert found.holds[1:] == (
        "the base as the run loaded it",
        "trained again: the metrics of 3 steps, to the bit", "trained again: 8 completions of the last step, the same",
        "trained again: the adapter, to the bit",
    )  # fmt: skip
    assert seen[:3] == [(0, 0), (0, 0), (0, 3)]  # it starts, has imported, and trains
    assert all(total == 3 for _, total in seen[2:])
    # Somebody who can write a file can also write its sum.
    passport = read_passport(sent)
    passport["recipe"]["seed"], passport["environment"]["torch"] = 4, "1.0"
    _write(sent, passport)
    assert verify(sent)[0].passed
    [found] = verify(sent, rerun=True)
    assert found.differs[0].startswith("trained again, its metrics differ from step 1 of 3 on; in the last "), str(found)
    assert found.differs[-1] == "trained again: the adapter is another one"
    assert any(line.startswith("torch: 1.0 then, ") for line in found.environment)
    assert "need not mean anything" in str(found)


class Steers:
    """Changes a weight after the first step, and stops after the second of three."""

    def begin(self, run: RunDirectory, total_steps: int, settings: dict) -> None:
        self.run = run

    def update(self, step: int, values: dict) -> None:
        if step == 1:
            send(self.run, "weight", by="test", function="correctness_reward", value=0.5)
            send(self.run, "stop", by="test")

    def end(self, message: str) -> None:
        pass


@pytest.mark.slow
def test_a_run_that_was_changed_and_stopped_on_a_task_of_ones_own(home, as_shipped):
    (home / "tasks").mkdir()
    (home / "tasks" / "task.py").write_text(TASK)
    trainer_classes("unsloth")  # imported, it changes the last bits, also of what transformers trains in the same process
    recipe = {"run_name": "own", "task": "tasks/task.py", "grpo": {"max_steps": 6, "lr_scheduler_type": "linear"}}
    artefact = trained(recipe, [Steers()])
    assert read_passport(artefact.path)["environment"]["backend"].endswith(", beside unsloth")
    assert read_passport(artefact.path)["result"]["status"] == "stopped"
    assert [change["value"] for change in read_passport(artefact.path)["changes"]] == [0.5]
    (home / "tasks" / "task.py").write_text("edited since")
    [found] = verify(artefact.path, rerun=True)  # by the run's own copy
    assert found.passed, str(found)
    sent = shutil.copytree(artefact.path, home / "sent")
    shutil.move(home / "tasks", home / "elsewhere")
    with pytest.raises(ExportError, match=r"the task file task\.py is not here"):
        verify(sent, rerun=True)
    other = home / "elsewhere" / "task.py"
    other.write_text(TASK.replace("(8, 4).rows", "(9, 4).rows"))
    [found] = verify(sent, rerun=True, task=other)
    assert found.differs[0].startswith("not the run's training rows: ")


@pytest.mark.slow
def test_an_interrupt_leaves_neither_a_process_nor_a_file(home, tmp_path_factory):
    artefact = made_artefact(made_run(recipe={"policy": {"backend": "transformers"}, "grpo": {"max_steps": 1000}}))
    scratch = tmp_path_factory.mktemp("scratch")
    before = leave(artefact.path)
    command = [sys.executable, "-m", "workbench.cli", "verify", "runs/r", "--rerun"]
    environment = {**os.environ, "WORKBENCH_HOME": str(home), "TMPDIR": str(scratch)}
    process = subprocess.Popen(command, env=environment, cwd=home, stderr=subprocess.PIPE)
    waited_for(lambda: next(scratch.glob("*/log.txt"), None))
    [child] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert not list(scratch.glob("workbench-*/*"))
    waited_for(lambda: not Path(f"/proc/{child}").exists())
    assert leave(artefact.path) == before
