"""The right answer inside a column: what stands after `####`, and whether a text is one number."""

from __future__ import annotations

import math
import re
from collections import Counter
from datetime import date
from decimal import Decimal
from typing import Any

from workbench.data import reasons
from workbench.data.reasons import Findings, LeftOut, answer_is

MARK = "####"
_NOUNS = ("answer", "solution", "result")
_LONGEST = 60  # digits of an answer that is a number
_PLACEHOLDERS = {"n/a", "none", "null", "nan", "unknown", "tbd", "-", "?"}
_WITH_UNIT = re.compile(r"[+-]?[$€£]?\d[\d,.]*\s*([^\W\d_][^\d\s]*(?: [^\W\d_]+)?|[°µ€£][^\d\s]{0,5})[²³]?")
_COMMA = re.compile(r"[+-]?\d+,(?!\d{3}$)\d+", re.ASCII)  # 0,75; no thousands
_NUMBER = re.compile(r"[+-]?\$?[+-]?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?(/\d+)?%?", re.ASCII)


def extract_answer(text: Any, mark: str = MARK) -> str | None:
    """What stands after the last `mark` of a worked answer, without thousands' commas; None if there is no mark.

    >>> extract_answer("5 + 3 = <<5+3=8>>8\\n#### 1,008")
    '1008'
    """
    _, found, tail = str(text).rpartition(mark)
    first = next(iter(tail.strip().splitlines()), "").strip()
    if not found or not first:
        return None
    return first.replace(",", "") if is_number(first) else first


def is_number(text: str) -> bool:
    """Whether a text is one number: digits, thousands' commas, a sign, a fraction, `$` or `%`.

    >>> is_number("-1,000.50"), is_number("3/4"), is_number("12 apples")
    (True, True, False)
    """
    text = text.strip()
    return len(text) <= _LONGEST and any(map(str.isdigit, text)) and _NUMBER.fullmatch(text) is not None


def unit_of(text: str) -> str | None:
    """The unit of a text that is one number and its unit; None if it is anything else.

    >>> unit_of("49000 g"), unit_of("3 km/h"), unit_of("49000"), unit_of("about 3 g")
    ('g', 'km/h', None, None)
    """
    found = _WITH_UNIT.fullmatch(text) if len(text) <= _LONGEST else None
    return found and found[1]


class Units:
    """Counts how the answers of a dataset are written, where they are numbers: bare, with a unit, or with a doubtful comma."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()  # unit ("": a bare number) or "0,75" -> answers
        self._first: dict[str, str] = {}

    def count(self, number: int, answer: str | None) -> None:
        """Count the answer of a kept row."""
        answer = answer or ""
        unit = "" if answer.isdigit() or is_number(answer) else unit_of(answer)
        for kind in (unit, "0,75" if _COMMA.fullmatch(answer) else None):
            if kind is not None and (kind in self._first or len(self._first) < 100):
                self._first.setdefault(kind, f"{answer!r}, row {number}")
                self._counts[kind] += 1

    @property
    def notes(self) -> list[str]:
        """Lines about answers that are not all written alike, or that a comma makes doubtful."""
        notes, first, counts = [], self._first, dict(self._counts.most_common())
        commas, bare = counts.pop("0,75", 0), counts.pop("", 0)
        if commas:
            notes.append(
                f"{commas} of the answers hold a comma as in 0,75 ({first['0,75']}): rewards take them for two numbers; "
                "write 0.75 if they are decimals"
            )
        if counts and len(counts) + bool(bare) > 1:
            found = f"{sum(counts.values())} answers are a number and a unit ({'; '.join(first[unit] for unit in [*counts][:3])})"
            found += f", {bare} bare number{'s' * (bare > 1)} ({first['']})" if bare else f", of {len(counts)} units"
            notes.append(f"{found}: a reward that compares them calls one form wrong where the other is the answer")
        return notes


def is_placeholder(text: str) -> bool:
    """Whether an answer is a word that often stands for "there is none"."""
    return text.casefold() in _PLACEHOLDERS


def says(line: str, answer: str) -> bool:
    """Whether a line says the answer: `Answer: 12`, `The answer is $12.`, `#### 12`, `\\boxed{12}`.

    Only where nothing else follows: "Answer: yes or no" says nothing. Linear in the line's length.

    >>> says("Answer: 12 eggs", "12"), says("The answer is: **12**.", "12")
    (False, True)
    """
    line, wanted = line.casefold(), _bare(answer)
    for mark in (*_NOUNS, MARK, "<answer>", "\\boxed"):
        _, found, rest = line.rpartition(mark)
        if mark in _NOUNS:
            rest = rest.lstrip("* \t")
            found = found and rest.startswith(("is ", "is:", ":", "="))
            rest = rest.removeprefix("is")
        if found and _bare(rest) == wanted:
            return True
    return False


def _bare(text: str) -> str:
    text = text.strip().casefold().replace("</answer>", "").replace("\\boxed", "").strip(" \t*\"'`{}()$.!:=")
    return text.replace(",", "") if is_number(text) else text


def as_text(answer: Any, found: Findings) -> str:
    """The answer as text; how it was made text is added to `found`.

    Answers are text: reward functions compare texts, and a column that holds numbers in some rows and text in others
    cannot be handed to a trainer at all.

    Raises:
        LeftOut: if it cannot be text.
    """
    if hasattr(answer, "tolist"):  # numpy's numbers and arrays
        answer = answer.tolist()
    match answer:
        case str():
            text = answer.strip()
            if not text:
                raise LeftOut(reasons.EMPTY_ANSWER)
            repair = "surrounding white space taken off" if text != answer else ""
        case None:
            raise LeftOut(reasons.NO_ANSWER)
        case bool() | dict():
            raise LeftOut(answer_is("true or false, not text" if isinstance(answer, bool) else "an object, not text"))
        case int() | float():
            text, repair = _number(answer), "number written as text"
        case list() | tuple() if len(answer) == 1 and isinstance(answer[0], (str, int, float)):
            text, repair = as_text(answer[0], Findings()), "taken out of a list of one"
        case list() | tuple():
            several = "a list of several" if len(answer) > 1 else "a list without a text in it"
            raise LeftOut(answer_is(several if answer else "an empty list"))
        case bytes() | bytearray():
            try:
                text, repair = as_text(bytes(answer).decode("utf-8"), Findings()), "bytes read as UTF-8"
            except UnicodeDecodeError:
                raise LeftOut(answer_is("bytes that are not UTF-8")) from None
        case Decimal() | date():  # a datetime is a date
            text, repair = str(answer), f"{type(answer).__name__} written as text"
        case _:
            raise LeftOut(answer_is(f"a {type(answer).__name__}, not text"))
    if repair:
        found.repaired(f"answer: {repair}")
    return text


def _number(answer: int | float) -> str:
    if isinstance(answer, float) and not math.isfinite(answer):
        raise LeftOut(answer_is("not a finite number"))
    # A spreadsheet and JSON both make 4.0 of a whole number now and then.
    exact = int(answer) if isinstance(answer, int) or (answer == int(answer) and abs(answer) < 1e15) else answer
    if isinstance(exact, int) and abs(exact) >= 10**_LONGEST:
        raise LeftOut(answer_is(f"a number of more than {_LONGEST} digits"))
    return repr(exact)
