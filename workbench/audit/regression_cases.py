"""Regression cases: completions with the scores that they must get, kept in a file beside the task
and run as tests.

One JSON object per line, in `cases.jsonl` beside the task file::

    {"completion": "<answer>42</answer>", "columns": {"answer": "42"}, "expected":
    {"correctness_reward": 2.0}}
    {"completion": "", "expected": 0}

`expected` is a number (the weighted total), or scores by function (`null`: it must not apply;
"total": the total). `columns` replaces columns of the task's first row; `row` chooses another row
by its number.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError, field_validator

from workbench.base.errors import TaskError
from workbench.base.kinds import Fields
from workbench.base.workspace import find, shown
from workbench.rewards.suite import RewardSuite
from workbench.task import Task
from workbench.tasks.loading import load_task

FILE = "cases.jsonl"
TOTAL = "total"
_RULE = 'a case is {"completion": ..., "expected": ...}, with optional "columns", "row" and "name"'


class RegressionCase(BaseModel, strict=True, extra="forbid"):
    """A completion of a row, and what it must score, as a line of the file has it."""

    completion: str
    expected: dict[str, float | None]  # function or TOTAL -> score; None: it does not apply
    columns: Fields = {}  # of the row; `load_cases` adds those that it does not replace
    row: int = Field(0, ge=0)
    name: Any = ""
    line: int = 0  # of the file, by `load_cases`

    @field_validator("expected", mode="before")
    @classmethod
    def _total(cls, value: object) -> object:
        return value if isinstance(value, dict) else {TOTAL: value}


@dataclass(frozen=True, repr=False)
class CaseResults:
    """A task's regression cases and those that failed; a case fails once per function. `str` names
    them.
    """

    cases: list[RegressionCase]
    failures: list[tuple[int, str]]  # line of the case, and what a function did there

    @property
    def ok(self) -> bool:
        """Whether there are cases, and all of them hold."""
        return bool(self.cases) and not self.failures

    def __str__(self) -> str:
        if not self.cases:
            return f"no regression cases: write {FILE} beside the task file"
        holding = len(self.cases) - len({line for line, _ in self.failures})
        head = f"{holding} of {len(self.cases)} regression cases hold"
        return "\n".join([head, *(words for _, words in self.failures)])

    __repr__ = __str__


def check_cases(task: Task | str | Path, file: str | Path | None = None) -> CaseResults:
    """Score a task's regression cases.

    Args:
        task: a `Task`, a task file, or the name of a task that ships.
        file: where the cases are; None: where the task says, or `cases.jsonl` beside the task file.

    Raises:
        TaskError: as `load_cases`.

    In a test of your own::

        assert wb.check_cases("tasks/mine/task.py").ok

    >>> print(wb.check_cases("countdown"))
    6 of 6 regression cases hold
    """
    task = load_task(task)
    cases = load_cases(task, file)
    with contextlib.closing(RewardSuite(task, 1, on_error="skip")) as suite:
        return CaseResults(cases, failed_cases(suite, cases))


def cases_file(task: Task) -> Path | None:
    """The file that holds a task's cases: the one that it names, or `cases.jsonl` beside it; None
    if there is none.
    """
    if task.cases is not None:
        return find(task.cases)
    beside = Path(task.source).parent / FILE
    return beside if task.source and beside.is_file() else None


def load_cases(task: Task, file: str | Path | None = None) -> list[RegressionCase]:
    """A task's cases, from `file` or from where the task says; TaskError, with file and line, for
    one that cannot be scored.
    """
    path = cases_file(task) if file is None else find(file)
    if path is None:
        return []
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error if path.is_file() else "no such file"
        raise TaskError(
            f"{shown(path)}: {reason}",
            rule="cases are a file of JSON lines, in UTF-8",
            remedy="correct or omit its path, or save it as UTF-8",
        ) from None
    # a text may hold other line breaks, such as U+2028
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [_case(task, line, number, f"{shown(path)}, line {number}") for number, line in numbered]


def _case(task: Task, line: str, number: int, where: str) -> RegressionCase:
    def wrong(what: str, remedy: str) -> TaskError:
        return TaskError(f"{where}: {what}", rule=_RULE, remedy=remedy)

    try:
        case = RegressionCase.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise wrong(
            f"{field} = {first['input']!r:.80}: {first['msg']}".removeprefix(" = "),
            "correct that line",
        ) from None
    if case.row >= len(task.rows):
        raise wrong(f"row = {case.row}", f"the task has rows 0 to {len(task.rows) - 1}")
    row = task.rows[case.row]
    for what, names, known in (
        ("column", case.columns, row),
        ("expects", case.expected, (*task.function_names, TOTAL)),
    ):
        if strange := [name for name in names if name not in known]:
            raise wrong(f"{what} {strange[0]!r}", f"choose from {', '.join(map(str, known))}")
    name = case.name or (case.completion.strip().splitlines() or ["(empty)"])[-1][:40]
    return case.model_copy(
        update={"line": number, "name": name, "columns": {**row, **case.columns}}
    )


def failed_cases(
    suite: RewardSuite, cases: list[RegressionCase], quiet: bool = False
) -> list[tuple[int, str]]:
    """(line, what is wrong) of the cases that a suite does not score as expected; a total is that
    of its task's own weights.
    """
    if not cases:
        return []
    columns = [case.columns for case in cases]
    scored = suite.score_each(columns, [case.completion for case in cases], quiet=quiet)
    failures: list[tuple[int, str]] = []
    for index, case in enumerate(cases):
        scores = {name: each.scores[index] for name, each in scored.items()}
        known = np.nan_to_num([*scores.values()])
        scores[TOTAL] = math.fsum(known * suite.task.weights)
        wrong = [
            f"{name} {each.errors[index]} for {case.completion[:80]!r}"
            for name, each in scored.items()
            if index in each.errors
        ]
        # where one failed, nothing is expected of the others
        for name, expected in case.expected.items() if not wrong else ():
            right = math.nan if expected is None else expected
            given = suite.given_by_environments
            if expected is not None and given and name in (*given, TOTAL):
                said = "given by the environment, and a text alone has none"
                wrong.append(f"{name}: {', '.join(given)} is {said}")
            elif not np.isclose(scores[name], right, rtol=1e-6, atol=1e-6, equal_nan=True):
                was, expects = (
                    "None" if math.isnan(score) else f"{score:g}" for score in (scores[name], right)
                )
                wrong.append(f"{name} is {was}, expected {expects}")
        failures += [(case.line, f"line {case.line} ({case.name}): {each}") for each in wrong]
    return failures
