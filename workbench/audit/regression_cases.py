"""Regression cases: completions with the scores that they must get, kept in a file beside the task and run as tests.

One JSON object per line, in `cases.jsonl` beside the task file::

    {"completion": "<answer>42</answer>", "columns": {"answer": "42"}, "expected": {"correctness_reward": 2.0}}
    {"completion": "", "expected": 0}

`expected` is a number (the weighted total), or scores by function (`null`: it must not apply; "total": the total).
`columns` replaces columns of the task's first row; `row` chooses another row by its number.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, repr=False)
class CaseResults:
    """A task's regression cases and those that failed; a case fails once per function. `str` names them."""

    cases: list[Case]
    failures: list[tuple[int, str]]  # line of the case, and what a function did there

    @property
    def ok(self) -> bool:
        """Whether there are cases, and all of them hold."""
        return bool(self.cases) and not self.failures

    def __str__(self) -> str:
        if not self.cases:
            return f"no regression cases: write {FILE} beside the task file"
        failed = {line for line, _ in self.failures}
        head = f"{len(self.cases) - len(failed)} of {len(self.cases)} regression cases hold"
        return "\n".join([head, *(said for _, said in self.failures)])

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
    return CaseResults(cases, failed_cases(task, cases))


def cases_file(task: Task) -> Path | None:
    """The file that holds a task's cases: the one that it names, or `cases.jsonl` beside it; None if there is none."""
    if task.cases is not None:
        return find(task.cases)
    beside = Path(task.source).parent / FILE if task.source else None
    return beside if beside is not None and beside.is_file() else None


def load_cases(task: Task, file: str | Path | None = None) -> list[Case]:
    """A task's cases, from `file` or from where the task says; TaskError, with file and line, for one that cannot be scored."""
    path = find(file) if file is not None else cases_file(task)
    if path is None:
        return []
    if not path.is_file():
        raise TaskError(f"{shown(path)}: no such file", rule="cases are a file of JSON lines", remedy="correct or omit its path")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a text may hold other line breaks, such as U+2028
    except UnicodeDecodeError as error:
        raise TaskError(f"{shown(path)}: {error}", rule="cases are UTF-8 text", remedy="save it as UTF-8") from None
    return [_case(task, line, number, path) for number, line in enumerate(lines, 1) if line.strip()]


def _case(task: Task, line: str, number: int, path: Path) -> Case:
    def wrong(what: str, remedy: str) -> TaskError:
        rule = 'a case is {"completion": ..., "expected": ...}, with optional "columns", "row" and "name"'
        return TaskError(f"{shown(path)}, line {number}: {what}", rule=rule, remedy=remedy)

    try:
        content = json.loads(line)
    except ValueError as error:
        raise wrong(f"not JSON ({error})", "write one JSON object per line") from None
    if not isinstance(content, dict) or not isinstance(content.get("completion"), str) or "expected" not in content:
        raise wrong(line.strip()[:80], "give at least a completion (text) and the expected score")
    if unknown := sorted(set(content) - _FIELDS):
        raise wrong(f"unknown field {unknown[0]!r}", f"the fields are {', '.join(sorted(_FIELDS))}")
    row, columns = content.get("row", 0), content.get("columns", {})
    if type(row) is not int or not 0 <= row < len(task.rows):
        raise wrong(f"row = {row!r}", f"the task has rows 0 to {len(task.rows) - 1}")
    if not isinstance(columns, dict):
        raise wrong(f"columns = {columns!r}", 'columns are {"name": value, ...}')
    if strange := sorted(set(columns) - set(task.rows[row])):
        raise wrong(f"column {strange[0]!r}", f"the row has the columns {', '.join(map(str, task.rows[row]))}")
    expected = content["expected"] if isinstance(content["expected"], dict) else {TOTAL: content["expected"]}
    for function, value in expected.items():
        if function not in (*task.function_names, TOTAL):
            raise wrong(f"expects {function!r}", f"choose from {', '.join(task.function_names)} and {TOTAL}")
        if type(value) not in (int, float, type(None)):
            raise wrong(f"expects {function} = {value!r}", "a score is a number, or null where it does not apply")
    name = content.get("name") or (content["completion"].strip().splitlines() or ["(empty)"])[-1][:40]
    return Case(number, str(name), {**task.rows[row], **columns}, content["completion"], expected)


def failed_cases(task: Task, cases: list[Case], suite: RewardSuite | None = None, quiet: bool = False) -> list[tuple[int, str]]:
    """The cases that a task's rewards do not score as expected; `suite`: the task's, if there is one already."""
    if not cases:
        return []
    with contextlib.nullcontext(suite) if suite else contextlib.closing(RewardSuite(task, 1, on_error="skip")) as own:
        scored = own.score_each([case.row for case in cases], [case.completion for case in cases], quiet=quiet)
    failures = []
    for index, case in enumerate(cases):
        place = f"line {case.line} ({case.name})"
        errors = {name: each.errors[index] for name, each in scored.items() if index in each.errors}
        said = [f"{place}: {name} {error} for {case.completion[:80]!r}" for name, error in errors.items()]
        found = {name: None if math.isnan(each.scores[index]) else each.scores[index] for name, each in scored.items()}
        found[TOTAL] = math.fsum(weight * (found[name] or 0.0) for name, weight in zip(own.names, own.weights, strict=True))
        for function, expected in case.expected.items() if not errors else ():
            score, known = found[function], None not in (found[function], expected)
            if not (math.isclose(score, expected, rel_tol=1e-6, abs_tol=1e-6) if known else score is expected):
                was, right = ("None" if value is None else f"{value:g}" for value in (score, expected))
                said.append(f"{place}: {function} is {was}, expected {right}")
        failures += [(case.line, each) for each in said]
    return failures
