"""YAML that somebody wrote, read in bounded time and memory; and YAML of the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from workbench.base.errors import RecipeError
from workbench.base.workspace import encodable

# in Python it takes ten times as long, for the largest file a minute
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MOST_CHARACTERS = 2**20
_MOST_VALUES = 20_000
_MOST_LEVELS = 40
MOST_SHOWN = 200
_ROWS_ELSEWHERE = "rows belong in the task's files"


def packaged(own: Path | str) -> Any:
    """What a YAML file of the package holds, or its text."""
    return yaml.load(own if isinstance(own, str) else own.read_text(encoding="utf-8"), _LOADER)


def read_yaml(text: str | bytes, source: str) -> Any:
    """What a YAML text, or one in UTF-8, holds, read in bounded time and memory; RecipeError if it
    is not YAML, or too large.
    """
    try:
        text = text if isinstance(text, str) else text.decode()
        short = len(text) <= MOST_CHARACTERS
        # The loader calls itself, and in C nothing stops it.
        if short and _is_small(yaml.parse(text, _LOADER)):
            return yaml.load(text, _LOADER)
    except (yaml.YAMLError, ValueError) as error:
        rule, remedy = "a recipe is valid YAML", "correct that line"
        raise RecipeError(f"{source}: {error}", rule=rule, remedy=remedy) from error
    if short:
        raise _too_large(source)
    # of a file only its beginning was read
    rule = "a recipe is at most 1 MB of YAML"
    raise RecipeError(f"{source}: over 1 MB", rule=rule, remedy=_ROWS_ELSEWHERE)


def _is_small(events: Iterator[Any]) -> bool:
    """Whether a text has few levels and values once its aliases are written out; a long text counts
    as several values.
    """
    values = 0.0
    open_parts: list[tuple[str | None, float]] = []  # the anchor of each, and the values before it
    sizes: dict[str | None, float] = {}  # of what has an anchor
    for event in events:
        if getattr(event, "tag", None) not in (None, "!", "tag:yaml.org,2002:str"):
            # The loader trips over `!!int x`.
            line = event.start_mark.line + 1
            raise ValueError(f"line {line}: the tag {event.tag}, and a recipe has none")
        if isinstance(event, yaml.AliasEvent):
            values += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1 + len(event.value) * _MOST_VALUES / MOST_CHARACTERS
            values += sizes[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            open_parts.append((event.anchor, values))
            values += 1
            sizes[event.anchor] = _MOST_VALUES + 1  # an alias within would have no end
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_parts.pop()
            sizes[anchor] = values - before
        if values > _MOST_VALUES or len(open_parts) > _MOST_LEVELS:
            return False
    return True


def _too_large(source: str) -> RecipeError:
    return RecipeError(
        f"{source}: over {_MOST_VALUES:,} values, {_MOST_LEVELS} levels, or 1 MB of text",
        rule="a recipe is small, even with its aliases (*name) written out",
        remedy=f"{_ROWS_ELSEWHERE}; write out what an alias repeats",
    )


def check_size(content: object, source: str) -> None:
    """RecipeError where Python values are more, deeper or larger than a recipe may hold."""
    for number, value in enumerate(_values(content, source)):
        if number > _MOST_VALUES:
            raise _too_large(source)
        if isinstance(value, int) and value.bit_length() > 63:
            raise RecipeError(
                f"{source}: a number of {value.bit_length()} bits",
                rule="a number in a recipe has at most 63 bits",
                remedy="write a smaller one",
            )
        if isinstance(value, str) and encodable(value) != value:
            raise RecipeError(
                f"{source}: {value[:MOST_SHOWN]!r}",
                rule="a recipe is text in UTF-8, which holds no lone surrogate",
                remedy="leave it out",
            )


def _values(part: object, source: str, levels: int = _MOST_LEVELS) -> Iterator[object]:
    yield part
    if isinstance(part, dict | list | tuple):
        if not levels:  # it may stand in itself
            raise _too_large(source)
        for item in (*part, *(part.values() if isinstance(part, dict) else ())):
            yield from _values(item, source, levels - 1)
