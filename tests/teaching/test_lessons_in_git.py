"""The lessons as they lie in git: no outputs, stable cell ids, short cells, and solutions that are their blanks, filled."""

from __future__ import annotations

import ast
import json
import runpy
from pathlib import Path

import nbformat
import pytest

from workbench import teaching
from workbench.teaching import cells, lessons
from workbench.teaching._lib import OFFERS
from workbench.teaching._lib.cells import blanks, filled

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "notebooks" / "teaching").glob("*.ipynb"))
LONGEST_CELL = 25
setup_cell = runpy.run_path(str(ROOT / "tools" / "setup_cell.py"))["cell"]


def is_check(node):
    return isinstance(node, ast.Assert) or (isinstance(node, ast.Attribute) and node.attr in ("diagnose", "repair"))


def is_plain_code(cell):
    return cell.cell_type == "code" and "setup" not in cell.metadata.get("tags", [])


def test_what_is_offered_beside_the_face_is_there():
    for name in OFFERS:
        assert getattr(teaching, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = teaching.no_such_name


def test_there_are_lessons():
    found = ["biased_judge", "broken_runs", "grpo_by_hand", "ladder", "play_it", "ppo_by_hand", "two_rewards"]
    assert [path.stem for path in LESSONS] == found


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
class TestLesson:
    def test_is_valid_and_holds_no_outputs(self, path):
        lesson = nbformat.read(path, as_version=4)
        nbformat.validate(lesson)
        code = [cell for cell in lesson.cells if cell.cell_type == "code"]
        assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
        assert all(len(cell.source.splitlines()) <= LONGEST_CELL for cell in code if "setup" not in cell.metadata.get("tags", []))

    def test_cell_ids_are_stable_and_unique(self, path):
        ids = [cell["id"] for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
        assert len(set(ids)) == len(ids)
        assert all(ident.startswith(f"{path.stem[:2]}-") for ident in ids)

    def test_title_set_up_and_parameters_are_those_of_the_other_notebooks(self, path):
        title, setup, *rest = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert all(f"**{word}**" in "".join(title["source"]) for word in ("You will", "Needs", "Leaves"))
        assert setup == setup_cell(path.stem), "python tools/setup_cell.py"
        assert len([cell for cell in rest if "parameters" in cell["metadata"].get("tags", [])]) == 1

    def test_a_solution_is_its_blank_with_the_dots_filled_in(self, path):
        lesson = nbformat.read(path, as_version=4)
        done = filled(lesson)
        assert blanks(lesson)
        for place in blanks(lesson):
            asked, answered = (ast.parse(each.cells[place].source) for each in (lesson, done))
            dots = [
                sum(isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(tree)) for tree in (asked, answered)
            ]
            assert dots[0] > dots[1], "nothing to fill in"
            # What checks a learner's answer checks the solution: asserts, or what the gallery checks.
            checks = [[ast.dump(node) for node in ast.walk(tree) if is_check(node)] for tree in (asked, answered)]
            assert checks[0] == checks[1] != []

    def test_a_lesson_imports_the_face_and_what_is_offered_beside_it(self, path):
        lesson = nbformat.read(path, as_version=4)
        code = "\n".join(cell.source for each in (lesson, filled(lesson)) for cell in each.cells if is_plain_code(cell))
        modules, names = set(), set()
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names if alias.name.startswith("workbench")}
            elif isinstance(node, ast.ImportFrom) and node.module.startswith("workbench"):
                modules.add(node.module)
                names |= {alias.name for alias in node.names}
        assert modules == {"workbench", "workbench.teaching"}
        assert names <= OFFERS.keys()

    def test_each_blank_is_an_exercise_of_its_own_whose_solution_would_be_graded_as_passed(self, path):
        lesson = lessons.read_notebook(path)
        solved, own = cells.filled(lesson), cells.exercises(lesson)
        assert len(own) == len(cells.blanks(lesson))
        for place, (exercise, blank) in zip(cells.blanks(lesson), own.items(), strict=True):
            source = solved["cells"][place]["source"]
            assert cells.DONE.findall(source) == [(path.stem, exercise)]
            assert cells.code_hash(source) == blank.solution != blank.empty
            assert blank.checks, exercise
            assert not blank.checks - cells.checks_of(source)
