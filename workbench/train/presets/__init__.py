"""Recipes to start from, by name. What each number is and where it comes from stands beside it in the file.

None of them was measured on a GPU: there was none to measure on.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from workbench.run.errors import RecipeError
from workbench.run.workspace import find

FOLDER = Path(__file__).parent


def preset_names() -> list[str]:
    """Names of the presets, in alphabetical order."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def find_recipe(name_or_path: str | Path) -> Path:
    """The recipe file that a word means: a file if there is one, else the preset of that name.

    Raises:
        RecipeError: if it is neither, with the nearest preset.
    """
    file = find(name_or_path)
    if file.is_file():
        return file
    name = str(name_or_path)
    if name in preset_names():
        return FOLDER / f"{name}.yaml"
    near = difflib.get_close_matches(name, preset_names(), n=1)
    raise RecipeError(
        f"{name!r}: no such file, and no preset of that name",
        rule="a recipe is a YAML file or a preset",
        remedy=f"did you mean {near[0]!r}?" if near else f"the presets are {', '.join(preset_names())}",
    )
