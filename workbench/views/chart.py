"""One chart of the run figure: lines and areas whose artists are made once and given new data.

What moves (curves) is drawn over what mostly stays (frame, ticks, grid, titles, legend), so that a redraw seldom lays out
text, which is what a figure's time goes into. Limits therefore move in round steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from workbench.views.figure import GREY, style
from workbench.views.history import MAX_POINTS, Envelope, History, envelope

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
    if not value:
        return "0"
    if top >= 0.002:
        return f"{value:.6g}"
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"


def _ticks(axis: Any, share: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

    axis.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    # matplotlib's own formatter writes what the numbers have in common over the legend.
    plain = FuncFormatter(lambda value, _: tick_label(value, max(map(abs, axis.get_ylim()))))
    axis.yaxis.set_major_formatter(PercentFormatter(1.0) if share else plain)
    # At a place of its own: to look for a free one costs a tenth of drawing the frame.
    axis.xaxis.set_label_coords(0.5, -0.16)
    axis.yaxis.set_label_coords(-0.1, 0.5)


class Line(NamedTuple):
    """The line of one column."""

    artist: Any
    key: str
    right: bool  # on the second axis
    shade: Any  # the area from least to greatest, where the line shows means; None: there is none


class Chart:
    """An axis with its curves.

    Args:
        axis: of matplotlib.
        title: what is drawn, with its unit.
        right: with a second axis on the right.
        share: the left axis goes from 0 to 1; `right_share`: the right one does.
        peaks: a lone peak may leave the scale, so that it does not flatten all the rest.
        legend_rows: rows that the legend takes between title and axis.
        points: that a line has at most; a longer history is drawn as the means of so many buckets.
    """

    def __init__(
        self,
        axis: Any,
        title: str,
        *,
        right: bool = False,
        share: bool = False,
        right_share: bool = False,
        peaks: bool = False,
        legend_rows: int = 1,
        points: int = 2 * MAX_POINTS // 5,
    ) -> None:
        from matplotlib.ticker import MaxNLocator

        style(axis)
        self.axis, self.share, self.right_share, self.peaks, self.points = axis, share, right_share, peaks, points
        self.right = axis.twinx() if right else None
        self.axes = [axis, self.right] if right else [axis]
        self.lines: list[Line] = []
        self.stacks: list[tuple[list[Any], list[str]]] = []
        self.bands: list[tuple[Any, str, str]] = []
        self.extra: list[Any] = []  # artists that somebody else keeps up to date
        self.title, self.shown_legend = title, None
        self.head(legend_rows)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        _ticks(axis, share)
        if self.right is not None:
            self.right.spines["top"].set_visible(False)
            self.right.spines["right"].set_color("#cccccc")
            self.right.tick_params(labelsize=7, colors=GREY)
            _ticks(self.right, right_share)
        look = {"fontsize": 7, "color": GREY, "ha": "right", "va": "top", "animated": True}
        self.peak = axis.text(0.99, 0.97, "", transform=axis.transAxes, **look)

    def head(self, legend_rows: int) -> None:
        """Place the title above a legend of so many rows."""
        self.axis.set_title(self.title, fontsize=9, loc="left", y=1.0, pad=6 + 11 * legend_rows)

    # -- curves ------------------------------------------------------------------------------------------------------
    def line(self, key: str, label: str, colour: str, *, right: bool = False, shade: bool = False, **look: Any) -> Any:
        """Add the line of one column.

        Args:
            right: on the second axis.
            shade: where it shows means, with a faint area from the least to the greatest.
        """
        area = self._area(colour, 0.22) if shade else None
        axis = self.right if right else self.axis
        (artist,) = axis.plot([], [], color=colour, label=label, animated=True, **look)
        self.lines.append(Line(artist, key, right, area))
        return artist

    def _area(self, colour: str, alpha: float, label: str | None = None) -> Any:
        look = {"color": colour, "alpha": alpha, "linewidth": 0, "label": label, "animated": True}
        return self.axis.fill_between([0, 1], [0, 0], [0, 0], **look)

    def stack(self, *parts: tuple[str, str, str], alpha: float = 0.45) -> list[Any]:
        """Add areas on top of one another: (column, label, colour) each."""
        areas = [self._area(colour, alpha, label) for _, label, colour in parts]
        self.stacks.append((areas, [key for key, _, _ in parts]))
        return areas

    def band(self, low: str, high: str, label: str, colour: str) -> None:
        """Add a faint area between two columns."""
        self.bands.append((self._area(colour, 0.15, label), low, high))

    def legend(self, artists: Sequence[Any] | None = None, columns: int = 4) -> Any:
        """A legend between title and axis; artists: in this order, None: all that have a label."""
        if artists is None:
            artists = [handle for axis in self.axes for handle in axis.get_legend_handles_labels()[0]]
        if self.shown_legend is not None:
            self.shown_legend.remove()
        self.shown_legend = self.axis.legend(
            artists, [artist.get_label() for artist in artists], fontsize=7, frameon=False, ncols=columns,
            loc="lower left", bbox_to_anchor=(-0.01, 1.0), borderaxespad=0.2, borderpad=0.2, handlelength=1.3,
            handletextpad=0.5, columnspacing=1.1,
        )  # fmt: skip
        return self.shown_legend

    # -- drawing -----------------------------------------------------------------------------------------------------
    def fill(self, steps: np.ndarray, history: History, most_x: float) -> tuple[Any, ...]:
        """Give the artists the history as it is now; returns what the frame depends on."""

        def column(key: str) -> Envelope:
            return envelope(steps, history[key], self.points)

        height = depth = right_height = 0.0
        for line in self.lines:
            found = column(line.key)
            line.artist.set_data(found.x, found.mean)
            # Where no shade is drawn, what it would show needs no room.
            low, high = (found.mean, found.mean) if line.shade is None else (found.low, found.high)
            if line.shade is not None:
                _fill_between(line.shade, found.x, low, high)
            if line.right:
                right_height = max(right_height, _greatest(high))
            else:
                height, depth = max(height, _greatest(high)), max(depth, _greatest(-low))
        for areas, keys in self.stacks:
            height = max(height, _fill_stack(areas, [column(key) for key in keys]))
        for area, below, above in self.bands:
            lower, upper = column(below), column(above)
            _fill_between(area, lower.x, lower.low, upper.high)
            height = max(height, _greatest(upper.high))
        top = self._within_scale(steps, history, height)
        limits = (-round_up(_ROOM * depth) if depth > 0 else 0.0, round_up(_ROOM * top))
        limits = (0.0, 1.0) if self.share else limits
        right_limits = (0.0, 1.0) if self.right_share else (0.0, round_up(_ROOM * right_height))
        self.axis.set_xlim(0, most_x)
        self.axis.set_ylim(*limits)
        if self.right is not None:
            self.right.set_ylim(*right_limits)
        return most_x, limits, right_limits

    def _within_scale(self, steps: np.ndarray, history: History, top: float) -> float:
        self.peak.set_text("")
        if not self.peaks or top <= 0:
            return top
        columns = [history[line.key] for line in self.lines if not line.right]
        columns += [np.nansum([history[key] for key in keys], axis=0) for _, keys in self.stacks]
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
        left = [line.artist for line in self.lines if not line.right]
        return [
            *(area for area, _, _ in self.bands),
            *(area for areas, _ in self.stacks for area in areas),
            *(line.shade for line in self.lines if line.shade is not None),
            *(line.artist for line in self.lines if line.right),
            *reversed(left),
            *self.extra,
            self.peak,
        ]


def _greatest(values: np.ndarray) -> float:
    there = values[np.isfinite(values)]
    return float(there.max()) if len(there) else 0.0


def _fill_between(area: Any, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    there = np.isfinite(low) & np.isfinite(high)
    area.set_visible(bool(there.any()))
    if there.any():
        area.set_data(x[there], low[there], high[there])


def _fill_stack(areas: Sequence[Any], columns: Sequence[Envelope]) -> float:
    # Returns the height of the whole stack.
    if not len(columns[0].x):
        return 0.0
    lower: Any = 0.0
    for area, column in zip(areas, columns, strict=True):
        upper = lower + np.nan_to_num(column.mean)
        area.set_data(column.x, np.broadcast_to(lower, upper.shape), upper)
        lower = upper
    return _greatest(lower)
