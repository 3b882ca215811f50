"""Tasks that ship, beside the embedded policy's arithmetic: each module has `task()`, and `source()` if it makes its rows."""

from __future__ import annotations

from typing import Any

from workbench.data.checks import Checked
from workbench.data.sources import Source
from workbench.data.split import split_rows
from workbench.task import Row


def task_rows(source: Source, held_out_percent: int = 10, **options: Any) -> tuple[list[Row], list[Row]]:
    """(training rows, held-out rows) of a source, the way notebook 01 makes them: checked, and split by a stable hash.

    Args:
        options: as for `Checked` (`system`, `examples`, `prompt_column`, ...).
    """
    kept = Checked(source, **options).collect().kept
    return split_rows(kept, held_out_percent, key=source.split_by, salt=source.salt)
