"""A recipe's settings, checked before anything is loaded: names, values, batch, device.

Every field of the installed `GRPOConfig` is accepted under its own name. Old names are translated, what belongs elsewhere
in the recipe is moved there, and what this device cannot do is changed, each with a visible line; any other name is an
error.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from workbench.errors import RecipeError
from workbench.recipe import PolicyPart, Recipe
from workbench.training.plan.batches import whole_groups
from workbench.training.plan.device import Machine, asks_for_vllm, fitted
from workbench.training.plan.names import renamed
from workbench.training.plan.values import DEFAULTS

CISPO_EPSILON_HIGH = 5.0  # epsilon_max of the ScaleRL paper
LEAST_FOR_LORA = 1e-6
MUCH_BETA = 0.05


def normalised(recipe: Recipe, fields: set[str], machine: Machine | None = None) -> tuple[Recipe, dict[str, Any], list[str]]:
    """A recipe under today's names, and the settings that GRPOConfig is built from. Idempotent.

    Args:
        recipe: what was asked; it is not changed.
        fields: names of the installed GRPOConfig's fields: `field_names(config_class)`.
        machine: what it can do; None: this one.

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
    found, papers = _as_the_paper(found, asked, fields)
    found, raised = whole_groups(found, asked)
    found, changed = fitted(found, recipe, machine or Machine.here(for_vllm=asks_for_vllm(found, recipe)))
    return recipe, found, [*notes, *papers, *raised, *changed, *advice(recipe, found)]


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


def advice(recipe: Recipe, settings: dict[str, Any]) -> list[str]:
    """Lines about settings that were asked for, work, and may do something else than their author thinks.

    Args:
        recipe: under today's names.
        settings: as they are given to GRPOConfig.
    """
    lines, asked = [], {name: value for name, value in recipe.grpo.items() if _is_number(value)}
    rate, beta, logged = (asked.get(name) for name in ("learning_rate", "beta", "logging_steps"))
    if rate is not None and 0 < rate < LEAST_FOR_LORA:
        lines.append(
            f"learning_rate = {rate:g} is a value for full fine-tuning; an adapter usually takes 5e-6 to 5e-5, and with "
            "this one may not move"
        )
    if beta is not None and beta >= MUCH_BETA:
        lines.append(f"beta = {beta:g} is far above today's practice (0, or about 0.001): the reference holds the policy back")
    # With stages neither decides: `stages_decide`.
    if asked.get("max_steps") not in (None, -1) and "num_train_epochs" in asked and not recipe.stages:
        lines.append(
            f"max_steps = {asked['max_steps']} decides; num_train_epochs = {asked['num_train_epochs']} does not count beside it"
        )
    accumulated = asked.get("gradient_accumulation_steps") or 1
    stated = any(settings.get(name) for name in ("steps_per_generation", "generation_batch_size"))
    if accumulated > 1 and accumulated == settings["gradient_accumulation_steps"] and not stated:
        lines.append(
            f"gradient_accumulation_steps = {accumulated:g} saves no memory in generation: the completions of all "
            f"{accumulated:g} passes are generated at once (steps_per_generation says how many)"
        )
    if logged is not None and logged > 1:
        lines.append(f"logging_steps = {logged:g}: metrics are averages over {logged:g} steps; 1 records every step")
    cap = asked.get("epsilon_high")
    if recipe.grpo.get("loss_type") == "cispo" and cap is not None and cap < 1:
        lines.append(
            f"epsilon_high = {cap:g} with loss_type = 'cispo' caps every weight below 1, where an unchanged policy has it, and "
            "so makes every gradient smaller"
        )
    share = recipe.policy.gpu_memory_utilization
    in_force = settings.get("use_vllm") and recipe.policy.backend == "unsloth"
    if share != PolicyPart().gpu_memory_utilization and not in_force:
        lines.append(f"policy.gpu_memory_utilization = {share:g} has an effect only with fast_inference, which is off")
    return lines


def stages_decide(recipe: Recipe) -> list[str]:
    """One line for a recipe that says how long to train beside its stages, which say it themselves; else none.

    Args:
        recipe: under today's names.
    """
    beside = [
        f"{name} = {recipe.grpo[name]}" for name in ("max_steps", "num_train_epochs") if recipe.grpo.get(name) not in (None, -1)
    ]
    if not recipe.stages or not beside:
        return []
    steps = [stage.steps for stage in recipe.stages]
    total = f"{' + '.join(map(str, steps))} = {sum(steps)}" if len(steps) > 1 else str(steps[0])
    return [
        f"the steps of the stages decide: {total}; grpo.{' and grpo.'.join(beside)} "
        f"{'does' if len(beside) == 1 else 'do'} not count beside them"
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
