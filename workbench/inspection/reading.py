"""Reading a run's rollouts: its steps, its groups, and the completions that were worth most and least."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.data.split import fingerprint
from workbench.errors import RunError
from workbench.rewards.groups import ExplainedGroup
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import query
from workbench.task import Task

if TYPE_CHECKING:
    import pandas


def group(run: RunDirectory, step: int, index: int = 0) -> pandas.DataFrame:
    """The completions of one group: one prompt in one step.

    Raises:
        RunError: if the run recorded no such group.
    """
    found = query(
        run.rollouts, f'select * from rollouts where step = {int(step)} and "group" = {int(index)}', step=int(step)
    )
    if found.empty:
        last = query(run.rollouts, 'select max(step) as step, max("group") as g from rollouts').iloc[0]
        raise RunError(
            f"step {step}, group {index}: not in the record",
            rule=f"this run recorded the steps 1 to {int(last['step'])} and the groups 0 to {int(last['g'])}",
            remedy="choose one of those",
        )
    return found


def most_telling_group(run: RunDirectory, step: int) -> int:
    """Index of the group of a step with the widest spread of rewards: the one that taught most."""
    found = query(
        run.rollouts,
        f'select "group" from rollouts where step = {int(step)} group by "group" order by max(group_std) desc, "group" limit 1',
        step=int(step),
    )
    if found.empty:
        raise RunError(
            f"step {step}: not in the record", rule="a run records every step", remedy="choose an earlier step"
        )
    return int(found.iloc[0, 0])


def question(prompt: Any) -> str:
    """What a prompt asks: its last message, or its text. A prompt of the record is the JSON of its messages, or text."""
    if isinstance(prompt, str):
        try:
            prompt = json.loads(prompt)
        except ValueError:
            return prompt
    try:
        return str(prompt[-1]["content"])
    except (TypeError, LookupError):
        return str(prompt)


def asked(rollouts: pandas.DataFrame, answer_column: str) -> str:
    """A recorded group's question and right answer, in a line."""
    first = rollouts.iloc[0]
    answer = json.loads(first["columns"] or "{}").get(answer_column)
    return question(first["prompt"]) + ("" if answer is None else f" (right answer: {answer})")


def best_first(found: ExplainedGroup) -> ExplainedGroup:
    """The same group, its completions in order of the advantages that it was trained on: every view numbers them alike."""
    order = np.argsort(-found.advantages, kind="stable")
    return dataclasses.replace(
        found,
        texts=[found.texts[place] for place in order],
        scores=found.scores[order],
        totals=found.totals[order],
        advantages=found.advantages[order],
        by_scale={"as trained": found.advantages[order]},
        contributions=found.contributions[order],
    )


def changed_since(run: RunDirectory, task: Task) -> list[str]:
    """What of a task is no longer as it was when the run was trained, one line each; an empty list if nothing is.

    A task is a file that can be edited, and its rows can be split anew: prompts that are held out now may have been
    trained on then.
    """
    manifest, recipe = run.manifest(), run.recipe()
    changed = []
    if RewardSuite(task, 2, recipe.reward_weights).hash != manifest["rewards"]["hash"]:
        changed.append("the reward functions or their weights are not those that this run was trained with")
    for split, rows in (("rows", task.rows), ("held_out", task.held_out)):
        if fingerprint(rows) != manifest["task"][split]:
            which = "training prompts" if split == "rows" else "held-out prompts"
            changed.append(f"the {which} are not those of this run: what is measured on them may have been trained on")
    return changed


def by_step(run: RunDirectory) -> pandas.DataFrame:
    """One row a step: mean total, share right, mean length in tokens, share cut at the limit, number of distinct texts."""
    return query(
        run.rollouts,
        """select step, avg(total) as reward, avg(cast("right" as double)) as share_right, avg(length_tokens) as length_tokens,
                  avg(cast(finish_reason = 'length' as double)) as clipped, count(distinct completion) as distinct_texts
           from rollouts group by step order by step""",
    )
