"""What rescuing dead groups buys: completions to the same held-out score with and without, by seed.

    uv run python benchmarks/rescue.py [--seeds 5] [--steps 32]

The task is the embedded policy's arithmetic in words that it was not taught (`workbench/tasks/arithmetic_harder.py`): 64 prompts,
paid for right answers alone; about half of their groups are dead at first. A step learns from 4 groups of 8. Every eighth step
the policy answers 48 held-out prompts four times each, under one seed. An arm is the same recipe with another `rescue`; all of
a seed begin with the same adapter. The arm without is trained once more with another seed: what differs between those two is
the noise (A/A). Completions are all that were generated, those included that `oversample` leaves out; that arm takes half as
many steps, so that all arms generate equally many.

The score to reach is, of each seed, halfway from the base's to what the arm without ended with (the mean of its last two); an
arm that does not reach it counts as if it had with its last completion, and is counted. Intervals are over the seeds, paired,
95 %, of Student's t.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import time
from typing import Any

import measuring
from measuring import Line

NONE, AGAIN = "none", "none, another seed"
ARMS: dict[str, dict[str, Any]] = {
    NONE: {},
    AGAIN: {},
    "exclude": {"exclude_zero_variance": True},
    "curriculum": {"curriculum": True},
    "both": {"exclude_zero_variance": True, "curriculum": True},
    "oversample 2": {"oversample": 2},
}
EVERY = 8
HELD_OUT, SAMPLES, LENGTH = 48, 4, 48


class Curve:
    """A watcher that measures the held-out prompts before the first step and every so many."""

    def __init__(self, policy: Any, task: Any, every: int) -> None:
        from workbench.rewards.suite import RewardSuite

        self.policy, self.task, self.every = policy, task, every
        self.suite = RewardSuite(task, SAMPLES)
        self.scores: dict[int, float] = {}

    def _measure(self, step: int) -> None:
        from workbench.training.sampling import sample

        rows = self.task.with_ids(self.task.held_out)
        how = {"num_generations": SAMPLES, "max_completion_length": LENGTH, "batch_size": 192, "seed": 1}
        groups = sample(self.policy, [row["prompt"] for row in rows], **how)
        texts = [completion.text for group in groups for completion in group]
        scored = self.suite.score([row for row in rows for _ in range(SAMPLES)], texts)
        self.scores[step] = float((scored[:, 0] > 0).mean())

    def begin(self, *_: Any) -> None:
        self._measure(0)

    def update(self, step: int, values: dict[str, Any]) -> None:
        if step % self.every == 0:
            self._measure(step)

    def end(self, message: str) -> None: ...


_loaded: dict[int, tuple[Any, dict[str, Any]]] = {}


def begun(seed: int) -> Any:
    """The policy of a seed with the adapter that it began with."""
    import torch

    from workbench.training.policy import load_policy

    if seed not in _loaded:
        _loaded.clear()
        policy = load_policy("tiny", load_in_4bit=False, seed=seed)
        weights = {name: own.detach().clone() for name, own in policy.model.named_parameters() if own.requires_grad}
        _loaded[seed] = policy, weights
    policy, weights = _loaded[seed]
    with torch.no_grad():
        for name, own in policy.model.named_parameters():
            if own.requires_grad:
                own.copy_(weights[name])
    policy.trained_in.clear()
    return policy


def cell(arm: str, seed: int, steps: int, every: int = EVERY, prompts: int = 64, held_out: int = HELD_OUT) -> dict[str, Any]:
    """One run: held-out scores by completions that were generated until then, and its dead groups."""
    from workbench.recipe import Recipe
    from workbench.rewards.library import correctness_reward
    from workbench.run.rollouts import query
    from workbench.task import Task
    from workbench.tasks.arithmetic_harder import task as harder
    from workbench.training.trainer import train

    times, began = ARMS[arm].get("oversample", 1), time.process_time()
    grpo = {
        "max_steps": steps // times, "num_generations": 8, "per_device_train_batch_size": 32, "max_completion_length": LENGTH,
        "learning_rate": 1e-3, "save_steps": steps,
    }  # fmt: skip
    whole = harder(prompts, held_out)
    task = Task("harder", whole.rows, [correctness_reward], held_out=whole.held_out)
    policy = begun(seed)
    asked = {"run_name": f"{arm.replace(' ', '-').replace(',', '')}-{seed}", "rescue": ARMS[arm], "grpo": grpo}
    asked |= {"seed": seed + 1000 * (arm == AGAIN), "policy": {"load_in_4bit": False}}
    curve = Curve(policy, task, max(1, every // times))
    run = train(Recipe.of(asked), policy=policy, task=task, watchers=[curve])
    counted = query(
        run.rollouts, "select step, count(*) as n, sum(length_tokens) as tokens from rollouts group by step order by step"
    )
    until = dict(zip(counted["step"].tolist(), counted["n"].cumsum().tolist(), strict=True))
    rows = run.metrics()
    dead = [sum(row["groups/dead"] for row in own) / len(own) for own in (rows[:8], rows[-8:])]
    return {
        "arm": arm, "seed": seed, "scores": list(curve.scores.values()), "dead": dead, "tokens": int(counted["tokens"].sum()),
        "completions": [until.get(step, 0) for step in curve.scores], "cpu_s": time.process_time() - began,
    }  # fmt: skip


def reaches(curve: dict[str, Any], score: float) -> float | None:
    """Completions after which a curve, its points joined by lines, first reaches a score; None: it does not."""
    points = list(zip(curve["completions"], curve["scores"], strict=True))
    if points[0][1] >= score:
        return float(points[0][0])
    for (before, low), (after, high) in itertools.pairwise(points):
        if high >= score:
            return before + (after - before) * (score - low) / (high - low)
    return None


def compared(cells: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By arm, against the one without: completions to its score as a ratio, and points of the score at the end, by seed."""
    import numpy as np

    from workbench.inspection.statistics import paired_difference

    by = {(one["arm"], one["seed"]): one for one in cells}
    seeds, found = sorted({one["seed"] for one in cells}), {}
    ends = {key: float(np.mean(one["scores"][-2:])) for key, one in by.items()}
    halfway = {seed: (by[NONE, seed]["scores"][0] + ends[NONE, seed]) / 2 for seed in seeds}
    for arm in ARMS:
        several = len(seeds) > 1 and arm != NONE

        def to(goal: dict[int, float], arm: str = arm, several: bool = several) -> dict[str, Any]:
            needed = []
            for seed in seeds:
                mine, theirs = (reaches(by[which, seed], goal[seed]) for which in (arm, NONE))
                needed.append((by[arm, seed]["completions"][-1] if mine is None else mine, theirs, mine is None))
            logs = np.log([[max(1.0, own) for own in pair[:2]] for pair in needed])
            return {
                "completions": [own for own, _, _ in needed],
                "not_reached": sum(missed for *_, missed in needed),
                "ratio": [float(np.exp(own)) for own in paired_difference(logs[:, 1:], logs[:, :1])] if several else None,
            }

        gained = np.array([[ends[NONE, seed], ends[arm, seed]] for seed in seeds])
        found[arm] = {
            **to(halfway),
            "to_the_end": to({seed: ends[NONE, seed] for seed in seeds}),
            "ended": [ends[arm, seed] for seed in seeds],
            "gained": list(map(float, paired_difference(gained[:, :1], gained[:, 1:]))) if several else None,
            "dead": np.mean([by[arm, seed]["dead"] for seed in seeds], axis=0).tolist(),
            "cpu_s": float(np.mean([by[arm, seed]["cpu_s"] for seed in seeds])),
        }
    return found


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=32)
    asked = measuring.parse(parser, seeds=2, steps=4)
    stamped, cells = measuring.stamp(), []
    sizes = {"every": 2, "prompts": 8, "held_out": 4} if asked.quick else {}
    with measuring.empty_home():
        for seed in range(asked.seeds):
            first = seed % len(ARMS)
            for arm in [*ARMS][first:] + [*ARMS][:first]:
                with contextlib.redirect_stdout(io.StringIO()):
                    cells.append(cell(arm, seed, asked.steps, **sizes))
                scores = " ".join(f"{score:.0%}" for score in cells[-1]["scores"])
                measuring.say(f"seed {seed}, {arm}: {scores}; {cells[-1]['cpu_s']:.0f} s of CPU time")
    publish(asked, stamped, cells)


