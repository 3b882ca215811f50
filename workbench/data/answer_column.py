"""The answer in a row: the column that holds it, judged by name, and what an answer's text says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

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

_BOX = re.compile(r"\\boxed\s*+\{|\\[{}]|[{}]")
_BETWEEN = re.compile(r"(?:\\text\{|\\q?quad|\b(?:and|or)\b|[\s,;.$&}\\])*+")
# What a text's last line says after such words, and behind the letter of the thing asked for.
_SAID = re.compile(
    r"(?:.*\b)?(answer)[*_]*(?:\s+is\b:?|\s*:)[*_]*\s*(\S.{0,59}?)[.*_]*", re.IGNORECASE
)
_EQUALS = re.compile(r"\$?\s*([A-Za-z]\s*=)\s*([^\s$]+)\s*\$?")
# The letter of a choice: alone, or before the words that it stands for.
_LETTER = re.compile(r"\(?([A-Ha-h])\)|\(?([A-H])([).:])\s+(\w.*)")


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


class _Box(NamedTuple):
    """A \\boxed{...} by positions in the text: where it begins, and its content from `start` to
    `end`.
    """

    begin: int
    start: int
    end: int


def last_box(text: str) -> tuple[str, int, int]:
    """(what the `\\boxed{}` that opens last holds, or a list of those side by side with it; where
    that one starts and ends); "" and 0 without a box. One pass.
    """
    # Looking for the end of each box separately would take the square of the length for boxes that
    # never end.
    opened: list[tuple[int, int]] = []  # where the content begins, and the box itself (-1: no box)
    boxes: list[_Box] = []
    for found in _BOX.finditer(text):
        mark = found.group()
        if mark == "}" and opened:
            start, begin = opened.pop()
            if begin >= 0 and (not boxes or start > boxes[-1].start):
                boxes.append(_Box(begin, start, found.start()))
        elif mark[-1] == "{" and mark != "\\{":
            opened.append((found.end(), found.start() if len(mark) > 1 else -1))
    if not boxes:
        return "", 0, 0
    first = len(boxes) - 1
    while first and _BETWEEN.fullmatch(text, boxes[first - 1].end, boxes[first].begin):
        first -= 1
    contents = dict.fromkeys(text[box.start : box.end].strip() for box in boxes[first:])
    return ", ".join(filter(None, contents)), *boxes[-1][1:]


def unwrapped(text: str, question: str = "") -> tuple[str, list[str]]:
    """(an answer without what it is stored in, what it was taken out of, outermost first).

    A stored answer is what stands in its one `<answer>` tag; else in its last `\\boxed{}`; else on
    its last line after `####`, after "answer is" or "answer:", or after `x =` where that is a
    number; else the letter of a choice, `(B)` or `B) Paris`, and of `B. Paris` where that stands in
    the `question`. Then the same again, until it stands alone.

    >>> unwrapped("<answer> \\\\boxed{6} </answer>"), unwrapped("(B) Paris"), unwrapped("6 or 7")
    (('6', ['<answer>', '\\\\boxed{}']), ('B', ['(B)']), ('6 or 7', []))
    """
    text = text.strip()
    inside, closed, after = text.partition("<answer>")[2].partition("</answer>")
    last = text.rpartition("\n")[2].strip()
    if closed and not after.strip() and "<answer>" not in inside:
        found, mark = inside, "<answer>"
    elif box := last_box(text)[0]:
        found, mark = box, "\\boxed{}"
    elif last.startswith(MARK) and (marked := extract_answer(last)):
        found, mark = marked, MARK
    elif said := _SAID.fullmatch(last):
        found, mark = said[2], "answer:"
    elif (equals := _EQUALS.fullmatch(text)) and is_number(equals[2]):
        found, mark = equals[2], "x ="
    elif (letter := _LETTER.fullmatch(text)) and (
        letter[1]
        or ((letter[3] == ")" or text in question) and not re.search(r"\b[A-H]\)", letter[4]))
    ):
        found, mark = letter[1] or letter[2], "(B)"
    else:
        return text, []
    found, marks = unwrapped(found, question)
    return found, [mark, *marks]
