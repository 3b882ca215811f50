"""Work in a fresh process, where nothing of the caller's is loaded or patched: a request and its
result as JSON files.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen

from workbench import errors
from workbench.errors import ExportError, WorkbenchError
from workbench.kinds import Fields
from workbench.workspace import write_json

Progress = Callable[[int, int], None]
_LINES = 12  # of what a process said last


def run_apart(module: str, request: Fields, progress: Progress) -> Fields:
    """The JSON object that `python -m MODULE FOLDER` makes of a request.

    The workbench's own errors are raised here as they were there; ExportError with the process's
    last output if it crashed or was killed. An Interrupt ends the process.
    """
    with tempfile.TemporaryDirectory(prefix="workbench-") as name:
        folder = Path(name)
        write_json(folder / "request.json", request)
        progress(0, 0)
        code = _end_of_process([sys.executable, "-m", module, name], folder / "log.txt", progress)
        if code == 0 and (folder / "result.json").is_file():
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            if "error" not in result:
                return result
            error = result["error"]
            raise getattr(errors, error.pop("type"), ExportError)(**error)
        log = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip()
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    first = f"{module.rpartition('.')[2]}: the process {how}"
    raise ExportError(
        "\n".join([first, *log.splitlines()[-_LINES:]]),
        rule="a model is loaded in a separate process",
        remedy="fix what it reports; killed by signal 9, it most likely ran out of memory",
    )


def _end_of_process(command: list[str], log: Path, progress: Progress) -> int:
    # In a separate session: it and what it starts are ended together.
    with (
        log.open("wb") as errors_,
        Popen(
            command, start_new_session=True, stdin=PIPE, stdout=PIPE, stderr=errors_, text=True
        ) as child,
    ):
        try:
            for line in child.stdout or ():
                # printed before `answer` had taken the stream
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


def answer(work: Callable[[Fields, Progress], object]) -> None:
    """In the process: do the work of the request, and leave its result, or its error, where the
    caller looks.
    """
    folder, told = Path(sys.argv[1]), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no progress
    caller, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    threading.Thread(target=_end_with, args=(caller,), daemon=True).start()
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    print(0, 0, file=told)  # it has imported what it needs, and loads the model
    try:
        result = work(request, lambda done, total: print(done, total, file=told))
    except WorkbenchError as error:
        result = {
            "error": {
                "type": type(error).__name__,
                "value": error.value,
                "rule": error.rule,
                "remedy": error.remedy,
            }
        }
    write_json(folder / "result.json", result)
