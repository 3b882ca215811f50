"""What grew in a run beyond chance, by which a twin is compared with it."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from workbench.base.errors import RunError
from workbench.inspection.hacks import change_of_means
from workbench.inspection.reading import quoted
from workbench.rewards.suite import RewardSuite
from workbench.run.control_file import RunState
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import query, read_batches
from workbench.task import Task
from workbench.training.resuming import latest_point

if TYPE_CHECKING:
    import pandas


WRONG = 'not "right"'
LEAST = 8  # groups, below which no mean is compared
# columns that every function's score is part of
_OF_ALL = r"\b(total|advantage|group_mean|group_std)\b"


class Sign(NamedTuple):
    """What grew in the original: more of it is worse."""

    sql: str
    share: bool  # of completions; or a number of each
    groups: pandas.DataFrame  # step, group, value: the mean over a group's completions
    # the steps at which it was lowest: what it was before
    first: int
    last: int

    @property
    def clean(self) -> pandas.Series:
        """It in each group of the steps at which it was lowest."""
        own = self.groups
        return own[own["step"].between(self.first, self.last)]["value"].dropna()

    def late(self, step: int, end: int) -> pandas.DataFrame:
        """Groups of the last third of the steps after a checkpoint."""
        own = self.groups
        return own[(own["step"] > end - (end - step) / 3) & (own["step"] <= end)]


def grown(
    run: RunDirectory,
    signs: Iterator[Sign],
    checkpoint: str | None = None,
    steps: int | None = None,
) -> tuple[Sign, int, int]:
    """The first sign that grew beyond chance, the step of the checkpoint, and the last step.

    RunError if none did, if too few groups are left to compare, or if somebody steered the run
    later.
    """
    tried = []
    saved = {int(each.name.rpartition("-")[2]) for each in run.saved()}
    reached = run.result()["steps"]
    for sign in signs:
        # what a policy of N steps writes is on record as step N + 1
        step = max((each for each in saved if each < sign.last), default=0)
        if checkpoint:
            step = 0 if checkpoint in ("0", "base") else latest_point(run, checkpoint).step
        end = min(reached, step + (steps or reached))
        late = sign.late(step, end)["value"].dropna()
        if len(late) < LEAST and (checkpoint or steps):
            raise RunError(
                f"{run.name}: {len(late)} groups in the last third of steps {step + 1} to {end}",
                rule=f"a twin is compared by {LEAST} groups or more",
                remedy="more --steps, or an earlier checkpoint with --from",
            )
        if change_of_means(sign.clean, late).low > 0:
            _check_unsteered(run, step)
            return sign, step, end
        tried.append(f"{sign.sql!r} did not grow after steps {sign.first} to {sign.last}")
    raise RunError(
        f"{run.name}: {'; '.join(tried) or 'the suspect decides what is right'}",
        rule="there is a cause to find where something that the suspect does not score grew beyond"
        " chance",
        remedy="say what grew, in the record's columns: --sign 'length_tokens > 60', --sign"
        " \"completion like '%sure%'\"",
    )


def _check_unsteered(run: RunDirectory, step: int) -> None:
    for own in reversed(RunState.of(run).changes):
        if own["step"] > step and own["by"] != "adaptive":
            raise RunError(
                f"{run.name}: {own['action']} after step {own['step']}, by {own['by']}",
                rule="a twin has one change, and what was steered by hand later is another",
                remedy="begin after that, with --from and a --sign that grew since",
            )


def signs_of(
    run: RunDirectory,
    patched: Task | None,
    suspects: list[str],
    asked: str | None,
    weights: dict[str, float],
) -> Iterator[Sign]:
    right = (run.manifest().get("task") or {}).get("right_by")
    if asked:
        own = [*suspects, *(["right"] if right in suspects else [])]
        named = "|".join([_OF_ALL, *(rf"\b{re.escape(name)}\b" for name in own)])
        if found := re.search(named, asked):
            raise RunError(
                f"--sign {asked}: {found[0]} is the suspect's own score, or holds it",
                rule="what grew is measured by what the suspect does not score",
                remedy="name a text, a length, or another function's score",
            )
        yield _sign(run, asked, by_group(run, asked))
        return
    if right not in suspects:
        yield _sign(run, WRONG, by_group(run, WRONG))
    elif patched:
        yield _sign(run, WRONG, judged(run, patched))
    for name, weight in weights.items():
        if not weight and name not in suspects:
            sql = f"-{quoted('score.' + name)}"
            yield _sign(run, sql, by_group(run, sql))


def _sign(run: RunDirectory, sql: str, groups: pandas.DataFrame) -> Sign:
    by_step = groups.groupby("step")["value"].agg(["mean", "count"])
    width = max(len(by_step) // 6, math.ceil(LEAST / max(1.0, by_step["count"].mean())))
    if len(by_step) < 3 * width:
        raise RunError(
            f"{run.name}: {len(by_step)} steps on record",
            rule=f"what grew is seen over {3 * width} steps or more",
            remedy="train longer first",
        )
    means = by_step["mean"].rolling(width).mean().round(9)
    last = int(means[::-1].idxmin())  # of equals, the latest
    first = [int(step) for step in by_step.index if step <= last][-width]
    return Sign(sql, sql == WRONG or set(groups["kind"]) == {"BOOLEAN"}, groups, first, last)


def by_group(run: RunDirectory, sql: str) -> pandas.DataFrame:
    import duckdb

    try:
        return query(
            run.rollouts,
            f"""select step, "group", avg(cast(({sql}) as double)) as value,
            any_value(typeof({sql})) as kind from rollouts group by step, "group" order by all""",
        )
    except duckdb.Error as error:
        raise RunError(
            f"--sign {sql}: {str(error).splitlines()[0]}",
            rule="a sign is an expression in DuckDB's SQL over the columns of the record",
            remedy="for example: length_tokens > 60; wb.inspection.browse(run) shows the columns",
        ) from None


def judged(run: RunDirectory, task: Task) -> pandas.DataFrame:
    # wrong completions as an edited task judges them
    import pandas

    by, rows = task.right_function, []
    with contextlib.closing(RewardSuite(task, 1, keep_state=False)) as suite:
        for batch in read_batches(run):
            scored = suite.score_each(batch.rows, batch.completions, names=[by])[by]
            wrong = ~task.is_right(scored.scores).reshape(batch.group_count, -1)
            for place, share in zip(batch.group_places, wrong.mean(axis=1)):
                rows.append((batch.step, place, share))
    return pandas.DataFrame(rows, columns=["step", "group", "value"])
