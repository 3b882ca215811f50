"""Reading a run's record: its steps, its groups, and whether its task has changed since
training.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.base.errors import RewardError, RunError
from workbench.base.kinds import Fields
from workbench.base.printable import printable
from workbench.base.workspace import encodable
from workbench.data.answer_column import answer_named
from workbench.data.prompts import question
from workbench.rewards.groups import ExplainedGroup, explain_in
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import batch_and_place, prompt_of, qualified, query, unstated_right
from workbench.run.turns import Turn
from workbench.task import Task, fingerprint

if TYPE_CHECKING:
    import pandas


SHOWN = 12  # rows in a cell
_ALIKE = 24  # characters that all prompts of a table begin with, at least, to be elided


def frame_of(rows: Iterable[Sequence[object]], columns: Sequence[str]) -> pandas.DataFrame:
    """Rows as a frame. A lone surrogate in a text, legal in Python, is escaped: no column of texts
    could hold it.
    """
    import pandas

    held = [[encodable(own) if isinstance(own, str) else own for own in row] for row in rows]
    return pandas.DataFrame(held, columns=[*columns])


@dataclass(repr=False)
class Listing:
    """A table of results; a cell shows some of its rows, `frame` holds them all."""

    verdict: str  # in a line or a few
    frame: pandas.DataFrame
    numbers: Fields = field(default_factory=dict)  # the verdict's, for scripts
    # a cell shows rows spread over the table, the last one among them, and not its first
    spread: bool = False
    folded: bool = False  # a cell shows its verdict alone

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def some(self) -> pandas.DataFrame:
        """The rows that a cell shows; of their prompts what tells them apart."""
        rows = self.frame.head(0 if self.folded else SHOWN)
        if self.spread:
            # six, or a few more
            places = {*range(0, len(self), max(1, len(self) // 6)), len(self) - 1}
            rows = self.frame.iloc[sorted(places)]
        if "prompt" not in rows:
            return rows
        return rows.assign(prompt=told_apart(rows["prompt"].tolist()))

    @property
    def left_out(self) -> str:
        """How many rows a cell does not show, in words; empty if none."""
        more = len(self) - len(self.some)
        return f"and {more:,} more rows (in Python: `.frame`)" if more else ""

    def __str__(self) -> str:
        rows = ""
        if len(self.some):
            rows = self.some.to_string(index=False, float_format="%.3g", max_colwidth=60)
        return "\n".join(filter(None, [printable(self.verdict), printable(rows), self.left_out]))

    __repr__ = __str__


def needs(value: object, *kinds: type) -> None:
    """RunError where a view gets something other than a run or an evaluation."""
    if not isinstance(value, kinds):
        rule = f"this view reads {' or '.join(kind.__name__ for kind in kinds)}"
        run, evaluation = "wb.open_run(name)", "wb.inspection.read_evaluation(run)"
        raise RunError(
            f"{value!r}: of type {type(value).__name__}",
            rule=rule,
            remedy=" or ".join(run if kind is RunDirectory else evaluation for kind in kinds),
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
    turns: Sequence[Sequence[Turn]] = ()  # of each; empty: they are of one

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
            raise RewardError(
                f"{len(labels)} labels for {run.num_generations} completions",
                rule="each completion has its label",
                remedy="give one for each, or none",
            )
        return dataclasses.replace(explain_in(run, index or 0), labels=tuple(labels))
    batch, place = batch_and_place(run, step, index)
    group, explained = batch.group(place), explain_in(batch, place)
    row = group.rows[0]
    column = answer_column or answer_column_of(batch.columns, run.manifest())
    if explained.dead:
        explained = dataclasses.replace(explained, dead=with_meaning(explained.dead, run))
    asked, answer = question(row["prompt"]), row.get(column)
    turns = [group.turns[place] for place in _order(explained)] if group.turns else ()
    return RecordedGroup(batch.step, asked, answer, best_first(explained), turns)


def best_first(group: ExplainedGroup) -> ExplainedGroup:
    """The same group, its completions in order of their advantages in training: every view numbers
    them alike.
    """
    order = _order(group)
    names = ("scores", "totals", "advantages", "contributions")
    arrays = {name: getattr(group, name)[order] for name in names}
    texts = [group.texts[place] for place in order]
    by_scale = {"as trained": arrays["advantages"]}
    return dataclasses.replace(group, texts=texts, by_scale=by_scale, **arrays)


def _order(group: ExplainedGroup) -> np.ndarray:
    return np.argsort(-group.advantages, kind="stable")


def shown_prompts(recorded: Iterable[str]) -> list[str]:
    """What each prompt of a column of the record asks."""
    return [question(prompt_of(prompt)) for prompt in recorded]


def told_apart(prompts: Sequence[str]) -> list[str]:
    """Prompts without the words that all of them begin with, where these are many.

    >>> told_apart(["Answer with one word, yes or no: is 7 odd?", "Answer with one word, yes or no: is 8 odd?"])
    ['… 7 odd?', '… 8 odd?']
    """  # noqa: E501
    common = os.path.commonprefix([*prompts]) if len({*prompts}) > 1 else ""  # noqa: RUF071
    begin = max(common.rfind(blank) for blank in " \n") + 1  # of the word in which they differ
    return [f"… {text[begin:]}" if begin >= _ALIKE else text for text in prompts]


def with_meaning(verdict: str, *runs: RunDirectory) -> str:
    """A verdict, with what the runs count as right where nobody has defined it."""
    unstated = dict.fromkeys(unstated_right(run.manifest()) for run in runs)
    return qualified(verdict, ", ".join(filter(None, unstated)))


def quoted(text: str, mark: str = '"') -> str:
    """A name for SQL, or with another mark a text."""
    return mark + text.replace(mark, 2 * mark) + mark


def changed_since(run: RunDirectory, task: Task) -> list[str]:
    """What has changed in a task since the run was trained, one line each."""
    manifest, changed = run.manifest(), []
    if RewardSuite(task, 2, run.recipe().reward_weights).hash != manifest["rewards"]["hash"]:
        changed.append(
            "the reward functions or their weights are not those that this run was trained with"
        )
    for name, split in (("training", "rows"), ("held-out", "held_out")):
        if fingerprint(getattr(task, split)) != manifest["task"][split]:
            changed.append(
                f"the {name} prompts are not those of this run: what is measured on them may have"
                " been trained on"
            )
    return changed
