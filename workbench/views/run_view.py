"""A run as it is shown: picture, status in words, health, and one group of its latest step.

A `RunView` has two feeds: the trainer in memory (`live.LivePlot`, in the cell that trains) and the run's files
(`followed.FollowedRun`, for the panel of an idle kernel and `workbench watch`). A `RunCell` shows one in a notebook.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from workbench.progress import clock
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory, planned_steps
from workbench.run.metrics import DEAD, GROUP_STD, KL, REWARD
from workbench.run.state import RunState
from workbench.views.curves import RunFigure
from workbench.views.figure import image_bundle
from workbench.views.group_view import ShownGroup, group_html, group_of, newest_part, read_batch
from workbench.views.health import health_view
from workbench.views.history import History, Mark, add_mark
from workbench.views.tables import PRE, plain

GROUP_EVERY = 1  # steps between two groups that are shown
OLDEST_S, OLDEST_SHARE = 5.0, 0.02
GAP = "   "  # between the parts of a status line
_LONGEST_MESSAGE = 1200  # characters


def oldest_s(elapsed_s: float) -> float:
    """How old a picture may be at the end of a step, whatever it costs to draw: 5 s, or 2 % of the run if longer."""
    return max(OLDEST_S, OLDEST_SHARE * elapsed_s)


class RunView:
    """A run's curves, marks, verdicts and latest group, kept up to date by whoever feeds it.

    Args:
        group_every: steps after which another group is shown.
        figure: drawn before, so that the run does not pay for loading its fonts.
    """

    def __init__(self, group_every: int = GROUP_EVERY, figure: RunFigure | None = None) -> None:
        self.group_every = max(1, group_every)
        self.figure = figure or RunFigure()
        self.history = History()
        self.state = RunState()
        self.marks: list[Mark] = []
        self.verdicts: list[Any] = []
        self.group: ShownGroup | None = None
        self.name, self.total, self.stages = "", 0, False
        self.fresh = self.steered = False  # since the last picture: anything came, somebody changed something

    def begin(self, run: RunDirectory, total: int | None = None, beta: float | None = None) -> None:
        """Show this run.

        Args:
            total: steps that it will take; None: what its recipe says.
            beta: weight of the KL term as it begins; None: what its manifest says.
        """
        self.run, self.name = run, run.name
        self.total = planned_steps(run) if total is None else total
        self.stages = len(run.recipe().stages) > 1
        begun = RunState.begun(run.manifest())
        self.state = begun if beta is None else replace(begun, beta=beta)
        self.marks, self.verdicts, self.group = [], [], None
        self.forget()
        self.figure.name, self.figure.total = run.name, self.total

    def forget(self) -> None:
        """Start the metrics again: the run was continued and its file rewritten."""
        self.history = History(self.state.weights)

    def row(self, step: int, values: Mapping[str, Any]) -> None:
        """Take note of one row of metrics."""
        self.history.add(step, values)
        self.fresh = True

    def event(self, event: dict[str, Any]) -> None:
        """Take note of one event."""
        add_mark(self.marks, event)
        self.state.apply(event)
        self.fresh = True
        self.steered |= bool(event.get("event") == "control" and event.get("applied") and event.get("by") != "adaptive")

    def show_group(self, batch: ScoredBatch) -> None:
        """Show one group of a batch, if the one shown is older by `group_every`."""
        if self._wants_group(batch.step) and batch.group_count:
            self.group = group_of(batch, batch.step // self.group_every)

    def read_group(self) -> None:
        """The same with the newest batch of the run's record."""
        newest = newest_part(self.run)
        if newest is not None and self._wants_group(newest[0]) and (batch := read_batch(newest[1])) is not None:
            self.show_group(batch)

    def _wants_group(self, step: int) -> bool:
        return self.group is None or not 0 <= step - self.group.step < self.group_every

    # -- shown ---------------------------------------------------------------------------------------------------
    def status(self, elapsed_s: float | None, message: str | None = None) -> str:
        """One line: where the run is, its numbers, and the time left, as its latest steps predict it.

        Args:
            elapsed_s: since the run began; None: not known.
            message: how the run ended, in place of where it is.
        """
        history, step, paused = self.history, self.history.step, self.state.paused
        where = message or f"{'paused after ' if paused else ''}{_place(step, self.total)}"
        stage = self.state.stage if self.stages and message is None else ""
        parts = [f"{self.name}: {where}" + (f" (stage {stage})" if stage else "")]
        parts += [
            f"{label} {value:{form}}" if value is not None else f"{label} not measured"
            for label, key, form in _NUMBERS
            if (value := history.last(key)) is not None or key != DEAD
        ]
        if elapsed_s is not None:
            parts.append(f"{clock(elapsed_s)} elapsed" if message is None else f"took {clock(elapsed_s)}")
        if message is None and not paused and (left := self.left_s(elapsed_s)):
            parts.append(f"about {clock(left)} left")
        return GAP.join(parts)

    def left_s(self, elapsed_s: float | None = None) -> float | None:
        """Seconds until the planned steps are done, as the latest steps (or the mean of all) predict; None: not known."""
        step, step_s = self.history.step, self.history.recent_step_s()
        if step_s is None and elapsed_s is not None and step:
            step_s = elapsed_s / step
        return step_s * max(0, self.total - step) if step_s is not None and step and self.total else None

    def picture(self, heading: str = "") -> tuple[bytes, str]:
        """(the figure as PNG bytes, its title).

        Args:
            heading: a status line, for a picture that stands alone; empty: only the step it shows, as the status line
                above may be ahead of it.
        """
        self.fresh = self.steered = False
        self.figure.beta = self.state.beta or 0.0
        shown = heading or f"{self.name}: picture of {_place(self.history.step, self.total)}"
        title, _, note = shown.partition(GAP)
        return self.figure.draw(self.history, title, note, self.marks), title

    def below(self) -> str:
        """HTML of what stands under the picture: the verdicts on the run's health, and the latest group."""
        return (health_view(self.verdicts)._repr_html_() if self.verdicts else "") + (
            group_html(self.group) if self.group is not None else ""
        )


