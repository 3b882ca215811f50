"""Step time of the workbench's `train()` against TRL's GRPOTrainer: the same model, settings, seed
and learning curve.

    uv run python benchmarks/steps.py [--rounds 2] [--case "demo, 16 bit"]

Each case is a process of its own, in which short runs of the arms take turns: TRL twice (A/A), the
workbench twice (A/A), the workbench with TRL's own generation (what its hooks alone cost), and in
the first case TRL with gradient checkpointing, which is TRL's default. Every run begins with a
policy that was just loaded, and its first two steps are left out. Steps of one number do the same
work in every run, so they are compared with one another: "least" is the mean over step numbers of
the least over rounds, and a ratio of a round is the median over step numbers.

The adapter is float32 in all arms. TRL would round that of a 4-bit model to bfloat16; see arms.py.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import measuring
from arms import Run, by_trl, by_workbench, same_curve
from lengthening import lengthened
from measuring import Line, Ratio, between

DROPPED = 2  # steps at the beginning of a run
TRL, WORKBENCH, HOOKS, CHECKPOINTING = (
    "TRL",
    "workbench",
    "workbench, TRL's generation",
    "TRL, gradient checkpointing",
)
ARMS = (TRL, f"{TRL} again", WORKBENCH, f"{WORKBENCH} again", HOOKS)
CASES: dict[str, dict[str, Any]] = {
    "demo, nf4": {},
    "demo, 16 bit": {"load_in_4bit": False},
    "demo, nf4, prompts of 200 tokens": {"prompt_tokens": 200, "max_seq_length": 384},
    "demo, nf4, plain backend": {"backend": "transformers"},
}


def recipe_of(case: str, steps: int, small: bool = False) -> Any:
    """The demo's recipe as a case changes it; `small`: 8 completions a step instead of 64, and 16
    tokens.
    """
    from pathlib import Path

    import workbench.tiny
    from workbench.recipe import Recipe

    recipe = Recipe.load(Path(workbench.tiny.__file__).parent / "recipe.yaml")
    content = recipe.model_dump()
    content["policy"] |= {
        key: value for key, value in CASES[case].items() if key != "prompt_tokens"
    }
    # The settings of the schedule stay those of a run of so many steps, in every arm alike.
    content["grpo"] |= {"max_steps": steps, "gradient_checkpointing": False}
    content["eval_every"] = None
    if small:
        content["grpo"] |= {"per_device_train_batch_size": 8, "max_completion_length": 16}
    return Recipe.of(content)


def task_of(case: str, recipe: Any) -> Any:
    """The arithmetic task, with longer prompts where the case asks for them."""
    import dataclasses

    from workbench.tiny.task import task
    from workbench.training.plan.loading import load_tokenizer

    found = task()
    if length := CASES[case].get("prompt_tokens"):
        found = dataclasses.replace(
            found, rows=lengthened(found.rows, load_tokenizer(recipe.policy.name), length)
        )
    return found


def measure(
    case: str,
    rounds: int,
    steps: int,
    small: bool = False,
    arms: Sequence[str] = (*ARMS, CHECKPOINTING),
) -> dict[str, Any]:
    """The arms of one case, in this process; gradient checkpointing in the first case only."""
    from workbench.recipe import Recipe

    recipe = recipe_of(case, DROPPED + steps, small)
    with measuring.empty_home():
        # Which of the two patches the libraries must come first: with the plain backend none does.
        from workbench.training.policy import trainer_classes

        trainer_classes(recipe.policy.backend)
        task = task_of(case, recipe)
        without = Recipe.of({**recipe.model_dump(), "generation": "trl"})

        def run(arm: str) -> Run:
            if arm.startswith(TRL):
                return by_trl(
                    recipe,
                    task,
                    **({"gradient_checkpointing": True} if arm == CHECKPOINTING else {}),
                )
            return by_workbench(without if arm == HOOKS else recipe, task)

        arms = [arm for arm in arms if arm != CHECKPOINTING or case == next(iter(CASES))]
        found = measuring.in_rounds(
            arms, rounds, run, lambda one: f"{statistics.median(one.step_s[DROPPED:]):.3f} s a step"
        )
    return {
        "settings": recipe.grpo,
        "arms": {arm: figures(runs) for arm, runs in found.items()},
        "ratios": {
            name: compared(found[one], found[other])
            for name, one, other in (
                ("TRL / workbench", TRL, WORKBENCH),
                ("A/A of TRL", TRL, f"{TRL} again"),
                ("A/A of the workbench", WORKBENCH, f"{WORKBENCH} again"),
                ("workbench with TRL's generation / TRL", HOOKS, TRL),
                ("TRL with gradient checkpointing / TRL", CHECKPOINTING, TRL),
            )
            if one in found and other in found
        },
        "curves": {arm: _curve(found[TRL][0], runs) for arm, runs in found.items() if arm != TRL},
        "curve_of_trl": found[TRL][0].curve(),
        "hooks_share": max(run.hooks_s / sum(run.step_s) for run in found[WORKBENCH]),
    }


def _curve(first: Run, runs: list[Run]) -> dict[str, Any]:
    # Of all rounds; one that differs tells more than those that do not.
    curves = [same_curve(first, run) for run in runs]
    return next((curve for curve in curves if not curve["equal_to_the_bit"]), curves[0])


def figures(runs: list[Run]) -> dict[str, Any]:
    """Step time of an arm over its rounds, in seconds, and its parts."""
    kept = [run.step_s[DROPPED:] for run in runs]
    generating = [run.generate_s[DROPPED:] for run in runs]
    least, generated = _least(kept), _least(generating)
    return {
        "median_step_s": statistics.median(value for run in kept for value in run),
        "least_step_s": least,
        "least_generate_s": generated,
        "rest_s": least - generated,
        "generated_by": runs[0].generated_by,
        "step_s": kept,
        "generate_s": generating,
    }


def _least(rounds: list[list[float]]) -> float:
    return statistics.mean(min(same_step) for same_step in zip(*rounds, strict=True))


def compared(one: list[Run], other: list[Run]) -> Ratio:
    """How much longer a step of one arm takes: of the least step times, and the range over the
    rounds.
    """
    first, second = ([run.step_s[DROPPED:] for run in runs] for runs in (one, other))
    rounds = [
        statistics.median(left / right for left, right in zip(a, b, strict=True))
        for a, b in zip(first, second, strict=True)
    ]
    return Ratio(_least(first) / _least(second), min(rounds), max(rounds))


def rows_of(cases: dict[str, dict[str, Any]]) -> list[list[str]]:
    """A row for each case and arm."""
    rows = []
    for case, found in cases.items():
        base = found["arms"][TRL]
        for arm, own in found["arms"].items():
            curve = found["curves"].get(arm)
            rows.append(
                [
                    case,
                    arm,
                    f"{own['median_step_s']:.3f}",
                    f"{own['least_step_s']:.3f}",
                    f"{own['least_generate_s']:.3f} + {own['rest_s']:.3f}",
                    f"{base['least_step_s'] / own['least_step_s']:.2f}",
                    "" if curve is None else in_words(curve),
                ]
            )
    return rows


def notes_of(cases: dict[str, dict[str, Any]]) -> list[str]:
    """The noise of each case, and where the workbench's own loop was not what generated."""
    notes = []
    for case, found in cases.items():
        theirs, ours = (
            between(found["ratios"][name]) for name in ("A/A of TRL", "A/A of the workbench")
        )
        notes.append(f"A/A of {case}: TRL {theirs}, workbench {ours}.")
        by = found["arms"][WORKBENCH]["generated_by"]
        if by.get("by") != "workbench":
            notes.append(
                f"In {case} TRL's own path generated for the workbench, too: {by.get('why')}."
            )
    return notes


