"""Going on from a checkpoint: the state of training, kept beside the adapter without a pickle.

A checkpoint holds the adapter (PEFT), `optimizer.safetensors` (the optimiser's tensors and the random states of torch) and
`state.json` (where the run was: stage, step, schedule, float16's gradient scaler, Python's and numpy's random states). A
run that goes on from it takes the same prompts in the same order with the same random numbers, so on a CPU its numbers are
those of a run that never stopped; `inexact` names what is not restored.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import RunError
from workbench.run.directory import RunDirectory
from workbench.training.loading import put_back, random_states
from workbench.workspace import shown, write_json

_TENSORS, _STATE = "optimizer.safetensors", "state.json"
STATE_FILES = (_TENSORS, _STATE, "trainer_state.json")  # of a checkpoint; the other files are those of an adapter


@dataclass(frozen=True)
class Point:
    """Where a run can go on."""

    folder: Path
    stage: int  # number of the stage, from 0
    step: int  # of the whole run
    done: int  # steps of the stage
    state: dict[str, Any]


def save_state(
    trainer: Any, folder: Path, stage: int, done: int, adaptive: dict[str, Any], states: dict[str, Any] | None = None
) -> None:
    """Write the state of training beside an adapter that was just saved.

    Args:
        stage: number of the stage, from 0.
        done: steps of the stage that are done.
        adaptive: state of the adaptive weights.
        states: `random_states()` at the end of the step; None: now.
    """
    import torch
    from safetensors.torch import save_file

    packed = trainer.optimizer.state_dict()
    tensors, plain = {}, {}
    for index, values in packed["state"].items():
        for key, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{index}.{key}"] = value.detach().cpu().contiguous().clone()
            else:
                plain[f"{index}.{key}"] = value
    states = states or random_states()
    tensors["random.torch"] = states["torch"]
    if states["cuda"] is not None:
        tensors["random.cuda"] = states["cuda"]
    save_file(tensors, str(folder / _TENSORS))
    version, numbers, gauss = states["python"]
    kind, keys, position, has_gauss, cached = states["numpy"]
    scaler = trainer.accelerator.scaler  # there is one only where float16 is trained
    state = {
        "stage": stage,
        "step": trainer.state.global_step,
        "done": done,
        "adaptive": adaptive,
        "tokens": states.get("tokens", trainer.state.num_input_tokens_seen),
        "whole_generation": trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations) == 0,
        "optimizer": {"plain": plain, "groups": packed["param_groups"]},
        "scaler": scaler and scaler.state_dict(),
        "schedule": {
            key: value
            for key, value in trainer.lr_scheduler.state_dict().items()
            if isinstance(value, (int, float, list, bool)) and key != "lr_lambdas"
        },
        "random": {
            "python": [version, list(numbers), gauss],
            "numpy": [kind, keys.tolist(), position, has_gauss, cached],
        },
    }
    write_json(folder / _STATE, state)


def latest_point(run: RunDirectory) -> Point:
    """The newest checkpoint of a run that it can go on from.

    Raises:
        RunError: if it has none.
    """
    for folder in run.saved():
        try:
            state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # a kill while it was being saved: the one before is whole
        if (folder / _TENSORS).is_file() and (folder / "adapter_config.json").is_file():
            return Point(folder, state["stage"], state["step"], state["done"], state)
    raise RunError(
        f"{shown(run.checkpoints)}: no checkpoint to go on from",
        rule="a run goes on from a checkpoint-N with its state, saved every save_steps steps and when it is stopped",
        remedy="start a new run; to lose less next time, lower grpo.save_steps",
    )


def load_adapter(model: Any, folder: Path) -> None:
    """Put a checkpoint's adapter weights into a model's own adapter.

    Raises:
        RunError: if they are another adapter's.
    """
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    weights = load_file(str(folder / "adapter_model.safetensors"))
    rule, remedy = "a run goes on with the LoRA shape that it was begun with", "load the policy as recipe.yaml says"
    try:
        found = set_peft_model_state_dict(model, weights, adapter_name="default")
    except RuntimeError as error:  # torch's word for a wrong shape
        first = str(error).strip().splitlines()[1:2] or [str(error)]
        raise RunError(f"{shown(folder)}: its weights do not fit: {first[0].strip()}", rule=rule, remedy=remedy) from error
    if found.unexpected_keys:
        some = f"{len(found.unexpected_keys)} of its weights fit nowhere, {found.unexpected_keys[0]} first"
        raise RunError(f"{shown(folder)}: {some}", rule=rule, remedy=remedy)


class Restored:
    """Puts a trainer where a checkpoint was: call `prepare` before `train()`, and the hooks as it begins."""

    def __init__(self, point: Point, total: int) -> None:
        self.point, self.total = point, total  # total: steps of the stage
        self.inexact: list[str] = []
        self._epochs_begun = 0
        self._random_loaded = False

    def prepare(self, trainer: Any) -> None:
        """Make the trainer begin in the epoch, at the prompts and on the schedule of the checkpoint."""
        point, args = self.point, trainer.args
        per_step = args.per_device_train_batch_size * args.steps_per_generation * args.gradient_accumulation_steps
        per_epoch = max(1, _steps_an_epoch(trainer))
        if self.total < 0:
            self.total = math.ceil(args.num_train_epochs * per_epoch)
        if point.done >= self.total:
            raise RunError(
                f"all {point.step} steps are trained",
                rule="a run goes on to the steps that its recipe asks for",
                remedy="start a new run with more num_train_epochs",
            )
        self.epochs, self.skipped = divmod(point.done, per_epoch)
        self._of_an_epoch = self.skipped / per_epoch
        args.max_steps = self.total - self.epochs * per_epoch
        schedule = trainer.create_scheduler
        trainer.create_scheduler = lambda num_training_steps, **more: schedule(num_training_steps=self.total, **more)
        sampler = trainer._get_train_sampler
        trainer._get_train_sampler = lambda *a, **k: _Skipping(sampler(*a, **k), self.epochs, self.skipped * per_step)
        if not point.state["whole_generation"]:
            self.inexact.append("the checkpoint lies between two generations: the rest of that batch is generated anew")
        if args.logging_steps > 1 and point.step % args.logging_steps:
            self.inexact.append("the next row of metrics is about the steps after the checkpoint only")

    def begin(self, trainer: Any) -> None:
        """When training has begun: the optimiser's and the schedule's state."""
        from safetensors.torch import load_file

        state = self.point.state
        tensors = load_file(str(self.point.folder / _TENSORS))
        self._random = {key: tensors.pop(key) for key in list(tensors) if key.startswith("random.")}
        by_parameter: dict[int, dict[str, Any]] = {}
        for name, value in [*tensors.items(), *state["optimizer"]["plain"].items()]:
            index, _, key = name.partition(".")
            by_parameter.setdefault(int(index), {})[key] = value
        if state["optimizer"]["groups"]:
            trainer.optimizer.load_state_dict({"state": by_parameter, "param_groups": state["optimizer"]["groups"]})
        # Its functions are the recipe's; what was saved are its numbers.
        schedule = trainer.lr_scheduler
        schedule.load_state_dict({**schedule.state_dict(), **state["schedule"]})
        trainer.state.num_input_tokens_seen = state["tokens"]
        trainer._step = self.point.done * trainer.args.gradient_accumulation_steps
        scaler = trainer.accelerator.scaler
        if scaler is not None and state.get("scaler"):
            scaler.load_state_dict(state["scaler"])
        elif scaler is not None:
            self.inexact.append("float16's gradient scaler begins anew: steps are skipped until its scale fits")

    def epoch_begins(self) -> None:
        """Before the first epoch's prompts are drawn."""
        self._epochs_begun += 1
        if not self.skipped:
            self._load_random()

    def epoch(self, counted: float) -> float:
        """The epoch as the run counts it, from that of a trainer that began in the middle of one."""
        return counted + self.epochs + (self._of_an_epoch if self._epochs_begun == 1 else 0.0)

    def step_begins(self) -> None:
        """Before the first step."""
        self._load_random()

    def _load_random(self) -> None:
        if self._random_loaded:
            return
        self._random_loaded = True
        saved = self.point.state["random"]
        version, numbers, gauss = saved["python"]
        kind, keys, *more = saved["numpy"]
        put_back(
            {
                "python": (version, tuple(numbers), gauss),
                "numpy": (kind, np.array(keys, dtype=np.uint32), *more),
                "torch": self._random["random.torch"],
                "cuda": self._random.get("random.cuda"),
            }
        )


def _steps_an_epoch(trainer: Any) -> int:
    return -(-len(trainer.get_train_dataloader()) // trainer.args.gradient_accumulation_steps)


class _Skipping:
    """A sampler that begins in the middle: whole epochs' orders are drawn and thrown away, then some items skipped."""

    def __init__(self, sampler: Any, epochs: int, items: int) -> None:
        self.sampler, self.epochs, self.items = sampler, epochs, items

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.epochs):
            next(iter(self.sampler), None)  # an order is drawn when its first prompt is
        items = itertools.islice(iter(self.sampler), self.items, None)
        self.epochs = self.items = 0
        yield from items
