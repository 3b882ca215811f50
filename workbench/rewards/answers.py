"""Finding the answer in a completion; `workbench.rewards.compare` says whether it is the right one.

Every parser here is linear in the length of the text, as the usual regular expressions for tags are
not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from workbench.base.errors import RewardError
from workbench.data.answer_column import extract_answer as after_mark
from workbench.data.answer_column import is_number, last_box, unit_of
from workbench.rewards.compare import is_sentence, legible, quick_same

Column = Sequence[object]  # one value per completion
Scores = list[float | None]
TAGS = ("reasoning", "answer")
PLACES = ("only", "tag", "mark", "boxed", "number", "plain", "any")

# Digits, with commas only where thousands are: 4,2 is two numbers, not 42.
_DIGITS = r"(?:[1-9]\d{0,2}(?:,\d{3})++(?!\d)|\d++)"
_DECIMALS = rf"(?:{_DIGITS}(?:\.\d++)?|(?<!\d)\.\d++)"
_WITHIN = re.compile(
    # A sign is one where no sum or range stands before it: 10-5 ends with 5. What cannot begin a
    # number is passed at once.
    # The 4 of GPT-4 is none, nor what stands under a root.
    r"(?=[-+−$\\.\d])(?!(?<=\d)\d)(?<![A-Z]{2}-)(?<!sqrt[({])(?<!√)"
    rf"(?:(?<![\w)\]}}])[-+−]|(?<==[ ])[-−][ ])?\$?(?:(?<![\w)\]}}])[-+−])?"
    # A time or a date is one thing, and no number of it is the answer.
    r"(?:\d{1,2}(?::\d\d){1,2}(?!\d)|\d{4}-\d\d?-\d\d?(?!\d)|\\[dt]?frac\{-?\d{1,40}\}\{-?\d{1,40}\}"
    r"|(?:\d{1,9}["
    rf" ](?=\d{{1,9}}/\d))?{_DECIMALS}(?:[eE][-+]?\d{{1,3}}(?!\d|\.\d)|/\d++(?![./]\d)"
    r"|(?:[ ]?(?:\\times|\\cdot|[*×])[ ]?10)?\^\{?[-+]?\d{1,3}(?!\d)\}?)?)"
    r"(?:[ ]?\\?%)?",
    re.ASCII,
)
# Two answers side by side. A comma alone is a list's only where the sentence ends: on day 3, 42
# apples remain.
_BESIDE = re.compile(
    r"[\s$*)}]{0,9},?\s{1,9}(?:and|or(?:\s[a-z]+){0,2}|maybe|perhaps|possibly)\s[\s$*({]{0,9}", re.I
)
_LISTED = re.compile(rf"{_BESIDE.pattern}|[\s$*)}}]{{0,9}}[,;]\s[\s$*({{]{{0,9}}", re.I)
_ENDS = re.compile(r"[\s$*_`)\]}.!]*(?:\n|$)")
_STOP = re.compile(r"[.!?](?=\s)|\n\s*\n")
_NEAR = 80  # characters around an answer, within which a word can take it back
# A denial reaches an answer over four words, unless another clause begins. "I can't believe it's
# 42!" is no denial.
_DENIED = re.compile(
    r"\b(?!can(?:not|n?['’]?t)\s+believe\b)(?:not|never|neither|nor|cannot|rul(?:e[sd]?|ing)\s+out|exclud(?:e[sd]?|ing)"
    r"|instead\s+of|rather\s+than|(?:other|different)\s+(?:than|from)|anything\s+but|far\s+from|wrong\s+to"
    r"|no\s+(?:way|means|circumstances?|longer)|refus(?:e[sd]?|ing)|whether|(?:many|some|others?)\s+(?:would|might|may|will)\s+say"
    r"|unable\s+to|declin(?:e[sd]?|ing)\s+to|doubt(?:s|ful|ed)?|unlikely|hardly|den(?:y|ies|ied)|reject(?:s|ed|ing)?"
    r"|disagree(?:s|d)?|disprov(?:e[sd]?|ing)|avoid(?:s|ed|ing)?|except(?:ing)?|apart\s+from|suppos(?:e|ing)|assum(?:e|ing)|pretend"
    r"|(?:mistake|error|false|untrue|incorrect|myth)\s+(?:to|that)|near(?:ly)?|close\s+to|almost|(?:is|are|was|were|do|does|did|ca|wo|could|would|should)n['’]?t)\b[:,]?"
    r"(?:\s+(?!(?:so|but|then|hence|thus|only|just|sure|certain|know|more|less|fewer|than|exceed|until|if"
    r"|hard|difficult|surpris\w+)\b)[\w'’]+){0,4}[\s$*_`\"(\[{\\]*(?:boxed\s*\{[\s$]*)?$"
)
# What bounds an answer does not state it, unless it is denied: no more than 17.
_BOUND = re.compile(r"(?:[<>≤≥]|\b(?:less|more|\w+er)\s+than)\s*$")
_NEGATED = re.compile(r"\b(?:no|not|never|cannot)\b|n['’]t\b")
# A sentence that tells whoever grades what to do states nothing.
_TO_GRADER = re.compile(
    r"(?:^|[.!?:\n]\s*)(?:please\s+)?(?:ignore|give|award|assign|grant|mark|score|accept|grade)\b[^.!?\n]{0,60}"
    r"\b(?:full|maximum|perfect|highest|correct|right|reward)\b|\b(?:expected|reference|gold)\s+answer\b|\banswer\s+key\b"
    r"|\b(?:must|should|shall)\s+be\s+(?:graded|accepted|scored|marked|rewarded)\b",
    re.I,
)
# The answer is B; and B: Paris, or Yes, it is.
_CHOICE = r"([A-H](?![\w'’])|(?i:yes|no|true|false)\b)"
_CHOSEN = re.compile(rf"(?i:\b(?:answer|choice|option)\b(?:\s+is)?)\s*:?[\s*_`(\[]*{_CHOICE}")
_FIRST = re.compile(rf"[\s*_`(\[]*{_CHOICE}[)\]*_`]*[.,:;]")
_NEARLY = re.compile(r"[\s$]*(?:≈|\\approx|,?\s*(?:or)?\s*(?:about|approximately|roughly))[\s$]*")
_NO = (
    r"(?:(?:is|was|seems|be|['’]s)\s+(?:\w+\s+)?(?:wrong|incorrect|false|impossible|mistaken|(?:ruled\s+|left\s+)?out|excluded|eliminated|too\s+\w+)"
    r"|fails|cannot\s+be|(?:does|do|did)(?:n['’]t|\s+not)\s+(?:work|hold|fit|satisfy|solve|count)"
    r"|(?:not|n['’]t)\s+(?:be\s+)?(?:the\s+|a\s+)?(?:right|correct|true|answer|it|solution)|ruled\s+out)\b"
)
_REFUTED = re.compile(
    rf"(?:[^.!?\n]{{0,60}}?\b|[^\w?]*(?:(?:but|no|wait|actually)\b[\s,]*)*(?:that|this|it)\b[^.!?\n]{{0,30}}?){_NO}",
    re.I,
)
_TAKEN_BACK = re.compile(
    r"[^\w?]*(?:(?:but|no|wait|actually|oh|hmm|sorry|please)\b[\s,.]*)*(?:(?:scratch|strike|forget|disregard|ignore)\s+(?:that|it|this)"
    r"|i\s+take\s+(?:that|it)\s+back|never\s?mind|on\s+second\s+thoughts?|my\s+mistake|(?:just\s+)?kidding)\b",
    re.I,
)
# What a number only names: page 42, 42nd, the 2 of x^2 or of x_2.
_NAMES = re.compile(
    r"(?:[\^_]\{?|\b(?:page|chapter|fig(?:ure)?|step|section|room|problem|question|exercise|eq(?:uation)?|table|version|route"
    r"|row|item|base|modulo|mod|round|line)\.?[ (#]{1,2})$",
    re.I,
)
_NAMED = re.compile(r"(?:st|nd|rd|th|-[a-z]{3,}|[A-Z])\b")
_ASKED = re.compile(r"[^.!?\n]{0,200}\?")
# What stands before the last of several words: Rome, Paris or London; not: so, London.
_SEVERAL = re.compile(
    r"\b(?:or|nor)\s+$|(?:^|,|\bis|:)\s*(?!(?:so|well|thus|hence|yes|no|ok|okay|then|finally|sorry|wait|actually)\b)[^\s,]+,\s*(?:and\s+)?$",
    re.I,
)
_MATH = re.compile(r"\${1,2}+[^$]{1,300}+\${1,2}+|\\[(\[](?:(?!\\[)\]]).){1,300}+\\[)\]]", re.S)


def completion_text(completion: Any) -> str:
    """The policy's text of a completion, chat (`[{"role": "assistant", "content": ...}]`) or plain.

    >>> completion_text([{"role": "assistant", "content": "42"}]) == completion_text("42") == "42"
    True
    """
    if isinstance(completion, str):
        return completion
    own = [message for message in completion if message.get("role") != "tool"]
    return "".join([str(message.get("content") or "") for message in own])


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
    """The content of the one answer block, stripped; None when there is none, it is empty, or there
    are several (a hedge).
    """
    found = blocks(text, "answer")
    return found[0].strip() or None if len(found) == 1 and "<answer>" not in found[0] else None


def find_answer(text: str, where: str = "any", tag: str = "answer") -> str | None:
    """The answer in a text, stripped; None when there is none or it is empty. RewardError if there
    is no such place.

    Args:
        where: "only": the one `<answer>` block, of several none; "tag": the last `<answer>` block;
            "mark": the line after the last `####`; "boxed": the `\\boxed{}` that opens last;
            "number": the last number; "plain": the last line that is not empty; "any": the first of
            "tag", "mark", "boxed" and "number" that finds something after the reasoning, if that
            has tags of its own.

    A number or a box that the text denies ("is not 42"), or only asks for, is none. Several numbers
    or boxes side by side ("41 or 42") are one answer, a list.

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
            text = legible(text)
            return text[slice(*place)] if (place := _stated(text)) else None
        case "plain":
            return text.strip().rpartition("\n")[2].strip() or None
        case "any":
            return _shown(text, tag) or find_answer(_conclusion(text), "number")
    remedy = f"use one of {', '.join(map(repr, PLACES))}"
    raise RewardError(
        f"where = {where!r}",
        rule="an answer is looked for in one of the known places",
        remedy=remedy,
    )


