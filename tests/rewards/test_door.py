"""One door for the code of a task: every fault at every door, called directly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from workbench.audit.completions import CompletionBuilder
from workbench.audit.probes import probes
from workbench.base.door import LONGEST_ERROR, Ended, Late, alarm, door, said
from workbench.base.environments import Start, checked_tools, copies, started
from workbench.base.errors import RewardError, TaskError
from workbench.base.instruments import TABLE
from workbench.rewards.beside import CoroutineLoop, ProcessState
from workbench.rewards.guarding import LONGEST_TEXT, guarded, guarded_environment, guarded_tool
from workbench.rewards.suite import RewardSuite
from workbench.task import Task
from workbench.tasks.loading import load_task

LOADED = """task = Task("t", [{"prompt": "1 + 1?"}], [lambda completions, **_: [1.0]])
object.__setattr__(task, "value", sys._act())
"""
ROWS = [{"prompt": [{"role": "user", "content": "1 + 1?"}], "answer": "2"}]
DEADLINE_S = 0.3


class Unreadable(ValueError):
    def __str__(self):
        raise RuntimeError("no words")


class Unprintable:
    def __str__(self):
        raise OSError("no such text")


def raises(error):
    raise error


# What a task's code may do, and what is said of it; None: nothing.
FAULTS = {
    "an error": (lambda: raises(ValueError("no number")), "ValueError: no number"),
    "its own end": (lambda: raises(SystemExit(3)), "SystemExit: 3"),
    "an interrupt": (lambda: raises(KeyboardInterrupt("mine")), "KeyboardInterrupt: mine"),
    "no exception": (lambda: raises(BaseException("base")), "BaseException: base"),
    "an unreadable error": (lambda: raises(Unreadable()), "Unreadable: (its message could not be read)"),
    "half a pair in an error": (lambda: raises(ValueError("a\ud800")), "ValueError: a\\ud800"),
    "a long error": (lambda: raises(ValueError("x" * 10 * LONGEST_ERROR)), "ValueError: xxx"),
    "no more items": (lambda: raises(StopIteration("over")), "StopIteration"),
}


def reward_of(make):
    def scores(act):
        suite = RewardSuite(Task("t", ROWS, [make(act)]), 1, deadline_s=10.0, on_error="skip")
        try:
            [scored] = suite.score_each(ROWS, ["a"]).values()
        finally:
            suite.close()
        if scored.errors:
            assert math.isnan(scored.scores[0])  # never a 0
            raise RuntimeError(scored.errors[0])
        return scored.scores[0]

    return scores


def kept_object(act):
    class Scores:
        def __call__(self, completions, **columns):
            return [act()]

    return Scores()


def awaited_reward(act):
    async def scores(completions, **columns):
        return [act()]

    return scores


def worker_reward(act):
    def scores(completions, **columns):
        return [act()]

    return scores


def judge(act):
    return wb.rewards.make_judge_reward(lambda text: json.dumps({"score": 10 * act()}), retries=0, cache=False)


class Game:
    act = staticmethod(lambda: None)

    def reset(self, **row):
        return type(self).act()

    def get_reward(self):
        return type(self).act()


def of_game(name):
    def called(act):
        kind = type("Own", (Game,), {"act": staticmethod(act)})
        return getattr(guarded_environment(kind(), 10.0), name)()

    return called


async def _awaited(act):
    return act()


def awaited_tool(act):
    async def tool():
        return act()

    return asyncio.run(guarded_tool(tool, 10.0)())


def reference(act):
    return CompletionBuilder(ROWS[0], ideal=lambda row: act()).reference


def own_probe(act):
    return probes(CompletionBuilder(ROWS[0]), {"mine": lambda row: act()})[-1].text


def load(act):
    # `task` of a task file that runs it
    folder = Path(tempfile.mkdtemp())
    (folder / "task.py").write_text("import sys\nfrom workbench import Task\n" + LOADED, encoding="utf-8")
    sys._act = act
    try:
        return load_task(folder / "task.py").value
    finally:
        shutil.rmtree(folder)


def constructor(act):
    """Each place that makes an environment, the last one as TRL does for the first of a run."""
    own, begun = types.SimpleNamespace(act=lambda: None), []

    class Made(Game):
        def __init__(self):
            begun.append(own.act())

    task = Task("t", ROWS, [worker_reward(act)], environment=Made)
    own.act = act
    task.for_turns["environment_factory"]()
    checked_tools((), {"a": Made})
    started(Made, ROWS[0], 0)
    return begun[-1]


def copied(act):
    own = type("Own", (), {"__deepcopy__": lambda self, memo: types.SimpleNamespace(value=act())})()
    return copies(Start(own, None, {}), 1, "t")[0].value


DOORS = {
    "load": load,
    "copied": copied,
    "worker": reward_of(worker_reward),
    "object": reward_of(kept_object),
    "coroutine": reward_of(awaited_reward),
    **({"judge": reward_of(judge)} if "judge" in TABLE else {}),
    "tool": lambda act: guarded_tool(act, 10.0)(),
    "awaited tool": awaited_tool,
    "reset": of_game("reset"),
    "get_reward": of_game("get_reward"),
    "constructor": constructor,
    "rollout_func": lambda act: guarded(lambda prompts, trainer: act(), None)([], None),
    "reference": reference,
    "probe": own_probe,
}


@pytest.mark.parametrize("kind", DOORS)
def test_however_it_ends_the_call_alone_has_failed_and_words_say_how(kind):
    for what, (act, words) in FAULTS.items():
        with pytest.raises((RuntimeError, ValueError, TaskError)) as caught:
            DOORS[kind](act)
        text = caught.value.value if isinstance(caught.value, TaskError) else said(caught.value)
        assert words in text, (what, text)
        assert len(text) < LONGEST_ERROR + 200, what
        text.encode()  # no half of a pair


@pytest.mark.parametrize("kind", [kind for kind in DOORS if kind != "worker"])
def test_what_it_forks_ends(kind, tmp_path):
    own = os.getpid()

    def forks():
        os.fork()
        return 1.0 if kind in ("object", "coroutine", "judge", "get_reward") else "a"

    DOORS[kind](forks)
    (tmp_path / str(os.getpid())).touch()
    if os.getpid() != own:
        os._exit(0)
    os.wait()
    assert [file.name for file in tmp_path.iterdir()] == [str(own)]


def settings() -> list:
    import torch

    drawn = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    left_s = signal.getitimer(signal.ITIMER_REAL)[0]  # pytest's own timer, which runs, or the 100 s of `changes`
    process = [dict(os.environ), os.umask(own := os.umask(0o077)) and own, [*sys.path], sys.getrecursionlimit()]
    streams = [sys.stdout, sys.stderr, np.geterr(), os.getcwd(), left_s > 0, left_s > 150, json.dumps]
    of_torch = [torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_float32_matmul_precision(), torch.get_num_threads()]
    return [drawn, handlers, streams, process, of_torch, torch.are_deterministic_algorithms_enabled(), sys.float_info.min / 2]


def changes():
    import torch

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 100.0)
        torch.set_flush_denormal(True)
    sys.stdout = sys.stderr = None
    np.seterr(all="raise")
    os.chdir("/")
    os.environ |= {"PATH": "", "M1": "new"}
    del os.environ["HOME"]
    os.umask(0o070)
    sys.setrecursionlimit(5_000)
    json.dumps = str
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("medium")
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.use_deterministic_algorithms(True)
    sys.path = None
    return 1.0


@pytest.mark.parametrize("kind", [kind for kind in DOORS if kind not in ("load", "worker", "reference", "probe", "reset")])
def test_the_process_is_as_it_was(kind):
    before = settings()
    DOORS[kind](changes)
    first = kind in ("constructor", "copied")  # draws from its caller's numbers
    assert settings()[first:] == before[first:]


def test_an_alarm_that_is_left_ends_no_worker():
    def leaves():
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return 1.0

    suite = RewardSuite(Task("t", ROWS, [worker_reward(leaves)]), 1)
    for _ in range(2):
        assert suite.score(ROWS, ["a"]).tolist() == [[1.0]]
        time.sleep(0.1)
    suite.close()


@pytest.mark.parametrize("kind", ["tool", "reset", "get_reward", "constructor"])
def test_a_call_that_hangs_is_interrupted(kind):
    def hangs():
        until = time.monotonic() + 100.0
        while time.monotonic() < until:
            try:
                time.sleep(100.0)
            except Exception:
                continue

    game = guarded_environment(type("Own", (Game,), {"act": staticmethod(hangs)})(), DEADLINE_S)
    calls = {"tool": guarded_tool(hangs, DEADLINE_S), "constructor": guarded(hangs, DEADLINE_S)}
    with pytest.raises(TimeoutError, match=r"^was not back after 0.3 s$"):
        (calls.get(kind) or getattr(game, kind))()


def test_an_interrupt_of_the_users_goes_through():
    def interrupted():
        signal.raise_signal(signal.SIGINT)
        time.sleep(5.0)

    def within_asyncio():
        asyncio.run(asyncio.sleep(0, signal.raise_signal(signal.SIGINT)))

    async def later():
        asyncio.get_running_loop().call_later(0.05, signal.raise_signal, signal.SIGINT)
        await asyncio.sleep(5.0)

    for each in (interrupted, within_asyncio, lambda: asyncio.run(later())):
        with pytest.raises(KeyboardInterrupt):
            guarded_tool(each)()


@pytest.mark.parametrize("kind", ["tool", "awaited tool", "reset"])
def test_what_a_policy_reads_is_a_text_that_can_be_written(kind):
    call = DOORS[kind]
    assert call(lambda: "higher") == "higher"
    assert call(lambda: "hi\x00gher\ud800") == "hi\x00gher\\ud800"
    assert call(lambda: "x" * LONGEST_TEXT) == "x" * LONGEST_TEXT
    for wrong, words in (
        (lambda: "x" * 14_000_000, "it returned 14,000,000 characters; at most 1,000,000 are read"),
        (lambda: b"1", "it returned bytes, not a text"),
        (lambda: ["1"], "it returned list, not a text"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call(wrong)


def test_what_a_tool_returns_is_its_str_and_of_an_environment_nothing_is_none():
    assert [DOORS["tool"](lambda own=own: own) for own in (None, 5, {"a": 1})] == ["None", "5", "{'a': 1}"]
    assert DOORS["reset"](lambda: None) is None
    with pytest.raises(TypeError, match="it returned int, not a text"):
        DOORS["reset"](lambda: 5)
    with pytest.raises(OSError, match="no such text"):
        DOORS["tool"](Unprintable)


def test_functions_that_share_a_state_draw_on_and_a_seed_begins_it_again():
    kept, drawn = ProcessState(), []
    before = random.getstate()
    tools = [guarded_tool(random.random, 1.0, kept) for _ in range(2)]
    for seed in ("0 1", "0 2", "0 1"):
        kept.begin(seed)
        drawn.append([tool() for tool in tools])
    assert drawn[0] == drawn[2]
    assert len({*drawn[0], *drawn[1]}) == 4
    assert random.getstate() == before


def test_starts_that_are_drawn_differ_within_a_group():
    class Draws:
        def reset(self, **row):
            self.secret = random.random()

    begin = guarded(started, 1.0)
    starts: list[Start] = [begin(environment=Draws, row=ROWS[0], seed=0) for _ in range(3)]
    assert len({start.environment.secret for start in starts}) == 3


class Odd:
    def __float__(self):
        raise SystemExit(5)

    def __repr__(self):
        raise OSError("no such text")


@pytest.mark.parametrize("make", [worker_reward, kept_object, awaited_reward])
def test_a_score_of_an_odd_kind_is_named(make):
    suite = RewardSuite(Task("t", ROWS, [make(Odd)]), 1)
    with pytest.raises(RewardError, match="returned a Odd|SystemExit: 5"):
        suite.score(ROWS, ["a"])
    suite.close()


def test_the_deadline_around_it_counts():
    def hangs():
        with door(), door(deadline_s=100.0):
            time.sleep(100.0)

    with pytest.raises(TimeoutError, match=r"^was not back after 0.3 s$"), door(deadline_s=DEADLINE_S):
        hangs()


FORKS = """import os
from workbench import Task
ROWS = [{"prompt": [{"role": "user", "content": f"{n} + 1?"}], "answer": str(n + 1)} for n in range(4)]
class Game:
    def __init__(self):
        AT_MAKING
    def reset(self, **row):
        return "go"
    def get_reward(self):
        return 1.0
