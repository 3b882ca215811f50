"""Where the workbench reads and writes: one folder that holds `tasks/` and `runs/`; files whole,
JSON lines one at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from workbench.base.errors import DiskError, WorkbenchError
from workbench.base.kinds import Fields

# What an error of the operating system says -> why nothing can be written. A library may hand it on
# as text.
_WHY = {
    errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up",
    errno.EROFS: "it can only be read", errno.EACCES: "it may not be written",
    errno.EPERM: "it may not be changed", errno.EIO: "the disk fails",
    errno.ENOENT: "its folder is gone", errno.EISDIR: "a folder stands in its place",
    errno.ENOTDIR: "its folder is a file", errno.EEXIST: "a file stands in its place",
    errno.EMFILE: "too many files are open", errno.EFBIG: "it may not grow so large",
    errno.ESTALE: "the drive is gone", errno.ENOTCONN: "the drive is gone",
    errno.ETIMEDOUT: "the drive does not answer", errno.EINTR: "the drive broke off",
    errno.EBUSY: "it is in use", errno.EAGAIN: "it is in use",
    errno.EXDEV: "its folder lies on two drives", errno.ELOOP: "it is a link to itself",
    errno.ENOTEMPTY: "a folder that is not empty stands in its place",
    errno.ENAMETOOLONG: "its name is too long",
}  # fmt: skip
_FREE = "free some space, reconnect the drive, or choose a folder that can be written"
# What else is to be done, where a limit of the process is the cause.
_RAISE = {errno.EFBIG: "`ulimit -f unlimited`, which a file may not outgrow now"}
_RAISE[errno.EMFILE] = "`ulimit -n 4096`: so many files may then be open"
OF_A_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_UNNAMED = (*OF_A_DISK, errno.EFBIG)  # about a file even where none is named
# network drives recover
_PASSING = (errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.ESTALE, errno.EIO)
_WAITS_S = (0.1, 1.0, 5.0)
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]
# process, its host, a random number
_PART = re.compile(r"\..+\.(\d+)-([0-9a-f]{6})[0-9a-f]{8}\.(?:part|before)")
_ABANDONED_S = 24 * 3600.0  # what another host began, and has not touched since
_swept: set[Path] = set()

_OF_NOTEBOOKS = ("notebooks", "notebooks/teaching", "lessons")


def workspace() -> Path:
    """The folder that relative paths start from: `WORKBENCH_HOME` if set, else the current one.

    In a folder of notebooks it is the one around that.
    """
    if home := os.environ.get("WORKBENCH_HOME"):
        return Path(home).expanduser().resolve()
    here = Path.cwd()
    return next((up for up in here.parents for place in _OF_NOTEBOOKS if up / place == here), here)


def home_folder() -> Path:
    """The user's home folder. Where the system knows none, as in a container under a user that it
    has not, a temporary one, which is HOME from then on: libraries ask, too.
    """
    with contextlib.suppress(RuntimeError):
        return Path.home()
    os.environ["HOME"] = str(temporary_home())
    return Path.home()


def temporary_home() -> Path:
    """A folder of this user's alone, among the temporary files."""
    home = Path(tempfile.gettempdir()) / f"home-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o700)
    state = home.lstat()
    if state.st_uid == os.getuid() and state.st_mode == stat.S_IFDIR | 0o700:
        return home
    return Path(tempfile.mkdtemp(prefix="home-"))  # that one may be somebody else's


def resolve(path: str | os.PathLike) -> Path:
    """`path` unchanged if it is absolute, else under the workspace: the folder of the notebooks, or
    WORKBENCH_HOME.

    >>> wb.resolve("tasks/mine").name
    'mine'
    """
    path = Path(path).expanduser()
    return path if path.is_absolute() else workspace() / path


def find(path: str | os.PathLike) -> Path:
    """A file to read: from the current folder if it is there, else from the workspace."""
    here = Path(path).expanduser()
    try:
        return here.absolute() if here.exists() else resolve(path)
    except OSError as error:
        raise WorkbenchError(
            f"{str(path)[:200]}: {error.strerror}",
            rule="a path is one that this system can have",
            remedy="check the path",
        ) from error


