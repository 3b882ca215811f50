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

from workbench import processes
from workbench.errors import RecipeError
from workbench.kinds import Fields

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
            remedy = (
                "write it without quotes"
                if isinstance(value, str)
                else "give a whole number, at least 1"
            )
            raise RecipeError(
                f"grpo.{name} = {value!r}",
                rule=f"{name} is a whole number, at least 1",
                remedy=remedy,
            )
    sizes: list[Any] = [settings.get(name) for name in (*_SUMMED, *_OPTIONAL)]
    per_device, accumulated, count, several, explicit = sizes
    if explicit and several:
        both = f"grpo.generation_batch_size = {explicit} and grpo.steps_per_generation = {several}"
        raise RecipeError(
            both, rule="one of them follows from the other", remedy="keep one of them"
        )
    at_once = per_device * processes.count()
    completions = explicit or at_once * (several or accumulated)
    factor = (
        f"steps_per_generation {several}"
        if several
        else f"gradient_accumulation_steps {accumulated}"
    )
    product = f"per_device_train_batch_size {per_device}{_processes(' x')} x {factor}"
    made_of = f"generation_batch_size {explicit}" if explicit else product
    if completions > MOST_COMPLETIONS or count > MOST_COMPLETIONS:
        value, rule = (
            f"{max(completions, count):,} completions ({made_of})",
            f"at most {MOST_COMPLETIONS:,} are generated at once",
        )
        raise RecipeError(
            value, rule=rule, remedy="lower num_generations or the sizes that it is made of"
        )
    if count < 2:
        rule = "an advantage compares at least 2 completions of a prompt"
        raise RecipeError(
            f"grpo.num_generations = {count}",
            rule=rule,
            remedy="use 4 to try things out, 8 as a rule",
        )
    if completions % count:
        legal = [divisor for divisor in range(2, completions + 1) if completions % divisor == 0]
        near = sorted(sorted(legal, key=lambda divisor: abs(divisor - count))[:2])
        larger = f"make the batch {-(-completions // count) * count}"
        said = f"{made_of} = {completions} completions, and num_generations = {count}"
        rule = "num_generations divides the generation batch, so that every group is whole"
        remedy = (
            f"set num_generations to {' or '.join(map(str, near))}, or {larger}" if near else larger
        )
        raise RecipeError(said, rule=rule, remedy=remedy)
    if completions % at_once:
        whole = -(-completions // math.lcm(at_once, count)) * math.lcm(at_once, count)
        said = f"{made_of}, and per_device_train_batch_size {per_device}{_processes(' x')}"
        rule, remedy = (
            "a generation batch is cut into whole forward passes",
            f"set generation_batch_size to {whole}",
        )
        if completions % processes.count() == 0:
            fitting = math.gcd(completions // processes.count(), per_device)
            remedy += f", or per_device_train_batch_size to {fitting}"
        raise RecipeError(said, rule=rule, remedy=remedy)
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
    if (
        not all(map(_is_size, sizes))
        or count < 2
        or any(asked.get(name) is not None for name in _OPTIONAL)
    ):
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
    if count < planned.prompts:
        sizes = f"{planned.completions} completions / {planned.num_generations} num_generations"
        rule = (
            f"one generation batch takes {planned.prompts} different prompts ({sizes}); with fewer,"
            " no step is trained"
        )
        remedy = (
            f"give {planned.prompts} or more, or lower per_device_train_batch_size or"
            " gradient_accumulation_steps"
        )
        raise RecipeError(f"{count} prompts", rule=rule, remedy=remedy)


def arithmetic(
    planned: Batch, settings: Fields, prompts: int
) -> tuple[int, int, int, float, int, int, int]:
    """Completions per forward pass and per update of the weights; times that a completion is learnt
    from; updates that one generation batch serves (below 1: an update takes several); steps per
    epoch; prompts that fill no batch; steps of the run.
    """
    per_device, accumulated = (
        settings["per_device_train_batch_size"],
        settings["gradient_accumulation_steps"],
    )
    uses, asked = settings.get("num_iterations") or 1, settings.get("max_steps") or -1
    at_once = per_device * processes.count()
    # forward passes that one generation batch serves
    passes = planned.completions // at_once * uses
    per_epoch = max(math.ceil(prompts // planned.prompts * passes / accumulated), 1)
    steps = asked if asked > 0 else math.ceil((settings.get("num_train_epochs") or 1) * per_epoch)
    left_over = prompts % planned.prompts
    return (
        per_device,
        at_once * accumulated,
        uses,
        passes / accumulated,
        per_epoch,
        left_over,
        steps,
    )


def batch_line(planned: Batch, settings: Fields, prompts: int | None) -> str:
    """The batch arithmetic in sentences; without a number of `prompts`, epochs are left out."""
    found = arithmetic(planned, settings, prompts or planned.prompts)
    per_forward, per_step, uses, serves, per_epoch, left_over, steps = found
    by_epochs, group = (settings.get("max_steps") or -1) < 0, planned.num_generations
    length = said = _count(steps, "step")
    if by_epochs:
        length = _count(settings.get("num_train_epochs") or 1, "epoch") + f" = {said}" * (
            prompts is not None
        )
    groups = f"{_count(per_step // group, 'prompt')} x {group}"
    if per_step % group:
        groups = f"{per_step / group:.2g} of a group of {group}"
    every = (
        ""
        if serves == 1
        else f", every {serves:g} steps"
        if serves > 1
        else f", {1 / serves:g} times per step"
    )
    again = f" and learnt from {uses} times" * (uses > 1)
    sentences = [
        f"{length}; each learns from {_count(per_step, 'completion')} ({groups})",
        (
            f"{planned.completions} completions ({_count(planned.prompts, 'prompt')} x {group}) are"
            f" generated at once{every}{again}; a forward pass takes"
            f" {per_forward}{_processes(' in each of')}"
        ),
    ]
    if prompts is not None:
        left = f" ({left_over} fill no batch)" * bool(left_over)
        share = (
            ""
            if by_epochs
            else f": {length} {'is' if steps == 1 else 'are'} {_count(steps / per_epoch, 'epoch')}"
        )
        sentences.append(
            f"{_count(prompts, 'prompt')} give {_count(per_epoch, 'step')} per epoch{left}{share}"
        )
    return ". ".join(sentences)


def _count(number: float, word: str) -> str:
    text = str(number) if isinstance(number, int) else f"{number:.3g}"
    return f"{text} {word}" if text == "1" else f"{text} {word}s"
