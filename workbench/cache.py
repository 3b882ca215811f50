"""The user's cache, and sums of files that are too large to be read twice."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from workbench.workspace import size_and_sum


def cache_folder() -> Path:
    """Where the workbench keeps what it can make or download again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo-workbench"


def summed(file: Path) -> list[object]:
    """Bytes and SHA-256 of a file, which is read again only if it has changed since."""
    at = file.stat()
    return _as_it_is(file, at.st_ino, at.st_mtime_ns, at.st_ctime_ns)


@functools.lru_cache
def _as_it_is(file: Path, *since: int) -> list[object]:
    return size_and_sum(file)
