"""`workbench ARGUMENTS` as a script meets it: an exit code and two texts."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest


class Ended(NamedTuple):
    """What is left of a command, as of a process."""

    returncode: int
    stdout: str
    stderr: str


def workbench(*arguments: str, home: Path | None = None) -> Ended:
    """In this process: a fresh one would import for a second what is here already."""
    from workbench.commands.cli import main

    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for name in ("stdout", "stderr")}
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TQDM_DISABLE", "1")
        patch.setattr(sys, "argv", ["workbench", *arguments])
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        if home:
            patch.setenv("WORKBENCH_HOME", str(home))
            patch.chdir(home)
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    return Ended(code, *(stream.buffer.getvalue().decode() for stream in streams.values()))


def workbench_process(*arguments: str, home: Path | None = None) -> subprocess.CompletedProcess:
    """In a process of its own, as from a shell."""
    environment = {**os.environ, **({"WORKBENCH_HOME": str(home)} if home else {})}
    command = [sys.executable, "-m", "workbench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=home)
