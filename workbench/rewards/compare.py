"""Whether a given answer is the right one: the same words, the same number, or the same formula.

Words and numbers are compared here, exactly. Formulas go to math-verify (`formulas`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import unicodedata
from collections.abc import Generator, Sequence
from contextvars import ContextVar
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from workbench.rewards.formulas import DEADLINE_S, LONGEST, Pair, verdicts

_TEN = r"10\^(?P<{}>\{{[-+]?\d{{1,3}}\}}|[-+]?\d{{1,3}})"
_NUMBER = re.compile(
    r"(?P<minus>[-+]? ?)\$?(?P<second>[-+]?)"
    r"(?:(?P<whole>[1-9]\d{0,2}(?:,\d{3})+|\d+)?(?P<decimals>\.\d*)?"
    r"(?:[eE](?P<power>[-+]?\d{1,3})| ?(?:\\times|\\cdot|[*×·])"
    rf" ?{_TEN.format('times')})?|{_TEN.format('ten')}"
    r"|(?:(?P<mixed>\d+) )?(?P<top>\d+)/(?P<bottom>\d+)"
    r"|(?:(?P<parts>\d+)"
    r" ?)?\\[dt]?frac(?:\{(?P<over>-?\d+)\}\{(?P<under>-?\d+)\}|(?P<digit>\d)(?P<by>\d)))"
    r"(?P<percent> ?\\?%)?\$?",
    re.ASCII,
)
_TEXT = re.compile(r"\$?\\(?:text|textbf|mathrm)\{([^{}\\$]*+)\}\$?")
_MOST_DIGITS = 12  # of a number with decimals, within the 15 that math-verify calculates with
# math-verify rounds to six places: what is nearer than this is its own to judge
_ROUNDED = Fraction(2, 10**6)
_LATEX = str.maketrans({"−": "-", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}"})
_LATEX |= {ord(dash): "-" for dash in "‐‑‒–"} | {ord(slash): "/" for slash in "⁄∕"}
_LATEX |= {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full width
_LATEX |= {
    ord(sign): rf"\{name} " for sign, name in zip("∞±≤≥≠∈", ["infty", "pm", "le", "ge", "ne", "in"])
}
_RAISED = re.compile(r"(?<=10)[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]++")
_LOWERED = str.maketrans("⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹", "-+0123456789")
# 1 234 567, 1_000 and 1{,}000 get commas; one plain space alone may part two numbers.
_GROUPED = re.compile(
    r"(?<![\d.,])(?:\d{1,3}(?:(?:[\u00a0\u2009\u202f_]|\{,\})\d{3}(?!\d))++"
    r"|[1-9]\d{0,2}(?: \d{3}(?!\d)){2,}+)"
)
_SCALES = {"thousand": "e3", "million": "e6", "billion": "e9", "trillion": "e12"}
_SCALE = re.compile(rf"(?<=\d) (?:{'|'.join(_SCALES)})\b")
_MONEY = re.compile(r"(?<!\\)\\\$|(?<=,)\\! ?")
_SIGNS = frozenset("\\$^=+*/()[]{}|<>_%~√π∞≤≥≠±×÷·°")
_DELIMITERS = ("$", "\\(", "\\[", "\\boxed")
# math-verify reads these as they are: a sum, 1 000, and a number with its unit.
_SUM = re.compile(r"[-+\d.*/^()\s]++", re.ASCII)
_SPACED = re.compile(r"-?\d{1,3}(?: \d{3})++", re.ASCII)
_MEASURE = re.compile(
    r"[-+]?\$?(?=\.?\d)(?:\d++(?:,\d{3})*+)?(?:\.\d++)?(?:/\d++)?"
    r"(?P<unit>(?:\s++[^\W\d_]++|[^\W\d_]{2,}+)?+(?:[ /][^\W\d_]++)?+)[.%]?",
    re.ASCII,
)
# of units; any other single letter after a number is a variable: 3 n
_SYMBOLS = frozenset("msghdtlLKCFNJWVATH")
# Units of measurement -> their other names; a plural in s needs none.
_UNITS: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("units.json").read_text(encoding="utf-8")
)
_NAMED = {alias: name for name, aliases in _UNITS.items() for alias in (name, *aliases)}
_RATES = {"mph": "mile/hour", "kph": "kilometer/hour"}
_PLURALS = {"people": "person", "men": "man", "women": "woman", "children": "child"}
_TOP_COMMA = re.compile(r",(?![^()\[\]{}]*+[)\]}])")  # none within parentheses
_DOTTED = re.compile(r"\b(?:[^\W\d_]\.){2,}|\b(?:[^\W\d_]\.)+[^\W\d_]\b")
_LISTED = re.compile(r"(?:,|\band\b)(?:\s+and\b)?")
_ARTICLE = re.compile(r"^(?:the|an?) ", re.I)
# 1,3 is two answers. 3,14 is the decimal of other countries beside one that is no list; nobody
# lists 1 and 05.
_PAIR = re.compile(r"-?\d+,(?P<second>\d+)", re.ASCII)
_LIST = re.compile(r",(?!\d{3}(?!\d))|;|±|\\pm|\\\{|\b(?:and|or)\b")
_SCALED = re.compile(r"\$?([-+]?(?:\d++\.?\d*+|\.\d++))[eE]([-+]?\d{1,3})\$?", re.ASCII)
_GAPS = re.compile(r" *([-+=]) *")  # math-verify takes the c of `ab + c` for a unit
_COMMAND = re.compile(r"\\[A-Za-z]++")
_NAMES = r"(?:sin|cos|tan|cot|log|ln|exp|sqrt|pi|and|or)\b"
_SENTENCE = re.compile(rf"(?:^|\s)(?!{_NAMES})[^\W\d_]{{2,}}+(?=[\s.,;:!?]|$)|\d\s++\d")
# Where =, + or ^ stands, two letters are a product sooner than a word: mx + b.
_OPERATOR = re.compile(r"[=+^\\]")
_SPOKEN = re.compile(
    rf"(?:^|\s)(?!{_NAMES})(?:[^\W\d_]{{4,}}+|(?i:the|is|are|so|we|if|for|to|of))(?=[\s.,;:!?]|$)|\d\s++\d"
)
# Signs that math-verify does not read, in LaTeX.
_ROOT = re.compile(
    r"(?:√|(?<![A-Za-z\\])sqrt)\s?(?:\(([^()]*+)\)|\{([^{}]*+)\}|(\d++(?:\.\d++)?|[^\W\d_](?![^\W\d_])))"
)
_WORD = re.compile(r"(?<![A-Za-z\\])(?:pi|infinity)(?![A-Za-z])")
_POWER = re.compile(r"(?<=[abnxyz\d)])[²³]")  # not those of m²

# Of what runs here: (its deadline, indexes of what was not judged in it).
_watch: ContextVar[tuple[float, set[int]] | None] = ContextVar("watch", default=None)


def same_answer(given: object, right: object, deadline_s: float = 5.0) -> bool:
    """Whether two answers are the same words, the same number (`$1,000.00` is `1000`) or the same
    formula.

    False also for a formula that math-verify could not judge within the deadline.

    >>> same_answer("42.0", 42), same_answer("$1,000", "1000"), same_answer("4", "42")
    (True, True, False)
    """
    return same_answers([str(given)], [right], deadline_s)[0] is True


def same_answers(
    given: Sequence[str | None], right: Sequence[object], deadline_s: float | None = None
) -> list[bool | None]:
    """`same_answer` of many pairs at once: [B] True, False (also for None), or None for a pair that
    was not judged in time.

    Words and numbers are compared here (`quick_same`), and the rest goes to math-verify in one
    call. A text without math delimiters is read as one formula (`x+1` as `$x+1$`), not searched for
    a number, unless it is a sum, a number with a unit, or a sentence; a right answer that is a
    sentence has only the same text for its equal. Two different units are different answers, and
    `1,3` is two numbers, never 1.3; `x <= 2` is the interval `(-oo, 2]` as well. The deadline
    (None: that of `watched`) is for the whole batch; the start of the worker, once in a program,
    comes on top.
    """
    watched_s, late = _watch.get() or (DEADLINE_S, set())
    pairs = zip(given, right, strict=True)
    results = [False if one is None else quick_same(one, other) for one, other in pairs]
    asked: dict[int, Pair] = {}
    for index in [index for index, same in enumerate(results) if same is None]:
        if pair := _readable(_written(str(given[index])), _written(str(right[index]))):
            asked[index] = pair
        else:
            results[index] = False
    most_s = watched_s if deadline_s is None else deadline_s
    judged = verdicts([*asked.values()], most_s) if asked else []
    for index, same in zip(asked, judged):
        results[index] = same
        if same is None:
            late.add(index)
    return results


@contextlib.contextmanager
def watched(deadline_s: float | None) -> Generator[set[int]]:
    """`same_answers` keeps this deadline (None: the usual one) in here, and adds what it did not
    judge in time to the set.
    """
    late: set[int] = set()
    before = _watch.set((DEADLINE_S if deadline_s is None else min(DEADLINE_S, deadline_s), late))
    try:
        yield late
    finally:
        _watch.reset(before)


def quick_same(given: object, right: object) -> bool | None:
    """Whether two answers are the same, where words and exact numbers can tell; None where
    math-verify has to.

    For two numbers it says what math-verify says (50% is both 0.5 and 50), and it reads some that
    math-verify does not: `+5`, `- 5`, `(5)`, `-.5`, `1e3`, `1 1/2`, `\\$5`. Words are the same
    whatever their case, and with an article or without.

    >>> quick_same("3/4", "0.75"), quick_same("Paris", "paris"), quick_same("five", "5"), quick_same("$x+1$", "$1+x$")
    (True, True, False, None)
    """  # noqa: E501
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
        one, other = _folded(given), _folded(right)
        return one == other or ("," in right and _parts(one) == _parts(other))
    if (first is not None and words[1]) or (second is not None and words[0]):
        return False
    return None


def legible(answer: object) -> str:
    """An answer in ASCII, and without what LaTeX needs to print a sum of money: `\\$32,\\!348` is
    `32,348`.
    """
    text = str(answer)
    if not text.isascii():
        text = _RAISED.sub(lambda found: f"^{{{found[0].translate(_LOWERED)}}}", text)
        text = text.translate(_LATEX)
    text = _GROUPED.sub(lambda found: ",".join(re.findall(r"\d+", found[0])), text)
    text = _SCALE.sub(lambda found: _SCALES[found[0].strip()], text)
    return _MONEY.sub("", text) if "\\" in text else text


def _tidy(answer: object) -> str:
    text = str(answer)
    text = " ".join((legible(text) if len(text) <= LONGEST else text).split()).rstrip(".")
    found = _TEXT.fullmatch(text) if "\\" in text else None
    text = found[1].strip() if found else text
    if not (text[:1] == "(" and text[-1] == ")"):
        return text
    inside = text[1:-1]
    return (
        inside if (len(inside) == 1 and inside.isalpha()) or _number(inside) is not None else text
    )


def _folded(words: str) -> str:
    # Without accents, an article, and the dots of an abbreviation.
    plain = unicodedata.normalize("NFKD", _ARTICLE.sub("", words).strip("«»\"'“”‘’"))
    plain = _DOTTED.sub(lambda found: found[0].replace(".", ""), plain)
    return "".join(letter for letter in plain if not unicodedata.combining(letter)).casefold()


def _parts(words: str) -> set[str]:
    return {part.strip() for part in _LISTED.split(words)}


def _is_words(text: str) -> bool:
    if any(letter in _SIGNS or letter.isnumeric() for letter in text):
        return False
    return "-" not in text or any(len(word) > 1 for word in re.findall(r"[^\W\d_]+", text))


class _Number(NamedTuple):
    """An answer that is one number."""

    value: Fraction  # 1/2 of 50%
    face: Fraction  # 50 of 50%
    whole: bool  # written as a whole number
    scaled: bool  # written with a power of ten


def _number(text: str) -> _Number | None:
    """The number that a text is; None for no number."""
    # No answer has more characters, and an unbounded one would take minutes.
    return _short_number(text) if len(text) <= 60 else None


@functools.lru_cache(4096)  # a task has few answers
def _short_number(text: str) -> _Number | None:
    found = _NUMBER.fullmatch(text)
    if found is None or (found["minus"] and found["second"]):
        return None
    power = found["power"] or found["times"] or found["ten"]
    top = found["top"] or found["over"] or found["digit"]
    bottom = found["bottom"] or found["under"] or found["by"]
    digits = "1" if found["ten"] else (found["whole"] or "").replace(",", "")
    decimals = (found["decimals"] or "").removeprefix(".")
    if top is not None:
        beside = int(found["mixed"] or found["parts"] or 0)
        if int(bottom) == 0 or (beside and "-" in top + bottom):
            return None
        value = beside + Fraction(int(top), int(bottom))
    elif digits or decimals:
        # A Fraction would take minutes over an exponent of a billion digits; this one has three.
        value = Fraction(int(digits + decimals), 10 ** len(decimals)) * Fraction(10) ** int(
            (power or "0").strip("{}")
        )
    else:
        return None
    if "-" in (found["minus"].strip(), found["second"]):
        value = -value
    decimal = power is not None or found["decimals"] not in (None, ".")
    if decimal and sum(map(str.isdigit, text)) > _MOST_DIGITS:
        return None
    whole = found["whole"] is not None and not decimal
    return _Number(value / 100 if found["percent"] else value, value, whole, power is not None)


def _same_number(one: _Number, other: _Number) -> bool | None:
    if one.value == other.value:
        return True
    # one is a percentage: 50% is 50, but of 0.5% and 0.5 math-verify compares the text
    if one.face == other.face:
        return True if one.whole and other.whole else None
    # To six places 1e-7 would be 2e-7: what is written with a power of ten is as close as its own
    # size says.
    near = _ROUNDED * min(1, abs(other.value)) if one.scaled or other.scaled else _ROUNDED
    return None if abs(one.value - other.value) < near else False


def _readable(given: str, right: str) -> Pair | None:
    """The two as they are handed to math-verify; None where nothing can be the same: a sentence, or
    another unit.
    """
    wanted = _formula(right, given, listed=True)
    units = [found["unit"] if found else "" for found in map(_MEASURE.fullmatch, (given, right))]
    if wanted is None or (all(units) and not _same_unit(*units)):
        return None
    return _formula(given, right, listed=_LIST.search(right) is not None) or given, wanted


def _written(text: str) -> str:
    """An answer with the signs that math-verify does not read as LaTeX."""
    text = legible(text).strip()
    if not text.isascii():
        text = _POWER.sub(lambda found: "^2" if found[0] == "²" else "^3", text)
    text = _ROOT.sub(lambda found: rf"\sqrt{{{found[1] or found[2] or found[3] or ''}}}", text)
    text = _WORD.sub(lambda found: r"\pi" if found[0] == "pi" else r"\infty", text)
    return _both_signs(text) if r"\pm" in text else text


def _both_signs(text: str) -> str:
    # math-verify reads no \pm within a fraction or parentheses, and then compares what stands
    # before it.
    inside = text.strip("$")
    if inside.startswith(r"\boxed{") and inside.endswith("}"):
        inside = inside[7:-1]
    signed = [
        (part, sign)
        for part in _TOP_COMMA.split(inside)
        for sign in ("+-", "-+")
        if r"\pm" in part or sign == "+-"
    ]
    each = [part.replace(r"\pm", sign[0]).replace(r"\mp", sign[1]) for part, sign in signed]
    return text.replace(inside, ",".join(each))


def is_sentence(text: str) -> bool:
    """Whether a text is read as a sentence, in which no formula is looked for: `it is 5`, not `mx +
    b`.
    """
    return _formula(_written(text), "", listed=True) is None


def _formula(text: str, other: str, listed: bool) -> str | None:
    # None for a sentence and for numbers side by side. `other` is compared with it; `listed`: 1,3
    # is a list, and no decimal.
    if pair := _PAIR.fullmatch(text):
        decimal = len(pair["second"]) > 1 and (not listed or pair["second"][0] == "0")
        return text if decimal else f"${text}$"
    if (scaled := _SCALED.fullmatch(text)) and "e" not in _COMMAND.sub("", other).casefold():
        return rf"${scaled[1]} \times 10^{{{int(scaled[2])}}}$"
    measured = _MEASURE.fullmatch(text)
    if measured and len(letter := measured["unit"].strip()) == 1:
        variable = letter not in _SYMBOLS or (letter in other and not _MEASURE.fullmatch(other))
        return f"${text}$" if variable else text
    closed = _GAPS.sub(r"\1", text)
    if measured or _SPACED.fullmatch(text) or any(mark in text for mark in _DELIMITERS):
        return closed if text[0] == text[-1] == "$" and text.count("$") == 2 else text
    if (_SPOKEN if _OPERATOR.search(text) else _SENTENCE).search(text):
        return None
    return text if _SUM.fullmatch(text) else f"${closed}$"


def _same_unit(first: str, second: str) -> bool:
    # Whether two units may be one: 5 km and 5 kilometers, 7 apples and 7 red apples; not 5 km and 5
    # m, nor 7 oranges.
    one, other = (_RATES.get(unit.strip().casefold(), unit).split("/") for unit in (first, second))
    return len(one) == len(other) and all(map(_same_words, one, other))


def _same_words(first: str, second: str) -> bool:
    one, other = ({_singular(word) for word in text.split()} for text in (first, second))
    more, less = one - other, other - one
    # A unit of the table beside a word that is not in it is not judged: it may be its name in
    # another language.
    known = [bool(words & _UNITS.keys()) for words in (more, less)]
    return known[0] != known[1] if more and less else not any(known)


def _singular(word: str) -> str:
    # An m is a meter and an L a liter, but no M is a minute: single letters are read as they stand.
    word = word if len(word) == 1 else word.casefold()
    short = word.removesuffix("s") if len(word) > 2 else word
    return _NAMED.get(word) or _NAMED.get(short) or _PLURALS.get(word, short)
