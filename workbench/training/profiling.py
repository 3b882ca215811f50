"""Measuring how hard prompts are for a policy, for the difficulty profile of notebook 01."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from workbench.data.difficulty import Profile, Solved, measure, row_key
from workbench.rewards.suite import RewardSuite
from workbench.task import Row, Task
from workbench.training.policy import Policy
from workbench.training.sampling import sample


def profile_difficulty(
    policy: Policy,
    task: Task,
    rows: Sequence[Row],
    file: str | Path,
    *,
    num_generations: int = 8,
    max_completion_length: int = 96,
    temperature: float = 1.0,
    seed: int = 0,
    batch: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Sample `num_generations` completions of each prompt and count how many are right, by the task's `right_by`.

    Interruptible and resumable: what was measured is kept in `file`, and the next call goes on from there.

    Args:
        policy: measured as it stands, adapter included.
        rows: prompts to measure.
        file: `difficulty.jsonl` beside the dataset.
        batch: prompts at a time; `batch * num_generations` completions are generated together.
        progress: called with (prompts measured, prompts in all).

    Raises:
        DataError: if `file` holds a profile of another policy, reward or way of sampling.
    """
    suite = RewardSuite(task, num_generations)
    column = suite.names.index(task.right_function)

    def attempt(some: Sequence[Row]) -> list[Solved]:
        # A seed of the batch's own: a profile that was interrupted between two batches ends as if it had not been.
        own_seed = seed + int(row_key(some[0])[:6], 16)
        groups = sample(
            policy,
            [row["prompt"] for row in some],
            num_generations=num_generations,
            max_completion_length=max_completion_length,
            temperature=temperature,
            seed=own_seed,
            batch_size=batch * num_generations,
        )
        flat = [completion for group in groups for completion in group]
        repeated = [row for row in some for _ in range(num_generations)]
        right = suite.score(repeated, [c.text for c in flat], [c.ids for c in flat])[:, column] > 0
        return [
            Solved(int(right[start : start + num_generations].sum()), num_generations, sum(c.finished for c in group))
            for start, group in zip(range(0, len(flat), num_generations), groups, strict=True)
        ]

    settings = {
        "policy": policy.source if policy.name != "tiny" else "tiny",
        "precision": policy.precision,
        "trained_in": policy.trained_in,
        "right_by": f"{task.right_function} {suite.hashes[task.right_function]}",
        "num_generations": num_generations,
        "max_completion_length": max_completion_length,
        "temperature": temperature,
        "seed": seed,
    }
    if policy.chat_template_kwargs:
        settings["chat_template_kwargs"] = policy.chat_template_kwargs
    return measure(rows, attempt, file, settings, batch=batch, progress=progress)
