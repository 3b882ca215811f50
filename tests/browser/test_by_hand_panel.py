"""A rollout played by hand in JupyterLab in a real browser: what is typed is called, and what a tool answers is shown as text."""

from __future__ import annotations

import nbformat
import pytest
from driving import keep_screenshots, open_notebook
from playwright.sync_api import expect

HOSTILE = "<img src=x onerror='window.hacked=1'> $x^2$"
CELL = f"""
import workbench as wb

class Guess:
    def reset(self, seed=0, **row):
        self.secret, self.won = seed % 10 + 1, False

    def guess(self, number: int) -> str:
        '''Guess it.'''
        self.won = number == self.secret
        return "right" if self.won else {HOSTILE!r}

    def get_reward(self):
        return float(self.won)

rows = [{{"prompt": [{{"role": "user", "content": "From 1 to 10."}}]}}]
wb.inspection.ByHand(wb.Task("g", rows, [], environment=Guess), seed=6)
"""


@pytest.mark.slow
def test_a_game_is_played_with_the_panel(jupyterlab, page):
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cells = [nbformat.v4.new_code_cell(CELL)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), jupyterlab.folder / "by_hand.ipynb")
    open_notebook(page, jupyterlab, "by_hand.ipynb")
    seen, send = page.locator(".workbench-seen"), page.locator("button.workbench-send")
    number = page.locator(".workbench-argument-number input")
    for place, guessed in enumerate((5, 7)):
        number.fill(str(guessed))
        send.click()
        expect(seen).to_contain_text(f"{2 * place + 2} tool", timeout=60_000)
    assert HOSTILE in seen.inner_text()
    assert page.evaluate("() => window.hacked") is None
    assert not seen.locator("img, script, .MathJax, mjx-container").count()
    page.locator(".workbench-text textarea").fill("It is 7.")
    page.locator(".workbench-tool select").select_option(index=1)
    expect(number).to_have_count(0)
    send.click()
    expect(seen).to_contain_text("total", timeout=60_000)
    expect(send).to_be_disabled()
    page.screenshot(path=str(jupyterlab.home / "by_hand.png"))
    page.locator("button.workbench-again").click()
    expect(seen).not_to_contain_text("tool", timeout=60_000)
    keep_screenshots(jupyterlab.home)
