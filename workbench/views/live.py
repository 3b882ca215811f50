"""A run in a notebook cell: one panel (`RunCell`) with two feeds, the trainer (`LivePlot`) or the
run's files (`RunPanel`).

A run followed by its files has a separate process (`start`, `workbench train`, another kernel), and
the panel an idle kernel, on whose event loop it updates between cells. Nothing is lost when the
kernel restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

from workbench.base.kinds import Fields
from workbench.health.verdicts import Verdict
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory, open_run
from workbench.views.controls import Controls, buttons_work
from workbench.views.figure import image_bundle
from workbench.views.look import ALARM
from workbench.views.run_view import GAP, FollowedRun, RunView, oldest_s
from workbench.views.tables import as_html, plain_text, verbatim
from workbench.views.widgets import WIDGETS, keep_looking, widget_view

# share of the run's time that pictures may take, as long as none of them grows older than
# `oldest_s`
BUDGET = 0.008
SHORTEST_WORDS_S = 1.0  # between two status lines
_LONGEST_MESSAGE = 1200  # characters
# the panel that shows each run: shown again, it replaces the one before
_OPEN: dict[str, RunPanel] = {}


class RunCell:
    """A `RunView` in a notebook cell: status, controls, picture, health and group, each updated in
    place when it changes.

    A picture is drawn as often as a share of the time allows, but is never older than `oldest_s`
    when there is news; a new alarm draws at once. `draws` counts them.
    """

    share = 0.1  # of the time that pictures may take
    least_s = 1.0  # between two of them
    view: Any  # RunView

    def __init__(self) -> None:
        self.draws = 0
        self.drawn_at = float("-inf")
        self.cost_s = 0.0  # of a picture
        self.controls: Controls | None = None
        self.places: Fields = {}  # display handles by name; empty outside a notebook
        self._shown: dict[str, dict[str, str]] = {}
        self._alarms: set[Any] = set()  # that a picture was drawn for

    def _elapsed_s(self) -> float:
        """Seconds since the run began."""
        return self.view.elapsed_s() or 0.0

    def _display(self, line: str, controls: object) -> None:
        """Make the places, with the controls (something to display, or a bundle) above the picture.
        What the status line says now stays in a saved terminal.
        """
        from IPython.display import display

        status = display(_status(line), raw=True, display_id=True)
        if status is None:  # no notebook: there is nothing to update
            return
        places = {"status": status}
        if controls is not None:  # widgets change by themselves, and words are taken away
            words = self.controls is None or self.controls.widget is None
            known = {"display_id": True} if words else {}
            places["controls"] = display(controls, raw=isinstance(controls, dict), **known)
        for place in ("picture", "below"):
            places[place] = display({"text/plain": ""}, raw=True, display_id=True)
        self.places = places
        self._shown = {"status": _status(line)}

    def _answered(self, events: Iterable[Fields], ended: str | None = None) -> None:
        """Show events, which the view has, in the controls; `ended`: how the run did."""
        if self.controls is not None:
            for event in events:
                self.controls.answered(event)
        if ended is None:
            return
        if self.controls is not None and self.controls.widget is not None:
            self.controls.ended(ended)
        elif self.places.get("controls") is not None:  # how to steer it is of no use any more
            self._put("controls", {"text/plain": ""})

    def _show(self, line: str, draw: bool | None = None, last: bool = False) -> None:
        """Update the words, and the picture if it is due; `draw`: even if it is not; `last`: it is
        the one that stays.
        """
        if not self.places:
            return
        alarms = (each.title for each in self.view.verdicts if each.state == "alarm")
        self._put("status", _status(line, ", ".join(alarms)))
        if len(self.view.history):
            self._put("below", {"text/html": self.view.below(), "text/plain": ""})
            if draw or (draw is None and self._due()):
                started = time.perf_counter()
                figure, picture = self.view.figure.figure, self.view.picture(sharp=last)
                self.places["picture"].update(image_bundle(figure, *picture), raw=True)
                # One that a busy machine made slow is not forgotten at once.
                self.cost_s = max(time.perf_counter() - started, 0.5 * self.cost_s)
                self.drawn_at = time.monotonic()
                self.draws += 1

    def _put(self, place: str, bundle: dict[str, str]) -> None:
        if self._shown.get(place) != bundle:
            self._shown[place] = bundle
            self.places[place].update(bundle, raw=True)

    def _due(self) -> bool:
        alarms = {each.key for each in self.view.verdicts if each.state == "alarm"} - self._alarms
        self._alarms |= alarms
        # One point is no curve: a first picture of it is for a first step that takes long.
        if alarms or (self.draws == 0 and len(self.view.history) > 1):
            return True
        age = time.monotonic() - self.drawn_at
        if not self.view.fresh or age < self.least_s:
            return False
        # Who changed something wants to see it marked.
        longest = min(self.cost_s / self.share, oldest_s(self._elapsed_s()))
        return self.view.steered or age >= longest


def _status(line: str, alarms: str = "") -> dict[str, str]:
    head, _, rest = line[:_LONGEST_MESSAGE].partition(GAP)
    if alarms:
        rest = f"{ALARM} alarm: {alarms}{GAP}{rest}"
    page = verbatim(f"<b>{as_html(head)}</b>  {as_html(rest)}", "font:inherit")
    return {"text/html": page, "text/plain": plain_text(f"{head}{GAP}{rest}")}


class LivePlot(RunCell):
    """Shows a run in the notebook cell that trains it, in place, at a bounded cost.

    Pass it to `train(..., watchers=[LivePlot()])`. The status line, the verdicts on the run's
    health and one group move at the end of a step, at most once a second. The curves are redrawn as
    often as 0.8 % of the run's time allows, but at the end of a step they are never older than 10 s
    or 2 % of the run, whichever is longer; a new alarm redraws them at once. Buttons steer the run
    where they work. The saved notebook keeps the last picture and the last group. `drawing_s` is
    the wall time of all of this.
    """

    share = BUDGET

    def __init__(self) -> None:
        super().__init__()
        self.drawing_s = 0.0
        self.started = 0.0
        self._said_at = 0.0
        self._paused_at = 0.0
        self._batch: ScoredBatch | None = None  # the newest
        # What is slow the first time (libraries, fonts) is done here, before the run's time begins;
        # the second draw says what one costs.
        if buttons_work(in_cell=True)[0]:
            import ipywidgets  # noqa: F401
        self.view = RunView()
        for _ in range(2):
            started = time.perf_counter()
            self.view.figure.draw(self.view.history)
        self.cost_s = time.perf_counter() - started

    @contextlib.contextmanager
    def _paid(self) -> Generator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.drawing_s += time.perf_counter() - started

    # -- what the trainer calls
    # --------------------------------------------------------------------------------------
    def begin(self, run: RunDirectory, total_steps: int, settings: Fields) -> None:
        with self._paid():
            self.view.begin(run, total_steps, settings.get("beta") or 0.0)
            for row in run.metrics():  # a run that is resumed has rows and changes already
                self.view.row(row["step"], row)
            for event in run.events():
                self.view.event(event)
            self.controls = Controls(run, in_cell=True, state=self.view.state)
            self._display(f"{run.name}: waiting for the first step", self.controls)
        self.started = self.drawn_at = time.monotonic()

    def update(self, step: int, values: Fields) -> None:
        with self._paid():
            self.view.row(step, values)
            due = bool(self.places) and self._due()
            if due or time.monotonic() - self._said_at >= SHORTEST_WORDS_S:
                self._say(draw=due)

    def batch(self, scored: ScoredBatch, summary: object) -> None:
        """A generation batch was scored and recorded: one of its groups is shown at the end of the
        step.
        """
        self._batch = scored

    def verdicts(self, verdicts: list[Verdict]) -> None:
        """The run's health was checked: shown at the end of the step, with a picture if there is a
        new alarm.
        """
        self.view.verdicts = list(verdicts)

    def event(self, event: Fields) -> None:
        """Something was changed, answered or saved: marked in the next picture, and a pause is
        shown at once.
        """
        with self._paid():
            was_paused = self.view.state.paused
            self.view.event(event)
            self._answered([event])
            if self.view.state.paused == was_paused:
                return
            if was_paused:  # a pause is no time of the run that drawing could have a share of
                self.started += time.monotonic() - self._paused_at
            self._paused_at = time.monotonic()
            self._say(draw=True)

    def end(self, message: str) -> None:
        with self._paid():
            self._answered([], ended=message)
            self._say(message, draw=True)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self.started

    def _say(self, message: str | None = None, draw: bool = False) -> None:
        self._said_at = time.monotonic()
        if self.places and self._batch is not None:
            self.view.show_group(self._batch)
        line = self.view.words(self._elapsed_s(), message)
        if message is not None and not len(self.view.history):
            line = f"{self.view.name}: {message}"
        self._show(line, draw, last=message is not None)


class RunPanel(RunCell):
    """A run's picture, health, latest group and controls, kept up to date from its files until it
    ends.

    Show it by leaving it as the last line of a cell. The saved notebook keeps the last picture.

    >>> panel = wb.RunPanel("latest")
    >>> panel.wait(timeout_s=60)  # follow it here, in a notebook that is executed as a whole
    'finished'

    Args:
        run: a run, its name or path, "latest", or what `start(...)` returned.
        root: the folder of runs opened by name.
        every_s: seconds between two updates.

    Raises:
        RunError: if there is no such run.
    """

    view: FollowedRun

    def __init__(
        self,
        run: RunDirectory | str | Path | Any = "latest",
        *,
        root: str | Path = "runs",
        every_s: float = 1.0,
    ) -> None:
        super().__init__()
        self.every_s = self.least_s = every_s
        self.works, self._sentence = buttons_work(in_cell=False)
        self.box: Any = None  # where the controls appear once there is a run
        self._task: asyncio.Task | None = None
        if isinstance(run, (str, Path)):
            run = open_run(run, root, latest="training")
        self.view = FollowedRun(run)
        self._make_controls()

    @property
    def run(self) -> RunDirectory | None:
        """The run; None while there is none."""
        return self.view.run

    @property
    def over(self) -> bool:
        """Whether there is nothing left to follow."""
        return self.view.over

    @property
    def status(self) -> str:
        """ "loading", "running", or how it ended ("not begun": before there was a run)."""
        return self.view.status

    # -- keeping up
    # ----------------------------------------------------------------------------------------------
    def _make_controls(self) -> None:
        if self.works and self.run is not None and not self.over:
            self.controls = Controls(self.run, state=self.view.state)
            if self.box is not None:
                self.box.children = [self.controls.widget]

    def look(self, health: bool = True) -> None:
        """Read what is new and show it, with the run's health if it is due. The panel does this
        while it is shown.
        """
        if self.over:
            return
        events = self.view.look()
        if self.controls is None and not self.over:
            self._make_controls()
        else:
            self._answered(events, ended=self.view.message())
        if health:
            self._examine()
        self._refresh()

    def _examine(self) -> None:
        if self.view.time_to_examine():
            self.view.examine()

    def _refresh(self) -> None:
        if self.places:
            self.view.read_group()
        self._show(repr(self), True if self.over and self.view.fresh else None, self.over)

    def wait(self, timeout_s: float | None = None) -> str:
        """Follow the run here and now, until it ends (or `timeout_s` is over): for a notebook that
        is executed as a whole.

        Returns the run's status. An Interrupt stops waiting, not the run.
        """
        until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        with contextlib.suppress(KeyboardInterrupt):
            while not self.over and time.monotonic() < until:
                self.look()
                if not self.over:
                    time.sleep(min(self.every_s, max(0.0, until - time.monotonic())))
        return self.status

    async def _look(self) -> bool:
        self.look(health=False)
        # It reads the record, which may take a while: the buttons are answered meanwhile.
        await asyncio.to_thread(self._examine)
        self._refresh()
        return self.over

    def _failed(self, error: Exception) -> None:
        self._show(f"{self!r}\n{type(error).__name__}: {error}")

    def close(self) -> None:
        """Stop following; keep the last display."""
        if self._task is not None:
            self._task.cancel()
        if self.controls is not None and self.controls.widget is not None:
            self.controls.widget.close()

    # -- showing
    # ----------------------------------------------------------------------------------------------
    def __repr__(self) -> str:
        return self.view.line()

    def _ipython_display_(self) -> None:
        key = str(self.run.path if self.run is not None else id(self.view.started))
        if (before := _OPEN.get(key)) not in (None, self):
            before.close()
        _OPEN[key] = self
        self.look(health=False)
        self._display(repr(self), self._controls())
        if not self.places:
            return
        self._examine()
        # These places show no picture yet.
        self.view.fresh = True
        self.drawn_at = float("-inf")
        self._refresh()
        # Where a notebook is executed and then only read, `wait` follows the run.
        idle = self._task is None or self._task.done()
        if idle and not self.over and os.environ.get(WIDGETS) != "0":
            self._task = keep_looking(self._look, self.every_s, self._failed)

    def _controls(self) -> Fields | None:
        if self.over:
            return None
        # A saved notebook has no kernel to answer the buttons, and shows the sentence instead.
        bundle: Fields = {"text/plain": self._sentence}
        if self.works:
            import ipywidgets

            if self.box is None:
                self.box = ipywidgets.VBox([] if self.controls is None else [self.controls.widget])
            bundle |= widget_view(self.box)
        return bundle
