"""Signals that ask a process to end: the first is a request to stop, and a second one aborts."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Generator

# a launcher (uv, timeout, a scheduler) hands on a signal that its whole group has had, and people
# click twice
ECHO_S = 2.0
_AGAIN = (signal.SIGINT, signal.SIGTERM)  # given twice, they abort
# What else asks a process to end: a terminal that closes, a limit of CPU time, a scheduler (Slurm's
# `--signal`, SGE, LSF), a power supply that fails.
_WARNINGS = ("SIGHUP", "SIGXCPU", "SIGUSR1", "SIGUSR2", "SIGPWR")


def _leave_lost_terminal() -> None:
    # Whatever is printed to a terminal that is gone is an error, also in a library, and would end
    # the run before it is saved. Files and pipes stay, and so does a terminal that is still there.
    for handle in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(handle).st_mode) and not os.isatty(handle):
                with open(os.devnull, "wb") as nothing:
                    os.dup2(nothing.fileno(), handle)


class Interrupts:
    """The first signal that asks this process to end, and when the latest came.

    `stop` is called with the signal's name, or "interrupt".
    """

    def __init__(self, stop: Callable[[str], None]) -> None:
        self.by, self.at, self._stop = "", 0.0, stop

    @contextlib.contextmanager
    def graceful(self) -> Generator[None]:
        """Inside, the first such signal (a scheduler's warning before it kills, a closed terminal)
        is a request to stop; a second SIGINT or SIGTERM aborts.

        Interrupt is the one control that works in every front end while a cell is busy: a click
        waits behind it in most.
        """
        # Python lets only the main thread handle signals; elsewhere the caller's own handling stays
        # in force.
        main = threading.current_thread() is threading.main_thread()
        # `nohup` ignores one, and others may have a use of their own.
        signals = [
            each
            for each in (signal.Signals if main else ())
            if each in _AGAIN
            or (each.name in _WARNINGS and signal.getsignal(each) is signal.SIG_DFL)
        ]
        before = {number: signal.signal(number, self._handle) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, signum: int, frame: object) -> None:
        _leave_lost_terminal()
        now, again = time.monotonic(), signum in _AGAIN
        # A limit of CPU time warns every second.
        if self.by and (not again or now - self.at < ECHO_S):
            return
        self.at = now
        if self.by:
            raise KeyboardInterrupt  # whose echo must not end what is saved now
        self.by = "interrupt" if signum == signal.SIGINT else signal.Signals(signum).name
        # It comes in the middle of a step: an error here must not become the step's.
        with contextlib.suppress(Exception):
            self._stop(self.by)
