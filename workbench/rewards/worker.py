"""A callable in a process of its own, which can be killed.

A pattern that backtracks or a tower of powers holds Python's lock, so neither a thread nor a signal can end it; only the
end of its process can. The process that is started here imports once and then forks the one that works, so that the
next one after a kill is there in milliseconds. Where there is no fork (Windows), it is started anew.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import pickle
import queue
import secrets
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from workbench.errors import fault_line
from workbench.task import modules_of_tasks

START_S = 60.0  # for the imports of a fresh process
MEMORY_GB = 8  # of data that a worker may hold, at most half of the machine's: a runaway number must not take it all
LONGEST_OUTPUT = 20_000  # characters of printed text that are passed on from one call
_HEADER = struct.Struct("<Q")
_WORKER_MARK = "_WORKBENCH_WORKER"


class DeadlineError(Exception):
    """The call was not back in time. Its process was killed, and another one stands ready."""


class WorkerDied(Exception):
    """The process ended by itself: killed from outside, out of memory, or a crash in a library."""


class RemoteError(Exception):
    """What the callable raised: its type's name, its message, and where it happened (", in line 3 of ...")."""

    def __init__(self, type_name: str, message: str, where: str) -> None:
        super().__init__(f"{type_name}: {message}{where}")
        self.type_name, self.message, self.where = type_name, message, where


def inside_worker() -> bool:
    """Whether this process is a worker: it can be killed as it is, and needs no worker of its own."""
    return _WORKER_MARK in os.environ


class Worker:
    """`target` in a process of its own. Calls from several threads wait for each other.

    What the target keeps between calls (globals, closures) stays in that process, and is lost when it is killed. What
    it prints is printed here when the call is back.

    Args:
        target: travels by cloudpickle, so functions of a notebook and closures will do.
        preload: modules to import before the first fork.

    Raises:
        TypeError: if the target cannot travel (it holds a lock, a file, a generator).
    """

    def __init__(self, target: Callable[..., Any], preload: Sequence[str] = ()) -> None:
        self._target, self._preload = (packed(target), _sources()), list(preload)
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def __call__(self, *args: Any, deadline_s: float | None = None, quiet: bool = False) -> Any:
        """Call the target.

        Args:
            args: picklable.
            deadline_s: from the moment when the process is ready; None: it may take as long as it likes.
            quiet: do not print here what the target printed.

        Raises:
            DeadlineError: if the answer was not there in time.
            WorkerDied: if the process ended.
            RemoteError: if the target raised.
        """
        with self._lock:
            if self._server is None or not self._server.alive:
                self._server = _Server(self._target, self._preload)
            kind, *answer = self._server.ask(args, deadline_s)
        *content, printed = answer
        if printed and not quiet:
            print(printed, end="" if printed.endswith("\n") else "\n")
        if kind == "error":
            raise RemoteError(*content)
        return content[0]

    def warm(self) -> None:
        """Start the process now, so that the first call does not pay for its imports."""
        with self._lock:
            if self._server is None or not self._server.alive:
                self._server = _Server(self._target, self._preload)
            self._server.wait_ready()

    def close(self) -> None:
        """End the process. A later call starts another."""
        with self._lock:
            if self._server is not None:
                self._server.end()
                self._server = None


def packed(target: Any) -> bytes:
    """`target` as bytes for another process. TypeError if it cannot travel."""
    import cloudpickle

    # A task file is loaded under a name that no other process can import, so what it defines travels by value.
    files = modules_of_tasks()
    for module in files:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(target)
    except Exception as error:  # an object says in its own way that it cannot: RuntimeError, ValueError, RecursionError
        raise TypeError(f"{error}") from error
    finally:
        for module in files:
            cloudpickle.unregister_pickle_by_value(module)


def _sources() -> dict[str, tuple]:
    # A notebook's cells are no files, and a task file may have been saved since: their text goes along, to be quoted.
    return {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and (entry[1] is None or not os.path.exists(name))
    }


