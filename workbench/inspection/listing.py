"""What was looked for in a run, and found: rows, the telling ones first, under a line that says how many."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.printable import printable

if TYPE_CHECKING:
    import pandas

SHOWN = 12  # rows in a cell


@dataclass(repr=False)
class Listing:
    """A table of what was found; a cell shows its first rows, `frame` holds them all."""

    verdict: str  # in a line or a few
    frame: pandas.DataFrame
    numbers: dict[str, Any] = field(default_factory=dict)  # the verdict's, for scripts

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def left_out(self) -> str:
        """How many rows a cell does not show, in words; empty if none."""
        return f"and {len(self) - SHOWN:,} more rows, in `.frame`" if len(self) > SHOWN else ""

    def __str__(self) -> str:
        some = self.frame.head(SHOWN).to_string(index=False, float_format="%.3g", max_colwidth=60) if len(self) else ""
        return "\n".join(filter(None, [printable(self.verdict), printable(some), self.left_out]))

    __repr__ = __str__
