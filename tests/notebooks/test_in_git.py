"""The notebooks as they lie in git: no outputs, stable cell ids, one parameters cell, short cells."""

from __future__ import annotations

import ast
import json
import runpy
from pathlib import Path

import nbformat
import pytest

from workbench.base.errors import RunError
from workbench.base.notebook import (
    NOTEBOOKS,
    find_notebook,
    notebooks_folder,
    notebooks_to_edit,
    read_parameters,
    run_notebook,
    with_parameters,
)

FOLDER = Path(__file__).parents[2] / "notebooks"
setup_cell = runpy.run_path(str(FOLDER.parent / "tools" / "setup_cell.py"))["cell"]
LONGEST_CELL = 25


def read(stem):
    return json.loads((FOLDER / f"{stem}.ipynb").read_text(encoding="utf-8"))


def source(cell) -> str:
    return "".join(cell["source"])


def test_these_five_and_no_others():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NOTEBOOKS)
    assert notebooks_folder() == FOLDER


def test_an_installed_packages_notebooks_are_copied_before_they_are_edited(home, monkeypatch):
    carried = home / "site-packages" / "_notebooks"
    carried.mkdir(parents=True)
    (carried / "01_dataset.ipynb").write_text("new")
    (carried / "02_rewards.ipynb").write_text("new")
    (home / "notebooks").mkdir()
    (home / "notebooks" / "02_rewards.ipynb").write_text("mine")
    monkeypatch.setattr("workbench.base.notebook.notebooks_folder", lambda: carried)
    assert notebooks_to_edit() == home / "notebooks"
    assert [file.read_text() for file in sorted((home / "notebooks").iterdir())] == ["new", "mine"]
    monkeypatch.undo()
    assert notebooks_to_edit() == FOLDER


@pytest.mark.parametrize("stem", NOTEBOOKS)
class TestNotebook:
    def test_is_valid(self, stem):
        nbformat.validate(nbformat.reads(json.dumps(read(stem)), as_version=4))

    def test_holds_no_outputs(self, stem):
        code = [cell for cell in read(stem)["cells"] if cell["cell_type"] == "code"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)

    def test_cell_ids_are_stable_and_unique(self, stem):
        ids = [cell["id"] for cell in read(stem)["cells"]]
        assert len(set(ids)) == len(ids)
        assert all(ident.startswith(f"{stem[:2]}-") for ident in ids)

    def test_the_set_up_cell_stands_under_the_title_folded_and_the_same_in_all(self, stem):
        title, cell, *others = read(stem)["cells"]
        assert title["cell_type"] == "markdown"
        assert cell == setup_cell(stem), "python tools/setup_cell.py"
        assert not [each for each in others if "setup" in each["metadata"].get("tags", [])]
        assert cell["metadata"]["tags"] == ["setup"]
        # Folded in JupyterLab, in Colab and on Kaggle.
        assert cell["metadata"]["jupyter"] == {"source_hidden": True}
        assert cell["metadata"]["cellView"] == "form"
        assert source(cell).startswith("# @title")
        assert cell["metadata"]["_kg_hide-input"] is True

    def test_five_parameters_are_in_sight_and_the_others_folded_with_a_line_that_says_what_they_are(self, stem):
        cells = read(stem)["cells"]
        first, *others = [place for place, cell in enumerate(cells) if "parameters" in cell["metadata"].get("tags", [])]
        names = [[node.targets[0].id for node in ast.parse(source(cells[place])).body] for place in (first, *others)]
        assert 2 <= len(names[0]) <= 5
        assert "jupyter" not in cells[first]["metadata"]
        assert len({name for some in names for name in some}) == sum(map(len, names)), "each once"
        assert len(others) == (stem in ("01_dataset", "03_train"))
        for place in others:
            assert cells[place]["metadata"]["jupyter"] == {"source_hidden": True}
            assert cells[place]["metadata"]["cellView"] == "form"
            assert source(cells[place]).startswith("# @title")
            [line] = source(cells[place - 1]).splitlines()
            assert line.startswith("*Folded below: ")

    def test_what_is_folded_says_so(self, stem):
        cells = read(stem)["cells"]
        folded = [cell for cell in cells if cell["metadata"].get("jp-MarkdownHeadingCollapsed")]
        assert len(folded) == (stem == "04_inspect")
        assert all("Folded: " in source(cell) for cell in folded)

    def test_cells_are_short_and_the_prose_comes_first(self, stem):
        cells = read(stem)["cells"]
        assert cells[0]["cell_type"] == "markdown"
        for word in ("You will", "Needs", "Leaves"):
            assert f"**{word}**" in source(cells[0])
        assert all(len(source(cell).splitlines()) <= LONGEST_CELL for cell in cells if cell["cell_type"] == "code")


def notebook(text):
    cell = nbformat.v4.new_code_cell(text, metadata={"tags": ["parameters"]})
    return nbformat.v4.new_notebook(cells=[cell])


def test_parameters_are_replaced_and_keep_their_comments():
    changed = with_parameters(notebook('steps = 60\nname = "a"  # of the run'), {"steps": 3, "name": "b"}, "x")
    assert changed.cells[0].source == "steps = 3\nname = 'b'  # of the run"


