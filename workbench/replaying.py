"""Replay: the recorded completions of a run scored again with an edited task, old advantages
compared with new ones.

The record is read a few thousand completions at a time, whole groups together, and old and new go
side by side into a Parquet file, which DuckDB queries: a million completions need no more memory
than ten thousand.
"""

from __future__ import annotations

import contextlib
import heapq
import inspect
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import RecipeError, RunError, TaskError, nearest
from workbench.kinds import Fields
from workbench.rewards.groups import AGGREGATIONS, attribution, batch_of, dead_kinds
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory, open_run
from workbench.run.parts import opened, parts
from workbench.run.rollouts import read_batches, stage_in
from workbench.task import Row, Task, load_task
from workbench.workspace import replace_file, shown, to_json

MEANING = (
    "This shows what the gradients of these batches would have favoured, not what a new run would"
    " reach: a policy trained under the new rewards would have written other completions."
)
DEAD = "(dead)"  # in place of a function's name, which has no brackets
NO_SIGN = 1e-6  # an advantage closer to 0 than this has no sign
ABOUT = 4096  # completions that are written at a time


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
        dead = [
            f"{sum(kinds.values())} {when}"
            f" ({', '.join(f'{count} {kind}' for kind, count in kinds.items()) or 'none'})"
            for when, kinds in (("before", self.old_dead), ("now", self.new_dead))
        ]
        ranks = (
            f"{self.rank_correlation:.2f}, mean of {self.ranked} groups"
            if self.ranked
            else "none is alive in both"
        )
        moved = sum(
            n for (was, now), n in self.deciders.items() if was != now and DEAD not in (was, now)
        )
        before = self.settings["multi_objective_aggregation"]
        changed = f", multi_objective_aggregation {before} -> {self.aggregation}" * (
            before != self.aggregation
        )
        lines = [
            (
                f"{self.run} (rewards {self.old_hash}) replayed with task {self.task!r} (rewards"
                f" {self.new_hash}): {self.completions} completions{part}, {self.groups} groups of"
                f" {self.settings['num_generations']}{changed}"
            ),
            (
                f"advantage changes sign: {up + down} completions,"
                f" {(up + down) / max(1, self.completions):.0%} ({up} from less likely to likelier,"
                f" {down} from likelier to less likely)"
            ),
            f"dead groups: {', '.join(dead)}: {self.came_alive} come alive, {self.died} die",
            f"rank correlation of the advantages within groups: {ranks}",
            (
                f"another function decides: {moved} of {self.groups} groups (of those that are"
                " alive before and now)"
            ),
            *(f"note: {note}" for note in self.notes),
            *(f"left out: {name}: {why}" for name, why in self.left_out.items()),
            *([f"side by side in {shown(self.out)}"] if self.out else []),
        ]
        return "\n".join([*lines, MEANING])


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
    import pyarrow as pa
    import pyarrow.parquet as pq

    if aggregation not in (None, *AGGREGATIONS):
        rule = f"multi_objective_aggregation is one of {', '.join(AGGREGATIONS)}"
        remedy = nearest(str(aggregation), AGGREGATIONS, "choose one of them")
        raise RecipeError(f"aggregation = {aggregation!r}", rule=rule, remedy=remedy)
    run = run if isinstance(run, RunDirectory) else open_run(run, latest="recorded")
    task = load_task(task)
    out = _checked(Path(out), run) if out else None
    recipe, rewards, settings = run.recipe(), *_trained_with(run)
    asked = {
        name: weight
        for name, weight in recipe.reward_weights.items()
        if name in task.function_names
    }
    policy: Fields = {"deadline_s": recipe.rewards.deadline_s, "on_error": recipe.rewards.on_error}
    suite = RewardSuite(task, settings["num_generations"], {**asked, **(weights or {})}, **policy)
    recorded = 0
    for part in parts(run.rollouts):
        # reported when its turn comes
        with contextlib.suppress(RunError), opened(part) as (_, batches):
            recorded += sum(rows for name, rows in batches if name)
    drift, done, furthest, old_weights, held, left_out, columns = 0.0, 0, [], {}, [], {}, None
    with contextlib.ExitStack() as stack:
        stack.callback(suite.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = stack.enter_context(replace_file(out)) if out else folder / "side_by_side.parquet"
        schema = _schema([*rewards["functions"]], suite.names)
        writer = stack.enter_context(pq.ParquetWriter(file, schema, compression="zstd"))
        for batch in read_batches(run, left_out=left_out):
            rows = batch.rows
            if rows[0].keys() != columns:
                columns = rows[0].keys()
                _check_columns(suite, rows[0])
            # What was recorded of the tokens is their number.
            scores = suite.score(
                rows, batch.completions, [[0] * length for length in batch.lengths]
            )
            right = task.is_right(scores[:, suite.names.index(task.right_function)])
            grouped, kind = (batch.num_generations, batch.scale_rewards), batch.aggregation
            old = batch_of(
                batch.names,
                batch.weights,
                batch.scores,
                batch.completions,
                batch.right,
                *grouped,
                kind,
            )
            new = batch_of(
                suite.names,
                suite.weights,
                scores,
                batch.completions,
                right,
                *grouped,
                aggregation or kind,
            )
            held.append(_table(batch, old, new, done, schema))
            if sum(map(len, held)) >= ABOUT:  # a part may be one small step
                writer.write_table(pa.concat_tables(held))
                held.clear()
            furthest = heapq.nlargest(
                examples, [*furthest, *_changes(batch, new, examples)], key=lambda each: each[0]
            )
            drift = max(drift, float(np.abs(batch.advantages - old.advantages).max()))
            old_weights, done = dict(zip(batch.names, batch.weights, strict=True)), done + len(rows)
            if progress is not None:
                progress(done, recorded)
            if limit is not None and done >= limit:
                break
        if not done:
            name, why = next(iter(left_out.items()), (shown(run.rollouts), "no completions"))
            raise RunError(
                f"{name}: {why}",
                rule="a replay scores what was recorded",
                remedy="choose another run",
            )
        if held:
            writer.write_table(pa.concat_tables(held))
        writer.close()
        counted = _counted(file, rewards["functions"], old_weights, suite)
    notes = [
        *suite.notes,
        *_notes(task, counted["functions"], rewards["hash"] == suite.hash, drift),
    ]
    counted |= {
        "examples": [example for _, example in furthest],
        "notes": notes,
        "left_out": left_out,
        "out": out,
    }
    return Replay(
        run.name,
        task.name,
        rewards["hash"],
        suite.hash,
        settings,
        aggregation or kind,
        recorded,
        done,
        **counted,
    )


def _checked(out: Path, run: RunDirectory) -> Path:
    own = out.resolve().parent == run.rollouts.resolve()
    if own or out.is_dir() or any(folder.is_file() for folder in out.parents):
        value = f"out = {out}: " + (
            "among the run's own parts" if own else "it is a folder, or its parent is a file"
        )
        rule = "a replay is written into a separate file, never into the record"
        raise RunError(value, rule=rule, remedy="choose another file")
    return out


def _trained_with(run: RunDirectory) -> tuple[Fields, Fields]:
    # (the run's functions -> hash, and the hash of all; the settings that its advantages were made
    # with).
    known = stage_in(run.manifest())
    usual = {
        "num_generations": None,
        "scale_rewards": "group",
        "multi_objective_aggregation": "sum_then_normalize",
    }
    settings = {name: known["settings"].get(name, value) for name, value in usual.items()}
    if not settings["num_generations"] or not known["rewards"]:
        missing = "rewards" if settings["num_generations"] else "num_generations"
        value, rule = (
            f"{shown(run.path / 'manifest.json')}: no {missing!r}",
            "a manifest names the run's rewards and settings",
        )
        raise RunError(value, rule=rule, remedy="choose a run that was trained with the workbench")
    return known["rewards"], settings


def _check_columns(suite: RewardSuite, row: Row) -> None:
    try:
        suite.check_signatures([row])
    except TaskError as error:
        remedy = (
            "read one of the recorded columns, or give the parameter a default (in a new run:"
            f" {error.remedy})"
        )
        raise TaskError(
            f"the recorded rows: {error.value}", rule=error.rule, remedy=remedy
        ) from None


def _schema(old_names: list[str], new_names: list[str]) -> object:
    import pyarrow as pa

    kinds = dict.fromkeys(["step", "group", "generation"], pa.int32()) | {
        "number": pa.int64(),
        "prompt_id": pa.string(),
    }
    for side, names in (("old", old_names), ("new", new_names)):
        kinds |= dict.fromkeys([f"{side}_dead", f"{side}_decider"], pa.string())
        of_each = [f"{side}{of}.{name}" for of in ("", "_share") for name in names]
        kinds |= dict.fromkeys([f"{side}_total", f"{side}_advantage", *of_each], pa.float64())
    return pa.schema({**kinds, "rank_correlation": pa.float64()})


def _table(
    batch: ScoredBatch, old: ScoredBatch, new: ScoredBatch, before: int, schema: Any
) -> object:
    # A row per completion; what belongs to a group stands in each of its rows. `number`: of the
    # completion in the replay.
    import pyarrow as pa

    size, count = batch.num_generations, len(batch.completions)
    columns: Fields = {
        "step": np.full(count, batch.step),
        "group": np.repeat(batch.group_places, size),
        "generation": np.arange(count) % size,
        "number": np.arange(before, before + count),
        "prompt_id": batch.prompt_ids,
    }
    by_group: Fields = {}
    for side, trained, own in (("old", batch, old), ("new", new, new)):
        names = [*own.names, None]  # -1, in a dead group, is the last
        found = attribution(own)
        by_group[f"{side}_decider"] = [names[index] for index in found.deciders]
        by_group |= {
            f"{side}_share.{name}": shares
            for name, shares in zip(own.names, found.shares.T, strict=True)
        }
        by_group[f"{side}_dead"] = dead_kinds(own)
        columns |= {f"{side}_total": trained.totals, f"{side}_advantage": trained.advantages}
        columns |= {
            f"{side}.{name}": scores for name, scores in zip(own.names, own.scores.T, strict=True)
        }
    dead = [
        bool(was or now)
        for was, now in zip(by_group["old_dead"], by_group["new_dead"], strict=True)
    ]
    ranks = _rank_correlations(batch.advantages.reshape(-1, size), new.advantages.reshape(-1, size))
    by_group["rank_correlation"] = np.where(dead, np.nan, ranks)
    columns |= {
        name: [value for value in values for _ in range(size)] for name, values in by_group.items()
    }
    missing = np.full(count, np.nan)  # a function of another stage
    arrays = [
        pa.array(columns.get(field.name, missing), field.type, from_pandas=True) for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _rank_correlations(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    # Spearman's, within each of P groups, [P, G] -> [P]; NaN where all are equal. Equal but for
    # rounding is equal.
    from scipy.stats import rankdata

    first, second = (rankdata(np.round(values, 9), axis=1) for values in (old, new))
    first, second = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in (first, second))
    spread = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    return (first * second).sum(axis=1) / np.where(spread > 0, spread, np.nan)


def _counted(
    file: Path, hashes: dict[str, str], old_weights: dict[str, float], suite: RewardSuite
) -> Fields:
    # The fields of a `Replay` that are counts, by asking the file. `groups` has the first
    # completion of each group.
    import duckdb

    sign = (
        f"case when {{0}}_advantage > {NO_SIGN} then 2 when {{0}}_advantage < -{NO_SIGN} then 0"
        " else 1 end"
    )
    dead = (
        "select {0}_dead, count(*) from groups where {0}_dead is not null group by 1 order by 2"
        " desc, min(number)"
    )
    decided = f"coalesce(old_decider, '{DEAD}'), coalesce(new_decider, '{DEAD}')"
    with duckdb.connect() as connection:
        connection.read_parquet(str(file)).create_view("completions")
        connection.execute("create view groups as select * from completions where generation = 0")

        def ask(sql: str) -> list[Fields]:
            return connection.sql(sql).to_arrow_table().to_pylist()

        signs, of_signs = (
            np.zeros((3, 3), dtype=np.int64),
            f"{sign.format('old')}, {sign.format('new')}",
        )
        for was, now, count in connection.sql(
            f"select {of_signs}, count(*) from completions group by 1, 2"
        ).fetchall():
            signs[was, now] = count
        by_decider = (
            f"select {decided}, count(*) from groups group by 1, 2 order by 3 desc, min(number)"
        )
        deciders = {(was, now): count for was, now, count in connection.sql(by_decider).fetchall()}
        functions = []
        new_weights = dict(zip(suite.names, suite.weights, strict=True))
        for name in dict.fromkeys([*suite.names, *hashes]):
            old, new, quoted = hashes.get(name), suite.hashes.get(name), name.replace('"', '""')
            sides = ("old", old), ("new", new)
            was, now = (f'"{side}.{quoted}"' if there else "null::double" for side, there in sides)
            shares = [
                f'avg("{side}_share.{quoted}") as {side}_share' for side, there in sides if there
            ]
            differs = f"coalesce(abs({was} - {now}) > 1e-9, ({was} is null) <> ({now} is null))"
            counts = (
                f"avg({was}) as old_mean, avg({now}) as new_mean, count(*) filter (where {differs})"
                " as rescored"
            )
            [scored] = ask(f"select {counts} from completions")
            scored |= {
                "old_share": None,
                "new_share": None,
                **ask(f"select {', '.join(shares)} from groups")[0],
            }
            change = (
                "added"
                if old is None
                else "removed"
                if new is None
                else "same"
                if old == new
                else "changed"
            )
            known = {
                "old_hash": old,
                "new_hash": new,
                "old_weight": old_weights.get(name),
                "new_weight": new_weights.get(name),
            }
            scored["rescored"] = scored["rescored"] if old and new else None
            for place, side in enumerate(("old", "new")):
                scored[f"{side}_decided"] = sum(
                    count for pair, count in deciders.items() if pair[place] == name
                )
            functions.append({"name": name, "change": change, **known, **scored})
        [counts] = ask(
            """select count(*) as groups, count(old_dead) filter (new_dead is null) as came_alive,
                      count(new_dead) filter (old_dead is null) as died, count(rank_correlation) as ranked,
                      coalesce(avg(rank_correlation), 'nan') as rank_correlation from groups"""  # noqa: E501
        )
        steps = "step, count(*) as groups, count(old_dead) as old_dead, count(new_dead) as new_dead"
        return {
            **counts,
            "signs": signs,
            "old_dead": dict(connection.sql(dead.format("old")).fetchall()),
            "new_dead": dict(connection.sql(dead.format("new")).fetchall()),
            "deciders": deciders,
            "functions": functions,
            "steps": ask(f"select {steps} from groups group by step order by step"),
            "alive": ask("""select step, "group", prompt_id, old_dead, new_decider from groups
                    where old_dead is not null and new_dead is null order by number limit 100"""),
        }


def _changes(batch: ScoredBatch, new: ScoredBatch, most: int) -> Iterator[tuple[float, dict]]:
    # The completions of a batch whose advantage changes most, one per group: (by how much, the
    # example).
    size = batch.num_generations
    change = np.abs(new.advantages - batch.advantages).reshape(-1, size)
    for group in np.argsort(-change.max(axis=1), kind="stable")[:most]:
        if change[group].max() < NO_SIGN:
            return
        row = int(group * size + change[group].argmax())
        example: Fields = {
            "step": batch.step,
            "group": int(batch.group_places[group]),
            "generation": row % size,
        }
        prompt = batch.prompts[row]
        prompt = prompt if isinstance(prompt, str) else str(prompt[-1].get("content"))
        for name, text in (("prompt", prompt), ("completion", batch.completions[row])):
            example[name] = text if len(text) <= 200 else f"{text[:200]}…"
        for side, own in (("old", batch), ("new", new)):
            example |= {
                f"{side}_total": float(own.totals[row]),
                f"{side}_advantage": float(own.advantages[row]),
            }
            example[f"{side}_scores"] = dict(zip(own.names, own.scores[row].tolist(), strict=True))
        yield float(change[group].max()), example


def _notes(task: Task, functions: list[dict], same: bool, drift: float) -> Iterator[str]:
    # What a reader of the numbers should know.
    for name, func in zip(task.function_names, task.reward_funcs, strict=True):
        named: Any = ()
        with contextlib.suppress(TypeError, ValueError):  # a model has no signature
            named = inspect.signature(func).parameters
        if "completion_ids" in named:
            yield (
                f"{name} reads completion_ids: tokens are not recorded, only their number, so it"
                " was given that many zeros"
            )
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