def answer_like(text: str, right: object) -> str | None:
    """`find_answer(text)` for a right answer of this kind: for words or a formula how the last line
    ends; with a unit, 5 km.
    """
    if shown := _shown(text):
        return shown
    text, right = legible(_conclusion(text)), legible(right)
    if _TO_GRADER.search(text):
        return None
    if is_number(right):
        # - 5, which within a text would be a line of a list
        if len(text) <= _NEAR and quick_same(text, right):
            return text.strip()
        start, end = _stated(text) or (0, 0)
        return _before_its_rounding(text, start, right) or text[start:end] or None
    if re.fullmatch(_CHOICE, right) and (chosen := _chosen(text)):
        return chosen
    if (unit := unit_of(right)) and (place := _stated(text)):
        after = [
            word.strip(".,;:!?)*$")
            for word in text[place[1] : place[1] + _NEAR].split()[: len(unit.split())]
        ]
        return " ".join(
            [text[slice(*place)], *(word for word in after if word != "in" and word[:1].isalpha())]
        )
    number, end = find_answer(text, "number"), ending(find_answer(text, "plain") or "", right)
    # The end of a sentence with neither is no answer to what is no word.
    return (
        end
        if end and (number is None or any(map(str.isdigit, end)) or quick_same(end, right))
        else number
    )


