"""A policy on this machine as the judge."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.base.kinds import Fields, Function
from workbench.data.rendering import prompt_text
from workbench.instruments.judge.judging import Reply

if TYPE_CHECKING:
    from workbench.training.policy import Policy


def local_judge(
    policy: Policy | str | Path,
    *,
    answers: Sequence[str] = (),
    max_tokens: int = 128,
    max_seq_length: int = 4096,
    **fields: Any,
) -> Function:
    """A judge that a policy on this machine plays: it takes the likeliest token every time, one
    question at a time, and sends nothing.

    >>> grades = ['{"score": 0}', '{"score": 5}', '{"score": 10}']
    >>> reward = wb.rewards.make_judge_reward(wb.rewards.local_judge("smollm2", answers=grades))

    Args:
        policy: one that is loaded, and is not the one that is trained; or the name of one, which is
            loaded beside it when the first question comes.
        answers: the likeliest of these texts is its answer, whatever it would write: for a small
            model, which rarely keeps to JSON. Reading takes as many times as long.
        max_tokens: of an answer.
        max_seq_length, fields: as for `load_policy`, for one given by its name.
    """
    name, trained = getattr(policy, "name", str(policy)), getattr(policy, "trained_in", [])
    one_at_a_time = threading.Lock()

    @functools.cache
    def loaded() -> Policy:
        from workbench.training.policy import load_policy

        if not isinstance(policy, (str, Path)):
            return policy
        return load_policy(policy, max_seq_length=max_seq_length, **fields)

    def ask_policy(messages: list[Fields]) -> Reply:
        from workbench.training.sampling import logprobs_of, sample

        with one_at_a_time:
            own = loaded()
            asked = prompt_text(messages, own.tokenizer)
            read, *given = own.tokenizer([asked, *answers], add_special_tokens=False)["input_ids"]
            if given:
                likely = map(sum, logprobs_of(own.model, [(read, each) for each in given]))
                _, text, wrote = max(zip(likely, answers, given, strict=True))
                return Reply(text, len(read) * len(given), len(wrote), name)
            [[answer]] = sample(own, [messages], temperature=0, max_completion_length=max_tokens)
        return Reply(answer.text, len(read), answer.length_tokens, name)

    about = {
        "identity": repr([name, trained, answers, max_tokens, sorted(fields.items())]),
        "together": 1,
        "max_tokens": max_tokens,
    }
    vars(ask_policy).update(about, asks=f"the policy {name}, on this machine")
    return ask_policy
