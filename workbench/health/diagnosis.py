"""What is wrong with this run: verdicts with their evidence, for a run that trains and for one that is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.errors import TaskError
from workbench.health.rules import RULES
from workbench.health.summary import StepSummary, summaries_of
from workbench.health.verdicts import ALARM, OK, SKIPPED, STATES, WARNING, RunConfig, RunView, Verdict
from workbench.rewards.hashing import reward_hash
from workbench.rewards.library import max_score_of
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import stage_in
from workbench.run.state import RunState
from workbench.task import Task, load_task


class Verdicts(list[Verdict]):
    """The verdicts on a run, one per issue: a list that a cell shows as a report, what is wrong first."""

    def __str__(self) -> str:
        wrong = sorted((each for each in self if each.state not in (OK, SKIPPED)), key=lambda each: STATES.index(each.state))
        return "\n".join(map(str, wrong)) or "no issue found"

    __repr__ = __str__


def diagnose(summaries: Sequence[StepSummary], rows: Sequence[dict[str, Any]], config: RunConfig) -> Verdicts:
    """What can be said about a run at the end of these batches: a verdict for each issue, in a fixed order.

    It looks at the latest stage; the latest 20 batches say what the run is like now, and trends are looked for in up to
    100. Given the last 200 batches and rows it takes a few milliseconds, so it can be asked at every step.

    Args:
        summaries: of the batches, in order.
        rows: of the metrics, in order, as they are logged or as `metrics.jsonl` has them: keys may be absent, values None,
            "inf" or "-inf".
        config: what the run was asked to do.
    """
    view = RunView(summaries, rows, config)
    return Verdicts(verdict for rule in RULES for verdict in rule(view))


def worsened(before: Sequence[Verdict], after: Sequence[Verdict]) -> list[Verdict]:
    """The alarms and warnings of `after` that `before` did not have, or had less bad: what is worth an event."""
    known = {verdict.key: STATES.index(verdict.state) for verdict in before}
    return [
        verdict
        for verdict in after
        if verdict.state in (ALARM, WARNING) and STATES.index(verdict.state) < known.get(verdict.key, len(STATES))
    ]


def config_of(run: RunDirectory, task: Task | None = None, stage: str | None = None) -> RunConfig:
    """What a run was asked to do, from its manifest and recipe.

    Args:
        task: the run's task, which declares the maximum of its functions; None: the recipe's is loaded, if it can be. A
            function that has been changed since the run says nothing about it.
        stage: the stage that is looked at; None: a run without stages.
    """
    manifest, recipe = run.manifest(), run.recipe()
    known = stage_in(manifest, stage)
    settings, rewards = {**recipe.grpo, **known["settings"]}, known["rewards"]
    steps = settings.get("max_steps")
    # What was changed while it trained, if this is the stage that it is in.
    changed = RunState.of(run)
    if stage in (None, "1", changed.stage):
        rewards = {**rewards, "weights": changed.weights}
        settings |= {"beta": changed.beta, "learning_rate": changed.learning_rate}
    return RunConfig.of(
        settings,
        weights=dict(rewards.get("weights") or {}),
        best=rewards.get("best") or _best(rewards.get("functions") or {}, task, known["task"] or recipe.task),
        right_by=known["right_by"],
        format_by=known["format_by"],
        total_steps=steps if isinstance(steps, int) and steps > 0 else None,
        fp16=settings.get("fp16") is True,
    )


def _best(hashes: dict[str, str], task: Task | None, source: str) -> dict[str, float | None]:
    try:
        task = task or load_task(source)
    except TaskError:
        return {}
    functions = dict(zip(task.function_names, task.reward_funcs, strict=True))
    same = [name for name, known in hashes.items() if name in functions and reward_hash(functions[name]) == known]
    return {name: max_score_of(functions[name]) for name in same}


def examine_run(
    run: RunDirectory, task: Task | None = None, last: int | None = None, known: dict[Any, Any] | None = None
) -> Verdicts:
    """What is wrong with a recorded run, judged at its end: a verdict for each issue, with evidence, cause and remedy.

    >>> print(wb.examine_run(wb.open_run("latest")))
    ...

    Args:
        task: as for `config_of`.
        last: only this many of the latest batches, and the metrics of the same steps; None: all.
        known: as for `summaries_of`.
    """
    summaries, rows = summaries_of(run, last, known), run.metrics()
    if last is not None and summaries:
        rows = [row for row in rows if (row.get("step") or 0) >= summaries[0].step]
    return diagnose(summaries, rows, config_of(run, task, summaries[-1].stage if summaries else None))
