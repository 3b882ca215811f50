"""What math-verify says of two formulas.

It hangs on a tower of powers (`9^{9^{9^9}}`). So it runs (`agreement`) in one worker process for
the whole program, and a pair that takes too long ends that process.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import UserDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from workbench.rewards.worker import Worker, WorkerDied, inside_worker

Pair = tuple[str, str]
DEADLINE_S = 5.0
# for a pair, most of which take 5 to 50 ms; a busy machine may stand still in between
FIRST_SLICE_S = 0.3
GROWTH = 3  # of the slice, each time that a pair has run over it
REMEMBERED = 4096  # verdicts; at most 16 MB of text
LONGEST = 2_000  # characters of an answer that can be a number or a formula
_STEEP = ("^", "**", "!", "\\sum", "\\prod", "\\int", "\\binom")

_lock = threading.Lock()
# Both are UserDicts, since a reward function's hash covers the plain tables that it uses, and these
# change with use. By process, as a fork must not talk through its parent's pipes. The one thread
# serves first come, first served.
_workers: UserDict[int, tuple[Worker, ThreadPoolExecutor]] = UserDict()
_known: UserDict[Pair, bool] = UserDict()


def verdicts(pairs: Sequence[Pair], deadline_s: float = DEADLINE_S) -> list[bool | None]:
    """What math-verify says of (given, right) pairs: [B] True, False, or None for one that was not
    judged: in time, or at all.

    Back within `deadline_s` + 1 s, however hostile some pairs are. A text of more than 2,000
    characters is compared as text.
    """
    known = {
        pair: pair[0] == pair[1] if max(map(len, pair)) > LONGEST else _known.get(pair)
        for pair in pairs
    }
    if waiting := [pair for pair, same in known.items() if same is None]:
        known |= _judged(waiting, deadline_s)
    return [known[pair] for pair in pairs]


def _judged(pairs: Sequence[Pair], deadline_s: float) -> dict[Pair, bool]:
    # Each gets a small slice of time, and a larger one if that was not enough; what looks steep
    # waits for the others. A turn ends with each degree of steepness, and where one was late: the
    # pairs of other threads come in between.
    if inside_worker():
        from workbench.rewards.agreement import agrees_within as ask

        turns = None
    else:
        ask, turns = _shared_worker()  # its start is not counted
    until, slices = time.monotonic() + deadline_s, dict.fromkeys(pairs, FIRST_SLICE_S)
    found: dict[Pair, bool] = {}

    def attempt() -> None:
        ranks = {pair: slices[pair] * (1 + _steepness(pair)) ** 2 for pair in slices}
        lowest = min(ranks.values())
        for pair in [pair for pair, rank in ranks.items() if rank == lowest]:
            if (left := until - time.monotonic()) <= 0:
                return
            try:
                same = ask(*pair, deadline_s=min(slices[pair], left))
            except TimeoutError:
                slices[pair] *= GROWTH
                return
            except WorkerDied:  # out of memory: it would be again
                same = None
            del slices[pair]
            if same is not None:
                found[pair] = same

    with contextlib.suppress(TimeoutError):  # it was not one's turn in time
        while slices and (left := until - time.monotonic()) > 0:
            attempt() if turns is None else turns.submit(attempt).result(left)
    judged = dict(found)
    with _lock:
        _known.update(judged)
        for pair in list(_known)[: max(0, len(_known) - REMEMBERED)]:
            del _known[pair]
    return judged


def _steepness(pair: Pair) -> int:
    # Long ones as well: an answer of many characters is rarely right, and may take long to read.
    return sum(len(text) // 50 + sum(map(text.count, _STEEP)) for text in pair)


def _shared_worker() -> tuple[Worker, ThreadPoolExecutor]:
    with _lock:
        if os.getpid() not in _workers:
            worker = Worker(_agrees, preload=("workbench.rewards.agreement",))
            worker.warm()
            _workers[os.getpid()] = worker, ThreadPoolExecutor(1, "verdicts")
        return _workers[os.getpid()]


def _agrees(given: str, right: str) -> bool | None:
    from workbench.rewards.agreement import agrees

    return agrees(given, right)
