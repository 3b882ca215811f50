"""The turns of a rollout: who wrote what, which calls were made, and what came back.

A rollout of one turn has none of this: its completion says all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from workbench.base.kinds import Fields

POLICY, TOOL, ENVIRONMENT = "policy", "tool", "environment"


class ToolCall(NamedTuple):
    """One call that was parsed out of a policy's turn."""

    name: str
    arguments: Fields
    result: str | None = None  # as the policy read it; None: it was not called, or it failed
    error: str | None = None  # "ValueError: ...", of the tool; None: it returned
    seconds: float | None = None


class Turn(NamedTuple):
    """One author's part of a rollout, in order."""

    author: str  # POLICY, TOOL, or ENVIRONMENT where a rollout_func's mask says so
    text: str  # as the tokens decode, special ones left out
    tokens: int
    in_loss: bool  # what TRL's tool_mask says of these tokens
    calls: tuple[ToolCall, ...] = ()  # of the policy
    unparsed: str = ""  # why what looks like a call is none (`calls.py`); of the policy
    # what its message says, and so what rewards read, where that is not the text: calls and
    # reasoning are taken out
    content: str | None = None


def turns_to_text(turns: Sequence[Turn]) -> str:
    """JSON, for the record; `turns_of` reads it back."""
    table = [turn._asdict() | {"calls": [call._asdict() for call in turn.calls]} for turn in turns]
    # what is as it is by default is most of it
    kept = [
        {name: value for name, value in row.items() if value not in ((), [], "", None)}
        | ({"content": ""} if row["content"] == "" else {})
        for row in table
    ]
    return json.dumps(kept, ensure_ascii=False, default=str)


def turns_of(text: str | None) -> list[Turn]:
    """The turns of a recorded rollout; of one without turns: []."""
    return [
        Turn(
            row["author"],
            row.get("text", ""),
            row["tokens"],
            row["in_loss"],
            tuple(ToolCall(**call) for call in row.get("calls", ())),
            row.get("unparsed", ""),
            row.get("content"),
        )
        for row in json.loads(text or "[]")
    ]


def as_messages(turns: Sequence[Turn]) -> list[Fields]:
    """A rollout as the messages that TRL hands to reward functions; what several tools answered at
    once is one message here. Of a `rollout_func` it is one, with the environment's words in it.
    """
    if any(turn.author == ENVIRONMENT for turn in turns):
        return [{"role": "assistant", "content": "".join(turn.text for turn in turns)}]
    messages: list[Fields] = []
    for turn in turns:
        if turn.author == TOOL:
            messages.append({"role": "tool", "content": turn.text})
            continue
        text = turn.text if turn.content is None else turn.content
        messages.append({"role": "assistant", "content": text})
        if turn.calls:
            calls = ({"name": call.name, "arguments": call.arguments} for call in turn.calls)
            messages[-1]["tool_calls"] = [{"type": "function", "function": own} for own in calls]
    return messages


def own_words(turns: Sequence[Turn]) -> str:
    """What the policy wrote, one turn a line: the completion's text."""
    return "\n".join(turn.text for turn in turns if turn.author == POLICY)
