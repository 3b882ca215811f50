"""Notebook 03 in JupyterLab in a real browser: it runs, and its figure grows while it does."""

from __future__ import annotations

import time

import nbformat
import pytest
from driving import keep_screenshots, open_notebook

from workbench.demo import notebooks_folder, with_parameters

# Drawing may take 2 % of the time, so a figure that is to be seen growing needs a run of some length.
STEPS = 20


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
    """The different pictures that the figure showed, until training says that it is finished."""
    seen: list[str] = []
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        source = page.evaluate(
            "() => { const i = [...document.querySelectorAll('.jp-RenderedImage img')].pop();"
            " if (i) i.scrollIntoView({block: 'center'}); return i ? i.src : null; }"
        )
        if source and source not in seen:
            seen.append(source)
            page.screenshot(path=str(home / f"figure-{len(seen)}.png"))
        # The line above the figure, which is in view: JupyterLab takes cells that are far from it out of the page.
        if page.evaluate("() => /browser: finished after \\d+ steps/.test(document.body.innerText)"):
            return seen
        page.wait_for_timeout(300)
    pytest.fail(f"training did not finish; {len(seen)} pictures were seen")
