"""Longer prompts of the arithmetic task: solved examples are put before the question until a prompt
has so many tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def lengthened(
    rows: Sequence[dict[str, Any]], tokenizer: Any, length_tokens: int
) -> list[dict[str, Any]]:
    """The rows with prompts of at least `length_tokens`, and no more than an example over; rows
    that have it are kept.
    """
    from workbench.data.rendering import prompt_lengths_tokens

    found = []
    for number, row in enumerate(rows):
        *before, question = row["prompt"]
        examples, longer = "", row
        while prompt_lengths_tokens([longer], tokenizer)[0] < length_tokens:
            other = rows[(number + 1 + examples.count("\n")) % len(rows)]
            examples += f"{other['prompt'][-1]['content']} {other['answer']}\n"
            longer = {
                **row,
                "prompt": [*before, {**question, "content": examples + question["content"]}],
            }
        found.append(longer)
    return found
