"""A policy on this machine as the judge."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.kinds import Fields, Function
from workbench.rewards.judging import Reply

if TYPE_CHECKING:
    from workbench.training.policy import Policy


def local_judge(
    policy: Policy | str | Path, *, max_tokens: int = 128, max_seq_length: int = 4096, **fields: Any
) -> Function:
    """A judge that a policy on this machine plays: it takes the likeliest token every time, one
    question at a time, and sends nothing.

    >>> reward = wb.rewards.make_judge_reward(wb.rewards.local_judge("smollm2"))

    Args:
        policy: one that is loaded, and is not the one that is trained; or the name of one, which is
            loaded beside it when the first question comes.
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
        from workbench.training.sampling import prompt_lengths, sample

        with one_at_a_time:
            own = loaded()
            [[answer]] = sample(own, [messages], temperature=0, max_completion_length=max_tokens)
            [read] = prompt_lengths([{"prompt": messages}], own).lengths
        return Reply(answer.text, read, answer.length_tokens, name)

    about = {"identity": repr([name, trained, max_tokens, sorted(fields.items())]), "together": 1}
    vars(ask_policy).update(about, asks=f"the policy {name}, on this machine")
    return ask_policy
