"""The reward functions that pay, and the factories that make them, in TRL's own signature.

Each takes chat or plain completions and returns one score per completion, or None where it cannot
say. It states the most that it pays (`max_score`), and pays nothing for silence, empty tags or tag
soup. Everything here is linear in the length of a completion. A factory makes your own function,
`make_length_reward(200, unit="tokens")`; it raises TaskError for an argument that makes no sense,
and without a `name` it builds one from its settings.

Two of them do what functions of `trl.rewards` do. They are here because a task file is imported
before the policy is loaded, and importing TRL before Unsloth leaves Unsloth's changes out on a GPU.
JSON and Countdown are in `verifiers`.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from types import FunctionType
from typing import Any, Protocol, TypeVar, cast

from workbench.base.errors import TaskError
from workbench.base.kinds import Function
from workbench.data.answer_column import is_number
from workbench.rewards.answers import (
    PLACES,
    TAGS,
    Column,
    Scores,
    answer_like,
    completion_text,
    ending,
    find_answer,
)
from workbench.rewards.code import beneath
from workbench.rewards.compare import legible, quick_same, same_answers

Reward = TypeVar("Reward", bound=Function)
THINK_TAGS = ("think", "answer")
_JUNK = 0.001  # taken off for each character after the last tag
_HEDGES = re.compile(r"\b(?:not|never|either|neither|nor|or|maybe|perhaps)\b")
_ONE_NUMBER = re.compile(r"\d[\d.,]*(?:[eE][-+]?\d+|(?: ?(?:\\times|[*×·]) ?10)?\^\{?[-+]?\d+)?")
_WORDS = {
    "only": "in the one answer block (of several, none counts)", "tag": "in the last answer block",
    "mark": "after the last ####", "boxed": "in the last \\boxed{}", "number": "as the last number",
    "plain": "as the last line", "any": "in the last answer block, else after ####, else boxed, "
                                        "else as the last number",
}  # fmt: skip


class Scorer(Protocol):
    """A reward function that a factory made."""

    __name__: str
    __doc__: str

    def __call__(self, *args: object, **kwargs: object) -> Scores: ...


def max_score(most: float) -> Callable[[Reward], Reward]:
    """State on a reward function the most that it pays for one completion; a pure penalty states 0.

    >>> @max_score(2.0)
    ... def correctness_reward(completions, **kwargs): ...
    >>> max_score_of(correctness_reward)
    2.0
    """

    def state(func: Reward) -> Reward:
        cast(Any, func).max_score = float(most)
        return func

    return state


def max_score_of(func: object) -> float | None:
    """The most that a reward function says it pays; None if it does not say. Looks through
    `functools.partial`.
    """
    stated = getattr(func, "max_score", getattr(beneath(func), "max_score", None))
    return float(stated) if isinstance(stated, (int, float)) else None


def named(func: Function, name: str, says: str, most: float | None) -> Scorer:
    """Give a function that was made its name, which is its curve's label, a docstring, and the most
    that it pays, if known.
    """
    made = cast(FunctionType, func)
    made.__name__ = made.__qualname__ = name
    made.__doc__ = says
    return cast(Scorer, func if most is None else max_score(most)(func))


def require(
    holds: object,
    value: str,
    rule: str,
    remedy: str = "correct that argument where the reward function is made",
) -> None:
    """TaskError with this value, rule and remedy if an argument of a factory does not hold."""
    if not holds:
        raise TaskError(value, rule=rule, remedy=remedy)


def keeps_strict_format(text: str, tags: Sequence[str] = TAGS) -> bool:
    """Whether the text is one non-empty block of each tag, in their order, and nothing else.

    >>> keeps_strict_format("<think>6 * 7</think>\\n<answer>42</answer>", ("think", "answer"))
    True
    """
    marks, filled, rest = _marks(tags), [], text
    for mark in marks:
        piece, found, rest = rest.partition(mark)
        if not found or text.count(mark) != marks.count(mark):
            return False
        filled.append(bool(piece.strip()))
    return not rest.strip() and filled == [False, True] * len(tags)


def format_share(text: str, tags: Sequence[str] = TAGS) -> float:
    """How much of a format in tags is there: 0 to 1, an equal share for each opening and each
    closing tag.

    A tag counts that stands once, in its place and with something in its block; an opening tag
    counts without its closing one. Each character after the last tag costs 0.001, all of them
    together at most one share.
    """
    marks, earned, last = _marks(tags), 0, -1
    for opening, closing in zip(marks[::2], marks[1::2]):
        if text.count(opening) != 1 or (start := text.find(opening)) <= last:
            continue
        last = start
        inside, closed, _ = text[start + len(opening) :].partition(closing)
        if not inside.strip() or any(mark in inside for mark in marks):
            continue
        earned += 1
        if closed and text.count(closing) == 1:
            earned += 1
            last = start + len(opening) + len(inside)
    _, ended, after = text.rpartition(marks[-1])
    junk = len(after.strip()) if ended else 0
    return max(0.0, earned / len(marks) - min(1 / len(marks), _JUNK * junk))


def _marks(tags: Sequence[str]) -> list[str]:
    return [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]


def make_tags_reward(
    tags: Sequence[str] = THINK_TAGS,
    maximum: float = 1.0,
    strict: bool = True,
    opened: bool = False,
    name: str | None = None,
) -> Scorer:
    """A reward of `maximum` for one non-empty block of each tag, in their order, and nothing else;
    otherwise 0.

    Unless `strict`, an equal share for each opening and each closing tag in its place, as
    `format_share` says. `opened`: the chat template writes the first tag itself, so that a
    completion begins inside its block.
    """
    tags = tuple(tags)
    fit = tags and all(re.fullmatch(r"[\w-]+", tag) for tag in tags) and len({*tags}) == len(tags)
    remedy = 'give their names, for example ("think", "answer")'
    require(fit, f"tags = {tags!r}", "tags are words without brackets, each of them once", remedy)
    before, kept = f"<{tags[0]}>" if opened else "", keeps_strict_format if strict else format_share

    def tags_reward(completions: Column, **kwargs: object) -> list[float]:
        return [
            maximum * kept(before + completion_text(completion), tags) for completion in completions
        ]

    blocks = " and ".join(f"<{tag}>" for tag in tags)
    kind, rest = "tags", "; a share of it for each tag in its place."
    if strict:
        kind, rest = "strict", ", and nothing else; otherwise 0."
    says = f"{maximum:g} for one block each of {blocks}, not empty and in order{rest}"
    return named(tags_reward, name or f"{'_'.join(tags)}_{kind}_reward", says, maximum)


strict_format_reward = make_tags_reward(TAGS, name="strict_format_reward")
strict_format_reward.__doc__ += """

