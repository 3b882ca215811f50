"""A training cell in JupyterLab in a real browser: its figure grows while it runs, and is never old on a busy machine."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from driving import keep_screenshots, lines, open_notebook, waited_for

from workbench.base.notebook import notebooks_folder, with_parameters
from workbench.views.run_view import oldest_s

STEPS = 20


@pytest.mark.slow
def test_the_figure_grows_while_the_cell_runs(jupyterlab, page):
    home = jupyterlab.home
    source = nbformat.read(notebooks_folder() / "03_train.ipynb", as_version=4)
    nbformat.write(
        with_parameters(source, {"max_steps": STEPS, "run_name": "browser", "per_device_train_batch_size": 32}, "03"),
        jupyterlab.folder / "03_train.ipynb",
    )
    task = home / "tasks" / "arithmetic" / "task.py"
    task.parent.mkdir(parents=True)
    task.write_text("from workbench.tiny.task import task as arithmetic\ntask = arithmetic(200, 20)\n")
    open_notebook(page, jupyterlab, "03_train.ipynb")
    pictures = _watch(page, home)
    page.screenshot(path=str(home / "after.png"))
    keep_screenshots(home)
    assert len(pictures) >= 2, f"the figure changed {len(pictures)} times while {STEPS} steps ran"


def _watch(page, home) -> list[str]:
    """The different pictures that the figure showed, until the run is over.

    Whether it is, its folder says: the line above the figure is in the page only while the figure is in view, and on a busy
    machine the next cell may draw something else before anybody looked.
    """
    seen: list[str] = []
    events = home / "runs" / "browser" / "events.jsonl"

    def over() -> bool:
        finished = any(event["event"] == "finished" for event in lines(events))
        source = page.evaluate(
            "() => { const i = [...document.querySelectorAll('img.chart')].pop();"
            " if (i) i.scrollIntoView({block: 'center'}); return i ? i.src : null; }"
        )
        if source and source not in seen:
            seen.append(source)
            page.screenshot(path=str(home / f"figure-{len(seen)}.png"))
        return finished

    try:
        waited_for(over, 800)
    except AssertionError:
        page.screenshot(path=str(home / "stuck.png"))
        keep_screenshots(home)
        told, text = lines(events)[-3:], page.evaluate("document.querySelector('.jp-Notebook').innerText")
        pytest.fail(f"the run is not over, its last events: {told}; the notebook in view: {text[-1500:]!r}")
    return seen


# -- how old is what is seen -------------------------------------------------------------------------------------------

# A run without training in a cell, 30 steps of a second or more, which notes when each picture left the kernel, and how
# old the latest one was when each step was over.
CELL = """
import base64, hashlib, json, sys, time
sys.path.insert(0, {tests!r})
from running import Running
from workbench.views.live import LivePlot

running, plot, told = Running("busy", 30), LivePlot(), open({told!r}, "a", buffering=1)

def tell(**what):
    print(json.dumps({{"at": time.monotonic(), **what}}), file=told)

class Told:
    def begin(self, *_): pass
    def end(self, *_): pass
    def update(self, step, values):
        tell(step=step, age=time.monotonic() - plot.drawn_at, elapsed=time.monotonic() - plot.started)

plot.begin(running.run, 30, {{"beta": 0.01}})
picture = plot.places["picture"]
update = picture.update
def shown(bundle, **options):
    update(bundle, **options)
    tell(picture=hashlib.sha1(base64.b64decode(bundle["image/png"])).hexdigest())
picture.update = shown
running.recorder.watchers += [plot, Told()]
for _ in range(30):
    running.step(1.0)
plot.end("finished after 30 steps")
"""
SEEN = """() => {
  const image = [...document.querySelectorAll('img.chart')].pop();
  const step = [...document.body.innerText.matchAll(/busy: step (\\d+) of/g)].pop();
  const group = [...document.body.innerText.matchAll(/step (\\d+), group/g)].pop();
  return [image ? image.src.split(',')[1] : '', step ? +step[1] : 0, group ? +group[1] : 0,
          document.body.innerText.includes('busy: finished after')];
}"""
DELIVERY_S = 5.0  # from the kernel to the page, on a machine whose cores are all taken


@pytest.fixture
def busy():
    """A machine with every core taken."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 2)]
    yield
    for burner in burners:
        burner.kill()
        burner.wait()


@pytest.mark.timing
def test_on_a_busy_machine_what_is_seen_is_young(jupyterlab, page, busy):
    told = jupyterlab.home / "told.jsonl"
    cell = nbformat.v4.new_code_cell(CELL.format(tests=str(Path(__file__).parents[1]), told=str(told)).strip())
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), jupyterlab.folder / "busy.ipynb")
    open_notebook(page, jupyterlab, "busy.ipynb")
    seen, deadline, over = [], time.monotonic() + 400, False
    while not over and time.monotonic() < deadline:
        picture, step, group, over = page.evaluate(SEEN)
        seen.append((time.monotonic(), hashlib.sha1(base64.b64decode(picture)).hexdigest(), step, group))
        page.wait_for_timeout(200)
    page.screenshot(path=str(jupyterlab.home / "busy.png"))
    keep_screenshots(jupyterlab.home)
    assert over, "the run did not end"
    steps = [line for line in lines(told) if "step" in line]
    published = [(line["at"], line["picture"]) for line in lines(told) if "picture" in line]

    # What left the kernel: at the end of each step no picture is older than it may be, but for the words that follow it.
    ages = [(line["step"], line["age"]) for line in steps if line["age"] > oldest_s(line["elapsed"]) + 1.0]
    assert not ages, f"pictures too old at the end of these steps: {ages}"
    # What is seen: the page is never behind by more than the delivery, whatever the machine does otherwise.
    for at, picture, step, group in seen:
        must = [name for when, name in published if when <= at - DELIVERY_S][-1:]
        may = {name for when, name in published if when > at - DELIVERY_S}
        assert not must or picture in {*must, *may}, f"a picture older than the {len(published) - len(may)}th is seen"
        over_by_then = max((line["step"] for line in steps if line["at"] <= at - DELIVERY_S), default=0)
        if step:  # else it says how the run ended
            assert min(step, group) >= over_by_then