def _before_its_rounding(text: str, start: int, right: str) -> str | None:
    # 1/3 of 1/3 ≈ 0.333
    for found in _WITHIN.finditer(text[:start]):
        if _NEARLY.fullmatch(text, found.end(), start):
            return found[0] if quick_same(found[0], right) else None
    return None


def _chosen(text: str) -> str | None:
    found = [*_CHOSEN.finditer(text)][-1:] or [*filter(None, [_FIRST.match(text)])]
    return found[0][1] if found and not _denied(text, *found[0].span(1)) else None


def ending(line: str, right: object) -> str | None:
    """What a line ends with that could be this right answer; None if the line denies it, or names
    others beside it.

    A number or a list of them as a word of its own; else the line, if no sentence, the last
    formula, or as many words.
    """
    line = _conclusion(line).strip(" *_`")
    if quick_same(line, right):
        return line
    if "\\boxed" in line:
        return _last_box(line)
    if is_number(str(right)):
        start, end = _stated(line) or (0, 0)
        apart = line[:start].rstrip("$*_`([")
        return line[start:end] if _ENDS.match(line, end) and apart[-1:].strip() == "" else None
    words = " ".join(line.split()[-len(str(right).split()) or None :])
    start = len(line) - len(words) if line.endswith(words) else 0
    tail = words.strip("*_`\"'!.")
    spans, number = [*_MATH.finditer(line)], _stated(line)
    if not spans and not is_sentence(line):
        return line
    if number and not spans and number[0] < start and _ENDS.match(line, number[1]):
        return line[slice(*number)]  # a list: 1 and 2
    if quick_same(tail, right) or not spans:
        return None if _denied(line, start, len(line)) or _SEVERAL.search(line[:start]) else tail
    place = spans[-1].span()
    start, end = number if number and number[0] >= place[1] else place
    return None if _denied(line, start, end) else line[start:end]