class _Server:
    """The started process, the pipe to whichever fork of it is at work, and the thread that reads its answers."""

    def __init__(self, target: tuple[bytes, dict[str, tuple]], preload: Sequence[str]) -> None:
        self._token = secrets.token_bytes(32)
        path = [entry or os.getcwd() for entry in sys.path]
        start = (
            "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import workbench.rewards.worker as w; w._serve()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", start, json.dumps(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, _WORKER_MARK: "1"},
            start_new_session=True,  # an interrupt of the notebook's kernel is not one of the worker
        )
        self._answers: queue.Queue[tuple] = queue.Queue()
        self._fork: list[int] = []  # the process at work, once it is ready
        self._calls = 0
        reader = threading.Thread(
            target=_read, args=(self._process.stdout, self._token, self._answers), name="worker-answers", daemon=True
        )
        reader.start()
        self._finalizer = weakref.finalize(self, _end, self._process, self._fork)
        self._send((self._token, list(preload), *target))

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, args: tuple, deadline_s: float | None) -> tuple:
        self.wait_ready()
        self._calls += 1
        number = self._calls
        until = None if deadline_s is None else time.monotonic() + deadline_s
        try:
            self._send((number, args))
            while True:
                kind, *rest = self._next(until)
                if kind in ("ok", "error") and rest[0] == number:
                    return kind, *rest[1:]
                if kind == "forked":  # the one that we asked is gone, and we did not kill it
                    self._begin(rest[0])
                    raise WorkerDied("the process ended during the call (out of memory, or a crash in a library)")
        except queue.Empty:
            self._kill()
            raise DeadlineError(f"not back after {round(deadline_s, 2):g} s") from None
        except WorkerDied:
            raise
        except BaseException:
            self._kill()  # interrupted: its answer must not be taken for the next one's
            raise

    def wait_ready(self) -> None:
        until = time.monotonic() + START_S
        while not self._fork:
            try:
                kind, *rest = self._next(until)
            except queue.Empty:
                self.end()
                raise WorkerDied(f"the process was not ready after {START_S:g} s") from None
            if kind == "forked":
                self._begin(rest[0])
            elif kind == "failed":
                self.end()
                raise RemoteError(*rest)

    def _next(self, until: float | None) -> tuple:
        answer = self._answers.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        if answer[0] == "end":
            self.end()
            raise WorkerDied("the process ended")
        return answer

    def _begin(self, pid: int) -> None:
        # What the one before has not read, or only a part of, comes before this mark: the new one leaves it out.
        self._fork[:] = [pid]
        self._write(_mark(self._token, pid))

    def _kill(self) -> None:
        if self._fork == [self._process.pid] or not hasattr(os, "killpg"):
            self.end()
        else:
            _kill_fork(self._fork)

    def _send(self, message: tuple) -> None:
        content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._write(_HEADER.pack(len(content)) + content)

    def _write(self, content: bytes) -> None:
        try:
            self._process.stdin.write(content)
            self._process.stdin.flush()
        except (BrokenPipeError, OSError):
            self.end()
            raise WorkerDied("the process ended") from None

    def end(self) -> None:
        self._finalizer()


def _mark(token: bytes, pid: int) -> bytes:
    return token + _HEADER.pack(pid)


def _kill_fork(fork: list[int]) -> None:
    if fork and hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(fork.pop(), signal.SIGKILL)
    fork.clear()


def _end(process: subprocess.Popen, fork: list[int]) -> None:
    _kill_fork(fork)
    process.kill()
    process.wait()
    with contextlib.suppress(OSError):
        process.stdin.close()


def _read(pipe: Any, token: bytes, answers: queue.Queue) -> None:
    """Cut the stream into messages. The token says that the writer was killed: what it left unfinished is dropped."""
    buffer = bytearray()
    try:
        while chunk := os.read(pipe.fileno(), 1 << 16):
            searched = max(0, len(buffer) - len(token))
            buffer += chunk
            if (place := buffer.rfind(token, searched)) >= 0:
                del buffer[: place + len(token)]
            while len(buffer) >= _HEADER.size:
                (size,) = _HEADER.unpack_from(buffer)
                if len(buffer) < _HEADER.size + size:
                    break
                answers.put(pickle.loads(bytes(buffer[_HEADER.size : _HEADER.size + size])))
                del buffer[: _HEADER.size + size]
    except Exception:
        pass  # it holds what nobody here can read: there are no more answers
    # Closed here and nowhere else: closed under a reader, its number could be the next pipe's by the time that it reads.
    pipe.close()
    answers.put(("end",))


# --- in the process ---------------------------------------------------------------------------------------------


