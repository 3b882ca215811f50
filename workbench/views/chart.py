"""One chart of the run figure: lines and areas whose artists are made once and given new data.

Curves are drawn over a frame that mostly stays (limits move in round steps): to lay out text is what takes a figure's time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.views.figure import BLUE, GREY, style
from workbench.views.history import Envelope, History, envelope

MAX_POINTS = 300  # of a line that is as wide as the figure
_ROUND = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_ROOM = 1.02  # so that a curve does not run along the frame
_PEAK = 4.0  # a point this many times above the 99th percentile leaves the scale, and is named in words
_ENOUGH = 50  # points that a percentile needs


def round_up(value: float) -> float:
    """The next round number: limits that move in steps leave most redraws the same frame."""
    if not value > 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in _ROUND if power * step >= value * (1 - 1e-9))


def tick_label(value: float, top: float) -> str:
    """A tick's number on an axis that reaches up to `top`, short enough to stand beside a narrow chart: 2e-5, 0.25, 100000."""
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
    stack: Sequence[tuple[str, str, str]] = ()  # (column, label, colour) of areas on top of one another
    alpha: float = 0.45  # of the stack
    band: tuple[str, str] | None = None  # least and greatest: a faint area between two columns
    share: bool = False  # the left axis goes from 0 to 1
    right_share: bool = False  # the right one does
    peaks: bool = False  # a lone peak may leave the scale, so that it does not flatten all the rest
    legend_rows: int = 1  # between title and axis
    columns: int = 0  # of a legend of all that is here; 0: whoever knows what is shown makes it
    points: int = 2 * MAX_POINTS // 5  # that a line has at most; a longer history is drawn as means of so many buckets
    shown_legend: Any = None

    def __post_init__(self) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

        axis = self.axis
        style(axis)
        self.head(self.legend_rows)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        self.right = axis.twinx() if self.right_share or any(line.right for line in self.lines) else None
        self.axes = [axis] if self.right is None else [axis, self.right]
        if self.right is not None:
            self.right.spines["top"].set_visible(False)
            self.right.spines["right"].set_color("#cccccc")
            self.right.tick_params(labelsize=7, colors=GREY)
        for each, shared in zip(self.axes, (self.share, self.right_share)):
            each.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
            # matplotlib's own formatter writes what the numbers have in common over the legend.
            plain = FuncFormatter(lambda value, _, each=each: tick_label(value, max(map(abs, each.get_ylim()))))
            each.yaxis.set_major_formatter(PercentFormatter(1.0) if shared else plain)
            # At a place of its own: to look for a free one costs a tenth of drawing the frame.
            each.xaxis.set_label_coords(0.5, -0.16)
            each.yaxis.set_label_coords(-0.1, 0.5)
        look = {"fontsize": 7, "color": GREY, "ha": "right", "va": "top", "animated": True}
        self.peak = axis.text(0.99, 0.97, "", transform=axis.transAxes, **look)
        self.extra: list[Any] = []  # artists that somebody else keeps up to date
        self.between = self._area(BLUE, 0.15, "min to max") if self.band else None
        self.areas = [self._area(colour, self.alpha, label) for _, label, colour in self.stack]
        lines, self.lines = self.lines, []
        for line in lines:
            self.add(line)
        if self.columns:
            self.legend([handle for each in self.axes for handle in each.get_legend_handles_labels()[0]], self.columns)

    def head(self, legend_rows: int) -> None:
        """Place the title above a legend of so many rows."""
        self.axis.set_title(self.title, fontsize=9, loc="left", y=1.0, pad=6 + 11 * legend_rows)

    def _area(self, colour: str, alpha: float, label: str | None = None) -> Any:
        look = {"color": colour, "alpha": alpha, "linewidth": 0, "label": label, "animated": True}
        return self.axis.fill_between([0, 1], [0, 0], [0, 0], **look)

    def add(self, line: Line) -> Line:
        """Add the curve of one column."""
        line.shade = self._area(line.colour, 0.22) if line.shaded else None
        look = {"color": line.colour, "linewidth": line.width, "linestyle": line.style, "animated": True}
        (line.artist,) = (self.right if line.right else self.axis).plot([], [], label=line.label, **look)
        self.lines.append(line)
        return line

    def legend(self, artists: Sequence[Any], columns: int) -> Any:
        """A legend of these, in this order, between title and axis."""
        if self.shown_legend is not None:
            self.shown_legend.remove()
        self.shown_legend = self.axis.legend(
            artists, [artist.get_label() for artist in artists], fontsize=7, frameon=False, ncols=columns,
            loc="lower left", bbox_to_anchor=(-0.01, 1.0), borderaxespad=0.2, borderpad=0.2, handlelength=1.3,
            handletextpad=0.5, columnspacing=1.1,
        )  # fmt: skip
        return self.shown_legend

    def fill(self, steps: np.ndarray, history: History, most_x: float) -> tuple[Any, ...]:
        """Give the artists the history as it is now; returns what the frame depends on."""

        def column(key: str) -> Envelope:
            there = history.measured(key)
            return envelope(steps[there], history[key][there], self.points)

        height = depth = right_height = 0.0
        for line in self.lines:
            found = column(line.key)
            line.artist.set_data(found.x, found.mean)
            line.artist.set_marker("." if np.isfinite(found.mean).sum() == 1 else "")  # one point is no line
            low, high = (found.low, found.high) if line.shaded else (found.mean, found.mean)
            if line.shaded:
                _fill_between(line.shade, found.x, low, high)
            if line.right:
                right_height = max(right_height, _greatest(high))
            else:
                height, depth = max(height, _greatest(high)), max(depth, _greatest(-low))
        upper: Any = 0.0
        for area, (key, _, _) in zip(self.areas, self.stack if len(steps) else ()):
            found, lower = column(key), upper
            upper = lower + np.nan_to_num(found.mean)
            area.set_data(found.x, np.broadcast_to(lower, upper.shape), upper)
        height = max(height, _greatest(np.atleast_1d(upper)))
        if self.band:
            lowest, highest = column(self.band[0]), column(self.band[1])
            _fill_between(self.between, lowest.x, lowest.low, highest.high)
            height = max(height, _greatest(highest.high))
        top = self._within_scale(steps, history, height)
        limits = (0.0, 1.0) if self.share else (-round_up(_ROOM * depth) if depth > 0 else 0.0, round_up(_ROOM * top))
        right_limits = (0.0, 1.0 if self.right_share else round_up(_ROOM * right_height))
        self.axis.set_xlim(0, most_x)
        for axis, its in zip(self.axes, (limits, right_limits)):
            axis.set_ylim(*its)
        return most_x, limits, right_limits

    def _within_scale(self, steps: np.ndarray, history: History, top: float) -> float:
        self.peak.set_text("")
        if not self.peaks or top <= 0:
            return top
        columns = [history[line.key] for line in self.lines if not line.right]
        columns += [np.nansum([history[key] for key, _, _ in self.stack], axis=0)] if self.stack else []
        for values in columns:
            there = values[~np.isnan(values)]
            if len(there) < _ENOUGH:
                return top
            usual = float(np.percentile(there, 99))
            if usual > 0 and there.max() > _PEAK * usual:
                place = steps[int(np.nanargmax(values))]
                self.peak.set_text(f"peak {there.max():.3g} at step {place:.0f} (off the scale)")
                top = 1.5 * usual
        return top

    def moving(self) -> list[Any]:
        """The artists that are drawn over the frame, from the back to the front."""
        areas = [*([self.between] if self.band else []), *self.areas]
        shades = [line.shade for line in self.lines if line.shaded]
        right, left = ([line.artist for line in self.lines if line.right is side] for side in (True, False))
        return [*areas, *shades, *right, *reversed(left), *self.extra, self.peak]


def _greatest(values: np.ndarray) -> float:
    there = values[np.isfinite(values)]
    return float(there.max()) if len(there) else 0.0


def _fill_between(area: Any, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    there = np.isfinite(low) & np.isfinite(high)
    area.set_visible(bool(there.any()))
    if there.any():
        area.set_data(x[there], low[there], high[there])
