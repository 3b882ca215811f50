"""Whether a reward function was written for chat or for text, and how it gets that format.

TRL passes a function messages or strings, as the dataset's prompts are. A function written for one
reads the other wrongly, not always with an error. So each is tried with both; if it understands
only one, it always gets that one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

from workbench.base.errors import RewardError
from workbench.base.kinds import Function
from workbench.rewards.answers import completion_text
from workbench.rewards.calls import Call
from workbench.rewards.execution import AWAITED, RewardExecutor, RewardFailure
from workbench.rewards.results import check_scores

# Second parameters of the (prompts, responses) style, which TRL's keyword call does not know.
_RESPONSES = ("responses", "response", "outputs", "generations", "texts", "samples")
_TRIED = (
    "",
    "<reasoning>\nfirst one thing,\nthen another\n</reasoning>\n<answer>\n42\n</answer>",
    "<think>one thing, then another, which is enough</think><answer>42</answer>",
    "The answer is 42, and not 43.",
    "#### 42",
)


class InputFormat(NamedTuple):
    """How a function reads chat and text."""

    # the one that it understands; "either": both, or neither
    format: str = "either"
    note: str = ""  # the difference in words; empty: there is none


def detect_input_format(executor: RewardExecutor, name: str, call: Call) -> InputFormat:
    """Try one function with the same completions as messages and as text, in a call of one row."""
    if executor.places[name] == AWAITED or executor.needs_run(name):
        return InputFormat()  # each call may cost
    texts = _TRIED
    chat, text = _both(executor, name, call, texts)
    if isinstance(chat, str) and isinstance(text, str):
        texts = _TRIED[1:]  # it may be the empty one that it cannot read
        chat, text = _both(executor, name, call, texts)
    if chat == text or (isinstance(chat, str) and isinstance(text, str)):
        return InputFormat()
    tried = {"text": chat, "chat": text}  # what it did with the other form
    failed = {
        form: f"with the other it {did}" for form, did in tried.items() if isinstance(did, str)
    }
    flat = {
        form: f"every {kind} completion scores {'None' if did[0] is None else f'{did[0]:g}'}"
        for (form, did), kind in zip(tried.items(), ("chat", "plain"))
        if not failed and len(set(did)) == 1
    }
    for form, did in (failed or flat).items() if len(failed or flat) == 1 else ():
        reads = "plain text" if form == "text" else "messages"
        return InputFormat(form, f"it reads {reads} only: {did.partition(' (')[0]}")
    again, _ = _both(executor, name, call, texts)
    how = "as messages and as plain text" if again == chat else "each time"
    return InputFormat(note=f"the same completions score differently {how}")


def _both(
    executor: RewardExecutor, name: str, call: Call, texts: Sequence[str]
) -> list[list[float | None] | str]:
    # One row's call for several completions, as chat and as text: its scores, or what it did
    # instead.
    wide = {
        key: value * len(texts) if isinstance(value, list) else value for key, value in call.items()
    }
    wide |= {"completions": list(texts), "completion_ids": [list(text.encode()) for text in texts]}
    found: list[list[float | None] | str] = []
    for own in (convert_call(wide, to_chat=True), convert_call(wide, to_chat=False)):
        try:
            scores = check_scores(name, executor.call(name, own, 2.0, quiet=True), own).scores
            found.append([None if score != score else score for score in scores])
        except (RewardFailure, RewardError) as error:
            found.append(error.value)
    return found


def convert_call(call: Call, to_chat: bool) -> Call:
    """A call with its prompts and completions as messages, or as text."""
    if to_chat:
        prompts = [
            [{"role": "user", "content": p}] if isinstance(p, str) else p for p in call["prompts"]
        ]
        completions = [
            [{"role": "assistant", "content": completion_text(c)}] for c in call["completions"]
        ]
    else:
        prompts = [p if isinstance(p, str) else p[-1]["content"] for p in call["prompts"]]
        completions = [completion_text(c) for c in call["completions"]]
    return {**call, "prompts": prompts, "completions": completions}


def responses_parameter(function: Function, columns: Sequence[str] = ()) -> str | None:
    """Name of the second parameter, if a function is written as `(prompts, responses)`; None if it
    is not.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    fits = (
        len(named) == 2 and named[0] in ("prompts", "prompt", "queries") and named[1] in _RESPONSES
    )
    return named[1] if fits and named[1] not in columns else None


def positional_reward(function: Function) -> Function:
    """A `(prompts, responses) -> scores` function in TRL's signature: both are handed to it as
    plain text.

    >>> positional_reward(lambda prompts, responses: [len(r) for r in responses])(prompts=["?"], completions=["abc"])
    [3]
    """  # noqa: E501

    def adapted(prompts: Sequence[object], completions: Sequence[object], **kwargs: object) -> Any:
        call = convert_call(
            {"prompts": list(prompts), "completions": list(completions)}, to_chat=False
        )
        return function(call["prompts"], call["completions"])

    functools.update_wrapper(adapted, function)
    del vars(adapted)["__wrapped__"]  # its signature is ours now
    vars(adapted)["beneath"] = function
    return adapted
