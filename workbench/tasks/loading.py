"""Tasks by name or file: those that ship are imported, a task file is executed.

A task file is a module, which every process can import by name: pools pickle the functions of a
task so. What lies beside it is imported with it, and again when it is loaded again.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import linecache
import os
import sys
from collections.abc import Generator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote

from workbench.base.door import door, said
from workbench.base.errors import TaskError, nearest
from workbench.base.instruments import places_in
from workbench.base.shipped import TASK_FILES, TaskLoader, is_under, register_loader
from workbench.base.workspace import find, looked_in, shown
from workbench.task import Task

# Tasks that ship -> the module whose `task()` makes them, resolved when one is asked for.
EMBEDDED = {
    "arithmetic": "workbench.tiny.task",
    "arithmetic_harder": "workbench.tasks.arithmetic_harder",
    "gsm8k": "workbench.tasks.gsm8k",
    "countdown": "workbench.tasks.countdown",
    "csv_qa": "workbench.tasks.csv_qa",
    "json": "workbench.tasks.structured",
    "reviews": "workbench.tasks.reviews",
    **places_in("shipped"),
}
# These have no `source(limit, seed)`: a game has starts, and GSM8K's questions are the hub's.
_WITHOUT_SOURCE = ("gsm8k", "guess_the_number")

# A pickle names the functions of a pool by the module, and whoever reads it, in any process,
# imports that file.
__path__: list[str] = []
_NOWHERE = "\0"
# the folder of the last task file, and the names of modules that were there before it
_latest: tuple[str, frozenset[str]] = _NOWHERE, frozenset()


def load_task(name: str | Path | Task, kept: Path | None = None) -> Task:
    """Load a task that ships by name (`"arithmetic"`, `"gsm8k"`, ...: `EMBEDDED`), one of
    reasoning-gym's (`"reasoning_gym/chain_sum"`, or `"reasoning_gym/chain_sum@3"`, harder), one of
    TextArena's games (`"textarena/FrozenLake"`), or a task file by path.

    >>> wb.load_task("arithmetic").right_function
    'correctness_reward'

    Args:
        kept: a run's copy of the task file: its text is executed in place of the file `name`, which
            may be edited or gone.

    Raises:
        TaskError: if there is no such task, if the file fails, or if it binds no `task`.
    """
    if isinstance(name, Task):
        return name
    libraries = places_in("tasks")
    named = ", ".join([*EMBEDDED, *(f"{library}NAME" for library in libraries)])
    rule = f"a task is one of {named}, or a Python file that binds `task`"
    if not isinstance(name, (str, Path)):
        raise TaskError(
            f"task = {name!r:.200}",
            rule=rule,
            remedy='a task also needs rows: wb.Task("mine", rows=[...], reward_funcs=[...])',
        )
    if str(name) in EMBEDDED:
        return importlib.import_module(EMBEDDED[str(name)]).task()
    for library, module in libraries.items():
        if is_under(library, name):
            return importlib.import_module(module).task(str(name))
    path = find(name)
    text = kept or path
    if not text.is_file():
        value = f"task {str(name)!r}: no task of that name and no such file"
        otherwise = f"notebook 02 writes a task file (run 01 first); {looked_in()}"
        raise TaskError(value, rule=rule, remedy=nearest(str(name), EMBEDDED, otherwise))
    if path.suffix != ".py":
        value = f"{shown(path)}: not a Python file"
        raise TaskError(value, rule=rule, remedy="notebook 02 writes one")
    task = getattr(executed(text, executed_as(path)), "task", None)
    if not isinstance(task, Task):
        rule = "a task file binds `task = Task(...)`"
        value = f"{shown(path)}: `task` is {'not bound' if task is None else type(task).__name__}"
        raise TaskError(value, rule=rule, remedy="end the file with that line")
    object.__setattr__(task, "source", str(path))
    return task


def source_named(name: str, limit: int | None, seed: int) -> Any:
    """The rows of a task that ships, or of one of a library's, as a `Source`."""
    for library, module in places_in("rows").items():
        if is_under(library, name):
            return importlib.import_module(module).source(name, limit, seed)
    return importlib.import_module(EMBEDDED[name]).source(limit, seed)


