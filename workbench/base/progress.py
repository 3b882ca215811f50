"""Progress of a long call, in the notebook cell that waits for it; nothing anywhere else."""

from __future__ import annotations

import html
import sys
import time
import uuid
from collections.abc import Callable

from workbench.base.kinds import Fields

SLOW_S = 2.0


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def count_line(unit: str) -> Callable[[int], None]:
    """A running count, for work of unknown length: call it with the number done. Quick work shows
    nothing.
    """
    started, show = time.monotonic(), _line()

    def update(done: int) -> None:
        elapsed = time.monotonic() - started
        if elapsed > SLOW_S:
            show({"text/plain": f"{done} {unit}, {clock(elapsed)}"})

    return update


def progress_line(label: str) -> Callable[[int, int], None]:
    """A progress bar: call it with (done, total); a total of 0: a process starts or loads, and
    nothing can be counted.
    """
    started, show = time.monotonic(), _line()

    def update(done: int, total: int) -> None:
        text = (
            f"{label}: {f'{done} of {total}' if total else 'loading'},"
            f" {clock(time.monotonic() - started)}"
        )
        bar = (
            f"<progress{f' value={int(done)} max={int(total)}' * bool(total)}></progress>"
            f" {html.escape(text)}"
        )
        show({"text/html": bar, "text/plain": text})

    return update


def in_kernel() -> bool:
    """Whether this runs in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _line() -> Callable[[dict[str, str]], None]:
    # Not a widget: in a saved notebook that is an empty place.
    if not in_kernel():
        return lambda bundle: None
    from IPython.display import display

    options: Fields = {"raw": True, "display_id": uuid.uuid4().hex}

    def show(bundle: dict[str, str]) -> None:
        display(bundle, **options)
        options["update"] = True

    return show
