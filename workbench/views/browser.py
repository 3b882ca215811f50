"""Browse a run's completions in a cell: a filter, an order, pages, and the group of the chosen
completion.

DuckDB reads the record, a page at a time. Without widgets it is the first page as a table.
"""

from __future__ import annotations

from typing import Any

from workbench.errors import WorkbenchError
from workbench.inspection.browsing import EXAMPLES, PAGE, browse
from workbench.kinds import Fields
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import read_batches
from workbench.views.group_view import ShownGroup, group_html
from workbench.views.tables import MUTED, Table, Verbatim, coloured, number, one_line, short_name
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
        self.where = where
        self.sort = sort
        self.size = size
        self.page = 0
        self.listing = browse(run, where, sort, size=size)
        self.parts = Parts()
        self._filling = False
        self.widget = None if no_widgets() else self._build()

    @property
    def _scores(self) -> list[str]:
        return [name for name in self.listing.frame.columns if name.startswith("score.")]

    @property
    def table(self) -> Table:
        """The page as a table."""
        rows = []
        for place, row in enumerate(self.listing.frame.to_dict("records")):
            texts = [Verbatim(one_line(row[name], _LONGEST)) for name in ("prompt", "completion")]
            numbers = [number(row[name]) for name in (*self._scores, "total")]
            length = (
                f"{row['length_tokens']}, cut"
                if row["finish_reason"] == "length"
                else row["length_tokens"]
            )
            rows.append(
                [place, row["step"], *texts, *numbers, number(row["advantage"], "+.2f"), length]
            )
        names = [short_name(name.removeprefix("score.")) for name in self._scores]
        header = ["", "step", "prompt", "completion", *names, "total", "advantage", "tokens"]
        return Table(header, rows, self.listing.verdict)

    def __str__(self) -> str:
        return str(self.table)

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Fields:
        # the saved notebook shows this page
        bundle = {"text/plain": str(self), "text/html": self.table._repr_html_()}
        return bundle | (widget_view(self.widget) if self.widget is not None else {})

    def _build(self) -> Any:
        import ipywidgets as kit

        columns = ["total", "advantage", "length_tokens", *(f'"{name}"' for name in self._scores)]
        orders = ["", *(f"{column}{end}" for column in columns for end in (" desc", ""))]
        add = self.parts.add
        typed = {"continuous_update": False}
        where = add(
            "where",
            kit.Text(self.where, description="where", placeholder=EXAMPLES, layout=_WIDE, **typed),
        )
        sort = add(
            "sort", kit.Combobox(value=self.sort, options=orders, description="sort by", **typed)
        )
        back = add("back", kit.Button(description="Previous page"))
        more = add("next", kit.Button(description="Next page"))
        word = {"description_width": "initial"}
        chosen = add("chosen", kit.IntSlider(description="completion", min=0, style=word))
        rows = add("rows", kit.HTML(layout=_WIDE))
        group = add("group", kit.HTML(layout=_WIDE))
        where.observe(lambda _: self.show(0), "value")
        sort.observe(lambda _: self.show(0), "value")
        chosen.observe(lambda _: self._turn(), "value")
        back.on_click(lambda _: self.show(self.page - 1))
        more.on_click(lambda _: self.show(self.page + 1))
        self._fill()
        return kit.VBox([where, kit.HBox([sort, back, more, chosen]), rows, group])

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
        self.where = where
        self.sort = sort
        self._fill(place % max(1, len(self.listing.frame)))

    def _turn(self) -> None:
        # A place before the first of a page, or after its last, stands for another page.
        place = self.parts["chosen"].value
        if self._filling:
            return
        if place < 0:
            self.show(self.page - 1, -1)
        elif place < len(self.listing.frame):
            self._show_group()
        else:
            self.show(self.page + 1)

    def _fill(self, place: int = 0) -> None:
        more = bool(self.listing.numbers["more"])
        chosen = self.parts["chosen"]
        self._filling = True
        with chosen.hold_trait_notifications():
            chosen.min = -1 if self.page > 0 else 0
            chosen.max = max(0, len(self.listing.frame) - 1) + more
            chosen.value = place
        self._filling = False
        self.parts["rows"].value = self.table._repr_html_()
        self.parts["back"].disabled = self.page == 0
        self.parts["next"].disabled = not more
        self._show_group()

    def _show_group(self) -> None:
        self.parts["group"].value = ""
        if not len(self.listing.frame):
            return
        row = self.listing.frame.iloc[self.parts["chosen"].value]
        for batch in read_batches(self.run, [int(row["step"])]):
            places = [
                place for place, group in enumerate(batch.group_places) if group == row["group"]
            ]
            if places:
                shown = ShownGroup(batch.group(places[0]), places[0], batch.group_count)
                self.parts["group"].value = group_html(shown)
