"""The lab in JupyterLab in a real browser: what is typed is scored, and a saved task file is loaded again."""

from __future__ import annotations

import nbformat
import pytest
from driving import keep_screenshots, open_notebook

TASK = """
from workbench.task import Task
from workbench.rewards.library import correctness_reward

rows = [{"prompt": [{"role": "system", "content": "Answer as <answer>\\n[answer]\\n</answer>"},
                    {"role": "user", "content": "What is 15 + 27?"}], "answer": "42"}]

def bonus_reward(completions, **kwargs):
    return [0.25 for completion in completions]

task = Task("mine", rows, [correctness_reward, bonus_reward])
"""
HOSTILE = "<img src=x onerror='window.hacked=1'> <script>window.hacked=1</script> $x^2$ \\(y\\) <answer>42</answer>"


@pytest.mark.slow
def test_typing_and_saving_change_the_scores(jupyterlab, page):
    file = jupyterlab.home / "task.py"
    file.write_text(TASK)
    cell = nbformat.v4.new_code_cell(f"from workbench.views.lab import Lab\nLab({str(file)!r})")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), jupyterlab.folder / "lab.ipynb")
    page.set_viewport_size({"width": 1300, "height": 2400})
    open_notebook(page, jupyterlab, "lab.ipynb")

    box, seen = page.locator(".workbench-completion-1 textarea"), page.locator(".workbench-seen-1")
    box.wait_for()
    says(page, seen, "correctness 0, bonus 0.25")  # a wrong answer, to begin with

    box.fill("")
    box.press_sequentially("<answer>42</answer>")
    says(page, seen, "total 2.25")
    assert seen.locator("mark").inner_text() == "42"

    box.fill(HOSTILE)
    says(page, seen, "onerror", "total 2.25")
    assert page.evaluate("() => window.hacked") is None
    assert HOSTILE in seen.inner_text()
    assert not seen.locator("img, script, .MathJax, mjx-container").count()

    file.write_text(TASK.replace("0.25", "0.5"))
    says(page, seen, "total 2.5")
    assert box.input_value() == HOSTILE  # what was typed is still there

    file.write_text(TASK.replace("return [0.25", "return [[0.25"))
    says(page, page.locator(".jp-OutputArea"), "SyntaxError")
    says(page, seen, "total 2.5")  # the last good task goes on
    page.screenshot(path=str(jupyterlab.home / "lab.png"))
    file.write_text(TASK.replace("0.25", "0.75"))
    says(page, seen, "total 2.75")
    says(page, page.locator(".jp-OutputArea"), "the best reward hack", "What reward hacks earn")
    keep_screenshots(jupyterlab.home)


def says(page, place, *texts: str) -> None:
    """Wait until a part of the page shows these texts."""
    for text in texts:
        place.filter(has_text=text).first.wait_for()
