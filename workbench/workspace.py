"""Where the workbench reads and writes: one folder that holds `tasks/` and `runs/`; files whole, JSON lines one at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OF_NOTEBOOKS = ("notebooks", "notebooks/teaching", "lessons")


def workspace() -> Path:
    """The folder that relative paths start from: `WORKBENCH_HOME` if set, else the current one.

    In a folder of notebooks it is the one around that.
    """
    if home := os.environ.get("WORKBENCH_HOME"):
        return Path(home).expanduser().resolve()
    here = Path.cwd()
    return next((up for up in here.parents for place in _OF_NOTEBOOKS if up / place == here), here)


def resolve(path: str | os.PathLike) -> Path:
    """`path` as it stands if it is absolute, else under the workspace: the folder of the notebooks, or WORKBENCH_HOME.

    >>> wb.resolve("tasks/mine").name
    'mine'
    """
    path = Path(path).expanduser()
    return path if path.is_absolute() else workspace() / path


def find(path: str | os.PathLike) -> Path:
    """A file that is to be read: from the current folder if it is there, else from the workspace."""
    here = Path(path).expanduser()
    return here.absolute() if here.exists() else resolve(path)


def looked_in() -> str:
    """Where `find` looks, in words."""
    return "looked in " + " and in ".join(dict.fromkeys([str(Path.cwd()), str(workspace())]))


def shown(path: str | os.PathLike) -> str:
    """`path` as a reader wants it: relative to the workspace where somebody stands in it (or in its notebooks)."""
    path, here = Path(path), workspace()
    # From anywhere else, a relative path would lead nowhere.
    stands = Path.cwd() in (here, *(here / place for place in _OF_NOTEBOOKS))
    return str(path.relative_to(here) if stands and path.is_relative_to(here) else path)


@contextlib.contextmanager
def replace_file(path: str | os.PathLike) -> Iterator[Path]:
    """Write a file whole or not at all: the block writes to the path that it is given, which then takes `path`'s place.

    An error in the block leaves `path` as it was. A kill or a power cut leaves the old file or the new one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    beside.unlink(missing_ok=True)  # left by a kill: what is appended would follow it
    try:
        yield beside
        _to_disk(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """Write a folder whole or not at all: the block fills the one that it is given, which then takes `path`'s place."""
    beside, before = (path.with_name(f".{path.name}.{what}") for what in ("part", "before"))
    for left in (beside, before):  # by a kill
        shutil.rmtree(left, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
        for file in [*beside.rglob("*"), beside]:
            _to_disk(file)
        if path.exists():
            path.rename(before)
        beside.rename(path)
        _to_disk(path.parent)
    finally:
        for left in (beside, before):
            shutil.rmtree(left, ignore_errors=True)


def write_unless_edited(file: str, text: str) -> str:
    """Write a notebook cell's text to its file, unless the file is somebody's work; what was done, in a sentence.

    It is written where there is no file, or one that is still what was written here last, by the SHA-256 in a hidden file
    beside it. A relative path starts from the workspace; no path: nothing is written.
    """
    if not file:
        return "nothing written"
    path, mine = resolve(file), hashlib.sha256(text.encode()).hexdigest()
    note = path.with_name(f".{path.name}.written")
    there, last = sum_of(path) if path.is_file() else None, note.read_text(encoding="utf-8") if note.is_file() else None
    if there not in (None, mine, last):
        how = "was edited since this cell wrote it" if last else "was not written by this cell"
        return f"{shown(path)} {how}: it stays, and the cells below use it. To write this cell instead, rename or delete it."
    for target, content in ((path, text), (note, mine)):
        with replace_file(target) as beside:
            beside.write_text(content, encoding="utf-8", newline="")
    return f"{shown(path)}: {'as in this cell' if there == mine else 'written'}"


_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM)  # some mounts cannot, of folders above all


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FSYNC:  # a full disk or a quota may be told only here
            raise
    finally:
        os.close(handle)


_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{4,}")


def to_json(value: Any) -> Any:
    """`value` as JSON can hold it: records and tuples by their fields, numpy's numbers and arrays, paths as text.

    NaN becomes None, an infinity "inf" or "-inf", a picture "[image 640x480]" and bytes "<bytes>". Whatever else JSON has no form
    for is its text, or where that is an address in memory its type, "<Environment>".
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return to_json(value._asdict())
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if hasattr(value, "tolist"):  # numpy, torch
        return to_json(value.tolist())
    if isinstance(value, float):
        return None if math.isnan(value) else value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if hasattr(value, "getbands"):  # of PIL
        return "[image {}x{}]".format(*value.size)
    text = str(value)
    return f"<{type(value).__name__}>" if isinstance(value, (bytes, bytearray)) or _ADDRESS.search(text) else text


def write_json(path: str | os.PathLike, content: Any) -> Path:
    """Write a JSON file, whole or not at all."""
    text = json.dumps(to_json(content), indent=2, ensure_ascii=False, allow_nan=False)
    with replace_file(path) as beside:
        beside.write_text(text + "\n", encoding="utf-8")
    return Path(path)


def sum_of(file: Path) -> str:
    """SHA-256 of a file, in hex."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def size_and_sum(file: Path) -> list[Any]:
    """Bytes and SHA-256 of a file."""
    return [file.stat().st_size, sum_of(file)]


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

    Where it is `being_written` by another process, a last line without its end is not torn but in flight.
    """
    if not file.is_file():
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if being_written and not line.endswith(b"\n"):
                return  # to read on would find the rest of this line and take it for another
            content = None
            with contextlib.suppress(ValueError, RecursionError):
                content = json.loads(line)
            if isinstance(content, dict):
                yield content
            else:
                warnings.warn(f"{shown(file)}, line {number}: torn, skipped", stacklevel=2)


class Tail:
    """Follows a JSON-lines file that somebody appends to, from byte `start` on: each line is handed out once, when whole."""

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
        if found.st_size == self._read or not self.file.is_file():
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
            with contextlib.suppress(ValueError, RecursionError):
                found.append(json.loads(line))
        return [entry for entry in found if isinstance(entry, dict)]
