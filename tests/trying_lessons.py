"""A lesson as a learner has it: every blank run as it stands, then with a mistake, then filled with its solution."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
import pytest

from workbench.base.notebook import execute, notebooks_folder
from workbench.teaching import grading
from workbench.teaching._lib.cells import blanks, filled
from workbench.teaching._lib.lessons import passed


def tried(name: str, mistakes: Sequence[tuple[str, str]], home: Path, parameters: dict[str, Any] | None = None) -> list[Any]:
    """The code cells of the lesson, run in a kernel; every exercise is passed in the end.

    `mistakes`: of each blank, in order, what the solution says, and what somebody may well say instead.
    """
    lesson = nbformat.read(notebooks_folder() / "teaching" / f"{name}.ipynb", as_version=4)
    done, places = filled(lesson), blanks(lesson)
    for place, (right, wrong) in reversed(list(zip(places, mistakes, strict=True))):
        assert done.cells[place].source.count(right) == 1, right
        tries = {"empty": lesson.cells[place].source, "wrong": done.cells[place].source.replace(right, wrong)}
        for kind, source in reversed(tries.items()):
            cell = nbformat.v4.new_code_cell(source, id=f"{kind}-{place}", metadata={"tags": ["raises-exception"]})
            done.cells.insert(place, cell)
    nbformat.write(done, home / "lesson.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(home))
        execute(home / "lesson.ipynb", home / "out.ipynb", parameters or {})
        assert len(passed(name)) == len(mistakes)
        # As a learner hands it in: the notebook alone, in which the empty and the mistaken cells still stand.
        (home / "class").mkdir()
        shutil.copyfile(home / "out.ipynb", home / "class" / "out.ipynb")
        assert {own.status for own in grading.grade(home / "class").blanks if own.lesson == name} == {"passed"}
    return [cell for cell in nbformat.read(home / "out.ipynb", as_version=4).cells if cell.cell_type == "code"]


def check_hints(cells: Sequence[Any], count: int) -> None:
    """Each of the `count` blanks, empty and mistaken, failed with a hint of its own."""
    hints: dict[str, list[str]] = {"empty": [], "wrong": []}
    for cell in cells:
        if (kind := cell["id"].partition("-")[0]) in hints:
            [error] = [output for output in cell.outputs if output.output_type == "error"]
            assert error.ename == "AssertionError", (cell.source, error.evalue)
            hints[kind].append(error.evalue)
    for said in hints.values():
        assert len(set(said)) == len(said) == count
        assert all(len(hint) > 25 for hint in said), said


def shown(cells: Sequence[Any]) -> str:
    """What the filled lesson prints and shows, as text; it ran to its end, without an error or a word on standard error."""
    rest = [cell for cell in cells if "raises-exception" not in cell.metadata.get("tags", [])]
    assert all(cell.execution_count for cell in rest)
    outputs = [output for cell in rest for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    return "\n".join(output.get("text") or output["data"].get("text/plain", "") for output in outputs)
