"""The variants of GRPO that a recipe names in one word: what each sets, and which paper says so.

Each paper's settings follow TRL's page on papers. Sizes, lengths and rates do not belong to the
algorithm.
"""

from __future__ import annotations

from typing import NamedTuple

from workbench.kinds import Fields
from workbench.recipe import Recipe
from workbench.training.settings.in_force import plain_setting


class Algorithm(NamedTuple):
    """One variant."""

    source: str  # of the values
    changes: str  # what it changes, a sentence
    fields: Fields  # of GRPOConfig
    with_loss: Fields | None = None  # what `loss_type` of that name brings along by itself
    why_with_loss: str = ""


ALGORITHMS = {
    "grpo": Algorithm(
        "arXiv 2402.03300",
        "the loss is a mean over each completion's tokens, then over completions; beta, 0.04 in the"
        " paper, stays the recipe's",
        {"loss_type": "grpo", "scale_rewards": "group", "importance_sampling_level": "token"},
    ),
    "dr_grpo": Algorithm(
        "arXiv 2503.20783",
        "neither a completion's length nor its group's std scales what it teaches",
        {"loss_type": "dr_grpo", "scale_rewards": "none", "beta": 0.0},
        {"scale_rewards": "none"},
        "goes with it in its paper, and Unsloth sets it",
    ),
    "dapo": Algorithm(
        "arXiv 2503.14476",
        "each token weighs the same, unlikely ones may rise further, and cut completions teach"
        " nothing; its dynamic sampling and its length penalty (a reward function) are not settings"
        " of GRPOConfig",
        {
            "loss_type": "dapo",
            "epsilon": 0.2,
            "epsilon_high": 0.28,
            "mask_truncated_completions": True,
            "beta": 0.0,
        },
        {"mask_truncated_completions": False, "epsilon_high": "epsilon"},
        "as in TRL: by its name alone Unsloth takes the paper's other settings on a GPU, and so"
        " does algorithm: dapo",
    ),
    "gspo": Algorithm(
        "arXiv 2507.18071, 5.1",
        "one importance ratio for a whole completion, clipped close to 1; the paper makes four"
        " updates of each generation, which steps_per_generation = 4 x gradient_accumulation_steps"
        " does",
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 3e-4,
            "epsilon_high": 4e-4,
            "beta": 0.0,
        },
    ),
    "gdpo": Algorithm(
        "arXiv 2601.05242",
        "each reward function is normalised within its group before they are added, so the one with"
        " the widest scores does not decide alone; with this, scale_rewards changes nothing",
        {"multi_objective_aggregation": "normalize_then_sum"},
    ),
    "cispo": Algorithm(
        "arXiv 2506.13585; epsilon_high: 2510.13786",
        "the importance weight is capped, and no token's gradient is taken away",
        {"loss_type": "cispo", "epsilon_high": 5.0},
        {"epsilon_high": 5.0},
        "caps each weight itself, not at 1 + epsilon_high; TRL and Unsloth recommend it (TRL's own,"
        " epsilon, would cap them all below 1)",
    ),
}


def papers_fields(recipe: Recipe, fields: set[str] | None = None) -> Fields:
    """What the recipe's `algorithm`, or else its `loss_type`, sets, except what `grpo` sets by name
    and, if `fields` of the config are given, what the config lacks.
    """
    one = ALGORITHMS.get(recipe.algorithm or str(recipe.grpo.get("loss_type")))
    if one is None:
        return {}
    found = one.fields if recipe.algorithm else one.with_loss or {}
    # TRL takes epsilon where epsilon_high is not said.
    found = {
        name: (recipe.grpo.get("epsilon") or 0.2) if value == "epsilon" else value
        for name, value in found.items()
    }
    return {
        name: found[name]
        for name in found
        if recipe.grpo.get(name) is None and (fields is None or name in fields)
    }


def asked_settings(recipe: Recipe) -> Fields:
    """What the recipe asks for, by name or through its `algorithm`."""
    return {**recipe.grpo, **(papers_fields(recipe) if recipe.algorithm else {})}


def papers_notes(recipe: Recipe, sets: Fields) -> list[str]:
    """Lines on what was set, by which paper, and where the recipe differs."""
    name = recipe.algorithm or str(recipe.grpo.get("loss_type"))
    values = ", ".join(f"{field} = {value!r}" for field, value in sets.items())
    if recipe.algorithm is None:
        return (
            [f"loss_type = {name!r}: {values} ({ALGORITHMS[name].why_with_loss})"] if sets else []
        )
    one = ALGORITHMS[name]
    lines = [f"algorithm = {name!r} ({one.source}) sets {values}: {one.changes}"]
    if not sets:
        lines = [
            f"algorithm = {name!r} ({one.source}) sets nothing here, as grpo says all of it by name"
        ]
    said = {
        field: plain_setting(field, recipe.grpo[field])
        for field in one.fields
        if recipe.grpo.get(field) is not None
    }
    own = {field: value for field, value in said.items() if value != one.fields[field]}
    lines += [
        f"{field} = {value!r}, as grpo says by name; {name} has {one.fields[field]!r}"
        for field, value in own.items()
    ]
    return lines
