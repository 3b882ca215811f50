"""The right answer inside a column: what stands after `####`, and whether a text is one number."""

from __future__ import annotations

import math
import re
from typing import Any

MARK = "####"
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
    if isinstance(answer, bool):
        return None, None, "answer is true or false, not text"
    if isinstance(answer, (int, float)):
        if not math.isfinite(answer):
            return None, None, "answer is not a finite number"
        # A spreadsheet and JSON both make 4.0 of a whole number now and then.
        text = str(int(answer)) if answer == int(answer) and abs(answer) < 1e15 else repr(answer)
        return text, "answer: number written as text", None
    if isinstance(answer, (list, tuple)) and len(answer) == 1 and isinstance(answer[0], (str, int, float)):
        text, _, reason = as_text(answer[0])
        return text, "answer: taken out of a list of one", reason
    if isinstance(answer, (list, tuple)):
        return None, None, "answer is a list of several" if answer else "answer is an empty list"
    if isinstance(answer, dict):
        return None, None, "answer is an object, not text"
    if hasattr(answer, "item"):  # numpy's numbers
        return as_text(answer.item())
    return str(answer), "answer: written as text", None
