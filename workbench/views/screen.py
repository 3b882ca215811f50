"""What a run looks like at this moment: its picture, its status in words, its health, and one group of the latest step.

The live plot in a training cell, the panel of an idle kernel and `workbench watch` all keep one of these and show it.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.progress import clock
from workbench.run.directory import RunDirectory, planned_steps
from workbench.run.metrics import DEAD, GROUP_STD, KL, REWARD
from workbench.run.state import RunState
from workbench.views.curves import RunFigure
from workbench.views.history import History
from workbench.views.latest import LatestGroup, group_html, newest_part, part_of, read_group
from workbench.views.marks import Mark, add_mark
from workbench.views.tables import PRE, plain

GROUP_EVERY = 1  # steps between two groups that are shown
OLDEST_S, OLDEST_SHARE = 5.0, 0.02
_LONGEST_MESSAGE = 1200  # characters


def oldest_s(elapsed_s: float) -> float:
    """The age that a picture may reach at the end of a step, whatever it costs to draw: 5 s, or 2 % of the run if longer."""
    return max(OLDEST_S, OLDEST_SHARE * elapsed_s)


def new_alarms(verdicts: Sequence[Any], known: set[Any]) -> bool:
    """Whether there is an alarm that is not among the `known` ones; adds it to them."""
    found = {verdict.key for verdict in verdicts if verdict.state == "alarm"} - known
    known |= found
    return bool(found)


class Screen:
    """A run's curves, marks, verdicts and latest group, kept up to date by whoever follows it.

    Args:
        group_every: steps after which another group is read.
        figure: drawn before, so that the run does not pay for its fonts.
    """

    def __init__(self, group_every: int = GROUP_EVERY, figure: RunFigure | None = None) -> None:
        self.group_every = max(1, group_every)
        self.figure = figure or RunFigure()
        self.history = History()
        self.marks: list[Mark] = []
        self.state = RunState()
        self.verdicts: list[Any] = []
        self.group: LatestGroup | None = None
        self.total = 0
        self.stages = False
        self.name = ""

    def begin(self, run: RunDirectory, total: int | None = None, beta: float | None = None) -> None:
        """Show this run.

        Args:
            total: steps that it will take; None: what its recipe says.
            beta: weight of the KL term as it begins; None: what its manifest says.
        """
        self.run, self.name = run, run.name
        self.total = planned_steps(run) if total is None else total
        self.stages = len(run.recipe().stages) > 1
        self.state = RunState.begun(run.manifest())
        if beta is not None:
            self.state.beta = beta
        self.marks, self.verdicts, self.group = [], [], None
        self.forget()
        self.figure.name, self.figure.total = run.name, self.total

    def forget(self) -> None:
        """Take the metrics anew: a run was continued, and its file written again."""
        self.history = History(self.state.weights)

    def row(self, step: int, values: Mapping[str, Any]) -> None:
        """Take note of one row of metrics."""
        self.history.add(step, values)

    def event(self, event: dict[str, Any]) -> None:
        """Take note of one event."""
        add_mark(self.marks, event)
        self.state.apply(event)

    def read_group(self, step: int | None = None) -> bool:
        """Read one group of a step's record (None: of the newest), if the one that is shown is older by `group_every`.

        Returns:
            Whether there is another one to show.
        """
        part: Path | None = newest_part(self.run) if step is None else part_of(self.run, step)
        if part is None:
            return False
        number = int(part.name.split("-")[1])
        if self.group is not None and 0 <= number - self.group.step < self.group_every:
            return False
        found = read_group(part, number // self.group_every)
        if found is None:
            return False
        self.group = found
        return True

    # -- shown ---------------------------------------------------------------------------------------------------
    def status(self, elapsed_s: float | None, message: str | None = None) -> str:
        """One line: where the run is, its numbers, and when it will end."""
        return status_line(
            self.name, self.history.step, self.total, self.history, elapsed_s, message,
            stage=self.state.stage if self.stages else "", paused=self.state.paused,
        )  # fmt: skip

    def picture(self, heading: str = "") -> tuple[bytes, str]:
        """(the figure as PNG bytes, its title).

        Args:
            heading: a status line, for a picture that stands alone; empty: which step it is of, under a status line that
                may be ahead of it.
        """
        self.figure.beta = self.state.beta or 0.0
        title = f"{self.name}: picture of {_place(self.history.step, self.total)}"
        title, _, note = (heading or title).partition(_GAP)
        return self.figure.draw(self.history, title, note, self.marks), title

    def below(self) -> str:
        """HTML of what stands under the picture: the verdicts on the run's health, and the latest group."""
        parts = [verdicts_html(self.verdicts)] if self.verdicts else []
        parts += [group_html(self.group)] if self.group is not None else []
        return "".join(parts)


_GAP = "   "


def _place(step: int, total: int) -> str:
    return f"step {step}" + (f" of {total}" if total > 0 else "")


def status_line(
    name: str,
    step: int,
    total: int,
    history: History,
    elapsed_s: float | None,
    message: str | None = None,
    stage: str = "",
    paused: bool = False,
) -> str:
    """One line: where the run is, its numbers, and when it will end, as its latest steps let expect.

    Args:
        total: steps that are planned; 0: not known.
        elapsed_s: since the run began; None: not known.
        message: how the run ended, in place of where it is.
        paused: it waits.
    """
    where = message or f"{'paused after ' if paused else ''}{_place(step, total)}"
    parts = [f"{name}: {where}" + (f" (stage {stage})" if stage and message is None else "")]
    for label, key, form in (
        ("reward", REWARD, ".2f"), ("group std", GROUP_STD, ".2f"), ("kl", KL, ".4f"), ("dead groups", DEAD, ".0%"),
    ):  # fmt: skip
        value = history.last(key)
        if value is not None or key != DEAD:
            parts.append(f"{label} {value:{form}}" if value is not None else f"{label} not measured")
    if elapsed_s is not None:
        parts.append(f"{clock(elapsed_s)} elapsed" if message is None else f"took {clock(elapsed_s)}")
    if message is None and not paused and 0 < step < total:
        step_s = history.recent_step_s()
        if step_s is None and elapsed_s is not None:
            step_s = elapsed_s / step
        if step_s is not None:
            parts.append(f"about {clock(step_s * (total - step))} left")
    return _GAP.join(parts)


def status_html(line: str) -> str:
    """The status line for a notebook: its first part in bold."""
    head, _, rest = line[:_LONGEST_MESSAGE].partition(_GAP)
    return f"<pre style='{PRE}'><b>{html.escape(plain(head))}</b>  {html.escape(plain(rest))}</pre>"


def verdicts_html(verdicts: Sequence[Any]) -> str:
    """The verdicts on a run's health, for a notebook."""
    from workbench.views.health import HealthReport

    return HealthReport(list(verdicts))._repr_html_()
