"""The rollout record: every completion of every group, with what the rewards saw and what they said.

One row per completion, in immutable Parquet parts (one per step), each written beside its place and renamed into it.
`read_batches` reads parts back as the batches that were scored; `query` asks DuckDB, so a question over millions of rows
needs no more memory than its answer.

Columns: `step`, `stage`, `group` (index of the prompt within its step), `prompt_id`, `generation` (index within the
group), `prompt` (JSON of the messages, or the text), `completion` (text), `length_tokens`, `finish_reason` ("stop" or
"length"), `columns` (JSON of the dataset columns that the rewards saw), `score.<function>` (None where the function
did not apply or failed), `error.<function>` (what it did instead; None if nothing), `weight.<function>`, `total`,
`group_mean`, `group_std`, `advantage`, `right`, `reward_hash`.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import RunError
from workbench.run.batch import Groups, ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.workspace import replace_file, shown, to_json

if TYPE_CHECKING:
    import pandas
    import pyarrow

_NUMBER = re.compile(r"\d+")
_PLACE = ("step", "group", "generation")
_BULKY = ("prompt", "columns", "reward_hash")  # what no number of a batch is made from
_FIXED = {
    "step": "int32",
    "stage": "string",
    "group": "int32",
    "prompt_id": "string",
    "generation": "int32",
    "prompt": "string",
    "completion": "string",
    "length_tokens": "int32",
    "finish_reason": "string",
    "columns": "string",
    "total": "float64",
    "group_mean": "float64",
    "group_std": "float64",
    "advantage": "float64",
    "right": "bool",
    "reward_hash": "string",
}


def schema(functions: list[str]) -> pyarrow.Schema:
    """The Parquet schema of a run with these reward functions."""
    return _schema(tuple(functions))


@functools.lru_cache(maxsize=16)
def _schema(functions: tuple[str, ...]) -> pyarrow.Schema:
    import pyarrow as pa

    kinds = {"int32": pa.int32(), "string": pa.string(), "float64": pa.float64(), "bool": pa.bool_()}
    fields = [(name, kinds[kind]) for name, kind in _FIXED.items()]
    for function in functions:
        fields += [(f"score.{function}", pa.float64()), (f"weight.{function}", pa.float64())]
        fields += [(f"error.{function}", pa.string())]
    return pa.schema(fields)


def columns_of(batch: ScoredBatch) -> dict[str, Any]:
    """A batch as the columns of its part."""
    total, size = len(batch.completions), batch.num_generations
    rows = {name: own for name, own in batch.columns.items() if name != "prompt_id"}
    columns: dict[str, Any] = {
        "step": np.full(total, batch.step, dtype=np.int32),
        "stage": [batch.stage] * total,
        "group": np.repeat(batch.group_places, size).astype(np.int32),
        "prompt_id": batch.prompt_ids,
        "generation": np.arange(total, dtype=np.int32) % size,
        "prompt": _each_once(batch.prompts, lambda own: own if isinstance(own, str) else _json(own)),
        "completion": batch.completions,
        "length_tokens": batch.lengths,
        "finish_reason": None if batch.finished is None else np.where(batch.finished, "stop", "length").tolist(),
        "columns": _each_once(
            list(zip(*rows.values(), strict=True)) or [()] * total,
            lambda row: _json(dict(zip(rows, map(to_json, row), strict=True))),
        ),
        "total": batch.groups.totals,
        "group_mean": batch.groups.means,
        "group_std": batch.groups.stds,
        "advantage": batch.groups.advantages,
        "right": batch.right,
        "reward_hash": [batch.reward_hash] * total,
    }
    for number, (name, weight) in enumerate(zip(batch.names, batch.weights, strict=True)):
        columns[f"score.{name}"] = np.ascontiguousarray(batch.scores[:, number])
        columns[f"weight.{name}"] = np.full(total, weight)
        if errors := batch.errors.get(name):
            columns[f"error.{name}"] = [errors.get(index) for index in range(total)]
    return columns


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _each_once(values: Sequence[Any], made: Callable[[Any], Any]) -> list[Any]:
    # The completions of a group have one prompt, and what belongs to it, between them.
    found: list[Any] = []
    for index, value in enumerate(values):
        found.append(found[-1] if index and value == values[index - 1] else made(value))
    return found


def write_part(folder: Path, step: int, columns: Mapping[str, Sequence[Any]], functions: list[str]) -> Path:
    """Write one step's completions as one immutable part, whole or not at all.

    Args:
        columns: by name, one value per completion; NaN in a column of numbers means no value. A column left out is empty.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Several processes may generate for one step (one part a rank), and one step may be generated more than once.
    number = 0
    while (part := folder / f"step-{step:07d}-{number:02d}.parquet").exists():
        number += 1
    made = schema(functions)
    count = len(next(iter(columns.values())))
    arrays = [_array(columns.get(field.name), field.type, count) for field in made]
    # A part has a few dozen rows, and a run thousands of parts: what pays in large files costs here.
    table = pa.Table.from_arrays(arrays, schema=made)
    with replace_file(part) as beside:
        pq.write_table(table, beside, compression="zstd", use_dictionary=False, write_statistics=["step"])
    return part


