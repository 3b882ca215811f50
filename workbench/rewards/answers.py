"""Finding an answer in a completion and comparing it with the right one.

Every parser here is linear in the length of the text: the tag-matching regular expressions that are common in this
field need seconds for one long looping completion.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

TAGS = ("reasoning", "answer")
# Digits, with commas only where thousands are: 4,2 is two numbers, not 42.
_NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d*)(\.\d+|\.)?(?<=[\d.])", re.ASCII)


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
    """The content of the one answer block, stripped; None when there is none, it is empty, or there are several.

    Several answers are a hedge, and a hedge is not an answer.
    """
    found = blocks(text, "answer")
    if len(found) != 1 or "<answer>" in found[0]:
        return None
    return found[0].strip() or None


def same_answer(given: Any, right: Any) -> bool:
    """Whether two answers are the same text or the same number (`$1,000.00` is `1000`).

    >>> same_answer("42.0", 42), same_answer("$1,000", "1000"), same_answer("4", "42")
    (True, True, False)
    """
    given, right = _normal(given), _normal(right)
    if given == right:
        return bool(given)
    first, second = _number(given), _number(right)
    return first is not None and first == second


def _normal(answer: Any) -> str:
    return " ".join(str(answer).split()).rstrip(".").removeprefix("$").casefold()


def _number(text: str) -> Decimal | None:
    # Decimal would take minutes over an exponent of a billion digits, and no answer has more than a few.
    if len(text) > 40 or not _NUMBER.fullmatch(text) or not any(map(str.isdigit, text)):
        return None
    return Decimal(text.replace(",", ""))
