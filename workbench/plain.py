"""Values of rows in a form that JSON, Arrow and a run's record hold alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def plain(value: Any, odd: Callable[[Any], Any]) -> Any:
    """A value in a form that JSON has: arrays and tuples as lists, numpy's numbers as numbers, and
    what pandas puts where there is none (NaN, NaT, NA) as `odd(None)`. `odd(value)` stands in for
    one of any other kind: a date, say, or text that UTF-8 cannot hold.
    """
    kind = type(value)
    if kind is str:
        try:
            value.encode()
        except UnicodeError:
            return odd(value)
        return value
    if value is None or kind in (int, bool):
        return value
    if isinstance(value, float):
        return float(value) if value == value else odd(None)
    if isinstance(value, (list, tuple)):
        return [plain(inner, odd) for inner in value]
    if isinstance(value, dict):
        return {str(key): plain(inner, odd) for key, inner in value.items()}
    if kind.__name__ in ("NAType", "NaTType"):
        return odd(None)
    if not hasattr(value, "tolist"):
        return odd(value)
    if getattr(value.dtype, "kind", "") in ("M", "m"):  # in nanoseconds: they would become integers
        value = value.astype(f"{value.dtype.kind}8[us]")
    return plain(value.tolist(), odd)
