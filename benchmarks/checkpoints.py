"""What saving a checkpoint costs: the workbench's against the Trainer's own with optimiser and
random states.

    uv run python benchmarks/checkpoints.py [--rounds 5] [--steps 12]

Short runs that save after every step take turns in one process. The time of a save is from the
step's row of metrics to the end of its checkpoint, so all that the trainer does for it is in it.
The workbench's holds the adapter, optimizer.safetensors (optimiser and random states) and
state.json, and no pickle; the Trainer's own (save_only_model=False) the adapter, the tokenizer and
its state in .pt files. Both begin with a policy that was just loaded; the first save of a run is
left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import measuring
from arms import Run, by_trl, by_workbench
from measuring import Line, between, ratio

DROPPED = 1
OURS, THEIRS = "workbench", "Trainer's own"
ARMS = (OURS, f"{OURS} again", THEIRS, f"{THEIRS} again")


def measure(rounds: int, steps: int, arms: Sequence[str] = ARMS) -> dict[str, list[Run]]:
    """The runs of every arm."""
    from workbench.recipe import Recipe
    from workbench.tiny.task import task
    from workbench.training.policy import trainer_classes

    trainer_classes()  # unsloth comes first
    grpo = {
        "max_steps": DROPPED + steps, "num_generations": 8, "per_device_train_batch_size": 8,
        "max_completion_length": 16, "learning_rate": 1e-3, "beta": 0.001, "save_steps": 1,
        "gradient_checkpointing": False,
    }  # fmt: skip
    recipe, arithmetic = Recipe.of({"run_name": "checkpoints", "grpo": grpo}), task()

    def run(arm: str) -> Run:
        if arm.startswith(OURS):
            return by_workbench(recipe, arithmetic)
        return by_trl(recipe, arithmetic, save_only_model=False)

    return measuring.in_rounds(
        arms, rounds, run, lambda one: f"{1000 * min(one.save_s[DROPPED:]):.1f} ms"
    )


def figures(runs: list[Run]) -> dict[str, Any]:
    """Milliseconds and bytes of an arm's saves."""
    saves_ms = [[1000 * second for second in run.save_s[DROPPED:]] for run in runs]
    return {
        "least_ms": min(map(min, saves_ms)),
        "median_ms": statistics.median(one for run in saves_ms for one in run),
        "bytes": sum(runs[-1].saved_bytes.values()),
        "files": runs[-1].saved_bytes,
        "saves_ms": saves_ms,
    }


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="saves of a run, after the first")
    asked = measuring.parse(parser, rounds=1, steps=2)
    stamped = measuring.stamp()
    with measuring.empty_home():
        runs = measure(asked.rounds, asked.steps)
    arms = {arm: figures(found) for arm, found in runs.items()}
    least = {arm: [min(run.save_s[DROPPED:]) for run in found] for arm, found in runs.items()}
    ratios = {
        "workbench / Trainer's own": ratio(least[OURS], least[THEIRS]),
        "A/A of the workbench": ratio(least[OURS], least[f"{OURS} again"]),
        "A/A of the Trainer": ratio(least[THEIRS], least[f"{THEIRS} again"]),
    }
    cost = ratios["workbench / Trainer's own"]
    share = arms[OURS]["bytes"] / arms[THEIRS]["bytes"]
    lines = [
        Line(
            "saving a checkpoint",
            f"{arms[OURS]['least_ms']:.0f} ms, {cost.of_least:.2f} times the time and {share:.2f}"
            " times the bytes",
            "the Trainer's own with optimiser",
            between(ratios["A/A of the Trainer"]),
        )
    ]
    header = ["", "least, ms", "median, ms", "bytes", "files"]
    rows = [
        [
            arm,
            f"{own['least_ms']:.1f}",
            f"{own['median_ms']:.1f}",
            f"{own['bytes']:,}",
            len(own["files"]),
        ]
        for arm, own in arms.items()
    ]
    measuring.save(
        "checkpoints", asked, stamped, lines, (header, rows), {"arms": arms, "ratios": ratios}
    )


if __name__ == "__main__":
    main()