def test_a_parameter_may_be_an_entry_of_a_dict_or_stand_in_a_second_cell():
    made = notebook('grpo = {\n    "steps": 60,  # of the run: é\n    "kwargs": {},\n}\nrate = (\n    1e-3\n)')
    made.cells.append(nbformat.v4.new_code_cell("# @title More\nseed = 0", metadata={"tags": ["parameters"]}))
    asked = {"kwargs": {"a": 1}, "steps": 3, "seed": 7, "rate": 2e-3}
    assert read_parameters(["steps=3", "kwargs={'a': 1}", "seed=7", "rate=2e-3"], made, "x") == asked
    first, second = with_parameters(made, asked, "x").cells
    assert first.source == 'grpo = {\n    "steps": 3,  # of the run: é\n    "kwargs": {\'a\': 1},\n}\nrate = (\n    0.002\n)'
    assert second.source == "# @title More\nseed = 7"
    whole = with_parameters(notebook('grpo = {"steps": 60}  # all'), {"grpo": {"rate": 1}}, "x")
    assert whole.cells[0].source == "grpo = {'rate': 1}  # all"


def test_an_unknown_parameter_is_an_error_that_lists_the_known_ones():
    with pytest.raises(RunError, match=r"(?s)no parameter 'step'.*steps, name"):
        with_parameters(notebook("steps = 60\nname = 1"), {"step": 3}, "x")


def test_an_unknown_parameter_is_told_the_nearest():
    with pytest.raises(RunError, match="did you mean 'steps'"):
        with_parameters(notebook("steps = 60\nname = 1"), {"stpes": 3}, "x")


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("steps=5", 5),
        ("steps = 1e-4", 1e-4),
        ("on=False", False),
        ("name=tiny", "tiny"),
        ("name='a b'", "a b"),
        ("name=3", "3"),
        ("name=None", None),
        ("name=a=b", "a=b"),
        ("limit=[1, 2]", [1, 2]),
        ("limit=some text", "some text"),
        ("new=text", "text"),
    ],
)
def test_values_are_python_literals_and_text_where_text_stands(said, value):
    standing = 'steps = 60\non = True\nname = "a"  # of the run\nlimit = None\nnew = 2 * 3'
    [found] = read_parameters([said], notebook(standing), "x").values()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("said", ["steps=five", "on=true", "steps", "=5", "steps="])
def test_what_is_no_value_is_refused_with_an_example(said):
    with pytest.raises(RunError, match=r"(?s)--set .*NAME=VALUE.*for example --set"):
        read_parameters([said], notebook("steps = 60\non = True"), "x")


@pytest.mark.parametrize("name", ["3", "03", "train", "03_train", str(FOLDER / "03_train.ipynb")])
def test_a_notebook_is_found_by_number_name_or_path(name):
    assert find_notebook(name) == FOLDER / "03_train.ipynb"


def test_no_such_notebook(home):
    with pytest.raises(RunError, match="did you mean 'train'"):
        find_notebook("trian")


def test_one_notebook_runs_with_its_own_parameters(home):
    made = notebook("steps = 60  # of them")
    made.cells.append(nbformat.v4.new_code_cell("print(steps)"))
    made.cells.append(nbformat.v4.new_code_cell("assert steps < 9, f'{steps} steps'"))
    made.cells.append(nbformat.v4.new_code_cell("print('after')"))
    for cell in made.cells:  # as it was saved, after another run of it
        cell.outputs, cell.execution_count = [nbformat.v4.new_output("stream", text="of another run")], 7
    nbformat.write(made, home / "own.ipynb")
    before, cells = (home / "own.ipynb").read_text(), []
    found = run_notebook(str(home / "own.ipynb"), ["steps=5"], on_cell=lambda *each: cells.append(each))
    assert found["parameters"] == {"steps": 5}
    assert found["out"] == str(home / "runs" / "notebooks" / "own.ipynb")
    executed = nbformat.read(found["out"], as_version=4)
    assert executed.cells[0].source == "steps = 5  # of them"
    assert executed.cells[1].outputs[0].text == "5\n"
    assert [output.text for cell in executed.cells for output in cell.outputs] == ["5\n", "after\n"]
    assert cells[-1] == (4, 4)
    with pytest.raises(RunError, match=r"(?s)own.ipynb: AssertionError: 60 steps.*own-2.ipynb"):
        run_notebook(str(home / "own.ipynb"))
    failed = nbformat.read(home / "runs" / "notebooks" / "own-2.ipynb", as_version=4)
    assert [len(cell.outputs) for cell in failed.cells] == [0, 1, 1, 0]
    assert failed.cells[3].execution_count is None
    assert (home / "own.ipynb").read_text() == before
    with pytest.raises(RunError, match="the notebook itself"):
        run_notebook(str(home / "own.ipynb"), out=home / "own.ipynb")


def test_a_cell_may_train_for_days(home, monkeypatch):
    seen = []
    monkeypatch.setattr("nbclient.NotebookClient.execute", lambda client, **_: seen.append(client.timeout))
    nbformat.write(notebook("steps = 60"), home / "own.ipynb")
    run_notebook(str(home / "own.ipynb"))
    assert seen == [None]


def test_a_notebook_without_a_parameters_cell_is_an_error():
    with pytest.raises(RunError, match="0 cells tagged"):
        with_parameters(nbformat.v4.new_notebook(), {}, "x")


def test_the_packaged_recipe_asks_for_what_notebook_03_asks():
    from workbench.recipe import Recipe
    from workbench.tiny import MODEL_DIR

    recipe = Recipe.load(MODEL_DIR.parent / "recipe.yaml")
    cells = [cell for cell in read("03_train")["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    body = [node for cell in cells for node in ast.parse(source(cell)).body]
    parameters = {node.targets[0].id: ast.literal_eval(node.value) for node in body}
    assert {name: parameters["grpo"][name] for name in recipe.grpo} == recipe.grpo
    # backend and 4 bit are not named: where a library is missing, both go on without it
    assert parameters["loading"] == {"max_seq_length": recipe.policy.max_seq_length}
    assert parameters["policy_name"] == recipe.policy.name