_NUMBERS = (("reward", REWARD, ".2f"), ("group std", GROUP_STD, ".2f"), ("kl", KL, ".4f"), ("dead groups", DEAD, ".0%"))


def _place(step: int, total: int) -> str:
    return f"step {step}" + (f" of {total}" if total > 0 else "")


class RunCell:
    """A `RunView` in a notebook cell: status, picture, controls, health and group, each updated in place when it changes.

    A picture is drawn as often as a share of the time allows, but is never older than `oldest_s` when something new came;
    a new alarm draws at once. `draws` counts them.
    """

    share = 0.1  # of the time that pictures may take
    least_s = 1.0  # between two of them
    view: RunView | None

    def __init__(self) -> None:
        self.draws, self.drawn_at, self._cost_s = 0, float("-inf"), 0.0
        self.places: dict[str, Any] = {}  # display handles by name; empty outside a notebook
        self._shown: dict[str, str] = {}
        self._alarms: set[Any] = set()  # that a picture was drawn for

    def _display(self, line: str, controls: Callable[[], None] | None = None) -> None:
        """Make the places, with the controls below the picture. What the status line says now stays in a saved terminal."""
        from IPython.display import display

        places = {"status": display(_status(line), raw=True, display_id=True)}
        if places["status"] is None:  # no notebook: there is nothing to update
            return
        places["picture"] = display({"text/plain": ""}, raw=True, display_id=True)
        if controls is not None:
            controls()
        places["below"] = display({"text/plain": ""}, raw=True, display_id=True)
        self.places, self._shown = places, {"status": line}

    def _show(self, line: str, draw: bool | None = None) -> None:
        """Bring the words up to date, and the picture if it is due (`draw` None), or whatever it costs."""
        if not self.places:
            return
        self._put("status", line, _status(line))
        if self.view is not None and len(self.view.history):
            below = self.view.below()
            self._put("below", below, {"text/html": below, "text/plain": ""})
            if draw or (draw is None and self._due()):
                self._draw()

    def _put(self, place: str, shown: str, bundle: dict[str, str]) -> None:
        if self._shown.get(place) != shown:
            self._shown[place] = shown
            self.places[place].update(bundle, raw=True)

    def _elapsed_s(self) -> float:
        raise NotImplementedError

    def _due(self) -> bool:
        alarms = {verdict.key for verdict in self.view.verdicts if verdict.state == "alarm"} - self._alarms
        self._alarms |= alarms
        # One point is no curve: a first picture of it is for a first step that takes long.
        if alarms or (self.draws == 0 and len(self.view.history) > 1):
            return True
        age = time.monotonic() - self.drawn_at
        if not self.view.fresh or age < self.least_s:
            return False
        # Who changed something wants to see it marked.
        return self.view.steered or age >= min(self._cost_s / self.share, oldest_s(self._elapsed_s()))

    def _draw(self) -> None:
        started = time.perf_counter()
        self.places["picture"].update(image_bundle(*self.view.picture()), raw=True)
        spent = time.perf_counter() - started
        # A draw that lays out text anew comes now and then, and is not forgotten at once.
        self._cost_s = max(spent, 0.5 * self._cost_s)
        self.draws, self.drawn_at = self.draws + 1, time.monotonic()


def _status(line: str) -> dict[str, str]:
    head, _, rest = line[:_LONGEST_MESSAGE].partition(GAP)
    text = f"<pre style='{PRE}'><b>{html.escape(plain(head))}</b>  {html.escape(plain(rest))}</pre>"
    return {"text/html": text, "text/plain": line}
