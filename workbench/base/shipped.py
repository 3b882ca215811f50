"""What has a name: the tasks that ship, their rows, and task files.

Rows and rewards stand below the tasks that are made of them. They ask here; the loader,
`workbench.tasks.loading`, is registered when the package is imported, and answers.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

# Below it each task file is a module, named after its address.
TASK_FILES = "workbench.tasks.loading."


class TaskLoader(NamedTuple):
    """What finds and executes tasks."""

    load_task: Callable[..., Any]  # name or file -> Task
    modules: Callable[[], list[ModuleType]]  # of the task files that are loaded
    sources: tuple[str, ...]  # names of the tasks that make their rows; of a library, with a "/"
    open_source: Callable[[str, int | None, int], Any]  # (name, limit, seed) -> their Source


_registered: list[TaskLoader] = []


def register_loader(loader: TaskLoader) -> None:
    """Let what stands below the tasks ask this loader."""
    _registered[:] = [loader]


def loader() -> TaskLoader:
    """The registered loader."""
    return _registered[0]


def makes_rows(name: object) -> bool:
    """Whether a task that makes its rows has this name, or is one of such a library."""
    return any(
        is_under(own, name) if own.endswith("/") else own == str(name) for own in loader().sources
    )


def is_under(library: str, name: object) -> bool:
    """Whether a task's name is one of a library's, `reasoning_gym/NAME`."""
    return str(name).startswith(library) and not str(name).endswith(".py")
