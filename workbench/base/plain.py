"""Values of rows in a form that JSON, Arrow and a run's record hold alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any

from workbench.base.errors import TaskError
from workbench.base.kinds import Fields

_AS_TEXT = (str, date, time, timedelta, Decimal, PurePath)


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
    own = listed(value)
    return odd(value) if own is value else plain(own, odd)


def listed(value: Any) -> Any:
    """An array as a list, a value of numpy's as Python's own; any other as it is."""
    if not hasattr(value, "tolist"):
        return value
    if getattr(value.dtype, "kind", "") in ("M", "m"):  # in nanoseconds: they would become integers
        value = value.astype(f"{value.dtype.kind}8[us]")
    return value.tolist()


def plain_rows(where: str, given: Any, made_plain: Counter[str]) -> list[Fields]:
    """A task's rows, a list of dicts or a DataFrame, as JSON and Arrow can hold them; what became
    None or text is counted in `made_plain`. TaskError: row, column and kind of what cannot.
    """
    rows, place, name = [], "", ""

    def odd(value: Any) -> Any:
        kind = type(value).__name__
        if value is not None and not isinstance(value, _AS_TEXT):
            raise TaskError(
                f"{place}, column {name!r}: a {kind}",
                rule="a row holds text, numbers, lists and objects, as JSON does",
                remedy="write it so: a set as a sorted list, say; or leave the column out",
            )
        if not isinstance(value, str):
            as_what = "NaN read as None" if value is None else f"{kind} written as text"
            made_plain[f"column {name!r}: {as_what}"] += 1
        return value and str(value)

    for row in given.to_dict("records") if hasattr(given, "iloc") else given:
        place = f"{where}[{len(rows)}]"
        if not isinstance(row, Mapping):
            rule, remedy = "a row is an object", 'rows=[{"prompt": ..., "answer": ...}, ...]'
            raise TaskError(f"{place}: a {type(row).__name__}", rule=rule, remedy=remedy)
        rows.append({})
        for name, value in row.items():
            rows[-1][str(name)] = plain(value, odd)
        if "prompt" not in rows[-1]:
            remedy = "rename your column, e.g. {'prompt': row.pop('question'), **row}"
            value = f"{place} has the columns {', '.join(rows[-1])}"
            raise TaskError(value, rule="the prompt is the column named `prompt`", remedy=remedy)
        prompt = rows[-1]["prompt"]
        said = prompt if isinstance(prompt, list) else []
        roles = [isinstance(each, dict) and "role" in each for each in said]
        if not isinstance(prompt, str) and not (said and all(roles)):
            rule = "a prompt is text, or messages such as {'role': 'user', 'content': '...'}"
            remedy = "rows=wb.check(rows).require() makes prompts of them, and says why not"
            raise TaskError(f"{place}: prompt = {prompt!r:.80}", rule=rule, remedy=remedy)
    return rows
