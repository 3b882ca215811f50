"""A lesson's blanks: the code cells in which the learner's part is `...`, each followed by its
solution, hidden.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import re
import warnings
from collections import Counter
from typing import Any, NamedTuple

from workbench.base.errors import RunError
from workbench.base.workspace import digest

BLANK = "# your turn:"  # stands in every blank, and says what is asked
SOLUTION = re.compile(
    r"<details>\s*<summary>Solution</summary>\s*\n```python\n(.*?)\n```.*?</details>", re.DOTALL
)

# The last line of a blank: which exercise of which lesson it is.
DONE = re.compile(r"""\bdone\(\s*["']([^"'\n]+)["'],\s*["']([^"'\n]+)["']\s*\)""")


class LessonBlank(NamedTuple):
    """A blank as its lesson ships: what it is worth, and what tells a learner's cell from it."""

    points: float  # of the cell's metadata; 1 where it has none
    empty: str  # cell_hash of the blank
    solution: str  # code_hash of its solution
    checks: Counter[str]


def blanks(notebook: Any) -> list[int]:
    """The places, among all cells of an nbformat notebook, of the code cells that the learner fills
    in.
    """
    cells = enumerate(notebook["cells"])
    return [
        place for place, cell in cells if cell["cell_type"] == "code" and BLANK in cell["source"]
    ]


def filled(notebook: Any) -> Any:
    """A copy of an nbformat notebook in which every blank is its solution, the next cell's;
    RunError where there is none.
    """
    notebook = copy.deepcopy(notebook)
    cells = notebook["cells"]
    for place in blanks(notebook):
        found = SOLUTION.search(cells[place + 1]["source"]) if place + 1 < len(cells) else None
        if found is None:
            rule = (
                "the cell after a blank is its solution: <details><summary>Solution</summary>, a"
                " ```python block, </details>"
            )
            raise RunError(
                f"cell {place}: a blank without a solution",
                rule=rule,
                remedy="write it there: the whole filled cell",
            )
        cells[place]["source"] = found[1]
    return notebook


def exercises(notebook: Any) -> dict[str, LessonBlank]:
    """Exercise -> its blank, of a lesson as it ships."""
    solved, own = filled(notebook)["cells"], {}
    for place in blanks(notebook):
        cell = notebook["cells"][place]
        for _, exercise in DONE.findall(cell["source"]):
            own[exercise] = LessonBlank(
                cell["metadata"].get("points", 1),
                cell_hash(cell["source"]),
                code_hash(solved[place]["source"]),
                checks_of(cell["source"]),
            )
    return own


def cell_hash(source: str) -> str:
    """SHA-256 of a cell's code, in hex; spaces at the end of a line do not count."""
    return digest("\n".join(map(str.rstrip, source.strip().splitlines())))


def code_hash(source: str) -> str:
    """SHA-256 of what a cell does, in hex: layout and comments do not count, where it can be
    parsed. Another version of Python may give another.
    """
    return cell_hash(source) if (tree := _parsed(source)) is None else digest(ast.dump(tree))


def checks_of(source: str) -> Counter[str]:
    """What a blank asks of its answer: its asserts, and what the gallery of broken runs checks;
    none of code that cannot be parsed.
    """
    tree = _parsed(source) or ast.Module([], [])
    return Counter(
        ast.dump(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("diagnose", "repair"))
    )


def _parsed(source: str) -> ast.Module | None:
    with (
        contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError),
        warnings.catch_warnings(action="ignore"),  # of a learner's "\\d"
    ):
        return ast.parse(source)
    return None
