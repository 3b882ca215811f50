"""Prompt lengths through the real chat template, and the filter that keeps prompts within a limit.

TRL no longer truncates prompts, and Unsloth cuts the completion instead: what is too long must be left out here.
"""

from __future__ import annotations

import itertools
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.errors import DataError
from workbench.task import Row

_BATCH = 1000  # prompts tokenised together


@dataclass
class PromptLengths:
    """The length of each row's prompt in tokens; it shows itself as a histogram.

    Args:
        lengths: as many as rows.
        policy: whose tokenizer and template measured them.
        max_tokens: longer prompts are to be left out; None: none.
    """

    rows: Sequence[Row]
    lengths: Sequence[int]
    policy: str = ""
    max_tokens: int | None = None

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt within `max_tokens`."""
        within = (length for length in self.lengths if self.max_tokens is None or length <= self.max_tokens)
        return max(within, default=min(self.lengths))

    @property
    def covering(self) -> dict[float, int]:
        """For 95, 99 and 100 % of the prompts, the smallest limit (tokens) that keeps them."""
        return covering_lengths(self.lengths)

    def keep(self, max_tokens: int | None = None) -> tuple[list[Row], list[Row]]:
        """(rows whose prompt has at most `max_tokens` tokens, the others); None: as measured.

        Raises:
            DataError: if all are longer.
        """
        limit = self.max_tokens if max_tokens is None else max_tokens
        if limit is not None and self.lengths and min(self.lengths) > limit:
            shortest, longest = min(self.lengths), max(self.lengths)
            raise DataError(
                f"max_prompt_length = {limit}: all {len(self.rows)} prompts are longer, the shortest has {shortest}",
                rule="some prompts must be within the limit, in tokens",
                remedy=f"raise it to at least {shortest}; {longest} keeps all",
            )
        sides: tuple[list[Row], list[Row]] = [], []
        for row, length in zip(self.rows, self.lengths, strict=True):
            sides[limit is not None and length > limit].append(row)
        return sides

    def check_budget(self, max_completion_length: int, max_seq_length: int) -> str:
        """The arithmetic of prompt and completion (tokens), in words.

        Raises:
            DataError: if the longest prompt and a completion do not fit into the context together.
        """
        whole, room = self.longest + max_completion_length, max_seq_length - max_completion_length
        if whole > max_seq_length:
            shorter = f", or max_prompt_length to {room} (longer prompts are then left out and counted)"
            raise DataError(
                f"the longest prompt has {self.longest} tokens, max_completion_length = {max_completion_length}: {whole} tokens",
                rule=f"prompt + completion fit into max_seq_length = {max_seq_length}",
                remedy=f"set max_seq_length to at least {whole}" + shorter * (room >= min(self.lengths)),
            )
        return f"{self.longest} + {max_completion_length} = {whole} <= {max_seq_length} tokens: fits"

    def record(self) -> dict[str, Any]:
        """For the dataset's card."""
        return {"longest_tokens": self.longest, "covering": self.covering, "policy": self.policy}

    def __repr__(self) -> str:
        return f"prompt lengths: {min(self.lengths)} to {max(self.lengths)} tokens"


def prompt_text(prompt: Any, tokenizer: Any) -> str:
    """The exact text that the model will see for a prompt, generation prompt included."""
    return prompt if isinstance(prompt, str) else render(prompt, tokenizer, add_generation_prompt=True)


def render(messages: Any, tokenizer: Any, add_generation_prompt: bool) -> str:
    """Chat messages through the tokenizer's template, with the `chat_template_kwargs` that the tokenizer carries.

    The only place that renders a policy's prompt, whoever reads it. TRL renders with the same arguments, and not with those
    of a row's own column.

    Raises:
        DataError: if there is no template, or it refuses these messages (some refuse a system message).
    """
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        raise DataError(
            f"{tokenizer.name_or_path}: no chat template",
            rule="chat messages become text through the tokenizer's template",
            remedy="use an instruct model, put a chat_template.jinja beside the weights, or write the prompts as plain text",
        )
    kwargs = getattr(tokenizer, "chat_template_kwargs", {})
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt, **kwargs)
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise DataError(
            f"{tokenizer.name_or_path}: the chat template refuses messages of {roles}: {error}",
            rule="a prompt is made of messages that the policy's template takes",
            remedy='where it takes no system message, use system_prompt = "none" and say the format in the question',
        ) from error


def template_notes(rows: Sequence[Row], tokenizer: Any) -> list[str]:
    """A line for every argument of the chat template that reaches no prompt."""
    template = "" if isinstance(rows[0]["prompt"], str) else str(tokenizer.chat_template or "")
    why = "the chat template does not read it" if template else "these prompts are plain text"
    names = getattr(tokenizer, "chat_template_kwargs", {})
    unread = [name for name in names if not re.search(rf"\b{re.escape(name)}\b", template)]
    notes = [f"chat_template_kwargs: {name!r} changes nothing: {why}" for name in unread]
    if "chat_template_kwargs" in rows[0]:
        notes.append("GRPOTrainer does not read the column 'chat_template_kwargs': set grpo.chat_template_kwargs")
    return notes


def stream_lengths(rows: Iterable[Row], tokenizer: Any) -> Iterator[tuple[Row, int]]:
    """Each row with the length of its prompt, in tokens; no more than a thousand rows are held at a time."""
    rows = iter(rows)
    while batch := list(itertools.islice(rows, _BATCH)):
        # The template writes the special tokens itself; a plain prompt gets those that the tokenizer adds, as in TRL.
        plain = isinstance(batch[0]["prompt"], str)
        found = tokenizer([prompt_text(row["prompt"], tokenizer) for row in batch], add_special_tokens=plain)
        yield from zip(batch, map(len, found["input_ids"]), strict=True)


def prompt_lengths_tokens(rows: Iterable[Row], tokenizer: Any, progress: Callable[[int], None] | None = None) -> Sequence[int]:
    """Length of each row's prompt, in tokens, through the chat template: one unsigned number a row.

    Args:
        progress: called with the number of prompts measured, now and then.
    """
    lengths = array("L")
    for _, length in stream_lengths(rows, tokenizer):
        lengths.append(length)
        if progress is not None and len(lengths) % _BATCH == 0:
            progress(len(lengths))
    return lengths


def covering_lengths(lengths: Sequence[int], shares: Sequence[float] = (0.95, 0.99, 1.0)) -> dict[float, int]:
    """For each share, the smallest limit (in tokens) that keeps at least that share of the rows.

    >>> covering_lengths([10, 20, 30, 40], shares=(0.5, 0.75, 1.0))
    {0.5: 20, 0.75: 30, 1.0: 40}
    """
    ordered = sorted(lengths)
    return {share: ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)] for share in shares} if ordered else {}
