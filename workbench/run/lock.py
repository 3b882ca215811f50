"""Who owns a run: one process at a time, whose end is noticed from any reader.

The file holds the process, since when, and which boot of which machine: a number alone may by now
be another process's. It is held by `flock`, so exactly one of several contenders gets it. A run may
be on a drive that several machines share: for an owner on another machine, the age of the run's
last sign of life decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Generator
from pathlib import Path

from workbench.base.errors import RunError
from workbench.base.kinds import Fields
from workbench.base.workspace import object_in

SILENT_S = 900.0  # an owner elsewhere that has written nothing for so long is gone
_SIGNS = ("metrics.jsonl", "events.jsonl", "rollouts", "checkpoints")
_SETTLE_S = 0.2  # in which a rival's write is seen where there is no flock
_held: set[int] = set()  # handles of this process's locks


def _let_go() -> None:
    # A child that was forked has them, too: it must not hold a run after its parent's end.
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def in_turn(folder: Path, waiting: str = "") -> Generator[None]:
    """One process at a time, the others wait: for a file that is read, changed and written in an
    instant, or for what takes longer and says so on stderr (`waiting`).
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                print(waiting, file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        with contextlib.suppress(OSError):  # a child that was forked meanwhile has the handle, too
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


class Lock:
    """A lock in a run's folder: by default its owner's."""

    def __init__(self, folder: Path, name: str = "lock") -> None:
        self.file, self._handle, self._mine = folder / name, -1, b""

    def __reduce__(self) -> tuple[type[Lock], tuple[Path, str]]:
        # What another process unpickles, one that trains with this one, owns nothing.
        return Lock, (self.file.parent, self.file.name)

    def take(self, over: bool = False) -> bool:
        """Whether this process has become the owner. `over`: even from an owner elsewhere that may
        be alive.
        """
        while True:
            handle = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                _flock(handle)
            except BlockingIOError:
                os.close(handle)
                return False
            except OSError:  # this file system has none
                os.close(handle)
                return self._take_without_flock(over)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(self.file)):
                    break
            os.close(handle)  # that of an owner who has just released it
        # On this machine an owner that lives would have kept it from us.
        of_here = self.owner.get("locked") and self.owner.get("boot") == _boot()
        if not of_here and self._lives() and not (over and self.elsewhere):
            os.close(handle)
            return False
        self._handle, self._mine = handle, _identity(locked=True)
        _held.add(handle)
        try:
            os.ftruncate(handle, 0)
            os.write(handle, self._mine)
        except BaseException:  # a full disk
            self.release()
            raise
        return True

    def _take_without_flock(self, over: bool) -> bool:
        if self._lives() and not (over and self.elsewhere):
            return False
        seen, mine = self._content(), _identity(locked=False)
        if seen is not None:
            moved = self.file.with_name(f".{self.file.name}-{os.getpid()}")
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.file, moved)
                if moved.read_bytes() != seen:  # somebody else's, made since
                    os.replace(moved, self.file)
                    return False
                moved.unlink()
        try:
            handle = os.open(self.file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        os.write(handle, mine)
        os.close(handle)
        time.sleep(_SETTLE_S)
        self._mine = mine if self._content() == mine else b""
        return bool(self._mine)

    def release(self) -> None:
        """Release it; nobody owns the run then."""
        # a disk that can only be read, perhaps: a lock that nobody holds says nothing
        with contextlib.suppress(OSError):
            if self.mine:
                self.file.unlink()
        if self._handle in _held:
            _held.discard(self._handle)
            os.close(self._handle)
        self._handle, self._mine = -1, b""

    def beat(self) -> None:
        """Leave a sign of life for readers on other machines; RunError as in `check`."""
        self.check()
        with contextlib.suppress(OSError):
            os.utime(self.file)

    def check(self) -> None:
        """RunError if another process that saw no sign of life took the run, or its folder is
        gone.
        """
        folder = self.file.parent
        if self.lost:
            raise RunError(
                f"{folder.name}: taken over by a process on {self.owner.get('host')}",
                rule="a run has one owner",
                remedy="watch it: `workbench watch`",
            )
        if self._mine and self._content() is None and not (folder / "manifest.json").exists():
            raise RunError(
                f"{folder}: deleted or renamed during training",
                rule="a run is written where it started",
                remedy=f"put the folder back, then `workbench continue {folder.name}`; or resume it"
                " under its new name",
            )

    @property
    def mine(self) -> bool:
        """Whether this process holds it."""
        return bool(self._mine) and not self.lost

    @property
    def lost(self) -> bool:
        """Whether another process has taken it from this one, or this one is a fork of its
        owner.
        """
        if not self._mine:
            return False
        forked = json.loads(self._mine)["pid"] != os.getpid()
        return forked or self._content() not in (None, b"", self._mine)

    @property
    def owner(self) -> Fields:
        """What the owner wrote about itself; empty if there is none, or the file is torn."""
        return object_in(self._content() or b"") or {}

    @property
    def elsewhere(self) -> bool:
        """Whether the owner is on another machine, or on this one before its last boot, or
        unknown.
        """
        owner = self.owner
        here = owner.get("host") == socket.gethostname() and owner.get("boot", _boot()) == _boot()
        return bool(self._content()) and not here

    @property
    def held(self) -> bool:
        """Whether there is a living owner, as far as can be told from here."""
        if self._content() is None:
            return False
        if self.elsewhere and self.owner.get("locked") and self.owner.get("boot") == _boot():
            return self._blocked()  # another container on this machine
        return self._lives()

    def _lives(self) -> bool:
        if not self._content():
            return False  # nobody has written into it
        owner = self.owner
        if not self.elsewhere and isinstance(owner.get("pid"), int):
            started = _started(owner["pid"])
            return started is not None and owner.get("started", started) == started
        latest = 0.0
        for name in (self.file.name, *_SIGNS):
            with contextlib.suppress(OSError):  # not there, or a rival has just taken the lock away
                latest = max(latest, (self.file.parent / name).stat().st_mtime)
        return abs(time.time() - latest) < SILENT_S  # its clock may go wrong

    def _blocked(self) -> bool:
        with contextlib.suppress(OSError), self.file.open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _content(self) -> bytes | None:
        with contextlib.suppress(OSError):
            return self.file.read_bytes()
        return None


def _flock(handle: int) -> None:
    for again in (True, True, False):
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not again:
                raise
            time.sleep(0.01)  # somebody may only be looking


def _identity(*, locked: bool) -> bytes:
    own = {
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "host": socket.gethostname(),
        "boot": _boot(),
    }
    return json.dumps({**own, "locked": locked, "since": time.time_ns()}).encode()


def _boot() -> str:
    """The id of this boot of this machine; the same in all its containers."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _started(pid: int) -> int | None:
    """When a process began, in ticks since the machine started (0 where nothing tells); None if
    there is no such process.

    A zombie (killed, not yet reaped, common in containers) counts as gone.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return None if fields[0] == "Z" else int(fields[19])
    except (OSError, ValueError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except PermissionError:
        return 0
    except (OSError, OverflowError):
        return None
    return 0
