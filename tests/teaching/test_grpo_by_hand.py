"""The lesson as a learner has it: each blank fails loudly with its own hint, and with its solutions it runs to its end."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from workbench.demo import execute
from workbench.teaching.cells import blanks, filled

LESSON = Path(__file__).parents[2] / "notebooks" / "teaching" / "grpo_by_hand.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The lesson run in a kernel, every blank first as it stands and then filled: (its cells, the blanks among them)."""
    home = tmp_path_factory.mktemp("home")
    lesson = nbformat.read(LESSON, as_version=4)
    done, places = filled(lesson), blanks(lesson)
    for place in reversed(places):
        empty = nbformat.from_dict({**lesson.cells[place], "id": f"empty-{place}"})
        empty.metadata["tags"] = ["raises-exception"]
        done.cells.insert(place, empty)
    nbformat.write(done, home / "lesson.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(home))
        execute(home / "lesson.ipynb", home / "out.ipynb", {})
    cells = nbformat.read(home / "out.ipynb", as_version=4).cells
    return cells, [cell for cell in cells if cell["id"].startswith("empty-")]


@pytest.mark.slow
def test_every_blank_fails_with_a_hint_of_its_own(executed):
    _, empty = executed
    assert len(empty) >= 12
    hints = []
    for cell in empty:
        [error] = [output for output in cell.outputs if output.output_type == "error"]
        assert error.ename == "AssertionError", (cell.source, error.evalue)
        hints.append(error.evalue)
    assert all(len(hint) > 25 for hint in hints), hints
    assert len(set(hints)) == len(hints)


@pytest.mark.slow
def test_filled_it_runs_to_its_end_and_the_adapters_are_equal(executed):
    cells, empty = executed
    rest = [cell for cell in cells if cell.cell_type == "code" and cell not in empty]
    assert not [output for cell in rest for output in cell.outputs if output.output_type == "error"]
    assert all(cell.execution_count for cell in rest)
    shown = json.dumps([cell.outputs for cell in rest], ensure_ascii=False)
    assert "equal in every bit" in shown
    assert '"stderr"' not in shown
