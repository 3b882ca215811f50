"""What is left of a run that is killed (SIGKILL) at any moment and then goes on: the workbench's,
and stock TRL's.

    uv run python benchmarks/kills.py [--kills 200] [--trl 40] [--config plain "4-bit"] [--seed 0]
    [--keep FOLDER] [--json]

Short runs on the embedded policy (6 to 8 steps of 8 completions, saved every two steps unless the
configuration says otherwise) are killed once, in 30 % of the tries two or three times, and go on
each time in a fresh process. What they leave at the end (rows of metrics without times, every
column of every rollout, the adapter's bytes, the result without times, the events of its health,
which here is looked at after every step) is compared with the same run that nobody killed; that one
is trained twice first, and must equal itself. Every try is a fork of one process that has imported
the libraries and loaded the policies, so its adapter is new and its random states are others each
time.

When: at any time; at any file operation, also those of the end alone; after scoring; around the
optimiser's step; and with a Parquet part, weights, or a line cut in the middle. Which of them, and
which of how many, follows from --seed.

    exact      nothing differs
    none yet   refused with the reason: no checkpoint was saved before the first kill, or not even
    the run was begun said       something differs, and the run says so itself (`inexact` in its
    event `continued`) different  something differs, and nothing says so
    trained    refused, because "all steps are trained", although the run never ended
    raw        a traceback instead of a reason
    lost       it cannot go on although a whole checkpoint had been saved

The last four are failures of the workbench: the exit code is then 1, and their folders are kept.
Stock TRL is trl.GRPOTrainer with the same model, settings and rewards, its own checkpoints, and
`trainer.train(resume_from_checkpoint=True)`; with beta 0, its default, but for one configuration.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import hashlib
import importlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process with threads cannot be forked

import measuring
from measuring import Line

GRPO = {
    "max_steps": 6, "num_generations": 4, "per_device_train_batch_size": 8,
    "max_completion_length": 24, "save_steps": 2,
    "learning_rate": 1e-3, "beta": 0.01, "lr_scheduler_type": "cosine", "warmup_steps": 1,
    "gradient_checkpointing": False,
}  # fmt: skip
# Two prompts a step of eight: an epoch is four steps.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two epochs": {"grpo": {"max_steps": -1, "num_train_epochs": 2}},
    "accumulation 2": {
        "grpo": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    },
    "steps_per_generation 4": {
        "grpo": {"steps_per_generation": 4, "max_steps": 8, "save_steps": 4}
    },
    "num_iterations 2": {"grpo": {"num_iterations": 2}},
    "logging_steps 2": {"grpo": {"logging_steps": 2}},
    "stages": {
        "grpo": {"max_steps": None},
        "stages": [
            {"name": "a", "steps": 3, "reward_weights": {"length_reward": 0.0}},
            {"name": "b", "steps": 4},
        ],
    },
    "4-bit": {"policy": {"load_in_4bit": True}},
    "adaptive weights": {
        "grpo": {"max_steps": 8},
        "adaptive_weights": {"strict_format_reward": {"every": 1, "below": 0.9}},
    },
    "saved within a generation": {"grpo": {"steps_per_generation": 4}},
}
OURS, THEIRS = "workbench", "TRL"
WITH_KL = "plain, beta 0.01"
TRLS = [
    *(
        name
        for name, config in CONFIGURATIONS.items()
        if not config.keys() & {"stages", "adaptive_weights"}
    ),
    WITH_KL,
]
OUTCOMES = ("exact", "none yet", "said", "different", "trained", "raw", "lost")
FAILURES = OUTCOMES[3:]
# How many of a hundred kills. The rest are at a random time.
MOMENTS = {
    "file": 27,
    "end": 12,
    "optimizer": 6,
    "scored": 6,
    "Parquet cut": 6,
    "weights cut": 8,
    "line cut": 5,
}
LIMIT_S = 600.0  # for one process of a try; none that works takes so long
TIMES = (
    "step_time",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "total_flos",
)
# Of a result: what the clock says, and how the session that ended it has generated and computed.
OF_A_SESSION = (
    "minutes", "paused_s", "rewards_s", "rewards_s_by_function", "hooks_s", "hooks_share",
    "drawing_s", "generation", "unpadded",
)  # fmt: skip
REASONS = r"no checkpoint to resume from|no run '"


class Kill(NamedTuple):
    """When to kill: at the `number`-th of a moment, a file cut after that `part`; moment "time":
    after that part of a run.
    """

    moment: str
    number: int
    part: float


class Ended(NamedTuple):
    """How a process ended: "killed", "finished", "failed" or "hung"; and an error's type and
    text.
    """

    how: str
    error: str = ""
    said: str = ""


class Whole(NamedTuple):
    """A run that nobody killed: what it leaves, how long it took, and how often each moment
    came.
    """

    left: dict[str, Any]
    seconds: float
    moments: dict[str, int]


# --- the moments
# --------------------------------------------------------------------------------------------------


class Moments:
    """Counts them in this process, below `root`, and kills it at one of them."""

    active: Moments | None = None

    def __init__(self, root: Path, kill: Kill | None) -> None:
        self.root, self.kill, self.counts, self.ending = str(root), kill, Counter[str](), False

    def due(self, moment: str) -> bool:
        self.counts[moment] += 1
        return self.kill is not None and (self.kill.moment, self.kill.number) == (
            moment,
            self.counts[moment],
        )

    def file(self, path: str) -> None:
        self.ending = self.ending or "/final" in path or "/.final" in path
        # Both are counted, whichever is waited for.
        if any([self.due("file"), self.ending and self.due("end")]):
            die()

    def cut(self, moment: str, path: Any) -> None:
        """A file that was just written, whole."""
        if self.due(moment):
            os.truncate(path, int(os.path.getsize(path) * self.kill.part))
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _audited(event: str, args: tuple[Any, ...]) -> None:
    if Moments.active is None or event not in {
        "open",
        "os.rename",
        "os.remove",
        "os.mkdir",
        "os.rmdir",
        "os.truncate",
    }:
        return
    if event == "open" and not (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return
    # Within shutil.rmtree a name stands alone, relative to a handle.
    path = os.fsdecode(args[0]) if isinstance(args[0], str | bytes) else ""
    if path.startswith(Moments.active.root) or (
        path and event in {"os.remove", "os.rmdir"} and args[1] != -1
    ):
        Moments.active.file(path)


def watch() -> None:
    """Have this process, and those forked from it, notice the moments: once, it cannot be
    undone.
    """
    import peft.peft_model
    import pyarrow.parquet
    import safetensors.torch
    import torch
    import transformers.modeling_utils
    import trl
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    import workbench.health.diagnosis
    import workbench.run.control_file
    import workbench.run.directory

    # else the clock decides after which steps a run's health is looked at
    workbench.health.diagnosis.BUDGET = 1.0

    def cut_after(owner: Any, name: str, moment: str) -> None:
        write = getattr(owner, name)

        def written(content: Any, path: Any, *more: Any, **named: Any) -> Any:
            result = write(content, path, *more, **named)
            if Moments.active and isinstance(path, str | Path):
                Moments.active.cut(moment, path)
            return result

        setattr(owner, name, written)

    cut_after(pyarrow.parquet, "write_table", "Parquet cut")
    cut_after(torch, "save", "weights cut")
    for owner, name in (
        (safetensors.torch, "save_file"), (peft.peft_model, "safe_save_file"),
             (transformers.modeling_utils, "safe_save_file"),
    ):  # fmt: skip
        cut_after(owner, name, "weights cut")

    append = workbench.run.directory.append_line

    def appended(file: Path, content: dict[str, Any]) -> None:
        append(file, content)
        if Moments.active and Moments.active.due("line cut"):
            written = file.read_bytes()
            begin = written.rindex(b"\n", 0, -1) + 1 if b"\n" in written[:-1] else 0
            os.truncate(file, begin + int((len(written) - begin) * Moments.active.kill.part))
            die()

    for module in (workbench.run.directory, workbench.run.control_file):
        if hasattr(module, "append_line"):
            module.append_line = appended

    sync, calculate = os.fsync, trl.GRPOTrainer._calculate_rewards

    def synced(handle: int) -> None:
        if Moments.active:
            Moments.active.file("")
        sync(handle)

    def scored(*args: Any, **named: Any) -> Any:
        result = calculate(*args, **named)
        if Moments.active and Moments.active.due("scored"):
            die()
        return result

    def steps(*_: Any) -> None:
        if Moments.active and Moments.active.due("optimizer"):
            die()

    os.fsync, trl.GRPOTrainer._calculate_rewards = synced, scored
    register_optimizer_step_pre_hook(steps)
    register_optimizer_step_post_hook(steps)
    sys.addaudithook(_audited)


# --- the processes
# ------------------------------------------------------------------------------------------------


def forked(
    work: Callable[[], Any],
    folder: Path,
    kill: Kill | None = None,
    seconds: float = 0.0,
    seed: int = 0,
) -> Ended:
    """Do `work` in a fork of this process, killed as asked; it leaves what `work` returns in
    `folder`/found.json.

    Args:
        seconds: of a whole run, for a kill at a random time.
        seed: of the random states that the fork begins with.
    """
    for name in ("found.json", "error.json", "moments.json"):
        (folder / name).unlink(missing_ok=True)
    started = time.monotonic()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            os.setsid()
            _become(folder, seed)
            Moments.active = Moments(folder, kill)
            found, noticed, Moments.active = work(), Moments.active, None
            (folder / "found.json").write_text(json.dumps(found))
            (folder / "moments.json").write_text(json.dumps(noticed.counts))
            code = 0
        except BaseException as error:
            Moments.active = None
            traceback.print_exc()
            kinds = [kind.__name__ for kind in type(error).__mro__]
            (folder / "error.json").write_text(json.dumps({"kinds": kinds, "said": str(error)}))
        finally:
            sys.stdout.flush()
            os._exit(code)
    at = started + kill.part * seconds if kill and kill.moment == "time" else None
    status = _waited(pid, at, started + LIMIT_S)
    with contextlib.suppress(ProcessLookupError):  # what the fork has started ends with it, or now
        os.killpg(pid, signal.SIGKILL)
    if status is None:
        return Ended("hung")
    if os.WIFSIGNALED(status):
        return Ended("killed")
    if (folder / "error.json").is_file():
        error = json.loads((folder / "error.json").read_text())
        return Ended("failed", " ".join(error["kinds"]), error["said"])
    return Ended("finished")


def _become(folder: Path, seed: int) -> None:
    # A process of its own: its output goes into a file, and its random numbers are no other fork's.
    import numpy as np
    import torch

    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = (
        os.fdopen(1, "w", buffering=1, closefd=False),
        os.fdopen(2, "w", buffering=1, closefd=False),
    )
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _waited(pid: int, kill_at: float | None, limit: float) -> int | None:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        now = time.monotonic()
        if now >= min(limit, kill_at or limit):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            return None if now >= limit else status
        time.sleep(0.002)


# --- the two arms: what begins a run, goes on with it, and what it leaves
# --------------------------------------------


class Workbench:
    name = OURS

    def __init__(self, config: str, policy: Any) -> None:
        self.recipe, self.policy, self.task = recipe_of(config), policy, task()

    def begin(self, folder: Path) -> None:
        from workbench.training.trainer import train

        train(self.recipe, policy=self.policy, task=self.task, runs=folder)

    def go_on(self, folder: Path) -> None:
        from workbench.training.trainer import continue_run

        continue_run(folder / "r", policy=self.policy, task=self.task)

    def over(self, folder: Path) -> bool:
        """Whether the run says itself that it has finished: it was killed after it had written its
        result.
        """
        from workbench.run.directory import RunDirectory

        manifest = folder / "r" / "manifest.json"
        return (
            manifest.is_file()
            and (RunDirectory(folder / "r").manifest().get("result") or {}).get("status")
            == "finished"
        )

    def saved(self, folder: Path) -> bool:
        """Whether there has been a whole checkpoint."""
        events = folder / "r" / "events.jsonl"
        said = events.is_file() and '"event": "checkpoint"' in events.read_text(
            encoding="utf-8", errors="replace"
        )
        return said or any((folder / "r" / "checkpoints").glob("checkpoint-*"))

    def left(self, folder: Path) -> dict[str, Any]:
        from workbench.run.directory import RunDirectory
        from workbench.run.held_out import standing
        from workbench.run.rollouts import query

        run = RunDirectory(folder / "r")
        told = [
            event
            for event in standing(run.events())
            if event["event"] in ("health", "reward_error")
        ]
        frame = query(run.rollouts, 'select * from rollouts order by step, "group", generation')
        return {
            "status": run.result()["status"],
            "metrics": [_untimed(row) for row in run.metrics()],
            "rollouts": hashlib.sha256(frame.to_csv(index=False).encode()).hexdigest(),
            "completions": len(frame),
            "adapter": _sum_of(run.final / "adapter_model.safetensors"),
            "inexact": [event["inexact"] for event in run.events() if event.get("inexact")],
            "result": {
                name: value for name, value in run.result().items() if name not in OF_A_SESSION
            },
            "health": [
                {name: value for name, value in event.items() if name != "time"} for event in told
            ],
        }


class Trl:
    name = THEIRS

    def __init__(self, config: str, policy: Any) -> None:
        from workbench.training.plan.prepare import prepare

        self.recipe, self.policy, self.task = recipe_of(config), policy, task()
        if config != WITH_KL:
            self.recipe.grpo["beta"] = 0.0
        with _quiet():
            [self.stage] = prepare(self.recipe, self.task, policy=policy).stages

    def begin(self, folder: Path) -> None:
        self._train(folder, False)

    def go_on(self, folder: Path) -> None:
        self._train(folder, True)

    def over(self, folder: Path) -> bool:
        return (folder / "left.json").is_file()

    def saved(self, folder: Path) -> bool:
        return (folder / "saved").is_file()

    def left(self, folder: Path) -> dict[str, Any]:
        return json.loads((folder / "left.json").read_text())

    def _train(self, folder: Path, resume: bool) -> None:
        from dataclasses import replace

        from datasets import Dataset
        from transformers import TrainerCallback

        from workbench.training.building import build_config
        from workbench.training.plan.precision import adapter_in_float32
        from workbench.training.policy import trainer_classes

        class Notes(TrainerCallback):
            def on_save(self, *_: Any, **__: Any) -> None:
                (folder / "saved").touch()

        stage = replace(self.stage, settings={**self.stage.settings, "save_only_model": False})
        config_class, trainer_class = trainer_classes(self.recipe.policy.backend)
        trainer = trainer_class(
            model=self.policy.model,
            processing_class=self.policy.tokenizer,
            reward_funcs=list(self.task.reward_funcs),
            args=build_config(config_class, stage, folder / "out", self.policy),
            train_dataset=Dataset.from_list(stage.rows),
            callbacks=[Notes()],
        )
        adapter_in_float32(self.policy.model)
        trainer.train(resume_from_checkpoint=resume)
        trainer.save_model(str(folder / "final"))
        metrics = [_untimed(row) for row in trainer.state.log_history if "loss" in row]
        left = {
            "metrics": metrics,
            "adapter": _sum_of(folder / "final" / "adapter_model.safetensors"),
        }
        beside = folder / "left.part"
        beside.write_text(json.dumps(left))
        beside.rename(folder / "left.json")


def recipe_of(config: str) -> Any:
    from workbench.recipe import Recipe

    asked = CONFIGURATIONS[config.partition(",")[0]]
    policy = {"load_in_4bit": False, "dtype": "float32", **asked.get("policy", {})}
    if policy["load_in_4bit"]:
        del policy["dtype"]
    return Recipe.of(
        {"run_name": "r", **asked, "grpo": {**GRPO, **asked.get("grpo", {})}, "policy": policy}
    )


def task() -> Any:
    from workbench.tiny.task import task as arithmetic

    return arithmetic(8, 4)


def _untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in row.items()
        if name not in TIMES and not name.startswith("time/")
    }


def _sum_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@contextlib.contextmanager
def _quiet() -> Any:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


# --- a try
# --------------------------------------------------------------------------------------------------


def whole(arm: Any, home: Path) -> Whole:
    """The run that nobody kills, trained twice; RuntimeError if it fails, or does not equal
    itself.
    """
    found = []
    for turn in range(2):
        (folder := home / f"whole-{turn}").mkdir()
        started = time.monotonic()
        ended = forked(functools.partial(arm.begin, folder), folder, seed=turn)
        seconds = time.monotonic() - started
        if ended.how != "finished":
            raise RuntimeError(f"{arm.name}: {ended}\n{(folder / 'log.txt').read_text()[-3000:]}")
        moments = json.loads((folder / "moments.json").read_text())
        found.append(Whole(left_by(arm, folder), seconds, moments))
    if difference := differs(found[0].left, found[1].left):
        raise RuntimeError(f"{arm.name}: two runs that nobody killed differ: {difference}")
    return found[1]


def left_by(arm: Any, folder: Path) -> dict[str, Any]:
    """What a run has left, read in a process of its own: DuckDB's threads are not for one that
    forks.
    """
    ended = forked(lambda: arm.left(folder), folder)
    return (
        json.loads((folder / "found.json").read_text())
        if ended.how == "finished"
        else {"not readable": ended.said}
    )


def differs(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Where what two runs left first differs; empty: nowhere."""
    if "not readable" in one:
        return f"not readable: {one['not readable']}"
    if one["metrics"] != other["metrics"]:
        mine, theirs = one["metrics"], other["metrics"]
        if [row.get("step") for row in mine] != [row.get("step") for row in theirs]:
            return (
                f"steps in metrics: {[row.get('step') for row in mine]}, not"
                f" {[row.get('step') for row in theirs]}"
            )
        row, before = next(
            (row, before) for row, before in zip(mine, theirs, strict=True) if row != before
        )
        names = [
            name
            for name in {**row, **before}
            if row.get(name, "nothing") != before.get(name, "nothing")
        ]
        said = f"{names[0]} = {row.get(names[0])!r}, not {before.get(names[0])!r}"
        return f"metrics of step {row.get('step')}: {said}" + f" ({len(names)} in all)" * (
            len(names) > 1
        )
    names = ("rollouts", "adapter", "status", "result", "health")
    return next((name for name in names if one.get(name) != other.get(name)), "")


