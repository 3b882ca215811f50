"""Golden cases: completions with the scores that they must get, kept in a file beside the task and run as tests.

One JSON object a line, in `cases.jsonl` beside the task file::

    {"completion": "<answer>42</answer>", "columns": {"answer": "42"}, "expected": {"correctness_reward": 2.0}}
    {"completion": "", "expected": 0}

`expected` is a number (the weighted total), or scores by function (`null`: it must not apply; "total": the total).
`columns` stands in for the columns of the task's first row; `row` names another one by its number.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import TaskError
from workbench.rewards.suite import RewardSuite
from workbench.task import Row, Task, load_task
from workbench.workspace import find, shown

FILE = "cases.jsonl"
TOTAL = "total"
_FIELDS = {"completion", "columns", "row", "expected", "name"}


@dataclass(frozen=True)
class Case:
    """A completion of a row, and what it must score."""

    line: int
    name: str
    row: Row
    completion: str
    expected: dict[str, float | None]


@dataclass(frozen=True)
class Missed:
    """A case that did not score what it must."""

    case: Case
    function: str  # or "total"
    expected: float | None
    found: float | None
    failed: str = ""  # what the function did instead

    def __str__(self) -> str:
        if self.failed:
            return f"line {self.case.line} ({self.case.name}): {self.function} {self.failed} for {self.case.completion[:80]!r}"
        expected, found = ("None" if value is None else f"{value:g}" for value in (self.expected, self.found))
        return f"line {self.case.line} ({self.case.name}): {self.function} is {found}, expected {expected}"


def cases_file(task: Task) -> Path | None:
    """The file that holds a task's cases: the one that it names, or `cases.jsonl` beside it; None if there is none."""
    if task.cases is not None:
        return find(task.cases)
    beside = Path(task.source).parent / FILE if task.source else None
    return beside if beside is not None and beside.is_file() else None


def load_cases(task: Task, file: str | Path | None = None) -> list[Case]:
    """A task's cases.

    Args:
        file: where they are; None: where the task says.

    Raises:
        TaskError: naming file and line, if one cannot be read or names a function that the task does not have.
    """
    path = find(file) if file is not None else cases_file(task)
    if path is None:
        return []
    if not path.is_file():
        raise TaskError(
            f"{shown(path)}: no such file",
            rule="cases are one file of JSON lines",
            remedy="give its path, or leave it out",
        )
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a text may hold other line breaks, such as U+2028
    except UnicodeDecodeError as error:
        raise TaskError(f"{shown(path)}: {error}", rule="cases are UTF-8 text", remedy="save it as UTF-8") from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            found.append(_case(task, line, number, path))
    return found


def _case(task: Task, line: str, number: int, path: Path) -> Case:
    def wrong(what: str, remedy: str) -> TaskError:
        return TaskError(
            f"{shown(path)}, line {number}: {what}",
            rule='a case is {"completion": ..., "expected": ...}, and maybe "columns", "row" and "name"',
            remedy=remedy,
        )

    try:
        content = json.loads(line)
    except ValueError as error:
        raise wrong(f"not JSON ({error})", "write one JSON object a line") from None
    if not isinstance(content, dict) or not isinstance(content.get("completion"), str) or "expected" not in content:
        raise wrong(f"{line.strip()[:80]}", "give at least a completion (text) and what is expected")
    if unknown := sorted(set(content) - _FIELDS):
        raise wrong(f"unknown field {unknown[0]!r}", f"the fields are {', '.join(sorted(_FIELDS))}")
    row = content.get("row", 0)
    if isinstance(row, bool) or not isinstance(row, int) or not 0 <= row < len(task.rows):
        raise wrong(f"row = {row!r}", f"the task has rows 0 to {len(task.rows) - 1}")
    columns = content.get("columns", {})
    if not isinstance(columns, dict):
        raise wrong(f"columns = {columns!r}", 'columns are {"name": value, ...}')
    columns = content.get("columns", {})
    if isinstance(columns, dict) and (strange := sorted(set(columns) - set(task.rows[row]))):
        raise wrong(f"column {strange[0]!r}", f"the row has the columns {', '.join(map(str, task.rows[row]))}")
    expected = content["expected"] if isinstance(content["expected"], dict) else {TOTAL: content["expected"]}
    for function, value in expected.items():
        if function not in (*task.function_names, TOTAL):
            raise wrong(f"expects {function!r}", f"choose from {', '.join(task.function_names)} and {TOTAL}")
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise wrong(f"expects {function} = {value!r}", "a score is a number, or null where it does not apply")
    name = content.get("name") or (content["completion"].strip().splitlines() or ["(empty)"])[-1][:40]
    return Case(number, str(name), {**task.rows[row], **columns}, content["completion"], expected)


def missed_cases(task: Task, cases: list[Case], suite: RewardSuite | None = None, quiet: bool = False) -> list[Missed]:
    """The cases that a task's rewards do not score as expected.

    Args:
        suite: the task's, if there is one already.
        quiet: what the functions print is not shown.
    """
    if not cases:
        return []
    own = suite is None
    suite = suite or RewardSuite(task, 1, on_error="skip")
    try:
        rows, completions = [case.row for case in cases], [case.completion for case in cases]
        scored = suite.score_each(rows, completions, quiet=quiet)
        scores = np.array([scored[name].scores for name in suite.names], dtype=float).T
    finally:
        if own:
            suite.close()
    missed = []
    for index, (case, by_function) in enumerate(zip(cases, scores, strict=True)):
        failures = {name: scored[name].errors[index] for name in suite.names if index in scored[name].errors}
        missed += [Missed(case, name, None, None, failed) for name, failed in failures.items()]
        if failures:
            continue
        found: dict[str, Any] = {name: _none(score) for name, score in zip(suite.names, by_function, strict=True)}
        found[TOTAL] = math.fsum(
            weight * score for weight, score in zip(suite.weights, by_function, strict=True) if score == score
        )
        for function, expected in case.expected.items():
            same = (
                found[function] == expected
                if None in (found[function], expected)
                else _close(found[function], expected)
            )
            if not same:
                missed.append(Missed(case, function, expected, found[function]))
    return missed


def _close(found: float, expected: float) -> bool:
    return math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-6)


def _none(score: float) -> float | None:
    return None if math.isnan(score) else float(score)


def assert_cases(task: Task | str | Path) -> None:
    """For a test of one's own: fail, with every case that is missed, unless all of a task's cases hold.

    Raises:
        AssertionError: naming the cases that do not hold.
        TaskError: if there are none.
    """
    task = task if isinstance(task, Task) else load_task(task)
    cases = load_cases(task)
    if not cases:
        raise TaskError(
            f"task {task.name!r}: no cases",
            rule=f"cases stand in {FILE} beside the task file",
            remedy="write one there",
        )
    missed = missed_cases(task, cases)
    if missed:
        raise AssertionError("\n".join(map(str, missed)))
