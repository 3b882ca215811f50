# ruff: noqa: F401  names for others to read here
"""What a recipe's settings become (names, values, batch, device), checked before anything is
loaded.

Every field of the installed `GRPOConfig` is accepted under its own name. Old names are translated,
what belongs elsewhere in the recipe is moved there, and what this device cannot do is changed, each
with a visible line; any other name is an error.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from workbench.base.errors import RecipeError
from workbench.base.kinds import Fields
from workbench.recipe import Recipe
from workbench.training.plan.settings.algorithms import papers_fields, papers_notes
from workbench.training.plan.settings.batches import (
    Batch,
    batch,
    batch_line,
    check_prompts,
    whole_groups,
)
from workbench.training.plan.settings.device import Machine, asks_for_vllm, fitted
from workbench.training.plan.settings.in_force import asked_of, check_in_force, in_force_table
from workbench.training.plan.settings.names import TURNS, overridden, with_new_names
from workbench.training.plan.settings.values import DEFAULTS, check_lora, check_values, field_kinds


def normalised(
    recipe: Recipe, fields: set[str], machine: Machine | None = None
) -> tuple[Recipe, Fields, list[str]]:
    """(the recipe under today's names, every value as requested; the settings that GRPOConfig is
    built from, over the defaults, with whole groups, for this device; a line for each change from
    the request, or setting that is often not meant). Idempotent.

    `fields` are `field_names(config_class)`. RecipeError for a name that is not among them, with
    the nearest; for names that disagree.
    """
    from workbench.training.plan.settings.combinations import advice

    recipe, notes = with_new_names(recipe, fields)
    asked = recipe.grpo
    settings = {**DEFAULTS, **asked}
    if asked.get("num_train_epochs") is not None and "max_steps" not in asked:
        # the default number of steps would win over the epochs that were asked for
        settings["max_steps"] = -1
    if settings["max_steps"] == -1 and settings.get("num_train_epochs") is None:
        settings["num_train_epochs"] = 1
    # Unsloth's GPU class sets some of these by itself, and TRL's does not: said here, a recipe
    # trains the same on both.
    papers = papers_fields(recipe, fields)
    settings, raised = whole_groups(settings | papers, asked)
    machine = machine or Machine.here(for_vllm=asks_for_vllm(settings, recipe))
    settings, changed = fitted(settings, recipe, machine)
    notes += papers_notes(recipe, papers) + raised + changed
    notes += advice(recipe, settings | {"cuda": machine.cuda})
    return recipe, settings, notes


def check_lengths(recipe: Recipe, settings: Fields) -> None:
    """RecipeError, with the arithmetic, if the requested lengths, in tokens, do not fit into the
    context together.

    Checked before a prompt is measured. Unsloth would cut the completions instead.
    """
    context, completion = recipe.policy.max_seq_length, settings["max_completion_length"]
    prompt, larger = recipe.max_prompt_length, "set policy.max_seq_length to"
    if completion >= context:
        said = f"max_completion_length = {completion} and policy.max_seq_length = {context}"
        remedy = f"{larger} {completion + (prompt or 256)} or more, or lower max_completion_length"
    elif prompt is not None and prompt + completion > context:
        both = prompt + completion
        said = f"max_prompt_length {prompt} + max_completion_length {completion} = {both} tokens"
        said += f", and policy.max_seq_length = {context}"
        remedy = f"{larger} {both}, max_prompt_length to {context - completion}"
        if context > prompt:
            remedy += f", or max_completion_length to {context - prompt}"
    else:
        return
    raise RecipeError(
        said,
        rule="prompt and completion fit into max_seq_length together, in tokens",
        remedy=remedy,
    )


def field_names(config_class: Any) -> set[str]:
    """Names that a config class can be built with."""
    return {field.name for field in dataclasses.fields(config_class) if field.init}


def stages_decide(recipe: Recipe) -> list[str]:
    """One line if a recipe sets its length beside its stages, whose own steps decide; else none."""
    asked = {name: recipe.grpo.get(name) for name in ("max_steps", "num_train_epochs")}
    beside = [f"grpo.{name} = {value}" for name, value in asked.items() if value not in (None, -1)]
    if not recipe.stages or not beside:
        return []
    steps = [stage.steps for stage in recipe.stages]
    total = " + ".join(map(str, steps)) + (f" = {sum(steps)}" if len(steps) > 1 else "")
    verb = "does" if len(beside) == 1 else "do"
    idle = f"{' and '.join(beside)} {verb} not count beside them"
    return [f"the steps of the stages decide: {total}; {idle}"]
