"""JupyterLab's MathJax, which is really there, finds no formula in anything that shows the text of others."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from driving import keep_screenshots, open_notebook

# The samples of tests/samples.py: every result with a view, the cell that trains, the panel, its buttons and the lab.
CELLS = [
    """import sys
sys.path[:0] = [{tests!r}]
import workbench as wb
from IPython.display import HTML, display
from samples import SAMPLES, hostile_run, lab, live_plot
wb.Recipe  # a name of the face: from here on results show themselves
for kind, sample in SAMPLES.items():
    if not kind.endswith(("RunDirectory", "Replay", "Plan", "MemoryEstimate")):
        display(sample())
running = hostile_run("shown")""",
    "live_plot(running)\nNone",
    "wb.RunPanel(running.run)",
    "lab()",
    "display(HTML('<p id=formula>costs $5 and then $6</p>'))\nHTML('<p id=last>done</p>')",
]


@pytest.mark.slow
def test_no_formula_is_made_of_what_others_wrote(jupyterlab, page):
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cells = [nbformat.v4.new_code_cell(cell.format(tests=str(Path(__file__).parents[1]))) for cell in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), jupyterlab.folder / "text.ipynb")
    open_notebook(page, jupyterlab, "text.ipynb")
    page.locator("#formula mjx-container").wait_for()  # MathJax is at work, and was asked after all that stands above
    page.locator("#last").wait_for()
    page.wait_for_timeout(2000)
    output = page.locator(".jp-OutputArea-output")
    assert not page.locator('[data-mime-type="application/vnd.jupyter.error"]').count(), output.all_inner_texts()
    assert page.locator("mjx-container").count() == page.locator("#formula mjx-container").count() == 1
    assert page.evaluate("() => window.hacked") is None
    shown = "\n".join(output.all_inner_texts())
    assert shown.count("costs $5 and then $6") > 40
    keep_screenshots(jupyterlab.home)