def looked_in() -> str:
    """Where `find` looks, in words."""
    return "looked in " + " and in ".join(dict.fromkeys([str(Path.cwd()), str(workspace())]))


def shown(path: str | os.PathLike) -> str:
    """`path` for a reader: relative to the workspace if the current folder is in it (or in its
    notebooks).
    """
    path, here = Path(path), workspace()
    # From anywhere else, a relative path would lead nowhere.
    stands = Path.cwd() in (here, *(here / place for place in _OF_NOTEBOOKS))
    return str(path.relative_to(here) if stands and path.is_relative_to(here) else path)


@contextlib.contextmanager
def written(place: Path, *beside: Path) -> Generator[None]:
    """DiskError in place of the system's own error, where `place` (what is in it, or `beside` it)
    cannot be written.
    """
    try:
        yield
    except DiskError:
        raise
    except Exception as error:
        if (refused := disk_error(error, place, *beside)) is None:
            raise
        raise refused from error


def disk_error(error: Exception, place: Path | None = None, *beside: Path) -> DiskError | None:
    """What an error says about writing `place` (None: the error's own path), in words; None if it
    is about something else.
    """
    number = getattr(error, "errno", None)
    if not isinstance(error, OSError):
        code = re.search(r"os error (\d+)", str(error))
        named = (each for each in OF_A_DISK if os.strerror(each) in str(error))
        number = int(code[1]) if code else next(named, None)
    # A rename names two. Without a name it may be about anything, a socket above all.
    names = [
        Path(os.fsdecode(each))
        for name in ("filename2", "filename")
        if isinstance(each := getattr(error, name, None), str | bytes)
    ]
    places = [each for each in (place, *beside) if each]
    near = [
        name
        for name in names
        if any(name.is_relative_to(own) or own.is_relative_to(name) for own in places)
    ]
    near += [own for own in places if str(own) in str(error)]  # pyarrow names it in its words alone
    if number not in (_WHY if near else _UNNAMED) or (names and places and not near):
        return None
    file = next(
        (each for each in (*near, *names) if not _PART.fullmatch(each.name)), place or Path()
    )
    there = next((each for each in (file, *file.absolute().parents) if each.is_dir()), Path("/"))
    free = "" if number in _RAISE else f" ({shutil.disk_usage(there).free / 1e6:,.0f} MB are free)"
    refused = DiskError(
        f"{shown(file)} cannot be written: {_WHY[number]}{free}",
        rule="the workbench writes atomically",
        remedy=_RAISE.get(number, _FREE),
    )
    refused.errno, refused.place = number, file
    return refused


