"""Does a warm start help where GRPO alone learns nothing? Share right on held-out prompts, with and
without, by seed.

    uv run python benchmarks/warm_start.py [--seeds 3]

The task is one that the embedded policy knows how to do and does in about 1 of 200 tries: sums and
differences, worked in the open, without the <reasoning> tags that it was taught to put around its
working. The only reward pays for just that. Both arms have the same recipe, but for `warm_start`;
what the warm start samples is counted beside what GRPO generates. Each prompt counts once, with the
mean of its completions; intervals are Student's, 95 %, over prompts.
"""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import measuring
import numpy as np
from measuring import Line

PROMPTS, SAMPLES = 64, 4  # held-out prompts, and completions of each


def task_of() -> Any:
    """Arithmetic whose reward pays only for a right answer that is worked without <reasoning>
    tags.
    """
    from workbench.rewards.answers import completion_text
    from workbench.rewards.library import max_score
    from workbench.task import Task
    from workbench.tiny.task import task

    @max_score(1.0)
    def worked_openly_reward(
        completions: list[Any], answer: list[str], **columns: Any
    ) -> list[float]:
        def right(text: str, answer: str) -> bool:
            worked, _, rest = text.partition("<answer>")
            return (
                "reasoning" not in text
                and "=" in worked
                and re.fullmatch(rf"\s*{answer}\s*</answer>\s*", rest) is not None
            )

        return [
            float(right(completion_text(text), own))
            for text, own in zip(completions, answer, strict=True)
        ]

    whole = task(1000, PROMPTS)
    held_out = whole.held_out
    return Task(
        "worked_openly",
        whole.rows,
        [worked_openly_reward],
        held_out=held_out,
        right_by="worked_openly_reward",
    )


def recipe_of(seed: int, steps: int, samples: int | None) -> Any:
    """The recipe of an arm: with so many samples to begin with, or None."""
    from workbench.recipe import Recipe

    grpo = {
        "max_steps": steps,
        "num_generations": 8,
        "per_device_train_batch_size": 16,
        "learning_rate": 1.5e-3,
    }
    warm = {"samples": samples, "tries": 1000, "epochs": 10} if samples else None
    content = {
        "run_name": "warm" if samples else "cold",
        "policy": {"load_in_4bit": False},
        "warm_start": warm,
        "seed": seed,
    }
    return Recipe.of({**content, "grpo": {**grpo, "max_completion_length": 28}})


def right(policy: Any, task: Any) -> np.ndarray:
    """Whether each held-out completion is right: [P, G]."""
    from workbench.training.sampling import sample

    rows, found = list(task.held_out), []
    groups = sample(
        policy,
        [row["prompt"] for row in rows],
        num_generations=SAMPLES,
        max_completion_length=28,
        seed=7,
    )
    for row, group in zip(rows, groups, strict=True):
        found.append(
            task.reward_funcs[0](
                completions=[own.text for own in group], answer=[row["answer"]] * SAMPLES
            )
        )
    return np.array(found) > 0


def measure(seed: int, steps: int, samples: int | None) -> dict[str, Any]:
    """One arm of one seed: held-out completions that are right before, after the warm start and at
    the end, and what it took.
    """
    from workbench.run.rollouts import query
    from workbench.training.policy import load_policy
    from workbench.training.resuming import load_adapter
    from workbench.training.trainer import train

    task, policy = task_of(), load_policy("tiny", load_in_4bit=False, seed=seed)
    begun = right(policy, task)
    run = train(recipe_of(seed, steps, samples), policy=policy, task=task)
    ended, warmed = right(policy, task), run.manifest().get("warm_start") or {}
    if warmed:
        load_adapter(policy.model, run.checkpoints / "checkpoint-0")
    between = right(policy, task) if warmed else begun
    rewards = query(run.rollouts).groupby("step")["total"].mean()
    return {
        "seed": seed, "samples": samples or 0, "tries": warmed.get("tries", 0),
        "seconds": warmed.get("sampled_s", 0.0) + warmed.get("trained_s", 0.0),
        "minutes": run.result()["minutes"],
        "before": begun.tolist(), "after_warm_start": between.tolist(), "after": ended.tolist(),
        "reward": [round(float(value), 4) for value in rewards],
    }  # fmt: skip


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--samples", type=int, default=20)
    asked = measuring.parse(parser, seeds=1, steps=1, samples=1)
    stamped, found = measuring.stamp(), []
    with measuring.empty_home():
        for seed in range(asked.seeds):
            for samples in (None, asked.samples):
                with contextlib.redirect_stdout(io.StringIO()):
                    found.append(measure(seed, asked.steps, samples))
                own = found[-1]
                shares = " -> ".join(
                    f"{np.mean(own[key]):.1%}" for key in ("before", "after_warm_start", "after")
                )
                measuring.say(
                    f"seed {seed}, {own['samples']} samples of {own['tries']:,} tries: {shares}"
                )
        lines, rows = table_of(found)
    header = ["seed", "arm", "tries", "before", "after the warm start", "after GRPO"]
    kept = [{name: _flags(value) for name, value in own.items()} for own in found]
    measuring.save("warm_start", asked, stamped, lines, (header, rows), {"runs": kept})


def _flags(value: Any) -> Any:
    # Of each prompt a 0 or a 1 for each completion, in a word.
    grid = isinstance(value, list) and value and isinstance(value[0], list)
    return ["".join("01"[each] for each in row) for row in value] if grid else value


def table_of(found: list[dict[str, Any]]) -> tuple[list[Line], list[list[str]]]:
    """(the line of the table of all benchmarks, the rows of the script's own), of runs without and
    with a warm start in turn.
    """
    from workbench.inspection.statistics import paired_difference, share_interval

    def words(own: dict[str, Any], key: str) -> str:
        share, low, high = share_interval(np.array(own[key]))
        return f"{share:.1%} ({low:.1%} to {high:.1%})"

    rows = []
    for own in found:
        arm, warmed = (
            ("warm start, GRPO", words(own, "after_warm_start"))
            if own["samples"]
            else ("GRPO alone", "-")
        )
        rows.append(
            [
                str(own["seed"]),
                arm,
                f"{own['tries']:,}",
                words(own, "before"),
                warmed,
                words(own, "after"),
            ]
        )
    # All seeds have the same prompts: each counts once, with its completions of all seeds.
    cold, warm = (
        np.hstack([np.array(own["after"]) for own in found if bool(own["samples"]) is with_])
        for with_ in (False, True)
    )
    gain, low, high = paired_difference(cold, warm)
    figure = f"{warm.mean():.0%} right, {gain:+.0%} ({low:+.0%} to {high:+.0%})"
    line = Line(
        "a task solved in 1 of 200 tries, with a warm start",
        figure,
        f"{cold.mean():.1%} without",
        "none",
    )
    return [line], rows


if __name__ == "__main__":
    main()
