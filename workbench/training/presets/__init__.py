"""Recipes to start from, by name. What each number is and where it comes from stands beside it in the file.

None of them was measured on a GPU: there was none to measure on.
"""

from __future__ import annotations

from pathlib import Path

from workbench.errors import RecipeError, nearest
from workbench.workspace import find, shown, workspace

FOLDER = Path(__file__).parent
_NO_RECIPE = {".py": "Python"} | dict.fromkeys((".csv", ".tsv", ".json", ".jsonl", ".parquet"), "data")


def preset_names() -> list[str]:
    """Names of the presets, in alphabetical order."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def find_recipe(name_or_path: str | Path) -> Path:
    """The recipe file that a word means: a file if there is one, else the preset of that name.

    Raises:
        RecipeError: if it is neither, with the nearest preset or recipe beside it.
    """
    file = find(name_or_path)
    if file.is_file() and file.suffix not in _NO_RECIPE:
        return file
    if file.is_file():
        raise RecipeError(
            f"{shown(file)}: {_NO_RECIPE[file.suffix]}, not a recipe",
            rule="a recipe is a YAML file or a preset",
            remedy="a task file is named in a recipe, as its `task:`; `workbench plan` reads a training script"
            if file.suffix == ".py"
            else "rows belong to a task file (notebook 02 writes one), which a recipe names as its `task:`",
        )
    name = str(name_or_path)
    if name in preset_names():
        return FOLDER / f"{name}.yaml"
    beside = [one.name for folder in {Path.cwd(), workspace()} for one in folder.glob("*.y*ml")]
    raise RecipeError(
        f"{name!r}: no such file, and no preset of that name",
        rule="a recipe is a YAML file or a preset",
        remedy=nearest(name, [*preset_names(), *beside], f"the presets are {', '.join(preset_names())}"),
    )
