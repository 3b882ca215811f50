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

from workbench.run.directory import RunDirectory, open_run
from workbench.views.controls import Controls
from workbench.views.figure import image_bundle
from workbench.views.followed import FollowedRun
from workbench.views.screen import GROUP_EVERY, clock, new_alarms, oldest_s, status_html
from workbench.views.widgets import WIDGETS, buttons_work, view_of

__all__ = ["Controls", "RunPanel", "buttons_work", "watch"]

EVERY_S = 1.0  # between two looks at the files
DRAWING_SHARE = 0.1  # of the time that pictures may take, as long as none of them grows older than `oldest_s`
_OPEN: dict[str, RunPanel] = {}  # the panel that shows each run: shown again, it replaces the one before


class RunPanel:
    """A run's picture, health, latest group and controls, kept up to date from its files until it ends.

    Show it by leaving it as the last line of a cell. The saved notebook keeps the last picture.

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
        every_s: float = EVERY_S,
        group_every: int = GROUP_EVERY,
        controls: bool = True,
    ) -> None:
        self.every_s, self.group_every = every_s, group_every
        self.wants_controls = controls and buttons_work(in_cell=False)[0]
        self.controls: Controls | None = None
        self.followed: FollowedRun | None = None  # None while the policy is loaded
        self.started: Any = None  # what `start` returned
        self.draws, self.drawing_s = 0, 0.0
        self._failed_before = False  # the process ended, and there was no run
        self._since = time.monotonic()
        self._cost_s, self._drawn_at, self._undrawn = 0.0, float("-inf"), True
        self._alarms: set[Any] = set()  # that a picture was drawn for
        self._shown: dict[str, str] = {}
        self._handles: dict[str, Any] = {}
        self._box: Any = None  # where the controls appear once there is a run
        self._task: asyncio.Task | None = None
        if isinstance(run, (str, os.PathLike)):
            self._open(open_run(run, root, latest="training"))
        elif isinstance(run, RunDirectory):
            self._open(run)
        else:
            self.started = run
            self._await_run()

    @property
    def run(self) -> RunDirectory | None:
        """The run; None as long as there is none."""
        return self.followed.run if self.followed is not None else None

    @property
    def over(self) -> bool:
        """Whether there is nothing left to follow."""
        return self.followed.over if self.followed is not None else self._failed_before

    @property
    def status(self) -> str:
        """ "loading", "running", or how it ended ("not begun": before there was a run)."""
        if self.followed is not None:
            return self.followed.status
        return "not begun" if self._failed_before else "loading"

    # -- keeping up --------------------------------------------------------------------------------------------------
    def _open(self, run: RunDirectory) -> None:
        self.followed = FollowedRun(run, self.group_every)
        if self.wants_controls and not self.over:
            self.controls = Controls(run, state=self.followed.screen.state)
            if self._box is not None:
                self._box.children = [self.controls.widget]

    def _await_run(self) -> None:
        # The process may end before there is a run: a policy that cannot be loaded, a recipe that cannot be right.
        # It is asked first, so that a run that was begun and ended in between is not missed.
        code, run = self.started.poll(), self.started.run
        if run is not None:
            self._open(run)
        elif code is not None:
            self._failed_before = True

    def look(self, health: bool = True) -> None:
        """Read what is new and show it. The panel does this by itself while it is shown.

        Args:
            health: examine the run's health here and now, if it is time to.
        """
        if self.over:
            return
        if self.followed is None:
            self._await_run()
        else:
            self._take()
        if health and self.followed is not None and self.followed.time_to_examine():
            self.followed.examine()
        self._show()

    def _take(self) -> None:
        news = self.followed.look()
        self._undrawn = self._undrawn or bool(news) or self.over
        if self.controls is not None:
            for event in news.events:
                self.controls.answered(event, self.followed.screen.state)
            if self.over:
                self.controls.ended(self.followed.message())

    def wait(self, timeout_s: float | None = None) -> str:
        """Follow the run here and now, until it ends (or `timeout_s` is over): for a notebook that is executed as a whole.

        An Interrupt ends the waiting, not the run.

        Returns:
            The run's status.
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
                if self.followed is not None and self.followed.time_to_examine():
                    # It reads the record, which may take a while: the buttons are answered meanwhile.
                    await asyncio.to_thread(self.followed.examine)
                    self._show()
            except Exception as error:  # the next look may succeed
                self._say(f"{self.line()}\n{type(error).__name__}: {error}")

    def close(self) -> None:
        """Follow the run no longer; what is shown stays."""
        if self._task is not None:
            self._task.cancel()
        if self.controls is not None:
            self.controls.close()

    # -- showing -----------------------------------------------------------------------------------------------------
    def line(self) -> str:
        """The status line; while there is no run, what its process said last."""
        if self.followed is not None:
            failed = self.status in ("failed", "killed", "gone") and self.started is not None
            return "\n".join([self.followed.line(), *([self.started.error] if failed and self.started.error else [])])
        if self._failed_before:
            return f"the process ended before the run began\n{self.started.error or self.started.log_tail().strip()}"
        said = [line.strip() for line in self.started.log_tail().splitlines() if line.strip()]
        return "\n".join([f"loading the policy ... {clock(time.monotonic() - self._since)}", *(said[-1:])])

    def _show(self) -> None:
        if not self._handles:
            return
        self._say(self.line())
        if self.followed is None or not len(self.followed.screen.history):
            return
        self.followed.read_group()
        self._show_below()
        alarmed = new_alarms(self.followed.screen.verdicts, self._alarms)
        if alarmed or (self._undrawn and (self.over or self._may_draw())):
            self._draw()

    def _may_draw(self) -> bool:
        pause = min(self._cost_s / DRAWING_SHARE, oldest_s(self.followed.elapsed_s() or 0.0))
        return time.monotonic() - self._drawn_at >= max(self.every_s, pause)

    def _draw(self) -> None:
        self._undrawn, started = False, time.perf_counter()
        self._handles["picture"].update(image_bundle(*self.followed.screen.picture()), raw=True)
        self._cost_s = time.perf_counter() - started
        self.drawing_s += self._cost_s
        self.draws += 1
        self._drawn_at = time.monotonic()

    def _show_below(self) -> None:
        if self._handles and (below := self.followed.screen.below()) != self._shown.get("below"):
            self._shown["below"] = below
            self._handles["below"].update({"text/html": below, "text/plain": ""}, raw=True)

    def _say(self, line: str) -> None:
        if self._handles and line != self._shown.get("status"):
            self._shown["status"] = line
            self._handles["status"].update({"text/html": status_html(line), "text/plain": line}, raw=True)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        key = str(self.run.path) if self.run is not None else str(id(self.started))
        before = _OPEN.get(key)
        if before is not None and before is not self:
            before.close()
        _OPEN[key] = self
        if not self.over:
            self.look(health=False)
        # The first words are those of now: a notebook that is read in a terminal shows no more.
        handles = {"status": display({"text/plain": self.line()}, raw=True, display_id=True)}
        if handles["status"] is None:  # no notebook: there is nothing to update
            return
        handles["picture"] = display({"text/plain": ""}, raw=True, display_id=True)
        if not self.over:
            self._display_controls()
        handles["below"] = display({"text/plain": ""}, raw=True, display_id=True)
        self._handles, self._shown, self._undrawn, self._drawn_at = handles, {}, True, float("-inf")
        if self.followed is not None and self.followed.time_to_examine():
            self.followed.examine()
        self._show()
        self._follow()

    def _display_controls(self) -> None:
        from IPython.display import display

        sentence = buttons_work(in_cell=False)[1]
        if not self.wants_controls:
            display({"text/plain": sentence}, raw=True)
            return
        if self._box is None:
            import ipywidgets

            self._box = ipywidgets.VBox([self.controls.widget] if self.controls is not None else [])
        # A saved notebook has no kernel to answer the buttons, and shows this line instead.
        display({**view_of(self._box), "text/plain": sentence}, raw=True)

    def _follow(self) -> None:
        if self.over or (self._task is not None and not self._task.done()):
            return
        if os.environ.get(WIDGETS) == "0":
            return  # a notebook that is executed and then only read: `wait` follows the run where that is wanted
        with contextlib.suppress(RuntimeError):  # without an event loop there is nobody to follow it
            self._task = asyncio.get_running_loop().create_task(self._keep_looking())

    def __repr__(self) -> str:
        return self.line()


def watch(run: RunDirectory | str | Path | Any = "latest", **options: Any) -> None:
    """Show a run's panel here: `RunPanel(run, **options)`, displayed."""
    from IPython.display import display

    display(RunPanel(run, **options))
