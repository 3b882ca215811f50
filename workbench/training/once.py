"""A policy's folder that is made once, in the user's cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from workbench.base.cache import summed
from workbench.base.errors import DiskError, PolicyError
from workbench.base.workspace import made, replace_folder, write_json
from workbench.run.lock import in_turn

_SUMS = "made.json"


def made_once(folder: Path, what: str, rule: str, command: list[str]) -> Path:
    """The folder, which `python -m *command FOLDER` makes if it is missing, torn or changed.

    PolicyError, which names `what`: that program fails, or the folder cannot be written.
    """
    try:
        # another process may be making it: then this one waits, and takes it
        with in_turn(made(folder.parent), f"{what}: waiting for another process, which makes one"):
            if not is_whole(folder):
                _make(folder, what, rule, command)
    except DiskError as error:
        raise PolicyError(
            f"{what}: {error.value}",
            rule=rule,
            remedy="free some space, or set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    return folder


def is_whole(folder: Path) -> bool:
    """Whether a folder is as it was made."""
    try:
        sums = json.loads((folder / _SUMS).read_text(encoding="utf-8"))
        return sums == _sums(folder)
    except (OSError, ValueError):
        return False


def _sums(folder: Path) -> dict[str, list[object]]:
    return {each.name: summed(each) for each in sorted(folder.iterdir()) if each.name != _SUMS}


def _make(folder: Path, what: str, rule: str, command: list[str]) -> None:
    started = time.monotonic()
    print(
        f"{what}: its checkpoint is made, once, in {folder}",
        end=" ... ",
        file=sys.stderr,
        flush=True,
    )
    try:
        with replace_folder(folder) as new:
            # In a separate process: what it imports goes with it, and the memory that it takes.
            quiet = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
            ended = subprocess.run(
                [sys.executable, "-m", *command, str(new)],
                env=os.environ | quiet,
                stderr=subprocess.PIPE,
                text=True,
            )
            if ended.returncode:
                last = "\n".join(ended.stderr.strip().splitlines()[-6:])
                raise PolicyError(
                    f"{what}: the process that makes it ended with {ended.returncode}\n{last}",
                    rule=rule,
                    remedy="fix what it reports; ended with -9, it most likely ran out of memory",
                )
            write_json(new / _SUMS, _sums(new))
    except BaseException:
        print("failed", file=sys.stderr)
        raise
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
