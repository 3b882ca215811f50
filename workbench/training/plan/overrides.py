"""`--set key=value` and `--steps`: a recipe with some of its fields as they were typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from workbench.errors import RecipeError
from workbench.recipe import Recipe
from workbench.training.plan.names import MOVED


def overridden(recipe: Recipe, said: Sequence[str] = (), steps: int | None = None) -> Recipe:
    """The recipe with other values.

    Args:
        recipe: it is not changed.
        said: `key=value`; the key is a dotted field (`policy.load_in_4bit`, `stages.NAME.steps`), or a bare name: a field of
            the recipe, or else a setting of GRPOConfig; the value is YAML.
        steps: train so many; None: as the recipe says.

    Raises:
        RecipeError: for what is no `key=value`, an unknown field, a wrong value, or `steps` of a recipe with stages. Names of
            GRPOConfig are checked with the rest of the recipe's.
    """
    # A field that nobody said stays unsaid: the plan tells "you" from "workbench default" by it.
    content, whole = (recipe.model_dump(mode="json", exclude_unset=unset) for unset in (True, False))
    for text in said:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not all(name.split(".")):
            raise _refused(text, "key=value", "for example --set grpo.learning_rate=1e-5")
        bare = "." not in name and name not in Recipe.model_fields
        where = MOVED.get(name, f"grpo.{name}") if bare else name
        try:
            for target in (whole, content):  # the whole one knows what is no field
                _put(target, where.split("."), yaml.safe_load(value))
        except yaml.YAMLError as error:
            raise _refused(text, "a value in YAML", "quote it: --set 'key=\"value\"'") from error
        except (TypeError, LookupError) as error:
            raise _refused(text, "a field of the recipe, or of a stage by its name", "see recipe.yaml") from error
    if steps is not None and recipe.stages:
        raise RecipeError(
            f"--steps {steps}: the recipe has stages",
            rule="each stage says its own number of steps",
            remedy=f"--set stages.{recipe.stages[0].name}.steps={steps}",
        )
    if steps is not None:
        content.setdefault("grpo", {})["max_steps"] = steps
    return Recipe.of(content, "--set") if said or steps is not None else recipe


def _put(target: Any, path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        if isinstance(target, list):
            target = {stage["name"]: stage for stage in target}[part]
        else:
            target = target.setdefault(part, {}) if isinstance(target, dict) else target[part]
    target[path[-1]] = value


def _refused(text: str, rule: str, remedy: str) -> RecipeError:
    return RecipeError(f"--set {text}", rule=f"--set takes {rule}", remedy=remedy)
