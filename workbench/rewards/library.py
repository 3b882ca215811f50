"""The five reward functions, in TRL's own signature.

Each takes chat or plain completions, returns one number a completion, and pays nothing for silence, empty tags or tag
soup. They read one format::

    <reasoning>
    the working
    </reasoning>
    <answer>
    42
    </answer>
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.rewards.answers import TAGS, blocks, completion_text, extract_answer, same_answer

_MARKS = tuple(mark for tag in TAGS for mark in (f"<{tag}>", f"</{tag}>"))


def _parts(text: str) -> list[tuple[int, str]] | None:
    """(place, tag) of the four tags, if each stands there exactly once; None otherwise."""
    places = []
    for mark in _MARKS:
        place = text.find(mark)
        if place < 0 or text.find(mark, place + 1) >= 0:
            return None
        places.append((place, mark))
    return places


def keeps_strict_format(text: str) -> bool:
    """Whether the text is one non-empty reasoning block, then one non-empty answer block, and nothing else."""
    places = _parts(text)
    if places is None or places != sorted(places):
        return False
    _, (end_reasoning, close_reasoning), (start_answer, _), (end_answer, close_answer) = places
    before = text[: places[0][0]]
    between = text[end_reasoning + len(close_reasoning) : start_answer]
    after = text[end_answer + len(close_answer) :]
    if before.strip() or between.strip() or after.strip():
        return False
    return all(block.strip() for tag in TAGS for block in blocks(text, tag))


def correctness_reward(
    prompts: Sequence[Any], completions: Sequence[Any], answer: Sequence[Any], **kwargs: Any
) -> list[float]:
    """2.0 if the one answer block holds the right answer, else 0.0. Fills `rewards/correctness_reward/mean`."""
    return [
        2.0 if (given := extract_answer(completion_text(completion))) is not None and same_answer(given, right) else 0.0
        for completion, right in zip(completions, answer, strict=True)
    ]


def strict_format_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """1.0 if the whole completion is one reasoning block and one answer block, both non-empty, else 0.0."""
    return [1.0 if keeps_strict_format(completion_text(completion)) else 0.0 for completion in completions]


def incremental_format_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """0.25 for each of the four tags that stands once and in its place; text after the last tag costs up to 0.25.

    A block counts only with something in it, so empty tags earn nothing; a tag that stands twice earns nothing, and
    so does one out of order.
    """
    return [_incremental(completion_text(completion)) for completion in completions]


def _incremental(text: str) -> float:
    score, last = 0.0, -1
    for tag in TAGS:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if text.count(opening) != 1 or (start := text.find(opening)) <= last:
            continue
        last = start
        content = text[start + len(opening) :]
        end = content.find(closing)
        inside = content if end < 0 else content[:end]
        if not inside.strip() or any(mark in inside for mark in _MARKS):
            continue
        score += 0.25
        if end >= 0 and text.count(closing) == 1:
            score += 0.25
            last = start + len(opening) + end
    junk = len(text.rpartition("</answer>")[2].strip()) if "</answer>" in text else 0
    return max(0.0, score - min(0.25, 0.001 * junk)) if score else 0.0


TARGET_LENGTH_CHARACTERS = 120


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