def _array(values: Sequence[Any] | None, kind: pyarrow.DataType, count: int) -> pyarrow.Array:
    import pyarrow as pa

    if values is None:
        return pa.nulls(count, kind)
    try:
        return pa.array(values, kind, from_pandas=True)
    except UnicodeEncodeError:
        # A lone surrogate in a completion is legal in Python and not in Parquet's UTF-8.
        return pa.array([value if value is None else _encodable(value) for value in values], kind)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def query(
    folder: Path, sql: str = 'select * from rollouts order by step, "group", generation', *, step: int | None = None
) -> pandas.DataFrame:
    """Ask the record. The table is called `rollouts`; the answer is a pandas frame.

    Args:
        step: the only step that the question is about: a record of thousands of parts need not be opened for one.

    Raises:
        RunError: if the run recorded nothing.
    """
    import duckdb

    parts(folder)
    own = "step-*.parquet" if step is None else f"step-{int(step):07d}-*.parquet"
    asked = own if any(folder.glob(own)) else "step-*.parquet"
    with duckdb.connect() as connection:
        source = str(folder / asked).replace("'", "''")
        connection.execute(f"create view rollouts as select * from read_parquet('{source}', union_by_name = true)")
        return connection.execute(sql).df()


def parts(folder: Path, steps: int | Iterable[int] | None = None) -> list[Path]:
    """The record's parts, in the order of their steps; of `steps` alone, or all.

    Raises:
        RunError: if the run recorded nothing.
    """
    found = list(folder.glob("step-*.parquet"))
    if not found:
        raise RunError(
            f"{shown(folder)}: no rollouts", rule="a run records a part per step", remedy="train for at least one step"
        )
    wanted = None if steps is None else {steps} if isinstance(steps, int) else set(steps)
    chosen = [part for part in found if wanted is None or _step_of(part) in wanted]
    return sorted(chosen, key=lambda part: [int(number) for number in _NUMBER.findall(part.stem)])


def last_step(run: RunDirectory) -> int:
    """The last step on record.

    Raises:
        RunError: if the run recorded nothing.
    """
    return _step_of(parts(run.rollouts)[-1])


def _step_of(part: Path) -> int:
    return int(_NUMBER.findall(part.stem)[0])


def read_batches(
    run: RunDirectory,
    steps: int | Iterable[int] | None = None,
    *,
    bare: bool = False,
    at_most: int | None = None,
    left_out: dict[str, str] | None = None,
) -> Iterator[ScoredBatch]:
    """A run's batches in order, read part by part; only the parts of `steps` are opened.

    Args:
        steps: one or several; None: all.
        bare, at_most: as for `read_part`.
        left_out: what cannot be used is left out and noted here, part by part; None: a part that cannot be read is an error.

    Raises:
        RunError: if the run recorded nothing, or a part cannot be read and `left_out` is None.
    """
    manifest = run.manifest()
    for part in parts(run.rollouts, steps):
        try:
            yield from read_part(part, manifest, bare=bare, at_most=at_most, left_out=left_out)
        except RunError as error:
            if left_out is None:
                raise
            left_out[part.name] = error.value.partition(": ")[2] or error.value