def tried(arm: Any, whole: Whole, rng: random.Random, folder: Path) -> dict[str, Any] | None:
    """Kill a run of `arm` in `folder` once or more, let it go on, and say what became of it; None:
    it ended before the kill.
    """
    folder.mkdir()
    wanted, kills, work = rng.choices([1, 2, 3], [70, 20, 10])[0], [], arm.begin
    while True:
        kill = planned(rng, whole.moments, bool(kills)) if len(kills) < wanted else None
        ended = forked(
            functools.partial(work, folder), folder, kill, whole.seconds, seed=rng.randrange(2**31)
        )
        if ended.how != "killed":
            break
        kills.append(kill._asdict())
        work = arm.go_on
        if arm.over(folder):
            break
    if not kills:
        return None
    return {"arm": arm.name, "kills": kills, **judged(arm, whole, folder, ended)}


def planned(rng: random.Random, moments: dict[str, int], again: bool) -> Kill:
    """A kill at a moment that a whole run has; one that goes on is shorter, so the moment comes in
    its first half.
    """
    own = {moment: weight for moment, weight in MOMENTS.items() if moments.get(moment)}
    moment = rng.choices([*own, "time"], [*own.values(), 100 - sum(own.values())])[0]
    number = (
        1 if moment == "time" else 1 + int(rng.random() * moments[moment] * (0.5 if again else 1))
    )
    return Kill(moment, number, rng.random())


