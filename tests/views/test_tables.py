"""What a model wrote is shown as text: nothing in it runs, and nothing in it bends the page."""

from __future__ import annotations

import numpy as np
import pytest
from hostile import HOSTILE, obeyed

from workbench.rewards.scoring import score
from workbench.task import Task
from workbench.views.groups import score_table
from workbench.views.tables import LONGEST_SHOWN, Table, Verbatim


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</pre></td><b>", "\"'&"])
def test_markup_is_escaped(hostile):
    html = Table(["completion"], [[Verbatim(hostile)], [hostile]])._repr_html_()
    assert hostile not in html
    assert "<script" not in html
    assert "<img" not in html


def test_completions_stand_in_pre_where_mathjax_does_not_run():
    assert "<pre" in Table(["completion"], [[Verbatim("$x^2$")]])._repr_html_()


def test_direction_turning_characters_are_made_visible():
    assert "\u202e" not in Table(["c"], [[Verbatim("abc\u202edef")]])._repr_html_()
    assert "\\u202e" in str(Table(["c"], [[Verbatim("abc\u202edef")]]))


def test_control_sequences_are_shown_in_every_part_of_a_table():
    table = Table([f"head {HOSTILE}"], [[Verbatim(f"{HOSTILE}\n\tend")], [HOSTILE]], f"caption {HOSTILE}")
    for shown in (str(table), table._repr_html_()):
        assert obeyed(shown) == []
        assert shown.count(r"\x1b]52;c;") == 4
    assert r"\n" in str(table)


def test_long_text_is_cut_and_says_so():
    assert "(5 more characters)" in str(Table(["c"], [["x" * (LONGEST_SHOWN + 5)]]))


def test_as_text():
    table = Table(["name", "n"], [["a", 1], ["bcd", 0.25], [None, float("nan")]], "three rows")
    assert str(table) == "three rows\nname  n\na     1\nbcd   0.25\n-     -"


def test_score_table_totals_are_weighted():
    def a_reward(completions, **kwargs):
        return [1.0, 0.0]

    def b_reward(completions, **kwargs):
        return [1.0, None]

    task = Task("t", [{"prompt": "x"}], [a_reward, b_reward], [2.0, 0.5])
    scored = score(task, task.rows[0], ["good", "bad"])
    table = score_table(scored)
    assert table.header == ["completion", "a", "b", "total", "advantage"]
    assert table.rows[0][1:4] == [1.0, 1.0, 2.5]
    assert table.rows[1][3] == 0.0
    assert np.isnan(table.rows[1][2])
    assert table.rows[0][4] == pytest.approx(2**-0.5, abs=1e-3)


def test_a_number_with_its_unit_stays_on_one_line():
    html = Table(["share", "words"], [["100 %", "a sentence that may be wrapped"]])._repr_html_()
    cells = html.split("<td ")[1:]
    assert "white-space:nowrap" in cells[0]
    assert "white-space:nowrap" not in cells[1]
