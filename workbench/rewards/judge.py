"""What runs in the worker of `mathematics`: math-verify, and the clock that ends a pair.

Importing it imports sympy and reads one formula of each kind, which takes a second or two: the first of a kind takes
hundreds of milliseconds, the next ones a few. Every process that is forked after that begins with what was read.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from math_verify import parse, verify

_WARMING = (
    (r"$\frac{1}{2}$", "1/2"),
    (r"$\sqrt{8}+\pi$", r"$2\sqrt{2}+\pi$"),
    ("$(x+1)^2$", "$x^2+2x+1$"),
    (r"$\sin(x)^2+\cos(x)^2$", "$1$"),
    ("$x=5, y=-3$", r"$\{5,-3\}$"),
    (r"$(1,2] \cup [3,\infty)$", "$[1,2]$"),
    (r"$x \le 3$", r"$3 \ge x$"),
    (r"$\begin{pmatrix}1&2\\3&4\end{pmatrix}$", r"$\begin{pmatrix}1&2\\3&5\end{pmatrix}$"),
    (r"$\log_2(8)+e^{x}-5!$", r"$\ln(x)+|y|-\binom{5}{2}$"),
    (r"\boxed{50\%}", "0.5"),
    ("2*3^2-(4+5)", "9.0 cm"),
)


class _OutOfTime(BaseException):
    """Not an Exception: sympy and math-verify catch those and go on."""


def judge(pairs: Sequence[tuple[str, str]], slices: Sequence[float], progress: str) -> None:
    """Write one letter into a file for each (given, right) pair that is judged: `1` the same, `0` not, `?` math-verify failed.

    A pair that takes longer than its slice (seconds of processor time) ends the process: the file says which one it
    was, and whatever a formula that is stopped halfway leaves behind in sympy is gone with it.
    """
    # The file is there, or the caller has given up: a request that outlived its process ends here.
    with open(progress, "r+b", buffering=0) as letters:
        for (given, right), slice_s in zip(pairs, slices, strict=True):
            if hasattr(signal, "setitimer"):
                signal.signal(signal.SIGPROF, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_PROF, slice_s)
            same = agrees(given, right)
            if hasattr(signal, "setitimer"):
                signal.setitimer(signal.ITIMER_PROF, 0)
            letters.write(b"?" if same is None else b"1" if same else b"0")


def judge_here(given: str, right: str, slice_s: float) -> bool | None:
    """The verdict on a pair in this process, or None after so many seconds.

    Only a request: a power of a billion digits does not listen. Nothing can be requested off the main thread.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return agrees(given, right)
    try:
        with _alarm(slice_s):
            return agrees(given, right)
    except _OutOfTime:
        return None


def agrees(given: str, right: str) -> bool | None:
    """What math-verify says, without a clock of its own (its clock works only on the main thread); None if it fails."""
    try:
        return bool(verify(_parsed(right), _parsed(given), timeout_seconds=None))
    except (RecursionError, MemoryError):  # nested too deeply: not an answer that anything could be the same as
        return False
    except Exception:  # a bug in that library must not become a 0: the caller records that the pair was not judged
        return None


@functools.lru_cache(maxsize=512)
def _parsed(text: str) -> Any:
    return parse(text, parsing_timeout=None)


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    # Again and again: a bare `except` may swallow the first.
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.05)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


for _name in ("math_verify", "latex2sympy2_extended"):  # they warn of every text that they cannot read
    logging.getLogger(_name).setLevel(logging.CRITICAL)
for _given, _right in _WARMING:
    agrees(_given, _right)
