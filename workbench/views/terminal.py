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

from workbench.printable import Guarded, printable, unguarded
from workbench.run.directory import RunDirectory
from workbench.run.metrics import DEAD, GROUP_STD, KL, REWARD
from workbench.views.tables import number, plain


class _Text(TextColumn):
    """Text beside a bar, shown as it is: the name of a run or a task is no markup."""

    def __init__(self, text_format: str) -> None:
        super().__init__(text_format, markup=False)

    def render(self, task: Any) -> Any:
        text = super().render(task)
        text.plain = printable(text.plain)
        return text


class _Bar(Progress):
    """A bar on standard error; what is printed meanwhile goes above it, as text."""

    def __init__(self, *columns: Any) -> None:
        console = Console(file=unguarded(sys.stderr), markup=False, emoji=False, highlight=False)
        super().__init__(*columns, console=console)

    def start(self) -> None:
        before = sys.stdout, sys.stderr
        super().start()
        # rich has put streams of its own there, which obey colours and links; it takes them away again.
        now = zip((sys.stdout, sys.stderr), before, strict=True)
        sys.stdout, sys.stderr = (stream if stream is was else Guarded(stream) for stream, was in now)


def progress_bar(unit: str, numbers: bool = False, remaining: bool = True) -> Progress:
    """A rich progress bar on standard error, so that standard output stays for results.

    Args:
        numbers: with a text of numbers beside it.
        remaining: with the time elapsed, and the time left as rich expects it.
    """
    columns = [_Text("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), _Text(unit)]
    if numbers:
        columns.append(_Text("{task.fields[numbers]}"))
    times = [TimeElapsedColumn(), TimeRemainingColumn()] if remaining else []
    return _Bar(*columns, *times)


@contextlib.contextmanager
def progress(unit: str) -> Iterator[Callable[[int, int], None]]:
    """The bar of one call: call it with (done, in all)."""
    with progress_bar(unit) as bar:
        shown = bar.add_task("", total=None)
        yield lambda done, total: bar.update(shown, completed=done, total=total)


@contextlib.contextmanager
def counter(unit: str) -> Iterator[Callable[[int], None]]:
    """A running count on standard error, for work whose end is not known; nothing where no one is watching."""
    bar = _Bar(SpinnerColumn(), _Text("{task.completed} " + unit), TimeElapsedColumn())
    if not bar.console.is_terminal:
        yield lambda done: None
        return
    with bar:
        task = bar.add_task("", total=None)
        yield lambda done: bar.update(task, completed=done)


class TerminalWatch:
    """A run on standard error: a bar with its numbers, and above it what happens to it.

    Args:
        total: steps; 0: not known.
        remaining: with the time left as the bar expects it.
        every: where there is no terminal to draw in, there is a line for each step that is a multiple of this.
    """

    def __init__(self, name: str, total: int, remaining: bool = False, every: int = 1) -> None:
        self.bar = progress_bar("steps", numbers=True, remaining=remaining)
        self.task = self.bar.add_task(name, total=total or None, numbers="")
        self._step, self._every = 0, every

    def __enter__(self) -> TerminalWatch:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, step: int, values: str, total: int = 0) -> None:
        """Bring the bar to a step."""
        self.bar.update(self.task, completed=step, numbers=values, **({"total": total} if total else {}))
        if not self.bar.console.is_terminal and step != self._step and step % self._every == 0:
            print(f"step {step}: {values}", file=sys.stderr, flush=True)
        self._step = step

    def say(self, text: str) -> None:
        """A line that stays above the bar."""
        self.bar.console.print(plain(text), soft_wrap=True)


class TerminalProgress:
    """Watches a run in the terminal that trains it; pass it to `train(..., watchers=[TerminalProgress()])`."""

    watch: TerminalWatch | None = None

    def begin(self, run: RunDirectory, total_steps: int, settings: dict[str, Any]) -> None:
        self.watch = TerminalWatch(run.name, total_steps, remaining=True, every=10).__enter__()

    def update(self, step: int, values: dict[str, Any]) -> None:
        self.watch.show(step, numbers(values))

    def end(self, message: str) -> None:
        if self.watch is not None:
            self.watch.bar.stop()
            print(message, file=sys.stderr)


_NUMBERS = (("reward", REWARD, ".2f"), ("std", GROUP_STD, ".2f"), ("kl", KL, ".4f"), ("dead", DEAD, ".0%"))


def numbers(values: dict[str, Any]) -> str:
    """The numbers of a step, as text: reward, within-group std, KL and share of dead groups."""
    found = ((label, values.get(key), form) for label, key, form in _NUMBERS)
    return "  ".join(f"{label} {number(value, form)}" for label, value, form in found)
