"""A run's health while it trains: looked at after every step, unless looking would cost too large a share of the run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from workbench.health.diagnosis import diagnose, worsened
from workbench.health.summary import StepSummary
from workbench.health.verdicts import ALARM, NAMES, WARNING, RunConfig, Verdict
from workbench.workspace import to_json

LATEST = 200  # batches and rows that are looked at
BUDGET = 0.005  # share of the run's time that looking may take


class Watchdog:
    """Keeps the latest batches and rows of metrics, and says what is wrong with them.

    Args:
        config: gives what the run is asked to do now; asked at each look, as weights and settings may be changed.
    """

    def __init__(self, config: Callable[[], RunConfig]) -> None:
        import scipy.special  # noqa: F401 - the verdicts' intervals need it, and it takes 0.2 s the first time

        self.config = config
        self.verdicts: list[Verdict] = []
        self.seconds = 0.0
        self._summaries: deque[StepSummary] = deque(maxlen=LATEST)
        self._rows: deque[dict[str, Any]] = deque(maxlen=LATEST)
        self._began = time.monotonic()
        self._cost_s = 0.01

    def batch(self, summary: StepSummary) -> None:
        """Take in the summary of one scored batch."""
        self._summaries.append(summary)

    def row(self, step: int, values: dict[str, Any]) -> None:
        """Take in one row of metrics."""
        self._rows.append({"step": step, **values})

    def forget(self) -> None:
        """Other reward functions are in force: what was seen says nothing about them."""
        self._summaries.clear()

    def due(self) -> bool:
        """Whether it is time for another look."""
        now = time.monotonic()
        return bool(self._summaries) and self.seconds + self._cost_s <= BUDGET * (now - self._began) + 0.02

    def look(self) -> list[Verdict]:
        """Look at the run, and return the alarms and warnings that it did not have when it was looked at before."""
        started = time.perf_counter()
        found = diagnose(self._summaries, self._rows, self.config())
        new = worsened(self.verdicts, found)
        self.verdicts = found
        self._cost_s = time.perf_counter() - started
        self.seconds += self._cost_s
        return new

    def found(self) -> list[dict[str, Any]]:
        """The alarms and warnings of the latest look, for JSON."""
        return [to_json(verdict) for verdict in self.verdicts if verdict.state in (ALARM, WARNING)]

    @property
    def words(self) -> str:
        """Those in a line, by state and issue; empty if there are none."""
        functions: dict[str, list[str]] = {}
        for each in self.found():
            functions.setdefault(f"{each['state']}: {NAMES[each['name']]}", []).extend(filter(None, [each["function"]]))
        return ", ".join(f"{kind} ({', '.join(named)})" if named else kind for kind, named in functions.items())
