"""Finding the answer in a completion; `workbench.rewards.compare` says whether it is the right one.

Every parser here is linear in the length of the text, as the usual regular expressions for tags are not.
"""

from __future__ import annotations

import re
from typing import Any

from workbench.data.answer_column import extract_answer as after_mark
from workbench.errors import RewardError

TAGS = ("reasoning", "answer")
PLACES = ("only", "tag", "mark", "boxed", "number", "plain", "any")

# Digits, with commas only where thousands are: 4,2 is two numbers, not 42.
_DIGITS = r"(?:[1-9]\d{0,2}(?:,\d{3})++(?!\d)|\d++)"
_DECIMALS = rf"(?:{_DIGITS}(?:\.\d++)?|(?<!\d)\.\d++)"
_WITHIN = re.compile(
    # A sign is one where no sum or range stands before it: 10-5 ends with 5.
    rf"(?:(?<![\w)\]}}])[-+−])?\$?(?:(?<![\w)\]}}])[-+−])?"
    r"(?:\\[dt]?frac\{-?\d{1,40}\}\{-?\d{1,40}\}"
    rf"|{_DECIMALS}(?:[eE][-+]?\d{{1,3}}(?![\d.])|/\d++(?![./]\d))?)"
    r"(?:[ ]?\\?%)?",
    re.ASCII,
)
_BOX = re.compile(r"\\boxed\s*+\{|\\[{}]|[{}]")


def completion_text(completion: Any) -> str:
    """The text of a completion, chat (`[{"role": "assistant", "content": ...}]`) or plain.

    >>> completion_text([{"role": "assistant", "content": "42"}]) == completion_text("42") == "42"
    True
    """
    if isinstance(completion, str):
        return completion
    return "".join(str(message.get("content") or "") for message in completion)


def blocks(text: str, tag: str) -> list[str]:
    """What stands between each `<tag>` and the next `</tag>`, in order.

    >>> blocks("<answer>4</answer> or <answer>5</answer>", "answer")
    ['4', '5']
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    found, start = [], text.find(opening)
    while start >= 0:
        start += len(opening)
        end = text.find(closing, start)
        if end < 0:
            break
        found.append(text[start:end])
        start = text.find(opening, end + len(closing))
    return found


def extract_answer(text: str) -> str | None:
    """The content of the one answer block, stripped; None when there is none, it is empty, or there are several (a hedge)."""
    found = blocks(text, "answer")
    return found[0].strip() or None if len(found) == 1 and "<answer>" not in found[0] else None


def find_answer(text: str, where: str = "any", tag: str = "answer") -> str | None:
    """The answer in a text, stripped; None when there is none or it is empty. RewardError if there is no such place.

    Args:
        where: "only": the one `<answer>` block, of several none; "tag": the last `<answer>` block; "mark": the line after
            the last `####`; "boxed": the `\\boxed{}` that opens last; "number": the last number; "plain": the last line
            that is not empty; "any": the first of "tag", "mark", "boxed" and "number" that finds something.

    >>> text = "#### 7\\n<answer>8</answer> so \\\\boxed{\\\\frac{9}{2}} costs $1,000.50."
    >>> [find_answer(text, where) for where in ("tag", "mark", "boxed", "number", "any")]
    ['8', '7', '\\\\frac{9}{2}', '$1,000.50', '8']
    """
    match where:
        case "only":
            return extract_answer(text)
        case "tag":
            found = blocks(text, tag)
            return (found[-1].rpartition(f"<{tag}>")[2].strip() or None) if found else None
        case "mark":
            return after_mark(text)
        case "boxed":
            return _last_box(text)
        case "number":
            return (_WITHIN.findall(text) or [None])[-1]
        case "plain":
            return text.strip().rpartition("\n")[2].strip() or None
        case "any":
            places = (find_answer(text, place, tag) for place in ("tag", "mark", "boxed", "number"))
            return next((found for found in places if found is not None), None)
    remedy = f"use one of {', '.join(map(repr, PLACES))}"
    raise RewardError(f"where = {where!r}", rule="an answer is looked for in one of the known places", remedy=remedy)


def _last_box(text: str) -> str | None:
    # One pass: to look for the end of each box anew would take the square of the length for boxes that never end.
    opened: list[tuple[int, bool]] = []
    place, content = -1, ""
    for found in _BOX.finditer(text):
        mark = found.group()
        if mark == "}" and opened:
            start, boxed = opened.pop()
            if boxed and start > place:
                place, content = start, text[start : found.start()]
        elif mark[-1] == "{" and mark != "\\{":
            opened.append((found.end(), len(mark) > 1))
    return content.strip() or None
