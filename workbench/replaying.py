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
from typing import TYPE_CHECKING

import numpy as np

from workbench.data.prompts import question
from workbench.errors import RecipeError, RunError, TaskError, nearest
from workbench.kinds import Fields
from workbench.rewards.groups import AGGREGATIONS, attribution, batch_of, dead_kinds
from workbench.rewards.right import right_under
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory, open_run
from workbench.run.parts import opened, parts
from workbench.run.rollouts import read_batches, stage_in
from workbench.run.turns import as_messages
from workbench.task import Row, Task
from workbench.tasks.loading import load_task
from workbench.workspace import replace_file, shown, to_json

if TYPE_CHECKING:
    import duckdb
    import pandas

MEANING = (
    "This shows what the gradients of these batches would have favoured, not what a new run would"
    " reach: a policy trained under the new rewards would have written other completions."
)
DEAD = "(dead)"  # in place of a function's name, which has no brackets
NO_SIGN = 1e-6  # an advantage closer to 0 than this has no sign
ABOUT = 4_096  # completions that are inserted at a time: each time costs a write to disk
CUT = 200  # characters of a text in an example


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
        remedy = nearest(str(aggregation), AGGREGATIONS, "choose one of them")
        raise RecipeError(f"aggregation = {aggregation!r}", rule=rule, remedy=remedy)
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
    done = 0
    drift = 0.0
    left_out: dict[str, str] = {}
    held: list[pandas.DataFrame] = []
    with contextlib.ExitStack() as stack:
        stack.callback(suite.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        beside = stack.enter_context(replace_file(out)) if out else None
        connection = stack.enter_context(duckdb.connect(folder / "replay.duckdb"))
        connection.execute("set memory_limit = '1GB'")
        names = [*dict.fromkeys([*suite.names, *rewards["functions"]])]
        connection.execute(_table_sql(names))
        for batch, old, new in _rescored(run, suite, aggregation, left_out):
            held.append(_frame(batch, old, new, done))
            if sum(map(len, held)) >= ABOUT:  # a part may be one small step
                _insert(connection, held)
            drift = max(drift, float(np.abs(batch.advantages - old.advantages).max()))
            done += len(batch.completions)
            if progress is not None:
                progress(done, recorded)
            if limit is not None and done >= limit:
                break
        if not done:
            name, why = next(iter(left_out.items()), (shown(run.rollouts), "no completions"))
            rule = "a replay scores what was recorded"
            raise RunError(f"{name}: {why}", rule=rule, remedy="choose another run")
        _insert(connection, held)
        connection.execute(_GROUPS)
        if beside:
            connection.sql(_SIDE_BY_SIDE).write_parquet(str(beside), compression="zstd")
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
        counts = _counts(connection, functions, examples)
    same = rewards["hash"] == suite.hash
    return Replay(
        run=run.name,
        task=task.name,
        old_hash=rewards["hash"],
        new_hash=suite.hash,
        settings=settings,
        aggregation=new.aggregation,
        recorded=recorded,
        completions=done,
        functions=functions,
        notes=[*suite.notes, *_notes(task, functions, same, drift)],
        left_out=left_out,
        out=out,
        **counts,
    )


def _trained_with(run: RunDirectory) -> tuple[Fields, Fields]:
    # The run's functions -> hash and the hash of all; the settings that made its advantages.
    known = stage_in(run.manifest())
    settings = {"scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize"}
    names = "num_generations", *settings
    settings |= {name: known["settings"][name] for name in names if name in known["settings"]}
    for name, value in (("num_generations", settings.get(names[0])), ("rewards", known["rewards"])):
        if not value:
            value = f"{shown(run.path / 'manifest.json')}: no {name!r}"
            rule = "a manifest names the run's rewards and settings"
            remedy = "choose a run that was trained with the workbench"
            raise RunError(value, rule=rule, remedy=remedy)
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
        remedy = (
            "read one of the recorded columns, or give the parameter a default (in a new run:"
            f" {error.remedy})"
        )
        value = f"the recorded rows: {error.value}"
        raise TaskError(value, rule=error.rule, remedy=remedy) from None


def _frame(batch: ScoredBatch, old: ScoredBatch, new: ScoredBatch, before: int) -> pandas.DataFrame:
    # A row per completion; what belongs to a group stands in each of its rows. `number`: of the
    # completion in the replay.
    import pandas

    size, count = batch.num_generations, len(batch.completions)
    prompts = [question(prompt) for prompt in batch.prompts]
    columns: Fields = {
        "step": batch.step,
        "group": np.repeat(batch.group_places, size),
        "generation": np.arange(count) % size,
        "number": np.arange(before, before + count),
        "prompt_id": batch.prompt_ids,
        "prompt": [text if len(text) <= CUT else f"{text[:CUT]}…" for text in prompts],
        "completion": [
            text if len(text) <= CUT else f"{text[:CUT]}…" for text in batch.completions
        ],
    }
    for side, trained, scored in (("old", batch, old), ("new", new, new)):
        columns[f"{side}_total"] = trained.totals
        columns[f"{side}_advantage"] = trained.advantages
        columns[f"{side}_dead"] = np.repeat(np.array(dead_kinds(scored), dtype=object), size)
        causes = attribution(scored)
        # -1, in a dead group, is the last
        deciders = np.array([*scored.names, None], dtype=object)[causes.deciders]
        columns[f"{side}_decider"] = np.repeat(deciders, size)
        for name, scores, shares in zip(scored.names, scored.scores.T, causes.shares.T):
            columns[f"{side}.{name}"] = scores
            columns[f"{side}_share.{name}"] = np.repeat(shares, size)
    return pandas.DataFrame(columns)


def _insert(connection: duckdb.DuckDBPyConnection, held: list[pandas.DataFrame]) -> None:
    import pandas

    if held:
        connection.append("completions", pandas.concat(held), by_name=True)
        held.clear()


# What is asked of the table. `groups` has the first completion of each group, and Spearman's
# correlation of its advantages, ranks of ties averaged; null where it is dead before or now, or its
# advantages are equal but for rounding.
_GROUPS = """create table groups as with ranks as (
    select number - generation as number,
        rank() over (partition by number - generation order by round(old_advantage, 9))
            + count(*) over (partition by number - generation, round(old_advantage, 9)) / 2 as old,
        rank() over (partition by number - generation order by round(new_advantage, 9))
            + count(*) over (partition by number - generation, round(new_advantage, 9)) / 2 as new
    from completions),
correlations as (select number, nullif(corr(old, new), 'nan') as correlation from ranks group by 1)
select completions.*, case when old_dead is null and new_dead is null then correlation end
    as rank_correlation from completions join correlations using (number) order by number"""
_SIDE_BY_SIDE = """select completions.* exclude (prompt, completion), rank_correlation
    from completions join groups on groups.number = completions.number - completions.generation
    order by completions.number"""
_TOTALS = """select count(*) as groups, count(old_dead) filter (new_dead is null) as came_alive,
    count(new_dead) filter (old_dead is null) as died, count(rank_correlation) as ranked,
    coalesce(avg(rank_correlation), 'nan') as rank_correlation from groups"""
_SIGNS = f"""select 1 + (old_advantage > {NO_SIGN})::int - (old_advantage < -{NO_SIGN})::int,
    1 + (new_advantage > {NO_SIGN})::int - (new_advantage < -{NO_SIGN})::int, count(*)
    from completions group by all"""
_DEAD = """select {0}_dead, count(*) from groups where {0}_dead is not null group by 1
    order by 2 desc, min(number)"""
_DECIDERS = f"""select coalesce(old_decider, '{DEAD}'), coalesce(new_decider, '{DEAD}'), count(*)
    from groups group by 1, 2 order by 3 desc, min(number)"""
_STEPS = """select step, count(*) as groups, count(old_dead) as old_dead,
    count(new_dead) as new_dead from groups group by step order by step"""
_ALIVE = """select step, "group", prompt_id, old_dead, new_decider from groups
    where old_dead is not null and new_dead is null order by number limit 100"""
_FUNCTION = """select avg("old.{0}") as old_mean, avg("new.{0}") as new_mean,
    count(*) filter (coalesce(abs("old.{0}" - "new.{0}") > 1e-9,
        "old.{0}" is distinct from "new.{0}")) as rescored,
    avg("old_share.{0}") filter (generation = 0) as old_share,
    avg("new_share.{0}") filter (generation = 0) as new_share,
    count(*) filter (generation = 0 and old_decider = $name) as old_decided,
    count(*) filter (generation = 0 and new_decider = $name) as new_decided from completions"""
# The completion of each group whose advantage changes most.
_EXAMPLES = f"""select *, abs(new_advantage - old_advantage) as change from completions
    where change >= {NO_SIGN} qualify row_number() over
        (partition by number - generation order by change desc, generation) = 1
    order by change desc, number limit $most"""


def _table_sql(names: list[str]) -> str:
    kinds = dict.fromkeys(["step", "group", "generation"], "integer") | {"number": "bigint"}
    kinds |= dict.fromkeys(["prompt_id", "prompt", "completion"], "varchar")
    for side in ("old", "new"):
        kinds |= dict.fromkeys([f"{side}_dead", f"{side}_decider"], "varchar")
        of_each = [f"{side}{of}.{name}" for of in ("", "_share") for name in names]
        kinds |= dict.fromkeys([f"{side}_total", f"{side}_advantage", *of_each], "double")
    columns = [f'"{_quoted(name)}" {kind}' for name, kind in kinds.items()]
    return f"create table completions ({', '.join(columns)})"


def _quoted(name: str) -> str:
    return name.replace('"', '""')


def _change(old_hash: str | None, new_hash: str | None) -> str:
    if old_hash and new_hash:
        return "same" if old_hash == new_hash else "changed"
    return "removed" if old_hash else "added"


def _counts(
    connection: duckdb.DuckDBPyConnection, functions: list[Fields], examples: int
) -> Fields:
    """The fields of a `Replay` that are counts; those of each function are added to it."""

    def ask(sql: str, **values: object) -> list[Fields]:
        answer = connection.sql(sql, params=values)
        return [dict(zip(answer.columns, row)) for row in answer.fetchall()]

    signs = np.zeros((3, 3), dtype=np.int64)
    for old, new, count in connection.sql(_SIGNS).fetchall():
        signs[old, new] = count
    for function in functions:
        sql = _FUNCTION.format(_quoted(function["name"]))
        function |= ask(sql, name=function["name"])[0]
        if function["change"] in ("added", "removed"):
            function["rescored"] = None
    furthest = ask(_EXAMPLES, most=examples)
    for example in furthest:
        for side in ("old", "new"):
            example[f"{side}_scores"] = {
                function["name"]: example[f"{side}.{function['name']}"]
                for function in functions
                if function[f"{side}_hash"]
            }
    return {
        **ask(_TOTALS)[0],
        "signs": signs,
        "old_dead": dict(connection.sql(_DEAD.format("old")).fetchall()),
        "new_dead": dict(connection.sql(_DEAD.format("new")).fetchall()),
        "deciders": {(old, new): count for old, new, count in connection.sql(_DECIDERS).fetchall()},
        "steps": ask(_STEPS),
        "alive": ask(_ALIVE),
        "examples": furthest,
    }


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
