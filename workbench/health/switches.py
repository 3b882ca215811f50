"""Which settings can do nothing beside which others: told before a run by its plan, and after it with what was measured.

What each setting does was read in the installed TRL: `GRPOTrainer._compute_loss`, `get_off_policy_mask`, `get_gamma_weights` and
`_generate_and_score_completions`. Where every update is made by the policy that generated, the importance ratio is x - x of
one and the same log-probability, so exactly 1, and whatever looks at the ratio does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from workbench import processes

CLIPPED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
ON_ITS_RATIO = ("epsilon", "epsilon_high", "delta")  # named also where nobody asked for them
# What GRPOConfig takes where a setting is not given.
TRLS = {
    "loss_type": "dapo", "epsilon": 0.2, "importance_sampling_level": "token", "num_iterations": 1, "use_vllm": False,
    "vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "sequence_mask", "beta": 0.0,
    "multi_objective_aggregation": "sum_then_normalize", "use_bias_correction_kl": True, "top_p": 1.0, "top_k": 0,
    "top_entropy_quantile": 1.0, "lr_scheduler_type": "linear", "gradient_accumulation_steps": 1, "use_adaptive_entropy": False,
    "log_completions": False,
}  # fmt: skip
_SAPO, _VESPO = ("sapo_temperature_neg", "sapo_temperature_pos"), tuple(
    f"vespo_{part}_{side}" for part in ("k", "lambda") for side in ("pos", "neg")
)  # fmt: skip
_IS = ("mode", "clip_min", "clip_max", "cap")

Settings = dict[str, Any]


class Inert(NamedTuple):
    """Settings that do nothing, why, and the smallest change that would make them matter."""

    names: tuple[str, ...]
    why: str
    remedy: str


def value(settings: Settings, name: str) -> Any:
    """A setting, or what TRL takes where it is not given."""
    return TRLS.get(name) if settings.get(name) is None else settings[name]


def _is(name: str, *wanted: Any) -> Callable[[Settings], bool]:
    return lambda settings: value(settings, name) in wanted


def _corrects_kl(settings: Settings) -> bool:
    return bool(value(settings, "beta") and value(settings, "use_bias_correction_kl"))


# Names, whether anything reads them, why not, and what would. Conditions on the others' values alone.
_READ: tuple[tuple[tuple[str, ...], Callable[[Settings], Any], str, str], ...] = (
    (("epsilon",), lambda own: _is("loss_type", *CLIPPED_LOSSES)(own) or (_is("loss_type", "cispo")(own) and not own.get("epsilon_high")),
     "loss_type = '{loss_type}' does not read it", "loss_type = 'dapo'"),
    (("epsilon_high",), _is("loss_type", *CLIPPED_LOSSES, "cispo"), "loss_type = '{loss_type}' does not read it", "loss_type = 'dapo'"),
    (("delta",), _is("loss_type", *CLIPPED_LOSSES), "loss_type = '{loss_type}' does not read it", "loss_type = 'dapo'"),
    (_SAPO, _is("loss_type", "sapo"), "loss_type = '{loss_type}' does not read it", "loss_type = 'sapo'"),
    (_VESPO, _is("loss_type", "vespo"), "loss_type = '{loss_type}' does not read it", "loss_type = 'vespo'"),
    (("importance_sampling_level",), lambda own: not _is("loss_type", "vespo")(own) or _corrects_kl(own),
     "loss_type = 'vespo' always weights whole sequences", "loss_type = 'grpo'"),
    (("scale_rewards",), lambda own: not _is("multi_objective_aggregation", "normalize_then_sum")(own),
     "multi_objective_aggregation = 'normalize_then_sum' divides by standard deviations of its own",
     "multi_objective_aggregation = 'sum_then_normalize'"),
    (("warmup_steps", "lr_scheduler_kwargs"), lambda own: not _is("lr_scheduler_type", "constant")(own),
     "lr_scheduler_type = 'constant' has no warmup and takes no arguments", "lr_scheduler_type = 'constant_with_warmup'"),
    (("use_bias_correction_kl",), lambda own: value(own, "beta"), "beta = 0", "beta = 0.001"),
    (("entropy_target", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta"), _is("use_adaptive_entropy", True),
     "use_adaptive_entropy is off", "use_adaptive_entropy = true"),
    (tuple(f"vllm_importance_sampling_{part}" for part in _IS),
     lambda own: value(own, "use_vllm") and value(own, "vllm_importance_sampling_correction"), "vLLM's samples are not corrected",
     "use_vllm = true, with vllm_importance_sampling_correction"),
    (("vllm_importance_sampling_correction", "vllm_mode", "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size"),
     lambda own: value(own, "use_vllm"), "use_vllm is off", "use_vllm = true"),
    (("num_completions_to_print", "log_unique_prompts"), _is("log_completions", True), "log_completions is off",
     "log_completions = true"),
)  # fmt: skip


def unread(settings: Settings, names: Iterable[str]) -> list[Inert]:
    """Of some names those that nothing reads beside these settings."""
    found, asked = [], set(names)
    for own, reads, why, remedy in _READ:
        if (idle := tuple(name for name in own if name in asked)) and not reads(settings):
            found.append(Inert(idle, why.format(loss_type=value(settings, "loss_type")), remedy))
    return found


def ratio_is_one(settings: Settings, times: int | None = None) -> bool:
    """Whether TRL takes each update's own log-probabilities for the old ones, so that the ratio is 1; `times`: num_iterations."""
    accumulated, passes = value(settings, "gradient_accumulation_steps"), settings.get("steps_per_generation")
    if not passes and (batch := settings.get("generation_batch_size")):
        passes = batch // (settings["per_device_train_batch_size"] * processes.count())
    corrected = value(settings, "use_vllm") and value(settings, "vllm_importance_sampling_correction")
    return not corrected and accumulated % ((passes or accumulated) * (times or value(settings, "num_iterations"))) == 0


