"""Browse a run's completions in a cell: a filter, an order, pages, and the group of the one that is chosen.

What is asked is read by DuckDB from the record, a page at a time. Without widgets it is the first page as a table.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from workbench.errors import WorkbenchError
from workbench.inspection.browsing import EXAMPLES, PAGE, browse
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import read_batches
from workbench.views.controls import WIDGETS, widget_view
from workbench.views.group_view import ShownGroup, group_html
from workbench.views.tables import MUTED, Table, Verbatim, coloured, number, one_line, short_name

_LONGEST = 160  # characters of a completion in a page
_WIDE = {"width": "100%"}


class Browser:
    """A run's completions, filtered and sorted, a page at a time; below, the group of the one that is chosen, side by side.

    >>> print(wb.inspection.Browser(wb.open_run(), where="step = 1"))
    ...

    Leave it as the last line of a cell. With the slider in focus the arrow keys go to the next and the previous completion, over
    the ends of the page.

    Args:
        where, sort: as for `browse`; they can be changed in the cell.
        size: completions of a page.
    """

    def __init__(self, run: RunDirectory, where: str = "", sort: str = "", *, size: int = PAGE) -> None:
        self.run, self.where, self.sort, self.size, self.page = run, where, sort, size, 0
        self.found, self.widget = browse(run, where, sort, size=size), None
        if os.environ.get(WIDGETS) != "0":
            with contextlib.suppress(ImportError):
                self.widget = self._build()

    @property
    def table(self) -> Table:
        """The page as a table."""
        frame, rows = self.found.frame, []
        scores = [name for name in frame.columns if name.startswith("score.")]
        for place, own in enumerate(frame.to_dict("records")):
            cut = "" if own["finish_reason"] != "length" else ", cut"
            numbers = [number(own[name]) for name in (*scores, "total")] + [number(own["advantage"], "+.2f")]
            texts = [Verbatim(one_line(own[name], _LONGEST)) for name in ("prompt", "completion")]
            rows.append([place, own["step"], *texts, *numbers, f"{own['length_tokens']}{cut}"])
        names = [short_name(name.removeprefix("score.")) for name in scores]
        return Table(["", "step", "prompt", "completion", *names, "total", "advantage", "tokens"], rows, self.found.verdict)

    def __str__(self) -> str:
        return str(self.table)

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle = {"text/plain": str(self), "text/html": self.table._repr_html_()}  # the saved notebook shows this page
        return bundle | (widget_view(self.widget) if self.widget is not None else {})

    def _build(self) -> Any:
        import ipywidgets as kit

        scores = [name for name in self.found.frame.columns if name.startswith("score.")] or []
        orders = ["", "total desc", "total", "advantage desc", "advantage", "length_tokens desc", "length_tokens"]
        orders += [f'"{name}"{end}' for name in scores for end in (" desc", "")]
        word = {"description_width": "initial"}
        self._where = kit.Text(value=self.where, description="where", placeholder=EXAMPLES, continuous_update=False, layout=_WIDE)
        self._sort = kit.Combobox(value=self.sort, options=orders, description="sort by", continuous_update=False)
        self._back, self._on = kit.Button(description="Previous page"), kit.Button(description="Next page")
        self._chosen = kit.IntSlider(description="completion", min=0, style=word)
        self._rows, self._group = kit.HTML(layout=_WIDE), kit.HTML(layout=_WIDE)
        for name, widget in (("where", self._where), ("sort", self._sort), ("rows", self._rows), ("group", self._group)):
            widget.add_class(f"workbench-browser-{name}")
        self._where.observe(lambda _: self.show(0), "value")
        self._sort.observe(lambda _: self.show(0), "value")
        self._chosen.observe(lambda _: self._turn(), "value")
        self._back.on_click(lambda _: self.show(self.page - 1))
        self._on.on_click(lambda _: self.show(self.page + 1))
        self._fill()
        turns = kit.HBox([self._sort, self._back, self._on, self._chosen])
        return kit.VBox([self._where, turns, self._rows, self._group])

    def show(self, page: int, place: int = 0) -> None:
        """Go to a page, and on it to a completion (-1: the last); an expression that cannot be read changes nothing."""
        try:
            self.found = browse(self.run, self._where.value, self._sort.value, page, self.size)
        except WorkbenchError as error:
            self._rows.value = coloured(str(error), MUTED) + self.table._repr_html_()
            return
        self.page, self.where, self.sort = page, self._where.value, self._sort.value
        self._fill(place % max(1, len(self.found.frame)))

    def _turn(self) -> None:
        # A place before the first of a page, or after its last, stands for another page.
        place = self._chosen.value
        if self._filling or 0 <= place < len(self.found.frame):
            return None if self._filling else self._show_group()
        return self.show(self.page + 1) if place > 0 else self.show(self.page - 1, -1)

    def _fill(self, place: int = 0) -> None:
        last, more = max(0, len(self.found.frame) - 1), bool(self.found.numbers["more"])
        self._filling = True
        with self._chosen.hold_trait_notifications():
            self._chosen.min, self._chosen.max, self._chosen.value = -(self.page > 0), last + more, place
        self._filling = False
        self._rows.value = self.table._repr_html_()
        self._back.disabled, self._on.disabled = self.page == 0, not more
        self._show_group()

    def _show_group(self) -> None:
        if not len(self.found.frame):
            self._group.value = ""
            return
        own = self.found.frame.iloc[self._chosen.value]
        for batch in read_batches(self.run, [int(own["step"])]):
            places = [place for place, group in enumerate(batch.group_places) if group == own["group"]]
            if places:
                self._group.value = group_html(ShownGroup(batch.group(places[0]), places[0], batch.group_count))
