"""A checklist as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.views.tables import CellMark, Table, Verbatim


def checklist_table(boxes: Sequence[Any]) -> Table:
    """What to be sure of, box by box, and the call that ticks what is not ticked."""
    rows = [
        [box.when, box.what, CellMark(box.state), Verbatim(box.why), Verbatim(box.call)]
        for box in boxes
    ]
    caption = str(boxes).rpartition("\n")[2]
    return Table(["when", "be sure that", "", "seen", "to tick it"], rows, caption)
