"""A task's own code under a deadline: what is interrupted, what is put back, and what is left alone."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from workbench.rewards.guarding import guarded, guarded_tool


def sleeps(seconds):
    time.sleep(seconds)
    return "slept"


def ends(code):
    raise SystemExit(code)


async def waits(seconds):
    await asyncio.sleep(seconds)
    return ["waited"]


def test_a_late_call_is_interrupted_and_named_and_the_alarm_is_put_back(capsys):
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    signal.setitimer(signal.ITIMER_REAL, 500.0)
    try:
        with pytest.raises(TimeoutError, match=r"^was not back after 0.2 s$"):
            guarded(sleeps, 0.2)(seconds=100.0)
        assert capsys.readouterr().out == "sleeps was not back after 0.2 s\n"
        assert guarded(sleeps, 50.0)(seconds=0.0) == "slept"
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 500  # the user's own
        signal.raise_signal(signal.SIGALRM)
        assert rung == [1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_thread_and_a_system_without_alarms_have_no_deadline(monkeypatch):
    found = []
    thread = threading.Thread(target=lambda: found.append(guarded(sleeps, 0.01)(seconds=0.2)))
    thread.start()
    thread.join()
    monkeypatch.delattr(signal, "setitimer")
    assert [*found, guarded(sleeps, 0.01)(seconds=0.2), guarded(sleeps, None)(seconds=0.0)] == ["slept"] * 3


def test_a_coroutine_is_cancelled():
    assert asyncio.run(guarded(waits, 5.0)(seconds=0.0)) == ["waited"]
    with pytest.raises(TimeoutError, match=r"^was not back after 0.2 s$"):
        asyncio.run(guarded(waits, 0.2)(seconds=100.0))


def test_the_end_of_a_process_and_what_is_no_text_are_errors_of_the_call():
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        guarded(ends, 5.0)(code=3)
    with pytest.raises(TypeError, match="it returned list, not a text"):
        asyncio.run(guarded_tool(waits)(seconds=0.0))
    assert guarded_tool(sleeps)(seconds=0.0) == "slept"
    assert guarded_tool(sleeps).__name__ == "sleeps"


async def loop_of():
    return id(asyncio.get_running_loop())


def test_coroutines_share_a_loop_until_one_blocks_it():
    async def blocks():
        time.sleep(3.0)

    first = asyncio.run(guarded(loop_of, 5.0)())
    assert asyncio.run(guarded(loop_of, None)()) == first
    with pytest.raises(TimeoutError, match=r"^was not back after 0.2 s: it blocks instead of awaiting$"):
        asyncio.run(guarded(blocks, 0.2)())
    assert asyncio.run(guarded(loop_of, 5.0)()) != first
