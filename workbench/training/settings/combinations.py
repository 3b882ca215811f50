"""Settings that work alone but not together, or that may not do what their author expects: rules as
data.

Each was checked in the source that it names: the installed TRL, the paper, or the thread.
"""

from __future__ import annotations

import contextlib
from typing import Any

from workbench import processes
from workbench.errors import RecipeError
from workbench.recipe import PolicyPart, Recipe
from workbench.run.inert import (
    Settings,
    by_sequence,
    clips,
    corrects_kl,
    corrects_vllm,
    inert_in_plan,
    ratio_is_one,
)
from workbench.training.settings.algorithms import asked_settings
from workbench.training.settings.in_force import defaults_of

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


_LOSS = "TRL's GRPOTrainer._compute_loss"
# When it holds, what is wrong (in braces what is in force), who says so, the remedy.
COMBINATIONS = (
    (lambda own: own["loss_type"] == "luspo" and not own.sequence,
     "loss_type = 'luspo' with importance_sampling_level = 'token': its loss is of whole sequences",
     "arXiv:2602.05261; TRL warns of it", "set importance_sampling_level to 'sequence'"),
    (lambda own: own["loss_type"] == "vespo" and own.sequence,
     "loss_type = 'vespo' with importance_sampling_level = 'sequence': it weights whole sequences "
     "by itself",
     "TRL warns of it", "leave importance_sampling_level out"),
    (lambda own: own.sequence and own["loss_type"] in ("bnpo", "dr_grpo", "dapo", "cispo"),
     "importance_sampling_level = 'sequence' with loss_type = '{loss_type}': each sequence counts "
     "by its length, unlike in GSPO",
     "arXiv:2507.18071; TRL warns of it", "set loss_type to 'grpo'"),
    (lambda own: own.sequence and own.clips and own["epsilon"] > MOST_FOR_SEQUENCES,
     "importance_sampling_level = 'sequence' with epsilon = {epsilon}: a sequence's mean ratio "
     "hardly ever gets there",
     "arXiv:2507.18071 section 5.1", "set epsilon to 3e-4 and epsilon_high to 4e-4"),
    (lambda own: own.sequence and own["top_entropy_quantile"] < 1,
     "top_entropy_quantile = {top_entropy_quantile} with importance_sampling_level = 'sequence': a "
     "sequence's ratio sends its "
     "gradient to all of its tokens, also to those of low entropy", _LOSS,
     "set importance_sampling_level to 'token'"),
    (lambda own: own.sequence and ratio_is_one(own.settings) and corrects_kl(own.settings) and own["top_entropy_quantile"] == 1,  # noqa: E501
     "importance_sampling_level = 'sequence' at one update per generation: the ratio is 1, so it "
     "changes the KL term's "
     "gradient (beta = {beta}) and nothing else", _LOSS, "set num_iterations to 2, and it clips "
                                                         "whole sequences"),
    (lambda own: corrects_vllm(own.settings) and (own["top_p"] < 1 or own["top_k"] or own["min_p"]),
     "top_p, top_k or min_p with vLLM's importance-sampling correction: vLLM's probabilities are "
     "of the tokens left, the "
     "trainer's of all, so every ratio is too small by the mass that was cut away", "trl#6789",
     "leave them out"),
    (lambda own: own["epsilon_high"] and own["epsilon_high"] < own["epsilon"] and own.clips,
     "epsilon_high = {epsilon_high} is below epsilon = {epsilon}: what becomes likelier is clipped "
     "first",
     "DAPO takes 0.28 over 0.2: arXiv:2503.14476", "set epsilon_high to epsilon or more"),
    (lambda own: own.asked("delta") and own.clips and own["delta"] <= 1 + (own["epsilon_high"] or own["epsilon"]),  # noqa: E501
     "delta = {delta} is not above 1 + epsilon: it cuts off ratios that the clip would keep",
     "arXiv:2505.07291; TRL's GRPOConfig", "set delta above 1 + epsilon, such as 4"),
    (lambda own: own.asked("epsilon") >= 1 and own.clips,
     "epsilon = {epsilon}: no ratio is below 1 - epsilon, so nothing is ever clipped below", _LOSS,
     "set epsilon to 0.2"),
    (lambda own: own["num_iterations"] > 1 and ratio_is_one(own.settings),
     "num_iterations = {num_iterations} with gradient_accumulation_steps = "
     "{gradient_accumulation_steps}: all passes over a "
     "generation fall into one update, which adds up the same gradient {num_iterations} times",
     "TRL's "
     "GRPOTrainer._prepare_inputs",
     "lower gradient_accumulation_steps, or leave num_iterations out"),
    (lambda own: own["num_iterations"] > 1 and own.clips and own.papers("epsilon") is None and not ratio_is_one(own.settings),  # noqa: E501
     "num_iterations = {num_iterations} without epsilon: from the second pass on the clip decides "
     "what is learnt, at TRL's 0.2",
     "arXiv:1707.06347 section 3",
     "set epsilon; clip_ratio in the record shows how often it clips"),
    (lambda own: own["use_adaptive_entropy"] and own.recipe.policy.backend == "unsloth",
     "use_adaptive_entropy with backend = 'unsloth': on a GPU Unsloth's loss has no such "
     "controller, and leaves out entropy_coef "
     "with it", "unsloth_zoo's rl_replacements.py", "set a fixed entropy_coef, or policy.backend "
                                                    "to 'transformers'"),
    (lambda own: own["loss_type"] == "cispo" and 0 < own.asked("epsilon_high") < 1,
     "epsilon_high = {epsilon_high:g} with loss_type = 'cispo' caps every weight below 1, where an "
     "unchanged policy has it, and "
     "so makes every gradient smaller", "arXiv:2510.13786 takes 5", "set epsilon_high to 5"),
    (lambda own: 0 < own.asked("learning_rate") < LEAST_FOR_LORA,
     "learning_rate = {learning_rate:g} is a value for full fine-tuning; an adapter usually takes "
     "5e-6 to 5e-5, and with this "
     "one may not move", "'LoRA without regret', Thinking Machines 2025: about ten times as much",
     "set learning_rate to 1e-5"),
    (lambda own: own.asked("beta") >= MUCH_BETA,
     "beta = {beta:g} is far above today's practice (0, or about 0.001): the reference holds the "
     "policy back",
     "arXiv:2503.14476 and 2503.20783 leave it out", "set beta to 0 or 0.001"),
    # With stages neither decides: `stages_decide`.
    (lambda own: own.asked("max_steps", -1) != -1 and own.asked("num_train_epochs",
         -1) != -1 and not own.recipe.stages,
     "max_steps = {max_steps} decides; num_train_epochs = {num_train_epochs} does not count beside "
     "it",
     "transformers' Trainer", "leave one out"),
    (lambda own: own.asked("gradient_accumulation_steps") == own["gradient_accumulation_steps"] > 1
     and not any(own[name] for name in ("steps_per_generation", "generation_batch_size")),
     "gradient_accumulation_steps = {gradient_accumulation_steps:g} saves no memory in generation: "
     "the completions of all "
     "{gradient_accumulation_steps:g} passes are generated at once", "TRL's GRPOConfig",
     "steps_per_generation says how many"),
    (lambda own: own.asked("logging_steps") > 1,
     "logging_steps = {logging_steps:g}: metrics are averages over {logging_steps:g} steps; 1 "
     "records every step",
     "transformers' Trainer", "set logging_steps to 1"),
    (lambda own: own["gpu_memory_utilization"] != PolicyPart().gpu_memory_utilization
     and not (own["use_vllm"] and own.recipe.policy.backend == "unsloth"),
     "policy.gpu_memory_utilization = {gpu_memory_utilization:g} has an effect only with "
     "fast_inference, which is off",
     "Unsloth's FastLanguageModel", "set policy.fast_inference, or leave it out"),
)  # fmt: skip


