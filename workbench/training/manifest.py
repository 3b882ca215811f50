"""The manifest: everything that was found when a run began, beside the recipe, which is everything that was asked."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.data.split import fingerprint
from workbench.recipe import Recipe
from workbench.rewards.library import max_score_of
from workbench.run.directory import now
from workbench.run.versions import versions
from workbench.training import plan
from workbench.training.policy import Policy
from workbench.training.stages import ONLY_STAGE, Stage

# Settings whose values in force the manifest keeps: those that libraries change, or that decide what a run costs.
_IN_FORCE = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size",
    "num_generations", "max_completion_length", "max_steps", "num_train_epochs", "learning_rate", "lr_scheduler_type",
    "warmup_steps", "optim", "weight_decay", "max_grad_norm", "beta", "loss_type", "scale_rewards",
    "multi_objective_aggregation", "epsilon",
    "epsilon_high", "mask_truncated_completions", "num_iterations", "temperature", "top_p", "top_k", "min_p",
    "repetition_penalty", "bf16", "fp16", "gradient_checkpointing", "seed", "use_vllm",
)  # fmt: skip


def manifest_of(recipe: Recipe, policy: Policy, stages: Sequence[Stage], trainer: Any, notes: list[str]) -> dict[str, Any]:
    """What was found: versions, device, task, reward hashes, and the settings in force in the first stage.

    Args:
        trainer: the first stage's.
        notes: everything that was translated or adapted, as it was printed.
    """
    first = stages[0]
    task = first.task
    given = {**first.settings, "report_to": "none", "seed": recipe.seed}
    found = {
        "created": now(),
        "versions": versions(),
        "policy": policy.found(),
        "trainer": f"{type(trainer).__mro__[0].__module__}.{type(trainer).__name__}",
        "task": {
            "name": task.name,
            "source": task.source or recipe.task,
            "right_by": task.right_function,
            "format_by": task.format_by,
            "rows": fingerprint(task.rows),
            "held_out": fingerprint(task.held_out),
            "card": _dataset_card(task.source),
        },
        "rewards": _rewards(first),
        "template": fingerprint([{"template": policy.tokenizer.chat_template or "", **policy.chat_template_kwargs}]),
        "settings": {"asked": recipe.grpo, "in_force": settings_in_force(trainer.args), "translated": notes},
        "settings_table": [
            {key: _plain(value) for key, value in row._asdict().items()}
            for row in plan.in_force_table(plan.asked_of(recipe), trainer.args, given)
        ],
        "prompts": {
            "used": len(first.rows),
            "left_out_too_long": first.left_out_too_long,
            "longest_tokens": max(first.lengths_tokens, default=None),
        },
    }
    if first.name != ONLY_STAGE or len(stages) > 1:
        found["stages"] = [_stage(stage) for stage in stages]
    return found


def settings_in_force(args: Any) -> dict[str, Any]:
    """Of a built GRPOConfig, the settings that the manifest keeps."""
    return {key: _plain(getattr(args, key)) for key in _IN_FORCE if hasattr(args, key)}


def _rewards(stage: Stage) -> dict[str, Any]:
    suite = stage.suite
    return {
        "hash": suite.hash,
        "functions": suite.hashes,
        "weights": dict(zip(suite.names, suite.weights, strict=True)),
        "best": dict(zip(suite.names, map(max_score_of, stage.task.reward_funcs), strict=True)),
        "run": suite.functions.places,
    }


def _stage(stage: Stage) -> dict[str, Any]:
    task = stage.task
    return {
        "name": stage.name, "steps": stage.steps, "after": stage.offset, "task": task.source or task.name,
        "rows": fingerprint(task.rows), "prompts": len(stage.rows), "right_by": task.right_function,
        "format_by": task.format_by, "rewards": _rewards(stage),
        "settings": {key: _plain(value) for key, value in stage.settings.items() if key in _IN_FORCE},
    }  # fmt: skip


def _dataset_card(task_file: str) -> dict[str, Any] | None:
    # What notebook 01 left beside the task file: the source, the split's rule, the fingerprints, the band.
    card = Path(task_file).parent / "card.json" if task_file else None
    return json.loads(card.read_text(encoding="utf-8")) if card is not None and card.is_file() else None


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(getattr(value, "value", value))