>>> from workbench.rewards import strict_format_reward
>>> strict_format_reward(["<reasoning>6 * 7</reasoning><answer>42</answer>", "<answer>42</answer>"])
[1.0, 0.0]
"""
incremental_format_reward = make_tags_reward(TAGS, strict=False, name="incremental_format_reward")
incremental_format_reward.__doc__ += """

>>> from workbench.rewards import incremental_format_reward
>>> incremental_format_reward(["<reasoning>6 * 7</reasoning><answer>42</answer>", "<answer>42</answer>", "42"])
[1.0, 0.5, 0.0]
"""  # noqa: E501
# Where a chat template opens the <think> block itself, a completion lacks that tag:
# make_tags_reward(opened=True).
think_answer_format_reward = make_tags_reward(THINK_TAGS, name="think_answer_format_reward")
think_answer_format_reward.__doc__ += """

>>> from workbench.rewards import think_answer_format_reward
>>> think_answer_format_reward(["<think>6 * 7</think><answer>42</answer>", "<think></think><answer>42</answer>"])
[1.0, 0.0]
"""  # noqa: E501


def answer_scores(
    given: Sequence[str | None], right: Column, maximum: float, bare: bool = False
) -> Scores:
    """`maximum` for each answer that is the right one, else 0.0; None where a formula was not
    judged in time.

    Where a whole number is right, a text with several numbers is wrong: a sum or a division that
    was copied from the question and left undone, or a hedge. `given` and `right` are [B]; with
    `bare` a right number has to stand alone, without a unit or words.
    """
    pairs = zip(given, right, strict=True)
    stated = [None if _says_too_much(one, other, bare) else one for one, other in pairs]
    return [None if same is None else maximum * same for same in same_answers(stated, right)]


def _says_too_much(given: str | None, right: object, bare: bool) -> bool:
    if given is None:
        return False
    # "not 1/2" and "either 7 or 1/2" hold the right formula, and math-verify finds it there.
    if any(word not in str(right).casefold() for word in _HEDGES.findall(given.casefold())):
        return True
    wanted, given = number_of(right), legible(given)
    if wanted is None:
        return False
    several, whole = len(_ONE_NUMBER.findall(given)) > 1, wanted.denominator == 1
    if quick_same(given, right) is not None:
        return several and whole
    # Two numbers that are no whole ones may be the same but for rounding, which is not judged here.
    return (bare or several) and (whole or number_of(given) is None)


def make_answer_reward(
    where: str = "any", maximum: float = 2.0, name: str | None = None, bare: bool = False
) -> Scorer:
    """A reward of `maximum` for the right answer in one place, else 0; None where a formula was not
    judged in time.

    `where` is "only", "tag", "mark", "boxed", "number", "plain" or "any", as in `find_answer`; with
    `bare` a right number has to stand alone there, without a unit or words. For "any" an answer
    that is no number is looked for at the end, too.
    """
    rule, known = "an answer is looked for in one of the known places", ", ".join(map(repr, PLACES))
    require(where in PLACES, f"where = {where!r}", rule, f"use one of {known}")

    def answer_reward(completions: Column, answer: Column, **kwargs: object) -> Scores:
        texts = map(completion_text, completions)
        if where == "any":
            given = [answer_like(text, right) for text, right in zip(texts, answer)]
        else:
            given = [find_answer(text, where) for text in texts]
        return answer_scores(given, answer, maximum, bare)

    alone = ", without a unit or words" if bare else ""
    says = f"{maximum:g} for the right answer {_WORDS[where]}{alone}; else 0."
    return named(answer_reward, name or f"{where}_answer_reward", says, maximum)


correctness_reward = make_answer_reward("only", name="correctness_reward", bare=True)
correctness_reward.__doc__ += """

