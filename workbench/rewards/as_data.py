"""What a reward function returned, as data that can be sent from one process to another."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

from workbench.base.errors import RewardError

OTHER_ORDER = "it returned a Series whose index is not 0, 1, 2, ..."
# what can be gone through, and is not one score per completion in order
NO_LIST = (dict, str, bytes, set, frozenset)
_MOST_VALUES = 1_000_000


class Foreign(str):
    """Stands in an answer for a value that is not data: its printed form, and its type."""

    kind: str

    def __repr__(self) -> str:
        return str(self)


def sendable(value: Any) -> Any:
    """A copy made of numbers, texts, bytes, None, and lists, dicts and sets of them; anything else
    as a number, or `Foreign`.
    """
    kind = type(value)
    if kind in (int, float, bool, str, bytes, type(None), Foreign):
        return value
    if kind in (list, tuple, set, frozenset):
        return kind(map(sendable, value))
    if kind is dict:
        return {sendable(key): sendable(item) for key, item in value.items()}
    with contextlib.suppress(Exception):
        if isinstance(value, (str, bytes)):
            return str(value) if isinstance(value, str) else bytes(value)
        return float(value)
    try:
        foreign = Foreign(repr(value)[:200])
    except Exception:
        foreign = Foreign(f"a {kind.__name__}")
    foreign.kind = kind.__name__
    return foreign


def plain_result(result: Any) -> Any:
    """What a function returned, with tensors, arrays and generators as lists of Python values (at
    most a million). ValueError: a Series in another order than the completions.
    """
    dimensions = getattr(result, "ndim", 1)
    if isinstance(result, NO_LIST) or not hasattr(result, "__iter__") or not dimensions:
        return _as_python(result)
    if dimensions == 2 and result.shape[1] == 1:
        result = result.reshape(-1)
    if hasattr(index := getattr(result, "index", None), "tolist"):
        order = index.tolist()
        if order != [*range(len(order))]:
            raise ValueError(f"{OTHER_ORDER} but {str(order)[:60]}")
    values = itertools.islice(result, _MOST_VALUES)
    return [
        each if isinstance(each, RewardError) else sendable(_as_python(each)) for each in values
    ]


def _as_python(value: Any) -> Any:
    if not hasattr(value, "tolist"):
        return value
    own = value.tolist()  # a model's head returns its one score in a row
    return own[0] if isinstance(own, list) and len(own) == 1 else own
