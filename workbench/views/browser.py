"""Browse a run's completions in a cell: a filter, an order, pages, and the group of the chosen
completion.

DuckDB reads the record, a page at a time. Without widgets it is the first page as a table.
"""

from __future__ import annotations

from typing import Any

from workbench.base.errors import WorkbenchError
from workbench.base.kinds import Fields
from workbench.inspection.browsing import EXAMPLES, PAGE, browse
from workbench.inspection.reading import told_apart
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import batch_and_place
from workbench.views.groups import group_html, group_of
from workbench.views.look import MUTED
from workbench.views.tables import Table, Verbatim, coloured, one_line, short_name
from workbench.views.widgets import Parts, no_widgets, widget_view

_LONGEST = 160  # characters of a completion in a page
_WIDE = {"width": "100%"}


class Browser:
    """A run's completions, filtered and sorted, a page at a time; below, the group of the chosen
    one, side by side.

    >>> print(wb.inspection.Browser(wb.open_run(), where="step = 1"))
    ...

    Leave it as the last line of a cell. With the slider in focus the arrow keys go to the next and
    the previous completion, over the ends of the page.

    Args:
        where, sort: as for `browse`; they can be changed in the cell.
        size: completions per page.
    """

    def __init__(
        self, run: RunDirectory, where: str = "", sort: str = "", *, size: int = PAGE
    ) -> None:
        self.run = run
        self.size = size
        self.page = 0
        self.listing = browse(run, where, sort, size=size)
        self.parts = Parts()
        self.widget = None if no_widgets() else self._build(where, sort)

    @property
    def table(self) -> Table:
        """The page as a table."""
        frame = self.listing.frame
        frame = frame.assign(prompt=told_apart(frame["prompt"].tolist()))
        texts = frame.columns.isin(["prompt", "completion"])
        rows = [
            [Verbatim(one_line(own, _LONGEST)) if text else own for text, own in zip(texts, row)]
            for row in frame.itertuples(index=False)
        ]
        names = [short_name(name.removeprefix("score.")) for name in frame.columns]
        numbered = [[place, *row] for place, row in enumerate(rows)]
        return Table(["", *names], numbered, self.listing.verdict)

    def __str__(self) -> str:
        return str(self.table)

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: object) -> Fields:
        # the saved notebook shows this page
        bundle = {"text/plain": str(self), "text/html": self.table._repr_html_()}
        return bundle | (widget_view(self.widget) if self.widget is not None else {})

    def _build(self, where: str, sort: str) -> Any:
        import ipywidgets as kit

        scores = [f'"{name}"' for name in self.listing.frame.columns if name.startswith("score.")]
        columns = ["total", "advantage", "length_tokens", *scores]
        orders = ["", *(f"{column}{end}" for column in columns for end in (" desc", ""))]
        add = self.parts.add

        def first(_: str) -> None:
            self.show(0)

        typed: Fields = {"continuous_update": False, "description": "where", "layout": _WIDE}
        above = add("where", "Text", first, value=where, placeholder=EXAMPLES, **typed)
        typed = {"continuous_update": False, "description": "sort by", "options": orders}
        line = [
            add("sort", "Combobox", first, value=sort, **typed),
            add("back", "Button", lambda: self.show(self.page - 1), description="Previous page"),
            add("next", "Button", lambda: self.show(self.page + 1), description="Next page"),
            add("chosen", "IntSlider", self._turn, description="completion"),
        ]
        below = [add(name, "HTML", layout=_WIDE) for name in ("rows", "group")]
        self._fill()
        return kit.VBox([above, kit.HBox(line), *below])

    def show(self, page: int, place: int = 0) -> None:
        """Go to a page, and on it to a completion (-1: the last); an expression that cannot be read
        changes nothing.
        """
        where, sort = self.parts["where"].value, self.parts["sort"].value
        try:
            self.listing = browse(self.run, where, sort, page, self.size)
        except WorkbenchError as error:
            self.parts["rows"].value = coloured(str(error), MUTED) + self.table._repr_html_()
            return
        self.page = page
        self._fill(place % max(1, len(self.listing.frame)))

    def _turn(self, place: int) -> None:
        # A place before the first of a page, or after its last, stands for another page.
        if place < 0:
            self.show(self.page - 1, -1)
        elif place < len(self.listing.frame):
            self._show_group()
        else:
            self.show(self.page + 1)

    def _fill(self, place: int = 0) -> None:
        more = bool(self.listing.numbers["more"])
        chosen = self.parts["chosen"]
        with self.parts.quietly():
            chosen.min = -1 if self.page > 0 else 0
            chosen.max = max(0, len(self.listing.frame) - 1) + more
            chosen.value = place
        self.parts["rows"].value = self.table._repr_html_()
        self.parts["back"].disabled = self.page == 0
        self.parts["next"].disabled = not more
        self._show_group()

    def _show_group(self) -> None:
        page = ""
        if len(self.listing.frame):
            row = self.listing.frame.iloc[self.parts["chosen"].value]
            page = group_html(
                group_of(*batch_and_place(self.run, int(row["step"]), int(row["group"])))
            )
        self.parts["group"].value = page
