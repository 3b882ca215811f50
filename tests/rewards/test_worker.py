"""A worker's answers are those of its target, whatever is killed, printed, interrupted or torn in between."""

from __future__ import annotations

import contextlib
import functools
import io
import linecache
import os
import pickle
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

import psutil
import pytest
from driving import waited_for

from workbench.rewards.worker import LONGEST_OUTPUT, DeadlineError, RemoteError, Worker, WorkerDied

LONG_S = 120  # for a call that is to come back, on a machine that stands still now and then


def odd_jobs(what, *details):
    """The target of most tests below: `what` says which job."""
    if what == "add":
        return sum(details)
    if what == "raise":
        raise ValueError("no such number")
    if what == "print":
        print("x" * details[0] if isinstance(details[0], int) else details[0])
    if what == "sleep":
        time.sleep(3600)
    if what == "tower":
        return 9**9**9
    if what == "pattern":
        return re.match(r"(a+)+$", "a" * 60 + "b")
    if what == "loop":
        while True:
            pass
    if what == "exit":
        os._exit(3)
    if what == "quit":
        sys.exit("enough")
    if what == "fill":
        return len(bytearray(details[0]))
    if what == "bytes":
        return os.urandom(1) * details[0]
    if what == "ask":
        return input()
    if what == "program":
        return subprocess.run(["cat"], capture_output=True, check=True).stdout
    if what == "pid":
        return os.getpid()
    return None


@pytest.fixture(scope="module")
def shared():
    """One worker for all tests that leave it as they find it; those that kill it find another one in its place."""
    worker = Worker(odd_jobs)
    yield worker
    worker.close()


def test_what_the_target_returns_comes_back_and_it_runs_elsewhere(shared):
    assert shared("add", 1, 2, 3.5) == 6.5
    assert shared("pid") not in (os.getpid(), None)


def test_what_the_target_raises_says_where(shared):
    said = r'^ValueError: no such number \(test_worker.py:\d+: raise ValueError\("no such number"\)\)$'
    with pytest.raises(RemoteError, match=said):
        shared("raise")


def test_an_exit_is_an_error_like_others(shared):
    with pytest.raises(RemoteError, match="SystemExit: enough"):
        shared("quit")
    assert shared("add", 1) == 1


def test_prints_are_passed_on_unless_quiet(shared, capsys):
    shared("print", 3)
    assert capsys.readouterr().out == "xxx\n"
    shared("print", 3, quiet=True)
    assert capsys.readouterr().out == ""


def test_a_lone_surrogate_that_is_printed_ends_nothing(shared, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True))  # pytest's takes them
    shared("print", "a\ud800b")
    assert sys.stdout.buffer.getvalue() == b"a\\ud800b\n"


def test_prints_are_capped(shared, capsys):
    shared("print", 3 * LONGEST_OUTPUT)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["x" * LONGEST_OUTPUT, f"… ({2 * LONGEST_OUTPUT + 1} more characters)"]


@pytest.mark.parametrize("hang", ["sleep", "tower", "pattern", "loop"])
def test_a_deadline_ends_whatever_hangs(shared, hang):
    shared.warm()
    with pytest.raises(DeadlineError, match=r"not back after 0.2 s"):
        shared(hang, deadline_s=0.2)
    assert shared("add", 2, 2, deadline_s=LONG_S) == 4


@pytest.mark.timing
def test_the_next_one_is_there_in_milliseconds(shared):
    shared("add", 1)
    over = []
    for _ in range(10):
        started = time.monotonic()
        with pytest.raises(DeadlineError):
            shared("tower", deadline_s=0.1)
        shared("add", 1)
        over.append(time.monotonic() - started - 0.1)
    assert statistics.median(over) < 0.15


def test_a_process_that_ends_is_an_error_and_the_next_call_has_another(shared):
    before = shared("pid")
    with pytest.raises(WorkerDied, match="ended during the call"):
        shared("exit")
    assert shared("pid") != before


def test_a_process_that_is_killed_from_outside_between_two_calls(shared):
    os.kill(shared("pid"), signal.SIGKILL)
    time.sleep(0.1)
    with contextlib.suppress(WorkerDied):  # it may be noticed only during the call
        assert shared("add", 1, 1) == 2
    assert shared("add", 1, 2) == 3


def test_a_runaway_size_is_a_memory_error_and_not_the_machines_end(shared):
    with pytest.raises(RemoteError, match="MemoryError"):
        shared("fill", 20 << 30)
    assert shared("fill", 1 << 20) == 1 << 20


