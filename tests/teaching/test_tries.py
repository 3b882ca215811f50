"""The exercises of the five notebooks: each has a solution that runs where it stands."""

from __future__ import annotations

import re

import nbformat
import pytest

from workbench.base.notebook import NOTEBOOKS, notebooks_folder
from workbench.commands import demo
from workbench.commands.demo import run_notebooks
from workbench.run.directory import open_run

PARAMETERS = {
    "01_dataset": {"rows_wanted": 600, "profile_prompts": 4},
    "03_train": {"max_steps": 3},
    "04_inspect": {"held_out": 12, "samples": 4},
    "05_export": {"prompts_to_prove": 2, "formats": ["adapter"]},
}
# As the blanks' (teaching/cells.py); here a sentence may follow the code.
SOLUTION = re.compile(r"<details>\s*<summary>Solution</summary>\s*\n```python\n(.*?)\n```.*</details>", re.DOTALL)


def tries(notebook) -> dict[str, str]:
    """Id of the cell -> its solution."""
    asked = [cell for cell in notebook.cells if cell.cell_type == "markdown" and cell.source.startswith("**Try:**")]
    return {cell.id: SOLUTION.search(cell.source)[1] for cell in asked}


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_two_in_each_notebook_with_a_hidden_solution(stem):
    found = tries(nbformat.read(notebooks_folder() / f"{stem}.ipynb", as_version=4))
    assert list(found) == [f"{stem[:2]}-try-1", f"{stem[:2]}-try-2"]
    for code in found.values():
        compile(code, stem, "exec")


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """Id of a try -> what its solution printed, each run in its notebook, right after the cell that asks."""
    home = tmp_path_factory.mktemp("home")
    folder = home / "notebooks"
    folder.mkdir()
    for stem in NOTEBOOKS:
        notebook = nbformat.read(notebooks_folder() / f"{stem}.ipynb", as_version=4)
        for ident, code in tries(notebook).items():
            place = [cell.id for cell in notebook.cells].index(ident)
            notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(code, id=f"{ident}-code"))
        nbformat.write(notebook, folder / f"{stem}.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(home))
        patch.setattr(demo, "notebooks_folder", lambda: folder)
        run_notebooks("demo", parameters=PARAMETERS)
        executed = [nbformat.read(file, as_version=4) for file in (open_run("demo").path / "notebooks").glob("*.ipynb")]
    cells = [cell for notebook in executed for cell in notebook.cells if re.search(r"-try-\d-code$", cell.id)]
    return {cell.id.removesuffix("-code"): "".join(text(output) for output in cell.outputs) for cell in cells}


def text(output) -> str:
    return output.get("text") or output.get("data", {}).get("text/plain", "")


@pytest.mark.slow
def test_all_ten_solutions_run(solved):
    assert sorted(solved) == [f"{stem[:2]}-try-{number}" for stem in NOTEBOOKS for number in (1, 2)]
    assert all(solved.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ident", "says"),
    [
        ("01-try-1", "with pair: 0 of"),
        ("01-try-2", "groups of 16"),
        ("02-try-1", "[2. 2. 2. 2.] [0. 0. 0. 0.]"),
        ("02-try-2", "right 8.75 wrong 2.75 share 0.31"),
        ("03-try-1", "24 completions (3 prompts x 8)"),
        ("03-try-2", "two dead groups: reward_std 0.53, within groups 0.00"),
        ("04-try-1", "pass@4: "),
        ("04-try-2", "total"),
        ("05-try-1", "with a hundredth of the move"),
        ("05-try-2", "changed_file noticed at the level files"),
    ],
)
def test_and_say_what_the_text_says(solved, ident, says):
    assert says in solved[ident]


@pytest.mark.slow
def test_without_the_column_twins_stand_on_both_sides(solved):
    first = solved["01-try-1"].splitlines()[0]
    assert first.startswith("without pair: ")
    assert int(first.split()[2]) > 0
