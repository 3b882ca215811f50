"""One chart of the run figure: curves and areas over the steps, made once and given new data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from workbench.base.kinds import Axes
from workbench.views.figure import drawn_once
from workbench.views.history import History
from workbench.views.look import ALARM, GREY, INK, PALE, PAPER, RED, SMALL, TITLE, settings

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.legend import Legend
    from matplotlib.lines import Line2D

# What the charts draw, and how everything in them looks.
SPECIFIED = settings(Path(__file__).with_name("charts.yaml"))
LOOKS: dict[str, Any] = SPECIFIED["looks"]
MAX_POINTS = 300  # of a line that is as wide as the figure
_ROOM = 1.04  # so that a curve does not run along the frame
_PEAK = 4.0  # a point this many times above the 99th percentile leaves the scale, and is named
_ENOUGH = 50  # points that a percentile needs


def tick_label(value: float, top: float) -> str:
    """A tick's number on an axis that reaches up to `top`, short: 2e-5, 0.25, 100000."""
    if not value or top >= 0.002:
        return f"{value or 0:.6g}"
    return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")


class Line(NamedTuple):
    """The curve of one column."""

    key: str
    artist: Line2D
    right: bool  # on the second axis
    shaded: Sequence[str]  # columns of the least and the greatest
    shade: Artist | None  # the area between them


