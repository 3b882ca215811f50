"""Replay: the recorded completions of a run scored again with an edited task, old advantages
compared with new ones.

The record is read a part at a time, and old and new go side by side into a table of DuckDB's on
disk, which is then asked in SQL: a million completions need less than 1 GB of memory.
"""

from __future__ import annotations

import contextlib
import inspect
import tempfile
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workbench.base.errors import RecipeError, RunError, TaskError, nearest
from workbench.base.kinds import Fields
from workbench.base.workspace import replace_file, shown, to_json
from workbench.inspection.replay_table import DEAD, NO_SIGN, ReplayTable
from workbench.rewards.groups import AGGREGATIONS, batch_of
from workbench.rewards.right import right_under
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory, open_run
from workbench.run.parts import opened, parts
from workbench.run.rollouts import read_batches, stage_in
from workbench.run.turns import as_messages
from workbench.task import Row, Task
from workbench.tasks.loading import load_task

MEANING = (
    "This shows what the gradients of these batches would have favoured, not what a new run would"
    " reach: a policy trained under the new rewards would have written other completions."
)


@dataclass(frozen=True)
class Replay:
    """The result of a replay. Every count is of the replayed completions or groups; records are
    plain dicts.
    """

    run: str
    task: str
    old_hash: str
    new_hash: str
    # num_generations, scale_rewards, multi_objective_aggregation: those of the run
    settings: Fields
    aggregation: str  # that of the new advantages
    recorded: int  # completions in the record
    completions: int
    groups: int
    # [3, 3] completions by the sign of their old (row) and new (column) advantage: -, 0, +
    signs: np.ndarray
    old_dead: dict[str, int]  # why -> groups
    new_dead: dict[str, int]
    came_alive: int
    died: int
    rank_correlation: float  # Spearman's, within groups alive in both, mean; NaN if there is none
    ranked: int  # groups that it is the mean of
    # (old decider, new decider) -> groups; DEAD where there is none
    deciders: dict[tuple[str, str], int]
    # name, change ("same", "changed", "added", "removed": its code), and old and new: hash, weight,
    # mean
    functions: list[dict]
    #                        score, groups decided, mean share of the advantages (of the groups that
    # are alive); rescored:
    #                        completions that it scores otherwise now
    steps: list[dict]  # step, groups, old_dead, new_dead
    # the first hundred groups that come alive: step, group, prompt_id, old_dead, new_decider
    alive: list[dict]
    # the completions whose advantage changes most, one per group; texts are cut
    examples: list[dict]
    notes: list[str]
    left_out: dict[str, str]  # part -> why
    out: Path | None

    @property
    def turned_up(self) -> int:
        """Completions that were made less likely and would now be made likelier."""
        return int(self.signs[0, 2])

    @property
    def turned_down(self) -> int:
        """Completions that were made likelier and would now be made less likely."""
        return int(self.signs[2, 0])

    def found(self) -> Fields:
        """For `--json`."""
        deciders = [
            {"old": old, "new": new, "groups": count} for (old, new), count in self.deciders.items()
        ]
        more = {"meaning": MEANING, "turned_up": self.turned_up, "turned_down": self.turned_down}
        return to_json({**more, **vars(self), "deciders": deciders})

    def __str__(self) -> str:
        part = f" of {self.recorded} recorded" if self.recorded != self.completions else ""
        up, down = self.turned_up, self.turned_down
        ranks = (
            f"{self.rank_correlation:.2f}, mean of {self.ranked} groups"
            if self.ranked
            else "none is alive in both"
        )
        moved = sum(
            groups
            for (old, new), groups in self.deciders.items()
            if old != new and DEAD not in (old, new)
        )
        size, before = (
            self.settings[name] for name in ("num_generations", "multi_objective_aggregation")
        )
        changed = ""
        if before != self.aggregation:
            changed = f", multi_objective_aggregation {before} -> {self.aggregation}"
        lines = [
            f"{self.run} (rewards {self.old_hash}) replayed with task {self.task!r} (rewards"
            f" {self.new_hash}): {self.completions} completions{part}, {self.groups} groups of"
            f" {size}{changed}",
            f"advantage changes sign: {up + down} completions,"
            f" {(up + down) / max(1, self.completions):.0%} ({up} from less likely to likelier,"
            f" {down} from likelier to less likely)",
            f"dead groups: {_dead_in_words(self.old_dead, 'before')},"
            f" {_dead_in_words(self.new_dead, 'now')}: {self.came_alive} come alive, {self.died}"
            " die",
            f"rank correlation of the advantages within groups: {ranks}",
            f"another function decides: {moved} of {self.groups} groups (of those that are alive"
            " before and now)",
            *(f"note: {note}" for note in self.notes),
            *(f"left out: {name}: {why}" for name, why in self.left_out.items()),
        ]
        if self.out:
            lines.append(f"side by side in {shown(self.out)}")
        return "\n".join([*lines, MEANING])


