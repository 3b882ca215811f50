"""Names of the numbers in `metrics.jsonl`: TRL's own, verbatim, and the workbench's few beside them.

Every key may be absent, and every value may be None: which of them are logged depends on the settings and on which
library's trainer runs. Meanings are those of trl 1.14.2; in brackets the unit, and which way is good where one is.
"""

from __future__ import annotations

from collections.abc import Iterable

# Logged by TRL.
REWARD = "reward"  # mean over the batch of the weighted sum of the reward functions [reward, up]
# Std of the reward over the whole generation batch, differences between prompts included: it looks healthy even when every
# group is dead [reward].
REWARD_STD = "reward_std"
KL = "kl"  # divergence from the reference model; logged only when beta is not 0 [nats per token]
ENTROPY = "entropy"  # mean, of the policy's next-token distribution; Unsloth's trainer on a GPU does not log it [nats per token]
GRAD_NORM = "grad_norm"  # of the gradient before clipping; 0 means that the step taught nothing
LEARNING_RATE = "learning_rate"  # the effective one
STEP_S = "step_time"  # wall time of one step [s, down]
ZERO_STD = "frac_reward_zero_std"  # share of completions in groups (or batches) without spread [share, down]
MEAN_LENGTH = "completions/mean_length"  # [tokens]
CLIPPED = "completions/clipped_ratio"  # completions cut at max_completion_length before they ended [share, down]

# Computed by the workbench from the rollouts.
GROUP_STD = "group_reward_std"  # mean over groups of the std within the group: what the advantages are made of [reward]
MIXED = "groups/mixed"  # groups with right and wrong completions [share, up]
ALL_RIGHT = "groups/all_right"  # groups in which every completion is right: nothing left to learn there [share]
ALL_WRONG = "groups/all_wrong"  # groups in which every completion is wrong [share, down]
DEAD = "groups/dead"  # groups whose completions all score the same: their advantage is zero [share, down]
GENERATE_S = "time/generate_s"  # wall time of sampling the step's completions [s, down]
REWARD_S = "time/reward_s"  # wall time of the reward functions [s, down]
TRAIN_S = "time/train_s"  # wall time of the rest of the step: forward, backward, optimiser [s, down]


_OWN = frozenset(
    {"step", "loss", "epoch", "num_tokens", REWARD, REWARD_STD, KL, ENTROPY, GRAD_NORM, LEARNING_RATE, STEP_S, ZERO_STD}
)
_OWN_GROUPS = ("rewards/", "completions/", "groups/", "time/", "clip_ratio", "sampling/", "train/", "eval_", "eval/")


def is_own(name: str) -> bool:
    """Whether a metric is one of TRL's or of the workbench's, so that no reward function may log it."""
    return name in _OWN or name == GROUP_STD or name.startswith(_OWN_GROUPS)


def per_function(name: str) -> str:
    """TRL's key for one reward function's unweighted mean."""
    return f"rewards/{name}/mean"


def weight_of(name: str) -> str:
    """The workbench's key for the weight that one reward function had in a step."""
    return f"rewards/{name}/weight"


def function_names(keys: Iterable[str]) -> list[str]:
    """Names of the reward functions that appear in a set of metric keys, sorted."""
    return sorted(key[len("rewards/") : -len("/mean")] for key in keys if key.startswith("rewards/") and key.endswith("/mean"))
