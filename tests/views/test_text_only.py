"""Whatever shows itself in a cell shows the text of others as text: no formula, no markup, nothing hidden or obeyed.

The results with a view are in test_display.py; here are the cells of a run, the lab, and the list of all that there is.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest
from hostile import formulas, obeyed
from samples import EVIL, hostile_run, lab, live_plot

import workbench.views
from workbench.base import progress
from workbench.views import figure
from workbench.views.controls import Controls
from workbench.views.live import RunPanel

PACKAGE = Path(workbench.__file__).parent
# or in another test
SHOWN_HERE = {"Table", "View", "Picture", "RunCurves", "Lab", "Controls", "RunPanel", "Chat", "Browser"}
MAKE_HTML = {
    "views/display.py",
    "commands/reporting.py",
    "views/figure.py",
    "base/progress.py",
    "views/controls.py",
    "views/lab.py",
    "views/live.py",
    "views/browser.py",
}


@pytest.fixture
def cell(monkeypatch):
    """All that is displayed: bundles, the latest last."""
    seen: list = []

    class Handle:
        def update(self, bundle, raw=False):
            seen.append(bundle)

    def display(shown, **options):
        seen.append(shown if isinstance(shown, dict) else shown._repr_mimebundle_())
        return Handle() if options.get("display_id") else None

    monkeypatch.setattr("IPython.display.display", display)
    return seen


def check(bundle) -> str:
    """That a bundle shows text only; returns its texts."""
    texts = [bundle.get("text/html", ""), bundle.get("text/plain", "")]
    assert not re.search(r"<script|<img src=x", texts[0])
    assert not formulas(texts[0])
    for text in texts:
        assert obeyed(text) == []
        text.encode()
    return "\n".join(texts)


def test_the_cell_that_trains(home, cell):
    running = hostile_run()
    live_plot(running)
    running.finish()
    shown = "\n".join(map(check, cell))
    assert shown.count("costs $5 and then $6") > 6
    assert "\\ud800" in shown


def test_the_panel_and_its_buttons(home, cell, monkeypatch):
    monkeypatch.setattr("workbench.views.live._OPEN", {})
    running = hostile_run()
    panel = RunPanel(running.run)
    panel._ipython_display_()
    panel.look()
    buttons = Controls(running.run)
    buttons.answered({"event": "control", "action": "weight", "by": EVIL, "applied": False, "function": EVIL, "why": EVIL})
    cell.append(buttons._repr_mimebundle_())
    running.finish()
    assert "costs $5 and then $6" in "\n".join(map(check, cell))
    check_widgets(buttons.widget, "costs $5 and then $6")


def test_the_lab(home):
    opened = lab()
    try:
        shown = check(opened._repr_mimebundle_())
        assert shown.count("costs $5 and then $6") > 10
        check_widgets(opened.widget, "costs $5 and then $6")
    finally:
        opened.close()


def check_widgets(root, wanted: str) -> None:
    # A Textarea's value is what was typed; ipywidgets typesets descriptions, and no value of an HTML.
    values, widgets = [], [root]
    for widget in widgets:  # grows as it goes
        widgets += getattr(widget, "children", ())
        state = {} if type(widget).__name__ == "Textarea" else widget.get_state()
        assert not re.search(r"\$|\\\(", str(state.get("description", "")))
        for text in (state.get("value"), *(state.get("_options_labels") or ())):
            if isinstance(text, str):
                assert obeyed(text) == []
                text.encode()
                values.append(text)
    assert wanted in "\n".join(values)


def test_a_progress_bar(cell, monkeypatch):
    monkeypatch.setattr("IPython.get_ipython", lambda: type("Shell", (), {"kernel": True})())
    progress.progress_line("difficulty")(1, 2)
    progress.count_line("rows")(3)
    assert "difficulty: 1 of 2" in check(cell[0])


def test_a_figure_shows_dollars_and_no_formula():
    drawn, axis = figure.new_figure(9, 3)
    figure.stacked_bars(axis, [EVIL, r"costs \$5 $"], [(EVIL, np.array([1.0, -1.0])), (r"$\frac$", np.array([1.0, 1.0]))])
    figure.with_legend(drawn, axis, title=r"$\frac$ and $x^$")
    assert figure.png(drawn).startswith(b"\x89PNG")
    shown = [text.get_text() for text in axis.get_yticklabels()]
    assert [obeyed(text) for text in shown] == [[], []]
    assert all(text._preprocess_math(text.get_text())[1] is False for text in axis.get_yticklabels())
    assert axis.get_yticklabels()[1]._preprocess_math(shown[1])[0] == r"costs \$5 $"


def test_nothing_else_shows_itself():
    """A new view belongs in VIEWS (so in samples.py) or in a test here."""
    shows = set()
    for found in pkgutil.iter_modules(workbench.views.__path__, "workbench.views."):
        for kind in vars(importlib.import_module(found.name)).values():
            own = ("_repr_html_", "_repr_mimebundle_", "_repr_markdown_", "_repr_latex_", "_ipython_display_")
            if isinstance(kind, type) and kind.__module__ == found.name and any(each in vars(kind) for each in own):
                shows.add(kind.__name__)
    assert shows == SHOWN_HERE
    made, elsewhere = set(), set()
    for file in sorted(PACKAGE.rglob("*.py")):
        name = str(file.relative_to(PACKAGE))
        tree = ast.walk(ast.parse(file.read_text()))
        told = {node.value if isinstance(node, ast.Constant) else getattr(node, "name", None) for node in tree} & {
            "text/html", "text/markdown", "text/latex", "_repr_html_", "_repr_markdown_", "_repr_latex_"
        }  # fmt: skip
        if "text/html" in told:
            made.add(name)
        elif told:
            elsewhere.add(name)
    assert made == MAKE_HTML
    assert elsewhere == {"views/tables.py", "views/chat.py"}  # the latter is a Table
