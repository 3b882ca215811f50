"""One short training, by the workbench's `train()` or by TRL alone, with the time of every step:
what steps.py and checkpoints.py compare.

Both get a policy that was just loaded, the same GRPOConfig (built by the same function from the
same recipe), the same prompts, seed and reward functions, and the adapter in float32: TRL rounds
the adapter of a 4-bit model to bfloat16, the workbench does not, and two types would be two
learning curves. Nothing else of TRL's trainer is touched.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

CURVE = ("reward", "loss", "kl", "grad_norm", "completions/mean_length")


@dataclass
class Run:
    """One training: [steps] of everything. A step ends when its row is logged; the first one begins
    with the training.
    """

    step_s: list[float] = field(default_factory=list)
    generate_s: list[float] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)  # what was logged
    # from a step's row to the end of its checkpoint
    save_s: list[float] = field(default_factory=list)
    saved_bytes: dict[str, int] = field(default_factory=dict)  # of the last checkpoint, by file
    hooks_s: float = 0.0  # the workbench's own count
    # as the workbench's manifest says it
    generated_by: dict[str, Any] = field(default_factory=dict)

    def begins(self) -> None:
        self._since = time.perf_counter()

    def ends_step(self, values: dict[str, Any]) -> None:
        now = time.perf_counter()
        self.step_s.append(now - self._since)
        self.rows.append(dict(values))
        self._since = now

    def saved(self, folder: Path) -> None:
        now = time.perf_counter()
        self.save_s.append(now - self._since)
        self._since = now  # what a checkpoint costs is no part of the next step
        self.saved_bytes = {
            str(file.relative_to(folder)): file.stat().st_size
            for file in folder.rglob("*")
            if file.is_file()
        }

    def curve(self) -> list[dict[str, float]]:
        """Of every step, what training is about."""
        return [{key: row[key] for key in CURVE if key in row} for row in self.rows]


def by_workbench(recipe: Any, task: Any) -> Run:
    """A training by the workbench, recorder, health verdicts and reward worker included, without a
    panel.
    """
    from workbench.training.trainer import train

    run = Run()

    class Watcher:
        def begin(self, directory: Any, *_: Any) -> None:
            self.directory = directory
            run.begins()

        def update(self, step: int, values: dict[str, Any]) -> None:
            run.ends_step(values)

        def event(self, event: dict[str, Any]) -> None:
            if event["event"] == "checkpoint":
                run.saved(self.directory.checkpoints / event["folder"])

        def end(self, message: str) -> None: ...

    with _quiet():
        found = train(recipe, policy=_policy(recipe), task=task, watchers=[Watcher()])
    run.generate_s = [row["time/generate_s"] for row in run.rows]
    run.hooks_s, run.generated_by = found.result()["hooks_s"], found.result().get("generation", {})
    return run


def by_trl(recipe: Any, task: Any, **over: Any) -> Run:
    """A training by TRL's GRPOTrainer as its documentation sets it up.

    Args:
        over: settings of GRPOConfig over the recipe's.
    """
    from datasets import Dataset
    from transformers import TrainerCallback

    from workbench.training.building import build_config
    from workbench.training.plan.precision import adapter_in_float32
    from workbench.training.plan.prepare import prepare
    from workbench.training.policy import trainer_classes

    run = Run()

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            run.begins()

        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any
        ) -> None:
            if "loss" in logs:
                run.ends_step(logs)

        def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            run.saved(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    with _quiet(), tempfile.TemporaryDirectory() as folder:
        policy = _policy(recipe)
        config_class, trainer_class = trainer_classes(recipe.policy.backend)
        [stage] = prepare(recipe, task, policy=policy).stages
        stage = replace(stage, settings={**stage.settings, **over})
        trainer = trainer_class(
            model=policy.model,
            processing_class=policy.tokenizer,
            reward_funcs=list(task.reward_funcs),
            args=build_config(config_class, stage, folder, policy),
            train_dataset=Dataset.from_list(list(task.rows)),
            callbacks=[Clock()],
        )
        adapter_in_float32(policy.model)
        _time_generation(trainer, run)
        trainer.train()
    return run


def _time_generation(trainer: Any, run: Run) -> None:
    # The same private method that the workbench times.
    generate = trainer._generate

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        found = generate(*args, **kwargs)
        run.generate_s.append(time.perf_counter() - started)
        return found

    trainer._generate = timed


def _policy(recipe: Any) -> Any:
    from workbench.training.policy import load_policy

    part = recipe.policy
    return load_policy(
        part.name, backend=part.backend, load_in_4bit=part.load_in_4bit,
            max_seq_length=part.max_seq_length,
        dtype=part.dtype, lora=recipe.lora, seed=recipe.seed,
    )  # fmt: skip


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # Loading, planning and TRL's rows of numbers all print; errors come through on stderr.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def same_curve(one: Run, other: Run) -> dict[str, Any]:
    """Whether two runs learnt the same: equal to the bit, and if not, from which step on and by how
    much at most.
    """
    first, largest = None, dict.fromkeys(CURVE, 0.0)
    for step, (left, right) in enumerate(zip(one.curve(), other.curve(), strict=True), start=1):
        if left.keys() != right.keys():
            raise ValueError(
                f"step {step}: one arm logged {sorted(left)}, the other {sorted(right)}"
            )
        for key in left:
            difference = abs(left[key] - right[key])
            largest[key] = max(largest[key], difference)
            if difference and first is None:
                first = step
    return {
        "equal_to_the_bit": first is None,
        "first_difference_at_step": first,
        "largest_difference": largest,
    }
