"""Foreign text (completions, rows, error messages), made safe for a terminal, which obeys control
sequences.

`printable` shows control sequences as Python writes them; `guard_output` applies it to everything
that a process prints.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO

STANDARD_OUTPUT = "standard output"

# C0 but for tab and newline, DEL and C1; what turns the direction of writing; what nobody sees;
# lone surrogates, which cannot be encoded.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_COLOUR = re.compile(r"\x1b\[[\d;:]*m")
# what tqdm draws with: back to the line's beginning, and a line up
_BAR = re.compile(r"(\r|\x1b\[A)")


def printable(text: str) -> str:
    """`text` with every character that a terminal obeys or hides shown as its escape: `\\x1b`,
    `\\u202e`, `\\r`.
    """
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def _nowhere() -> TextIO:
    return open(os.devnull, "w")


class Guarded:
    """A stream that passes on printable text only, without colours. A tqdm progress bar may move
    the cursor.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("tqdm."):
            parts = _BAR.split(text)
            parts[::2] = map(printable, parts[::2])
            safe = "".join(parts)
        else:
            safe = printable(_COLOUR.sub("", text))
        self._passed(self.unguarded.write, safe)
        return len(text)

    def flush(self) -> None:
        self._passed(self.unguarded.flush)

    def _passed(self, to: Callable[..., object], *text: str) -> None:
        try:
            to(*text)
        except OSError as error:
            # What is left of it would fail once more when the process ends, without a word.
            name, self.unguarded = getattr(self.unguarded, "name", ""), _nowhere()
            if name == "<stderr>":  # where it would be reported
                return
            error.filename = STANDARD_OUTPUT
            raise

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


def unguarded(stream: TextIO) -> TextIO:
    """The stream itself, for code that draws with control sequences."""
    return getattr(stream, "unguarded", stream)


def guard_output() -> None:
    """From now on everything that this process prints is printable: results, errors, tracebacks,
    and a reward's prints. What the stream's encoding lacks is written as its escape. What was
    closed takes everything and keeps nothing.
    """
    # in this order, as a file gets the lowest number that is free: 1, then 2
    sys.stdout, sys.stderr = (each or _nowhere() for each in (sys.stdout, sys.stderr))
    for stream in map(unguarded, (sys.stdout, sys.stderr)):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (Guarded(unguarded(stream)) for stream in (sys.stdout, sys.stderr))
