"""The right answer inside a column: what stands after `####`, and whether a text is one number."""

from __future__ import annotations

import math
import re
from collections import Counter
from datetime import date
from decimal import Decimal
from typing import Any

MARK = "####"
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
    tail = tail.strip()
    if not found or not tail:
        return None
    first = tail.splitlines()[0].strip()
    return first.replace(",", "") if is_number(first) else first


def is_number(text: str) -> bool:
    """Whether a text is one number: digits, thousands' commas, a sign, a fraction, `$` or `%`.

    >>> is_number("-1,000.50"), is_number("3/4"), is_number("12 apples")
    (True, True, False)
    """
    text = text.strip()
    return len(text) <= 60 and any(map(str.isdigit, text)) and _NUMBER.fullmatch(text) is not None


def unit_of(text: str) -> str | None:
    """The unit of a text that is one number and its unit; None if it is anything else.

    >>> unit_of("49000 g"), unit_of("3 km/h"), unit_of("49000"), unit_of("about 3 g")
    ('g', 'km/h', None, None)
    """
    found = _WITH_UNIT.fullmatch(text) if len(text) <= _LONGEST else None
    return found and found[1]


class Units:
    """Counts how the answers of a dataset are written, where they are numbers: bare, or with which unit."""

    def __init__(self) -> None:
        self.units: Counter[str | None] = Counter()  # None: bare numbers
        self._first: dict[str | None, str] = {}
        self._commas, self._comma = 0, ""  # how many, and the first

    def count(self, number: int, answer: str | None) -> None:
        """Count the answer of a kept row."""
        answer = answer or ""
        if _COMMA.fullmatch(answer):
            self._commas += 1
            self._comma = self._comma or f"{answer!r}, row {number}"
        unit = None if answer.isdigit() else unit_of(answer)
        if unit is None and not (answer.isdigit() or is_number(answer)):
            return
        if unit not in self._first:
            if len(self._first) >= 100:
                return
            self._first[unit] = f"{answer!r}, row {number}"
        self.units[unit] += 1

    @property
    def notes(self) -> list[str]:
        """Lines about answers that are not all written alike, or that a comma makes doubtful."""
        commas = [
            f"{self._commas} of the answers hold a comma as in 0,75 ({self._comma}): rewards take them for two "
            "numbers; write 0.75 if they are decimals"
        ] * bool(self._commas)
        units, bare = [unit for unit, _ in self.units.most_common() if unit], self.units[None]
        if not units or len(self.units) < 2:
            return commas
        found = f"{self.units.total() - bare} answers are a number and a unit ({'; '.join(self._first[u] for u in units[:3])})"
        found += f", {bare} bare number{'s' * (bare > 1)} ({self._first[None]})" if bare else f", of {len(units)} units"
        return [*commas, f"{found}: a reward that compares them calls one form wrong where the other is the answer"]


def is_placeholder(text: str) -> bool:
    """Whether an answer is a word that often stands for "there is none"."""
    return text.casefold() in _PLACEHOLDERS


def is_marked(answer: Any, mark: str = MARK) -> bool:
    """Whether a text ends with a line that begins with the mark, as GSM8K's answers do."""
    return isinstance(answer, str) and answer.rstrip().rpartition("\n")[2].lstrip().startswith(mark)


def says(line: str, answer: str) -> bool:
    """Whether a line says the answer: `Answer: 12`, `The answer is $12.`, `#### 12`, `\\boxed{12}`.

    Only where nothing else follows: "Answer: yes or no" says nothing. Linear in the line's length.

    >>> says("Answer: 12 eggs", "12"), says("The answer is: **12**.", "12")
    (False, True)
    """
    line, wanted = line.casefold(), _bare(answer)
    for mark in (*_NOUNS, MARK, "<answer>", "\\boxed"):
        place = line.rfind(mark)
        if place < 0:
            continue
        rest = line[place + len(mark) :]
        if mark in _NOUNS:
            rest = rest.lstrip("* \t")
            if not rest.startswith(("is ", "is:", ":", "=")):
                continue
            rest = rest.removeprefix("is")
        if _bare(rest) == wanted:
            return True
    return False


_NOUNS = ("answer", "solution", "result")


def _bare(text: str) -> str:
    text = text.strip().casefold().replace("</answer>", "").replace("\\boxed", "").strip(" \t*\"'`{}()$.!:=")
    return text.replace(",", "") if is_number(text) else text


def as_text(answer: Any) -> tuple[str | None, str | None, str | None]:
    """(the answer as text, the repair that made it so, the reason why it cannot be one); unneeded parts are None.

    Answers are text: reward functions compare texts, and a column that holds numbers in some rows and text in others
    cannot be handed to a trainer at all.
    """
    if isinstance(answer, str):
        stripped = answer.strip()
        if not stripped:
            return None, None, "answer is empty"
        return stripped, None if stripped == answer else "answer: surrounding white space taken off", None
    if answer is None:
        return None, None, "no answer"
    if hasattr(answer, "tolist"):  # numpy's numbers and arrays
        return as_text(answer.tolist())
    if isinstance(answer, bool):
        return None, None, "answer is true or false, not text"
    if isinstance(answer, (int, float)):
        return _number_as_text(answer)
    if isinstance(answer, (list, tuple)):
        return _list_as_text(answer)
    if isinstance(answer, dict):
        return None, None, "answer is an object, not text"
    if isinstance(answer, (bytes, bytearray)):
        try:
            text, _, reason = as_text(bytes(answer).decode("utf-8"))
        except UnicodeDecodeError:
            return None, None, "answer is bytes that are not UTF-8"
        return text, "answer: bytes read as UTF-8", reason
    if isinstance(answer, (Decimal, date)):  # a datetime is a date
        return str(answer), f"answer: {type(answer).__name__} written as text", None
    return None, None, f"answer is a {type(answer).__name__}, not text"


def _number_as_text(answer: int | float) -> tuple[str | None, str | None, str | None]:
    if isinstance(answer, float) and not math.isfinite(answer):
        return None, None, "answer is not a finite number"
    # A spreadsheet and JSON both make 4.0 of a whole number now and then.
    exact = int(answer) if isinstance(answer, int) or (answer == int(answer) and abs(answer) < 1e15) else answer
    if isinstance(exact, int) and abs(exact) >= 10**_LONGEST:
        return None, None, f"answer is a number of more than {_LONGEST} digits"
    return repr(exact), "answer: number written as text", None


def _list_as_text(answer: Any) -> tuple[str | None, str | None, str | None]:
    if len(answer) == 1 and isinstance(answer[0], (str, int, float)):
        text, _, reason = as_text(answer[0])
        return text, "answer: taken out of a list of one", reason
    return (
        None,
        None,
        ("answer is a list of several" if len(answer) > 1 else "answer is a list without a text in it")
        if answer
        else "answer is an empty list",
    )
