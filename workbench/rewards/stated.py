"""What a reward function says about itself: its name, and the most that it pays for one completion."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Reward = TypeVar("Reward", bound=Callable[..., Any])


def pays(maximum: float) -> Callable[[Reward], Reward]:
    """State on a reward function the most that it pays for one completion; a pure penalty states 0.

    >>> @pays(2.0)
    ... def correctness_reward(completions, **kwargs): ...
    >>> maximum_of(correctness_reward)
    2.0
    """

    def state(func: Reward) -> Reward:
        func.maximum = float(maximum)
        return func

    return state


def maximum_of(func: Any) -> float | None:
    """The most that a reward function says it pays; None if it does not say. Looks through `functools.partial`."""
    while not hasattr(func, "maximum") and isinstance(func, functools.partial):
        func = func.func
    stated = getattr(func, "maximum", None)
    return float(stated) if isinstance(stated, (int, float)) else None


def named(func: Reward, name: str, says: str) -> Reward:
    """Give a function that was made its name, which is its curve's label, and a docstring that says what it pays."""
    func.__name__ = func.__qualname__ = name
    func.__doc__ = says
    return func
