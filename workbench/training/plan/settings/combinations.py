"""Settings that work alone but not together, or that may not do what their author expects: when
each applies. combinations.yaml has the words.

Each was checked in the source that it names: the installed TRL, the paper, or the thread.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from workbench.base import processes
from workbench.base.cache import kept
from workbench.base.errors import RecipeError
from workbench.base.kinds import Fields
from workbench.recipe import PolicyPart, Recipe, packaged
from workbench.run.inert import (
    Settings,
    by_sequence,
    clips,
    corrects_kl,
    corrects_vllm,
    inert_in_plan,
    ratio_is_one,
)
from workbench.training.plan.settings.algorithms import asked_settings
from workbench.training.plan.settings.in_force import defaults_of, plain_setting
from workbench.training.plan.settings.values import SAMPLING

LEAST_FOR_LORA, MUCH_BETA = 1e-6, 0.05
# the paper's are 3e-4 and 4e-4: a mean over a sequence moves far less than one token's ratio
MOST_FOR_SEQUENCES = 0.01


class _Own:
    """A recipe's settings, for conditions and for the braces in their texts."""

    def __init__(self, recipe: Recipe, settings: Settings) -> None:
        self.recipe = recipe
        self.settings = settings
        self.clips = clips(settings)
        self.sequence = by_sequence(settings)

    def __getitem__(self, name: str) -> Any:
        """The effective value."""
        own = self.settings.get(name)
        return getattr(self.recipe.policy, name, None) if own is None else own

    def papers(self, name: str) -> Any:
        """As requested by name, or through `algorithm`."""
        return asked_settings(self.recipe).get(name)

    def asked(self, name: str, otherwise: float = 0) -> Any:
        """As requested by name, if it is a number."""
        own = self.recipe.grpo.get(name)
        return own if isinstance(own, (int, float)) and not isinstance(own, bool) else otherwise


def applying(own: _Own) -> Fields:
    """By its name in combinations.yaml: whether a combination applies."""
    return {
        "luspo_by_token": own["loss_type"] == "luspo" and not own.sequence,
        "vespo_by_sequence": own["loss_type"] == "vespo" and own.sequence,
        "length_weighs": (
            own.sequence and own["loss_type"] in ("bnpo", "dr_grpo", "dapo", "cispo")
        ),
        "wide_clip_of_sequences": (
            own.sequence and own.clips and own["epsilon"] > MOST_FOR_SEQUENCES
        ),
        "low_entropy_of_sequences": own.sequence and own["top_entropy_quantile"] < 1,
        "only_the_kl_term": (
            own.sequence
            and ratio_is_one(own.settings)
            and corrects_kl(own.settings)
            and own["top_entropy_quantile"] == 1
        ),
        "tokens_cut_away": (
            corrects_vllm(own.settings) and (own["top_p"] < 1 or own["top_k"] or own["min_p"])
        ),
        "clip_upside_down": (
            own["epsilon_high"] and own["epsilon_high"] < own["epsilon"] and own.clips
        ),
        "low_delta": (
            own.asked("delta")
            and own.clips
            and own["delta"] <= 1 + (own["epsilon_high"] or own["epsilon"])
        ),
        "wide_epsilon": own.asked("epsilon") >= 1 and own.clips,
        "same_gradient_again": own["num_iterations"] > 1 and ratio_is_one(own.settings),
        "clip_by_default": (
            own["num_iterations"] > 1
            and own.clips
            and own.papers("epsilon") is None
            and not ratio_is_one(own.settings)
        ),
        "adaptive_entropy": (
            own["use_adaptive_entropy"] and own.recipe.policy.backend == "unsloth"
        ),
        "low_cap": own["loss_type"] == "cispo" and 0 < own.asked("epsilon_high") < 1,
        "low_rate": 0 < own.asked("learning_rate") < LEAST_FOR_LORA,
        "high_beta": own.asked("beta") >= MUCH_BETA,
        # With stages neither decides: `stages_decide`.
        "two_lengths": (
            own.asked("max_steps", -1) != -1
            and own.asked("num_train_epochs", -1) != -1
            and not own.recipe.stages
        ),
        "accumulated": (
            own.asked("gradient_accumulation_steps") == own["gradient_accumulation_steps"] > 1
            and not any(own[name] for name in ("steps_per_generation", "generation_batch_size"))
        ),
        "seldom_logged": own.asked("logging_steps") > 1,
        "idle_share": (
            own["gpu_memory_utilization"] != PolicyPart().gpu_memory_utilization
            and not (own["use_vllm"] and own.recipe.policy.backend == "unsloth")
        ),
        "no_rate": own["learning_rate"] == 0,
        "noise_while_sampling": own["neftune_noise_alpha"],
        "never_warm": (
            own["warmup_steps"] >= own["max_steps"] > 0
            and not str(own["lr_scheduler_type"]).endswith("constant")
        ),
    }