def batch_and_place(run: RunDirectory, step: int, index: int | None = None) -> tuple[ScoredBatch, int]:
    """The batch that holds one group of a step, and the group's place in it: `batch.group(place)` is the group alone.

    Args:
        index: counts the step's groups from 0; None: the one with the widest spread of totals, which taught most.

    Raises:
        RunError: if the run recorded no such group.
    """
    before, batches = 0, list(read_batches(run, step))
    if index is None and batches:
        batch = max(batches, key=lambda own: float(np.nan_to_num(own.groups.stds, nan=-1.0).max()))
        return batch, batch.most_telling
    for batch in batches:
        if index is not None and before <= index < before + batch.group_count:
            return batch, index - before
        before += batch.group_count
    raise RunError(
        f"step {step}" + ("" if index is None else f", group {index}") + ": not in the record",
        rule=f"that step has {before} groups" if before else f"the last step on record is {last_step(run)}",
        remedy=f"choose 0 to {before - 1}" if before else "choose a step on record",
    )


def read_part(
    part: Path,
    manifest: dict[str, Any] | None = None,
    *,
    bare: bool = False,
    at_most: int | None = None,
    left_out: dict[str, str] | None = None,
) -> Iterator[ScoredBatch]:
    """The batch of one part of the record; nothing if the part is empty.

    Args:
        manifest: of the run, for the settings of the part's stage; without it, G is the usual size of the part's groups.
        bare: without prompts, dataset columns and errors, which are most of a record.
        at_most: in pieces of whole groups, about so many completions each, where the settings let groups stand alone.
        left_out: notes the groups that are not of G completions, which are left out in any case.

    Raises:
        RunError: if it is not a whole Parquet file, or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(part) as file:
            there = file.schema_arrow.names
            names = [name.removeprefix("score.") for name in there if name.startswith("score.")]
            wanted = [name for name in _FIXED if not (bare and name in _BULKY)]
            wanted += [f"{kind}.{name}" for name in names for kind in ("score", "weight")]
            if missing := [name for name in wanted if name not in there and name not in ("stage", "reward_hash")]:
                raise RunError(
                    f"{shown(part)}: no column {missing[0]!r}",
                    rule="every part of the record has the columns of its run",
                    remedy="move that file out of the folder; the other parts are whole by themselves",
                )
            if not file.metadata.num_rows:
                return
            wanted += [] if bare else [f"error.{name}" for name in names]
            staged = "stage" in there and (manifest or {}).get("stages")
            known = stage_in(manifest or {}, file.read_row_group(0, columns=["stage"]).column(0)[0].as_py() if staged else None)
            aggregation = known["settings"].get("multi_objective_aggregation") or "sum_then_normalize"
            scale = known["settings"].get("scale_rewards", "group")
            # Scaled by the batch, an advantage depends on all groups of it: then a part stays in one piece.
            alone = aggregation == "sum_then_normalize" and scale != "batch"
            size, odd = known["settings"].get("num_generations"), 0
            for table in _pieces(file, [name for name in wanted if name in there], at_most if alone else None):
                sizes = np.diff([*_group_starts(table), len(table)])
                size = size or int(np.bincount(sizes).argmax())
                if (sizes != size).any():
                    odd += int((sizes != size).sum())
                    table = table.filter(np.repeat(sizes == size, sizes))
                if len(table):
                    yield _batch_of(
                        table, names, size, scale_rewards=scale, aggregation=aggregation, format_by=known["format_by"]
                    )
            if odd and left_out is not None:
                left_out[part.name] = f"{odd} groups that are not of {size} completions"
    except (pa.ArrowException, OSError) as error:
        raise _torn(part, error) from None


def _batch_of(table: pyarrow.Table, names: list[str], size: int, **settings: Any) -> ScoredBatch:
    there = set(table.column_names)

    def texts(name: str) -> list[str]:
        return table.column(name).to_pylist() if name in there else []

    def numbers(name: str) -> np.ndarray:
        return table.column(name).to_numpy().astype(np.float64)

    weights = {name: table.column(f"weight.{name}")[0].as_py() for name in names}
    names = [name for name in names if weights[name] is not None]  # others belong to another stage
    columns = _columns_from(texts("columns"))
    if any(ids := texts("prompt_id")):
        columns["prompt_id"] = ids
    errors = {name: {index: why for index, why in enumerate(texts(f"error.{name}")) if why is not None} for name in names}
    return ScoredBatch(
        step=int(table.column("step")[0].as_py()),
        stage=(table.column("stage")[0].as_py() if "stage" in there else None) or "1",
        names=names,
        weights=[weights[name] for name in names],
        num_generations=size,
        prompts=_each_once(texts("prompt"), _prompt),
        completions=texts("completion"),
        lengths=table.column("length_tokens").to_numpy(),
        columns=columns,
        scores=np.stack([numbers(f"score.{name}") for name in names], axis=1),
        groups=Groups(*map(numbers, ("total", "group_mean", "group_std", "advantage"))),
        right=table.column("right").to_numpy().astype(bool),
        finished=np.array([reason != "length" for reason in texts("finish_reason")]),
        reward_hash=(table.column("reward_hash")[0].as_py() if "reward_hash" in there else None) or "",
        errors={name: each for name, each in errors.items() if each},
        places=table.column("group").to_numpy()[::size],
        **settings,
    )


def _columns_from(rows: list[str]) -> dict[str, list[Any]]:
    made = _each_once(rows, lambda text: json.loads(text or "{}"))
    names = dict.fromkeys(itertools.chain.from_iterable(made))
    return {name: [row.get(name) for row in made] for name in names}


def _prompt(recorded: str) -> Any:
    # Messages are recorded as JSON, a prompt that is text as it is, be it JSON or not.
    if not recorded.startswith("[{"):
        return recorded
    try:
        messages = json.loads(recorded)
    except ValueError:
        return recorded
    return messages if all(isinstance(message, dict) and "role" in message for message in messages) else recorded


def stage_in(manifest: dict[str, Any], stage: str | None = None) -> dict[str, Any]:
    """What a manifest says of one stage: `settings` in force, `rewards`, `task` (its source), `right_by` and `format_by`.

    Of a run without stages, or where it says nothing of that one: what it says of the run.
    """
    about, settings = manifest.get("task") or {}, manifest.get("settings") or {}
    own = next((each for each in manifest.get("stages") or [] if each.get("name") == stage), {})
    return {
        "settings": {
            **(settings.get("asked") or {}),
            **(settings.get("in_force") or {}),
            **(own.get("settings") or {}),
        },
        "rewards": own.get("rewards") or manifest.get("rewards") or {},
        "task": own.get("task") or about.get("source"),
        "right_by": own.get("right_by", about.get("right_by")),
        "format_by": own.get("format_by", about.get("format_by")),
    }


def rows_in(part: Path) -> int:
    """Number of completions in a part, from its footer.

    Raises:
        RunError: if it is not a whole Parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(part).num_rows
    except (pa.ArrowException, OSError) as error:
        raise _torn(part, error) from None


