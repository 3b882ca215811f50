"""Training in a process of its own: the notebook's kernel stays idle, and the run outlives it.

`start` does what `workbench train` does. Buttons work in an idle kernel in every front end, a kernel restart ends nothing,
and the GPU's memory comes back when the run is over.
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

from workbench.errors import RunError
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory, check_name
from workbench.workspace import resolve, shown, workspace, write_json

# Where the child says that its run exists, and where its output goes until then.
ANNOUNCE, LOG = "WORKBENCH_ANNOUNCE", "WORKBENCH_LOG"
LOG_NAME = "train.log"
_TAIL_BYTES = 4000
_FORGOTTEN_S = 7 * 24 * 3600


class Started:
    """A run that was started: the process, and the run as soon as it exists."""

    def __init__(self, process: subprocess.Popen, folder: Path) -> None:
        self.process, self._folder = process, folder
        self._run: RunDirectory | None = None

    @property
    def run(self) -> RunDirectory | None:
        """The run; None while the process still loads and checks."""
        if self._run is None and (self._folder / "run.json").is_file():
            self._run = RunDirectory(Path(json.loads((self._folder / "run.json").read_text(encoding="utf-8"))["run"]))
        return self._run

    def poll(self) -> int | None:
        """The process's exit code; None while it runs."""
        return self.process.poll()

    def log_tail(self) -> str:
        """The end of what the process printed."""
        for file in ([self.run.path / LOG_NAME] if self.run else []) + [self._folder / LOG_NAME]:
            if file.is_file():
                return file.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace").replace("\r", "\n")
        return ""

    @property
    def error(self) -> str:
        """What the process said when it failed; empty if it did not."""
        return self.log_tail().strip() if self.poll() not in (None, 0) else ""

    def wait(self, timeout_s: float | None = None) -> RunDirectory:
        """Wait until the run is over.

        Raises:
            RunError: if the process failed; with the end of its output.
            subprocess.TimeoutExpired: if it still runs then.
        """
        self.process.wait(timeout_s)
        run = self.run
        if self.error or run is None:
            raise RunError(
                self.error or "the run was not there in time",
                rule="a run that is started loads its policy, checks everything, and trains",
                remedy="fix the error above; the full output is in " + shown((run.path if run else self._folder) / LOG_NAME),
            )
        return run

    def kill(self) -> None:
        """End the process at once; what its latest checkpoint holds stays."""
        self.process.kill()
        self.process.wait()


def start(recipe: Recipe | RunDirectory, *, runs: str | Path = "runs", steps: int | None = None) -> Started:
    """Train in another process, and return at once.

    >>> started = wb.start(wb.Recipe(grpo={"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8}))
    >>> run = started.wait()  # or wb.RunPanel(started)

    Args:
        recipe: what to do; or a run, to go on with it.
        runs: folder for the run directory.
        steps: for a run that goes on: so many steps more than its recipe says.

    Raises:
        RunError: for a name that cannot be a folder's.
    """
    starting = resolve(runs) / ".starting"
    folder = starting / secrets.token_hex(4)
    folder.mkdir(parents=True)
    for old in starting.iterdir():
        if time.time() - old.stat().st_mtime > _FORGOTTEN_S:
            shutil.rmtree(old, ignore_errors=True)
    if isinstance(recipe, RunDirectory):
        command = ["continue", str(recipe.path), *(["--steps", str(steps)] if steps else [])]
    else:
        check_name(recipe.run_name)
        recipe.save(folder / "recipe.yaml")
        command = ["train", str(folder / "recipe.yaml"), "--runs", str(resolve(runs))]
    with (folder / LOG_NAME).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "workbench.cli", *command],
            cwd=workspace(),
            env={
                **os.environ,
                ANNOUNCE: str(folder / "run.json"),
                LOG: str(folder / LOG_NAME),
                "PYTHONUNBUFFERED": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Not in the kernel's process group: an Interrupt of a cell, or the kernel's end, is not meant for the run.
            start_new_session=True,
        )
    return Started(process, folder)


def announce(run: RunDirectory) -> None:
    """In the process that `start` made: say that the run exists, and put its output into the run's folder."""
    log, file = os.environ.pop(LOG, None), os.environ.pop(ANNOUNCE, None)
    if log and Path(log).is_file():
        if (run.path / LOG_NAME).exists():  # of an earlier session
            (run.path / LOG_NAME).replace(run.path / f"{LOG_NAME}.before")
        os.replace(log, run.path / LOG_NAME)
    if file:
        write_json(file, {"run": str(run.path)})