@dataclass
class Chart:
    """An axis with its curves."""

    axis: Any  # of matplotlib
    title: str  # what is drawn, with its unit
    lines: Sequence[Any] = ()  # what `add` takes, from the front to the back
    # (column, label, colour, hatch) of stacked areas
    stack: Sequence[tuple[str, str, str, str]] = ()
    alpha: float = 0.45  # of the stack
    share: bool = False  # the left axis goes from 0 to 1
    right_share: bool = False  # the right one does
    peaks: bool = False  # a lone peak of the first line may leave the scale
    hint: str = ""  # in place of a legend
    size: float = TITLE  # of the title's type
    ticks: int = 3  # of an axis, about: each costs as much as a curve
    alarms: Sequence[str] = ()  # names of the verdicts that are about what is drawn
    legend_rows: int = 1  # between title and axis
    columns: int = 0  # of a legend of all that is here; 0: the caller makes it
    points: int = 2 * MAX_POINTS // 5  # of a line; a longer history is drawn as means of buckets

    def __post_init__(self) -> None:
        from matplotlib.ticker import MaxNLocator

        axis = self.axis
        self.head(self.legend_rows)
        axis.xaxis.set_major_locator(MaxNLocator(self.ticks, integer=True, steps=[1, 2, 5, 10]))
        self.right: Any = None  # the axis of what is `right`, if anything is
        self._scale(axis, self.share, self.ticks)
        if self.right_share or any(line.get("right") for line in self.lines):
            self.right = axis.twinx()
            self.right.spines["top"].set_visible(False)
            self.right.spines["right"].set_color(PALE)
            self.right.tick_params(labelsize=SMALL, colors=GREY)
            self._scale(self.right, self.right_share, 2)
        self.axes = [axis] if self.right is None else [axis, self.right]
        look = {"transform": axis.transAxes, **LOOKS["axis"]}
        self.peak = axis.text(0.99, 0.97, "", ha="right", va="top", **look)
        self.words = axis.text(0.5, 0.5, "", ha="center", va="center", **look)
        axis.text(0, 1.03, self.hint, va="bottom", **look)
        (self.alarm,) = axis.plot([], [], transform=axis.get_xaxis_transform(), **LOOKS["alarm"])
        self.areas = [
            self._area(color=colour, alpha=self.alpha, label=label, hatch=hatch)
            for _, label, colour, hatch in self.stack
        ]
        self.shown_legend: Legend | None = None
        self._entries: list[tuple[object, str]] = []
        specified, self.lines = self.lines, []
        for line in specified:
            self.add(**line)
        if self.columns:
            pairs = [zip(*each.get_legend_handles_labels(), strict=True) for each in self.axes]
            self.legend([entry for entries in pairs for entry in entries], self.columns)

    @staticmethod
    def _scale(axis: Axes, share: bool, ticks: int) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

        def short(value: float, _: object) -> str:
            return tick_label(value, max(map(abs, axis.get_ylim())))

        # At a fixed place: to look for a free one costs a tenth of a drawing.
        axis.xaxis.set_label_coords(0.5, -0.19)
        axis.yaxis.set_label_coords(-0.1, 0.5)
        axis.yaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))
        # matplotlib's own formatter writes what the numbers have in common over the legend.
        axis.yaxis.set_major_formatter(PercentFormatter(1.0) if share else FuncFormatter(short))

    def head(self, legend_rows: int) -> None:
        """Place the title above a legend of this many rows."""
        look = {"fontsize": self.size, "weight": "bold", "loc": "left", "y": 1.0}
        self.name = self.axis.set_title(self.title, pad=6 + 11 * legend_rows, **look)

    def alarmed(self, steps: Sequence[int]) -> None:
        """Show at which steps alarms were raised about what is drawn."""
        x = [value for step in steps for value in (step, step, np.nan)]
        self.alarm.set_data(x, [0, 1, np.nan] * len(steps))
        words = f"{ALARM} {self.title}" if steps else self.title
        self.name.set(text=words, color=RED if steps else INK)

    def _area(self, **look: Any) -> Any:
        look |= {"linewidth": 0.8, "edgecolor": PAPER}  # a gap between neighbours; after the colour
        return self.axis.fill_between([0, 1], [0, 0], [0, 0], **look)

    def add(self, key: str, right: bool = False, shaded: Sequence[str] = (), **look: Any) -> None:
        """Add the curve of one column, behind those that are there: on the right axis, or with a
        faint area from the least of one column to the greatest of another.
        """
        axis = self.right if right else self.axis
        depth = 2.5 - 0.001 * len(self.lines)
        shade = None
        if shaded:
            label = None if key in shaded else "range"
            shade = self._area(color=look["color"], alpha=0.22, label=label)
        (artist,) = axis.plot([], [], zorder=depth, **look)
        self.lines = [*self.lines, Line(key, artist, right, shaded, shade)]

    def legend(self, entries: Sequence[tuple[object, str]], columns: int) -> None:
        """A legend of these artists and their labels, between title and axis."""
        if entries == self._entries:
            return
        self._entries = list(entries)
        if self.shown_legend is not None:
            self.shown_legend.remove()
        self.shown_legend = self.axis.legend(
            *zip(*entries, strict=True), ncols=columns, **LOOKS["legend"]
        )
        for handle in self.shown_legend.get_lines():
            if handle.get_marker() == ".":  # the curve's only point now, not its look
                handle.set_marker("")
        drawn_once(self.shown_legend)

    def fill(self, history: History, last_step: float) -> None:
        """Draw the history as it is now, with an x axis up to `last_step`."""
        column = partial(history.curve, points=self.points)
        left = [np.zeros(1)]  # what the axes have to reach
        right = [np.zeros(1)]
        for line in self.lines:
            curve = column(line.key)
            line.artist.set_data(curve.x, curve.mean)
            lone = np.isfinite(curve.mean).sum() == 1  # one point is no line
            line.artist.set_marker("." if lone else "")
            (right if line.right else left).append(curve.mean)
            if line.shaded:
                least, greatest = map(column, line.shaded)
                line.shade.set_data(least.x, least.low, greatest.high)
                left += [least.low, greatest.high]
        lower = np.zeros(1)
        for area, (key, *_) in zip(self.areas, self.stack if len(history) else ()):
            curve = column(key)
            upper = lower + np.nan_to_num(curve.mean)
            area.set_data(curve.x, np.broadcast_to(lower, upper.shape), upper)
            left.append(upper)
            lower = upper
        reach = _finite(np.concatenate(left))
        top = self._within_scale(history, reach.max())
        self.axis.set_xlim(0, last_step)
        self.axis.set_ylim(*((0, 1) if self.share else (_ROOM * reach.min(), _ROOM * top or 1.0)))
        if self.right is not None:
            top = 1 if self.right_share else _ROOM * _finite(np.concatenate(right)).max()
            self.right.set_ylim(0, top or 1.0)

    def _within_scale(self, history: History, top: float) -> float:
        self.peak.set_text("")
        values = history[self.lines[0].key] if self.peaks else np.zeros(0)
        finite = _finite(values)
        usual = float(np.percentile(finite, 99)) if len(finite) >= _ENOUGH else 0.0
        if not usual or finite.max() <= _PEAK * usual:
            return top
        place = history.steps[int(np.nanargmax(values))]
        self.peak.set_text(f"peak {finite.max():.3g} at step {place:.0f} (off the scale)")
        return 1.5 * usual


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]
