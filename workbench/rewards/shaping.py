"""Rewards for how a completion is written, not for what it says: length, repetition, running over, nearness.

Each has bounds, and each says its unit: characters of the text, or the policy's own tokens.

Two of them do what functions of `trl.rewards` do. They are here because a task file is imported before the policy is
loaded, and importing TRL before Unsloth leaves Unsloth's changes out on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from workbench.data.answer_column import is_number
from workbench.errors import TaskError
from workbench.rewards.answers import completion_text, find_answer
from workbench.rewards.stated import named, pays

UNITS = ("characters", "tokens")


def _require(holds: bool, value: str, rule: str) -> None:
    if not holds:
        raise TaskError(value, rule=rule, remedy="correct that argument where the reward function is made")


def make_length_reward(
    target: int, unit: str = "characters", maximum: float = 0.5, answer_in: str | None = "tag", name: str | None = None
) -> Callable[..., list[float]]:
    """A reward of `maximum` up to `target` characters or tokens, falling to 0 at twice as many.

    Args:
        unit: "characters" of the text, or "tokens" of the policy.
        answer_in: where an answer must stand, as in `find_answer`, for a completion to earn anything; None: any text
            that is not blank will do, and then one letter earns the most.
        name: of the function; None: one with the target and the unit in it.

    Raises:
        TaskError: if the target is not positive, or the unit is none of the two.
    """
    _require(target > 0, f"target = {target!r}", "a length is at least 1")
    _require(unit in UNITS, f"unit = {unit!r}", f"a length is counted in {' or '.join(UNITS)}")

    @pays(maximum)
    def length_reward(
        completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **kwargs: Any
    ) -> list[float]:
        texts = [completion_text(completion) for completion in completions]
        lengths = [len(counted) for counted in (texts if unit == "characters" else completion_ids)]
        scores = []
        for text, length in zip(texts, lengths, strict=True):
            earns = text.strip() if answer_in is None else find_answer(text, answer_in)
            scores.append(maximum * min(1.0, max(0.0, 2.0 - length / target)) if earns else 0.0)
        return scores

    return named(
        length_reward,
        name or f"length_{target}_{unit}_reward",
        f"Up to {maximum:g} for a short completion: all of it within {target} {unit}, nothing at {2 * target}.",
    )


def make_repetition_reward(
    ngram: int = 3, maximum_penalty: float = 1.0, unit: str = "words", name: str | None = None
) -> Callable[..., list[float]]:
    """A penalty from 0 to -`maximum_penalty`: the share of a completion's n-grams that stood in it before.

    Args:
        ngram: how many words or tokens are compared at a time.
        unit: "words" between white space, or "tokens" of the policy, for languages that do not part their words.
        name: of the function; None: one with the size and the unit in it.

    Raises:
        TaskError: if `ngram` is below 1, the penalty negative, or the unit none of the two.
    """
    _require(ngram >= 1, f"ngram = {ngram!r}", "an n-gram has at least one word")
    _require(maximum_penalty >= 0, f"maximum_penalty = {maximum_penalty!r}", "a penalty is given as a positive number")
    _require(unit in ("words", "tokens"), f"unit = {unit!r}", "repetition is counted in words or tokens")

    @pays(0.0)
    def repetition_reward(
        completions: Sequence[Any], completion_ids: Sequence[Sequence[int]] = (), **kwargs: Any
    ) -> list[float]:
        counted = completion_ids if unit == "tokens" else [completion_text(each).split() for each in completions]
        return [0.0 - maximum_penalty * _repeated_share(parts, ngram) for parts in counted]

    return named(
        repetition_reward,
        name or f"repetition_{ngram}_{unit}_reward",
        f"0 down to {-maximum_penalty:g}: the share of groups of {ngram} {unit} that stood in the completion before.",
    )


def _repeated_share(parts: Sequence[Any], ngram: int) -> float:
    total = len(parts) - ngram + 1
    if total < 1:
        return 0.0
    return 1 - len(set(zip(*(parts[start : start + total] for start in range(ngram)), strict=True))) / total


repetition_reward = make_repetition_reward(name="repetition_reward")


def make_overlong_reward(
    max_completion_tokens: int, buffer_tokens: int, name: str | None = None
) -> Callable[..., list[float]]:
    """A penalty from 0 to -1 for running over: 0 until the last `buffer_tokens`, then falling to -1 at the limit.

    Args:
        max_completion_tokens: the limit; the recipe's max_completion_length, or less.
        buffer_tokens: over how many tokens before it the penalty grows; 0: all at once.
        name: of the function; None: one with the limit in it.

    Raises:
        TaskError: if the buffer is negative or longer than the limit.
    """
    _require(
        0 <= buffer_tokens <= max_completion_tokens,
        f"buffer_tokens = {buffer_tokens!r} before max_completion_tokens = {max_completion_tokens!r}",
        "the buffer lies within the limit",
    )
    free = max_completion_tokens - buffer_tokens

    @pays(0.0)
    def overlong_reward(completion_ids: Sequence[Sequence[int]], **kwargs: Any) -> list[float]:
        over = [max(0, len(ids) - free) for ids in completion_ids]
        return [0.0 - min(1.0, tokens / buffer_tokens if buffer_tokens else float(tokens)) for tokens in over]

    return named(
        overlong_reward,
        name or f"overlong_{max_completion_tokens}_tokens_reward",
        f"0 up to {free} tokens, falling to -1 at {max_completion_tokens} tokens.",
    )


def make_closeness_reward(
    scale: float | None = None, maximum: float = 1.0, where: str = "tag", name: str | None = None
) -> Callable[..., list[float | None]]:
    """A reward of `maximum` for the right number, falling to 0 for one that is `scale` away; None if no number is right.

    Args:
        scale: a distance; None: the right number's own size, and 1 where that is smaller.
        where: where the answer stands, as in `find_answer`.
        name: of the function; None: one with the scale in it.

    Raises:
        TaskError: if the scale is not a positive number.
    """
    _require(
        scale is None or (scale > 0 and math.isfinite(scale)), f"scale = {scale!r}", "a distance is a positive number"
    )

    @pays(maximum)
    def closeness_reward(completions: Sequence[Any], answer: Sequence[Any], **kwargs: Any) -> list[float | None]:
        scores: list[float | None] = []
        for completion, right in zip(completions, answer, strict=True):
            wanted, given = number_of(right), number_of(find_answer(completion_text(completion), where))
            if wanted is None:
                scores.append(None)
                continue
            # In fractions, since neither the difference nor the quotient of two long numbers need be a float.
            width = Fraction(scale) if scale is not None else max(abs(wanted), Fraction(1))
            missed = Fraction(1) if given is None else min(Fraction(1), abs(given - wanted) / width)
            scores.append(maximum * float(1 - missed))
        return scores

    return named(
        closeness_reward,
        name or ("closeness_reward" if scale is None else f"closeness_{scale:g}_reward"),
        f"Up to {maximum:g}: all of it for the right number, nothing for one that is "
        f"{'as far away as its own size' if scale is None else f'{scale:g} away'}.",
    )


def number_of(answer: Any) -> Fraction | None:
    """The one number that an answer is, exactly; a percent sign is left out. None if it is not one number.

    >>> number_of("-$1,000.50"), number_of("3/4"), number_of("12 apples"), number_of("1/0")
    (Fraction(-2001, 2), Fraction(3, 4), None, None)
    """
    text = str(answer if answer is not None else "").replace("\u2212", "-").strip().rstrip(".")
    if not is_number(text):
        return None
    try:
        return Fraction(text.replace(",", "").replace("$", "").rstrip("%"))
    except (ValueError, ZeroDivisionError):
        return None


closeness_reward = make_closeness_reward()
