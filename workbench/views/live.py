"""The live plot: a run in the cell that trains it, updated in place, at a bounded price."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.views.controls import Controls, buttons_work
from workbench.views.curves import RunFigure
from workbench.views.history import History
from workbench.views.run_view import RunCell, RunView

BUDGET = 0.008  # share of the run's time that pictures may take, as long as none of them grows older than `oldest_s`
SHORTEST_WORDS_S = 0.25  # between two status lines


class LivePlot(RunCell):
    """Watches a run in the notebook cell that trains it, in place, at a bounded price.

    Pass it to `train(..., watchers=[LivePlot()])`. The status line, the verdicts on the run's health and one group move at
    every step. The curves are redrawn as often as 0.8 % of the run's time allows, but at the end of a step they are never
    older than 5 s or 2 % of the run, whichever is longer; a new alarm redraws them at once. Buttons steer the run where
    they work. The saved notebook keeps the last picture and the last group, which stays for `group_every` steps. `drawing_s`
    is the wall time of all of this.
    """

    share = BUDGET

    def __init__(self, group_every: int = 1, controls: bool = True) -> None:
        super().__init__()
        self.drawing_s = self.started = self._said_at = self._paused_at = 0.0
        self._wants_controls, self.controls = controls, None
        self._batch: ScoredBatch | None = None  # the newest
        # What is slow the first time (libraries, the fonts of a figure) is done here, before the run's time begins. The
        # second draw says what one costs.
        if controls:
            buttons_work(in_cell=True)
        figure = RunFigure()
        for _ in range(2):
            started = time.perf_counter()
            figure.draw(History())
        self._cost_s = time.perf_counter() - started
        self.view = RunView(group_every, figure)

    @contextlib.contextmanager
    def _paid(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.drawing_s += time.perf_counter() - started

    # -- what the trainer calls --------------------------------------------------------------------------------------
    def begin(self, run: RunDirectory, total_steps: int, settings: dict[str, Any]) -> None:
        with self._paid():
            self.view.begin(run, total_steps, settings.get("beta") or 0.0)
            for row in run.metrics():  # a run that goes on has rows and changes already
                self.view.row(row["step"], row)
            for event in run.events():
                self.view.event(event)
            self._display(f"{run.name}: waiting for the first step", self._display_controls)
        self.started = self.drawn_at = time.monotonic()

    def _display_controls(self) -> None:
        from IPython.display import display

        if self._wants_controls:
            self.controls = Controls(self.view.run, in_cell=True, state=self.view.state)
            display(self.controls)

    def update(self, step: int, values: dict[str, Any]) -> None:
        with self._paid():
            self.view.row(step, values)
            due = bool(self.places) and self._due()
            if due or time.monotonic() - self._said_at >= SHORTEST_WORDS_S:
                self._say(draw=due)

    def batch(self, scored: ScoredBatch, summary: Any) -> None:
        """A generation batch was scored and recorded: one of its groups is shown at the end of the step."""
        self._batch = scored

    def verdicts(self, verdicts: list[Any]) -> None:
        """The run's health was looked at: shown at the end of the step, with a picture if there is a new alarm."""
        self.view.verdicts = list(verdicts)

    def event(self, event: dict[str, Any]) -> None:
        """Something was changed, answered or saved: marked in the next picture, and a pause is shown at once."""
        with self._paid():
            was_paused = self.view.state.paused
            self.view.event(event)
            if self.controls is not None:
                self.controls.answered(event)
            if self.view.state.paused == was_paused:
                return
            if was_paused:  # a pause is no time of the run that drawing could have a share of
                self.started += time.monotonic() - self._paused_at
            self._paused_at = time.monotonic()
            self._say(draw=False)

    def end(self, message: str) -> None:
        with self._paid():
            if self.controls is not None:
                self.controls.ended(message)
            self.view.group_every = 1  # the group of the end is shown, however young the one before it is
            self._say(message, draw=True)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self.started

    def _say(self, message: str | None = None, draw: bool = False) -> None:
        self._said_at = time.monotonic()
        if self.places and self._batch is not None:
            self.view.show_group(self._batch)
        nothing = message is not None and not len(self.view.history)
        line = f"{self.view.name}: {message}" if nothing else self.view.words(self._elapsed_s(), message)
        self._show(line, draw)