def publish(asked: Any, stamped: dict[str, Any], cells: list[dict[str, Any]]) -> None:
    """Compare the arms, print the table and write the result."""
    found = compared(cells)

    def interval(own: list[float] | None, how: str) -> str:
        return "-" if own is None else "{} ({} to {})".format(*(format(value, how) for value in own))

    header = ["rescue", "completions halfway, over none's", "seeds that did not get there", "to none's score at the end"]
    header += [
        "seeds that did not get there",
        "held-out score at the end",
        "over none's, points",
        "dead groups, first and last 8 steps",
        "CPU s a run",
    ]
    rows = []
    for arm, own in found.items():
        points = interval(own["gained"] and [100 * value for value in own["gained"]], "+.1f")
        ended, dead = sum(own["ended"]) / len(own["ended"]), " and ".join(f"{share:.0%}" for share in own["dead"])
        ways = [(interval(way["ratio"], ".2f"), f"{way['not_reached']} of {asked.seeds}") for way in (own, own["to_the_end"])]
        ended_at = [f"{ended:.0%}", points, dead, f"{own['cpu_s']:.0f}"]
        rows.append([arm, *ways[0], *ways[1], *ended_at])
    noise = found[AGAIN]["ratio"]
    lines = [
        Line(
            f"dead-group rescue, {arm}: completions to the same held-out score", interval(own["ratio"], ".2f"), "no rescue",
            measuring.between(noise),
        )
        for arm, own in found.items() if arm not in (NONE, AGAIN)
    ]  # fmt: skip
    measuring.save("rescue", asked, stamped, lines, (header, rows), {"arms": found, "cells": cells})


if __name__ == "__main__":
    main()
