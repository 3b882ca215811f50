"""A duel as a picture: each arm's held-out rate over its completions, and every difference with its
interval.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from workbench.base.kinds import Fields
from workbench.views.figure import Picture, as_text, lying, new_figure
from workbench.views.look import GREY, INK, SERIES
from workbench.views.terminal import Bar

if TYPE_CHECKING:
    from workbench.instruments.duel.fighting import Duel, DuelPlan
    from workbench.run.directory import RunDirectory


def duel_picture(duel: Duel) -> Picture:
    """Left: a thin line for each run, a thick one for their mean. Right: a dot for each pair of
    runs, the mean difference and its interval.
    """
    figure, (left, right) = new_figure(9, 1.2 + max(2.2, 0.7 * len(duel.looks)), 1, 2)
    for place, (arm, colour) in enumerate(zip(duel.plan.arms, itertools.cycle(SERIES))):
        rates = [{at: solved.mean() for at, solved in pair[place].items()} for pair in duel.curves]
        for run in rates:
            left.plot(list(run), list(run.values()), color=colour, alpha=0.3, linewidth=0.8)
        common = sorted(set.intersection(*map(set, rates))) if rates else []
        mean = {at: np.mean([run[at] for run in rates]) for at in common}
        label = as_text(arm.name, 24)
        left.plot(list(mean), list(mean.values()), color=colour, linewidth=2.2, label=label)
    left.set(xlabel="completions trained on", ylabel="held-out prompts solved", ylim=(0, 1.02))
    left.yaxis.set_major_formatter("{x:.0%}")
    left.legend(fontsize=8, frameon=False)
    for place, ((one, other), look) in enumerate(duel.looks.items()):
        differences = duel.differences[one, other].mean(axis=1)[: look.pairs]
        heights = place - 0.05 * np.arange(len(differences))[::-1]  # equal ones side by side
        right.plot(differences, heights, "o", color=GREY, markersize=4)
        reach = [[look.mean - look.low], [look.high - look.mean]]
        colour = INK if look.called else GREY
        how: Fields = {"xerr": reach, "fmt": "D", "color": colour, "capsize": 4, "linewidth": 1.6}
        right.errorbar([look.mean], [place + 0.2], **how)
    right.axvline(0, color=INK, linewidth=0.8)
    lying(right, range(len(duel.looks)), [f"{other} - {one}" for one, other in duel.looks])
    right.set_ylim(len(duel.looks) - 0.5, -0.5)
    right.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}")
    right.set_xlabel("difference of the rates, points: each seed, mean, interval")
    text = str(duel)
    figure.suptitle(as_text(text.partition(";")[0], 110), fontsize=9, x=0.01, ha="left")
    figure.tight_layout()
    return Picture(figure, text)


class DuelProgress:
    """A duel on standard error: a bar over the completions of all its runs, with a line for each
    pair. A watcher of its runs, too.
    """

    def __init__(self, plan: DuelPlan) -> None:
        self.bar, self.plan = Bar("runs"), plan
        total = plan.pairs * len(plan.arms)
        self.task = self.bar.add_task("duel", total=total, numbers="")

    def begin(self, run: RunDirectory, total_steps: int, settings: Fields) -> None:
        self.name, self.steps = run.name, total_steps

    def update(self, step: int, values: Fields) -> None:
        """Name the run that trains, and its step."""
        self.bar.update(self.task, numbers=f"{self.name}, step {step} of {self.steps}")

    def end(self, message: str) -> None:
        """A run is over."""
        self.bar.advance(self.task)

    def pair(self, duel: Duel) -> None:
        """A pair is over, or was found: how the comparisons stand."""
        done = len(duel.curves)
        self.bar.update(self.task, completed=done * len(self.plan.arms))
        if not duel.over:
            self.bar.console.print(f"seed {done} of {self.plan.pairs}: {duel}", soft_wrap=True)
