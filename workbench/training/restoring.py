"""Restores a trainer from a checkpoint.

It takes the same prompts in the same order with the same random numbers, so on a CPU its numbers
are those of a run that never stopped; `inexact` names what is not restored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from workbench.base import processes
from workbench.base.errors import RunError
from workbench.base.kinds import Fields
from workbench.training.randomness import put_back
from workbench.training.replaced import replace, replaces
from workbench.training.resuming import TENSORS, Point


@replaces("create_scheduler", "_get_train_sampler")
class Restored:
    """Restores a trainer from a checkpoint: call `prepare` before `train()`, and the others as it
    begins.
    """

    def __init__(self, point: Point, total: int) -> None:
        # total: steps of the stage; -1: it follows from epochs
        self.point, self.total = point, total
        self.inexact: list[str] = []
        self.schedule: Fields = {}  # for the event: the next step's rate, where it is another one
        self._epochs_begun = 0
        self._random: Fields | None = None  # to be put back, once

    def prepare(self, trainer: Any) -> None:
        """Make the trainer begin in the epoch, at the prompts and on the schedule of the
        checkpoint.
        """
        point, args = self.point, trainer.args
        at_once = args.per_device_train_batch_size * processes.count()
        per_step = at_once * args.steps_per_generation * args.gradient_accumulation_steps
        batches = len(trainer.get_train_dataloader())
        per_epoch = max(1, -(-batches // args.gradient_accumulation_steps))
        if self.total < 0:
            self.total = math.ceil(args.num_train_epochs * per_epoch)
        if point.done >= self.total:
            raise RunError(
                f"all {point.step} steps are trained",
                rule="a run resumes up to the steps that its recipe asks for",
                remedy="start a new run with more num_train_epochs",
            )
        self.epochs, self.skipped = divmod(point.done, per_epoch)
        self._of_an_epoch = self.skipped / per_epoch
        args.max_steps = self.total - self.epochs * per_epoch
        schedule, sampler = trainer.create_scheduler, trainer._get_train_sampler
        replace(
            trainer,
            "create_scheduler",
            lambda num_training_steps, **more: schedule(num_training_steps=self.total, **more),
        )
        replace(
            trainer,
            "_get_train_sampler",
            lambda *a, **k: _Skipping(sampler(*a, **k), self.epochs, self.skipped * per_step),
        )
        before = sum(name.startswith("random") for name in point.state)
        remarks = {
            "the checkpoint lies between two generations: the rest of that batch is generated"
            " again": not point.state["whole_generation"],
            f"trained in {before} processes before: batches and random numbers differ from"
            " now on": before != processes.count(),
            "the optimiser starts from scratch: its state was spread over processes": (
                not point.state["optimizer"]["groups"]
            ),
            "the next row of metrics covers only the steps after the checkpoint": (
                args.logging_steps > 1 and point.step % args.logging_steps
            ),
        }
        self.inexact += [remark for remark, holds in remarks.items() if holds]

    def begin(self, trainer: Any) -> None:
        """Once training has begun: restore the optimiser's and the schedule's state."""
        from safetensors.torch import load_file

        state, tensors = self.point.state, load_file(str(self.point.folder / TENSORS))
        own = f"random{processes.rank() or ''}"
        if own in state:
            version, numbers, gauss = state[own]["python"]
            self._random = {
                "python": (version, tuple(numbers), gauss),
                "numpy": state[own]["numpy"],
                "torch": tensors[f"{own}.torch"],
                "cuda": tensors.get(f"{own}.cuda"),
            }
        by_parameter: dict[int, Fields] = {}
        groups = state["optimizer"]["groups"]
        for name, value in (tensors | state["optimizer"]["plain"]).items():
            index, _, key = name.partition(".")
            if index.isdecimal():
                by_parameter.setdefault(int(index), {})[key] = value
        if groups:
            trainer.optimizer.load_state_dict({"state": by_parameter, "param_groups": groups})
        self._reschedule(trainer)
        trainer.state.num_input_tokens_seen = state["tokens"]
        trainer._step = self.point.done * trainer.args.gradient_accumulation_steps
        scaler = trainer.accelerator.scaler
        if scaler is not None and state.get("scaler"):
            scaler.load_state_dict(state["scaler"])
        elif scaler is not None:
            self.inexact.append(
                "float16's gradient scaler starts from scratch: steps are skipped until its scale"
                " fits"
            )

    def _reschedule(self, trainer: Any) -> None:
        # Its functions are the recipe's; what was saved are its numbers. Where steps were added,
        # the rate saved for the next step is the old schedule's: after a decay it is 0.
        schedule, groups = trainer.lr_scheduler, trainer.optimizer.param_groups
        schedule.load_state_dict({**schedule.state_dict(), **self.point.state["schedule"]})
        if self.point.held_rate:
            schedule.held = self.point.held_rate / schedule.base_lrs[0]  # saved with its state
        if (held := getattr(schedule, "held", None)) is not None:
            schedule.lr_lambdas = [lambda _: held] * len(groups)
        parts = zip(schedule.base_lrs, getattr(schedule, "lr_lambdas", ()), strict=False)
        rates = [base * factor(schedule.last_epoch) for base, factor in parts]
        if all(math.isclose(rate, group["lr"]) for rate, group in zip(rates, groups, strict=False)):
            return
        name = trainer.args.lr_scheduler_type.value
        over = (
            f"as {name} now runs over {self.total} steps" if held is None else "held from here on"
        )
        words = f"learning_rate {rates[0]:.3g} in step {self.point.step + 1}, {over}"
        self.schedule = {"learning_rate": rates[0], "schedule": words}
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        schedule._last_lr = rates

    def epoch_begins(self) -> None:
        """Before the first epoch's prompts are drawn."""
        self._epochs_begun += 1
        if not self.skipped:
            self.load_random()

    def epoch(self, counted: float) -> float:
        """The epoch as the run counts it, for a trainer that began in the middle of one."""
        return counted + self.epochs + (self._of_an_epoch if self._epochs_begun == 1 else 0.0)

    def load_random(self) -> None:
        """Restore the checkpoint's random states, once: before the first step, or the epoch that
        begins with it.
        """
        if self._random is not None:
            put_back(self._random)
            self._random = None


class _Skipping:
    """A sampler that begins in the middle: it draws and discards the orders of whole epochs, then
    skips some items.
    """

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
