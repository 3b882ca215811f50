"""Finding an answer in a completion and comparing it with the right one.

Every parser here is linear in the length of the text: the tag-matching regular expressions that are common in this
field need seconds for one long looping completion. Numbers and words are compared here, exactly; formulas are left to
math-verify (`workbench.rewards.mathematics`), which is imported when the first one comes.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, NamedTuple

from workbench.data.answer_column import extract_answer as after_mark
from workbench.errors import RewardError

TAGS = ("reasoning", "answer")
PLACES = ("tag", "mark", "boxed", "number", "plain", "any")
LONGEST = 2_000  # characters of an answer that can be a number or a formula

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

_TEN = r"10\^(?P<{}>\{{[-+]?\d{{1,3}}\}}|[-+]?\d{{1,3}})"
_NUMBER = re.compile(
    r"(?P<minus>[-+]?)\$?(?P<second>[-+]?)"
    r"(?:(?P<whole>[1-9]\d{0,2}(?:,\d{3})+|\d+)?(?P<decimals>\.\d*)?"
    rf"(?:[eE](?P<power>[-+]?\d{{1,3}})| ?(?:\\times|\\cdot|[*×·]) ?{_TEN.format('times')})?|{_TEN.format('ten')}"
    r"|(?:(?P<mixed>\d+) )?(?P<top>\d+)/(?P<bottom>\d+)"
    r"|(?:(?P<parts>\d+) ?)?\\[dt]?frac(?:\{(?P<over>-?\d+)\}\{(?P<under>-?\d+)\}|(?P<digit>\d)(?P<by>\d)))"
    r"(?P<percent> ?\\?%)?\$?",
    re.ASCII,
)
_TEXT = re.compile(r"\$?\\(?:text|textbf|mathrm)\{([^{}\\$]*+)\}\$?")
_MOST_DIGITS = 12  # of a number with decimals, within the 15 that math-verify calculates with
_ROUNDED = Fraction(2, 10**6)  # math-verify rounds to six places: what is nearer than this is its own to judge
_LATEX = str.maketrans({"−": "-", "∞": r"\infty ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}"})
_MONEY = re.compile(r"(?<!\\)\\\$|(?<=,)\\! ?")
_SIGNS = frozenset("\\$^=+*/()[]{}|<>_%~√π∞≤≥≠±×÷·°")


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


def find_answer(text: str, where: str = "any", tag: str = "answer") -> str | None:
    """The answer in a text, stripped; None when there is none or it is empty.

    Args:
        where: "tag": the last `<answer>` block; "mark": the line after the last `####`; "boxed": the `\\boxed{}` that
            opens last; "number": the last number; "plain": the last line that is not empty; "any": the first of the
            first four that finds something.
        tag: the name of the tag.

    Raises:
        RewardError: if there is no such place.

    >>> text = "#### 7\\n<answer>8</answer> so \\\\boxed{\\\\frac{9}{2}} costs $1,000.50."
    >>> [find_answer(text, where) for where in ("tag", "mark", "boxed", "number", "any")]
    ['8', '7', '\\\\frac{9}{2}', '$1,000.50', '8']
    """
    if where == "tag":
        found = blocks(text, tag)
        return (found[-1].rpartition(f"<{tag}>")[2].strip() or None) if found else None
    if where == "mark":
        return after_mark(text)
    if where == "boxed":
        return _last_box(text)
    if where == "number":
        return _last_number(text)
    if where == "plain":
        return text.strip().rpartition("\n")[2].strip() or None
    if where == "any":
        places = (find_answer(text, place, tag) for place in ("tag", "mark", "boxed", "number"))
        return next((found for found in places if found is not None), None)
    raise RewardError(
        f"where = {where!r}",
        rule="an answer is looked for in one of the places that are known",
        remedy=f"use one of {', '.join(map(repr, PLACES))}",
    )


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


def _last_number(text: str) -> str | None:
    found = [number.group() for number in _WITHIN.finditer(text)]
    return found[-1] if found else None


def same_answer(given: Any, right: Any, deadline_s: float = 5.0) -> bool:
    """Whether two answers are the same words, the same number (`$1,000.00` is `1000`) or the same formula.

    False also for a formula that math-verify could not judge within the deadline.

    >>> same_answer("42.0", 42), same_answer("$1,000", "1000"), same_answer("4", "42")
    (True, True, False)
    """
    quick = quick_same(given, right)
    if quick is not None:
        return quick
    from workbench.rewards.mathematics import same_answers

    return same_answers([str(given)], [right], deadline_s)[0] is True


def quick_same(given: Any, right: Any) -> bool | None:
    """Whether two answers are the same, where words and exact numbers can tell; None where math-verify has to.

    For two numbers it says what math-verify says (50% is both 0.5 and 50), and it reads some that math-verify does not:
    `+5`, `-$5`, `-.5`, `1e3`, `1 1/2`, `\\$5`. Words are the same whatever their case.

    >>> quick_same("3/4", "0.75"), quick_same("Paris", "paris"), quick_same("five", "5"), quick_same("$x+1$", "$1+x$")
    (True, True, False, None)
    """
    given, right = _tidy(given), _tidy(right)
    if given == right:
        return bool(given)
    if not given or not right or max(len(given), len(right)) > LONGEST:
        return False
    first, second = _number(given), _number(right)
    if first is not None and second is not None:
        return _same_number(first, second)
    words = _is_words(given), _is_words(right)
    if all(words):
        return given.casefold() == right.casefold()
    if (first is not None and words[1]) or (second is not None and words[0]):
        return False
    return None


def legible(answer: Any) -> str:
    """An answer in ASCII, and without what LaTeX needs to print a sum of money: `\\$32,\\!348` is `32,348`."""
    text = answer if isinstance(answer, str) else str(answer)
    if not text.isascii():
        text = text.translate(_LATEX)
    return _MONEY.sub("", text) if "\\" in text else text


def _tidy(answer: Any) -> str:
    text = " ".join(legible(answer).split()).rstrip(".")
    found = _TEXT.fullmatch(text) if "\\" in text else None
    return found[1].strip() if found else text


def _is_words(text: str) -> bool:
    if any(letter in _SIGNS or letter.isnumeric() for letter in text):
        return False
    return "-" not in text or any(len(word) > 1 for word in re.findall(r"[^\W\d_]+", text))


class _Number(NamedTuple):
    value: Fraction  # 1/2 for 50%
    face: Fraction  # 50 for 50%
    whole: bool  # written without decimals and without a stroke
    scaled: bool  # with a power of ten


def _number(text: str) -> _Number | None:
    # No answer has more characters, and an unbounded one would take minutes.
    if len(text) > 60:
        return None
    if text.isdigit() and text.isascii():
        value = Fraction(int(text))
        return _Number(value, value, True, False)
    found = _NUMBER.fullmatch(text)
    if found is None or (found["minus"] and found["second"]):
        return None
    power = found["power"] or found["times"] or found["ten"]
    value = _value(found, power)
    if value is None:
        return None
    if "-" in (found["minus"], found["second"]):
        value = -value
    decimal = power is not None or found["decimals"] not in (None, ".")
    if decimal and sum(map(str.isdigit, text)) > _MOST_DIGITS:
        return None
    whole = found["whole"] is not None and not decimal
    return _Number(value / 100 if found["percent"] else value, value, whole, power is not None)


def _value(found: re.Match, power: str | None) -> Fraction | None:
    top, bottom = found["top"] or found["over"] or found["digit"], found["bottom"] or found["under"] or found["by"]
    if top is not None:
        whole = int(found["mixed"] or found["parts"] or 0)
        unread = int(bottom) == 0 or (whole and "-" in top + bottom)
        return None if unread else whole + Fraction(int(top), int(bottom))
    whole, decimals = (found["whole"] or "").replace(",", ""), (found["decimals"] or "").removeprefix(".")
    if found["ten"]:
        whole = "1"
    elif not whole and not decimals:
        return None
    value = Fraction(int(whole + decimals), 10 ** len(decimals))
    # A Fraction would take minutes over an exponent of a billion digits; this one has three.
    return value * Fraction(10) ** int(power.strip("{}")) if power else value


def _same_number(first: _Number, second: _Number) -> bool | None:
    if first.value == second.value:
        return True
    if first.face == second.face:  # one is a percentage: 50% is 50, but of 0.5% and 0.5 math-verify compares the text
        return True if first.whole and second.whole else None
    # To six places 1e-7 would be 2e-7: what is written with a power of ten is as close as its own size says.
    near = _ROUNDED * min(1, abs(second.value)) if first.scaled or second.scaled else _ROUNDED
    return None if abs(first.value - second.value) < near else False
