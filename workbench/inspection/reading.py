"""Reading a run's record: its steps, its groups, and whether its task has changed since
training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.data.answer_column import answer_named
from workbench.errors import RewardError, RunError
from workbench.inspection.listing import Listing
from workbench.kinds import Fields
from workbench.rewards.groups import ExplainedGroup, explain_in
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import batch_and_place, qualified, query, unstated_right
from workbench.task import Task, fingerprint


def needs(value: object, *kinds: type) -> None:
    """RunError where a view gets something other than a run or an evaluation."""
    if not isinstance(value, kinds):
        how = {
            "RunDirectory": "wb.open_run(name)",
            "Evaluation": "wb.inspection.read_evaluation(run)",
        }
        names = [kind.__name__ for kind in kinds]
        rule = f"this view reads {' or '.join(names)}"
        raise RunError(
            f"{value!r}: of type {type(value).__name__}",
            rule=rule,
            remedy=" or ".join(how[name] for name in names),
        )


def answer_column_of(columns: Iterable[str], manifest: Fields) -> str | None:
    """The column of a record with the right answer: the one that the manifest names, or one with a
    usual name; None: neither.
    """
    named = (manifest.get("task") or {}).get("answer_column")
    return named if named in columns else answer_named(columns)


def by_step(run: RunDirectory) -> Listing:
    """What the completions of each step were like: rewards, lengths, how many were cut, how many
    were different.

    >>> wb.by_step(wb.open_run()).frame["step"].tolist()
    [1, 2]

    Returns:
        `frame`, a row per step: step, reward (mean), share_right, length_tokens (mean), clipped
        (share), distinct_texts (number). Where nobody has defined what is right, that column is
        named after what was taken for it: "share of format_reward > 0".

    Raises:
        RunError: if the run recorded nothing.
    """
    needs(run, RunDirectory)
    unstated = unstated_right(run.manifest()).replace('"', '""')
    share = f"share of {unstated}" if unstated else "share_right"
    columns = f"""step, avg(total) as reward, avg(cast("right" as double)) as "{share}", avg(length_tokens) as length_tokens,
        avg(cast(finish_reason = 'length' as double)) as clipped, len(list_distinct(list(hash(completion)))) as distinct_texts"""  # noqa: E501
    frame = query(run.rollouts, f"select {columns} from rollouts group by step order by step")
    return Listing(f"{len(frame):,} steps", frame, spread=True)


@dataclass(frozen=True)
class RecordedGroup:
    """A group of a run's record as it was trained on; a cell shows its completions and their
    advantages.
    """

    step: int
    prompt: str  # what it asks: its last message, or its text
    answer: Any  # the right one; None: not known
    explained: ExplainedGroup  # completions best first

    @property
    def title(self) -> str:
        """Step, question and right answer, in a line."""
        known = "" if self.answer is None else f" (right answer: {self.answer})"
        return f"step {self.step}: {self.prompt}{known}"

    def __str__(self) -> str:
        return f"{self.title}\n{self.explained.verdict}"


def explain_group(
    run: RunDirectory | ScoredBatch,
    step: int | None = None,
    index: int | None = None,
    answer_column: str | None = None,
    labels: Sequence[str] = (),
) -> RecordedGroup | ExplainedGroup:
    """One group: what its completions scored, and what made their advantages.

    >>> print(wb.explain_group(wb.open_run(), step=1))
    ...
    >>> batch = wb.score(wb.rewards.correctness_reward, {"prompt": "6 * 7?", "answer": "42"}, ["<answer>42</answer>", "42"])
    >>> print(wb.explain_group(batch).verdict)
    ...

    Args:
        run: a run, whose completions are shown best first; or what `score` returned, whose first
            group is explained as it stands.
        step: None: the last on record.
        index: of the group, from 0; None: in a run's step the one with the widest spread of
            rewards, which taught most.
        answer_column: the dataset column that holds the right answer; None: the task's, or
            recognised by its name.
        labels: what to call the completions of what `score` returned, one for each; none: they are
            numbered.

    Raises:
        RunError: if the run recorded no such group.
        RewardError: if there are not as many labels as completions.
    """  # noqa: E501
    if isinstance(run, ScoredBatch):
        if labels and len(labels) != run.num_generations:
            value, rule = (
                f"{len(labels)} labels for {run.num_generations} completions",
                "each completion has its label",
            )
            raise RewardError(value, rule=rule, remedy="give one for each, or none")
        return dataclasses.replace(explain_in(run, index or 0), labels=tuple(labels))
    batch, place = batch_and_place(run, step, index)
    first = place * batch.num_generations
    answers = batch.columns.get(
        answer_column or answer_column_of(batch.columns, manifest := run.manifest())
    )
    answer, explained = answers[first] if answers else None, explain_in(batch, place)
    explained = dataclasses.replace(
        explained, dead=explained.dead and qualified(explained.dead, unstated_right(manifest))
    )
    return RecordedGroup(batch.step, question(batch.prompts[first]), answer, best_first(explained))


def best_first(found: ExplainedGroup) -> ExplainedGroup:
    """The same group, its completions in order of their advantages in training: every view numbers
    them alike.
    """
    order = np.argsort(-found.advantages, kind="stable")
    sorted_ = {
        name: getattr(found, name)[order]
        for name in ("scores", "totals", "advantages", "contributions")
    }
    texts = [found.texts[place] for place in order]
    return dataclasses.replace(
        found, texts=texts, by_scale={"as trained": sorted_["advantages"]}, **sorted_
    )


def question(prompt: Any) -> str:
    """What a prompt asks: its last message, or its text."""
    try:
        return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
    except (TypeError, LookupError):
        return str(prompt)


def changed_since(run: RunDirectory, task: Task) -> list[str]:
    """What has changed in a task since the run was trained, one line each."""
    manifest, changed = run.manifest(), []
    if RewardSuite(task, 2, run.recipe().reward_weights).hash != manifest["rewards"]["hash"]:
        changed.append(
            "the reward functions or their weights are not those that this run was trained with"
        )
    for name, split, rows in (
        ("training", "rows", task.rows),
        ("held-out", "held_out", task.held_out),
    ):
        if fingerprint(rows) != manifest["task"][split]:
            changed.append(
                f"the {name} prompts are not those of this run: what is measured on them may have"
                " been trained on"
            )
    return changed
