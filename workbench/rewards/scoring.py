"""Completions scored by hand, as training would score them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.base.errors import RewardError
from workbench.base.kinds import Function
from workbench.base.shipped import loader
from workbench.rewards.calls import call_of, call_of_rollouts
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch
from workbench.task import Row, Task


def score(
    task: Task | str | Path | Function | Sequence[Function],
    row: Row | str | Sequence[Row],
    completions: Sequence[Any],
    weights: dict[str, float] | None = None,
    scale_rewards: str | bool = "group",
) -> ScoredBatch:
    """Score completions by hand, as training would: each function's scores, the totals and the
    advantages.

    Args:
        task: a task, its name or file; or reward functions alone, one or several (models, and names
            of models, in a list).
        row: the prompt's row (`prompt` and the columns that the functions read), or just the
            prompt, as a text or as chat messages; or several of either.
        completions: of the one prompt, which are one group; with several rows a list for each, all
            of one length. Texts, or what `sample` returned, whose tokens, turns and environments
            the functions then see.
        weights: by function name, where they differ from the task's.
        scale_rewards: what an advantage is divided by: "group", "batch" or "none".

    Raises:
        TaskError: if a function lacks a column, or the task cannot be loaded.
        RewardError: if a function fails: the error names it and the completion.

    >>> wb.score(wb.rewards.correctness_reward, {"prompt": "6 * 7?", "answer": "42"}, ["<answer>42</answer>", "42"]).totals
    array([2., 0.])
    """  # noqa: E501
    rows, groups = _groups(row, completions)
    size = len(groups[0])
    if not isinstance(task, (str, Path, Task)):
        functions = list(task) if isinstance(task, Sequence) else [task]
        task = Task("by hand", rows=rows, reward_funcs=functions)
    suite = RewardSuite(loader().load_task(task), size, weights, scale_rewards)
    suite.check_signatures(rows)
    flat = [each for group in groups for each in group]
    texts = [getattr(each, "text", each) for each in flat]
    ids = [each.ids for each in flat] if all(hasattr(each, "ids") for each in flat) else None
    call = call_of([each for each in rows for _ in range(size)], texts, ids)
    played = all(hasattr(each, "messages") for each in flat)
    call |= call_of_rollouts(flat) if played else {}
    with contextlib.closing(suite):
        batch = suite.score_call(call)
    if played:
        lengths = np.array([each.length_tokens for each in flat])
        turns = [each.turns for each in flat]
        batch = dataclasses.replace(batch, completions=texts, lengths=lengths, turns=turns)
    return batch


def _groups(
    row: Row | str | Sequence[Row], completions: Sequence[Any]
) -> tuple[list[Row], list[list[Any]]]:
    # The rows, and the completions of each.
    if isinstance(completions, str):
        raise RewardError(
            f"completions = {completions!r}",
            rule="completions are a list: the group of one prompt",
            remedy="put it in a list",
        )
    # One prompt as chat messages stands where several rows could stand as well.
    chat = len(row) and all(
        isinstance(each, dict) and "role" in each and "prompt" not in each for each in row
    )
    one = chat or isinstance(row, (str, dict))
    groups = [list(group) for group in ([completions] if one else completions)]
    rows = [
        each if isinstance(each, dict) else {"prompt": each} for each in ([row] if one else row)
    ]
    sizes = sorted({len(group) for group in groups})
    if len(rows) != len(groups) or len(sizes) != 1 or not sizes[0]:
        lengths = " or ".join(map(str, sizes)) or "none"
        raise RewardError(
            f"{len(rows)} rows with completions for {len(groups)}, {lengths} each",
            rule="each row has its list of completions, all equally long and none empty",
            remedy="give as many completions for each prompt",
        )
    return rows, groups
