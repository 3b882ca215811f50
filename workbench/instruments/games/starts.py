"""Luck of the start, measured: several starts of a task's environment, several rollouts from
each.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from workbench.audit.examination import spread
from workbench.audit.findings import Finding, finding
from workbench.base.kinds import Fields
from workbench.health.trends import t_value
from workbench.inspection.statistics import UNTOLD
from workbench.rewards.suite import RewardSuite
from workbench.task import Task
from workbench.training.policy import Policy
from workbench.training.sampling import scored_groups

FAIR, UNEQUAL = "fair", "unequal"
LUCK = 0.1  # of the variance within a group: surely less is fair, surely more is unequal
_VARY = 8  # prompts whose rewards differ, below which their bootstrap says little


class StartLuck(NamedTuple):
    """How much of the rewards' variance within a prompt is luck of the start."""

    verdict: str  # FAIR, UNEQUAL or UNTOLD
    share: float  # 0 to 1; NaN where no prompt's rewards differ
    low: float  # its 95 % interval
    high: float
    prompts: int  # those whose rewards differ; the others have nothing to split


def start_luck(rewards: Sequence[np.ndarray], seed: int = 0) -> StartLuck:
    """Split the variance of rewards, of each prompt [G, k]: k rollouts from each of G starts, NaN
    where nothing was scored.

    One-way random effects within each prompt: the variance between starts is (MSB - MSW) / n0,
    that within a start MSW, where n0 is k if nothing is missing. Both are averaged over prompts,
    negative ones included, and the share is clipped at the end. The interval is the percentile
    bootstrap over prompts, widened as Student's t is: 0 to 1 for fewer than 8.

    >>> start_luck([np.array([[1.0, 1.0], [0.0, 0.0]])] * 8)
    StartLuck(verdict='unequal', share=1.0, low=1.0, high=1.0, prompts=8)

    Raises:
        ValueError: for other than 2 dimensions, or a reward that is infinite.
    """
    parts = [own for each in rewards if (own := _variances(each)) and sum(own) > _least(each)]
    if not parts:
        return StartLuck(UNTOLD, math.nan, 0.0, 1.0, 0)
    parts_P2, chance = np.array(parts), np.random.default_rng(seed)
    drawn = chance.integers(len(parts), size=(1999, len(parts)))
    between, within = np.concatenate([parts_P2[None], parts_P2[drawn]]).mean(axis=1).T
    share, *shares = np.clip(between / (between + within), 0.0, 1.0).tolist()
    if len(parts) < _VARY:
        return StartLuck(UNTOLD, share, 0.0, 1.0, len(parts))
    tail = NormalDist().cdf(-t_value(len(parts)) * math.sqrt(len(parts) / (len(parts) - 1)))
    low, high = np.quantile(shares, [tail, 1 - tail]).tolist()
    verdict = UNEQUAL if low > LUCK else FAIR if high < LUCK else UNTOLD
    return StartLuck(verdict, share, low, high, len(parts))


def _least(rewards_GK: np.ndarray) -> float:
    # a variance that rounding alone leaves
    return 1e-24 * float(np.nanmean(np.square(np.asarray(rewards_GK, dtype=float))))


def _variances(rewards_GK: np.ndarray) -> tuple[float, float] | None:
    # (between starts, within a start); None: too few were scored
    rewards_GK = np.asarray(rewards_GK, dtype=float)
    if rewards_GK.ndim != 2 or np.isinf(rewards_GK).any():
        raise ValueError(f"rewards of shape {rewards_GK.shape}: give finite ones, [G, k]")
    starts = [own[~np.isnan(own)] for own in rewards_GK]
    starts = [own for own in starts if len(own)]
    sizes = np.array([len(own) for own in starts])
    total, spare = sizes.sum(), sizes.sum() - len(starts)
    if len(starts) < 2 or not spare:
        return None
    means = np.array([own.mean() for own in starts])
    within = sum(float(((own - own.mean()) ** 2).sum()) for own in starts) / spare
    between = sizes @ (means - sizes @ means / total) ** 2 / (len(starts) - 1)
    typical = (total - (sizes**2).sum() / total) / (len(starts) - 1)
    return float(between - within) / typical, within


def measure_starts(
    policy: Policy,
    task: Task,
    *,
    prompts: int = 16,
    starts: int = 8,
    per_start: int = 8,
    weights: dict[str, float] | None = None,
    **sampling: Any,
) -> StartLuck:
    """Play `per_start` rollouts from each of `starts` starts of a prompt, and split the variance of
    their rewards: how much of it is luck of the start, which a group's baseline takes for merit.

    The starts are made as a group's are in training; each rollout goes on in a copy of its
    environment.

    >>> luck = wb.inspection.measure_starts(policy, task, max_completion_length=256)
    >>> luck.verdict, luck.share, luck.low, luck.high
    ('unequal', ...)

    Args:
        prompts: of the task's, spread over them.
        weights: by function, where they differ from the task's.
        sampling: as for `play`: `max_completion_length`, `temperature`, `seed`, ...

    Raises:
        TaskError: if the task has no environment, or one that cannot be copied.
    """
    size, rows = starts * per_start, spread(task.rows, prompts)
    with contextlib.closing(RewardSuite(task, size, weights)) as suite:
        sampling |= {"per_start": per_start}
        groups = scored_groups(policy, task, rows, suite, size, **sampling)
        names = [f"score.{name}" for name in suite.names]

    def total(own: Fields) -> float:
        return np.nan if np.isnan([own[name] for name in names]).all() else own["total"]

    return start_luck([np.reshape([*map(total, own)], (starts, per_start)) for own in groups])


def luck_finding(
    policy: Policy, task: Task, prompts: int = 16, starts: int = 8, **more: Any
) -> Finding:
    """`measure_starts`, as a finding to stand beside those of an audit."""
    luck = measure_starts(policy, task, prompts=prompts, starts=starts, **more)
    return finding(
        "starts.luck",
        severity="warning" if luck.verdict == UNEQUAL else "",
        **luck._asdict() | {"share": f"{luck.share:.0%}" if luck.prompts else "an unknown part"},
        of=min(prompts, len(task.rows)),
        starts=starts,
    )