def _pieces(file: Any, columns: list[str], about: int | None) -> Iterator[pyarrow.Table]:
    # Tables of `about` rows that never cut a group in two; None: the whole part in one.
    import pyarrow as pa

    if about is None:
        yield file.read(columns=columns)
        return
    rest, left = None, file.metadata.num_rows
    for batch in file.iter_batches(batch_size=about, columns=columns):
        table = pa.Table.from_batches([batch])
        table = pa.concat_tables([rest, table]).combine_chunks() if rest is not None else table
        left -= len(batch)
        # The last group may go on in the next batch.
        whole = int(_group_starts(table)[-1]) if left else len(table)
        if whole:
            yield table.slice(0, whole)
        rest = table.slice(whole)


def _group_starts(table: pyarrow.Table) -> np.ndarray:
    # Rows at which a group begins; the rows of a group lie together, its generations in order.
    step, group, generation = (table.column(name).to_numpy() for name in _PLACE)
    if not len(table):
        return np.zeros(0, dtype=int)
    begins = (np.diff(step) != 0) | (np.diff(group) != 0) | (np.diff(generation) <= 0)
    return np.concatenate([[0], np.flatnonzero(begins) + 1])


def _torn(part: Path, error: Exception) -> RunError:
    return RunError(
        f"{shown(part)}: {str(error).splitlines()[0]}",
        rule="a part of the record is a whole Parquet file",
        remedy="move that file out of the folder; the other parts are whole by themselves",
    )
