"""Where the workbench reads and writes: one folder that holds `tasks/` and `runs/`."""

from __future__ import annotations

import os
from pathlib import Path


def workspace() -> Path:
    """The folder that relative paths start from.

    `WORKBENCH_HOME` if it is set; else the current folder, or its parent when the current folder is `notebooks`
    (a Jupyter kernel starts beside its notebook, and the runs belong beside the notebooks, not among them).
    """
    home = os.environ.get("WORKBENCH_HOME")
    if home:
        return Path(home).expanduser().resolve()
    here = Path.cwd()
    return here.parent if here.name == "notebooks" else here


def resolve(path: str | os.PathLike) -> Path:
    """`path` as it stands if absolute, else under the workspace."""
    path = Path(path).expanduser()
    return path if path.is_absolute() else workspace() / path


def find(path: str | os.PathLike) -> Path:
    """A file that is to be read: from the current folder if it is there, else from the workspace."""
    here = Path(path).expanduser()
    return here.absolute() if here.exists() else resolve(path)


def looked_in() -> str:
    """Where `find` looks, in words."""
    return "looked in " + " and in ".join(dict.fromkeys([str(Path.cwd()), str(workspace())]))


def shown(path: str | os.PathLike) -> str:
    """`path` as a reader wants it: relative to the workspace where it lies inside it."""
    path = Path(path)
    try:
        return str(path.relative_to(workspace()))
    except ValueError:
        return str(path)
