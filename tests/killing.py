"""A fork of this process that is killed (SIGKILL) at one of its file operations."""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

_WRITING = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}


def killed_at(number: int, act: Callable[[], object], root: Path) -> bool:
    """Whether `act`, in a fork, was killed before the `number`-th file operation (from 1) that it makes below `root`.

    Opened for writing, made, renamed and removed counts. AssertionError if it fails.
    """
    if not (child := os.fork()):
        done = 0

        def seen(event: str, args: tuple) -> None:
            nonlocal done
            writes = event == "open" and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            inside = isinstance(args[0], str | Path) and str(args[0]).startswith(str(root)) if args else False
            # Within shutil.rmtree a name stands alone, relative to a handle.
            if (writes or event in _WRITING) and (inside or (event in ("os.remove", "os.rmdir") and args[1] != -1)):
                done += 1
                if done == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.addaudithook(seen)
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or status == 0, status
    return os.WIFSIGNALED(status)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run by its path, but for its lock, its requests, what it printed, and what a kill left half-made."""
    names = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
    left_out = re.compile(r"(lock|control\.jsonl|train\.log.*)$|(.*/)?\.[^/]*\.part(/|$)")
    return {name: file.read_bytes() for name, file in names.items() if not left_out.match(name)}
