"""Steering a run from the very page whose cell trains it: the panel's buttons in JupyterLab, while the cell is busy."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from driving import keep_screenshots, lines, open_notebook, waited_for

CELLS = [
    """
from workbench.recipe import Recipe
from workbench.tiny.task import task as arithmetic
from workbench.training.policy import load_policy
from workbench.training.trainer import continue_run, train
from workbench.views.live import LivePlot

task = arithmetic(64, 8)
grpo = dict(max_steps=4000, num_generations=4, per_device_train_batch_size=8, max_completion_length=32, learning_rate=1e-3)
policy = load_policy("tiny", load_in_4bit=False)
run = train(Recipe.of({"run_name": "cell", "grpo": grpo, "policy": {"load_in_4bit": False}}),
            policy=policy, task=task, watchers=[LivePlot()])
""",
    'print("after the stop:", run.result()["status"])',
    """
from pathlib import Path
import json
recipe = run.recipe()
recipe.grpo["max_steps"] = run.result()["steps"] + 3  # so that the test need not wait for 4000
recipe.save(run.path / "recipe.yaml")
run = continue_run(run, policy=policy, task=task, watchers=[LivePlot()])
print("after going on:", run.result()["status"], run.result()["steps"])
""",
]


@pytest.mark.slow
def test_buttons_steer_the_cell_that_trains(jupyterlab, page):
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cells = [nbformat.v4.new_code_cell(text.strip()) for text in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), jupyterlab.folder / "cell.ipynb")
    page.set_viewport_size({"width": 1300, "height": 1700})
    open_notebook(page, jupyterlab, "cell.ipynb")
    run = jupyterlab.home / "runs" / "cell"

    def steps() -> int:
        return len(lines(run / "metrics.jsonl"))

    def control(action: str) -> dict | None:
        events = lines(run / "events.jsonl")
        return next((event for event in events if event["event"] == "control" and event["action"] == action), None)

    def asked(action: str) -> bool:
        return any(request["action"] == action for request in lines(run / "control.jsonl"))

    page.locator(".workbench-stop").wait_for()
    waited_for(lambda: steps() >= 3)

    # Another weight: in force at the next step, in the record, and marked on the curve.
    field = page.locator(".workbench-weight-correctness_reward input")
    field.fill("3")
    page.locator(".workbench-apply-weight-correctness_reward").click()
    asked_at = waited_for(lambda: asked("weight") and steps())  # no sooner than it was asked for
    event = waited_for(lambda: control("weight"))
    assert event["applied"]
    assert event["step"] <= asked_at + 2  # it may come just after one step has looked for it, before that step's line is written
    waited_for(lambda: steps() > event["from_step"] + 2)
    weights = {row["step"]: row["rewards/correctness_reward/weight"] for row in lines(run / "metrics.jsonl")}
    assert weights[event["step"]] == 1.0
    assert weights[event["from_step"]] == 3.0
    page.screenshot(path=str(jupyterlab.home / "steered.png"))

    # Stop: within two steps, with a checkpoint, and the next cell runs.
    page.locator(".workbench-stop").click()
    asked_at = waited_for(lambda: asked("stop") and steps())
    waited_for(lambda: "after the stop: stopped" in page.inner_text("body"))
    stopped = next(event for event in lines(run / "events.jsonl") if event["event"] == "stopped")
    assert stopped["by"] == "panel"
    assert stopped["step"] <= asked_at + 2
    assert (run / "checkpoints" / f"checkpoint-{stopped['step']}" / "state.json").is_file()
    picture = page.locator("img.chart").first
    picture.scroll_into_view_if_needed()
    page.screenshot(path=str(jupyterlab.home / "stopped.png"))

    # One call goes on: three steps more, under the weight that was chosen, from where it stood.
    waited_for(lambda: "after going on: finished" in page.inner_text("body"))
    page.screenshot(path=str(jupyterlab.home / "went-on.png"))
    rows = lines(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, stopped["step"] + 4))
    assert {row["rewards/correctness_reward/weight"] for row in rows[-3:]} == {3.0}
    assert [event["event"] for event in lines(run / "events.jsonl")].count("continued") == 1
    keep_screenshots(jupyterlab.home)
    # The saved notebook keeps the pictures, in a bounded space.
    page.keyboard.press("Escape")
    page.keyboard.press("Control+s")
    saved = waited_for(lambda: _outputs(jupyterlab.folder / "cell.ipynb"))
    assert saved < 500_000


def _outputs(file: Path) -> int:
    """Bytes of the first cell's output in the saved notebook; 0 while it has none."""
    outputs = nbformat.read(file, as_version=4).cells[0].get("outputs", [])
    return len(json.dumps(outputs)) if any("image/png" in output.get("data", {}) for output in outputs) else 0
