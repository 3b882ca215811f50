"""What was asked, what the libraries made of it, and what is in force: side by side, and never silent.

On a GPU, importing Unsloth puts its own class in TRL's place, with other defaults and with changes of its own (it
multiplies a batch, switches masks on, swaps optimisers). On a CPU it leaves TRL's class and changes use_cpu, optim and
bf16 after it is built. So the built config is what is looked at, whatever its class.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, NamedTuple

from workbench.recipe import Recipe
from workbench.training.plan import values

SHOWN = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size",
    "num_generations", "num_iterations", "max_completion_length", "max_steps", "num_train_epochs", "learning_rate",
    "lr_scheduler_type", "warmup_steps", "optim", "weight_decay", "max_grad_norm", "beta", "loss_type", "scale_rewards",
    "epsilon", "epsilon_high", "mask_truncated_completions", "temperature", "top_p", "top_k", "min_p",
    "repetition_penalty", "bf16", "fp16", "gradient_checkpointing", "use_vllm", "logging_steps", "save_steps",
    "report_to", "seed",
)  # fmt: skip

DEFAULTS = {**values.DEFAULTS, "seed": Recipe().seed}
CHANGED_HERE, CHANGED_THERE = "changed by the workbench", "changed by Unsloth/TRL"

# The same update by another kernel: no line is worth that.
_ALIKE = ({"adamw_torch", "adamw_torch_fused"},)


class Row(NamedTuple):
    """One setting: as asked (None: not asked), as it would have been, as it is, and whose doing that is."""

    name: str
    asked: Any
    default: Any
    in_force: Any
    by: str


def asked_of(recipe: Recipe) -> dict[str, Any]:
    """Settings that a recipe asks for by name: its `grpo`, and the seed if it says one."""
    return recipe.grpo | ({"seed": recipe.seed} if "seed" in recipe.model_fields_set else {})


def built(config_class: type, settings: dict[str, Any], **more: Any) -> Any:
    """A GRPOConfig in which `scale_rewards` is as it was asked for.

    Unsloth's class turns "group" into "none" where loss_type is "dr_grpo", also if somebody asked for it, and the advantages
    that are recorded would not be those that are trained.

    Args:
        settings: as they come from `normalised`, `scale_rewards` among them.
    """
    config = config_class(**{**settings, "scale_rewards": "none"}, **more)
    config.scale_rewards = plain("scale_rewards", settings["scale_rewards"])
    return config


def in_force_table(asked: dict[str, Any], built_config: Any, given: dict[str, Any] | None = None) -> list[Row]:
    """The settings that decide what a run does and costs, and all that were asked for.

    Args:
        asked: settings that the user wrote, under today's names: `asked_of` a recipe after `normalised`.
        built_config: a GRPOConfig, or a trainer's `args`.
        given: settings that the config was built from; None: `asked` over the workbench's defaults.
    """
    given = {**DEFAULTS, **asked} if given is None else given
    kind = type(built_config)
    own, stock = (
        _defaults(kind),
        _defaults(next((one for one in kind.__mro__ if one.__module__.startswith("trl.")), kind)),
    )
    rows = []
    for name in dict.fromkeys([*SHOWN, *asked]):
        if not hasattr(built_config, name):
            continue
        now = plain(name, getattr(built_config, name))
        default = plain(name, DEFAULTS.get(name, own.get(name)))
        rows.append(Row(name, plain(name, asked.get(name)), default, now, _by(name, now, asked, given, own, stock)))
    return rows


def _by(name: str, now: Any, asked: dict, given: dict, own: dict, stock: dict) -> str:
    if given.get(name) is not None and plain(name, given[name]) != now:
        return CHANGED_THERE
    if name in asked:
        return "you" if plain(name, asked[name]) == now else CHANGED_HERE
    if name in given:
        return "workbench default" if name in DEFAULTS and plain(name, DEFAULTS[name]) == now else CHANGED_HERE
    if plain(name, stock.get(name)) == now:
        return "TRL default"
    if plain(name, own.get(name)) == now:
        return "Unsloth default"
    # None in the class means that it is worked out from other settings, or from the machine.
    return "chosen by Unsloth/TRL" if stock.get(name) is None else CHANGED_THERE


def check_in_force(given: dict[str, Any], built_config: Any) -> list[str]:
    """One line for each setting that was given and is not what is in force now.

    Args:
        given: settings that the config was built from, or only those that the user asked for.
        built_config: a GRPOConfig, or a trainer's `args`.
    """
    lines = []
    for name, value in given.items():
        wanted = plain(name, value)
        if wanted is None or name in ("output_dir", "reward_weights"):
            continue
        if not hasattr(built_config, name):
            lines.append(f"{name} = {wanted!r} was requested, but the config has no such setting: it is ignored")
            continue
        now = plain(name, getattr(built_config, name))
        if now != wanted and not any({str(now), str(wanted)} <= alike for alike in _ALIKE):
            lines.append(f"{name} = {wanted!r} was requested, {now!r} is effective: changed by Unsloth or TRL")
    return lines


def plain(name: str, value: Any) -> Any:
    """A setting as one compares and writes it: words for enumerations, and one way to write what has several."""
    value = getattr(value, "value", value)
    if name == "scale_rewards" and isinstance(value, bool):
        return "group" if value else "none"
    if isinstance(value, (list, tuple)):
        # report_to: a config turns "none" into an empty list and "wandb" into a list of one
        return "none" if not value else (value[0] if len(value) == 1 else list(value))
    return value


def _defaults(config_class: type) -> dict[str, Any]:
    # The class that Unsloth generates keeps TRL's fields, and has its own defaults only in __init__.
    fields = {field.name: field.default for field in dataclasses.fields(config_class)}
    signature = {one.name: one.default for one in inspect.signature(config_class.__init__).parameters.values()}
    plain_ones = (str, int, float, type(None), list, tuple)
    return {
        name: value for name, value in {**fields, **signature}.items() if isinstance(getattr(value, "value", value), plain_ones)
    }
