"""`workbench trial`."""

from __future__ import annotations

from typing import Any

import workbench as wb
from workbench.commands.command import Result, command


@command("02 Rewards")
def trial(source: str, **options: Any) -> Result:
    """Put a judge on trial, before it may train.

    For a reward function made by make_judge_reward or make_ranking_reward. From the task's own
    prompts it makes good and wrong completions, and tempts the judge: the same pair in the other
    order, the same answer padded, in bold, with white space, with a claim, with a note to the
    grader; and it asks the same thing twice. Each measure has an interval, and a limit with its
    reason: passed, failed, or cannot be told (too few cases: raise --cases). What judging a run
    will take, in calls, tokens and minutes, is measured, too.

    The judge is really asked: some 10 questions for each case, 14 if it ranks. The result is kept
    in judges/trials.jsonl; `workbench plan` and `train` ask for it, until the judge, its rubric or
    the prompts change.

    Exits with 1 unless all is passed.

    Examples: `workbench trial task.py`, `workbench trial recipe.yaml --cases 80 --json`.

    Args:
        SOURCE: A task file or the name of a task; or a recipe (.yaml), for the price of its
            run.

    Options:
        --function TEXT: The reward function on trial, if several ask a judge.
        --cases N = 40 [2..]: Prompts, spread over the task's.
    """
    from workbench.views.display import view_of
    from workbench.views.terminal import progress

    with progress("prompts") as bar:
        result = wb.rewards.trial(source, progress=bar, **options)
    return Result(result.found(), view_of(result), int(not result.ok))
