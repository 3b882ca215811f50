"""Batch arithmetic: what is generated at once, what a step learns from, how many steps make an
epoch.

`per_device_train_batch_size` counts completions, not prompts. TRL generates `generation_batch_size`
of them at once (per_device_train_batch_size x steps_per_generation, which is
gradient_accumulation_steps unless it is set), cuts that into forward passes of
`per_device_train_batch_size`, goes through them `num_iterations` times, and updates the weights
after every `gradient_accumulation_steps` forward passes. Of several processes, each takes a forward
pass of that size at the same time.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from workbench.base import processes
from workbench.base.errors import RecipeError
from workbench.base.kinds import Fields

_SUMMED = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_generations")
MOST_COMPLETIONS = 2**20
_OPTIONAL = ("steps_per_generation", "generation_batch_size")


class Batch(NamedTuple):
    """What one generation batch is made of."""

    completions: int
    num_generations: int

    @property
    def prompts(self) -> int:
        return self.completions // self.num_generations


def batch(settings: Fields) -> Batch:
    """The generation batch that the settings make; RecipeError, with the nearest legal sizes, if it
    cannot be.
    """
    for name in (*_SUMMED, *_OPTIONAL, "num_iterations", "max_completion_length"):
        value = settings.get(name)
        if name in settings and not _is_size(value) and not (value is None and name in _OPTIONAL):
            words = "whole number, at least 1"
            quoted = isinstance(value, str)
            raise RecipeError(
                f"grpo.{name} = {value!r}",
                rule=f"{name} is a {words}",
                remedy="write it without quotes" if quoted else f"give a {words}",
            )
    sizes: list[Any] = [settings.get(name) for name in (*_SUMMED, *_OPTIONAL)]
    per_device, accumulated, count, several, explicit = sizes
    if explicit and several:
        raise RecipeError(
            f"grpo.generation_batch_size = {explicit} and grpo.steps_per_generation = {several}",
            rule="one of them follows from the other",
            remedy="keep one of them",
        )
    at_once = per_device * processes.count()
    completions = explicit or at_once * (several or accumulated)
    factor = "steps_per_generation" if several else "gradient_accumulation_steps"
    forward = f"per_device_train_batch_size {per_device}{_processes(' x')}"
    made_of = f"{forward} x {factor} {several or accumulated}"
    if explicit:
        made_of = f"generation_batch_size {explicit}"
    if max(completions, count) > MOST_COMPLETIONS:
        raise RecipeError(
            f"{max(completions, count):,} completions ({made_of})",
            rule=f"at most {MOST_COMPLETIONS:,} are generated at once",
            remedy="lower num_generations or the sizes that it is made of",
        )
    if count < 2:
        raise RecipeError(
            f"grpo.num_generations = {count}",
            rule="an advantage compares at least 2 completions of a prompt",
            remedy="use 4 to try things out, 8 as a rule",
        )
    if completions % count:
        legal = [divisor for divisor in range(2, completions + 1) if completions % divisor == 0]
        near = sorted(sorted(legal, key=lambda divisor: abs(divisor - count))[:2])
        remedy = f"set num_generations to {' or '.join(map(str, near))}, or " if near else ""
        raise RecipeError(
            f"{made_of} = {completions} completions, and num_generations = {count}",
            rule="num_generations divides the generation batch, so that every group is whole",
            remedy=f"{remedy}make the batch {-(-completions // count) * count}",
        )
    if completions % at_once:
        whole = -(-completions // math.lcm(at_once, count)) * math.lcm(at_once, count)
        remedy = f"set generation_batch_size to {whole}"
        if completions % processes.count() == 0:
            fitting = math.gcd(completions // processes.count(), per_device)
            remedy += f", or per_device_train_batch_size to {fitting}"
        raise RecipeError(
            f"{made_of}, and {forward}",
            rule="a generation batch is cut into whole forward passes",
            remedy=remedy,
        )
    return Batch(completions, count)


def _processes(word: str) -> str:
    return f"{word} {processes.count()} processes" if processes.count() > 1 else ""


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def whole_groups(settings: Fields, asked: Fields) -> tuple[Fields, list[str]]:
    """(settings whose generation batch holds whole groups, lines on what that raised): more
    `gradient_accumulation_steps`.

    It never raises `per_device_train_batch_size`, as Unsloth does: that multiplies the memory of
    every forward pass. A batch that was set outright (`steps_per_generation`,
    `generation_batch_size`) is not touched, nor is one that would more than double to hold whole
    groups (16 completions, groups of 5): `batch` refuses it and names what is near.
    """
    per_device, accumulated, count = sizes = [settings[name] for name in _SUMMED]
    outright = any(asked.get(name) is not None for name in _OPTIONAL)
    if outright or not all(map(_is_size, sizes)) or count < 2:
        return settings, []
    at_once = per_device * processes.count()
    stride = count // math.gcd(at_once, count)
    raised = -(-accumulated // stride) * stride
    before, after = at_once * accumulated, at_once * raised
    if raised == accumulated or after > max(count, 2 * before):
        return settings, []
    return {**settings, "gradient_accumulation_steps": raised}, [
        f"gradient_accumulation_steps {accumulated} -> {raised}: {at_once} x {accumulated} ="
        f" {before} completions hold no whole number of groups of {count}, {at_once} x {raised} ="
        f" {after} do; all {after} are generated at once, so generation takes more memory (a"
        f" forward pass does not: per_device_train_batch_size stays {per_device})"
    ]


def check_prompts(count: int, planned: Batch) -> None:
    """RecipeError if there are too few prompts for one generation batch: TRL would train zero steps
    and return without a word.
    """
    needed, group = planned.prompts, planned.num_generations
    if count < needed:
        raise RecipeError(
            f"{count} prompts",
            rule=(
                f"one generation batch takes {needed} different prompts ({planned.completions}"
                f" completions / {group} num_generations); with fewer, no step is trained"
            ),
            remedy=(
                f"give {needed} or more, or lower per_device_train_batch_size or"
                " gradient_accumulation_steps"
            ),
        )


def batch_line(planned: Batch, settings: Fields, prompts: int | None) -> str:
    """The batch arithmetic in sentences; without a number of `prompts`, epochs are left out."""
    numbers = arithmetic(planned, settings, prompts or planned.prompts)
    per_forward, per_step, uses, serves, per_epoch, left_over, steps = numbers
    by_epochs, group = (settings.get("max_steps") or -1) < 0, planned.num_generations
    length = _count(steps, "step")
    if by_epochs:
        epochs = _count(settings.get("num_train_epochs") or 1, "epoch")
        length = epochs if prompts is None else f"{epochs} = {length}"
    groups = f"{_count(per_step // group, 'prompt')} x {group}"
    if per_step % group:
        groups = f"{per_step / group:.2g} of a group of {group}"
    every = f", every {serves:g} steps" if serves > 1 else f", {1 / serves:g} times per step"
    again = f" and learnt from {uses} times" if uses > 1 else ""
    line = (
        f"{length}; each learns from {_count(per_step, 'completion')} ({groups})."
        f" {planned.completions} completions ({_count(planned.prompts, 'prompt')} x {group}) are"
        f" generated at once{'' if serves == 1 else every}{again}; a forward pass takes"
        f" {per_forward}{_processes(' in each of')}"
    )
    if prompts is None:
        return line
    line += f". {_count(prompts, 'prompt')} give {_count(per_epoch, 'step')} per epoch"
    line += f" ({left_over} fill no batch)" if left_over else ""
    if not by_epochs:
        line += f": {length} {'is' if steps == 1 else 'are'} {_count(steps / per_epoch, 'epoch')}"
    return line


def _count(number: float, word: str) -> str:
    text = str(number) if isinstance(number, int) else f"{number:.3g}"
    return f"{text} {word}" if text == "1" else f"{text} {word}s"


def arithmetic(
    planned: Batch, settings: Fields, prompts: int
) -> tuple[int, int, int, float, int, int, int]:
    """Completions per forward pass and per update of the weights; times that a completion is learnt
    from; updates that one generation batch serves (below 1: an update takes several); steps per
    epoch; prompts that fill no batch; steps of the run.
    """
    per_device, accumulated, _ = (settings[name] for name in _SUMMED)
    uses, asked = settings.get("num_iterations") or 1, settings.get("max_steps") or -1
    at_once = per_device * processes.count()
    # forward passes that one generation batch serves
    passes = planned.completions // at_once * uses
    batches, left_over = divmod(prompts, planned.prompts)
    per_epoch = max(math.ceil(batches * passes / accumulated), 1)
    steps = asked if asked > 0 else math.ceil((settings.get("num_train_epochs") or 1) * per_epoch)
    serves = passes / accumulated
    return per_device, at_once * accumulated, uses, serves, per_epoch, left_over, steps