def more_updates(settings: Settings) -> str:
    """The smallest change that makes the ratio leave 1."""
    times = next(times for times in range(2, 1_000) if not ratio_is_one(settings, times))
    return f"several updates per generation: num_iterations = {times}"


def on_the_ratio(settings: Settings, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Of some names those that do nothing while the ratio is 1: (to the bit, but for rounding)."""
    loss, asked = value(settings, "loss_type"), set(names)
    clips, sequence = loss in CLIPPED_LOSSES, value(settings, "importance_sampling_level") == "sequence"
    # The cap of cispo, and a delta below 1, reach a ratio of 1.
    exact = {
        "epsilon": clips,
        "epsilon_high": clips or (loss == "cispo" and (settings.get("epsilon_high") or value(settings, "epsilon")) >= 1),
        "delta": clips and (settings.get("delta") is None or settings["delta"] >= 1),
        "off_policy_mask_threshold": (settings.get("off_policy_mask_threshold") or 0) >= 0 and not value(settings, "use_vllm"),
        **dict.fromkeys(_VESPO, loss == "vespo"),
        # With a corrected KL the gradient goes through the ratio of the level.
        "importance_sampling_level": (not sequence or loss == "cispo") and loss != "vespo" and not _corrects_kl(settings),
    }
    rounded = {
        **dict.fromkeys(_SAPO, loss == "sapo"),
        "importance_sampling_level": sequence and loss not in ("cispo", "vespo") and not _corrects_kl(settings),
        "loss_type": loss in ("vespo", "sapo") or (loss == "cispo" and exact["epsilon_high"]),
    }
    return [name for name in exact if name in asked and exact[name]], [
        name for name in rounded if name in asked and rounded[name]
    ]


def inert_in_plan(settings: Settings, asked: Iterable[str]) -> list[Inert]:
    """Settings that were asked for by name and will do nothing, as far as that is known before the run."""
    idle = unread(settings, asked)
    known = {name for own in idle for name in own.names}
    exact, rounded = on_the_ratio(settings, set(asked) - known) if ratio_is_one(settings) else ([], [])
    one, remedy = "one update per generation, so the ratio is exactly 1", more_updates(settings) if exact or rounded else ""
    idle += [Inert(tuple(exact), one, remedy)] * bool(exact)
    but = f"{one}, and only rounding differs"
    for name in rounded:
        same = {"sapo": "grpo"}.get(value(settings, "loss_type"), "dapo")
        idle.append(Inert((name,), but + f" from loss_type = '{same}'" * (name == "loss_type"), remedy))
    return idle
