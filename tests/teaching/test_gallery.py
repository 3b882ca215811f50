"""The gallery of broken runs: each is broken, is repaired by the notebook's solution, and no blank passes unfilled."""

from __future__ import annotations

import re
import runpy

import nbformat
import pytest
from gallery_solutions import NOTEBOOK, read, repairs

from workbench.demo import notebooks_folder
from workbench.teaching._lib import gallery
from workbench.teaching._lib.cells import blanks, filled

setup_cell = runpy.run_path(str(notebooks_folder().parent / "tools" / "setup_cell.py"))["cell"]


def test_fourteen_cases_each_with_an_illness_of_its_own():
    assert [f"run_{n:02d}" for n in range(1, 15)] == list(gallery.CASES)
    assert {gallery.Case(name).illness for name in gallery.CASES} == set(gallery.ILLNESSES)
    assert len(gallery.ILLNESSES) == 14


@pytest.mark.parametrize("name", gallery.CASES)
def test_a_case_does_not_name_its_illness(name):
    """Not in its folder, its recipe or its task; and what the story says is what anybody would have said."""
    case = gallery.Case(name)
    folder = notebooks_folder() / "teaching" / "broken" / name
    assert sorted(file.name for file in folder.iterdir() if file.is_file()) == ["recipe.yaml", "task.py"]
    texts = [file.read_text(encoding="utf-8") for file in folder.glob("*.*")]
    story = next(cell["source"] for cell in read()["cells"] if cell["id"] == f"br-{name[-2:]}-story")
    assert not [text for text in [*texts, story] if case.illness in text.casefold()]


def test_every_recipe_trains_the_embedded_policy_as_the_gallery_loads_it():
    for name in gallery.CASES:
        recipe = gallery.Case(name, "transformers", seed=3).recipe
        assert (recipe.policy.name, recipe.policy.backend, recipe.seed) == ("tiny", "transformers", 3)
        assert (recipe.policy.load_in_4bit, recipe.policy.dtype) == (False, "float32")
        assert recipe.grpo["max_steps"] <= 40


def test_an_empty_blank_and_an_unknown_name_are_refused_before_anything_is_looked_up():
    case = gallery.Case("run_01")
    with pytest.raises(gallery.NotYet, match="run_01: no diagnosis yet"):
        case.diagnose(...)
    with pytest.raises(gallery.NotYet, match="did you mean 'length hack'"):
        case.diagnose("length hacks")
    with pytest.raises(gallery.NotYet, match="run_01: no repair yet"):
        case.repair(...)
    assert issubclass(gallery.NotYet, AssertionError)


def test_the_leak_is_counted_by_the_numbers_of_a_prompt_in_any_order():
    task = gallery.Case("run_13").task
    assert len(gallery._seen(task)) == len(task.held_out) == 16
    assert gallery._seen(gallery.Case("run_01").task) == []


class TestNotebook:
    def test_is_valid_and_holds_no_outputs(self):
        nbformat.validate(read())
        code = [cell for cell in read()["cells"] if cell["cell_type"] == "code"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
        assert len({cell["id"] for cell in read()["cells"]}) == len(read()["cells"])

    def test_the_set_up_cell_stands_under_the_title(self):
        _, cell, *_ = nbformat.from_dict({"cells": read()["cells"]})["cells"]
        assert cell["source"] == "".join(setup_cell(NOTEBOOK.stem)["source"])

    def test_two_blanks_a_case_and_a_solution_for_each(self):
        assert len(blanks(read())) == 28
        assert list(repairs()) == list(gallery.CASES)
        assert not [cell for cell in filled(read())["cells"] if "# your turn:" in cell["source"]]


# One run of each case serves all that is asked of it: they take some minutes.
@pytest.mark.slow
@pytest.mark.timeout(2700)  # it trains 28 times
def test_no_blank_passes_unfilled_and_the_solutions_repair_what_was_broken(home, capsys, monkeypatch):
    """The notebook, cell by cell: a blank as it stands, and each wrong diagnosis, is refused; then comes the solution."""
    cells, solutions, space, done = read()["cells"], filled(read())["cells"], {}, []
    for place, cell in enumerate(cells):
        if cell["cell_type"] != "code" or "setup" in cell["metadata"].get("tags", []):
            continue
        if place not in blanks(read()):
            exec(cell["source"], space)
            continue
        case = space["case"]
        with pytest.raises(gallery.NotYet, match=f"{case.name}: no (diagnosis|repair) yet"):
            exec(cell["source"], space)
        if "case.diagnose(" in cell["source"]:
            for wrong in set(gallery.ILLNESSES) - {case.illness}:
                with pytest.raises(gallery.NotYet) as refused:
                    case.diagnose(wrong)
                # With what the record shows in the place of every brace.
                assert refused.value.value.startswith(f"{case.name}: not {wrong}. ")
                assert not re.search(r"[{}]|\bnan\b", refused.value.value)
        exec(solutions[place]["source"], space)
        if "case.repair(" in cell["source"]:
            assert case.was < case.least <= case.reached, f"{case.name}: {case.was} -> {case.reached}"
            done.append(case.name)
    assert done == list(gallery.CASES)


@pytest.mark.slow
def test_the_broken_runs_are_broken_in_their_own_ways(home, capsys):
    """Numbers of the record that a diagnosis can be made from, by hand: not the verdict's text."""
    said = {}
    for name in ("run_01", "run_02", "run_08"):
        case = gallery.Case(name)
        said[case.illness] = gallery.facts(case.make(), case.task)
    assert float(said["cut"]["cut"].rstrip("%")) > 50
    assert said["cannot pay"]["paid"] == "answer_in_format_reward paid 0 to 0"
    assert said["dead from the start"]["right"] == "0% -> 0%"
