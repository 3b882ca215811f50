"""Stopping a run with its work saved: the first Interrupt ends it after the step in flight, the second at once.

SIGTERM, which a scheduler sends before it kills, counts as an Interrupt.

Interrupt is the one control that works in every front end while a cell is busy: a plain button's click waits in the
queue behind the cell in most of them.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

ECHO_S = 1.0  # a launcher (uv, timeout, a scheduler) hands on a signal that its whole group has had, and people click twice


class GracefulStop:
    """While active, turns the first SIGINT or SIGTERM into a request, and lets the second one through, a second later or more.

    Args:
        on_request: called once, with who asks ("interrupt" or "SIGTERM").
    """

    def __init__(self, on_request: Callable[[str], Any] = lambda by: None) -> None:
        self.requested: str | None = None
        self.on_request = on_request
        self._asked_at = 0.0
        self._before: dict[int, Any] = {}

    def request(self, by: str) -> None:
        """Ask for a stop at the next step boundary."""
        self.requested, self._asked_at = by, time.monotonic()
        self.on_request(by)

    def __enter__(self) -> GracefulStop:
        # Python lets only the main thread handle signals; elsewhere the caller's own handling stays in force.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _interrupted(self, signum: int, frame: Any) -> None:
        if self.requested is not None:
            if time.monotonic() - self._asked_at < ECHO_S:
                return
            raise KeyboardInterrupt
        # Whatever the handler does happens in the middle of a step: an error here must not become the step's.
        with contextlib.suppress(Exception):
            self.request("interrupt" if signum == signal.SIGINT else "SIGTERM")
            print("stopping after this step; interrupt again to abort at once", flush=True)