def _dead_in_words(kinds: dict[str, int], when: str) -> str:
    by_kind = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return f"{sum(kinds.values())} {when} ({by_kind or 'none'})"


def replay(
    run: RunDirectory | str | Path,
    task: Task | str | Path,
    weights: dict[str, float] | None = None,
    *,
    aggregation: str | None = None,
    out: str | Path | None = None,
    examples: int = 5,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Replay:
    """Score a run's recorded completions with a task's functions, and compare the advantages, old
    against new.

    The run's own settings decide how advantages are made of scores, unless `aggregation` is given.
    A step is scored in one piece, as it was in training.

    Args:
        run: a run, its name or its folder; "latest": the last that recorded completions.
        task: the edited task, its file or its name; only its functions and weights are used, the
            prompts are the recorded ones.
        weights: by function name; others are the run's recipe's where it names them, else the
            task's.
        aggregation: `multi_objective_aggregation` of the new advantages, "normalize_then_sum" for
            GDPO's; None: the run's.
        out: a Parquet file with a row per completion, old and new side by side, written atomically.
        examples: how many of the completions with the largest change of advantage to keep.
        limit: stop once this many completions are replayed; the part in progress is finished first.
        progress: called with (completions done, completions recorded).

    Raises:
        RunError: if the run recorded nothing that can be read, or `out` would be taken for a part
            of its record.
        TaskError: if a function needs a column that was not recorded.
        RewardError: if a function fails.
        RecipeError: if `weights` names no function of the task, or `aggregation` is not a value of
            GRPOConfig.

    >>> again = wb.replay("latest", "arithmetic", {"length_reward": 0.0})
    >>> print(again)  # again.turned_up: advantages that became positive; again.came_alive: groups
    ...
    """
    import duckdb

    if aggregation not in (None, *AGGREGATIONS):
        rule = f"multi_objective_aggregation is one of {', '.join(AGGREGATIONS)}"
        raise RecipeError(
            f"aggregation = {aggregation!r}",
            rule=rule,
            remedy=nearest(str(aggregation), AGGREGATIONS, "choose one of them"),
        )
    run = run if isinstance(run, RunDirectory) else open_run(run, latest="recorded")
    task = load_task(task)
    out = Path(out) if out else None
    if out and (
        out.is_dir()
        or any(map(Path.is_file, out.parents))
        or out.resolve().parent == run.rollouts.resolve()
    ):
        rule = "a replay is written into a separate file, never into the record"
        raise RunError(f"out = {out}", rule=rule, remedy="choose another file")
    rewards, settings = _trained_with(run)
    suite = _suite(run, task, settings["num_generations"], weights or {})
    recorded = _recorded(run)
    drift = 0.0
    left_out: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(suite.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        beside = stack.enter_context(replace_file(out)) if out else None
        connection = stack.enter_context(duckdb.connect(folder / "replay.duckdb"))
        names = [*dict.fromkeys([*suite.names, *rewards["functions"]])]
        table = ReplayTable(connection, names)
        for batch, old, new in _rescored(run, suite, aggregation, left_out):
            table.add(batch, old, new)
            drift = max(drift, float(np.abs(batch.advantages - old.advantages).max()))
            if progress is not None:
                progress(table.done, recorded)
            if limit is not None and table.done >= limit:
                break
        if not table.done:
            name, why = next(iter(left_out.items()), (shown(run.rollouts), "no completions"))
            rule = "a replay scores what was recorded"
            raise RunError(f"{name}: {why}", rule=rule, remedy="choose another run")
        table.finish(beside)
        functions = [
            {
                "name": name,
                "change": _change(rewards["functions"].get(name), suite.hashes.get(name)),
                "old_hash": rewards["functions"].get(name),
                "new_hash": suite.hashes.get(name),
                "old_weight": dict(zip(old.names, old.weights)).get(name),
                "new_weight": dict(zip(new.names, new.weights)).get(name),
            }
            for name in names
        ]
        counts = table.counts(functions, examples)
    same = rewards["hash"] == suite.hash
    return Replay(
        run=run.name,
        task=task.name,
        old_hash=rewards["hash"],
        new_hash=suite.hash,
        settings=settings,
        aggregation=new.aggregation,
        recorded=recorded,
        completions=table.done,
        functions=functions,
        notes=[*suite.notes, *_notes(task, functions, same, drift)],
        left_out=left_out,
        out=out,
        **counts,
    )


def _change(old_hash: str | None, new_hash: str | None) -> str:
    if old_hash and new_hash:
        return "same" if old_hash == new_hash else "changed"
    return "removed" if old_hash else "added"


def _trained_with(run: RunDirectory) -> tuple[Fields, Fields]:
    # The run's functions -> hash and the hash of all; the settings that made its advantages.
    known = stage_in(run.manifest())
    settings = {"scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize"}
    names = "num_generations", *settings
    settings |= {name: known["settings"][name] for name in names if name in known["settings"]}
    for name, value in (("num_generations", settings.get(names[0])), ("rewards", known["rewards"])):
        if not value:
            value = f"{shown(run.path / 'manifest.json')}: no {name!r}"
            raise RunError(
                value,
                rule="a manifest names the run's rewards and settings",
                remedy="choose a run that was trained with the workbench",
            )
    return known["rewards"], settings


def _suite(run: RunDirectory, task: Task, size: int, weights: dict[str, float]) -> RewardSuite:
    recipe = run.recipe()
    recorded = {
        name: weight
        for name, weight in recipe.reward_weights.items()
        if name in task.function_names
    }
    return RewardSuite(task, size, {**recorded, **weights}, **recipe.rewards.model_dump())


def _recorded(run: RunDirectory) -> int:
    count = 0
    for part in parts(run.rollouts):
        # one that cannot be read is reported when its turn comes
        with contextlib.suppress(RunError), opened(part) as (_, batches):
            count += sum(rows for name, rows in batches if name)
    return count


def _rescored(
    run: RunDirectory,
    suite: RewardSuite,
    aggregation: str | None,
    left_out: dict[str, str],
) -> Iterator[tuple[ScoredBatch, ScoredBatch, ScoredBatch]]:
    # Each batch as recorded, as its recorded scores give it, and under the new rewards.
    columns = None
    for batch in read_batches(run, left_out=left_out):
        if batch.columns.keys() != columns:
            columns = batch.columns.keys()
            _check_columns(suite, batch.rows[0])
        # What was recorded of the tokens is their number.
        zeros = {length: [0] * length for length in batch.lengths.tolist()}
        tokens = [zeros[length] for length in batch.lengths.tolist()]
        scores = _scored_again(suite, batch, tokens)
        texts, size, scale = batch.completions, batch.num_generations, batch.scale_rewards
        right = right_under(suite, scores, size)
        recorded = batch.names, batch.weights, batch.scores, texts, batch.right
        edited = suite.names, suite.weights, scores, texts, right
        kind = batch.aggregation
        old = batch_of(*recorded, size, scale, kind)
        yield batch, old, batch_of(*edited, size, scale, aggregation or kind)


def _scored_again(suite: RewardSuite, batch: ScoredBatch, tokens: list[list[int]]) -> np.ndarray:
    # The environment is gone with its rollout, so the score that it gave is kept.
    names = [name for name in suite.names if name not in suite.given_by_environments]
    given: Fields = {}
    if batch.turns and not isinstance(batch.prompts[0], str):
        given["completions"] = list(map(as_messages, batch.turns))
    scored = suite.score_each(batch.rows, batch.completions, tokens, names, given=given)
    columns = {name: np.array(own.scores, dtype=float) for name, own in scored.items()}
    recorded = dict(zip(batch.names, batch.scores.T, strict=True))
    nothing = np.full(len(batch.completions), np.nan)
    return np.column_stack([columns.get(n, recorded.get(n, nothing)) for n in suite.names])


def _check_columns(suite: RewardSuite, row: Row) -> None:
    try:
        suite.check_signatures([row])
    except TaskError as error:
        raise TaskError(
            f"the recorded rows: {error.value}",
            rule=error.rule,
            remedy="read one of the recorded columns, or give the parameter a default (in a new"
            f" run: {error.remedy})",
        ) from None


def _notes(task: Task, functions: list[dict], same: bool, drift: float) -> Iterator[str]:
    # What a reader of the numbers should know.
    for name, func in zip(task.function_names, task.reward_funcs, strict=True):
        named: Container[str] = ()
        with contextlib.suppress(TypeError, ValueError):  # a model has no signature
            named = inspect.signature(func).parameters
        if "completion_ids" in named:
            yield (
                f"{name} reads completion_ids: tokens are not recorded, only their number, so it"
                " was given that many zeros"
            )
        if "environments" in named:
            yield f"{name} is the environment's own: its recorded scores are kept"
        if "trainer_state" in named:
            yield f"{name} reads trainer_state: it was given step 0 for every completion"
    if same and not any(row["rescored"] for row in functions):
        yield "the functions and weights are those of the run"
    for row in functions:
        if row["change"] == "same" and row["rescored"]:
            why = (
                "it draws at random, reads something that was not recorded, or uses a value that"
                " the hash does not see"
            )
            yield (
                f"{row['name']} is unchanged and scores {row['rescored']} completions differently"
                f" from training: {why}"
            )
    if drift > NO_SIGN:
        gap = (
            f"the recorded advantages differ by up to {drift:.2g} from those that the recorded"
            " scores give"
        )
        yield f"{gap}: what decided a group before is then approximate"
