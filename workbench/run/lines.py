"""JSON lines: appended one at a time, read from the start, or followed as they are appended."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.workspace import shown, to_json


def append_line(file: Path, content: dict[str, Any]) -> None:
    """Append one JSON object as a line, and flush it, so that a reader in another process sees it."""
    with file.open("a+b") as lines:
        # A line torn by a kill must not swallow the next one.
        if lines.tell():
            lines.seek(-1, os.SEEK_END)
            if lines.read(1) != b"\n":
                lines.write(b"\n")
        lines.write(json.dumps(to_json(content), ensure_ascii=False, allow_nan=False).encode() + b"\n")


def read_lines(file: Path, being_written: bool = False) -> Iterator[dict[str, Any]]:
    """The objects in a JSON-lines file; a line torn by a kill is skipped, with a warning that names it.

    Args:
        being_written: another process is appending, so a last line without its end is not torn but in flight.
    """
    if not file.is_file():
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if being_written and not line.endswith(b"\n"):
                return  # to read on would find the rest of this line and take it for another
            try:
                yield json.loads(line)
            except ValueError:
                warnings.warn(f"{shown(file)}, line {number}: torn, skipped", stacklevel=2)


class Tail:
    """Follows a JSON-lines file that somebody appends to: each line is handed out once, when it is whole.

    Args:
        file: need not exist yet.
        start: byte from which on lines are new.
    """

    def __init__(self, file: Path, start: int = 0) -> None:
        self.file, self._read, self._inode = file, start, 0
        self.rewritten = False  # the file was replaced or got shorter, so the latest lines are all of it

    def lines(self) -> list[bytes]:
        """The lines since the last call, as they stand in the file."""
        self.rewritten = False
        try:
            found = self.file.stat()
        except OSError:
            return []
        self.rewritten = found.st_size < self._read or self._inode not in (0, found.st_ino)
        self._inode, self._read = found.st_ino, 0 if self.rewritten else self._read
        if found.st_size == self._read:
            return []
        with self.file.open("rb") as lines:
            lines.seek(self._read)
            new = lines.read()
        whole = new[: new.rfind(b"\n") + 1]  # a line without its end is still being written
        self._read += len(whole)
        return [line for line in whole.splitlines() if line.strip()]

    def take(self) -> list[dict[str, Any]]:
        """The objects since the last call; a line that holds none is left out."""
        found = []
        for line in self.lines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [entry for entry in found if isinstance(entry, dict)]
