"""Results of a search in a run: rows, the telling ones first, under a line that counts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.kinds import Fields
from workbench.printable import printable

if TYPE_CHECKING:
    import pandas

SHOWN = 12  # rows in a cell


def frame_of(rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> pandas.DataFrame:
    """Rows as a frame. A lone surrogate in a text, legal in Python, is escaped: no column of texts
    could hold it.
    """
    import pandas

    def held(value: object) -> Any:
        return (
            value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        )

    return pandas.DataFrame([[held(value) for value in row] for row in rows], columns=list(columns))


@dataclass(repr=False)
class Listing:
    """A table of results; a cell shows some of its rows, `frame` holds them all."""

    verdict: str  # in a line or a few
    frame: pandas.DataFrame
    numbers: Fields = field(default_factory=dict)  # the verdict's, for scripts
    # a cell shows rows spread over the table, the last one among them, and not its first
    spread: bool = False

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def some(self) -> pandas.DataFrame:
        """The rows that a cell shows."""
        if not self.spread:
            return self.frame.head(SHOWN)
        # six, or a few more
        return self.frame.iloc[
            sorted({*range(0, len(self), max(1, len(self) // 6)), len(self) - 1})
        ]

    @property
    def left_out(self) -> str:
        """How many rows a cell does not show, in words; empty if none."""
        more = len(self) - len(self.some)
        return f"and {more:,} more rows, in `.frame`" if more else ""

    def __str__(self) -> str:
        some = (
            self.some.to_string(index=False, float_format="%.3g", max_colwidth=60)
            if len(self)
            else ""
        )
        return "\n".join(filter(None, [printable(self.verdict), printable(some), self.left_out]))

    __repr__ = __str__
