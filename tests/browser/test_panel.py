"""The panel in JupyterLab in a real browser: a run of another process is watched and steered from an idle kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from driving import keep_screenshots, lines, open_notebook, waited_for

SCRIPT = Path(__file__).parents[1] / "running.py"


@pytest.fixture
def other(jupyterlab):
    """A run of 4000 steps in another process."""
    process = subprocess.Popen([sys.executable, str(SCRIPT), "other", "4000", "0.3"])
    try:
        waited_for(lambda: (jupyterlab.home / "runs" / "other" / "metrics.jsonl").is_file())
        yield jupyterlab.home / "runs" / "other"
    finally:
        process.kill()
        process.wait()


def asked(run: Path, action: str) -> dict:
    return waited_for(lambda: next((line for line in lines(run / "control.jsonl") if line["action"] == action), None))


def picture(page) -> str | None:
    return page.evaluate("() => { const i = [...document.querySelectorAll('img.chart')].pop(); return i ? i.src : null; }")


@pytest.mark.slow
def test_a_run_of_another_process_is_watched_and_steered(jupyterlab, page, other):
    cell = nbformat.v4.new_code_cell('from workbench.views.live import RunPanel\nRunPanel("latest")')
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), jupyterlab.folder / "panel.ipynb")
    page.set_viewport_size({"width": 1300, "height": 2200})
    open_notebook(page, jupyterlab, "panel.ipynb")
    page.locator(".workbench-stop").wait_for()

    first = waited_for(lambda: picture(page))
    waited_for(lambda: picture(page) != first)
    output = page.locator(".jp-OutputArea")
    output.filter(has_text="completions, best first").first.wait_for()
    page.screenshot(path=str(jupyterlab.home / "panel.png"))

    # What a model wrote is text.
    waited_for(lambda: "onerror" in output.first.inner_text())
    assert page.evaluate("() => window.hacked") is None
    assert not page.locator(".jp-OutputArea pre img, .jp-OutputArea pre script, .jp-OutputArea mjx-container").count()

    weight = page.locator(".workbench-weight-format_reward input")
    weight.fill("0.25")
    weight.press("Tab")
    page.locator(".workbench-apply-weight-format_reward").click()
    request = asked(other, "weight")
    assert (request["function"], request["value"], request["by"]) == ("format_reward", 0.25, "panel")
    answers = page.locator(".workbench-answers")
    answers.filter(has_text="format x 1 → x 0.25").wait_for()

    page.locator(".workbench-mute-correctness_reward input").check()
    assert asked(other, "mute")["function"] == "correctness_reward"
    page.locator(".workbench-beta input").fill("minus one")
    page.locator(".workbench-apply-beta").click()
    answers.filter(has_text="beta = 'minus one'; give a number from 0 on").wait_for()
    page.locator(".workbench-learning_rate input").fill("2e-6")
    page.locator(".workbench-apply-learning_rate").click()
    assert asked(other, "learning_rate")["value"] == 2e-6

    page.locator(".workbench-pause").click()
    page.locator(".workbench-pause").filter(has_text="Resume").wait_for()
    output.filter(has_text="paused after step").first.wait_for()
    page.screenshot(path=str(jupyterlab.home / "panel-paused.png"))
    page.locator(".workbench-pause").click()
    asked(other, "resume")

    page.locator(".workbench-stop").click()
    assert asked(other, "stop")["by"] == "panel"
    output.filter(has_text="stopped after").first.wait_for()
    waited_for(lambda: not page.locator(".workbench-stop").count())
    page.screenshot(path=str(jupyterlab.home / "panel-stopped.png"))

    # What is saved keeps the last picture and the last group.
    def saved_outputs() -> str | None:
        page.keyboard.press("Control+s")
        page.wait_for_timeout(500)
        return _outputs(jupyterlab.folder / "panel.ipynb", len(lines(other / "metrics.jsonl")))

    saved = waited_for(saved_outputs)
    assert "completions, best first" in saved
    assert len(saved) < 500_000
    keep_screenshots(jupyterlab.home)


def _outputs(file: Path, steps: int) -> str | None:
    # The last picture is of the last step; it comes a moment after the words above it.
    outputs = nbformat.read(file, as_version=4).cells[0].outputs
    pictures = [output.data["text/plain"] for output in outputs if "image/png" in output.get("data", {})]
    last = f"picture of step {steps} of"
    return json.dumps(outputs) if any(last in text for text in pictures) else None


def _changed(page, old: str | None) -> bool:
    for _ in range(200):
        if picture(page) not in (None, old):
            return True
        page.wait_for_timeout(200)
    return False


@pytest.mark.slow
def test_a_panel_survives_the_restart_of_its_kernel(jupyterlab, page, other):
    cell = nbformat.v4.new_code_cell('from workbench.views.live import RunPanel\nRunPanel("other")')
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), jupyterlab.folder / "panel.ipynb")
    open_notebook(page, jupyterlab, "panel.ipynb")
    page.locator(".workbench-stop").wait_for()
    before = len(lines(other / "metrics.jsonl"))

    page.get_by_role("menuitem", name="Kernel", exact=True).first.click()
    page.get_by_text("Restart Kernel and Run All Cells…", exact=True).click()
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    waited_for(lambda: len(lines(other / "metrics.jsonl")) > before + 5)  # the run went on
    old = picture(page)
    for attempt in range(4):
        # "Run all" right after a restart is sometimes swallowed.
        if _changed(page, old):
            break
        assert attempt < 3, "the panel did not come back"
        page.get_by_role("menuitem", name="Run", exact=True).first.click()
        page.get_by_text("Run All Cells", exact=True).click()
    waited_for(lambda: page.locator(".workbench-stop").count() == 1)
    page.locator(".workbench-stop").click()
    assert asked(other, "stop")["by"] == "panel"
