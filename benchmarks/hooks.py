"""What watching costs: self-time inside the workbench's hooks with the panel on, and a redraw by length of history.

    uv run python benchmarks/hooks.py [--steps 200]

A notebook cell trains the embedded policy with the panel, in a real kernel; every second that the recorder, the health
verdicts, the panel and its drawing take is added up by the run itself. Wall time with and without would not tell: two equal
runs differ by more than the hooks cost. Redraws are compared in one process, least of several, in processor time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CELL = """
from workbench.run.recipe import Recipe
from workbench.tiny.task import task
from workbench.train.policy import load_policy
from workbench.train.trainer import train
from workbench.views.live import LivePlot

grpo = dict(max_steps={steps}, num_generations=8, per_device_train_batch_size={batch}, max_completion_length=48,
            learning_rate=1e-3, beta=0.001)
recipe = Recipe.of({{"run_name": "hooks", "grpo": grpo, "policy": {{"load_in_4bit": False}}}})
plot = LivePlot()
run = train(recipe, policy=load_policy("tiny", load_in_4bit=False), task=task(), watchers=[plot])
"""


def watched(steps: int, batch: int) -> dict[str, Any]:
    """One run in a notebook cell: the share of its time that the hooks took, and the size of the cell's output."""
    import nbformat
    from nbclient import NotebookClient

    from workbench.run.directory import RunDirectory

    with tempfile.TemporaryDirectory() as home:
        cell = nbformat.v4.new_code_cell(CELL.format(steps=steps, batch=batch))
        notebook = nbformat.v4.new_notebook(cells=[cell])
        client = NotebookClient(notebook, timeout=1800, kernel_name="python3", extra_arguments=["--log-level=ERROR"])
        client.execute(env={**os.environ, "WORKBENCH_HOME": home})
        run = RunDirectory.open(Path(home) / "runs" / "hooks")
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


def redraws(lengths: tuple[int, ...] = (100, 1_000, 10_000), times: int = 7) -> list[dict[str, Any]]:
    """Cost of one redraw after so many steps, in ms, and its bytes; the first length is measured twice (A/A)."""
    from workbench.run.metrics import weight_of
    from workbench.views.curves import RunFigure
    from workbench.views.history import History

    functions = ["correctness_reward", "format_reward", "length_reward"]
    figures = []
    for length in (lengths[0], *lengths):
        chance, history = random.Random(length), History(functions)
        for step in range(1, length + 1):
            rise = 1 - math.exp(-3 * step / length)
            row = {f"rewards/{name}/mean": rise * chance.random() for name in functions}
            row |= {weight_of(name): 1.0 for name in functions}
            row |= {"reward": 3 * rise, "group_reward_std": chance.random(), "kl": 0.01 * rise, "entropy": 1 - rise / 2}
            row |= {"completions/mean_length": 40.0, "completions/clipped_ratio": 0.1 * chance.random()}
            row |= {
                "groups/mixed": 1 - rise,
                "groups/all_right": rise,
                "groups/all_wrong": 0.0,
                "groups/dead": rise / 2,
            }
            row |= {"time/generate_s": 0.2, "time/reward_s": 0.01, "time/train_s": 0.1, "step_time": 0.31}
            history.add(step, row)
        figures.append((RunFigure("hooks", functions, 0.001, length), history))
    costs: list[list[float]] = [[] for _ in figures]
    for _ in range(times):  # interleaved
        for cost, (figure, history) in zip(costs, figures, strict=True):
            started = time.process_time()
            data = figure.draw(history, "hooks")
            cost.append(1000 * (time.process_time() - started))
            size = len(data)
    found = []
    for length, cost, (figure, history) in zip((lengths[0], *lengths), costs, figures, strict=True):
        size = len(figure.draw(history, "hooks"))
        found.append({"steps": length, "ms": min(cost), "ratio": min(cost) / min(costs[1]), "bytes": size})
    return found


def main() -> None:
    from workbench.run.versions import versions
    from workbench.views.tables import Table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="completions a step")
    asked = parser.parse_args()
    drawn, run = redraws(), watched(asked.steps, asked.batch)
    cells = [[f"{row['steps']} steps", f"{row['ms']:.0f}", f"{row['ratio']:.2f}", row["bytes"]] for row in drawn]
    print(Table(["redraw after", "ms", "against 100 steps", "bytes"], cells))
    print()
    print(Table(["a run with the panel on", ""], [[key, f"{value:.4g}"] for key, value in run.items()]))
    found = {"date": date.today().isoformat(), "versions": versions(), "redraw": drawn, "run": run}
    out = HERE / "results" / "hooks.json"
    out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
