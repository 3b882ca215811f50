"""Recipes to start from, by name. The file explains each number, and where it comes from, beside
it.

None of them was measured on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path

from workbench.base.errors import RecipeError, nearest
from workbench.base.kinds import Fields
from workbench.base.workspace import find, shown, workspace
from workbench.recipe import Recipe, looked_for_elsewhere
from workbench.run.directory import check_name

FOLDER = Path(__file__).parent
_RULE = "a recipe is a YAML file or a preset"
_ROWS = "rows belong to a task file (notebook 02 writes one), which a recipe names as its `task:`"
# What a file is that is no recipe, and the remedy.
_NO_RECIPE = {
    ".py": "a task file is named in a recipe, as its `task:`; `workbench plan` reads a training"
    " script",
    ".ipynb": "paste its cells into one .py file, which `workbench plan` reads",
    **dict.fromkeys((".csv", ".tsv", ".json", ".jsonl", ".parquet"), _ROWS),
}


def preset_names() -> list[str]:
    """Names of the presets, in alphabetical order."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def find_recipe(name_or_path: str | Path) -> Path:
    """The recipe file that a word means: that file, else the preset of that name; RecipeError names
    the nearest.
    """
    file, name, presets = find(name_or_path), str(name_or_path), preset_names()
    if file.is_file():
        if remedy := _NO_RECIPE.get(file.suffix):
            raise RecipeError(f"{shown(file)}: not a recipe", rule=_RULE, remedy=remedy)
        return file
    if name in presets:
        return FOLDER / f"{name}.yaml"
    beside = [one.name for folder in {Path.cwd(), workspace()} for one in folder.glob("*.y*ml")]
    remedy = nearest(name, [*presets, *beside], f"the presets are {', '.join(presets)}")
    raise RecipeError(
        f"{name!r}: no such file, and no preset of that name", rule=_RULE, remedy=remedy
    )


def recipe_of(source: str | Path | Fields | Recipe) -> Recipe:
    """The recipe that is meant: itself, a mapping, a recipe's file, or the name of a preset.
    RunError: no folder can have its `run_name`.
    """
    named = isinstance(source, str | Path)
    recipe = Recipe.load(find_recipe(source)) if named else Recipe.of(source)
    check_name(recipe.run_name)
    return recipe


@contextlib.contextmanager
def of_recipe(name: str) -> Generator[None]:
    """A RecipeError raised inside says which file or preset it is of; "recipe": it is of none."""
    try:
        yield
    except RecipeError as error:
        if name not in error.value and name != "recipe":
            error.add_note(f"  in:     {name}")
        raise


def read_source(
    source: str | Path | Recipe, said: Sequence[str] = ()
) -> tuple[str, Recipe, list[str], bool, bool]:
    """What a recipe file, a preset's name, a script or a recipe asks for: (its name, the recipe,
    lines about what a script set otherwise, whether policy.name was requested, and a task).
    `said`, as for `overridden`: of these the backend is taken already, as a script is read with
    the names of settings that its backend has.
    """
    from workbench.training.plan.script import read_script

    backend = dict(each.split("=", 1) for each in said if "=" in each).get("policy.backend")
    if not isinstance(source, (str, Path)):
        return "recipe", Recipe.of(source), [], True, True
    if isinstance(source, str) and "\n" in source:
        return "script", *read_script(source, backend=backend)
    file = find(source)
    if file.suffix != ".py" or not file.is_file():
        file = find_recipe(source)
        name = str(source) if file.stem == str(source) else shown(file)
        recipe = Recipe.load(file)
        return name, recipe, looked_for_elsewhere(recipe, file.parent), True, True
    try:
        text = file.read_text(encoding="utf-8")
        return shown(file), *read_script(text, shown(file), backend=backend)
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{shown(file)}: {error}", rule="a script is text in UTF-8", remedy="save it so"
        ) from error