>>> from workbench.rewards import correctness_reward
>>> correctness_reward(["<answer>42</answer>", "<answer>42 apples</answer>", "42"], answer=["42", "42", "42"])
[2.0, 0.0, 0.0]
"""  # noqa: E501
lenient_correctness_reward = make_answer_reward("any", name="lenient_correctness_reward")
lenient_correctness_reward.__doc__ += """

>>> from workbench.rewards import lenient_correctness_reward
>>> lenient_correctness_reward(["<answer>42 apples</answer>", "It is 42.", "It is 41."], answer=["42", "42", "42"])
[2.0, 2.0, 0.0]
"""  # noqa: E501
mark_correctness_reward = make_answer_reward("mark", name="mark_correctness_reward", bare=True)
mark_correctness_reward.__doc__ += """

>>> from workbench.rewards import mark_correctness_reward
>>> mark_correctness_reward(["6 * 7 = 42\\n#### 42", "It is 42."], answer=["42", "42"])
[2.0, 0.0]
"""
boxed_correctness_reward = make_answer_reward("boxed", name="boxed_correctness_reward")
boxed_correctness_reward.__doc__ += """

>>> from workbench.rewards import boxed_correctness_reward
>>> boxed_correctness_reward(["So it is \\\\boxed{42}.", "It is 42."], answer=["42", "42"])
[2.0, 0.0]
"""


@max_score(2.0)
def last_line_reward(completions: Column, answer: Column, **kwargs: object) -> Scores:
    """2.0 if the last line that is not empty is the right answer, or ends with it as a separate
    word, else 0.0.

    >>> from workbench.rewards import last_line_reward
    >>> last_line_reward(["6 * 7\\nThe answer is 42", "42, I think"], answer=["42", "42"])
    [2.0, 0.0]
    """
    lines = (find_answer(completion_text(completion), "plain") or "" for completion in completions)
    return answer_scores([*map(ending, lines, answer)], answer, 2.0, bare=True)


def make_closeness_reward(
    scale: float | None = None, maximum: float = 1.0, where: str = "tag", name: str | None = None
) -> Scorer:
    """A reward of `maximum` for the right number, falling to 0 for one that is `scale` away; None
    if no number is right.

    Without a `scale` it is the right number's own size, and 1 where that is smaller. `where` is as
    in `find_answer`.
    """
    fits = scale is None or (scale > 0 and math.isfinite(scale))
    require(fits, f"scale = {scale!r}", "a distance is a positive number")

    def closeness_reward(completions: Column, answer: Column, **kwargs: object) -> Scores:
        given = (number_of(find_answer(completion_text(each), where)) for each in completions)
        return [*map(closeness, given, map(number_of, answer))]

    def closeness(given: Fraction | None, wanted: Fraction | None) -> float | None:
        if given is None or wanted is None:
            return None if wanted is None else 0.0
        # In fractions, since neither the difference nor the quotient of two long numbers need be a
        # float.
        width = max(abs(wanted), Fraction(1)) if scale is None else Fraction(scale)
        return maximum * float(1 - min(Fraction(1), abs(given - wanted) / width))

    away, part = "as far away as its own size", ""
    if scale is not None:
        away, part = f"{scale:g} away", f"_{scale:g}"
    says = f"Up to {maximum:g}: all of it for the right number, nothing for one that is {away}."
    return named(closeness_reward, name or f"closeness{part}_reward", says, maximum)


def number_of(answer: object) -> Fraction | None:
    """The one number that an answer is, exactly; a percent sign is left out. None if it is not one
    number.

    >>> number_of("-$1,000.50"), number_of("3/4"), number_of("12 apples"), number_of("1/0")
    (Fraction(-2001, 2), Fraction(3, 4), None, None)
    """
    text = str(answer if answer is not None else "")
    return (_short_number if len(text) <= 60 else _number_in)(text)


def _number_in(text: str) -> Fraction | None:
    text = text.replace("\u2212", "-").strip().rstrip(".")
    try:
        return Fraction(re.sub(r"[,$]", "", text).rstrip("%")) if is_number(text) else None
    except (ValueError, ZeroDivisionError):
        return None


_short_number = functools.lru_cache(4096)(_number_in)  # a task has few answers
closeness_reward = make_closeness_reward()
closeness_reward.__doc__ += """

>>> from workbench.rewards import closeness_reward
>>> closeness_reward(["<answer>42</answer>", "<answer>21</answer>", "<answer>0</answer>"], answer=["42", "42", "42"])
[1.0, 0.5, 0.0]
"""  # noqa: E501
