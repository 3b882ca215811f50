"""One chart of the run figure: lines and areas whose artists are made once and given new data.

What moves (curves) is drawn over what mostly stays (frame, ticks, grid, titles, legend), so that a redraw seldom lays out
text, which is what a figure's time goes into. Limits therefore move in round steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.views.figure import GREY, style
from workbench.views.history import MAX_POINTS, Envelope, History, envelope

_ROUND = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_ROOM = 1.02  # so that a curve does not run along the frame
_PEAK = 4.0  # a point this many times above the 99th percentile leaves the scale, and is said in words
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


def _plain_ticks(axis: Any) -> None:
    # matplotlib's own formatter writes what the numbers have in common over the legend.
    from matplotlib.ticker import FuncFormatter

    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value, max(map(abs, axis.get_ylim())))))


class Chart:
    """An axis with its curves.

    Args:
        axis: of matplotlib.
        title: what is drawn, with its unit.
        right: label of a second axis on the right; empty: there is none.
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
        right: str = "",
        share: bool = False,
        right_share: bool = False,
        peaks: bool = False,
        legend_rows: int = 1,
        points: int = 2 * MAX_POINTS // 5,
    ) -> None:
        from matplotlib.ticker import MaxNLocator, PercentFormatter

        style(axis)
        self.axis, self.share, self.right_share, self.peaks, self.points = axis, share, right_share, peaks, points
        self.right = axis.twinx() if right else None
        self.lines: list[tuple[Any, str]] = []  # (artist, key) on the left
        self.shades: dict[str, Any] = {}  # key of a line -> the area from its least to its greatest
        self.right_lines: list[tuple[Any, str]] = []
        self.stacks: list[tuple[list[Any], list[str]]] = []
        self.bands: list[tuple[Any, str, str]] = []
        self._legend: Any = None
        self.title = title
        self.head(legend_rows)
        self.axis.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        self.axis.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        if share:
            self.axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        else:
            _plain_ticks(axis)
        if self.right is not None:
            self.right.spines[["top"]].set_visible(False)
            self.right.tick_params(labelsize=7, colors=GREY)
            self.right.spines["right"].set_color("#cccccc")
            self.right.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
            if right_share:
                self.right.yaxis.set_major_formatter(PercentFormatter(1.0))
            else:
                _plain_ticks(self.right)
        for each in (axis, *([self.right] if self.right is not None else [])):
            # As for the title.
            each.xaxis.set_label_coords(0.5, -0.16)
            each.yaxis.set_label_coords(-0.1, 0.5)
        self._peak = axis.text(
            0.99, 0.97, "", fontsize=7, color=GREY, ha="right", va="top", transform=axis.transAxes, animated=True
        )
        self.extra: list[Any] = []  # artists that somebody else keeps up to date

    def head(self, legend_rows: int) -> None:
        """Place the title above a legend of so many rows."""
        # At a place of its own: to look for a free one costs a tenth of drawing the frame.
        self.axis.set_title(self.title, fontsize=9, loc="left", y=1.0, pad=6 + 11 * legend_rows)

    # -- curves ------------------------------------------------------------------------------------------------------
    def line(self, key: str, label: str, colour: str, *, right: bool = False, shade: bool = False, **look: Any) -> Any:
        """Add the line of one column.

        Args:
            right: on the second axis.
            shade: where it shows means, with a faint area from the least to the greatest.
        """
        axis = self.right if right else self.axis
        if shade:
            self.shades[key] = self._area(colour, 0.22)
        (artist,) = axis.plot([], [], color=colour, label=label, animated=True, **look)
        (self.right_lines if right else self.lines).append((artist, key))
        return artist

    def _area(self, colour: str, alpha: float, label: str | None = None) -> Any:
        return self.axis.fill_between(
            [0, 1], [0, 0], [0, 0], color=colour, alpha=alpha, linewidth=0, label=label, animated=True
        )

    def stack(self, *parts: tuple[str, str, str], alpha: float = 0.45) -> list[Any]:
        """Add areas on top of one another: (column, label, colour) each."""
        areas = [self._area(colour, alpha, label) for _, label, colour in parts]
        self.stacks.append((areas, [key for key, _, _ in parts]))
        return areas

    def band(self, low: str, high: str, label: str, colour: str) -> None:
        """Add a faint area between two columns."""
        area = self._area(colour, 0.15, label)
        self.bands.append((area, low, high))

    def legend(self, artists: Sequence[Any] | None = None, columns: int = 4) -> Any:
        """A legend between title and axis; artists: in this order, None: all that have a label."""
        axes = [self.axis, *([self.right] if self.right is not None else [])]
        if artists is None:
            artists = [handle for axis in axes for handle in axis.get_legend_handles_labels()[0]]
        if self._legend is not None:
            self._legend.remove()
        self._legend = self.axis.legend(
            artists, [artist.get_label() for artist in artists], fontsize=7, frameon=False, ncols=columns,
            loc="lower left", bbox_to_anchor=(-0.01, 1.0), borderaxespad=0.2, borderpad=0.2, handlelength=1.3,
            handletextpad=0.5, columnspacing=1.1,
        )  # fmt: skip
        return self._legend

    # -- drawing -----------------------------------------------------------------------------------------------------
    def fill(self, steps: np.ndarray, history: History, most_x: float) -> tuple[Any, ...]:
        """Give the artists the history as it is now; returns what the frame depends on."""
        heights, depths, right_heights = [0.0], [0.0], [0.0]
        for artist, key in self.lines:
            found = self._envelope(steps, history, key)
            artist.set_data(found.x, found.mean)
            shade = self.shades.get(key)
            if shade is not None:
                _fill_between(shade, found.x, found.low, found.high)
            # Where the shade is not drawn, what it would show needs no room.
            heights.append(_greatest(found.high if shade is not None else found.mean))
            depths.append(_greatest(-(found.low if shade is not None else found.mean)))
        for artist, key in self.right_lines:
            found = self._envelope(steps, history, key)
            artist.set_data(found.x, found.mean)
            right_heights.append(_greatest(found.mean))
        for areas, keys in self.stacks:
            found = [self._envelope(steps, history, key) for key in keys]
            heights.append(_fill_stack(areas, found))
        for area, low, high in self.bands:
            below, above = self._envelope(steps, history, low), self._envelope(steps, history, high)
            _fill_between(area, below.x, below.low, above.high)
            heights.append(_greatest(above.high))
        top = self._within_scale(steps, history, max(heights))
        limits = (
            (0.0, 1.0)
            if self.share
            else (-round_up(_ROOM * max(depths)) if max(depths) > 0 else 0.0, round_up(_ROOM * top))
        )
        self.axis.set_xlim(0, most_x)
        self.axis.set_ylim(*limits)
        right_limits = (0.0, 1.0) if self.right_share else (0.0, round_up(_ROOM * max(right_heights)))
        if self.right is not None:
            self.right.set_ylim(*right_limits)
        return most_x, limits, right_limits

    def _envelope(self, steps: np.ndarray, history: History, key: str) -> Envelope:
        return envelope(steps, history[key], self.points)

    def _within_scale(self, steps: np.ndarray, history: History, top: float) -> float:
        self._peak.set_text("")
        if not self.peaks or top <= 0:
            return top
        columns = [history[key] for _, key in self.lines]
        columns += [np.nansum([history[key] for key in keys], axis=0) for _, keys in self.stacks]
        for values in columns:
            there = values[~np.isnan(values)]
            if len(there) < _ENOUGH:
                return top
            usual = float(np.percentile(there, 99))
            if usual > 0 and there.max() > _PEAK * usual:
                place = steps[int(np.nanargmax(values))]
                self._peak.set_text(f"peak {there.max():.3g} at step {place:.0f}, off the scale")
                top = 1.5 * usual
        return top

    def moving(self) -> list[Any]:
        """The artists that are drawn over the frame, from the back to the front."""
        areas = [area for areas, _ in self.stacks for area in areas]
        return [
            *(area for area, _, _ in self.bands),
            *areas,
            *self.shades.values(),
            *(artist for artist, _ in self.right_lines),
            *(artist for artist, _ in reversed(self.lines)),
            *self.extra,
            self._peak,
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
