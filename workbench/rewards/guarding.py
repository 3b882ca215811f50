"""What a task's own code may not do to a run while its rollouts are generated: tools, `reset` and
`get_reward` that take for ever, raise SystemExit, or answer with what no template can write.
"""

from __future__ import annotations

import functools
import inspect
import signal
import threading
from collections.abc import Callable
from typing import Any

from workbench.kinds import Fields, Function
from workbench.rewards.beside import answer_of
from workbench.rewards.execution import DEADLINE_S

_NO_TEXT = (bytes, bytearray, list)  # TRL takes a list for parts of a message, images among them


class _Late(BaseException):
    # No Exception: code that catches those would go on.
    pass


class _Coroutines:
    # All run in one loop, that of this object, as TRL's do: clients belong to a loop, and an
    # environment uses its own from turn to turn.
    async def call(self, function: Function, arguments: Fields) -> Any:
        return await function(**arguments)


_COROUTINES = _Coroutines()


def guarded(function: Function, deadline_s: float | None, quiet: bool = False) -> Function:
    """The function, for `deadline_s` at most each time it is called (None: no limit).

    TimeoutError after that. A call in the main thread is interrupted where it is: while it sleeps,
    waits for a socket, or loops. Not interrupted: a library's C code that does not return to
    Python, code that catches BaseException and goes on, and any call under Windows or in another
    thread. A coroutine is cancelled; one that blocks is left behind with its thread.

    RuntimeError for SystemExit: it is the function's own end, not the run's. Who is late is
    printed, unless `quiet`.
    """

    def late(said: str) -> TimeoutError:
        if (
            not quiet
        ):  # a generation may call it hundreds of times, and say nothing until it is over
            print(f"{getattr(function, '__qualname__', function)} {said}", flush=True)
        return TimeoutError(said)

    @functools.wraps(function)
    def called(**arguments: object) -> object:
        try:
            return _within(deadline_s, functools.partial(function, **arguments))
        except SystemExit as error:
            raise _ended(error) from error
        except _Late:
            raise late(f"took longer than {deadline_s:g} s") from None

    @functools.wraps(function)
    async def awaited(**arguments: object) -> object:
        call: Fields = {"function": function, "arguments": arguments}
        answer = await answer_of(_COROUTINES.call, call, deadline_s)
        if answer.late is not None:
            raise late(f"took longer than {deadline_s:g} s{answer.late}")
        if isinstance(answer.error, SystemExit):
            raise _ended(answer.error) from answer.error
        if answer.error is not None:
            raise answer.error
        return answer.result

    return awaited if inspect.iscoroutinefunction(function) else called


def guarded_tool(tool: Function, deadline_s: float | None = DEADLINE_S) -> Function:
    """`guarded`, and what is no text is an error of the call: bytes, and lists, which most chat
    templates cannot write. Of anything else the policy reads its `str`, as in TRL.
    """
    tool = guarded(tool, deadline_s)

    def text_of(result: Any) -> Any:
        if isinstance(result, _NO_TEXT):
            raise TypeError(f"it returned {type(result).__name__}, not a text")
        return result

    @functools.wraps(tool)
    def called(**arguments: object) -> object:
        return text_of(tool(**arguments))

    @functools.wraps(tool)
    async def awaited(**arguments: object) -> object:
        return text_of(await tool(**arguments))

    return awaited if inspect.iscoroutinefunction(tool) else called


def guarded_environment(environment: Any, deadline_s: float | None = DEADLINE_S) -> Any:
    """The environment, its `reset` and `get_reward` guarded."""
    for name in ("reset", "get_reward"):
        if method := getattr(environment, name, None):
            setattr(environment, name, guarded(method, deadline_s))
    return environment


def _ended(error: SystemExit) -> RuntimeError:
    return RuntimeError(f"SystemExit: {error}")


def _within(deadline_s: float | None, act: Callable[[], object]) -> object:
    main = threading.current_thread() is threading.main_thread()
    if deadline_s is None or not main or not hasattr(signal, "setitimer"):
        return act()

    def late(number: int, frame: object) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, late)
    try:
        timer = signal.setitimer(signal.ITIMER_REAL, deadline_s)
        try:
            return act()
        finally:
            signal.setitimer(signal.ITIMER_REAL, *timer)
    finally:
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)