def _defaults() -> Settings:
    from trl import GRPOConfig

    return defaults_of(GRPOConfig)


def completed(settings: Settings, defaults: Settings) -> Settings:
    """Every field as it will be: unset ones are the config class's defaults, and
    steps_per_generation follows from others.
    """
    settings = defaults | {name: value for name, value in settings.items() if value is not None}
    if not settings.get("steps_per_generation") and (
        batch := settings.get("generation_batch_size")
    ):
        with contextlib.suppress(TypeError, ZeroDivisionError):  # refused afterwards, by `batch`
            at_once = settings["per_device_train_batch_size"] * processes.count()
            settings["steps_per_generation"] = batch // at_once
    return settings


def advice(recipe: Recipe, settings: Settings) -> list[str]:
    """A line for each combination that applies, and for requested settings that will do nothing.

    RecipeError for what the trainer would refuse once the policy is loaded.
    """
    defaults = _defaults()
    settings = completed(settings, defaults)
    own, lines = _Own(recipe, settings), []
    # What is of a wrong kind is refused afterwards, by `check_values` and `batch`.
    with contextlib.suppress(TypeError, ValueError, ZeroDivisionError):
        for holds, wrong, source, remedy in COMBINATIONS:
            if holds(own):
                lines.append(f"{wrong.format_map(own)} ({source}): {remedy}")
        asked = {
            name
            for name, own in asked_settings(recipe).items()
            if name in recipe.grpo or own != defaults.get(name)
        }
        for idle in inert_in_plan(settings, asked):
            does = "do" if len(idle.names) > 1 else "does"
            remedy = f"; to make a difference: {idle.remedy}" * bool(idle.remedy)
            lines.append(f"{', '.join(idle.names)} {does} nothing here: {idle.why}{remedy}")
    mode = own["vllm_importance_sampling_mode"]
    if (
        own["loss_type"] == "vespo"
        and corrects_vllm(settings)
        and mode not in ("token_truncate", "token_mask")
    ):
        remedy = "set vllm_importance_sampling_mode to 'token_truncate' or 'token_mask'"
        raise RecipeError(
            f"grpo.vllm_importance_sampling_mode = {mode!r}",
            rule="vespo takes vLLM's ratios by token",
            remedy=remedy,
        )
    return lines
