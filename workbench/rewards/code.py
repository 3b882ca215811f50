"""What a reward function is made of: its code, and what that holds by name."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from workbench.base.kinds import Function
from workbench.base.shipped import TASK_FILES

# of an instruction: line, end line, column, end column
Place = tuple[int | None, int | None, int | None, int | None]
_MOST_HELD = 100  # of a list or dict: it may be a whole dataset


class Trace(NamedTuple):
    """What a traced call reached, by file, and the (start, end) of what it matched, by text."""

    reached: dict[str, set[Place]]
    matched: dict[str, set[tuple[int, int]]]


def beneath(function: Any) -> Any:
    """The function that is called in the end, beneath `functools.partial` and the workbench's
    adapters.
    """
    while isinstance(function, functools.partial) or hasattr(function, "beneath"):
        function = getattr(function, "beneath", None) or function.func
    return function


def is_ours(function: Any) -> bool:
    """Whether it is the workbench's own, rather than of a task file."""
    module = f"{getattr(function, '__module__', '')}"
    return module.startswith("workbench.") and not module.startswith(TASK_FILES)


def has_state(function: Any) -> bool:
    """Whether it is an object, rather than a function, a method or a partial of one."""
    return not inspect.isroutine(function) and not isinstance(function, functools.partial)


def code_within(code: CodeType) -> Iterator[CodeType]:
    """A code object, and those of the comprehensions and functions in it, which are among its
    constants.
    """
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_within(constant)


def cells_of(function: Function) -> dict[str, object]:
    """What a function closes over, by name."""
    cells = {}
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or ()):
        with contextlib.suppress(ValueError):  # not assigned yet
            cells[name] = cell.cell_contents
    return cells


def code_objects(function: Function) -> list[CodeType]:
    """The code of a function, of its inner functions, and of the functions of the same file that it
    calls by name.
    """
    function = inspect.unwrap(beneath(function))
    if not inspect.isroutine(function) and callable(function):
        function = type(function).__call__
    start = getattr(function, "__code__", None)
    if start is None:
        return []
    codes: dict[CodeType, None] = {}
    waiting, names = [start], {**getattr(function, "__globals__", {}), **cells_of(function)}
    while waiting:
        for code in code_within(waiting.pop()):
            if code in codes:
                continue
            codes[code] = None
            for other in map(names.get, (*code.co_names, *code.co_freevars)):
                inner = inspect.unwrap(other) if inspect.isfunction(other) else None
                if inner is not None and inner.__code__.co_filename == start.co_filename:
                    waiting.append(inner.__code__)
    return [*codes]


def held_by(function: Function) -> list[object]:
    """What a function holds by name, including its comprehensions and helpers."""
    names = {name for code in code_objects(function) for name in code.co_names}
    held = [getattr(function, "__globals__", {}).get(name) for name in sorted(names)]
    return [*held, *cells_of(function).values()]


def judge_of(function: Any) -> Any:
    """The judge that a function asks, or one that it holds, however deep, in the first of what a
    list or dict has; None: there is none.
    """
    waiting: list[Any] = [function]
    seen = set[int]()
    while waiting:
        each = waiting.pop()
        own = beneath(each) if callable(each) else each
        for judge in (own, getattr(own, "judge", None)):
            if hasattr(type(judge), "scores_of"):
                return judge
        if id(own) in seen:
            continue
        seen.add(id(own))
        if isinstance(own, list | tuple):
            waiting += own[:_MOST_HELD]
        elif isinstance(own, dict):
            waiting += itertools.islice(own.values(), _MOST_HELD)
        elif callable(own) and not isinstance(own, type):
            module = getattr(own, "__module__", None) or ""
            if not (is_ours(own) or module.startswith(("torch.", "transformers."))):
                owner = getattr(own, "__self__", own)
                method = own if inspect.isroutine(own) else type(own).__call__
                waiting += [*held_by(method), *getattr(owner, "__dict__", {}).values()]
    return None
