"""Where the workbench reads and writes: one folder that holds `tasks/` and `runs/`; and how it writes a file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def workspace() -> Path:
    """The folder that relative paths start from.

    `WORKBENCH_HOME` if it is set; else the current folder, or its parent when the current folder is `notebooks`
    (a Jupyter kernel starts beside its notebook, and the runs belong beside the notebooks, not among them).
    """
    if home := os.environ.get("WORKBENCH_HOME"):
        return Path(home).expanduser().resolve()
    here = Path.cwd()
    return here.parent if here.name == "notebooks" else here


def resolve(path: str | os.PathLike) -> Path:
    """`path` as it stands if it is absolute, else under the workspace: the folder of the notebooks, or WORKBENCH_HOME.

    >>> wb.resolve("tasks/mine").name
    'mine'
    """
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
    return str(path.relative_to(workspace()) if path.is_relative_to(workspace()) else path)


@contextlib.contextmanager
def replace_file(path: str | os.PathLike) -> Iterator[Path]:
    """Write a file whole or not at all: the block writes to the path that it is given, which then takes `path`'s place.

        with replace_file("runs/a/metrics.jsonl") as beside:
            beside.write_text("...")

    An error in the block leaves `path` as it was. A kill or a power cut leaves the old file or the new one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    try:
        yield beside
        with contextlib.suppress(OSError), beside.open("rb") as written:  # some mounts cannot
            os.fsync(written.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def to_json(value: Any) -> Any:
    """`value` as JSON can hold it: records and tuples by their fields, numpy's numbers and arrays, paths as text.

    NaN becomes None, an infinity "inf" or "-inf", and whatever else JSON has no form for its text.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return to_json(value._asdict())
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if hasattr(value, "tolist"):  # numpy, torch
        return to_json(value.tolist())
    if isinstance(value, float):
        return None if math.isnan(value) else value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def write_json(path: str | os.PathLike, content: Any) -> Path:
    """Write a JSON file, whole or not at all."""
    text = json.dumps(to_json(content), indent=2, ensure_ascii=False, allow_nan=False)
    with replace_file(path) as beside:
        beside.write_text(text + "\n", encoding="utf-8")
    return Path(path)
