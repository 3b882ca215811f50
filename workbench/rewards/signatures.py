"""Whether TRL's keyword call, and a task's columns, are what a reward function takes."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Iterator, Sequence

from workbench.errors import TaskError
from workbench.kinds import Function
from workbench.rewards.calls import FROM_TRL
from workbench.task import Row


def takes_environments(function: Function) -> bool:
    """Whether it is handed the environments of its rollouts, which only a run has."""
    with contextlib.suppress(TypeError, ValueError):
        return "environments" in inspect.signature(function).parameters
    return False


def lacks(function: Function, row: Row) -> list[str]:
    """Parameters without a default that neither TRL nor the row has."""
    return [each for each in _needed(function) if each not in _keywords(row)]


def check_signature(name: str, function: Function, rows: Sequence[Row]) -> None:
    """TaskError unless a function accepts TRL's keyword call and finds its columns in every row."""
    for value, rule, remedy in _misfits(name, function, rows):
        raise TaskError(f"{name} {value}", rule=rule, remedy=remedy)


def _needed(function: Function) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    own = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return [p.name for p in own if p.default is p.empty]


def _keywords(row: Row) -> frozenset[str]:
    return (FROM_TRL | set(row)) - {"prompt"}


def _misfits(name: str, function: Function, rows: Sequence[Row]) -> Iterator[tuple[str, str, str]]:
    parameters = inspect.signature(function).parameters.values()
    if missing := next(iter(lacks(function, rows[0])), None):
        columns = ", ".join(map(str, rows[0]))
        rule = (
            "a reward function gets `prompts`, `completions` and the dataset's columns, by keyword"
        )
        remedy = (
            f"add a column {missing!r} to the rows, or rename the parameter to one that is there"
        )
        if f"{missing}s" in FROM_TRL:
            remedy = (
                f"rename the parameter to {missing}s: it is a list with one item per completion"
            )
        yield f"needs {missing!r}; the rows have the columns {columns}", rule, remedy
    for column in sorted(set(_needed(function)) - FROM_TRL):
        if empty := [number for number, row in enumerate(rows) if row.get(column) is None]:
            value = (
                f"needs {column!r}, and {len(empty)} rows have none (the first is row {empty[0]})"
            )
            remedy = "fill it in or leave those rows out; wb.check lists them"
            yield value, "it reads that column of every row", remedy
    for column, kind in getattr(function, "json_columns", {}).items():
        for number, row in enumerate(rows):
            with contextlib.suppress(TypeError, ValueError, RecursionError):
                if isinstance(json.loads(row[column]), kind):
                    continue
            example = json.dumps({"label": str(row[column])[:40]}, ensure_ascii=False)
            value = f"needs JSON text in {column!r}, and row {number} has {row[column]!r:.80}"
            remedy = (
                f"write an object there, such as {example}, or compare the word in your own"
                " function"
            )
            yield value, "it reads that column of every row as JSON", remedy
    by_keyword = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    extra = sorted(_keywords(rows[0]) - by_keyword)
    if extra and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        rule = "TRL passes every column, and a few objects besides, by keyword"
        remedy = f"end its signature with **kwargs: def {name}(completions, **kwargs)"
        yield f"does not accept {extra[0]!r}", rule, remedy
