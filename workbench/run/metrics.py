"""Names of the numbers in `metrics.jsonl`: TRL's own, verbatim, and the workbench's few beside them.

Every key may be absent, and every value may be None: which of them are logged depends on the settings and on which
library's trainer runs. Meanings are those of trl 1.14.2.
"""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """What a number means, in which unit, and which way is good ("up", "down" or "" where neither is)."""

    meaning: str
    unit: str
    good: str


# Logged by TRL.
REWARD = "reward"
REWARD_STD = "reward_std"
KL = "kl"
ENTROPY = "entropy"
GRAD_NORM = "grad_norm"
LEARNING_RATE = "learning_rate"
STEP_S = "step_time"
ZERO_STD = "frac_reward_zero_std"
MEAN_LENGTH = "completions/mean_length"
CLIPPED = "completions/clipped_ratio"

# Computed by the workbench from the rollouts.
GROUP_STD = "group_reward_std"
MIXED = "groups/mixed"
ALL_RIGHT = "groups/all_right"
ALL_WRONG = "groups/all_wrong"
DEAD = "groups/dead"
GENERATE_S = "time/generate_s"
REWARD_S = "time/reward_s"
TRAIN_S = "time/train_s"

METRICS: dict[str, Metric] = {
    REWARD: Metric("mean over the batch of the weighted sum of the reward functions", "reward", "up"),
    REWARD_STD: Metric(
        "TRL's own: std of the reward over the whole generation batch, differences between prompts included; "
        "it looks healthy even when every group is dead",
        "reward",
        "",
    ),
    GROUP_STD: Metric(
        "mean over groups of the std of the reward within the group: what the advantages are made of", "reward", ""
    ),
    MIXED: Metric("share of groups with right and wrong completions", "share", "up"),
    ALL_RIGHT: Metric("share of groups in which every completion is right: nothing left to learn there", "share", ""),
    ALL_WRONG: Metric("share of groups in which every completion is wrong", "share", "down"),
    DEAD: Metric("share of groups whose completions all score the same: their advantage is zero", "share", "down"),
    GENERATE_S: Metric("wall time of sampling the step's completions", "s", "down"),
    REWARD_S: Metric("wall time of the reward functions", "s", "down"),
    TRAIN_S: Metric("wall time of the rest of the step: forward, backward, optimiser", "s", "down"),
    KL: Metric("divergence from the reference model; logged by TRL only when beta is not 0", "nats per token", ""),
    ENTROPY: Metric(
        "mean entropy of the policy's next-token distribution; Unsloth's trainer on a GPU does not log it",
        "nats per token",
        "",
    ),
    GRAD_NORM: Metric("norm of the gradient before clipping; 0 means that the step taught nothing", "", ""),
    LEARNING_RATE: Metric("effective learning rate", "", ""),
    STEP_S: Metric("wall time of one step", "s", "down"),
    ZERO_STD: Metric("TRL's own share of completions in groups (or batches) without spread", "share", "down"),
    MEAN_LENGTH: Metric("mean completion length", "tokens", ""),
    CLIPPED: Metric("share of completions cut at max_completion_length before they ended", "share", "down"),
}


def per_function(name: str) -> str:
    """TRL's key for one reward function's unweighted mean."""
    return f"rewards/{name}/mean"


def weight_of(name: str) -> str:
    """The workbench's key for the weight that one reward function had in a step."""
    return f"rewards/{name}/weight"


def function_names(keys: list[str] | set[str]) -> list[str]:
    """Names of the reward functions that appear in a set of metric keys, sorted."""
    return sorted(key[len("rewards/") : -len("/mean")] for key in keys if key.startswith("rewards/") and key.endswith("/mean"))