def judged(arm: Any, whole: Whole, folder: Path, ended: Ended) -> dict[str, Any]:
    """The outcome of a try, and why."""
    if ended.how == "hung":
        return {"outcome": "lost", "why": f"not back after {LIMIT_S:.0f} s"}
    if ended.how == "failed":
        why, ours = (
            f"{ended.error.partition(' ')[0]}: {ended.said}",
            "WorkbenchError" in ended.error,
        )
        if "steps are trained" in ended.said:
            return {"outcome": "trained", "why": why}
        if arm.saved(folder):
            return {"outcome": "lost", "why": why}
        told = (ours and re.search(REASONS, ended.said)) or (
            arm.name == THEIRS and "No valid checkpoint" in ended.said
        )
        return {"outcome": "none yet" if told else "raw", "why": why}
    left = left_by(arm, folder)
    if not (difference := differs(left, whole.left)):
        return {"outcome": "exact", "why": ""}
    return {
        "outcome": "said" if left.get("inexact") else "different",
        "why": difference,
        "inexact": left.get("inexact"),
    }


class Campaign:
    """Kills runs of some arms and configurations, by turns, in this process's forks.

    Args:
        jobs: arm, configuration and how many killed runs.
        minutes: when to stop before that.
    """

    def __init__(
        self,
        jobs: Sequence[tuple[Any, str, int]],
        home: Path,
        keep: Path,
        seed: int,
        minutes: float | None,
    ) -> None:
        self.home, self.keep, self.seed = home, keep, seed
        self.tries: list[dict[str, Any]] = []
        self.moments: dict[str, dict[str, int]] = {}
        end = time.monotonic() + 60 * (minutes or 1e6)
        running = [self._job(arm, config) for arm, config, _ in jobs]
        left = [kills for _, _, kills in jobs]
        while any(left) and time.monotonic() < end:
            for place, job in enumerate(running):
                if left[place] and time.monotonic() < end:
                    next(job)
                    left[place] -= 1

    def _job(self, arm: Any, config: str) -> Iterator[None]:
        home = self.home / f"{arm.name}-{config.replace(' ', '-')}"
        home.mkdir()
        found = whole(arm, home)
        self.moments[f"{arm.name}, {config}"] = found.moments
        measuring.say(
            f"{arm.name}, {config}: two runs that nobody killed are equal; one took"
            f" {found.seconds:.1f} s"
        )
        for number in itertools.count(1):
            folder, rng = (
                home / str(number),
                random.Random(f"{self.seed} {arm.name} {config} {number}"),
            )
            one = tried(arm, found, rng, folder)
            if one is not None:
                self._note({"config": config, "number": number, **one}, folder)
            shutil.rmtree(folder, ignore_errors=True)
            if one is not None:
                yield

    def _note(self, found: dict[str, Any], folder: Path) -> None:
        found["why"] = found["why"].replace(f"{self.home}{os.sep}", "")  # a path of this machine
        self.tries.append(found)
        at = ", ".join(
            f"{kill['moment']} {kill['number']} {kill['part']:.2f}" for kill in found["kills"]
        )
        why = found["why"].splitlines()[0] if found["why"] else ""
        measuring.say(
            f"{found['arm']}, {found['config']}, {found['number']}, killed at {at}:"
            f" {found['outcome']} {why}"
        )
        if found["outcome"] in FAILURES and found["arm"] == OURS:
            kept = self.keep / f"{found['config'].replace(' ', '-')}-{found['number']}"
            shutil.copytree(folder, kept, dirs_exist_ok=True)
            measuring.say(f"  kept in {kept}")


