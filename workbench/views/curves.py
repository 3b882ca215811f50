"""The curves of a run in one figure: rewards, spread, groups, KL, lengths, entropy and time, with what was changed marked.

Artists are made once and given new data, and long histories are reduced to a fixed number of points: what is drawn, and
the bytes that it takes, do not grow with the run.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from workbench.run import metrics
from workbench.run.directory import RunDirectory
from workbench.run.state import RunState
from workbench.views.chart import Chart, round_up
from workbench.views.figure import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SERIES,
    bare_figure,
    drawn_png,
    image_bundle,
)
from workbench.views.history import (
    ADAPTIVE,
    CHECKPOINT,
    KL_PER_COMPLETION,
    MAX_LENGTH,
    MAX_POINTS,
    MIN_LENGTH,
    History,
    Mark,
    add_mark,
    weighted,
)
from workbench.views.tables import cut, short_name

MOST_MARKS = 60  # vertical lines
MOST_NUMBERS = 8  # of them that are numbered and explained
MOST_NAMED = 11  # functions in the legend
_LONGEST_NAME = 20  # characters
_LEGEND_COLUMNS = 4
# Pixels of the words over the charts at the top, under any chart, and left of the second and third column.
_OVER, _UNDER, _BESIDE = 85, 34, (40, 46)
NO_ENTROPY = "not logged by this trainer\n(Unsloth's GPU trainer never logs it)"
KL_UNMEASURED = (
    "KL is not measured: beta = 0,\nso there is no reference model.\n\n"
    "To measure it, set beta in the recipe,\nfor example grpo.beta = 0.001."
)


class RunFigure:
    """One figure, eight charts, reused for every redraw.

    Args:
        name: of the run.
        weights: the functions that the run begins with (or a mapping by function).
        beta: weight of the KL term; 0: KL is not measured.
        total: steps that are planned; 0: not known.
    """

    def __init__(self, name: str = "", weights: Iterable[str] = (), beta: float = 0.0, total: int = 0) -> None:
        self.name, self.beta, self.total = name, beta, total
        self.figure = bare_figure(10, 7.6)
        text = partial(self.figure.text, s="", va="top", animated=True)
        self._title = text(0.052, 0.985, fontsize=11, weight="bold")
        self._note = text(0.052, 0.96, fontsize=8.5, linespacing=1.35)
        self._key = text(0.052, 0.012, fontsize=7.5, va="bottom", color="#444444")
        # Changes seldom, and to draw words takes long: part of the frame.
        self._reduced = text(0.955, 0.985, fontsize=7.5, ha="right", color=GREY, animated=False)
        self._lines: dict[str, tuple[Any, Any]] = {}  # function -> (weighted line, raw line)
        self._shown_frame: dict[str, Any] = {}  # what each chart of the kept frame was drawn for, and the frame
        self._frame: Any = None
        self.charts = self._make_charts()
        self._marks = _Marks(self.charts)
        for function in weights:
            self._add_function(function)
        self._named: tuple[str, ...] | None = None  # what the legend says

    def _make_charts(self) -> dict[str, Chart]:
        spots = self.figure.add_gridspec(3, 3, left=0.052, right=0.955, top=0.845, bottom=0.098, hspace=0.72, wspace=0.33)

        def chart(row: int, column: Any, title: str, labelled: bool = True, **options: Any) -> Chart:
            axis = self.figure.add_subplot(spots[row, column])
            if labelled:
                axis.set_xlabel("step", fontsize=8, labelpad=1)
            else:
                axis.tick_params(labelbottom=False)  # as in the row beneath
            return Chart(axis, title, **options)

        def words(chart: Chart, text: str) -> Any:
            centred = {"ha": "center", "va": "center", "transform": chart.axis.transAxes}
            return chart.axis.text(0.5, 0.5, text, fontsize=8, color=GREY, visible=False, **centred)

        title = "reward: total, and the weighted mean of each function"
        self.reward = chart(0, slice(0, 2), title, points=4 * MAX_POINTS // 5)
        self.reward.line(metrics.REWARD, "total", BLACK, linewidth=2, shade=True)
        self.raw = chart(0, 2, "mean of each function,\nunweighted; colours as on the left", legend_rows=0)
        self.std = chart(1, 0, "reward std", False, legend_rows=2)
        self.std.line(metrics.GROUP_STD, "within groups (drives learning)", BLUE, linewidth=2, shade=True)
        self.std.line(metrics.REWARD_STD, "whole batch (TRL's reward_std)", GREY, linewidth=1, linestyle=":")
        self.std.legend(columns=1)
        self.groups = chart(1, 1, "groups", False, share=True, legend_rows=2)
        self.groups.stack(
            (metrics.ALL_RIGHT, "all right", GREEN),
            (metrics.MIXED, "mixed", BLUE),
            (metrics.ALL_WRONG, "all wrong", RED),
        )
        self.groups.line(metrics.DEAD, "dead (zero variance)", BLACK, linewidth=1.2, linestyle="--")
        self.groups.legend(columns=2)
        title = "KL from the reference model, nats"
        self.kl = chart(1, 2, title, False, right=True, peaks=True, legend_rows=2)
        self._kl_lines = [
            self.kl.line(metrics.KL, "per token", ORANGE, linewidth=2, shade=True),
            self.kl.line(KL_PER_COMPLETION, "per completion (right)", GREY, right=True, linewidth=1, linestyle=":"),
        ]
        self._unmeasured = words(self.kl, KL_UNMEASURED)
        self.length = chart(2, 0, "completion length, tokens", right=True, right_share=True)
        self.length.band(MIN_LENGTH, MAX_LENGTH, "min to max", BLUE)
        self.length.line(metrics.MEAN_LENGTH, "mean", BLUE, linewidth=2)
        self.length.line(metrics.CLIPPED, "clipped (right)", RED, right=True, linewidth=1.2, linestyle="--")
        self.length.legend()
        self.entropy = chart(2, 1, "entropy, nats per token", legend_rows=0)
        self.entropy.line(metrics.ENTROPY, "entropy", PURPLE, linewidth=1.5, shade=True)
        self._no_entropy = words(self.entropy, NO_ENTROPY)
        self.time = chart(2, 2, "wall time per step, s", peaks=True, legend_rows=2)
        stages = (
            (metrics.GENERATE_S, "generate", BLUE),
            (metrics.REWARD_S, "rewards", ORANGE),
            (metrics.TRAIN_S, "forward + backward", GREEN),
        )
        self._parts = self.time.stack(*stages, alpha=0.6)
        self._whole = self.time.line(metrics.STEP_S, "whole step", BLACK, linewidth=0.8)
        names = ("reward", "raw", "std", "groups", "kl", "length", "entropy", "time")
        return {name: getattr(self, name) for name in names}

    def _add_function(self, function: str) -> None:
        colour = SERIES[len(self._lines) % len(SERIES)]
        look = {"linewidth": 1.0, "linestyle": ("-", "--", ":", "-.")[len(self._lines) // len(SERIES) % 4]}
        self._lines[function] = (
            self.reward.line(weighted(function), function, colour, **look),
            self.raw.line(metrics.per_function(function), function, colour, **look),
        )

    # -- drawing -----------------------------------------------------------------------------------------------------
    def draw(self, history: History, title: str = "", note: str = "", marks: Sequence[Mark] = ()) -> bytes:
        """The figure with this history in it, as PNG bytes.

        Args:
            title: one line; empty: the run's name.
            note: small text beneath it, of which two lines are shown.
            marks: what happened, in order.
        """
        for function in history.functions:
            if function not in self._lines:
                self._add_function(function)
        self._mark_points("")  # a legend that is made now would keep the dots
        self._title.set_text(cut(title or self.name, 118 if len(history) <= self.std.points else 72))
        self._note.set_text("\n".join(textwrap.wrap(note, 175, max_lines=2, placeholder=" …")))
        steps = np.array(history.steps)
        limit = self._most_x(history.step)
        depends: dict[str, Any] = {key: [chart.fill(steps, history, limit)] for key, chart in self.charts.items()}
        depends["kl"].append(self._fit_kl(history))
        depends["time"].append(self._fit_time(history))
        depends["reward"].append(self._fit_legend(history))
        depends["entropy"].append(self._fit_entropy(history))
        if len(steps) == 1:  # one point is no line
            self._mark_points(".")
        self._key.set_text(self._marks.fill(marks, limit))
        size = -(-len(steps) // self.reward.points)
        told = f"lines: means of up to {-(-len(steps) // self.std.points)} steps; shading: min to max"
        self._reduced.set_text(told if size > 1 else "")
        self._paint(depends | {"": self._reduced.get_text()})
        return drawn_png(self.figure)

    def _mark_points(self, marker: str) -> None:
        for chart in self.charts.values():
            for line in chart.lines:
                line.artist.set_marker(marker)

    def _most_x(self, step: int) -> float:
        # The planned steps, halved as long as the run has its place in them: the frame changes with each doubling only.
        if self.total < max(step, 2):
            return max(4.0, round_up(step))
        limit = float(self.total)
        while limit / 2 >= max(step, 8):
            limit /= 2
        return limit

    def _fit_kl(self, history: History) -> Any:
        # A run may begin without a reference model and get one in a later stage, or the other way about.
        measured = bool(self.beta) or bool((~np.isnan(history[metrics.KL])).any())
        self._unmeasured.set_visible(not measured)
        for axis in self.kl.axes:
            axis.tick_params(labelleft=measured and axis is self.kl.axis, labelright=measured and axis is self.kl.right)
        label = f"per token (beta {self.beta:.3g})" if self.beta else "per token"
        if measured and (self.kl.shown_legend is None or self._kl_lines[0].get_label() != label):
            self._kl_lines[0].set_label(label)
            self.kl.legend(self._kl_lines, columns=1)
        return measured, label

    def _fit_entropy(self, history: History) -> Any:
        missing = len(history) > 0 and bool(np.isnan(history[metrics.ENTROPY]).all())
        self._no_entropy.set_visible(missing)
        return missing

    def _fit_time(self, history: History) -> Any:
        split = bool((~np.isnan(history[metrics.TRAIN_S])).any())
        if self.time.shown_legend is None or split != (len(self.time.shown_legend.get_texts()) > 1):
            self.time.legend([*self._parts, self._whole] if split else [self._whole], columns=2)
        return split

    def _fit_legend(self, history: History) -> Any:
        names = []
        for function, (line, _) in self._lines.items():
            weight = history.weights.get(function, 1.0)
            short = cut(short_name(function), _LONGEST_NAME)
            names.append(short if weight == 1 else f"{short} x {weight:.3g}")
            line.set_label(names[-1])
        if len(names) > MOST_NAMED:
            names = [*names[: MOST_NAMED - 1], f"and {len(names) - MOST_NAMED + 1} more"]
        if tuple(names) != self._named:
            self._named = tuple(names)
            shown = [self.reward.lines[0].artist, *(line for line, _ in self._lines.values())][: MOST_NAMED + 1]
            legend = self.reward.legend(shown, columns=_LEGEND_COLUMNS)
            for text, name in zip(legend.get_texts()[1:], names, strict=True):
                text.set_text(name)
            self.reward.head(-(-len(shown) // _LEGEND_COLUMNS))
            # Weights may change at every step, and the frame does not depend on them.
            legend.set_animated(True)
        return len(names)

    def _paint(self, depends: dict[str, Any]) -> None:
        canvas, before = self.figure.canvas, self._shown_frame
        changed = [key for key in depends if depends[key] != before.get(key)]
        if "" in changed or len(changed) == len(self.charts):
            canvas.draw()
        else:
            canvas.restore_region(self._frame)
            for chart in (self.charts[key] for key in changed):  # to lay out the words of all takes four times as long
                np.asarray(canvas.buffer_rgba())[self._cell(chart)] = 255
                for axis in chart.axes:
                    self.figure.draw_artist(axis)
        if changed:
            self._frame, self._shown_frame = canvas.copy_from_bbox(self.figure.bbox), depends
        for chart in self.charts.values():
            for artist in chart.moving():
                chart.axis.draw_artist(artist)
        self.reward.axis.draw_artist(self.reward.shown_legend)
        for text in (self._title, self._note, self._key):
            self.figure.draw_artist(text)

    def _cell(self, chart: Chart) -> tuple[slice, slice]:
        # The pixels of a chart with its title, legend and labels; the cells of all charts do not overlap.
        spot, (width, height) = chart.axis.get_subplotspec(), self.figure.canvas.get_width_height()
        bottoms, tops, lefts, _ = spot.get_gridspec().get_grid_positions(self.figure)
        rows, columns = spot.rowspan, spot.colspan
        edges = [0, *(width * left - beside for left, beside in zip(lefts[1:], _BESIDE, strict=True)), width]
        levels = [height * (1 - tops[0]) - _OVER, *(height * (1 - bottom) + _UNDER for bottom in bottoms)]
        return (
            slice(round(levels[rows.start]), round(levels[rows.stop])),
            slice(round(edges[columns.start]), round(edges[columns.stop])),
        )


class _Marks:
    """Vertical lines where something was changed: the latest are numbered, and explained beneath the figure."""

    def __init__(self, charts: Mapping[str, Chart]) -> None:
        self._lines = []
        for key, chart in charts.items():
            look = {"color": "#555555", "linewidth": 0.8, "alpha": 0.9 if key == "reward" else 0.35, "animated": True}
            self._lines += chart.axis.plot([], [], transform=chart.axis.get_xaxis_transform(), **look)
            chart.extra.append(self._lines[-1])
        reward = charts["reward"]
        look = {"animated": True, "transform": reward.axis.get_xaxis_transform()}
        plot = partial(reward.axis.plot, [], [], linestyle="none", clip_on=False, **look)
        (self._checkpoints,) = plot(marker="^", markersize=4, color=GREEN)
        (self._adaptive,) = plot(marker="|", markersize=7, markeredgewidth=1.2, color="#444444")
        ring = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": "#777777", "linewidth": 0.6}
        text = partial(reward.axis.text, 0, 1, "", fontsize=7, ha="center", va="center", bbox=ring, **look)
        self._numbers = [text() for _ in range(MOST_NUMBERS)]
        reward.extra += [self._checkpoints, self._adaptive, *self._numbers]

    def fill(self, marks: Sequence[Mark], limit: float) -> str:
        """Place the marks; returns the words that explain them."""
        by_step: dict[int, list[str]] = {}
        for mark in marks:
            if mark.kind not in (ADAPTIVE, CHECKPOINT):
                by_step.setdefault(mark.step, []).append(mark.text)
        steps = sorted(by_step)[-MOST_MARKS:]
        x = [value for step in steps for value in (step, step, np.nan)]
        for line in self._lines:
            line.set_data(x, [0, 1, np.nan] * len(steps))
        self._ticks(self._checkpoints, [mark.step for mark in marks if mark.kind == CHECKPOINT], 0.0)
        self._ticks(self._adaptive, [mark.step for mark in marks if mark.kind == ADAPTIVE], 0.03)
        return self._explain(by_step, steps[-MOST_NUMBERS:], limit)

    def _ticks(self, artist: Any, steps: list[int], height: float) -> None:
        # Many ticks become as many as can be told apart.
        if len(steps) > MOST_MARKS:
            steps = [steps[round(place)] for place in np.linspace(0, len(steps) - 1, MOST_MARKS)]
        artist.set_data(steps, [height] * len(steps))

    def _explain(self, by_step: Mapping[int, list[str]], steps: Sequence[int], limit: float) -> str:
        words, level, before = [], 0, -np.inf
        for number, text in enumerate(self._numbers, start=1):
            text.set_visible(number <= len(steps))
            if number > len(steps):
                continue
            step = steps[number - 1]
            level = (level + 1) % 3 if step - before < 0.025 * limit else 0  # neighbours stand below one another
            before = step
            text.set_text(str(number))
            text.set_position((step, 0.94 - 0.11 * level))
            words.append(f"({number}) step {step}: {cut(', '.join(by_step[step]), 44)}")
        return "\n".join(textwrap.wrap("   ".join(words), 195, max_lines=2, placeholder=" …"))


class RunCurves:
    """A recorded run's curves, as a picture: leave it as the last line of a cell.

    Args:
        run: that trains or has ended.
    """

    def __init__(self, run: RunDirectory) -> None:
        state = RunState.begun(run.manifest())
        self.history, self.marks = History(state.weights), []
        for row in run.metrics():
            self.history.add(row["step"], row)
        for event in run.events():
            add_mark(self.marks, event)
        self.figure = RunFigure(run.name, state.weights, state.beta or 0.0, self.history.step)
        self.title = f"{run.name}: {len(self.history)} steps"

    def png(self) -> bytes:
        """The picture."""
        return self.figure.draw(self.history, self.title, marks=self.marks)

    def __repr__(self) -> str:
        return self.title

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return image_bundle(self.png(), self.title)