def _sampled(settings: Settings) -> list[str]:
    """Lines on generation_kwargs that win over other settings, or that do nothing."""
    given, lines = settings.get("generation_kwargs") or {}, []
    for name, value in given.items():
        acts = name in settings and name in SAMPLING["changes"]
        if acts and value != settings[name]:
            loss = "; the loss keeps the other" if name == "temperature" else ""
            over = f"wins over {name} = {settings[name]!r}"
            lines.append(f"generation_kwargs.{name} = {value!r} {over} while sampling{loss}")
    idle = [name for name in given if name not in SAMPLING["changes"]]
    if idle and not settings["use_vllm"]:
        meant = [SAMPLING["meant"][name] for name in idle if name in SAMPLING["meant"]]
        instead = f"; grpo has {', '.join(meant)}" if meant else ""
        does = "without effect on what is sampled, as transformers takes any name without a word"
        lines.append(f"{', '.join(idle)} in generation_kwargs: {does}{instead}")
    return lines


def completed(settings: Settings, defaults: Settings) -> Settings:
    """Every field as it will be: unset ones are the config class's defaults, and
    steps_per_generation follows from others.
    """
    settings = defaults | {name: value for name, value in settings.items() if value is not None}
    if not settings.get("steps_per_generation") and settings.get("generation_batch_size"):
        with contextlib.suppress(TypeError, ZeroDivisionError):  # refused afterwards, by `batch`
            at_once = settings["per_device_train_batch_size"] * processes.count()
            settings["steps_per_generation"] = settings["generation_batch_size"] // at_once
    return settings


@kept
def _defaults() -> Fields:
    from trl import GRPOConfig

    return {name: plain_setting(name, value) for name, value in defaults_of(GRPOConfig).items()}


def advice(recipe: Recipe, settings: Settings) -> list[str]:
    """A line for each combination that applies, and for requested settings that will do nothing.

    RecipeError for what the trainer would refuse once the policy is loaded.
    """
    defaults = _defaults()
    settings = completed(settings, defaults)
    settings |= {"processes": processes.count(), "lora_dropout": recipe.lora.lora_dropout}
    own = _Own(recipe, settings)
    lines = []
    # What is of a wrong kind is refused afterwards, by `check_values` and `batch`.
    with contextlib.suppress(TypeError, ValueError, ZeroDivisionError):
        holds = applying(own)
        for name, told in packaged(Path(__file__).with_suffix(".yaml")).items():
            if holds[name]:
                wrong = told["wrong"].format_map(own)
                lines.append(f"{wrong} ({told['source']}): {told['remedy']}")
        asked = {
            name
            for name, value in asked_settings(recipe).items()
            if name in recipe.grpo or value != defaults.get(name)
        }
        for idle in inert_in_plan(settings, asked):
            does = "do" if len(idle.names) > 1 else "does"
            remedy = f"; to make a difference: {idle.remedy}" if idle.remedy else ""
            lines.append(f"{', '.join(idle.names)} {does} nothing here: {idle.why}{remedy}")
        lines += _sampled(settings)
    mode = own["vllm_importance_sampling_mode"]
    by_token = ("token_truncate", "token_mask")
    if own["loss_type"] == "vespo" and corrects_vllm(settings) and mode not in by_token:
        raise RecipeError(
            f"grpo.vllm_importance_sampling_mode = {mode!r}",
            rule="vespo takes vLLM's ratios by token",
            remedy="set vllm_importance_sampling_mode to 'token_truncate' or 'token_mask'",
        )
    return lines
