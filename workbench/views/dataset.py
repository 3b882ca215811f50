"""The results of notebook 01 as tables and pictures."""

from __future__ import annotations

from typing import Any

from workbench.views.charts import length_histogram, pass_rates
from workbench.views.figure import Picture
from workbench.views.tables import Table, Verbatim


def rows_table(rows: Any) -> Table:
    """The first rows of a source, every column that one of them has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[Verbatim(value) if isinstance(value := row.get(name), str) else value for name in names] for row in rows]
    return Table(names, cells, f"the first rows of {rows.name}")


def lengths_picture(lengths: Any) -> Picture:
    """`PromptLengths` as a histogram, with the limits that cover most prompts."""
    return Picture(length_histogram(lengths.lengths, lengths.covering, lengths.max_tokens), str(lengths))


def difficulty_picture(profile: Any) -> Any:
    """A difficulty `Profile` as bars: prompts by how often they were solved."""
    if not profile.solved:
        return Table(["difficulty"], [[str(profile)]])
    return Picture(pass_rates(profile, profile.settings["num_generations"]), str(profile))
