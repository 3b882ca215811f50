"""Blanks and their solutions: found, filled in a copy, and missed where there is none."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from workbench.base.errors import RunError
from workbench.teaching._lib.cells import blanks, filled

BLANK = "x = ...  # your turn: one and one\nassert x == 2, 'not yet'"
SOLUTION = "<details><summary>Solution</summary>\n\n```python\nx = 1 + 1\nassert x == 2, 'not yet'\n```\n</details>"


def test_a_blank_is_filled_with_the_whole_cell_that_follows_it_and_the_rest_stays():
    told = new_markdown_cell("# your turn: prose is no blank")
    lesson = new_notebook(cells=[told, new_code_cell(BLANK), new_markdown_cell(SOLUTION), new_code_cell("x")])
    before = nbformat.writes(lesson)
    assert blanks(lesson) == [1]
    done = filled(lesson)
    assert done.cells[1].source == "x = 1 + 1\nassert x == 2, 'not yet'"
    assert [cell.source for cell in (done.cells[0], *done.cells[2:])] == [told.source, SOLUTION, "x"]
    assert nbformat.writes(lesson) == before
    assert blanks(done) == []


@pytest.mark.parametrize("rest", [[], [new_code_cell("x")], [new_markdown_cell("```python\nx = 2\n```")]])
def test_a_blank_without_a_solution_is_an_error_that_names_the_cell(rest):
    with pytest.raises(RunError, match=r"(?s)cell 0: a blank without a solution.*the whole filled cell"):
        filled(new_notebook(cells=[new_code_cell(BLANK), *rest]))
