"""The curves of a run in one figure, with changes marked; its content and size do not grow with the
run.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.base.kinds import Fields, Figure
from workbench.health.verdicts import Verdict
from workbench.run import metrics
from workbench.run.rollouts import unstated_right
from workbench.views.chart import LOOKS, SPECIFIED, Chart
from workbench.views.figure import as_text, mosaic, png
from workbench.views.history import ADAPTIVE, ALARMED, CHECKPOINT, History, Mark, weighted
from workbench.views.look import ALARM, GREEN, GREY, INK, ORANGE, PAPER, RED, SERIES, WELL
from workbench.views.tables import cut, short_name

MOST_MARKS = 60  # vertical lines
MOST_NUMBERS = 8  # of them that are numbered and explained
MOST_NAMED = 11  # functions in the legend
_LONGEST_NAME = 20  # characters
_LEGEND_COLUMNS = 4
NO_ENTROPY = "not logged by this trainer\n(Unsloth's GPU trainer never logs it)"
_NO_KL = (
    "KL is not measured: beta = 0,\nso there is no reference model.\n\nTo measure it, set beta in "
)
KL_UNMEASURED = f"{_NO_KL}the recipe,\nfor example grpo.beta = 0.001."
KL_UNMEASURED_ATTACHED = f"{_NO_KL}GRPOConfig,\nfor example beta=0.001."


class RunFigure:
    """One figure, eight charts, reused for every redraw. A beta of 0: KL is not measured."""

    def __init__(self, name: str = "", beta: float = 0.0) -> None:
        self.name = name
        self.beta = beta
        layout = SPECIFIED["layout"]
        self.figure, axes = mosaic(9, 7.6, layout, **SPECIFIED["grid"])
        texts = (self.figure.text(s="", **look) for look in SPECIFIED["texts"])
        self.title, self.note, self.key, self.reduced = texts
        self.charts = {
            key: Chart(axes[key], **settings) for key, settings in SPECIFIED["charts"].items()
        }
        for key, axis in axes.items():
            axis.set_xlabel("step" if key in layout[2] else "", labelpad=1)
        self.marks = _Marks(self.charts)
        self.alarms = _Alarms(self.figure, self.charts)
        self.held_out = _HeldOut(self.charts["reward"])
        self.unmeasured = KL_UNMEASURED
        self.groups = self.charts["groups"].title

    def about(self, manifest: Fields) -> None:
        """Word the charts for a run: who made its trainer, and whether anybody defined what is
        right.
        """
        self.unmeasured = KL_UNMEASURED_ATTACHED if manifest.get("attached") else KL_UNMEASURED
        groups = self.charts["groups"]
        unstated = unstated_right(manifest)
        groups.title = as_text(f"groups; right: {cut(unstated, 24)}") if unstated else self.groups
        groups.head(groups.legend_rows)

    def draw(
        self,
        history: History,
        title: str = "",
        note: str = "",
        marks: Sequence[Mark] = (),
        held_out: Sequence[Fields] = (),
        verdicts: Sequence[Verdict] = (),
        sharp: bool = False,
    ) -> bytes:
        """The figure with this history in it, as PNG bytes; `held_out` is as `run.held_out` reads
        it, `sharp` as `png` takes it.

        The title is one line (empty: the run's name). Beneath it stand the alarms that were raised,
        or what the latest `verdicts` warn of, and the note, of which two lines are shown.
        """
        self._add_functions(history)
        last_step = max(4.0, 1.02 * history.step)
        points = self.charts["std"].points
        bucketed = len(history) > points
        self.title.set_text(as_text(cut(title or self.name, 56 if bucketed else 88)))
        self.note.set_text(as_text(_wrapped(note, 140)))
        means = f"lines: means of up to {-(-len(history) // points)} steps; shading: min to max"
        self.reduced.set_text(means if bucketed else "")
        for chart in self.charts.values():
            chart.fill(history, last_step)
        self._fit(history)
        self.held_out.fill(held_out)
        self.key.set_text(as_text(self.marks.fill(marks, last_step)))
        self._fit_legend(history, bool(held_out))
        raised = [mark for mark in marks if mark.kind == ALARMED]
        self.alarms.fill(raised, verdicts, last_step)
        return png(self.figure, sharp)

    def _add_functions(self, history: History) -> None:
        reward, raw = self.charts["reward"], self.charts["raw"]
        drawn = [line.artist.get_label() for line in raw.lines]
        for function in (name for name in history.functions if name not in drawn):
            turn, place = divmod(len(raw.lines), len(SERIES))
            style = (("-", "--"), (":", "-."))[turn % 2][place % 2]
            look: Fields = {"color": SERIES[place], "linestyle": style}
            reward.add(weighted(function), label=function, linewidth=1, **look)
            raw.add(metrics.per_function(function), label=function, linewidth=1, **look)

    def _fit(self, history: History) -> None:
        """Label what is not measured; name what is."""
        # A run may begin without a reference model and get one in a later stage, or the reverse.
        kl = self.charts["kl"]
        measured = bool(self.beta) or not history.absent(metrics.KL)
        kl.words.set_text("" if measured else self.unmeasured)
        kl.axis.tick_params(labelleft=measured)
        kl.right.tick_params(labelright=measured)
        if measured:
            kl.legend([(line.artist, line.artist.get_label()) for line in kl.lines], columns=2)
        time = self.charts["time"]
        parts = [] if history.absent(metrics.TRAIN_S) else time.areas
        whole = time.lines[0].artist
        time.legend([(artist, artist.get_label()) for artist in (*parts, whole)], columns=4)
        silent = len(history) and history.absent(metrics.ENTROPY)
        self.charts["entropy"].words.set_text(NO_ENTROPY if silent else "")

    def _fit_legend(self, history: History, held_out: bool) -> None:
        chart = self.charts["reward"]
        artists = [line.artist for line in chart.lines]
        names = ["total"]
        for function in (artist.get_label() for artist in artists[1:]):
            weight = history.weights.get(function, 1.0)
            short = cut(short_name(function), _LONGEST_NAME)
            names.append(as_text(short if weight == 1 else f"{short} x {weight:.3g}"))
        if (more := len(names) - MOST_NAMED - 1) > 0:
            names[MOST_NAMED:] = [f"and {more + 1} more"]
        entries = list(zip(artists, names))
        if held_out:
            entries.append((self.held_out.points, "held-out correct, base dashed (right)"))
        if len(self.marks.checkpoints.get_xdata()):
            entries.append((self.marks.checkpoints, "checkpoint"))
        chart.head(-(-len(entries) // _LEGEND_COLUMNS))
        chart.legend(entries, _LEGEND_COLUMNS)


class _HeldOut:
    """Held-out prompts over the rewards, on the right: the correct share, its 95 % interval; base
    dashed.
    """

    def __init__(self, chart: Chart) -> None:
        self._axis = chart.right
        self.now = chart.axis.text(s="", transform=chart.axis.transAxes, **LOOKS["now"])
        (self.base,) = self._axis.plot([], [], **LOOKS["base"])
        self.bars = self._axis.vlines([], 0, 1, **LOOKS["bars"])
        (self.points,) = self._axis.plot([], [], **LOOKS["points"])

    def fill(self, measured: Sequence[Fields]) -> None:
        """Place the measurements, the base's (step 0) first."""
        self._axis.tick_params(labelright=bool(measured), right=bool(measured))
        points = [row["correct"] for row in measured]
        self.points.set_data([row["step"] for row in measured], points)
        ends = [[(row["step"], row[end]) for end in ("low", "high")] for row in measured]
        self.bars.set_segments(ends)
        base = points[:1]
        newest = " → ".join(f"{share:.0%}" for share in (*base, *points[1:][-1:]))
        self.now.set_text(f"held-out correct: {newest}" if newest else "")
        self.base.set_data([0, self._axis.get_xlim()[1]][: 2 * len(base)], base * 2)


class _Alarms:
    """Where alarms were raised: a line over the rewards with a sign above it, and red behind all
    that follows the first; a line and a red title at the chart that each is about; and a band under
    the title, which names them.
    """

    def __init__(self, figure: Figure, charts: Mapping[str, Chart]) -> None:
        self.charts = charts
        self.band = figure.text(s="", **LOOKS["band"])
        axis = charts["reward"].axis
        across = {"transform": axis.get_xaxis_transform()}
        self.after = axis.fill_between([0, 0], 0, 1, **LOOKS["after"], **across)
        (self.signs,) = axis.plot([], [], **LOOKS["signs"], **across)

    def fill(self, alarms: Sequence[Mark], verdicts: Sequence[Verdict], last_step: float) -> None:
        """Place the alarms, and say of each whether it is over."""
        for key, chart in self.charts.items():
            own = [mark for mark in alarms if key == "reward" or mark.issue in chart.alarms]
            chart.alarmed(sorted({mark.step for mark in own}))
        first = min((mark.step for mark in alarms), default=last_step)
        self.after.set_data([first, last_step], 0, 1)
        steps = sorted({mark.step for mark in alarms})
        self.signs.set_data(steps, [1.02] * len(steps))
        now = {verdict.name: verdict.state for verdict in verdicts}
        over = [bool(now) and now.get(mark.issue) != "alarm" for mark in alarms]
        said = [
            f"{mark.text} (step {mark.step}{', now over' * past})"
            for mark, past in zip(alarms, over)
        ]
        warned = [verdict.title for verdict in verdicts if verdict.state == "warning"]
        colour, ground, words = GREEN, PAPER, f"{WELL} no alarm, no warning" if verdicts else ""
        if told := said or warned:
            sign, what = (ALARM, "alarm") if said else ("!", "warning")
            words = f"{sign} {len(told)} {what}{'s' * (len(told) > 1)}: {', '.join(told)}"
            colour = ORANGE if not said else GREY if all(over) else RED
            ground = colour if said else PAPER
        box = {"boxstyle": "square,pad=0.35", "edgecolor": colour, "facecolor": ground}
        self.band.set_bbox(box if words else None)
        self.band.set(text=as_text(cut(words, 104)), color=PAPER if said else INK)


class _Marks:
    """Vertical lines where something was changed; the latest are numbered and explained beneath."""

    def __init__(self, charts: Mapping[str, Chart]) -> None:
        reward = charts["reward"].axis
        self.lines = []
        for axis in (chart.axis for chart in charts.values()):
            across = {"transform": axis.get_xaxis_transform()}
            alpha = 0.9 if axis is reward else 0.35
            self.lines += axis.plot([], [], alpha=alpha, **LOOKS["mark"], **across)
        across = {"transform": reward.get_xaxis_transform()}
        (self.checkpoints,) = reward.plot([], [], **LOOKS["checkpoints"], **across)
        (self.adaptive,) = reward.plot([], [], **LOOKS["adaptive"], **across)
        self._numbers = [
            reward.text(0, 1, "", **LOOKS["number"], **across) for _ in range(MOST_NUMBERS)
        ]

    def fill(self, marks: Sequence[Mark], last_step: float) -> str:
        """Place the marks; returns the words that explain them."""
        by_step: dict[int, list[str]] = {}
        ticks: dict[str, list[int]] = {ADAPTIVE: [], CHECKPOINT: []}
        for mark in marks:
            if mark.kind in ticks:
                ticks[mark.kind].append(mark.step)
            elif mark.kind != ALARMED:
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
        return _wrapped("   ".join(words), 165)

    @staticmethod
    def _place(artist: Any, steps: Sequence[int], height: float) -> None:
        if len(steps) > MOST_MARKS:  # as many as can be told apart
            steps = [steps[round(place)] for place in np.linspace(0, len(steps) - 1, MOST_MARKS)]
        artist.set_data(steps, [height] * len(steps))


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width, max_lines=2, placeholder=" …"))
