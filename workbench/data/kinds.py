"""One kind of value a column, all the way down: Arrow, which hands the rows to a trainer, holds nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.data import reasons

# Whole numbers and fractions are one kind, as they are for Arrow.
_KINDS = {
    str: "text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}
_LARGEST = 2**63
_DEEP = (list, tuple, dict)


class Kinds:
    """The kinds met so far, by column and by place inside it (`meta.level`, `tags[]`)."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._keys: dict[str, Any] = {}
        self._met: dict[str, str] = {}

    def look(self, column: str, value: Any, warnings: list[str]) -> str | None:
        """The reason why a value does not go with those that were met before, None if it does."""
        kind = _KINDS.get(type(value))
        if kind is None:
            return None
        if type(value) in _DEEP:
            if type(value) is dict and self._keys.setdefault(column, value.keys()) != value.keys():
                warnings.append(reasons.other_keys(column))
            return next(filter(None, (self._one(*part) for part in _parts(column, value, 0))), None)
        return self._one(column, kind, value)

    def look_at_messages(self, messages: list[dict[str, Any]]) -> str | None:
        """Likewise for what messages hold beside their role and content."""
        for message in messages:
            if len(message) > 2:
                for name, value in message.items():
                    if (
                        name not in ("role", "content")
                        and (reason := self.look(f"prompt.{name}", value, [])) is not None
                    ):
                        return reason
        return None

    def learn(self) -> None:
        """Remember what was met since the last call: the row was kept."""
        if self._met:
            for place, kind in self._met.items():
                self._known.setdefault(place, kind)
            self._met = {}

    def _one(self, place: str, kind: str, value: Any) -> str | None:
        known = self._known.get(place) or self._met.get(place)
        if known is None:
            self._met[place] = kind
        elif known != kind:
            self._met = {}
            return reasons.other_kind(place, kind, known)
        if type(value) is int and not -_LARGEST <= value < _LARGEST:
            return reasons.too_large(place)
        return None


def _parts(place: str, value: Any, depth: int) -> Iterator[tuple[str, str, Any]]:
    kind = _KINDS.get(type(value))
    if kind is None:
        return
    yield place, kind, value
    if type(value) is dict:
        for key, inner in value.items():
            yield from _parts(f"{place}.{key}", inner, depth + 1)
    elif type(value) in (list, tuple):
        for inner in value:
            yield from _parts(f"{place}[]", inner, depth + 1)
