"""Measuring a policy on held-out prompts, and comparing two of them on the same prompts.

Several completions per prompt, at the training temperature: GRPO trains a distribution, not its likeliest completion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from workbench.errors import DataError, RunError
from workbench.inspection.reading import changed_since, question
from workbench.progress import progress_line
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.task import Row, Task, load_task
from workbench.training.policy import Policy, load_policy
from workbench.training.sampling import sample


@dataclass(frozen=True)
class Measured:
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

    def some(self, places: Sequence[int]) -> Measured:
        """The same policy on some of the prompts."""
        chosen = {name: None if own is None else own[list(places)] for name, own in vars(self).items() if name != "completions"}
        return Measured([self.completions[place] for place in places], **chosen)

    def shares(self) -> dict[str, float | None]:
        """The shares of all completions: `correct` (strict), `correct_lenient`, `format`, `finished`; mean `reward`."""
        counted = {"correct": self.correct, "correct_lenient": self.lenient, "format": self.format, "finished": self.finished}
        shares = {name: None if flags is None else float(flags.mean()) for name, flags in counted.items()}
        return {**shares, "reward": float(np.nanmean(self.total))}


class Examples(NamedTuple):
    """(held-out prompt, the base's first completion, the trained policy's); a cell shows them as a table."""

    rows: list[tuple[str, str, str]]

    def __str__(self) -> str:
        return "\n\n".join(f"{prompt}\n  base:    {base!r}\n  trained: {trained!r}" for prompt, base, trained in self.rows)

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Base and trained policy on the same held-out prompts; a cell shows the shares before and after, with the gain."""

    prompts: list[Any]
    before: Measured
    after: Measured
    right_by: str = ""  # the function that said which completions are right
    rows: Sequence[Row] = ()  # [P] the held-out rows, with their answers

    @property
    def found(self) -> dict[str, Any]:
        """What `evaluation.json` holds: the shares before and after, and the paired gain."""
        before, after = self.before.correct, self.after.correct
        prompts, samples = map(int, before.shape)
        shares = {"before": self.before.shares(), "after": self.after.shares()}
        gain = dict(zip(("correct", "low", "high"), paired_difference(before, after), strict=True))
        return {**shares, "gain": gain, "prompts": prompts, "samples": samples, "right_by": self.right_by}

    @property
    def pairs(self) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """(what is counted, before, after), arrays [P, G] of bools."""
        counted = {"correct, strict format": "correct", "correct, lenient": "lenient", "strict format": "format"}
        pairs = [(label, getattr(self.before, of), getattr(self.after, of)) for label, of in counted.items()]
        return [pair for pair in pairs if pair[1] is not None and pair[2] is not None]

    def examples(self, count: int = 4) -> Examples:
        """The first prompts, each with one completion of the base and one of the trained policy."""
        some = zip(self.prompts[:count], self.before.completions, self.after.completions, strict=False)
        return Examples([(question(prompt), before[0], after[0]) for prompt, before, after in some])

    def __str__(self) -> str:
        found = self.found
        old, new = found["before"], found["after"]
        return (
            f"{gain_in_words(found)}; {found['prompts']} held-out prompts, {found['samples']} completions each\n"
            f"mean reward {old['reward']:.2f} -> {new['reward']:.2f}; "
            f"ended before the limit {old['finished']:.0%} -> {new['finished']:.0%}"
        )

    __repr__ = __str__


def evaluate(run: RunDirectory, task: Task | None = None, *, held_out: int = 200, samples: int = 4, seed: int = 0) -> Evaluation:
    """Measure what a run bought: its base and its trained policy on held-out prompts that neither was trained on.

    >>> evaluation = wb.evaluate(wb.open_run(), held_out=8, samples=1)
    >>> print(evaluation)
    ...

    The policy is loaded on the run's own backend, and sampled at the temperature and length limit of training. Leaves
    `evaluation.json` in the run's folder. What of the task has changed since the run is printed as a warning.

    Args:
        task: the run's task; None: loaded from its recipe.
        held_out: measure on at most this many prompts.
        samples: completions per prompt.

    Raises:
        RunError: if the run has no adapter; or is one of your own trainer, and `task` is None.
        DataError: if the task has no held-out prompts.
    """
    if task is None and run.manifest().get("attached"):
        value = f"{run.name}: recorded from your own trainer, so no task of the workbench belongs to it"
        remedy = "hand one over: wb.evaluate(run, task=wb.Task(..., held_out=rows))"
        raise RunError(value, rule="held-out prompts are scored by a task's reward functions", remedy=remedy)
    recipe, in_force = run.recipe(), run.manifest()["settings"]["in_force"]
    task = task or load_task(recipe.task)
    rows = _held_out(task, task.held_out)[:held_out]
    for line in changed_since(run, task):
        print(f"WARNING: {line}")
    policy = load_policy(recipe, adapter=run.adapter)
    print(policy)
    asked = {"samples": samples, "seed": seed, **{name: in_force[name] for name in ("max_completion_length", "temperature")}}
    before, after = (
        measure(policy, task, rows, weights=recipe.reward_weights, base=base, progress=progress_line(name), **asked)
        for name, base in (("base", True), ("trained", False))
    )
    evaluation = Evaluation([row["prompt"] for row in rows], before, after, task.right_function, rows)
    run.write_json("evaluation.json", evaluation.found)
    return evaluation