def modules_of_tasks() -> list[ModuleType]:
    """The loaded task files, and the modules that the last one brought from its folder: they are
    executed as they were when they were loaded.
    """
    brought = {*_brought()}
    return [
        module
        for name, module in [*sys.modules.items()]
        if name.startswith(TASK_FILES) or name in brought
    ]


def _brought() -> list[str]:
    # Names of the modules of the last task file's folder that came with it, or since: another task
    # may have some of the same names.
    folder, known = _latest
    found = []
    for name in set(sys.modules) - known:
        if name.partition(".")[0] == "workbench":  # which lies beside a task file in a clone
            continue
        file = getattr(sys.modules[name], "__file__", None) or "site-packages"
        if "site-packages" not in file and Path(file).resolve().is_relative_to(folder):
            found.append(name)
    return found


def executed_as(path: Path, *before: Path) -> Path:
    """Where a run's own copy is executed: in the place of the file that it was copied from; what
    that one reads lies there.
    """
    try:
        manifest = json.loads((path.parent / "manifest.json").read_bytes())
        source = Path(manifest["task"]["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return path
    before = (*before, path)  # copies may name each other
    copied = path.name == "task.py" and source.suffix == ".py" and source not in before
    return executed_as(source, *before) if copied else path


@contextlib.contextmanager
def _beside(folder: str) -> Generator[None]:
    # A task's own modules lie beside it: first while it is loaded, and last from then on, for what
    # a function imports when it is called. They are reloaded with it.
    global _latest
    for name in _brought():
        del sys.modules[name]
    with contextlib.suppress(ValueError):
        sys.path.remove(_latest[0])
    last, known = os.path.join(folder, ""), frozenset(sys.modules)  # told apart from the user's own
    _latest = _NOWHERE, known  # for a task that it loads
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        sys.path.append(last)
        _latest = last, known
        for name in _brought():
            # As for the task file itself: nobody may read bytecode of an earlier save.
            with contextlib.suppress(OSError):
                Path(importlib.util.cache_from_source(f"{sys.modules[name].__file__}")).unlink()


def executed(text: Path, place: Path) -> ModuleType:
    """The module of a task file's text, executed as if it stood at `place`."""
    where = dict.fromkeys(str(path.absolute()) for path in (place, text))
    name = TASK_FILES + quote("\0".join(where)).replace(".", "%2E")
    sys.modules.pop(name, None)
    return importlib.import_module(name)


class _TaskFiles(Loader):
    """Imports a task file by the name that `executed` gave it."""

    @classmethod
    def find_spec(cls, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, cls()) if name.startswith(f"{TASK_FILES}/") else None

    def exec_module(self, module: ModuleType) -> None:
        place, *others = unquote(module.__name__.removeprefix(TASK_FILES)).split("\0")
        text = Path(others[0] if others else place)
        folder = os.path.dirname(os.path.realpath(place))
        # As a script: it is in no package.
        module.__file__, module.__package__, module.__spec__ = place, None, None
        try:
            with _beside(folder):
                # Not by way of the cached bytecode: a second save within a second, of the same
                # length, would not be seen.
                source = importlib.util.decode_source(text.read_bytes())
                # A function's source is the one that it was made from, also when the file has been
                # saved since.
                lines = source.splitlines(keepends=True)
                linecache.cache[place] = (len(source), None, lines, place)
                with door():
                    exec(compile(source, place, "exec"), module.__dict__)
        except TaskError:
            raise
        except Exception as error:
            value, remedy = shown(text), "correct that line"
            if others:
                value += f", executed as {shown(Path(place))}"
                remedy = f"{shown(Path(folder))} is gone: put it back"
                if os.path.isdir(folder):
                    remedy = f"put back what it reads from {shown(Path(folder))}"
                remedy += ", or pass the task in Python: continue_run(run, task=...)"
            elif isinstance(error, ModuleNotFoundError):
                remedy = "put that module beside the task file, or install it"
            value += f": {said(error, place)}"
            raise TaskError(
                value, rule="a task file runs when it is imported", remedy=remedy
            ) from error


sys.meta_path.append(_TaskFiles)
_MAKE_ROWS = tuple(name for name in EMBEDDED if name not in _WITHOUT_SOURCE)
register_loader(
    TaskLoader(load_task, modules_of_tasks, (*_MAKE_ROWS, *places_in("rows")), source_named)
)
