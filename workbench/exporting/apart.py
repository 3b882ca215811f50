"""Work in a fresh process, where nothing of the caller's is loaded or patched.

    python -m workbench.exporting.apart FOLDER

The folder holds the request, and gets the result: pickles, which this package alone writes and
reads.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen
from typing import TypeVar

from workbench.base.errors import ExportError, WorkbenchError

Asked = TypeVar("Asked")
Found = TypeVar("Found")
Progress = Callable[[int, int], None]
_LINES = 12  # of what a process said last


def run_apart(
    work: Callable[[Asked, Progress], Found], request: Asked, progress: Progress
) -> Found:
    """What `work`, a function of a module, makes of a request in another process.

    The workbench's own errors are raised here as they were there; ExportError with the process's
    last output if it crashed or was killed. An Interrupt ends the process.
    """
    with tempfile.TemporaryDirectory(prefix="workbench-") as name:
        asked, result, log = (Path(name, each) for each in ("request", "result", "log.txt"))
        asked.write_bytes(pickle.dumps((work, request)))
        progress(0, 0)
        code = _end_of_process([sys.executable, "-m", __name__, name], log, progress)
        if code == 0 and result.is_file():
            found = pickle.loads(result.read_bytes())
            if isinstance(found, WorkbenchError):
                raise found
            return found
        said = log.read_text(encoding="utf-8", errors="replace").strip()
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    first = f"{work.__module__.rpartition('.')[2]}: the process {how}"
    raise ExportError(
        "\n".join([first, *said.splitlines()[-_LINES:]]),
        rule="a model is loaded in a separate process",
        remedy="fix what it reports; killed by signal 9, it most likely ran out of memory",
    )


def _end_of_process(command: list[str], log: Path, progress: Progress) -> int:
    # In a separate session: it and what it starts are ended together.
    with (
        log.open("wb") as errors,
        Popen(
            command, start_new_session=True, stdin=PIPE, stdout=PIPE, stderr=errors, text=True
        ) as child,
    ):
        try:
            for line in child.stdout or ():
                # printed before `_answer` had taken the stream
                with contextlib.suppress(ValueError):
                    done, total = map(int, line.split())
                    progress(done, total)
            return child.wait()
        except BaseException:
            os.killpg(child.pid, 9)
            raise


def _end_with(caller: int) -> None:
    # Its end of the pipe is closed however it ends, and nothing is ever written there.
    os.read(caller, 1)
    os.killpg(0, 9)


def _answer(folder: Path) -> None:
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no progress
    caller, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # nobody waits for an answer there
    threading.Thread(target=_end_with, args=(caller,), daemon=True).start()
    work, request = pickle.loads((folder / "request").read_bytes())
    print(0, 0, file=told)  # it has imported what it needs, and loads the model
    try:
        found = work(request, lambda done, total: print(done, total, file=told))
    except WorkbenchError as error:
        found = error
    (folder / "result").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    _answer(Path(sys.argv[1]))
