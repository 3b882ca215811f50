"""Run a callable in a process that can be killed.

A backtracking pattern holds Python's lock, so only the end of its process can end it. A server
process imports once and forks workers, each with a separate connection: the next one is there in
milliseconds, and sees nothing of the killed one.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import linecache
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from types import ModuleType
from typing import Any

from workbench.base.door import door, names_kept, said
from workbench.base.kinds import Function
from workbench.base.shipped import TASK_FILES
from workbench.base.workspace import encodable
from workbench.rewards.as_data import Foreign, sendable

# Bound now: what a target puts in their place must not decide what is sent.
_dumps, _loads = functools.partial(pickle.dumps, protocol=pickle.HIGHEST_PROTOCOL), pickle.loads
START_S = 60.0  # for the imports of a fresh process
# of data that a worker may hold, at most half of the machine's: a runaway number must not take it
# all
MEMORY_GB = 8
LONGEST_OUTPUT = 20_000  # characters of printed text that are passed on from one call
_WORKER_MARK = "_WORKBENCH_WORKER"
_SERVER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from workbench.rewards import worker;"
    " worker._serve()"
)


class DeadlineError(TimeoutError):
    """The call was not back in time. Its process was killed."""


class WorkerDied(Exception):
    """The process ended on its own: killed from outside, out of memory, or a crash in a library."""


class RemoteError(Exception):
    """What the callable raised: the type's name, the message, and where it happened."""


def inside_worker() -> bool:
    """Whether this process is a worker: it can be killed as it is, and needs no separate worker."""
    return _WORKER_MARK in os.environ


