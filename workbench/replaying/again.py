"""Replay: the recorded completions of a run scored anew with an edited task, old advantages against new ones.

The record is read a few thousand completions at a time, whole groups together, so that a million need no more memory
than ten thousand. What it shows are the gradients of batches that an older policy wrote, and no more than that:
`comparing.MEANING`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import RunError, TaskError
from workbench.replaying.comparing import Compared, Replay, Tally
from workbench.replaying.recorded import Record, Recorded
from workbench.replaying.side_by_side import SideBySide
from workbench.rewards.groups import ExplainedGroup, explain
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import batch_and_place
from workbench.task import Row, Task
from workbench.workspace import shown

if TYPE_CHECKING:
    pass


def replay(
    run: RunDirectory,
    task: Task,
    *,
    weights: dict[str, float] | None = None,
    progress: Callable[[int, int], None] | None = None,
    out: Path | None = None,
    examples: int = 5,
    limit: int | None = None,
) -> Replay:
    """Score a run's recorded completions with a task's functions, and compare the advantages, old against new.

    The run's own settings decide how advantages are made of scores. A step is scored in one piece, as it was in training,
    unless it is larger than `ABOUT` completions and its groups do not depend on one another.

    Args:
        task: the edited task; only its functions and weights are used, the prompts are the recorded ones.
        weights: by function name; others are the run's recipe's where it names them, else the task's.
        progress: called with (completions done, completions recorded).
        out: a Parquet file with a row a completion, old and new side by side; whole, or not at all.
        examples: how many of the completions whose advantage changes most are kept.
        limit: stop once so many completions are replayed; what is being replayed then is finished first.

    Raises:
        RunError: if the run recorded nothing that can be read, or `out` would be taken for a part of its record.
        TaskError: if a function needs a column that was not recorded.
        RewardError: if a function fails.
        RecipeError: if `weights` names no function of the task.
    """
    old = Recorded.of(run)
    recipe = run.recipe()
    asked = {name: weight for name, weight in recipe.reward_weights.items() if name in task.function_names}
    suite = RewardSuite(
        task,
        old.num_generations,
        {**asked, **(weights or {})},
        old.scale_rewards,
        old.aggregation,
        deadline_s=recipe.rewards.deadline_s,
        on_error=recipe.rewards.on_error,
    )
    record = Record(run)
    tally = Tally(old, suite, examples)
    with ExitStack() as stack:
        stack.callback(suite.close)
        written = None
        if out is not None:
            written = stack.enter_context(SideBySide(out, run.rollouts, old.names, suite.names))
        columns = None
        for block in record:
            if block.rows[0].keys() != columns:
                columns = block.rows[0].keys()
                _check_columns(suite, block.rows[0])
            scores = suite.score(block.rows, block.completions, block.completion_ids)
            compared = Compared.of(block, scores, old, suite)
            tally.add(compared)
            if written is not None:
                written.add(compared)
            if progress is not None:
                progress(tally.completions, record.recorded)
            if limit is not None and tally.completions >= limit:
                break
        if not tally.completions:
            name, why = next(iter(record.left_out.items()), (shown(run.rollouts), "no completions"))
            raise RunError(
                f"{name}: {why}",
                rule="a replay scores what was recorded",
                remedy="choose another run: none of it is whole",
            )
    notes = [*suite.notes, *_stand_ins(task), *tally.notes()]
    return tally.result(
        run=run.name, task=task.name, recorded=record.recorded, notes=notes, left_out=record.left_out, out=out
    )


def explain_recorded(run: RunDirectory, step: int, index: int = 0) -> ExplainedGroup:
    """One recorded group as it was trained on: the `index`-th of a step, from 0.

    Raises:
        RunError: if the run recorded no such group.
    """
    return explain(*batch_and_place(run, step, index))


# --- what was recorded --------------------------------------------------------------------------------------------


def _check_columns(suite: RewardSuite, row: Row) -> None:
    try:
        suite.check_signatures([row])
    except TaskError as error:
        raise TaskError(
            f"the recorded rows: {error.value}",
            rule=error.rule,
            remedy="a replay hands on what was recorded: read one of those columns, or give the parameter a default "
            f"(in a new run: {error.remedy})",
        ) from None


def _stand_ins(task: Task) -> list[str]:
    notes = []
    for name, func in zip(task.function_names, task.reward_funcs, strict=True):
        try:
            named = inspect.signature(func).parameters
        except (TypeError, ValueError):
            continue  # a model has none
        if "completion_ids" in named:
            notes.append(
                f"{name} reads completion_ids: tokens are not recorded, only their number, so it was given that many zeros"
            )
        if "trainer_state" in named:
            notes.append(f"{name} reads trainer_state: it was given step 0 for every completion")
    return notes


# --- old against new ----------------------------------------------------------------------------------------------
