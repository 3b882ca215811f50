"""Formulas, compared by math-verify in a worker that can be killed.

math-verify stops itself by an alarm, which works on the main thread only, and a tower of powers such as `9^{9^{9^9}}`
does not listen to it even there. So it runs in one process for the whole program, which ends whenever a pair takes
longer than its share; another one, forked from a parent that has sympy loaded, takes its place in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from workbench.rewards.answers import LONGEST, legible, quick_same
from workbench.rewards.worker import DeadlineError, Worker, WorkerDied, inside_worker

Pair = tuple[str, str]
DEADLINE_S = 5.0
FIRST_SLICE_S = 0.1  # of processor time: most formulas take 5 to 50 ms
GROWTH = 4  # of the slice, each time that a pair has run over it
REMEMBERED = 4096  # verdicts; at most 16 MB of text

_DELIMITERS = ("$", "\\(", "\\[", "\\boxed")
# math-verify reads these as they are: a sum, 1 000, and a number with its unit.
_SUM = re.compile(r"[-+\d.*/^()\s]++", re.ASCII)
_SPACED = re.compile(r"-?\d{1,3}(?: \d{3})++", re.ASCII)
_MEASURE = re.compile(
    r"[-+]?\$?(?=\.?\d)(?:\d++(?:,\d{3})*+)?(?:\.\d++)?(?:/\d++)?"
    r"(?P<unit>(?:\s++[^\W\d_]++|[^\W\d_]{2,}+)?+(?:[ /][^\W\d_]++)?+)[.%]?",
    re.ASCII,
)
_SYMBOLS = frozenset("msghdtlLKCFNJWVATH")  # of units; any other single letter after a number is a variable: 3 n
_UNITS = {
    "second": "s sec", "minute": "min", "hour": "h hr", "day": "d", "week": "wk", "year": "yr",
    "meter": "m metre", "kilometer": "km kilometre", "centimeter": "cm centimetre", "millimeter": "mm millimetre",
    "inch": "in inches", "foot": "ft feet", "yard": "yd", "mile": "mi", "square": "sq", "cubic": "cu",
    "gram": "g gm", "kilogram": "kg kilo", "milligram": "mg", "ton": "t tonne", "pound": "lb", "ounce": "oz",
    "liter": "l L litre", "milliliter": "ml millilitre", "dollar": "usd", "euro": "eur", "cent": "", "percent": "pct",
    "degree": "deg", "celsius": "C", "fahrenheit": "F", "kelvin": "K", "newton": "N", "joule": "J", "watt": "W",
    "volt": "V", "amp": "A ampere", "tesla": "T", "henry": "H", "hertz": "hz",
}  # fmt: skip
_NAMED = {alias: name for name, aliases in _UNITS.items() for alias in (name, *aliases.split())}
_RATES = {"mph": "mile/hour", "kph": "kilometer/hour"}
_PLURALS = {"people": "person", "men": "man", "women": "woman", "children": "child"}
# 1,3 is two answers, and the decimal of other countries only beside one that is no list; nobody lists 1 and 05.
_PAIR = re.compile(r"-?\d+,(?P<second>\d+)", re.ASCII)
_LIST = re.compile(r",(?!\d{3}(?!\d))|;|±|\\pm|\\\{|\b(?:and|or)\b")
_SCALED = re.compile(r"\$?([-+]?(?:\d++\.?\d*+|\.\d++))[eE]([-+]?\d{1,3})\$?", re.ASCII)
_GAPS = re.compile(r" *([-+=]) *")  # math-verify takes the c of `ab + c` for a unit
_COMMAND = re.compile(r"\\[A-Za-z]++")
_NAMES = r"(?:sin|cos|tan|cot|log|ln|exp|sqrt|pi|and|or)\b"
_SENTENCE = re.compile(rf"(?:^|\s)(?!{_NAMES})[^\W\d_]{{2,}}+(?=[\s.,;:!?]|$)|\d\s++\d")
# Where =, + or ^ stands, two letters are a product sooner than a word: mx + b.
_OPERATOR = re.compile(r"[=+^\\]")
_SPOKEN = re.compile(
    rf"(?:^|\s)(?!{_NAMES})(?:[^\W\d_]{{4,}}+|(?i:the|is|are|so|we|if|for|to|of))(?=[\s.,;:!?]|$)|\d\s++\d"
)
# Signs that math-verify does not read, in LaTeX.
_ROOT = re.compile(
    r"(?:√|(?<![A-Za-z\\])sqrt)\s?(?:\(([^()]*+)\)|\{([^{}]*+)\}|(\d++(?:\.\d++)?|[^\W\d_](?![^\W\d_])))"
)
_WORD = re.compile(r"(?<![A-Za-z\\])(?:pi|infinity)(?![A-Za-z])")
_POWER = re.compile(r"(?<=[abnxyz\d)])[²³]")  # not those of m²
_STEEP = ("^", "**", "!", "\\sum", "\\prod", "\\int", "\\binom")

_lock = threading.Lock()
_workers: dict[int, tuple[Worker, _Turns]] = {}  # by process: a fork must not talk through its parent's pipes
_known: dict[Pair, bool] = {}


class _Watch(NamedTuple):
    deadline_s: float
    late: set[int]


_watch: ContextVar[_Watch | None] = ContextVar("watch", default=None)


@contextlib.contextmanager
def watched(deadline_s: float | None) -> Iterator[set[int]]:
    """What `same_answers` does in here: it keeps this deadline, and the indexes of what it did not judge in time are told.

    Args:
        deadline_s: None: the usual one.
    """
    watch = _Watch(DEADLINE_S if deadline_s is None else min(DEADLINE_S, deadline_s), set())
    before = _watch.set(watch)
    try:
        yield watch.late
    finally:
        _watch.reset(before)


def same_answers(
    given: Sequence[str | None], right: Sequence[Any], deadline_s: float | None = None
) -> list[bool | None]:
    """`same_answer` of many pairs at once: [B] True, False, or None for a pair that was not judged in time.

    Words and numbers are compared here (`quick_same`), and the rest goes to math-verify in one call. A text without
    math delimiters is read as one formula (`x+1` as `$x+1$`), not searched for a number, unless it is a sum, a number
    with a unit, or a sentence; a right answer that is a sentence has only the same text for its equal. Two different
    units are different answers, and a right answer `1,3` is two numbers, never 1.3.

    Args:
        given: [B]; None (no answer was found) is False.
        right: [B]; any type, compared as text.
        deadline_s: for the whole batch; the start of the worker, once in a program, comes on top. None: that of `watched`.
    """
    watch = _watch.get()
    if deadline_s is None:
        deadline_s = watch.deadline_s if watch is not None else DEADLINE_S
    results: list[bool | None] = []
    asked: dict[int, Pair] = {}
    for index, (one, other) in enumerate(zip(given, right, strict=True)):
        same = False if one is None else quick_same(one, other)
        if same is None:
            pair = _readable(_written(str(one)), _written(str(other)))
            if pair is None:
                same = False
            else:
                asked[index] = pair
        results.append(same)
    if asked:
        for index, same in zip(asked, verdicts(list(asked.values()), deadline_s)):
            results[index] = same
            if same is None and watch is not None:
                watch.late.add(index)
    return results


def verdicts(pairs: Sequence[Pair], deadline_s: float = DEADLINE_S) -> list[bool | None]:
    """What math-verify says of (given, right) pairs: [B] True, False, or None for one that was not judged: in time, or at all.

    Back within `deadline_s` + 1 s, however hostile the pairs are; those that are not are judged all the same.
    Verdicts are remembered; a text of more than 2,000 characters is only compared as text.
    """
    found: dict[Pair, bool | None] = {}
    for pair in pairs:
        if max(map(len, pair)) > LONGEST:
            found[pair] = pair[0] == pair[1]
        else:
            found[pair] = _known.get(pair)
    waiting = [pair for pair, same in found.items() if same is None]
    if waiting:
        judged = _judged_here(waiting, deadline_s) if inside_worker() else _judged(waiting, deadline_s)
        _remember(judged)
        found.update(judged)
    return [found[pair] for pair in pairs]


def _readable(given: str, right: str) -> Pair | None:
    """The two as they are handed to math-verify; None where nothing can be the same: a sentence, or another unit."""
    wanted = _formula(right, given, listed=True)
    units = [found["unit"] if found else "" for found in map(_MEASURE.fullmatch, (given, right))]
    if wanted is None or (all(units) and not _same_unit(*units)):
        return None
    return _formula(given, right, listed=_LIST.search(right) is not None) or given, wanted


def _written(text: str) -> str:
    """An answer with the signs that math-verify does not read as LaTeX."""
    text = legible(text).strip()
    if not text.isascii():
        text = _POWER.sub(lambda found: "^2" if found[0] == "²" else "^3", text)
    text = _ROOT.sub(lambda found: rf"\sqrt{{{found[1] or found[2] or found[3] or ''}}}", text)
    return _WORD.sub(lambda found: r"\pi" if found[0] == "pi" else r"\infty", text)


def _formula(text: str, other: str, listed: bool) -> str | None:
    """A text as it is handed to math-verify; None for a sentence and for numbers side by side.

    Args:
        other: the answer that it is compared with.
        listed: 1,3 is a list here, and no decimal.
    """
    if pair := _PAIR.fullmatch(text):
        decimal = not listed or (len(pair["second"]) > 1 and pair["second"][0] == "0")
        return text if decimal else f"${text}$"
    if (scaled := _SCALED.fullmatch(text)) and "e" not in _COMMAND.sub("", other).casefold():
        return rf"${scaled[1]} \times 10^{{{int(scaled[2])}}}$"
    measured = _MEASURE.fullmatch(text)
    if measured and len(letter := measured["unit"].strip()) == 1:
        variable = letter not in _SYMBOLS or (letter in other and not _MEASURE.fullmatch(other))
        return f"${text}$" if variable else text
    closed = _GAPS.sub(r"\1", text)
    if measured or _SPACED.fullmatch(text) or any(mark in text for mark in _DELIMITERS):
        return closed if text[0] == text[-1] == "$" and text.count("$") == 2 else text
    if (_SPOKEN if _OPERATOR.search(text) else _SENTENCE).search(text):
        return None
    return text if _SUM.fullmatch(text) else f"${closed}$"


def _same_unit(first: str, second: str) -> bool:
    """Whether two units may be one: 5 km and 5 kilometers, 7 apples and 7 red apples; not 5 km and 5 m, nor 7 oranges.

    A unit of the table beside a word that is not in it is not judged: it may be its name in another language.
    """
    one, other = (_RATES.get(unit.strip().casefold(), unit).split("/") for unit in (first, second))
    return len(one) == len(other) and all(map(_same_words, one, other))


def _same_words(first: str, second: str) -> bool:
    one, other = ({_singular(word) for word in text.split()} for text in (first, second))
    more, less = one - other, other - one
    if more and less:
        return bool(more & _UNITS.keys()) != bool(less & _UNITS.keys())
    return not (more | less) & _UNITS.keys()


def _singular(word: str) -> str:
    # An m is a meter and an L a liter, but no M is a minute: single letters are read as they stand.
    word = word if len(word) == 1 else word.casefold()
    short = word.removesuffix("s") if len(word) > 2 else word
    return _NAMED.get(word) or _NAMED.get(short) or _PLURALS.get(word, short)


class _Turns:
    """First come, first served. A plain lock goes to whoever asks again at once, and starves the other threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[threading.Event] = []

    @contextlib.contextmanager
    def take(self, timeout_s: float) -> Iterator[bool]:
        """Whether it was one's turn in time."""
        turn = threading.Event()
        with self._lock:
            self._waiting.append(turn)
            self._waiting[0].set()
        try:
            yield turn.wait(timeout_s)
        finally:
            with self._lock:
                self._waiting.remove(turn)
                if self._waiting:
                    self._waiting[0].set()


