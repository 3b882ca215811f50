"""A prompt as the model reads it: its text through the chat template, and its length in tokens.

TRL no longer truncates prompts, and Unsloth cuts the completion instead: what is too long must be
left out here.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.base.errors import DataError, PolicyError
from workbench.base.kinds import Fields, Tokenizer
from workbench.base.workspace import encodable
from workbench.task import Row

_SURROGATE = re.compile("[\ud800-\udfff]")


def prompt_text(prompt: object, tokenizer: object) -> str:
    """The exact text that the model will see for a prompt, generation prompt included; DataError if
    it is not text.
    """
    text = prompt
    if not isinstance(text, str):
        text = render(prompt, tokenizer, add_generation_prompt=True)
    if (half := _SURROGATE.search(text)) is not None:
        raise DataError(
            f"the prompt {encodable(text[max(0, half.start() - 40) : half.end() + 40])!r}",
            rule="a tokenizer reads Unicode text, and half of a surrogate pair (\\ud800 to \\udfff)"
            " is not text",
            remedy="read the file as UTF-8, or leave that row out",
        )
    return text


def render(messages: Any, tokenizer: Any, add_generation_prompt: bool, **more: object) -> str:
    """Chat messages through the tokenizer's template, with the `chat_template_kwargs` that the
    tokenizer carries, and `more`.

    The only place that renders a policy's prompt, for every reader; TRL does it with the same
    arguments, not with those of a row's own column. DataError: there is no template, or it refuses
    these messages (some refuse a system message).
    """
    from jinja2 import TemplateError

    name = tokenizer.name_or_path
    rule = "chat messages become text through a template of the tokenizer that takes them"
    if not tokenizer.chat_template:
        remedy = (
            "use an instruct model, put a chat_template.jinja beside the weights, or write the"
            " prompts as plain text"
        )
        raise DataError(f"{name}: no chat template", rule=rule, remedy=remedy)
    kwargs = {**getattr(tokenizer, "chat_template_kwargs", {}), **more}
    try:
        return tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt, **kwargs
        )
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        value = f"{name}: the chat template refuses messages of {roles}: {error}"
        remedy = "write prompts of the roles that it takes"
        if "system" in roles:
            remedy = (
                "put the system message's words into the user's message in the task file; notebook"
                ' 01 does it with system_prompt = "none"'
            )
        raise DataError(value, rule=rule, remedy=remedy) from error


def with_tools(tokenizer: Any, tools: Mapping[str, list[Fields]] | None, row: Row) -> Any:
    """The tokenizer as it renders a row's prompt with a task's `tool_schemas`: a copy, if there are
    any.
    """
    tools = tools or {}
    if schemas := tools.get("") or tools.get(row.get("environment", "")):
        tokenizer = copy.copy(tokenizer)
        kwargs = getattr(tokenizer, "chat_template_kwargs", {})
        tokenizer.chat_template_kwargs = {**kwargs, "tools": schemas}
    return tokenizer


def check_embedded(
    tokenizer: Any, rows: Iterable[Row], tools: Any = None, what: str = "a prompt"
) -> None:
    """PolicyError for a prompt, with a task's `tool_schemas`, that has a token which the policy's
    embedding lacks.
    """
    size = getattr(tokenizer, "embedded", None) or math.inf
    beyond = [token for token, number in tokenizer.get_added_vocab().items() if number >= size]
    for row in rows if beyond else ():
        text = prompt_text(row["prompt"], with_tools(tokenizer, tools, row))
        if lacking := [token for token in beyond if token in text]:
            raise PolicyError(
                f"{what}: the tokenizer has {len(tokenizer)} tokens, and the embedding {size} rows,"
                f" none for {', '.join(lacking)}",
                rule="each token that a policy reads has a row in its embedding",
                remedy="model.resize_token_embeddings(len(tokenizer)), and save both; or leave"
                " these tokens out",
            )


def template_notes(rows: Sequence[Row], tokenizer: Tokenizer) -> list[str]:
    """A line for every argument of the chat template that reaches no prompt."""
    template = "" if isinstance(rows[0]["prompt"], str) else str(tokenizer.chat_template or "")
    why = "the chat template does not read it" if template else "these prompts are plain text"
    notes = [
        f"chat_template_kwargs: {name!r} changes nothing: {why}"
        for name in getattr(tokenizer, "chat_template_kwargs", {})
        if not re.search(rf"\b{re.escape(name)}\b", template)
    ]
    if "chat_template_kwargs" in rows[0]:
        notes.append(
            "GRPOTrainer does not read the column 'chat_template_kwargs': set"
            " grpo.chat_template_kwargs"
        )
    return notes


def stream_lengths(
    rows: Iterable[Row],
    tokenizer: Tokenizer,
    progress: Callable[[int], None] | None = None,
    tools: Mapping[str, list[Fields]] | None = None,
) -> Iterator[tuple[Row, int]]:
    """Each row with its prompt's length in tokens, a thousand rows at a time; `progress` is called
    with the number done. `tools`: the task's `tool_schemas`, which are part of the prompt.
    """
    rows = iter(rows)
    done = 0
    while batch := list(itertools.islice(rows, 1000)):
        # The template writes the special tokens itself; a plain prompt gets those that the
        # tokenizer adds, as in TRL.
        plain = isinstance(batch[0]["prompt"], str)
        texts = [prompt_text(row["prompt"], with_tools(tokenizer, tools, row)) for row in batch]
        ids = tokenizer(texts, add_special_tokens=plain)["input_ids"]
        yield from zip(batch, map(len, ids), strict=True)
        done += len(batch)
        if progress is not None:
            progress(done)


def prompt_lengths_tokens(
    rows: Iterable[Row],
    tokenizer: Tokenizer,
    progress: Callable[[int], None] | None = None,
    tools: Mapping[str, list[Fields]] | None = None,
) -> Sequence[int]:
    """Length of each row's prompt, in tokens, through the chat template: one unsigned number per
    row.
    """
    return array("L", (length for _, length in stream_lengths(rows, tokenizer, progress, tools)))


# (chat_template_kwargs, rows, tool schemas) -> (notes on the template, tokens of each prompt)
Measure = Callable[[Fields, list[Row], Any], tuple[list[str], list[int]]]


@dataclass
class PromptLengths:
    """The length of each row's prompt in tokens; it displays as a histogram."""

    rows: Sequence[Row]
    lengths: Sequence[int]
    policy: str = ""  # whose tokenizer and template measured them
    max_tokens: int | None = None  # longer prompts are to be left out; None: none

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt within `max_tokens`."""
        limit = math.inf if self.max_tokens is None else self.max_tokens
        return max((each for each in self.lengths if each <= limit), default=min(self.lengths))

    @property
    def covering(self) -> dict[float, int]:
        """For 95, 99 and 100 % of the prompts, the smallest limit (tokens) that keeps them."""
        ordered = sorted(self.lengths)
        shares = (0.95, 0.99, 1.0) if ordered else ()
        return {share: ordered[math.ceil(share * len(ordered) - 1e-9) - 1] for share in shares}

    def keep(self, max_tokens: int | None = None) -> tuple[list[Row], list[Row]]:
        """(rows whose prompt has at most `max_tokens` tokens, the others); None: as measured.
        DataError: all are longer.
        """
        limit = self.max_tokens if max_tokens is None else max_tokens
        if limit is None or not len(self.rows):
            return list(self.rows), []
        shortest = min(self.lengths)
        if shortest > limit:
            raise DataError(
                f"max_prompt_length = {limit}: all {len(self.rows)} prompts are longer, the"
                f" shortest has {shortest}",
                rule="some prompts must be within the limit, in tokens",
                remedy=f"raise it to at least {shortest}; {max(self.lengths)} keeps all",
            )
        sides: tuple[list[Row], list[Row]] = [], []
        for row, length in zip(self.rows, self.lengths, strict=True):
            sides[bool(length > limit)].append(row)
        return sides

    def check_budget(self, max_completion_length: int, max_seq_length: int) -> str:
        """The arithmetic of prompt and completion (tokens), in words; DataError: they do not fit
        into the context together.
        """
        room = max_seq_length - max_completion_length
        whole = self.longest + max_completion_length
        if whole > max_seq_length:
            remedy = f"set max_seq_length to at least {whole}"
            if room >= min(self.lengths):
                remedy += (
                    f", or max_prompt_length to {room} (longer prompts are then left out and"
                    " counted)"
                )
            raise DataError(
                f"the longest prompt has {self.longest} tokens, max_completion_length ="
                f" {max_completion_length}: {whole} tokens",
                rule=f"prompt + completion fit into max_seq_length = {max_seq_length}",
                remedy=remedy,
            )
        return (
            f"{self.longest} + {max_completion_length} = {whole} <= {max_seq_length} tokens: fits"
        )

    def record(self) -> Fields:
        """For the dataset's card."""
        return {"longest_tokens": self.longest, "covering": self.covering, "policy": self.policy}

    def __repr__(self) -> str:
        return f"prompt lengths: {min(self.lengths)} to {max(self.lengths)} tokens"
