"""A task of a source's rows, which are checked as in notebook 01."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.data.checks import Checked
from workbench.data.sources import Source
from workbench.data.split import split
from workbench.task import Task


def task_of(
    name: str,
    source: Source,
    functions: tuple,
    right_by: str,
    format_by: str | None = None,
    percent: int = 10,
    cases: str = "",
    **options: Any,
) -> Task:
    """A task of a source's rows, made as notebook 01 makes them: checked, and `percent` held out by
    a stable hash.

    `cases` is a file in this folder; `options` are those of `Checked` (`system`, `examples`,
    `prompt_column`, ...).
    """
    kept = Checked(source, **options).collect().kept
    halves = split(kept, percent, source=source)
    file = Path(__file__).parent / cases if cases else None
    return Task(
        name,
        halves.train,
        functions,
        held_out=halves.held_out,
        right_by=right_by,
        format_by=format_by,
        cases=file,
    )