AT_LOADING
task = Task("t", ROWS, [], environment=Game)
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["AT_MAKING", "AT_LOADING"])
def test_a_task_file_that_forks_is_one(tmp_path, where):
    text = FORKS.replace(where, "os.fork()").replace("AT_MAKING", "pass").replace("AT_LOADING", "")
    (tmp_path / "task.py").write_text(text, encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text("{run_name: r, task: task.py, policy: {name: tiny}}", encoding="utf-8")
    heads = {("probe", "task.py"): "expected format", ("plan", "recipe.yaml"): "100 steps"}
    for words, head in heads.items():
        command = [sys.executable, "-m", "workbench", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(f"\n{head}") == 1, done.stdout


def test_a_door_behind_a_door_says_the_same():
    def leaves():
        raise SystemExit(3)

    with pytest.raises(Ended) as caught, door():
        guarded(leaves, None)()
    assert said(caught.value) == str(caught.value) == "SystemExit: 3"


def test_the_cause_is_kept():
    with pytest.raises(Ended) as caught, door():
        raise SystemExit(7)
    assert isinstance(caught.value.__cause__, SystemExit)
    assert str(caught.value) == said(caught.value) == "SystemExit: 7"


def test_no_thread_begins_while_a_collected_function_would_have_to_wait(monkeypatch):
    """A thread that begins may collect a function, whose loop's lock it then waits for: both would wait for ever."""
    free, start = [], threading.Thread.start

    def looking():
        free.append(CoroutineLoop._lock.acquire(timeout=0.5))
        if free[-1]:
            CoroutineLoop._lock.release()

    def watched_start(thread):
        if thread.name == "reward coroutine":
            other = threading.Thread(target=looking)
            start(other)
            other.join()
        start(thread)

    async def reward(completions, **columns):
        return [1.0] * len(completions)

    monkeypatch.setattr(threading.Thread, "start", watched_start)
    suite = RewardSuite(Task("t", ROWS, [reward]), 1)
    assert suite.score(ROWS, ["a"]).tolist() == [[1.0]]
    assert free == [True]


def test_an_alarm_within_an_alarm_leaves_the_outer_one():
    def sleeps():
        with alarm(100.0, again_s=0.05):
            pass
        time.sleep(10.0)

    began = time.monotonic()
    with pytest.raises(Late), alarm(0.3):
        sleeps()
    assert time.monotonic() - began < 5.0


def test_an_alarm_that_was_swallowed_comes_again():
    def swallows():
        with contextlib.suppress(BaseException):
            time.sleep(10.0)
        time.sleep(10.0)

    began = time.monotonic()
    with pytest.raises(Late), alarm(0.1, again_s=0.05):
        swallows()
    assert time.monotonic() - began < 5.0
