"""The curves of a run in one figure, with changes marked; its content and size do not grow with the
run.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from workbench.kinds import Fields
from workbench.run import metrics
from workbench.run.rollouts import unstated_right
from workbench.views.chart import MAX_POINTS, Chart, Line
from workbench.views.figure import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SERIES,
    as_text,
    bare_figure,
    png,
)
from workbench.views.history import (
    ADAPTIVE,
    CHECKPOINT,
    KL_PER_COMPLETION,
    LENGTHS,
    History,
    Mark,
    weighted,
)
from workbench.views.tables import cut, short_name

MOST_MARKS = 60  # vertical lines
MOST_NUMBERS = 8  # of them that are numbered and explained
MOST_NAMED = 11  # functions in the legend
VIOLET = "#5b2a86"  # of held-out prompts: no function has it
_LONGEST_NAME = 20  # characters
_LEGEND_COLUMNS = 4
NO_ENTROPY = "not logged by this trainer\n(Unsloth's GPU trainer never logs it)"
_NO_KL = (
    "KL is not measured: beta = 0,\nso there is no reference model.\n\nTo measure it, set beta in "
)
KL_UNMEASURED = f"{_NO_KL}the recipe,\nfor example grpo.beta = 0.001."
KL_UNMEASURED_ATTACHED = f"{_NO_KL}GRPOConfig,\nfor example beta=0.001."


def _charts() -> dict[str, tuple[int, Any, Fields]]:
    """Name -> (row, column, settings of its `Chart`). The lines of the reward functions are added
    later.
    """
    reward = [Line(metrics.REWARD, "total", BLACK, 2, shaded=True)]
    std = [Line(metrics.GROUP_STD, "within groups (drives learning)", BLUE, 2, shaded=True)]
    std += [Line(metrics.REWARD_STD, "whole batch (TRL's reward_std)", GREY, 1, ":")]
    groups = [
        (metrics.ALL_RIGHT, "all right", GREEN),
        (metrics.MIXED, "mixed", BLUE),
        (metrics.ALL_WRONG, "all wrong", RED),
    ]
    dead = [Line(metrics.DEAD, "dead (zero variance)", BLACK, 1.2, "--")]
    kl = [Line(metrics.KL, "per token", ORANGE, 2, shaded=True)]
    kl += [Line(KL_PER_COMPLETION, "per completion (right)", GREY, 1, ":", right=True)]
    length = [
        Line(metrics.MEAN_LENGTH, "mean", BLUE, 2),
        Line(metrics.CLIPPED, "clipped (right)", RED, 1.2, "--", right=True),
    ]
    entropy = [Line(metrics.ENTROPY, "entropy", PURPLE, 1.5, shaded=True)]
    stages = [(metrics.GENERATE_S, "generate", BLUE), (metrics.REWARD_S, "rewards", ORANGE)]
    stages += [(metrics.TRAIN_S, "forward + backward", GREEN)]
    step = [Line(metrics.STEP_S, "whole step", BLACK, 0.8)]
    title = "reward: total, and the weighted mean of each function"
    return {
        "reward": (
            0,
            slice(0, 2),
            dict(title=title, lines=reward, right_share=True, points=4 * MAX_POINTS // 5),
        ),
        "raw": (
            0,
            2,
            dict(title="mean of each function,\nunweighted; colours as on the left", legend_rows=0),
        ),
        "std": (1, 0, dict(title="reward std", lines=std, legend_rows=2, columns=1)),
        "groups": (
            1,
            1,
            dict(title="groups", lines=dead, stack=groups, share=True, legend_rows=2, columns=2),
        ),
        "kl": (
            1,
            2,
            dict(title="KL from the reference model, nats", lines=kl, peaks=True, legend_rows=2),
        ),
        "length": (
            2,
            0,
            dict(
                title="completion length, tokens",
                lines=length,
                band=LENGTHS,
                right_share=True,
                columns=4,
            ),
        ),
        "entropy": (2, 1, dict(title="entropy, nats per token", lines=entropy, legend_rows=0)),
        "time": (
            2,
            2,
            dict(
                title="wall time per step, s",
                lines=step,
                stack=stages,
                alpha=0.6,
                peaks=True,
                legend_rows=2,
            ),
        ),
    }


class RunFigure:
    """One figure, eight charts, reused for every redraw. A beta of 0: KL is not measured."""

    def __init__(self, name: str = "", beta: float = 0.0) -> None:
        self.name = name
        self.beta = beta
        self.figure = bare_figure(10, 7.6)
        text = partial(self.figure.text, s="", va="top")
        self.title = text(0.052, 0.985, fontsize=11, weight="bold")
        self.note = text(0.052, 0.96, fontsize=8.5, linespacing=1.35)
        self.key = text(0.052, 0.012, fontsize=7.5, va="bottom", color="#444444")
        self.reduced = text(0.955, 0.985, fontsize=7.5, ha="right", color=GREY)
        edges = {"left": 0.052, "right": 0.955, "top": 0.845, "bottom": 0.098}
        spots = self.figure.add_gridspec(3, 3, hspace=0.72, wspace=0.36, **edges)
        self.charts: dict[str, Chart] = {}
        for key, (row, column, settings) in _charts().items():
            axis = self.figure.add_subplot(spots[row, column])
            axis.tick_params(labelbottom=row != 1)  # the second row's are those beneath it
            axis.set_xlabel("" if row == 1 else "step", fontsize=8, labelpad=1)
            self.charts[key] = Chart(axis, **settings)
        self.marks = _Marks(self.charts)
        self.held_out = _HeldOut(self.charts["reward"])
        self.unmeasured = KL_UNMEASURED

    def about(self, manifest: Fields) -> None:
        """Word the charts for a run: who made its trainer, and whether anybody defined what is
        right.
        """
        self.unmeasured = KL_UNMEASURED_ATTACHED if manifest.get("attached") else KL_UNMEASURED
        groups = self.charts["groups"]
        unstated = unstated_right(manifest)
        groups.title = as_text(f"groups; right: {cut(unstated, 30)}" if unstated else "groups")
        groups.head(groups.legend_rows)

    def draw(
        self,
        history: History,
        title: str = "",
        note: str = "",
        marks: Sequence[Mark] = (),
        held_out: Sequence[Fields] = (),
    ) -> bytes:
        """The figure with this history in it, as PNG bytes; `held_out` is as `run.held_out` reads
        it.

        The title is one line (empty: the run's name), the note small text beneath it, of which two
        lines are shown.
        """
        self._add_functions(history)
        points = self.charts["std"].points
        bucketed = len(history) > points
        self.title.set_text(as_text(cut(title or self.name, 72 if bucketed else 118)))
        self.note.set_text(as_text(_wrapped(note, 175)))
        means = f"lines: means of up to {-(-len(history) // points)} steps; shading: min to max"
        self.reduced.set_text(means if bucketed else "")
        steps = np.array(history.steps)
        last_step = max(4.0, 1.02 * history.step)
        for chart in self.charts.values():
            chart.fill(steps, history, last_step)
        self._fit(history)
        self._fit_legend(history, bool(held_out))
        self.held_out.fill(held_out)
        self.key.set_text(as_text(self.marks.fill(marks, last_step)))
        return png(self.figure)

    def _add_functions(self, history: History) -> None:
        reward, raw = self.charts["reward"], self.charts["raw"]
        for function in history.functions[len(raw.lines) :]:
            turn, place = divmod(len(raw.lines), len(SERIES))
            look: Fields = {"colour": SERIES[place], "style": ("-", "--", ":", "-.")[turn % 4]}
            reward.add(Line(weighted(function), function, **look))
            raw.add(Line(metrics.per_function(function), function, **look))

    def _fit(self, history: History) -> None:
        """Label what is not measured; name what is."""

        def absent(key: str) -> bool:
            return bool(np.isnan(history[key]).all())

        # A run may begin without a reference model and get one in a later stage, or the reverse.
        kl = self.charts["kl"]
        measured = bool(self.beta) or not absent(metrics.KL)
        kl.words.set_text("" if measured else self.unmeasured)
        kl.axis.tick_params(labelleft=measured)
        kl.right.tick_params(labelright=measured)
        if measured:
            per_token, per_completion = kl.lines
            label = f"per token (beta {self.beta:.3g})" if self.beta else "per token"
            entries = [(per_token.artist, label), (per_completion.artist, per_completion.label)]
            kl.legend(entries, columns=1)
        time = self.charts["time"]
        parts = [] if absent(metrics.TRAIN_S) else time.areas
        whole = time.lines[0].artist
        time.legend([(artist, artist.get_label()) for artist in (*parts, whole)], columns=2)
        silent = len(history) and absent(metrics.ENTROPY)
        self.charts["entropy"].words.set_text(NO_ENTROPY if silent else "")

    def _fit_legend(self, history: History, held_out: bool) -> None:
        chart = self.charts["reward"]
        total, *functions = chart.lines
        names = []
        for line in functions:
            weight = history.weights.get(line.label, 1.0)
            short = cut(short_name(line.label), _LONGEST_NAME)
            names.append(as_text(short if weight == 1 else f"{short} x {weight:.3g}"))
        if len(names) > MOST_NAMED:
            names[MOST_NAMED - 1 :] = [f"and {len(names) - MOST_NAMED + 1} more"]
        entries = [(total.artist, total.label)]
        entries += [(line.artist, name) for line, name in zip(functions, names)]
        if held_out:
            entries.append((self.held_out.points, "held-out correct, base dashed (right)"))
        chart.head(-(-len(entries) // _LEGEND_COLUMNS))
        chart.legend(entries, _LEGEND_COLUMNS)


class _HeldOut:
    """Held-out prompts over the rewards, on the right: the correct share, its 95 % interval; base
    dashed.
    """

    def __init__(self, chart: Chart) -> None:
        self._axis = chart.right
        plot = partial(self._axis.plot, [], [], color=VIOLET, linewidth=1.2)
        (self.base,) = plot(linestyle="--")
        (self.bars,) = plot(alpha=0.6)
        dots = {"marker": "o", "markersize": 5, "markeredgecolor": "white"}
        (self.points,) = plot(clip_on=False, **dots)

    def fill(self, measured: Sequence[Fields]) -> None:
        """Place the measurements, the base's (step 0) first."""
        self._axis.tick_params(labelright=bool(measured), right=bool(measured))
        steps = [row["step"] for row in measured]
        self.points.set_data(steps, [row["correct"] for row in measured])
        nan = np.nan
        self.bars.set_data(
            [x for step in steps for x in (step, step, nan)],
            [y for row in measured for y in (row["low"], row["high"], nan)],
        )
        base = [row["correct"] for row in measured[:1]]
        self.base.set_data([0, self._axis.get_xlim()[1]] if base else [], base * 2)


class _Marks:
    """Vertical lines where something was changed; the latest are numbered and explained beneath."""

    def __init__(self, charts: Mapping[str, Chart]) -> None:
        reward = charts["reward"]
        self.lines = []
        for chart in charts.values():
            look = {"color": "#555555", "linewidth": 0.8, "alpha": 0.9 if chart is reward else 0.35}
            self.lines += chart.axis.plot(
                [], [], transform=chart.axis.get_xaxis_transform(), **look
            )
        across = {"transform": reward.axis.get_xaxis_transform()}
        plot = partial(reward.axis.plot, [], [], linestyle="none", clip_on=False, **across)
        (self.checkpoints,) = plot(marker="^", markersize=4, color=GREEN)
        (self.adaptive,) = plot(marker="|", markersize=7, markeredgewidth=1.2, color="#444444")
        ring = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": "#777777"}
        look = {"fontsize": 7, "ha": "center", "va": "center", "bbox": {**ring, "linewidth": 0.6}}
        self._numbers = [reward.axis.text(0, 1, "", **look, **across) for _ in range(MOST_NUMBERS)]

    def fill(self, marks: Sequence[Mark], last_step: float) -> str:
        """Place the marks; returns the words that explain them."""
        by_step: dict[int, list[str]] = {}
        ticks: dict[str, list[int]] = {ADAPTIVE: [], CHECKPOINT: []}
        for mark in marks:
            if mark.kind in ticks:
                ticks[mark.kind].append(mark.step)
            else:
                by_step.setdefault(mark.step, []).append(mark.text)
        self._place(self.checkpoints, ticks[CHECKPOINT], 0.0)
        self._place(self.adaptive, ticks[ADAPTIVE], 0.03)
        steps = sorted(by_step)[-MOST_MARKS:]
        x = [value for step in steps for value in (step, step, np.nan)]
        for line in self.lines:
            line.set_data(x, [0, 1, np.nan] * len(steps))
        for text in self._numbers:
            text.set_visible(False)
        words = []
        level = 0
        before = -np.inf
        for number, (text, step) in enumerate(zip(self._numbers, steps[-MOST_NUMBERS:]), start=1):
            near = step - before < 0.025 * last_step
            level = (level + 1) % 3 if near else 0  # neighbours stand below one another
            before = step
            text.set(text=str(number), position=(step, 0.94 - 0.11 * level), visible=True)
            words.append(f"({number}) step {step}: {cut(', '.join(by_step[step]), 44)}")
        return _wrapped("   ".join(words), 195)

    @staticmethod
    def _place(artist: Any, steps: Sequence[int], height: float) -> None:
        if len(steps) > MOST_MARKS:  # as many as can be told apart
            steps = [steps[round(place)] for place in np.linspace(0, len(steps) - 1, MOST_MARKS)]
        artist.set_data(steps, [height] * len(steps))


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width, max_lines=2, placeholder=" …"))
