"""A judge's answer, read as scores. One that cannot be read is an error, never a score."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from typing import Any

from workbench.base.errors import RewardError
from workbench.base.kinds import Fields

_FENCED = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.S)
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.S)


class UnreadableAnswer(RewardError):
    """An answer of a judge that is not what it was asked for."""


def reply_content(text: str) -> Fields:
    """The JSON object of an answer, which may follow a thought and stand in a code fence; empty:
    there is none.
    """
    bare = _THOUGHT.sub("", text, count=1).strip()
    fenced = _FENCED.fullmatch(bare)
    content: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(fenced[1] if fenced else bare, object_pairs_hook=_each_once)
    return content if isinstance(content, dict) else {}


def spread_by_rank(places: Sequence[float]) -> list[float]:
    """Scores from 1 for the lowest place to 0 for the highest, in equal steps; equal places share
    the mean of theirs.

    >>> spread_by_rank([1, 2, 2, 4])
    [1.0, 0.5, 0.5, 0.0]
    """
    from scipy.stats import rankdata

    return (1 - (rankdata(places) - 1) / (len(places) - 1)).tolist()


def by_score(score: Any) -> list[float] | None:
    """The one score, 0 to 1, of a grade from 0 to 10; None: it is none."""
    fits = isinstance(score, int | float) and not isinstance(score, bool) and 0 <= score <= 10
    return [score / 10] if fits else None


def by_rank(ranking: Any, count: int) -> list[float] | None:
    """The scores of a ranking in which every number stands once; None: it is none."""
    if not isinstance(ranking, list):
        return None
    tiers = [tier if isinstance(tier, list) else [tier] for tier in ranking]
    flat = [number for tier in tiers for number in tier]
    if any(type(number) is not int for number in flat) or sorted(flat) != [*range(1, count + 1)]:
        return None
    place = {number: at for at, tier in enumerate(tiers) for number in tier}
    return spread_by_rank([place[number] for number in range(1, count + 1)])


def _each_once(pairs: list[tuple[str, Any]]) -> Fields:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands twice")
    return content
