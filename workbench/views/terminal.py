"""Progress in a terminal: one bar, with the same numbers as the live plot."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Any

from rich import progress as bars
from rich.console import Console

from workbench.base.kinds import Fields
from workbench.base.printable import Guarded, printable, unguarded
from workbench.run.held_out import in_numbers
from workbench.run.metrics import DEAD, GROUP_STD, KL, REWARD
from workbench.views.tables import number, plain_text

_WIDE = 110  # columns that all of a run's line takes
_NUMBERS = (
    ("reward", REWARD, ".2f"),
    ("std", GROUP_STD, ".2f"),
    ("kl", KL, ".4f"),
    ("dead", DEAD, ".0%"),
)


class _Text(bars.TextColumn):
    """Text beside a bar, shown as it is: the name of a run or a task is not markup."""

    def render(self, task: Any) -> Any:
        text = super().render(task)
        text.plain = printable(text.plain)
        return text


class Bar(bars.Progress):
    """A bar on standard error, which leaves standard output to results; text printed meanwhile goes
    above it.

    Its tasks have a field `numbers`, the text beside it. With `remaining`, it shows the time
    elapsed, and rich's estimate.
    """

    def __init__(self, unit: str, remaining: bool = True) -> None:
        shown = unguarded(sys.stderr)
        drawn = shown.isatty()  # FORCE_COLOR, which CI may set, does not make a terminal of a file
        console = Console(
            file=shown, force_terminal=drawn, markup=False, emoji=False, highlight=False
        )
        name, what, numbers = (
            _Text(text, markup=False)
            for text in ("{task.description}", unit, "{task.fields[numbers]}")
        )
        times = [bars.TimeElapsedColumn(), bars.TimeRemainingColumn()] if remaining else []
        # In a narrow terminal the bar goes first: its numbers say as much.
        bar = [bars.BarColumn(bar_width=24)] if console.width >= _WIDE else []
        # Where nothing can be drawn over, nothing is drawn: a file would keep an empty bar.
        how: Fields = {"console": console, "disable": not console.is_terminal}
        super().__init__(name, *bar, bars.MofNCompleteColumn(), what, numbers, *times, **how)

    def start(self) -> None:
        before = sys.stdout, sys.stderr
        super().start()
        # rich has put its streams there, which obey colours and links; it takes them away
        # again.
        now = zip((sys.stdout, sys.stderr), before, strict=True)
        sys.stdout, sys.stderr = (
            stream if stream is was else Guarded(stream) for stream, was in now
        )


@contextlib.contextmanager
def progress(unit: str, name: str = "") -> Generator[Callable[..., None]]:
    """The bar of one call: call it with the number done (and the total, if known).

    Without a terminal to draw in, a call with a name prints a line.
    """
    with Bar(unit) as bar:
        task = bar.add_task(name, total=None, numbers="")

        def update(done: int, total: int | None = None) -> None:
            bar.update(task, completed=done, total=total or None)
            if name and total and not bar.console.is_terminal:
                print(f"{name}: {done} of {total} {unit}", file=sys.stderr, flush=True)

        yield update


class TerminalProgress:
    """A run on standard error: a bar with its numbers, and its events above it.

    Pass it to `train(..., watchers=[TerminalProgress()])`. Without a terminal to draw in, it prints
    a line for the first step, and for each multiple of `every`.
    """

    def __init__(self, remaining: bool = True, every: int = 10) -> None:
        self.bar, self._every, self._step = Bar("steps", remaining), every, 0
        self.ended = ""
        self._latest: Fields = {}  # for steps that generate nothing, and so have no rewards

    def begin(self, run: Any, total_steps: int, settings: Fields) -> None:
        self.task = self.bar.add_task(run.name, total=total_steps or None, numbers="")
        self.bar.start()

    def update(self, step: int, values: Fields, more: str = "") -> None:
        """Move the bar to a step: its reward, within-group std, KL and share of dead groups, and
        further text.
        """
        self._latest |= {key: values[key] for _, key, _ in _NUMBERS if values.get(key) is not None}
        drawn = self.bar.console.is_terminal
        wide = self.bar.console.width >= _WIDE or not drawn
        text = "  ".join(
            f"{label} {number(self._latest.get(key), form)}"
            for label, key, form in _NUMBERS
            if wide or key in (REWARD, DEAD)
        )
        text += more
        self.bar.update(self.task, completed=step, numbers=text)
        if not drawn and step != self._step and (step == 1 or step % self._every == 0):
            print(f"step {step}: {text}", file=sys.stderr, flush=True)
        self._step = step

    def event(self, event: Fields) -> None:
        """Held-out prompts were measured: a line."""
        if event.get("event") == "held_out":
            self.say(f"step {event['step']}: held-out {in_numbers(event)}")

    def say(self, text: str) -> None:
        """A line that stays above the bar; in a terminal it is wrapped at words."""
        console = self.bar.console
        console.print(plain_text(text), soft_wrap=not console.is_terminal)

    def end(self, message: str) -> None:
        """Keep the run's closing words in `ended`: they are a result, and belong on standard
        output.
        """
        self.bar.stop()
        self.ended = message
