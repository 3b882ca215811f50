"""Values of settings: the workbench's own defaults, and what each setting may be."""

from __future__ import annotations

import importlib.util
import math
import typing
from collections.abc import Callable
from typing import Any

from workbench.errors import RecipeError, nearest
from workbench.kinds import Fields
from workbench.recipe import SEVEN_PROJECTIONS, LoraPart, template_kwargs

# Stated, not inherited: stock TRL and Unsloth's GPU class have different defaults for most of
# these.
DEFAULTS: Fields = {
    "learning_rate": 1e-5,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 8,
    "max_completion_length": 96,
    "max_steps": 100,
    "temperature": 1.0,
    "beta": 0.0,
    "scale_rewards": "group",
    "optim": "adamw_torch",
    "weight_decay": 0.0,
    "warmup_steps": 0,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 1.0,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    # on, a loss that is no number is logged as the mean of those before
    "logging_nan_inf_filter": False,
    "save_strategy": "steps",
    "save_steps": 100,
    "save_total_limit": 2,
    "save_only_model": True,  # the optimiser's and the random states are pickles
    "report_to": "none",
}

# Values that GRPOConfig takes without a word and that end in a traceback later, or in a run that
# cannot learn. an infinite clip range or norm means that nothing is clipped
_FINITE = "learning_rate temperature repetition_penalty"
_POSITIVE = (
    "num_train_epochs epsilon epsilon_high logging_steps save_steps delta sapo_temperature_neg"
    " sapo_temperature_pos"
)
_NOT_NEGATIVE = "adam_epsilon top_k warmup_steps max_grad_norm entropy_target"
_NOT_NEGATIVE += (
    " off_policy_mask_threshold vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg"
)
_SHARES = "min_p entropy_coef entropy_coef_min entropy_coef_max entropy_coef_delta"
RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_steps": (
        lambda value: value == -1 or value >= 1,
        "at least 1, or -1 to train for num_train_epochs",
    ),
    **dict.fromkeys(
        ("top_p", "top_entropy_quantile"), (lambda value: 0 < value <= 1, "above 0 and at most 1")
    ),
    **dict.fromkeys(
        ("adam_beta1", "adam_beta2"), (lambda value: 0 <= value < 1, "from 0 to below 1")
    ),
    "dataloader_num_workers": (lambda value: 0 <= value <= 64, "from 0 to 64, each a process"),
    "num_iterations": (lambda value: value >= 1, "at least 1"),
    **dict.fromkeys(_POSITIVE.split(), (lambda value: value > 0, "above 0")),
    **dict.fromkeys(_FINITE.split(), (lambda value: 0 < value < math.inf, "above 0, and finite")),
    **dict.fromkeys(
        ("beta", "weight_decay"), (lambda value: 0 <= value < math.inf, "at least 0, and finite")
    ),
    **dict.fromkeys(_SHARES.split(), (lambda value: 0 <= value <= 1, "from 0 to 1")),
    **dict.fromkeys(_NOT_NEGATIVE.split(), (lambda value: value >= 0, "at least 0")),
}
# Where an infinity means that nothing is bounded.
_UNBOUNDED = ("max_grad_norm", "delta", "epsilon_high")
CHOICES = {
    "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"),
    "scale_rewards": ("group", "batch", "none", True, False),
    "importance_sampling_level": ("token", "sequence"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
}
_NO_EVALUATION = (
    "the trainer's own evaluation needs an eval_dataset; eval_every measures the task's held-out"
    " prompts"
)
# What GRPOConfig takes, and the trainer does not ...
_REFUSED = {
    **dict.fromkeys(("eval_strategy", "eval_on_start", "load_best_model_at_end"), _NO_EVALUATION),
    "sync_ref_model": (
        "TRL cannot sync the reference of an adapter; `stages` take the adapter as they find it for"
        " theirs"
    ),
    "use_liger_kernel": "liger-kernel is not installed here",
    "remove_unused_columns": (
        "the reward functions need the dataset's columns, the answer among them"
    ),
    "dataloader_persistent_workers": "persistent workers need dataloader_num_workers above 0",
}
# ... except where these settings are so.
_ALLOWED: dict[str, Callable[[Fields], Any]] = {
    "eval_strategy": lambda asked: asked["eval_strategy"] == "no",
    "use_liger_kernel": lambda asked: not lacks("use_liger_kernel"),
    "dataloader_persistent_workers": lambda asked: asked.get("dataloader_num_workers"),
}
_TAKES = {"use_liger_kernel": "liger_kernel"}  # a setting -> the optional library that it takes
_NOT_GENERATED = {
    "stop_strings": (
        "transformers stops at strings only if it gets a tokenizer, and TRL passes none"
    ),
    "custom_generate": "code that comes with a model is never run",
}
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
    library = _TAKES.get(name, "")
    return library if library and importlib.util.find_spec(library) is None else ""