def _judged(pairs: Sequence[Pair], deadline_s: float) -> dict[Pair, bool]:
    # Each gets a small slice of time, and a larger one if that was not enough; what looks steep waits for the others.
    worker, turns = _shared_worker()
    until = time.monotonic() + deadline_s
    found: dict[Pair, bool] = {}
    slices = dict.fromkeys(pairs, FIRST_SLICE_S)
    while slices and (left := until - time.monotonic()) > 0:
        order = sorted(slices, key=lambda pair: slices[pair] * (1 + _steepness(pair)))
        with turns.take(left) as mine:
            if not mine:
                break
            done = _attempt(worker, order, [slices[pair] for pair in order], until)
        for pair, same in zip(order, done):
            if same is not None:
                found[pair] = same
            del slices[pair]
        if len(done) < len(order):
            slices[order[len(done)]] *= GROWTH
    return found


def _attempt(worker: Worker, pairs: Sequence[Pair], slices: Sequence[float], until: float) -> list[bool | None]:
    """Verdicts of the first pairs, up to one that ran over its slice; None: math-verify failed on it."""
    number, progress = tempfile.mkstemp(prefix="workbench-verdicts-")
    try:
        with contextlib.suppress(DeadlineError, WorkerDied):  # what it had done by then is in the file
            worker(pairs, slices, progress, deadline_s=max(0.0, until - time.monotonic()))
        return [{ord("1"): True, ord("0"): False}.get(letter) for letter in os.read(number, len(pairs))]
    finally:
        os.close(number)
        os.unlink(progress)


