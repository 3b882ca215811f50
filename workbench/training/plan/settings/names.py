"""Names of settings: those of the installed `GRPOConfig`, the old ones, and those that belong
elsewhere in the recipe.

Unsloth prints "ignored" for a name that it does not know, and trains with a default. So every name
is checked before a config is built: it is right, or translated with a visible line, or it raises an
error that names the right one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from workbench.base.errors import RecipeError
from workbench.base.kinds import Fields
from workbench.base.secret import setting
from workbench.recipe import Recipe, packaged, read_yaml

TABLE = packaged(Path(__file__).with_suffix(".yaml"))
ALIASES: dict[str, str] = TABLE["aliases"]
MOVED: dict[str, str] = TABLE["moved"]
LEFT_OUT: dict[str, str] = TABLE["left_out"]
ELSEWHERE: dict[str, str] = TABLE["elsewhere"]
# arguments of GRPOTrainer that make a completion of several turns
TURNS = ("environment_factory", "rollout_func", "tools")


def with_new_names(recipe: Recipe, fields: set[str]) -> tuple[Recipe, list[str]]:
    """(the recipe with every name in `grpo`, and in its stages' `grpo`, as the installed libraries
    spell it; a line for each name that was translated, moved or left out); RecipeError for an
    unknown name, and for two that disagree.
    """
    notes: list[str] = []
    content = recipe.model_dump()
    fresh = Recipe().model_dump()
    content["grpo"] = {}
    for name, value in _translated(recipe.grpo, fields, notes).items():
        where = MOVED.get(name)
        if name == "reward_weights" and isinstance(value, dict):
            where = name
        if name in LEFT_OUT:
            if value or name not in TABLE["silent_when_off"]:
                notes.append(f"{setting(name, value)} is left out: {LEFT_OUT[name]}")
        elif not where:
            content["grpo"][name] = value
        elif value is None:
            notes.append(f"{name} = None is left out: it asks for nothing")
        else:
            notes.append(_moved(name, value, where, content, fresh))
    _check_known(content["grpo"], fields)
    for stage in content["stages"]:
        notes += _renamed_in_stage(stage, fields)
    # What was not asked stays so: a table tells "you" from "workbench default" by it.
    asked = _asked(content, fresh, recipe.model_fields_set)
    if "policy" in asked:  # whose defaults are this machine's
        asked["policy"] = _asked(asked["policy"], fresh["policy"], recipe.policy.model_fields_set)
    return Recipe.of(asked), notes


def _asked(content: Fields, fresh: Fields, said: set[str]) -> Fields:
    return {key: own for key, own in content.items() if key in said or own != fresh[key]}


def _moved(name: str, value: object, where: str, content: Fields, fresh: Fields) -> str:
    # Sets it where it belongs, and returns the line.
    value = as_dtype(value) if "dtype" in name else value
    part, _, leaf = where.rpartition(".")
    target, default = (content[part], fresh[part]) if part else (content, fresh)
    if target[leaf] not in (default[leaf], value):
        raise RecipeError(
            f"grpo.{name} = {value!r} and {where} = {target[leaf]!r}",
            rule=f"{name} is the recipe's {where}",
            remedy=f"keep {where}, with one of the values",
        )
    target[leaf] = value
    why = TABLE["why_moved"].get(name, "")
    return f"{name} belongs to the recipe, not to grpo: {where} = {value!r}{why}"


def _renamed_in_stage(stage: Fields, fields: set[str]) -> list[str]:
    lines: list[str] = []
    called = f"stage {stage['name']!r}: "
    stage["grpo"] = _translated(stage["grpo"], fields, lines)
    for name, value in stage["grpo"].items():
        if (
            where := MOVED.get(name)
            or ELSEWHERE.get(name)
            or (name in LEFT_OUT and "or not at all")
        ):
            raise RecipeError(
                called + setting(f"grpo.{name}", value),
                rule=(
                    "a stage changes settings of GRPOConfig; policy, adapter and seed belong to the"
                    " whole run"
                ),
                remedy=f"set it once, outside the stages ({where})",
            )
    _check_known(stage["grpo"], fields)
    return [called + line for line in lines]


def _translated(grpo: Fields, fields: set[str], notes: list[str]) -> Fields:
    asked = dict(grpo)
    for old in [old for old in ALIASES if old in asked and old not in fields]:
        new, value = ALIASES[old], asked.pop(old)
        if old == "use_gradient_checkpointing":
            # Unsloth's loader takes the word "unsloth" for its own way of checkpointing; GRPOConfig
            # takes yes or no.
            value = bool(value)
        if asked.get(new, value) != value:
            raise RecipeError(
                f"{setting(f'grpo.{old}', grpo[old])} and {setting(f'grpo.{new}', asked[new])}",
                rule=f"{old} is the old name of {new}",
                remedy="keep one of them",
            )
        asked[new] = value
        notes.append(f"{old} is called {new} in this version: {setting(new, value)}")
    if asked.get("max_steps", 0) is None:
        asked["max_steps"] = -1
        notes.append("max_steps = None is written -1 in this version: train for num_train_epochs")
    return asked


def as_dtype(value: object) -> str | None:
    """A library's word for a type, or torch's own, as the recipe has it; None: chosen for the
    device.
    """
    text = str(value).removeprefix("torch.")
    return {"half": "float16", "float": "float32", "auto": None, "None": None}.get(text, text)


def _check_known(asked: Fields, fields: set[str]) -> None:
    rule = "grpo holds fields of the installed trl.GRPOConfig"
    for name, value in asked.items():
        said = setting(f"grpo.{name}", value)
        if name in ELSEWHERE:
            raise RecipeError(said, rule=f"{name} is set elsewhere", remedy=ELSEWHERE[name])
        if name in fields:
            continue
        if gone := TABLE["gone"].get(name):
            raise RecipeError(said, rule=f"{rule}, and this one is gone", remedy=gone)
        near = nearest_setting(name, fields)
        raise RecipeError(
            said,
            rule=rule,
            remedy=f"did you mean {near!r}?" if near else "see TRL's page on GRPOConfig",
        )


def nearest_setting(name: str, fields: Iterable[str]) -> str | None:
    """The name that `name` was most likely meant to be: a field, or the new place of an old
    name.
    """
    word = name.lower()
    known = {field: field for field in fields} | MOVED | ALIASES
    for right, words in TABLE["meant"].items():
        if word in words:
            return right
    return next((known[near] for near in difflib.get_close_matches(word, known, n=1)), None)


def overridden(recipe: Recipe, said: Sequence[str] = (), steps: int | None = None) -> Recipe:
    """The recipe with other values; RecipeError for what cannot be set. Names of GRPOConfig are
    checked with those of the recipe.

    Args:
        said: `key=value`; the key is a dotted field (`policy.load_in_4bit`, `stages.NAME.steps`),
            or a bare name: a field of the recipe, or else a setting of GRPOConfig; the value is
            YAML.
        steps: train this many; None: as the recipe says.
    """

    def refused(takes: str, remedy: str) -> RecipeError:
        return RecipeError(f"--set {text}", rule=f"--set takes {takes}", remedy=remedy)

    # A field that nobody said stays unsaid: the plan tells "you" from "workbench default" by it.
    content = recipe.model_dump(mode="json", exclude_unset=True)
    whole = recipe.model_dump(mode="json")  # which knows what is no field
    for text in said:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not all(name.split(".")):
            raise refused("key=value", "for example --set grpo.learning_rate=1e-5")
        bare = "." not in name and name not in Recipe.model_fields
        *parts, leaf = (MOVED.get(name, f"grpo.{name}") if bare else name).split(".")
        try:
            for target in (whole, content):
                for part in parts:
                    if isinstance(target, list):
                        target = {stage["name"]: stage for stage in target}[part]
                    else:
                        target = target.setdefault(part, {})
                target[leaf] = read_yaml(value, "--set")
        except RecipeError as error:
            raise refused("a value in YAML", "quote it: --set 'key=\"value\"'") from error
        except (TypeError, LookupError, AttributeError) as error:
            rule = "a field of the recipe, or of a stage by its name"
            raise refused(rule, "see recipe.yaml") from error
    if steps is not None and recipe.stages:
        raise RecipeError(
            f"--steps {steps}: the recipe has stages",
            rule="each stage sets its own steps",
            remedy=f"--set stages.{recipe.stages[0].name}.steps={steps}",
        )
    if steps is not None:
        content.setdefault("grpo", {})["max_steps"] = steps
    return Recipe.of(content, "--set") if said or steps is not None else recipe
