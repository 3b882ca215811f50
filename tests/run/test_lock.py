"""One owner, and a dead one is seen to be dead: wherever it ran, whatever became of its number, however torn its lock."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import socket
import time

import pytest

from workbench.base.errors import RunError
from workbench.recipe import Recipe
from workbench.run import lock as locks
from workbench.run.directory import RunDirectory
from workbench.run.lock import Lock


def ended(home) -> RunDirectory:
    run = RunDirectory.create("a", Recipe(), {})
    run.log_metrics(1, {"reward": 0.0})
    run.release()
    return run


def left(run, age_s: float = 0.0, **owner) -> None:
    """As a process that was killed leaves it, so many seconds ago."""
    (run.path / "lock").write_text(json.dumps(owner) if owner else "{")
    for file in (run.path, *run.path.iterdir()):
        os.utime(file, ((run.path / "lock").stat().st_ctime - age_s,) * 2)  # it was written just now


def here(**more) -> dict:
    own = {"pid": os.getpid(), "started": locks._started(os.getpid()), "host": socket.gethostname(), "boot": locks._boot()}
    return {**own, "locked": True, **more}


def racer(path, start, holds, results) -> None:
    run = RunDirectory(path)
    start.wait()
    try:
        run.reopen(1)
    except RunError:
        results.put(0)
        return
    results.put(1)
    holds.wait()
    os.kill(os.getpid(), signal.SIGKILL)  # as a run that is killed leaves its lock


@pytest.mark.parametrize("flock", [True, False], ids=["flock", "no flock"])
def test_of_several_that_go_on_at_once_one_owns_the_run(home, flock, monkeypatch):
    if not flock:
        monkeypatch.setattr(locks, "_flock", nothing_of_the_kind)
    context, run = multiprocessing.get_context("fork"), ended(home)
    for left_behind in (run.release, lambda: None, lambda: left(run, age_s=locks.SILENT_S + 60)):
        left_behind()
        start, holds, results = context.Barrier(4), context.Event(), context.Queue()
        racers = [context.Process(target=racer, args=(run.path, start, holds, results)) for _ in range(4)]
        for each in racers:
            each.start()
        assert sum(results.get(timeout=60) for _ in racers) == 1
        assert run.live
        holds.set()
        for each in racers:
            each.join()
        assert not run.live


def test_a_sign_of_life_that_is_gone_when_it_is_looked_at_is_none(home, monkeypatch):
    run = ended(home)
    left(run, age_s=locks.SILENT_S + 60)
    monkeypatch.setattr("pathlib.Path.exists", lambda self: True)  # a rival takes the lock away just after
    assert not run.live


def nothing_of_the_kind(handle) -> None:
    raise OSError(95, "Operation not supported")


def test_a_number_that_is_another_process_by_now_is_not_the_owner(home):
    run = ended(home)
    left(run, **here())
    assert run.live  # this process
    left(run, **here(started=1))
    assert not run.live
    left(run, **here(boot="before the machine was started again"), age_s=locks.SILENT_S + 60)
    assert not run.live
    run.reopen(1)
    assert run.live


def test_of_an_owner_elsewhere_the_age_of_its_last_sign_decides(home):
    run = ended(home)
    left(run, pid=1, host="a-lost-runtime", boot="another")
    assert run.live
    with pytest.raises(RunError, match=r"is training on a-lost-runtime[\s\S]*--take-over"):
        run.reopen(1)
    left(run, pid=1, host=socket.gethostname(), boot="before it was started anew")
    run.reopen(1, take_over=True)
    run.release()
    left(run, pid=1, host="a-lost-runtime", boot="another", age_s=-10 * locks.SILENT_S)  # its clock is ahead
    assert not run.live
    left(run, pid=1, host="a-lost-runtime", boot="another", age_s=locks.SILENT_S + 60)
    assert not run.live
    left(run, pid=1, host="a-lost-runtime", boot="another", age_s=locks.SILENT_S + 60)
    Lock(run.path).beat()  # paused, it writes nothing else
    assert run.live
    run.reopen(1, take_over=True)
    assert run.lock.owner["pid"] == os.getpid()


def test_a_torn_lock_says_nothing_and_age_decides(home):
    run = ended(home)
    left(run)
    assert run.live
    with pytest.raises(RunError, match="training on an unknown machine"):
        run.reopen(1)
    run.reopen(1, take_over=True)
    run.release()
    left(run, age_s=locks.SILENT_S + 60)
    assert not run.live
    (run.path / "lock").write_bytes(b"")  # made, and nothing written into it
    assert not run.live


def test_an_owner_in_another_container_of_this_machine_is_known_by_its_flock(home, monkeypatch):
    run = RunDirectory.create("a", Recipe(), {})
    monkeypatch.setattr(locks.socket, "gethostname", lambda: "another container")
    reader = RunDirectory(run.path)
    assert reader.live
    with pytest.raises(RunError, match="is training on"):
        reader.reopen(0)
    with pytest.raises(RunError, match="another process"):
        reader.reopen(0, take_over=True)  # it does live, whatever is said
    os.close(run.lock._handle)  # killed
    locks._held.discard(run.lock._handle)
    assert not reader.live
    reader.reopen(0)


def test_a_child_that_was_forked_does_not_hold_the_run_after_its_parent(home):
    ready, told = os.pipe()
    if (owner := os.fork()) == 0:
        run = RunDirectory.create("a", Recipe(), {})
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        os.write(told, str(child).encode())
        time.sleep(60)
        os._exit(0)
    child = int(os.read(ready, 32))
    try:
        run = RunDirectory(home / "runs/a")
        assert run.live
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        assert not run.live
        run.reopen(0)
        run.release()
    finally:
        os.kill(child, signal.SIGKILL)


def test_releasing_gives_it_to_the_next(home):
    run = RunDirectory.create("a", Recipe(), {})
    assert not Lock(run.path).take()
    run.release()
    assert not run.live
    assert Lock(run.path).take()


def test_a_lock_that_cannot_be_taken_away_hides_no_other_error(home):
    run = RunDirectory.create("a", Recipe(), {})
    run.lock.file.unlink()
    run.lock.file.mkdir()
    run.release()


def test_a_lock_that_was_made_before_a_fork_is_whose_takes_it(tmp_path):
    lock = Lock(tmp_path)
    if (child := os.fork()) == 0:
        os._exit(0 if lock.take() and lock.mine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_copy_in_another_process_owns_nothing_and_has_lost_nothing(home):
    lock = Lock(home)
    assert lock.take()
    copied = pickle.loads(pickle.dumps(lock))  # as processes that train together get the run of the main one
    copied.beat()
    assert (copied.mine, copied.lost, copied.held) == (False, False, True)
    copied.release()
    assert lock.mine
    lock.release()


def test_a_fork_of_the_owner_does_not_own_the_run(home):
    lock = Lock(home)
    assert lock.take()
    if (child := os.fork()) == 0:
        try:
            lock.check()
        except RunError:
            lock.release()
            os._exit(0 if not lock.mine else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lock.check()
    assert lock.mine
    assert lock.held
    lock.release()
