"""Which settings can do nothing beside which others: told before a run by its plan, and after it with what was measured.

What each setting does was read in the installed TRL: `GRPOTrainer._compute_loss`, `get_off_policy_mask`, `get_gamma_weights` and
`_generate_and_score_completions`. Where every update is made by the policy that generated, the importance ratio is x - x of
one and the same log-probability, so exactly 1, and whatever looks at the ratio does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
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
    "optim": "adamw_torch_fused",
}  # fmt: skip
_SAPO = ("sapo_temperature_neg", "sapo_temperature_pos")
_VESPO = ("vespo_k_pos", "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg")
_CORRECTION = tuple(f"vllm_importance_sampling_{part}" for part in ("mode", "clip_min", "clip_max", "cap"))

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


def corrects_kl(settings: Settings) -> bool:
    """Whether the importance ratio is in the KL term, too."""
    return bool(value(settings, "beta") and value(settings, "use_bias_correction_kl"))


def corrects_vllm(settings: Settings) -> bool:
    """Whether vLLM generates, and its ratios to the trainer's probabilities are weighed in."""
    return bool(value(settings, "use_vllm") and value(settings, "vllm_importance_sampling_correction"))


_OTHER, _DAPO, _VLLM = "loss_type = '{loss_type}' does not read it", "loss_type = 'dapo'", "use_vllm = true"
# Names, whether anything reads them beside the others' values, why not, and what would.
_READ: tuple[tuple[tuple[str, ...], Callable[[Settings], Any], str, str], ...] = (
    (("epsilon",), lambda own: _is("loss_type", *CLIPPED_LOSSES, *["cispo"][: not own.get("epsilon_high")])(own), _OTHER, _DAPO),
    (("epsilon_high",), _is("loss_type", *CLIPPED_LOSSES, "cispo"), _OTHER, _DAPO),
    (("delta",), _is("loss_type", *CLIPPED_LOSSES), _OTHER, _DAPO),
    (_SAPO, _is("loss_type", "sapo"), _OTHER, "loss_type = 'sapo'"),
    (_VESPO, _is("loss_type", "vespo"), _OTHER, "loss_type = 'vespo'"),
    (("importance_sampling_level",), lambda own: not _is("loss_type", "vespo")(own) or corrects_kl(own),
     "loss_type = 'vespo' always weights whole sequences", "loss_type = 'grpo'"),
    (("scale_rewards",), _is("multi_objective_aggregation", "sum_then_normalize"),
     "multi_objective_aggregation = 'normalize_then_sum' scales each function separately",
     "multi_objective_aggregation = 'sum_then_normalize'"),
    (("warmup_steps",), lambda own: not _is("lr_scheduler_type", "constant")(own),
     "lr_scheduler_type = 'constant' has no warmup", "lr_scheduler_type = 'constant_with_warmup'"),
    (("lr_scheduler_kwargs",), lambda own: not _is("lr_scheduler_type", "constant", "constant_with_warmup")(own),
     "a constant learning_rate takes no arguments",
     "a scheduler that takes them, such as lr_scheduler_type = 'cosine_with_min_lr'"),
    (("adam_*",), lambda own: "adam" in str(value(own, "optim")), "optim is no Adam", "optim = 'adamw_torch'"),
    (("eval_steps", "eval_delay", "*_eval_batch_size", "num_generations_eval"),
     lambda own: value(own, "eval_strategy") not in ("no", None),
     "the trainer evaluates nothing", "eval_every in the recipe, which measures held-out prompts"),
    (("ref_model_*",), _is("sync_ref_model", True), "sync_ref_model is off, as an adapter has no copy of the reference", ""),
    (("use_bias_correction_kl",), lambda own: value(own, "beta"), "beta = 0", "beta = 0.001"),
    (("entropy_target", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta"), _is("use_adaptive_entropy", True),
     "use_adaptive_entropy is off", "use_adaptive_entropy = true"),
    (_CORRECTION, corrects_vllm, "vLLM's samples are not corrected", f"{_VLLM}, with vllm_importance_sampling_correction"),
    (("vllm_*",), _is("use_vllm", True), "use_vllm is off", _VLLM),
)  # fmt: skip


def unread(settings: Settings, names: Iterable[str]) -> list[Inert]:
    """Of some names those that nothing reads beside these settings."""
    found, asked = [], sorted(set(names))
    for own, reads, why, remedy in _READ:
        idle = tuple(name for name in asked if any(fnmatchcase(name, each) for each in own))
        if idle and not reads(settings):
            if remedy.startswith("loss_type") and ratio_is_one(settings):
                remedy += f", and {more_updates(settings)}"
            found.append(Inert(idle, why.format(loss_type=value(settings, "loss_type")), remedy))
            asked = [name for name in asked if name not in idle]
    return found


def ratio_is_one(settings: Settings, times: int | None = None) -> bool:
    """Whether every update is made by the policy that generated, so that the ratio is 1; `times`: num_iterations.

    TRL then takes each update's own log-probabilities for the old ones; where it corrects vLLM's it computes them apart, and
    rounding may leave the ratio a little off 1.
    """
    accumulated, passes = value(settings, "gradient_accumulation_steps"), settings.get("steps_per_generation")
    if not passes and (batch := settings.get("generation_batch_size")):
        passes = batch // (settings["per_device_train_batch_size"] * processes.count())
    again = (passes or accumulated) * (times or value(settings, "num_iterations"))
    return accumulated % again == 0


def more_updates(settings: Settings) -> str:
    """The smallest change that makes the ratio leave 1."""
    times = next(times for times in range(2, 1_000) if not ratio_is_one(settings, times))
    return f"several updates per generation: num_iterations = {times}"


def on_the_ratio(settings: Settings, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Of some names those that do nothing while the ratio is 1: (to the bit, but for rounding)."""
    loss, asked = value(settings, "loss_type"), set(names)
    clips, sequence = loss in CLIPPED_LOSSES, value(settings, "importance_sampling_level") == "sequence"
    # With a corrected KL, or some tokens masked, the gradient of a sequence's ratio goes other ways than that of each token's.
    level = not corrects_kl(settings) and value(settings, "top_entropy_quantile") == 1 and loss != "vespo"
    # The cap of cispo, and a delta below 1, reach a ratio of 1.
    exact = {
        "epsilon": clips,
        "epsilon_high": clips or (loss == "cispo" and (settings.get("epsilon_high") or value(settings, "epsilon")) >= 1),
        "delta": clips and (settings.get("delta") is None or settings["delta"] >= 1),
        "off_policy_mask_threshold": (settings.get("off_policy_mask_threshold") or 0) >= 0 and not value(settings, "use_vllm"),
        **dict.fromkeys(_VESPO, loss == "vespo"),
        "importance_sampling_level": level and (not sequence or loss == "cispo"),
    }
    rounded = {
        **dict.fromkeys(_SAPO, loss == "sapo"),
        "importance_sampling_level": level and sequence and loss != "cispo",
        "loss_type": not sequence and (loss in ("vespo", "sapo") or (loss == "cispo" and exact["epsilon_high"])),
    }
    exact, rounded = ([name for name, idle in own.items() if idle and name in asked] for own in (exact, rounded))
    return ([], exact + rounded) if corrects_vllm(settings) else (exact, rounded)


def inert_in_plan(settings: Settings, asked: Iterable[str]) -> list[Inert]:
    """Settings that were asked for by name and will do nothing, as far as that is known before the run."""
    idle, one = unread(settings, asked), "one update per generation, so the ratio is exactly 1"
    if not ratio_is_one(settings):
        return idle
    exact, rounded = on_the_ratio(settings, set(asked) - {name for own in idle for name in own.names})
    one = one.replace("exactly ", "") if corrects_vllm(settings) else one
    remedy, same = more_updates(settings), "grpo" if value(settings, "loss_type") == "sapo" else "dapo"
    idle += [Inert(tuple(exact), one, remedy)] * bool(exact)
    but = {name: f" from loss_type = '{same}'" * (name == "loss_type") for name in rounded}
    return idle + [Inert((name,), f"{one}, and only rounding differs{words}", remedy) for name, words in but.items()]
