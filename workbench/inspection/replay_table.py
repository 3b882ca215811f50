"""The table of a replay: old and new side by side, and what is asked of it in SQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.base.kinds import Fields
from workbench.data.prompts import question
from workbench.rewards.groups import attribution, dead_kinds
from workbench.run.batch import ScoredBatch

if TYPE_CHECKING:
    import duckdb
    import pandas


DEAD = "(dead)"  # in place of a function's name, which has no brackets
NO_SIGN = 1e-6  # an advantage closer to 0 than this has no sign
ABOUT = 4_096  # completions that are inserted at a time: each time costs a write to disk
CUT = 200  # characters of a text in an example


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


class ReplayTable:
    """A row per completion on disk, inserted some thousands at a time."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, names: list[str]) -> None:
        self.connection, self.done = connection, 0
        self._held: list[pandas.DataFrame] = []
        connection.execute("set memory_limit = '1GB'")
        connection.execute(_table_sql(names))

    def add(self, batch: ScoredBatch, old: ScoredBatch, new: ScoredBatch) -> None:
        """Note a batch as it was recorded, as its recorded scores give it, and as it would be."""
        self._held.append(_frame(batch, old, new, self.done))
        self.done += len(batch.completions)
        if sum(map(len, self._held)) >= ABOUT:  # a part may be one small step
            self._insert()

    def _insert(self) -> None:
        import pandas

        if self._held:
            self.connection.append("completions", pandas.concat(self._held), by_name=True)
            self._held.clear()

    def finish(self, out: Path | None) -> None:
        """Find the groups, and write both sides into a Parquet file."""
        self._insert()
        self.connection.execute(_GROUPS)
        if out:
            self.connection.sql(_SIDE_BY_SIDE).write_parquet(str(out), compression="zstd")

    def counts(self, functions: list[Fields], examples: int) -> Fields:
        """The fields of a `Replay` that are counts; those of each function are added to it."""

        def ask(sql: str, **values: object) -> list[Fields]:
            answer = self.connection.sql(sql, params=values)
            return [dict(zip(answer.columns, row)) for row in answer.fetchall()]

        signs = np.zeros((3, 3), dtype=np.int64)
        for old, new, count in self.connection.sql(_SIGNS).fetchall():
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
            "old_dead": dict(self.connection.sql(_DEAD.format("old")).fetchall()),
            "new_dead": dict(self.connection.sql(_DEAD.format("new")).fetchall()),
            "deciders": {
                (old, new): count for old, new, count in self.connection.sql(_DECIDERS).fetchall()
            },
            "steps": ask(_STEPS),
            "alive": ask(_ALIVE),
            "examples": furthest,
        }


def _frame(batch: ScoredBatch, old: ScoredBatch, new: ScoredBatch, before: int) -> pandas.DataFrame:
    # A row per completion; what belongs to a group stands in each of its rows. `number`: of the
    # completion in the replay.
    import pandas

    size, count = batch.num_generations, len(batch.completions)
    columns: Fields = {
        "step": batch.step,
        "group": np.repeat(batch.group_places, size),
        "generation": np.arange(count) % size,
        "number": np.arange(before, before + count),
        "prompt_id": batch.prompt_ids,
        "prompt": [_cut(question(prompt)) for prompt in batch.prompts],
        "completion": list(map(_cut, batch.completions)),
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


def _cut(text: str) -> str:
    return text if len(text) <= CUT else f"{text[:CUT]}…"


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
