"""The curves of a run in one figure, with what was changed marked; what is drawn and its bytes do not grow with the run."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from workbench.run import metrics
from workbench.run.rollouts import unstated_right
from workbench.views.chart import MAX_POINTS, Chart, Line, round_up
from workbench.views.figure import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SERIES, as_text, bare_figure, drawn_png
from workbench.views.history import ADAPTIVE, CHECKPOINT, KL_PER_COMPLETION, LENGTHS, History, Mark, weighted
from workbench.views.tables import cut, short_name

MOST_MARKS = 60  # vertical lines
MOST_NUMBERS = 8  # of them that are numbered and explained
MOST_NAMED = 11  # functions in the legend
VIOLET = "#5b2a86"  # of held-out prompts: no function has it
_LONGEST_NAME = 20  # characters
_LEGEND_COLUMNS = 4
# Pixels of the words over the charts at the top, under any chart, and left of the second and third column.
_OVER, _UNDER, _BESIDE = 85, 34, (49, 60)
NO_ENTROPY = "not logged by this trainer\n(Unsloth's GPU trainer never logs it)"
_NO_KL = "KL is not measured: beta = 0,\nso there is no reference model.\n\nTo measure it, set beta in "
KL_UNMEASURED = f"{_NO_KL}the recipe,\nfor example grpo.beta = 0.001."
KL_UNMEASURED_ATTACHED = f"{_NO_KL}GRPOConfig,\nfor example beta=0.001."


def _charts() -> dict[str, tuple[int, Any, dict[str, Any]]]:
    """Name -> (row, column, settings of its `Chart`). The lines of the reward functions are added later."""
    reward = [Line(metrics.REWARD, "total", BLACK, 2, shaded=True)]
    std = [Line(metrics.GROUP_STD, "within groups (drives learning)", BLUE, 2, shaded=True)]
    std += [Line(metrics.REWARD_STD, "whole batch (TRL's reward_std)", GREY, 1, ":")]
    groups = [(metrics.ALL_RIGHT, "all right", GREEN), (metrics.MIXED, "mixed", BLUE), (metrics.ALL_WRONG, "all wrong", RED)]
    dead = [Line(metrics.DEAD, "dead (zero variance)", BLACK, 1.2, "--")]
    kl = [Line(metrics.KL, "per token", ORANGE, 2, shaded=True)]
    kl += [Line(KL_PER_COMPLETION, "per completion (right)", GREY, 1, ":", right=True)]
    length = [Line(metrics.MEAN_LENGTH, "mean", BLUE, 2), Line(metrics.CLIPPED, "clipped (right)", RED, 1.2, "--", right=True)]
    entropy = [Line(metrics.ENTROPY, "entropy", PURPLE, 1.5, shaded=True)]
    stages = [(metrics.GENERATE_S, "generate", BLUE), (metrics.REWARD_S, "rewards", ORANGE)]
    stages += [(metrics.TRAIN_S, "forward + backward", GREEN)]
    step = [Line(metrics.STEP_S, "whole step", BLACK, 0.8)]
    title = "reward: total, and the weighted mean of each function"
    return {
        "reward": (0, slice(0, 2), dict(title=title, lines=reward, right_share=True, points=4 * MAX_POINTS // 5)),
        "raw": (0, 2, dict(title="mean of each function,\nunweighted; colours as on the left", legend_rows=0)),
        "std": (1, 0, dict(title="reward std", lines=std, legend_rows=2, columns=1)),
        "groups": (1, 1, dict(title="groups", lines=dead, stack=groups, share=True, legend_rows=2, columns=2)),
        "kl": (1, 2, dict(title="KL from the reference model, nats", lines=kl, peaks=True, legend_rows=2)),
        "length": (2, 0, dict(title="completion length, tokens", lines=length, band=LENGTHS, right_share=True, columns=4)),
        "entropy": (2, 1, dict(title="entropy, nats per token", lines=entropy, legend_rows=0)),
        "time": (2, 2, dict(title="wall time per step, s", lines=step, stack=stages, alpha=0.6, peaks=True, legend_rows=2)),
    }


class RunFigure:
    """One figure, eight charts, reused for every redraw. A beta of 0: KL is not measured; a total of 0: it is not known."""

    def __init__(self, name: str = "", beta: float = 0.0, total: int = 0) -> None:
        self.name, self.beta, self.total = name, beta, total
        self.figure = bare_figure(10, 7.6)
        text = partial(self.figure.text, s="", va="top", animated=True)
        self._title = text(0.052, 0.985, fontsize=11, weight="bold")
        self._note = text(0.052, 0.96, fontsize=8.5, linespacing=1.35)
        self._key = text(0.052, 0.012, fontsize=7.5, va="bottom", color="#444444")
        # Changes seldom, and to draw words takes long: part of the frame.
        self._reduced = text(0.955, 0.985, fontsize=7.5, ha="right", color=GREY, animated=False)
        spots = self.figure.add_gridspec(3, 3, left=0.052, right=0.955, top=0.845, bottom=0.098, hspace=0.72, wspace=0.36)
        self.charts: dict[str, Chart] = {}
        for key, (row, column, settings) in _charts().items():
            axis = self.figure.add_subplot(spots[row, column])
            axis.tick_params(labelbottom=row != 1)  # the second row's are those beneath it
            axis.set_xlabel("" if row == 1 else "step", fontsize=8, labelpad=1)
            self.charts[key] = Chart(axis, **settings)
        look = {"ha": "center", "va": "center", "fontsize": 8, "color": GREY, "visible": False}
        self._unmeasured, self._no_entropy = (
            self.charts[key].axis.text(0.5, 0.5, words, transform=self.charts[key].axis.transAxes, **look)
            for key, words in (("kl", KL_UNMEASURED), ("entropy", NO_ENTROPY))
        )
        self._marks, self._held_out = _Marks(self.charts), _HeldOut(self.charts["reward"])
        self._shown_frame: dict[str, Any] = {}  # what each chart of the kept frame was drawn for, and the frame
        self._frame: Any = None
        self._named: list[Any] = []  # what the legend says

    def about(self, manifest: dict[str, Any]) -> None:
        """Word the charts for the run with this manifest: who made its trainer, and whether anybody said what is right."""
        self._unmeasured.set_text(KL_UNMEASURED_ATTACHED if manifest.get("attached") else KL_UNMEASURED)
        groups, unstated = self.charts["groups"], unstated_right(manifest)
        groups.title = as_text(f"groups; right: {cut(unstated, 30)}" if unstated else "groups")
        groups.head(groups.legend_rows)

    def draw(
        self,
        history: History,
        title: str = "",
        note: str = "",
        marks: Sequence[Mark] = (),
        held_out: Sequence[dict[str, Any]] = (),
    ) -> bytes:
        """The figure with this history in it, as PNG bytes; `held_out` is as `run.held_out` reads it.

        The title is one line (empty: the run's name), the note small text beneath it, of which two lines are shown.
        """
        for function in history.functions:
            known = [line.label for line in self.charts["raw"].lines]
            turn, place = divmod(len(known), len(SERIES))
            for key, column in (("reward", weighted(function)), ("raw", metrics.per_function(function))):
                if function not in known:
                    self.charts[key].add(Line(column, function, SERIES[place], style=("-", "--", ":", "-.")[turn % 4]))
        for line in [line for chart in self.charts.values() for line in chart.lines]:
            line.artist.set_marker("")  # a legend that is made now would keep the dots
        points = self.charts["std"].points
        self._title.set_text(as_text(cut(title or self.name, 118 if len(history) <= points else 72)))
        self._note.set_text(as_text("\n".join(textwrap.wrap(note, 175, max_lines=2, placeholder=" …"))))
        steps, limit = np.array(history.steps), self._most_x(history.step)
        fitted = {"reward": (self._fit_legend(history, bool(held_out)), bool(held_out)), **self._fit(history)}
        depends: dict[str, Any] = {key: (own.fill(steps, history, limit), fitted.get(key)) for key, own in self.charts.items()}
        self._held_out.fill(held_out)
        self._key.set_text(as_text(self._marks.fill(marks, limit)))
        told = f"lines: means of up to {-(-len(steps) // points)} steps; shading: min to max"
        depends[""] = told if len(steps) > self.charts["reward"].points else ""
        self._reduced.set_text(depends[""])
        self._paint(depends)
        return drawn_png(self.figure)

    def _most_x(self, step: int) -> float:
        # The planned steps, halved as long as the run has its place in them: the frame changes with each doubling only.
        if self.total < max(step, 2):
            return max(4.0, round_up(step))
        limit = float(self.total)
        while limit / 2 >= max(step, 8):
            limit /= 2
        return limit

    def _fit(self, history: History) -> dict[str, Any]:
        """Show what depends on more than a chart's columns; returns what the frame of each chart depends on."""
        missing = {key: bool(np.isnan(history[key]).all()) for key in (metrics.KL, metrics.ENTROPY, metrics.TRAIN_S)}
        # A run may begin without a reference model and get one in a later stage, or the other way about.
        kl, measured = self.charts["kl"], bool(self.beta) or not missing[metrics.KL]
        self._unmeasured.set_visible(not measured)
        kl.axis.tick_params(labelleft=measured)
        kl.right.tick_params(labelright=measured)
        lines, label = [line.artist for line in kl.lines], f"per token (beta {self.beta:.3g})" if self.beta else "per token"
        if measured and (kl.shown_legend is None or lines[0].get_label() != label):
            lines[0].set_label(label)
            kl.legend(lines, columns=1)
        time, split = self.charts["time"], not missing[metrics.TRAIN_S]
        if time.shown_legend is None or split != (len(time.shown_legend.get_texts()) > 1):
            time.legend([*(time.areas if split else []), time.lines[0].artist], columns=2)
        self._no_entropy.set_visible(len(history) > 0 and missing[metrics.ENTROPY])
        return {"kl": (measured, label), "time": split, "entropy": self._no_entropy.get_visible()}

    def _fit_legend(self, history: History, held_out: bool) -> int:
        chart, names = self.charts["reward"], []
        total, *functions = chart.lines
        for line in functions:
            weight, short = history.weights.get(line.label, 1.0), cut(short_name(line.label), _LONGEST_NAME)
            names.append(short if weight == 1 else f"{short} x {weight:.3g}")
        if len(names) > MOST_NAMED:
            names = [*names[: MOST_NAMED - 1], f"and {len(names) - MOST_NAMED + 1} more"]
        if [*names, held_out] != self._named or chart.shown_legend is None:
            self._named = [*names, held_out]
            shown = [line.artist for line in functions[:MOST_NAMED]]
            for artist, name in zip(shown, names, strict=True):
                artist.set_label(as_text(name))
            shown = [total.artist, *shown, *[self._held_out.points] * held_out]
            chart.head(-(-len(shown) // _LEGEND_COLUMNS))
            # Weights may change at every step, and the frame does not depend on them.
            chart.legend(shown, _LEGEND_COLUMNS).set_animated(True)
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
        self.charts["reward"].axis.draw_artist(self.charts["reward"].shown_legend)
        for text in (self._title, self._note, self._key):
            self.figure.draw_artist(text)

    def _cell(self, chart: Chart) -> tuple[slice, ...]:
        # The pixels of a chart with its title, legend and labels; the cells of all charts do not overlap.
        spot, (width, height) = chart.axis.get_subplotspec(), self.figure.canvas.get_width_height()
        bottoms, tops, lefts, _ = spot.get_gridspec().get_grid_positions(self.figure)
        edges = [0, *(width * left - beside for left, beside in zip(lefts[1:], _BESIDE, strict=True)), width]
        levels = [height * (1 - tops[0]) - _OVER, *(height * (1 - bottom) + _UNDER for bottom in bottoms)]
        spans = ((levels, spot.rowspan), (edges, spot.colspan))
        return tuple(slice(round(places[span.start]), round(places[span.stop])) for places, span in spans)


class _HeldOut:
    """Held-out prompts over the rewards, on the right: the share that is correct with its 95 % interval, and base's, dashed."""

    def __init__(self, chart: Chart) -> None:
        self._axis = chart.right
        look = {"color": VIOLET, "animated": True}
        dots = {"marker": "o", "markersize": 5, "markeredgecolor": "white", "clip_on": False, **look}
        (self._base,) = self._axis.plot([], [], linewidth=1, linestyle="--", **look)
        (self._bars,) = self._axis.plot([], [], linewidth=1.2, alpha=0.6, **look)
        (self.points,) = self._axis.plot([], [], linewidth=1.2, label="held-out correct, base dashed (right)", **dots)
        chart.extra += [self._base, self._bars, self.points]
        self._axis.tick_params(labelright=False, right=False)

    def fill(self, found: Sequence[dict[str, Any]]) -> None:
        """Place the measurements, the base's (step 0) first."""
        self._axis.tick_params(labelright=bool(found), right=bool(found))
        self.points.set_data([own["step"] for own in found], [own["correct"] for own in found])
        x = [value for own in found for value in (own["step"], own["step"], np.nan)]
        self._bars.set_data(x, [value for own in found for value in (own["low"], own["high"], np.nan)])
        base = [own["correct"] for own in found[:1]]
        self._base.set_data([0, self._axis.get_xlim()[1]] if base else [], base * 2)


class _Marks:
    """Vertical lines where something was changed: the latest are numbered, and explained beneath the figure."""

    def __init__(self, charts: Mapping[str, Chart]) -> None:
        self._lines, reward = [], charts["reward"]
        for chart in charts.values():
            look = {"color": "#555555", "linewidth": 0.8, "alpha": 0.9 if chart is reward else 0.35, "animated": True}
            self._lines += chart.axis.plot([], [], transform=chart.axis.get_xaxis_transform(), **look)
            chart.extra.append(self._lines[-1])
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
        for artist, kind, height in ((self._checkpoints, CHECKPOINT, 0.0), (self._adaptive, ADAPTIVE, 0.03)):
            ticks = [mark.step for mark in marks if mark.kind == kind]
            if len(ticks) > MOST_MARKS:  # as many as can be told apart
                ticks = [ticks[round(place)] for place in np.linspace(0, len(ticks) - 1, MOST_MARKS)]
            artist.set_data(ticks, [height] * len(ticks))
        words, level, before = [], 0, -np.inf
        for text in self._numbers:
            text.set_visible(False)
        for number, (text, step) in enumerate(zip(self._numbers, steps[-MOST_NUMBERS:]), start=1):
            level = (level + 1) % 3 if step - before < 0.025 * limit else 0  # neighbours stand below one another
            before = step
            text.set(text=str(number), position=(step, 0.94 - 0.11 * level), visible=True)
            words.append(f"({number}) step {step}: {cut(', '.join(by_step[step]), 44)}")
        return "\n".join(textwrap.wrap("   ".join(words), 195, max_lines=2, placeholder=" …"))
