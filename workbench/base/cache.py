"""The user's cache: where it is, sums of files that are too large to be read twice, and answers of
libraries that are too slow to be asked twice.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from workbench.base.workspace import home_folder, size_and_sum, temporary_home

T = TypeVar("T")
# Who answers in the place of the libraries (training/plan/kept.py); None: they do.
ANSWERS: ContextVar[Any] = ContextVar("answers", default=None)


def kept(ask: Callable[..., T]) -> Callable[..., T]:
    """Decorates a function whose answer, of the annotated type, follows from its arguments, which
    JSON can hold, and from the installed libraries alone.
    """

    @functools.wraps(ask)
    def answer(*of: Any) -> T:
        answers = ANSWERS.get()
        return answers(ask, of) if answers else ask(*of)

    return answer


def file_states(files: Iterable[str | Path]) -> dict[str, list[int]]:
    """Bytes of each file and when it was written: what Python itself goes by."""
    stats = {str(file): os.stat(file) for file in sorted(files)}
    return {name: [at.st_size, at.st_mtime_ns] for name, at in stats.items()}


def cache_folder() -> Path:
    """Where the workbench keeps what it can make or download again."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "grpo-workbench"
    cache = home_folder() / ".cache"
    with contextlib.suppress(OSError):  # a home that is not there, or can only be read
        cache.mkdir(parents=True, exist_ok=True)
    usable = os.access(cache, os.W_OK)
    return (cache if usable else temporary_home() / ".cache") / "grpo-workbench"


def summed(file: Path) -> list[object]:
    """Bytes and SHA-256 of a file, which is read again only if it has changed since."""
    at = file.stat()
    return _as_it_is(file, at.st_ino, at.st_mtime_ns, at.st_ctime_ns)


@functools.lru_cache
def _as_it_is(file: Path, *since: int) -> list[object]:
    return size_and_sum(file)