def in_words(curve: dict[str, Any]) -> str:
    """Whether an arm's learning curve is TRL's."""
    if curve["equal_to_the_bit"]:
        return "equal to the bit"
    largest = curve["largest_difference"]
    first = curve["first_difference_at_step"]
    differences = {"reward": "reward", "loss": "loss", "grad_norm": "gradient norm"}
    by = [f"{name} by {largest[key]:.2g}" for key, name in differences.items()]
    return f"from step {first} on: {', '.join(by)}"


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--steps",
        type=int,
        default=6,
        help="measured steps of a run, after the two that are left out",
    )
    named = f"one of: {'; '.join(CASES)}"
    parser.add_argument(
        "--case",
        choices=CASES,
        action="append",
        metavar="CASE",
        help=f"only this one, or these; {named}",
    )
    parser.add_argument(
        "--measure", choices=CASES, metavar="CASE", help="measure this case here, and print JSON"
    )
    asked = measuring.parse(parser, rounds=1, steps=1)
    if asked.measure:
        # What libraries print is not what is asked for here.
        print(json.dumps(measure(asked.measure, asked.rounds, asked.steps, asked.quick)))
        return
    stamped, cases = measuring.stamp(), {}
    for case in asked.case or CASES:
        measuring.say(case)
        words = ["--measure", case, "--rounds", str(asked.rounds), "--steps", str(asked.steps)]
        cases[case] = measuring.own_process(
            "steps.py", *words, *(["--quick"] if asked.quick else [])
        )
    lines = []
    for case, found in cases.items():
        gain, noise = Ratio(*found["ratios"]["TRL / workbench"]), found["ratios"]["A/A of TRL"]
        lines.append(
            Line(
                f"a training step: {case}",
                f"{gain.of_least:.2f} times as fast",
                "plain TRL",
                between(noise),
            )
        )
        if case == next(iter(CASES)):
            alone = Ratio(*found["ratios"]["workbench with TRL's generation / TRL"])
            figure = f"{alone.of_least:.2f} times the time"
            lines.append(
                Line(f"the same with TRL's generation: {case}", figure, "plain TRL", between(noise))
            )
    header = [
        "case",
        "arm",
        "median, s",
        "least, s",
        "generate + rest, s",
        "TRL takes, times",
        "learning curve against TRL's",
    ]
    more = {"dropped_steps": DROPPED, "cases": cases}
    measuring.save("steps", asked, stamped, lines, (header, rows_of(cases)), more, notes_of(cases))


if __name__ == "__main__":
    sys.exit(main())
