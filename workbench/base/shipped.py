"""What has a name: the tasks that ship, their rows, and task files.

Rows and rewards stand below the tasks that are made of them. They ask here; the loader,
`workbench.tasks.loading`, is registered when the package is imported, and answers.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

# Before the name of one of reasoning-gym's tasks, and of one of TextArena's games.
GYM, ARENA = "reasoning_gym/", "textarena/"
# Below it each task file is a module, named after its address.
TASK_FILES = "workbench.tasks.loading."


class TaskLoader(NamedTuple):
    """What finds and executes tasks."""

    load_task: Callable[..., Any]  # name or file -> Task
    modules: Callable[[], list[ModuleType]]  # of the task files that are loaded
    sources: tuple[str, ...]  # names of the tasks that make their rows
    open_source: Callable[[str, int | None, int], Any]  # (name, limit, seed) -> their Source


_registered: list[TaskLoader] = []


def register_loader(loader: TaskLoader) -> None:
    """Let what stands below the tasks ask this loader."""
    _registered[:] = [loader]


def loader() -> TaskLoader:
    """The registered loader."""
    return _registered[0]


def is_of_gym(name: object) -> bool:
    """Whether a task's name is one of reasoning-gym's, `reasoning_gym/NAME`."""
    return is_under(GYM, name)


def is_under(library: str, name: object) -> bool:
    """Whether a task's name is one of a library's: `GYM` or `ARENA`."""
    return str(name).startswith(library) and not str(name).endswith(".py")
