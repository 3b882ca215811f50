"""A JSON-lines file, read while another process writes it."""

from __future__ import annotations

from pathlib import Path

from workbench.base.kinds import Fields
from workbench.base.workspace import object_in


class Tail:
    """Follows a growing JSON-lines file from byte `start` on: each line is returned once, when
    whole.
    """

    def __init__(self, file: Path, start: int = 0) -> None:
        self.file, self._read, self._inode = file, start, 0
        # the file was replaced or got shorter, so the latest lines are all of it
        self.rewritten = False

    def lines(self) -> list[bytes]:
        """The lines since the last call, as they are in the file."""
        self.rewritten = False
        try:
            found = self.file.stat()
        except OSError:
            return []
        self.rewritten = found.st_size < self._read or self._inode not in (0, found.st_ino)
        self._inode, self._read = found.st_ino, 0 if self.rewritten else self._read
        if found.st_size == self._read or not self.file.is_file():
            return []
        with self.file.open("rb") as lines:
            lines.seek(self._read)
            new = lines.read()
        whole = new[: new.rfind(b"\n") + 1]  # a line without its end is still being written
        self._read += len(whole)
        return [line for line in whole.splitlines() if line.strip()]

    def take(self) -> list[Fields]:
        """The objects since the last call; a line without an object is left out."""
        return [own for line in self.lines() if (own := object_in(line)) is not None]
