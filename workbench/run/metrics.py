"""Names of the numbers in `metrics.jsonl`: TRL's own, verbatim, and the workbench's few beside
them.

Every key may be absent, and every value may be None: which of them are logged depends on the
settings and on which library's trainer runs. Their meaning in the installed version, unit and good
direction are in `teaching/glossary.yaml`, read by `wb.explain`.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

# Logged by TRL.
REWARD = "reward"
REWARD_STD = "reward_std"  # of the whole batch: it looks healthy even when every group is dead
KL = "kl"  # logged only when beta is not 0
ENTROPY = "entropy"
GRAD_NORM = "grad_norm"
LEARNING_RATE = "learning_rate"
STEP_S = "step_time"
ZERO_STD = "frac_reward_zero_std"
MEAN_LENGTH = "completions/mean_length"
CLIPPED = "completions/clipped_ratio"

# Computed by the workbench from the rollouts.
GROUP_STD = "group_reward_std"  # what the advantages are made of
MIXED = "groups/mixed"
ALL_RIGHT = "groups/all_right"
ALL_WRONG = "groups/all_wrong"
DEAD = "groups/dead"
GENERATE_S = "time/generate_s"
REWARD_S = "time/reward_s"
TRAIN_S = "time/train_s"
HELD_OUT = "held_out/correct"  # in the rows of steps after which held-out prompts were measured
LEVEL = "curriculum/level"  # of the prompts of the step, with a curriculum
RATIO_LOW = "ratio/low"  # TRL logs what was clipped, not how far the ratio went
RATIO_HIGH = "ratio/high"
RATIO_MASKED = "ratio/masked"  # only with off_policy_mask_threshold


_OWN = {
    *("step", "loss", "epoch", "num_tokens"),
    *(REWARD, REWARD_STD, KL, ENTROPY, GRAD_NORM, LEARNING_RATE, STEP_S, ZERO_STD, GROUP_STD),
}
_OWN_GROUPS = (
    "rewards/", "completions/", "groups/", "time/", "held_out/", "curriculum/", "ratio/",
    "clip_ratio", "sampling/", "train/",
    "eval_", "eval/",
)  # fmt: skip


def is_own(name: str) -> bool:
    """Whether a metric belongs to TRL or the workbench, so that no reward function may log it."""
    return name in _OWN or name.startswith(_OWN_GROUPS)


def per_function(name: str) -> str:
    """TRL's key for one reward function's unweighted mean."""
    return f"rewards/{name}/mean"


def weight_of(name: str) -> str:
    """The workbench's key for one reward function's weight in a step."""
    return f"rewards/{name}/weight"


def function_names(keys: Iterable[str]) -> list[str]:
    """Names of the reward functions that appear in a set of metric keys, sorted."""
    return sorted(
        key.removeprefix("rewards/").removesuffix("/mean")
        for key in keys
        if fnmatchcase(key, "rewards/*/mean")
    )
