"""Training in a separate process: the kernel stays idle, so buttons work in every front end; the
run outlives the kernel, and the GPU's memory is freed when training ends.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

from workbench.base.errors import RunError
from workbench.base.extras import need_train
from workbench.base.kinds import Fields
from workbench.base.workspace import made, renamed, resolve, shown, workspace, write_json
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.training.plan.presets import recipe_of

# Where the child says that its run exists, and where its output goes until then.
ANNOUNCE, LOG = "WORKBENCH_ANNOUNCE", "WORKBENCH_LOG"
LOG_NAME = "train.log"
_TAIL_BYTES = 4000
_FORGOTTEN_S = 7 * 24 * 3600


class Started:
    """A started run: its process, and the run as soon as it exists."""

    def __init__(self, process: subprocess.Popen, folder: Path) -> None:
        self.process, self._folder = process, folder
        self.poll = process.poll  # the exit code; None while it runs
        self._run: RunDirectory | None = None

    @property
    def run(self) -> RunDirectory | None:
        """The run; None while the process is still loading and checking."""
        if self._run is None and (told := self._folder / "run.json").is_file():
            self._run = RunDirectory(Path(json.loads(told.read_text(encoding="utf-8"))["run"]))
        return self._run

    def log_tail(self) -> str:
        """The end of what the process printed."""
        files = [run.path / LOG_NAME] if (run := self.run) else []
        files = [file for file in [*files, self._folder / LOG_NAME] if file.is_file()]
        printed = files[0].read_bytes()[-_TAIL_BYTES:] if files else b""
        return printed.decode("utf-8", "replace").replace("\r", "\n")

    @property
    def error(self) -> str:
        """The process's error when it failed; empty if it did not."""
        return self.log_tail().strip() if self.poll() not in (None, 0) else ""

    def wait(self, timeout_s: float | None = None) -> RunDirectory:
        """Wait until the run is over.

        Raises:
            RunError: if the process failed; holds the end of its output.
            subprocess.TimeoutExpired: if it is still running then.
        """
        self.process.wait(timeout_s)
        run = self.run
        if self.error or run is None:
            log = (run.path if run else self._folder) / LOG_NAME
            raise RunError(
                self.error or "no run was there",
                rule="a started run loads its policy, checks and trains",
                remedy=f"fix the error above; the full output: {shown(log)}",
            )
        return run

    def kill(self) -> None:
        """Kill the process at once; its latest checkpoint stays."""
        self.process.kill()
        self.process.wait()


def start(
    recipe: str | Path | Fields | Recipe | RunDirectory,
    *,
    runs: str | Path = "runs",
    steps: int | None = None,
) -> Started:
    """Train in another process, and return at once.

    >>> started = wb.start(wb.Recipe(grpo={"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8}))
    >>> run = started.wait()  # or wb.RunPanel(started)

    Args:
        recipe: what to train: a recipe, a mapping, a file, a preset's name; or a run to resume.
        runs: folder for the run directory.
        steps: for a resumed run: train this many steps more than its recipe says.

    Raises:
        RunError: for a name that no folder can have.
        RecipeError: for what is no recipe.
    """  # noqa: E501
    need_train()
    if not isinstance(recipe, RunDirectory):
        recipe = recipe_of(recipe)
    starting = resolve(runs) / ".starting"
    folder = starting / secrets.token_hex(4)
    made(folder)
    for old in starting.iterdir():
        if time.time() - old.stat().st_mtime > _FORGOTTEN_S:
            shutil.rmtree(old, ignore_errors=True)
    if isinstance(recipe, RunDirectory):
        words = ["continue", str(recipe.path)]
        words += ["--steps", str(steps)] if steps else []
    else:
        recipe.save(folder / "recipe.yaml")
        words = ["train", str(folder / "recipe.yaml"), "--runs", str(resolve(runs))]
    told = {
        ANNOUNCE: str(folder / "run.json"),
        LOG: str(folder / LOG_NAME),
        "PYTHONUNBUFFERED": "1",
    }
    with (folder / LOG_NAME).open("wb") as log:
        # Not in the kernel's process group: an Interrupt of a cell, or the kernel's end, is not
        # meant for the run.
        process = subprocess.Popen(
            [sys.executable, "-m", "workbench", *words],
            cwd=workspace(),
            env=os.environ | told,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Started(process, folder)


def announce(run: RunDirectory) -> None:
    """In the process that `start` made: report that the run exists, and move its output into the
    run's folder.
    """
    log, file = (os.environ.pop(name, None) for name in (LOG, ANNOUNCE))
    own = run.path / LOG_NAME
    if log and Path(log).is_file():
        if own.exists():  # of an earlier session
            renamed(own, own.with_suffix(".log.before"))
        renamed(Path(log), own)
    if file:
        write_json(file, {"run": str(run.path)})
