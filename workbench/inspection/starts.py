"""Luck of the start, measured: several starts of a task's environment, several rollouts from
each.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from workbench.audit.examination import spread
from workbench.audit.findings import Finding, finding
from workbench.base.kinds import Fields
from workbench.inspection.statistics import UNEQUAL, StartLuck, start_luck
from workbench.rewards.suite import RewardSuite
from workbench.task import Task
from workbench.training.policy import Policy
from workbench.training.sampling import scored_groups


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
