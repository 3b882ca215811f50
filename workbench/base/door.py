"""The one door to a task's own code. Reward functions, tools, environments, judges and probes are
called through it; how they end, and what they did to the process, is the same for all.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import json
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any

from workbench.base.errors import WorkbenchError, fault_line, is_users
from workbench.base.kinds import Function
from workbench.base.workspace import encodable

LONGEST_ERROR = 2_000  # characters
_NOTHING_KEPT = contextlib.nullcontext()
DEADLINE_S = 60.0  # unless another is given
# (What reads a setting of the process, what sets it.)
Setting = tuple[Callable[[], Any], Callable[[Any], object]]


class Ended(RuntimeError):
    """In place of what a task's code raised, where that would end more than the call, or nobody
    could read it: its cause. Its text names the cause's type.
    """


class Late(BaseException):
    """The deadline of so many seconds is over. No Exception: code that catches one would go on."""


@contextlib.contextmanager
def door(
    kept: contextlib.AbstractContextManager[object] = _NOTHING_KEPT, deadline_s: float | None = None
) -> Generator[None]:
    """Around a call of a task's own code, or around its `await`, which runs inside `kept`
    (`beside.ProcessState`).

    What it forked ends here. `Ended` for SystemExit, for a KeyboardInterrupt that it raised itself,
    and for errors whose text is too long or cannot be read or written. An alarm that it left is
    taken back.

    Args:
        deadline_s: TimeoutError after that, in the main thread: the call is interrupted where it
            is, while it sleeps, waits for a socket, or loops. Not interrupted: a library's C code
            that does not return to Python, code that catches BaseException and goes on, and any
            call under Windows or in another thread.
    """
    process = os.getpid()
    try:
        with kept, alarm(deadline_s):
            yield
    except BaseException as error:
        _ends_if_forked(process, error)
        if isinstance(error, Late):
            raise TimeoutError(f"was not back after {error.args[0]:g} s") from error
        if _may_pass(error):
            raise
        # contextlib takes the cause of a RuntimeError for what ended this generator
        raise Ended(words(error)) from None if isinstance(error, StopIteration) else error
    _ends_if_forked(process)


def behind_door(function: Function) -> Function:
    """The function behind the `door`: an environment's constructor, or what makes one. What it
    draws is drawn from the caller's random numbers.
    """

    def called(*given: object) -> Any:
        with door(settings_kept(), DEADLINE_S):
            return function(*given)

    return called


def words(error: BaseException) -> str:
    """Type and message, in a text that can be written: `ValueError: no`."""
    error = _beneath(error)
    kind = type(error).__name__
    try:
        return encodable(f"{kind}: {error}"[:LONGEST_ERROR])
    except Exception:
        return f"{kind}: (its message could not be read)"


def said(error: BaseException, file: str | None = None) -> str:
    """`words`, and the line of the task's code, of `file`: `ValueError: no (task.py:3: ...)`."""
    own = _beneath(error)
    return words(own) + (fault_line(own, file) if file or isinstance(own, Exception) else "")


def _beneath(error: BaseException) -> BaseException:
    return error.__context__ or error if isinstance(error, Ended) else error


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, KeyboardInterrupt):
        return not _raised_there(error)
    if isinstance(error, WorkbenchError | Ended):
        return True
    try:
        whole = words(error) == f"{type(error).__name__}: {error}"
    except Exception:
        whole = False
    return whole and isinstance(error, Exception) and not isinstance(error, StopIteration)


def _raised_there(error: BaseException) -> bool:
    # By a `raise` of the task's own code. A user's interrupt comes between two instructions, from
    # the run's handler of signals, or from a library that was told of it, as asyncio is.
    last: Any = error.__traceback__
    while last.tb_next:
        last = last.tb_next
    code = last.tb_frame.f_code
    return is_users(code.co_filename) and code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _ends_if_forked(own: int, error: BaseException | None = None) -> None:
    # End this process, with the status that Python would end it with, if the call forked it: a
    # second answer would be taken for the next call's, or two of them would train; and a function
    # that runs code in a fork scores by that status.
    if os.getpid() != own:
        code = (error.code or 0) if isinstance(error, SystemExit) else int(error is not None)
        os._exit(code & 0xFF if isinstance(code, int) else 1)


@contextlib.contextmanager
def alarm(deadline_s: float | None, again_s: float = 0.0) -> Generator[None]:
    """`Late` after that, in the main thread, and then again and again, if `again_s`: a bare
    `except` may swallow the first. Afterwards the alarms are as they were before.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "setitimer"):
        yield
        return

    def late(number: int, frame: object) -> None:
        raise Late(deadline_s)

    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    ours = getattr(handler, "__qualname__", "") == late.__qualname__
    if deadline_s is not None and (again_s or not ours):  # a door's around this one counts
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, deadline_s, again_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)


@contextlib.contextmanager
def names_kept() -> Generator[None]:
    """Undo replacements made inside, in the modules that everything uses (`json.dumps = ...`)."""
    before = [(vars(module), dict(vars(module))) for module in (builtins, json, math, re)]
    try:
        yield
    finally:
        for names, kept in before:
            names.update(kept)


@contextlib.contextmanager
def settings_kept() -> Generator[None]:
    """Undo changes to the process made inside: current folder, environment variables, umask, the
    list of folders to import from, recursion limit, standard output and error, handlers of signals,
    numpy's ways with errors, torch's default dtype, gradient mode, precision, denormals, threads
    and determinism, and those of `names_kept`.
    """
    with contextlib.ExitStack() as states:
        states.enter_context(names_kept())
        states.enter_context(contextlib.redirect_stdout(sys.stdout))
        states.enter_context(contextlib.redirect_stderr(sys.stderr))
        for read, put in _settings():
            with contextlib.suppress(OSError):  # a folder that is gone
                states.callback(_put_back, read, put, read())
        yield


def _put_variables(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before:
        del os.environ[name]
    os.environ.update(before)


def _put_back(read: Callable[[], Any], put: Callable[[Any], object], before: Any) -> None:
    with contextlib.suppress(
        Exception
    ):  # the folder that it went to is gone, or no list is in its place
        if read() == before:
            return
    put(before)


def _settings() -> list[Setting]:
    settings: list[Setting] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        own = functools.partial(signal.getsignal, number), functools.partial(signal.signal, number)
        settings.append(own)
    if (numpy := sys.modules.get("numpy")) is not None:
        settings.append((numpy.geterr, lambda before: numpy.seterr(**before)))
    if (torch := sys.modules.get("torch")) is not None:
        settings += [
            (torch.is_grad_enabled, torch.set_grad_enabled),
            (torch.get_default_dtype, torch.set_default_dtype),
            (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
            (torch.get_num_threads, torch.set_num_threads),
            (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
            (lambda: sys.float_info.min / 2 == 0, torch.set_flush_denormal),
        ]
    return [  # the last is put back first
        *settings,
        (os.getcwd, os.chdir),
        (os.environ.copy, _put_variables),
        # Reading sets it, too; meanwhile no file is made that others could read.
        (lambda: os.umask(own := os.umask(0o077)) and own, os.umask),
        (lambda: [*sys.path], functools.partial(setattr, sys, "path")),
        (sys.getrecursionlimit, sys.setrecursionlimit),
    ]
