"""Formats in tags: whether a completion keeps one, and how far it comes.

The tags are found by plain search and the text between them is looked at piece by piece, so everything here is linear
in the length of a completion, holds over line breaks, and pays nothing for tags with nothing in them. The format of
`strict_format_reward` and `incremental_format_reward`::

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

from workbench.rewards.answers import TAGS, completion_text
from workbench.rewards.stated import pays

THINK_TAGS = ("think", "answer")
_JUNK = 0.001  # taken off for each character after the last tag


def keeps_strict_format(text: str, tags: Sequence[str] = TAGS) -> bool:
    """Whether the text is one non-empty block of each tag, in their order, and nothing else.

    >>> keeps_strict_format("<think>6 * 7</think>\\n<answer>42</answer>", ("think", "answer"))
    True
    """
    marks = _marks(tags)
    if any(text.count(mark) != 1 for mark in marks):
        return False
    outside, rest = [], text
    for number, mark in enumerate(marks):
        piece, found, rest = rest.partition(mark)
        if not found:
            return False  # it stands once, but before its turn
        if number % 2 == 0:
            outside.append(piece)
        elif not piece.strip():
            return False
    return not any(piece.strip() for piece in (*outside, rest))


def format_share(text: str, tags: Sequence[str] = TAGS) -> float:
    """How much of a format in tags is there: 0 to 1, an equal share for each opening and each closing tag.

    A tag counts that stands once, in its place and with something in its block; an opening tag counts without its
    closing one. Each character after the last tag costs 0.001, all of them together at most one share.
    """
    marks, earned, last = _marks(tags), 0, -1
    for opening, closing in zip(marks[::2], marks[1::2], strict=True):
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


@pays(1.0)
def strict_format_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """1.0 if the whole completion is one reasoning block and one answer block, both non-empty, else 0.0."""
    return [1.0 if keeps_strict_format(completion_text(completion)) else 0.0 for completion in completions]


@pays(1.0)
def incremental_format_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """0.25 for each of the four tags that stands once and in its place; text after the last tag costs up to 0.25.

    A block counts only with something in it, so empty tags earn nothing; a tag that stands twice earns nothing, and
    so does one out of order.
    """
    return [format_share(completion_text(completion)) for completion in completions]


@pays(1.0)
def think_answer_format_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """1.0 if the whole completion is one `<think>` block and one `<answer>` block, both non-empty, else 0.0.

    Where a chat template opens the `<think>` block itself, the completion does not hold that tag and earns nothing.
    """
    return [1.0 if keeps_strict_format(completion_text(completion), THINK_TAGS) else 0.0 for completion in completions]
