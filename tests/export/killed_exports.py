"""Exports that are killed (SIGKILL) at random moments: they never leave a folder that loads as a model, but for a whole one.

Every try is a fork of a process that has imported the libraries. Half are killed at a file operation (opened for writing, made,
renamed, removed) in the run's `export/` folder, half at anything that Python's audit hook tells of (a file that is read, an
import), both drawn at random from those of a whole export.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_WRITING = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}
_NOWHERE = (0, 0)


def killed(run: Any, kills: int, seed: int = 0, formats: Sequence[str] = ("adapter", "merged_16bit")) -> list[dict[str, Any]]:
    """Kill `kills` exports of a run, each over what the last one left, then finish one.

    After each, every folder with a format's name is whole by its passport and has its model; after the last, nothing else is
    there. AssertionError if not. OMP_NUM_THREADS must be 1: a process with threads cannot be forked.
    """
    from workbench.exporting.making import export
    from workbench.exporting.passport import changed_files

    draw, found = random.Random(seed), []
    export(run, formats, overwrite=True)  # imports all that it needs
    operations, events = _in_a_fork(run, formats, _NOWHERE)
    for number in range(kills):
        moment = (draw.randint(1, operations), 0) if number % 2 else (0, draw.randint(1, events))
        if draw.random() < 0.5:
            shutil.rmtree(run.export, ignore_errors=True)
        ended = _in_a_fork(run, formats, moment)
        names = sorted(folder.name for folder in run.export.iterdir()) if run.export.is_dir() else []
        for folder in (run.export / name for name in names if name != "lock" and not name.startswith(".")):
            assert not changed_files(folder), f"{folder}: not whole after kill {number}, {moment}"
            assert any(folder.glob("*.safetensors")) or any(folder.glob("*.gguf"))
        found.append({"moment": moment, "killed": ended == _NOWHERE, "left": names})
    made = export(run, formats, overwrite=True)
    assert sorted(folder.name for folder in run.export.iterdir()) == sorted(made.artefacts)
    assert not any(changed_files(artefact.path) for artefact in made.artefacts.values())
    return found


def _in_a_fork(run: Any, formats: Sequence[str], moment: tuple[int, int]) -> tuple[int, int]:
    # (file operations, events) of an export that replaces what is there; nowhere: it was killed.
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        _export(run, formats, theirs, moment)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.read().split()
    status = os.waitpid(child, 0)[1]
    assert said or os.WIFSIGNALED(status), f"the export failed: {status}"
    return (int(said[0]), int(said[1])) if said else _NOWHERE


def _export(run: Any, formats: Sequence[str], out: int, moment: tuple[int, int]) -> None:
    from workbench.exporting import making

    operations, events, within = 0, 0, str(run.export)

    def seen(event: str, args: tuple[Any, ...]) -> None:
        nonlocal operations, events
        events += 1
        writes = event == "open" and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (writes or event in _WRITING) and isinstance(args[0], str | Path) and str(args[0]).startswith(within):
            operations += 1
        if event != "os.kill" and (operations == moment[0] > 0 or events == moment[1]):
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        making._other = lambda *_: "all is made again"
        sys.addaudithook(seen)
        making.export(run, formats, overwrite=True)
        os.write(out, f"{operations} {events}".encode())
    finally:
        os._exit(1)
