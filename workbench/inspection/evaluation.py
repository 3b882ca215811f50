"""Measuring a policy on held-out prompts, and comparing two of them on the same prompts.

Completions are sampled at the training temperature, several a prompt, because that is the policy that GRPO trains: its
distribution, not its single likeliest completion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from workbench.errors import DataError
from workbench.rewards.suite import RewardSuite
from workbench.task import Row, Task
from workbench.training.policy import Policy
from workbench.training.sampling import sample


@dataclass(frozen=True)
class Evaluation:
    """A policy on P prompts, G completions each. Arrays are [P, G]."""

    completions: list[list[str]]
    lenient: np.ndarray  # bool: right, whatever the format
    format: np.ndarray | None  # bool: keeps the strict format; None where the task does not measure it
    finished: np.ndarray  # bool: ended before the limit
    total: np.ndarray  # weighted reward

    @property
    def correct(self) -> np.ndarray:
        """Right, and in the strict format where there is one: [P, G] bool."""
        return self.lenient if self.format is None else self.lenient & self.format

    def shares(self) -> dict[str, float | None]:
        """The shares of all completions: `correct` (strict), `correct_lenient`, `format`, `finished`; mean `reward`."""
        return {
            "correct": float(self.correct.mean()),
            "correct_lenient": float(self.lenient.mean()),
            "format": None if self.format is None else float(self.format.mean()),
            "finished": float(self.finished.mean()),
            "reward": float(np.nanmean(self.total)),
        }


class Difference(NamedTuple):
    """A paired difference with its 95 % interval, and how many prompts it rests on."""

    mean: float
    low: float
    high: float
    prompts: int


def evaluate(
    policy: Policy,
    task: Task,
    rows: Sequence[Row] | None = None,
    *,
    weights: dict[str, float] | None = None,
    samples: int = 4,
    max_completion_length: int = 96,
    temperature: float = 1.0,
    seed: int = 0,
    base: bool = False,
    batch_size: int = 128,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Sample `samples` completions for each held-out prompt and score them with the task's own functions.

    Args:
        rows: prompts; None: the task's held-out rows.
        weights: of the reward functions, where they differ from the task's: the recipe's `reward_weights`.
        base: measure the base model, without the adapter.
        progress: called with (prompts done, prompts in all).

    Raises:
        DataError: if there are no prompts.
    """
    rows = task.held_out if rows is None else rows
    if not len(rows):
        raise DataError(
            f"task {task.name!r}: 0 held-out prompts",
            rule="a policy is measured on prompts that it was not trained on",
            remedy="give the task held_out rows; notebook 01 splits them off",
        )
    sampled = sample(
        policy,
        [row["prompt"] for row in rows],
        num_generations=samples,
        max_completion_length=max_completion_length,
        temperature=temperature,
        seed=seed,
        base=base,
        batch_size=batch_size,
        progress=progress,
    )
    suite = RewardSuite(task, samples, weights)
    flat = [completion for group in sampled for completion in group]
    repeated = [row for row in rows for _ in range(samples)]
    scores = suite.score(repeated, [c.text for c in flat], [c.ids for c in flat])
    shape = (len(rows), samples)
    by_name = dict(zip(suite.names, scores.T, strict=True))
    return Evaluation(
        completions=[[completion.text for completion in group] for group in sampled],
        lenient=(by_name[task.right_function] > 0).reshape(shape),
        format=None if task.format_by is None else (by_name[task.format_by] > 0).reshape(shape),
        finished=np.array([completion.finished for completion in flat]).reshape(shape),
        total=np.nansum(scores * suite.weights, axis=1).reshape(shape),
    )


def paired_difference(before: np.ndarray, after: np.ndarray) -> Difference:
    """Mean of (after - before) over prompts, with the 95 % interval of Student's t on the per-prompt differences.

    The prompts are the sample: completions of one prompt are not independent of one another, so each prompt counts
    once, with the mean of its completions.

    Args:
        before, after: [P, G] on the same prompts in the same order.

    Raises:
        ValueError: if the prompts differ in number, or there are fewer than 2.
    """
    from scipy import stats

    if len(before) != len(after) or len(before) < 2:
        raise ValueError(f"{len(before)} and {len(after)} prompts: give the same prompts to both, at least 2")
    difference = after.mean(axis=1) - before.mean(axis=1)
    count = len(difference)
    half = float(stats.t.ppf(0.975, count - 1)) * float(difference.std(ddof=1)) / math.sqrt(count)
    mean = float(difference.mean())
    return Difference(mean, mean - half, mean + half, count)


def share_interval(values: np.ndarray) -> tuple[float, float, float]:
    """(share, low, high) of a [P, G] array of bools: the mean over prompts with its 95 % t interval, within 0 and 1."""
    from scipy import stats

    by_prompt = values.mean(axis=1)
    mean = float(by_prompt.mean())
    if len(by_prompt) < 2:
        return mean, 0.0, 1.0
    half = float(stats.t.ppf(0.975, len(by_prompt) - 1)) * float(by_prompt.std(ddof=1)) / math.sqrt(len(by_prompt))
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def summary(before: Evaluation, after: Evaluation, right_by: str = "") -> dict[str, Any]:
    """What notebook 04 leaves in `evaluation.json`: the shares before and after, and the paired gain.

    Args:
        right_by: the function that said which completions are right.
    """
    gain = paired_difference(before.correct, after.correct)
    return {
        "before": before.shares(),
        "after": after.shares(),
        "gain": {"correct": gain.mean, "low": gain.low, "high": gain.high},
        "prompts": gain.prompts,
        "samples": int(before.correct.shape[1]),
        "right_by": right_by,
    }


def gain_in_words(found: dict[str, Any]) -> str:
    """The gain of a `summary` in a line. Where the two cannot differ, +0 with an interval from 0 to 0 would be no result."""
    before, after, gain = found["before"], found["after"], found["gain"]
    if before["correct_lenient"] == after["correct_lenient"] == 0:
        who = found.get("right_by") or "the function that says so"
        return f"no completion was right, before or after: {who} paid nothing anywhere, so no gain can be measured"
    if before["correct"] == after["correct"] == 0:
        return "no completion was both right and in the strict format, before or after, so no gain can be measured"
    if before["correct"] == after["correct"] == 1:
        return "every completion was right, before and after: these prompts leave nothing to gain"
    return (
        f"gain {100 * gain['correct']:+.0f} points, 95 % interval {100 * gain['low']:+.0f} to {100 * gain['high']:+.0f}"
    )
