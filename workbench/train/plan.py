"""Settings and batch arithmetic, checked before anything is loaded.

Every field of the installed `GRPOConfig` is accepted under its own name. A few old names are translated, each with a
visible line; any other name is an error, because Unsloth would print "ignored" and train with a default.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from workbench.run.errors import RecipeError
from workbench.run.recipe import Recipe

# Name in older libraries, courses and blogs -> name in trl 1.14 / transformers 5.
ALIASES = {
    "kl_coef": "beta",
    "max_new_tokens": "max_completion_length",
    "num_generation": "num_generations",
    "warmup_ratio": "warmup_steps",  # in transformers 5 a warmup_steps below 1 is a share of all steps
}

# What belongs elsewhere in the recipe -> where.
ELSEWHERE = {
    "max_prompt_length": "recipe field max_prompt_length (prompts are filtered, as TRL no longer truncates them)",
    "reward_weights": "recipe field reward_weights (by function name)",
    "seed": "recipe field seed",
    "output_dir": "recipe field run_name",
}

# Stated, not inherited: stock TRL and Unsloth's GPU class have different defaults for most of these.
DEFAULTS: dict[str, Any] = {
    "learning_rate": 1e-5,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 8,
    "max_completion_length": 96,
    "max_steps": 100,
    "temperature": 1.0,
    "beta": 0.0,
    "scale_rewards": "group",
    "optim": "adamw_torch",
    "weight_decay": 0.0,
    "warmup_steps": 0,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 1.0,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "save_strategy": "steps",
    "save_steps": 100,
    "save_total_limit": 2,
    "save_only_model": True,  # the optimiser's and the random states are pickles
    "report_to": "none",
}


_SIZES = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
    "num_generations",
    "max_completion_length",
)


def _at_least(least: float) -> tuple[Callable[[Any], bool], str]:
    return lambda value: value >= least, f"at least {least:g}"


def _above(bound: float) -> tuple[Callable[[Any], bool], str]:
    return lambda value: value > bound, f"above {bound:g}"


# Values that GRPOConfig takes without a word and that end in a traceback later, or in a run that cannot learn.
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_steps": (lambda value: value == -1 or value >= 1, "at least 1, or -1 to train for num_train_epochs"),
    "num_train_epochs": _above(0),
    "learning_rate": _above(0),
    "temperature": _above(0),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "from 0 to 1"),
    "top_k": _at_least(0),
    "repetition_penalty": _above(0),
    "beta": _at_least(0),
    "epsilon": _above(0),
    "epsilon_high": _above(0),
    "num_iterations": _at_least(1),
    "weight_decay": _at_least(0),
    "warmup_steps": _at_least(0),
    "max_grad_norm": _at_least(0),
    "logging_steps": _above(0),
    "save_steps": _above(0),
}
CHOICES = {
    "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"),
    "scale_rewards": ("group", "batch", "none", True, False),
    "importance_sampling_level": ("token", "sequence"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
}


class Batch(NamedTuple):
    """What one generation batch is made of."""

    completions: int
    num_generations: int

    @property
    def prompts(self) -> int:
        return self.completions // self.num_generations


def settings(recipe: Recipe, fields: set[str]) -> tuple[dict[str, Any], list[str]]:
    """The recipe's `grpo` settings over the defaults, under today's names.

    Args:
        recipe: what was asked.
        fields: names of the installed GRPOConfig's fields.

    Returns:
        (settings for GRPOConfig, one line for each name that was translated).

    Raises:
        RecipeError: for a name that GRPOConfig does not have, with the nearest one that it has.
    """
    asked, notes = dict(recipe.grpo), []
    for old, new in ALIASES.items():
        if old in asked and old not in fields:
            if new in asked and asked[new] != asked[old]:
                raise RecipeError(
                    f"grpo.{old} = {asked[old]!r} and grpo.{new} = {asked[new]!r}",
                    rule=f"{old} is the old name of {new}",
                    remedy="keep one of them",
                )
            asked[new] = asked.pop(old)
            notes.append(f"{old} is called {new} in this version: {new} = {asked[new]!r}")
    if asked.get("max_steps", 0) is None:
        asked["max_steps"] = -1
        notes.append("max_steps = None is written -1 in this version: train for num_train_epochs")
    for name in asked:
        if name in ELSEWHERE:
            raise RecipeError(f"grpo.{name} = {asked[name]!r}", rule=f"{name} is set elsewhere", remedy=ELSEWHERE[name])
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            raise RecipeError(
                f"grpo.{name} = {asked[name]!r}",
                rule="grpo holds fields of the installed trl.GRPOConfig",
                remedy=f"did you mean {near[0]!r}?" if near else "see the fields of GRPOConfig in TRL's documentation",
            )
    if asked.get("max_steps", DEFAULTS["max_steps"]) == -1 and "num_train_epochs" not in asked:
        asked["num_train_epochs"] = 1
    return {**DEFAULTS, **asked}, notes


def check_values(settings: dict[str, Any], kinds: dict[str, set[type]]) -> None:
    """Check each value's type and range, before anything is built from it.

    Args:
        kinds: the types that a field takes, where they are plain ones: `field_kinds(config_class)`.

    Raises:
        RecipeError: for a value that GRPOConfig would take and that cannot work.
    """
    for name, value in settings.items():
        said = f"grpo.{name} = {value!r}"
        default = f"; {DEFAULTS[name]!r} is the default" if name in DEFAULTS else ""
        if name in CHOICES:
            if not any(value is choice or (isinstance(value, str) and value == choice) for choice in CHOICES[name]):
                near = difflib.get_close_matches(str(value), [c for c in CHOICES[name] if isinstance(c, str)], n=1)
                words = ", ".join(map(str, CHOICES[name]))
                remedy = f"did you mean {near[0]!r}?" if near else f"choose one of them{default}"
                raise RecipeError(said, rule=f"{name} is one of {words}", remedy=remedy)
            continue
        wanted = kinds.get(name)
        if wanted and not _fits(value, wanted):
            words = " or ".join(sorted(_KIND_WORDS[kind] for kind in wanted))
            quoted = isinstance(value, str) and str not in wanted
            remedy = "write it without quotes" if quoted else f"give {words}"
            raise RecipeError(said, rule=f"{name} is {words}", remedy=remedy)
        if name in _RULES and isinstance(value, (int, float)) and not isinstance(value, bool):
            allowed, words = _RULES[name]
            if not allowed(value):
                raise RecipeError(said, rule=f"{name} is {words}", remedy=f"give a number {words}{default}")


_KIND_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", type(None): "empty"}


def _fits(value: Any, wanted: set[type]) -> bool:
    if isinstance(value, bool):
        return bool in wanted
    return isinstance(value, tuple(wanted)) or (isinstance(value, int) and float in wanted)


def field_kinds(config_class: type) -> dict[str, set[type]]:
    """For each field whose type is made of plain ones (int, float, bool, str, None): those."""
    kinds = {}
    for name, hint in typing.get_type_hints(config_class).items():
        parts = set(typing.get_args(hint) or (hint,))
        if parts <= set(_KIND_WORDS):
            kinds[name] = parts
    return kinds


def batch(settings: dict[str, Any]) -> Batch:
    """The generation batch that the settings make, on one process.

    Raises:
        RecipeError: if a size is not a positive whole number, or `num_generations` is below 2 or does not divide the
            batch; then with the nearest legal neighbours.
    """
    for name in _SIZES:
        value = settings.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise RecipeError(
                f"grpo.{name} = {value!r}",
                rule=f"{name} is a whole number, at least 1",
                remedy="write it without quotes",
            )
    count = settings["num_generations"]
    if settings.get("generation_batch_size"):
        completions, made_of = (
            settings["generation_batch_size"],
            f"generation_batch_size {settings['generation_batch_size']}",
        )
    else:
        second = "steps_per_generation" if settings.get("steps_per_generation") else "gradient_accumulation_steps"
        per_device = settings["per_device_train_batch_size"]
        completions = per_device * settings[second]
        made_of = f"per_device_train_batch_size {per_device} x {second} {settings[second]}"
    if count < 2:
        raise RecipeError(
            f"grpo.num_generations = {count}",
            rule="an advantage compares at least 2 completions of a prompt",
            remedy="use 4 to try things out, 8 as a rule",
        )
    if completions % count:
        legal = [divisor for divisor in range(2, completions + 1) if completions % divisor == 0]
        near = sorted(sorted(legal, key=lambda divisor: abs(divisor - count))[:2])
        up = -(-completions // count) * count
        raise RecipeError(
            f"{made_of} = {completions} completions, and num_generations = {count}",
            rule="num_generations divides the generation batch, so that every group is whole",
            remedy=f"set num_generations to {' or '.join(map(str, near))}, or make the batch {up}"
            if near
            else f"make the batch {up}",
        )
    return Batch(completions, count)


def check_prompts(count: int, planned: Batch) -> None:
    """Check that there are prompts for at least one generation batch.

    Raises:
        RecipeError: if not. TRL would train zero steps and return as if all were well.
    """
    if count < planned.prompts:
        raise RecipeError(
            f"{count} prompts",
            rule=f"one generation batch takes {planned.prompts} different prompts "
            f"({planned.completions} completions / {planned.num_generations} num_generations); with fewer, no step is trained",
            remedy=f"give at least {planned.prompts} prompts, or lower per_device_train_batch_size or "
            "gradient_accumulation_steps",
        )


def in_words(planned: Batch, settings: dict[str, Any], prompts: int) -> str:
    """The batch arithmetic as one sentence."""
    steps = settings["max_steps"]
    length = f"{steps} steps" if steps and steps > 0 else f"{settings.get('num_train_epochs', 1)} epoch(s)"
    return (
        f"{length}; each generates {planned.completions} completions: {planned.prompts} prompts x "
        f"{planned.num_generations}; {prompts} prompts give {prompts // planned.prompts} steps an epoch"
    )


def field_names(config_class: type) -> set[str]:
    """Names that a config class can be built with."""
    return {field.name for field in dataclasses.fields(config_class) if field.init}
