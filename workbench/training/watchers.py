"""Watchers: what displays a run while it trains, and the defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from workbench.base.kinds import Fields
from workbench.run.directory import RunDirectory


class Watcher(Protocol):
    """Something that shows a run while it trains: a live plot, a progress bar.

    It may also have `event(event)` (each line of events.jsonl), `batch(scored, summary)` (each
    generation batch) and `verdicts(list)` (the run's health, when it was looked at).
    """

    def begin(self, run: RunDirectory, total_steps: int, settings: Fields) -> None: ...
    def update(self, step: int, values: Fields) -> None: ...
    def end(self, message: str) -> None: ...


Watchers = Sequence[Watcher] | None  # None: what is shown unasked

# Makers of the watchers that a run gets if none are named; in a notebook the face puts the live
# plot here.
unasked: list[Callable[[], Watcher]] = []
