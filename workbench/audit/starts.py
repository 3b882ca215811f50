"""Does each member of a group begin in the same state? Environments are reset as training resets
them, and compared; nothing is played.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

from workbench.audit.findings import Findings, finding
from workbench.base.door import words
from workbench.base.environments import (
    Start,
    checked_tools,
    pinned_random,
    started,
    where_they_part,
)
from workbench.base.errors import TaskError
from workbench.rewards.as_data import plain_result
from workbench.rewards.guarding import guarded
from workbench.rewards.results import check_scores
from workbench.task import Row, Task

GROUP = 8  # starts that are compared
_DEEPEST = 8


def start_findings(task: Task, rows: Sequence[Row], deadline_s: float | None = 10.0) -> Findings:
    """Whether a policy can be told a task's tools, and whether the starts of its environment are
    the same, with an example of where they differ; nothing for a task without turns.

    Each row gets a group of new environments; where `reset` takes a `seed`, the same one. What
    `reset` returns is compared, and every attribute.

    Args:
        deadline_s: for each call of the environment's; and no row but the first is begun later.
    """
    try:
        guarded(checked_tools, deadline_s, quiet=True)(
            tools=task.tools, environment=task.environment
        )
    except TaskError as error:
        yield finding("tools", error=error.value, fix=error.remedy)
    except Exception:  # raised while an environment is made: reported below, with its start
        if not task.environment:
            raise
    until = time.monotonic() + (math.inf if deadline_s is None else deadline_s)
    compared, unread = 0, ""
    for place, row in enumerate(rows if task.environment else ()):
        if place and time.monotonic() > until:
            break
        try:
            with pinned_random(place):
                seed = random.randrange(2**31)
                start: dict[str, Any] = {"environment": task.environment, "row": row, "seed": seed}
                begin = guarded(started, deadline_s, quiet=True)
                group = [begin(**start) for _ in range(GROUP)]
                # of one more: asking for its reward may change it
                wrong = "" if place else _reward_of(begin(**start), deadline_s)
        except Exception as error:  # of the user's own code
            yield finding("starts.raises", error=words(error), prompt=str(row["prompt"])[-200:])
            return
        if wrong:
            yield finding("starts.reward", wrong=wrong)
        compared = place + 1
        for what, shown in itertools.chain(*(_differences(group[0], own) for own in group[1:])):
            if shown is not None:
                yield finding("starts.unequal", what=what, shown=shown)
                return
            unread = what
    if unread:
        yield finding("starts.untold", what=unread)
    elif compared:
        yield finding("starts", starts=GROUP, prompts=compared)


def _reward_of(start: Start, deadline_s: float | None) -> str:
    # What is wrong with the reward of a rollout in which the policy calls nothing, by the rule for
    # scores; "": nothing. A coroutine is left to training.
    reward = getattr(start.environment, "get_reward", None)
    if reward is None or inspect.iscoroutinefunction(reward):
        return ""
    try:
        values = guarded(lambda: plain_result([reward()]), deadline_s, quiet=True)()
    except Exception as error:  # of the user's own code
        return f"raised {words(error)}"
    call = {"prompts": [""], "completions": [""]}
    return check_scores("get_reward", values, call, skip=True).errors.get(0, "")


def _differences(first: Start, other: Start) -> Iterator[tuple[str, str | None]]:
    # (what differs, both in words; None: they cannot be compared)
    yield from _parted(first.observation, other.observation, "what reset returns")
    yield from _parted(first.environment, other.environment, "")


def _parted(first: Any, other: Any, name: str, depth: int = 0) -> Iterator[tuple[str, str | None]]:
    if same := _same(first, other):
        return
    parts, others, told = _parts(first), _parts(other), False
    if type(first) is type(other) and parts.keys() == others.keys() and depth < _DEEPEST:
        # A plain object is its parts, whichever of them are one and the same.
        told = bool(parts) and type(first).__reduce__ is object.__reduce__
        for key in parts:
            for difference in _parted(parts[key], others[key], f"{name}{key}", depth + 1):
                told = True
                yield difference
    if not told:
        two = where_they_part(_words(first), _words(other))
        shown = f": {two[0]}, {two[1]}" if len({*two}) > 1 else ""
        yield name.removeprefix(".") or "the environment", None if same is None else shown


def _same(first: Any, other: Any) -> bool | None:
    # None: it cannot be told
    import cloudpickle

    with contextlib.suppress(Exception):  # of arrays, or of the user's own code
        # A subclass of dict may equal another with other attributes.
        if first is other or (bool(first == other) and not getattr(first, "__dict__", None)):
            return True
    try:
        return cloudpickle.dumps(first) == cloudpickle.dumps(other)
    except Exception:  # of what cannot be pickled: said as `starts.untold`
        return None


def _parts(value: Any) -> dict[str, Any]:
    parts = {} if callable(value) else dict(getattr(value, "__dict__", {}))
    slots = [getattr(kind, "__slots__", ()) for kind in type(value).__mro__]
    names = [name for own in slots for name in ([own] if isinstance(own, str) else own)]
    parts |= {name: getattr(value, name) for name in names if hasattr(value, name)}
    found = {f".{name}": own for name, own in parts.items()}
    if isinstance(value, dict):
        found |= {f"[{key!r}]": own for key, own in value.items()}
    elif isinstance(value, (list, tuple)):
        found |= {f"[{place}]": own for place, own in enumerate(value)}
    return found


def _words(value: Any) -> str:
    # An address says nothing.
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text