def table_of(tries: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Killed runs by configuration and outcome, and the sums, for each arm."""
    rows = []
    for arm in (OURS, THEIRS):
        own = [found for found in tries if found["arm"] == arm]
        for config in [*CONFIGURATIONS, WITH_KL, "all"]:
            some = [found for found in own if config in ("all", found["config"])]
            counts = Counter(found["outcome"] for found in some)
            if some:
                rows.append(
                    [
                        arm,
                        config,
                        len(some),
                        sum(len(found["kills"]) for found in some),
                        *(counts[name] for name in OUTCOMES),
                    ]
                )
    return ["", "configuration", "killed runs", "kills", *OUTCOMES], rows


def measure(
    configs: Sequence[str],
    kills: int,
    trl: int,
    seed: int,
    keep: Path,
    minutes: float | None = None,
    processes: int = 1,
) -> dict[str, Any]:
    """The campaign: what became of every try, and how often each moment came in a run that nobody
    killed.

    Args:
        kills, trl: runs to kill of the workbench and of stock TRL, shared out among the
            configurations.
        keep: folder for the runs that failed.
        minutes: when to stop before that; processes: that share the configurations.

    Raises:
        RuntimeError: if a run that nobody killed fails, or does not equal itself.
    """
    from workbench.training.policy import load_policy, trainer_classes

    trainer_classes()  # unsloth comes first
    keep.mkdir(parents=True, exist_ok=True)
    watch()
    policies, jobs = {}, []
    with measuring.empty_home() as home:
        for kind, names, wanted in (
            (Workbench, configs, kills),
            (Trl, [name for name in TRLS if name.partition(",")[0] in configs], trl),
        ):
            for place, config in enumerate(names):
                recipe, own = (
                    recipe_of(config),
                    wanted // len(names) + (place < wanted % len(names)),
                )
                if own:
                    with _quiet():
                        if recipe.policy.load_in_4bit not in policies:
                            policies[recipe.policy.load_in_4bit] = load_policy(recipe)
                        jobs.append(
                            (kind(config, policies[recipe.policy.load_in_4bit]), config, own)
                        )
        _warm(jobs[0][0], home)
        found = [
            _part(jobs[first::processes], home, keep, seed, minutes, first)
            for first in range(min(processes, len(jobs)))
        ]
        parts = [_waited_for(*each) for each in found]
    gc.unfreeze()
    tries = [one for part in parts for one in part["tries"]]
    return {
        "tries": tries,
        "moments": {name: counts for part in parts for name, counts in part["moments"].items()},
    }


def _warm(arm: Any, home: Path) -> None:
    # What a run imports on its way is imported here, once; and what is here already is not gone
    # through by every collection.
    (folder := home / "warm").mkdir()
    ended = forked(
        lambda: (arm.begin(folder), arm.name == OURS and arm.left(folder), sorted(sys.modules))[-1],
        folder,
    )
    if ended.how != "finished":
        raise RuntimeError(f"{ended}\n{(folder / 'log.txt').read_text()[-3000:]}")
    for name in json.loads((folder / "found.json").read_text()):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _part(
    jobs: list[Any], home: Path, keep: Path, seed: int, minutes: float | None, number: int
) -> tuple[int, Path]:
    file = home / f"part-{number}.json"
    if (pid := os.fork()) == 0:
        code = 1
        try:
            found = Campaign(jobs, home, keep, seed, minutes)
            file.write_text(json.dumps({"tries": found.tries, "moments": found.moments}))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid, file


def _waited_for(pid: int, file: Path) -> dict[str, Any]:
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("a part of the campaign failed; its error stands above")
    return json.loads(file.read_text())


def main() -> int:
    parser = measuring.arguments(__doc__)
    parser.add_argument(
        "--kills", type=int, default=200, metavar="N", help="runs of the workbench to kill (200)"
    )
    parser.add_argument(
        "--trl", type=int, default=40, metavar="N", help="runs of stock TRL to kill (40; 0: none)"
    )
    parser.add_argument(
        "--config",
        nargs="+",
        choices=CONFIGURATIONS,
        default=list(CONFIGURATIONS),
        metavar="NAME",
        help=", ".join(CONFIGURATIONS),
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="which kills; the same seed plans the same ones (0)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count(),
        metavar="N",
        help="that share the work (one a core)",
    )
    parser.add_argument(
        "--minutes", type=float, help="stop either arm after so long, and say how many were killed"
    )
    parser.add_argument(
        "--keep", type=Path, help="folder for the runs that failed (default: one is made)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print every try, as one line of JSON, last"
    )
    asked = measuring.parse(parser, kills=4, trl=1, config=["plain", "stages"])
    keep = asked.keep or Path(tempfile.mkdtemp(prefix="workbench-kills-"))
    stamped = measuring.stamp()
    measuring.say(f"seed {asked.seed}")
    found = measure(
        asked.config, asked.kills, asked.trl, asked.seed, keep, asked.minutes, asked.processes
    )
    return reported(asked, stamped, found, keep)


def reported(
    asked: argparse.Namespace, stamped: dict[str, Any], found: dict[str, Any], keep: Path
) -> int:
    tries = found["tries"]
    sums = {
        arm: Counter(one["outcome"] for one in tries if one["arm"] == arm) for arm in (OURS, THEIRS)
    }
    total = {arm: sum(counts.values()) for arm, counts in sums.items()}
    failed = sum(sums[OURS][name] for name in FAILURES)

    def words(arm: str) -> str:
        counts = ", ".join(f"{sums[arm][name]} {name}" for name in OUTCOMES if sums[arm][name])
        return f"{total[arm]} killed runs: {counts}"

    lines = [
        Line(
            "going on after a kill",
            words(OURS),
            words(THEIRS) if total[THEIRS] else "nothing",
            "runs equal themselves",
        )
    ]
    wanted = {OURS: asked.kills, THEIRS: asked.trl}
    notes = [
        f"Stopped early: {total[arm]} of {wanted[arm]} runs of {arm}."
        for arm in wanted
        if total[arm] < wanted[arm]
    ]
    asked.keep = None  # a path of this machine
    measuring.save("kills", asked, stamped, lines, table_of(tries), found, notes)
    if failed:
        measuring.say(f"{failed} failed; their folders are in {keep}")
    elif not any(keep.iterdir()):
        keep.rmdir()
    if asked.json:
        print(json.dumps(found))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