def _judged_here(pairs: Sequence[Pair], deadline_s: float) -> dict[Pair, bool]:
    from workbench.rewards.judge import judge_here

    until = time.monotonic() + deadline_s
    found: dict[Pair, bool] = {}
    waiting = sorted(pairs, key=_steepness)
    for index, pair in enumerate(waiting):
        left = until - time.monotonic()
        if left <= 0:
            break
        same = judge_here(*pair, max(FIRST_SLICE_S, left / (len(waiting) - index)))
        if same is not None:
            found[pair] = same
    return found


def _steepness(pair: Pair) -> int:
    # Long ones as well: an answer of many characters is rarely right, and may take long to read.
    return sum(len(text) // 50 + sum(text.count(mark) for mark in _STEEP) for text in pair)


def _shared_worker() -> tuple[Worker, _Turns]:
    with _lock:
        if os.getpid() not in _workers:
            worker = Worker(_judge, preload=("workbench.rewards.judge",))
            worker.warm()
            _workers[os.getpid()] = worker, _Turns()
        return _workers[os.getpid()]


def _judge(pairs: Sequence[Pair], slices: Sequence[float], progress: str) -> None:
    from workbench.rewards.judge import judge

    judge(pairs, slices, progress)


def _remember(judged: dict[Pair, bool]) -> None:
    with _lock:
        _known.update(judged)
        for pair in list(_known)[: max(0, len(_known) - REMEMBERED)]:
            del _known[pair]
