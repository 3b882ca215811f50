"""Following a run by its files: each look reads only what was written since the last one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workbench.run.directory import RunDirectory
from workbench.run.lines import Tail

ENDED = ("finished", "stopped", "aborted", "failed", "killed")


@dataclass
class News:
    """What came since the last look."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    anew: bool = False  # the metrics were written anew: forget what was read before
    status: str = "running"

    def __bool__(self) -> bool:
        return bool(self.rows or self.events or self.anew)

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class Follower:
    """A run that another process (or none) is writing."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._metrics, self._events = Tail(run.path / "metrics.jsonl"), Tail(run.path / "events.jsonl")

    def look(self) -> News:
        """What was written since the last look, and how the run stands."""
        # The state first: what it wrote before it ended is then read for certain.
        live = self.run.live
        rows, events = self._metrics.take(), self._events.take()
        return News(
            [row for row in rows if "step" in row],
            events,
            self._metrics.rewritten,
            "running" if live else self._status(),
        )

    def _status(self) -> str:
        if not (self.run.path / "recipe.yaml").is_file():
            return "gone"
        try:
            return (self.run.manifest().get("result") or {}).get("status", "killed")
        except (OSError, ValueError, RuntimeError):
            return "killed"
