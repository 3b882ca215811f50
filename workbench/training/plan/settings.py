"""A recipe's settings, checked before anything is loaded: names, values, batch, device.

Every field of the installed `GRPOConfig` is accepted under its own name. Old names are translated, what belongs elsewhere
in the recipe is moved there, and what this device cannot do is changed, each with a visible line; any other name is an
error.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from workbench.errors import RecipeError
from workbench.recipe import Recipe
from workbench.training.plan.advice import advice
from workbench.training.plan.batches import whole_groups
from workbench.training.plan.device import Machine, asks_for_vllm, depends, fitted
from workbench.training.plan.names import MOVED, renamed
from workbench.training.plan.values import DEFAULTS

CISPO_EPSILON_HIGH = 5.0  # epsilon_max of the ScaleRL paper


def normalised(
    recipe: Recipe, fields: set[str], machine: Machine | None = None, processes: int = 1
) -> tuple[Recipe, dict[str, Any], list[str]]:
    """A recipe under today's names, and the settings that GRPOConfig is built from.

    Done again with the recipe that it returns, it gives the same settings.

    Args:
        recipe: what was asked; it is not changed.
        fields: names of the installed GRPOConfig's fields: `field_names(config_class)`.
        machine: what it can do; None: this one, looked at only if a setting depends on it.
        processes: how many train together, one a GPU.

    Returns:
        (the recipe with every name translated or moved to where it belongs, and every value as asked; settings over the
        defaults, with whole groups, for this device; one line for each thing that is not exactly as it was asked, and
        for values that are often not meant).

    Raises:
        RecipeError: for a name that GRPOConfig does not have, with the nearest one that it has; for names that disagree.
    """
    recipe, notes = renamed(recipe, fields)
    asked = recipe.grpo
    found = {**DEFAULTS, **asked}
    if asked.get("num_train_epochs") is not None and "max_steps" not in asked:
        found["max_steps"] = -1  # the default number of steps would win over the epochs that were asked for
    if found["max_steps"] == -1 and found.get("num_train_epochs") is None:
        found["num_train_epochs"] = 1
    found, said = _as_the_paper(found, asked, fields)
    notes += said
    found, said = whole_groups(found, asked, processes)
    notes += said
    if depends(found, recipe):
        found, said = fitted(found, recipe, machine or Machine.here(for_vllm=asks_for_vllm(found, recipe)))
        notes += said
    return recipe, found, notes + advice(recipe, found)


def settings(recipe: Recipe, fields: set[str], machine: Machine | None = None) -> tuple[dict[str, Any], list[str]]:
    """Only the settings and the lines of `normalised`, for a recipe in which nothing has to be moved out of `grpo`.

    Raises:
        RecipeError: as `normalised`, and for a setting that belongs elsewhere in the recipe: it would be said and not done.
    """
    new, found, notes = normalised(recipe, fields, machine)
    for name, value in recipe.grpo.items():
        where = "reward_weights" if name == "reward_weights" else MOVED.get(name)
        if where and value is not None and new.model_dump(exclude={"grpo"}) != recipe.model_dump(exclude={"grpo"}):
            raise RecipeError(
                f"grpo.{name} = {value!r}", rule=f"{name} is set elsewhere", remedy=f"recipe field {where}"
            )
    return found, notes


def _as_the_paper(found: dict[str, Any], asked: dict[str, Any], fields: set[str]) -> tuple[dict[str, Any], list[str]]:
    # Unsloth's GPU class changes other settings when one of these losses is asked for by name, and TRL's does not. Saying
    # them here makes a recipe train the same on both.
    kind, found, notes = asked.get("loss_type"), dict(found), []
    if kind == "dr_grpo" and "scale_rewards" not in asked:
        found["scale_rewards"] = "none"
        notes.append("loss_type = 'dr_grpo' goes with scale_rewards = 'none', as in its paper and as Unsloth sets it")
    if kind == "cispo" and asked.get("epsilon_high") is None:
        found["epsilon_high"] = CISPO_EPSILON_HIGH
        notes.append(
            f"loss_type = 'cispo' caps each weight at epsilon_high itself, not at 1 + epsilon_high; here "
            f"{CISPO_EPSILON_HIGH:g}, which TRL and Unsloth recommend (TRL alone would take epsilon, and cap them all below 1)"
        )
    if kind == "dapo":
        pinned = {"mask_truncated_completions": False, "epsilon_high": found.get("epsilon") or 0.2}
        pinned = {name: value for name, value in pinned.items() if name in fields and asked.get(name) is None}
        found |= pinned
        if pinned:
            values = ", ".join(f"{name} = {value}" for name, value in pinned.items())
            notes.append(
                f"loss_type = 'dapo' by name makes Unsloth take its paper's other settings on a GPU; here {values} (as in "
                "TRL), unless the recipe says otherwise"
            )
    return found, notes


def check_lengths(recipe: Recipe, settings: dict[str, Any]) -> None:
    """Check that the lengths that were asked for fit into the context together, in tokens, before a prompt is measured.

    Raises:
        RecipeError: if they do not, with the arithmetic. Unsloth would cut the completions instead.
    """
    context, completion = recipe.policy.max_seq_length, settings["max_completion_length"]
    prompt = recipe.max_prompt_length
    if completion >= context:
        raise RecipeError(
            f"max_completion_length = {completion} and policy.max_seq_length = {context}",
            rule="prompt and completion fit into max_seq_length together, in tokens",
            remedy=f"set policy.max_seq_length to {completion + (prompt or 256)} or more, or lower max_completion_length",
        )
    if prompt is not None and prompt + completion > context:
        raise RecipeError(
            f"max_prompt_length {prompt} + max_completion_length {completion} = {prompt + completion} tokens, and "
            f"policy.max_seq_length = {context}",
            rule="prompt and completion fit into max_seq_length together",
            remedy=f"set policy.max_seq_length to {prompt + completion}, max_prompt_length to {context - completion}"
            + (f", or max_completion_length to {context - prompt}" if context > prompt else ""),
        )


def field_names(config_class: type) -> set[str]:
    """Names that a config class can be built with."""
    return {field.name for field in dataclasses.fields(config_class) if field.init}