def test_calls_from_several_threads_get_their_own_answers(shared):
    answers = {}

    def ask(number: int) -> None:
        answers[number] = [shared("add", number, each) for each in range(20)]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: [number + each for each in range(20)] for number in range(8)}


def test_an_interrupt_does_not_give_its_answer_to_the_next_call(shared):
    shared.warm()

    def interrupted():  # the timer begins in here: where the machine stalls, it rings before the call has begun
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        shared("sleep")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert shared("add", 20, 22) == 42
    assert [shared("add", each) for each in range(5)] == list(range(5))


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
def test_a_message_that_was_not_read_before_the_kill_is_not_read_by_the_next(shared, size):
    # The deadline is over before the process has read its message, or in the middle of it.
    for number in range(5):
        with pytest.raises(DeadlineError):
            shared("sleep", "x" * size, deadline_s=0.0)
        assert shared("add", number, 1, deadline_s=LONG_S) == number + 1


def test_an_answer_torn_by_a_kill_does_not_spoil_those_after_it(shared):
    size, torn = 30_000_000, 0
    shared("bytes", size)
    for number in range(12):
        try:
            assert len(shared("bytes", size, deadline_s=0.0004 * (number + 1))) == size
        except DeadlineError:
            torn += 1
        assert shared("add", number, deadline_s=LONG_S) == number
    assert torn
    assert len(set(shared("bytes", size))) == 1


@pytest.mark.parametrize("job", ["ask", "program"])
def test_what_reads_the_input_finds_none_and_takes_no_message(shared, job):
    if job == "ask":
        with pytest.raises(RemoteError, match="EOFError"):
            shared(job, deadline_s=LONG_S)
    else:
        assert shared(job, deadline_s=LONG_S) == b""
    assert shared("add", 3, deadline_s=LONG_S) == 3


def test_closed_and_used_again():
    worker = Worker(odd_jobs)
    first = worker("pid")
    worker.close()
    worker.close()
    wait_until_gone([first])
    assert worker("add", 1, 1) == 2
    worker.close()


def test_closures_partials_and_what_a_process_keeps():
    factor, calls = 3, []

    def times(number, plus=0):
        calls.append(number)
        return factor * number + plus, len(calls)

    worker = Worker(functools.partial(times, plus=1))
    assert [worker(2), worker(3)] == [(7, 1), (10, 2)]
    assert calls == []  # the copy there counts, not the one here
    worker.close()


def test_a_function_of_a_notebook_with_the_line_that_failed():
    source = "def from_a_cell(number):\n    return 1 / number\n"
    linecache.cache["<cell 7>"] = (len(source), None, source.splitlines(keepends=True), "<cell 7>")
    names = {"__name__": "__main__"}
    exec(compile(source, "<cell 7>", "exec"), names)
    worker = Worker(names["from_a_cell"])
    assert worker(4) == 0.25
    with pytest.raises(RemoteError, match=r"ZeroDivisionError: division by zero \(<cell 7>:2: return 1 / number\)"):
        worker(0)
    worker.close()


@pytest.mark.parametrize("make", [threading.Lock, socket.socket, lambda: (each for each in "abc")])
def test_what_cannot_travel_is_a_type_error_at_once(make):
    held = make()
    with pytest.raises(TypeError, match="pickle"):
        Worker(lambda: held)


def test_what_is_no_data_comes_back_as_its_text():
    def lock(make):
        return [threading.Lock()] if make else "fine"

    worker = Worker(lock)
    [foreign] = worker(True)
    assert (foreign.kind, repr(foreign)[:14]) == ("lock", "<unlocked _thr")
    assert worker(False) == "fine"
    worker.close()


