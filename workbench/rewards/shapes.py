"""Which shape of prompt and completion a reward function was written for, and how it is given that shape.

TRL hands a function messages (`[{"role": "assistant", "content": ...}]`) where the dataset's prompts are chat, and
strings where they are text. A function written for one reads the other wrongly, and not always with an error:
`len(completion)` of a message list is 1, whatever was written. So each function is tried with the same completions in
both shapes, and one that understands only one of them is always given that one. Every such change is said in words.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from workbench.errors import RewardError
from workbench.rewards.answers import completion_text
from workbench.rewards.calls import FROM_TRL, HOLDS_MODEL, Call, Failed, Functions, check_scores

Shape = Literal["either", "chat", "text"]
# Second parameters of the (prompts, responses) style, which TRL's keyword call does not know.
_RESPONSES = ("responses", "response", "outputs", "generations", "texts", "samples")
_TRIED = (
    "",
    "<reasoning>\nfirst one thing,\nthen another\n</reasoning>\n<answer>\n42\n</answer>",
    "<think>one thing, then another, which is enough</think><answer>42</answer>",
    "The answer is 42, and not 43.",
    "#### 42",
)


class Reading(NamedTuple):
    """How a function reads the two shapes."""

    shape: Shape  # the one that it understands; "either": both, or neither
    note: str  # the difference in words; empty: there is none


def is_chat(prompt: Any) -> bool:
    """Whether a prompt is a list of messages."""
    return not isinstance(prompt, str)


def reading(functions: Functions, name: str, call: Call) -> Reading:
    """Try one function with the same completions as messages and as text.

    Args:
        call: a call of one row, for the prompt and the columns.
    """
    if functions.is_async(name) or functions.places[name] == HOLDS_MODEL:
        return Reading("either", "")  # each call may cost
    wide = _widened(call, len(_TRIED))
    chat, text = (_scores(functions, name, shaped(wide, to_chat)) for to_chat in (True, False))
    if isinstance(chat, str) and isinstance(text, str):  # it may be the empty one that it cannot read
        wide = _first_left_out(wide)
        chat, text = (_scores(functions, name, shaped(wide, to_chat)) for to_chat in (True, False))
    if chat == text:
        return Reading("either", "")
    if isinstance(chat, str) or isinstance(text, str):
        if isinstance(chat, str) and isinstance(text, str):
            return Reading("either", "")
        understood: Shape = "text" if isinstance(chat, str) else "chat"
        what = (chat if understood == "text" else text).partition(" (")[0]
        return Reading(understood, f"it reads {_WORDS[understood]} only: with the other it {what}")
    if len(set(chat)) == 1 and len(set(text)) > 1:
        return Reading(
            "text", f"it reads plain text only: every chat completion scores {_shown(chat)}, whatever it says"
        )
    if len(set(text)) == 1 and len(set(chat)) > 1:
        return Reading(
            "chat", f"it reads messages only: every plain completion scores {_shown(text)}, whatever it says"
        )
    if _scores(functions, name, shaped(wide, True)) != chat:
        return Reading("either", "the same completions score differently when they are scored again")
    return Reading("either", "the same completions score differently as messages and as plain text")


_WORDS = {"text": "plain text", "chat": "messages"}


def _shown(scores: list[float | None]) -> str:
    return "None" if scores[0] is None else f"{scores[0]:g}"


def _scores(functions: Functions, name: str, call: Call) -> list[float | None] | str:
    try:
        result = functions.call(name, call, 2.0, quiet=True)
        return [
            None if score != score else score
            for score in check_scores(name, result, call["prompts"], call["completions"]).scores
        ]
    except Failed as error:
        return error.text
    except RewardError as error:
        return error.value


def _widened(call: Call, count: int) -> Call:
    # One row's call, for several completions.
    wide = {key: value * count if isinstance(value, list) else value for key, value in call.items()}
    wide["completions"] = list(_TRIED)
    wide["completion_ids"] = [list(text.encode()) for text in _TRIED]
    return wide


def _first_left_out(call: Call) -> Call:
    return {key: value[1:] if isinstance(value, list) else value for key, value in call.items()}


def shaped(call: Call, to_chat: bool) -> Call:
    """A call with its prompts and completions as messages, or as text."""
    if to_chat:
        prompts = [p if is_chat(p) else [{"role": "user", "content": p}] for p in call["prompts"]]
        completions = [[{"role": "assistant", "content": completion_text(c)}] for c in call["completions"]]
    else:
        prompts = [p[-1]["content"] if is_chat(p) else p for p in call["prompts"]]
        completions = [completion_text(c) for c in call["completions"]]
    return {**call, "prompts": prompts, "completions": completions}


def responses_parameter(function: Callable[..., Any], columns: Sequence[str] = ()) -> str | None:
    """Name of the second parameter, if a function is written as `(prompts, responses)`; None if it is not."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    known = {*FROM_TRL, *columns}
    found = len(named) == 2 and named[0] in ("prompts", "prompt", "queries") and named[1] not in known
    return named[1] if found and named[1] in _RESPONSES else None


def positional_reward(function: Callable[..., Any]) -> Callable[..., Any]:
    """A `(prompts, responses) -> scores` function in TRL's signature: both are handed to it as plain text.

    >>> positional_reward(lambda prompts, responses: [len(r) for r in responses])(prompts=["?"], completions=["abc"])
    [3]
    """

    def adapted(prompts: Sequence[Any], completions: Sequence[Any], **kwargs: Any) -> Any:
        call = shaped({"prompts": list(prompts), "completions": list(completions)}, to_chat=False)
        return function(call["prompts"], call["completions"])

    functools.update_wrapper(adapted, function)
    del adapted.__wrapped__  # its signature is ours now
    adapted.beneath = function
    return adapted