def check_values(settings: Fields, kinds: dict[str, set[type]]) -> None:
    """RecipeError for a value that GRPOConfig would take and that cannot work; `kinds` are
    `field_kinds(config_class)`.
    """
    for name, value in settings.items():
        said = f"grpo.{name} = {value!r}"
        default = f"; {DEFAULTS[name]!r} is the default" if name in DEFAULTS else ""
        if name in CHOICES:
            if not any(
                value is choice or (isinstance(value, str) and value == choice)
                for choice in CHOICES[name]
            ):
                words = [choice for choice in CHOICES[name] if isinstance(choice, str)]
                remedy = nearest(str(value), words, f"choose one of them{default}")
                remedy = (
                    f"set algorithm: {value} in the recipe" if value in ("gspo", "gdpo") else remedy
                )
                raise RecipeError(
                    said,
                    rule=f"{name} is one of {', '.join(map(str, CHOICES[name]))}",
                    remedy=remedy,
                )
            continue
        if name == "chat_template_kwargs":
            template_kwargs(value)
        if name == "generation_kwargs" and (
            other := next((each for each in _NOT_GENERATED if each in (value or ())), None)
        ):
            said = f"grpo.generation_kwargs.{other} = {value[other]!r}"
            raise RecipeError(said, rule=_NOT_GENERATED[other], remedy="leave it out")
        wanted = kinds.get(name)
        if wanted and not _fits(value, wanted):
            words = " or ".join(sorted(_KIND_WORDS[kind] for kind in wanted))
            quoted = (
                isinstance(value, str)
                and _reads_as_number(value)
                and not wanted.isdisjoint((int, float))
            )
            raise RecipeError(
                said,
                rule=f"{name} is {words}",
                remedy="write it without quotes" if quoted else f"give {words}",
            )
        if name in _REFUSED and value and not _ALLOWED.get(name, lambda asked: False)(settings):
            instead = (
                "set the recipe's eval_every (25 steps, for example), which also keeps the best"
                " adapter, and " * (_REFUSED[name] is _NO_EVALUATION)
            )
            remedy = f"{instead}{'install it, or ' * bool(lacks(name))}leave it out"
            raise RecipeError(said, rule=_REFUSED[name], remedy=remedy)
        if (
            isinstance(value, float)
            and not math.isfinite(value)
            and (math.isnan(value) or name not in _UNBOUNDED)
        ):
            raise RecipeError(
                said, rule=f"{name} is a finite number", remedy=f"give a number{default}"
            )
        fine, words = RANGES.get(name, (lambda value: True, ""))
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not fine(value):
            raise RecipeError(
                said, rule=f"{name} is {words}", remedy=f"give a number {words}{default}"
            )


def check_lora(lora: LoraPart) -> None:
    """RecipeError for an adapter that no policy can have."""
    if not lora.target_modules:
        rule, remedy = (
            "an adapter is put on named layers",
            f"for example {list(SEVEN_PROJECTIONS)}, the default",
        )
        raise RecipeError("lora.target_modules = []", rule=rule, remedy=remedy)
    if lora.r > MOST_R:
        raise RecipeError(
            f"lora.r = {lora.r}",
            rule=f"r is at most {MOST_R}",
            remedy="use 8 to 64; 16 is the default",
        )


def check_trackers(report_to: Any) -> list[str]:
    """The trackers that `report_to` names, "all" among them; RecipeError for one that transformers
    does not know.
    """
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK as KNOWN

    asked = (
        list(report_to)
        if isinstance(report_to, (list, tuple))
        else []
        if report_to is None
        else [report_to]
    )
    for name in asked:
        if name not in KNOWN and name != "none" and asked != ["all"]:
            rule = f"a tracker is one of {', '.join(KNOWN)}; or none, or all that are installed"
            remedy = nearest(
                str(name),
                [*KNOWN, "none", "all"],
                "choose one; the run's own files are written anyway",
            )
            raise RecipeError(f"grpo.report_to = {name!r}", rule=rule, remedy=remedy)
    return [name for name in dict.fromkeys(asked) if name != "none"]


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _fits(value: object, wanted: set[type]) -> bool:
    if isinstance(value, bool):
        return bool in wanted
    return isinstance(value, tuple(wanted)) or (isinstance(value, int) and float in wanted)


def field_kinds(config_class: type) -> dict[str, set[type]]:
    """For each field whose type consists of plain ones (int, float, bool, str, None): those
    types.
    """
    hints = typing.get_type_hints(config_class).items()
    kinds = {name: set(typing.get_args(hint) or (hint,)) for name, hint in hints}
    return {name: parts for name, parts in kinds.items() if parts <= set(_KIND_WORDS)}
