"""The answer in a row: the column that holds it, judged by name, and what an answer's text says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from workbench.task import Row

MARK = "####"
FEW = 3  # rows that may have one answer by chance
_LONGEST = 60  # digits of an answer that is a number
ANSWER_ALIASES = (
    "ground_truth",
    "solution",
    "answers",
    "expert_answer",
    "raw_answer",
    "target",
    "output",
)
_NUMBER = re.compile(r"[+-]?\$?[+-]?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?(/\d+)?%?", re.ASCII)
_WITH_UNIT = re.compile(
    r"[+-]?[$€£]?\d[\d,.]*\s*([^\W\d_][^\d\s]*(?: [^\W\d_]+)?|[°µ€£][^\d\s]{0,5})[²³]?"
)


def called(names: Iterable[str], role: str, aliases: Sequence[str]) -> list[str]:
    """The names that mean a role: its own name and its aliases, in any case."""
    return [name for name in names if str(name).strip().casefold() in (role, *aliases)]


def answer_named(names: Iterable[str]) -> str | None:
    """The column that holds the answer, judged by name; None if none has such a name, or several
    do.
    """
    names = list(names)
    matches = called(names, "answer", ANSWER_ALIASES)
    return "answer" if "answer" in names else matches[0] if len(matches) == 1 else None


def has_constant(rows: Sequence[Row], column: str = "answer") -> bool:
    """Whether a column is the same in each of four rows or more: it cannot answer different
    questions.
    """
    if len(rows) <= FEW or (first := rows[0].get(column)) is None:
        return False
    return all(str(row.get(column)) == str(first) for row in rows)


def extract_answer(text: object, mark: str = MARK) -> str | None:
    """What stands after the last `mark` of a worked answer, without thousands' commas; None if
    there is no mark.

    >>> extract_answer("5 + 3 = <<5+3=8>>8\\n#### 1,008")
    '1008'
    """
    _, found, tail = str(text).rpartition(mark)
    first = next(iter(tail.strip().splitlines()), "").strip()
    if not found or not first:
        return None
    return first.replace(",", "") if is_number(first) else first


def is_number(text: str) -> bool:
    """Whether a text is one number: digits, thousands' commas, a sign, a fraction, `$` or `%`; "12
    apples" is none.
    """
    text = text.strip()
    return (
        len(text) <= _LONGEST
        and any(map(str.isdigit, text))
        and _NUMBER.fullmatch(text) is not None
    )


def unit_of(text: str) -> str | None:
    """The unit of a text that is one number and its unit, as km/h of "3 km/h"; None if it is
    anything else.
    """
    found = _WITH_UNIT.fullmatch(text) if len(text) <= _LONGEST else None
    return found and found[1]
