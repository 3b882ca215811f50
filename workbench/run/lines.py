"""What a run's files hold: the kind of each value, by name (lines.yaml).

A record may be another version's, a stranger's, or edited by hand. A value of another kind is left
out where it is read, with a warning that names it, so that nobody else has to look.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from workbench.base.kinds import Fields
from workbench.recipe import packaged


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


_FITS: dict[str | None, Callable[[Any], bool]] = {
    None: lambda value: True,
    "number": _number,
    "measure": lambda value: _number(value) or value in ("inf", "-inf"),
    "count": lambda value: type(value) is int and 0 <= value < 2**31,
    "text": lambda value: isinstance(value, str),
    "object": lambda value: isinstance(value, dict),
    "scale": lambda value: value in ("group", "batch", "none", True, False),
}
_known = functools.cache(functools.partial(packaged, Path(__file__).with_suffix(".yaml")))


def fitted_lines(file: str, lines: Iterable[Fields]) -> Iterator[Fields]:
    """The lines of a run's file (or the one object in it) that say something, without the values
    that do not fit.
    """
    kinds = _known()[file]
    for line in lines:
        known = kinds.get(str(line.get("action", line.get("event"))), kinds["any"])
        if kept := _kept((file,), line, known):
            yield kept


def _kept(place: tuple[str, ...], value: Any, kind: Any) -> Any:
    # None: it does not fit, or says nothing.
    if isinstance(kind, list) and isinstance(value, list):
        return [own for each in value if (own := _kept(place, each, kind[0])) is not None]
    if not (isinstance(kind, dict) and isinstance(value, dict)):
        return value if not isinstance(kind, dict | list) and _FITS[kind](value) else None
    kept = {}
    for name, own in value.items():
        fit = _kept((*place, name), own, kind.get(name, kind.get("*")))
        if fit is None is not own:
            where = ": ".join((*place, name))
            said = f"{where} = {own!r:.80}: left out, not as training writes it"
            warnings.warn(said, stacklevel=3)
        else:
            kept[name] = fit
    return None if any(kept.get(name) is None for name in kind.get("needs", ())) else kept
