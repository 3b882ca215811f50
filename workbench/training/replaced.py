"""The methods of a trainer that the workbench replaces, each registered by what replaces it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

OWNERS: dict[str, list[str]] = {}  # method -> the classes and functions that replace it


def replaces(*methods: str) -> Callable[[T], T]:
    """Decorates a class or a function that puts something in the place of these methods of a
    trainer.
    """

    def register(owner: Any) -> Any:
        for method in methods:
            OWNERS.setdefault(method, []).append(owner.__qualname__)
        return owner

    return register


def replace(trainer: Any, method: str, value: object) -> None:
    """Put `value` in the place of a trainer's method, which somebody has registered."""
    if method not in OWNERS:
        raise LookupError(f"{method} is replaced, and no @replaces(...) names it")
    setattr(trainer, method, value)
