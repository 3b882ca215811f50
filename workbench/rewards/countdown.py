"""Countdown: reach a target from given numbers. The expression is read by a small parser, never by `eval`."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from workbench.rewards.answers import completion_text, extract_answer
from workbench.rewards.stated import pays

LONGEST = 200  # characters of an expression
_TOKEN = re.compile(r"\s*(?:(\d{1,9})|([-+*/()]))", re.ASCII)
_SAME = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"})
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_RANK = {"+": 1, "-": 1, "*": 2, "/": 2}


def evaluate(expression: str) -> tuple[Fraction, list[int]] | None:
    """(value, the numbers in it) of an expression of whole numbers, `+ - * /` and parentheses; None if it is none.

    Exact, and linear in the length: operators wait on a stack until one of lower rank comes.

    >>> evaluate("(3 + 5) / 2")
    (Fraction(4, 1), [3, 5, 2])
    >>> evaluate("7 / (3 - 3)"), evaluate("2 ** 9"), evaluate("__import__('os')")
    (None, None, None)
    """
    text = expression.translate(_SAME).strip()
    if not text or len(text) > LONGEST:
        return None
    values: list[Fraction] = []
    waiting: list[str] = []
    numbers: list[int] = []
    place, expects_number = 0, True
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            return None
        place = found.end()
        number, mark = found.groups()
        if number is not None:
            if not expects_number:
                return None
            values.append(Fraction(int(number)))
            numbers.append(int(number))
            expects_number = False
        elif mark == "(":
            if not expects_number:
                return None
            waiting.append(mark)
        elif expects_number:
            return None  # an operator or a closing parenthesis where a number should stand
        elif mark == ")":
            while waiting and waiting[-1] != "(":
                if not _apply(values, waiting.pop()):
                    return None
            if not waiting:
                return None
            waiting.pop()
        else:
            while waiting and waiting[-1] != "(" and _RANK[waiting[-1]] >= _RANK[mark]:
                if not _apply(values, waiting.pop()):
                    return None
            waiting.append(mark)
            expects_number = True
    if expects_number or "(" in waiting:
        return None
    while waiting:
        if not _apply(values, waiting.pop()):
            return None
    return values[0], numbers


def _apply(values: list[Fraction], mark: str) -> bool:
    second, first = values.pop(), values.pop()
    if mark == "/" and second == 0:
        return False
    values.append(_OPERATIONS[mark](first, second))
    return True


def solves(answer: str, numbers: Sequence[int], target: int) -> bool:
    """Whether an answer (`(55 - 7) + 36 - 19`, with or without `= 65`) reaches the target with each number used once."""
    left, equals, right = answer.partition("=")
    if equals and right.strip() != str(target):
        return False
    found = evaluate(left)
    return found is not None and found[0] == target and Counter(found[1]) == Counter(numbers)


@pays(2.0)
def countdown_reward(
    completions: Sequence[Any], numbers: Sequence[Sequence[int]], target: Sequence[int], **kwargs: Any
) -> list[float]:
    """2.0 if the one answer block holds an expression that uses each number once and reaches the target, else 0.0."""
    return [
        2.0 if (given := extract_answer(completion_text(completion))) is not None and solves(given, some, goal) else 0.0
        for completion, some, goal in zip(completions, numbers, target, strict=True)
    ]


@pays(0.5)
def numbers_used_reward(completions: Sequence[Any], numbers: Sequence[Sequence[int]], **kwargs: Any) -> list[float]:
    """0.5 if the answer block holds an expression that uses each number once, whatever it comes to; else 0.0."""
    scores = []
    for completion, some in zip(completions, numbers, strict=True):
        given = extract_answer(completion_text(completion))
        found = evaluate(given.partition("=")[0]) if given else None
        scores.append(0.5 if found is not None and Counter(found[1]) == Counter(some) else 0.0)
    return scores