class Worker:
    """`target` in a separate process. Calls from several threads wait for each other.

    State that the target keeps between calls stays in that process, and is lost when it is killed;
    its output is printed here when the call returns. The modules of `preload` are imported before
    the first fork; what `modules` define goes along as it is now, and task files among them import
    from their folders. TypeError if cloudpickle cannot pickle the target (it holds a lock, a file,
    a generator).
    """

    def __init__(
        self, target: Function, preload: Sequence[str] = (), modules: Sequence[ModuleType] = ()
    ) -> None:
        # A notebook's cells are no files, and a task file may have been saved since: their text
        # goes along, to be quoted.
        cached = linecache.cache.items()
        sources = {
            name: own
            for name, own in cached
            if len(own) == 4 and (own[1] is None or not os.path.exists(name))
        }
        self._setup = packed(target, modules), sources, list(preload)
        tasks = [own for own in modules if own.__name__.startswith(TASK_FILES)]
        self._folders = [os.path.dirname(own.__file__ or "") for own in tasks]
        self._lock = threading.Lock()
        self._link: Connection | None = None  # to the fork at work
        self._pids: list[int] = []  # of the fork at work
        self._server: tuple[subprocess.Popen, Connection] | None = None
        self._end: Callable[[], object] = lambda: None
        self._calls = 0  # so far: a call's number comes back with its answer

    def __call__(self, *args: object, deadline_s: float | None = None, quiet: bool = False) -> Any:
        """Call the target with picklable arguments. The deadline counts from the moment when the
        process is ready.

        DeadlineError if the answer was not there in time, WorkerDied if the process ended,
        RemoteError if the target raised.
        """
        with self._lock:
            self._calls += 1
            message, link = _dumps((self._calls, args)), self._ready()
            until = None if deadline_s is None else time.monotonic() + deadline_s
            try:
                if deadline_s == 0.0:
                    raise DeadlineError
                link.send_bytes(message)
                number = 0
                # an earlier call's, sent by a process that it left behind
                while number < self._calls:
                    if not link.poll(None if until is None else max(0.0, until - time.monotonic())):
                        raise DeadlineError
                    number, failure, value, printed = _answer(link, (int, str, object, str))
            except BaseException as error:
                # also when interrupted: its answer must not be taken for the next one's
                self._kill()
                if isinstance(error, DeadlineError):
                    raise DeadlineError(
                        f"not back after {round(deadline_s or 0.0, 2):g} s"
                    ) from None
                if isinstance(error, (EOFError, OSError)):
                    raise WorkerDied(
                        "the process ended during the call (out of memory, or a crash in a library)"
                    ) from None
                if isinstance(error, pickle.UnpicklingError):
                    raise WorkerDied(
                        f"the process sent something other than its answer ({error})"
                    ) from None
                raise
        if printed and not quiet:
            printed = encodable(printed)
            print(printed, end="" if printed.endswith("\n") else "\n")
        if failure:
            raise RemoteError(failure)
        return value

    def warm(self) -> None:
        """Start the process now, so that the first call does not have to wait."""
        with self._lock:
            self._ready()

    def close(self) -> None:
        """End the process. A later call starts another."""
        with self._lock:
            self._kill()
            self._end()
            self._server = None

    def _ready(self) -> Connection:
        if self._link is not None:
            return self._link
        server = self._server
        if server is None or server[0].poll() is not None:
            server = self._start()
        process, control = server
        here, there = Pipe()
        try:
            control.send("fork")
            send_handle(control, there.fileno(), process.pid)
            there.close()
            if not here.poll(START_S):
                self._end()
                raise WorkerDied(f"the process was not ready after {START_S:g} s")
            failure, pid = _answer(here, (str, object))
        except (EOFError, OSError, pickle.UnpicklingError):
            raise WorkerDied("the process ended before it was ready") from None
        if failure:
            raise RemoteError(failure)
        self._pids[:], self._link = [pid], here
        return here

    def _start(self) -> tuple[subprocess.Popen, Connection]:
        self._end()
        ours, theirs = socket.socketpair()
        path = json.dumps([entry or os.getcwd() for entry in [*sys.path, *self._folders]])
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, path, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, _WORKER_MARK: "1"},
                # an interrupt of the notebook's kernel is not one of the worker
                start_new_session=True,
            )
        self._server = server = process, Connection(ours.detach())
        self._end = weakref.finalize(self, _end, *server, self._pids)
        with contextlib.suppress(OSError):  # it ended at once: the caller finds out
            server[1].send(self._setup)
        return server

    def _kill(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
            _kill_fork(self._pids)


def _kill_fork(pids: list[int]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError, IndexError):
        os.killpg(pids.pop(), signal.SIGKILL)


def _end(process: subprocess.Popen, control: Connection, pids: list[int]) -> None:
    _kill_fork(pids)
    control.close()
    process.kill()
    process.wait()


# -- what comes back: read as data, for what the target put there must run nothing where it is read
class _AsData(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (Foreign.__module__, Foreign.__name__):
            return Foreign
        raise pickle.UnpicklingError(f"{module}.{name} is not data")


def _answer(link: Connection, kinds: tuple[type, ...]) -> Any:
    try:
        parts = _AsData(io.BytesIO(link.recv_bytes())).load()
        if len(parts) != len(kinds) or not all(map(isinstance, parts, kinds)):
            raise pickle.UnpicklingError("other parts than an answer has")
        return parts
    except (EOFError, OSError, pickle.UnpicklingError):
        raise
    except Exception as error:  # bytes that are no pickle: of any kind
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from None


def packed(target: object, modules: Sequence[ModuleType] = ()) -> bytes:
    """`target` as bytes for another process; what `modules` define is pickled by value, as it is
    now. TypeError if it cannot be pickled.
    """
    import cloudpickle

    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(target)
    except Exception as error:
        # an object says in its own way that it cannot: RuntimeError, ValueError, RecursionError
        raise TypeError(f"{error}") from error
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


class _Sent(ModuleType):
    """A module of functions that were sent: what was not is loaded from its file."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        own = sys.modules.pop(self.__name__)
        try:
            return getattr(importlib.import_module(self.__name__), name)
        finally:
            sys.modules[self.__name__] = own


def unpacked(target: bytes) -> Any:
    """What was `packed`. Its functions and classes can be imported by the names of their modules,
    by what it forks, too: a pool pickles them so.
    """
    made: list[Any] = []

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found = super().find_class(module, name)

            def make(*parts: object) -> Any:
                made.append(found(*parts))
                return made[-1]

            return make if name in ("_make_function", "_make_skeleton_class") else found

    found, main = Reader(io.BytesIO(target)).load(), sys.modules["__main__"]
    modules: dict[str, ModuleType] = {"__main__": main}
    for own in made:
        name = str(own.__module__)
        if name not in modules and isinstance(sys.modules.get(name), _Sent | None):
            modules[name] = sys.modules[name] = _Sent(name)
        if name in modules:
            vars(modules[name]).update(getattr(own, "__globals__", {}))
            # one that is wrapped under its name was made later
            vars(modules[name]).setdefault(own.__qualname__, own)
    # What it spawns would run that script once more, as Python does: only one that is made for it.
    script = "".join(linecache.getlines(getattr(main, "__file__", None) or ""))
    if not re.search("__name__ *== *.__main__", script):
        main.__file__ = None
    return found


def _serve() -> None:
    # In the server, and from the fork on in the worker.
    control, pids = Connection(int(sys.argv[2])), []
    os.dup2(2, 1)
    try:
        target, sources, preload = control.recv()
        linecache.cache.update(sources)
        for name in preload:
            with contextlib.suppress(ImportError):
                __import__(name)
        with contextlib.suppress(BaseException):
            # what it imports is imported here, once; the fork loads a copy, and tells if it cannot
            unpacked(target)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a fork ended
        while True:
            control.recv()
            link = Connection(recv_handle(control))
            if (pid := os.fork()) == 0:
                break
            link.close()
            pids[:] = [pid]
    except (EOFError, OSError):  # the parent is gone
        _kill_fork(pids)
        return
    try:
        import resource

        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        with contextlib.suppress(ValueError, OSError):  # a system that knows no such limit
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            most = min(MEMORY_GB << 30, os.sysconf("SC_PHYS_PAGES") * resource.getpagesize() // 2)
            resource.setrlimit(
                resource.RLIMIT_DATA,
                (most if hard == resource.RLIM_INFINITY else min(most, hard), hard),
            )
        _work(link, target)
    finally:
        os._exit(0)


def _work(link: Connection, target: bytes) -> None:
    try:
        with door():
            call = unpacked(target)
    except BaseException as error:
        link.send_bytes(_dumps((said(error), None)))
        return
    # What the target forks must not hold the link open: its end is how the end of this process is
    # seen.
    os.register_at_fork(after_in_child=link.close)
    link.send_bytes(_dumps(("", os.getpid())))
    with contextlib.suppress(EOFError):
        while True:
            (number, args), printed = _loads(link.recv_bytes()), io.StringIO()
            try:
                with (
                    contextlib.redirect_stdout(printed),
                    contextlib.redirect_stderr(printed),
                    door(names_kept()),
                ):
                    value = sendable(call(*args))
                failure = ""
            except BaseException as error:
                failure, value = said(error), None
            text = printed.getvalue()
            if (lost := len(text) - LONGEST_OUTPUT) > 0:
                text = f"{text[:LONGEST_OUTPUT]}\n… ({lost} more characters)\n"
            link.send_bytes(_dumps((number, failure, value, text)))
