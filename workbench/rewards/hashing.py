"""Which reward function it was: a hash of what it does, so that scores of different rewards are never taken for the same."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Callable
from types import CodeType
from typing import Any


def reward_hash(func: Callable[..., Any]) -> str:
    """12 hex digits that change when what a reward function does changes, and are the same in every process.

    They cover its source, its defaults, the values that it closes over or was made with (factories, partials,
    instances), and the functions that it calls by name.
    """
    return hashlib.sha256("\n".join(_parts_of(func, set())).encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _parts_of(value: Any, seen: set[int]) -> list[str]:
    if not callable(value):
        return [re.sub(r" at 0x[0-9a-f]+", "", repr(value))]
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, functools.partial):
        arguments = [value.func, *value.args, *(part for item in sorted(value.keywords.items()) for part in item)]
        return [part for argument in arguments for part in _parts_of(argument, seen)]
    if inspect.ismethod(value):
        return _parts_of(value.__self__, seen) + _parts_of(value.__func__, seen)
    if inspect.isfunction(value):
        code = value.__code__
        own = _source(value) or code.co_code.hex() + repr(code.co_consts)
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        called = [value.__globals__.get(name) for name in sorted(_names_in(code))]
        called = [other for other in called if inspect.isfunction(other) or isinstance(other, (str, int, float, tuple))]
        others = [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *called]
        return [own] + [part for other in others for part in _parts_of(other, seen)]
    if callable(value) and not isinstance(value, type) and hasattr(value, "__dict__"):
        state = [part for item in sorted(vars(value).items()) for part in item]
        return [_source(type(value)) or type(value).__qualname__] + [p for part in state for p in _parts_of(part, seen)]
    return [re.sub(r" at 0x[0-9a-f]+", "", repr(value))]


def _names_in(code: CodeType) -> set[str]:
    # A comprehension or an inner function is a code object among the constants.
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names, *(name for other in inner for name in _names_in(other))}


def _source(thing: Any) -> str | None:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return None
