"""The live plot: a run in the cell that trains it, updated in place, at a bounded price."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from workbench.progress import clock, count_line, progress_line
from workbench.run.directory import RunDirectory
from workbench.views.controls import Controls
from workbench.views.curves import RunFigure
from workbench.views.figure import image_bundle
from workbench.views.history import History
from workbench.views.screen import GROUP_EVERY, Screen, new_alarms, oldest_s, status_html, status_line
from workbench.views.widgets import buttons_work

__all__ = ["LivePlot", "clock", "count_line", "progress_line", "status_line"]

BUDGET = 0.008  # share of the run's time that pictures may take, as long as none of them grows older than `oldest_s`
SHORTEST_PICTURE_S, SHORTEST_WORDS_S = 1.0, 0.25  # between two of them


class LivePlot:
    """Watches a run in the notebook cell that trains it.

    Pass it to `train(..., watchers=[LivePlot()])`. The status line, the verdicts on the run's health and one group move at
    every step. The curves are redrawn as often as 0.8 % of the run's time allows, but at the end of a step they are never
    older than 5 s or 2 % of the run, whichever is longer; a new alarm redraws them at once. Buttons steer the run where
    they work. The saved notebook keeps the last picture and the last group. `drawing_s` is the wall time of all of this.

    Args:
        group_every: steps for which one group stays, to be read at leisure.
        controls: with buttons and fields.
    """

    def __init__(self, group_every: int = GROUP_EVERY, controls: bool = True) -> None:
        self.drawing_s = 0.0
        self.draws = 0
        self.handle: Any = None  # stays None outside a notebook, where there is nowhere to draw
        self._status_handle: Any = None
        self._below_handle: Any = None
        self._wants_controls, self._controls = controls, None
        # What is slow the first time (libraries, the fonts of a figure) is done here, before the run's time begins. The
        # second draw says what one costs.
        import pyarrow.parquet  # noqa: F401

        if controls:
            buttons_work(in_cell=True)
        figure = RunFigure("", [], 0.0)
        figure.draw(History())
        started = time.perf_counter()
        figure.draw(History())
        self._cost_s = time.perf_counter() - started  # of the latest picture
        self._pictures_s = 0.0
        self.screen = Screen(group_every, figure)
        self._newest_batch: int | None = None  # step
        self._said_at = self._paused_at = 0.0
        self._below_shown = ""
        self._news = False  # somebody changed something since the last picture
        self._alarms: set[Any] = set()  # that a picture was drawn for
        self._alarmed = False

    @property
    def history(self) -> History:
        """The rows of metrics so far."""
        return self.screen.history

    @contextlib.contextmanager
    def _paid(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.drawing_s += time.perf_counter() - started

    # -- what the trainer calls --------------------------------------------------------------------------------------
    def begin(self, run: RunDirectory, total_steps: int, settings: dict[str, Any]) -> None:
        from IPython.display import display

        with self._paid():
            self.screen.begin(run, total_steps, settings.get("beta") or 0.0)
            self._take_the_past(run)
            # Three places that are updated by themselves: a line of text costs a hundredth of a picture.
            waiting = f"{run.name}: waiting for the first step"
            self._status_handle = display(_text(waiting), raw=True, display_id=True)
            self.handle = display({"text/plain": ""}, raw=True, display_id=True)
            if self.handle is not None and self._wants_controls:
                self._controls = Controls(run, in_cell=True, state=self.screen.state)
                display(self._controls)
            self._below_handle = display({"text/plain": ""}, raw=True, display_id=True)
        self.started = self.drawn_at = time.monotonic()

    def _take_the_past(self, run: RunDirectory) -> None:
        # A run that goes on has rows and changes already.
        for row in run.metrics():
            self.screen.row(row["step"], row)
        for event in run.events():
            self.screen.event(event)

    def update(self, step: int, values: dict[str, Any]) -> None:
        with self._paid():
            self.screen.row(step, values)
            if self.handle is None:
                return
            draw = self._may_draw()
            if draw or time.monotonic() - self._said_at >= SHORTEST_WORDS_S:
                self._say()
            if draw:
                self._draw()

    def batch(self, scored: Any, summary: Any) -> None:
        """A generation batch was scored and recorded: one of its groups is shown at the end of the step."""
        self._newest_batch = scored.step

    def verdicts(self, verdicts: list[Any]) -> None:
        """The run's health was looked at: shown at the end of the step, with a picture if there is a new alarm."""
        self.screen.verdicts = list(verdicts)
        self._alarmed |= new_alarms(verdicts, self._alarms)

    def event(self, event: dict[str, Any]) -> None:
        """Something was changed, answered or saved: marked in the next picture, and said at once."""
        with self._paid():
            was_paused = self.screen.state.paused
            self.screen.event(event)
            self._news |= bool(
                event.get("event") == "control" and event.get("applied") and event.get("by") != "adaptive"
            )
            if self._controls is not None:
                self._controls.answered(event, self.screen.state)
            paused = self.screen.state.paused
            if paused and not was_paused:
                self._paused_at = time.monotonic()
            elif was_paused and not paused:
                # A pause is no time of the run that drawing could have a share of.
                self.started += time.monotonic() - self._paused_at
            if self.handle is not None and paused != was_paused:
                self._say()

    def end(self, message: str) -> None:
        with self._paid():
            if self._controls is not None:
                self._controls.ended(message)
            if self.handle is not None and len(self.history):
                self.screen.group_every = 1  # the group of the end is shown, however young the one before it is
                self._say(message)
                self._draw()
            elif self._status_handle is not None:
                self._status_handle.update(_text(f"{self.screen.name}: {message}"), raw=True)

    # -- drawing -----------------------------------------------------------------------------------------------------
    def _may_draw(self) -> bool:
        # One point is no curve, so a first picture of it is for a first step that took long.
        if self._alarmed or (self.draws == 0 and len(self.history) > 1):
            return True
        now = time.monotonic()
        age, elapsed = now - self.drawn_at, now - self.started
        if age < SHORTEST_PICTURE_S:
            return False
        if self._news or age >= oldest_s(elapsed):
            return True  # who changed something wants to see it marked
        # One more picture is kept in reserve: the last one is always drawn.
        return self._pictures_s + 2 * self._cost_s <= BUDGET * elapsed

    def _draw(self) -> None:
        started, self._news, self._alarmed = time.perf_counter(), False, False
        self.handle.update(image_bundle(*self.screen.picture()), raw=True)
        spent = time.perf_counter() - started
        self._pictures_s += spent
        # A draw that lays out text anew comes now and then, so the reserve does not forget it at once.
        self._cost_s = max(spent, 0.5 * self._cost_s)
        self.draws += 1
        self.drawn_at = time.monotonic()

    def _say(self, message: str | None = None) -> None:
        self._said_at = time.monotonic()
        line = self.screen.status(self._said_at - self.started, message)
        self._status_handle.update(_text(line), raw=True)
        if self._newest_batch is not None:
            self.screen.read_group(self._newest_batch)
        below = self.screen.below()
        if below != self._below_shown:
            self._below_shown = below
            self._below_handle.update({"text/html": below, "text/plain": ""}, raw=True)


def _text(line: str) -> dict[str, str]:
    return {"text/html": status_html(line), "text/plain": line}
