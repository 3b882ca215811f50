"""Errors that say three things: the value met, the rule that it breaks, and what to do.

To add one: subclass `WorkbenchError` and the standard exception that it refines, in one line.
"""

from __future__ import annotations

import difflib
import functools
import os
import traceback
from collections.abc import Iterable
from pathlib import Path

from workbench.base.printable import printable

_OWN, _PYTHON = (
    f"{os.path.dirname(file)}{os.sep}" for file in (os.path.dirname(__file__), os.__file__)
)


class WorkbenchError(Exception):
    """Base of every error that the workbench raises on purpose: the value met, the rule that it
    breaks, and what to do.

    `network`: the hub cannot be reached, so whether the value breaks the rule is not known.
    """

    def __init__(self, value: str, *, rule: str, remedy: str, network: bool = False) -> None:
        # A completion or a row may stand in any of them.
        self.value, self.rule, self.remedy = printable(value), printable(rule), printable(remedy)
        self.network = network
        super().__init__(f"{self.value}\n  rule:   {self.rule}\n  remedy: {self.remedy}")

    def __reduce__(self) -> tuple:
        return functools.partial(
            type(self), rule=self.rule, remedy=self.remedy, network=self.network
        ), (self.value,)

    def _render_traceback_(self) -> list[str]:
        """What IPython prints instead of a traceback: the message, and the user's own failing lines
        if there are any.
        """
        lines = [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]
        if self.__cause__ is not None and not isinstance(self.__cause__, WorkbenchError):
            own = traceback.format_exception(self.__cause__)[-6:]
            lines += ["", "caused by:", *(printable(line.rstrip()) for line in own)]
        return lines


def nearest(word: str, known: Iterable[str], otherwise: str) -> str:
    """A remedy for an unknown name: the one most likely meant; `otherwise` if none is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def fault_line(error: BaseException, file: str | os.PathLike | None = None) -> str:
    """` (task.py:12: the line)`: the line of the user's `file` that an exception came from; empty
    if there is none.

    `file` None: the innermost frame that is neither a library's (nor Python's) nor the workbench's.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({Path(error.filename).name}:{error.lineno}: {(error.text or '').strip()})"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == str(file) if file is not None else is_users(frame.filename):
            return f" ({Path(frame.filename).name}:{frame.lineno}: {frame.line})"
    return ""


def is_users(file: str) -> bool:
    """Whether code of that file is neither a library's (nor Python's) nor the workbench's."""
    if file.startswith((_OWN, _PYTHON)):
        return False
    return "site-packages" not in file and "dist-packages" not in file  # Debian's, and Colab's


class RecipeError(WorkbenchError, ValueError):
    """A recipe asks for something that does not exist or cannot work."""


class DataError(WorkbenchError, ValueError):
    """Rows that cannot be read or used."""


class TaskError(WorkbenchError, ValueError):
    """A task that cannot be loaded, or whose parts do not fit together."""


class RewardError(WorkbenchError, RuntimeError):
    """A reward function that raised, or did not return one finite score per completion."""


class BudgetError(RewardError):
    """A judge that would cost more than it may. It ends a run even where errors are skipped."""


class PolicyError(WorkbenchError, RuntimeError):
    """A policy that cannot be loaded."""


class RunError(WorkbenchError, RuntimeError):
    """A run directory that is missing, busy or incomplete."""


class ExportError(WorkbenchError, RuntimeError):
    """An export that failed, or that did not prove equal to what was trained."""


class DiskError(WorkbenchError, OSError):
    """A file that cannot be written: the disk is full, read-only, or gone. `place` is the file,
    `errno` as usual.
    """

    place: Path = Path()


class RequestError(WorkbenchError, ValueError):
    """A request that cannot be right, or that no run is there to answer."""


class TermError(WorkbenchError, LookupError):
    """A word that the glossary does not have."""


class HostedError(WorkbenchError, RuntimeError):
    """A notebook's host, Colab or Kaggle, that could not be set up."""
