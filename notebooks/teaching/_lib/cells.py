"""A lesson's blanks: the code cells in which the learner's part is `...`, each followed by its
solution, hidden.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from workbench.errors import RunError

BLANK = "# your turn:"  # stands in every blank, and says what is asked
SOLUTION = re.compile(
    r"<details>\s*<summary>Solution</summary>\s*\n```python\n(.*?)\n```\s*</details>", re.DOTALL
)


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
