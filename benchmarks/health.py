"""What the health verdicts say of ten healthy runs, at every step, and of one run of each illness.

    uv run python benchmarks/health.py [--healthy 10] [--steps 45]

A healthy run is the demo's recipe with another seed, and in 32 bits, which a CPU computes fastest;
the ill ones are those of the tests (`tests/ill_runs.py`). A false alarm is an alarm or a warning on
a healthy run at any of its steps.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import measuring
from measuring import Line

sys.path.insert(0, str(measuring.HERE.parent / "tests"))


def healthy(fresh: Any, seed: int, steps: int, **grpo: Any) -> dict[str, Any]:
    """One run of the demo's recipe: its verdicts at the end, what was raised on the way, and what
    looking cost.

    Args:
        grpo: settings over the recipe's.
    """
    import workbench.tiny
    from workbench.health import config_of, diagnose, worsened
    from workbench.health.summary import summaries_of
    from workbench.recipe import Recipe
    from workbench.run.held_out import held_out
    from workbench.tiny.task import task as arithmetic
    from workbench.training.trainer import train

    recipe = Recipe.load(Path(workbench.tiny.__file__).parent / "recipe.yaml")
    changes = {
        "run_name": f"healthy-{seed}",
        "seed": seed,
        "grpo": {**recipe.grpo, "max_steps": steps, **grpo},
    }
    task = arithmetic()
    run = train(recipe.model_copy(update=changes), policy=fresh(), task=task)
    summaries, rows, config, measured = (
        summaries_of(run),
        run.metrics(),
        config_of(run),
        held_out(run.events()),
    )
    raised, found, costs = [], [], []
    for step in range(1, len(summaries) + 1):
        before, started = found, time.process_time()
        found = diagnose(
            summaries[:step], rows[:step], config, [own for own in measured if own["step"] <= step]
        )
        costs.append(time.process_time() - started)
        raised += [f"step {step}: {verdict}" for verdict in worsened(before, found)]
    return {
        "seed": seed,
        "right": [sum(own.right for own in end) / sum(own.completions for own in end) for end in (summaries[:5], summaries[-5:])],  # noqa: E501
        "reward": [rows[0]["reward"], rows[-1]["reward"]],
        "states": dict(Counter(verdict.state for verdict in found)),
        "raised": raised,
        "notes": [str(verdict) for verdict in found if verdict.state == "note"],
        "diagnose_ms": 1000 * sorted(costs)[len(costs) // 2],
    }  # fmt: skip


def ill(fresh: Any, name: str) -> dict[str, Any]:
    """One run that is ill: what is said of its illness, and of what else."""
    from ill_runs import RUNS, run_ill

    from workbench.health import examine_run

    asked = RUNS[name]
    run, _ = run_ill(asked, fresh(), name.replace(" ", "-"))
    found = examine_run(run)
    own = next(verdict for verdict in found if verdict.name == asked.verdict)
    return {
        "illness": asked.verdict,
        "state": own.state,
        "named": own.state in asked.states,
        "line": own.line,
        "steps": len(run.metrics()),
        "also": [f"{each.state}: {each.name}" for each in found if each.state in ("alarm",
        "warning") and each is not own],
    }  # fmt: skip


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--healthy", type=int, default=10)
    parser.add_argument("--steps", type=int, default=45)
    parser.add_argument("--ill", type=int, help="only so many of the ill runs")
    asked = measuring.parse(parser, healthy=1, steps=2, ill=1)
    stamped = measuring.stamp()
    with measuring.empty_home():
        from ill_runs import RUNS, Fresh

        quiet = io.StringIO()
        with contextlib.redirect_stdout(quiet):
            fresh = Fresh()
        started, well, sick = time.perf_counter(), [], {}
        for seed in range(asked.healthy):
            with contextlib.redirect_stdout(quiet):
                well.append(healthy(fresh, seed, asked.steps))
            one = well[-1]
            measuring.say(
                f"healthy, seed {seed}: right {one['right'][0]:.0%} -> {one['right'][1]:.0%},"
                f" {len(one['raised'])} alarms or warnings in {asked.steps} steps; at the end"
                f" {one['states']}"
            )
        for name in list(RUNS)[: asked.ill]:
            with contextlib.redirect_stdout(quiet):
                sick[name] = ill(fresh, name)
            one = sick[name]
            measuring.say(
                f"{name:22} {'named' if one['named'] else 'MISSED'}  {one['state']}: {one['line']}"
            )
    found = {
        "healthy_runs": len(well),
        "steps": asked.steps,
        "false_alarms": sum(len(one["raised"]) for one in well),
        "looks": asked.steps * len(well),
        "ill_runs": len(sick),
        "named": sum(one["named"] for one in sick.values()),
        "seconds": time.perf_counter() - started,
        "healthy": well,
        "ill": sick,
    }
    lines = [
        Line(
            "health verdicts: false alarms",
            str(found["false_alarms"]),
            f"{found['looks']} looks at healthy runs",
            "none",
        ),
        Line(
            "health verdicts: ill runs named", str(found["named"]), f"{len(sick)} ill runs", "none"
        ),
    ]
    rows = [
        [name, one["illness"], one["state"], "yes" if one["named"] else "NO"]
        for name, one in sick.items()
    ]
    looks = [one["diagnose_ms"] for one in well]
    note = (
        f"One look at a healthy run takes {min(looks):.1f} to {max(looks):.1f} ms (median of its"
        " steps)."
    )
    measuring.save(
        "health",
        asked,
        stamped,
        lines,
        (["ill run", "verdict", "state", "named"], rows),
        found,
        [note],
    )


if __name__ == "__main__":
    main()
