"""What watching costs: self-time inside the workbench's hooks with the panel on, and a redraw by
length of history.

    uv run python benchmarks/hooks.py [--steps 200] [--batch 8 64]

A notebook cell trains the embedded policy with the panel, in a real kernel; every second that the
recorder, the health verdicts, the panel and its drawing take is added up by the run itself. Wall
time with and without would not tell: two equal runs differ by more than the hooks cost. Redraws are
compared in one process, least of several, in processor time.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring
from made_records import metrics_row
from measuring import Line

CELL = """
from workbench.recipe import Recipe
from workbench.tiny.task import task
from workbench.training.policy import load_policy
from workbench.training.trainer import train
from workbench.views.live import LivePlot

grpo = dict(max_steps={steps}, num_generations=8, per_device_train_batch_size={batch}, max_completion_length=48,
            learning_rate=1e-3, beta=0.001)
recipe = Recipe.of({{"run_name": "hooks", "grpo": grpo, "policy": {{"load_in_4bit": False}}}})
plot = LivePlot()
run = train(recipe, policy=load_policy("tiny", load_in_4bit=False), task=task(), watchers=[plot])
"""  # noqa: E501


def watched(steps: int, batch: int) -> dict[str, Any]:
    """One run in a notebook cell: the share of its time that the hooks took, and the size of the
    cell's output.
    """
    import nbformat
    from nbclient import NotebookClient

    from workbench.run.directory import open_run

    with tempfile.TemporaryDirectory() as home:
        cell = nbformat.v4.new_code_cell(CELL.format(steps=steps, batch=batch))
        notebook = nbformat.v4.new_notebook(cells=[cell])
        client = NotebookClient(
            notebook, timeout=1800, kernel_name="python3", extra_arguments=["--log-level=ERROR"]
        )
        client.execute(env={**os.environ, "WORKBENCH_HOME": home})
        run = open_run(Path(home) / "runs" / "hooks")
        result, rows = run.result(), run.metrics()
    seconds = 60 * result["minutes"]
    return {
        "steps": steps,
        "completions_a_step": batch,
        "step_s_median": statistics.median(row["step_time"] for row in rows),
        "run_s": seconds,
        "hooks_share": result["hooks_share"],
        "drawing_share": result["drawing_s"] / seconds,
        "recording_ms_a_step": 1000 * (result["hooks_s"] - result["drawing_s"]) / steps,
        "output_bytes": len(json.dumps(cell["outputs"])),
    }


def redraws(
    lengths: tuple[int, ...] = (100, 1_000, 10_000), times: int = 7
) -> list[dict[str, Any]]:
    """Cost of one redraw after so many steps, in ms, and its bytes; the first length is measured
    twice (A/A).
    """
    from workbench.views.curves import RunFigure
    from workbench.views.history import History

    functions = ["correctness_reward", "format_reward", "length_reward"]
    figures = []
    for length in (lengths[0], *lengths):
        chance, history = random.Random(length), History(dict.fromkeys(functions, 1.0))
        for step in range(1, length + 1):
            history.add(step, metrics_row(step, length, functions, chance))
        figures.append((RunFigure("hooks", 0.001), history))
    costs: list[list[float]] = [[] for _ in figures]
    for _ in range(times):  # interleaved
        for cost, (figure, history) in zip(costs, figures, strict=True):
            started = time.process_time()
            figure.draw(history, "hooks")
            cost.append(1000 * (time.process_time() - started))
    found = []
    for length, cost, (figure, history) in zip((lengths[0], *lengths), costs, figures, strict=True):
        size = len(figure.draw(history, "hooks"))
        found.append(
            {
                "steps": length,
                "ms": min(cost),
                "ratio": min(cost) / min(costs[1]),
                "bytes": size,
                "each_ms": cost,
            }
        )
    return found


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 64], help="completions a step")
    parser.add_argument("--redraws", type=int, default=7, help="of each length of history")
    asked = measuring.parse(parser, steps=3, batch=[8], redraws=1)
    stamped = measuring.stamp()
    drawn = redraws(times=asked.redraws)
    runs = [[watched(asked.steps, batch) for _ in range(2)] for batch in asked.batch]
    noise = measuring.ratio(drawn[0]["each_ms"], drawn[1]["each_ms"])
    rows = [
        [f"{row['steps']:,} steps", f"{row['ms']:.0f}", f"{row['ratio']:.2f}", f"{row['bytes']:,}"]
        for row in drawn
    ]
    rows[0][0] += " (A/A)"
    lines = [
        Line(
            f"hooks, panel on, {run['completions_a_step']} completions",
            f"{100 * run['hooks_share']:.1f} % of steps of {run['step_s_median']:.2f} s",
            "the run's own time",
            f"{run['hooks_share'] / again['hooks_share']:.2f} (two runs, self-time)",
        )
        for run, again in runs
    ]
    lines.append(
        Line(
            f"a redraw after {drawn[-1]['steps']:,} steps",
            f"{drawn[-1]['ms']:.0f} ms, {drawn[-1]['ratio']:.2f} times",
            f"after {drawn[1]['steps']} steps",
            measuring.between(noise),
        )
    )
    notes = [
        f"A run of {run['steps']} steps of {run['step_s_median']:.2f} s (median;"
        f" {run['completions_a_step']} completions each): the hooks took"
        f" {100 * run['hooks_share']:.1f} % of its {run['run_s']:.0f} s"
        f" ({100 * again['hooks_share']:.1f} % in the same run again),"
        f" {100 * run['drawing_share']:.1f} % of it drawing; the rest is"
        f" {run['recording_ms_a_step']:.1f} ms a step. The cell's output is"
        f" {run['output_bytes'] / 1000:.0f} kB when it ends."
        for run, again in runs
    ]
    header = ["redraw after", "ms", "against 100 steps", "bytes"]
    measuring.save(
        "hooks",
        asked,
        stamped,
        lines,
        (header, rows),
        {"redraw": drawn, "runs": runs},
        notes,
    )


if __name__ == "__main__":
    main()
