"""Why a function does not pay: what it is handed is changed, one thing at a time, until it pays the
reference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.audit.completions import AS_ASKED, WORDS_ONCE, as_numbers
from workbench.audit.findings import REFERENCE, Finding, ScoreTable, finding
from workbench.audit.prompt_format import asking_text
from workbench.audit.trial import Trial
from workbench.base.errors import RewardError
from workbench.data.prompts import to_messages
from workbench.rewards.tracing import calls_of, keywords_of
from workbench.task import Row

_FORMS = ("plain text", "chat messages")
Change = tuple[str, str, Sequence[Any]]  # rule, column, its other values


def cause_of(trial: Trial, table: ScoreTable, name: str, unpaid: Finding) -> Finding | None:
    """The cause of an `unpaid` finding of a function; None if none of these changes it."""
    with contextlib.suppress(RewardError):
        cause = _in_the_input(trial, name) or _in_the_batch(trial, name)
        # a penalty, or a guess, is no error
        if cause or unpaid.severity != "error" or not table.flat(table.scores[name]):
            return cause
        return _in_the_scale(trial, table, name)
    return None


def _earned(trial: Trial, name: str, rows: Sequence[Row], texts: Sequence[str]) -> float:
    return np.nan_to_num(trial.scored(name, rows, texts).scores, nan=-np.inf).max()


def _changes(trial: Trial, name: str) -> list[Change]:
    first, rows = trial.first, trial.rows
    right, answers = first.row.get(first.column), [each.answer for each in trial.builders]
    other_form = to_messages if isinstance(first.row["prompt"], str) else asking_text
    changes: list[Change] = [
        ("cause.column", column, [row.get(first.column) for row in rows])
        for column in keywords_of(trial.suite.functions[name])
        if column not in first.row
    ]
    changes.append(("cause.form", "prompt", [other_form(row["prompt"]) for row in rows]))
    if isinstance(right, (int, float)):
        changes.append(("cause.number", first.column, answers))
    elif (numbers := as_numbers(answers)) and isinstance(right, str):
        changes.append(("cause.text", first.column, numbers))
    return changes


def _in_the_input(trial: Trial, name: str) -> Finding | None:
    first, rows = trial.first, trial.rows
    right, plain = first.row.get(first.column), isinstance(first.row["prompt"], str)
    texts = [builder.reference for builder in trial.builders]
    now = _earned(trial, name, rows, texts)
    for rule, column, values in _changes(trial, name):
        others = [{**row, column: value} for row, value in zip(rows, values)]
        paid = _earned(trial, name, others, texts)
        if paid > max(now, _earned(trial, name, others, [""] * len(texts))):
            return finding(
                rule,
                paid=paid,
                column=column,
                answer=repr(right),
                type=type(right).__name__,
                number=type(values[0]).__name__,
                given=_FORMS[not plain],
                reads=_FORMS[plain],
            )
    return None


def _in_the_batch(trial: Trial, name: str) -> Finding | None:
    row, reference = trial.rows[0], trial.first.reference
    alone, empty = (_earned(trial, name, [row], [text]) for text in (reference, ""))
    pair = trial.scored(name, [row] * 2, [reference, ""]).scores
    if alone != empty and np.ptp(np.nan_to_num(pair)) == 0:
        return finding("cause.batch", paid=alone, empty=empty)
    return None


def _in_the_scale(trial: Trial, table: ScoreTable, name: str) -> Finding | None:
    first = trial.first
    paid = table.by_row(table.scores[name], REFERENCE, AS_ASKED)
    low, high = int(paid.argmin()), int(paid.argmax())
    rounds = calls_of(trial.suite.functions[name], ("round",))
    more = f"{first.reference} {WORDS_ONCE * 200}"
    if rounds and _earned(trial, name, trial.rows[:1], [more]) != paid.iloc[0]:
        return finding("cause.rounding", place=rounds[0])
    for column in first.row if paid[low] < paid[high] else ():
        other = {**trial.rows[low], column: trial.rows[high][column]}
        if trial.scored(name, [other], [first.reference]).scores[0] == paid[high]:
            return finding("cause.prompt", column=column)
    return None
