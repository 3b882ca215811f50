"""What a score does as a completion grows: in which unit it counts, where it is best, whether it has a bound."""

from __future__ import annotations

import inspect
import itertools
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from workbench.audit.findings import Finding, finding
from workbench.audit.prompt_format import ExpectedFormat
from workbench.rewards.suite import RewardSuite
from workbench.task import Row

_LENGTHS = (1, 5, 10, 15, 20, 25, 30, 40, 50, 80, 120, 200, 400)  # characters
_WORDS = (0, 8, 16, 32, 64, 128)
_TOKENS = (1, 8, 64, 256, 512, 1024, 4096)
# No word twice, so that what counts repetitions counts none.
_WORDS_ONCE = " ".join(map("".join, itertools.product(("lo", "ra", "mi", "tu", "ne", "sa", "ko", "vi", "pe", "du"), repeat=2)))
_TAIL = (0, 1_000, 4_000, 16_000)


class Growth(NamedTuple):
    """How a function's score goes with the length."""

    unit: str  # "characters", "tokens" or "": neither
    best: int | None  # of the plain texts that were tried, in that unit
    unbounded: str  # "up" or "down"; empty: it has a bound


def growth(suite: RewardSuite, name: str, row: Row, format: ExpectedFormat, answer: str) -> Growth:
    """Score completions of growing length, and the same completion with growing numbers of tokens."""
    words = [" ".join(f"w{number}" for number in range(count)) for count in _WORDS]
    inside = [format.write(f"Step by step: {more}".strip(), answer) for more in words]
    plain = [_WORDS_ONCE[:count] for count in _LENGTHS]
    tail = [format.write("Step by step", answer) + "x" * count for count in _TAIL]
    groups = [inside, plain]
    texts = [text for group in groups for text in group]
    same = [list(range(16))] * len(texts)
    by_token = [list(range(count)) for count in _TOKENS]
    scores = _scores(suite, name, row, texts + [inside[1]] * len(_TOKENS), same + by_token)
    # Each alone: a function that scales its scores over the batch would lay these on one line.
    alone = [_scores(suite, name, row, [text], same[:1]) for text in tail]
    if scores is None or any(each is None for each in alone):
        return Growth("", None, "")
    cut = np.cumsum([len(group) for group in groups])
    inside_scores, plain_scores, token_scores = np.split(scores, cut)
    unbounded = _unbounded(np.concatenate(alone))
    if _distinct(token_scores) > 1:
        return Growth("tokens", int(_TOKENS[int(np.nanargmax(token_scores))]), unbounded)
    if max(_distinct(inside_scores), _distinct(plain_scores)) > 2:
        peaks = _distinct(plain_scores) > 2 and int(np.nanargmax(plain_scores)) < len(_LENGTHS) - 1
        best = int(_LENGTHS[int(np.nanargmax(plain_scores))]) if peaks else None
        return Growth("characters", best, unbounded)
    return Growth("", None, unbounded)


def _scores(suite: RewardSuite, name: str, row: Row, texts: Sequence[str], ids: Sequence[list[int]]) -> np.ndarray | None:
    scored = suite.score_each([row] * len(texts), texts, ids, names=[name], quiet=True)[name]
    return None if scored.errors else np.array(scored.scores, dtype=float)


def _distinct(values: np.ndarray) -> int:
    return len({round(value, 9) for value in values if value == value})


def _unbounded(values: np.ndarray) -> str:
    # Ten times the text, about ten times the change: there is no limit to it.
    steps = np.abs(np.diff(values))
    if np.isnan(values).any() or steps[1] < 1e-9 or steps[2] < 2 * steps[1]:
        return ""
    return "up" if values[-1] > values[0] else "down"


def length_findings(name: str, function: Callable, found: Growth) -> Iterator[Finding]:
    """A unit that the function does not state, and a score without a bound."""
    words = _own_words(name, function)
    if found.unit == "characters" and "character" not in words:
        best = f", best at {found.best} of those tried (about {max(1, found.best // 4)} tokens)" if found.best else ""
        wrong = "token" in words
        but = ", and speaks of tokens" if wrong else "; GRPO's own lengths are in tokens"
        worse = wrong or re.search(r"len|length|short|long|brief|concise", name)
        yield finding("unit", name, "warning" if worse else None, best=best, but=but)
    if found.unbounded:
        yield finding("unbounded", name, moves="rises" if found.unbounded == "up" else "falls")


def _own_words(name: str, function: Callable) -> str:
    documented = inspect.getdoc(function) or ""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        source = ""
    return f"{name} {source} {documented}".casefold()