def _serve() -> None:
    # Messages go through pipes of their own: whatever prints to file 1 must not be read as one, and what reads file 0
    # (input(), or a program that a reward starts) must not take one away.
    channel = os.dup(1)
    os.dup2(2, 1)
    messages = _Messages(os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    parent = os.getppid()
    message = messages.next()
    if message is None:
        return
    token, preload, target, sources = message
    linecache.cache.update(sources)
    for name in preload:
        with contextlib.suppress(ImportError):
            __import__(name)
    if not hasattr(os, "fork"):
        _work(channel, messages, token, target)
        return
    with contextlib.suppress(BaseException):
        pickle.loads(
            target
        )  # what it imports is imported once, here; the fork loads a fresh copy, and tells if it cannot
    signals = [signal.SIGCHLD]
    imported, tell = os.pipe()
    os.set_blocking(imported, False)
    os.set_blocking(tell, False)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    while True:
        pid = os.fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            os.setsid()
            _limit_memory()
            try:
                _work(channel, messages, token, target, tell)
            finally:
                os._exit(0)
        status = _wait(pid, parent, signals)
        if status == 0:
            return
        _import_again(imported)
        os.write(channel, token)


def _import_again(pipe: int) -> None:
    # What the killed one had imported during its calls, the next one need not import again.
    with contextlib.suppress(BlockingIOError):
        for name in os.read(pipe, 1 << 16).decode().split():
            with contextlib.suppress(Exception):
                __import__(name)


def _wait(pid: int, parent: int, signals: list[int]) -> int:
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if os.getppid() != parent:  # nobody is left to ask or to kill it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            return 0
        if hasattr(signal, "sigtimedwait"):
            signal.sigtimedwait(signals, 1.0)
        else:
            time.sleep(0.01)


def _limit_memory() -> None:
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        pages = os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in os.sysconf_names else 0
        half = pages * resource.getpagesize() // 2
        most = min(MEMORY_GB << 30, half) if half > 0 else MEMORY_GB << 30
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    except (ImportError, AttributeError, ValueError, OSError):
        pass  # not on this system


def _work(channel: int, messages: _Messages, token: bytes, target: bytes, tell: int | None = None) -> None:
    try:
        call = pickle.loads(target)
    except BaseException as error:
        _send(channel, ("failed", *_told(error)))
        raise
    _send(channel, ("forked", os.getpid()))
    messages.skip(_mark(token, os.getpid()))
    known = set(sys.modules)
    while (message := messages.next()) is not None:
        number, args = message
        printed = _Capped()
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                value = call(*args)
            content = pickle.dumps(("ok", number, value, printed.text()), protocol=pickle.HIGHEST_PROTOCOL)
        except BaseException as error:
            content = pickle.dumps(("error", number, *_told(error), printed.text()))
        _write(channel, content)
        if tell is not None and len(sys.modules) > len(known):
            new = {name.partition(".")[0] for name in set(sys.modules) - known}
            known = set(sys.modules)
            with contextlib.suppress(BlockingIOError):  # the pipe is full: those are imported again
                os.write(tell, " ".join(sorted(new)).encode()[:2048] + b" ")


def _told(error: BaseException) -> tuple[str, str, str]:
    try:
        where = fault_line(error) if isinstance(error, Exception) else ""
        return type(error).__name__, str(error), where
    except Exception:
        return type(error).__name__, "(its message could not be read)", ""


class _Capped(io.TextIOBase):
    """Keeps the beginning of what is written to it."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = self._lost = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        kept = text[: max(0, LONGEST_OUTPUT - self._size)]
        self._parts.append(kept)
        self._size += len(kept)
        self._lost += len(text) - len(kept)
        return len(text)

    def text(self) -> str:
        more = f"\n… ({self._lost} more characters)\n" if self._lost else ""
        return "".join(self._parts) + more


class _Messages:
    """What the parent sends, read from a pipe that outlives the processes which read it."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._buffer = pipe, bytearray()

    def next(self) -> tuple | None:
        """The next message; None once the parent is gone."""
        if not self._fill(_HEADER.size):
            return None
        (size,) = _HEADER.unpack_from(self._buffer)
        if not self._fill(_HEADER.size + size):
            return None
        content = bytes(memoryview(self._buffer)[_HEADER.size : _HEADER.size + size])
        del self._buffer[: _HEADER.size + size]
        return pickle.loads(content)

    def skip(self, mark: bytes) -> None:
        """Leave out everything up to a mark, and the mark."""
        while (place := self._buffer.find(mark)) < 0:
            del self._buffer[: max(0, len(self._buffer) - len(mark))]
            if not self._fill(len(self._buffer) + 1):
                return
        del self._buffer[: place + len(mark)]

    def _fill(self, size: int) -> bool:
        while len(self._buffer) < size:
            part = os.read(self._pipe, 1 << 20)
            if not part:
                return False
            self._buffer += part
        return True


def _send(channel: int, message: tuple) -> None:
    _write(channel, pickle.dumps(message))


def _write(channel: int, content: bytes) -> None:
    view = memoryview(_HEADER.pack(len(content)) + content)
    while view:
        view = view[os.write(channel, view) :]
