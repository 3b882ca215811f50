"""What runs beside the trainer, in its process: its changes there are undone, and coroutines are
awaited in separate loops, where one that blocks stops no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import inspect
import random
import re
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import ModuleType
from typing import Any, ClassVar

from workbench.base.door import Late, Setting, door, settings_kept
from workbench.base.kinds import Fields, Function
from workbench.rewards.as_data import plain_result
from workbench.rewards.code import beneath, held_by

_GRACE_S = 0.5  # in which a coroutine that was cancelled has to end


async def answer_of(function: Function, call: Fields, deadline_s: float | None) -> Any:
    """Await a coroutine function in its own loop, for `deadline_s` at most (None: no limit); raises
    as the `door`.
    """
    # In a separate loop: one that blocks, or stops its loop, takes neither the trainer's along nor
    # that of another function.
    loop = CoroutineLoop.of(function)
    task = loop.begin(_caught(function, call))
    waiting = asyncio.wrap_future(task)
    late = None
    try:
        await asyncio.wait({waiting}, timeout=deadline_s)
    finally:
        if not waiting.done():
            task.cancel()  # which also cancels it where it runs
            late = await asyncio.to_thread(loop.busy, _GRACE_S)
            if late:
                # Left behind, with its thread, for ever: what swallows its cancellation would
                # swallow its deletion, too, and never come back from it.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(loop.left_behind()))
    if late is not None:
        raise TimeoutError(f"was not back after {deadline_s:g} s{late}") from Late()
    result, error = task.result()
    if error is not None:
        raise error
    return result


async def _caught(function: Function, call: Fields) -> tuple[Any, BaseException | None]:
    try:
        with door():
            return plain_result(await function(**call)), None
    except BaseException as error:
        return None, error


def run_alone(coroutine: Coroutine[object, object, Any]) -> Any:
    """`asyncio.run`, but without waiting for a task that swallows its cancellation."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


class CoroutineLoop:
    """An event loop in a thread, kept as long as its coroutine function, whose clients and limits
    belong to it.

    Measuring, planning and training with one function use the same loop, and so do functions that
    use the same object.
    """

    _all: ClassVar[list[CoroutineLoop]] = []
    _lock = threading.RLock()  # a function may be collected while this is held

    def __init__(self) -> None:
        self.loop, self._ended = asyncio.new_event_loop(), False
        # functions that live; ids of those and of the objects that they use
        self._users, self._used = 0, set[int]()

    @classmethod
    def of(cls, function: Function) -> CoroutineLoop:
        """The loop of a coroutine function, started with its first call."""
        function = beneath(function)
        # of a method, which is another object each time
        owner = getattr(function, "__self__", function)
        held = [*held_by(function), *getattr(owner, "__dict__", {}).values()]
        used = {id(owner), *(id(value) for value in held if _keeps_state(value))}
        with cls._lock:
            loop = next((each for each in cls._all if each._used & used), None)
            if new := loop is None:
                cls._all.append(loop := cls())
            if id(owner) not in loop._used:
                # it takes no weak references, and the loop stays
                with contextlib.suppress(TypeError):
                    loop._users += 1
                    weakref.finalize(owner, loop._forget, id(owner)).atexit = False
            loop._used |= used
        if new:  # without the lock: a thread that begins may collect a function, which waits for it
            threading.Thread(target=loop._run, name="reward coroutine", daemon=True).start()
        return loop

    def _forget(self, owner: int) -> None:
        with self._lock:
            self._used.discard(owner)
            self._users -= 1
            if not self._users:
                self.left_behind().end()

    def left_behind(self) -> CoroutineLoop:
        """Take the loop; no later call uses it."""
        with self._lock, contextlib.suppress(ValueError):
            self._all.remove(self)
        return self

    def _run(self) -> None:
        # a function may stop it, or end it with a task that raises SystemExit
        while not self._ended:
            with contextlib.suppress(BaseException):
                self.loop.run_forever()
        self.loop.close()

    def begin(self, coroutine: Coroutine[object, object, object]) -> Future:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def busy(self, within_s: float) -> str:
        """Why it is still busy after so many seconds, in words; empty: it is free."""

        async def rest() -> set[asyncio.Task]:
            return asyncio.all_tasks() - {asyncio.current_task()}

        try:
            others = self.begin(rest()).result(within_s)
        except TimeoutError:
            return (
                ": it blocks instead of awaiting"
                if self._users < 2
                else ": it, or one that uses the same objects, blocks"
            )
        if others and self.begin(asyncio.wait(others, timeout=within_s)).result(2 * within_s)[1]:
            return ", and did not end when it was cancelled"
        return ""

    def end(self) -> None:
        self._ended = True
        self.loop.call_soon_threadsafe(self.loop.stop)


class ProcessState:
    """While a task's code runs beside the trainer: its changes to the process are undone when the
    last call has ended.

    Covered are `settings_kept`, and the random numbers of Python, numpy and torch. The calls have
    separate random streams, which begin as the trainer's are at the first, or as `begin` says, and
    continue from call to call: merely restored, they would repeat the same numbers.
    """

    def __init__(self) -> None:
        self._inside, self._lock, self._states = 0, threading.Lock(), contextlib.ExitStack()
        self._streams: list[tuple[Callable[[Any], object], object]] = []

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._states.enter_context(settings_kept())
                for read, put, _ in _random_streams():
                    self._states.callback(put, read())
                for put, state in self._streams:
                    put(state)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._streams = [(put, read()) for read, put, _ in _random_streams()]
                self._states.close()

    def begin(self, seed: str) -> None:
        """Let the random streams begin as `seed` says: the same ones after a resume."""
        number = random.Random(seed).getrandbits(32)
        with self:
            for _, _, put_seed in _random_streams():
                put_seed(number)


def _random_streams() -> list[tuple[*Setting, Callable[[int], object]]]:
    # (what reads a stream, what sets it, what seeds it); torch's only where it is loaded: the
    # policy has to bring it in first
    streams: list[Any] = [(random.getstate, random.setstate, random.seed)]
    if (numpy := sys.modules.get("numpy")) is not None:
        own = numpy.random
        streams.append((own.get_state, own.set_state, own.seed))
    if (torch := sys.modules.get("torch")) is not None:
        streams.append((torch.get_rng_state, torch.set_rng_state, torch.manual_seed))
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            own = torch.cuda
            streams.append((own.get_rng_state, own.set_rng_state, own.manual_seed))
    return streams


def _keeps_state(value: object) -> bool:
    plain = (str, bytes, int, float, complex, tuple, frozenset, re.Pattern, type(None))
    return not isinstance(value, (*plain, type, ModuleType)) and not inspect.isroutine(value)
