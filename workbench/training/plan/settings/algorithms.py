"""The variants of GRPO that a recipe names in one word: what each sets, and which paper says so.

The table is algorithms.yaml.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from workbench.base.kinds import Fields
from workbench.recipe import Recipe, packaged
from workbench.training.plan.settings.in_force import plain_setting


class Algorithm(NamedTuple):
    """One variant."""

    source: str  # of the values
    changes: str  # what it changes, a sentence
    fields: Fields  # of GRPOConfig
    with_loss: Fields = {}  # noqa: RUF012  it is read only  # what `loss_type` of that name brings along by itself
    why_with_loss: str = ""


ALGORITHMS = {
    name: Algorithm(**entry)
    for name, entry in packaged(Path(__file__).with_suffix(".yaml")).items()
}


def papers_fields(recipe: Recipe, fields: set[str] | None = None) -> Fields:
    """What the recipe's `algorithm`, or else its `loss_type`, sets, except what `grpo` sets by name
    and, if `fields` of the config are given, what the config lacks.
    """
    one = ALGORITHMS.get(recipe.algorithm or str(recipe.grpo.get("loss_type")))
    if one is None:
        return {}
    # TRL takes epsilon where epsilon_high is not said.
    epsilon = recipe.grpo.get("epsilon") or 0.2
    return {
        name: epsilon if value == "epsilon" else value
        for name, value in (one.fields if recipe.algorithm else one.with_loss).items()
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
        why = "" if not sets else ALGORITHMS[name].why_with_loss
        return [f"loss_type = {name!r}: {values} ({why})"] if why else []
    one = ALGORITHMS[name]
    what = f"{values}: {one.changes}" if sets else "nothing here, as grpo says all of it by name"
    lines = [f"algorithm = {name!r} ({one.source}) sets {what}"]
    for field, papers in one.fields.items():
        value = plain_setting(field, recipe.grpo.get(field))
        if value not in (None, papers):
            lines.append(f"{field} = {value!r}, as grpo says by name; {name} has {papers!r}")
    return lines
