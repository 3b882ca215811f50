"""Following a run by its files: each look reads only what was written since the last one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.run.directory import RunDirectory

ENDED = ("finished", "stopped", "aborted", "failed", "killed")


class NewLines:
    """The objects that are appended to a JSON-lines file, each read once. Lines that are no JSON are left out."""

    def __init__(self, file: Path) -> None:
        self.file, self._read, self._inode = file, 0, 0  # bytes

    def take(self) -> tuple[list[dict[str, Any]], bool]:
        """(the new objects, whether the file was written anew, so that they are all of it)."""
        try:
            found = self.file.stat()
        except OSError:
            return [], False
        size = found.st_size
        # A run that is continued gets a shorter file under the same name.
        anew = size < self._read or (self._inode not in (0, found.st_ino))
        self._inode = found.st_ino
        if anew:
            self._read = 0
        if size == self._read:
            return [], anew
        with self.file.open("rb") as lines:
            lines.seek(self._read)
            new = lines.read()
        whole = new[: new.rfind(b"\n") + 1]  # a line without its end is still being written
        self._read += len(whole)
        return [entry for line in whole.splitlines() if (entry := _object(line)) is not None], anew


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


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
        self._metrics, self._events = NewLines(run.path / "metrics.jsonl"), NewLines(run.path / "events.jsonl")

    def look(self) -> News:
        """What was written since the last look, and how the run stands."""
        # The state first: what it wrote before it ended is then read for certain.
        live = self.run.live
        rows, anew = self._metrics.take()
        events, _ = self._events.take()
        return News([row for row in rows if "step" in row], events, anew, "running" if live else self._status())

    def _status(self) -> str:
        if not (self.run.path / "recipe.yaml").is_file():
            return "gone"
        try:
            return (self.run.manifest().get("result") or {}).get("status", "killed")
        except (OSError, ValueError, RuntimeError):
            return "killed"
