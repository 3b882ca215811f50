"""TRL's call of a reward function, by keyword: made from rows, for one completion, copied and sent,
and whether a function takes it.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from workbench.base.errors import RewardError, TaskError
from workbench.base.kinds import Fields, Function
from workbench.run.metrics import is_own
from workbench.task import Row

Call = Fields
_OF_TRAINER = ("trainer_state", "log_extra", "log_metric")
# What TRL passes beside the dataset's columns.
FROM_TRL = frozenset({"prompts", "completions", "completion_ids", "environments", *_OF_TRAINER})


def call_of(
    rows: Sequence[Row], completions: Sequence[str], completion_ids: Sequence[list[int]] | None
) -> Call:
    """TRL's call for completions of rows; without ids, bytes are tokens."""
    prompts = [row["prompt"] for row in rows]
    written = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, completions, strict=True)
    ]
    keys = [key for key in (rows[0] if len(rows) else ()) if key != "prompt"]
    columns = {key: [row.get(key) for row in rows] for key in keys}
    ids = list(completion_ids or [list(text.encode("utf-8", "replace")) for text in completions])
    given = {"prompts": prompts, "completions": written, "completion_ids": ids}
    return given | columns | before_training()


def call_of_rollouts(rollouts: Sequence[Any]) -> Fields:
    """What TRL's call has of rollouts that were played: messages, and environments."""
    return {
        "completions": [each.messages for each in rollouts],
        "environments": [each.environment for each in rollouts],
    }


def before_training() -> Call:
    """What a function may ask of the trainer before there is one: the step, and two calls that go
    nowhere.
    """
    state = SimpleNamespace(global_step=0, max_steps=1, epoch=0.0)
    return {"trainer_state": state, **dict.fromkeys(("log_extra", "log_metric"), _ignore)}


def _ignore(*_: object, **__: object) -> None:
    pass


def single(call: Call, index: int) -> Call:
    """A batch's call for one of its completions."""
    count = len(call["completions"])
    one = {
        key: [value[index]] if isinstance(value, list) and len(value) == count else value
        for key, value in call.items()
    }
    if "log_extra" in one:  # the trainer's log takes whole batches only
        one["log_extra"] = lambda *_, **__: None
    return one


def with_own_metrics(function: str, call: Call) -> Call:
    """The call for a function, whose logging must not take the place of the trainer's own numbers,
    nor end the run steps later.
    """
    if "log_metric" not in call:
        return call

    def logged(name: str, value: Any) -> None:
        try:
            fits = not is_own(str(name)) and not isinstance(value, (str, bytes))
            finite = math.isfinite(float(value))
        except (TypeError, ValueError, OverflowError):
            fits, finite = False, False
        if not fits:
            raise RewardError(
                f"{function} logs {name!r} = {value!r:.80}",
                rule="a function logs numbers, under names that neither TRL nor the workbench uses",
                remedy="log a number, under another name:"
                f" {function}/{str(name).rpartition('/')[2]}",
            )
        if finite:  # a mean of nothing is left out
            call["log_metric"](name, value)

    return {**call, "log_metric": logged}


def copied_call(call: Call) -> Call:
    """A call whose values may be changed."""
    own = {key: value if key in _OF_TRAINER else _copy(value) for key, value in call.items()}
    if (state := call.get("trainer_state")) is not None:  # with it the trainer counts its steps
        own["trainer_state"] = copy.copy(state)
        vars(own["trainer_state"]).update(
            {name: _copy(value) for name, value in vars(state).items()}
        )
    return own


def _copy(value: object) -> object:
    if isinstance(value, list):
        deep = any(isinstance(item, (list, dict)) for item in value)
        return [_copy(item) for item in value] if deep else list(value)
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, dict) else value


def changed_input(given: Call, own: Call) -> str:
    """The first input that a function changed in its copy; empty: none."""
    for key, value in given.items():
        # NaN is not equal to itself, and no change; arrays are not compared.
        with contextlib.suppress(ValueError):
            other = own.get(key)
            if isinstance(value, list) and value != other and repr(value) != repr(other):
                return key
    return ""


def picklable(call: Call) -> Call:
    """What of a call another process can be sent."""
    sent = {key: None if key.startswith("log_") else value for key, value in call.items()}
    sent.pop("environments", None)  # who takes them is called here
    if (state := call.get("trainer_state")) is not None:
        simple = (int, float, str)
        kept = {key: value for key, value in vars(state).items() if isinstance(value, simple)}
        sent["trainer_state"] = SimpleNamespace(**kept)
    return sent


# -- what a function takes of it
def takes_environments(function: Function) -> bool:
    """Whether it is handed the environments of its rollouts, which only a run has."""
    with contextlib.suppress(TypeError, ValueError):
        return "environments" in inspect.signature(function).parameters
    return False


def missing_columns(function: Function, row: Row) -> list[str]:
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
    if missing := next(iter(missing_columns(function, rows[0])), None):
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