def measure(
    policy: Policy,
    task: Task,
    rows: Sequence[Row] | None = None,
    *,
    weights: dict[str, float] | None = None,
    samples: int = 4,
    **sampling: Any,
) -> Measured:
    """Sample `samples` completions for each held-out prompt and score them with the task's own functions.

    Args:
        rows: prompts; None: the task's held-out rows. DataError if there are none.
        weights: of the reward functions, where they differ from the task's: the recipe's `reward_weights`.
        sampling: for `sample`: `max_completion_length`, `temperature`, `seed`, `base`, `batch_size`, `progress`.
    """
    rows = _held_out(task, task.held_out if rows is None else rows)
    sampled = sample(policy, [row["prompt"] for row in rows], num_generations=samples, **{"batch_size": 128, **sampling})
    suite = RewardSuite(task, samples, weights)
    flat = [completion for group in sampled for completion in group]
    scores = suite.score([row for row in rows for _ in range(samples)], [c.text for c in flat], [c.ids for c in flat])
    shape, by_name = (len(rows), samples), dict(zip(suite.names, scores.T, strict=True))
    return Measured(
        completions=[[completion.text for completion in group] for group in sampled],
        lenient=(by_name[task.right_function] > 0).reshape(shape),
        format=None if task.format_by is None else (by_name[task.format_by] > 0).reshape(shape),
        finished=np.array([completion.finished for completion in flat]).reshape(shape),
        total=np.nansum(scores * suite.weights, axis=1).reshape(shape),
    )


def _held_out(task: Task, rows: Sequence[Row]) -> Sequence[Row]:
    if not len(rows):
        value, remedy = f"task {task.name!r}: 0 held-out prompts", "give the task held_out rows; notebook 01 splits them off"
        raise DataError(value, rule="a policy is measured on prompts that it was not trained on", remedy=remedy)
    return rows


def paired_difference(before: np.ndarray, after: np.ndarray) -> tuple[float, float, float]:
    """(mean, low, high) of after - before, [P, G] on the same prompts in the same order, with Student's 95 % t interval.

    The prompts are the sample: completions of one prompt are not independent of one another, so each prompt counts once, with
    the mean of its completions. ValueError if the prompts differ in number, or there are fewer than 2.
    """
    if len(before) != len(after) or len(before) < 2:
        raise ValueError(f"{len(before)} and {len(after)} prompts: give the same prompts to both, at least 2")
    mean, half = _t_interval(after.mean(axis=1) - before.mean(axis=1))
    return mean, mean - half, mean + half


def share_interval(values: np.ndarray) -> tuple[float, float, float]:
    """(share, low, high) of a [P, G] array of bools: the mean over prompts with its 95 % t interval, within 0 and 1."""
    if len(values) < 2:
        return float(values.mean()), 0.0, 1.0
    mean, half = _t_interval(values.mean(axis=1))
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def _t_interval(values: np.ndarray) -> tuple[float, float]:
    # (mean, half the width of its 95 % interval).
    from scipy import stats

    count = len(values)
    return float(values.mean()), float(stats.t.ppf(0.975, count - 1)) * float(values.std(ddof=1)) / math.sqrt(count)


def gain_in_words(found: dict[str, Any]) -> str:
    """The gain that an `evaluation.json` holds, in a line. Where the two cannot differ, +0 from 0 to 0 would be no result."""
    before, after, gain = found["before"], found["after"], found["gain"]
    if before["correct_lenient"] == after["correct_lenient"] == 0:
        who = found.get("right_by") or "the function that decides"
        return f"no completion was right, before or after: {who} paid nothing anywhere, so no gain can be measured"
    if before["correct"] == after["correct"] == 0:
        return "no completion was both right and in the strict format, before or after, so no gain can be measured"
    if before["correct"] == after["correct"] == 1:
        return "every completion was right, before and after: these prompts leave nothing to gain"
    return f"gain {100 * gain['correct']:+.0f} points, 95 % interval {100 * gain['low']:+.0f} to {100 * gain['high']:+.0f}"
