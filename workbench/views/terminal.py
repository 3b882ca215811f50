"""Progress in a terminal: one bar, with the same numbers as the live plot."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from workbench.run.directory import RunDirectory
from workbench.run.metrics import DEAD, GROUP_STD, KL, REWARD


def progress_bar(unit: str, numbers: bool = False) -> Progress:
    """A rich progress bar on standard error, so that standard output stays for results."""
    columns = [TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn(unit)]
    if numbers:
        columns.append(TextColumn("{task.fields[numbers]}"))
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))


@contextlib.contextmanager
def counter(unit: str) -> Iterator[Callable[[int], None]]:
    """A running count on standard error, for work whose end is not known; nothing where no one is watching."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done: None
        return
    with Progress(SpinnerColumn(), TextColumn("{task.completed} " + unit), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("", total=None)
        yield lambda done: bar.update(task, completed=done)


class TerminalProgress:
    """Watches a run with a progress bar: reward, within-group std, KL and dead groups beside it."""

    def begin(self, run: RunDirectory, total_steps: int, settings: dict[str, Any]) -> None:
        self.bar = progress_bar("steps", numbers=True)
        self.bar.start()
        self.task = self.bar.add_task(run.name, total=total_steps, numbers="")

    def update(self, step: int, values: dict[str, Any]) -> None:
        self.bar.update(self.task, completed=step, numbers=numbers(values))
        # A log file has no line to draw over: it gets a line now and then.
        if step % 10 == 0 and not self.bar.console.is_terminal:
            print(f"step {step}: {numbers(values)}", file=sys.stderr, flush=True)

    def end(self, message: str) -> None:
        if hasattr(self, "bar"):
            self.bar.stop()
            print(message, file=sys.stderr)


def numbers(values: dict[str, Any]) -> str:
    """The numbers of a step, as text."""
    shown = []
    columns = (("reward", REWARD, ".2f"), ("std", GROUP_STD, ".2f"), ("kl", KL, ".4f"), ("dead", DEAD, ".0%"))
    for label, key, form in columns:
        value = values.get(key)
        shown.append(f"{label} {value:{form}}" if isinstance(value, (int, float)) else f"{label} -")
    return "  ".join(shown)
