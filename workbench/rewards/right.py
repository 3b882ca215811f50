"""What says that a completion is right: the task's function, or, where nobody has named one and the
first says nothing of a prompt, the next that does.

None means that a function does not apply. A prompt of which it scores no completion is neither
right nor wrong by it; a None among scores of one prompt is not right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.task import right_of


def judges_of(
    weights: Mapping[str, float], right_by: str, stated: bool, format_by: str | None = None
) -> list[str]:
    """The functions that say what is right, each of the groups in which those before it scored
    nothing: `right_by`; where nobody `stated` that, the others that have a weight come after it.
    """
    but = right_by, format_by
    others = [name for name in weights if weights[name] and name not in but]
    return [right_by, *([] if stated else others)]


def right_in(scores: np.ndarray, size: int, least: float | None = None) -> np.ma.MaskedArray:
    """Which completions are right, by their judges' scores, [B, judges]: [B] bool, masked in the
    groups of `size` that none of them scored. `least`: as in `Task.right_at`.
    """
    silent_PJ: Any = np.isnan(scores).reshape(-1, size, scores.shape[1]).all(axis=1)
    scored_PJ = ~silent_PJ
    first_B = scored_PJ.argmax(axis=1).repeat(size)
    right = right_of(np.take_along_axis(scores, first_B[:, None], 1)[:, 0], least)
    return np.ma.masked_array(right, ~scored_PJ.any(axis=1).repeat(size))


def right_under(suite: Any, scores: np.ndarray, size: int) -> np.ma.MaskedArray:
    """Which completions are right by a suite's scores of them, [B, F], in groups of `size`: as
    `right_in`.
    """
    task, weights = suite.task, dict(zip(suite.names, suite.weights, strict=True))
    judges = judges_of(weights, task.right_function, bool(task.right_by), task.format_by)
    return right_in(scores[:, [suite.names.index(name) for name in judges]], size, task.right_at)
