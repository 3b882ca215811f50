"""What `eval_every` costs, and what the verdict "being learnt out" says of a run that goes on for
too long.

    uv run python benchmarks/held_out.py [--rounds 3] [--cost-steps 50] [--steps 120] [--samples 4]

Cost: the demo's recipe without `eval_every` (twice: A/A) and with `eval_every: 25`, in turns; the
adapters must be equal to the bit. Learnt out: the demo's recipe for longer, measured every ten
steps; where the verdict is first given, the adapter of the checkpoint after it is held against that
of the end, on 200 held-out prompts, by the paired 95 % interval.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import measuring
from measuring import Line

WITHOUT, WITH = "without", "eval_every"
# steps between two measurements: to see where a run is learnt out; as the README has it
EVERY, COST_EVERY = 10, 25


def recipe_of(steps: int, small: bool, **more: Any) -> Any:
    """The demo's recipe, in 16 bits, for so many steps; `small`: 8 completions a step of 16
    tokens.
    """
    import workbench.tiny
    from workbench.recipe import Recipe

    content = Recipe.load(Path(workbench.tiny.__file__).parent / "recipe.yaml").model_dump()
    content["policy"]["load_in_4bit"], content["eval_every"] = False, None
    content["grpo"] |= {"max_steps": steps, "save_steps": EVERY, "save_total_limit": steps}
    if small:
        content["grpo"] |= {"per_device_train_batch_size": 8, "max_completion_length": 16}
        content |= {"eval_prompts": 8}
    return Recipe.of(content | more)


def cost(rounds: int, steps: int, every: int = COST_EVERY, small: bool = False) -> dict[str, Any]:
    """Seconds of a run without and with `eval_every`, and the share that the run itself
    recorded.
    """
    from workbench.training.trainer import train

    def run(arm: str) -> dict[str, Any]:
        done = train(
            recipe_of(steps, small, **({"eval_every": every} if arm == WITH else {})), watchers=[]
        )
        found = done.result()
        adapter = hashlib.sha256(
            (done.final / "adapter_model.safetensors").read_bytes()
        ).hexdigest()
        return {
            "seconds": 60 * found["minutes"],
            "adapter": adapter,
            "held_out": found.get("held_out"),
        }

    run(WITHOUT)  # a process's first run is its fastest, and would be the least of its arm
    found = measuring.in_rounds(
        [WITHOUT, f"{WITHOUT} again", WITH], rounds, run, lambda one: f"{one['seconds']:.1f} s"
    )
    seconds = {arm: [one["seconds"] for one in runs] for arm, runs in found.items()}
    own = found[WITH][0]["held_out"]
    return {
        "every": every,
        "completions_measured": own["measurements"] * own["prompts"],
        "completions_trained": steps * recipe_of(steps, small).grpo["per_device_train_batch_size"],
        "seconds": seconds,
        "ratio": measuring.ratio(seconds[WITH], seconds[WITHOUT]),
        "noise": measuring.ratio(seconds[f"{WITHOUT} again"], seconds[WITHOUT]),
        "share_recorded": [one["held_out"]["share"] for one in found[WITH]],
        "adapters_equal": len({one["adapter"] for runs in found.values() for one in runs}) == 1,
    }  # fmt: skip


def learnt(
    steps: int, samples: int, prompts: int = 200, every: int = EVERY, small: bool = False
) -> dict[str, Any]:
    """A run that goes on: where the verdict is given, and what the adapter of the end has over that
    of the stop.
    """
    from workbench.inspection.evaluation import evaluate
    from workbench.inspection.statistics import paired_difference
    from workbench.run.held_out import held_out
    from workbench.training.trainer import train

    run = train(recipe_of(steps, small, run_name="learnt-out", eval_every=every), watchers=[])
    told = [
        event
        for event in run.events()
        if event["event"] == "health" and event["name"] == "learnt_out"
    ]
    names = ("step", "correct", "low", "high")
    found: dict[str, Any] = {
        "steps": steps,
        "curve": [{name: own[name] for name in names} for own in held_out(run.events())],
    }
    found |= {
        "result": run.result()["held_out"],
        "minutes": run.result()["minutes"],
        "told": bool(told),
    }
    stop = min(steps, -(-(told[0]["step"] if told else steps) // EVERY) * EVERY)
    measured = evaluate(
        run, held_out=prompts, samples=samples, checkpoints=[stop] if stop < steps else []
    )
    found["evaluation"] = {name: measured.found[name] for name in ("before", "after", "gain")}
    if told:
        after = [row["step_time"] for row in run.metrics() if row["step"] > stop]
        found |= {
            "told_at": told[0]["step"],
            "said": told[0]["line"],
            "stop": stop,
            "minutes_after": sum(after) / 60,
        }
        if stop < steps:
            lost = paired_difference(measured.curve[stop].correct, measured.after.correct)
            found["lost_by_stopping"] = dict(zip(("correct", "low", "high"), lost, strict=True))
            found["at_the_stop"] = measured.curve[stop].shares()["correct"]
    return found


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cost-steps", type=int, default=50, help="of a run whose time is taken")
    parser.add_argument(
        "--steps", type=int, default=120, help="of the run that goes on for too long"
    )
    parser.add_argument(
        "--samples", type=int, default=4, help="completions of each of 200 held-out prompts"
    )
    asked = measuring.parse(parser, rounds=1, cost_steps=2, steps=2, samples=1)
    stamped = measuring.stamp()
    with measuring.empty_home():
        price = cost(asked.rounds, asked.cost_steps, 1 if asked.quick else COST_EVERY, asked.quick)
        late = learnt(
            asked.steps,
            asked.samples,
            4 if asked.quick else 200,
            1 if asked.quick else EVERY,
            asked.quick,
        )
    percent = [f"{100 * (end - 1):+.1f} %" for end in price["ratio"]]
    lines = [
        Line(
            f"eval_every: {price['every']}, a run of {asked.cost_steps} steps",
            percent[0],
            "without",
            measuring.between(price["noise"]),
        )
    ]
    rows = [
        ["cost of eval_every, of the least", percent[0]],
        ["by round", f"{percent[1]} to {percent[2]}"],
        ["share of the time that the run recorded", f"{100 * max(price['share_recorded']):.1f} %"],
        [
            "completions measured, trained",
            f"{price['completions_measured']}, {price['completions_trained']}",
        ],
        ["adapters equal to the bit", price["adapters_equal"]],
        ["learnt out is said at step", late.get("told_at", f"not in {asked.steps} steps")],
    ]
    if "lost_by_stopping" in late:
        lost = {name: f"{100 * value:+.1f}" for name, value in late["lost_by_stopping"].items()}
        words = f"{lost['correct']} points ({lost['low']} to {lost['high']})"
        rows.append(
            [
                (
                    f"bought by the {asked.steps - late['stop']} steps ({late['minutes_after']:.1f}"
                    f" min) after step {late['stop']}"
                ),
                words,
            ]
        )
        lines.append(
            Line(
                f'steps after "learnt out" (step {late["told_at"]} of {asked.steps})',
                words,
                "stopping there",
                "paired 95 % interval",
            )
        )
    measuring.save(
        "held_out",
        asked,
        stamped,
        lines,
        (["what", "figure"], rows),
        {"cost": price, "learnt_out": late},
    )


if __name__ == "__main__":
    sys.exit(main())