class Runs:
    """Writes a file where it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (open, (self.file, "w"))


def test_nothing_that_comes_back_runs_anything_here(tmp_path):
    file = str(tmp_path / "ran")

    def sends(how):
        forged = {"forged": Runs(file), "a text": "", "too few": (), "no number": ("1", "", 1, ""), "no output": (1, "", 1, None)}
        if how in forged:  # straight into the pipe, in the place of the answer
            import sys

            frame = sys._getframe()
            while "link" not in frame.f_locals:
                frame = frame.f_back
            answer = (frame.f_locals["number"], "", Runs(file), "") if how == "forged" else forged[how]
            frame.f_locals["link"].send_bytes(pickle.dumps(answer))
        return [Runs(file)] if how == "returned" else Runs(file)

    worker = Worker(sends)
    assert repr(worker("returned")[0]).startswith("<")
    assert worker("alone").kind == "Runs"
    for how in ("forged", "a text", "too few", "no number", "no output"):
        with pytest.raises(WorkerDied, match="something other than its answer"):
            worker(how)
    assert worker("alone").kind == "Runs"
    assert not os.path.exists(file)
    worker.close()


FORKS = {
    "both return": lambda pid: None,
    "the child leaves by sys.exit": lambda pid: pid or sys.exit(0),
    "the child raises": lambda pid: pid or 1 / 0,
    "the child leaves as it should": lambda pid: pid or os._exit(0),
    "the child lives on": lambda pid: pid or time.sleep(600),
    "the child answers late": lambda pid: pid or time.sleep(0.2),
    "a grandchild returns": lambda pid: pid or os.fork(),
}


@pytest.mark.parametrize("how", FORKS)
def test_a_call_that_forks_gets_its_own_answer_and_so_do_those_after_it(how):
    def job(number, forks):
        if forks:
            FORKS[how](os.fork())
        return number

    worker = Worker(job)
    assert [worker(number, number == 3, deadline_s=LONG_S) for number in range(8)] == list(range(8))
    time.sleep(0.4)
    assert [worker(number, False, deadline_s=LONG_S) for number in range(3)] == list(range(3))
    worker.close()


ENDS = {
    "returns": (lambda: None, 0),
    "sys.exit(0)": (lambda: sys.exit(0), 0),
    "sys.exit(3)": (lambda: sys.exit(3), 3),
    "sys.exit(text)": (lambda: sys.exit("failed"), 1),
    "raises": (lambda: 1 / 0, 1),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_fork_ends_with_the_status_that_python_gives_it(end):
    # Whoever runs generated code in a fork scores by that status.
    def status():
        if (pid := os.fork()) == 0:
            ENDS[end][0]()
            return None
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    worker = Worker(status)
    assert worker(deadline_s=LONG_S) == ENDS[end][1]
    worker.close()


def test_the_end_of_the_process_is_seen_though_its_child_lives_on():
    def leaves():
        if os.fork() == 0:
            time.sleep(600)
        os._exit(1)

    worker = Worker(leaves)
    with pytest.raises(WorkerDied, match="ended during the call"):
        worker(deadline_s=LONG_S)
    worker.close()


def test_what_a_call_replaces_is_there_again_for_the_next_one():
    import builtins
    import json

    def job(replaces):
        if replaces:
            builtins.len = json.dumps = re.search = lambda *_, **__: "mine"
        return len("four"), json.dumps([1]), bool(re.search("b", "abc"))

    worker = Worker(job)
    assert [worker(number == 0, deadline_s=LONG_S) for number in range(3)][1:] == [(4, "[1]", True)] * 2
    worker.close()


def test_an_answer_that_was_sent_before_is_passed_over():
    def twice(number):
        frame = sys._getframe()
        while "link" not in frame.f_locals:
            frame = frame.f_back
        if number == 1:
            frame.f_locals["link"].send_bytes(pickle.dumps((frame.f_locals["number"] - 1, "", "stale", "")))
        return number

    worker = Worker(twice)
    assert [worker(number, deadline_s=LONG_S) for number in range(4)] == [0, 1, 2, 3]
    worker.close()


def test_what_cannot_be_loaded_there_says_so(tmp_path, monkeypatch):
    (tmp_path / "passing_module.py").write_text("def job():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    from passing_module import job

    worker = Worker(job)
    monkeypatch.undo()
    with pytest.raises(RemoteError, match="ModuleNotFoundError: No module named 'passing_module'"):
        worker()


def test_a_process_of_its_own_goes_with_the_worker_that_nobody_holds_any_more():
    worker = Worker(odd_jobs)
    pid = worker("pid")
    del worker
    wait_until_gone([pid])


PARENT = """
import os, sys, threading, time
from workbench.rewards.worker import Worker

def hang(seconds):
    while seconds:
        pass
    return os.getpid()

worker = Worker(hang)
pid = worker(0)
threading.Thread(target=worker, args=(1,), daemon=True).start()
time.sleep(0.3)
print(pid, flush=True)
if sys.argv[1] == "waits":
    time.sleep(600)
"""


@pytest.mark.parametrize("end", ["killed", "exits"])
def test_a_parent_that_ends_leaves_no_process_behind(end):
    asked = "waits" if end == "killed" else "exits"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, asked], stdout=subprocess.PIPE, text=True)
    children = [int(parent.stdout.readline())]
    if end == "killed":
        children = [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
        assert len(children) == 2  # the one that forks, and the one that hangs
        parent.kill()
    parent.communicate()
    wait_until_gone(children)


def wait_until_gone(pids: list[int]) -> None:
    def gone(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    waited_for(lambda: all(map(gone, pids)))
