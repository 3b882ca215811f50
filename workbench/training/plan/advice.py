"""What is allowed and often not meant: one line each, never an error."""

from __future__ import annotations

from typing import Any

from workbench.recipe import PolicyPart, Recipe

LEAST_FOR_LORA = 1e-6
MUCH_BETA = 0.05


def advice(recipe: Recipe, settings: dict[str, Any]) -> list[str]:
    """Lines about settings that were asked for, work, and may do something else than their author thinks.

    Args:
        recipe: under today's names.
        settings: as they are given to GRPOConfig.
    """
    lines, asked = [], recipe.grpo
    rate, beta = _number(asked.get("learning_rate")), _number(asked.get("beta"))
    if rate is not None and 0 < rate < LEAST_FOR_LORA:
        lines.append(
            f"learning_rate = {rate:g} is a value for full fine-tuning; an adapter usually takes 5e-6 to 5e-5, and with "
            "this one may not move"
        )
    if beta is not None and beta >= MUCH_BETA:
        lines.append(
            f"beta = {beta:g} is far above today's practice (0, or about 0.001): the reference holds the policy back"
        )
    epochs_too = _number(asked.get("max_steps")) not in (None, -1) and asked.get("num_train_epochs") is not None
    if epochs_too and not recipe.stages:  # with stages neither decides: `stages_decide`
        lines.append(
            f"max_steps = {asked['max_steps']} decides; num_train_epochs = {asked['num_train_epochs']} does not count "
            "beside it"
        )
    accumulated = _number(asked.get("gradient_accumulation_steps")) or 1
    stated = any(settings.get(name) for name in ("steps_per_generation", "generation_batch_size"))
    if accumulated > 1 and accumulated == settings["gradient_accumulation_steps"] and not stated:
        lines.append(
            f"gradient_accumulation_steps = {accumulated:g} saves no memory in generation: the completions of all "
            f"{accumulated:g} passes are generated at once (steps_per_generation says how many)"
        )
    logged = _number(asked.get("logging_steps"))
    if logged is not None and logged > 1:
        lines.append(f"logging_steps = {logged:g}: metrics are averages over {logged:g} steps; 1 records every step")
    cap = _number(asked.get("epsilon_high"))
    if asked.get("loss_type") == "cispo" and cap is not None and cap < 1:
        lines.append(
            f"epsilon_high = {cap:g} with loss_type = 'cispo' caps every weight below 1, where an unchanged policy has it, and "
            "so makes every gradient smaller"
        )
    share = recipe.policy.gpu_memory_utilization
    in_force = settings.get("use_vllm") and recipe.policy.backend == "unsloth"
    if share != PolicyPart().gpu_memory_utilization and not in_force:
        lines.append(
            f"policy.gpu_memory_utilization = {share:g} counts only with fast_inference, which is not in force"
        )
    return lines


def stages_decide(recipe: Recipe) -> list[str]:
    """One line for a recipe that says how long to train beside its stages, which say it themselves; else none.

    Args:
        recipe: under today's names.
    """
    beside = [
        f"{name} = {recipe.grpo[name]}"
        for name in ("max_steps", "num_train_epochs")
        if recipe.grpo.get(name) not in (None, -1)
    ]
    if not recipe.stages or not beside:
        return []
    steps = [stage.steps for stage in recipe.stages]
    total = f"{' + '.join(map(str, steps))} = {sum(steps)}" if len(steps) > 1 else str(steps[0])
    return [
        f"the steps of the stages decide: {total}; grpo.{' and grpo.'.join(beside)} "
        f"{'does' if len(beside) == 1 else 'do'} not count beside them"
    ]


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
