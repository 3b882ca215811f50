"""One chart of the run figure: curves and areas over the steps, made once and given new data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.views.figure import BLUE, GREY, style
from workbench.views.history import Envelope, History, envelope

MAX_POINTS = 300  # of a line that is as wide as the figure
_ROOM = 1.04  # so that a curve does not run along the frame
_PEAK = 4.0  # a point this many times above the 99th percentile leaves the scale, and is named
_ENOUGH = 50  # points that a percentile needs


def tick_label(value: float, top: float) -> str:
    """A tick's number on an axis that reaches up to `top`, short: 2e-5, 0.25, 100000."""
    if not value or top >= 0.002:
        return f"{value or 0:.6g}"
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"


@dataclass
class Line:
    """The curve of one column."""

    key: str
    label: str
    colour: str
    width: float = 1.0
    style: str = "-"
    right: bool = False  # on the second axis
    shaded: bool = False  # where it shows means, with a faint area from the least to the greatest
    artist: Any = None
    shade: Any = None


@dataclass
class Chart:
    """An axis with its curves."""

    axis: Any  # of matplotlib
    title: str  # what is drawn, with its unit
    lines: Sequence[Line] = ()  # from the front to the back
    stack: Sequence[tuple[str, str, str]] = ()  # (column, label, colour) of stacked areas
    alpha: float = 0.45  # of the stack
    band: tuple[str, str] | None = None  # least and greatest: a faint area between two columns
    share: bool = False  # the left axis goes from 0 to 1
    right_share: bool = False  # the right one does
    peaks: bool = False  # a lone peak of the first line may leave the scale
    legend_rows: int = 1  # between title and axis
    columns: int = 0  # of a legend of all that is here; 0: the caller makes it
    points: int = 2 * MAX_POINTS // 5  # of a line; a longer history is drawn as means of buckets

    def __post_init__(self) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

        axis = self.axis
        style(axis)
        self.head(self.legend_rows)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        two = self.right_share or any(line.right for line in self.lines)
        # the axis of what is `right`; None: nothing is
        self.right: Any = axis.twinx() if two else None
        self.axes = [axis, self.right] if two else [axis]
        if two:
            self.right.spines["top"].set_visible(False)
            self.right.spines["right"].set_color("#cccccc")
            self.right.tick_params(labelsize=7, colors=GREY)
        for each, shared in zip(self.axes, (self.share, self.right_share)):
            each.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
            # matplotlib's own formatter writes what the numbers have in common over the legend.
            plain = FuncFormatter(
                lambda value, _, each=each: tick_label(value, max(map(abs, each.get_ylim())))
            )
            each.yaxis.set_major_formatter(PercentFormatter(1.0) if shared else plain)
            # At a fixed place: to look for a free one costs a tenth of a drawing.
            each.xaxis.set_label_coords(0.5, -0.16)
            each.yaxis.set_label_coords(-0.1, 0.5)
        look = {"transform": axis.transAxes, "color": GREY}
        self.peak = axis.text(0.99, 0.97, "", fontsize=7, ha="right", va="top", **look)
        self.words = axis.text(0.5, 0.5, "", fontsize=8, ha="center", va="center", **look)
        self.between = self._area(BLUE, 0.15, "min to max") if self.band else None
        self.areas = [self._area(colour, self.alpha, label) for _, label, colour in self.stack]
        self.shown_legend: Any = None
        self._legend_of: list[tuple[Any, str]] = []
        lines, self.lines = self.lines, []
        for line in lines:
            self.add(line)
        if self.columns:
            pairs = [zip(*each.get_legend_handles_labels(), strict=True) for each in self.axes]
            self.legend([entry for entries in pairs for entry in entries], self.columns)

    def head(self, legend_rows: int) -> None:
        """Place the title above a legend of this many rows."""
        self.axis.set_title(self.title, fontsize=9, loc="left", y=1.0, pad=6 + 11 * legend_rows)

    def _area(self, colour: str, alpha: float, label: str | None = None) -> Any:
        look = {"color": colour, "alpha": alpha, "linewidth": 0, "label": label}
        return self.axis.fill_between([0, 1], [0, 0], [0, 0], **look)

    def add(self, line: Line) -> Line:
        """Add the curve of one column, behind those that are there."""
        line.shade = self._area(line.colour, 0.22) if line.shaded else None
        axis = self.right if line.right else self.axis
        look = {"color": line.colour, "linewidth": line.width, "linestyle": line.style}
        depth = 2.5 - 0.001 * len(self.lines)
        (line.artist,) = axis.plot([], [], label=line.label, zorder=depth, **look)
        self.lines = [*self.lines, line]
        return line

    def legend(self, entries: Sequence[tuple[Any, str]], columns: int) -> None:
        """A legend of these artists and their labels, between title and axis."""
        if entries == self._legend_of:
            return
        self._legend_of = list(entries)
        if self.shown_legend is not None:
            self.shown_legend.remove()
        self.shown_legend = self.axis.legend(
            *zip(*entries, strict=True), fontsize=7, frameon=False, ncols=columns,
            loc="lower left", bbox_to_anchor=(-0.01, 1.0), borderaxespad=0.2, borderpad=0.2,
            handlelength=1.3, handletextpad=0.5, columnspacing=1.1,
        )  # fmt: skip
        for handle in self.shown_legend.get_lines():
            if handle.get_marker() == ".":  # the curve's only point now, not its look
                handle.set_marker("")

    def fill(self, steps: np.ndarray, history: History, last_step: float) -> None:
        """Draw the history as it is now, with an x axis up to `last_step`."""

        def column(key: str) -> Envelope:
            rows = history.measured(key)
            return envelope(steps[rows], history[key][rows], self.points)

        left: list[np.ndarray] = []
        right: list[np.ndarray] = []
        for line in self.lines:
            curve = column(line.key)
            line.artist.set_data(curve.x, curve.mean)
            lone = np.isfinite(curve.mean).sum() == 1  # one point is no line
            line.artist.set_marker("." if lone else "")
            reach = right if line.right else left
            reach.append(curve.mean)
            if line.shaded:
                _fill_between(line.shade, curve.x, curve.low, curve.high)
                reach += [curve.low, curve.high]
        lower = 0.0
        for area, (key, _, _) in zip(self.areas, self.stack if len(steps) else ()):
            curve = column(key)
            upper = lower + np.nan_to_num(curve.mean)
            area.set_data(curve.x, np.broadcast_to(lower, upper.shape), upper)
            left.append(upper)
            lower = upper
        if self.band:
            lowest, highest = map(column, self.band)
            _fill_between(self.between, lowest.x, lowest.low, highest.high)
            left.append(highest.high)
        least, greatest = _span(left)
        top = self._within_scale(steps, history, greatest)
        self.axis.set_xlim(0, last_step)
        self.axis.set_ylim(*((0, 1) if self.share else (_ROOM * least, _ROOM * top or 1.0)))
        if self.right is not None:
            self.right.set_ylim(0, 1 if self.right_share else _ROOM * _span(right)[1] or 1.0)

    def _within_scale(self, steps: np.ndarray, history: History, top: float) -> float:
        self.peak.set_text("")
        if not self.peaks:
            return top
        values = history[self.lines[0].key]
        finite = values[np.isfinite(values)]
        usual = float(np.percentile(finite, 99)) if len(finite) >= _ENOUGH else 0.0
        if not usual or finite.max() <= _PEAK * usual:
            return top
        place = steps[int(np.nanargmax(values))]
        self.peak.set_text(f"peak {finite.max():.3g} at step {place:.0f} (off the scale)")
        return 1.5 * usual


def _span(curves: Sequence[np.ndarray]) -> tuple[float, float]:
    """(minimum, maximum) of all finite numbers, 0 among them."""
    values = np.concatenate([[0.0], *curves])
    finite = values[np.isfinite(values)]
    return float(finite.min()), float(finite.max())


def _fill_between(area: Any, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    there = np.isfinite(low) & np.isfinite(high)
    area.set_visible(bool(there.any()))
    if there.any():
        area.set_data(x[there], low[there], high[there])
