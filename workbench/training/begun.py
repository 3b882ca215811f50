"""What a run was begun with: its tasks, and what has changed since."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.data.split import fingerprint
from workbench.errors import RunError
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.task import Task, load_task
from workbench.workspace import find, shown


def kept_task(number: int) -> str:
    """Name of the copy of a stage's own task file in a run's folder `tasks`."""
    return f"stage-{number}.py"


def begun_task(run: RunDirectory, recipe: Recipe, number: int | None = None) -> Task:
    """The task that a run was begun with: the run's own copy, executed in the place of the file that it is a copy of.

    Args:
        number: of the stage whose own task it is, from 0; None: the run's.

    Raises:
        RunError: if it is another task, or has other rows.
        TaskError: if it cannot be loaded.
    """
    name = recipe.task if number is None else recipe.stages[number].task
    kept = run.path / ("task.py" if number is None else f"tasks/{kept_task(number)}")
    found = _recorded(run, recipe, number)
    source = Path(found.get("source", name))
    if kept.is_file():
        # Where the whole workspace was moved, the recipe's relative path still leads to the file.
        task = load_task(source if source.parent.is_dir() or not find(name).is_file() else find(name), kept)
    else:
        task = load_task(name)
        if found and (task.name, task.function_names) != (found["name"], list(found["functions"])):
            raise RunError(
                f"{run.name}: it was trained on the task object {found['name']!r}, and its recipe names {name!r}",
                rule="a run goes on with the task that it was begun with, and a task object has no file to load it from",
                remedy="hand it over in Python: continue_run(run, task=...)",
            )
    if found.get("rows") not in (None, fingerprint(task.rows)):
        raise RunError(
            f"{shown(Path(task.source).parent) if task.source else f'task {name!r}'}: its {len(task.rows)} training rows "
            f"are not those that {run.name} was begun with",
            rule="a run goes on with the same prompts in the same order",
            remedy="put those rows back; or go on with these in Python: continue_run(run, task=load_task(...)); or train a "
            "new run",
        )
    return task


def _recorded(run: RunDirectory, recipe: Recipe, number: int | None) -> dict[str, Any]:
    # The manifest's `task` is that of the first stage, which may be its own; empty: no stage was trained on the run's.
    manifest = run.manifest()
    if not recipe.stages:
        return {**manifest["task"], "functions": manifest["rewards"]["functions"]}
    if number is None:
        number = next((place for place, part in enumerate(recipe.stages) if not part.task), None)
    if number is None:
        return {}
    found = manifest["stages"][number]
    named = {"source": found["task"], "name": found["task"], "rows": found.get("rows")}
    return {**named, "functions": found["rewards"]["functions"]}


def changed_since_begun(run: RunDirectory, stages: Sequence[Any]) -> list[str]:
    """One line for each stage whose rewards or rows are not those that the run was begun with."""
    lines, manifest = [], run.manifest()
    for stage in stages:
        whole = manifest["stages"][stage.number] if "stages" in manifest else {**manifest, **manifest["task"]}
        before = whole["rewards"]["functions"]
        changed = [name for name, now in stage.suite.hashes.items() if before.get(name) != now]
        if whole.get("rows") not in (None, fingerprint(stage.task.rows)):
            changed.append("the training rows")
        if changed:
            lines.append(f"WARNING: not as they were when {run.name} was begun: {', '.join(changed)}")
    return lines
