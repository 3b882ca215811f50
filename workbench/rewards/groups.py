"""Groups and advantages: what a step learns from.

A group is the G completions of one prompt. The arithmetic is that of trl 1.14.2's `GRPOTrainer`
(`_generate_and_score_completions`), in numpy, so that it can be shown, recorded and replayed without a trainer; a test
holds it against the running trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

EPSILON = 1e-4  # added by TRL to the std before dividing


class Groups(NamedTuple):
    """Totals and advantages of B = P * G completions, prompts in order, the completions of a prompt together."""

    totals: np.ndarray  # [P * G] weighted sum of the functions; NaN where no function applied
    means: np.ndarray  # [P * G] mean of the completion's group
    stds: np.ndarray  # [P * G] std of the completion's group (Bessel-corrected)
    advantages: np.ndarray  # [P * G]


def advantages(
    scores: np.ndarray,
    weights: Sequence[float],
    num_generations: int,
    scale_rewards: str | bool = "group",
    aggregation: str = "sum_then_normalize",
) -> Groups:
    """Scores of B completions by F functions -> totals, group statistics and advantages.

    Args:
        scores: [B, F]; NaN where a function did not apply.
        weights: [F].
        num_generations: G; B is a multiple of it.
        scale_rewards: "group" (or True) divides by the group's std, "batch" by the batch's, "none" (or False) by nothing.
        aggregation: TRL's `multi_objective_aggregation`.

    Raises:
        ValueError: if B is not a multiple of G, or a setting is unknown.
    """
    scores = np.asarray(scores, dtype=np.float64)
    weights = np.asarray(weights, dtype=np.float64)
    scale = {True: "group", False: "none"}.get(scale_rewards, scale_rewards)
    if scale not in ("group", "batch", "none"):
        raise ValueError(f"scale_rewards = {scale_rewards!r}: must be 'group', 'batch' or 'none'")
    if len(scores) % num_generations:
        raise ValueError(f"{len(scores)} completions are not a multiple of num_generations = {num_generations}")
    unscored = np.isnan(scores).all(axis=1)
    totals = np.where(unscored, np.nan, np.nansum(scores * weights, axis=1))
    grouped = totals.reshape(-1, num_generations)
    means, stds = (np.repeat(stat, num_generations) for stat in (_mean(grouped, 1), _std(grouped, 1)))
    if aggregation == "sum_then_normalize":
        spread = {"group": stds + EPSILON, "batch": _std(totals[None], 1)[0] + EPSILON, "none": 1.0}[scale]
        result = (totals - means) / spread
    elif aggregation == "normalize_then_sum":
        by_function = scores.reshape(-1, num_generations, scores.shape[1])
        normal = (by_function - _mean(by_function, 1)[:, None]) / (_std(by_function, 1)[:, None] + EPSILON)
        summed = np.nansum(normal.reshape(scores.shape) * weights, axis=1)
        summed = np.where(unscored, np.nan, summed)
        result = (summed - _mean(summed[None], 1)[0]) / (_std(summed[None], 1)[0] + EPSILON)
    else:
        raise ValueError(
            f"multi_objective_aggregation = {aggregation!r}: must be 'sum_then_normalize' or 'normalize_then_sum'"
        )
    return Groups(totals, means, stds, np.nan_to_num(result, nan=0.0))


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    count = np.sum(~np.isnan(values), axis=axis)
    return np.where(count > 0, np.nansum(values, axis=axis) / np.maximum(count, 1), np.nan)


def _std(values: np.ndarray, axis: int) -> np.ndarray:
    # Bessel-corrected over the values that are there, as in TRL's nanstd.
    count = np.sum(~np.isnan(values), axis=axis)
    centre = np.expand_dims(_mean(values, axis), axis)
    total = np.nansum((values - centre) ** 2, axis=axis)
    return np.where(count > 1, np.sqrt(total / np.maximum(count - 1, 1)), np.where(count == 1, 0.0, np.nan))


class GroupHealth(NamedTuple):
    """Shares of the groups of a step; `mixed + all_right + all_wrong` is 1."""

    std: float  # mean of the within-group stds
    mixed: float
    all_right: float
    all_wrong: float
    dead: float  # all completions of the group score the same, so that nothing is learnt from it


def group_health(groups: Groups, right: Sequence[bool], num_generations: int) -> GroupHealth:
    """How many of a step's groups can teach, and of what kind the others are."""
    share_right = np.asarray(right, dtype=float).reshape(-1, num_generations).mean(axis=1)
    stds = groups.stds[::num_generations]
    return GroupHealth(
        std=float(np.nanmean(stds)) if np.isfinite(stds).any() else float("nan"),
        mixed=float(np.mean((share_right > 0) & (share_right < 1))),
        all_right=float(np.mean(share_right == 1)),
        all_wrong=float(np.mean(share_right == 0)),
        dead=float(np.mean(np.nan_to_num(stds) < 1e-8)),
    )
