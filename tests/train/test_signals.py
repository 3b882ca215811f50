"""What asks a process to end: each signal saves the run, a terminal that closes too, and none is taken from its owner."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time

import pytest

from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory, open_run
from workbench.training.control import RunControl
from workbench.training.recorder import Recorder
from workbench.training.signals import ECHO_S

WARNINGS = [name for name in ("SIGHUP", "SIGXCPU", "SIGUSR1", "SIGUSR2", "SIGPWR") if hasattr(signal, name)]


@pytest.fixture
def control(home):
    run = RunDirectory.create("t", Recipe(), {})
    with contextlib.closing(Recorder(run, None)) as recorder:
        yield RunControl(run, recorder)
    run.release()


@contextlib.contextmanager
def handled(number, handler):
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def requests(control) -> list[tuple[str, str]]:
    return [(each.action, each.by) for each in control.requests.take()]


@pytest.mark.parametrize("name", WARNINGS)
def test_a_warning_is_one_request_to_stop_however_often_it_comes(name, control):
    number = getattr(signal, name)
    with handled(number, signal.SIG_DFL):
        with control.interrupts.graceful():
            os.kill(os.getpid(), number)
            control.interrupts.at -= ECHO_S  # a limit of CPU time warns every second
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_DFL
    assert requests(control) == [("stop", name)]


def test_after_a_warning_ctrl_c_aborts(control):
    with handled(signal.SIGHUP, signal.SIG_DFL), control.interrupts.graceful():
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)  # a logout sends both
        control.interrupts.at -= ECHO_S
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert requests(control) == [("stop", "SIGHUP")]


@pytest.mark.parametrize("name", WARNINGS)
def test_what_nohup_ignores_and_what_others_use_stays_theirs(name, control):
    number, seen = getattr(signal, name), []
    for handler in (signal.SIG_IGN, lambda *_: seen.append(name)):
        with handled(number, handler), control.interrupts.graceful():
            os.kill(os.getpid(), number)
    assert seen == [name]
    assert requests(control) == []


def test_quit_and_the_signals_of_a_debugger_are_left_alone(control):
    before = {number: signal.getsignal(number) for number in (signal.SIGQUIT, signal.SIGABRT, signal.SIGPIPE)}
    with control.interrupts.graceful():
        assert {number: signal.getsignal(number) for number in before} == before


def test_another_thread_handles_nothing(control):
    def train():
        with control.interrupts.graceful():
            assert signal.getsignal(signal.SIGHUP) == before

    before = signal.getsignal(signal.SIGHUP)
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()


def in_a_terminal(*command: str, ignored: bool = False, **more) -> tuple[subprocess.Popen, int]:
    """A process whose terminal this is, and the other end of that terminal."""
    master, slave = pty.openpty()

    def begin() -> None:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)

    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, preexec_fn=begin, **more)
    os.close(slave)
    return process, master


LOST = """
import os, sys, time
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.training.control import RunControl
from workbench.training.recorder import Recorder
run = RunDirectory.create("t", Recipe(), {})
control = RunControl(run, Recorder(run, None))
with control.interrupts.graceful():
    print("ready", flush=True)
    while not control.interrupts.by:
        time.sleep(0.01)
    for stream in (sys.stdout, sys.stderr):
        print("the checkpoint is saved now", file=stream, flush=True)
    os.write(1, b"and a library says so, too")
    (run.path / "saved").write_text(control.interrupts.by)
"""


def test_what_is_printed_to_a_terminal_that_is_gone_does_not_end_what_is_saved(home):
    process, terminal = in_a_terminal(sys.executable, "-c", LOST, cwd=home, env={**os.environ, "WORKBENCH_HOME": str(home)})
    while b"ready" not in os.read(terminal, 1000):
        pass
    os.close(terminal)
    assert process.wait(60) == 0
    assert (home / "runs" / "t" / "saved").read_text() == "SIGHUP"


@pytest.mark.slow
def test_a_closed_terminal_leaves_a_run_that_resumes_from_its_last_step(home):
    grpo = {"max_steps": 30, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 24}
    Recipe.of({"run_name": "t", "task": "arithmetic", "grpo": grpo}).save(home / "r.yaml")
    command = [sys.executable, "-m", "workbench", "train", "r.yaml"]
    process, terminal = in_a_terminal(*command, cwd=home, env={**os.environ, "WORKBENCH_HOME": str(home)})
    threading.Thread(target=drained, args=(terminal, closing := threading.Event()), daemon=True).start()
    rows = home / "runs" / "t" / "metrics.jsonl"
    while process.poll() is None and not (rows.is_file() and rows.read_bytes().count(b"\n") > 2):
        time.sleep(0.05)
    closing.set()
    assert process.wait(300) == 0
    run = open_run(home / "runs" / "t")
    result = run.result()
    assert (result["status"], run.events()[-1]["by"]) == ("stopped", "SIGHUP")
    assert run.metrics()[-1]["step"] == result["steps"] < 30
    assert [folder.name for folder in run.saved()] == [f"checkpoint-{result['steps']}"]
    more = [*command[:3], "continue", "t"]
    assert subprocess.run(more, cwd=home, env={**os.environ, "WORKBENCH_HOME": str(home)}).returncode == 0
    assert [row["step"] for row in run.metrics()] == [*range(1, 31)]


def drained(terminal: int, closing: threading.Event) -> None:
    """Read what a terminal shows until it is closed, as its window does."""
    os.set_blocking(terminal, False)
    while not closing.is_set():
        with contextlib.suppress(BlockingIOError):
            os.read(terminal, 10_000)
        time.sleep(0.01)
    os.close(terminal)
