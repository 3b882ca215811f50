"""Values of settings: the workbench's own defaults, and what each setting may be."""

from __future__ import annotations

import importlib.util
import math
import operator
import os
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.base.cache import kept
from workbench.base.errors import RecipeError, nearest
from workbench.base.kinds import Fields, Function
from workbench.recipe import SEVEN_PROJECTIONS, LoraPart, packaged, template_kwargs

_TABLE = packaged(Path(__file__).with_suffix(".yaml"))
DEFAULTS: Fields = _TABLE["defaults"]
CHOICES: dict[str, list[Any]] = _TABLE["choices"]
RANGES: dict[str, Fields] = {name: each for each in _TABLE["ranges"] for name in each["names"]}
_REFUSED = {name: each for each in _TABLE["refused"] for name in each["names"]}
SHOWN: list[str] = _TABLE["shown"]
SAMPLING: Fields = _TABLE["generation_kwargs"]
ENVIRONMENT: list[str] = _TABLE["environment"]
BOUNDS: dict[str, Function] = {
    "above": operator.gt,
    "at_least": operator.ge,
    "below": operator.lt,
    "at_most": operator.le,
}
# Where the trainer takes what it refuses otherwise.
_ALLOWED: dict[str, Callable[[Fields], Any]] = {
    **dict.fromkeys(_REFUSED["fsdp"]["names"], lambda asked: "LOCAL_RANK" in os.environ),
    "eval_strategy": lambda asked: asked["eval_strategy"] == "no",
    "use_liger_kernel": lambda asked: not lacks("use_liger_kernel"),
    "dataloader_persistent_workers": lambda asked: asked.get("dataloader_num_workers"),
}
_TAKES = {"use_liger_kernel": "liger_kernel"}  # a setting -> the optional library that it takes
MOST_R = 4096
_KIND_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a word",
    type(None): "empty",
}


def lacks(name: str) -> str:
    """The optional library that a setting takes, if it is not installed here; else empty."""
    library = _TAKES.get(name)
    return library if library and importlib.util.find_spec(library) is None else ""


def check_values(settings: Fields, kinds: dict[str, set[type]]) -> None:
    """RecipeError for a value that GRPOConfig would take and that cannot work; `kinds` are
    `field_kinds(config_class)`.
    """
    for name, value in settings.items():
        if name == "chat_template_kwargs":
            template_kwargs(value)
        check = _choice if name in CHOICES else _value
        if fault := check(name, value, settings, kinds.get(name, set())):
            rule, remedy = fault
            raise RecipeError(f"grpo.{name} = {value!r}", rule=rule, remedy=remedy)
    given = settings.get("generation_kwargs") or {}
    if not isinstance(given, dict):
        rule, remedy = "generation_kwargs is a mapping", "for example {top_h: 0.3}"
        raise RecipeError(f"grpo.generation_kwargs = {given!r}", rule=rule, remedy=remedy)
    for name, value in given.items():
        if fault := _generated(name, value, settings):
            said, rule = f"grpo.generation_kwargs.{name} = {value!r}", fault[0]
            raise RecipeError(said, rule=rule, remedy=fault[1])


def _generated(name: str, value: object, settings: Fields) -> tuple[str, str] | None:
    # (rule, remedy) for one of generation_kwargs that cannot work.
    if value and (why := SAMPLING["refused"].get(name)):
        return why, "leave it out"
    if name == "do_sample" and value is False:
        return "the completions of a group differ, or it teaches nothing", "leave it out"
    own = {"max_new_tokens": "max_completion_length"}.get(name)
    if settings.get("use_vllm"):
        own = SAMPLING["meant"].get(name)
    if own and value != (1 if own == "num_generations" else settings[own]):
        return f"lengths and groups are counted by grpo.{own}", f"leave it out, and set {own}"
    return _value(name, value, settings, set()) if name in RANGES else None


def _default(name: str) -> str:
    return f"; {DEFAULTS[name]!r} is the default" if name in DEFAULTS else ""


