"""The live plot: one picture in the training cell, updated in place, at a bounded price."""

from __future__ import annotations

import html
import time
from collections.abc import Callable
from typing import Any

from workbench.run.directory import RunDirectory
from workbench.run.metrics import GROUP_STD, KL, REWARD
from workbench.views.curves import History, RunFigure
from workbench.views.figure import image_bundle

BUDGET = 0.02  # share of the run's time that drawing may take
SHORTEST_INTERVAL_S = 1.0


class LivePlot:
    """Watches a run and redraws its curves in the notebook, as often as 2 % of the run's time allows.

    Pass it to `train(..., watchers=[LivePlot()])`. The saved notebook keeps the last picture. `drawing_s` is the wall
    time that drawing and sending took.
    """

    def __init__(self) -> None:
        self.drawing_s = 0.0
        self.draws = 0
        self.handle: Any = None  # stays None outside a notebook, where there is nowhere to draw
        # The first draw of a process lays out fonts, which takes longer than all later ones: here, before the run's
        # time begins. The second says what one costs.
        functions = ["a_reward", "b_reward", "c_reward"]
        sample = RunFigure("", functions, {}, 0.0)
        sample.draw(History(functions))
        started = time.perf_counter()
        sample.draw(History(functions))
        self._cost_s = time.perf_counter() - started  # of the latest draw

    def begin(self, run: RunDirectory, total_steps: int, settings: dict[str, Any]) -> None:
        from IPython.display import display

        started = time.perf_counter()
        weights = run.manifest()["rewards"]["weights"]
        self.name, self.total = run.name, total_steps
        self.figure = RunFigure(run.name, list(weights), weights, settings["beta"] or 0.0)
        self.history = History(list(weights))
        self.handle = display({"text/plain": f"{run.name}: waiting for the first step"}, raw=True, display_id=True)
        self.started = self.drawn_at = time.monotonic()
        self.drawing_s += time.perf_counter() - started

    def update(self, step: int, values: dict[str, Any]) -> None:
        self.history.add(step, values)
        if self.handle is not None and self._may_draw():
            self._draw(step)

    def end(self, message: str) -> None:
        if self.handle is not None and len(self.history.steps):
            self._draw(int(self.history.steps[-1]), message)

    def _may_draw(self) -> bool:
        now = time.monotonic()
        if now - self.drawn_at < SHORTEST_INTERVAL_S:
            return False
        # One more draw is kept in reserve: the last picture is always drawn.
        return self.drawing_s + 2 * self._cost_s <= BUDGET * (now - self.started)

    def _draw(self, step: int, message: str | None = None) -> None:
        started = time.perf_counter()
        text = status_line(self.name, step, self.total, self.history, time.monotonic() - self.started, message)
        self.handle.update(image_bundle(self.figure.draw(self.history, text), text), raw=True)
        self._cost_s = time.perf_counter() - started
        self.drawing_s += self._cost_s
        self.draws += 1
        self.drawn_at = time.monotonic()


def status_line(
    name: str, step: int, total: int, history: History, elapsed_s: float, message: str | None = None
) -> str:
    """One line: where the run is, its three numbers, and when it will end."""
    parts = [f"{name}: {message or f'step {step} of {total}'}"]
    for label, key, form in (("reward", REWARD, ".2f"), ("group std", GROUP_STD, ".2f"), ("kl", KL, ".4f")):
        value = history.last(key)
        parts.append(f"{label} {value:{form}}" if value is not None else f"{label} not measured")
    parts.append(f"{clock(elapsed_s)} gone" if message is None else f"took {clock(elapsed_s)}")
    if message is None and 0 < step < total:
        parts.append(f"about {clock(elapsed_s / step * (total - step))} to go")
    return "   ".join(parts)


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


SLOW_S = 2.0


def count_line(unit: str) -> Callable[[int], None]:
    """A running count in a notebook cell, for work whose end is not known; nothing for work that is done in a moment."""
    from IPython.display import display

    started, handle = time.monotonic(), None

    def update(done: int) -> None:
        nonlocal handle
        elapsed = time.monotonic() - started
        if handle is None and elapsed > SLOW_S:
            handle = display({"text/plain": ""}, raw=True, display_id=True)
        if handle is not None:
            handle.update({"text/plain": f"{done} {unit}, {clock(elapsed)}"}, raw=True)

    return update


def progress_line(label: str) -> Callable[[int, int], None]:
    """A progress bar in a notebook cell: returns a function to call with (done, in all)."""
    from IPython.display import display

    handle = display({"text/plain": label}, raw=True, display_id=True)
    started = time.monotonic()

    def update(done: int, total: int) -> None:
        text = f"{label}: {done} of {total}, {clock(time.monotonic() - started)}"
        bar = f"<progress value='{int(done)}' max='{int(total)}'></progress> {html.escape(text)}"
        handle.update({"text/html": bar, "text/plain": text}, raw=True)

    return update
