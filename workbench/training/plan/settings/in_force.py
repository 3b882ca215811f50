"""Requested, what the libraries made of it, and effective: side by side, and never silent.

On a GPU, importing Unsloth puts its own class in TRL's place, with other defaults and with changes
of its own (it multiplies a batch, switches masks on, swaps optimisers). On a CPU it leaves TRL's
class and changes use_cpu, optim and bf16 after it is built. So the built config is what is looked
at, whatever its class.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any, NamedTuple

from workbench.base.kinds import Fields
from workbench.recipe import Recipe
from workbench.training.plan.settings.values import DEFAULTS as OWN
from workbench.training.plan.settings.values import SAMPLING, SHOWN

# Of a config's fields those that decide no number, or are a path or a secret.
_ELSEWHERE = r"report_to|run_name|project|disable_tqdm|local_rank|model_init_kwargs|push_to_hub|(resume|hub|trackio)_.*"  # noqa: E501
_ELSEWHERE += r"|.*_(dir|token|url|host)"

DEFAULTS = {**OWN, "seed": Recipe().seed}
CHANGED_HERE, CHANGED_THERE = "changed by the workbench", "changed by Unsloth/TRL"


class Row(NamedTuple):
    """One setting: requested (None: not requested), default, effective, and set by."""

    name: str
    asked: Any
    default: Any
    in_force: Any
    by: str


def asked_of(recipe: Recipe) -> Fields:
    """Settings that a recipe asks for by name: its `grpo`, and the seed if it says one."""
    return recipe.grpo | ({"seed": recipe.seed} if "seed" in recipe.model_fields_set else {})


def in_force_table(asked: Fields, config: object, given: Fields) -> list[Row]:
    """The settings that decide what a run does and costs, and all that were `asked_of` a recipe
    after `normalised`.

    `config` is a GRPOConfig or a trainer's `args`, and was built from `given`.
    """
    kind = type(config)
    trls = next((one for one in kind.__mro__ if one.__module__.startswith("trl.")), kind)
    own, stock = defaults_of(kind), defaults_of(trls)
    rows = []
    for name in dict.fromkeys([*SHOWN, *asked]):
        if not hasattr(config, name):
            continue
        sources = (vars(config), own, stock, asked, given, own | DEFAULTS)
        values = [plain_setting(name, source.get(name)) for source in sources]
        now, of_class, of_trl, requested, passed, default = values
        if passed not in (None, now):
            by = CHANGED_THERE
        elif name in asked:
            by = "you" if requested == now else CHANGED_HERE
        elif name in given:
            by = "workbench default" if name in DEFAULTS and default == now else CHANGED_HERE
        elif now in (of_trl, of_class):
            by = "TRL default" if of_trl == now else "Unsloth default"
        else:
            # None in the class: it is worked out from other settings, or from the machine.
            by = CHANGED_THERE if stock.get(name) is not None else "chosen by Unsloth/TRL"
        won = (given.get("generation_kwargs") or {}).get(name, now)
        if won != now and name in SAMPLING["changes"]:
            now, by = won, "generation_kwargs"
        rows.append(Row(name, requested, default, now, by))
    return rows


def settings_in_force(config: Any) -> Fields:
    """Every field of a built GRPOConfig that is neither a path nor a secret: what the manifest
    keeps.
    """
    names = (field.name for field in dataclasses.fields(config) if hasattr(config, field.name))
    return {name: as_json(getattr(config, name)) for name in names if decides(name)}


def decides(name: str) -> bool:
    """Whether the manifest keeps a field of GRPOConfig."""
    return not re.fullmatch(_ELSEWHERE, name)


def as_json(value: object) -> bool | int | float | str | None:
    """A setting as JSON has it."""
    value = getattr(value, "value", value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def check_in_force(given: Fields, config: object) -> list[str]:
    """One line for each given setting that is not effective in a GRPOConfig, or a trainer's `args`,
    now.
    """
    lines = []
    for name, value in given.items():
        wanted, now = plain_setting(name, value), plain_setting(name, getattr(config, name, None))
        if wanted is None or name in ("output_dir", "reward_weights"):
            continue
        said = f"{name} = {wanted!r} was requested"
        if not hasattr(config, name):
            lines.append(f"{said}, but the config has no such setting: it is ignored")
        # The same update by another kernel is worth no line.
        elif now != wanted and not {str(now), str(wanted)} <= {"adamw_torch", "adamw_torch_fused"}:
            lines.append(f"{said}, {now!r} is effective: changed by Unsloth or TRL")
    return lines


def plain_setting(name: str, value: object) -> Any:
    """A setting in the form to compare and write: words for enumerations, and one spelling for what
    has several.
    """
    value = getattr(value, "value", value)
    if name == "scale_rewards" and isinstance(value, bool):
        return "group" if value else "none"
    if isinstance(value, (list, tuple)):
        # report_to: a config turns "none" into an empty list and "wandb" into a list of one
        return "none" if not value else (value[0] if len(value) == 1 else list(value))
    return value


def defaults_of(config_class: Any) -> Fields:
    """What a config class uses where a setting is not given."""
    # The class that Unsloth generates keeps TRL's fields, and has its own defaults only in
    # __init__.
    own = inspect.signature(config_class.__init__).parameters.values()
    defaults = {each.name: each.default for each in (*dataclasses.fields(config_class), *own)}
    kinds = (str, int, float, type(None), list, tuple)
    return {
        name: value
        for name, value in defaults.items()
        if isinstance(getattr(value, "value", value), kinds)
    }
