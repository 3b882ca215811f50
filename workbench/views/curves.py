"""The curves of a run: reward, within-group std, what the groups are like, and KL, in one figure.

Artists are made once and given new data, and long histories are reduced to a fixed number of points: what is drawn, and
the bytes that it takes, do not grow with the run.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from workbench.run.directory import RunDirectory
from workbench.run.metrics import ALL_RIGHT, ALL_WRONG, DEAD, GROUP_STD, KL, MIXED, REWARD, REWARD_STD, per_function
from workbench.views.figure import BLACK, BLUE, GREEN, GREY, ORANGE, RED, SERIES, new_figure, png

MAX_POINTS = 300
_SHARES = (MIXED, ALL_RIGHT, ALL_WRONG, DEAD)
KL_UNMEASURED = (
    "KL is not measured: beta = 0,\nso no reference model is consulted.\n\n"
    "To measure it, set beta in the recipe,\nfor example grpo.beta = 0.001."
)


class History:
    """The columns that the figure draws, as flat arrays of doubles (NaN where a step lacks the number)."""

    def __init__(self, functions: list[str]) -> None:
        self.functions = functions
        self.keys = (REWARD, REWARD_STD, GROUP_STD, KL, *_SHARES, *map(per_function, functions))
        self.steps = array("d")
        self.columns = {key: array("d") for key in self.keys}

    def add(self, step: int, values: dict[str, Any]) -> None:
        self.steps.append(step)
        for key, column in self.columns.items():
            value = values.get(key)
            column.append(float(value) if isinstance(value, (int, float)) else float("nan"))

    def __getitem__(self, key: str) -> np.ndarray:
        return np.array(self.columns[key])

    def last(self, key: str) -> float | None:
        """The newest number under `key`, None if there is none."""
        column = self.columns[key]
        return column[-1] if column and column[-1] == column[-1] else None


def decimate(x: np.ndarray, y: np.ndarray, max_points: int = MAX_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """At most `max_points` points that keep every peak and trough: the least and the greatest of each bucket."""
    if len(x) <= max_points:
        return x, y
    size = -(-len(x) // (max_points // 2))  # points in a bucket
    padded = np.full(-(-len(x) // size) * size, np.nan)
    padded[: len(y)] = y
    grid = padded.reshape(-1, size)
    first = np.arange(len(grid)) * size
    low = first + np.where(np.isnan(grid), np.inf, grid).argmin(axis=1)
    high = first + np.where(np.isnan(grid), -np.inf, grid).argmax(axis=1)
    picked = np.unique(np.concatenate([low, high]))
    return x[picked], y[picked]


class RunFigure:
    """One figure, four panels, reused for every redraw."""

    def __init__(self, name: str, functions: list[str], weights: dict[str, float], beta: float) -> None:
        self.name, self.functions, self.weights, self.beta = name, functions, weights, beta
        self.figure, axes = new_figure(10, 6, 2, 2)
        (self.reward, self.std), (self.groups, self.kl) = axes
        self.figure.subplots_adjust(left=0.07, right=0.985, top=0.85, bottom=0.08, hspace=0.5, wspace=0.17)
        self.title = self.figure.suptitle(name, x=0.07, y=0.965, ha="left", fontsize=11)
        self._lines: dict[str, tuple[Any, str, float]] = {}  # label -> (line, key, factor)
        self._reward_panel()
        self._std_panel()
        self._groups_panel()
        self._kl_panel()

    def _line(self, axis: Any, key: str, label: str, colour: str, *, factor: float = 1.0, **style: Any) -> None:
        (line,) = axis.plot([], [], color=colour, label=label, **style)
        self._lines[f"{key} {label}"] = (line, key, factor)

    def _reward_panel(self) -> None:
        self._line(self.reward, REWARD, "reward (total)", BLACK, linewidth=2)
        for function, colour in zip(self.functions, SERIES * 9, strict=False):
            weight = self.weights.get(function, 1.0)
            label = function if weight == 1 else f"{function} x {weight:g}"
            self._line(self.reward, per_function(function), label, colour, factor=weight, linewidth=1)
        _head(self.reward, "reward: total, and what each function adds to it", legend_rows=2)

    def _std_panel(self) -> None:
        self._line(self.std, GROUP_STD, "within groups: what advantages are made of", BLUE, linewidth=2)
        self._line(self.std, REWARD_STD, "whole batch: TRL's own", GREY, linewidth=1, linestyle=":")
        _head(self.std, "reward_std")

    def _groups_panel(self) -> None:
        self._areas = []
        for label, colour in (("all right", GREEN), ("mixed", BLUE), ("all wrong", RED)):
            area = self.groups.fill_between([0, 1], [0, 0], [0, 0], color=colour, alpha=0.45, linewidth=0, label=label)
            self._areas.append(area)
        self._line(self.groups, DEAD, "dead: all score the same", BLACK, linewidth=1.2, linestyle="--")
        _head(self.groups, "share of groups", columns=4)
        self.groups.set_ylim(0, 1)
        self.groups.set_xlabel("step", fontsize=8)

    def _kl_panel(self) -> None:
        if self.beta:
            self._line(self.kl, KL, f"kl (beta = {self.beta:g})", ORANGE, linewidth=2)
            _head(self.kl, "KL from the reference model, nats per token")
        else:
            _head(self.kl, "KL from the reference model")
            self.kl.text(
                0.5, 0.5, KL_UNMEASURED, ha="center", va="center", fontsize=9, color=GREY, transform=self.kl.transAxes
            )
            self.kl.set_yticks([])
        self.kl.set_xlabel("step", fontsize=8)

    def draw(self, history: History, title: str | None = None) -> bytes:
        """The figure with this history in it, as PNG bytes."""
        steps = np.array(history.steps)
        for line, key, factor in self._lines.values():
            line.set_data(*decimate(steps, history[key] * factor))
        self._fill_groups(steps, history)
        for axis in (self.reward, self.std, self.groups, self.kl):
            axis.set_xlim(0.5, max(2.0, steps[-1] if len(steps) else 2) + 0.5)
        for axis in (self.reward, self.std, self.kl):
            axis.relim()
            axis.set_autoscaley_on(True)
            axis.autoscale_view(scalex=False)
            # From zero, so that a small wobble does not look like a trend.
            axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]) if axis.dataLim.y0 < 0 else 0.0)
        self.title.set_text(title or self.name)
        return png(self.figure)

    def _fill_groups(self, steps: np.ndarray, history: History) -> None:
        # Every n-th step will do for areas: they show a trend, and the bound holds.
        stride = max(1, -(-len(steps) // MAX_POINTS))
        steps, lower = steps[::stride], 0.0
        for area, key in zip(self._areas, (ALL_RIGHT, MIXED, ALL_WRONG), strict=True):
            upper = lower + np.nan_to_num(history[key][::stride])
            if len(steps):
                area.set_data(steps, np.broadcast_to(lower, upper.shape), upper)
            lower = upper


def _head(axis: Any, title: str, columns: int = 3, legend_rows: int = 1) -> None:
    axis.set_title(title, fontsize=9, loc="left", pad=6 + 11 * legend_rows)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(
            fontsize=7, frameon=False, ncols=columns, loc="lower left", bbox_to_anchor=(-0.02, 1.0), borderaxespad=0.2,
            handlelength=1.3, columnspacing=1.0,
        )  # fmt: skip


def run_figure(run: RunDirectory) -> tuple[RunFigure, History]:
    """The figure and the history of a recorded run, ready to `draw`."""
    manifest = run.manifest()
    weights = manifest["rewards"]["weights"]
    figure = RunFigure(run.name, list(weights), weights, manifest["settings"]["in_force"]["beta"] or 0.0)
    history = History(list(weights))
    for row in run.metrics():
        history.add(row["step"], row)
    return figure, history


def show_run(run: RunDirectory) -> None:
    """Show a recorded run's curves in the notebook."""
    from IPython.display import display

    from workbench.views.figure import image_bundle

    figure, history = run_figure(run)
    title = f"{run.name}: {len(history.steps)} steps"
    display(image_bundle(figure.draw(history, title), title), raw=True)