def _choice(name: str, value: object, *_: object) -> tuple[str, str] | None:
    # (rule, remedy) for a value that is none of the setting's choices.
    choices = CHOICES[name]
    if any(value is each or (isinstance(value, str) and value == each) for each in choices):
        return None
    words = [each for each in choices if isinstance(each, str)]
    remedy = nearest(str(value), words, f"choose one of them{_default(name)}")
    if value in ("gspo", "gdpo"):
        remedy = f"set algorithm: {value} in the recipe"
    return f"{name} is one of {', '.join(map(str, choices))}", remedy


def _value(name: str, value: object, settings: Fields, wanted: set[type]) -> tuple[str, str] | None:
    # (rule, remedy) for a value of another kind, one that the trainer refuses, one out of range.
    if wanted and not _fits(value, wanted):
        words = " or ".join(sorted(_KIND_WORDS[kind] for kind in wanted))
        quoted = (
            isinstance(value, str) and re.fullmatch(r"[-+.\deE]+", value) and wanted & {int, float}
        )
        return f"{name} is {words}", "write it without quotes" if quoted else f"give {words}"
    given = value or value == {}  # an empty parallelism_config is one, too
    if name in _REFUSED and given and not _ALLOWED.get(name, lambda asked: False)(settings):
        return _REFUSED[name]["rule"], _REFUSED[name]["remedy"]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if (
        isinstance(value, float)
        and not math.isfinite(value)
        and (math.isnan(value) or name not in _TABLE["unbounded"])
    ):
        return f"{name} is a finite number", f"give a number{_default(name)}"
    bounds = RANGES.get(name, {})
    inside = all(BOUNDS[word](value, bounds[word]) for word in BOUNDS if word in bounds)
    if inside or value == bounds.get("or"):
        return None
    words = bounds["words"]
    return f"{name} is {words}", f"give a number {words}{_default(name)}"


def check_lora(lora: LoraPart) -> None:
    """RecipeError for an adapter that no policy can have."""
    if not lora.target_modules:
        raise RecipeError(
            "lora.target_modules = []",
            rule="an adapter is put on named layers",
            remedy=f"for example {list(SEVEN_PROJECTIONS)}, the default",
        )
    if lora.r > MOST_R:
        raise RecipeError(
            f"lora.r = {lora.r}",
            rule=f"r is at most {MOST_R}",
            remedy="use 8 to 64; 16 is the default",
        )


@kept
def _known_trackers() -> list[str]:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    return [*INTEGRATION_TO_CALLBACK]


def check_trackers(report_to: object) -> list[str]:
    """The trackers that `report_to` names, "all" among them; RecipeError for one that transformers
    does not know.
    """
    known = _known_trackers()
    several = isinstance(report_to, (list, tuple))
    asked = list(report_to) if several else [report_to or "none"]
    for name in asked:
        if name not in known and name != "none" and asked != ["all"]:
            otherwise = "choose one; the run's own files are written anyway"
            raise RecipeError(
                f"grpo.report_to = {name!r}",
                rule=f"a tracker is one of {', '.join(known)}; or none, or all that are installed",
                remedy=nearest(str(name), [*known, "none", "all"], otherwise),
            )
    return [name for name in dict.fromkeys(asked) if name != "none"]


def _fits(value: object, wanted: set[type]) -> bool:
    if isinstance(value, bool):
        return bool in wanted
    return isinstance(value, tuple(wanted)) or (isinstance(value, int) and float in wanted)


def field_kinds(config_class: type) -> dict[str, set[type]]:
    """For each field whose type consists of plain ones (int, float, bool, str, None): those
    types.
    """
    hints = typing.get_type_hints(config_class).items()
    kinds = {
        name: set(typing.get_args(hint) or (hint,))
        for name, hint in hints
        if typing.get_origin(hint) is not list
    }
    return {name: parts for name, parts in kinds.items() if parts <= set(_KIND_WORDS)}
