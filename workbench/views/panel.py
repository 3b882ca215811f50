"""The panel of a run that trains elsewhere: an idle kernel follows its files, and steers it.

The run has a process of its own (`start`, `workbench train`, another kernel). Nothing is lost when this kernel restarts:
`RunPanel("latest")` picks the run up again. Everything here happens between cells, on the kernel's own event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Any

from workbench.progress import clock
from workbench.run.directory import RunDirectory, open_run
from workbench.views.controls import WIDGETS, Controls, buttons_work, widget_view
from workbench.views.run_view import FollowedRun, RunCell

_OPEN: dict[str, RunPanel] = {}  # the panel that shows each run: shown again, it replaces the one before


class RunPanel(RunCell):
    """A run's picture, health, latest group and controls, kept up to date from its files until it ends.

    Show it by leaving it as the last line of a cell. The saved notebook keeps the last picture.

    >>> panel = wb.RunPanel("latest")
    >>> panel.wait(timeout_s=60)  # follow it here, in a notebook that is executed as a whole
    'finished'

    Args:
        run: a run, its name or path, "latest", or what `start(...)` returned.
        root: where runs are looked for by name.
        every_s: seconds between two looks.
        group_every: steps between two groups.
        controls: with buttons and fields.

    Raises:
        RunError: if there is no such run.
    """

    def __init__(
        self,
        run: RunDirectory | str | Path | Any = "latest",
        *,
        root: str | Path = "runs",
        every_s: float = 1.0,
        group_every: int = 1,
        controls: bool = True,
    ) -> None:
        super().__init__()
        self.every_s, self.group_every, self.least_s = every_s, group_every, every_s
        works, self._sentence = buttons_work(in_cell=False)
        self.wants_controls = controls and works
        self.view: FollowedRun | None = None  # while the policy is loaded
        self.controls: Controls | None = None
        self._failed_before = False  # the process ended, and there was no run
        self._since = time.monotonic()
        self._box: Any = None  # where the controls appear once there is a run
        self._task: asyncio.Task | None = None
        run = open_run(run, root, latest="training") if isinstance(run, (str, os.PathLike)) else run
        self.started = None if isinstance(run, RunDirectory) else run  # what `start` returned
        self._follow(run if self.started is None else None)

    @property
    def run(self) -> RunDirectory | None:
        """The run; None as long as there is none."""
        return self.view.run if self.view is not None else None

    @property
    def over(self) -> bool:
        """Whether there is nothing left to follow."""
        return self.status not in ("loading", "running")

    @property
    def status(self) -> str:
        """ "loading", "running", or how it ended ("not begun": before there was a run)."""
        if self.view is not None:
            return self.view.status
        return "not begun" if self._failed_before else "loading"

    # -- keeping up --------------------------------------------------------------------------------------------------
    def _follow(self, run: RunDirectory | None) -> None:
        if run is None:
            # The process may end before there is a run: a policy that cannot be loaded, a recipe that cannot be right.
            # It is asked first, so that a run that was begun and ended in between is not missed.
            code, run = self.started.poll(), self.started.run
            self._failed_before = run is None and code is not None
        if run is None:
            return
        self.view = FollowedRun(run, self.group_every)
        if self.wants_controls and not self.over:
            self.controls = Controls(run, state=self.view.state)
            if self._box is not None:
                self._box.children = [self.controls.widget]

    def look(self, health: bool = True) -> None:
        """Read what is new and show it, with the run's health if it is time to. The panel does this while it is shown."""
        if self.over:
            return
        if self.view is None:
            self._follow(None)
        else:
            events = self.view.look()
            if self.controls is not None:
                for event in events:
                    self.controls.answered(event)
                if self.over:
                    self.controls.ended(self.view.message())
        if health:
            self._examine()
        self._refresh()

    def _examine(self) -> None:
        if self.view is not None and self.view.time_to_examine():
            self.view.examine()

    def _refresh(self) -> None:
        if self.places and self.view is not None:
            self.view.read_group()
        last = self.over and self.view is not None and self.view.fresh
        self._show(self.line(), draw=True if last else None)

    def wait(self, timeout_s: float | None = None) -> str:
        """Follow the run here and now, until it ends (or `timeout_s` is over): for a notebook that is executed as a whole.

        Returns the run's status. An Interrupt ends the waiting, not the run.
        """
        until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        with contextlib.suppress(KeyboardInterrupt):
            while not self.over and time.monotonic() < until:
                self.look()
                if not self.over:
                    time.sleep(min(self.every_s, max(0.0, until - time.monotonic())))
        return self.status

    async def _keep_looking(self) -> None:
        while not self.over:
            await asyncio.sleep(self.every_s)
            try:
                self.look(health=False)
                # It reads the record, which may take a while: the buttons are answered meanwhile.
                await asyncio.to_thread(self._examine)
                self._refresh()
            except Exception as error:  # the next look may succeed
                self._show(f"{self.line()}\n{type(error).__name__}: {error}")

    def close(self) -> None:
        """Follow the run no longer; what is shown stays."""
        if self._task is not None:
            self._task.cancel()
        if self.controls is not None and self.controls.widget is not None:
            self.controls.widget.close()

    # -- showing -----------------------------------------------------------------------------------------------------
    def line(self) -> str:
        """The status line; while there is no run, what its process printed last."""
        if self.view is not None:
            failed = self.started is not None and self.status in ("failed", "killed", "gone") and self.started.error
            return self.view.line() + (f"\n{failed}" if failed else "")
        if self._failed_before:
            return f"the process ended before the run began\n{self.started.error or self.started.log_tail().strip()}"
        printed = [line.strip() for line in self.started.log_tail().splitlines() if line.strip()]
        return "\n".join([f"loading the policy ... {clock(time.monotonic() - self._since)}", *printed[-1:]])

    def _elapsed_s(self) -> float:
        return self.view.elapsed_s() or 0.0

    def _ipython_display_(self) -> None:
        key = str(self.run.path) if self.run is not None else str(id(self.started))
        if (before := _OPEN.get(key)) not in (None, self):
            before.close()
        _OPEN[key] = self
        self.look(health=False)
        self._display(self.line(), self._display_controls)
        if not self.places:
            return
        self._examine()
        if self.view is not None:
            self.view.fresh, self.drawn_at = True, float("-inf")  # these places show no picture yet
        self._refresh()
        if not self.over and os.environ.get(WIDGETS) != "0" and (self._task is None or self._task.done()):
            # Where a notebook is executed and then only read, `wait` follows the run.
            with contextlib.suppress(RuntimeError):  # without an event loop there is nobody to follow it
                self._task = asyncio.get_running_loop().create_task(self._keep_looking())

    def _display_controls(self) -> None:
        from IPython.display import display

        if self.over:
            return
        shown: dict[str, Any] = {"text/plain": self._sentence}
        if self.wants_controls:
            import ipywidgets

            self._box = self._box or ipywidgets.VBox([self.controls.widget] if self.controls is not None else [])
            # A saved notebook has no kernel to answer the buttons, and shows the sentence instead.
            shown |= widget_view(self._box)
        display(shown, raw=True)

    def __repr__(self) -> str:
        return self.line()
