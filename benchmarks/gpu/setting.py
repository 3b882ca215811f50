"""What every part of the suite is given: the device, the sizes, where results go, and how long it
may take.

A part writes its JSON again after everything that it has measured, so a call that is killed leaves
what it had.
"""

from __future__ import annotations

import functools
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.hardware import device_facts

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("notebooks", "controls", "arms", "memory", "learning")
ALL = "all.json"
Contents = dict[str, dict[str, Any]]  # of the suite's files, by their names in the out folder


@dataclass(frozen=True)
class Sizes:
    """How large everything is. Lengths are in tokens, completions are those of one step."""

    # arms: the model's configuration is in models.py
    prompt: int
    completions: tuple[int, int]  # the lengths at which a step is measured
    warmup: int  # steps that are dropped, where there are others
    most: int  # steps that are measured
    # of a unit, by length: no step is begun that would end later, but two at the short length
    arm_s: tuple[int, int]
    start_s: int  # guess of what a process needs before its first step
    # notebooks: parameters over the notebooks' own
    notebooks: dict[str, dict[str, Any]]
    gain: bool  # whether the demo is long enough to demand one
    # controls
    steps: int  # at least 7: one is changed in each of the first five
    continued_steps: int  # of the run that is stopped half way
    control_batch: int
    control_tokens: int
    # learning
    width: int
    layers: int
    inner: int
    taught_steps: int
    taught_rows: int  # of one step
    taught_s: int
    learned_steps: int
    learned_batch: int
    held_out: int
    samples: int


FULL = Sizes(
    prompt=200,
    completions=(512, 2048),
    warmup=1,
    most=6,
    arm_s=(45, 90),
    start_s=45,
    notebooks={},
    gain=True,
    steps=8,
    continued_steps=8,
    control_batch=64,
    control_tokens=96,
    width=640,
    layers=10,
    inner=1792,
    taught_steps=1200,
    taught_rows=256,
    taught_s=130,
    learned_steps=60,
    learned_batch=128,
    held_out=200,
    samples=4,
)
TOY = Sizes(
    prompt=24,
    completions=(16, 32),
    warmup=1,
    most=2,
    arm_s=(0, 0),  # so that every unit is ended by the clock
    start_s=1,
    notebooks={
        "01_dataset": {"rows_wanted": 300, "profile_prompts": 4},
        "03_train": {"max_steps": 2, "per_device_train_batch_size": 16},
        "04_inspect": {"held_out": 16, "samples": 2},
        "05_export": {"prompts_to_prove": 2},
    },
    gain=False,
    steps=7,
    continued_steps=4,
    control_batch=16,
    control_tokens=24,
    width=64,
    layers=1,
    inner=128,
    taught_steps=6,
    taught_rows=16,
    taught_s=20,
    learned_steps=3,
    learned_batch=16,
    held_out=8,
    samples=2,
)


@dataclass(frozen=True)
class Setting:
    """One call of the suite.

    Args:
        device: "cuda" or "cpu".
        out: folder for the JSON files.
        work: folder for models and runs; large, and worth keeping between the calls of one loan.
        deadline: on `time.monotonic()`'s clock; nothing that would end after it is begun.
        fresh: whether each part, and each of the arms' backends and precisions, has a process of
            its own.
        only: of the arms, those whose name holds one of these texts; none: all.
    """

    device: str
    sizes: Sizes
    out: Path
    work: Path
    deadline: float
    fresh: bool
    only: tuple[str, ...] = ()

    @property
    def toy(self) -> bool:
        """Whether the sizes show only that everything runs."""
        return self.sizes is TOY

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def wants(self, name: str) -> bool:
        """Whether an arm of this name was asked for."""
        return not self.only or any(text in name for text in self.only)

    def left_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline - time.monotonic()

    def read(self, name: str) -> dict[str, Any] | None:
        """One of the suite's JSON files; None if it is not there yet."""
        return read(self.out / name)

    def write(self, name: str, content: dict[str, Any]) -> Path:
        """Write one of the suite's JSON files, whole or not at all, with machine, device, versions,
        date and commit.
        """
        from workbench.base.workspace import to_json, write_json

        return write_json(
            self.out / name,
            self._without_paths(to_json({**_stamp(self.device), "toy": self.toy, **content})),
        )

    def collect(self) -> Path:
        """Write everything that was found so far into one file, whole or not at all."""
        from workbench.base.workspace import write_json

        # Parts that run side by side do this, too.
        beside = write_json(self.out / f".{ALL}-{os.getpid()}", {"files": contents(self.out)})
        return beside.replace(self.out / ALL)

    def _without_paths(self, value: Any) -> Any:
        # Results are passed on, and whose folders they were made in is nobody's business.
        if isinstance(value, dict):
            return {key: self._without_paths(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._without_paths(each) for each in value]
        if isinstance(value, str):
            for folder, word in (
                (self.work, "WORK"),
                (self.out, "OUT"),
                (ROOT, "."),
                (Path.home(), "~"),
            ):
                value = value.replace(f"{folder}/", f"{word}/")
        return value


def read(file: Path) -> dict[str, Any] | None:
    """A JSON file's content; None if there is no such file."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def contents(path: Path) -> Contents:
    """What a folder of results holds, or an `all.json`: of a folder without other files, its
    own.
    """
    if path.is_dir():
        files = [
            file for file in (*path.glob("*.json"), *path.glob("arms/*.json")) if file.name != ALL
        ]
        if files or not (path / ALL).is_file():
            return {file.relative_to(path).as_posix(): read(file) or {} for file in sorted(files)}
        path = path / ALL
    return (read(path) or {}).get("files", {})


@functools.cache
def _stamp(device: str) -> dict[str, Any]:
    from measuring import stamp

    return {**stamp(), "device": device_facts(device)}


class Checks:
    """What a part found to be so or not. `passed` is None for what could not be looked at here."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def note(self, name: str, passed: bool | None, found: Any = None) -> bool | None:
        """Take note of one check, with what was found; returns `passed`."""
        self.found.append(
            {"name": name, "passed": None if passed is None else bool(passed), "found": found}
        )
        return passed

    @property
    def failed(self) -> list[str]:
        """Names of the checks that did not hold."""
        return [check["name"] for check in self.found if check["passed"] is False]


def trainer_is(trainer: str, whose: str) -> bool:
    """Whether a trainer's full name (module and class) says that it is Unsloth's ("unsloth") or
    TRL's own ("trl").
    """
    unsloth = "unsloth" in trainer.lower()
    return unsloth if whose == "unsloth" else not unsloth and trainer.startswith("trl.")
