"""A run that trains elsewhere, as far as its files tell: its view, how it stands, and its health from time to time."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from workbench.run.directory import RunDirectory
from workbench.run.lines import Tail
from workbench.views.run_view import GROUP_EVERY, RunView, oldest_s

HEALTH_SHARE = 0.05  # of the time that examining may take, as long as the verdicts are younger than `oldest_s`
_CONTINUE = "`workbench continue {name}` resumes from its latest checkpoint"
_AFTER = {
    "finished": "notebook 04 measures what training gained",
    "stopped": _CONTINUE,
    "aborted": _CONTINUE,
    "failed": "events.jsonl says why; " + _CONTINUE,
    "killed": "its process is gone; " + _CONTINUE,
    "gone": "nothing of it was kept",
}


class FollowedRun:
    """What the panel and `workbench watch` show of a run, brought up to date by `look`.

    `status` is "running" or how the run ended: "finished", "stopped", "aborted", "failed", "killed", or "gone" if nothing
    of it was kept.

    Args:
        run: to follow, whether it trains or not.
        group_every: steps between two groups.
    """

    def __init__(self, run: RunDirectory, group_every: int = GROUP_EVERY) -> None:
        self.run, self.view, self.status = run, RunView(group_every), "running"
        self.view.begin(run)
        self._metrics, self._events = Tail(run.path / "metrics.jsonl"), Tail(run.path / "events.jsonl")
        self._begun: float | None = None  # time.time() at which the session began
        self._unexamined = False  # something was read since the run's health was looked at
        self._examined_at, self._health_cost_s = float("-inf"), 0.0
        self._summaries: dict[Any, Any] = {}  # of the parts that were examined before
        self.look()

    @property
    def over(self) -> bool:
        """Whether there is nothing left to follow."""
        return self.status != "running"

    def look(self) -> list[dict[str, Any]]:
        """Read what was written since the last look; returns the new events."""
        live = self.run.live  # first: what it wrote before it ended is then read for certain
        rows, events = self._metrics.take(), self._events.take()
        if self._metrics.rewritten:
            self.view.forget()
        for row in rows:
            if "step" in row:
                self.view.row(row["step"], row)
        for event in events:
            self.view.event(event)
            if event.get("event") in ("started", "continued"):
                self._begun = _seconds(event.get("time"))
            elif event.get("event") == "health" and event.get("state") == "alarm":
                self._examined_at = float("-inf")  # the trainer has found one: it is shown at once
        self._unexamined = self._unexamined or bool(rows or events)
        self.status = "running" if live else self._ended()
        if self.over:
            self.view.group_every = 1  # the last group is shown, however young the one before it is
        return events

    def _ended(self) -> str:
        if not (self.run.path / "recipe.yaml").is_file():
            return "gone"
        try:
            return (self.run.manifest().get("result") or {}).get("status", "killed")
        except (OSError, ValueError, RuntimeError):
            return "killed"

    # -- health --------------------------------------------------------------------------------------------------
    def time_to_examine(self) -> bool:
        """Whether there is something new to examine, and examining it would not take too large a share of the time."""
        if not len(self.view.history) or not self._unexamined:
            return False
        pause = min(self._health_cost_s / HEALTH_SHARE, oldest_s(self.elapsed_s() or 0.0))
        return self.over or time.monotonic() - self._examined_at >= pause

    def examine(self) -> list[Any]:
        """The verdicts on the run's health, from its record. Reads files only, so it may run on another thread."""
        from workbench.health import examine_run

        started, self._unexamined = time.monotonic(), False
        try:
            found = list(examine_run(self.run, last=200, known=self._summaries))
        except Exception:  # a part that is being written, a run that is taken away: the next look may find it whole
            found = self.view.verdicts
        self._examined_at = time.monotonic()
        self._health_cost_s = self._examined_at - started
        self.view.verdicts = found
        return found

    # -- words ---------------------------------------------------------------------------------------------------
    def elapsed_s(self) -> float | None:
        """Seconds since the run (or its latest session) began; of a run that is over, what it took."""
        if self.over and self.status != "gone":
            return 60 * (self.run.result().get("minutes") or 0.0)
        return max(0.0, time.time() - self._begun) if self._begun is not None else None

    def message(self) -> str | None:
        """How the run ended, and what can be done now; None while it trains."""
        if not self.over:
            return None
        what_now = _AFTER.get(self.status, "").format(name=self.run.name)
        if self.status == "gone":
            return f"ended before its first step; {what_now}"
        return f"{self.status} after {self.view.history.step} steps; {what_now}"

    def line(self) -> str:
        """The status line."""
        if not len(self.view.history) and not self.over:
            return f"{self.run.name}: waiting for the first step"
        return self.view.status(self.elapsed_s(), self.message())

    def read_group(self) -> bool:
        """Read a group of the newest step, if it is time for another one; returns whether there is one to show."""
        if self.status != "gone":
            self.view.read_group()
        return self.view.group is not None


def _seconds(written: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(written)).astimezone(UTC).timestamp()
    except ValueError:
        return None