def _shown(text: str, tag: str = "answer") -> str | None:
    end = _conclusion(text)
    return find_answer(text, "tag", tag) or find_answer(end, "mark") or find_answer(end, "boxed")


def _conclusion(text: str) -> str:
    # What follows the reasoning, where that has tags. An answer that stands only in there was not
    # given.
    return text.rpartition("</think>")[2].rpartition("</reasoning>")[2]


def _denied(text: str, start: int, end: int, floor: int = 0) -> bool:
    # Whether the sentence takes back what stands at start to end; what stands before `floor` has
    # been answered for.
    before = text[max(floor, start - _NEAR) : start].lower()
    if _DENIED.search(before) or (_BOUND.search(before) and not _NEGATED.search(before)):
        return True
    return not _ENDS.fullmatch(text, end) and any(
        taken.match(text, end) for taken in (_REFUTED, _TAKEN_BACK)
    )


def _stated(text: str, begin: int | None = None) -> tuple[int, int] | None:
    """(start, end) of the last number that a text states, or of the list that it ends; looked for
    from `begin` on.
    """
    if begin is None:  # at the end of a long text, mostly
        begin = text.rfind(" ", 0, max(0, len(text) - 2 * _NEAR)) + 1
    numbers = [
        found.span()
        for found in _WITHIN.finditer(text, begin)
        if not (
            _NAMED.match(text, found.end())
            or _NAMES.search(text, found.start() - 12, found.start())
        )
    ]
    for index in range(len(numbers) - 1, -1, -1):
        start, end = numbers[index]
        floor = numbers[index - 1][1] if index else begin
        if _ASKED.match(text, end):
            continue
        if not _denied(text, start, end, floor):
            beside = _LISTED if _ENDS.match(text, end) else _BESIDE
            while index and beside.fullmatch(text, numbers[index - 1][1], numbers[index][0]):
                index -= 1
            if index or not begin:
                return numbers[index][0], end
            break
        if index and _STOP.search(text, floor, start):
            return None  # but: 42, not 41
    # What may go on before `begin` is read from the start.
    return _stated(text, 0) if begin else None


def _last_box(text: str) -> str | None:
    content, start, end = last_box(text)
    return None if _denied(text, start, end) else content or None
