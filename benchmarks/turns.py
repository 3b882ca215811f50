"""A game of several turns: what GRPO gains at it, and what unequal starts cost.

    uv run python benchmarks/turns.py [--seeds 5] [--steps 40]

The embedded policy that calls tools plays guess-the-number. Equal starts: all members of a group
look for one number. Unequal: each member draws its own, so that part of a group's differences is
luck. Both are measured on the same held-out numbers while they train; which needs fewer
completions is told by the first measurement that reaches the target. Gain: the run of seed 0 with
equal starts, base and trained on held-out starts, by the paired 95 % interval.
"""

from __future__ import annotations

import random
import statistics
import sys
from typing import Any

import measuring
from measuring import Line

EQUAL, UNEQUAL = "equal starts", "unequal starts"
TARGET = 0.8  # share of held-out games that are won
EVERY = 5  # steps between two measurements


def task_of(arm: str) -> Any:
    """The game; with unequal starts, a rollout's number is its own while it trains."""
    import dataclasses

    from workbench.instruments.games import guess_the_number as game

    class OwnStart(game.GuessTheNumber):
        """Heeds the seed of a held-out row alone."""

        def reset(self, seed: int | None = None, held_out: bool = False, **row: object) -> None:
            while not held_out:
                seed = random.SystemRandom().getrandbits(32)
                if not game.is_never_trained_on(game.number_of_start(seed)):
                    break
            super().reset(seed=seed)

    task = game.task()
    if arm == EQUAL:
        return task
    OwnStart.__name__ = game.GuessTheNumber.__name__  # the reward's
    held_out = [{**row, "held_out": True} for row in task.held_out]
    return dataclasses.replace(
        task,
        rows=[{**row, "held_out": False} for row in task.rows],
        held_out=held_out,
        reward_funcs=[],
        environment=OwnStart,
    )


def recipe_of(seed: int, steps: int, small: bool) -> Any:
    """Settings that are the same for both."""
    from workbench.recipe import Recipe

    grpo = {
        "max_steps": steps,
        "num_generations": 8,
        "per_device_train_batch_size": 16 if small else 64,
        "max_completion_length": 48 if small else 144,
        "learning_rate": 5e-4,
        "beta": 0.0,
        "save_steps": steps,
    }
    return Recipe.of(
        {
            "run_name": "turns",
            "task": "guess_the_number",
            "policy": {"name": "tiny_turns", "load_in_4bit": False, "dtype": "float32"},
            "grpo": grpo,
            "seed": seed,
            "eval_every": 1 if small else EVERY,
            "eval_prompts": 4 if small else 64,
        }
    )


def train_one(arm: str, seed: int, steps: int, small: bool) -> tuple[Any, dict[str, Any]]:
    """(the run, its curve of held-out games won, and the completions that it took to the target;
    None: not reached).
    """
    from workbench.run.held_out import held_out
    from workbench.training.trainer import train

    recipe = recipe_of(seed, steps, small)
    run = train(recipe, task=task_of(arm), watchers=[])
    curve = [(one["step"], one["correct"]) for one in held_out(run.events())]
    batch = recipe.grpo["per_device_train_batch_size"]
    reached = next((step * batch for step, share in curve if share >= TARGET), None)
    found = {"arm": arm, "seed": seed, "curve": curve, "completions": reached}
    return run, {**found, "minutes": run.result()["minutes"]}


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--samples", type=int, default=4, help="games of each of 64 held-out starts"
    )
    asked = measuring.parse(parser, seeds=1, steps=2, samples=1)
    stamped, runs, gain = measuring.stamp(), [], {}
    with measuring.empty_home():
        from workbench.inspection.evaluation import evaluate
        from workbench.inspection.measured import gain_in_words

        for seed in range(asked.seeds):
            for arm in (EQUAL, UNEQUAL) if seed % 2 else (UNEQUAL, EQUAL):
                run, one = train_one(arm, seed, asked.steps, asked.quick)
                runs.append(one)
                curve = ", ".join(f"{share:.0%}" for _, share in one["curve"])
                measuring.say(f"seed {seed}, {arm}: {curve}; {one['completions']} completions")
                if (arm, seed) == (EQUAL, 0):
                    measured = evaluate(run, samples=asked.samples)
                    gain = measured.found
    rows, figures = [], {}
    for arm in (EQUAL, UNEQUAL):
        own = [one for one in runs if one["arm"] == arm]
        took = [one["completions"] or float("inf") for one in own]
        figures[arm] = statistics.median(took)
        last = [one["curve"][-1][1] for one in own]
        listed = ", ".join("not reached" if one == float("inf") else f"{one:,}" for one in took)
        rows.append([arm, listed, f"{min(last):.0%} to {max(last):.0%}"])
    lines = [
        Line(
            f"guess-the-number, {asked.steps} steps of 64 games",
            gain_in_words(gain),
            "the base",
            "paired 95 % interval",
        ),
        Line(
            f"completions until {TARGET:.0%} of held-out games are won, median of"
            f" {asked.seeds} seeds",
            f"{figures[EQUAL]:,.0f}",
            f"{UNEQUAL}: {figures[UNEQUAL]:,.0f}",
            "the seeds, in the table",
        ),
    ]
    header = ["starts", f"completions until {TARGET:.0%}, by seed", "won at the end"]
    measuring.save("turns", asked, stamped, lines, (header, rows), {"runs": runs, "gain": gain})


if __name__ == "__main__":
    sys.exit(main())
