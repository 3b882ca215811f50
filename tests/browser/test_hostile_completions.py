"""500 hostile completions in a real browser: in widget, tables and report nothing runs, nobody is asked, all is text."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from driving import open_notebook, waited_for

sys.path.insert(0, str(Path(__file__).parents[1] / "inspection"))

from planted import evaluation, kept, planted, rows

from workbench import inspection
from workbench.base.printable import printable
from workbench.views.inspection import listing_table
from workbench.views.tables import one_line

PAYLOADS = (
    "<script>window.hacked={n}</script>",
    "<img src=http://e.vil/{n} onerror=window.hacked={n}>",
    "<svg/onload=window.hacked={n}>",
    "</pre></td></table><script>window.hacked={n}</script>",
    "<iframe src=http://e.vil/{n}></iframe>",
    "$x_{n}$ $$y$$ \\(z\\) \\[w\\]",
    "<a href='javascript:window.hacked={n}'>x</a>",
    "<style>@import 'http://e.vil/{n}.css'</style>",
    "&lt;b&gt; &amp;amp; {n}",
    "<details open ontoggle=window.hacked={n}>",
    "<body onload=window.hacked={n}>",
    "<object data=http://e.vil/{n}></object>",
    "![x](http://e.vil/{n}.png) [y](javascript:window.hacked={n})",
    "```\n# {n}\n<script>window.hacked={n}</script>\n```",
    "<math><mtext></mtext><script>window.hacked={n}</script></math>",
    "\u202e{n}\u2066 \u200b\u00ad",
    "\u001b[2J\u0007 {n}\u0000",
    "'\"><img src=x onerror=window.hacked={n}>",
    "{{{{constructor.constructor('window.hacked={n}')()}}}}",
    "<link rel=stylesheet href=//e.vil/{n}>",
    "<video><source onerror=window.hacked={n}>",
    "<input autofocus onfocus=window.hacked={n}>",
    "<base href=http://e.vil/{n}/>",
    "--><script>window.hacked={n}</script><!--",
    "<x style='background:url(http://e.vil/{n})'>",
)
HOSTILE = [PAYLOADS[n % len(PAYLOADS)].format(n=n) for n in range(500)]


def record(name: str):
    """A run in which each of the 500 is a completion: 16 steps of 32, the last ones over again."""
    texts = iter(HOSTILE * 2)
    return planted(name, lambda step, row, draw: next(texts), steps=16)


def text_of_pres(page) -> list[str]:
    return page.evaluate("() => [...document.querySelectorAll('pre')].map(own => own.textContent)")


@pytest.mark.slow
def test_tables_and_report_show_500_hostile_completions_as_text(home, page):
    run, asked = record("r"), []
    flat = np.zeros((500, 1), bool)
    made = evaluation(flat, flat)
    for place, text in enumerate(HOSTILE):
        made.before.completions[place], made.after.completions[place] = [text], [f"{text}."]
    found = inspection.regressions(made)
    parts = []
    for start in range(0, 500, 10):
        found_part = type(found)(found.verdict, found.frame.iloc[start : start + 10])
        parts.append(listing_table(found_part)._repr_html_())
    (home / "tables.html").write_text(f"<meta charset=utf-8>{''.join(parts)}", encoding="utf-8")
    kept(run, flat[:40], ~flat[:40])
    report = inspection.write_report(run)
    page.on("request", lambda request: asked.append(request.url))
    for file in (home / "tables.html", report):
        asked.clear()
        page.goto(f"file://{file}")
        page.wait_for_timeout(500)
        assert page.evaluate("() => window.hacked") is None
        assert [url for url in asked if not url.startswith(("data:", f"file://{file}"))] == []
        assert not page.locator("pre img, pre script, pre svg, iframe, object, video, link, body form").count()
        if file == report:
            continue
        shown = set(text_of_pres(page))
        assert {printable(text) for text in HOSTILE} <= shown
        assert {printable(f"{text}.") for text in HOSTILE} <= shown


@pytest.mark.slow
def test_the_browser_widget_shows_500_hostile_completions_as_text(jupyterlab, page):
    record("r")
    cell = nbformat.v4.new_code_cell("import workbench as wb\nwb.inspection.Browser(wb.open_run('r'), size=512)")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), jupyterlab.folder / "browse.ipynb")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    open_notebook(page, jupyterlab, "browse.ipynb")
    page.locator(".workbench-rows table").wait_for()
    waited_for(lambda: page.locator(".workbench-rows tr").count() == 513)
    shown = set(page.evaluate("() => [...document.querySelectorAll('.workbench-rows pre')].map(own => own.textContent)"))
    assert {one_line(text, 160) for text in HOSTILE} <= shown
    slider = page.locator(".jp-OutputArea .noUi-handle").first
    slider.focus()
    slider.press("ArrowRight")
    for _ in range(4):
        slider.press("ArrowRight")
    page.locator(".workbench-group").filter(has_text="group 2 of 8").wait_for()
    where = page.locator(".workbench-where input")
    where.fill("completion like '%svg%'")
    where.press("Enter")
    waited_for(lambda: page.locator(".workbench-rows tr").count() == 1 + sum("svg" in text for text in (HOSTILE * 2)[:512]))
    assert page.evaluate("() => window.hacked") is None
    assert [url for url in asked if "e.vil" in url] == []
    assert not page.locator(".workbench-rows img, .workbench-rows script, .jp-OutputArea mjx-container").count()
    page.screenshot(path=str(jupyterlab.home / "browse.png"))


def test_the_payloads_are_500_different_ones():
    assert len(set(HOSTILE)) == 500
    assert len(rows(500)) == 500