def made(folder: Path) -> Path:
    """`folder`, made if it is missing; DiskError if it cannot be."""
    with written(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def renamed(source: Path, target: Path) -> None:
    """`os.replace`, tried again where a drive refuses for a moment."""
    for wait_s in (*_WAITS_S, None):
        try:
            return os.replace(source, target)
        except OSError as error:
            if error.errno not in _PASSING or wait_s is None:
                raise
            time.sleep(wait_s)


def _beside(path: Path) -> tuple[Path, Path]:
    """Two names beside `path` that no other writer has, for the new and the old one; leftovers of a
    kill are removed.
    """
    name = f".{path.name}.{os.getpid()}-{_HOST}{secrets.token_hex(4)}"
    if path.parent not in _swept:  # once: a folder may hold thousands
        _swept.add(path.parent)
        with contextlib.suppress(OSError):
            for left in [each for each in os.scandir(path.parent) if _is_abandoned(each)]:
                shutil.rmtree(left) if left.is_dir(follow_symlinks=False) else os.unlink(left)
    return path.with_name(f"{name}.part"), path.with_name(f"{name}.before")


def _is_abandoned(entry: os.DirEntry) -> bool:
    if not (match := _PART.fullmatch(entry.name)):
        return False
    if match[2] != _HOST:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_S
    try:
        os.kill(int(match[1]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    return False


@contextlib.contextmanager
def replace_file(path: str | os.PathLike) -> Generator[Path]:
    """Write a file atomically: the block writes to the path that it is given, which then replaces
    `path`.

    An error in the block leaves `path` as it was. A kill or a power cut leaves the old file or the
    new one. With two writers each writes its own, and the last one's stays. DiskError: it cannot be
    written.
    """
    path = Path(path)
    made(path.parent)
    new, _ = _beside(path)
    with written(path, new):
        try:
            yield new
            _to_disk(new)
            renamed(new, path)
        finally:
            new.unlink(missing_ok=True)


@contextlib.contextmanager
def replace_folder(path: Path) -> Generator[Path]:
    """Write a folder atomically: the block fills the one that it is given, which then replaces
    `path`.
    """
    made(path.parent)
    new, old = _beside(path)
    with written(path, new, old):
        try:
            new.mkdir()
            yield new
            for file in [*new.rglob("*"), new]:
                _to_disk(file)
            if path.exists():
                renamed(path, old)
            try:
                renamed(new, path)
            except BaseException:
                if old.exists() and not path.exists():
                    renamed(old, path)
                raise
            _to_disk(path.parent)
        finally:
            for left in (new, old):
                shutil.rmtree(left, ignore_errors=True)


# some mounts cannot, of folders above all
_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM)


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
    """`value` in a form that JSON can hold: records and tuples by their fields, numpy's numbers and
    arrays, paths as text.

    NaN becomes None, an infinity "inf" or "-inf", a lone surrogate its escape, a picture "[image
    640x480]" and bytes "<bytes>". Anything else becomes its text, or where that is an address in
    memory its type, "<Environment>".
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if hasattr(value, "_asdict"):
        return to_json(value._asdict())
    if isinstance(value, dict):
        return {encodable(str(key)): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if hasattr(value, "tolist"):  # numpy, torch
        return to_json(value.tolist())
    if isinstance(value, float):
        return None if math.isnan(value) else value if math.isfinite(value) else str(value)
    if isinstance(value, int | None):  # also True and False
        return value
    if hasattr(value, "getbands"):  # of PIL
        return "[image {}x{}]".format(*value.size)
    text = encodable(str(value))
    opaque = not isinstance(value, str) and _ADDRESS.search(text)
    return f"<{type(value).__name__}>" if isinstance(value, (bytes, bytearray)) or opaque else text


def encodable(text: str) -> str:
    """`text` in a form that UTF-8 can hold: a lone surrogate as its escape, `\\ud800`."""
    return text.encode("utf-8", "backslashreplace").decode()


def write_json(path: str | os.PathLike, content: object) -> Path:
    """Write a JSON file atomically."""
    text = json.dumps(to_json(content), indent=2, ensure_ascii=False, allow_nan=False)
    with replace_file(path) as beside:
        beside.write_text(text + "\n", encoding="utf-8")
    return Path(path)


def sum_of(file: Path) -> str:
    """SHA-256 of a file, in hex."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def size_and_sum(file: Path) -> list[object]:
    """Bytes and SHA-256 of a file."""
    return [file.stat().st_size, sum_of(file)]


def append_line(file: Path, content: Fields) -> None:
    """Append one JSON object as a line, and flush it, so that a reader in another process sees
    it.
    """
    line = json.dumps(to_json(content), ensure_ascii=False, allow_nan=False).encode() + b"\n"
    with written(file), file.open("a+b") as lines:
        # A line torn by a kill must not swallow the next one.
        if lines.tell():
            lines.seek(-1, os.SEEK_END)
            if lines.read(1) != b"\n":
                lines.write(b"\n")
        lines.write(line)


def object_in(text: bytes) -> Fields | None:
    """The JSON object that a text is; None if it is none."""
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(text)
        return content if isinstance(content, dict) else None
    return None


def read_lines(file: Path, being_written: bool = False) -> Iterator[Fields]:
    """The objects in a JSON-lines file; a line torn by a kill is skipped, with a warning that names
    it.

    Where it is `being_written` by another process, a last line without its end is not torn but in
    flight.
    """
    if not file.is_file():
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if being_written and not line.endswith(b"\n"):
                return  # to read on would find the rest of this line and take it for another
            if (content := object_in(line)) is not None:
                yield content
            else:
                warnings.warn(f"{shown(file)}, line {number}: torn, skipped", stacklevel=2)


def digest(*parts: object) -> str:
    """64 hex digits over anything that JSON, or its text, can tell apart."""
    text = json.dumps(parts, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
