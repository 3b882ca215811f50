"""Reward functions for text with one right answer, in TRL's own signature: correct, in format, short, bare.

Each takes chat or plain completions and returns one number a completion, or None where it cannot say. It states the most
that it pays (`maximum`) and pays nothing for silence, empty tags or tag soup. The five of the embedded task read
`<reasoning>` and `<answer>` (see `formats`, where the format rewards are); others look elsewhere for the answer.

To reward something else: `factories` makes functions for tags, patterns, places of the answer and schemas, `shaping`
for length, repetition, running over and nearness to a number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from workbench.rewards.answers import completion_text, extract_answer, find_answer
from workbench.rewards.compare import quick_same, same_answers
from workbench.rewards.formats import (
    incremental_format_reward,
    keeps_strict_format,
    strict_format_reward,
    think_answer_format_reward,
)
from workbench.rewards.shaping import number_of
from workbench.rewards.stated import pays

__all__ = [
    "answer_scores",
    "boxed_correctness_reward",
    "correctness_reward",
    "incremental_format_reward",
    "keeps_strict_format",
    "last_line_reward",
    "length_reward",
    "lenient_correctness_reward",
    "mark_correctness_reward",
    "strict_format_reward",
    "style_reward",
    "think_answer_format_reward",
]

_HEDGES = re.compile(r"\b(?:not|never|either|neither|nor|or|maybe|perhaps)\b")
_ONE_NUMBER = re.compile(r"\d[\d.,]*(?:[eE][-+]?\d+)?")


def answer_scores(
    given: Sequence[str | None], right: Sequence[Any], maximum: float, bare: bool = False
) -> list[float | None]:
    """`maximum` for each answer that is the right one, else 0.0; None where a formula was not judged in time.

    Where a whole number is right, a text with several numbers is wrong: a sum or a division that was copied from the
    question and left undone, or a hedge.

    Args:
        given: [B]; None where no answer was found.
        right: [B].
        bare: whether a right number has to stand alone, without a unit or words.
    """
    stated = [None if _says_too_much(one, other, bare) else one for one, other in zip(given, right, strict=True)]
    return [None if same is None else maximum * same for same in same_answers(stated, right)]


def _says_too_much(given: str | None, right: Any, bare: bool) -> bool:
    if given is None:
        return False
    # "not 1/2" and "either 7 or 1/2" hold the right formula, and math-verify finds it there.
    if any(word not in str(right).casefold() for word in _HEDGES.findall(given.casefold())):
        return True
    wanted = number_of(right)
    if wanted is None:
        return False
    several, whole = len(_ONE_NUMBER.findall(given)) > 1, wanted.denominator == 1
    if quick_same(given, right) is not None:
        return several and whole
    # Two numbers that are no whole ones may be the same but for rounding, which is not judged here.
    return (bare or several) and (whole or number_of(given) is None)


@pays(2.0)
def correctness_reward(
    prompts: Sequence[Any], completions: Sequence[Any], answer: Sequence[Any], **kwargs: Any
) -> list[float | None]:
    """2.0 if the one answer block holds the right answer, else 0.0. Fills `rewards/correctness_reward/mean`."""
    return answer_scores(
        [extract_answer(completion_text(completion)) for completion in completions], answer, 2.0, bare=True
    )


@pays(2.0)
def lenient_correctness_reward(completions: Sequence[Any], answer: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """2.0 if the answer is right wherever it stands, with a unit or words around it, else 0.0.

    It is looked for in the last answer block, then after the last `####`, then in the last `\\boxed{}`, then it is the
    last number of the text.
    """
    return answer_scores([find_answer(completion_text(completion), "any") for completion in completions], answer, 2.0)


@pays(2.0)
def mark_correctness_reward(completions: Sequence[Any], answer: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """2.0 if the right answer stands after the last `####`, else 0.0."""
    return answer_scores(
        [find_answer(completion_text(completion), "mark") for completion in completions], answer, 2.0, bare=True
    )


@pays(2.0)
def boxed_correctness_reward(completions: Sequence[Any], answer: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """2.0 if the right answer stands in the last `\\boxed{}`, else 0.0."""
    return answer_scores([find_answer(completion_text(completion), "boxed") for completion in completions], answer, 2.0)


@pays(2.0)
def last_line_reward(completions: Sequence[Any], answer: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """2.0 if the last line that is not empty is the right answer, or ends with it as a word of its own, else 0.0."""
    lines = [find_answer(completion_text(completion), "plain") or "" for completion in completions]
    # A line of prose is not searched for formulas: it may hold several, and one of them be right.
    given = [
        line if quick_same(line, right) else line.rpartition(" ")[2] for line, right in zip(lines, answer, strict=True)
    ]
    return answer_scores(given, answer, 2.0, bare=True)


TARGET_LENGTH_CHARACTERS = 120


@pays(0.5)
def length_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """Up to 0.5 for a short completion that has an answer: 0.5 within 120 characters, falling to 0 at 240.

    The unit is characters. A completion without an answer block earns nothing, or silence would be the best answer.
    """
    scores = []
    for completion in completions:
        text = completion_text(completion)
        over = max(0, len(text) - TARGET_LENGTH_CHARACTERS) / TARGET_LENGTH_CHARACTERS
        scores.append(0.5 * max(0.0, 1.0 - over) if extract_answer(text) else 0.0)
    return scores


@pays(0.25)
def style_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """0.25 if the answer block holds the bare answer: one line, no sentence, at most 20 characters; else 0.0."""
    scores = []
    for completion in completions:
        given = extract_answer(completion_text(completion)) or ""
        bare = (
            0 < len(given) <= 20
            and len(given.splitlines()) == 1
            and len(given.split()) == 1
            and not given.endswith(".")
        )
        scores.append(0.25 if bare else 0.0)
    return scores
